//! Every poison with every outage: no poison stops a target, no outage burns an entry's attempts, and a recovery is
//! noticed within one backoff. Seeds are printed; `OUTHAUL_TEST_SCALE` asks for more of them.

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outhaul_runtime::target::{BatchOrder, DeliveryError, ErrorKind, OnExhausted, TargetOptions};

use crate::support::{Scripted, admit, event, only, options, pass, start};

/// What one event does to its receiver, as a target tells it.
const POISONS: [Option<ErrorKind>; 5] = [
    None,
    // The peer cuts the line; no route; it hangs until the deadline; its content is refused.
    Some(ErrorKind::ConnectionReset),
    Some(ErrorKind::DestinationMissing),
    Some(ErrorKind::TimedOut),
    Some(ErrorKind::ContentRefused),
];

/// What an outage looks like: one answer for everything, or one of several.
const OUTAGES: [&[ErrorKind]; 6] = [
    &[],
    &[ErrorKind::ConnectionRefused],
    &[ErrorKind::Overloaded],
    &[ErrorKind::TimedOut],
    &[ErrorKind::Authentication],
    &[ErrorKind::ConnectionRefused, ErrorKind::Overloaded, ErrorKind::TimedOut, ErrorKind::Throttled],
];

const DOWN: Duration = Duration::from_secs(600);

#[expect(clippy::disallowed_methods, reason = "how much is tried is the caller's choice")]
fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[tokio::test(start_paused = true)]
async fn no_poison_stops_a_target_and_no_outage_burns_attempts() {
    let (first, scale) =
        (number("OUTHAUL_TEST_SEED").unwrap_or(0), number("OUTHAUL_TEST_SCALE").unwrap_or(1));
    for seed in first..first + scale {
        for (poison, outage) in POISONS.iter().flat_map(|p| OUTAGES.iter().map(move |o| (*p, *o))) {
            for order in [BatchOrder::None, BatchOrder::Prefix] {
                println!("seed {seed}: poison {poison:?}, outage {outage:?}, {order:?}");
                history(seed, poison, outage, order).await;
            }
        }
    }
}

async fn history(seed: u64, poison: Option<ErrorKind>, outage: &'static [ErrorKind], order: BatchOrder) {
    let down = Arc::new(Mutex::new(false));
    let dice = Arc::new(Mutex::new(fastrand::Rng::with_seed(seed)));
    let (switch, random) = (Arc::clone(&down), Arc::clone(&dice));
    let target = Scripted::new(move |attempt| {
        let answer = |kind: ErrorKind| Err(DeliveryError::new(kind));
        if *switch.lock().unwrap() {
            let mut random = random.lock().unwrap();
            // A mixture flaps: it takes something now and then.
            let flaps = outage.len() > 1 && random.u8(0..10) == 0;
            return if flaps { Ok(()) } else { answer(outage[random.usize(0..outage.len())]) };
        }
        match poison.filter(|_| matches!(attempt.event.id(), "7" | "33")) {
            Some(kind) => answer(kind),
            None => Ok(()),
        }
    })
    .batches(if order == BatchOrder::Prefix { 10 } else { 1 }, order);
    // An attempt that counts though the target is down would fail its entry soon.
    let strict = TargetOptions {
        attempts_max: NonZeroU32::new(if outage.len() > 1 { 1000 } else { 15 }),
        on_exhausted: OnExhausted::Fail,
        ..options()
    };
    let keeps = TargetOptions { attempts_max: None, on_exhausted: OnExhausted::Keep, ..strict.clone() };
    let runtime = start(&target, if poison.is_some() { keeps } else { strict }).await;
    let of = |number: u64| {
        let pid = dice.lock().unwrap().u8(0..8);
        event(number, (pid > 0).then(|| format!("pid-{pid}")).as_deref())
    };
    let (mut number, mut poisoned) = (0, Vec::new());
    for round in 0..3 {
        for _ in 0..20 {
            let event = of(number);
            if poison.is_some() && matches!(number, 7 | 33) {
                poisoned.push((number, event.pid().map(str::to_owned)));
            }
            admit(&runtime, [event]).await;
            number += 1;
            let after = Duration::from_millis(dice.lock().unwrap().u64(0..20));
            pass(after).await;
            only(&runtime);
        }
        if round == 1 && !outage.is_empty() {
            *down.lock().unwrap() = true;
            admit(&runtime, (0..20).map(|step| of(number + step))).await;
            number += 20;
            let before = target.seen().len();
            pass(DOWN).await;
            let tries = target.seen().len() - before;
            assert!(tries < 2500, "{tries} attempts in ten minutes");
            *down.lock().unwrap() = false;
        }
    }
    // One longest backoff of a trial, and what the lanes that wait have of their own.
    pass(options().trial_backoff_max + options().backoff_max * 3).await;
    let status = only(&runtime);
    let rejected = poison == Some(ErrorKind::ContentRefused);
    assert_eq!(status.failed, if rejected { poisoned.len() as u64 } else { 0 }, "{status:?}");
    // Only what is behind a poison in its own pid may wait.
    let delivered: std::collections::HashSet<_> = target.delivered().into_iter().collect();
    let pids: std::collections::HashMap<_, _> =
        target.seen().into_iter().map(|seen| (seen.id, seen.pid)).collect();
    for (id, pid) in &pids {
        let number: u64 = id.parse().unwrap();
        let excused = poisoned
            .iter()
            .any(|(bad, of)| *bad == number || (!rejected && *bad < number && of.is_some() && of == pid));
        assert!(excused || delivered.contains(id), "{id} of {pid:?} still waits: {status:?}");
    }
    let behind = |at: u64| poisoned.iter().any(|(bad, of)| *bad == at || (*bad < at && of.is_some()));
    assert!((0..number).filter(|n| !behind(*n)).all(|n| delivered.contains(&n.to_string())), "{status:?}");
    target.check_order();
}
