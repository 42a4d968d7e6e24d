//! Written by somebody who did not write the crate.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use outhaul_writer::{
    Answer, FailureKind, LatchScope, OnFailure, Operation, Sink, SinkError, WriteError, Writer, WriterOptions,
};

use crate::logged;
use crate::support::*;

#[tokio::test(start_paused = true)]
async fn an_ordinary_latch_goes_with_a_held_minority() {
    let options = WriterOptions { on_failure: OnFailure::StopPid, ..one_by_one(8) };
    let sink = TestSink::held();
    let writer = open(&sink, options);
    sink.fail(0, [Fault::Permanent]);
    drop(writer.try_admit(op("a", 0)).unwrap());
    sink.entered(1).await;
    drop(writer.try_admit_all(ops("a", 1..4)).unwrap());
    while writer.try_admit(op("b", 9)).is_ok() {}
    sink.go_on();
    soon(writer.flush()).await.unwrap_err();
    assert!(!writer.is_saturated());
}

#[tokio::test(start_paused = true)]
async fn of_two_latched_shards_the_slower_one_releases() {
    let sink = TestSink::held();
    let eight = shards(8);
    let writer = open(&sink, WriterOptions { shards: eight, latch: LatchScope::Whole, ..one_by_one(64) });
    let (busy, other) = (pid_of(3, eight), pid_of(5, eight));
    drop(occupy(&sink, &writer, &busy).await);
    drop(writer.try_admit(op(&other, 0)).unwrap());
    sink.entered(2).await;
    while writer.stats().depth < 8 {
        drop(writer.try_admit(op(&busy, 1)).unwrap());
    }
    let mut sends: Vec<_> = (0..9).map(|n| Box::pin(writer.send(op(&other, n)))).collect();
    for send in &mut sends[..8] {
        assert!(!pending(send).await);
    }
    assert!(!writer.is_saturated(), "nobody had to wait yet");
    writer.try_admit(op(&busy, 2)).unwrap_err();
    assert!(pending(&mut sends[8]).await);
    assert_eq!((writer.stats().latches, writer.stats().waiting), (1, 1));
    sends.clear();
    assert!(writer.is_saturated(), "both are full still");
    sink.go_on();
    soon(writer.flush()).await.unwrap();
    assert_eq!((writer.is_saturated(), writer.stats().latches), (false, 1));
    assert_eq!(logged::times("no longer saturated"), 1);
}

#[tokio::test(start_paused = true)]
async fn failures_are_told_to_both_of_two_flushes_and_to_no_third() {
    let sink = TestSink::held();
    let writer = open(&sink, WriterOptions { shards: shards(4), ..one_by_one(64) });
    for n in 0..12 {
        sink.fail(n, [Fault::Permanent]);
        drop(writer.try_admit(op(&n.to_string(), n)).unwrap());
    }
    let mut all: Vec<_> = (0..3).map(|_| Box::pin(writer.flush())).collect();
    let mut of_pid = Box::pin(writer.flush_pid("7"));
    for flush in &mut all {
        assert!(pending(flush).await);
    }
    assert!(pending(&mut of_pid).await);
    drop(all.pop());
    sink.go_on();
    assert_eq!(soon(of_pid).await.unwrap_err().failed, 1);
    for flush in all {
        assert_eq!(soon(flush).await.unwrap_err().failed, 12);
    }
    soon(writer.flush()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn tickets_of_a_pid_resolve_in_order_under_retries() {
    let sink = TestSink::new();
    let writer = open(&sink, WriterOptions { batch_ops_max: count(3), ..WriterOptions::default() });
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..40 {
        sink.fail(n, vec![Fault::Transient; (n % 3) as usize]);
        if n % 7 == 6 {
            sink.fail(n, [Fault::Permanent]);
        }
        let (ticket, order) = (writer.try_admit(op("a", n)).unwrap(), Arc::clone(&order));
        tasks.spawn(async move {
            drop(ticket.await);
            order.lock().unwrap().push(n);
        });
    }
    soon(tasks.join_all()).await;
    assert_eq!(*order.lock().unwrap(), (0..40).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn the_capacity_is_counted_through_cancellations_in_every_place() {
    let sink = TestSink::held();
    let writer = open(&sink, one_by_one(4));
    drop(occupy(&sink, &writer, "x").await);
    drop(writer.try_admit_all(ops("x", 0..4)).unwrap());
    let mut sends: Vec<_> = (10..16).map(|n| Some(Box::pin(writer.send(op("a", n))))).collect();
    for send in sends.iter_mut().flatten() {
        assert!(pending(send).await);
    }
    sink.step().await;
    sink.step().await;
    // 10 and 11 have room. One with room, one in the middle, the last.
    for gone in [0, 3, 5] {
        sends[gone] = None;
    }
    assert_eq!((writer.stats().depth, writer.stats().waiting), (2, 1));
    let mut left = sends.into_iter().flatten();
    for _ in 0..2 {
        drop(soon(left.next().unwrap()).await.unwrap());
    }
    assert_eq!((writer.stats().depth, writer.stats().waiting), (4, 1));
    let mut last = left.next().unwrap();
    assert!(pending(&mut last).await);
    sink.go_on();
    drop(soon(last).await.unwrap());
    soon(writer.close()).await.unwrap();
    assert_eq!(sink.applied_of("a"), [11, 12, 14]);
    assert_eq!((writer.stats().depth, writer.stats().waiting, writer.stats().accepted), (0, 0, 8));
}

#[test]
fn routing_of_two_pids_is_not_folded_to_32_bits() {
    // 2^40 shards: the modulo is over all 64 bits.
    let many = shards(1 << 40);
    assert_eq!(outhaul_writer::shard_of("a", many), 0xaf63_dc4c_8601_ec8c % (1 << 40));
    assert_eq!(outhaul_writer::shard_of("", many), 0xcbf2_9ce4_8422_2325 % (1 << 40));
    assert_eq!(outhaul_writer::shard_of("order-1001", shards(u64::MAX)), 0x2e68_1292_c686_c08c);
}

#[tokio::test(start_paused = true)]
async fn the_latch_waits_for_the_whole_though_its_shard_is_at_half() {
    let sink = TestSink::held();
    let two = shards(2);
    let writer = open(&sink, WriterOptions { shards: two, ..one_by_one(8) });
    let [busy, other] = [0, 1].map(|shard| pid_of(shard, two));
    drop(occupy(&sink, &writer, &busy).await);
    drop(writer.try_admit(op(&other, 0)).unwrap());
    sink.entered(2).await;
    for pid in [&busy, &other] {
        drop(writer.try_admit_all(ops(pid, 1..5)).unwrap());
    }
    writer.try_admit(op(&busy, 9)).unwrap_err();
    // They go in turns: the shard that latched is at its half when five of eight wait.
    for left in (5..8).rev() {
        sink.step().await;
        settle().await;
        assert_eq!((writer.stats().depth, writer.is_saturated()), (left, true));
    }
    sink.step().await;
    settle().await;
    assert_eq!((writer.stats().depth, writer.is_saturated()), (4, false));
}

fn stop_pid() -> WriterOptions {
    WriterOptions { on_failure: OnFailure::StopPid, ..one_by_one(8) }
}

/// A bad (transiently failing) operation fails alone.
#[tokio::test(start_paused = true)]
async fn what_waits_behind_a_retry_does_not_end_with_it() {
    let sink = TestSink::new();
    let writer =
        open(&sink, WriterOptions { retry_max: Duration::from_millis(300), ..WriterOptions::default() });
    sink.fail(0, vec![Fault::Transient; 1_000]);
    let mut outcomes = Vec::new();
    for ticket in writer.try_admit_all(ops("a", 0..4)).unwrap() {
        outcomes.push(soon(ticket).await);
    }
    let own = Err(WriteError::Sink { kind: FailureKind::Transient, error: Told(0) });
    assert_eq!(outcomes, [own, Ok(1), Ok(2), Ok(3)]);
}

/// Holding makes the shard "empty but for what is held": a giant send that waits is granted.
#[tokio::test(start_paused = true)]
async fn a_giant_send_gets_its_room_when_the_rest_is_held() {
    let sink = TestSink::held();
    let writer = open(&sink, WriterOptions { bytes_max: count(10), ..stop_pid() });
    sink.fail(0, [Fault::Permanent]);
    drop(writer.try_admit(op("a", 0)).unwrap());
    sink.entered(1).await;
    drop(writer.try_admit_all(ops("a", 1..3)).unwrap());
    let mut giant = Box::pin(writer.send(Op { bytes: 50, ..op("b", 9) }));
    assert!(pending(&mut giant).await);
    sink.go_on();
    soon(soon(giant).await.unwrap()).await.unwrap();
}

/// The same for the latch of an oversize refusal.
#[tokio::test(start_paused = true)]
async fn an_oversize_latch_goes_when_the_rest_is_held() {
    let sink = TestSink::held();
    let writer = open(&sink, stop_pid());
    sink.fail(0, [Fault::Permanent]);
    drop(writer.try_admit(op("a", 0)).unwrap());
    sink.entered(1).await;
    drop(writer.try_admit_all(ops("a", 1..3)).unwrap());
    let group = writer.try_admit_all(ops("b", 10..30)).unwrap_err().ops;
    sink.go_on();
    soon(writer.flush()).await.unwrap_err();
    settle().await;
    assert!(!writer.is_saturated(), "{:?}", writer.stats());
    drop(writer.try_admit_all(group).unwrap());
}

#[derive(Clone)]
struct Set(u64, Option<&'static str>);
impl Operation for Set {
    fn pid(&self) -> Option<&str> {
        Some("a")
    }
    fn bytes(&self) -> usize {
        1
    }
}
struct Keys {
    bad: u64,
    applied: Mutex<Vec<u64>>,
}
impl Sink for Keys {
    type Op = Set;
    type Output = u64;
    type Error = Told;
    async fn apply(&self, _: u64, ops: &[Set]) -> Answer<u64, Told> {
        let one = |op: &Set| {
            if op.0 == self.bad {
                return Err(SinkError::permanent(Told(op.0)));
            }
            self.applied.lock().unwrap().push(op.0);
            Ok(op.0)
        };
        Answer::Each(ops.iter().map(one).collect())
    }
    fn coalesce_key<'a>(&self, op: &'a Set) -> Option<&'a [u8]> {
        if op.0 == 666 {
            panic!("a key of its own");
        }
        op.1.map(str::as_bytes)
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_key_does_not_end_the_writer() {
    let sink = Arc::new(Keys { bad: 0, applied: Mutex::default() });
    let writer = Writer::open(Arc::clone(&sink), WriterOptions::default());
    drop(writer.try_admit_all(vec![Set(666, None), Set(1, None)]).unwrap());
    soon(writer.flush()).await.unwrap_err();
    soon(writer.try_admit(Set(5, None)).unwrap()).await.unwrap();
}

/// Acknowledged while its shard ends.
static ARMED: AtomicBool = AtomicBool::new(false);
static HOOK: OnceLock<Writer<Hooked>> = OnceLock::new();
struct HookOp(u64);
impl Operation for HookOp {
    fn pid(&self) -> Option<&str> {
        if ARMED.load(Ordering::SeqCst) && self.0 > 0 && ARMED.swap(false, Ordering::SeqCst) {
            // What another thread may do at this moment.
            std::thread::spawn(|| HOOK.get().unwrap().acknowledge("a")).join().unwrap();
        }
        Some("a")
    }
    fn bytes(&self) -> usize {
        1
    }
}
struct Hooked;
impl Sink for Hooked {
    type Op = HookOp;
    type Output = ();
    type Error = Told;
    async fn apply(&self, _: u64, ops: &[HookOp]) -> Answer<(), Told> {
        Answer::Each(ops.iter().map(|op| Err(SinkError::permanent(Told(op.0)))).collect())
    }
}

#[tokio::test(start_paused = true)]
async fn an_acknowledgement_while_its_shard_ends_leaves_no_flush_hanging() {
    let options = WriterOptions { on_failure: OnFailure::StopPid, ..WriterOptions::default() };
    let writer = Writer::open(Arc::new(Hooked), options);
    drop(HOOK.set(writer.clone()));
    drop(writer.try_admit_all((0..3).map(HookOp).collect()).unwrap());
    soon(writer.flush()).await.unwrap_err();
    ARMED.store(true, Ordering::SeqCst);
    soon(writer.close()).await.unwrap_err();
    assert!(!ARMED.load(Ordering::SeqCst), "the hook ran");
    let _report = soon(writer.flush()).await;
}

/// A transaction over a pid whose first operation runs out of retries: what follows it was never tried.
#[tokio::test(start_paused = true)]
async fn what_is_held_has_its_own_time_for_retries() {
    let sink = TestSink::held();
    sink.atomic();
    let options = WriterOptions {
        on_failure: OnFailure::StopPid,
        retry_max: std::time::Duration::from_millis(300),
        ..WriterOptions::default()
    };
    let writer = open(&sink, options);
    drop(occupy(&sink, &writer, "c").await);
    sink.fail(0, vec![Fault::Transient; 100]);
    sink.fail(1, vec![Fault::Transient; 3]);
    drop(writer.try_admit_all(ops("a", 0..4)).unwrap());
    sink.go_on();
    let report = soon(writer.flush()).await.unwrap_err();
    assert_eq!((report.failed, report.held), (1, 3));
    writer.acknowledge("a");
    soon(writer.flush()).await.unwrap();
    assert_eq!(sink.applied_of("a"), [1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn what_was_replaced_by_a_bad_one_does_not_land_behind_its_successors() {
    let sink = Arc::new(Keys { bad: 2, applied: Mutex::default() });
    let writer = Writer::open(Arc::clone(&sink), WriterOptions::default());
    let group = vec![Set(1, Some("k")), Set(2, Some("k")), Set(3, None), Set(4, Some("k"))];
    let mut outcomes = Vec::new();
    for ticket in writer.try_admit_all(group).unwrap() {
        outcomes.push(soon(ticket).await);
    }
    let bad = || Err(WriteError::Sink { kind: FailureKind::Permanent, error: Told(2) });
    assert_eq!(outcomes, [bad(), bad(), Ok(3), Ok(4)]);
    assert_eq!(*sink.applied.lock().unwrap(), [3, 4]);
}

#[tokio::test(start_paused = true)]
async fn what_was_replaced_by_a_bad_one_keeps_its_place_where_it_can() {
    let sink = Arc::new(Keys { bad: 3, applied: Mutex::default() });
    let writer = Writer::open(Arc::clone(&sink), WriterOptions::default());
    let group = vec![Set(1, None), Set(2, Some("k")), Set(3, Some("k"))];
    drop(writer.try_admit_all(group).unwrap());
    assert_eq!(soon(writer.flush()).await.unwrap_err().failed, 1);
    assert_eq!(*sink.applied.lock().unwrap(), [1, 2]);
}

/// Sends of one pid are accepted in the order of the calls, though room was granted meanwhile.
#[tokio::test(start_paused = true)]
async fn a_send_does_not_overtake_one_that_was_granted() {
    let sink = TestSink::held();
    let writer = open(&sink, one_by_one(4));
    drop(occupy(&sink, &writer, "x").await);
    drop(writer.try_admit_all(ops("x", 100..104)).unwrap());
    let mut first = Box::pin(writer.send(op("a", 1)));
    assert!(pending(&mut first).await);
    sink.step().await;
    sink.step().await;
    let mut second = Box::pin(writer.send(op("a", 2)));
    let early = !pending(&mut second).await;
    drop(soon(first).await.unwrap());
    if !early {
        drop(soon(second).await.unwrap());
    }
    sink.go_on();
    soon(writer.flush()).await.unwrap();
    assert_eq!(sink.applied_of("a"), [1, 2]);
}

/// Sizes at the edge.
#[tokio::test(start_paused = true)]
async fn absurd_sizes_add_up() {
    let sink = TestSink::held();
    let two = shards(2);
    let writer = open(&sink, WriterOptions { shards: two, ..one_by_one(8) });
    for shard in 0..2 {
        let giant = Op { bytes: usize::MAX, ..op(&pid_of(shard, two), shard) };
        drop(writer.try_admit(giant).unwrap());
    }
    sink.go_on();
    soon(writer.flush()).await.unwrap();
    assert_eq!(writer.stats().depth_bytes, 0);
    let group = (0..3).map(|n| Op { bytes: usize::MAX, ..op("a", 10 + n) }).collect();
    drop(writer.try_admit_all(group).unwrap());
    soon(writer.flush()).await.unwrap();
    assert_eq!(writer.stats().depth_bytes, 0);
    drop(writer.try_admit(op("a", 3)).unwrap());
}

/// A close that nobody polls does not stop another.
#[tokio::test(start_paused = true)]
async fn a_close_that_is_not_polled_does_not_stop_another() {
    let sink = TestSink::held();
    let writer = open(&sink, one_by_one(8));
    drop(occupy(&sink, &writer, "a").await);
    let mut first = Box::pin(writer.close());
    assert!(pending(&mut first).await);
    sink.go_on();
    soon(writer.close()).await.unwrap();
    soon(first).await.unwrap();
}

/// A sink that blocks its thread.
struct Blocks(Mutex<Option<std::sync::mpsc::Receiver<()>>>);
impl Sink for Blocks {
    type Op = Op;
    type Output = ();
    type Error = Told;
    async fn apply(&self, _: u64, ops: &[Op]) -> Answer<(), Told> {
        let receiver = self.0.lock().unwrap().take();
        if let Some(receiver) = receiver {
            // bounded: by the test, which lets go.
            receiver.recv().unwrap_err();
        }
        Answer::Each(ops.iter().map(|_| Ok(())).collect())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sink_that_blocks_its_thread_does_not_stop_a_close() {
    let (unblock, receiver) = std::sync::mpsc::channel();
    let options = WriterOptions {
        close_max: Duration::from_millis(200),
        apply_max: Duration::from_millis(100),
        ..WriterOptions::default()
    };
    let writer = Writer::open(Arc::new(Blocks(Mutex::new(Some(receiver)))), options);
    let sink = writer.try_admit(op("a", 0)).unwrap();
    while writer.stats().in_flight == 0 {
        tokio::task::yield_now().await;
    }
    let waiting = writer.try_admit_all(ops("a", 1..3)).unwrap();
    let report = soon(writer.close()).await.unwrap_err();
    assert_eq!((report.failures.failed, report.not_written, report.abandoned), (3, 2, 1));
    assert_eq!(soon(writer.close()).await.unwrap_err().abandoned, 1, "each tells the same");
    // Until here it has blocked.
    drop(unblock);
    soon(sink).await.unwrap_or(());
    for ticket in waiting {
        soon(ticket).await.unwrap_err();
    }
    assert_eq!(writer.stats().depth, 0);
}

/// Its pid can be asked once.
struct Once(AtomicBool);

impl Operation for Once {
    fn pid(&self) -> Option<&str> {
        assert!(!self.0.swap(true, Ordering::SeqCst), "asked twice");
        Some("a")
    }

    fn bytes(&self) -> usize {
        1
    }
}

struct Refuses;

impl Sink for Refuses {
    type Op = Once;
    type Output = ();
    type Error = Told;

    async fn apply(&self, _: u64, ops: &[Once]) -> Answer<(), Told> {
        Answer::Each(ops.iter().map(|_| Err(SinkError::permanent(Told(0)))).collect())
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_pid_does_not_end_the_writer() {
    let writer = Writer::open(Arc::new(Refuses), WriterOptions::default());
    let failed = Err(WriteError::Sink { kind: FailureKind::Permanent, error: Told(0) });
    for _ in 0..2 {
        let ticket = writer.try_admit(Once(AtomicBool::new(false))).unwrap();
        assert_eq!(soon(ticket).await, failed);
    }
    assert_eq!(soon(writer.flush()).await.unwrap_err().failed, 2);
}
