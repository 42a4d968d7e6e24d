//! The task of one shard: takes a batch, hands it to the sink, tells everybody what came of it.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::{Instant, timeout_at};
use tracing::Instrument;

use crate::gate::{Gate, Phase, Settled};
use crate::gather::{Gather, Pause};
use crate::lanes::Lanes;
use crate::queue::{Entry, Load};
use crate::ticket::PromiseOf;
use crate::{FailureKind, NotWrittenReason, Operation, Sink, SinkError, WriteError, WriterOptions};

/// An accepted operation.
pub(crate) struct Job<S: Sink> {
    pub(crate) op: S::Op,
    pub(crate) promise: PromiseOf<S>,
    pub(crate) tries: Tries,
}

/// The tries of an operation that have failed.
#[derive(Clone, Copy, Default)]
pub(crate) struct Tries {
    failed: u32,
    give_up_at: Option<Instant>,
}

impl Tries {
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
type Outcome<S> = Result<<S as Sink>::Output, WriteError<<S as Sink>::Error>>;
type Results<S> = Vec<Result<<S as Sink>::Output, SinkError<<S as Sink>::Error>>>;
type Rest<S> = Entry<(PromiseOf<S>, Tries)>;

/// What the sink holds: the operations in one slice, the rest of their entries beside them.
struct Batch<S: Sink> {
    ops: Vec<S::Op>,
    rest: Vec<Rest<S>>,
}

impl<S: Sink> Batch<S> {
    /// Both lists, to be given back for their memory.
    fn lend(&mut self) -> (Vec<S::Op>, Vec<Rest<S>>) {
        (std::mem::take(&mut self.ops), std::mem::take(&mut self.rest))
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
    open: bool,
    /// A batch that an atomic sink has refused as a whole: tried before anything else, in ever smaller batches.
    suspects: VecDeque<Entry<Job<S>>>,
    suspects_max: usize,
    batch: Batch<S>,
    /// Of the batch that just ended; kept for their memory.
    resolved: Vec<(PromiseOf<S>, Outcome<S>)>,
    again: Vec<Entry<Job<S>>>,
    epochs: Vec<(u64, usize)>,
    settled: Settled,
}

impl<S: Sink> Shard<S> {
    pub(crate) fn new(index: usize, sink: Arc<S>, gate: Arc<GateOf<S>>, options: Arc<WriterOptions>) -> Self {
        Self {
            index,
            sink,
            gate,
            options,
            lanes: Lanes::new(),
            arrived: Vec::new(),
            gather: Gather::default(),
            open: true,
            suspects: VecDeque::new(),
            suspects_max: 1,
            batch: Batch { ops: Vec::new(), rest: Vec::new() },
            resolved: Vec::new(),
            again: Vec::new(),
            epochs: Vec::new(),
            settled: Settled::default(),
        }
    }

    /// Runs until the writer closes and the backlog is empty.
    pub(crate) async fn run(mut self) {
        while self.wait().await {
            self.gather().await;
            let took = self.apply().await;
            let woken = self.tell();
            if self.options.gather {
                self.gather.committed(took, woken, Instant::now());
            }
            // A sink that never waits must not keep whom it has just woken from running.
            tokio::task::yield_now().await;
        }
    }

    /// Waits until something may be taken; false when nothing ever will be.
    async fn wait(&mut self) -> bool {
        loop {
            let phase = self.drain();
            self.lanes.unblock(Instant::now());
            if self.lanes.ready() > 0 || !self.suspects.is_empty() {
                return true;
            }
            if phase != Phase::Open && self.lanes.is_empty() {
                return false;
            }
            let due = self.lanes.next_due();
            self.park(1, due).await;
        }
    }

    /// Waits for the producers that the last batch has woken.
    async fn gather(&mut self) {
        while self.open && self.suspects.is_empty() {
            match self.gather.pause(self.lanes.ready(), Instant::now()) {
                Pause::Over => return,
                Pause::Sleep { more, until } => self.park(more, Some(until)).await,
                Pause::Yield => tokio::task::yield_now().await,
            }
            self.drain();
        }
    }

    /// Sleeps until `want` entries have arrived, the time has come, or the writer closes.
    async fn park(&mut self, want: usize, until: Option<Instant>) {
        if !self.gate.step(|state, _| state.shard(self.index).park(want)) {
            return;
        }
        let woken = self.gate.woken(self.index);
        match until {
            // Both ends are the same to the caller, who looks again.
            Some(until) => timeout_at(until, woken).await.unwrap_or(()),
            None => woken.await,
        }
    }

    fn drain(&mut self) -> Phase {
        let phase = self.gate.step(|state, _| {
            state.shard(self.index).drain(&mut self.arrived);
            state.phase()
        });
        for entry in self.arrived.drain(..) {
            self.lanes.push(entry);
        }
        self.open = phase == Phase::Open;
        phase
    }

    /// Takes a batch and hands it to the sink; how long that took.
    async fn apply(&mut self) -> Duration {
        let load = self.take();
        let began = Instant::now();
        self.gate.step(|state, effects| state.taken(self.index, load, began, effects));

        let shard = self.index as u64;
        let span = tracing::debug_span!("apply", shard, ops = load.ops, bytes = load.bytes);
        let call = async { self.sink.apply(shard, &self.batch.ops).await };
        let call = AssertUnwindSafe(call).catch_unwind().instrument(span);
        let results = timeout_at(later(began, self.options.apply_max), call).await;
        let ended = Instant::now();
        match results {
            Ok(Ok(results)) if results.len() == load.ops => self.answer(results, ended),
            Ok(Ok(results)) => {
                self.fail_batch(&WriteError::WrongCount { asked: load.ops, answered: results.len() })
            }
            Ok(Err(_)) => self.fail_batch(&WriteError::SinkPanicked),
            Err(_) => self.fail_batch(&WriteError::TimedOut),
        }
        ended - began
    }

    /// Fills the batch: with suspects while there are any.
    fn take(&mut self) -> Load {
        let batch = &mut self.batch;
        let mut put = |Entry { key, bytes, epoch, body }: Entry<Job<S>>| {
            batch.ops.push(body.op);
            batch.rest.push(Entry { key, bytes, epoch, body: (body.promise, body.tries) });
        };
        if self.suspects.is_empty() {
            let options = &self.options;
            let bound = Load { ops: options.batch_ops_max.get(), bytes: options.batch_bytes_max.get() };
            return self.lanes.take(bound, put);
        }
        let mut load = Load::default();
        for entry in self.suspects.drain(..self.suspects_max.min(self.suspects.len())) {
            load += Load::one(entry.bytes);
            put(entry);
        }
        load
    }

    /// Each operation of the batch ends, or comes again.
    fn answer(&mut self, results: Results<S>, now: Instant) {
        let spoilt = results.len() > 1 && self.sink.is_atomic() && results.iter().all(is_permanent);
        let half = results.len() / 2;
        let (mut ops, mut rest) = self.batch.lend();
        for ((op, entry), result) in ops.drain(..).zip(rest.drain(..)).zip(results) {
            match result {
                Ok(output) => self.end(&op, entry, Ok(output)),
                Err(SinkError { kind, error }) => {
                    let mut tries = entry.body.1;
                    if !spoilt && !tries.fail(kind, now, self.options.retry_max) {
                        self.end(&op, entry, Err(WriteError::Sink { kind, error }));
                        continue;
                    }
                    let Entry { key, bytes, epoch, body: (promise, _) } = entry;
                    self.settled.retried += Load::one(bytes);
                    self.again.push(Entry { key, bytes, epoch, body: Job { op, promise, tries } });
                }
            }
        }
        self.batch = Batch { ops, rest };
        self.suspects_max = if spoilt { half } else { self.suspects_max.saturating_mul(2) };
        if spoilt {
            self.again.drain(..).rev().for_each(|entry| self.suspects.push_front(entry));
        }
    }

    /// Every operation of the batch ends with this error.
    fn fail_batch(&mut self, error: &WriteError<S::Error>) {
        let (mut ops, mut rest) = self.batch.lend();
        tracing::error!(shard = self.index, ops = ops.len(), %error, "a batch failed as a whole");
        for (op, entry) in ops.drain(..).zip(rest.drain(..)) {
            self.end(&op, entry, Err(error.clone()));
        }
        self.batch = Batch { ops, rest };
    }

    fn end(&mut self, op: &S::Op, entry: Rest<S>, outcome: Outcome<S>) {
        match &outcome {
            Ok(_) => self.settled.applied += 1,
            Err(error) => self.settled.failures.note(self.index as u64, op.pid(), error.kind(), error),
        }
        match self.epochs.last_mut() {
            Some((epoch, ops)) if *epoch == entry.epoch => *ops += 1,
            _ => self.epochs.push((entry.epoch, 1)),
        }
        self.resolved.push((entry.body.0, outcome));
    }

    /// Books the batch, resolves its tickets, and lets the flushes go on, in this order: who awaits a ticket finds it
    /// booked, who awaits a flush finds the tickets resolved. How many tickets somebody held.
    fn tell(&mut self) -> usize {
        self.put_back();
        let settled = std::mem::take(&mut self.settled);
        self.gate.step(|state, effects| state.settled(self.index, &settled, effects));
        let woken = self.resolve();
        self.gate.ended(&self.epochs);
        self.epochs.clear();
        woken
    }

    fn resolve(&mut self) -> usize {
        self.resolved.drain(..).map(|(promise, outcome)| usize::from(promise.keep(outcome))).sum()
    }

    /// What comes again goes back to the head of its lane; the suspects with it, lest they overtake it.
    fn put_back(&mut self) {
        if self.again.is_empty() {
            return;
        }
        tracing::debug!(shard = self.index, ops = self.again.len(), "the sink failed transiently");
        self.again.extend(self.suspects.drain(..));
        let now = Instant::now();
        for entry in self.again.drain(..).rev() {
            let due = entry.body.tries.next(now, &self.options);
            self.lanes.put_back(entry, due);
        }
    }
}

impl<S: Sink> Drop for Shard<S> {
    /// Leaves nothing after a clean end. Otherwise the task was aborted (close ran out of time, the last handle or the
    /// runtime was dropped) or has panicked in foreign code: what it holds is given up, and every ticket told.
    fn drop(&mut self) {
        self.gate.shut(Phase::Dropped, Phase::Open);
        let phase = self.drain();
        if self.lanes.is_empty() && self.suspects.is_empty() && self.batch.ops.is_empty() {
            return;
        }
        let suspects = std::mem::take(&mut self.suspects);
        let (ops, rest) = self.batch.lend();
        let abandoned = ops.len() as u64;
        for (op, entry) in ops.iter().zip(rest) {
            self.end(op, entry, Err(WriteError::Abandoned));
        }
        let reason = match phase {
            Phase::Closing => NotWrittenReason::CloseDeadline,
            Phase::Open | Phase::Dropped | Phase::Closed => NotWrittenReason::Dropped,
        };
        let mut waiting = Load::default();
        let mut lanes = std::mem::replace(&mut self.lanes, Lanes::new());
        let mut give_up = |Entry { key, bytes, epoch, body }: Entry<Job<S>>| {
            waiting += Load::one(bytes);
            let entry = Entry { key, bytes, epoch, body: (body.promise, body.tries) };
            self.end(&body.op, entry, Err(WriteError::NotWritten { reason }));
        };
        suspects.into_iter().for_each(&mut give_up);
        lanes.clear(give_up);
        let settled = std::mem::take(&mut self.settled);
        self.gate.step(|state, effects| {
            state.abandoned(self.index, waiting, abandoned, &settled.failures, effects)
        });
        self.resolve();
        self.gate.ended(&self.epochs);
    }
}

fn is_permanent<T, E>(result: &Result<T, SinkError<E>>) -> bool {
    matches!(result, Err(SinkError { kind: FailureKind::Permanent, .. }))
}

/// An instant after `now`; a duration that the clock cannot count means "in a lifetime".
pub(crate) fn later(now: Instant, by: Duration) -> Instant {
    now.checked_add(by).unwrap_or_else(|| now + Duration::from_secs(60 * 60 * 24 * 365 * 30))
}
