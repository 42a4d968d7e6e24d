//! Clocks that are set, and stores that fail: on the simulated disk, whose clock on the wall a test may set.

use std::sync::Arc;
use std::time::Duration;

use outhaul_runtime::event::{Event, Uid};
use outhaul_runtime::store::{Discard, Log, SimDisk, SimFileSystem};
use outhaul_runtime::target::{DeliveryError, ErrorKind, OnExhausted, TargetOptions};
use outhaul_runtime::{EntryAnswer, Notice};
use tokio::task::JoinSet;

use crate::sim::world::{Wall, open};
use crate::support::{
    Checked, Scripted, admit, entries, event, name, only, options, pass, send, settled, spec, start, start_on,
};

async fn begin(
    fs: &SimFileSystem,
    wall: &Wall,
    target: &Scripted,
    with: TargetOptions,
) -> (Checked, Arc<dyn Log>) {
    let store = open(fs, wall).await.unwrap();
    let log = Arc::clone(store.log());
    (start_on(store, vec![spec("a", target, with)]).await.unwrap(), log)
}

fn wall() -> Wall {
    let wall = Wall::new();
    wall.start();
    wall
}

/// A clock that is set by so many seconds.
const JUMPS: [i64; 5] = [0, 30, 7200, -30, -7200];

fn jump(wall: &Wall, seconds: i64) {
    wall.set(seconds > 0, Duration::from_secs(seconds.unsigned_abs()));
}

fn failing() -> Scripted {
    Scripted::new(|_| Err(ErrorKind::ServerFault.into()))
}

fn slow() -> TargetOptions {
    let long = Duration::from_secs(100);
    TargetOptions { backoff: long, backoff_max: long, ..options() }
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_jumps_moves_no_attempt_of_a_process_that_runs() {
    let mut all = Vec::new();
    for seconds in JUMPS {
        let (fs, wall, target) = (SimFileSystem::default(), wall(), failing());
        let (runtime, _) = begin(&fs, &wall, &target, slow()).await;
        send(&runtime, [(1, "p"), (2, "p"), (3, "q")]).await;
        pass(Duration::from_secs(5)).await;
        jump(&wall, seconds);
        pass(Duration::from_secs(500)).await;
        target.answer(|_| Ok(()));
        settled(&runtime).await;
        target.check_order();
        all.push(target.seen().into_iter().map(|seen| (seen.at, seen.id)).collect::<Vec<_>>());
    }
    assert!(all[0].len() > 8, "{:?}", all[0]);
    assert!(all.iter().all(|seen| *seen == all[0]), "{all:?}");
}

#[tokio::test(start_paused = true)]
async fn over_a_restart_a_clock_that_jumps_fires_early_by_no_more_and_delays_by_no_more_than_a_backoff() {
    let mut due = Vec::new();
    for seconds in JUMPS {
        let (fs, wall, target) = (SimFileSystem::default(), wall(), failing());
        let (runtime, _) = begin(&fs, &wall, &target, slow()).await;
        send(&runtime, [(1, "p"), (2, "p"), (3, "p")]).await;
        pass(Duration::from_secs(5)).await;
        runtime.shutdown(Duration::from_secs(1)).await.unwrap();
        assert_eq!(target.seen().len(), 1);
        jump(&wall, seconds);
        let again = Scripted::good();
        let fs = SimFileSystem::new(fs.disk());
        let (runtime, _) = begin(&fs, &wall, &again, slow()).await;
        settled(&runtime).await;
        assert_eq!(again.delivered(), ["1", "2", "3"], "{seconds} s");
        due.push(again.seen()[0].at);
        runtime.shutdown(Duration::from_secs(1)).await.unwrap();
    }
    let [none, forward, far, back, far_back] = due[..] else { panic!("{due:?}") };
    assert!(none > Duration::from_secs(35), "a jitter that shows something: {none:?}");
    let near = |a: Duration, b: Duration| a.abs_diff(b) < Duration::from_secs(1);
    assert!(near(forward, none - Duration::from_secs(30)), "{due:?}");
    assert!(far < Duration::from_secs(1), "{due:?}");
    let longest = Duration::from_secs(100);
    assert!(near(back, (none + Duration::from_secs(30)).min(longest)), "{due:?}");
    assert!(near(far_back, longest), "{due:?}");
}

#[tokio::test(start_paused = true)]
async fn an_age_is_reached_early_by_no_more_than_a_clock_was_set_forward() {
    let age_max = Some(Duration::from_secs(600));
    let old = TargetOptions { age_max, on_exhausted: OnExhausted::Fail, ..options() };
    for seconds in [0, 300, -300] {
        let (fs, wall, target) = (SimFileSystem::default(), wall(), failing());
        let (runtime, _) = begin(&fs, &wall, &target, old.clone()).await;
        send(&runtime, [(1, "p")]).await;
        pass(Duration::from_secs(5)).await;
        jump(&wall, seconds);
        let left = u64::try_from(595 - seconds).unwrap();
        pass(Duration::from_secs(left - 5)).await;
        assert_eq!(only(&runtime).failed, 0, "{seconds}");
        pass(Duration::from_secs(10)).await;
        assert_eq!(only(&runtime).failed, 1, "{seconds}");
    }
}

fn rejecting() -> Scripted {
    let refuse = |_: &_| Err(DeliveryError::new(ErrorKind::ContentRefused));
    Scripted::new(refuse).latency(Duration::from_millis(50))
}

#[tokio::test(start_paused = true)]
async fn a_move_that_fails_tells_nothing_leaves_the_entry_and_heals_by_itself() {
    let (fs, wall, target) = (SimFileSystem::default(), wall(), rejecting());
    let (runtime, _) = begin(&fs, &wall, &target, options()).await;
    let mut notices = runtime.notices();
    send(&runtime, [(1, "p")]).await;
    // From here on every call of the disk fails; the verdict is still to come.
    fs.fail_at(1, std::io::ErrorKind::Other, true);
    pass(Duration::from_secs(10)).await;
    let status = only(&runtime);
    assert_eq!((status.waiting, status.failed, status.reason), (1, 0, "store_failed"), "{status:?}");
    let rejected = |notice: &Notice| matches!(notice, Notice::Rejected { .. });
    let mut told = Vec::new();
    told.extend(std::iter::from_fn(|| notices.try_recv().ok()));
    assert!(!told.iter().any(rejected), "{told:?}");
    fs.heal();
    pass(Duration::from_secs(5)).await;
    let status = only(&runtime);
    assert_eq!((status.waiting, status.failed, runtime.failed().count(None)), (0, 1, 1), "{status:?}");
    told.extend(std::iter::from_fn(|| notices.try_recv().ok()));
    assert_eq!(told.iter().filter(|notice| rejected(notice)).count(), 1, "{told:?}");
    assert_eq!(target.seen().len(), 1, "it is not sent again for it");
}

#[tokio::test(start_paused = true)]
async fn behind_a_log_that_failed_a_reload_sends_nothing_again_and_nothing_is_discarded() {
    let (fs, wall) = (SimFileSystem::default(), wall());
    let target = Scripted::good().latency(Duration::from_millis(50));
    let (runtime, log) = begin(&fs, &wall, &target, options()).await;
    send(&runtime, [(1, "p"), (2, "q"), (3, "p")]).await;
    pass(Duration::from_millis(10)).await;
    fs.fail_at(1, std::io::ErrorKind::Other, true);
    runtime.send(event(4, None)).await.unwrap_err();
    assert!(log.failure().is_some());
    pass(Duration::from_secs(1)).await;
    let sent = target.seen().len();
    // The old one is put back, with a worker that does not know what the one before it delivered.
    let again = Scripted::good();
    let refused = runtime.replace(spec("a", &again, options())).await.unwrap_err();
    assert_eq!(refused.reason(), "store_failed");
    pass(Duration::from_secs(60)).await;
    assert_eq!((target.seen().len(), again.seen().len()), (sent, 0), "of {:?}", target.seen());
    let status = only(&runtime);
    assert_eq!((status.reason, status.waiting), ("store_failed", 3), "{status:?}");
    let uid = Uid { queue: name("a"), sequence: 1 };
    assert_eq!(runtime.discard(&uid).await.unwrap_err().reason(), "store_failed");
}

#[tokio::test(start_paused = true)]
async fn retry_reaches_a_stuck_head_that_is_not_loaded() {
    let target = Scripted::new(|attempt| match attempt.event.id().parse::<u64>().unwrap() % 8 {
        0 => Ok(()),
        _ => Err(ErrorKind::ServerFault.into()),
    });
    let long = Duration::from_secs(10_000);
    let patient = TargetOptions { backoff: long, backoff_max: long, ..options() };
    let runtime = start(&target, patient).await;
    // With more than the window holds, a lane that waits keeps nothing loaded.
    admit(&runtime, (0..6000).map(|number| event(number, Some(&format!("pid-{number}"))))).await;
    pass(Duration::from_secs(20)).await;
    assert_eq!(target.attempts("1").len(), 1);
    target.answer(|_| Ok(()));
    let uid = Uid { queue: name("a"), sequence: 2 };
    assert_eq!(runtime.retry(&uid).await.unwrap(), EntryAnswer::Cleared);
    pass(Duration::from_secs(1)).await;
    assert!(target.delivered().contains(&"1".to_owned()), "{:?}", target.attempts("1"));
    assert!(!target.delivered().contains(&"2".to_owned()), "that was not asked for");
}

/// A disk with 1 in the failed store, which has room for no other, and 2, which waits and cannot be read.
async fn unreadable(wall: &Wall, full: &TargetOptions) -> SimDisk {
    let (fs, target) = (SimFileSystem::default(), rejecting());
    let (runtime, _) = begin(&fs, wall, &target, full.clone()).await;
    send(&runtime, [(1, "p")]).await;
    settled(&runtime).await;
    runtime.pause(&name("a")).await.unwrap();
    let event = Event::builder("t", "/test").id("2").body("text/plain", "MARKER").build().unwrap();
    admit(&runtime, [event]).await;
    runtime.shutdown(Duration::from_secs(1)).await.unwrap();
    let mut disk = fs.disk();
    let at = |content: &[u8]| content.windows(6).position(|window| window == b"MARKER");
    let files = disk.files().into_iter().map(|(path, _)| path);
    let found = files.filter_map(|path| Some((at(disk.content(&path)?)?, path))).next();
    let (at, path) = found.unwrap();
    disk.flip(&path, at * 8);
    disk
}

#[tokio::test(start_paused = true)]
async fn discarding_what_cannot_be_read_while_it_is_moved_takes_it_out_of_the_failed_store() {
    let wall = wall();
    let full = TargetOptions { failed_entries: Some(entries(1)), ..options() };
    let fs = SimFileSystem::new(unreadable(&wall, &full).await);
    let target = Scripted::good();
    let (runtime, _) = begin(&fs, &wall, &target, full).await;
    let mut notices = runtime.notices();
    pass(Duration::from_secs(3)).await;
    let status = only(&runtime);
    assert_eq!((status.waiting, status.failed), (1, 0), "it finds no room: {status:?}");
    let (asking, mut tasks) = (runtime.clone(), JoinSet::new());
    tasks.spawn(async move { asking.discard(&Uid { queue: name("a"), sequence: 2 }).await });
    pass(Duration::from_secs(1)).await;
    runtime.failed().discard(Discard::Uids(runtime.failed().uids())).await.unwrap();
    let answer = tasks.join_next().await.unwrap().unwrap();
    assert_eq!(answer.unwrap(), EntryAnswer::Discarded);
    assert_eq!((only(&runtime).waiting, runtime.failed().count(None)), (0, 0));
    let told: Vec<_> = std::iter::from_fn(|| notices.try_recv().ok()).collect();
    let ends = |notice: &&Notice| matches!(notice, Notice::Quarantined { .. } | Notice::Discarded { .. });
    assert_eq!(told.iter().filter(ends).count(), 1, "{told:?}");
    assert_eq!(target.seen().len(), 0);
}
