//! What an operator was told stays true, and each option of a target does what it says.

use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use outhaul_runtime::event::{Event, Uid};
use outhaul_runtime::store::{Engine, Store, StoreOptions};
use outhaul_runtime::target::{BatchOrder, DeliveryError, ErrorKind, TargetOptions};
use outhaul_runtime::{
    ChangeError, EntryAnswer, EntryQuery, EntryState, Health, Runtime, State, TargetStatus,
};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::gate::{Ask, Gate, Journal, gate_spec, notes};
use crate::promises::copy_back;
use crate::support::{
    Scripted, admit, check_sums, entries, event, name, only, options, pass, send, settled, spec, start,
    start_on,
};

fn uid(sequence: u64) -> Uid {
    Uid { queue: name("a"), sequence }
}

fn one_at_a_time() -> TargetOptions {
    TargetOptions { in_flight: NonZeroUsize::new(1).unwrap(), ..options() }
}

async fn open(dir: &std::path::Path, engine: Engine) -> Store {
    Store::open(dir, StoreOptions { engine, ..StoreOptions::default() }).await.unwrap()
}

fn of(runtime: &Runtime, target: &str) -> TargetStatus {
    check_sums(runtime);
    runtime.targets().into_iter().find(|status| status.name.as_str() == target).unwrap()
}

async fn uids(runtime: &Runtime) -> Vec<u64> {
    let page = runtime.entries(&name("a"), &EntryQuery::default()).await.unwrap();
    page.entries.iter().map(|entry| entry.uid.sequence).collect()
}

// On a real disk, whose threads the paused clock would not wait for.
#[tokio::test]
async fn a_discard_that_was_told_to_be_pending_is_done_by_the_next_start() {
    for (engine, crash) in
        [(Engine::Journal, true), (Engine::Journal, false), (Engine::Spool, true), (Engine::Spool, false)]
    {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        let journal = Journal::default();
        let gate = Arc::new(Gate::new("first", &journal).shut());
        let runtime =
            start_on(open(&path, engine).await, vec![gate_spec("a", &gate, one_at_a_time())]).await.unwrap();
        admit(&runtime, [event(1, Some("p")), event(2, Some("p"))]).await;
        gate.one_has_begun().await;
        let asked = uids(&runtime).await[0];
        let (asking, mut tasks) = (runtime.clone(), JoinSet::new());
        tasks.spawn(async move { asking.discard(&uid(asked)).await });
        tokio::task::yield_now().await;
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(6)).await;
        tokio::time::resume();
        assert_eq!(tasks.join_next().await.unwrap().unwrap().unwrap(), EntryAnswer::Pending);
        if crash {
            copy_back(&path);
        }
        // The attempt has no verdict when its time is over.
        runtime.shutdown(Duration::from_millis(10)).await.unwrap();
        drop(runtime);

        let good = Arc::new(Gate::new("second", &journal));
        let runtime =
            start_on(open(&path, engine).await, vec![gate_spec("a", &good, one_at_a_time())]).await.unwrap();
        settled(&runtime).await;
        assert_eq!(notes(&journal), ["first: closed", "second: delivered 2"], "{engine} {crash}");
        assert_eq!((only(&runtime).recovered, only(&runtime).discarded), (2, 1));
        assert_eq!(runtime.discard(&uid(asked)).await.unwrap_err().reason(), "not_found");
        runtime.shutdown(Duration::from_secs(5)).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_pending_discard_outlives_a_swap_and_a_worker_that_panics() {
    let journal = Journal::default();
    let old = Arc::new(Gate::new("old", &journal).shut());
    let runtime = start_on(Store::memory(), vec![gate_spec("a", &old, one_at_a_time())]).await.unwrap();
    send(&runtime, [(1, "p"), (2, "p")]).await;
    old.one_has_begun().await;
    assert_eq!(runtime.discard(&uid(1)).await.unwrap(), EntryAnswer::Pending);
    old.answer(Some(ErrorKind::ServerFault));
    let new = Arc::new(Gate::new("new", &journal));
    let (replacing, mut tasks) = (runtime.clone(), JoinSet::new());
    let next = gate_spec("a", &new, one_at_a_time());
    tasks.spawn(async move { replacing.replace(next).await });
    pass(Duration::from_secs(1)).await;
    old.let_through(1);
    tasks.join_next().await.unwrap().unwrap().unwrap();
    settled(&runtime).await;
    assert_eq!(notes(&journal), ["old: failed 1", "old: closed", "new: delivered 2"]);
    assert_eq!(only(&runtime).discarded, 1);
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn admissions_and_verbs_during_a_swap_reach_the_successor() {
    let journal = Journal::default();
    let old = Arc::new(Gate::new("old", &journal).shut());
    let runtime = start_on(Store::memory(), vec![gate_spec("a", &old, one_at_a_time())]).await.unwrap();
    send(&runtime, [(1, "p"), (2, "p"), (3, "q"), (4, "r")]).await;
    old.one_has_begun().await;
    let new = Arc::new(Gate::new("new", &journal).shut());
    let (mut swap, mut verbs) = (JoinSet::new(), JoinSet::new());
    let (replacing, next) = (runtime.clone(), gate_spec("a", &new, one_at_a_time()));
    swap.spawn(async move { replacing.replace(next).await });
    pass(Duration::from_secs(1)).await;
    // An admission waits for nothing of it, nor does a look.
    let begun = Instant::now();
    send(&runtime, [(5, "p")]).await;
    assert_eq!(uids(&runtime).await, [1, 2, 3, 4, 5]);
    assert_eq!(begun.elapsed(), Duration::ZERO);
    let asking = runtime.clone();
    verbs.spawn(async move { asking.discard(&uid(3)).await });
    let asking = runtime.clone();
    verbs.spawn(async move { asking.retry(&uid(4)).await });
    let asking = runtime.clone();
    verbs.spawn(async move { asking.requeue(&uid(2)).await });
    pass(Duration::from_secs(1)).await;
    assert!(verbs.try_join_next().is_none(), "their worker is on its way");
    old.let_through(1);
    swap.join_next().await.unwrap().unwrap().unwrap();
    new.one_has_begun().await;
    pass(Duration::from_secs(1)).await;
    new.let_through(100);
    let answers = verbs.join_all().await;
    let count = |wanted: EntryAnswer| answers.iter().filter(|got| got.as_ref().unwrap() == &wanted).count();
    // Which of them is with the successor by then is open; but no verb is lost.
    assert_eq!(count(EntryAnswer::Discarded) + count(EntryAnswer::Delivered), 1, "{answers:?}");
    assert_eq!(count(EntryAnswer::Cleared) + count(EntryAnswer::InFlight), 2, "{answers:?}");
    settled(&runtime).await;
    let got = notes(&journal);
    assert!(got.contains(&"old: delivered 1".to_owned()), "{got:?}");
    let at = |note: &str| got.iter().position(|got| got == note).unwrap_or_else(|| panic!("{note}: {got:?}"));
    assert!(at("new: delivered 2") < at("new: delivered 5"));
    assert_eq!(only(&runtime).delivered + only(&runtime).discarded, 5);
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_exclusive_target_whose_successor_is_refused_comes_back_with_its_queue_and_counters() {
    let journal = Journal::default();
    let old = Arc::new(Gate::new("old", &journal).exclusive());
    let mut first = gate_spec("a", &old, TargetOptions { backoff: Duration::from_secs(100), ..slow() });
    let again = Arc::clone(&journal);
    first.remake = Some(Arc::new(move || Ok(Arc::new(Gate::new("again", &again).exclusive()) as _)));
    let runtime = start_on(Store::memory(), vec![first]).await.unwrap();
    send(&runtime, [(1, "p")]).await;
    settled(&runtime).await;
    old.answer(Some(ErrorKind::ServerFault));
    send(&runtime, [(2, "p"), (3, "p")]).await;
    pass(Duration::from_secs(1)).await;
    let before = of(&runtime, "a");
    assert_eq!((before.delivered, before.retried, before.waiting), (1, 1, 2));
    let bad = Gate::new("bad", &journal).exclusive().asked(Ask::Fails(ErrorKind::Configuration));
    let refused = runtime.replace(gate_spec("a", &Arc::new(bad), options())).await.unwrap_err();
    assert!(matches!(refused, ChangeError::Refused { .. }), "{refused:?}");
    let after = of(&runtime, "a");
    assert_eq!((after.delivered, after.retried, after.waiting), (1, 1, 2));
    assert!(after.generation > before.generation);
    // New events are for it, and its entry still waits for its time.
    send(&runtime, [(4, "q")]).await;
    pass(Duration::from_secs(1)).await;
    let page = runtime.entries(&name("a"), &EntryQuery::default()).await.unwrap();
    let shown: Vec<_> = page.entries.iter().map(|e| (e.uid.sequence, e.state, e.attempts)).collect();
    assert_eq!(shown, [(2, EntryState::Retrying, 1), (3, EntryState::Waiting, 0)]);
    settled(&runtime).await;
    let got = notes(&journal);
    assert_eq!(
        got[got.len() - 3..],
        ["again: delivered 4", "again: delivered 2", "again: delivered 3"],
        "{got:?}"
    );
    let last = of(&runtime, "a");
    assert_eq!((last.delivered, last.retried, last.admitted), (4, 1, 4));
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}

fn slow() -> TargetOptions {
    TargetOptions { backoff_max: Duration::from_secs(1_000), ..options() }
}

// On a real disk, whose threads the paused clock would not wait for.
#[tokio::test]
async fn a_requeue_says_how_many_later_events_of_the_pid_were_delivered_over_a_restart_too() {
    for engine in [Engine::Journal, Engine::Spool] {
        let dir = tempfile::tempdir().unwrap();
        let target = Scripted::new(|attempt| match attempt.event.id() {
            "1" | "5" => Err(ErrorKind::ContentRefused.into()),
            _ => Ok(()),
        });
        let runtime =
            start_on(open(dir.path(), engine).await, vec![spec("a", &target, options())]).await.unwrap();
        send(&runtime, [(1, "p"), (2, "p"), (3, "q"), (4, "p"), (5, "p"), (6, "p")]).await;
        settled(&runtime).await;
        runtime.shutdown(Duration::from_secs(5)).await.unwrap();
        drop(runtime);

        let runtime =
            start_on(open(dir.path(), engine).await, vec![spec("a", &target, options())]).await.unwrap();
        send(&runtime, [(7, "p"), (8, "q")]).await;
        settled(&runtime).await;
        target.answer(|_| Ok(()));
        let failed = runtime.failed().list(&name("a"), 0, 10).await.unwrap();
        let of = |id: &str| failed.iter().find(|entry| entry.event.id() == id).unwrap().uid.clone();
        for (id, passed) in [("1", 4), ("5", 2)] {
            let answer = runtime.requeue(&of(id)).await.unwrap();
            let EntryAnswer::Requeued { delivered_later, again, .. } = answer else { panic!("{answer:?}") };
            // The first one that was requeued is a later one for the second.
            let range = if id == "5" { passed..=passed + 1 } else { passed..=passed };
            assert!(
                range.contains(&delivered_later.unwrap()) && !again,
                "{engine}: {id}: {delivered_later:?}"
            );
            let answer = runtime.requeue(&of(id)).await.unwrap();
            assert!(
                matches!(answer, EntryAnswer::Requeued { delivered_later: None, again: true, .. }),
                "{answer:?}"
            );
        }
        settled(&runtime).await;
        runtime.shutdown(Duration::from_secs(5)).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_fills_up_is_warned_of_until_it_has_room_again() {
    let target = Scripted::new(|_| Err(ErrorKind::ConnectionRefused.into()));
    let runtime = start(&target, TargetOptions { queue_entries: entries(20), ..options() }).await;
    let mut sent = 0;
    for (count, percent, warning) in [(9, 45, 0), (10, 50, 50), (15, 75, 50), (16, 80, 80), (19, 95, 95)] {
        admit(&runtime, (sent..count).map(|number| event(number, None))).await;
        sent = count;
        pass(Duration::from_millis(10)).await;
        let status = only(&runtime);
        assert_eq!((status.filled_percent, status.filled_warning), (percent, warning));
    }
    // It is no fact of the worker: whoever replaces it knows.
    runtime
        .replace(spec("a", &target, TargetOptions { queue_entries: entries(20), ..slow() }))
        .await
        .unwrap();
    assert_eq!(only(&runtime).filled_warning, 95);
    let uids = uids(&runtime).await;
    for (left, warning) in [(19_usize, 95), (18, 80), (16, 80), (15, 50), (9, 0)] {
        for sequence in &uids[left.min(uids.len())..] {
            // Those behind are gone already.
            runtime.discard(&uid(*sequence)).await.map(drop).unwrap_or_default();
        }
        pass(Duration::from_millis(10)).await;
        assert_eq!((only(&runtime).waiting, only(&runtime).filled_warning), (left as u64, warning));
    }
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_target_that_is_not_enabled_queues_and_nobody_waits_for_it() {
    let journal = Journal::default();
    let off = Arc::new(Gate::new("off", &journal).asked(Ask::Hangs));
    let disabled = TargetOptions { enabled: false, ..options() };
    let on = Scripted::good();
    let targets = vec![gate_spec("off", &off, disabled.clone()), spec("on", &on, options())];
    let runtime = start_on(Store::memory(), targets).await.unwrap();
    send(&runtime, [(1, "p"), (2, "q")]).await;
    settled(&runtime).await;
    let begun = Instant::now();
    let health = runtime.health().await;
    assert_eq!(begun.elapsed(), Duration::ZERO);
    let shown: Vec<_> = health.iter().map(|s| (s.name.as_str(), s.state, s.health, s.reason)).collect();
    assert_eq!(shown[0], ("off", State::Paused, Health::Disabled, "disabled"));
    assert_eq!(shown[1].2, Health::Online);
    assert!(health[0].probe.is_none());
    assert_eq!((of(&runtime, "off").waiting, of(&runtime, "on").delivered), (2, 2));
    // Enabled by another configuration, it delivers what it kept.
    let enabled = Arc::new(Gate::new("enabled", &journal));
    runtime.replace(gate_spec("off", &enabled, options())).await.unwrap();
    settled(&runtime).await;
    assert_eq!(of(&runtime, "off").delivered, 2);
    // And disabled again while it is in use.
    let again = Arc::new(Gate::new("again", &journal));
    runtime.replace(gate_spec("off", &again, disabled)).await.unwrap();
    send(&runtime, [(3, "p")]).await;
    settled(&runtime).await;
    pass(Duration::from_secs(600)).await;
    assert_eq!((of(&runtime, "off").waiting, of(&runtime, "off").health), (1, Health::Disabled));
    assert!(!notes(&journal).iter().any(|note| note.starts_with("again: delivered")));
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}

fn sized(number: u64, bytes: usize) -> Event {
    let body = format!("\"{}\"", "x".repeat(bytes));
    Event::builder("t", "/test").id(number.to_string()).json(body).pid("p").build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_batch_has_no_more_bytes_than_it_may_and_a_larger_event_goes_alone() {
    let target = Scripted::good().batches(100, BatchOrder::Prefix);
    let size = sized(10, 1_000).size() as u64 + 64;
    let bytes = TargetOptions { batch_bytes: NonZeroU64::new(3 * size), ..one_at_a_time() };
    let runtime = start(&target, bytes).await;
    runtime.pause(&name("a")).await.unwrap();
    admit(&runtime, (10..19).map(|number| sized(number, if number == 14 { 10_000 } else { 1_000 }))).await;
    runtime.resume(&name("a")).await.unwrap();
    settled(&runtime).await;
    let batches: Vec<_> = target.seen().iter().map(|seen| (seen.id.clone(), seen.batch)).collect();
    let large = batches.iter().find(|(id, _)| id == "14").unwrap();
    assert_eq!(large.1, 1, "{batches:?}");
    assert!(batches.iter().all(|(_, batch)| *batch <= 3), "{batches:?}");
    assert!(batches.iter().filter(|(_, batch)| *batch == 3).count() >= 3, "{batches:?}");
    target.check_order();
}

#[tokio::test(start_paused = true)]
async fn a_rate_of_bytes_is_kept_and_reached() {
    let target = Scripted::good();
    let size = sized(10, 1_000).size() as u64 + 64;
    let slow = TargetOptions { rate_bytes: NonZeroU64::new(50 * size), ..options() };
    let runtime = start(&target, slow).await;
    admit(&runtime, (1_000..1_500).map(|number| sized(number, 1_000))).await;
    pass(Duration::from_secs(4)).await;
    let sent = target.seen().len();
    assert!((190..=206).contains(&sent), "{sent} of 200 in 4 s");
    settled(&runtime).await;
}

#[tokio::test(start_paused = true)]
async fn a_receiver_that_wants_to_be_left_alone_for_very_long_is_asked_when_the_longest_pause_is_over() {
    for asked in [Duration::from_secs(36_000), Duration::from_secs(u64::MAX)] {
        let begun = Instant::now();
        let target = Scripted::new(move |_| match begun.elapsed() < Duration::from_secs(5) {
            true => Err(DeliveryError::new(ErrorKind::Throttled).with_retry_after(asked)),
            false => Ok(()),
        });
        let patient = TargetOptions { retry_after_max: Duration::from_secs(40), ..one_at_a_time() };
        let runtime = start(&target, patient).await;
        send(&runtime, [(1, "p"), (2, "q")]).await;
        pass(Duration::from_secs(39)).await;
        assert_eq!((target.seen().len(), only(&runtime).state), (1, State::Throttled));
        pass(Duration::from_secs(3)).await;
        assert_eq!(target.delivered().len(), 2);
    }
}

// On a real disk, whose threads the paused clock would not wait for.
#[tokio::test]
async fn a_shutdown_refuses_finishes_settles_flushes_and_closes_in_this_order() {
    for engine in [Engine::Journal, Engine::Spool] {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::default();
        let (a, b) = (Arc::new(Gate::new("a", &journal).shut()), Arc::new(Gate::new("b", &journal).shut()));
        let both = vec![gate_spec("a", &a, one_at_a_time()), gate_spec("b", &b, one_at_a_time())];
        let runtime = start_on(open(dir.path(), engine).await, both).await.unwrap();
        admit(&runtime, (1..=3).map(|number| event(number, Some("p")))).await;
        a.one_has_begun().await;
        b.one_has_begun().await;
        let (stopping, mut tasks) = (runtime.clone(), JoinSet::new());
        tasks.spawn(async move { stopping.shutdown(Duration::from_secs(60)).await });
        while !runtime.is_stopping() {
            tokio::task::yield_now().await;
        }
        // Nothing new is taken, and nobody is closed while an attempt awaits its acknowledgement.
        assert_eq!(runtime.admit(vec![event(4, None).into()]).unwrap_err().reason(), "stopping");
        b.let_through(1);
        pass(Duration::from_millis(50)).await;
        assert_eq!(notes(&journal), ["b: delivered 1"]);
        assert!(tasks.try_join_next().is_none());
        a.let_through(1);
        let report = tasks.join_next().await.unwrap().unwrap().unwrap();
        assert_eq!(report.waiting, [(name("a"), 2), (name("b"), 2)]);
        let mut got = notes(&journal);
        got[2..].sort();
        assert_eq!(got, ["b: delivered 1", "a: delivered 1", "a: closed", "b: closed"]);
        drop(runtime);

        // Each of them is settled on disk: nothing is repeated.
        let (a, b) = (Arc::new(Gate::new("a", &journal)), Arc::new(Gate::new("b", &journal)));
        let both = vec![gate_spec("a", &a, one_at_a_time()), gate_spec("b", &b, one_at_a_time())];
        let store = open(dir.path(), engine).await;
        assert!(!store.log().ended_unclean());
        let runtime = start_on(store, both).await.unwrap();
        settled(&runtime).await;
        let mut got = notes(&journal).split_off(4);
        got.sort();
        assert_eq!(got, ["a: delivered 2", "a: delivered 3", "b: delivered 2", "b: delivered 3"]);
        runtime.shutdown(Duration::from_secs(5)).await.unwrap();
    }
}
