//! The backlog of one shard by pid: a FIFO per pid, taken in turns.
//!
//! Everything lives in two slabs and is linked by index, so that a steady flow of pids that come and go allocates
//! nothing. A lane exists while something is in it, or it is held. A *blocked* lane waits for the next try of its head, a
//! *held* one for a person; the others go on taking turns. Entries that are *bound* to the next of their lane are taken
//! with it or not at all.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use tokio::time::Instant;

use crate::barrier::HELD;
use crate::queue::{Entry, Load};

const NONE: usize = usize::MAX;

#[derive(Debug)]
struct Node<T> {
    entry: Option<Entry<T>>,
    next: usize,
    /// Is taken together with the next.
    bound: bool,
}

#[derive(Debug, Default)]
struct Lane {
    key: u64,
    head: usize,
    tail: usize,
    len: usize,
    blocked: Option<Instant>,
    held: bool,
    /// Whether `turns` holds it; a blocked or held lane may still be in there and is passed over.
    queued: bool,
}

#[derive(Debug)]
pub(crate) struct Lanes<T> {
    nodes: Vec<Node<T>>,
    free_nodes: Vec<usize>,
    lanes: Vec<Lane>,
    free_lanes: Vec<usize>,
    by_key: HashMap<u64, usize, BuildHasherDefault<Hashed>>,
    turns: VecDeque<usize>,
    due: BTreeSet<(Instant, usize)>,
    len: usize,
    ready: usize,
    held: usize,
}

/// A key is a hash already: FNV-1a mixes its low bits well, its high bits less, so they are folded in.
#[derive(Debug, Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = (self.0 << 8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

impl<T> Lanes<T> {
    pub(crate) fn new() -> Self {
        Self {
            nodes: Vec::new(),
            free_nodes: Vec::new(),
            lanes: Vec::new(),
            free_lanes: Vec::new(),
            by_key: HashMap::default(),
            turns: VecDeque::new(),
            due: BTreeSet::new(),
            len: 0,
            ready: 0,
            held: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether nothing that arrives has to go through a lane: there is none, not even an empty one that is held.
    pub(crate) fn are_idle(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Entries that may be taken now.
    pub(crate) fn ready(&self) -> usize {
        self.ready
    }

    /// Entries of lanes that are held.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// All entries.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Entries of one lane, and whether it is held.
    pub(crate) fn of(&self, key: u64) -> (usize, bool) {
        let lane = self.by_key.get(&key).map(|lane| &self.lanes[*lane]);
        lane.map_or((0, false), |lane| (lane.len, lane.held))
    }

    /// When the first blocked lane is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Adds an entry at the tail of its lane.
    pub(crate) fn push(&mut self, entry: Entry<T>) {
        let lane = self.lane(entry.key);
        let node = self.node(entry, false);
        let tail = std::mem::replace(&mut self.lanes[lane].tail, node);
        match tail {
            NONE => self.lanes[lane].head = node,
            tail => self.nodes[tail].next = node,
        }
        self.added(lane);
    }

    /// Puts an entry back at the head of its lane, which waits until then. Of several entries of one lane the last
    /// must come first; the time of the one put back last counts. One that is `bound` is never taken without the one
    /// that was put back before it.
    pub(crate) fn put_back(&mut self, entry: Entry<T>, bound: bool, until: Instant) {
        let lane = self.lane(entry.key);
        let node = self.node(entry, bound);
        let head = std::mem::replace(&mut self.lanes[lane].head, node);
        self.nodes[node].next = head;
        if head == NONE {
            self.lanes[lane].tail = node;
        }
        self.added(lane);
        if self.lanes[lane].held {
            return;
        }
        match self.lanes[lane].blocked.replace(until) {
            Some(earlier) => {
                self.due.remove(&(earlier, lane));
            }
            None => self.ready -= self.lanes[lane].len,
        }
        self.due.insert((until, lane));
    }

    /// Holds a lane, which exists from then on though it be empty; the sizes and epochs of its entries, which belong to
    /// none now.
    pub(crate) fn hold(&mut self, key: u64) -> (Load, Vec<u64>) {
        let lane = self.lane(key);
        let held = &mut self.lanes[lane];
        if std::mem::replace(&mut held.held, true) {
            return (Load::default(), Vec::new());
        }
        match held.blocked.take() {
            Some(until) => _ = self.due.remove(&(until, lane)),
            None => self.ready -= held.len,
        }
        self.held += held.len;
        let (mut load, mut epochs, mut node) = (Load::default(), Vec::with_capacity(held.len), held.head);
        while node != NONE {
            if let Some(entry) = &mut self.nodes[node].entry {
                load += Load::one(entry.bytes);
                epochs.push(std::mem::replace(&mut entry.epoch, HELD));
            }
            node = self.nodes[node].next;
        }
        (load, epochs)
    }

    /// Lets a lane go on; its entries are of this epoch.
    pub(crate) fn release(&mut self, key: u64, epoch: u64) {
        let Some(lane) = self.by_key.get(&key).copied().filter(|lane| self.lanes[*lane].held) else { return };
        self.lanes[lane].held = false;
        let mut node = self.lanes[lane].head;
        while node != NONE {
            if let Some(entry) = self.nodes[node].entry.as_mut().filter(|entry| entry.epoch == HELD) {
                entry.epoch = epoch;
            }
            node = self.nodes[node].next;
        }
        let len = self.lanes[lane].len;
        self.held -= len;
        self.ready += len;
        if len > 0 { self.enqueue(lane) } else { self.remove_idle(lane) }
    }

    /// Lets the lanes go on whose time has come.
    pub(crate) fn unblock(&mut self, now: Instant) {
        while let Some((at, lane)) = self.due.first().copied() {
            if at > now {
                return;
            }
            self.due.pop_first();
            self.lanes[lane].blocked = None;
            self.ready += self.lanes[lane].len;
            self.enqueue(lane);
        }
    }

    /// Takes entries, one of each lane in turn (with what is bound to it), until the bound is reached; the first whatever
    /// its size. With `once` at most one of each lane.
    pub(crate) fn take(&mut self, bound: Load, once: bool, mut with: impl FnMut(Entry<T>)) -> Load {
        let mut taken = Load::default();
        let mut had = Vec::new();
        while let Some(lane) = self.turns.front().copied() {
            if self.lanes[lane].blocked.is_some() || self.lanes[lane].held || self.lanes[lane].len == 0 {
                self.turns.pop_front();
                self.lanes[lane].queued = false;
                if self.lanes[lane].len == 0 {
                    self.remove_idle(lane);
                }
                continue;
            }
            let group = self.group(lane);
            let more = taken.plus(group);
            if taken.ops > 0 && !more.within(bound) {
                break;
            }
            self.turns.pop_front();
            self.lanes[lane].queued = false;
            for _ in 0..group.ops {
                let Some(entry) = self.pop(lane) else { continue };
                self.ready -= 1;
                with(entry);
            }
            if self.lanes[lane].len == 0 {
                self.remove_idle(lane);
            } else if once {
                had.push(lane);
            } else {
                self.enqueue(lane);
            }
            taken = more;
        }
        for lane in had {
            self.enqueue(lane);
        }
        taken
    }

    /// Takes everything out, in the order of each lane, and says whether that is held.
    pub(crate) fn clear(&mut self, mut with: impl FnMut(Entry<T>, bool)) {
        let lanes: Vec<usize> = self.by_key.drain().map(|(_, lane)| lane).collect();
        for lane in lanes {
            let held = self.lanes[lane].held;
            while let Some(entry) = self.pop(lane) {
                with(entry, held);
            }
        }
        *self = Self::new();
    }

    fn lane(&mut self, key: u64) -> usize {
        if let Some(lane) = self.by_key.get(&key) {
            return *lane;
        }
        let fresh = Lane { key, head: NONE, tail: NONE, ..Lane::default() };
        let lane = match self.free_lanes.pop() {
            Some(lane) => {
                self.lanes[lane] = fresh;
                lane
            }
            None => {
                self.lanes.push(fresh);
                self.lanes.len() - 1
            }
        };
        self.by_key.insert(key, lane);
        lane
    }

    /// The head of a lane that is not empty, and what it is bound to.
    fn group(&self, lane: usize) -> Load {
        let (mut group, mut node) = (Load::default(), self.lanes[lane].head);
        while node != NONE {
            let Node { entry, next, bound } = &self.nodes[node];
            group += Load::one(entry.as_ref().map_or(0, |entry| entry.bytes));
            if !bound {
                break;
            }
            node = *next;
        }
        group
    }

    fn node(&mut self, entry: Entry<T>, bound: bool) -> usize {
        let fresh = Node { entry: Some(entry), next: NONE, bound };
        match self.free_nodes.pop() {
            Some(node) => {
                self.nodes[node] = fresh;
                node
            }
            None => {
                self.nodes.push(fresh);
                self.nodes.len() - 1
            }
        }
    }

    fn added(&mut self, lane: usize) {
        self.lanes[lane].len += 1;
        self.len += 1;
        if self.lanes[lane].held {
            self.held += 1;
        } else if self.lanes[lane].blocked.is_none() {
            self.ready += 1;
            self.enqueue(lane);
        }
    }

    fn enqueue(&mut self, lane: usize) {
        if !std::mem::replace(&mut self.lanes[lane].queued, true) {
            self.turns.push_back(lane);
        }
    }

    fn pop(&mut self, lane: usize) -> Option<Entry<T>> {
        let head = self.lanes[lane].head;
        if head == NONE {
            return None;
        }
        self.lanes[lane].head = self.nodes[head].next;
        if self.lanes[lane].head == NONE {
            self.lanes[lane].tail = NONE;
        }
        self.lanes[lane].len -= 1;
        self.len -= 1;
        self.free_nodes.push(head);
        self.nodes[head].entry.take()
    }

    /// Forgets an empty lane, unless it is held or `turns` still names it.
    fn remove_idle(&mut self, lane: usize) {
        if self.lanes[lane].held || self.lanes[lane].queued {
            return;
        }
        if self.by_key.remove(&self.lanes[lane].key).is_some() {
            self.free_lanes.push(lane);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn entry(key: u64, body: u32) -> Entry<u32> {
        Entry { key, bytes: 10, epoch: 0, since: None, again: false, body }
    }

    fn take(lanes: &mut Lanes<u32>, ops: usize, bytes: u128) -> Vec<u32> {
        let mut taken = Vec::new();
        lanes.take(Load { ops, bytes }, false, |entry| taken.push(entry.body));
        taken
    }

    #[test]
    fn lanes_take_turns_and_each_is_a_fifo() {
        let mut lanes = Lanes::new();
        for body in 0..6 {
            lanes.push(entry(1, body));
        }
        lanes.push(entry(2, 20));
        lanes.push(entry(3, 30));
        assert_eq!(take(&mut lanes, 4, 1_000), [0, 20, 30, 1]);
        assert_eq!(take(&mut lanes, 100, 25), [2, 3], "bounded by bytes");
        assert_eq!(take(&mut lanes, 100, 5), [4], "the first goes whatever its size");
        assert_eq!(take(&mut lanes, 100, 1_000), [5]);
        assert!(lanes.is_empty() && lanes.ready() == 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_blocked_lane_waits_in_order_and_the_others_go_on() {
        let mut lanes = Lanes::new();
        for body in 0..4 {
            lanes.push(entry(1, body));
        }
        lanes.push(entry(2, 20));
        assert_eq!(take(&mut lanes, 3, 1_000), [0, 20, 1]);
        let until = Instant::now() + Duration::from_secs(1);
        lanes.put_back(entry(1, 1), false, until + Duration::from_secs(9));
        lanes.put_back(entry(1, 0), false, until);
        lanes.push(entry(1, 4));
        lanes.push(entry(2, 21));
        assert_eq!(lanes.ready(), 1);
        assert_eq!(take(&mut lanes, 100, 1_000), [21]);
        assert_eq!(lanes.next_due(), Some(until), "the time of the head counts");
        lanes.unblock(until - Duration::from_millis(1));
        assert_eq!(lanes.ready(), 0);
        lanes.unblock(until);
        assert_eq!(lanes.ready(), 5);
        assert_eq!(take(&mut lanes, 100, 1_000), [0, 1, 2, 3, 4]);
        assert!(lanes.is_empty() && lanes.next_due().is_none());
    }

    #[test]
    fn one_of_each_lane_where_more_are_not_wanted() {
        let mut lanes = Lanes::new();
        [(1, 10), (1, 11), (2, 20), (1, 12)].into_iter().for_each(|(key, body)| lanes.push(entry(key, body)));
        let mut taken = Vec::new();
        lanes.take(Load { ops: 100, bytes: 1_000 }, true, |entry| taken.push(entry.body));
        assert_eq!(taken, [10, 20]);
        assert_eq!(take(&mut lanes, 100, 1_000), [11, 12]);
        assert!(lanes.is_empty() && lanes.by_key.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_bound_is_taken_with_the_next_or_not_at_all() {
        let mut lanes = Lanes::new();
        let now = Instant::now();
        for (body, bound) in [(14, false), (13, false), (12, true), (11, true), (10, false)] {
            lanes.put_back(entry(1, body), bound, now);
        }
        lanes.unblock(now);
        lanes.push(entry(2, 20));
        lanes.push(entry(2, 21));
        assert_eq!(take(&mut lanes, 4, 1_000), [10, 20], "three more would be too many");
        assert_eq!(take(&mut lanes, 4, 1_000), [11, 12, 13, 21]);
        assert_eq!((lanes.ready(), lanes.len()), (1, 1));
        assert_eq!(take(&mut lanes, 4, 1_000), [14]);
    }

    #[test]
    fn a_held_lane_waits_until_it_is_released() {
        let mut lanes = Lanes::new();
        [(1, 10), (1, 11), (2, 20)].into_iter().for_each(|(key, body)| lanes.push(entry(key, body)));
        assert_eq!(lanes.hold(1), (Load { ops: 2, bytes: 20 }, vec![0, 0]));
        lanes.push(Entry { epoch: HELD, ..entry(1, 12) });
        assert_eq!((lanes.ready(), lanes.held(), lanes.of(1)), (1, 3, (3, true)));
        lanes.put_back(entry(1, 9), false, Instant::now());
        assert_eq!(take(&mut lanes, 100, 1_000), [20]);
        assert!(lanes.next_due().is_none(), "no time releases it");
        lanes.release(1, 7);
        let mut epochs = Vec::new();
        lanes.take(Load { ops: 100, bytes: 1_000 }, false, |entry| epochs.push((entry.body, entry.epoch)));
        assert_eq!(epochs, [(9, 0), (10, 7), (11, 7), (12, 7)]);
        assert_eq!((lanes.ready(), lanes.held(), lanes.by_key.len()), (0, 0, 0));
    }

    #[test]
    fn an_empty_lane_stays_held() {
        let mut lanes = Lanes::new();
        assert_eq!(lanes.hold(1), (Load::default(), Vec::new()));
        lanes.push(entry(1, 10));
        assert_eq!((lanes.ready(), lanes.held()), (0, 1));
        lanes.release(1, 0);
        assert_eq!(take(&mut lanes, 1, 1_000), [10]);
        lanes.hold(2);
        lanes.release(2, 0);
        assert!(lanes.by_key.is_empty());
    }
}
