//! The task of one shard: takes a batch, hands it to the sink, tells everybody what came of it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::error::Error;
use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::{Instrument, Span};

use crate::batch::{Batch, Rest};
use crate::foreign::{discard, guard, silence};
use crate::gate::{Ended, Gate, Last, Phase, Seen, Settled};
use crate::gather::{Gather, Pause};
use crate::held::{Hold, Why};
use crate::lanes::Lanes;
use crate::pruned::{Pruned, Waits, tell};
use crate::queue::{Entry, Load, ShardQueue};
use crate::sync::{now, step_back, timeout_at};
use crate::ticket::{Outcome, Promise};
use crate::{
    Answer, FailureKind, Histogram, NotWrittenReason, OnFailure, Operation, ShardFailure, Sink, SinkError,
    WriteError, WriterOptions,
};

/// An accepted operation, which lies in its promise.
pub(crate) struct Job<S: Sink> {
    pub(crate) promise: Promise<S>,
    /// What few of them have.
    pub(crate) extra: Option<Box<Extra>>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Extra {
    /// Tries that failed.
    failed: u32,
    give_up_at: Option<Instant>,
    /// Stands for itself: neither replaces nor is replaced.
    pub(crate) apart: bool,
    /// Was replaced, and something landed that was accepted behind it: it is never applied for itself, but goes with the
    /// next of its lane, which replaces it again.
    pub(crate) bound: bool,
    /// Where it was submitted.
    pub(crate) span: Option<Span>,
}

impl Extra {
    pub(crate) fn submitted_in(span: Span) -> Self {
        Self { span: Some(span), ..Self::default() }
    }

    /// Notes a failed try; whether there is to be another.
    fn fail(&mut self, kind: FailureKind, now: Instant, retry_max: Duration) -> bool {
        let give_up_at = *self.give_up_at.get_or_insert(later(now, retry_max));
        self.failed = self.failed.saturating_add(1);
        kind == FailureKind::Transient && now < give_up_at
    }

    /// When the next one is due: at the latest when the time is up.
    fn next(&self, now: Instant, options: &WriterOptions) -> Instant {
        if self.failed == 0 {
            return now;
        }
        let due = later(now, options.backoff(self.failed));
        self.give_up_at.map_or(due, |end| end.min(due))
    }
}

pub(crate) type GateOf<S> = Gate<Job<S>>;
/// None where a clone of it has panicked.
type ResultOf<S> = Option<Result<<S as Sink>::Output, SinkError<<S as Sink>::Error>>>;

/// A flush of one pid that waits for so many more of it to end.
struct Watch {
    key: u64,
    left: usize,
    done: oneshot::Sender<()>,
}

impl Waits for Watch {
    fn done(&self) -> &oneshot::Sender<()> {
        &self.done
    }
}

pub(crate) struct Shard<S: Sink> {
    index: usize,
    sink: Arc<S>,
    gate: Arc<GateOf<S>>,
    options: Arc<WriterOptions>,
    lanes: Lanes<Job<S>>,
    arrived: Vec<Entry<Job<S>>>,
    gather: Gather,
    /// When the last call ended.
    applied_at: Instant,
    /// At most one operation of a pid in a call.
    once: bool,
    /// A batch that failed as a whole: tried before anything else, in ever smaller batches.
    suspects: VecDeque<Entry<Job<S>>>,
    /// How many of them go into a batch, with what is bound to them.
    suspects_max: usize,
    batch: Batch<S>,
    /// Of the batch that just ended; kept for their memory.
    resolved: Vec<(Promise<S>, Outcome<S>)>,
    again: Vec<Entry<Job<S>>>,
    epochs: Vec<(u64, usize)>,
    settled: Settled,
    /// Pids of which an operation of the batch has failed, where that holds the rest.
    stopped: Vec<(u64, Arc<Why>)>,
    /// Pids of which an operation of the batch comes again: the sink did not try what is behind it.
    behind: HashSet<u64>,
    watches: Pruned<Watch>,
    /// Dropped behind all others, the sink among them.
    _last: Last<Job<S>>,
}

impl<S: Sink> Shard<S> {
    pub(crate) fn new(index: usize, sink: Arc<S>, gate: Arc<GateOf<S>>, options: Arc<WriterOptions>) -> Self {
        Self {
            index,
            once: options.on_failure == OnFailure::StopPid && !sink.stops_at_failure(),
            sink,
            _last: Last::of(&gate),
            gate,
            options,
            lanes: Lanes::new(),
            arrived: Vec::new(),
            gather: Gather::default(),
            applied_at: now(),
            suspects: VecDeque::new(),
            suspects_max: 1,
            batch: Batch::new(),
            resolved: Vec::new(),
            again: Vec::new(),
            epochs: Vec::new(),
            settled: Settled::default(),
            stopped: Vec::new(),
            behind: HashSet::new(),
            watches: Pruned::default(),
        }
    }

    /// Runs until the writer closes and the backlog is empty, or held.
    pub(crate) async fn run(mut self) {
        while self.wait().await {
            self.gather().await;
            let woken = self.apply().await;
            if self.options.gather {
                self.gather.committed(self.settled.took, woken, self.applied_at);
            }
            // A sink that never waits must not keep whom it has just woken from running.
            if woken > 1 {
                step_back().await;
            }
        }
    }

    /// Waits until something may be taken; false when nothing ever will be.
    async fn wait(&mut self) -> bool {
        loop {
            if !self.lanes.is_empty() {
                self.lanes.unblock(now());
            }
            let only_held = self.suspects.is_empty() && self.lanes.len() == self.lanes.held();
            let want = if self.lanes.ready() + self.suspects.len() > 0 { 0 } else { 1 };
            let (gate, index, epochs) = (&self.gate, self.index, &mut self.epochs);
            let due = self.lanes.next_due();
            let looked = poll_fn(|cx| {
                let (seen, floor) = gate.step(|state, effects| {
                    let floor = state.ended(epochs);
                    let seen = state.look(index, want, only_held, cx.waker(), effects);
                    (seen, floor)
                });
                epochs.clear();
                gate.reached(floor);
                seen
            });
            let seen = match due {
                Some(due) => timeout_at(due, looked).await.unwrap_or(Seen::Errands),
                None => looked.await,
            };
            match seen {
                Seen::Arrived => return true,
                Seen::Nothing => return false,
                Seen::Errands => self.drain(),
            }
        }
    }

    /// Waits for the producers that the last batch has woken.
    async fn gather(&mut self) {
        while self.suspects.is_empty() && self.gather.wants() {
            let ready = self.lanes.ready();
            let (gate, index) = (&self.gate, self.index);
            let (waiting, open) = gate
                .step(|state, _| (ready + state.shard(index).found().arrived, state.phase() == Phase::Open));
            if !open {
                return;
            }
            match self.gather.pause(waiting, now()) {
                Pause::Over => return,
                Pause::Sleep { more, until } => {
                    let want = waiting + more - ready;
                    let looked = poll_fn(|cx| {
                        gate.step(|state, effects| state.look(index, want, false, cx.waker(), effects))
                    });
                    // Somebody wants something else meanwhile: it is done when the batch is taken.
                    if let Ok(Seen::Errands) = timeout_at(until, looked).await {
                        return;
                    }
                }
                Pause::Yield => step_back().await,
            }
        }
    }

    /// Moves what has arrived into the lanes, and does the errands among it in their places.
    fn drain(&mut self) {
        self.drain_in(|_| ());
    }

    /// As [`drain`](Self::drain), with something more in the same step.
    fn drain_in(&mut self, also: impl FnOnce(&mut ShardQueue<Job<S>>)) {
        let (marks, released) = self.gate.step(|state, _| {
            let queue = state.shard(self.index);
            queue.drain(&mut self.arrived);
            let errands = queue.errands();
            also(queue);
            errands
        });
        for (key, epoch) in released {
            self.lanes.release(key, epoch);
        }
        let mut marks = marks.into_iter().peekable();
        let mut arrived = std::mem::take(&mut self.arrived);
        for (at, entry) in arrived.drain(..).enumerate() {
            while let Some(mark) = marks.next_if(|mark| mark.at <= at) {
                self.watch(mark.key, mark.done);
            }
            self.lanes.push(entry);
        }
        self.arrived = arrived;
        for mark in marks {
            self.watch(mark.key, mark.done);
        }
    }

    /// Lets a flush wait for what there is of a pid, which is not in the sink: this is between two batches.
    fn watch(&mut self, key: u64, done: oneshot::Sender<()>) {
        let (waiting, held) = self.lanes.of(key);
        let left = waiting + self.suspects.iter().filter(|entry| entry.key == key).count();
        if left > 0 && !held {
            self.watches.push(Watch { key, left, done });
        } else {
            tell(done);
        }
    }

    /// Takes a batch, hands it to the sink, tells what came of it; how many tickets somebody held.
    async fn apply(&mut self) -> usize {
        let began = now();
        let load = self.take(began);
        if load.ops == 0 {
            // All that came is of pids that are held.
            return 0;
        }
        if guard("coalesce_key", || self.batch.coalesce(&self.sink)).is_none() {
            // It panicked over a key, before it changed the batch.
            (self.settled.took, self.applied_at) = (Duration::ZERO, began);
            self.settled.ended = Ended::Panicked;
            self.fail_batch(&WriteError::SinkPanicked);
            return self.tell();
        }
        let asked = self.batch.ops.len();
        let shard = self.index as u64;
        let span = tracing::debug_span!("apply", shard, ops = load.ops, bytes = load.bytes);
        if !span.is_disabled() {
            self.link(&span);
        }
        let answer = {
            let call = async { self.sink.apply(shard, &self.batch.ops).await };
            let mut call = pin!(Some(AssertUnwindSafe(call).catch_unwind().instrument(span)));
            // A sink that need not wait needs no clock.
            let answer = match poll_fn(|cx| Poll::Ready(poll_some(call.as_mut(), cx))).await {
                Poll::Ready(answer) => Ok(answer),
                Poll::Pending => {
                    let call = poll_fn(|cx| poll_some(call.as_mut(), cx));
                    timeout_at(later(began, self.options.apply_max), call).await
                }
            };
            // What has begun and is given up may panic even now.
            guard("drop of a call", || call.set(None));
            answer
        };
        let ended = now();
        (self.settled.took, self.applied_at) = (ended - began, ended);
        match answer {
            Ok(Ok(Answer::Each(results))) if results.len() == asked => {
                self.answer(results.into_iter().map(Some), ended)
            }
            Ok(Ok(Answer::Each(results))) => {
                let answered = results.len();
                discard(results);
                self.fail_batch(&WriteError::WrongCount { asked, answered });
            }
            Ok(Ok(Answer::Failed(error))) if error.kind == FailureKind::Permanent && asked > 1 => {
                discard(error);
                self.narrow();
            }
            Ok(Ok(Answer::Applied(output))) => self.answer(copies::<S>(Ok(output), asked), ended),
            Ok(Ok(Answer::Failed(error))) => self.answer(copies::<S>(Err(error), asked), ended),
            Ok(Err(payload)) => {
                silence(payload);
                self.settled.ended = Ended::Panicked;
                self.fail_batch(&WriteError::SinkPanicked);
            }
            Err(_) => {
                self.settled.ended = Ended::TimedOut;
                self.fail_batch(&WriteError::TimedOut);
            }
        }
        self.tell()
    }

    /// Fills the batch: with suspects while there are any.
    fn take(&mut self, at: Instant) -> Load {
        let options = &self.options;
        let bound = Load { ops: options.batch_ops_max.get(), bytes: options.batch_bytes_max.get() as u128 };
        if self.lanes.are_idle() && self.suspects.is_empty() && !self.once {
            let (gate, arrived) = (&self.gate, &mut self.arrived);
            let taken = gate.step(|state, effects| state.take_all(self.index, bound, arrived, at, effects));
            if let Some(load) = taken {
                let (batch, queue_us) = (&mut self.batch, &mut self.settled.queue_us);
                for entry in self.arrived.drain(..) {
                    note_queued(queue_us, &entry, at);
                    batch.put(entry);
                }
                return load;
            }
        }
        self.drain();
        let (batch, queue_us) = (&mut self.batch, &mut self.settled.queue_us);
        let (mut load, mut kept) = (Load::default(), Load::default());
        if self.suspects.is_empty() {
            load = self.lanes.take(bound, self.once, |entry| {
                note_queued(queue_us, &entry, at);
                kept += if entry.again { Load::one(entry.bytes) } else { Load::default() };
                batch.put(entry);
            });
        } else {
            let (mut heads, mut end) = (0, 0);
            while heads < self.suspects_max && end < self.suspects.len() {
                heads += usize::from(!is_bound(&self.suspects[end]));
                end += 1;
            }
            for entry in self.suspects.drain(..end) {
                load += Load::one(entry.bytes);
                batch.put(entry);
            }
            kept = load;
        }
        if load.ops > 0 {
            let closed = self.gate.step(|state, effects| {
                state.taken(self.index, load, kept, at, effects);
                state.phase() == Phase::Closed
            });
            if closed {
                // Reported as not written: it stays in the batch, for the end.
                return Load::default();
            }
        }
        load
    }

    /// Says in the span of a batch where its operations were submitted.
    fn link(&self, span: &Span) {
        let replaced = self.batch.members.iter().map(|member| &member.rest);
        let mut last = None;
        for rest in self.batch.rest.iter().chain(replaced) {
            let Some(submitted) = rest.body.1.as_ref().and_then(|extra| extra.span.as_ref()) else {
                continue;
            };
            if last.replace(submitted.id()) != Some(submitted.id()) {
                span.follows_from(submitted);
            }
        }
    }

    /// Each operation of the batch ends, or comes again.
    fn answer(&mut self, results: impl Iterator<Item = ResultOf<S>>, now: Instant) {
        if !self.batch.members.is_empty() {
            return self.answer_replaced(results.collect(), now);
        }
        let (mut ops, mut rest) = (std::mem::take(&mut self.batch.ops), std::mem::take(&mut self.batch.rest));
        for ((op, rest), result) in ops.drain(..).zip(rest.drain(..)).zip(results) {
            self.settle(op, rest, result, now);
        }
        (self.batch.ops, self.batch.rest) = (ops, rest);
        self.suspects_max = self.suspects_max.saturating_mul(2);
    }

    /// As [`answer`](Self::answer), when operations were replaced: each of them shares the fate of the one that is in
    /// its place, but for a permanent failure, which may be that one's alone. Of those behind which something of the pid
    /// landed none may be applied for itself any more: they fail with the one that replaced them, or come again bound
    /// to it.
    fn answer_replaced(&mut self, results: Vec<ResultOf<S>>, now: Instant) {
        let mut ops: Vec<Option<S::Op>> = self.batch.ops.drain(..).map(Some).collect();
        let members = std::mem::take(&mut self.batch.members);
        // The last of each pid that landed, or may have.
        let mut landed = HashMap::new();
        for (number, member) in members.iter().enumerate() {
            let unknown = |error: &SinkError<S::Error>| error.kind == FailureKind::Unknown;
            let error = results[member.at].as_ref().and_then(|result| result.as_ref().err());
            if member.replaced.is_none() && error.is_none_or(unknown) {
                landed.insert(member.rest.key, number);
            }
        }
        let is_late = |number: usize, rest: &Rest<S>| {
            rest.body.1.as_ref().is_some_and(|extra| extra.bound)
                || landed.get(&rest.key).is_some_and(|last| *last > number)
        };
        // Those that may be what spoilt a call for others, which are to be tried for themselves.
        let mut stood_for_others = vec![false; ops.len()];
        for (number, member) in members.iter().enumerate() {
            stood_for_others[member.at] |= member.replaced.is_some() && !is_late(number, &member.rest);
        }
        // Of those that come again: the place in the call, and whether they are late for themselves.
        let mut places = Vec::new();
        for (number, member) in members.into_iter().enumerate() {
            let result = guard("clone", || results[member.at].clone()).flatten();
            let was_replaced = member.replaced.is_some();
            self.settled.coalesced += u64::from(was_replaced && matches!(result, Some(Ok(_))));
            let Some(op) = member.replaced.or_else(|| ops[member.at].take()) else { continue };
            let mut rest = member.rest;
            let permanent = matches!(&result, Some(Err(error)) if error.kind == FailureKind::Permanent);
            let late = is_late(number, &rest);
            let again = self.again.len();
            if permanent && stood_for_others[member.at] && !late {
                rest.body.1.get_or_insert_default().apart = true;
                discard(result);
                self.come_again(op, rest);
            } else {
                self.settle(op, rest, result, now);
            }
            if self.again.len() > again {
                places.push((member.at, was_replaced && late));
            }
        }
        discard(results);
        if places.iter().any(|(_, late)| *late) {
            bind(&mut self.again, &places);
        }
        self.suspects_max = self.suspects_max.saturating_mul(2);
    }

    fn settle(&mut self, op: S::Op, mut rest: Rest<S>, result: ResultOf<S>, now: Instant) {
        match result {
            None => {
                self.settled.ended = Ended::Panicked;
                self.end(op, rest, Err(WriteError::SinkPanicked));
            }
            Some(Ok(output)) => self.end(op, rest, Ok(output)),
            Some(Err(SinkError { kind, error })) => {
                let transient = kind == FailureKind::Transient;
                // One that only stands behind another has its time for retries from when it is the first.
                let skipped = transient && (!self.behind.insert(rest.key) || self.is_stopped(rest.key));
                let retry_max = self.options.retry_max;
                if skipped || rest.body.1.get_or_insert_default().fail(kind, now, retry_max) {
                    discard(error);
                    self.come_again(op, rest);
                } else {
                    self.end(op, rest, Err(WriteError::Sink { kind, error }));
                }
            }
        }
    }

    fn come_again(&mut self, op: S::Op, rest: Rest<S>) {
        let Entry { key, bytes, epoch, body: (promise, extra), .. } = rest;
        self.settled.retried += Load::one(bytes);
        promise.put(op);
        let body = Job { promise, extra };
        self.again.push(Entry { key, bytes, epoch, since: None, again: true, body });
    }

    /// The batch failed as a whole, over one of its operations: half of it is tried at once.
    fn narrow(&mut self) {
        self.each(|shard, op, rest| shard.come_again(op, rest));
        self.suspects_max = self.again.iter().filter(|entry| !is_bound(entry)).count().div_ceil(2);
        self.again.drain(..).rev().for_each(|entry| self.suspects.push_front(entry));
    }

    /// Every operation of the batch ends with this error.
    fn fail_batch(&mut self, error: &WriteError<S::Error>) {
        let ops = self.batch.rest.len() + self.batch.members.len();
        tracing::error!(shard = self.index, ops, %error, "a batch failed as a whole");
        self.each(|shard, op, rest| shard.end(op, rest, Err(error.clone())));
    }

    /// Takes the batch apart, in the order of acceptance.
    fn each(&mut self, mut with: impl FnMut(&mut Self, S::Op, Rest<S>)) {
        let (mut ops, mut rest) = (std::mem::take(&mut self.batch.ops), std::mem::take(&mut self.batch.rest));
        let members = std::mem::take(&mut self.batch.members);
        if members.is_empty() {
            for (op, rest) in ops.drain(..).zip(rest.drain(..)) {
                with(self, op, rest);
            }
        } else {
            let mut ops = ops.drain(..);
            for member in members {
                // Those that stayed are in the order of acceptance too.
                let Some(op) = member.replaced.or_else(|| ops.next()) else { continue };
                with(self, op, member.rest);
            }
        }
        (self.batch.ops, self.batch.rest) = (ops, rest);
    }

    fn end(&mut self, op: S::Op, rest: Rest<S>, outcome: Outcome<S>) {
        match &outcome {
            Ok(_) => self.settled.applied += 1,
            Err(error) => {
                // A panic here is no reason to end the others.
                let pid = guard("pid", || op.pid());
                let has_pid = pid.is_none_or(|pid| pid.is_some());
                let (shard, kind, pid) = (self.index as u64, error.kind(), pid.flatten());
                let error = guard("clone", || error.clone()).unwrap_or(WriteError::SinkPanicked);
                let error: Arc<dyn Error + Send + Sync> = Arc::new(error);
                self.settled.failures.note(shard, pid, kind, &error);
                let stops = self.options.on_failure == OnFailure::StopPid;
                if stops && has_pid && !self.is_stopped(rest.key) {
                    let failure = ShardFailure { shard, kind, error };
                    let pid = pid.unwrap_or_default().to_owned();
                    self.stopped.push((rest.key, Arc::new(Why { pid, failure, since: self.applied_at })));
                }
            }
        }
        match self.epochs.last_mut() {
            Some((epoch, ops)) if *epoch == rest.epoch => *ops += 1,
            _ => self.epochs.push((rest.epoch, 1)),
        }
        for watch in self.watches.iter_mut().filter(|watch| watch.key == rest.key) {
            watch.left = watch.left.saturating_sub(1);
        }
        self.resolved.push((rest.body.0, outcome));
        discard(op);
    }

    /// Ends what is not in the batch with this error.
    fn give_up(&mut self, entry: Entry<Job<S>>, error: WriteError<S::Error>) {
        let Entry { key, bytes, epoch, since, again, body: Job { promise, extra } } = entry;
        let Some(op) = promise.take() else { return };
        self.end(op, Entry { key, bytes, epoch, since, again, body: (promise, extra) }, Err(error));
    }

    fn is_stopped(&self, key: u64) -> bool {
        self.stopped.iter().any(|(stopped, _)| *stopped == key)
    }

    /// Books the batch, resolves its tickets, and lets the flushes go on, in this order: who awaits a ticket finds it
    /// booked, who awaits a flush finds the tickets resolved. How many tickets somebody held.
    fn tell(&mut self) -> usize {
        self.put_back();
        self.behind.clear();
        for (key, why) in self.stopped.drain(..) {
            let (load, epochs) = self.lanes.hold(key);
            self.settled.holds.push(Hold { key, why, load, epochs });
        }
        let took = self.settled.took;
        let settled = std::mem::take(&mut self.settled);
        self.gate.step(|state, effects| state.settled(self.index, &settled, effects));
        self.settled.took = took;
        for Hold { key, why, .. } in &settled.holds {
            let (shard, pid) = (self.index, &*why.pid);
            tracing::warn!(shard, pid, "a pid is held behind its failure until that is acknowledged");
            self.watches.iter_mut().filter(|watch| watch.key == *key).for_each(|watch| watch.left = 0);
        }
        let woken = self.resolve();
        if !self.watches.is_empty() {
            for watch in self.watches.take() {
                if watch.left == 0 { tell(watch.done) } else { self.watches.push(watch) }
            }
        }
        woken
    }

    fn resolve(&mut self) -> usize {
        self.resolved.drain(..).map(|(promise, outcome)| usize::from(promise.keep(outcome))).sum()
    }

    /// What comes again goes back to the head of its lane; the suspects with it, lest they overtake it, and when a pid
    /// stops, lest its own go on.
    fn put_back(&mut self) {
        if self.again.is_empty() && self.stopped.is_empty() {
            return;
        }
        tracing::debug!(shard = self.index, ops = self.again.len(), "operations are put back");
        self.again.extend(self.suspects.drain(..));
        let now = now();
        for entry in self.again.drain(..).rev() {
            let due = entry.body.extra.as_ref().map_or(now, |extra| extra.next(now, &self.options));
            let bound = is_bound(&entry);
            self.lanes.put_back(entry, bound, due);
        }
    }
}

impl<S: Sink> Drop for Shard<S> {
    /// After a clean end only what is held is left. Otherwise the task was aborted (close ran out of time, the last
    /// handle or the runtime was dropped) or has panicked in foreign code: what it holds is given up, and every ticket
    /// told.
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!(shard = self.index, "a shard of the writer panicked");
        }
        self.gate.shut(Phase::Dropped, Phase::Open);
        // In one step: what is acknowledged later finds nothing to let go on.
        self.drain_in(ShardQueue::end);
        let phase = self.gate.step(|state, _| state.phase());
        let mut in_sink = (self.batch.rest.len() + self.batch.members.len() + self.again.len()) as u64;
        self.each(|shard, op, rest| shard.end(op, rest, Err(WriteError::Abandoned)));
        // A panic came between the answer and the books.
        for entry in std::mem::take(&mut self.again) {
            self.give_up(entry, WriteError::Abandoned);
        }
        let mut entries: Vec<_> = self.suspects.drain(..).collect();
        let mut lanes = std::mem::replace(&mut self.lanes, Lanes::new());
        let held: Vec<bool> = {
            let mut held = vec![false; entries.len()];
            lanes.clear(|entry, is_held| {
                entries.push(entry);
                held.push(is_held);
            });
            held
        };
        let waiting = entries.len() as u64;
        for (entry, held) in entries.into_iter().zip(held) {
            let reason = match phase {
                Phase::Closing | Phase::Closed if held => NotWrittenReason::Held,
                Phase::Closing | Phase::Closed => NotWrittenReason::CloseDeadline,
                Phase::Open | Phase::Dropped => NotWrittenReason::Dropped,
            };
            self.give_up(entry, WriteError::NotWritten { reason });
        }
        let mut settled = std::mem::take(&mut self.settled);
        // What a panic has lost; its tickets have told it.
        let outstanding = self.gate.step(|state, _| state.outstanding(self.index));
        for _ in settled.applied + settled.failures.count()..outstanding {
            let (shard, error) = (self.index as u64, WriteError::<S::Error>::Abandoned);
            settled.failures.note(shard, None, error.kind(), &(Arc::new(error) as _));
            in_sink += 1;
        }
        self.gate.step(|state, effects| state.abandoned(self.index, (waiting, in_sink), &settled, effects));
        self.resolve();
        let floor = self.gate.step(|state, _| state.ended_for_good(&self.epochs));
        self.gate.reached(floor);
        self.watches.take().into_iter().for_each(|watch| tell(watch.done));
    }
}

fn is_bound<S: Sink>(entry: &Entry<Job<S>>) -> bool {
    entry.body.extra.as_ref().is_some_and(|extra| extra.bound)
}

/// Of entries that come again, moves each that is late before the next one in whose place in the call it was, which came
/// again as well: only the first of a pid can have run out of its time, and that is not the one that replaces.
fn bind<S: Sink>(again: &mut Vec<Entry<Job<S>>>, places: &[(usize, bool)]) {
    let mut leaders = HashMap::new();
    let mut order: Vec<(usize, Entry<Job<S>>)> = Vec::with_capacity(again.len());
    for ((number, mut entry), (at, late)) in again.drain(..).enumerate().zip(places).rev() {
        let leader = leaders.get(at).copied().filter(|_| *late);
        match (leader, &mut entry.body.extra) {
            (Some(_), extra) => extra.get_or_insert_default().bound = true,
            (None, extra) => {
                extra.iter_mut().for_each(|extra| extra.bound = false);
                leaders.insert(*at, number);
            }
        }
        order.push((leader.unwrap_or(number), entry));
    }
    order.reverse();
    order.sort_by_key(|(leader, _)| *leader);
    again.extend(order.into_iter().map(|(_, entry)| entry));
}

/// How long an operation waited for its first try.
fn note_queued<T>(queue_us: &mut Histogram, entry: &Entry<T>, at: Instant) {
    if let Some(since) = entry.since {
        queue_us.note_duration(at.saturating_duration_since(since));
    }
}

fn poll_some<F: Future>(future: Pin<&mut Option<F>>, cx: &mut Context<'_>) -> Poll<F::Output> {
    future.as_pin_mut().map_or(Poll::Pending, |future| future.poll(cx))
}

/// So many of one result.
fn copies<S: Sink>(
    result: Result<S::Output, SinkError<S::Error>>,
    number: usize,
) -> impl Iterator<Item = ResultOf<S>> {
    let mut result = Some(result);
    (1..=number).rev().map(move |left| match left {
        1 => result.take(),
        _ => guard("clone", || result.clone()).flatten(),
    })
}

/// An instant after `now`; a duration that the clock cannot count means "in a lifetime".
pub(crate) fn later(now: Instant, by: Duration) -> Instant {
    now.checked_add(by).unwrap_or_else(|| now + Duration::from_secs(60 * 60 * 24 * 365 * 30))
}
