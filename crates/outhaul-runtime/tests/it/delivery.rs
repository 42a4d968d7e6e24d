use std::num::NonZeroU32;
use std::time::Duration;

use outhaul_runtime::store::{JournalOptions, Store};
use outhaul_runtime::target::{BatchOrder, ErrorKind, TargetOptions, WhenFull};
use outhaul_runtime::{AdmitError, Health, Notice, StartError, State};

use crate::support::{Scripted, entries, event, only, options, pass, send, settled, spec, start, start_on};

const PIDS: [&str; 4] = ["p", "q", "r", "s"];

fn many(count: u64) -> impl Iterator<Item = (u64, &'static str)> {
    (0..count).map(|number| (number, PIDS[number as usize % PIDS.len()]))
}

#[tokio::test(start_paused = true)]
async fn every_event_arrives_once_and_in_order_within_its_pid() {
    for (batch, order) in [(1, BatchOrder::None), (10, BatchOrder::None), (10, BatchOrder::Prefix)] {
        let target = Scripted::good().batches(batch, order);
        let runtime = start(&target, options()).await;
        let mut notices = runtime.notices();
        send(&runtime, many(200)).await;
        settled(&runtime).await;
        target.check_order();
        let mut delivered = target.delivered();
        delivered.sort_by_key(|id| id.parse::<u64>().unwrap());
        assert_eq!(delivered, (0..200).map(|number| number.to_string()).collect::<Vec<_>>());
        if order == BatchOrder::None {
            assert!(
                target.seen().iter().all(|seen| seen.batch <= PIDS.len()),
                "one event of a pid in a batch"
            );
        }
        let status = only(&runtime);
        assert_eq!((status.delivered, status.state, status.health), (200, State::Running, Health::Online));
        for _ in 0..200 {
            assert!(matches!(notices.recv().await.unwrap(), Notice::Delivered { .. }));
        }
        runtime.shutdown(Duration::from_secs(1)).await.unwrap();
        assert_eq!(target.closed(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stuck_pid_does_not_delay_another() {
    let target = Scripted::new(|attempt| match attempt.event.pid() {
        Some("p") => Err(ErrorKind::ServerFault.into()),
        _ => Ok(()),
    });
    let runtime = start(&target, options()).await;
    // Far more events of the stuck pid than the window holds.
    for chunk in 0..3 {
        send(&runtime, (0..3000).map(|number| (chunk * 3000 + number, "p"))).await;
    }
    send(&runtime, [(10_000, "q"), (10_001, "r")]).await;
    pass(Duration::from_millis(50)).await;
    assert_eq!(target.delivered(), ["10000", "10001"]);
    let status = only(&runtime);
    assert_eq!((status.health, status.waiting, status.failed), (Health::Degraded, 9000, 0));
    // Once it is cured everything comes, in order.
    target.answer(|_| Ok(()));
    settled(&runtime).await;
    target.check_order();
    assert_eq!(only(&runtime).delivered, 9002);
}

#[tokio::test(start_paused = true)]
async fn more_stuck_pids_than_the_window_holds_do_not_delay_another() {
    let target = Scripted::new(|attempt| match attempt.event.pid() {
        Some("good") => Ok(()),
        _ => Err(ErrorKind::ServerFault.into()),
    });
    let patient = TargetOptions {
        backoff: Duration::from_secs(50),
        backoff_max: Duration::from_secs(500),
        ..options()
    };
    let runtime = start(&target, patient).await;
    for number in 0..12_000 {
        // Something good now and then, or a receiver that fails everything would be throttled.
        let pid = if number % 8 == 0 { "good".to_owned() } else { format!("stuck-{number}") };
        runtime.send(event(number, Some(&pid))).await.unwrap();
        runtime.send(event(number + 20_000, Some(&pid))).await.unwrap();
    }
    pass(Duration::from_secs(20)).await;
    assert_eq!(target.delivered().len(), 3000);
    target.answer(|_| Ok(()));
    settled(&runtime).await;
    assert_eq!(only(&runtime).delivered, 24_000);
}

#[tokio::test(start_paused = true)]
async fn a_pid_with_a_long_backlog_leaves_room_for_others() {
    let target = Scripted::good().latency(Duration::from_millis(10));
    let runtime = start(&target, options()).await;
    for chunk in 0..3 {
        send(&runtime, (0..3000).map(|number| (chunk * 3000 + number, "p"))).await;
    }
    send(&runtime, [(10_000, "q")]).await;
    pass(Duration::from_millis(100)).await;
    assert!(target.delivered().contains(&"10000".to_owned()));
    settled(&runtime).await;
    target.check_order();
}

#[tokio::test(start_paused = true)]
async fn retries_wait_longer_each_time_and_never_less_than_a_tenth_of_the_step() {
    let target = Scripted::new(|_| Err(ErrorKind::ServerFault.into()));
    let runtime = start(&target, options()).await;
    send(&runtime, [(1, "p")]).await;
    pass(Duration::from_secs(60)).await;
    let at: Vec<_> = target.attempts("1").iter().map(|seen| seen.at).collect();
    assert!(at.len() > 20, "{} attempts", at.len());
    for (number, pair) in at.windows(2).enumerate() {
        let step = Duration::from_millis(100).saturating_mul(1 << number.min(10)).min(Duration::from_secs(2));
        let wait = pair[1] - pair[0];
        assert!(
            wait >= step / 10 && wait <= step + Duration::from_millis(10),
            "{number}: {wait:?} of {step:?}"
        );
    }
    let status = only(&runtime);
    assert_eq!(
        (status.state, status.waiting, status.failed),
        (State::Running, 1, 0),
        "one pid throttles nobody"
    );
}

// On a real disk, whose threads the paused clock would not wait for.
#[tokio::test]
async fn attempts_and_waits_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let exhausting = TargetOptions {
        attempts_max: NonZeroU32::new(4),
        on_exhausted: outhaul_runtime::target::OnExhausted::Fail,
        backoff: Duration::from_millis(1),
        backoff_max: Duration::from_millis(2),
        ..options()
    };
    let target = Scripted::new(|_| Err(ErrorKind::ServerFault.into()));
    for round in 0.. {
        let store = Store::open(dir.path(), JournalOptions::default()).await.unwrap();
        let runtime = start_on(store, vec![spec("a", &target, exhausting.clone())]).await.unwrap();
        if round == 0 {
            send(&runtime, [(1, "p")]).await;
        }
        let before = target.seen().len();
        while target.seen().len() == before && only(&runtime).waiting > 0 {
            tokio::task::yield_now().await;
            pass(Duration::from_millis(1)).await;
        }
        runtime.shutdown(Duration::from_secs(1)).await.unwrap();
        let failed = runtime.failed().count(None);
        if failed == 1 {
            break;
        }
        assert!(round < 10, "attempts are forgotten");
    }
    assert_eq!(target.seen().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_the_whole_request_and_says_which_target() {
    let target = Scripted::new(|_| Err(ErrorKind::ConnectionRefused.into()));
    let small = TargetOptions { queue_entries: entries(3), ..options() };
    let other = Scripted::good();
    let specs = vec![spec("a", &target, small), spec("b", &other, options())];
    let runtime = start_on(Store::memory(), specs).await.unwrap();
    let request = |count| (0..count).map(|number| event(number, Some("p")).into()).collect();
    for pending in runtime.admit(request(2)).unwrap() {
        pending.await.unwrap();
    }
    let error = runtime.admit(request(2)).unwrap_err();
    assert!(matches!(&error, AdmitError::QueueFull { target, .. } if target.as_str() == "a"), "{error}");
    pass(Duration::from_millis(10)).await;
    assert_eq!((error.reason(), other.seen().len()), ("queue_full", 2));
    assert!(runtime.admit(request(1)).is_ok());
    assert!(runtime.admit(request(1)).is_err());
    target.answer(|_| Ok(()));
    settled(&runtime).await;
    assert!(runtime.admit(request(3)).is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_overflows_gives_its_oldest_to_the_failed_store() {
    let target = Scripted::new(|_| Err(ErrorKind::ConnectionRefused.into()));
    let small = TargetOptions { queue_entries: entries(5), when_full: WhenFull::Overflow, ..options() };
    let runtime = start(&target, small).await;
    for number in 0..20 {
        send(&runtime, [(number, PIDS[number as usize % 4])]).await;
        pass(Duration::from_millis(5)).await;
    }
    pass(Duration::from_secs(2)).await;
    let status = only(&runtime);
    assert!(status.waiting <= 6 && status.failed >= 14, "{status:?}");
    let failed = runtime.failed().list(&crate::support::name("a"), 0, 100).await.unwrap();
    assert!(failed.iter().all(|entry| entry.failure.rule.as_str() == "overflow"));
    target.answer(|_| Ok(()));
    settled(&runtime).await;
    target.check_order();
    assert!(target.delivered().contains(&"19".to_owned()));
}

// On a real disk, whose threads the paused clock would not wait for.
#[tokio::test]
async fn a_limit_that_was_lowered_moves_nothing_out() {
    let dir = tempfile::tempdir().unwrap();
    let target = Scripted::new(|_| Err(ErrorKind::ConnectionRefused.into()));
    for limit in [100, 10] {
        let store = Store::open(dir.path(), JournalOptions::default()).await.unwrap();
        let small = TargetOptions { queue_entries: entries(limit), ..options() };
        let runtime = start_on(store, vec![spec("a", &target, small)]).await.unwrap();
        if limit == 100 {
            send(&runtime, many(50)).await;
        }
        assert_eq!(runtime.admit(vec![event(99, None).into()]).is_err(), limit == 10);
        pass(Duration::from_millis(100)).await;
        let status = only(&runtime);
        assert!(status.waiting >= 50 && status.failed == 0, "{status:?}");
        runtime.shutdown(Duration::from_secs(1)).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn what_never_fits_is_told_from_what_has_to_wait() {
    let target = Scripted::new(|_| Err(ErrorKind::ConnectionRefused.into()));
    let runtime = start(&target, TargetOptions { queue_entries: entries(3), ..options() }).await;
    let request = |count| (0..count).map(|number| event(number, Some("p")).into()).collect();
    let error = runtime.admit(request(4)).unwrap_err();
    assert_eq!(error.reason(), "too_large", "{error}");
    send(&runtime, [(1, "p")]).await;
    assert_eq!(runtime.admit(request(3)).unwrap_err().reason(), "queue_full");
}

#[tokio::test(start_paused = true)]
async fn a_target_that_is_down_costs_another_nothing() {
    let down = Scripted::new(|_| Err(ErrorKind::ConnectionRefused.into())).unreachable();
    let good = Scripted::good();
    let specs = vec![spec("down", &down, options()), spec("good", &good, options())];
    let runtime = start_on(Store::memory(), specs).await.unwrap();
    send(&runtime, many(400)).await;
    pass(Duration::from_millis(200)).await;
    assert_eq!(good.delivered().len(), 400);
    let status = &runtime.targets()[0];
    assert_eq!((status.name.as_str(), status.state, status.waiting), ("down", State::Held, 400));
    assert_eq!((status.health, status.reason), (Health::Offline, "connection_refused"));
    assert!(status.next_trial_seconds.is_some() && status.last_error.is_some());
}

// On a real disk, whose threads the paused clock would not wait for.
#[tokio::test]
async fn a_shutdown_lets_attempts_end_and_repeats_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let target = Scripted::good().latency(Duration::from_millis(300));
    let open = || async {
        let store = Store::open(dir.path(), JournalOptions::default()).await.unwrap();
        start_on(store, vec![spec("a", &target, options())]).await.unwrap()
    };
    let runtime = open().await;
    send(&runtime, many(12)).await;
    while target.seen().is_empty() {
        pass(Duration::from_millis(50)).await;
    }
    let report = runtime.shutdown(Duration::from_secs(10)).await.unwrap();
    assert_eq!(runtime.shutdown(Duration::from_secs(10)).await.unwrap().waiting, report.waiting);
    assert!(matches!(runtime.admit(vec![event(99, None).into()]), Err(AdmitError::Stopping)));
    let left = report.waiting[0].1;
    assert_eq!(left, 12 - target.delivered().len() as u64);
    drop(runtime);
    let runtime = open().await;
    settled(&runtime).await;
    target.check_order();
    assert_eq!(target.delivered().len(), 12, "nothing twice");
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_does_not_wait_longer_than_it_is_allowed() {
    let target = Scripted::good().latency(Duration::from_secs(25));
    let runtime = start(&target, options()).await;
    send(&runtime, many(4)).await;
    pass(Duration::from_millis(10)).await;
    let begun = tokio::time::Instant::now();
    let report = runtime.shutdown(Duration::from_secs(2)).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_eq!(report.waiting[0].1, 4);
}

#[tokio::test(start_paused = true)]
async fn a_name_is_given_once() {
    let target = Scripted::good();
    let specs = vec![spec("a", &target, options()), spec("a", &target, options())];
    assert!(matches!(start_on(Store::memory(), specs).await, Err(StartError::Twice(_))));
}

#[tokio::test(start_paused = true)]
async fn events_without_a_pid_wait_for_nothing() {
    let target = Scripted::new(|attempt| match attempt.event.id() {
        "0" => Err(ErrorKind::ServerFault.into()),
        _ => Ok(()),
    });
    let runtime = start(&target, options()).await;
    let events = (0..50).map(|number| event(number, None).into()).collect();
    for pending in runtime.admit(events).unwrap() {
        pending.await.unwrap();
    }
    pass(Duration::from_millis(90)).await;
    assert_eq!(target.delivered().len(), 49);
}
