use std::time::Duration;

use outhaul_writer::{Writer, WriterOptions};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::support::*;

const COMMIT: Duration = Duration::from_millis(100);

/// Producers that each write one operation after the other; the sizes of the batches.
async fn produce(
    writer: &Writer<TestSink>,
    sink: &TestSink,
    producers: u64,
    think: impl Fn(u64) -> Duration,
) -> Vec<usize> {
    let mut tasks = JoinSet::new();
    for producer in 0..producers {
        let writer = writer.clone();
        let think = think(producer);
        tasks.spawn(async move {
            for n in 0..10 {
                writer.send(op(&producer.to_string(), n)).await.unwrap().await.unwrap();
                if !think.is_zero() {
                    // bounded: the clock is paused.
                    tokio::time::sleep(think).await;
                }
            }
        });
    }
    soon(tasks.join_all()).await;
    sink.batches().iter().map(Vec::len).collect()
}

#[tokio::test(start_paused = true)]
async fn producers_that_were_woken_together_are_committed_together() {
    let sink = TestSink::with_commit(COMMIT);
    let writer = open(&sink, WriterOptions::default());
    // They come back at different times, within half a commit.
    let batches = produce(&writer, &sink, 8, |producer| Duration::from_millis(5 * producer)).await;
    assert_eq!(batches, [8; 10]);
}

#[tokio::test(start_paused = true)]
async fn without_gather_they_fall_apart() {
    let sink = TestSink::with_commit(COMMIT);
    let writer = open(&sink, WriterOptions { gather: false, ..WriterOptions::default() });
    let batches = produce(&writer, &sink, 8, |producer| Duration::from_millis(5 * producer)).await;
    assert!(batches.len() > 10, "{batches:?}");
}

#[tokio::test(start_paused = true)]
async fn the_wait_ends_at_half_a_commit() {
    let sink = TestSink::with_commit(COMMIT);
    let writer = open(&sink, WriterOptions::default());
    let tickets = writer.try_admit_all(ops("a", 0..4)).unwrap();
    for ticket in tickets {
        soon(ticket).await.unwrap();
    }
    let resolved = Instant::now();
    soon(writer.try_admit(op("a", 4)).unwrap()).await.unwrap();
    let waited = resolved.elapsed() - COMMIT;
    assert!(waited >= Duration::from_millis(45) && waited <= Duration::from_millis(50), "{waited:?}");
    let again = Instant::now();
    soon(writer.try_admit(op("a", 5)).unwrap()).await.unwrap();
    assert_eq!(again.elapsed(), COMMIT, "one-shot: that batch has woken one");
}

#[tokio::test(start_paused = true)]
async fn a_lone_producer_and_a_late_one_are_never_delayed() {
    let sink = TestSink::with_commit(COMMIT);
    let writer = open(&sink, WriterOptions::default());
    for n in 0..10 {
        let began = Instant::now();
        soon(writer.try_admit(op("a", n)).unwrap()).await.unwrap();
        assert_eq!(began.elapsed(), COMMIT);
    }
    for ticket in writer.try_admit_all(ops("a", 10..20)).unwrap() {
        soon(ticket).await.unwrap();
    }
    // bounded: the clock is paused.
    tokio::time::sleep(COMMIT / 2).await;
    let began = Instant::now();
    soon(writer.try_admit(op("a", 20)).unwrap()).await.unwrap();
    assert_eq!(began.elapsed(), COMMIT, "the time for gathering was over");
}

#[tokio::test(start_paused = true)]
async fn tickets_that_were_dropped_make_nobody_wait() {
    let sink = TestSink::with_commit(COMMIT);
    let writer = open(&sink, WriterOptions::default());
    drop(writer.try_admit_all(ops("a", 0..10)).unwrap());
    soon(writer.flush()).await.unwrap();
    let began = Instant::now();
    soon(writer.try_admit(op("a", 10)).unwrap()).await.unwrap();
    assert_eq!(began.elapsed(), COMMIT);
}

#[tokio::test(start_paused = true)]
async fn the_flush_of_a_pid_ends_the_wait() {
    let sink = TestSink::with_commit(COMMIT);
    let writer = open(&sink, WriterOptions::default());
    for ticket in writer.try_admit_all(ops("a", 0..4)).unwrap() {
        soon(ticket).await.unwrap();
    }
    let began = Instant::now();
    drop(writer.try_admit(op("a", 4)).unwrap());
    settle().await;
    soon(writer.flush_pid("a")).await.unwrap();
    assert_eq!(began.elapsed(), COMMIT);
}
