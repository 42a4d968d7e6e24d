//! Whose turn it is at the disk.
//!
//! A round takes whatever waits and is led by one thread. A synchronous caller leads it itself if nobody does; async
//! callers are served by the commit thread. Who does not lead sleeps until its answer is there, or until it is asked to
//! lead the next round.
//!
//! # The gather
//!
//! Plain group commit settles at two half-batches that take turns: those that were just answered find the others
//! already waiting. So after a round as many calls are awaited as were answered and as were waiting by then, for at
//! most what a round takes on average. A wait that was in vain is not repeated at once: the rounds that go
//! without it double up to a bound, so callers that do not come back at once pay next to nothing. Nor is there one for
//! large batches: there a sync takes as long as its bytes, half of them take half of it, and half-batches that take
//! turns keep disk and processors busy at once.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::oneshot;

use super::checkpoint::InputState;
use super::format::{EventRecord, Targets};
use super::segment::Segment;
use super::sync::{self, Mutex, Thread};
use super::{Shared, lock};
use crate::error::{AppendError, StoreError};
use crate::log::{Admission, Durability, Origin, Receipt};
use crate::queue::SharedQueues;

/// A batch takes calls until it has this many bytes.
pub(super) const BATCH_BYTES_MAX: u64 = 1 << 20;
/// A shorter body is copied: cheaper than one more piece of the write.
const APART_BYTES_MIN: usize = 256;
/// Batches are not made larger than this by waiting.
const GATHER_BYTES_MAX: u64 = 128 << 10;
/// Rounds that go without a gather after gathers that were in vain.
const GATHER_PAUSE_MAX: u32 = 64;

pub(super) type AppendReply = Reply<Vec<Result<Encoded, AppendError>>>;
pub(super) type UnitReply = Reply<Result<(), StoreError>>;

/// What waits for the next round, and where everything is.
#[derive(Debug, Default)]
pub(super) struct Inner {
    pub(super) calls: VecDeque<Call>,
    pub(super) input_calls: Vec<(Bytes, UnitReply)>,
    pub(super) flushes: Vec<UnitReply>,
    /// Since when something in the queues is unwritten.
    pub(super) unwritten_since: Option<Instant>,
    /// Since when something written is not synced; not with `Durability::Synced`.
    pub(super) unsynced_since: Option<Instant>,
    /// No round for settlements before this: the disk was full.
    pub(super) not_before: Option<Instant>,
    /// Live segments in the order of their sequences; the last one is written to.
    pub(super) segments: Vec<Segment>,
    /// Files that are ready to become segments, with their lengths.
    pub(super) spares: Vec<(String, u64)>,
    /// Room in the active segment, and how long it is to become.
    pub(super) room: u64,
    pub(super) capacity: u64,
    pub(super) input: Option<InputState>,
    /// Whether everything is durable and a batch says so.
    pub(super) marked: bool,
    pub(super) closing: bool,
    pub(super) failure: Option<StoreError>,
    pub(super) turn: Turn,
}

/// Who is at the disk, and who is to go there next.
#[derive(Debug, Default)]
pub(super) struct Turn {
    leading: bool,
    /// Somebody sleeps no longer than the gather lasts.
    watched: bool,
    /// The commit thread waits for the leader to end.
    queued: bool,
    /// Async callers that wait.
    tasks: usize,
    /// Bytes of the calls that wait.
    bytes: u64,
    gather: Gather,
}

#[derive(Debug, Default)]
struct Gather {
    /// As many calls are awaited, until then; 0 is none.
    wanted: usize,
    until: Option<Instant>,
    /// What a round takes, as a running mean.
    mean: Duration,
    /// Rounds left without a gather, and how many it was last time.
    pause: u32,
    pauses: u32,
}

/// When the next round may begin.
enum Due {
    Now,
    At(Instant),
    Never,
}

/// Events that wait to be written. They go back to the caller, which makes receipts of them: it has more time than
/// whoever leads the round.
#[derive(Debug)]
pub(super) struct Call {
    /// Those that have room; for the others the answer is there already.
    pub(super) events: Vec<Result<Encoded, AppendError>>,
    pub(super) bytes: u64,
    pub(super) reply: AppendReply,
}

/// An event as it will be written, and what is to be known of it.
#[derive(Debug)]
pub(super) struct Encoded {
    /// Holds the room until the entry counts itself.
    pub(super) admission: Admission,
    /// The body of its record, or that without the event's own body.
    head: Vec<u8>,
    /// The event's own body follows, from where it is.
    apart: bool,
    pub(super) crc: u32,
    /// Of its pid and its `dedup_id`.
    pub(super) hashes: (u64, u64),
    /// 0 until it has one; an event for nobody never gets one.
    pub(super) sequence: u64,
    pub(super) targets: Targets,
}

impl Encoded {
    pub(super) fn new(admission: Admission, admitted_ms: u64) -> Self {
        let requeue_of = match admission.origin {
            Origin::Requeue(sequence) => Some(sequence),
            Origin::Producer | Origin::Import => None,
        };
        let record = EventRecord {
            dedup_id: admission.dedup_id,
            admitted_ms,
            position: admission.position,
            requeue_of,
            attachment: &admission.attachment,
            event: &admission.event,
        };
        let body = admission.event.body();
        let apart = body.len() >= APART_BYTES_MIN;
        let attributes = admission.event.size() - body.len();
        let inline = if apart { 0 } else { body.len() };
        let mut head = Vec::with_capacity(attributes + admission.attachment.len() + inline + 64);
        record.encode_head(&mut head);
        let hashes = record.hashes();
        let crc = if apart {
            crc32c::crc32c_append(crc32c::crc32c(&head), body)
        } else {
            head.extend_from_slice(body);
            crc32c::crc32c(&head)
        };
        Self { head, apart, crc, hashes, sequence: 0, targets: Targets::new(), admission }
    }

    pub(super) fn slices(&self) -> impl Iterator<Item = &[u8]> + Clone {
        let body = self.apart.then(|| &self.admission.event.body()[..]);
        std::iter::once(&self.head[..]).chain(body)
    }

    pub(super) fn length(&self) -> usize {
        self.slices().map(<[u8]>::len).sum()
    }

    /// What its caller gets, once it is in the log.
    pub(super) fn receipt(self, queues: &SharedQueues, durable: bool) -> Receipt {
        let (targets, shed) = self.admission.outcome(queues);
        Receipt { sequence: self.sequence, dedup_id: self.admission.dedup_id, targets, shed, durable }
    }
}

impl Call {
    /// Answers with an error instead of these events; the room that they held is given back before anybody hears of it.
    pub(super) fn refuse(
        mut self,
        which: impl Fn(&Result<Encoded, AppendError>) -> bool,
        error: impl Fn() -> AppendError,
    ) {
        for event in self.events.iter_mut().filter(|event| which(event)) {
            *event = Err(error());
        }
        self.reply.send(self.events);
    }
}

/// Where an answer goes. One that is dropped unsent tells the caller that there will be none.
#[derive(Debug)]
pub(super) struct Reply<T>(Option<To<T>>);

#[derive(Debug)]
enum To<T> {
    Task(oneshot::Sender<T>),
    Thread(Arc<Slot<T>>),
}

/// A synchronous caller, and its answer.
#[derive(Debug)]
pub(super) struct Slot<T> {
    answer: Mutex<Answer<T>>,
    thread: Thread,
}

#[derive(Debug)]
enum Answer<T> {
    Waiting,
    There(T),
    Lost,
}

impl<T> Reply<T> {
    pub(super) fn task() -> (Self, oneshot::Receiver<T>) {
        let (sender, receiver) = oneshot::channel();
        (Self(Some(To::Task(sender))), receiver)
    }

    pub(super) fn thread() -> (Self, Arc<Slot<T>>) {
        let slot = Slot { answer: Mutex::new(Answer::Waiting), thread: sync::current() };
        let slot = Arc::new(slot);
        (Self(Some(To::Thread(Arc::clone(&slot)))), slot)
    }

    pub(super) fn send(mut self, value: T) {
        match self.0.take() {
            // Nobody may be waiting any more: fine, what was written is durable all the same.
            Some(To::Task(sender)) => drop(sender.send(value)),
            Some(To::Thread(slot)) => slot.set(Answer::There(value)),
            None => {}
        }
    }

    fn sleeper(&self) -> Option<&Thread> {
        match &self.0 {
            Some(To::Thread(slot)) => Some(&slot.thread),
            _ => None,
        }
    }

    fn is_task(&self) -> bool {
        matches!(self.0, Some(To::Task(_)))
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        if let Some(To::Thread(slot)) = self.0.take() {
            slot.set(Answer::Lost);
        }
    }
}

impl<T> Slot<T> {
    fn set(&self, answer: Answer<T>) {
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = answer;
        self.thread.unpark();
    }

    /// The answer; the inner None says that there will be none.
    fn take(&self) -> Option<Option<T>> {
        let mut answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *answer, Answer::Lost) {
            Answer::Waiting => {
                *answer = Answer::Waiting;
                None
            }
            Answer::There(value) => Some(Some(value)),
            Answer::Lost => Some(None),
        }
    }
}

impl Inner {
    pub(super) fn alive(&self) -> Result<(), StoreError> {
        match &self.failure {
            Some(failure) => Err(failure.clone()),
            None if self.closing => Err(StoreError::Closed),
            None => Ok(()),
        }
    }

    pub(super) fn asked(&self) -> bool {
        !self.calls.is_empty() || !self.input_calls.is_empty() || !self.flushes.is_empty()
    }

    fn due(&self, now: impl FnOnce() -> Instant) -> Due {
        let turn = &self.turn;
        if !self.input_calls.is_empty() || !self.flushes.is_empty() {
            return Due::Now;
        }
        if self.calls.is_empty() {
            return Due::Never;
        }
        let gathered = self.calls.len() >= turn.gather.wanted || turn.bytes >= BATCH_BYTES_MAX;
        match turn.gather.until {
            Some(until) if !gathered && now() < until => Due::At(until),
            _ => Due::Now,
        }
    }

    /// Takes what fits into one batch.
    pub(super) fn take_calls(&mut self) -> Vec<Call> {
        let mut bytes = 0;
        let fits = self.calls.iter().take_while(|call| {
            let fits = bytes == 0 || bytes + call.bytes <= BATCH_BYTES_MAX;
            bytes += call.bytes;
            fits
        });
        let fits = fits.count();
        let gather = &mut self.turn.gather;
        if gather.wanted > 0 {
            let met = self.calls.len() >= gather.wanted - gather.wanted / 4;
            gather.pauses = if met { 0 } else { (gather.pauses * 2 + 1).min(GATHER_PAUSE_MAX) };
            gather.pause = gather.pauses;
            (gather.wanted, gather.until) = (0, None);
        }
        let taken: Vec<Call> = self.calls.drain(..fits).collect();
        for call in &taken {
            self.turn.bytes -= call.bytes;
            self.turn.tasks -= usize::from(call.reply.is_task());
        }
        taken
    }

    pub(super) fn take_flushes(&mut self) -> Vec<UnitReply> {
        let taken = std::mem::take(&mut self.flushes);
        self.turn.tasks -= taken.iter().filter(|reply| reply.is_task()).count();
        taken
    }

    pub(super) fn take_inputs(&mut self) -> Vec<(Bytes, UnitReply)> {
        let taken = std::mem::take(&mut self.input_calls);
        self.turn.tasks -= taken.iter().filter(|(_, reply)| reply.is_task()).count();
        taken
    }

    /// Everything that waits, to be dropped.
    pub(super) fn take_all(&mut self) -> impl Sized + use<> {
        (self.turn.tasks, self.turn.bytes) = (0, 0);
        let (calls, inputs) = (std::mem::take(&mut self.calls), std::mem::take(&mut self.input_calls));
        (calls, inputs, std::mem::take(&mut self.flushes))
    }

    /// A round that answered so many calls with a batch of so many bytes ends: whether and for what the next one waits.
    pub(super) fn gather(&mut self, answered: usize, bytes: u64, took: Duration) {
        let waiting = self.calls.len();
        let gather = &mut self.turn.gather;
        gather.mean = if gather.mean.is_zero() { took } else { (gather.mean * 7 + took) / 8 };
        if answered + waiting < 2 || answered == 0 || bytes + self.turn.bytes > GATHER_BYTES_MAX {
            return;
        }
        let gather = &mut self.turn.gather;
        if gather.pause > 0 {
            gather.pause -= 1;
            return;
        }
        gather.wanted = answered + waiting;
        gather.until = Some(sync::now() + gather.mean);
    }
}

impl Shared {
    /// Queues a call; what cannot be queued is answered.
    pub(super) fn push_call(&self, call: Call) {
        let (task, bytes) = (call.reply.is_task(), call.bytes);
        let mut inner = lock(&self.inner);
        if let Err(error) = inner.alive() {
            drop(inner);
            call.refuse(|event| event.is_ok(), || AppendError::Store(error.clone()));
            return;
        }
        inner.calls.push_back(call);
        inner.turn.bytes += bytes;
        inner.turn.tasks += usize::from(task);
        self.pushed(&inner, task);
    }

    pub(super) fn push_flush(&self, reply: UnitReply) {
        self.push_unit(reply, |inner, reply| inner.flushes.push(reply));
    }

    pub(super) fn push_input(&self, note: Bytes, reply: UnitReply) {
        self.push_unit(reply, |inner, reply| inner.input_calls.push((note, reply)));
    }

    fn push_unit(&self, reply: UnitReply, push: impl FnOnce(&mut Inner, UnitReply)) {
        let task = reply.is_task();
        let mut inner = lock(&self.inner);
        if let Err(error) = inner.alive() {
            drop(inner);
            reply.send(Err(error));
            return;
        }
        push(&mut inner, reply);
        inner.turn.tasks += usize::from(task);
        self.pushed(&inner, task);
    }

    /// Wakes the commit thread for a task, if nobody else sees to it. A synchronous caller looks after itself.
    fn pushed(&self, inner: &Inner, task: bool) {
        if task && !inner.turn.leading && (!inner.turn.watched || matches!(inner.due(sync::now), Due::Now)) {
            self.wake.notify_all();
        }
    }

    /// Waits for an answer, and leads rounds where nobody does. None: there will be no answer.
    pub(super) fn drive<T>(&self, slot: &Slot<T>) -> Option<T> {
        loop {
            let mut inner = lock(&self.inner);
            if let Some(answer) = slot.take() {
                return answer;
            }
            if !inner.turn.leading {
                match inner.due(sync::now) {
                    Due::Now => {
                        inner.turn.leading = true;
                        drop(inner);
                        self.lead(false);
                        continue;
                    }
                    Due::At(until) if !inner.turn.watched => {
                        inner.turn.watched = true;
                        drop(inner);
                        sync::park_timeout(until.saturating_duration_since(sync::now()));
                        lock(&self.inner).turn.watched = false;
                        continue;
                    }
                    _ => {}
                }
            }
            drop(inner);
            sync::park();
        }
    }

    /// Leads one round, and hands the lead on. The caller has taken it.
    pub(super) fn lead(&self, idle: bool) {
        {
            let _handed_on = HandOn(self);
            let _guard = OnPanic(self);
            let mut core = lock(&self.core);
            self.round(&mut core, idle);
        }
        self.work_off();
    }

    /// The life of the commit thread.
    pub(super) fn commit_loop(&self) {
        loop {
            match self.wait_for_work() {
                Work::Ready => self.lead(false),
                Work::Idle => self.lead(true),
                Work::Last => return,
            }
        }
    }

    /// Waits until there is something to do, and takes the lead.
    fn wait_for_work(&self) -> Work {
        let mut inner = lock(&self.inner);
        loop {
            if inner.closing {
                return Work::Last;
            }
            if inner.turn.leading {
                inner.turn.queued = true;
                inner = self.wake.wait(inner).unwrap_or_else(PoisonError::into_inner);
                inner.turn.queued = false;
                continue;
            }
            let now = sync::now();
            let calls = match inner.due(|| now) {
                Due::Now => Some(now),
                Due::At(until) => Some(until),
                Due::Never => None,
            };
            // Synchronous callers look after themselves.
            let calls = calls.filter(|_| inner.turn.tasks > 0);
            let idle = if inner.marked { None } else { Some(now + self.options.idle_mark) };
            let (due, work) = match (calls, self.settlements_due(&inner)) {
                (Some(at), Some(other)) => (Some(at.min(other)), Work::Ready),
                (Some(at), None) | (None, Some(at)) => (Some(at), Work::Ready),
                (None, None) => (idle.filter(|_| inner.failure.is_none()), Work::Idle),
            };
            if work == Work::Ready && due.is_some_and(|due| due <= now) {
                inner.turn.leading = true;
                return Work::Ready;
            }
            inner.turn.watched = calls.is_some();
            inner = match due {
                None => self.wake.wait(inner).unwrap_or_else(PoisonError::into_inner),
                Some(due) => {
                    let waited = self.wake.wait_timeout(inner, due - now);
                    let (mut inner, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                    let free = !inner.turn.leading && !inner.asked() && !inner.closing;
                    if timeout.timed_out() && work == Work::Idle && free {
                        (inner.turn.leading, inner.turn.watched) = (true, false);
                        return Work::Idle;
                    }
                    inner
                }
            };
            inner.turn.watched = false;
        }
    }

    /// When what the queues have not written yet is to be written, or what is not synced to be synced.
    fn settlements_due(&self, inner: &Inner) -> Option<Instant> {
        if inner.failure.is_some() {
            return None;
        }
        let linger = self.options.settle_linger;
        let written = inner.unwritten_since.map(|since| inner.not_before.unwrap_or(since + linger));
        let synced = match self.options.durability {
            Durability::Interval(interval) => inner.unsynced_since.map(|since| since + interval),
            Durability::Synced | Durability::Buffered => None,
        };
        [written, synced].into_iter().flatten().min()
    }
}

/// Why the commit thread leads a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Ready,
    /// Nothing came for a while.
    Idle,
    /// The log is being closed.
    Last,
}

/// Hands the lead on, also after a panic.
struct HandOn<'a>(&'a Shared);

impl Drop for HandOn<'_> {
    fn drop(&mut self) {
        let mut inner = lock(&self.0.inner);
        // Whoever watched has its answer now, or looks again.
        (inner.turn.leading, inner.turn.watched) = (false, false);
        let units = inner.flushes.iter().chain(inner.input_calls.iter().map(|(_, reply)| reply));
        let sleeper = inner.calls.front().and_then(|call| call.reply.sleeper());
        let sleeper = sleeper.or_else(|| units.map(Reply::sleeper).find_map(|thread| thread));
        if let Some(thread) = sleeper {
            thread.unpark();
        } else if inner.turn.tasks > 0 || inner.turn.queued {
            self.0.wake.notify_all();
        }
    }
}

/// A round that panics answers whoever waits, now and later.
struct OnPanic<'a>(&'a Shared);

impl Drop for OnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail("a commit panicked: a defect");
            let mut inner = lock(&self.0.inner);
            let calls = inner.take_all();
            drop(inner);
            drop(calls);
        }
    }
}
