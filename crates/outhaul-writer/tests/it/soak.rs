use std::sync::Arc;
use std::time::Duration;

use outhaul_writer::{Answer, Operation, RefusedReason, Sink, Writer, WriterOptions};
use tokio::task::JoinSet;

use crate::support::*;

const PRODUCERS: u64 = 64;
const OPS: u64 = 500;

fn fault(value: u64) -> Option<Fault> {
    match value % 101 {
        3 => Some(Fault::Permanent),
        5 => Some(Fault::Transient),
        7 if value.is_multiple_of(7) => Some(Fault::Panic),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_producers_under_failures_add_up() {
    let sink = TestSink::new();
    let options = WriterOptions {
        shards: shards(4),
        ops_max: count(256),
        batch_ops_max: count(32),
        backoff_min: Duration::from_millis(1),
        ..WriterOptions::default()
    };
    let writer = open(&sink, options);
    let mut producers = JoinSet::new();
    for producer in 0..PRODUCERS {
        let first = producer * OPS;
        for value in first..first + OPS {
            sink.fail(value, fault(value));
        }
        let writer = writer.clone();
        producers.spawn(async move {
            let pid = producer.to_string();
            let (mut refused, mut ended) = (0_u64, (0_u64, 0_u64));
            let mut tickets = Vec::new();
            for value in first..first + OPS {
                // Admission where there is room, bookkeeping where there is none.
                let ticket = match writer.try_admit(op(&pid, value)) {
                    Ok(ticket) => ticket,
                    Err(refusal) => {
                        assert_eq!(refusal.reason, RefusedReason::Saturated);
                        refused += 1;
                        writer.send(refusal.ops.into_iter().next().unwrap()).await.unwrap()
                    }
                };
                tickets.push(ticket);
                if value % 16 == 0 {
                    for ticket in tickets.drain(..) {
                        match ticket.await {
                            Ok(_) => ended.0 += 1,
                            Err(_) => ended.1 += 1,
                        }
                    }
                }
            }
            for ticket in tickets {
                match ticket.await {
                    Ok(_) => ended.0 += 1,
                    Err(_) => ended.1 += 1,
                }
            }
            (refused, ended)
        });
    }
    let mut sum = (0, 0, 0);
    while let Some(producer) = soon(producers.join_next()).await {
        let (refused, (applied, failed)) = producer.unwrap();
        sum = (sum.0 + refused, sum.1 + applied, sum.2 + failed);
        let stats = writer.stats();
        assert_eq!(stats.accepted, stats.applied + stats.failed + (stats.depth + stats.in_flight) as u64);
    }
    let stats = writer.stats();
    assert_eq!((stats.refused, stats.applied, stats.failed), sum);
    assert_eq!((stats.accepted, stats.depth), (PRODUCERS * OPS, 0));
    assert_eq!(soon(writer.close()).await.unwrap_err().failures.failed, stats.failed);
    for producer in 0..PRODUCERS {
        let of_pid = sink.applied_of(&producer.to_string());
        assert!(of_pid.is_sorted_by(|left, right| left < right), "in order and once");
    }
}

/// A hundred thousand operations; a thousand times as many with `OUTHAUL_TEST_SCALE=1000`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(clippy::disallowed_methods, reason = "how much is tried is the caller's choice")]
async fn the_depth_does_not_drift() {
    let scale = std::env::var("OUTHAUL_TEST_SCALE").ok().and_then(|scale| scale.parse().ok()).unwrap_or(1);
    let each = 100_000 * scale / 8;
    let options = WriterOptions { shards: shards(4), ops_max: count(512), ..WriterOptions::default() };
    let writer = Writer::open(Arc::new(Nothing), options);
    let mut producers = JoinSet::new();
    for producer in 0..8_usize {
        let writer = writer.clone();
        producers.spawn(async move {
            for n in 0..each {
                // Admission, and bookkeeping that is dropped half-way now and then.
                let number = Number((producer + n) % 16);
                if n % 3 == 0 {
                    drop(writer.try_admit(number));
                } else if n % 7 == 0 {
                    drop(tokio::time::timeout(Duration::ZERO, writer.send(number)).await);
                } else {
                    drop(writer.send(number).await.unwrap());
                }
            }
        });
    }
    while let Some(ended) = producers.join_next().await {
        ended.unwrap();
    }
    writer.close().await.unwrap();
    let stats = writer.stats();
    assert_eq!((stats.depth, stats.depth_bytes, stats.in_flight, stats.waiting), (0, 0, 0, 0));
    assert!(stats.accepted > (each * 8 / 2) as u64 && !stats.latched, "{stats:?}");
    assert_eq!(stats.accepted, stats.applied);
}

struct Nothing;

struct Number(usize);

impl Operation for Number {
    fn pid(&self) -> Option<&str> {
        Some(&"abcdefghijklmnop"[self.0..=self.0])
    }

    fn bytes(&self) -> usize {
        self.0
    }
}

impl Sink for Nothing {
    type Op = Number;
    type Output = ();
    type Error = Told;

    async fn apply(&self, _: u64, ops: &[Number]) -> Answer<(), Told> {
        Answer::Each(vec![Ok(()); ops.len()])
    }
}
