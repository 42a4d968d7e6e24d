use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outhaul_writer::{Answer, FailureKind, Sink, SinkError, WriteError, Writer, WriterOptions};
use tokio::time::Instant;

use crate::support::*;

fn sink_error(kind: FailureKind, value: u64) -> Result<u64, WriteError<Told>> {
    Err(WriteError::Sink { kind, error: Told(value) })
}

#[tokio::test(start_paused = true)]
async fn a_permanent_and_an_unknown_failure_fail_alone_and_are_not_retried() {
    let sink = TestSink::new();
    let writer = open(&sink, WriterOptions::default());
    sink.fail(1, [Fault::Permanent]);
    sink.fail(3, [Fault::Unknown]);
    let mut outcomes = Vec::new();
    for ticket in writer.try_admit_all(ops("a", 0..5)).unwrap() {
        outcomes.push(soon(ticket).await);
    }
    let expected =
        [Ok(0), sink_error(FailureKind::Permanent, 1), Ok(2), sink_error(FailureKind::Unknown, 3), Ok(4)];
    assert_eq!(outcomes, expected);
    assert_eq!(sink.batches().len(), 1);
    assert_eq!((writer.stats().failed, writer.stats().applied), (2, 3));
}

#[tokio::test(start_paused = true)]
async fn a_transient_failure_is_retried_in_order_and_the_others_go_on() {
    let sink = TestSink::held();
    let writer = open(&sink, WriterOptions::default());
    drop(occupy(&sink, &writer, "c").await);
    sink.fail(1, [Fault::Transient; 3]);
    let began = Instant::now();
    let a = writer.try_admit_all(ops("a", 0..4)).unwrap();
    let b = writer.try_admit_all(ops("b", 10..12)).unwrap();
    sink.go_on();
    for ticket in b {
        soon(ticket).await.unwrap();
    }
    assert_eq!(began.elapsed(), Duration::ZERO, "another pid does not wait");
    let late = writer.try_admit(op("a", 4)).unwrap();
    let other = writer.try_admit(op("b", 12)).unwrap();
    soon(other).await.unwrap();
    assert_eq!(writer.stats().depth, 4, "what waits for its next try keeps its slot");
    for (n, ticket) in a.into_iter().chain([late]).enumerate() {
        assert_eq!(soon(ticket).await, Ok(n as u64));
    }
    let waited = began.elapsed();
    assert!(
        waited >= Duration::from_millis(10 + 20 + 40) && waited < Duration::from_millis(80),
        "{waited:?}"
    );
    assert_eq!(sink.applied_of("a"), [0, 1, 2, 3, 4]);
    let stats = writer.stats();
    assert_eq!((stats.failed, stats.retried), (0, 3 + 4 + 4));
    soon(writer.flush()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_transient_failure_ends_with_its_own_error_when_retry_max_is_over() {
    let sink = TestSink::new();
    let writer = open(&sink, WriterOptions::default());
    sink.fail(1, [Fault::Transient; 1_000]);
    let began = Instant::now();
    let first = writer.try_admit(op("a", 1)).unwrap();
    settle().await;
    let second = writer.try_admit(op("a", 2)).unwrap();
    let outcome = soon(first).await;
    assert_eq!(outcome, sink_error(FailureKind::Transient, 1));
    let waited = began.elapsed();
    assert!(waited >= Duration::from_secs(30) && waited < Duration::from_millis(30_005), "{waited:?}");
    soon(writer.flush()).await.unwrap_err();
    assert_eq!(sink.applied(), [2], "its successors go on");
    soon(second).await.unwrap();
    assert_eq!(writer.stats().failed, 1);
}

#[tokio::test(start_paused = true)]
async fn no_time_for_retries_makes_the_first_failure_final() {
    let sink = TestSink::new();
    let writer = open(&sink, WriterOptions { retry_max: Duration::ZERO, ..WriterOptions::default() });
    sink.fail(1, [Fault::Transient]);
    let outcome = soon(writer.try_admit(op("a", 1)).unwrap()).await;
    assert_eq!(outcome, sink_error(FailureKind::Transient, 1));
    assert_eq!(sink.batches().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_backlog_of_retries_counts_and_refuses() {
    let sink = TestSink::new();
    let writer = open(&sink, WriterOptions { ops_max: count(4), ..WriterOptions::default() });
    for value in 0..4 {
        sink.fail(value, [Fault::Transient; 5]);
        drop(writer.try_admit(op("a", value)).unwrap());
    }
    settle().await;
    assert_eq!((writer.stats().depth, writer.stats().in_flight), (4, 0));
    assert!(writer.try_admit(op("b", 9)).is_err());
    soon(writer.flush()).await.unwrap();
    assert_eq!(sink.applied(), [0, 1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn a_panic_fails_its_batch_and_the_shard_goes_on() {
    let sink = TestSink::held();
    let writer = open(&sink, WriterOptions { batch_ops_max: count(3), ..WriterOptions::default() });
    let first = occupy(&sink, &writer, "a").await;
    sink.fail(1, [Fault::Panic]);
    let tickets = writer.try_admit_all(ops("a", 0..6)).unwrap();
    sink.go_on();
    soon(first).await.unwrap();
    let mut outcomes = Vec::new();
    for ticket in tickets {
        outcomes.push(soon(ticket).await);
    }
    assert!(
        outcomes[..3].iter().all(|outcome| matches!(outcome, Err(WriteError::SinkPanicked))),
        "{outcomes:?}"
    );
    assert!(outcomes[3..].iter().all(Result::is_ok), "{outcomes:?}");
    assert_eq!(soon(writer.flush()).await.unwrap_err().failed, 3);
    soon(writer.try_admit(op("a", 7)).unwrap()).await.unwrap();
    soon(writer.close()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_wrong_number_of_results_fails_the_whole_batch() {
    let sink = TestSink::new();
    let writer = open(&sink, WriterOptions::default());
    sink.fail(1, [Fault::Short]);
    for ticket in writer.try_admit_all(ops("a", 0..3)).unwrap() {
        let error = soon(ticket).await.unwrap_err();
        assert!(matches!(error, WriteError::WrongCount { asked: 3, answered: 2 }), "{error:?}");
        assert_eq!(error.kind(), FailureKind::Unknown);
    }
    soon(writer.try_admit(op("a", 7)).unwrap()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_hangs_fails_its_batch_and_the_shard_goes_on() {
    let sink = TestSink::held();
    let writer = open(&sink, WriterOptions::default());
    let began = Instant::now();
    let hung = occupy(&sink, &writer, "a").await;
    let waiting = writer.try_admit(op("a", 1)).unwrap();
    assert_eq!(soon(hung).await, Err(WriteError::TimedOut));
    assert!(began.elapsed() >= Duration::from_secs(60) && began.elapsed() < Duration::from_secs(61));
    sink.go_on();
    assert_eq!(soon(waiting).await, Ok(1));
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_fails_as_a_whole_is_narrowed_down_to_its_bad_operations() {
    let sink = TestSink::held();
    sink.atomic();
    let writer = open(&sink, WriterOptions::default());
    drop(occupy(&sink, &writer, "a").await);
    let began = Instant::now();
    for bad in [100, 777] {
        sink.fail(bad, [Fault::Permanent]);
    }
    // Transient failures meet the narrowing, and must not be overtaken.
    sink.fail(103, [Fault::Transient; 2]);
    let tickets = writer.try_admit_all(ops("a", 0..1_000)).unwrap();
    sink.go_on();
    for (value, ticket) in (0_u64..).zip(tickets) {
        let expected =
            if [100, 777].contains(&value) { sink_error(FailureKind::Permanent, value) } else { Ok(value) };
        assert_eq!(soon(ticket).await, expected);
    }
    assert_eq!(sink.applied().len(), 1 + 998);
    assert!(sink.applied_of("a")[1..].is_sorted());
    let calls = sink.batches().len();
    assert!(calls < 60, "{calls} calls for two bad operations in a thousand");
    assert!(began.elapsed() < Duration::from_millis(35), "no pause but those of the transient failure");
}

/// A transaction over everything, which says so in one word.
struct Transaction(AtomicBool);

impl Sink for Transaction {
    type Op = Op;
    type Output = &'static str;
    type Error = Told;

    async fn apply(&self, _: u64, ops: &[Op]) -> Answer<&'static str, Told> {
        if self.0.swap(false, Ordering::SeqCst) {
            return Answer::Failed(SinkError::transient(Told(ops[0].value)));
        }
        Answer::Applied("committed")
    }

    fn coalesce_key<'a>(&self, op: &'a Op) -> Option<&'a [u8]> {
        (op.value > 0).then_some(b"key")
    }
}

#[tokio::test(start_paused = true)]
async fn a_transaction_answers_for_all_at_once() {
    let writer = Writer::open(Arc::new(Transaction(AtomicBool::new(true))), WriterOptions::default());
    for ticket in writer.try_admit_all(ops("a", 0..4)).unwrap() {
        assert_eq!(soon(ticket).await, Ok("committed"));
    }
    let stats = writer.stats();
    assert_eq!((stats.applied, stats.coalesced, stats.retried, stats.batches), (4, 2, 4, 2));
}
