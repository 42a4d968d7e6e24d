//! Random operations, delays, failures, panics and cancellations against a plain account of what was accepted.

use std::collections::HashMap;
use std::time::Duration;

use outhaul_writer::{
    FailureKind, FlushReport, LatchScope, NotWrittenReason, OnFailure, WriteError, Writer, WriterOptions,
};
use proptest::prelude::*;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::support::*;

#[derive(Clone, Debug)]
enum Action {
    Admit { pid: u8, faults: Vec<Fault> },
    AdmitAll { pids: Vec<u8> },
    Send { pid: u8, faults: Vec<Fault>, patience: Option<u64> },
    Flush { pid: Option<u8>, patience: Option<u64> },
    Acknowledge { pid: u8 },
    Advance { ms: u64 },
}

fn faults() -> impl Strategy<Value = Vec<Fault>> {
    let last = prop_oneof![
        6 => Just(None),
        1 => Just(Some(Fault::Permanent)),
        1 => Just(Some(Fault::Unknown)),
        1 => Just(Some(Fault::Panic)),
        1 => Just(Some(Fault::Short)),
    ];
    let transients = prop_oneof![4 => Just(0), 2 => 1..4_usize, 1 => Just(1_000)];
    (transients, last).prop_map(|(transients, last)| {
        std::iter::repeat_n(Fault::Transient, transients).chain(last).collect()
    })
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => (0..6_u8, faults()).prop_map(|(pid, faults)| Action::Admit { pid, faults }),
        1 => prop::collection::vec(0..6_u8, 1..20).prop_map(|pids| Action::AdmitAll { pids }),
        4 => (0..6_u8, faults(), prop::option::of(0..30_u64))
            .prop_map(|(pid, faults, patience)| Action::Send { pid, faults, patience }),
        1 => (prop::option::of(0..6_u8), prop::option::of(0..30_u64))
            .prop_map(|(pid, patience)| Action::Flush { pid, patience }),
        1 => (0..6_u8).prop_map(|pid| Action::Acknowledge { pid }),
        2 => (0..60_u64).prop_map(|ms| Action::Advance { ms }),
    ]
}

fn options() -> impl Strategy<Value = WriterOptions> {
    (1..4_u64, 1..24_usize, 1..9_usize, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(shards_max, ops_max, batch_ops_max, gather, whole, stop_pid)| WriterOptions {
            shards: shards(shards_max),
            ops_max: count(ops_max),
            batch_ops_max: count(batch_ops_max),
            retry_max: Duration::from_millis(300),
            on_failure: if stop_pid { OnFailure::StopPid } else { OnFailure::Continue },
            latch: if whole { LatchScope::Whole } else { LatchScope::Shard },
            gather,
            ..WriterOptions::default()
        },
    )
}

/// What is known outside the writer.
#[derive(Default)]
struct Account {
    next: u64,
    accepted: Vec<(String, u64)>,
    refused: Vec<u64>,
    tickets: HashMap<u64, Ticket>,
    reported: u64,
}

impl Account {
    fn op(&mut self, pid: u8) -> Op {
        self.next += 1;
        op(&format!("pid {pid}"), self.next)
    }

    fn accepted(&mut self, op: &Op, ticket: Ticket) {
        self.accepted.push((op.pid.clone().unwrap(), op.value));
        self.tickets.insert(op.value, ticket);
    }

    fn report(&mut self, report: Result<(), FlushReport>) {
        self.reported += report.map_or_else(|report| report.failed, |()| 0);
    }
}

async fn act(account: &mut Account, sink: &TestSink, writer: &Writer<TestSink>, action: Action) {
    match action {
        Action::Admit { pid, faults } => {
            let op = account.op(pid);
            sink.fail(op.value, faults);
            match writer.try_admit(op.clone()) {
                Ok(ticket) => account.accepted(&op, ticket),
                Err(refused) => account.refused.extend(refused.ops.iter().map(|op| op.value)),
            }
        }
        Action::AdmitAll { pids } => {
            let group: Vec<Op> = pids.into_iter().map(|pid| account.op(pid)).collect();
            match writer.try_admit_all(group.clone()) {
                Ok(tickets) => {
                    group.iter().zip(tickets).for_each(|(op, ticket)| account.accepted(op, ticket))
                }
                Err(refused) => {
                    assert_eq!(refused.ops, group);
                    account.refused.extend(group.iter().map(|op| op.value));
                }
            }
        }
        Action::Send { pid, faults, patience } => {
            let op = account.op(pid);
            sink.fail(op.value, faults);
            let patience = Duration::from_millis(patience.unwrap_or(600_000));
            match timeout(patience, writer.send(op.clone())).await {
                Ok(sent) => account.accepted(&op, sent.unwrap()),
                Err(_) => account.refused.push(op.value),
            }
        }
        Action::Flush { pid, patience } => {
            let patience = Duration::from_millis(patience.unwrap_or(600_000));
            let flush = async {
                match pid {
                    None => writer.flush().await,
                    Some(pid) => writer.flush_pid(&format!("pid {pid}")).await,
                }
            };
            if let Ok(report) = timeout(patience, flush).await {
                account.report(report);
            }
        }
        Action::Acknowledge { pid } => _ = writer.acknowledge(&format!("pid {pid}")),
        // bounded: the clock is paused.
        Action::Advance { ms } => tokio::time::sleep(Duration::from_millis(ms)).await,
    }
    let stats = writer.stats();
    let known = stats.applied + stats.failed + (stats.depth + stats.in_flight) as u64;
    assert_eq!(stats.accepted, known, "{stats:?}");
    assert_eq!(stats.accepted as usize, account.accepted.len());
}

async fn check(mut account: Account, sink: &TestSink, writer: &Writer<TestSink>) {
    let closed = soon(writer.close()).await;
    account.report(closed.map_err(|report| report.failures));
    let mut failed = 0;
    let applied = sink.applied();
    for (pid, value) in &account.accepted {
        let times = applied.iter().filter(|applied| *applied == value).count();
        let outcome = soon(account.tickets.remove(value).unwrap()).await;
        match outcome {
            Ok(output) => assert_eq!((output, times), (*value, 1), "{pid}: applied once"),
            Err(error) => {
                failed += 1;
                assert_eq!(times, 0, "{pid}: {value} ended with {error:?} and was applied");
                if let WriteError::NotWritten { reason } = error {
                    assert_eq!(reason, NotWrittenReason::Held);
                }
                if let WriteError::Sink { error: Told(told), kind } = error {
                    assert_eq!(told, *value, "its own error");
                    assert_ne!((kind, writer.stats().retried), (FailureKind::Transient, 0));
                }
            }
        }
    }
    assert!(account.refused.iter().all(|value| !applied.contains(value)), "what was refused is not applied");
    assert!(applied.iter().all(|value| account.accepted.iter().any(|(_, accepted)| accepted == value)));
    for pid in (0..6).map(|pid| format!("pid {pid}")) {
        let accepted = account.accepted.iter().filter(|(of, _)| *of == pid).map(|(_, value)| *value);
        let expected: Vec<u64> = accepted.filter(|value| applied.contains(value)).collect();
        assert_eq!(sink.applied_of(&pid), expected, "{pid} keeps its order");
    }
    let stats = writer.stats();
    assert_eq!((stats.applied, stats.failed), (applied.len() as u64, failed));
    assert_eq!((stats.depth, stats.depth_bytes, stats.in_flight, stats.waiting), (0, 0, 0, 0));
    assert!(!stats.latched);
    // One caller at a time: each failure is reported by exactly one flush, or by the close.
    assert_eq!(account.reported, failed);
}

fn paused() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn one_caller_after_another(
        options in options(),
        commit_ms in 0..20_u64,
        atomic in any::<bool>(),
        actions in prop::collection::vec(action(), 1..80),
    ) {
        paused().block_on(async {
            let sink = TestSink::with_commit(Duration::from_millis(commit_ms));
            if atomic {
                sink.atomic();
            }
            let writer = open(&sink, options);
            let mut account = Account::default();
            for action in actions {
                act(&mut account, &sink, &writer, action).await;
            }
            check(account, &sink, &writer).await;
        });
    }

    /// Each producer has a pid of its own and waits for some of its tickets; some of them are dropped half-way.
    #[test]
    fn many_callers_at_once(
        options in options(),
        commit_ms in 0..20_u64,
        atomic in any::<bool>(),
        producers in prop::collection::vec((1..30_u64, prop::option::of(0..200_u64), any::<bool>(), faults()), 1..12),
    ) {
        paused().block_on(async {
            let sink = TestSink::with_commit(Duration::from_millis(commit_ms));
            if atomic {
                sink.atomic();
            }
            // Nobody acknowledges here.
            let writer = open(&sink, WriterOptions { on_failure: OnFailure::Continue, ..options });
            let mut tasks = JoinSet::new();
            for (producer, (ops, patience, awaits, faults)) in producers.into_iter().enumerate() {
                let first = 1_000 * producer as u64;
                sink.fail(first + ops / 2, faults);
                let writer = writer.clone();
                tasks.spawn(async move {
                    let work = async {
                        for value in first..first + ops {
                            let ticket = writer.send(op(&producer.to_string(), value)).await.unwrap();
                            if awaits && let Ok(output) = ticket.await {
                                assert_eq!(output, value);
                            }
                        }
                    };
                    // Over when its patience is; what it was waiting for then is dropped.
                    timeout(Duration::from_millis(patience.unwrap_or(600_000)), work).await.is_ok()
                });
            }
            soon(tasks.join_all()).await;
            let report = soon(writer.close()).await;
            let stats = writer.stats();
            let applied = sink.applied();
            assert_eq!(report.map_or_else(|report| report.failures.failed, |()| 0), stats.failed);
            assert_eq!((stats.accepted, stats.applied), (stats.applied + stats.failed, applied.len() as u64));
            assert_eq!((stats.depth, stats.depth_bytes, stats.waiting, stats.latched), (0, 0, 0, false));
            for producer in 0..12 {
                let of_pid = sink.applied_of(&producer.to_string());
                assert!(of_pid.is_sorted_by(|left, right| left < right), "in order and once: {of_pid:?}");
            }
        });
    }
}
