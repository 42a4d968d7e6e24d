//! Random histories of admissions, failures, changes of targets and verbs on entries: whatever a person does and when,
//! it adds up, nothing is delivered twice, and the order of a pid holds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use outhaul_runtime::event::Uid;
use outhaul_runtime::store::Store;
use outhaul_runtime::target::ErrorKind;
use outhaul_runtime::{ChangeError, EntryAnswer, EntryQuery, EntryState, Leftover, Notice, Runtime};

use crate::support::{Scripted, admit, check_sums, event, name, options, pass, settled, spec, start_on};

const PIDS: [&str; 5] = ["p", "q", "r", "s", "t"];

fn moody(seed: u64) -> Scripted {
    let random = std::sync::Mutex::new(fastrand::Rng::with_seed(seed));
    Scripted::new(move |_| match random.lock().unwrap().u8(0..100) {
        0..15 => Err(ErrorKind::ServerFault.into()),
        15..18 => Err(ErrorKind::ConnectionRefused.into()),
        18..22 => Err(ErrorKind::ContentRefused.into()),
        _ => Ok(()),
    })
    .latency(Duration::from_millis(20))
}

/// What is refused because of the state that something is in is an answer like another.
fn refused(error: &ChangeError) {
    let words = ["not_found", "entry_failed", "paused", "not_running", "superseded"];
    assert!(words.contains(&error.reason()), "{error:?}");
}

async fn some_entry(runtime: &Runtime, random: &mut fastrand::Rng) -> Option<Uid> {
    let state = [None, Some(EntryState::Failed), Some(EntryState::InFlight)][random.usize(0..3)];
    let query = EntryQuery { state, ..EntryQuery::default() };
    let page = runtime.entries(&name("a"), &query).await.ok()?;
    random.choice(&page.entries).map(|entry| entry.uid.clone())
}

async fn history(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let (target, other) = (moody(seed), Scripted::good());
    let targets = vec![spec("a", &target, options()), spec("b", &other, options())];
    let runtime = start_on(Store::memory(), targets).await.unwrap();
    let mut notices = runtime.notices();
    let (mut number, mut requeued, mut facts) = (0, 0, BTreeMap::<&str, u64>::new());
    let mut ended = BTreeSet::new();
    for step in 0..120 {
        match random.u8(0..14) {
            0..5 => {
                for _ in 0..random.u8(1..5) {
                    number += 1;
                    admit(&runtime, [event(number, random.choice(PIDS))]).await;
                }
            }
            5 => {
                let mut next = spec("a", &target, options());
                next.target = Arc::new(target.clone());
                runtime.replace(next).await.unwrap();
            }
            6 => runtime.pause(&name("a")).await.unwrap(),
            7 | 8 => runtime.resume(&name("a")).await.unwrap(),
            9 => drop(runtime.trial(&name("a")).await.map_err(|error| refused(&error))),
            10..13 => {
                let Some(uid) = some_entry(&runtime, &mut random).await else { continue };
                let answer = match random.u8(0..3) {
                    0 => runtime.discard(&uid).await,
                    1 => runtime.retry(&uid).await,
                    _ => runtime.requeue(&uid).await,
                };
                match answer {
                    Ok(EntryAnswer::Requeued { again: false, .. }) => requeued += 1,
                    Ok(_) => {}
                    Err(error) => refused(&error),
                }
            }
            _ => pass(Duration::from_millis(random.u64(1..3_000))).await,
        }
        check_sums(&runtime);
        while let Ok(notice) = notices.try_recv() {
            let (word, uid) = match notice {
                Notice::Delivered { uid, .. } => ("delivered", uid),
                Notice::Discarded { uid } => ("discarded", uid),
                Notice::Rejected { uid, .. } => ("failed", uid),
                _ => continue,
            };
            *facts.entry(word).or_default() += u64::from(uid.queue == name("a"));
            assert!(ended.insert(uid.clone()), "seed {seed}, step {step}: {uid} has ended twice");
        }
    }
    target.answer(|_| Ok(()));
    runtime.resume(&name("a")).await.unwrap();
    settled(&runtime).await;
    let status = runtime.targets().remove(0);
    assert_eq!((status.admitted, status.requeued), (number, requeued), "seed {seed}");
    assert_eq!(other.delivered().len() as u64, number, "seed {seed}: the other one misses nothing");
    other.check_order();
    // By uid, and so with what was requeued, each pid was delivered in order.
    let delivered = target.delivered();
    let distinct: BTreeSet<_> = delivered.iter().collect();
    assert_eq!(distinct.len(), delivered.len(), "seed {seed}: something was delivered twice");
    assert_eq!(delivered.len() as u64, status.delivered, "seed {seed}");
    if requeued == 0 {
        target.check_order();
    }
    assert!(facts.get("failed").copied().unwrap_or(0) <= status.failed, "seed {seed}");
    runtime.remove(&name("a"), Leftover::Keep).await.unwrap();
    check_sums(&runtime);
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}

#[expect(clippy::disallowed_methods, reason = "a test reads how much it is to do")]
fn scale() -> u64 {
    let scale = std::env::var("OUTHAUL_TEST_SCALE");
    scale.ok().and_then(|scale| scale.parse().ok()).unwrap_or(1)
}

#[tokio::test(start_paused = true)]
async fn any_history_of_changes_and_verbs_adds_up_and_repeats_nothing() {
    for seed in 0..30 * scale() {
        history(seed).await;
    }
}
