//! The writer under many orders of its tasks: no wake-up is lost (that would be a deadlock), nothing is both refused and
//! applied, nothing is applied twice, no flush overtakes what precedes it, a future that is dropped leaves nothing.
//!
//! ```text
//! RUSTFLAGS="--cfg outhaul_model" cargo test -p outhaul-writer --lib model
//! ```
//!
//! It is the production code: `sync.rs` alone is another. An order that fails is printed, to be replayed.

use std::future::{Future, poll_fn};
use std::num::{NonZeroU64, NonZeroUsize};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use shuttle::future::block_on;
use shuttle::rand::Rng as _;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::thread::{self, JoinHandle};
use shuttle::{Config, Runner};
use thiserror::Error;

use crate::sync::step_back;
use crate::{
    Answer, LatchScope, OnFailure, Operation, RefusedReason, Sink, SinkError, WriteError, Writer,
    WriterOptions,
};

/// Tries this many orders, half of them with few switches at bad moments.
fn check(orders: usize, body: impl Fn() + Send + Sync + Copy + 'static) {
    let scale = std::env::var("OUTHAUL_TEST_SCALE").ok().and_then(|scale| scale.parse().ok()).unwrap_or(1);
    let orders = orders * scale;
    let mut config = Config::new();
    config.stack_size = 1 << 18;
    Runner::new(RandomScheduler::new(orders), config.clone()).run(body);
    Runner::new(PctScheduler::new(4, orders), config).run(body);
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Op(&'static str, u64);

impl Operation for Op {
    fn pid(&self) -> Option<&str> {
        Some(self.0)
    }

    fn bytes(&self) -> usize {
        1
    }
}

#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("told to")]
struct Told;

/// Fails what it is told to, once; others may run while it works.
#[derive(Default)]
struct Memory {
    applied: Mutex<Vec<Op>>,
    transient: Mutex<Vec<u64>>,
    permanent: Mutex<Vec<u64>>,
}

fn take(values: &Mutex<Vec<u64>>, value: u64) -> bool {
    let mut values = values.lock().unwrap_or_else(PoisonError::into_inner);
    let at = values.iter().position(|known| *known == value);
    at.map(|at| values.remove(at)).is_some()
}

impl Sink for Memory {
    type Op = Op;
    type Output = u64;
    type Error = Told;

    async fn apply(&self, _: u64, ops: &[Op]) -> Answer<u64, Told> {
        step_back().await;
        let mut stopped = Vec::new();
        let mut apply = |op: &Op| {
            if stopped.contains(&op.0) || take(&self.transient, op.1) {
                stopped.push(op.0);
                return Err(SinkError::transient(Told));
            }
            if take(&self.permanent, op.1) {
                stopped.push(op.0);
                return Err(SinkError::permanent(Told));
            }
            self.applied.lock().unwrap().push(op.clone());
            Ok(op.1)
        };
        let results = ops.iter().map(&mut apply).collect();
        step_back().await;
        Answer::Each(results)
    }

    fn stops_at_failure(&self) -> bool {
        true
    }
}

impl Memory {
    fn values(&self) -> Vec<u64> {
        self.applied.lock().unwrap().iter().map(|op| op.1).collect()
    }

    fn has(&self, value: u64) -> bool {
        self.values().contains(&value)
    }
}

fn small(ops_max: usize, batch_ops_max: usize) -> WriterOptions {
    WriterOptions {
        ops_max: NonZeroUsize::new(ops_max).unwrap(),
        batch_ops_max: NonZeroUsize::new(batch_ops_max).unwrap(),
        // A wait for it would end by itself, and hide a wake-up that was lost.
        retry_max: Duration::from_secs(3600),
        apply_max: Duration::from_secs(3600),
        close_max: Duration::from_secs(3600),
        ..WriterOptions::default()
    }
}

fn open(sink: &Arc<Memory>, options: WriterOptions) -> Writer<Memory> {
    Writer::open(Arc::clone(sink), options)
}

fn join<T>(threads: Vec<JoinHandle<T>>) -> Vec<T> {
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// Polls a future at most that often, and drops it if it has not ended then.
async fn up_to<F: Future>(polls: u32, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(move |cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => {
                if left == 0 {
                    return Poll::Ready(None);
                }
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    })
    .await
}

/// What was accepted is applied, once and in the order of each pid; all numbers are back where they began.
fn adds_up(sink: &Memory, writer: &Writer<Memory>, accepted: &mut Vec<u64>) {
    let mut applied = sink.values();
    for pid in ["a", "b", "c"] {
        let all = sink.applied.lock().unwrap();
        let of_pid: Vec<u64> = all.iter().filter(|op| op.0 == pid).map(|op| op.1).collect();
        assert!(of_pid.is_sorted_by(|left, right| left < right), "{pid}: {of_pid:?}");
    }
    applied.sort_unstable();
    accepted.sort_unstable();
    assert_eq!(&applied, accepted);
    let stats = writer.stats();
    assert_eq!((stats.depth, stats.depth_bytes, stats.in_flight, stats.waiting), (0, 0, 0, 0));
    assert_eq!((stats.accepted, stats.latched), (accepted.len() as u64, false));
}

#[test]
fn admissions_and_bookkeeping_meet_in_a_full_shard() {
    check(300, || {
        let sink = Arc::new(Memory::default());
        let writer = open(&sink, small(2, 1));
        let admits = ["a", "b"].into_iter().zip([0, 10]).map(|(pid, first)| {
            let (writer, sink) = (writer.clone(), Arc::clone(&sink));
            thread::spawn(move || {
                let mut accepted = Vec::new();
                for value in first..first + 3 {
                    match writer.try_admit(Op(pid, value)) {
                        Ok(ticket) => {
                            accepted.push(value);
                            assert_eq!(block_on(ticket), Ok(value));
                            assert!(sink.has(value), "told before it was applied");
                        }
                        Err(refused) => {
                            assert_eq!(refused.reason, RefusedReason::Saturated);
                            assert_eq!(refused.ops, [Op(pid, value)]);
                        }
                    }
                }
                accepted
            })
        });
        let mut threads: Vec<_> = admits.collect();
        let sender = writer.clone();
        threads.push(thread::spawn(move || {
            let values = 20..24;
            let send = |value| block_on(sender.send(Op("c", value))).unwrap();
            let tickets: Vec<_> = values.clone().map(send).collect();
            tickets.into_iter().zip(values.clone()).for_each(|(t, value)| assert_eq!(block_on(t), Ok(value)));
            values.collect()
        }));
        let mut accepted = join(threads).concat();
        block_on(writer.close()).unwrap();
        adds_up(&sink, &writer, &mut accepted);
    });
}

#[test]
fn a_future_dropped_at_any_await_leaves_nothing() {
    check(500, || {
        let sink = Arc::new(Memory::default());
        let writer = open(&sink, small(1, 1));
        let threads = ["a", "b", "c"].into_iter().zip([0, 10, 20]).map(|(pid, first)| {
            let writer = writer.clone();
            thread::spawn(move || {
                let mut accepted = Vec::new();
                for value in first..first + 3 {
                    let polls = shuttle::rand::thread_rng().gen_range(0..5);
                    block_on(async {
                        if let Some(sent) = up_to(polls, writer.send(Op(pid, value))).await {
                            accepted.push(value);
                            up_to(polls, sent.unwrap()).await;
                        }
                        if let Some(flushed) = up_to(polls, writer.flush()).await {
                            flushed.unwrap();
                        }
                        if let Some(flushed) = up_to(polls, writer.flush_pid(pid)).await {
                            flushed.unwrap();
                        }
                    });
                }
                accepted
            })
        });
        let mut accepted = join(threads.collect()).concat();
        block_on(async {
            up_to(2, writer.close()).await;
            writer.close().await.unwrap();
        });
        adds_up(&sink, &writer, &mut accepted);
    });
}

#[test]
fn a_dropped_send_that_had_its_room_passes_it_on() {
    check(500, || {
        let sink = Arc::new(Memory::default());
        let writer = open(&sink, small(1, 1));
        let impatient = {
            let writer = writer.clone();
            thread::spawn(move || {
                let polls = shuttle::rand::thread_rng().gen_range(1..4);
                block_on(async {
                    let sent = up_to(polls, writer.send(Op("a", 0))).await;
                    Vec::from_iter(sent.map(|_| 0))
                })
            })
        };
        let patient = [1, 2].map(|value| {
            let writer = writer.clone();
            thread::spawn(move || {
                let ticket = block_on(writer.send(Op("b", 0))).map(drop);
                ticket.unwrap();
                block_on(writer.send(Op("c", value))).map(drop).unwrap();
            })
        });
        let accepted = impatient.join().unwrap();
        join(patient.into());
        block_on(writer.close()).unwrap();
        let stats = writer.stats();
        assert_eq!((stats.accepted, stats.applied), (4 + accepted.len() as u64, stats.accepted));
        assert_eq!((stats.depth, stats.waiting, stats.latched), (0, 0, false));
    });
}

#[test]
fn the_latch_is_released_when_the_backlog_is_gone() {
    check(300, || {
        let sink = Arc::new(Memory::default());
        let two = NonZeroU64::new(2).unwrap();
        let scope = [LatchScope::Whole, LatchScope::Shard][shuttle::rand::thread_rng().gen_range(0..2)];
        let writer = open(&sink, WriterOptions { shards: two, latch: scope, ..small(4, 2) });
        let threads = ["a", "b"].into_iter().zip([0, 10]).map(|(pid, first)| {
            let writer = writer.clone();
            thread::spawn(move || {
                let group = |from: u64| (from..from + 2).map(|value| Op(pid, value)).collect::<Vec<_>>();
                let mut accepted = Vec::new();
                for from in [first, first + 2, first + 4] {
                    match writer.try_admit_all(group(from)) {
                        Ok(_) => accepted.extend(from..from + 2),
                        Err(refused) => {
                            assert_eq!(refused.ops, group(from));
                            // Whatever latched it, it drains.
                            block_on(writer.flush()).unwrap();
                        }
                    }
                }
                accepted
            })
        });
        let mut accepted = join(threads.collect()).concat();
        block_on(writer.flush()).unwrap();
        assert!(!writer.is_saturated());
        let last = writer.try_admit(Op("c", 50)).unwrap();
        accepted.push(50);
        block_on(last).unwrap();
        block_on(writer.close()).unwrap();
        adds_up(&sink, &writer, &mut accepted);
    });
}

#[test]
fn no_flush_overtakes_what_precedes_it() {
    check(300, || {
        let sink = Arc::new(Memory::default());
        sink.transient.lock().unwrap().extend([0, 11, 11]);
        let writer = open(&sink, small(8, 2));
        let threads = ["a", "b", "c"].into_iter().zip([0, 10, 20]).map(|(pid, first)| {
            let (writer, sink) = (writer.clone(), Arc::clone(&sink));
            thread::spawn(move || {
                for value in first..first + 3 {
                    drop(writer.try_admit(Op(pid, value)).unwrap());
                    if value % 2 == 0 {
                        block_on(writer.flush()).unwrap();
                    } else {
                        block_on(writer.flush_pid(pid)).unwrap();
                    }
                    assert!(sink.has(value), "{value} was flushed, and is not there");
                }
            })
        });
        join(threads.collect());
        block_on(writer.close()).unwrap();
        adds_up(&sink, &writer, &mut [0, 1, 2, 10, 11, 12, 20, 21, 22].into());
    });
}

#[test]
fn a_close_ends_everything_and_all_closers_wait_for_it() {
    check(300, || {
        let sink = Arc::new(Memory::default());
        let writer = open(&sink, small(2, 2));
        let senders = ["a", "b"].into_iter().zip([0, 10]).map(|(pid, first)| {
            let writer = writer.clone();
            thread::spawn(move || {
                let mut accepted = Vec::new();
                for value in first..first + 3 {
                    match block_on(writer.send(Op(pid, value))) {
                        Ok(ticket) => {
                            accepted.push(value);
                            assert_eq!(block_on(ticket), Ok(value));
                        }
                        Err(closed) => assert_eq!(closed.op, Op(pid, value)),
                    }
                }
                accepted
            })
        });
        let senders: Vec<_> = senders.collect();
        let closers = (0..2).map(|_| {
            let writer = writer.clone();
            thread::spawn(move || {
                block_on(writer.close()).unwrap();
                let stats = writer.stats();
                assert_eq!((stats.depth, stats.in_flight), (0, 0), "it returned before the end");
                block_on(writer.flush()).unwrap();
                block_on(writer.flush_pid("a")).unwrap();
            })
        });
        join(closers.collect());
        let mut accepted = join(senders).concat();
        adds_up(&sink, &writer, &mut accepted);
    });
}

#[test]
fn a_held_pid_goes_on_when_it_is_acknowledged_and_not_before() {
    check(400, || {
        let sink = Arc::new(Memory::default());
        sink.permanent.lock().unwrap().push(1);
        let writer = open(&sink, WriterOptions { on_failure: OnFailure::StopPid, ..small(8, 2) });
        let producer = {
            let writer = writer.clone();
            thread::spawn(move || {
                let tickets: Vec<_> = (0..4).map(|value| writer.try_admit(Op("a", value)).unwrap()).collect();
                tickets.into_iter().map(block_on).collect::<Vec<_>>()
            })
        };
        let flusher = {
            let writer = writer.clone();
            // Neither waits for what only an acknowledgement ends.
            thread::spawn(move || {
                block_on(writer.flush()).unwrap_or(());
                block_on(writer.flush_pid("a")).unwrap_or(());
            })
        };
        let keeper = {
            let (writer, sink) = (writer.clone(), Arc::clone(&sink));
            thread::spawn(move || {
                while !writer.acknowledge("a") {
                    assert!(!sink.has(2), "it landed behind a failure that nobody has seen");
                    thread::yield_now();
                }
            })
        };
        let outcomes = producer.join().unwrap();
        join(vec![flusher, keeper]);
        let failed = matches!(outcomes[1], Err(WriteError::Sink { error: Told, .. }));
        assert!(failed && [0, 2, 3].into_iter().all(|n| outcomes[n] == Ok(n as u64)), "{outcomes:?}");
        block_on(writer.close()).unwrap_or(());
        let stats = writer.stats();
        assert_eq!((stats.applied, stats.failed, stats.depth, stats.held), (3, 1, 0, 0));
        assert_eq!(sink.values(), [0, 2, 3]);
    });
}

#[test]
fn a_held_pid_closes_the_writer_to_nobody() {
    check(400, || {
        let sink = Arc::new(Memory::default());
        sink.permanent.lock().unwrap().push(0);
        let writer = open(&sink, WriterOptions { on_failure: OnFailure::StopPid, ..small(2, 1) });
        let book = {
            let writer = writer.clone();
            // Its own fill the shard, and wait for a person in the end.
            thread::spawn(move || {
                for value in 0..4 {
                    drop(block_on(writer.send(Op("a", value))).unwrap());
                }
            })
        };
        let other = {
            let writer = writer.clone();
            thread::spawn(move || {
                drop(block_on(writer.send(Op("b", 10))).unwrap());
                match writer.try_admit(Op("b", 11)) {
                    Ok(_) => vec![10, 11],
                    Err(refused) => {
                        assert_eq!(refused.reason, RefusedReason::Saturated);
                        vec![10]
                    }
                }
            })
        };
        let keeper = {
            let (writer, sink) = (writer.clone(), Arc::clone(&sink));
            thread::spawn(move || {
                while writer.held().is_empty() {
                    thread::yield_now();
                }
                // What is held keeps no latch: once the rest has gone, and has come for its room, there is none.
                while writer.stats().latched {
                    thread::yield_now();
                }
                assert!(!sink.has(1), "it landed behind a failure that nobody has seen");
                assert!(writer.acknowledge("a"));
            })
        };
        join(vec![book, keeper]);
        let mut accepted = [other.join().unwrap(), vec![1, 2, 3]].concat();
        block_on(writer.close()).unwrap_err();
        let mut applied = sink.values();
        applied.sort_unstable();
        accepted.sort_unstable();
        assert_eq!(applied, accepted);
        let of_a: Vec<u64> = sink.values().into_iter().filter(|value| *value < 10).collect();
        assert_eq!(of_a, [1, 2, 3]);
        let stats = writer.stats();
        assert_eq!((stats.depth, stats.held, stats.waiting, stats.latched), (0, 0, 0, false));
    });
}

#[test]
fn dropping_the_last_handle_tells_every_ticket() {
    check(300, || {
        let sink = Arc::new(Memory::default());
        let writer = open(&sink, small(8, 1));
        let tickets: Vec<_> = (0..3).map(|value| writer.try_admit(Op("a", value)).unwrap()).collect();
        let other = writer.clone();
        let dropper = thread::spawn(move || drop(other));
        drop(writer);
        dropper.join().unwrap();
        for (value, ticket) in (0..).zip(tickets) {
            match block_on(ticket) {
                Ok(told) => assert!(told == value && sink.has(value)),
                Err(WriteError::NotWritten { .. }) => assert!(!sink.has(value)),
                Err(error) => assert_eq!(error, WriteError::Abandoned),
            }
        }
        // The tasks end behind the last ticket.
        while Arc::strong_count(&sink) > 1 {
            thread::yield_now();
        }
    });
}
