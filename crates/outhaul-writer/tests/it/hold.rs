use std::time::Duration;

use outhaul_writer::{FailureKind, NotWrittenReason, OnFailure, WriteError, WriterOptions};

use crate::logged;
use crate::support::*;

fn stop_pid() -> WriterOptions {
    WriterOptions { on_failure: OnFailure::StopPid, ..WriterOptions::default() }
}

#[tokio::test(start_paused = true)]
async fn a_permanent_failure_holds_the_rest_of_its_pid_until_it_is_acknowledged() {
    let sink = TestSink::held();
    let writer = open(&sink, stop_pid());
    drop(occupy(&sink, &writer, "c").await);
    sink.fail(1, [Fault::Permanent]);
    let mut a = writer.try_admit_all(ops("a", 0..4)).unwrap();
    let b = writer.try_admit_all(ops("b", 10..14)).unwrap();
    sink.go_on();
    for ticket in b {
        soon(ticket).await.unwrap();
    }
    assert_eq!(soon(a.remove(0)).await, Ok(0));
    let failure = soon(a.remove(0)).await;
    assert!(matches!(failure, Err(WriteError::Sink { kind: FailureKind::Permanent, error: Told(1) })));
    let late = writer.try_admit(op("a", 4)).unwrap();
    settle().await;
    assert!(pending(&mut a[0]).await);
    assert_eq!((writer.stats().held, writer.stats().depth), (3, 3));
    assert_eq!(sink.applied_of("a"), [0], "nothing lands behind what is missing");
    assert_eq!(logged::times("a pid is held"), 1);

    assert!(!writer.acknowledge("b"));
    assert!(writer.acknowledge("a"));
    assert!(!writer.acknowledge("a"), "once");
    soon(late).await.unwrap();
    assert_eq!(sink.applied_of("a"), [0, 2, 3, 4]);
    assert_eq!((writer.stats().held, writer.stats().depth), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn without_stop_pid_the_rest_goes_on() {
    let sink = TestSink::new();
    let writer = open(&sink, WriterOptions::default());
    sink.fail(1, [Fault::Permanent]);
    drop(writer.try_admit_all(ops("a", 0..4)).unwrap());
    assert_eq!(soon(writer.flush()).await.unwrap_err().held, 0);
    assert_eq!(sink.applied_of("a"), [0, 2, 3]);
    assert!(!writer.acknowledge("a"));
}

#[tokio::test(start_paused = true)]
async fn every_way_to_fail_holds_the_pid() {
    for (faults, retry_max) in [
        (vec![Fault::Unknown], Duration::from_secs(30)),
        (vec![Fault::Panic], Duration::from_secs(30)),
        (vec![Fault::Short], Duration::from_secs(30)),
        (vec![Fault::Transient; 1_000], Duration::from_millis(100)),
    ] {
        let sink = TestSink::new();
        let writer = open(&sink, WriterOptions { retry_max, ..stop_pid() });
        sink.fail(1, faults.clone());
        drop(writer.try_admit_all(ops("a", 0..4)).unwrap());
        let report = soon(writer.flush()).await.unwrap_err();
        assert_eq!((report.failed, report.held), (1, 2), "{faults:?}");
        assert_eq!(sink.applied_of("a"), [0], "{faults:?}");
        writer.acknowledge("a");
        soon(writer.flush()).await.unwrap();
        assert_eq!(sink.applied_of("a"), [0, 2, 3]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_transaction_with_a_bad_operation_holds_its_pid_and_writes_the_others() {
    let sink = TestSink::held();
    sink.atomic();
    let writer = open(&sink, stop_pid());
    drop(occupy(&sink, &writer, "c").await);
    sink.fail(5, [Fault::Permanent]);
    drop(writer.try_admit_all(ops("a", 0..10)).unwrap());
    drop(writer.try_admit_all(ops("b", 20..30)).unwrap());
    sink.go_on();
    let report = soon(writer.flush()).await.unwrap_err();
    assert_eq!((report.failed, report.held, report.pids), (1, 4, vec!["a".to_owned()]));
    assert_eq!(sink.applied_of("a"), (0..5).collect::<Vec<_>>());
    assert_eq!(sink.applied_of("b"), (20..30).collect::<Vec<_>>());
    assert!(sink.batches().len() < 24, "they are found by halves");
    writer.acknowledge("a");
    soon(writer.flush()).await.unwrap();
    assert_eq!(sink.applied_of("a"), [0, 1, 2, 3, 4, 6, 7, 8, 9]);
}

#[tokio::test(start_paused = true)]
async fn a_flush_tells_what_is_held_and_waits_only_for_what_is_acknowledged() {
    let sink = TestSink::new();
    let writer = open(&sink, stop_pid());
    sink.fail(0, [Fault::Permanent]);
    drop(writer.try_admit_all(ops("a", 0..3)).unwrap());
    let first = soon(writer.flush()).await.unwrap_err();
    assert_eq!((first.failed, first.held), (1, 2));
    drop(writer.try_admit(op("a", 3)).unwrap());
    let second = soon(writer.flush()).await.unwrap_err();
    assert_eq!((second.failed, second.held), (0, 3), "told until it is written");
    assert_eq!(soon(writer.flush_pid("a")).await.unwrap_err().held, 3);
    soon(writer.flush_pid("b")).await.unwrap();

    sink.hold();
    writer.acknowledge("a");
    let mut flush = Box::pin(writer.flush());
    let mut of_pid = Box::pin(writer.flush_pid("a"));
    assert!(pending(&mut flush).await);
    assert!(pending(&mut of_pid).await);
    settle().await;
    assert!(pending(&mut flush).await);
    assert!(pending(&mut of_pid).await);
    sink.go_on();
    soon(flush).await.unwrap();
    soon(of_pid).await.unwrap();
    assert_eq!(sink.applied(), [1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn a_flush_that_waits_goes_on_when_its_pid_is_held() {
    let sink = TestSink::held();
    let writer = open(&sink, stop_pid());
    sink.fail(0, [Fault::Permanent]);
    drop(writer.try_admit_all(ops("a", 0..3)).unwrap());
    sink.entered(1).await;
    let mut flush = Box::pin(writer.flush());
    let mut of_pid = Box::pin(writer.flush_pid("a"));
    assert!(pending(&mut flush).await);
    assert!(pending(&mut of_pid).await);
    sink.go_on();
    let (flush, of_pid) = tokio::join!(soon(flush), soon(of_pid));
    assert_eq!((flush.unwrap_err().held, of_pid.unwrap_err().held), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_close_gives_up_what_is_held_without_waiting() {
    let sink = TestSink::new();
    let writer = open(&sink, stop_pid());
    sink.fail(0, [Fault::Permanent]);
    let mut a = writer.try_admit_all(ops("a", 0..3)).unwrap();
    let b = writer.try_admit(op("b", 9)).unwrap();
    let began = tokio::time::Instant::now();
    let report = soon(writer.close()).await.unwrap_err();
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert_eq!((report.failures.failed, report.not_written, report.abandoned), (3, 2, 0));
    soon(b).await.unwrap();
    let held = soon(a.remove(1)).await;
    assert_eq!(held, Err(WriteError::NotWritten { reason: NotWrittenReason::Held }));
    let stats = writer.stats();
    assert_eq!((stats.held, stats.depth, stats.failed, stats.applied), (0, 0, 3, 1));
}

#[tokio::test(start_paused = true)]
async fn held_operations_keep_their_room() {
    let sink = TestSink::new();
    let writer = open(&sink, WriterOptions { ops_max: count(4), ..stop_pid() });
    sink.fail(0, [Fault::Permanent]);
    drop(writer.try_admit(op("a", 0)).unwrap());
    soon(writer.flush()).await.unwrap_err();
    writer.try_admit_all(ops("a", 1..5)).unwrap();
    assert!(writer.try_admit(op("b", 9)).is_err(), "bounded, whatever a person does not do");
    writer.acknowledge("a");
    soon(writer.flush()).await.unwrap();
    assert!(!writer.is_saturated());
}
