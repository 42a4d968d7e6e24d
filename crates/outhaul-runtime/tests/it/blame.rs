//! Whom a failure accuses: no poison stops a target, no outage burns an entry's attempts.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outhaul_runtime::target::{BatchOrder, DeliveryError, ErrorKind, OnExhausted, TargetOptions};
use outhaul_runtime::{Notice, State};

use crate::support::{Scripted, event, name, only, options, pass, send, settled, start};

/// Options under which an attempt too many shows: it would fail the entry.
fn strict() -> TargetOptions {
    TargetOptions { attempts_max: NonZeroU32::new(3), on_exhausted: OnExhausted::Fail, ..options() }
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_any_kind_burns_no_attempts_and_ends_within_a_backoff() {
    for kind in
        [ErrorKind::ConnectionRefused, ErrorKind::Authentication, ErrorKind::ServerFault, ErrorKind::TimedOut]
    {
        let down = Arc::new(AtomicBool::new(true));
        let switch = Arc::clone(&down);
        let target = Scripted::new(move |_| match switch.load(Ordering::Relaxed) {
            true => Err(kind.into()),
            false => Ok(()),
        });
        // The attempts of an entry before its target is throttled count: three are few enough to notice more.
        let strict = TargetOptions { attempts_max: NonZeroU32::new(12), ..strict() };
        let runtime = start(&target, strict).await;
        let pids = ["a", "b", "c", "d", "e", "f"];
        send(&runtime, (0..60).map(|number| (number, pids[number as usize % 6]))).await;
        pass(Duration::from_secs(3600)).await;
        let status = only(&runtime);
        assert!(matches!(status.state, State::Held | State::Throttled), "{kind}: {status:?}");
        assert_eq!((status.failed, status.waiting), (0, 60), "{kind}");
        let attempts = target.seen().len();
        assert!(attempts < 900, "{kind}: {attempts} attempts in an hour");
        down.store(false, Ordering::Relaxed);
        pass(Duration::from_secs(13)).await;
        assert_eq!(target.delivered().len(), 60, "{kind}");
        target.check_order();
        assert_eq!(only(&runtime).state, State::Running);
    }
}

#[tokio::test(start_paused = true)]
async fn a_poison_that_cuts_the_line_becomes_a_suspect_and_stops_nobody() {
    for poison in
        [ErrorKind::ConnectionReset, ErrorKind::DestinationMissing, ErrorKind::TimedOut, ErrorKind::Throttled]
    {
        for pid in [Some("x"), None] {
            let target = Scripted::new(move |attempt| match attempt.event.id() {
                "0" => Err(DeliveryError::new(poison).with_retry_after(Duration::from_secs(1))),
                _ => Ok(()),
            });
            let runtime = start(&target, options()).await;
            runtime.send(event(0, pid)).await.unwrap();
            for number in 1..200 {
                runtime.send(event(number, Some(["p", "q", "r"][number as usize % 3]))).await.unwrap();
                pass(Duration::from_millis(100)).await;
            }
            assert_eq!(target.delivered().len(), 199, "{poison} {pid:?}");
            target.check_order();
            // It held the target once; from then on it was a suspect.
            let late = target.seen().into_iter().filter(|seen| seen.at > Duration::from_secs(10));
            assert!(late.clone().filter(|seen| seen.id == "0").count() > 0, "{poison}: it is still tried");
            let status = only(&runtime);
            assert_eq!((status.state, status.waiting, status.failed), (State::Running, 1, 0), "{poison}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn stuck_pids_alone_with_their_target_do_not_delay_whoever_comes_later() {
    for kind in [ErrorKind::ServerFault, ErrorKind::ConnectionReset] {
        let target = Scripted::new(move |attempt| match attempt.event.pid() {
            Some("stuck-1" | "stuck-2") => Err(kind.into()),
            _ => Ok(()),
        });
        let runtime = start(&target, options()).await;
        send(&runtime, [(1, "stuck-1"), (2, "stuck-2"), (3, "good")]).await;
        // A quiet time in which nothing but the two is tried.
        pass(Duration::from_secs(600)).await;
        for number in 10..30 {
            let begun = tokio::time::Instant::now();
            send(&runtime, [(number, "good")]).await;
            while !target.delivered().contains(&number.to_string()) {
                pass(Duration::from_millis(5)).await;
            }
            assert!(begun.elapsed() < Duration::from_millis(100), "{kind}: {:?}", begun.elapsed());
            pass(Duration::from_secs(30)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn most_pids_stuck_still_leave_the_others_their_way() {
    for kind in [ErrorKind::ServerFault, ErrorKind::ConnectionReset] {
        let is_stuck = |pid: &str| pid.parse::<u64>().is_ok_and(|pid| pid < 20);
        let target = Scripted::new(move |attempt| match attempt.event.pid().is_some_and(is_stuck) {
            true => Err(kind.into()),
            false => Ok(()),
        });
        let runtime = start(&target, TargetOptions::default()).await;
        for number in 0..600_u64 {
            runtime.send(event(number, Some(&(number % 30).to_string()))).await.unwrap();
        }
        pass(Duration::from_secs(60)).await;
        assert_eq!(target.delivered().len(), 200, "{kind}");
        target.check_order();
    }
}

#[tokio::test(start_paused = true)]
async fn many_poisons_together_stop_nobody() {
    let target = Scripted::new(|attempt| match attempt.event.id().parse::<u64>() {
        Ok(number) if number < 8 => Err(ErrorKind::ConnectionReset.into()),
        _ => Ok(()),
    });
    let runtime = start(&target, options()).await;
    send(
        &runtime,
        ["a", "b", "c", "d", "e", "f", "g", "h"].into_iter().enumerate().map(|(n, pid)| (n as u64, pid)),
    )
    .await;
    send(&runtime, (8..100).map(|number| (number, "good"))).await;
    pass(Duration::from_secs(120)).await;
    assert_eq!(target.delivered().len(), 92);
    target.check_order();
}

#[tokio::test(start_paused = true)]
async fn a_poison_in_a_batch_is_found_and_its_neighbours_are_delivered() {
    for order in [BatchOrder::None, BatchOrder::Prefix] {
        let target = Scripted::new(|attempt| match attempt.event.id() {
            "37" => Err(ErrorKind::ConnectionReset.into()),
            _ => Ok(()),
        })
        .batches(64, order);
        let runtime = start(&target, options()).await;
        let events = (0..100).map(|number| event(number, None).into()).collect();
        for pending in runtime.admit(events).unwrap() {
            pending.await.unwrap();
        }
        pass(Duration::from_secs(10)).await;
        assert_eq!(target.delivered().len(), 99);
        assert_eq!(only(&runtime).waiting, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_fails_as_a_whole_is_taken_apart_before_anybody_is_blamed() {
    // As a transaction does: one bad event fails all of its batch.
    let poisoned = Arc::new(std::sync::Mutex::new(std::collections::HashSet::new()));
    let target = Scripted::good().batches(64, BatchOrder::Prefix);
    let seen = Arc::clone(&poisoned);
    target.answer(move |attempt| {
        // All attempts of one call come at one instant of the paused clock.
        let mut bad = seen.lock().unwrap();
        if attempt.event.id() == "0" {
            bad.insert(tokio::time::Instant::now());
        }
        if bad.contains(&tokio::time::Instant::now()) { Err(ErrorKind::Conflict.into()) } else { Ok(()) }
    });
    let one = TargetOptions { in_flight: std::num::NonZeroUsize::MIN, ..options() };
    let runtime = start(&target, one).await;
    let events = (0..64).map(|number| event(number, None).into()).collect();
    for pending in runtime.admit(events).unwrap() {
        pending.await.unwrap();
    }
    pass(Duration::from_secs(2)).await;
    assert_eq!(target.delivered().len(), 63);
    let sizes: Vec<_> = target.attempts("0").iter().map(|seen| seen.batch).collect();
    assert_eq!(&sizes[..7], [64, 32, 16, 8, 4, 2, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_trial_is_one_attempt_and_a_resumed_target_ramps_up() {
    let down = Arc::new(AtomicBool::new(true));
    let switch = Arc::clone(&down);
    let target = Scripted::new(move |_| match switch.load(Ordering::Relaxed) {
        true => Err(ErrorKind::ConnectionRefused.into()),
        false => Ok(()),
    });
    let runtime = start(&target, options()).await;
    let mut notices = runtime.notices();
    send(&runtime, (0..40).map(|number| (number, ["p", "q", "r", "s"][number as usize % 4]))).await;
    pass(Duration::from_secs(100)).await;
    let trials: Vec<_> = target.seen().into_iter().skip(4).map(|seen| seen.at).collect();
    assert!(trials.windows(2).all(|pair| pair[1] - pair[0] >= Duration::from_millis(250)), "{trials:?}");
    let last = &trials[trials.len() - 3..];
    assert!(
        last.windows(2).all(|pair| pair[1] - pair[0] >= Duration::from_secs(5)),
        "the backoff grows: {last:?}"
    );
    down.store(false, Ordering::Relaxed);
    settled(&runtime).await;
    let mut told = Vec::new();
    while let Ok(notice) = notices.try_recv() {
        told.push(notice);
    }
    assert_eq!(told.iter().filter(|notice| matches!(notice, Notice::Held { .. })).count(), 1);
    assert_eq!(told.iter().filter(|notice| matches!(notice, Notice::Resumed { .. })).count(), 1);
    assert_eq!(told.iter().filter(|notice| matches!(notice, Notice::Delivered { .. })).count(), 40);
}

#[tokio::test(start_paused = true)]
async fn retry_after_pauses_the_target_for_as_long_as_it_says() {
    let down = Arc::new(AtomicBool::new(true));
    let switch = Arc::clone(&down);
    let target = Scripted::new(move |_| match switch.load(Ordering::Relaxed) {
        true => Err(DeliveryError::new(ErrorKind::Throttled).with_retry_after(Duration::from_secs(30))),
        false => Ok(()),
    });
    let runtime = start(&target, strict()).await;
    send(&runtime, (0..8).map(|number| (number, ["p", "q"][number as usize % 2]))).await;
    pass(Duration::from_secs(29)).await;
    assert!(target.seen().len() <= 4, "only what was in flight");
    assert_eq!(only(&runtime).state, State::Throttled);
    down.store(false, Ordering::Relaxed);
    pass(Duration::from_secs(3)).await;
    assert_eq!(target.delivered().len(), 8);
}

#[tokio::test(start_paused = true)]
async fn a_receiver_that_refuses_everything_is_held_and_one_that_refuses_one_pid_is_not() {
    let target = Scripted::new(|_| Err(ErrorKind::ContentRefused.into()));
    let runtime = start(&target, options()).await;
    send(&runtime, (0..300).map(|number| (number, ["p", "q", "r"][number as usize % 3]))).await;
    pass(Duration::from_secs(60)).await;
    let status = only(&runtime);
    assert_eq!(status.state, State::Held);
    assert!((50..60).contains(&status.failed), "{status:?}");
    target.answer(|_| Ok(()));
    settled(&runtime).await;
    target.check_order();

    let target = Scripted::new(|_| Err(ErrorKind::ContentRefused.into()));
    let runtime = start(&target, options()).await;
    send(&runtime, (0..100).map(|number| (number, "p"))).await;
    settled(&runtime).await;
    assert_eq!(only(&runtime).failed, 100);
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_target_holds_it_and_ends_nothing() {
    let broken = Arc::new(AtomicBool::new(true));
    let switch = Arc::clone(&broken);
    let target = Scripted::new(move |_| match switch.load(Ordering::Relaxed) {
        true => panic!("a defect"),
        false => Ok(()),
    });
    let runtime = start(&target, options()).await;
    send(&runtime, [(1, "p"), (2, "q")]).await;
    pass(Duration::from_secs(5)).await;
    let status = only(&runtime);
    assert_eq!(status.state, State::Held);
    assert!(status.last_error.unwrap().contains("panicked"));
    broken.store(false, Ordering::Relaxed);
    settled(&runtime).await;
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_outlives_twice_its_deadline_is_dropped_and_counted() {
    let target = Scripted::good().latency(Duration::from_secs(1000));
    let runtime = start(&target, options()).await;
    send(&runtime, [(1, "p")]).await;
    pass(Duration::from_secs(65)).await;
    let status = only(&runtime);
    assert_eq!((status.abandoned, status.retried), (1, 1));
    drop(name("a"));
}

#[tokio::test(start_paused = true)]
async fn an_idle_runtime_does_nothing() {
    let target = Scripted::good();
    let runtime = start(&target, options()).await;
    send(&runtime, [(1, "p")]).await;
    settled(&runtime).await;
    // With a paused clock a timer that ticked would be seen as one that is due: nothing is.
    let begun = tokio::time::Instant::now();
    pass(Duration::from_secs(100_000)).await;
    assert_eq!(begun.elapsed(), Duration::from_secs(100_000));
    assert_eq!(target.seen().len(), 1);
}
