//! Targets that come, change and go while the others go on.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use outhaul_runtime::store::{Engine, Store, StoreOptions};
use outhaul_runtime::target::{ErrorKind, TargetOptions};
use outhaul_runtime::{
    AdmitError, Change, ChangeError, Health, Leftover, Removed, Repoint, Runtime, State, TargetStatus,
};

use crate::gate::{Ask, Gate, Journal, gate_spec, notes};
use crate::support::{
    Checked, Scripted, admit, check_sums, event, name, options, pass, send, settled, spec, start_on,
};

fn of(runtime: &Runtime, target: &str) -> TargetStatus {
    check_sums(runtime);
    let found = runtime.targets().into_iter().find(|status| status.name.as_str() == target);
    found.unwrap_or_else(|| panic!("no {target}"))
}

async fn none() -> Checked {
    start_on(Store::memory(), Vec::new()).await.unwrap()
}

fn one_at_a_time() -> TargetOptions {
    TargetOptions { in_flight: NonZeroUsize::new(1).unwrap(), ..options() }
}

#[tokio::test(start_paused = true)]
async fn targets_come_and_go_and_the_others_do_not_notice() {
    let (a, b) = (Scripted::good(), Scripted::good());
    let runtime = start_on(Store::memory(), vec![spec("a", &a, options())]).await.unwrap();
    send(&runtime, [(1, "p")]).await;
    assert_eq!(runtime.replace(spec("b", &b, options())).await.unwrap(), Change::Added);
    send(&runtime, [(2, "p")]).await;
    settled(&runtime).await;
    let generation = of(&runtime, "a").generation;
    assert_eq!(runtime.remove(&name("b"), Leftover::Keep).await.unwrap(), Removed::Kept { waiting: 0 });
    send(&runtime, [(3, "p")]).await;
    settled(&runtime).await;
    assert_eq!((a.delivered().len(), b.delivered(), b.closed()), (3, vec!["2".to_owned()], 1));
    assert_eq!((of(&runtime, "a").generation, a.closed()), (generation, 0));
    let unknown = runtime.remove(&name("b"), Leftover::Keep).await.unwrap_err();
    assert_eq!(unknown.reason(), "not_found");
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_unchanged_target_keeps_its_counters_lanes_and_backoff() {
    let bad = Scripted::new(|attempt| match attempt.event.pid() {
        Some("bad") => Err(ErrorKind::ServerFault.into()),
        _ => Ok(()),
    });
    let runtime = none().await;
    let slow =
        TargetOptions { backoff: Duration::from_secs(60), backoff_max: Duration::from_secs(60), ..options() };
    let make = || {
        let mut spec = spec("a", &bad, slow.clone());
        spec.fingerprint = Some(7);
        spec
    };
    runtime.reload(vec![make()]).await.unwrap();
    send(&runtime, [(1, "bad"), (2, "good")]).await;
    pass(Duration::from_secs(1)).await;
    let before = of(&runtime, "a");
    for _ in 0..20 {
        // Another value of the same configuration.
        let mut again = make();
        again.target = Arc::new(bad.clone());
        let report = runtime.reload(vec![again]).await.unwrap();
        assert_eq!(report.targets[0].1.clone().unwrap(), Change::Unchanged);
    }
    let after = of(&runtime, "a");
    assert_eq!((after.generation, after.retried, after.delivered), (before.generation, 1, 1));
    assert_eq!((bad.attempts("1").len(), bad.closed()), (1, 0));
    // Something else than before: replaced, with its attempts and schedule.
    let mut other = make();
    other.fingerprint = Some(8);
    other.target = Arc::new(bad.clone());
    let report = runtime.reload(vec![other]).await.unwrap();
    assert_eq!(report.targets[0].1.clone().unwrap(), Change::Replaced);
    pass(Duration::from_millis(100)).await;
    let replaced = of(&runtime, "a");
    assert!(replaced.generation > after.generation);
    assert_eq!((replaced.retried, bad.attempts("1").len(), bad.closed()), (1, 1, 1));
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_awaits_its_acknowledgement_is_finished_before_a_target_is_replaced_and_closed_last() {
    let journal = Journal::default();
    let old = Arc::new(Gate::new("old", &journal).shut());
    let new = Arc::new(Gate::new("new", &journal));
    let runtime = start_on(Store::memory(), vec![gate_spec("a", &old, one_at_a_time())]).await.unwrap();
    send(&runtime, [(1, "p"), (2, "p"), (3, "p")]).await;
    old.one_has_begun().await;
    let replacing = runtime.clone();
    let mut tasks = tokio::task::JoinSet::new();
    let next = gate_spec("a", &new, one_at_a_time());
    tasks.spawn(async move { replacing.replace(next).await });
    // It waits for the attempt, not for the backlog.
    pass(Duration::from_secs(20)).await;
    assert!(notes(&journal).is_empty());
    old.let_through(1);
    assert_eq!(tasks.join_next().await.unwrap().unwrap().unwrap(), Change::Replaced);
    settled(&runtime).await;
    let mut got = notes(&journal);
    let closed = got.iter().position(|note| note == "old: closed").unwrap();
    assert!(closed > 0);
    got.remove(closed);
    assert_eq!(got, ["old: delivered 1", "new: delivered 2", "new: delivered 3"]);
    check_sums(&runtime);
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_exclusive_target_is_closed_before_its_successor_is_asked_anything() {
    let journal = Journal::default();
    let old = Arc::new(Gate::new("old", &journal).exclusive());
    let new = Arc::new(Gate::new("new", &journal).exclusive());
    let runtime = start_on(Store::memory(), vec![gate_spec("a", &old, options())]).await.unwrap();
    send(&runtime, [(1, "p")]).await;
    settled(&runtime).await;
    runtime.replace(gate_spec("a", &new, options())).await.unwrap();
    send(&runtime, [(2, "p")]).await;
    settled(&runtime).await;
    let all = journal.lock().unwrap().clone();
    let at = |what: &str| all.iter().position(|note| note == what).unwrap();
    assert!(at("old: closed") < at("new: probed"), "{all:?}");
    assert!(at("new: probed") < at("new: delivered 2"), "{all:?}");
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_successor_that_is_configured_wrong_leaves_the_old_one_or_has_it_opened_again() {
    for (exclusive, ask) in [
        (false, Ask::Fails(ErrorKind::Configuration)),
        (false, Ask::Panics),
        (true, Ask::Fails(ErrorKind::PolicyDenied)),
        (true, Ask::Panics),
    ] {
        let journal = Journal::default();
        let make = |label| {
            let gate = Gate::new(label, &journal);
            if exclusive { gate.exclusive() } else { gate }
        };
        let old = Arc::new(make("old"));
        let mut first = gate_spec("a", &old, options());
        let again = Arc::clone(&journal);
        first.remake = Some(Arc::new(move || Ok(Arc::new(Gate::new("again", &again).exclusive()) as _)));
        let runtime = start_on(Store::memory(), vec![first]).await.unwrap();
        let bad = Arc::new(make("bad").asked(ask));
        let refused = runtime.replace(gate_spec("a", &bad, options())).await.unwrap_err();
        assert!(matches!(refused, ChangeError::Refused { .. }), "{refused:?}");
        send(&runtime, [(1, "p")]).await;
        settled(&runtime).await;
        let who = if exclusive { "again: delivered 1" } else { "old: delivered 1" };
        assert!(notes(&journal).iter().any(|note| note == who), "{:?}", notes(&journal));
        assert_eq!(notes(&journal).iter().any(|note| note == "old: closed"), exclusive);
        runtime.shutdown(Duration::from_secs(5)).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_target_is_degraded_queues_and_changes_nobody_else() {
    let (a, b) =
        (Scripted::good(), Scripted::new(|_| Err(ErrorKind::ConnectionRefused.into())).unreachable());
    let runtime = start_on(Store::memory(), vec![spec("a", &a, options())]).await.unwrap();
    let before = of(&runtime, "a").generation;
    let both = || vec![spec("a", &a, options()), spec("b", &b, options())];
    let mut targets = both();
    targets[0].target = Arc::clone(&targets[0].target);
    let report = runtime.reload(targets).await.unwrap();
    assert!(report.is_complete(), "{report:?}");
    pass(Duration::from_secs(1)).await;
    assert_eq!(of(&runtime, "b").health, Health::Degraded);
    // Nothing is built anew by itself, however long it takes.
    let generation = of(&runtime, "b").generation;
    pass(Duration::from_secs(600)).await;
    assert_eq!((of(&runtime, "b").generation, b.closed()), (generation, 0));
    send(&runtime, [(1, "p")]).await;
    pass(Duration::from_secs(1)).await;
    assert_eq!((of(&runtime, "a").delivered, of(&runtime, "b").waiting), (1, 1));
    assert!(of(&runtime, "a").generation > before, "the values differ, and there is no fingerprint");
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_newer_reload_gives_the_preparations_of_an_older_one_up() {
    let journal = Journal::default();
    let old = Arc::new(Gate::new("old", &journal));
    let hangs = Arc::new(Gate::new("hangs", &journal).asked(Ask::Hangs));
    let new = Arc::new(Gate::new("new", &journal));
    let runtime = start_on(Store::memory(), vec![gate_spec("a", &old, options())]).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    let (first, next) = (runtime.clone(), gate_spec("a", &hangs, options()));
    tasks.spawn(async move { first.reload(vec![next]).await });
    while hangs.probing.load(std::sync::atomic::Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    let second = runtime.reload(vec![gate_spec("a", &new, options())]).await.unwrap();
    assert_eq!(second.targets[0].1.clone().unwrap(), Change::Replaced);
    let first = tasks.join_next().await.unwrap().unwrap().unwrap();
    let Err(ChangeError::Superseded { generation, by, .. }) = first.targets[0].1 else {
        panic!("{first:?}");
    };
    assert!(generation < by);
    // A shutdown does the same.
    let (third, next) = (runtime.clone(), gate_spec("a", &hangs, options()));
    tasks.spawn(async move { third.reload(vec![next]).await });
    while hangs.probing.load(std::sync::atomic::Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
    let third = tasks.join_next().await.unwrap().unwrap().unwrap();
    assert_eq!(third.targets[0].1.clone().unwrap_err().reason(), "stopping");
    let gone = runtime.replace(gate_spec("a", &new, options())).await.unwrap_err();
    assert_eq!(gone.reason(), "stopping");
}

#[tokio::test(start_paused = true)]
async fn a_repoint_is_refused_without_a_word_and_says_how_many() {
    let dead = Scripted::new(|_| Err(ErrorKind::ConnectionRefused.into()));
    let runtime = start_on(Store::memory(), vec![spec("a", &dead, options())]).await.unwrap();
    send(&runtime, [(1, "p"), (2, "q"), (3, "p")]).await;
    let good = Scripted::good();
    let moved = |repoint| {
        let mut moved = spec("a", &good, options());
        moved.destination = "test:elsewhere".to_owned();
        moved.repoint = repoint;
        moved
    };
    let refused = runtime.reload(vec![moved(None), spec("b", &good, options())]).await.unwrap_err();
    let ChangeError::Repoint { from, to, waiting, .. } = &refused else { panic!("{refused:?}") };
    assert_eq!((from.as_str(), to.as_str(), *waiting), ("test:a", "test:elsewhere", 3));
    assert!(refused.to_string().contains("3 would go"), "{refused}");
    assert_eq!(runtime.targets().len(), 1, "nothing of it was done");
    // What waits stays with its destination, in a queue of its own.
    runtime.replace(moved(Some(Repoint::Orphan))).await.unwrap();
    send(&runtime, [(4, "p")]).await;
    settled(&runtime).await;
    assert_eq!(good.delivered(), ["4"]);
    let orphan = of(&runtime, "a.orphan-1");
    assert_eq!((orphan.state, orphan.waiting, orphan.destination.as_str()), (State::Orphan, 3, "test:a"));
    // It can be attached again, and is delivered in order.
    let mut back = spec("a.orphan-1", &good, options());
    back.destination = "test:a".to_owned();
    runtime.replace(back).await.unwrap();
    settled(&runtime).await;
    assert_eq!(good.delivered().len(), 4);
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_repoint_that_keeps_sends_what_waits_to_the_new_destination() {
    let dead = Scripted::new(|_| Err(ErrorKind::ConnectionRefused.into()));
    let runtime = start_on(Store::memory(), vec![spec("a", &dead, options())]).await.unwrap();
    send(&runtime, [(1, "p"), (2, "p")]).await;
    let good = Scripted::good();
    let mut moved = spec("a", &good, options());
    (moved.destination, moved.repoint) = ("test:elsewhere".to_owned(), Some(Repoint::Keep));
    runtime.replace(moved).await.unwrap();
    settled(&runtime).await;
    assert_eq!(good.delivered(), ["1", "2"]);
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test]
async fn an_orphaned_backlog_and_a_pause_survive_a_restart() {
    for engine in [Engine::Journal, Engine::Spool] {
        orphan_and_pause(engine).await;
    }
}

async fn orphan_and_pause(engine: Engine) {
    let dir = tempfile::tempdir().unwrap();
    let open = || Store::open(dir.path(), StoreOptions { engine, ..StoreOptions::default() });
    let dead = Scripted::new(|_| Err(ErrorKind::ConnectionRefused.into()));
    let good = Scripted::good();
    let moved = |target: &Scripted, repoint| {
        let mut moved = spec("a", target, options());
        (moved.destination, moved.repoint) = ("test:elsewhere".to_owned(), repoint);
        moved
    };
    let runtime = start_on(open().await.unwrap(), vec![spec("a", &dead, options())]).await.unwrap();
    send(&runtime, [(1, "p"), (2, "p")]).await;
    runtime.replace(moved(&good, Some(Repoint::Orphan))).await.unwrap();
    runtime.pause(&name("a")).await.unwrap();
    send(&runtime, [(3, "p")]).await;
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
    drop(runtime);

    let runtime = start_on(open().await.unwrap(), vec![moved(&good, None)]).await.unwrap();
    assert_eq!((of(&runtime, "a").state, of(&runtime, "a").waiting), (State::Paused, 1));
    assert_eq!((of(&runtime, "a").health, of(&runtime, "a").reason), (Health::Disabled, "disabled"));
    assert_eq!((of(&runtime, "a.orphan-1").state, of(&runtime, "a.orphan-1").waiting), (State::Orphan, 2));
    runtime.resume(&name("a")).await.unwrap();
    settled(&runtime).await;
    assert_eq!(good.delivered(), ["3"]);
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
    drop(runtime);

    let runtime = start_on(open().await.unwrap(), vec![moved(&good, None)]).await.unwrap();
    assert_ne!(of(&runtime, "a").state, State::Paused);
    // What was left behind is delivered where it belongs.
    runtime.replace(spec("a.orphan-1", &good, options())).await.unwrap_err();
    let mut back = spec("a.orphan-1", &good, options());
    back.destination = "test:a".to_owned();
    runtime.replace(back).await.unwrap();
    settled(&runtime).await;
    assert_eq!(good.delivered(), ["3", "1", "2"]);
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_paused_target_queues_and_ends_what_is_in_flight() {
    let journal = Journal::default();
    let gate = Arc::new(Gate::new("a", &journal).shut());
    let other = Scripted::good();
    let targets = vec![gate_spec("a", &gate, one_at_a_time()), spec("b", &other, options())];
    let runtime = start_on(Store::memory(), targets).await.unwrap();
    send(&runtime, [(1, "p"), (2, "p")]).await;
    gate.one_has_begun().await;
    runtime.pause(&name("a")).await.unwrap();
    gate.let_through(5);
    pass(Duration::from_secs(3600)).await;
    send(&runtime, [(3, "p")]).await;
    pass(Duration::from_secs(3600)).await;
    let status = of(&runtime, "a");
    assert_eq!((status.state, status.delivered, status.waiting), (State::Paused, 1, 2));
    assert_eq!(of(&runtime, "b").delivered, 3);
    let refused = runtime.trial(&name("a")).await.unwrap_err();
    assert_eq!(refused.reason(), "paused");
    // A replacement stays paused.
    let next = Arc::new(Gate::new("next", &journal));
    runtime.replace(gate_spec("a", &next, one_at_a_time())).await.unwrap();
    pass(Duration::from_secs(60)).await;
    assert_eq!((of(&runtime, "a").state, of(&runtime, "a").waiting), (State::Paused, 2));
    runtime.resume(&name("a")).await.unwrap();
    settled(&runtime).await;
    assert_eq!(notes(&journal), ["a: delivered 1", "a: closed", "next: delivered 2", "next: delivered 3"]);
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_drained_target_gets_nothing_new_and_delivers_what_waits() {
    let journal = Journal::default();
    let gate = Arc::new(Gate::new("a", &journal).shut());
    let other = Scripted::good();
    let targets = vec![gate_spec("a", &gate, options()), spec("b", &other, options())];
    let runtime = start_on(Store::memory(), targets).await.unwrap();
    send(&runtime, [(1, "p"), (2, "p")]).await;
    gate.one_has_begun().await;
    assert_eq!(runtime.drain(&name("a")).await.unwrap(), 2);
    send(&runtime, [(3, "p")]).await;
    pass(Duration::from_secs(1)).await;
    assert_eq!((of(&runtime, "a").state, of(&runtime, "a").admitted), (State::Draining, 2));
    gate.let_through(100);
    settled(&runtime).await;
    assert_eq!((of(&runtime, "a").state, of(&runtime, "a").health), (State::Stopped, Health::Disabled));
    runtime.resume(&name("a")).await.unwrap();
    send(&runtime, [(4, "p")]).await;
    settled(&runtime).await;
    assert_eq!(notes(&journal), ["a: delivered 1", "a: delivered 2", "a: delivered 4"]);
    assert_eq!(other.delivered().len(), 4);
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_removal_drains_keeps_or_discards_what_waits() {
    let journal = Journal::default();
    let other = Scripted::good();
    for leftover in [Leftover::Drain, Leftover::Keep, Leftover::Discard] {
        let gate = Arc::new(Gate::new("a", &journal).shut());
        let targets = vec![gate_spec("a", &gate, one_at_a_time()), spec("b", &other, options())];
        let runtime = start_on(Store::memory(), targets).await.unwrap();
        send(&runtime, [(1, "p"), (2, "p")]).await;
        gate.one_has_begun().await;
        let removing = runtime.clone();
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async move { removing.remove(&name("a"), leftover).await });
        pass(Duration::from_secs(1)).await;
        gate.let_through(100);
        let removed = tasks.join_next().await.unwrap().unwrap().unwrap();
        send(&runtime, [(3, "p")]).await;
        settled(&runtime).await;
        pass(Duration::from_secs(1)).await;
        check_sums(&runtime);
        let left = runtime.targets().into_iter().find(|status| status.name.as_str() == "a");
        match leftover {
            Leftover::Drain => {
                assert_eq!(removed, Removed::Draining { waiting: 2 });
                assert!(left.is_none());
            }
            Leftover::Keep => {
                // What was in flight is finished.
                assert_eq!(removed, Removed::Kept { waiting: 1 });
                assert_eq!(left.map(|left| (left.state, left.waiting)), Some((State::Orphan, 1)));
            }
            Leftover::Discard => {
                assert_eq!(removed, Removed::Discarded { discarded: 1 });
                assert!(left.is_none());
            }
        }
        assert_eq!(of(&runtime, "b").delivered, 3);
        runtime.shutdown(Duration::from_secs(5)).await.unwrap();
    }
    let got = notes(&journal);
    let closed = got.iter().filter(|note| *note == "a: closed").count();
    let second = got.iter().filter(|note| *note == "a: delivered 2").count();
    assert_eq!((closed, second), (3, 1), "{got:?}");
}

#[tokio::test(start_paused = true)]
async fn a_target_that_is_put_again_is_not_removed_when_it_is_drained() {
    let journal = Journal::default();
    let gate = Arc::new(Gate::new("a", &journal).shut());
    let make = || gate_spec("a", &gate, options());
    let runtime = start_on(Store::memory(), vec![make()]).await.unwrap();
    send(&runtime, [(1, "p")]).await;
    gate.one_has_begun().await;
    runtime.remove(&name("a"), Leftover::Drain).await.unwrap();
    // Nobody is there to keep an event for.
    assert!(matches!(runtime.admit(vec![event(2, None).into()]), Err(AdmitError::NoTarget)));
    assert_eq!(runtime.replace(make()).await.unwrap(), Change::Unchanged);
    gate.let_through(100);
    admit(&runtime, [event(3, None)]).await;
    settled(&runtime).await;
    pass(Duration::from_secs(60)).await;
    assert_eq!((of(&runtime, "a").state, of(&runtime, "a").delivered), (State::Running, 2));
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn two_hundred_reloads_under_load_repeat_nothing_lose_nothing_and_keep_the_order() {
    let target = Scripted::good().latency(Duration::from_millis(7));
    let runtime = start_on(Store::memory(), vec![spec("a", &target, options())]).await.unwrap();
    let pids: Vec<String> = (0..20).map(|pid| format!("p{pid}")).collect();
    let mut number = 0;
    for reload in 0..200_u64 {
        for _ in 0..10 {
            number += 1;
            let pid = &pids[(number % 20) as usize];
            admit(&runtime, [event(number, Some(pid))]).await;
        }
        let mut next = spec("a", &target, options());
        next.fingerprint = Some(reload);
        next.target = Arc::new(target.clone());
        assert_eq!(runtime.replace(next).await.unwrap(), Change::Replaced);
        pass(Duration::from_millis(reload % 5)).await;
    }
    settled(&runtime).await;
    let mut got: Vec<u64> = target.seen().iter().map(|seen| seen.id.parse().unwrap()).collect();
    target.check_order();
    got.sort_unstable();
    assert_eq!(got, (1..=number).collect::<Vec<_>>(), "each once, attempts that failed too");
    assert_eq!((target.closed(), of(&runtime, "a").delivered), (200, number));
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_panics_is_shown_and_the_others_go_on() {
    let journal = Journal::default();
    let gate = Arc::new(Gate::new("a", &journal).panics(true));
    let other = Scripted::good();
    let targets = vec![gate_spec("a", &gate, options()), spec("b", &other, options())];
    let runtime = start_on(Store::memory(), targets).await.unwrap();
    send(&runtime, [(1, "p")]).await;
    pass(Duration::from_secs(1)).await;
    let failed = of(&runtime, "a");
    assert_eq!((failed.state, failed.health, failed.reason), (State::Failed, Health::Error, "no_progress"));
    assert!(failed.last_error.unwrap().contains("panicked"));
    assert_eq!((of(&runtime, "b").delivered, failed.waiting), (1, 1));
    assert_eq!(runtime.trial(&name("a")).await.unwrap_err().reason(), "not_running");
    gate.mend();
    runtime.resume(&name("a")).await.unwrap();
    settled(&runtime).await;
    assert_eq!(notes(&journal), ["a: delivered 1"]);
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn two_targets_of_one_name_are_refused_and_a_disabled_one_is_paused() {
    let runtime = none().await;
    let good = Scripted::good();
    let twice = vec![spec("a", &good, options()), spec("a", &good, options())];
    assert_eq!(runtime.reload(twice).await.unwrap_err().reason(), "name_twice");
    let mut off = spec("a", &good, options());
    off.options.enabled = false;
    runtime.reload(vec![off]).await.unwrap();
    send(&runtime, [(1, "p")]).await;
    pass(Duration::from_secs(60)).await;
    assert_eq!((of(&runtime, "a").state, of(&runtime, "a").waiting), (State::Paused, 1));
    let report = runtime.reload(vec![spec("a", &good, options())]).await.unwrap();
    assert_eq!(report.targets[0].1.clone().unwrap(), Change::Replaced);
    settled(&runtime).await;
    // A reload without it leaves what waits as an orphan.
    let report = runtime.reload(Vec::new()).await.unwrap();
    assert_eq!(report.targets[0].1.clone().unwrap(), Change::Removed);
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_reload_prepares_eight_targets_at_a_time_and_waits_for_none_that_hangs() {
    let journal = Journal::default();
    let gate = Arc::new(Gate::new("t", &journal).asked(Ask::Hangs));
    let runtime = none().await;
    let targets = (0..24).map(|i| gate_spec(&format!("t{i:02}"), &gate, options())).collect();
    let start = tokio::time::Instant::now();
    let report = runtime.reload(targets).await.unwrap();
    // bounded: the clock is paused, so this is no measurement.
    assert_eq!(start.elapsed().as_secs(), 15, "three rounds of five seconds");
    assert!(report.is_complete() && report.targets.is_sorted_by(|a, b| a.0 < b.0));
    assert_eq!(runtime.targets().len(), 24);
    let most = gate.probing_most.load(std::sync::atomic::Ordering::SeqCst);
    // Those that have started ask for themselves, each once.
    assert!((8..=8 + 16).contains(&most), "{most}");
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}
