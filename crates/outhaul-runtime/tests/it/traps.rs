//! Situations that once left a worker stuck, busy with itself, or unjust: full stores, stuck entries of every size,
//! holds that begin or end at a bad moment, stops.

use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use outhaul_runtime::event::{Event, Uid};
use outhaul_runtime::store::{FailedEntry, Failure, JournalOptions, Rule, Store, unix_millis};
use outhaul_runtime::target::{
    Attempt, BatchOrder, DeliveryError, ErrorKind, OnReject, TargetOptions, WhenFull,
};
use outhaul_runtime::{RuntimeOptions, State};

use crate::support::{
    Checked, Scripted, admit, entries, event, name, only, options, pass, send, settled, spec, start, start_on,
};

/// A target to which the first events are bad and the others are good.
fn bad_below(count: u64, kind: ErrorKind) -> Scripted {
    Scripted::new(move |attempt| match attempt.event.id().parse::<u64>().unwrap() < count {
        true => Err(kind.into()),
        false => Ok(()),
    })
}

fn overflowing(queue_entries: u64) -> TargetOptions {
    TargetOptions { queue_entries: entries(queue_entries), when_full: WhenFull::Overflow, ..options() }
}

/// A store that takes no failed entry of target `a`.
async fn store_full_of_failures() -> Store {
    let store = Store::memory();
    let failure = Failure {
        rule: Rule::Rejected,
        class: "malformed".to_owned(),
        detail: String::new(),
        attempts: 1,
        first_attempt_ms: None,
        last_attempt_ms: None,
        failed_ms: unix_millis(SystemTime::now()),
    };
    let event = Arc::new(event(0, None));
    let entry = |sequence| FailedEntry {
        uid: Uid { queue: name("a"), sequence },
        dedup_id: event.dedup_id(),
        event: Arc::clone(&event),
        admitted_ms: 0,
        failure: failure.clone(),
    };
    let first = 1 << 40;
    store.failed().put((first..first + 100_000).map(entry).collect()).await.unwrap();
    assert!(store.failed().put(vec![entry(1)]).await.is_err());
    store
}

// On the real clock: a worker that never rests would stop a paused one.
#[tokio::test]
async fn a_full_failed_store_keeps_no_worker_busy_and_no_held_target_from_its_trials() {
    let target = Scripted::new(|_| Err(ErrorKind::ConnectionRefused.into()));
    let quick = TargetOptions {
        trial_backoff: Duration::from_millis(50),
        trial_backoff_max: Duration::from_millis(100),
        ..overflowing(2)
    };
    let runtime = start_on(store_full_of_failures().await, vec![spec("a", &target, quick)]).await.unwrap();
    send(&runtime, [(1, "p"), (2, "q")]).await;
    pass(Duration::from_millis(100)).await;
    assert_eq!(only(&runtime).state, State::Held);
    send(&runtime, [(3, "r"), (4, "s")]).await;
    pass(Duration::from_millis(100)).await;
    target.answer(|_| Ok(()));
    let busy = || tokio::runtime::Handle::current().metrics().worker_total_busy_duration(0);
    let (attempts, before) = (target.seen().len(), busy());
    pass(Duration::from_secs(2)).await;
    assert!(target.seen().len() > attempts, "the longest backoff is 100 ms");
    let busy = busy() - before;
    assert!(busy < Duration::from_secs(1), "busy for {busy:?} of 2 s");
}

#[tokio::test]
async fn a_shutdown_does_not_wait_for_a_full_failed_store() {
    let target = Scripted::new(|_| Err(ErrorKind::ConnectionRefused.into()));
    let specs = vec![spec("a", &target, overflowing(2))];
    let runtime = start_on(store_full_of_failures().await, specs).await.unwrap();
    send(&runtime, [(1, "p"), (2, "q")]).await;
    pass(Duration::from_millis(100)).await;
    send(&runtime, [(3, "r"), (4, "s")]).await;
    pass(Duration::from_millis(20)).await;
    let begun = tokio::time::Instant::now();
    runtime.shutdown(Duration::from_secs(4)).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(2), "nothing is in flight: {:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_bad_events_does_not_stop_the_good_ones_behind_it() {
    let target = bad_below(60, ErrorKind::Malformed);
    let runtime = start(&target, options()).await;
    admit(&runtime, (0..60).map(|number| event(number, None))).await;
    send(&runtime, (60..100).map(|number| (number, "good"))).await;
    pass(Duration::from_secs(3600)).await;
    assert_eq!(target.delivered().len(), 40, "{:?}", only(&runtime));
}

#[tokio::test(start_paused = true)]
async fn a_target_that_comes_back_refusing_everything_is_held() {
    let target = Scripted::new(|_| Err(ErrorKind::ConnectionRefused.into()));
    let runtime = start(&target, options()).await;
    send(&runtime, (0..300).map(|number| (number, ["p", "q", "r"][number as usize % 3]))).await;
    pass(Duration::from_secs(5)).await;
    assert_eq!(only(&runtime).state, State::Held);
    target.answer(|_| Err(ErrorKind::ContentRefused.into()));
    pass(Duration::from_secs(60)).await;
    let status = only(&runtime);
    assert!((50..70).contains(&status.failed) && status.state == State::Held, "{status:?}");
}

#[tokio::test(start_paused = true)]
async fn a_hold_for_rejects_ends_when_only_its_oldest_entry_is_bad() {
    let target = Scripted::new(|_| Err(ErrorKind::ContentRefused.into()));
    let runtime = start(&target, options()).await;
    admit(&runtime, (0..200).map(|number| event(number, None))).await;
    pass(Duration::from_secs(100)).await;
    let status = only(&runtime);
    assert_eq!((status.state, status.delivered), (State::Held, 0), "{status:?}");
    let oldest = target.seen().last().unwrap().id.clone();
    target.answer(move |attempt| match attempt.event.id() == oldest {
        true => Err(ErrorKind::ContentRefused.into()),
        false => Ok(()),
    });
    pass(Duration::from_secs(3600)).await;
    let status = only(&runtime);
    assert!(status.delivered > 100 && status.waiting <= 1, "{status:?}");
}

#[tokio::test(start_paused = true)]
async fn a_suspect_that_is_alone_with_a_held_target_waits_between_its_trials() {
    // 0 always cuts the line; 2 is refused for its content, but meets an outage first.
    let answer = |of_2: ErrorKind| {
        move |attempt: &Attempt| -> Result<(), DeliveryError> {
            match attempt.event.id() {
                "0" => Err(ErrorKind::ConnectionReset.into()),
                "2" => Err(of_2.into()),
                _ => Ok(()),
            }
        }
    };
    let target = Scripted::new(answer(ErrorKind::ConnectionRefused));
    let runtime = start(&target, options()).await;
    send(&runtime, [(0, "x")]).await;
    pass(Duration::from_secs(1)).await;
    // It ends the hold, and 0 becomes a suspect.
    send(&runtime, [(1, "y")]).await;
    pass(Duration::from_secs(10)).await;
    send(&runtime, [(2, "z")]).await;
    pass(Duration::from_millis(50)).await;
    target.answer(answer(ErrorKind::ContentRefused));
    pass(Duration::from_secs(30)).await;
    assert_eq!((only(&runtime).failed, only(&runtime).waiting), (1, 1));
    let before = target.attempts("0").len();
    pass(Duration::from_secs(60)).await;
    let attempts = target.attempts("0").len() - before;
    assert!((1..200).contains(&attempts), "{attempts} attempts of one entry in a minute");
}

#[tokio::test(start_paused = true)]
async fn attempts_that_hang_since_before_a_hold_leave_a_resumed_target_its_places() {
    let answer = |others: Result<(), ErrorKind>| {
        move |attempt: &Attempt| -> Result<(), DeliveryError> {
            match attempt.event.id() {
                "0" | "1" => Err(ErrorKind::TimedOut.into()),
                _ => others.map_err(DeliveryError::from),
            }
        }
    };
    let target = Scripted::new(answer(Err(ErrorKind::ConnectionRefused))).latency(Duration::from_secs(30));
    let runtime = start(&target, options()).await;
    send(&runtime, [(0, "p"), (1, "q")]).await;
    pass(Duration::from_millis(10)).await;
    let target = target.latency(Duration::from_millis(1));
    send(&runtime, [(2, "r")]).await;
    pass(Duration::from_millis(10)).await;
    assert_eq!((only(&runtime).state, only(&runtime).in_flight), (State::Held, 2));
    target.answer(answer(Ok(())));
    send(&runtime, (3..50).map(|number| (number, ["s", "t", "u"][number as usize % 3]))).await;
    pass(Duration::from_secs(20)).await;
    assert_eq!(target.delivered().len(), 48, "with two of four places hanging: {:?}", only(&runtime));
}

#[tokio::test(start_paused = true)]
async fn many_poisons_at_once_do_not_delay_the_healthy_for_long() {
    for kind in [ErrorKind::ServerFault, ErrorKind::ConnectionReset] {
        let target = bad_below(60, kind);
        let runtime = start(&target, TargetOptions::default()).await;
        admit(&runtime, (0..60).map(|number| event(number, Some(&format!("bad-{number}"))))).await;
        send(&runtime, (60..160).map(|number| (number, ["p", "q", "r", "s"][number as usize % 4]))).await;
        pass(Duration::from_secs(60)).await;
        assert!(!target.delivered().is_empty(), "{kind}: nothing in a minute");
        pass(Duration::from_secs(540)).await;
        assert_eq!(target.delivered().len(), 100, "{kind}: in ten minutes");
        target.check_order();
    }
}

#[tokio::test(start_paused = true)]
async fn a_poison_in_a_transaction_is_isolated_with_several_batches_in_flight() {
    let target = bad_below(1, ErrorKind::Conflict)
        .batches(64, BatchOrder::Prefix)
        .transactional()
        .latency(Duration::from_millis(10));
    let several = TargetOptions { in_flight: NonZeroUsize::new(16).unwrap(), ..options() };
    let runtime = start(&target, several).await;
    for step in 0..1000 {
        admit(&runtime, (step * 20..step * 20 + 20).map(|number| event(number, None))).await;
        pass(Duration::from_millis(10)).await;
    }
    let failed = target.attempts("0");
    assert!(failed.len() < 100, "{} batches failed in 10 s", failed.len());
    assert!(failed.iter().any(|seen| seen.batch == 1), "it was never alone");
    let delivered = target.delivered();
    let stuck = (1..100).filter(|number: &u64| !delivered.contains(&number.to_string())).count();
    assert_eq!(stuck, 0, "neighbours of the poison");
}

#[tokio::test(start_paused = true)]
async fn large_stuck_entries_do_not_hold_up_other_pids() {
    let target = bad_below(40, ErrorKind::ServerFault);
    let runtime = start(&target, options()).await;
    let large = |number: u64| {
        let builder = Event::builder("t", "/test").id(number.to_string()).pid(format!("stuck-{number}"));
        builder.body("application/octet-stream", vec![0; 1_000_000]).build().unwrap()
    };
    admit(&runtime, (0..40).map(large)).await;
    send(&runtime, (40..60).map(|number| (number, "good"))).await;
    pass(Duration::from_secs(600)).await;
    assert_eq!(target.delivered().len(), 20, "{:?}", only(&runtime));
}

#[tokio::test(start_paused = true)]
async fn more_stuck_events_without_a_pid_than_the_window_holds_do_not_delay_others() {
    let target = Scripted::new(|attempt| match attempt.event.id().parse::<u64>().unwrap() % 8 {
        0 => Ok(()),
        _ => Err(ErrorKind::ServerFault.into()),
    });
    let patient = TargetOptions {
        backoff: Duration::from_secs(50),
        backoff_max: Duration::from_secs(500),
        ..options()
    };
    let runtime = start(&target, patient).await;
    // Something good now and then, or a receiver that fails everything would be throttled.
    admit(&runtime, (0..6000).map(|number| event(number, None))).await;
    pass(Duration::from_secs(20)).await;
    assert_eq!(target.delivered().len(), 750, "{:?}", only(&runtime));
    target.answer(|_| Ok(()));
    settled(&runtime).await;
    assert_eq!(only(&runtime).delivered, 6000);
}

#[tokio::test(start_paused = true)]
async fn closed_pids_do_not_fill_the_window() {
    let target = bad_below(4200, ErrorKind::Malformed);
    let patient = RuntimeOptions { seed: Some(7), reject_hold: None, ..RuntimeOptions::default() };
    let stopping = TargetOptions { on_reject: OnReject::StopPid, ..options() };
    let specs = vec![spec("a", &target, stopping)];
    let runtime = Checked::start(Store::memory(), specs, patient).await.unwrap();
    for round in 0..2 {
        let of_pid = |pid: u64| event(round * 10_000 + pid, Some(&format!("pid-{pid}")));
        admit(&runtime, (0..4200).map(of_pid)).await;
    }
    send(&runtime, (50_000..50_020).map(|number| (number, "good"))).await;
    pass(Duration::from_secs(600)).await;
    let status = only(&runtime);
    assert_eq!((status.failed, status.waiting, status.delivered), (4200, 4200, 20));
    assert!(target.delivered().iter().all(|id| id.starts_with("500")));
}

#[tokio::test(start_paused = true)]
async fn an_eviction_does_not_reopen_a_closed_pid() {
    let target = bad_below(1, ErrorKind::Malformed);
    let stopping = TargetOptions { on_reject: OnReject::StopPid, ..overflowing(3) };
    let runtime = start(&target, stopping).await;
    send(&runtime, [(0, "p"), (1, "p"), (2, "p")]).await;
    pass(Duration::from_secs(1)).await;
    assert_eq!(only(&runtime).failed, 1);
    send(&runtime, [(3, "p"), (4, "p"), (5, "p")]).await;
    pass(Duration::from_secs(10)).await;
    assert_eq!(target.delivered(), Vec::<String>::new(), "they follow a rejected event");
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_overflows_keeps_its_bound_also_behind_a_closed_pid() {
    let target = bad_below(1, ErrorKind::Malformed);
    let stopping = TargetOptions { on_reject: OnReject::StopPid, ..overflowing(3) };
    let runtime = start(&target, stopping).await;
    send(&runtime, [(0, "p"), (1, "p"), (2, "p")]).await;
    pass(Duration::from_secs(1)).await;
    for number in 3..100 {
        send(&runtime, [(number, "p")]).await;
    }
    pass(Duration::from_secs(10)).await;
    let status = only(&runtime);
    assert!(status.waiting <= 4, "{status:?}");
    assert_eq!(target.delivered(), Vec::<String>::new());
}

/// Flips a bit of some text in a file of a directory.
fn damage(dir: &Path, text: &[u8]) {
    for file in std::fs::read_dir(dir).unwrap() {
        let path = file.unwrap().path();
        let content = std::fs::read(&path).unwrap();
        if let Some(at) = content.windows(text.len()).position(|window| window == text) {
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            return file.write_all_at(&[content[at] ^ 1], at as u64).unwrap();
        }
    }
    panic!("not in {}", dir.display());
}

// On a real disk, whose threads the paused clock would not wait for.
#[tokio::test]
async fn an_entry_that_becomes_unreadable_fails_and_its_successors_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), JournalOptions::default()).await.unwrap();
    let target = Scripted::new(|_| Err(ErrorKind::ServerFault.into()));
    let slow = TargetOptions { backoff: Duration::from_millis(700), ..options() };
    let runtime = start_on(store, vec![spec("a", &target, slow)]).await.unwrap();
    let marked = |number: u64| {
        let builder = Event::builder("t", "/test").id(number.to_string()).pid("p");
        builder.body("text/plain", format!("MARKER-{number}-MARKER")).build().unwrap()
    };
    admit(&runtime, (0..3).map(marked)).await;
    while target.seen().is_empty() {
        pass(Duration::from_millis(5)).await;
    }
    // The first one waits; those behind it are read again when it is gone.
    pass(Duration::from_millis(20)).await;
    damage(&dir.path().join("log"), b"MARKER-1-MARKER");
    target.answer(|_| Ok(()));
    let begun = tokio::time::Instant::now();
    while target.delivered().len() < 2 && begun.elapsed() < Duration::from_secs(5) {
        pass(Duration::from_millis(10)).await;
    }
    assert_eq!(target.delivered(), ["0", "2"]);
    runtime.shutdown(Duration::from_secs(1)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_may_be_given_all_the_time_there_is() {
    let target = Scripted::good().latency(Duration::from_secs(20));
    let runtime = start(&target, options()).await;
    send(&runtime, [(1, "p")]).await;
    pass(Duration::from_secs(1)).await;
    let report = runtime.shutdown(Duration::MAX).await.unwrap();
    assert_eq!((target.delivered().len(), report.waiting.len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_ends_at_the_deadline_of_a_shutdown_is_booked() {
    // Which of two that are due together comes first is left to chance.
    for _ in 0..50 {
        let target = Scripted::good().latency(Duration::from_millis(100));
        let runtime = start(&target, options()).await;
        send(&runtime, [(1, "p"), (2, "q"), (3, "r"), (4, "s")]).await;
        while only(&runtime).in_flight < 4 {
            tokio::task::yield_now().await;
        }
        let report = runtime.shutdown(Duration::from_millis(100)).await.unwrap();
        let waiting = report.waiting.first().map_or(0, |(_, waiting)| *waiting);
        assert_eq!(target.delivered().len() as u64 + waiting, 4);
    }
}
