//! A sink that does what a test tells it to, and remembers what it did.

use std::collections::{HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::num::{NonZeroU64, NonZeroUsize};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use outhaul_writer::{Answer, Operation, Sink, SinkError, TicketOf, Writer, WriterOptions};
use thiserror::Error;
use tokio::sync::watch;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Op {
    pub(crate) pid: Option<String>,
    pub(crate) value: u64,
    pub(crate) bytes: usize,
}

impl Operation for Op {
    fn pid(&self) -> Option<&str> {
        self.pid.as_deref()
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

pub(crate) fn op(pid: &str, value: u64) -> Op {
    Op { pid: Some(pid.to_owned()), value, bytes: 1 }
}

pub(crate) fn ops(pid: &str, values: std::ops::Range<u64>) -> Vec<Op> {
    values.map(|value| op(pid, value)).collect()
}

#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("told to fail at {0}")]
pub(crate) struct Told(pub(crate) u64);

/// What happens at one try of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Transient,
    Permanent,
    Unknown,
    /// The whole call panics, before it has applied anything.
    Panic,
    /// The whole call answers one result too few, and has applied nothing.
    Short,
}

pub(crate) struct TestSink {
    /// Faults by value, one per try; after them it succeeds.
    faults: Mutex<HashMap<u64, VecDeque<Fault>>>,
    batches: Mutex<Vec<(u64, Vec<Op>)>>,
    applied: Mutex<Vec<Op>>,
    commit: Duration,
    /// A permanent failure of one operation is that of the whole call.
    atomic: AtomicBool,
    /// Calls that have begun.
    entered: watch::Sender<usize>,
    /// Calls that may pass; the others wait inside.
    allowed: watch::Sender<usize>,
}

impl TestSink {
    pub(crate) fn new() -> Arc<Self> {
        Self::with_commit(Duration::ZERO)
    }

    /// Every call takes that long.
    pub(crate) fn with_commit(commit: Duration) -> Arc<Self> {
        crate::logged::listen();
        Arc::new(Self {
            faults: Mutex::default(),
            batches: Mutex::default(),
            applied: Mutex::default(),
            commit,
            atomic: AtomicBool::new(false),
            entered: watch::Sender::new(0),
            allowed: watch::Sender::new(usize::MAX),
        })
    }

    /// Calls wait inside until they are told to go on.
    pub(crate) fn held() -> Arc<Self> {
        let sink = Self::new();
        sink.hold();
        sink
    }

    /// Calls that begin from now on wait.
    pub(crate) fn hold(&self) {
        self.allowed.send_replace(*self.entered.borrow());
    }

    pub(crate) fn go_on(&self) {
        self.allowed.send_replace(usize::MAX);
    }

    /// Lets one call pass and waits until the next has begun.
    pub(crate) async fn step(&self) {
        self.allowed.send_modify(|allowed| *allowed += 1);
        let next = *self.allowed.borrow() + 1;
        self.entered(next).await;
    }

    pub(crate) fn fail(&self, value: u64, faults: impl IntoIterator<Item = Fault>) {
        self.faults.lock().unwrap().entry(value).or_default().extend(faults);
    }

    /// From now on a permanent failure, for ever, of one operation is that of the whole call.
    pub(crate) fn atomic(&self) {
        self.atomic.store(true, Ordering::SeqCst);
    }

    /// Waits until that many calls have begun.
    pub(crate) async fn entered(&self, calls: usize) {
        soon(self.entered.subscribe().wait_for(|entered| *entered >= calls)).await.unwrap();
    }

    /// The values of each call.
    pub(crate) fn batches(&self) -> Vec<Vec<u64>> {
        self.batches.lock().unwrap().iter().map(|(_, ops)| values(ops)).collect()
    }

    pub(crate) fn applied(&self) -> Vec<u64> {
        values(&self.applied.lock().unwrap())
    }

    pub(crate) fn applied_of(&self, pid: &str) -> Vec<u64> {
        let applied = self.applied.lock().unwrap();
        applied.iter().filter(|op| op.pid.as_deref() == Some(pid)).map(|op| op.value).collect()
    }

    fn next_fault(&self, value: u64) -> Option<Fault> {
        self.faults.lock().unwrap().get_mut(&value).and_then(VecDeque::pop_front)
    }
}

fn values(ops: &[Op]) -> Vec<u64> {
    ops.iter().map(|op| op.value).collect()
}

impl Sink for TestSink {
    type Op = Op;
    type Output = u64;
    type Error = Told;

    async fn apply(&self, shard: u64, ops: &[Op]) -> Answer<u64, Told> {
        self.batches.lock().unwrap().push((shard, ops.to_vec()));
        let mut call = 0;
        self.entered.send_modify(|entered| {
            *entered += 1;
            call = *entered;
        });
        self.allowed.subscribe().wait_for(|allowed| *allowed >= call).await.unwrap();
        if !self.commit.is_zero() {
            // bounded: the clock is paused.
            tokio::time::sleep(self.commit).await;
        }
        // As the contract demands: what follows a transient failure of its pid is not tried.
        let mut stopped = Vec::new();
        let mut faults = Vec::new();
        for op in ops {
            let fault =
                if stopped.contains(&&op.pid) { Some(Fault::Transient) } else { self.next_fault(op.value) };
            if fault == Some(Fault::Transient) {
                stopped.push(&op.pid);
            }
            faults.push(fault);
        }
        assert!(!faults.contains(&Some(Fault::Panic)), "told to panic");
        if faults.contains(&Some(Fault::Short)) {
            return Answer::Each(ops[1..].iter().map(|op| Ok(op.value)).collect());
        }
        if self.atomic.load(Ordering::SeqCst) && faults.contains(&Some(Fault::Permanent)) {
            let mut all = self.faults.lock().unwrap();
            for (op, _) in ops.iter().zip(&faults).filter(|(_, fault)| **fault == Some(Fault::Permanent)) {
                all.entry(op.value).or_default().push_front(Fault::Permanent);
            }
            let first = ops.iter().zip(&faults).find(|(_, fault)| **fault == Some(Fault::Permanent));
            return Answer::Failed(SinkError::permanent(Told(first.unwrap().0.value)));
        }
        let answer = |(op, fault): (&Op, Option<Fault>)| match fault {
            None | Some(Fault::Panic | Fault::Short) => {
                self.applied.lock().unwrap().push(op.clone());
                Ok(op.value)
            }
            Some(Fault::Transient) => Err(SinkError::transient(Told(op.value))),
            Some(Fault::Permanent) => Err(SinkError::permanent(Told(op.value))),
            Some(Fault::Unknown) => Err(SinkError::unknown(Told(op.value))),
        };
        Answer::Each(ops.iter().zip(faults).map(answer).collect())
    }

    fn stops_at_failure(&self) -> bool {
        self.atomic.load(Ordering::SeqCst)
    }
}

pub(crate) type Ticket = TicketOf<TestSink>;

pub(crate) fn shards(shards: u64) -> NonZeroU64 {
    NonZeroU64::new(shards).unwrap()
}

pub(crate) fn count(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).unwrap()
}

/// One shard that holds that many operations, one per call, and does not gather.
pub(crate) fn one_by_one(ops_max: usize) -> WriterOptions {
    WriterOptions {
        ops_max: count(ops_max),
        batch_ops_max: count(1),
        gather: false,
        ..WriterOptions::default()
    }
}

pub(crate) fn open(sink: &Arc<TestSink>, options: WriterOptions) -> Writer<TestSink> {
    Writer::open(Arc::clone(sink), options)
}

/// Occupies the (held) sink of a writer with one operation, so that the rest queues up.
pub(crate) async fn occupy(sink: &TestSink, writer: &Writer<TestSink>, pid: &str) -> Ticket {
    let ticket = writer.try_admit(op(pid, 1_000_000)).unwrap();
    sink.entered(1).await;
    ticket
}

/// The pid (a digit) of each shard.
pub(crate) fn pid_of(shard: u64, shards: NonZeroU64) -> String {
    (0_u64..).map(|n| n.to_string()).find(|pid| outhaul_writer::shard_of(pid, shards) == shard).unwrap()
}

/// A bounded wait: what takes ten minutes of the paused clock never comes.
pub(crate) async fn soon<F: Future>(future: F) -> F::Output {
    let (began, most) = (tokio::time::Instant::now(), Duration::from_secs(600));
    let output = tokio::time::timeout(most, future).await.expect("never comes");
    // The end of the time polls once more, which would hide a wake-up that was lost.
    assert!(began.elapsed() < most, "nobody woke it");
    output
}

/// Lets everything that can run, run.
pub(crate) async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// Polls once; whether it is not ready.
pub(crate) async fn pending<F: Future + Unpin>(future: &mut F) -> bool {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx).is_pending())).await
}
