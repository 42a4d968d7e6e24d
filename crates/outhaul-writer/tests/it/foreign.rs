//! Code of others that panics where nobody expects it.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake};

use futures_util::FutureExt;
use outhaul_writer::{Answer, Operation, Sink, SinkError, WriteError, Writer, WriterOptions};

use crate::logged;
use crate::support::{Fault, TestSink, Told, op, open, pending as is_pending, settle, soon};

/// Panics once, when it is dropped or cloned.
#[derive(Debug, Default)]
struct Mine(AtomicBool);

impl Mine {
    fn laid() -> Self {
        Self(AtomicBool::new(true))
    }

    fn step(&self) {
        assert!(!self.0.swap(false, Ordering::SeqCst), "stepped on");
    }
}

impl Drop for Mine {
    fn drop(&mut self) {
        self.step();
    }
}

#[derive(Debug)]
struct Output(Mine);

impl Clone for Output {
    fn clone(&self) -> Self {
        self.0.step();
        Self(Mine::default())
    }
}

#[derive(Clone, Copy, PartialEq)]
enum What {
    Applies,
    OutputPanics,
    CallPanicsInItsDrop,
    PanicsInItsPayload,
}

struct NastyOp(What, #[expect(dead_code, reason = "for its drop")] Mine);

impl Operation for NastyOp {
    fn pid(&self) -> Option<&str> {
        Some("a")
    }

    fn bytes(&self) -> usize {
        1
    }
}

fn does(what: What) -> NastyOp {
    NastyOp(what, Mine::default())
}

/// Does what the first operation says.
struct Nasty;

impl Sink for Nasty {
    type Op = NastyOp;
    type Output = Output;
    type Error = Told;

    async fn apply(&self, _: u64, ops: &[NastyOp]) -> Answer<Output, Told> {
        match ops[0].0 {
            What::Applies => Answer::Applied(Output(Mine::default())),
            What::OutputPanics => Answer::Applied(Output(Mine::laid())),
            What::CallPanicsInItsDrop => {
                let _mine = Mine::laid();
                pending().await
            }
            What::PanicsInItsPayload => std::panic::panic_any(Mine::laid()),
        }
    }
}

fn nasty() -> Writer<Nasty> {
    Writer::open(Arc::new(Nasty), WriterOptions::default())
}

/// The books balance, the shard goes on, and flush and close return.
async fn goes_on(writer: &Writer<Nasty>, applied: u64, failed: u64) {
    let told = soon(writer.flush()).await.map_or_else(|report| report.failed, |()| 0);
    assert_eq!(told, failed);
    soon(writer.try_admit(does(What::Applies)).unwrap()).await.unwrap();
    soon(writer.close()).await.unwrap();
    let stats = writer.stats();
    assert_eq!((stats.accepted, stats.depth, stats.in_flight), (applied + failed + 1, 0, 0));
    assert_eq!((stats.applied, stats.failed), (applied + 1, failed));
}

#[tokio::test(start_paused = true)]
async fn a_clone_of_the_output_that_panics_fails_its_operation_alone() {
    let writer = nasty();
    let tickets = writer.try_admit_all([What::OutputPanics, What::Applies, What::Applies].map(does).into());
    let mut outcomes = Vec::new();
    for ticket in tickets.unwrap() {
        outcomes.push(soon(ticket).await.map(|_| ()));
    }
    assert_eq!(outcomes, [Err(WriteError::SinkPanicked), Ok(()), Ok(())]);
    assert_eq!(writer.stats().panicked, 1);
    goes_on(&writer, 2, 1).await;
}

#[tokio::test(start_paused = true)]
async fn an_operation_whose_drop_panics_is_applied_like_the_others() {
    logged::listen();
    let writer = nasty();
    let group = vec![does(What::Applies), NastyOp(What::Applies, Mine::laid()), does(What::Applies)];
    for ticket in writer.try_admit_all(group).unwrap() {
        soon(ticket).await.unwrap();
    }
    assert_eq!(logged::times("foreign code panicked"), 1);
    goes_on(&writer, 3, 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_drop_panics_is_given_up_like_another() {
    let writer = nasty();
    let ticket = writer.try_admit(does(What::CallPanicsInItsDrop)).unwrap();
    assert_eq!(soon(ticket).await.unwrap_err(), WriteError::TimedOut);
    assert_eq!(writer.stats().timed_out, 1);
    goes_on(&writer, 0, 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_payload_whose_drop_panics_is_a_panic_like_another() {
    let writer = nasty();
    let ticket = writer.try_admit(does(What::PanicsInItsPayload)).unwrap();
    assert_eq!(soon(ticket).await.unwrap_err(), WriteError::SinkPanicked);
    goes_on(&writer, 0, 1).await;
}

struct BadWaker;

impl Wake for BadWaker {
    fn wake(self: Arc<Self>) {
        panic!("woken");
    }
}

#[tokio::test(start_paused = true)]
async fn a_waker_that_panics_costs_nobody_else_anything() {
    let sink = TestSink::held();
    let writer = open(&sink, WriterOptions::default());
    let waker = Arc::new(BadWaker).into();
    let mut ticket = writer.try_admit(op("a", 1)).unwrap();
    let mut flush = Box::pin(writer.flush());
    let mut flush_pid = Box::pin(writer.flush_pid("a"));
    assert!(ticket.poll_unpin(&mut Context::from_waker(&waker)).is_pending());
    assert!(flush.poll_unpin(&mut Context::from_waker(&waker)).is_pending());
    assert!(flush_pid.poll_unpin(&mut Context::from_waker(&waker)).is_pending());
    let other = writer.try_admit(op("a", 2)).unwrap();
    sink.go_on();
    assert_eq!(soon(other).await, Ok(2));
    soon(writer.flush()).await.unwrap();
    assert!(!is_pending(&mut ticket).await && !is_pending(&mut flush).await);
    assert_eq!(soon(writer.try_admit(op("a", 3)).unwrap()).await, Ok(3));
    soon(writer.close()).await.unwrap();
    assert_eq!((writer.stats().applied, writer.stats().failed), (3, 0));
}

/// What no guard is around: the log itself.
#[tokio::test(start_paused = true)]
async fn a_task_that_panics_ends_the_writer_and_tells_everybody() {
    let sink = TestSink::held();
    let writer = open(&sink, WriterOptions::default());
    sink.fail(2, [Fault::Transient]);
    let [one, two] = [1, 2].map(|value| writer.try_admit(op("a", value)).unwrap());
    sink.entered(1).await;
    let three = writer.try_admit(op("b", 3)).unwrap();
    let mut flush = Box::pin(writer.flush());
    assert!(is_pending(&mut flush).await);
    logged::panic_at("operations are put back");
    sink.go_on();
    assert_eq!(soon(one).await, Ok(1), "it was applied");
    assert_eq!(soon(two).await, Err(WriteError::Abandoned));
    assert!(matches!(soon(three).await, Err(WriteError::NotWritten { .. })));
    assert_eq!(soon(flush).await.unwrap_err().failed, 2);
    settle().await;
    let report = soon(writer.close()).await;
    assert!(report.is_ok(), "the flush has told: {report:?}");
    let stats = writer.stats();
    assert_eq!((stats.accepted, stats.applied, stats.failed), (3, 1, 2));
    assert_eq!((stats.depth, stats.in_flight), (0, 0));
    assert!(writer.try_admit(op("a", 4)).is_err());
}

/// The error of one operation panics when it is cloned for the report.
#[derive(Debug, thiserror::Error)]
#[error("bad")]
struct BadError;

impl Clone for BadError {
    fn clone(&self) -> Self {
        panic!("cloned");
    }
}

struct Failing;

impl Sink for Failing {
    type Op = crate::support::Op;
    type Output = ();
    type Error = BadError;

    async fn apply(&self, _: u64, ops: &[Self::Op]) -> Answer<(), BadError> {
        Answer::Each(ops.iter().map(|_| Err(SinkError::permanent(BadError))).collect())
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_whose_clone_panics_is_told_all_the_same() {
    let writer = Writer::open(Arc::new(Failing), WriterOptions::default());
    let ticket = writer.try_admit(op("a", 1)).unwrap();
    assert!(matches!(soon(ticket).await, Err(WriteError::Sink { error: BadError, .. })));
    let report = soon(writer.flush()).await.unwrap_err();
    assert_eq!((report.failed, report.pids), (1, vec!["a".to_owned()]));
    assert_eq!(report.first.len(), 1);
    soon(writer.close()).await.unwrap();
}
