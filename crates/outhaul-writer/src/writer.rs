//! The handle.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tracing::{Level, Span};

use crate::flush::Flushing;
use crate::gate::Phase;
use crate::queue::{Entry, Load};
use crate::route::fnv1a64;
use crate::send::Sending;
use crate::shard::{Extra, GateOf, Job, Shard, later};
use crate::sync::{Tasks, now, timeout_at};
use crate::ticket::ticket;
use crate::{
    CloseReport, Closed, FlushReport, HeldPid, Operation, Refused, RefusedReason, Sink, TicketOf,
    WriterOptions, WriterStats,
};

/// A sharded, pid-ordered, batching, bounded write path over a sink. A cheap handle: clones share one writer.
///
/// End it with [`close`](Self::close). When the last handle is dropped without one, its tasks are aborted, the tickets
/// of what was not written say so, and an error is logged.
pub struct Writer<S: Sink> {
    inner: Arc<Inner<S>>,
}

struct Inner<S: Sink> {
    gate: Arc<GateOf<S>>,
    options: Arc<WriterOptions>,
    /// None once they were aborted.
    tasks: Mutex<Option<Tasks>>,
    /// When the first close gives up.
    close_by: OnceLock<Instant>,
}

/// How long an aborted task has to end; only a sink that blocks its thread takes any time.
const ABORT_MAX: Duration = Duration::from_secs(1);

/// The most shards of a writer.
const SHARDS_MAX: usize = 1 << 16;

impl<S: Sink> Inner<S> {
    /// Aborts the tasks.
    fn give_up(&self) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        let tasks = std::mem::take(&mut *tasks);
        if tasks.is_some() {
            tracing::error!("the writer could not write its backlog in time and gives it up");
        }
        // Dropped, they are aborted.
        drop(tasks);
    }
}

impl<S: Sink> Writer<S> {
    /// Opens a writer over a sink and starts a task per shard.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime, or in one without time, and with more than 65,536 shards: each is a task.
    #[must_use]
    #[expect(clippy::needless_pass_by_value, reason = "the writer shares it with its tasks")]
    pub fn open(sink: Arc<S>, options: WriterOptions) -> Self {
        let shards = usize::try_from(options.shards.get()).unwrap_or(usize::MAX);
        assert!(shards <= SHARDS_MAX, "{shards} shards are more than a writer has: at most {SHARDS_MAX}");
        let gate = Arc::new(GateOf::<S>::new(&options, shards));
        let options = Arc::new(options);
        let mut tasks = Tasks::default();
        for index in 0..shards {
            let shard = Shard::new(index, Arc::clone(&sink), Arc::clone(&gate), Arc::clone(&options));
            tasks.spawn(shard.run());
        }
        let inner = Inner { gate, options, tasks: Mutex::new(Some(tasks)), close_by: OnceLock::new() };
        Self { inner: Arc::new(inner) }
    }

    /// Admits new work, without waiting.
    ///
    /// # Errors
    ///
    /// [`Refused`] gives the operation back: `Saturated` when the shard has no room, which sets the latch, or while the
    /// latch is set; `Held` when its pid is held with as much as may wait for a person; `Closed` once a close has begun.
    pub fn try_admit(&self, op: S::Op) -> Result<TicketOf<S>, Refused<S::Op>> {
        let (shard, entry, ticket) = self.entry(op);
        let admitted = self.inner.gate.step(|state, effects| {
            match state.admit(shard, (entry.key, entry.bytes), effects) {
                Ok(()) => {
                    state.push(shard, entry, effects);
                    Ok(())
                }
                Err(reason) => Err((reason, entry)),
            }
        });
        match admitted {
            Ok(()) => Ok(ticket),
            Err((reason, entry)) => {
                Err(Refused { reason, ops: entry.body.promise.into_op().into_iter().collect() })
            }
        }
    }

    /// Admits a group of new work, without waiting: all of it, or nothing. The tickets are in the order of `ops`.
    ///
    /// A group that could never fit is admitted when every shard that it touches is empty. Its refusal keeps new work away
    /// until they are, but no room is kept for it then: others that come sooner are taken before it. "All or nothing" is about
    /// admission: afterwards each operation has its own fate.
    ///
    /// # Errors
    ///
    /// As [`try_admit`](Self::try_admit), with all operations given back in their order.
    pub fn try_admit_all(&self, ops: Vec<S::Op>) -> Result<Vec<TicketOf<S>>, Refused<S::Op>> {
        let mut loads = vec![Load::default(); self.shards()];
        let mut tickets = Vec::with_capacity(ops.len());
        let mut entries = Vec::with_capacity(ops.len());
        for op in ops {
            let (shard, entry, ticket) = self.entry(op);
            loads[shard] += Load::one(entry.bytes);
            entries.push((shard, entry));
            tickets.push(ticket);
        }
        let admitted: Result<(), (RefusedReason, Vec<_>)> = self.inner.gate.step(|state, effects| {
            if let Err(reason) = state.admit_all(&loads, &entries, effects) {
                return Err((reason, entries));
            }
            entries.into_iter().for_each(|(shard, entry)| state.push(shard, entry, effects));
            Ok(())
        });
        match admitted {
            Ok(()) => Ok(tickets),
            Err((reason, entries)) => {
                let op = |(_, entry): (usize, Entry<Job<S>>)| entry.body.promise.into_op();
                Err(Refused { reason, ops: entries.into_iter().filter_map(op).collect() })
            }
        }
    }

    /// Takes bookkeeping: the record of work that was accepted before, which is never refused. Waits for room, in the
    /// order of the calls – a pid's own are accepted in that order, so poll them in it. Having to wait sets the latch, so
    /// that new work does not overtake it; from when it has its room until it is polled, that of its pid alone does not.
    ///
    /// The operation is accepted when the future returns. Dropped before, it leaves nothing behind: no operation, no
    /// count, no lost slot.
    ///
    /// # Errors
    ///
    /// [`Closed`] gives the operation back once a close has begun.
    pub async fn send(&self, op: S::Op) -> Result<TicketOf<S>, Closed<S::Op>> {
        let (shard, entry, ticket) = self.entry(op);
        match Sending::new(&self.inner.gate, shard, entry).await {
            Ok(()) => Ok(ticket),
            Err(entry) => match entry.body.promise.into_op() {
                Some(op) => Err(Closed { op }),
                None => unreachable!("what was not accepted has its operation"),
            },
        }
    }

    /// Waits until everything accepted before the call has ended, on all shards.
    ///
    /// Concurrent flushes are independent, and the tickets of what a flush covers are resolved when it returns. Dropped
    /// before its end it leaves nothing behind, and the next flush reports what it would have reported. On a closed
    /// writer it returns at once. It does not wait for operations that are held: only a person can end that.
    ///
    /// # Errors
    ///
    /// [`FlushReport`] tells the failures that no flush completed before this one began has told, and what is held.
    pub async fn flush(&self) -> Result<(), FlushReport> {
        told(Flushing::everything(&self.inner.gate).await)
    }

    /// As [`flush`](Self::flush), for the operations of one pid: those of other pids are neither waited for, beyond the
    /// call of the sink that is running in their shard, nor told.
    ///
    /// # Errors
    ///
    /// [`FlushReport`] tells the failures of this pid. `pids_left_off` says that more pids had failed than are
    /// remembered, so that this one may be among them.
    pub async fn flush_pid(&self, pid: &str) -> Result<(), FlushReport> {
        let (shard, key) = self.place(Some(pid));
        told(Flushing::of_pid(&self.inner.gate, shard, key, pid).await)
    }

    /// Lets a pid go on that is held behind a failure ([`OnFailure::StopPid`](crate::OnFailure::StopPid)); whether it
    /// was held.
    ///
    /// Its operations are written from now on, in their order, and a flush that begins later waits for them.
    pub fn acknowledge(&self, pid: &str) -> bool {
        let (shard, key) = self.place(Some(pid));
        self.inner.gate.step(|state, effects| state.release_pid(shard, key, effects))
    }

    /// The pids that are held now, those held longest first. They are bounded: see [`HeldPid::PIDS_MAX`].
    #[must_use]
    pub fn held(&self) -> Vec<HeldPid> {
        let now = now();
        let held = self.inner.gate.step(|state, _| state.held_pids());
        let mut held: Vec<HeldPid> = held.iter().map(|held| held.at(now)).collect();
        held.sort_by(|a, b| b.held_for.cmp(&a.held_for).then_with(|| a.pid.cmp(&b.pid)));
        held
    }

    /// Takes nothing more, waits until the backlog is written, and ends the tasks.
    ///
    /// After [`close_max`](WriterOptions::close_max), counted from the first call, what is not written is given up.
    /// Any number of calls, concurrent or later, return after the end and with the same result; none needs another to be
    /// polled. When the future is dropped the writer stays closing and goes on draining; the next call waits for the end.
    ///
    /// A sink that blocks its thread cannot be interrupted: a second behind that time the close returns without it, and
    /// what it and its shard hold is in the report. The tickets of that resolve when it lets go.
    ///
    /// # Errors
    ///
    /// [`CloseReport`] tells what failed and was told by no flush, and what was given up.
    ///
    /// # Panics
    ///
    /// When it is polled outside a tokio runtime with time, whose clock it needs for its end.
    pub async fn close(&self) -> Result<(), CloseReport> {
        let inner = &self.inner;
        inner.gate.shut(Phase::Closing, Phase::Open);
        let close_by = *inner.close_by.get_or_init(|| later(now(), inner.options.close_max));
        // Each closer waits for itself: one that nobody polls stops no other.
        if timeout_at(close_by, inner.gate.all_gone()).await.is_err() {
            inner.give_up();
            if timeout_at(later(close_by.max(now()), ABORT_MAX), inner.gate.all_gone()).await.is_err() {
                tracing::error!("the sink blocks its thread: the writer is closed without it");
            }
        }
        let report = inner.gate.step(|state, _| state.closed());
        if report.failures.is_empty() { Ok(()) } else { Err(report) }
    }

    /// A consistent snapshot of the numbers.
    #[must_use]
    pub fn stats(&self) -> WriterStats {
        let now = now();
        self.inner.gate.step(|state, _| state.stats(now))
    }

    /// Whether new work is refused now: on every shard, or with [`LatchScope::Shard`](crate::LatchScope::Shard) on one
    /// at least.
    #[must_use]
    pub fn is_saturated(&self) -> bool {
        self.inner.gate.step(|state, _| state.is_saturated())
    }

    fn shards(&self) -> usize {
        self.inner.gate.shards()
    }

    fn entry(&self, op: S::Op) -> (usize, Entry<Job<S>>, TicketOf<S>) {
        let (shard, key) = self.place(op.pid());
        let bytes = op.bytes();
        let (promise, ticket) = ticket(op);
        let body = Job { promise, extra: submitted() };
        (shard, Entry { key, bytes, epoch: 0, since: None, again: false, body }, ticket)
    }

    /// The shard of a pid, as [`shard_of`](crate::shard_of), and its lane there; 0 and 0 without one.
    fn place(&self, pid: Option<&str>) -> (usize, u64) {
        let key = pid.map_or(0, |pid| fnv1a64(pid.as_bytes()));
        let shard = pid.map_or(0, |_| key % self.inner.options.shards);
        (usize::try_from(shard).unwrap_or(usize::MAX), key)
    }
}

/// Where an operation is submitted, if the span of its batch is to say so.
fn submitted() -> Option<Box<Extra>> {
    if !tracing::span_enabled!(Level::DEBUG) {
        return None;
    }
    let span = Span::current();
    (!span.is_none()).then(|| Box::new(Extra::submitted_in(span)))
}

fn told(report: FlushReport) -> Result<(), FlushReport> {
    if report.is_empty() { Ok(()) } else { Err(report) }
}

impl<S: Sink> Clone for Writer<S> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<S: Sink> fmt::Debug for Writer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("options", &self.inner.options).field("stats", &self.stats()).finish()
    }
}

impl<S: Sink> Drop for Inner<S> {
    fn drop(&mut self) {
        if self.gate.step(|state, _| state.phase()) == Phase::Closed {
            return;
        }
        let closing =
            !self.gate.shut(Phase::Dropped, Phase::Open) && self.gate.shut(Phase::Dropped, Phase::Closing);
        let stats = self.gate.step(|state, _| state.stats(now()));
        let (depth, in_flight) = (stats.depth, stats.in_flight);
        tracing::error!(closing, depth, in_flight, "the writer was dropped before it was closed");
    }
}
