//! A suspect of a crash is sent alone, also when its lane had to wait first.

use std::time::Duration;

use outhaul_runtime::event::Uid;
use outhaul_runtime::store::{Outcome, RetryState, Settlement, Shards, SimFileSystem};

use crate::sim::world::{Wall, open};
use crate::support::{Scripted, admit, event, name, only, options, pass, settled, spec, start_on};

/// A disk whose process ended while event 1 was being delivered, which had failed before and waits for a while.
async fn crashed(wall: &Wall, wait: Duration) -> SimFileSystem {
    let fs = SimFileSystem::default();
    let store = open(&fs, wall).await.unwrap();
    let down = Scripted::new(|_| Err(outhaul_runtime::target::ErrorKind::ConnectionRefused.into()));
    let runtime = start_on(store, vec![spec("a", &down, options())]).await.unwrap();
    admit(&runtime, (0..40).map(|number| event(number, Some(&format!("pid-{}", number % 10))))).await;
    runtime.shutdown(Duration::from_secs(1)).await.unwrap();
    let store = open(&fs, wall).await.unwrap();
    store.log().attach(&name("a"), Default::default()).unwrap();
    let lease = store.log().lease(Shards::All).await.unwrap();
    let place = lease.read(&name("a"), 1, 1, 1 << 20).await.unwrap().entries.pop().unwrap().place;
    assert_eq!(place.uid, Uid { queue: name("a"), sequence: 2 });
    let state = RetryState { attempts: 1, not_before: wall.now() + wait };
    lease.settle(vec![Settlement { place, outcome: Outcome::Retry(state) }]).await.unwrap();
    lease.in_flight(&name("a"), &[2]).unwrap();
    store.log().flush().await.unwrap();
    // Without a close.
    SimFileSystem::new(fs.disk().crash(&mut fastrand::Rng::with_seed(7)))
}

#[tokio::test(start_paused = true)]
async fn a_crash_suspect_that_had_to_wait_is_sent_alone_and_keeps_nobody_waiting_until_then() {
    let wall = Wall::new();
    wall.start();
    let fs = crashed(&wall, Duration::from_secs(1)).await;
    let latency = Duration::from_millis(40);
    let target = Scripted::good().latency(latency);
    let store = open(&fs, &wall).await.unwrap();
    let runtime = start_on(store, vec![spec("a", &target, options())]).await.unwrap();
    let begun = tokio::time::Instant::now();
    // Others are under way all the time.
    for number in 100..200 {
        admit(&runtime, [event(number, None)]).await;
        pass(Duration::from_millis(17)).await;
    }
    settled(&runtime).await;
    target.check_order();
    let (seen, suspect) = (target.seen(), target.attempts("1"));
    assert_eq!(suspect.len(), 1, "{suspect:?}");
    let at = suspect[0].at;
    assert!(at > Duration::from_millis(900) && begun.elapsed() > at, "{at:?}");
    let before = seen.iter().filter(|seen| seen.at < Duration::from_millis(900)).count();
    assert!(before > 36, "the others waited: {before}");
    // What ends within the same time on either side was under way together with it.
    let beside: Vec<_> =
        seen.iter().filter(|other| other.id != "1" && other.at.abs_diff(at) < latency).collect();
    assert!(beside.is_empty(), "beside {at:?}: {beside:?}");
    assert_eq!(only(&runtime).delivered, 140);
}
