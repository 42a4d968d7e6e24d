//! The one lock of a writer: who gets in, and when the latch is set.
//!
//! Every decision is made on [`State`] under one mutex in a few dozen nanoseconds: room in several shards is checked
//! and taken in one step, an operation is counted before the shard's task can see it, and a refusal sets the latch in
//! the step in which it saw no room, so no drain falls between. What may run foreign code – wakers, logs – is collected
//! in [`Effects`] and happens after the lock is released.
//!
//! **Room.** A shard takes what keeps its backlog within its capacity; what has come back from the sink once is part of it
//! until it ends, in the sink too. What could never fit – an operation larger than
//! the byte budget, a group larger than the count – is taken when every shard it touches is empty, and queues behind
//! nobody. Its refusal keeps new work away from all of them until they are empty together, not half. Who comes first then is
//! taken: no room is kept for it.
//!
//! **Latch.** Set by a refusal for want of room and by a `send` that has to wait; released when no `send` waits and the
//! backlog is at or below half of the capacity, on the whole and on each shard that latched. A refusal below these
//! marks (of a large group) sets nothing, since it would be released in the same step.
//!
//! **Held.** What waits for a person counts for neither: it takes room only above half of its shard's capacity, so that
//! the others have theirs, and it keeps no latch, nor does a `send` that waits for it alone. New work of a held pid is
//! refused where it would go beyond that half.

use std::sync::{Arc, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::barrier::{Barriers, HELD};
use crate::foreign::{discard, guard};
use crate::held::{Held, Hold};
use crate::queue::{Entry, Load, SAMPLED, ShardQueue};
use crate::report::Failures;
use crate::sync::{Mutex, MutexGuard, now};
use crate::{CloseReport, Histogram, LatchScope, RefusedReason, WriterOptions, WriterStats};

/// The depth from which on each further power of two is warned about.
const DEPTH_WARNING: usize = 1_024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Takes operations.
    Open,
    /// Takes none, and drains.
    Closing,
    /// Dropped without a close; its tasks are aborted.
    Dropped,
    /// Ended.
    Closed,
}

pub(crate) struct State<T> {
    shards: Vec<ShardQueue<T>>,
    /// Capacity of one shard, and of all.
    capacity: Load,
    capacity_whole: Load,
    scope: LatchScope,
    phase: Phase,
    latched_shards: usize,
    ended_shards: usize,
    depth_warning: usize,
    pub(crate) barriers: Barriers,
    /// What a close, or a drop, gave up.
    not_written: u64,
    abandoned: u64,
    /// What the first close told.
    closed: Option<CloseReport>,
    /// The counters; the gauges in it are filled in by `stats`.
    counters: WriterStats,
}

/// What follows from a step, after the lock.
#[derive(Default)]
pub(crate) struct Effects {
    /// The first task to wake: mostly there is no other.
    task: Option<Waker>,
    pub(crate) wakers: Vec<Waker>,
    /// Wakers of no more use: dropping one may run anything, so it happens outside as well.
    pub(crate) stale: Vec<Waker>,
    latched: Option<usize>,
    released: bool,
    deep: Option<usize>,
}

impl Effects {
    fn happen(self) {
        if let Some(shard) = self.latched {
            tracing::warn!(shard, "saturated: new work is refused until the backlog has halved");
        }
        if self.released {
            tracing::info!("no longer saturated: new work is taken again");
        }
        if let Some(depth) = self.deep {
            tracing::warn!(depth, "the backlog is deeper than ever");
        }
        for waker in self.task.into_iter().chain(self.wakers) {
            guard("waker", || waker.wake());
        }
        discard(self.stale);
    }
}

/// What a shard's task sees when it looks for work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// There is enough.
    Arrived,
    /// A flush of one pid waits, or a pid was released; or a lane is due.
    Errands,
    /// There is nothing and will be nothing.
    Nothing,
}

/// How a call of the sink ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Ended {
    #[default]
    Answered,
    Panicked,
    TimedOut,
}

/// How a batch ended, for the books.
#[derive(Default)]
pub(crate) struct Settled {
    pub(crate) ended: Ended,
    pub(crate) took: Duration,
    pub(crate) applied: u64,
    pub(crate) coalesced: u64,
    pub(crate) retried: Load,
    pub(crate) failures: Failures,
    /// How long those waited that were tried for the first time.
    pub(crate) queue_us: Histogram,
    /// Pids that wait to be acknowledged from now on.
    pub(crate) holds: Vec<Hold>,
}

pub(crate) struct Gate<T> {
    state: Mutex<State<T>>,
    shards: usize,
    floor: watch::Sender<u64>,
    /// How many tasks are gone, with all that they had.
    gone: watch::Sender<usize>,
}

/// Says when it is dropped that its task is gone: the last thing of a shard.
pub(crate) struct Last<T>(Arc<Gate<T>>);

impl<T> Last<T> {
    pub(crate) fn of(gate: &Arc<Gate<T>>) -> Self {
        Self(Arc::clone(gate))
    }
}

impl<T> Drop for Last<T> {
    fn drop(&mut self) {
        guard("waker", || self.0.gone.send_modify(|gone| *gone += 1));
    }
}

impl<T> Gate<T> {
    pub(crate) fn new(options: &WriterOptions, shards: usize) -> Self {
        let capacity = Load {
            ops: (options.ops_max.get() / shards).max(1),
            bytes: (options.bytes_max.get() / shards).max(1) as u128,
        };
        let state = State {
            shards: (0..shards).map(|_| ShardQueue::new(capacity)).collect(),
            capacity,
            capacity_whole: Load {
                ops: capacity.ops.saturating_mul(shards),
                bytes: capacity.bytes.saturating_mul(shards as u128),
            },
            scope: options.latch,
            phase: Phase::Open,
            latched_shards: 0,
            ended_shards: 0,
            depth_warning: DEPTH_WARNING,
            barriers: Barriers::new(),
            not_written: 0,
            abandoned: 0,
            closed: None,
            counters: WriterStats::default(),
        };
        Self { state: Mutex::new(state), shards, floor: watch::Sender::new(0), gone: watch::Sender::new(0) }
    }

    pub(crate) fn shards(&self) -> usize {
        self.shards
    }

    /// One step under the lock, then its effects.
    pub(crate) fn step<R>(&self, step: impl FnOnce(&mut State<T>, &mut Effects) -> R) -> R {
        let mut effects = Effects::default();
        let result = step(&mut self.lock(), &mut effects);
        effects.happen();
        result
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // No step panics half-way through a change; a poisoned lock says only that some thread panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the flushes go on that waited for this.
    pub(crate) fn reached(&self, floor: Option<u64>) {
        let Some(floor) = floor else { return };
        let raise = |known: &mut u64| {
            let higher = floor > *known;
            *known = floor.max(*known);
            higher
        };
        guard("waker", || self.floor.send_if_modified(raise));
    }

    /// Returns when every operation of the epochs before `floor` has ended.
    pub(crate) async fn floor_reached(&self, floor: u64) {
        let mut floors = self.floor.subscribe();
        // The sender is in `self`: it outlives this borrow, so there is no error to handle.
        let reached = floors.wait_for(|known| *known >= floor).await.is_ok();
        debug_assert!(reached, "the sender of the floor is gone");
    }

    /// Returns when every task is gone.
    pub(crate) async fn all_gone(&self) {
        let gone = self.gone.subscribe().wait_for(|gone| *gone >= self.shards).await.is_ok();
        debug_assert!(gone, "the sender is in the gate");
    }

    /// Nothing is taken from here on. Happens only in the phase `from`; whether it did.
    pub(crate) fn shut(&self, to: Phase, from: Phase) -> bool {
        self.step(|state, effects| {
            let shut = state.phase == from;
            if shut {
                state.phase = to;
                for shard in &mut state.shards {
                    shard.wake_waiters(&mut effects.wakers);
                    effects.wakers.extend(shard.wake());
                }
            }
            shut
        })
    }
}

impl<T> State<T> {
    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// All tasks have ended, or are not waited for any more. Each time the same.
    pub(crate) fn closed(&mut self) -> CloseReport {
        if let Some(report) = &self.closed {
            return report.clone();
        }
        self.phase = Phase::Closed;
        let mut report = CloseReport {
            failures: self.barriers.take_unreported(),
            not_written: self.not_written,
            abandoned: self.abandoned,
        };
        for queue in self.shards.iter().filter(|queue| !queue.gone) {
            let (waiting, in_sink) = (queue.depth.ops as u64, queue.in_flight as u64);
            report.not_written += waiting;
            report.abandoned += in_sink;
            report.failures.failed += waiting + in_sink;
        }
        self.closed = Some(report.clone());
        report
    }

    pub(crate) fn shard(&mut self, shard: usize) -> &mut ShardQueue<T> {
        &mut self.shards[shard]
    }

    /// Counts operations as ended, for the flushes; their tickets are resolved. How far everything has ended, if a flush
    /// waits for that.
    pub(crate) fn ended(&mut self, epochs: &[(u64, usize)]) -> Option<u64> {
        for (epoch, ops) in epochs {
            self.barriers.ended(*epoch, *ops);
        }
        self.barriers.awaited_floor()
    }

    /// Looks for work on behalf of a shard's task, which sleeps unless so much has arrived. It ends if all that is left
    /// in it is held and nothing will come.
    pub(crate) fn look(
        &mut self,
        shard: usize,
        want: usize,
        only_held: bool,
        waker: &Waker,
        effects: &mut Effects,
    ) -> Poll<Seen> {
        let open = self.phase == Phase::Open;
        let queue = &mut self.shards[shard];
        let found = queue.found();
        let seen = if self.phase == Phase::Closed {
            // Closed without it: what waits was reported as not written, and stays so.
            queue.end();
            Seen::Nothing
        } else if found.errands {
            Seen::Errands
        } else if found.arrived >= want {
            Seen::Arrived
        } else if open || !only_held {
            effects.stale.extend(queue.park(want, waker));
            return Poll::Pending;
        } else {
            queue.end();
            Seen::Nothing
        };
        queue.stay_up();
        Poll::Ready(seen)
    }

    /// The task takes the whole inbox if that is all it has and fits into a batch; whether it did.
    pub(crate) fn take_all(
        &mut self,
        shard: usize,
        bound: Load,
        into: &mut Vec<Entry<T>>,
        now: Instant,
        effects: &mut Effects,
    ) -> Option<Load> {
        let queue = &mut self.shards[shard];
        let load = queue.depth;
        if self.phase == Phase::Closed || !load.within(bound) || load.ops == 0 || queue.found().errands {
            return None;
        }
        queue.drain(into);
        self.taken(shard, load, Load::default(), now, effects);
        Some(load)
    }

    /// How many operations wait to be acknowledged, of a pid's shard and key or of all.
    pub(crate) fn held(&self, of: Option<(usize, u64)>) -> u64 {
        let held = match of {
            None => self.shards.iter().map(|queue| queue.held.load().ops).sum(),
            Some((shard, key)) => self.shards[shard].held.of(key).ops,
        };
        held as u64
    }

    /// The pids that wait to be acknowledged.
    pub(crate) fn held_pids(&self) -> Vec<Held> {
        self.shards.iter().flat_map(|queue| queue.held.all().cloned()).collect()
    }

    /// Lets a held pid go on; whether it was held.
    pub(crate) fn release_pid(&mut self, shard: usize, key: u64, effects: &mut Effects) -> bool {
        if !self.shards[shard].held.has(key) {
            return false;
        }
        let ops = self.shards[shard].held.of(key).ops;
        let epoch = self.barriers.accepted(ops);
        effects.wakers.extend(self.shards[shard].release(key, epoch));
        // There may be room again for new pids.
        self.eased(shard, effects);
        true
    }

    /// Admits new work to one shard, where there is room for it, or refuses.
    pub(crate) fn admit(
        &mut self,
        shard: usize,
        (key, bytes): (u64, usize),
        effects: &mut Effects,
    ) -> Result<(), RefusedReason> {
        let load = Load::one(bytes);
        self.admit_open(load.ops, self.is_latched(shard))?;
        let queue = &self.shards[shard];
        if queue.is_held_up(key, load) {
            return Err(self.held_up(load.ops));
        }
        // Sends that wait for a person set no latch, and are not overtaken either.
        if queue.waiting() == 0 && !queue.is_expected(key) && queue.has_room(load) {
            return Ok(());
        }
        self.counters.refused += load.ops as u64;
        self.latch([shard], !load.within(self.capacity), effects);
        Err(RefusedReason::Saturated)
    }

    /// Admits new work to several shards (`loads[shard]`): room in each, or none is taken.
    pub(crate) fn admit_all(
        &mut self,
        loads: &[Load],
        entries: &[(usize, Entry<T>)],
        effects: &mut Effects,
    ) -> Result<(), RefusedReason> {
        let touched = || loads.iter().enumerate().filter(|(_, load)| load.ops > 0);
        let ops = loads.iter().map(|load| load.ops).sum();
        self.admit_open(ops, touched().any(|(shard, _)| self.is_latched(shard)))?;
        if touched().any(|(shard, _)| self.is_group_held_up(shard, entries)) {
            return Err(self.held_up(ops));
        }
        let oversize = touched().any(|(_, load)| !load.within(self.capacity));
        let lacks = |shard: usize, load: Load| {
            let queue = &self.shards[shard];
            let expected = || entries.iter().any(|(at, entry)| *at == shard && queue.is_expected(entry.key));
            queue.waiting() > 0
                || queue.expects() && expected()
                || if oversize { !queue.has_room_for_all() } else { !queue.fits(load) }
        };
        let lacking: Vec<usize> =
            touched().filter(|(shard, load)| lacks(*shard, **load)).map(|(shard, _)| shard).collect();
        if lacking.is_empty() {
            return Ok(());
        }
        self.counters.refused += ops as u64;
        if oversize {
            // All of its shards have to be empty at the same time.
            let touched: Vec<usize> = touched().map(|(shard, _)| shard).collect();
            self.latch(touched, true, effects);
        } else {
            self.latch(lacking, false, effects);
        }
        Err(RefusedReason::Saturated)
    }

    /// Whether so much waits for a person in a shard that those of a group may not wait for one too.
    fn is_group_held_up(&self, shard: usize, entries: &[(usize, Entry<T>)]) -> bool {
        let queue = &self.shards[shard];
        if queue.held.len() == 0 {
            return false;
        }
        let mut of_held = Load::default();
        entries.iter().any(|(at, entry)| {
            let held = *at == shard && queue.held.has(entry.key);
            of_held += if held { Load::one(entry.bytes) } else { Load::default() };
            *at == shard && queue.is_held_up(entry.key, of_held)
        })
    }

    /// Refuses what only a person makes room for: no latch, since nothing would release it.
    fn held_up(&mut self, ops: usize) -> RefusedReason {
        self.counters.refused += ops as u64;
        RefusedReason::Held
    }

    fn admit_open(&mut self, ops: usize, latched: bool) -> Result<(), RefusedReason> {
        if self.phase != Phase::Open {
            return Err(RefusedReason::Closed);
        }
        if latched {
            self.counters.refused += ops as u64;
            return Err(RefusedReason::Saturated);
        }
        Ok(())
    }

    /// Whether bookkeeping of this pid has room now, behind nobody: also not behind one of the same pid that has its room
    /// but has not come for it.
    pub(crate) fn has_room(&self, shard: usize, key: u64, bytes: usize) -> bool {
        let queue = &self.shards[shard];
        queue.waiting() == 0 && !queue.is_expected(key) && queue.has_room(Load::one(bytes))
    }

    /// Bookkeeping waits for room: the latch is set, whatever the backlog, so that nothing gets in before it – unless it
    /// waits for a person.
    pub(crate) fn enlist(
        &mut self,
        shard: usize,
        (key, bytes): (u64, usize),
        waker: Waker,
        effects: &mut Effects,
    ) -> u64 {
        let id = self.shards[shard].enlist(key, bytes, waker);
        self.counters.stalled += 1;
        // There may be room, and only one of its pid before it.
        self.shards[shard].grant(&mut effects.wakers);
        self.latch([shard], false, effects);
        id
    }

    /// A waiter takes its room, which is the caller's now, or gives it up.
    pub(crate) fn dismiss(&mut self, shard: usize, id: u64, effects: &mut Effects) {
        if let Some((stale, next)) = self.shards[shard].dismiss(id) {
            effects.stale.push(stale);
            effects.wakers.extend(next);
        }
    }

    /// Puts in what was admitted.
    pub(crate) fn push(&mut self, shard: usize, mut entry: Entry<T>, effects: &mut Effects) {
        let held = self.shards[shard].held.has(entry.key);
        if held {
            entry.epoch = HELD;
            self.shards[shard].held.add(entry.key, Load::one(entry.bytes));
        } else {
            entry.epoch = self.barriers.accepted(1);
        }
        if self.counters.accepted.is_multiple_of(SAMPLED) {
            entry.since = Some(now());
        }
        self.counters.accepted += 1;
        self.deepen(shard, Load::one(entry.bytes), effects);
        if let Some(task) = self.shards[shard].push(entry) {
            effects.wakers.extend(effects.task.replace(task));
        }
        if held {
            // Room that was promised to it is held now, and what is left may all be.
            self.eased(shard, effects);
        }
    }

    /// The task hands a batch to the sink; `kept` of it has come back before.
    pub(crate) fn taken(
        &mut self,
        shard: usize,
        load: Load,
        kept: Load,
        now: Instant,
        effects: &mut Effects,
    ) {
        let queue = &mut self.shards[shard];
        queue.depth -= load;
        queue.kept = kept;
        queue.in_flight = load.ops;
        queue.applying_since = Some(now);
        self.counters.depth -= load.ops;
        self.counters.batches += 1;
        self.counters.batch_ops.note(load.ops as u64);
        self.eased(shard, effects);
    }

    /// The sink has answered.
    pub(crate) fn settled(&mut self, shard: usize, settled: &Settled, effects: &mut Effects) {
        let queue = &mut self.shards[shard];
        queue.in_flight = 0;
        let kept = std::mem::take(&mut queue.kept);
        queue.applying_since = None;
        queue.hung = settled.ended == Ended::TimedOut;
        for Hold { key, why, load, epochs } in &settled.holds {
            let more = queue.hold(*key, *load, why);
            epochs.iter().chain(&more).for_each(|epoch| self.barriers.ended(*epoch, 1));
        }
        self.counters.applied += settled.applied;
        self.counters.coalesced += settled.coalesced;
        self.counters.failed += settled.failures.count();
        self.counters.retried += settled.retried.ops as u64;
        self.counters.panicked += u64::from(settled.ended == Ended::Panicked);
        self.counters.timed_out += u64::from(settled.ended == Ended::TimedOut);
        self.counters.commit_us.note_duration(settled.took);
        self.counters.queue_us.merge(&settled.queue_us);
        if settled.retried.ops > 0 {
            self.deepen(shard, settled.retried, effects);
        }
        self.barriers.failed(&settled.failures);
        if !settled.holds.is_empty() || kept.ops > 0 {
            // What kept its room may have ended, and the shard be empty but for what is held now.
            self.eased(shard, effects);
        }
    }

    /// What a shard has accepted and not settled.
    pub(crate) fn outstanding(&self, shard: usize) -> u64 {
        let queue = &self.shards[shard];
        (queue.depth.ops + queue.in_flight) as u64
    }

    /// A shard ends with a backlog; all that it had is in `settled`.
    pub(crate) fn abandoned(
        &mut self,
        shard: usize,
        (waiting, in_sink): (u64, u64),
        settled: &Settled,
        effects: &mut Effects,
    ) {
        self.not_written += waiting;
        self.abandoned += in_sink;
        let queue = &mut self.shards[shard];
        let depth = std::mem::take(&mut queue.depth);
        queue.gone = true;
        queue.in_flight = 0;
        queue.kept = Load::default();
        queue.applying_since = None;
        self.counters.depth -= depth.ops;
        self.counters.applied += settled.applied;
        self.counters.coalesced += settled.coalesced;
        self.counters.failed += settled.failures.count();
        self.barriers.failed(&settled.failures);
        self.eased(shard, effects);
    }

    /// As [`ended`](Self::ended), of a shard that is gone; with the last of them everything has ended, also what a panic
    /// has lost.
    pub(crate) fn ended_for_good(&mut self, epochs: &[(u64, usize)]) -> Option<u64> {
        self.ended(epochs);
        self.ended_shards += 1;
        if self.ended_shards == self.shards.len() {
            self.barriers.end_all();
        }
        self.barriers.awaited_floor()
    }

    /// Room has come free in a shard.
    pub(crate) fn eased(&mut self, shard: usize, effects: &mut Effects) {
        self.shards[shard].grant(&mut effects.wakers);
        self.release(effects);
    }

    pub(crate) fn is_saturated(&self) -> bool {
        self.latched_shards > 0
    }

    pub(crate) fn stats(&self, now: Instant) -> WriterStats {
        let oldest = self.shards.iter().filter_map(|queue| queue.applying_since).min();
        let bytes = self.shards.iter().map(|queue| queue.depth.bytes).sum::<u128>();
        WriterStats {
            depth_bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
            in_flight: self.shards.iter().map(|queue| queue.in_flight).sum(),
            waiting: self.shards.iter().map(ShardQueue::waiting).sum(),
            latched: self.is_saturated(),
            hung_shards: self.shards.iter().filter(|queue| queue.hung).count(),
            held: self.shards.iter().map(|queue| queue.held.load().ops).sum(),
            held_pids: self.shards.iter().map(|queue| queue.held.len()).sum(),
            applying_for: oldest.map(|since| now.saturating_duration_since(since)),
            ..self.counters
        }
    }

    fn is_latched(&self, shard: usize) -> bool {
        match self.scope {
            LatchScope::Whole => self.latched_shards > 0,
            LatchScope::Shard => self.shards[shard].latched,
        }
    }

    fn deepen(&mut self, shard: usize, load: Load, effects: &mut Effects) {
        self.shards[shard].depth += load;
        self.counters.depth += load.ops;
        self.counters.high_water = self.counters.high_water.max(self.counters.depth);
        if self.counters.depth >= self.depth_warning {
            effects.deep = Some(self.counters.depth);
            self.depth_warning = (self.counters.depth + 1).next_power_of_two();
        }
    }

    /// Closes shards to new work; with `empties` until they are empty, for somebody who needs that.
    fn latch(&mut self, shards: impl IntoIterator<Item = usize>, empties: bool, effects: &mut Effects) {
        let before = self.latched_shards;
        let mut last = None;
        for shard in shards {
            self.shards[shard].empties |= empties;
            if !std::mem::replace(&mut self.shards[shard].latched, true) {
                self.latched_shards += 1;
                last = Some(shard);
            }
        }
        self.release_below_marks();
        let begins = match self.scope {
            LatchScope::Whole => before == 0,
            LatchScope::Shard => true,
        };
        if begins && self.latched_shards > before {
            effects.latched = last;
            self.counters.latches += 1;
        }
    }

    fn release(&mut self, effects: &mut Effects) {
        let before = self.latched_shards;
        self.release_below_marks();
        effects.released |= match self.scope {
            LatchScope::Whole => before > 0 && self.latched_shards == 0,
            LatchScope::Shard => self.latched_shards < before,
        };
    }

    fn release_below_marks(&mut self) {
        if self.latched_shards == 0 {
            return;
        }
        let mark = self.capacity.half();
        // Those that have to be empty are released together.
        let emptied = self.shards.iter().filter(|queue| queue.empties).all(ShardQueue::is_drained);
        let below = |queue: &ShardQueue<T>| {
            let low = if queue.empties { emptied } else { queue.busy().within(mark) };
            low && !queue.is_awaited()
        };
        if self.scope == LatchScope::Whole {
            let busy = self.shards.iter().fold(Load::default(), |sum, queue| sum.plus(queue.busy()));
            if !busy.within(self.capacity_whole.half()) {
                return;
            }
        }
        for queue in self.shards.iter_mut().filter(|queue| queue.latched) {
            if below(queue) {
                (queue.latched, queue.empties) = (false, false);
                self.latched_shards -= 1;
            }
        }
    }
}
