use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outhaul_writer::{
    Answer, FailureKind, Operation, Sink, SinkError, TicketOf, WriteError, Writer, WriterOptions,
};
use proptest::prelude::*;
use tokio::sync::Semaphore;

use crate::support::{Told, count, settle, soon};

/// Sets a key of a pid; without a key it stands for itself.
struct Set {
    pid: &'static str,
    key: Option<&'static str>,
    value: u64,
}

impl Operation for Set {
    fn pid(&self) -> Option<&str> {
        Some(self.pid)
    }

    fn bytes(&self) -> usize {
        1
    }
}

/// Fails what it is told to.
struct Keys {
    calls: Mutex<Vec<Vec<u64>>>,
    bad: Mutex<Vec<(u64, FailureKind)>>,
    pass: Semaphore,
}

impl Sink for Keys {
    type Op = Set;
    type Output = u64;
    type Error = Told;

    async fn apply(&self, _: u64, ops: &[Set]) -> Answer<u64, Told> {
        self.pass.acquire().await.unwrap().forget();
        let call: Vec<u64> = ops.iter().map(|op| op.value).collect();
        self.calls.lock().unwrap().push(call.clone());
        let mut bad = self.bad.lock().unwrap();
        let mut apply = |value: u64| {
            let Some(at) = bad.iter().position(|(bad, _)| *bad == value) else { return Ok(value) };
            let kind = bad[at].1;
            if kind == FailureKind::Transient {
                bad.remove(at);
            }
            Err(SinkError { kind, error: Told(value) })
        };
        Answer::Each(call.into_iter().map(&mut apply).collect())
    }

    fn coalesce_key<'a>(&self, op: &'a Set) -> Option<&'a [u8]> {
        op.key.map(str::as_bytes)
    }
}

struct Bench {
    sink: Arc<Keys>,
    writer: Writer<Keys>,
}

impl Bench {
    fn open() -> Self {
        Self::with(count(4_096))
    }

    fn with(batch_ops_max: NonZeroUsize) -> Self {
        let sink = Arc::new(Keys { calls: Mutex::default(), bad: Mutex::default(), pass: Semaphore::new(1) });
        let writer =
            Writer::open(Arc::clone(&sink), WriterOptions { batch_ops_max, ..WriterOptions::default() });
        Self { sink, writer }
    }

    fn set(&self, pid: &'static str, key: &'static str, value: u64) -> TicketOf<Keys> {
        let key = (!key.is_empty()).then_some(key);
        self.writer.try_admit(Set { pid, key, value }).unwrap()
    }

    async fn outcomes(&self, tickets: Vec<TicketOf<Keys>>) -> Vec<Result<u64, WriteError<Told>>> {
        self.sink.pass.add_permits(100);
        let mut outcomes = Vec::new();
        for ticket in tickets {
            outcomes.push(soon(ticket).await);
        }
        outcomes
    }

    fn calls(&self) -> Vec<Vec<u64>> {
        self.sink.calls.lock().unwrap().clone()
    }
}

#[tokio::test(start_paused = true)]
async fn a_later_operation_of_a_key_replaces_the_earlier_of_its_batch() {
    let bench = Bench::open();
    let sets = [("a", "x", 1), ("a", "y", 2), ("b", "x", 3), ("a", "x", 4), ("a", "x", 5), ("b", "y", 6)];
    let tickets = sets.map(|(pid, key, value)| bench.set(pid, key, value));
    let outcomes = bench.outcomes(tickets.into()).await;
    assert_eq!(outcomes, [5, 2, 3, 5, 5, 6].map(Ok), "a ticket has the output of what took its place");
    assert_eq!(bench.calls(), [[2, 3, 5, 6]], "the key of another pid is another key");
    let stats = bench.writer.stats();
    assert_eq!((stats.accepted, stats.applied, stats.coalesced, stats.depth), (6, 6, 2, 0));
}

#[tokio::test(start_paused = true)]
async fn an_operation_without_a_key_keeps_its_pid_apart() {
    let bench = Bench::open();
    let sets = [("a", "x", 1), ("b", "x", 2), ("a", "", 3), ("a", "x", 4), ("b", "x", 5)];
    let tickets = sets.map(|(pid, key, value)| bench.set(pid, key, value));
    let outcomes = bench.outcomes(tickets.into()).await;
    assert_eq!(outcomes, [1, 5, 3, 4, 5].map(Ok));
    assert_eq!(bench.calls(), [[1, 3, 4, 5]]);
}

#[tokio::test(start_paused = true)]
async fn batches_do_not_reach_for_each_other() {
    let bench = Bench::open();
    let first = bench.set("a", "x", 1);
    soon(first).await.unwrap();
    let second = bench.set("a", "x", 2);
    assert_eq!(bench.outcomes(vec![second]).await, [Ok(2)]);
    assert_eq!(bench.calls(), [[1], [2]]);
}

#[tokio::test(start_paused = true)]
async fn one_that_replaced_others_and_is_bad_fails_alone() {
    let bench = Bench::open();
    bench.sink.bad.lock().unwrap().push((3, FailureKind::Permanent));
    let sets = [("a", "x", 1), ("a", "x", 2), ("a", "x", 3), ("b", "x", 4)];
    let tickets = sets.map(|(pid, key, value)| bench.set(pid, key, value));
    let outcomes = bench.outcomes(tickets.into()).await;
    let bad = WriteError::Sink { kind: FailureKind::Permanent, error: Told(3) };
    assert_eq!(outcomes, [Ok(1), Ok(2), Err(bad), Ok(4)]);
    assert_eq!(bench.calls(), [vec![3, 4], vec![1, 2, 3]], "each for itself the second time");
    let stats = bench.writer.stats();
    assert_eq!((stats.applied, stats.failed, stats.coalesced, stats.depth), (3, 1, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn what_was_replaced_shares_a_retry_and_an_unknown_outcome() {
    let bench = Bench::open();
    bench.sink.bad.lock().unwrap().extend([(2, FailureKind::Transient), (4, FailureKind::Unknown)]);
    let sets = [("a", "x", 1), ("a", "x", 2), ("b", "x", 3), ("b", "x", 4)];
    let tickets = sets.map(|(pid, key, value)| bench.set(pid, key, value));
    let outcomes = bench.outcomes(tickets.into()).await;
    let unknown = || Err(WriteError::Sink { kind: FailureKind::Unknown, error: Told(4) });
    assert_eq!(outcomes, [Ok(2), Ok(2), unknown(), unknown()]);
    assert_eq!(bench.calls(), [vec![2, 4], vec![2]]);
    assert_eq!(soon(bench.writer.flush()).await.unwrap_err().failed, 2);
}

/// A call of three, of which the last, that replaced the first, comes again; a batch has no room for both beside others.
#[tokio::test(start_paused = true)]
async fn what_was_replaced_never_lands_for_itself_behind_what_landed() {
    let bench = Bench::with(count(3));
    bench.sink.bad.lock().unwrap().push((3, FailureKind::Transient));
    let a = [("x", 1), ("y", 2), ("x", 3)].map(|(key, value)| bench.set("a", key, value));
    settle().await;
    let first = ["b", "c"].map(|pid| bench.set(pid, "", 10));
    settle().await;
    let second = ["b", "c", "d"].map(|pid| bench.set(pid, "", 11));
    tokio::time::advance(Duration::from_millis(20)).await;
    assert_eq!(bench.outcomes(a.into()).await, [Ok(3), Ok(2), Ok(3)]);
    for ticket in first.into_iter().chain(second) {
        soon(ticket).await.unwrap();
    }
    let calls = bench.calls();
    assert_eq!(calls[..2], [vec![2, 3], vec![10, 10]]);
    assert!(calls.iter().all(|call| !call.contains(&1)), "{calls:?}");
    let stats = bench.writer.stats();
    assert_eq!((stats.accepted, stats.applied, stats.coalesced, stats.depth), (8, 8, 1, 0));
}

/// The same when the one that replaced it fails for good in the end: nothing may land behind what landed before.
#[tokio::test(start_paused = true)]
async fn what_was_replaced_fails_with_its_successor_when_it_is_late() {
    let bench = Bench::with(count(3));
    bench.sink.bad.lock().unwrap().extend([(3, FailureKind::Transient), (3, FailureKind::Permanent)]);
    let a = [("x", 1), ("y", 2), ("x", 3)].map(|(key, value)| bench.set("a", key, value));
    let bad = || Err(WriteError::Sink { kind: FailureKind::Permanent, error: Told(3) });
    assert_eq!(bench.outcomes(a.into()).await, [bad(), Ok(2), bad()]);
    assert_eq!(bench.calls(), [vec![2, 3], vec![3]]);
    assert_eq!(soon(bench.writer.flush()).await.unwrap_err().failed, 2);
}

/// Whole calls of it fail permanently while something in them is bad.
struct Atomic(Keys);

impl Sink for Atomic {
    type Op = Set;
    type Output = u64;
    type Error = Told;

    async fn apply(&self, _: u64, ops: &[Set]) -> Answer<u64, Told> {
        let call: Vec<u64> = ops.iter().map(|op| op.value).collect();
        let mut bad = self.0.bad.lock().unwrap();
        if let Some(at) = bad.iter().position(|(_, kind)| *kind == FailureKind::Permanent)
            && let Some((value, kind)) = call.contains(&bad[at].0).then(|| bad[at])
        {
            return Answer::Failed(SinkError { kind, error: Told(value) });
        }
        let mut stopped = Vec::new();
        let mut results = Vec::new();
        for op in ops {
            let at = bad.iter().position(|(value, _)| *value == op.value);
            if stopped.contains(&op.pid) || at.map(|at| bad.swap_remove(at)).is_some() {
                stopped.push(op.pid);
                results.push(Err(SinkError::transient(Told(op.value))));
            } else {
                self.0.calls.lock().unwrap().push(vec![op.value]);
                results.push(Ok(op.value));
            }
        }
        Answer::Each(results)
    }

    fn coalesce_key<'a>(&self, op: &'a Set) -> Option<&'a [u8]> {
        op.key.map(str::as_bytes)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// What lands of a pid is in the order of acceptance, and every ticket is told: by itself or by what replaced it.
    #[test]
    fn the_order_of_a_pid_holds_whatever_was_replaced(
        batch_ops_max in 1_usize..6,
        sets in prop::collection::vec((0_usize..2, 0_usize..3), 1..24),
        transient in prop::collection::vec(0_u64..24, 0..12),
        permanent in prop::option::of(0_u64..24),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(async {
            let bad = transient.into_iter().map(|value| (value, FailureKind::Transient));
            let bad = bad.chain(permanent.map(|value| (value, FailureKind::Permanent))).collect();
            let keys = Keys { calls: Mutex::default(), bad: Mutex::new(bad), pass: Semaphore::new(0) };
            let sink = Arc::new(Atomic(keys));
            let options = WriterOptions { batch_ops_max: count(batch_ops_max), ..WriterOptions::default() };
            let writer = Writer::open(Arc::clone(&sink), options);
            let pid = |value: u64| ["a", "b"][sets[value as usize].0];
            let mut tickets = Vec::new();
            for (value, (_, key)) in (0_u64..).zip(&sets) {
                let key = [Some("x"), Some("y"), None][*key];
                tickets.push(writer.try_admit(Set { pid: pid(value), key, value }).unwrap());
                if value % 5 == 4 {
                    settle().await;
                }
            }
            let mut outcomes = Vec::new();
            for ticket in tickets {
                outcomes.push(soon(ticket).await);
            }
            let landed = sink.0.calls.lock().unwrap().concat();
            for pid_of in ["a", "b"] {
                let of_pid: Vec<u64> = landed.iter().copied().filter(|value| pid(*value) == pid_of).collect();
                assert!(of_pid.is_sorted_by(|left, right| left < right), "{pid_of}: {of_pid:?}");
            }
            for (value, outcome) in (0_u64..).zip(outcomes) {
                match outcome {
                    Ok(by) => assert!(by >= value && landed.contains(&by) && sets[by as usize] == sets[value as usize]),
                    Err(WriteError::Sink { kind, error: Told(by) }) => {
                        assert!(kind == FailureKind::Permanent && Some(by) == permanent && by >= value);
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            let stats = writer.stats();
            assert_eq!((stats.accepted, stats.applied + stats.failed, stats.depth), (sets.len() as u64, stats.accepted, 0));
        });
    }
}
