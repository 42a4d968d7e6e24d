//! Health: one deadline for all, whatever the number of targets.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use outhaul_runtime::store::Store;
use outhaul_runtime::target::{ErrorKind, TargetOptions};
use outhaul_runtime::{Health, State};
use tokio::time::Instant;

use crate::gate::{Ask, Gate, Journal, gate_spec};
use crate::support::{Scripted, name, options, pass, send, spec, start_on};

fn patient() -> TargetOptions {
    TargetOptions { timeout: Duration::from_secs(30), ..options() }
}

#[tokio::test(start_paused = true)]
async fn twenty_four_stalled_targets_are_told_in_five_seconds_ten_at_a_time() {
    let journal = Journal::default();
    let gate = Arc::new(Gate::new("t", &journal).asked(Ask::Hangs));
    let targets = (0..24).rev().map(|i| gate_spec(&format!("t{i:02}"), &gate, patient())).collect();
    let runtime = start_on(Store::memory(), targets).await.unwrap();
    // Their first probes, when they start, are given up.
    pass(Duration::from_secs(120)).await;
    assert_eq!(gate.probing.load(Ordering::SeqCst), 0);
    gate.probing_most.store(0, Ordering::SeqCst);
    let start = Instant::now();
    let statuses = runtime.health().await;
    // bounded: the clock is paused, so this is no measurement.
    assert_eq!(start.elapsed().as_secs(), 5);
    assert_eq!(gate.probing_most.load(Ordering::SeqCst), 10);
    assert!(statuses.is_sorted_by(|a, b| a.name < b.name) && statuses.len() == 24);
    let told = |reason: &str| {
        statuses
            .iter()
            .filter(|status| status.probe.as_ref().is_some_and(|probe| probe.reason == reason))
            .count()
    };
    assert_eq!((told("timed_out"), told("health_check_failed")), (10, 14));
    assert!(statuses.iter().all(|status| status.probe.as_ref().unwrap().detail.is_some()));
    assert_eq!(gate.probing.load(Ordering::SeqCst), 0, "none of them goes on");
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn dropping_the_collection_drops_the_probes() {
    let journal = Journal::default();
    let gate = Arc::new(Gate::new("t", &journal).asked(Ask::Hangs));
    let targets = (0..12).map(|i| gate_spec(&format!("t{i:02}"), &gate, patient())).collect();
    let runtime = start_on(Store::memory(), targets).await.unwrap();
    pass(Duration::from_secs(120)).await;
    let given_up = tokio::time::timeout(Duration::from_secs(1), runtime.health()).await;
    assert!(given_up.is_err());
    assert_eq!(gate.probing.load(Ordering::SeqCst), 0);
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn disabled_targets_are_not_asked() {
    let journal = Journal::default();
    let hangs = Arc::new(Gate::new("off", &journal).asked(Ask::Hangs));
    let refused = Arc::new(Gate::new("refused", &journal).asked(Ask::Fails(ErrorKind::ConnectionRefused)));
    let good = Arc::new(Gate::new("good", &journal));
    let runtime = start_on(
        Store::memory(),
        vec![
            gate_spec("off", &hangs, patient()),
            gate_spec("refused", &refused, patient()),
            gate_spec("good", &good, patient()),
        ],
    )
    .await
    .unwrap();
    runtime.pause(&name("off")).await.unwrap();
    send(&runtime, [(1, "p")]).await;
    pass(Duration::from_secs(120)).await;
    let start = Instant::now();
    let statuses = runtime.health().await;
    assert_eq!(start.elapsed(), Duration::ZERO, "nobody was waited for: the clock is paused");
    let shown: Vec<_> = statuses
        .iter()
        .map(|status| (status.name.as_str(), status.health, status.reason, status.probe.is_some()))
        .collect();
    assert_eq!(
        shown,
        [
            ("good", Health::Online, "reachable", true),
            ("off", Health::Disabled, "disabled", false),
            ("refused", Health::Degraded, "connection_refused", true),
        ]
    );
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn states_reasons_and_numbers_are_those_of_the_table() {
    let (answering, held) = (Scripted::good(), Scripted::new(|_| Err(ErrorKind::Dns.into())));
    let throttled = Scripted::new(|_| Err(ErrorKind::ServerFault.into()));
    let full = TargetOptions {
        queue_entries: crate::support::entries(20),
        when_full: outhaul_runtime::target::WhenFull::Shed,
        ..options()
    };
    let targets = vec![
        spec("answering", &answering, options()),
        spec("held", &held, full),
        spec("throttled", &throttled, options()),
    ];
    let runtime = start_on(Store::memory(), targets).await.unwrap();
    for status in runtime.targets() {
        assert_eq!(
            (status.state, status.health, status.reason),
            (State::Starting, Health::Degraded, "not_loaded")
        );
    }
    send(&runtime, (0..25).map(|i| (i, ["p", "q", "r", "s"][(i % 4) as usize]))).await;
    pass(Duration::from_secs(30)).await;
    let of = |text: &str| runtime.targets().into_iter().find(|status| status.name.as_str() == text).unwrap();
    let shown = |text: &str| (of(text).state, of(text).health, of(text).reason);
    assert_eq!(shown("answering"), (State::Running, Health::Online, "reachable"));
    assert_eq!(shown("held"), (State::Held, Health::Offline, "dns_failure"));
    assert_eq!((shown("throttled").0, shown("throttled").1), (State::Throttled, Health::Degraded));
    assert!(of("answering").last_success_seconds.is_some() && of("answering").oldest_age_seconds.is_none());
    let held = of("held");
    assert_eq!((held.waiting, held.failed_stored), (20, 0));
    assert!(held.bytes > 0 && held.oldest_age_seconds.is_some() && held.next_trial_seconds.is_some());
    assert!(held.last_success_seconds.is_none() && held.last_error.unwrap().contains("resolved"));
    assert!(runtime.trial(&name("held")).await.unwrap(), "it waited for one");
    assert!(!runtime.trial(&name("answering")).await.unwrap());
    answering.answer(|_| Err(ErrorKind::ContentRefused.into()));
    send(&runtime, [(30, "p")]).await;
    pass(Duration::from_secs(1)).await;
    assert_eq!(of("answering").failed_stored, 1);
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}
