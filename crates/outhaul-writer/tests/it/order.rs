use std::sync::Arc;

use outhaul_writer::{Answer, Operation, Sink, Writer, WriterOptions};
use tokio::sync::Barrier;

use crate::support::*;

#[tokio::test(start_paused = true)]
async fn operations_of_a_pid_are_applied_in_the_order_of_acceptance() {
    let sink = TestSink::held();
    let writer = open(&sink, WriterOptions { batch_ops_max: count(7), ..WriterOptions::default() });
    drop(occupy(&sink, &writer, "a").await);
    for n in 0..50 {
        let pid = if n % 3 == 0 { "a" } else { "b" };
        if n % 2 == 0 {
            drop(writer.try_admit(op(pid, n)).unwrap());
        } else {
            drop(soon(writer.send(op(pid, n))).await.unwrap());
        }
    }
    sink.go_on();
    soon(writer.flush()).await.unwrap();
    assert_eq!(sink.applied_of("a")[1..], (0..50).filter(|n| n % 3 == 0).collect::<Vec<_>>());
    assert_eq!(sink.applied_of("b"), (0..50).filter(|n| n % 3 != 0).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn everything_that_waits_is_one_call() {
    let sink = TestSink::held();
    let writer = open(&sink, WriterOptions::default());
    drop(occupy(&sink, &writer, "a").await);
    writer.try_admit_all(ops("a", 0..5)).unwrap();
    drop(writer.try_admit(Op { pid: None, ..op("", 5) }).unwrap());
    sink.go_on();
    soon(writer.flush()).await.unwrap();
    assert_eq!(sink.batches(), [vec![1_000_000], vec![0, 1, 2, 3, 4, 5]]);
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_bounded_by_operations_and_by_bytes() {
    let sink = TestSink::held();
    let options =
        WriterOptions { batch_ops_max: count(3), batch_bytes_max: count(10), ..WriterOptions::default() };
    let writer = open(&sink, options);
    drop(occupy(&sink, &writer, "a").await);
    writer.try_admit_all(ops("a", 0..4)).unwrap();
    for (n, bytes) in [(4, 9), (5, 9), (6, 100), (7, 1)] {
        drop(writer.try_admit(Op { bytes, ..op("a", n) }).unwrap());
    }
    sink.go_on();
    soon(writer.flush()).await.unwrap();
    assert_eq!(sink.batches()[1..], [vec![0, 1, 2], vec![3, 4], vec![5], vec![6], vec![7]]);
}

#[tokio::test(start_paused = true)]
async fn a_pid_with_a_deep_backlog_does_not_starve_another() {
    let sink = TestSink::held();
    let writer =
        open(&sink, WriterOptions { batch_ops_max: count(4), gather: false, ..WriterOptions::default() });
    drop(occupy(&sink, &writer, "deep").await);
    writer.try_admit_all(ops("deep", 0..1_000)).unwrap();
    sink.step().await;
    let other = writer.try_admit(op("other", 5_000)).unwrap();
    sink.step().await;
    sink.step().await;
    soon(other).await.unwrap();
    assert!(writer.stats().depth > 980);
}

/// Two pids meet inside the sink, or nobody leaves it.
struct Meeting(Barrier);

struct Guest(&'static str);

impl Operation for Guest {
    fn pid(&self) -> Option<&str> {
        Some(self.0)
    }

    fn bytes(&self) -> usize {
        0
    }
}

impl Sink for Meeting {
    type Op = Guest;
    type Output = ();
    type Error = Told;

    async fn apply(&self, _shard: u64, ops: &[Guest]) -> Answer<(), Told> {
        self.0.wait().await;
        Answer::Each(ops.iter().map(|_| Ok(())).collect())
    }
}

#[tokio::test(start_paused = true)]
async fn pids_of_different_shards_are_in_the_sink_at_the_same_time() {
    let seven = WriterOptions { shards: shards(7), ..WriterOptions::default() };
    let writer = Writer::open(Arc::new(Meeting(Barrier::new(2))), seven);
    // Shards 5 and 6.
    let tickets = [writer.try_admit(Guest("a")).unwrap(), writer.try_admit(Guest("foobar")).unwrap()];
    for ticket in tickets {
        soon(ticket).await.unwrap();
    }
}
