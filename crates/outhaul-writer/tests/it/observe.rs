use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use outhaul_writer::{WriteError, Writer, WriterOptions};

use crate::logged;
use crate::support::*;

#[tokio::test(start_paused = true)]
async fn batches_commits_and_waits_are_in_histograms() {
    let sink = TestSink::with_commit(Duration::from_millis(8));
    let writer = open(&sink, WriterOptions { gather: false, ..WriterOptions::default() });
    drop(writer.try_admit(op("a", 0)).unwrap());
    sink.entered(1).await;
    drop(writer.try_admit_all(ops("a", 1..33)).unwrap());
    soon(writer.flush()).await.unwrap();
    let stats = writer.stats();
    assert_eq!((stats.batch_ops.count(), stats.batch_ops.sum()), (2, 33));
    assert_eq!(stats.batch_ops.quantile(1.0), Some(63));
    assert_eq!(stats.commit_us.count(), 2);
    assert!((16_000..16_100).contains(&stats.commit_us.sum()), "{:?}", stats.commit_us);
    // One in sixteen is timed: the first, which did not wait, and two that waited for its commit.
    assert_eq!(stats.queue_us.count(), 3);
    assert!((16_000..16_100).contains(&stats.queue_us.sum()), "{:?}", stats.queue_us);
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_hangs_shows_until_a_call_ends() {
    let sink = TestSink::held();
    let writer = open(&sink, WriterOptions { shards: shards(2), ..one_by_one(8) });
    let (hung, waiting) = (occupy(&sink, &writer, "a").await, writer.try_admit(op("a", 1)).unwrap());
    tokio::time::advance(Duration::from_secs(30)).await;
    let stats = writer.stats();
    let shown = (stats.applying_for, stats.hung_shards, stats.timed_out);
    assert_eq!(shown, (Some(Duration::from_secs(30)), 0, 0), "it shows before its time is over");
    assert_eq!(soon(hung).await, Err(WriteError::TimedOut));
    assert_eq!((writer.stats().hung_shards, writer.stats().timed_out), (1, 1));
    sink.go_on();
    soon(waiting).await.unwrap();
    assert_eq!((writer.stats().hung_shards, writer.stats().timed_out), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_counted() {
    let sink = TestSink::new();
    let writer = open(&sink, WriterOptions::default());
    sink.fail(0, [Fault::Panic]);
    soon(writer.try_admit(op("a", 0)).unwrap()).await.unwrap_err();
    assert_eq!((writer.stats().panicked, writer.stats().failed), (1, 1));
    assert_eq!(logged::times("a batch failed as a whole"), 1);
}

#[tokio::test(start_paused = true)]
async fn the_span_of_a_batch_says_where_its_operations_were_submitted() {
    let sink = TestSink::held();
    let writer = open(&sink, WriterOptions::default());
    drop(occupy(&sink, &writer, "a").await);
    let (first, second) = (tracing::info_span!("request"), tracing::info_span!("request"));
    let ids = [&first, &second].map(|span| span.id().unwrap().into_u64());
    first.in_scope(|| drop(writer.try_admit_all(ops("a", 0..3)).unwrap()));
    second.in_scope(|| drop(writer.try_admit(op("b", 3)).unwrap()));
    sink.go_on();
    soon(writer.flush()).await.unwrap();
    assert_eq!(logged::follows(), ids);
}

#[tokio::test(start_paused = true)]
async fn an_idle_writer_has_no_timer() {
    let sink = TestSink::with_commit(Duration::from_millis(3));
    let writer = open(&sink, WriterOptions { shards: shards(4), ..WriterOptions::default() });
    for ticket in (0..40).map(|n| writer.try_admit(op(&n.to_string(), n)).unwrap()).collect::<Vec<_>>() {
        soon(ticket).await.unwrap();
    }
    settle().await;
    let parks = || tokio::runtime::Handle::current().metrics().worker_park_count(0);
    let before = parks();
    // bounded: the clock is paused. It goes straight from timer to timer, and this is the only one.
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    // A long sleep is a few turns of the timer's wheels.
    assert!(parks() - before < 100, "something ticks: {}", parks() - before);
}

/// Looks at the books at the moment at which it is woken.
struct Looks {
    writer: Writer<TestSink>,
    seen: Mutex<Vec<(u64, u64, usize)>>,
}

impl Wake for Looks {
    fn wake(self: Arc<Self>) {
        let stats = self.writer.stats();
        self.seen.lock().unwrap().push((stats.applied, stats.failed, stats.depth + stats.in_flight));
    }
}

#[tokio::test(start_paused = true)]
async fn a_ticket_is_resolved_behind_the_books() {
    let sink = TestSink::new();
    sink.fail(1, [Fault::Permanent]);
    let writer = open(&sink, WriterOptions::default());
    let looks = Arc::new(Looks { writer: writer.clone(), seen: Mutex::default() });
    let waker = Waker::from(Arc::clone(&looks));
    let mut tickets = writer.try_admit_all(ops("a", 0..2)).unwrap();
    for ticket in &mut tickets {
        assert!(Pin::new(ticket).poll(&mut Context::from_waker(&waker)).is_pending());
    }
    soon(writer.flush()).await.unwrap_err();
    assert_eq!(*looks.seen.lock().unwrap(), [(1, 1, 0), (1, 1, 0)], "who is told finds it booked");
}
