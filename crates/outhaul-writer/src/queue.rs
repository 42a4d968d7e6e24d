//! What one shard has accepted and not taken: its inbox, its numbers, and the sends that wait for room in it.

use std::collections::VecDeque;
use std::ops::{AddAssign, SubAssign};
use std::sync::Arc;
use std::task::Waker;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::barrier::HELD;
use crate::held::{HeldPids, Why};
use crate::pruned::{Pruned, Waits};

/// Operations and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) ops: usize,
    /// Wide enough for any number of any size.
    pub(crate) bytes: u128,
}

impl Load {
    pub(crate) fn one(bytes: usize) -> Self {
        Self { ops: 1, bytes: bytes as u128 }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self { ops: self.ops.saturating_add(other.ops), bytes: self.bytes.saturating_add(other.bytes) }
    }

    /// What is above the other, in each.
    pub(crate) fn above(self, other: Self) -> Self {
        Self { ops: self.ops.saturating_sub(other.ops), bytes: self.bytes.saturating_sub(other.bytes) }
    }

    fn at_most(self, other: Self) -> Self {
        Self { ops: self.ops.min(other.ops), bytes: self.bytes.min(other.bytes) }
    }

    pub(crate) fn within(self, bound: Self) -> bool {
        self.ops <= bound.ops && self.bytes <= bound.bytes
    }

    pub(crate) fn half(self) -> Self {
        Self { ops: self.ops / 2, bytes: self.bytes / 2 }
    }
}

impl AddAssign for Load {
    fn add_assign(&mut self, other: Self) {
        *self = self.plus(other);
    }
}

impl SubAssign for Load {
    fn sub_assign(&mut self, other: Self) {
        self.ops -= other.ops;
        self.bytes -= other.bytes;
    }
}

/// Of so many operations one is timed while it waits.
pub(crate) const SAMPLED: u64 = 16;

/// An accepted operation on its way: `body` is the operation and its promise.
#[derive(Debug)]
pub(crate) struct Entry<T> {
    /// The lane: the hash of the pid, 0 without one. Two pids with one hash share their turns, and are held together,
    /// which costs them nothing but that.
    pub(crate) key: u64,
    pub(crate) bytes: usize,
    /// Set at acceptance, for the flushes.
    pub(crate) epoch: u64,
    /// When it was accepted: of one in [`SAMPLED`], since a look at the clock costs as much as the rest of it.
    pub(crate) since: Option<Instant>,
    /// It has been in the sink and come back, and may do so again: it keeps its room until it ends.
    pub(crate) again: bool,
    pub(crate) body: T,
}

/// A `send` that waits. It stays here, granted, until it takes its room or is dropped.
#[derive(Debug)]
struct Waiter {
    id: u64,
    key: u64,
    bytes: usize,
    waker: Waker,
}

/// A flush of one pid: what of it lies before this place of the inbox is to end.
#[derive(Debug)]
pub(crate) struct Mark {
    pub(crate) at: usize,
    pub(crate) key: u64,
    pub(crate) done: oneshot::Sender<()>,
}

impl Waits for Mark {
    fn done(&self) -> &oneshot::Sender<()> {
        &self.done
    }
}

/// What a shard's task finds.
#[derive(Debug)]
pub(crate) struct Found {
    /// Operations in the inbox.
    pub(crate) arrived: usize,
    /// Whether there is a mark or a release among them.
    pub(crate) errands: bool,
}

#[derive(Debug)]
pub(crate) struct ShardQueue<T> {
    capacity: Load,
    inbox: Vec<Entry<T>>,
    /// Accepted and not taken, wherever it is: here or in the lanes of the shard's task.
    pub(crate) depth: Load,
    /// Room granted to waiters that have not come for it yet.
    reserved: Load,
    /// In the order of arrival; the first `granted` of them have their room.
    waiters: VecDeque<Waiter>,
    granted: usize,
    next_waiter: u64,
    /// The length of the inbox at which the task wants to be woken, and how.
    wake_at: usize,
    task: Option<Waker>,
    pub(crate) latched: bool,
    /// It has refused what never fits, for which it has to be empty: half is not enough to release it.
    pub(crate) empties: bool,
    pub(crate) in_flight: usize,
    /// What of it has come back before: it keeps its room, or each try of a long outage would make some for more.
    pub(crate) kept: Load,
    pub(crate) applying_since: Option<Instant>,
    /// Its last call did not end in time.
    pub(crate) hung: bool,
    marks: Pruned<Mark>,
    /// Pids that wait to be acknowledged.
    pub(crate) held: HeldPids,
    /// Pids that were acknowledged, and the epoch of their operations from then on.
    released: Vec<(u64, u64)>,
    /// The task ends.
    ended: bool,
    /// It has accounted for all that it had.
    pub(crate) gone: bool,
}

impl<T> ShardQueue<T> {
    pub(crate) fn new(capacity: Load) -> Self {
        Self {
            capacity,
            inbox: Vec::new(),
            depth: Load::default(),
            reserved: Load::default(),
            waiters: VecDeque::new(),
            granted: 0,
            next_waiter: 0,
            wake_at: usize::MAX,
            task: None,
            latched: false,
            empties: false,
            in_flight: 0,
            kept: Load::default(),
            applying_since: None,
            hung: false,
            marks: Pruned::default(),
            held: HeldPids::default(),
            released: Vec::new(),
            ended: false,
            gone: false,
        }
    }

    /// What takes room: of what is held only that above half of the capacity.
    fn used(&self) -> Load {
        let beside = self.held.load().at_most(self.capacity.half());
        self.depth.above(beside).plus(self.kept).plus(self.reserved)
    }

    /// What goes away by itself, or is expected.
    pub(crate) fn busy(&self) -> Load {
        self.depth.above(self.held.load()).plus(self.kept).plus(self.reserved)
    }

    /// Whether nothing is in it but what is held, which only a person ends.
    pub(crate) fn is_drained(&self) -> bool {
        self.busy().ops == 0
    }

    pub(crate) fn fits(&self, load: Load) -> bool {
        !self.held.is_full() && self.used().plus(load).within(self.capacity)
    }

    /// Whether there is room for an operation, or a group of one shard: also for one that never fits.
    pub(crate) fn has_room(&self, load: Load) -> bool {
        self.fits(load) || !load.within(self.capacity) && self.has_room_for_all()
    }

    /// Whether there is room for what never fits.
    pub(crate) fn has_room_for_all(&self) -> bool {
        !self.held.is_full() && self.is_drained()
    }

    /// Whether so much waits for a person that new work of this pid may not wait for one too.
    pub(crate) fn is_held_up(&self, key: u64, load: Load) -> bool {
        self.held.is_full() || self.held.has(key) && !self.held.load().plus(load).within(self.capacity.half())
    }

    /// Whether sends wait that will get their room without a person.
    pub(crate) fn is_awaited(&self) -> bool {
        self.waiting() > 0 && !self.is_drained()
    }

    /// Sends without their room yet.
    pub(crate) fn waiting(&self) -> usize {
        self.waiters.len() - self.granted
    }

    /// Puts an accepted entry in; the task, if it is to be woken. The caller has counted it.
    pub(crate) fn push(&mut self, entry: Entry<T>) -> Option<Waker> {
        self.inbox.push(entry);
        if self.inbox.len() < self.wake_at { None } else { self.wake() }
    }

    /// The task, if it sleeps; it is told only once.
    pub(crate) fn wake(&mut self) -> Option<Waker> {
        self.wake_at = usize::MAX;
        self.task.take()
    }

    pub(crate) fn found(&self) -> Found {
        let errands = !self.marks.is_empty() || !self.released.is_empty();
        Found { arrived: self.inbox.len(), errands }
    }

    /// The task does not sleep: only what is more than an arrival wakes it.
    pub(crate) fn stay_up(&mut self) {
        self.wake_at = usize::MAX;
    }

    /// Asks for a wake-up when `want` entries have arrived; the waker that this replaces.
    pub(crate) fn park(&mut self, want: usize, waker: &Waker) -> Option<Waker> {
        self.wake_at = want;
        match &mut self.task {
            Some(known) if known.will_wake(waker) => None,
            task => task.replace(waker.clone()),
        }
    }

    /// Moves what has arrived to the (empty) `into`.
    pub(crate) fn drain(&mut self, into: &mut Vec<Entry<T>>) {
        std::mem::swap(&mut self.inbox, into);
    }

    /// Moves marks and releases out: those of the entries that are drained in the same step.
    pub(crate) fn errands(&mut self) -> (Vec<Mark>, Vec<(u64, u64)>) {
        (self.marks.take(), std::mem::take(&mut self.released))
    }

    /// Asks to be told when what was accepted of a pid has ended; the task, if it is to be woken.
    pub(crate) fn mark(&mut self, key: u64, done: oneshot::Sender<()>) -> Option<Waker> {
        if self.ended {
            // Dropped, it tells the same.
            return None;
        }
        self.marks.push(Mark { at: self.inbox.len(), key, done });
        self.wake()
    }

    /// The task ends: it does no more errands, and nothing is held any more.
    pub(crate) fn end(&mut self) {
        self.ended = true;
        self.marks = Pruned::default();
        self.held.clear();
    }

    /// Holds a pid of which the task has `load`; the epochs of those of it that are still in the inbox.
    pub(crate) fn hold(&mut self, key: u64, mut load: Load, why: &Arc<Why>) -> Vec<u64> {
        let mut epochs = Vec::new();
        for entry in self.inbox.iter_mut().filter(|entry| entry.key == key && entry.epoch != HELD) {
            load += Load::one(entry.bytes);
            epochs.push(std::mem::replace(&mut entry.epoch, HELD));
        }
        self.held.hold(key, why, load);
        epochs
    }

    /// Lets a pid go on; its operations are of this epoch now. The task, if it is to be woken.
    pub(crate) fn release(&mut self, key: u64, epoch: u64) -> Option<Waker> {
        self.held.release(key);
        for entry in self.inbox.iter_mut().filter(|entry| entry.key == key && entry.epoch == HELD) {
            entry.epoch = epoch;
        }
        self.released.push((key, epoch));
        self.wake()
    }

    pub(crate) fn enlist(&mut self, key: u64, bytes: usize, waker: Waker) -> u64 {
        let id = self.next_waiter;
        self.next_waiter += 1;
        self.waiters.push_back(Waiter { id, key, bytes, waker });
        id
    }

    /// The waiters in front get their room while it lasts, in the order of arrival.
    pub(crate) fn grant(&mut self, wakers: &mut Vec<Waker>) {
        while let Some(waiter) = self.waiters.get(self.granted) {
            let load = Load::one(waiter.bytes);
            if !self.has_room(load) {
                return;
            }
            wakers.push(waiter.waker.clone());
            self.reserved += load;
            self.granted += 1;
        }
    }

    /// Whether a send has its room and has not come for it.
    pub(crate) fn expects(&self) -> bool {
        self.granted > 0
    }

    /// Whether a send of this pid has its room and has not come for it.
    pub(crate) fn is_expected(&self, key: u64) -> bool {
        self.waiters.iter().any(|waiter| waiter.key == key)
    }

    /// Whether the waiter has its room, and none of its pid is before it; if not, whom to wake then. The stale waker is handed out, since dropping it
    /// under the lock might run anything.
    pub(crate) fn poll_waiter(&mut self, id: u64, waker: &Waker) -> (bool, Option<Waker>) {
        let Some(at) = self.position(id) else { return (false, None) };
        let key = self.waiters[at].key;
        if at < self.granted && self.waiters.iter().take(at).all(|waiter| waiter.key != key) {
            return (true, None);
        }
        let known = &mut self.waiters[at].waker;
        if known.will_wake(waker) {
            return (false, None);
        }
        (false, Some(std::mem::replace(known, waker.clone())))
    }

    /// Takes the waiter, and its room if it has some, off the list: its waker, and that of the next of its pid, which may
    /// have waited for it.
    pub(crate) fn dismiss(&mut self, id: u64) -> Option<(Waker, Option<Waker>)> {
        let at = self.position(id)?;
        let waiter = self.waiters.remove(at)?;
        if at < self.granted {
            self.granted -= 1;
            self.reserved -= Load::one(waiter.bytes);
        }
        let granted = self.waiters.range(at.min(self.granted)..self.granted);
        let next = granted.into_iter().find(|other| other.key == waiter.key);
        Some((waiter.waker, next.map(|next| next.waker.clone())))
    }

    /// Every waiter is to look again.
    pub(crate) fn wake_waiters(&self, wakers: &mut Vec<Waker>) {
        wakers.extend(self.waiters.iter().map(|waiter| waiter.waker.clone()));
    }

    fn position(&self, id: u64) -> Option<usize> {
        self.waiters.binary_search_by_key(&id, |waiter| waiter.id).ok()
    }
}
