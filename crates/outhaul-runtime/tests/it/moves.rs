//! Entries that are not to be delivered, and the failed store.

use std::time::Duration;

use outhaul_runtime::Notice;
use outhaul_runtime::store::{Discard, FailedOptions, JournalOptions, Store};
use outhaul_runtime::target::{DeliveryError, ErrorKind, FailedCompat, OnExhausted, OnReject, TargetOptions};

use crate::support::{
    Scripted, entries, event, name, only, options, pass, send, settled, spec, start, start_on,
};

fn rejecting(id: &'static str) -> Scripted {
    Scripted::new(move |attempt| match attempt.event.id() == id {
        true => Err(DeliveryError::new(ErrorKind::ContentRefused).with_detail("HTTP 400: no such field")),
        false => Ok(()),
    })
}

#[tokio::test(start_paused = true)]
async fn a_rejected_event_is_in_the_failed_store_with_its_reason_and_its_successors_go_on() {
    let target = rejecting("1");
    let runtime = start(&target, options()).await;
    let mut notices = runtime.notices();
    send(&runtime, [(0, "p"), (1, "p"), (2, "p"), (3, "q")]).await;
    settled(&runtime).await;
    target.check_order();
    assert_eq!(target.delivered().len(), 3);
    let status = only(&runtime);
    assert_eq!((status.delivered, status.failed, status.waiting), (3, 1, 0));
    let failed = runtime.failed().list(&name("a"), 0, 10).await.unwrap();
    let failure = &failed[0].failure;
    assert_eq!(
        (failure.rule.as_str(), failure.detail.as_str(), failure.attempts),
        ("rejected", "HTTP 400: no such field", 1)
    );
    assert_eq!(failure.class, "content_refused");
    assert_eq!(*failed[0].event, event(1, Some("p")));
    let mut rejected = 0;
    while let Ok(notice) = notices.try_recv() {
        rejected += usize::from(matches!(notice, Notice::Rejected { .. }));
    }
    assert_eq!(rejected, 1);
}

// On a real disk, whose threads the paused clock would not wait for.
#[tokio::test]
async fn stop_pid_keeps_the_successors_until_a_person_decides_also_over_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let target = rejecting("1");
    let stopping = TargetOptions { on_reject: OnReject::StopPid, ..options() };
    for _ in 0..2 {
        let store = Store::open(dir.path(), JournalOptions::default()).await.unwrap();
        let runtime = start_on(store, vec![spec("a", &target, stopping.clone())]).await.unwrap();
        if target.seen().is_empty() {
            send(&runtime, [(0, "p"), (1, "p"), (2, "p"), (3, "q"), (4, "p")]).await;
        }
        while only(&runtime).waiting > 2 {
            pass(Duration::from_millis(10)).await;
        }
        pass(Duration::from_millis(200)).await;
        let mut delivered = target.delivered();
        delivered.sort();
        assert_eq!(delivered, ["0", "3"]);
        runtime.shutdown(Duration::from_secs(1)).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_too_old_fails_if_that_is_wanted_and_is_kept_if_not() {
    for (on_exhausted, failed) in [(OnExhausted::Fail, 2), (OnExhausted::Keep, 0)] {
        let target = Scripted::new(|_| Err(ErrorKind::ServerFault.into()));
        // Age counts from the admission on the wall clock, which is not paused.
        let old = TargetOptions { age_max: Some(Duration::from_millis(1)), on_exhausted, ..options() };
        let runtime = start(&target, old).await;
        let mut notices = runtime.notices();
        send(&runtime, [(0, "p"), (1, "p")]).await;
        let patience = std::time::Instant::now();
        while only(&runtime).failed < failed && patience.elapsed() < Duration::from_secs(20) {
            pass(Duration::from_millis(10)).await;
        }
        pass(Duration::from_secs(100)).await;
        assert_eq!(only(&runtime).failed, failed);
        let mut kept = 0;
        while let Ok(notice) = notices.try_recv() {
            kept += usize::from(matches!(notice, Notice::Exhausted { kept: true, .. }));
        }
        assert_eq!(kept, usize::from(on_exhausted == OnExhausted::Keep), "one notice");
    }
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_rejects_is_moved_together_with_order_kept() {
    let target = Scripted::new(|attempt| {
        let number: u64 = attempt.event.id().parse().unwrap();
        if number.is_multiple_of(2) { Err(ErrorKind::TooLarge.into()) } else { Ok(()) }
    });
    let runtime = start(&target, options()).await;
    send(&runtime, (0..1000).map(|number| (number, ["p", "q", "r", "s"][number as usize / 2 % 4]))).await;
    settled(&runtime).await;
    target.check_order();
    assert_eq!((only(&runtime).failed, runtime.failed().count(Some(&name("a")))), (500, 500));
}

#[tokio::test(start_paused = true)]
async fn of_a_burst_that_the_failed_store_has_no_room_for_as_much_as_fits_is_moved() {
    let target = Scripted::new(|_| Err(ErrorKind::TooLarge.into()));
    let limited = TargetOptions { failed_entries: Some(entries(3)), ..options() };
    let runtime = start(&target, limited).await;
    send(&runtime, (0..10).map(|number| (number, ["p", "q", "r", "s"][number as usize % 4]))).await;
    pass(Duration::from_secs(30)).await;
    let status = only(&runtime);
    assert_eq!((status.failed, status.waiting, status.reason), (3, 7, "failed_store_full"));
    // Room for two more is taken by two more.
    let uids: Vec<_> = runtime.failed().uids().into_iter().take(2).collect();
    runtime.failed().discard(Discard::Uids(uids)).await.unwrap();
    pass(Duration::from_secs(60)).await;
    let status = only(&runtime);
    assert_eq!((status.failed, status.waiting, status.reason), (5, 5, "failed_store_full"));
    assert_eq!(runtime.failed().count(Some(&name("a"))), 3);
}

#[tokio::test(start_paused = true)]
async fn compat_with_rustfs_gives_its_bounds_and_what_is_discarded_is_counted() {
    let target = Scripted::new(|_| Err(ErrorKind::TooLarge.into()));
    let compat = TargetOptions { failed_compat: Some(FailedCompat::Rustfs), ..options() };
    let runtime = start(&target, compat.clone()).await;
    assert_eq!(runtime.failed().options(&name("a")), FailedOptions::rustfs());
    // What is given beside it counts.
    let runtime = start(&target, TargetOptions { failed_entries: Some(entries(2)), ..compat }).await;
    send(&runtime, (0..5).map(|number| (number, "p"))).await;
    settled(&runtime).await;
    let status = only(&runtime);
    assert_eq!((status.failed, status.failed_discarded_oldest, runtime.failed().count(None)), (5, 3, 2));
}
