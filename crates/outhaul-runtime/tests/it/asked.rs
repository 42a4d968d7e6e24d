//! What a person asks of a target in two words that meet: pauses, drains, removals and replacements.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use outhaul_runtime::store::{Engine, Store, StoreOptions};
use outhaul_runtime::target::{ErrorKind, TargetOptions};
use outhaul_runtime::{Change, Leftover, Removed, Runtime, State, TargetStatus};
use tokio::task::JoinSet;

use crate::gate::{Ask, Gate, Journal, gate_spec, notes};
use crate::support::{Scripted, check_sums, name, options, pass, send, settled, spec, start_on};

fn of(runtime: &Runtime, target: &str) -> TargetStatus {
    check_sums(runtime);
    let found = runtime.targets().into_iter().find(|status| status.name.as_str() == target);
    found.unwrap_or_else(|| panic!("no {target}"))
}

/// Looks again and again.
async fn until(holds: impl Fn() -> bool) {
    let holds = async {
        while !holds() {
            pass(Duration::from_millis(5)).await;
        }
    };
    // bounded: a minute, and the test has failed.
    tokio::time::timeout(Duration::from_secs(60), holds).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_target_without_new_events_says_so_in_every_state() {
    let (a, b) = (Scripted::new(|_| Err(ErrorKind::ConnectionRefused.into())), Scripted::good());
    let targets = vec![spec("a", &a, options()), spec("b", &b, options())];
    let runtime = start_on(Store::memory(), targets).await.unwrap();
    send(&runtime, [(1, "p")]).await;
    pass(Duration::from_secs(1)).await;
    let shown = |target: &str| (of(&runtime, target).state, of(&runtime, target).draining);
    assert_eq!((shown("a"), shown("b")), ((State::Held, false), (State::Running, false)));
    runtime.drain(&name("a")).await.unwrap();
    assert_eq!(shown("a"), (State::Held, true));
    runtime.pause(&name("a")).await.unwrap();
    assert_eq!(shown("a"), (State::Paused, true));
    send(&runtime, [(2, "p")]).await;
    pass(Duration::from_secs(1)).await;
    assert_eq!((of(&runtime, "a").admitted, of(&runtime, "b").admitted), (1, 2));
    // The other way round, with nothing that waits.
    runtime.drain(&name("b")).await.unwrap();
    assert_eq!(shown("b"), (State::Stopped, true));
    runtime.pause(&name("b")).await.unwrap();
    assert_eq!(shown("b"), (State::Paused, true));
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_resume_ends_the_pause_first_and_the_drain_then() {
    for drained_first in [false, true] {
        let (a, b) = (Scripted::good(), Scripted::good());
        let targets = vec![spec("a", &a, options()), spec("b", &b, options())];
        let runtime = start_on(Store::memory(), targets).await.unwrap();
        if drained_first {
            send(&runtime, [(1, "p")]).await;
            runtime.drain(&name("a")).await.unwrap();
            runtime.pause(&name("a")).await.unwrap();
        } else {
            runtime.pause(&name("a")).await.unwrap();
            send(&runtime, [(1, "p")]).await;
            runtime.drain(&name("a")).await.unwrap();
        }
        runtime.resume(&name("a")).await.unwrap();
        send(&runtime, [(2, "p")]).await;
        settled(&runtime).await;
        assert_eq!((of(&runtime, "a").state, of(&runtime, "a").draining), (State::Stopped, true));
        runtime.resume(&name("a")).await.unwrap();
        send(&runtime, [(3, "p")]).await;
        settled(&runtime).await;
        assert_eq!((of(&runtime, "a").state, of(&runtime, "a").draining), (State::Running, false));
        assert_eq!(a.delivered(), ["1", "3"]);
        runtime.shutdown(Duration::from_secs(5)).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_paused_target_that_is_to_be_removed_when_it_is_drained_goes_when_it_is_resumed() {
    let a = Scripted::good();
    let runtime = start_on(Store::memory(), vec![spec("a", &a, options())]).await.unwrap();
    runtime.pause(&name("a")).await.unwrap();
    send(&runtime, [(1, "p")]).await;
    let removed = runtime.remove(&name("a"), Leftover::Drain).await.unwrap();
    assert_eq!(removed, Removed::Draining { waiting: 1 });
    pass(Duration::from_secs(60)).await;
    assert_eq!((of(&runtime, "a").state, of(&runtime, "a").draining), (State::Paused, true));
    runtime.resume(&name("a")).await.unwrap();
    pass(Duration::from_secs(60)).await;
    assert!(runtime.targets().is_empty());
    assert_eq!(a.delivered(), ["1"]);
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test]
async fn an_orphan_is_discarded_for_good_with_what_failed_of_it_and_refuses_what_needs_a_target() {
    for engine in [Engine::Journal, Engine::Spool] {
        let dir = tempfile::tempdir().unwrap();
        let open = || Store::open(dir.path(), StoreOptions { engine, ..StoreOptions::default() });
        let moody = Scripted::new(|attempt| match attempt.event.id() {
            "1" => Err(ErrorKind::ContentRefused.into()),
            _ => Err(ErrorKind::ConnectionRefused.into()),
        });
        let other = Scripted::good();
        let targets = vec![spec("a", &moody, options()), spec("b", &other, options())];
        let runtime = start_on(open().await.unwrap(), targets).await.unwrap();
        send(&runtime, [(1, "p"), (2, "q"), (3, "q")]).await;
        until(|| of(&runtime, "a").failed == 1 && of(&runtime, "b").waiting == 0).await;
        runtime.pause(&name("a")).await.unwrap();
        let kept = Removed::Kept { waiting: 2 };
        assert_eq!(runtime.remove(&name("a"), Leftover::Keep).await.unwrap(), kept);

        assert_eq!(runtime.remove(&name("a"), Leftover::Keep).await.unwrap(), kept);
        let a = name("a");
        for refused in [
            runtime.pause(&a).await,
            runtime.resume(&a).await,
            runtime.drain(&a).await.map(drop),
            runtime.trial(&a).await.map(drop),
            runtime.test(&a).await.map(drop),
            runtime.remove(&a, Leftover::Drain).await.map(drop),
        ] {
            assert_eq!(refused.unwrap_err().reason(), "orphan");
        }
        assert_eq!((of(&runtime, "a").state, of(&runtime, "a").failed_stored), (State::Orphan, 1));

        let removed = runtime.remove(&a, Leftover::Discard).await.unwrap();
        assert_eq!(removed, Removed::Discarded { discarded: 3 });
        assert!(runtime.targets().iter().all(|target| target.name != a));
        for leftover in [Leftover::Drain, Leftover::Keep, Leftover::Discard] {
            assert_eq!(runtime.remove(&a, leftover).await.unwrap_err().reason(), "not_found");
        }
        runtime.shutdown(Duration::from_secs(5)).await.unwrap();
        drop(runtime);

        let again = Scripted::good();
        let targets = vec![spec("a", &again, options()), spec("b", &other, options())];
        let runtime = start_on(open().await.unwrap(), targets).await.unwrap();
        let status = of(&runtime, "a");
        assert_eq!((status.waiting, status.failed_stored), (0, 0));
        send(&runtime, [(4, "p")]).await;
        settled(&runtime).await;
        assert_eq!(again.delivered(), ["4"]);
        runtime.shutdown(Duration::from_secs(5)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_resumes_sees_no_pause_any_more() {
    let runtime = start_on(Store::memory(), vec![spec("a", &Scripted::good(), options())]).await.unwrap();
    for _ in 0..2000 {
        runtime.pause(&name("a")).await.unwrap();
        assert_eq!(of(&runtime, "a").state, State::Paused);
        runtime.resume(&name("a")).await.unwrap();
        assert_ne!(of(&runtime, "a").state, State::Paused);
    }
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_pause_waits_for_no_attempt_of_a_target_that_is_being_replaced() {
    let journal = Journal::default();
    let old = Arc::new(Gate::new("old", &journal).shut().exclusive());
    let new = Arc::new(Gate::new("new", &journal).exclusive().asked(Ask::Hangs));
    let options = TargetOptions { in_flight: NonZeroUsize::MIN, ..options() };
    // In the attempt of the old one, and while the new one is asked.
    for late in [false, true] {
        journal.lock().unwrap().clear();
        let targets = vec![gate_spec("a", &old, options.clone())];
        let runtime = start_on(Store::memory(), targets).await.unwrap();
        send(&runtime, [(1, "p"), (2, "p")]).await;
        old.one_has_begun().await;
        let (replacing, spec) = (runtime.clone(), gate_spec("a", &new, options.clone()));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { replacing.replace(spec).await });
        pass(Duration::from_millis(100)).await;
        assert_eq!(of(&runtime, "a").state, State::Draining);
        if late {
            old.let_through(1);
            pass(Duration::from_millis(100)).await;
            assert_eq!(of(&runtime, "a").state, State::Stopped);
        }
        runtime.pause(&name("a")).await.unwrap();
        assert_eq!((of(&runtime, "a").state, of(&runtime, "a").generation), (State::Paused, 1));
        assert_eq!(notes(&journal).contains(&"old: delivered 1".to_owned()), late);
        if !late {
            old.let_through(1);
        }
        assert_eq!(tasks.join_next().await.unwrap().unwrap().unwrap(), Change::Replaced);
        pass(Duration::from_secs(60)).await;
        assert_eq!((of(&runtime, "a").state, of(&runtime, "a").waiting), (State::Paused, 1));
        runtime.resume(&name("a")).await.unwrap();
        settled(&runtime).await;
        assert_eq!(notes(&journal), ["old: delivered 1", "old: closed", "new: delivered 2"]);
        runtime.shutdown(Duration::from_secs(5)).await.unwrap();
    }
}
