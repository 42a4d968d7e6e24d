//! What a person asks of a target in two words that meet: pauses, drains, removals and replacements.

use std::time::Duration;

use outhaul_runtime::store::Store;
use outhaul_runtime::target::ErrorKind;
use outhaul_runtime::{Runtime, State, TargetStatus};

use crate::support::{Scripted, check_sums, name, options, pass, send, spec, start_on};

fn of(runtime: &Runtime, target: &str) -> TargetStatus {
    check_sums(runtime);
    let found = runtime.targets().into_iter().find(|status| status.name.as_str() == target);
    found.unwrap_or_else(|| panic!("no {target}"))
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
