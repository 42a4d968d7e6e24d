use std::time::Duration;

use outhaul_writer::{NotWrittenReason, RefusedReason, WriteError, WriterOptions};
use tokio::time::Instant;

use crate::logged;
use crate::support::*;

#[tokio::test(start_paused = true)]
async fn a_close_writes_the_backlog_and_twice_is_fine() {
    let sink = TestSink::with_commit(Duration::from_millis(5));
    let writer = open(&sink, WriterOptions { shards: shards(3), ..one_by_one(100) });
    let tickets: Vec<Ticket> = (0..30).map(|n| writer.try_admit(op(&n.to_string(), n)).unwrap()).collect();
    soon(writer.close()).await.unwrap();
    assert_eq!(sink.applied().len(), 30);
    for ticket in tickets {
        soon(ticket).await.unwrap();
    }
    soon(writer.close()).await.unwrap();
    soon(writer.flush()).await.unwrap();
    assert_eq!(writer.try_admit(op("a", 1)).unwrap_err().reason, RefusedReason::Closed);
    assert_eq!(writer.try_admit_all(ops("a", 1..3)).unwrap_err().reason, RefusedReason::Closed);
    assert_eq!(soon(writer.send(op("a", 1))).await.unwrap_err().op, op("a", 1));
}

#[tokio::test(start_paused = true)]
async fn concurrent_closers_return_after_the_end_with_the_same_report() {
    let sink = TestSink::held();
    let writer = open(&sink, one_by_one(100));
    sink.fail(1, [Fault::Permanent]);
    writer.try_admit_all(ops("a", 0..4)).unwrap();
    let other = writer.clone();
    let mut first = Box::pin(writer.close());
    let mut second = Box::pin(other.close());
    assert!(pending(&mut first).await);
    assert!(pending(&mut second).await);
    settle().await;
    assert!(pending(&mut second).await);
    sink.go_on();
    let (first, second) = tokio::join!(soon(first), soon(second));
    assert_eq!(sink.applied(), [0, 2, 3]);
    for report in [first, second, soon(writer.close()).await] {
        let report = report.unwrap_err();
        assert_eq!((report.failures.failed, report.not_written, report.abandoned), (1, 0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_close_goes_on_and_the_next_waits_for_the_end() {
    let sink = TestSink::held();
    let writer = open(&sink, one_by_one(100));
    let ticket = writer.try_admit(op("a", 0)).unwrap();
    let mut close = Box::pin(writer.close());
    assert!(pending(&mut close).await);
    drop(close);
    assert_eq!(writer.try_admit(op("a", 1)).unwrap_err().reason, RefusedReason::Closed);
    sink.go_on();
    soon(ticket).await.unwrap();
    soon(writer.close()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_close_gives_up_after_its_time_and_says_what_was_not_written() {
    let sink = TestSink::held();
    let writer = open(&sink, WriterOptions { close_max: Duration::from_secs(40), ..one_by_one(100) });
    let in_sink = occupy(&sink, &writer, "a").await;
    let waiting = writer.try_admit_all(ops("b", 0..3)).unwrap();
    let mut flush = Box::pin(writer.flush());
    assert!(pending(&mut flush).await);
    let began = Instant::now();
    let report = soon(writer.close()).await.unwrap_err();
    assert!(began.elapsed() >= Duration::from_secs(40) && began.elapsed() < Duration::from_secs(41));
    assert_eq!((report.failures.failed, report.not_written, report.abandoned), (4, 3, 1));
    assert!(matches!(soon(in_sink).await, Err(WriteError::Abandoned)));
    for ticket in waiting {
        let error = soon(ticket).await.unwrap_err();
        assert!(
            matches!(error, WriteError::NotWritten { reason: NotWrittenReason::CloseDeadline }),
            "{error:?}"
        );
    }
    assert_eq!(soon(flush).await.unwrap_err().failed, 4, "a flush ends too");
    let stats = writer.stats();
    assert_eq!((stats.depth, stats.in_flight, stats.failed, stats.accepted), (0, 0, 4, 4));
    assert_eq!(sink.applied().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_close_waits_for_retries() {
    let sink = TestSink::new();
    let writer = open(&sink, WriterOptions::default());
    sink.fail(0, [Fault::Transient; 20]);
    let ticket = writer.try_admit(op("a", 0)).unwrap();
    soon(writer.close()).await.unwrap();
    assert_eq!(soon(ticket).await, Ok(0));
}

#[tokio::test(start_paused = true)]
async fn dropping_the_last_handle_tells_every_ticket() {
    let sink = TestSink::held();
    let writer = open(&sink, one_by_one(100));
    let in_sink = occupy(&sink, &writer, "a").await;
    let waiting = writer.try_admit_all(ops("b", 0..3)).unwrap();
    drop(writer.clone());
    settle().await;
    assert_eq!(logged::times("the writer was dropped"), 0);
    drop(writer);
    assert_eq!(logged::times("the writer was dropped"), 1);
    assert!(matches!(soon(in_sink).await, Err(WriteError::Abandoned)));
    for ticket in waiting {
        let error = soon(ticket).await.unwrap_err();
        assert!(matches!(error, WriteError::NotWritten { reason: NotWrittenReason::Dropped }), "{error:?}");
    }
}

#[test]
fn a_writer_that_outlives_its_runtime_is_closed() {
    let sink = TestSink::held();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    let (writer, ticket) = runtime.block_on(async {
        let writer = open(&sink, one_by_one(100));
        let ticket = writer.try_admit(op("a", 0)).unwrap();
        (writer, ticket)
    });
    drop(runtime);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        assert!(soon(ticket).await.is_err());
        assert_eq!(writer.try_admit(op("a", 1)).unwrap_err().reason, RefusedReason::Closed);
        assert_eq!(soon(writer.close()).await.unwrap_err().failures.failed, 1);
    });
}

#[test]
#[should_panic(expected = "at most 65536")]
fn more_shards_than_a_writer_has_are_said_so() {
    let options = WriterOptions { shards: shards(u64::MAX), ..WriterOptions::default() };
    drop(open(&TestSink::new(), options));
}
