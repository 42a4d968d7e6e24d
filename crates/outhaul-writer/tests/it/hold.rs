use std::sync::{Arc, Mutex};
use std::time::Duration;

use outhaul_writer::{
    Answer, FailureKind, HeldPid, NotWrittenReason, OnFailure, RefusedReason, Sink, SinkError, WriteError,
    Writer, WriterOptions,
};

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

/// A pid that has filled the only shard is held, after somebody was refused.
#[tokio::test(start_paused = true)]
async fn a_held_pid_keeps_no_latch_and_leaves_half_of_its_shard_to_the_others() {
    let sink = TestSink::held();
    let writer = open(&sink, WriterOptions { ops_max: count(8), ..stop_pid() });
    sink.fail(0, [Fault::Permanent]);
    drop(writer.try_admit(op("a", 0)).unwrap());
    sink.entered(1).await;
    drop(writer.try_admit_all(ops("a", 1..9)).unwrap());
    assert_eq!(writer.try_admit(op("b", 9)).unwrap_err().reason, RefusedReason::Saturated);
    assert!(writer.is_saturated());
    sink.go_on();
    soon(writer.flush()).await.unwrap_err();
    assert_eq!((writer.stats().held, writer.is_saturated()), (8, false));
    assert_eq!(logged::times("no longer saturated"), 1);

    sink.hold();
    drop(writer.try_admit_all(ops("b", 10..14)).unwrap());
    writer.try_admit(op("b", 14)).unwrap_err();
    sink.go_on();
    assert_eq!(soon(writer.flush()).await.unwrap_err().held, 8);
    assert_eq!(sink.applied_of("b"), [10, 11, 12, 13]);
    assert!(!writer.is_saturated(), "what is held keeps no latch that others set");

    writer.acknowledge("a");
    soon(writer.flush()).await.unwrap();
    assert_eq!(sink.applied_of("a"), (1..9).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn new_work_of_a_held_pid_is_refused_from_half_of_its_shard_on_and_sets_no_latch() {
    let sink = TestSink::new();
    let writer = open(&sink, WriterOptions { ops_max: count(8), ..stop_pid() });
    sink.fail(0, [Fault::Permanent]);
    drop(writer.try_admit(op("a", 0)).unwrap());
    soon(writer.flush()).await.unwrap_err();
    drop(writer.try_admit_all(ops("a", 1..4)).unwrap());
    let group: Vec<Op> = ops("b", 10..12).into_iter().chain(ops("a", 4..6)).collect();
    let refused = writer.try_admit_all(group.clone()).unwrap_err();
    assert_eq!((refused.reason, &refused.ops), (RefusedReason::Held, &group), "five of a would be held");
    assert_eq!(
        refused.to_string(),
        "4 operations were refused: as much as may waits behind pids that are held"
    );
    drop(writer.try_admit_all(group[..3].to_vec()).unwrap());
    let refused = writer.try_admit(op("a", 5)).unwrap_err();
    assert_eq!((refused.reason, refused.ops), (RefusedReason::Held, ops("a", 5..6)));
    assert_eq!((writer.stats().held, writer.stats().latches, writer.stats().refused), (4, 0, 5));
    // Bookkeeping is not refused.
    drop(soon(writer.send(op("a", 5))).await.unwrap());
    writer.acknowledge("a");
    soon(writer.flush()).await.unwrap();
    assert_eq!((sink.applied_of("a"), sink.applied_of("b")), (vec![1, 2, 3, 4, 5], vec![10, 11]));
    drop(writer.try_admit(op("a", 6)).unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_send_that_waits_for_a_person_closes_nothing_and_is_not_overtaken() {
    let sink = TestSink::new();
    let two = shards(2);
    let writer = open(&sink, WriterOptions { shards: two, ops_max: count(8), ..stop_pid() });
    let [a, other] = [0, 1].map(|shard| pid_of(shard, two));
    let b = (10_u64..).map(|n| n.to_string()).find(|b| outhaul_writer::shard_of(b, two) == 0).unwrap();
    sink.fail(0, [Fault::Permanent]);
    drop(writer.try_admit(op(&a, 0)).unwrap());
    soon(writer.flush()).await.unwrap_err();
    // Its capacity of four, and the half that takes no room.
    for value in 1..7 {
        drop(soon(writer.send(op(&a, value))).await.unwrap());
    }
    let mut waits = Box::pin(writer.send(Op { bytes: 1, ..op(&b, 10) }));
    assert!(pending(&mut waits).await);
    assert_eq!(writer.try_admit(op(&b, 11)).unwrap_err().reason, RefusedReason::Saturated);
    assert_eq!(writer.try_admit_all(ops(&b, 11..12)).unwrap_err().reason, RefusedReason::Saturated);
    assert_eq!((writer.is_saturated(), writer.stats().waiting), (false, 1));
    soon(writer.try_admit(op(&other, 20)).unwrap()).await.unwrap();
    assert!(pending(&mut waits).await);
    writer.acknowledge(&a);
    drop(soon(waits).await.unwrap());
    soon(writer.flush()).await.unwrap();
    assert_eq!((sink.applied_of(&a), sink.applied_of(&b)), ((1..7).collect(), vec![10]));
    let stats = writer.stats();
    assert_eq!((stats.depth, stats.held, stats.waiting, stats.latched), (0, 0, 0, false));
}

#[tokio::test(start_paused = true)]
async fn held_pids_are_listed_with_what_failed() {
    let sink = TestSink::new();
    let writer = open(&sink, stop_pid());
    for (pid, value, fault) in [("a", 0, Fault::Permanent), ("b", 10, Fault::Unknown)] {
        sink.fail(value, [fault]);
        drop(writer.try_admit(op(pid, value)).unwrap());
        soon(writer.flush()).await.unwrap_err();
        tokio::time::advance(Duration::from_secs(5)).await;
    }
    drop(writer.try_admit_all(vec![op("a", 1), Op { bytes: 7, ..op("a", 2) }]).unwrap());
    let held = writer.held();
    let seen: Vec<_> =
        held.iter().map(|held| (held.pid.as_str(), held.ops, held.bytes, held.held_for.as_secs())).collect();
    assert_eq!(seen, [("a", 2, 8, 10), ("b", 0, 0, 5)], "the oldest first");
    let kinds: Vec<_> = held.iter().map(|held| held.failure.kind).collect();
    assert_eq!(kinds, [FailureKind::Permanent, FailureKind::Unknown]);
    let error: &WriteError<Told> = held[0].failure.error.downcast_ref().unwrap();
    assert!(matches!(error, WriteError::Sink { error: Told(0), .. }));
    assert_eq!((writer.stats().held_pids, writer.stats().held), (2, 2));
    writer.acknowledge("a");
    assert_eq!((writer.held().len(), writer.stats().held_pids), (1, 1));
    soon(writer.close()).await.unwrap_or(());
    assert!(writer.held().is_empty(), "nothing is held any more");
}

#[tokio::test(start_paused = true)]
async fn held_pids_are_bounded() {
    let sink = TestSink::new();
    let writer = open(&sink, stop_pid());
    let all: Vec<Op> = (0..HeldPid::PIDS_MAX as u64).map(|value| op(&value.to_string(), value)).collect();
    for some in all.chunks(1_024) {
        some.iter().for_each(|op| sink.fail(op.value, [Fault::Permanent]));
        drop(writer.try_admit_all(some.to_vec()).unwrap());
        soon(writer.flush()).await.unwrap_err();
    }
    assert_eq!(writer.stats().held_pids, HeldPid::PIDS_MAX);
    assert_eq!(writer.try_admit(op("new", 0)).unwrap_err().reason, RefusedReason::Held);
    assert_eq!(writer.try_admit_all(ops("new", 0..2)).unwrap_err().reason, RefusedReason::Held);
    let mut waits = Box::pin(writer.send(op("new", 1_000_000)));
    assert!(pending(&mut waits).await);
    assert!(!writer.is_saturated());
    writer.acknowledge("7");
    soon(soon(waits).await.unwrap()).await.unwrap();
    drop(writer.try_admit(op("new", 1_000_001)).unwrap());
}

/// Answers a pid's operations behind a failed one as the contract demands: not tried.
struct Stops(Mutex<Vec<(u64, Fault)>>);

impl Sink for Stops {
    type Op = Op;
    type Output = ();
    type Error = Told;

    async fn apply(&self, _: u64, ops: &[Op]) -> Answer<(), Told> {
        let mut faults = self.0.lock().unwrap();
        let mut stopped = false;
        let mut one = |op: &Op| {
            let at = faults.iter().position(|(value, _)| *value == op.value);
            match at.filter(|_| !stopped).map(|at| faults.remove(at).1) {
                None if !stopped => return Ok(()),
                Some(Fault::Permanent) => {
                    stopped = true;
                    return Err(SinkError::permanent(Told(op.value)));
                }
                Some(_) | None => {}
            }
            stopped = true;
            Err(SinkError::transient(Told(op.value)))
        };
        Answer::Each(ops.iter().map(&mut one).collect())
    }

    fn stops_at_failure(&self) -> bool {
        true
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_not_tried_behind_a_failure_has_all_its_time_when_it_is_acknowledged() {
    let faults = vec![(0, Fault::Permanent), (1, Fault::Transient), (1, Fault::Transient)];
    let options = WriterOptions { retry_max: Duration::from_millis(300), ..stop_pid() };
    let writer = Writer::open(Arc::new(Stops(Mutex::new(faults))), options);
    let mut tickets = writer.try_admit_all(ops("a", 0..3)).unwrap();
    assert_eq!(soon(writer.flush()).await.unwrap_err().held, 2);
    tokio::time::advance(Duration::from_secs(10)).await;
    writer.acknowledge("a");
    for ticket in tickets.drain(1..) {
        assert_eq!(soon(ticket).await, Ok(()), "it was retried");
    }
}
