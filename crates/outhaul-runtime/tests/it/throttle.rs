//! How fast good events come through behind many bad ones, in simulated time.

use std::time::Duration;

use outhaul_runtime::target::{ErrorKind, TargetOptions};
use tokio::time::Instant;

use crate::support::{Scripted, admit, event, pass, start};

/// Admits so many bad events, each of a pid of its own, and 200 good ones of four pids, and says when the first and the
/// last good one came.
async fn measure(kind: ErrorKind, bad: u64, spread: bool) -> (Duration, Duration) {
    let target = Scripted::new(move |attempt| match attempt.event.pid().unwrap().starts_with("bad") {
        true => Err(kind.into()),
        false => Ok(()),
    });
    let runtime = start(&target, TargetOptions::default()).await;
    let begun = Instant::now();
    let good = |number: u64| event(bad + number, Some(["p", "q", "r", "s"][number as usize % 4]));
    let bad_one = |number: u64| event(number, Some(&format!("bad-{number}")));
    if spread {
        // Bad ones are everywhere among the good ones, and last.
        let mut all: Vec<_> = (0..200).map(good).collect();
        for number in 0..bad {
            all.insert((number * (200 + number) / bad) as usize, bad_one(number));
        }
        all.push(event(bad + 200, Some("bad-last")));
        admit(&runtime, all).await;
    } else {
        admit(&runtime, (0..bad).map(bad_one)).await;
        admit(&runtime, (0..200).map(good)).await;
    }
    while target.delivered().len() < 200 {
        assert!(begun.elapsed() < Duration::from_secs(3600), "{kind}: {}", target.delivered().len());
        pass(Duration::from_millis(50)).await;
    }
    target.check_order();
    let first = target.seen().into_iter().find(|seen| seen.ok).unwrap().at;
    (first, begun.elapsed())
}

#[tokio::test(start_paused = true)]
async fn good_events_behind_many_bad_ones_come_soon() {
    // What accuses its entry costs next to nothing; each one that accuses the target holds it once, for half a second.
    for (kind, bad, seconds) in [
        (ErrorKind::ServerFault, 20, 2),
        (ErrorKind::ServerFault, 60, 4),
        (ErrorKind::ServerFault, 200, 12),
        (ErrorKind::ConnectionReset, 20, 10),
        (ErrorKind::ConnectionReset, 60, 35),
        (ErrorKind::ConnectionReset, 200, 110),
    ] {
        for spread in [false, true] {
            let (first, all) = measure(kind, bad, spread).await;
            let told =
                format!("{kind:?}, {bad} bad, among the others {spread}: first {first:?}, all {all:?}");
            assert!(first < Duration::from_secs(3) && all < Duration::from_secs(seconds), "{told}");
        }
    }
}

/// A thousand bad events of as many pids at once, on a target that takes the others, which go on coming.
#[tokio::test(start_paused = true)]
async fn a_heap_of_bad_events_delays_nobody_who_comes_later() {
    for bad in [100, 1000] {
        let target = Scripted::new(|attempt| match attempt.event.pid().unwrap().starts_with("bad") {
            true => Err(ErrorKind::ServerFault.into()),
            false => Ok(()),
        });
        let runtime = start(&target, TargetOptions::default()).await;
        let good = |number: u64| event(number, Some(&format!("p{}", number % 50)));
        admit(&runtime, (0..100).map(good)).await;
        pass(Duration::from_secs(1)).await;
        admit(&runtime, (0..bad).map(|number| event(10_000 + number, Some(&format!("bad-{number}"))))).await;
        let mut slowest = Duration::ZERO;
        for number in 100..400 {
            let came = Instant::now();
            admit(&runtime, [good(number)]).await;
            let late = Duration::from_secs(600);
            while !target.delivered().contains(&number.to_string()) && came.elapsed() < late {
                pass(Duration::from_millis(10)).await;
            }
            slowest = slowest.max(came.elapsed());
            pass(Duration::from_millis(200)).await;
        }
        assert!(slowest < Duration::from_secs(2), "{bad} bad ones: {slowest:?}");
    }
}
