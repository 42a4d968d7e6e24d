//! Crash suspects, rates, lingering, shared permits, bounds of queues that overflow, clocks that jump, moves.

use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use outhaul_runtime::store::{Admission, JournalOptions, Outcome, RetryState, Settlement, Shards, Store};
use outhaul_runtime::target::{
    Attempt, BatchOrder, DeliveryError, ErrorKind, OnReject, Target, TargetOptions, WhenFull,
};
use outhaul_runtime::{RuntimeOptions, TargetSpec};

use crate::support::{
    Checked, Scripted, admit, entries, event, name, only, options, pass, send, settled, spec, start, start_on,
};

/// A data directory whose process ended `crashes` times while event 1 was being delivered; 0 to 3 wait, of two pids.
async fn crashed(dir: &std::path::Path, crashes: u32) {
    for life in 0..crashes {
        let store = Store::open(dir, JournalOptions::default()).await.unwrap();
        store.log().attach(&name("a"), Default::default()).unwrap();
        if life == 0 {
            let admission = |number: u64| {
                let event = Arc::new(event(number, Some(["p", "q"][number as usize % 2])));
                Admission::new(event, Arc::new([name("a")]))
            };
            for receipt in store.log().append((0..4).map(admission).collect()).await {
                receipt.unwrap();
            }
        }
        let lease = store.log().lease(Shards::All).await.unwrap();
        let second = lease.read(&name("a"), 0, 2, 1 << 20).await.unwrap().entries.pop().unwrap();
        assert_eq!(second.crashes, life);
        lease.in_flight(&name("a"), &[second.place.uid.sequence]).unwrap();
        store.log().flush().await.unwrap();
        // Without a close.
        drop((lease, store));
    }
}

// On a real disk, whose threads the paused clock would not wait for.
#[tokio::test]
async fn what_was_in_flight_at_a_crash_is_sent_first_and_alone_and_fails_after_three() {
    for crashes in [1, 2, 3] {
        let dir = tempfile::tempdir().unwrap();
        crashed(dir.path(), crashes).await;
        let store = Store::open(dir.path(), JournalOptions::default()).await.unwrap();
        let target = Scripted::good().latency(Duration::from_millis(20));
        let runtime = start_on(store, vec![spec("a", &target, options())]).await.unwrap();
        runtime.settled().await;
        let (seen, status) = (target.seen(), only(&runtime));
        target.check_order();
        if crashes < 3 {
            assert_eq!((seen[0].id.as_str(), status.delivered), ("1", 4));
            assert!(seen[1].at >= seen[0].at + Duration::from_millis(19), "it was alone: {seen:?}");
        } else {
            assert_eq!((status.delivered, status.failed), (3, 1));
            let failed = runtime.failed().list(&name("a"), 0, 10).await.unwrap();
            assert_eq!((failed[0].failure.rule.as_str(), failed[0].event.id()), ("crash_suspect", "1"));
        }
        runtime.shutdown(Duration::from_secs(1)).await.unwrap();
    }
}

#[tokio::test]
async fn what_is_with_a_target_is_noted_with_the_next_commit() {
    let dir = tempfile::tempdir().unwrap();
    let target = Scripted::good().latency(Duration::from_secs(60));
    let store = Store::open(dir.path(), JournalOptions::default()).await.unwrap();
    let runtime = start_on(store, vec![spec("a", &target, options())]).await.unwrap();
    send(&runtime, [(0, "p")]).await;
    while only(&runtime).in_flight == 0 {
        pass(Duration::from_millis(5)).await;
    }
    send(&runtime, [(1, "p")]).await;
    // A copy of the directory is what a crash leaves.
    let copy = tempfile::tempdir().unwrap();
    std::fs::create_dir(copy.path().join("log")).unwrap();
    for file in ["format", "log"].map(|part| dir.path().join(part)) {
        if file.is_dir() {
            for each in std::fs::read_dir(&file).unwrap() {
                let each = each.unwrap();
                std::fs::copy(each.path(), copy.path().join("log").join(each.file_name())).unwrap();
            }
        } else {
            std::fs::copy(&file, copy.path().join("format")).unwrap();
        }
    }
    let store = Store::open(copy.path(), JournalOptions::default()).await.unwrap();
    assert!(store.log().ended_unclean());
    let lease = store.log().lease(Shards::All).await.unwrap();
    let read = lease.read(&name("a"), 0, 10, 1 << 20).await.unwrap();
    assert_eq!(read.entries.iter().map(|entry| entry.crashes).collect::<Vec<_>>(), [1, 0]);
    runtime.shutdown(Duration::from_millis(10)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_rate_is_kept_and_reached() {
    let target = Scripted::good();
    let slow = TargetOptions { rate: NonZeroU32::new(50), ..options() };
    let runtime = start(&target, slow).await;
    admit(&runtime, (0..500).map(|number| event(number, None))).await;
    pass(Duration::from_secs(4)).await;
    let sent = target.seen().len();
    assert!((190..=206).contains(&sent), "{sent} of 200 in 4 s");
    settled(&runtime).await;
}

#[tokio::test(start_paused = true)]
async fn a_batch_lingers_for_more_and_no_longer_than_it_may() {
    let target = Scripted::good().batches(10, BatchOrder::Prefix);
    let lingering =
        TargetOptions { linger: Some(Duration::from_millis(100)), batch: NonZeroUsize::new(10), ..options() };
    let runtime = start(&target, lingering).await;
    pass(Duration::from_millis(10)).await;
    for number in 0..10 {
        send(&runtime, [(number, "p")]).await;
        pass(Duration::from_millis(5)).await;
    }
    pass(Duration::from_millis(10)).await;
    assert!(target.seen().len() == 10 && target.seen().iter().all(|seen| seen.batch == 10));
    let begun = tokio::time::Instant::now();
    send(&runtime, [(10, "p")]).await;
    settled(&runtime).await;
    assert!((100..110).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
}

/// Counts the calls that run at the same time over all of them.
struct Counting(Arc<[AtomicUsize; 2]>, bool);

#[async_trait]
impl Target for Counting {
    fn kind(&self) -> &'static str {
        "counting"
    }

    async fn deliver(&self, events: &[Attempt]) -> Vec<Result<(), DeliveryError>> {
        let now = self.0[0].fetch_add(1, Ordering::SeqCst) + 1;
        self.0[1].fetch_max(now, Ordering::SeqCst);
        // bounded: the clock is paused.
        tokio::time::sleep(Duration::from_millis(50)).await;
        self.0[0].fetch_sub(1, Ordering::SeqCst);
        let answer = || if self.1 { Ok(()) } else { Err(ErrorKind::ConnectionRefused.into()) };
        events.iter().map(|_| answer()).collect()
    }

    async fn probe(&self) -> Result<(), DeliveryError> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn permits_are_shared_by_all_targets_and_given_back_for_backoffs() {
    let running = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let of = |text: &str, good: bool| {
        TargetSpec::new(
            name(text),
            Arc::new(Counting(Arc::clone(&running), good)),
            options(),
            text.to_owned(),
        )
    };
    let two = RuntimeOptions {
        seed: Some(7),
        deliveries_max: NonZeroUsize::new(2).unwrap(),
        ..RuntimeOptions::default()
    };
    let specs =
        vec![of("a", true), of("b", true), of("down-1", false), of("down-2", false), of("down-3", false)];
    let runtime = Checked::start(Store::memory(), specs, two).await.unwrap();
    admit(&runtime, (0..40).map(|number| event(number, None))).await;
    // 80 deliveries of 50 ms, two at a time, and a few trials.
    pass(Duration::from_millis(3_500)).await;
    let delivered: Vec<_> = runtime.targets().iter().map(|status| status.delivered).collect();
    assert_eq!(delivered, [40, 40, 0, 0, 0], "those that are down wait without a permit");
    assert_eq!(running[1].load(Ordering::SeqCst), 2);
    // Whoever waits for a permit does not keep a shutdown waiting.
    let begun = tokio::time::Instant::now();
    runtime.shutdown(Duration::from_secs(20)).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_overflows_keeps_its_bound_behind_very_many_closed_pids() {
    let target = Scripted::new(|attempt| match attempt.event.id().parse::<u64>().unwrap() < 3000 {
        true => Err(ErrorKind::Malformed.into()),
        false => Ok(()),
    });
    let stopping = TargetOptions {
        on_reject: OnReject::StopPid,
        when_full: WhenFull::Overflow,
        queue_entries: entries(3000),
        ..options()
    };
    let quiet = RuntimeOptions { seed: Some(7), reject_hold: None, ..RuntimeOptions::default() };
    let runtime = Checked::start(Store::memory(), vec![spec("a", &target, stopping)], quiet).await.unwrap();
    // Each of so many pids is closed by its first event; the others of it wait.
    for round in 0..3 {
        let of = |pid: u64| event(round * 10_000 + pid, Some(&format!("pid-{pid}")));
        admit(&runtime, (0..2900).map(of)).await;
        pass(Duration::from_secs(5)).await;
    }
    pass(Duration::from_secs(60)).await;
    let status = only(&runtime);
    assert!(status.waiting <= 3001, "{status:?}");
    assert_eq!((status.delivered, status.admitted), (0, 8700));
}

// On a real disk, whose threads the paused clock would not wait for.
#[tokio::test]
async fn a_clock_that_was_ahead_delays_no_longer_than_the_longest_backoff() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), JournalOptions::default()).await.unwrap();
    store.log().attach(&name("a"), Default::default()).unwrap();
    let admission = |number| Admission::new(Arc::new(event(number, Some("p"))), Arc::new([name("a")]));
    for receipt in store.log().append(vec![admission(0), admission(1)]).await {
        receipt.unwrap();
    }
    let lease = store.log().lease(Shards::All).await.unwrap();
    let place = lease.read(&name("a"), 0, 1, 1 << 20).await.unwrap().entries.pop().unwrap().place;
    // Written by a clock that was ten years ahead.
    let not_before = SystemTime::now() + Duration::from_secs(86_400 * 3650);
    let outcome = Outcome::Retry(RetryState { attempts: 3, not_before });
    lease.settle(vec![Settlement { place, outcome }]).await.unwrap();
    let target = Scripted::good();
    let quick = TargetOptions { backoff_max: Duration::from_millis(600), ..options() };
    let begun = tokio::time::Instant::now();
    let runtime = start_on(store, vec![spec("a", &target, quick)]).await.unwrap();
    runtime.settled().await;
    assert_eq!(target.delivered(), ["0", "1"], "no clock decides the order");
    assert!(target.seen()[0].at >= Duration::from_millis(550), "{:?}", target.seen());
    assert!(begun.elapsed() < Duration::from_secs(20), "bounded: {:?}", begun.elapsed());
    runtime.shutdown(Duration::from_secs(1)).await.unwrap();
}

// On a real disk, whose threads the paused clock would not wait for.
#[tokio::test]
async fn a_removal_that_is_lost_after_its_copy_leaves_one_copy() {
    let dir = tempfile::tempdir().unwrap();
    let target = Scripted::new(|_| Err(ErrorKind::ContentRefused.into()));
    let never = JournalOptions { settle_linger: Duration::from_secs(3600), ..JournalOptions::default() };
    for life in 0..2 {
        let store = Store::open(dir.path(), never.clone()).await.unwrap();
        let runtime = start_on(store, vec![spec("a", &target, options())]).await.unwrap();
        if life == 0 {
            send(&runtime, [(0, "p")]).await;
        }
        runtime.settled().await;
        assert_eq!((only(&runtime).waiting, runtime.failed().count(None)), (0, 1), "life {life}");
        if life == 1 {
            runtime.shutdown(Duration::from_secs(1)).await.unwrap();
        } else {
            // The removal is not on disk when the directory is copied.
            copy_back(dir.path());
        }
    }
}

/// Replaces a directory that is in use by a copy of it: what a crash leaves.
#[expect(clippy::disallowed_methods, reason = "nothing has to be durable here")]
pub(crate) fn copy_back(dir: &std::path::Path) {
    fn copy(from: &std::path::Path, to: &std::path::Path) {
        std::fs::create_dir_all(to).unwrap();
        for each in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
            let to = to.join(each.file_name());
            match each.file_type().unwrap().is_dir() {
                true => copy(&each.path(), &to),
                false => drop(std::fs::copy(each.path(), to).unwrap()),
            }
        }
    }
    let (kept, gone) = (dir.with_extension("kept"), dir.with_extension("gone"));
    copy(dir, &kept);
    std::fs::rename(dir, &gone).unwrap();
    std::fs::rename(&kept, dir).unwrap();
}
