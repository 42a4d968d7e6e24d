//! Very many stuck pids, and what can be delivered behind them.

use std::time::Duration;

use outhaul_runtime::store::{JournalOptions, Store};
use outhaul_runtime::target::{ErrorKind, TargetOptions};

use crate::support::{Scripted, admit, event, only, options, pass, settled, spec, start, start_on};

/// A target that takes only what has `good` in its pid.
fn only_good() -> Scripted {
    Scripted::new(|attempt| match attempt.event.pid().is_some_and(|pid| pid.starts_with("good")) {
        true => Ok(()),
        false => Err(ErrorKind::ServerFault.into()),
    })
}

fn patient() -> TargetOptions {
    TargetOptions { backoff: Duration::from_secs(50), backoff_max: Duration::from_secs(500), ..options() }
}

#[tokio::test(start_paused = true)]
async fn what_can_be_delivered_behind_a_window_full_of_stuck_entries_is_found() {
    for without_pid in [false, true] {
        for one_pid in [true, false] {
            let target = only_good();
            let runtime = start(&target, patient()).await;
            let stuck = |number: u64| match without_pid {
                true => event(number, None),
                false => event(number, Some(&format!("stuck-{number}"))),
            };
            admit(&runtime, (0..5000).map(stuck)).await;
            let good = |number: u64| if one_pid { "good".to_owned() } else { format!("good-{number}") };
            admit(&runtime, (5000..5020).map(|number| event(number, Some(&good(number))))).await;
            pass(Duration::from_secs(3)).await;
            assert_eq!(target.delivered().len(), 20, "{without_pid} {one_pid} {:?}", only(&runtime));
            target.check_order();
            // With nothing good left the target was throttled: two trials at most find what follows.
            admit(&runtime, (6000..6200).map(|number| event(number, Some(&good(number % 3))))).await;
            pass(Duration::from_secs(21)).await;
            assert_eq!(target.delivered().len(), 220, "{without_pid} {one_pid} {:?}", only(&runtime));
            assert_eq!(only(&runtime).failed, 0);
            target.answer(|_| Ok(()));
            settled(&runtime).await;
            assert_eq!(only(&runtime).delivered, 5220);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn good_pids_among_many_stuck_ones_go_on_while_those_wait() {
    let target = only_good();
    let runtime = start(&target, TargetOptions::default()).await;
    // Ten thousand pids, every second one stuck, three events each.
    for round in 0..3 {
        let pid = |number: u64| if number.is_multiple_of(2) { "good" } else { "stuck" };
        let events = (0..10_000)
            .map(|number| event(round * 10_000 + number, Some(&format!("{}-{number}", pid(number)))));
        admit(&runtime, events).await;
    }
    pass(Duration::from_secs(10)).await;
    let status = only(&runtime);
    assert_eq!(status.delivered, 15_000, "{status:?}");
    target.check_order();
    target.answer(|_| Ok(()));
    settled(&runtime).await;
    target.check_order();
    assert_eq!(only(&runtime).delivered, 30_000);
}

// On a real disk, whose threads the paused clock would not wait for.
#[tokio::test]
async fn entries_behind_stuck_ones_are_found_through_the_footers_and_delivered_in_order() {
    let dir = tempfile::tempdir().unwrap();
    // Many segments, so that most of them have a footer.
    let small =
        JournalOptions { segment_bytes_max: 64 << 10, segment_bytes_first: 64 << 10, ..Default::default() };
    let store = Store::open(dir.path(), small.clone()).await.unwrap();
    let target = only_good();
    let runtime = start_on(store, vec![spec("a", &target, patient())]).await.unwrap();
    admit(&runtime, (0..6000).map(|number| event(number, Some(&format!("stuck-{}", number % 3000 * 2)))))
        .await;
    admit(&runtime, (6000..6020).map(|number| event(number, Some(&format!("good-{}", number % 5))))).await;
    let begun = tokio::time::Instant::now();
    while target.delivered().len() < 20 && begun.elapsed() < Duration::from_secs(20) {
        pass(Duration::from_millis(10)).await;
    }
    assert_eq!(target.delivered().len(), 20, "{:?}", only(&runtime));
    target.check_order();
    // After a restart as well: nothing of what was tried is in memory then.
    runtime.shutdown(Duration::from_secs(1)).await.unwrap();
    drop(runtime);
    let store = Store::open(dir.path(), small).await.unwrap();
    let runtime = start_on(store, vec![spec("a", &target, patient())]).await.unwrap();
    admit(&runtime, (7000..7020).map(|number| event(number, Some("good-0")))).await;
    let begun = tokio::time::Instant::now();
    while target.delivered().len() < 40 && begun.elapsed() < Duration::from_secs(20) {
        pass(Duration::from_millis(10)).await;
    }
    assert_eq!(target.delivered().len(), 40, "{:?}", only(&runtime));
    target.check_order();
    runtime.shutdown(Duration::from_secs(1)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn good_pids_behind_a_window_full_of_stuck_ones_are_delivered_with_all_that_follows_of_them() {
    let target = only_good();
    let runtime = start(&target, TargetOptions::default()).await;
    // One event of each stuck pid fills the window; of the good ones there are several, far from one another.
    admit(&runtime, (0..10_000).map(|number| event(number, Some(&format!("stuck-{number}"))))).await;
    for round in 1..=3 {
        let good = |number: u64| event(round * 10_000 + number, Some(&format!("good-{number}")));
        admit(&runtime, (0..10_000).map(good)).await;
    }
    pass(Duration::from_secs(20)).await;
    let status = only(&runtime);
    assert_eq!(status.delivered, 30_000, "{status:?}");
    target.check_order();
}
