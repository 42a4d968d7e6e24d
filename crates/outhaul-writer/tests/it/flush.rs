use outhaul_writer::{FailureKind, FlushReport, WriteError, WriterOptions};

use crate::support::*;

#[tokio::test(start_paused = true)]
async fn a_flush_waits_for_every_shard_and_for_retries() {
    let sink = TestSink::held();
    let writer = open(&sink, WriterOptions { shards: shards(4), ..WriterOptions::default() });
    sink.fail(7, [Fault::Transient; 5]);
    let tickets: Vec<Ticket> = (0..40).map(|n| writer.try_admit(op(&n.to_string(), n)).unwrap()).collect();
    let mut flush = Box::pin(writer.flush());
    assert!(pending(&mut flush).await);
    settle().await;
    assert!(pending(&mut flush).await);
    sink.go_on();
    soon(flush).await.unwrap();
    assert_eq!(sink.applied().len(), 40);
    for ticket in tickets {
        assert!(futures_util::FutureExt::now_or_never(ticket).is_some(), "resolved before the flush returns");
    }
}

#[tokio::test(start_paused = true)]
async fn a_flush_does_not_wait_for_what_comes_after_it() {
    let sink = TestSink::held();
    let writer = open(&sink, one_by_one(100));
    writer.try_admit_all(ops("a", 0..2)).unwrap();
    sink.entered(1).await;
    let mut flush = Box::pin(writer.flush());
    assert!(pending(&mut flush).await);
    writer.try_admit_all(ops("a", 2..5)).unwrap();
    sink.step().await;
    assert!(pending(&mut flush).await, "one before it is left");
    sink.step().await;
    soon(flush).await.unwrap();
    assert_eq!(writer.stats().depth, 2);
    soon(open(&TestSink::new(), WriterOptions::default()).flush()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_reported_by_one_flush_with_its_pid_and_error() {
    let sink = TestSink::new();
    let seven = WriterOptions { shards: shards(7), ..WriterOptions::default() };
    let writer = open(&sink, seven);
    for value in [1, 2] {
        sink.fail(value, [Fault::Permanent]);
    }
    sink.fail(3, [Fault::Unknown]);
    for (pid, value) in [("a", 1), ("a", 2), ("foobar", 3), ("order-1001", 4)] {
        drop(writer.try_admit(op(pid, value)).unwrap());
    }
    let report = soon(writer.flush()).await.unwrap_err();
    assert_eq!(report.failed, 3);
    let mut pids = report.pids.clone();
    pids.sort();
    assert_eq!(pids, ["a", "foobar"]);
    let first: Vec<_> = report.first.iter().map(|first| (first.shard, first.kind)).collect();
    assert_eq!(first, [(5, FailureKind::Permanent), (6, FailureKind::Unknown)]);
    let error = report.first[0].error.downcast_ref::<WriteError<Told>>().unwrap();
    assert!(matches!(error, WriteError::Sink { error: Told(1), .. }), "the first of its shard");
    soon(writer.flush()).await.unwrap();
    soon(writer.close()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_flush_hides_nothing_from_the_next() {
    let sink = TestSink::held();
    let writer = open(&sink, one_by_one(100));
    sink.fail(0, [Fault::Permanent]);
    writer.try_admit_all(ops("a", 0..2)).unwrap();
    sink.entered(1).await;
    for _ in 0..3 {
        let mut flush = Box::pin(writer.flush());
        assert!(pending(&mut flush).await);
    }
    sink.step().await;
    let mut flush = Box::pin(writer.flush());
    assert!(pending(&mut flush).await, "it has seen the failure");
    drop(flush);
    sink.go_on();
    assert_eq!(soon(writer.flush()).await.unwrap_err().failed, 1);
    soon(writer.flush()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn concurrent_flushes_each_report_what_precedes_them() {
    let sink = TestSink::held();
    let writer = open(&sink, one_by_one(100));
    for value in 0..2 {
        sink.fail(value, [Fault::Permanent]);
    }
    drop(writer.try_admit(op("a", 0)).unwrap());
    let mut first = Box::pin(writer.flush());
    assert!(pending(&mut first).await);
    drop(writer.try_admit(op("b", 1)).unwrap());
    let mut second = Box::pin(writer.flush());
    assert!(pending(&mut second).await);
    sink.entered(1).await;
    sink.step().await;
    assert_eq!(soon(first).await.unwrap_err().pids, ["a"]);
    sink.go_on();
    let second = soon(second).await.unwrap_err();
    assert_eq!(
        (second.failed, second.pids),
        (2, vec!["a".to_owned(), "b".to_owned()]),
        "it began before the first ended"
    );
    soon(writer.flush()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_report_is_bounded() {
    let sink = TestSink::new();
    let writer = open(&sink, WriterOptions::default());
    let pids = FlushReport::PIDS_MAX as u64 + 100;
    for value in 0..2 * pids {
        sink.fail(value, [Fault::Permanent]);
        drop(writer.try_admit(op(&format!("pid {}", value / 2), value)).unwrap());
    }
    let report = soon(writer.flush()).await.unwrap_err();
    let told = (report.failed, report.pids.len(), report.pids_left_off);
    assert_eq!(told, (2 * pids, FlushReport::PIDS_MAX, true));
    assert_eq!((report.pids[0].as_str(), report.pids[1].as_str()), ("pid 0", "pid 1"));
    assert_eq!(report.first.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_flush_of_a_pid_waits_for_that_pid_alone() {
    let sink = TestSink::held();
    let writer = open(&sink, WriterOptions { batch_ops_max: count(2), ..WriterOptions::default() });
    drop(occupy(&sink, &writer, "x").await);
    let mut a = writer.try_admit_all(ops("a", 0..2)).unwrap();
    let b = writer.try_admit_all(ops("b", 10..20)).unwrap();
    let mut flush = Box::pin(writer.flush_pid("a"));
    assert!(pending(&mut flush).await);
    let late = writer.try_admit(op("a", 2)).unwrap();
    // The pids take turns: [0, 10], [1, 11].
    sink.step().await;
    sink.step().await;
    assert!(pending(&mut flush).await, "one of its two is left");
    sink.step().await;
    soon(flush).await.unwrap();
    assert!(futures_util::FutureExt::now_or_never(&mut a[1]).is_some(), "resolved before the flush returns");
    assert!(writer.stats().depth > 5, "the others wait still");
    sink.go_on();
    soon(late).await.unwrap();
    for ticket in b {
        soon(ticket).await.unwrap();
    }
    soon(writer.close()).await.unwrap();
    soon(writer.flush_pid("a")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_flush_of_a_pid_tells_its_failures_and_leaves_the_others() {
    let sink = TestSink::new();
    let writer = open(&sink, WriterOptions::default());
    for (pid, value) in [("a", 1), ("b", 2), ("a", 3), ("c", 4)] {
        sink.fail(value, [Fault::Permanent]);
        drop(writer.try_admit(op(pid, value)).unwrap());
    }
    let a = soon(writer.flush_pid("a")).await.unwrap_err();
    assert_eq!((a.failed, a.pids, a.first.len()), (2, vec!["a".to_owned()], 1));
    soon(writer.flush_pid("a")).await.unwrap();
    let rest = soon(writer.flush()).await.unwrap_err();
    assert_eq!((rest.failed, rest.pids), (2, vec!["b".to_owned(), "c".to_owned()]));
    let error = rest.first[0].error.downcast_ref::<WriteError<Told>>().unwrap();
    assert!(matches!(error, WriteError::Sink { error: Told(2), .. }), "the first that is left of its shard");
    soon(writer.flush_pid("b")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_flush_of_a_pid_hides_nothing() {
    let sink = TestSink::held();
    let writer = open(&sink, one_by_one(100));
    sink.fail(0, [Fault::Permanent, Fault::Permanent]);
    sink.fail(1, [Fault::Transient; 3]);
    drop(writer.try_admit_all(ops("a", 0..3)).unwrap());
    sink.entered(1).await;
    for _ in 0..3 {
        let mut flush = Box::pin(writer.flush_pid("a"));
        assert!(pending(&mut flush).await);
    }
    let flush = Box::pin(writer.flush_pid("a"));
    sink.go_on();
    assert_eq!(soon(flush).await.unwrap_err().failed, 1, "through the retries");
    assert_eq!(sink.applied(), [1, 2]);
    soon(writer.flush()).await.unwrap();
}
