//! The backlog of one shard by pid: a FIFO per pid, taken in turns.
//!
//! Everything lives in two slabs and is linked by index, so that a steady flow of pids that come and go allocates
//! nothing. A lane exists while it holds something. A *blocked* lane waits for the next try of its head; the others go
//! on taking turns.

use std::collections::{BTreeSet, HashMap, VecDeque};

use tokio::time::Instant;

use crate::queue::{Entry, Load};

const NONE: usize = usize::MAX;

#[derive(Debug)]
struct Node<T> {
    entry: Option<Entry<T>>,
    next: usize,
}

#[derive(Debug, Default)]
struct Lane {
    key: Option<u64>,
    head: usize,
    tail: usize,
    len: usize,
    blocked: Option<Instant>,
    /// Whether `turns` holds it; a blocked lane may still be in there and is passed over.
    queued: bool,
}

#[derive(Debug)]
pub(crate) struct Lanes<T> {
    nodes: Vec<Node<T>>,
    free_nodes: Vec<usize>,
    lanes: Vec<Lane>,
    free_lanes: Vec<usize>,
    by_key: HashMap<Option<u64>, usize>,
    turns: VecDeque<usize>,
    due: BTreeSet<(Instant, usize)>,
    len: usize,
    ready: usize,
}

impl<T> Lanes<T> {
    pub(crate) fn new() -> Self {
        Self {
            nodes: Vec::new(),
            free_nodes: Vec::new(),
            lanes: Vec::new(),
            free_lanes: Vec::new(),
            by_key: HashMap::new(),
            turns: VecDeque::new(),
            due: BTreeSet::new(),
            len: 0,
            ready: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Entries that may be taken now.
    pub(crate) fn ready(&self) -> usize {
        self.ready
    }

    /// When the first blocked lane is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Adds an entry at the tail of its lane.
    pub(crate) fn push(&mut self, entry: Entry<T>) {
        let lane = self.lane(entry.key);
        let node = self.node(entry);
        let tail = std::mem::replace(&mut self.lanes[lane].tail, node);
        match tail {
            NONE => self.lanes[lane].head = node,
            tail => self.nodes[tail].next = node,
        }
        self.added(lane);
    }

    /// Puts an entry back at the head of its lane, which waits until then. Of several entries of one lane the last
    /// must come first; the time of the one put back last counts.
    pub(crate) fn put_back(&mut self, entry: Entry<T>, until: Instant) {
        let lane = self.lane(entry.key);
        let node = self.node(entry);
        let head = std::mem::replace(&mut self.lanes[lane].head, node);
        self.nodes[node].next = head;
        if head == NONE {
            self.lanes[lane].tail = node;
        }
        self.added(lane);
        match self.lanes[lane].blocked.replace(until) {
            Some(earlier) => {
                self.due.remove(&(earlier, lane));
            }
            None => self.ready -= self.lanes[lane].len,
        }
        self.due.insert((until, lane));
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

    /// Takes entries, one of each lane in turn, until the bound is reached; the first whatever its size.
    pub(crate) fn take(&mut self, bound: Load, mut with: impl FnMut(Entry<T>)) -> Load {
        let mut taken = Load::default();
        while let Some(lane) = self.turns.front().copied() {
            if self.lanes[lane].blocked.is_some() {
                self.turns.pop_front();
                self.lanes[lane].queued = false;
                continue;
            }
            let bytes = self.nodes[self.lanes[lane].head].entry.as_ref().map_or(0, |entry| entry.bytes);
            let more = taken.plus(Load::one(bytes));
            if taken.ops > 0 && !more.within(bound) {
                break;
            }
            self.turns.pop_front();
            self.lanes[lane].queued = false;
            let Some(entry) = self.pop(lane) else { continue };
            self.ready -= 1;
            if self.lanes[lane].len > 0 {
                self.enqueue(lane);
            } else {
                self.remove(lane);
            }
            taken = more;
            with(entry);
        }
        taken
    }

    /// Takes everything out, in the order of each lane.
    pub(crate) fn clear(&mut self, mut with: impl FnMut(Entry<T>)) {
        let lanes: Vec<usize> = self.by_key.drain().map(|(_, lane)| lane).collect();
        for lane in lanes {
            while let Some(entry) = self.pop(lane) {
                with(entry);
            }
        }
        *self = Self::new();
    }

    fn lane(&mut self, key: Option<u64>) -> usize {
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

    fn node(&mut self, entry: Entry<T>) -> usize {
        let fresh = Node { entry: Some(entry), next: NONE };
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
        if self.lanes[lane].blocked.is_none() {
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

    fn remove(&mut self, lane: usize) {
        self.by_key.remove(&self.lanes[lane].key);
        self.free_lanes.push(lane);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn entry(key: u64, body: u32) -> Entry<u32> {
        Entry { key: Some(key), bytes: 10, epoch: 0, body }
    }

    fn take(lanes: &mut Lanes<u32>, ops: usize, bytes: usize) -> Vec<u32> {
        let mut taken = Vec::new();
        lanes.take(Load { ops, bytes }, |entry| taken.push(entry.body));
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
        lanes.put_back(entry(1, 1), until + Duration::from_secs(9));
        lanes.put_back(entry(1, 0), until);
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
}
