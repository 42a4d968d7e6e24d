use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outhaul_writer::{Answer, LatchScope, RefusedReason, Sink, SinkError, Writer, WriterOptions};

use crate::logged;
use crate::support::*;

fn eight(latch: LatchScope) -> WriterOptions {
    WriterOptions { shards: shards(8), latch, ..one_by_one(64) }
}

/// Fills the shard of a pid whose first operation is in the (held) sink.
fn fill(writer: &Writer<TestSink>, pid: &str) -> usize {
    (0..).take_while(|n| writer.try_admit(op(pid, *n)).is_ok()).count()
}

#[tokio::test(start_paused = true)]
async fn a_refusal_closes_idle_shards_too() {
    let sink = TestSink::held();
    let writer = open(&sink, eight(LatchScope::Whole));
    drop(occupy(&sink, &writer, &pid_of(3, shards(8))).await);
    assert!(!writer.is_saturated());
    assert_eq!(fill(&writer, &pid_of(3, shards(8))), 8);
    assert!(writer.is_saturated() && writer.stats().latched);
    let idle = pid_of(5, shards(8));
    assert_eq!(writer.try_admit(op(&idle, 1)).unwrap_err().reason, RefusedReason::Saturated);
    assert_eq!(writer.try_admit_all(ops(&idle, 1..3)).unwrap_err().reason, RefusedReason::Saturated);
    sink.go_on();
    soon(writer.flush()).await.unwrap();
    assert!(!writer.is_saturated());
    soon(writer.try_admit(op(&idle, 1)).unwrap()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_refusal_in_shard_scope_closes_the_full_shard_alone() {
    let sink = TestSink::held();
    let writer = open(&sink, eight(LatchScope::Shard));
    let (busy, idle) = (pid_of(3, shards(8)), pid_of(5, shards(8)));
    drop(occupy(&sink, &writer, &busy).await);
    fill(&writer, &busy);
    drop(writer.try_admit(op(&idle, 1)).unwrap());
    let both = vec![op(&idle, 2), op(&busy, 3)];
    assert_eq!(writer.try_admit_all(both).unwrap_err().reason, RefusedReason::Saturated);
    sink.go_on();
    soon(writer.flush()).await.unwrap();
    assert!(!writer.is_saturated());
}

#[tokio::test(start_paused = true)]
async fn one_busy_shard_of_eight_sets_and_releases_once_per_episode() {
    let sink = TestSink::held();
    let writer = open(&sink, eight(LatchScope::Whole));
    let busy = pid_of(3, shards(8));
    drop(occupy(&sink, &writer, &busy).await);
    for episode in 1..=3 {
        while writer.try_admit(op(&busy, 0)).is_ok() {}
        // Eight wait. The whole is far below its half all the time, the shard is not.
        for left in (4..8).rev() {
            assert!(writer.is_saturated(), "{left} left");
            assert!(writer.try_admit(op(&busy, 0)).is_err());
            sink.step().await;
            assert_eq!(writer.stats().depth, left);
        }
        assert!(!writer.is_saturated(), "released at half");
        assert_eq!(writer.stats().latches, episode as u64);
        assert_eq!(logged::times("saturated"), episode);
        assert_eq!(logged::times("no longer saturated"), episode);
    }
    sink.go_on();
    soon(writer.close()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_refusal_below_the_marks_of_release_sets_nothing() {
    let sink = TestSink::held();
    let writer = open(&sink, one_by_one(8));
    drop(occupy(&sink, &writer, "a").await);
    drop(writer.try_admit(op("a", 0)).unwrap());
    writer.try_admit_all(ops("a", 1..9)).unwrap_err();
    assert!(!writer.is_saturated(), "nothing would release it");
    writer.try_admit_all(ops("a", 1..8)).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_send_that_waits_closes_admission_and_goes_first() {
    let sink = TestSink::held();
    let writer = open(&sink, WriterOptions { bytes_max: count(10), ..one_by_one(8) });
    drop(occupy(&sink, &writer, "a").await);
    let admitted = writer.try_admit(op("a", 1)).unwrap();
    // Larger than the budget: waits until the shard is empty, though it is below half.
    let send = writer.send(Op { bytes: 1_000, ..op("b", 2) });
    tokio::pin!(send);
    assert!(pending(&mut send).await);
    assert!(writer.is_saturated());
    assert!(writer.try_admit(op("c", 3)).is_err(), "new work does not overtake it");
    assert_eq!((writer.stats().waiting, writer.stats().stalled), (1, 1));
    sink.go_on();
    soon(admitted).await.unwrap();
    soon(soon(send).await.unwrap()).await.unwrap();
    assert!(!writer.is_saturated());
    assert_eq!(sink.applied(), [1_000_000, 1, 2]);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_last_send_that_waits_releases_the_latch() {
    let sink = TestSink::held();
    let writer = open(&sink, WriterOptions { bytes_max: count(10), ..one_by_one(8) });
    drop(occupy(&sink, &writer, "a").await);
    drop(writer.try_admit(op("a", 1)).unwrap());
    {
        let send = writer.send(Op { bytes: 1_000, ..op("b", 2) });
        tokio::pin!(send);
        assert!(pending(&mut send).await);
        assert!(writer.is_saturated());
    }
    assert!(!writer.is_saturated());
    drop(writer.try_admit(op("c", 3)).unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_group_that_never_fits_is_not_starved_by_what_does() {
    let sink = TestSink::held();
    let writer = open(&sink, one_by_one(8));
    drop(occupy(&sink, &writer, "a").await);
    writer.try_admit_all(ops("a", 0..6)).unwrap();
    let refused = writer.try_admit_all(ops("b", 10..30)).unwrap_err();
    for left in (1..6).rev() {
        sink.step().await;
        assert_eq!(writer.stats().depth, left);
        assert!(writer.try_admit(op("c", 50)).is_err(), "below half, and somebody needs it empty");
    }
    sink.step().await;
    assert!(!writer.is_saturated());
    assert_eq!(writer.try_admit_all(refused.ops).unwrap().len(), 20);
    sink.go_on();
    soon(writer.close()).await.unwrap();
    assert_eq!(sink.applied_of("b"), (10..30).collect::<Vec<_>>());
}

/// Fails everything transiently while it is down; a call takes 50 ms.
struct Store(AtomicBool);

impl Sink for Store {
    type Op = Op;
    type Output = ();
    type Error = Told;

    async fn apply(&self, _: u64, ops: &[Op]) -> Answer<(), Told> {
        // bounded: the clock is paused.
        tokio::time::sleep(Duration::from_millis(50)).await;
        match self.0.load(Ordering::SeqCst) {
            true => Answer::Failed(SinkError::transient(Told(ops[0].value))),
            false => Answer::Applied(()),
        }
    }
}

/// A batch takes more than a shard holds, so that every try takes the whole backlog.
#[tokio::test(start_paused = true)]
async fn in_a_long_outage_the_latch_stays_and_the_backlog_is_within_the_capacity_and_a_batch() {
    for (ops_max, count_of_shards, latch) in
        [(100, 1, LatchScope::Whole), (100, 1, LatchScope::Shard), (400, 4, LatchScope::Whole)]
    {
        let sink = Arc::new(Store(AtomicBool::new(true)));
        let options = WriterOptions {
            shards: shards(count_of_shards),
            ops_max: count(ops_max),
            latch,
            ..WriterOptions::default()
        };
        let writer = Writer::open(Arc::clone(&sink), options);
        let mut accepted = 0;
        for _ in 0..2_500 {
            for n in 0..200 {
                accepted += usize::from(writer.try_admit(op(&format!("p{}", n % 50), n)).is_ok());
            }
            // bounded: the clock is paused.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let stats = writer.stats();
        assert!(accepted <= 2 * ops_max, "{accepted} of {ops_max} were let in");
        assert_eq!(stats.depth + stats.in_flight, accepted);
        // Once, or before the first batch is taken once more.
        assert!(stats.latched && stats.latches <= 2, "{stats:?}");
        sink.0.store(false, Ordering::SeqCst);
        soon(writer.flush()).await.unwrap();
        let stats = writer.stats();
        assert_eq!((stats.applied, stats.failed, stats.latched), (accepted as u64, 0, false));
        soon(writer.try_admit(op("p", 1)).unwrap()).await.unwrap();
        soon(writer.close()).await.unwrap();
    }
}

/// Its release is the only one that can wake the `send`: nothing is taken behind the end of the try.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_retry_makes_room() {
    let sink = TestSink::held();
    sink.fail(1, [Fault::Transient]);
    let writer = open(&sink, WriterOptions { ops_max: count(1), gather: false, ..WriterOptions::default() });
    drop(writer.try_admit(op("a", 1)).unwrap());
    sink.step().await;
    // It is in the sink for the second time, and keeps its room.
    assert_eq!((writer.stats().depth, writer.stats().in_flight), (0, 1));
    let mut send = Box::pin(writer.send(op("b", 2)));
    assert!(pending(&mut send).await);
    sink.go_on();
    soon(soon(send).await.unwrap()).await.unwrap();
    assert_eq!(sink.applied(), [1, 2]);
    assert!(!writer.is_saturated());
}

#[tokio::test(start_paused = true)]
async fn a_group_that_never_fits_closes_all_its_shards_until_they_are_empty_together() {
    let sink = TestSink::held();
    let options = WriterOptions { shards: shards(2), latch: LatchScope::Shard, ..one_by_one(4) };
    let writer = open(&sink, options);
    let (busy, idle) = (pid_of(1, shards(2)), pid_of(0, shards(2)));
    drop(occupy(&sink, &writer, &busy).await);
    drop(writer.try_admit(op(&busy, 1)).unwrap());
    // Three in a shard of two; nothing is in the other.
    let group = || ops(&busy, 10..13).into_iter().chain(ops(&idle, 13..14)).collect::<Vec<_>>();
    assert_eq!(writer.try_admit_all(group()).unwrap_err().reason, RefusedReason::Saturated);
    assert_eq!(writer.try_admit(op(&idle, 2)).unwrap_err().reason, RefusedReason::Saturated);
    sink.go_on();
    soon(writer.flush()).await.unwrap();
    assert!(!writer.is_saturated());
    for ticket in writer.try_admit_all(group()).unwrap() {
        soon(ticket).await.unwrap();
    }
}
