//! The behaviours of DESIGN.md, section 11, that are the runtime's. Those that are tested elsewhere:
//!
//! | behaviour | test |
//! |---|---|
//! | FIFO of a pid over restarts, pids in parallel | `sim::sim_any_history_keeps_every_promise`, `delivery::a_stuck_pid_does_not_delay_another` |
//! | failed copy before removal, one copy | `promises::a_removal_that_is_lost_after_its_copy_leaves_one_copy` |
//! | a failed move tells nothing and heals | `clocks::a_move_that_fails_tells_nothing_leaves_the_entry_and_heals_by_itself` |
//! | a permit for the send alone | `promises::permits_are_shared_by_all_targets_and_given_back_for_backoffs` |
//! | strict join | `delivery::a_shutdown_lets_attempts_end_and_repeats_nothing` |
//! | health under one deadline | `health::twenty_four_stalled_targets_are_told_in_five_seconds_ten_at_a_time` |
//! | disabled targets never wait for probes | `health::disabled_targets_are_not_asked` |
//! | dropping the collection drops the probes | `health::dropping_the_collection_drops_the_probes` |
//! | a reservation for all targets or none | `delivery::a_full_queue_refuses_the_whole_request_and_says_which_target` |
//!
//! Those of the store, of the writer and of the targets are in their crates.

use std::num::NonZeroU32;
use std::time::Duration;

use outhaul_runtime::store::Store;
use outhaul_runtime::target::{BatchOrder, DeliveryError, ErrorKind, OnExhausted, TargetOptions};
use tokio::task::JoinSet;

use crate::support::{
    Scripted, admit, entries, event, name, only, options, pass, send, settled, spec, start, start_on,
};

#[tokio::test(start_paused = true)]
async fn there_is_no_backoff_behind_the_last_attempt() {
    let target = Scripted::new(|_| Err(ErrorKind::ServerFault.into()));
    let long = Duration::from_secs(1000);
    let twice = TargetOptions {
        attempts_max: NonZeroU32::new(2),
        on_exhausted: OnExhausted::Fail,
        backoff: long,
        backoff_max: long,
        ..options()
    };
    let runtime = start(&target, twice).await;
    send(&runtime, [(1, "p")]).await;
    let begun = tokio::time::Instant::now();
    settled(&runtime).await;
    let last = target.seen().last().unwrap().at;
    assert_eq!((target.seen().len(), only(&runtime).failed), (2, 1));
    assert!(begun.elapsed() < last + Duration::from_secs(1), "{:?} behind {last:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_stop_is_seen_in_every_wait() {
    let long = Duration::from_secs(100_000);
    let one = NonZeroU32::new(1);
    let slow = TargetOptions {
        backoff: long,
        backoff_max: long,
        trial_backoff: long,
        trial_backoff_max: long,
        retry_after_max: long,
        ..options()
    };
    let waits: [(&str, Option<ErrorKind>, TargetOptions); 6] = [
        ("a retry", Some(ErrorKind::ServerFault), slow.clone()),
        ("a trial", Some(ErrorKind::ConnectionRefused), slow.clone()),
        ("a pause that was asked for", Some(ErrorKind::Overloaded), slow.clone()),
        ("a rate", None, TargetOptions { rate: one, ..slow.clone() }),
        ("a batch that is not full", None, TargetOptions { linger: Some(long), ..slow.clone() }),
        (
            "a full failed store",
            Some(ErrorKind::TooLarge),
            TargetOptions { failed_entries: Some(entries(1)), ..slow },
        ),
    ];
    for (what, fails, with) in waits {
        let target = Scripted::new(move |_| match fails {
            Some(kind) => Err(DeliveryError::new(kind).with_retry_after(Duration::from_secs(90_000))),
            None => Ok(()),
        })
        .batches(10, BatchOrder::Prefix);
        let runtime = start(&target, with).await;
        admit(&runtime, (0..5).map(|number| event(number, None))).await;
        pass(Duration::from_millis(100)).await;
        assert!(only(&runtime).waiting > 0, "it waits for {what}");
        let begun = tokio::time::Instant::now();
        runtime.shutdown(long).await.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(1), "{what}: {:?}", begun.elapsed());
        let (seen, closed) = (target.seen().len(), target.closed());
        pass(long * 2).await;
        assert_eq!((target.seen().len(), target.closed(), closed), (seen, 1, 1), "{what}: nothing goes on");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_kept_of_a_failure_holds_no_credentials() {
    let text = "refused by https://user:s3cret@host/path?token=s3cret";
    let target = Scripted::new(move |_| Err(DeliveryError::new(ErrorKind::ContentRefused).with_detail(text)));
    let runtime = start(&target, options()).await;
    send(&runtime, [(1, "p")]).await;
    settled(&runtime).await;
    let failed = runtime.failed().list(&name("a"), 0, 10).await.unwrap();
    let all = format!("{failed:?} {:?}", runtime.targets());
    assert!(!all.contains("s3cret") && all.contains("refused by"), "{all}");
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_one_with_four_racing_producers_admits_one() {
    let target = Scripted::new(|_| Err(ErrorKind::ConnectionRefused.into()));
    let one = TargetOptions { queue_entries: entries(1), ..options() };
    let runtime = start_on(Store::memory(), vec![spec("a", &target, one)]).await.unwrap();
    let mut racing = JoinSet::new();
    for number in 0..4 {
        let runtime = runtime.clone();
        racing.spawn(async move { runtime.send(event(number, None)).await.is_ok() });
    }
    let admitted = racing.join_all().await.into_iter().filter(|admitted| *admitted).count();
    assert_eq!((admitted, only(&runtime).waiting), (1, 1));
}
