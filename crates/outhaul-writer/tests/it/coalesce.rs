use std::sync::{Arc, Mutex};

use outhaul_writer::{
    Answer, FailureKind, Operation, Sink, SinkError, TicketOf, WriteError, Writer, WriterOptions, async_trait,
};
use tokio::sync::Semaphore;

use crate::support::{Told, soon};

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

#[async_trait]
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
        let sink = Arc::new(Keys { calls: Mutex::default(), bad: Mutex::default(), pass: Semaphore::new(1) });
        let writer = Writer::open(Arc::clone(&sink), WriterOptions::default());
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
