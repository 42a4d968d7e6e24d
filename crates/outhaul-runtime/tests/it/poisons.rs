//! Every poison, every outage, and every poison with every outage: no poison stops a target, no outage burns an entry's
//! attempts, and a recovery is noticed within one backoff. A cell that fails is named.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use outhaul_runtime::store::{SimDisk, SimFileSystem, Store};
use outhaul_runtime::target::{BatchOrder, Capabilities, ErrorKind, TargetOptions};
use outhaul_runtime::{EntryQuery, Notice, TargetSpec};
use tokio::time::Instant;

use crate::sim::receiver::{Mood, Poison, Receiver};
use crate::sim::world::{Wall, open};
use crate::support::{Checked, admit, check_sums, event, name, only, options, pass, scale, seed, start_on};

/// What one event does to its receiver. What crashes the process is in a test of its own.
const POISONS: [(&str, Option<Poison>); 5] = [
    ("nothing", None),
    ("cuts the line", Some(Poison::Fails(ErrorKind::ConnectionReset))),
    ("has no route", Some(Poison::Fails(ErrorKind::DestinationMissing))),
    ("hangs", Some(Poison::Hangs)),
    ("is refused", Some(Poison::Fails(ErrorKind::ContentRefused))),
];

const OUTAGES: [(&str, Option<Mood>); 6] = [
    ("none", None),
    ("refused connections", Some(Mood::Down(&[ErrorKind::ConnectionRefused]))),
    ("503 of a proxy", Some(Mood::Down(&[ErrorKind::Overloaded]))),
    ("hangs", Some(Mood::Hangs)),
    ("401", Some(Mood::Down(&[ErrorKind::Authentication]))),
    (
        "flapping",
        Some(Mood::Down(&[
            ErrorKind::ConnectionRefused,
            ErrorKind::Overloaded,
            ErrorKind::TimedOut,
            ErrorKind::Authentication,
        ])),
    ),
];

/// The poisoned events.
const BAD: [u64; 2] = [7, 33];
const DOWN: Duration = Duration::from_secs(600);
/// Retries in a row that throttle a target: so many attempts an outage may cost until it is known to be one.
const THROTTLE_AFTER: u32 = 10;
/// What a poison costs others at most: the target is held for the first backoff, and the trial that ends it may be of
/// the other poison, which hangs.
const DELAY_MAX: Duration = Duration::from_secs(5);

fn patient() -> TargetOptions {
    TargetOptions { timeout: Duration::from_secs(1), in_flight: NonZeroUsize::new(4).unwrap(), ..options() }
}

/// An event, its pid, and when it was admitted.
type Sent = (u64, Option<String>, Instant);

struct Cell {
    text: String,
    receiver: Receiver,
    runtime: Checked,
    random: fastrand::Rng,
    sent: Vec<Sent>,
    /// What is poisoned does not go to the failed store, and keeps its pid waiting.
    sticks: bool,
}

impl Cell {
    async fn admit(&mut self, count: u64, spread: bool) {
        for _ in 0..count {
            let pid = self.random.u8(0..8);
            let pid = (pid > 0).then(|| format!("pid-{pid}"));
            let number = self.sent.len() as u64;
            admit(&self.runtime, [event(number, pid.as_deref())]).await;
            self.sent.push((number, pid, Instant::now()));
            if spread {
                pass(Duration::from_millis(self.random.u64(0..20))).await;
            }
        }
    }

    /// Whether an event is poisoned, or behind one of its pid that is.
    fn is_excused(&self, (number, pid, _): &Sent) -> bool {
        let behind = |bad: &u64| {
            let of = self.sent.get(*bad as usize).and_then(|sent| sent.1.as_ref());
            self.sticks && bad < number && of.is_some() && of == pid.as_ref()
        };
        BAD.contains(number) || BAD.iter().any(behind)
    }

    /// All that may be expected was delivered by an instant, or so long after its admission if that is later.
    fn check_delivered(&self, from: usize, by: Option<Instant>, within: Duration) {
        for sent in self.sent[from..].iter().filter(|sent| !self.is_excused(sent)) {
            let limit = by.map_or(sent.2 + within, |by| by + within);
            let at = self.receiver.acknowledged_at(sent.0);
            assert!(
                at.is_some_and(|at| at <= limit),
                "{}: event {} of {:?} came {:?} after its admission, {:?} late: {:?}",
                self.text,
                sent.0,
                sent.1,
                at.map(|at| at - sent.2),
                at.map(|at| at.saturating_duration_since(limit)),
                only(&self.runtime)
            );
        }
    }

    /// Attempts that were counted against entries that are not to blame.
    async fn burnt(&self) -> u32 {
        let entries = self.runtime.entries(&name("a"), &EntryQuery::default()).await.unwrap().entries;
        let bad: Vec<_> = BAD.iter().map(|bad| event(*bad, None).dedup_id()).collect();
        entries.iter().filter(|entry| !bad.contains(&entry.dedup_id)).map(|entry| entry.attempts).sum()
    }
}

async fn cell(seed: u64, poison: (&str, Option<Poison>), outage: (&str, Option<Mood>), order: BatchOrder) {
    let text =
        format!("OUTHAUL_TEST_SEED={seed}: an entry that {}, outage: {}, {order:?}", poison.0, outage.0);
    let batch_max = if order == BatchOrder::Prefix { 10 } else { 1 };
    let receiver =
        Receiver::new("a", seed, Capabilities { batch_max, batch_order: order, ..Default::default() });
    receiver.next_life();
    for (bad, poison) in BAD.into_iter().zip([poison.1; 2]) {
        poison.into_iter().for_each(|poison| receiver.poison(bad, poison));
    }
    let spec = TargetSpec::new(name("a"), Arc::new(receiver.clone()), patient(), "test:a");
    let runtime = start_on(Store::memory(), vec![spec]).await.unwrap();
    let mut notices = runtime.notices();
    let refused = poison.1 == Some(Poison::Fails(ErrorKind::ContentRefused));
    let (random, sticks) = (fastrand::Rng::with_seed(seed), poison.1.is_some() && !refused);
    let mut cell = Cell { text, receiver, runtime, random, sent: Vec::new(), sticks };
    cell.admit(40, true).await;
    pass(DELAY_MAX).await;
    cell.check_delivered(0, None, DELAY_MAX);
    if let Some(mood) = outage.1 {
        let flaps = matches!(mood, Mood::Down(kinds) if kinds.len() > 1);
        cell.receiver.mood(mood);
        while notices.try_recv().is_ok() {}
        let (attempts, burnt_before) = (cell.receiver.attempts(), cell.burnt().await);
        cell.admit(30, true).await;
        let (mut burnt, mut resumed) = (0, 0);
        for _ in 0..60 {
            pass(DOWN / 60).await;
            check_sums(&cell.runtime);
            burnt = cell.burnt().await;
            while let Ok(notice) = notices.try_recv() {
                resumed += u32::from(matches!(notice, Notice::Resumed { .. }));
            }
        }
        let most = burnt_before + THROTTLE_AFTER * (resumed + 1);
        assert!(burnt <= most, "{}: {burnt} attempts burnt, {resumed} times resumed", cell.text);
        let attempts = cell.receiver.attempts() - attempts;
        // What was in flight, the row that throttles, and a trial each five seconds or more.
        let most = if flaps { 2500 } else { 4 + u64::from(THROTTLE_AFTER) + 8 + DOWN.as_secs() / 5 };
        assert!(attempts <= most, "{}: {attempts} attempts in ten minutes", cell.text);
        cell.receiver.mood(Mood::Good);
        let well = Instant::now();
        // What flaps may have let everything through.
        let waits = |sent: &&Sent| !cell.is_excused(sent) && !cell.receiver.has(sent.0);
        let waits = cell.sent.iter().find(waits).map(|sent| sent.0);
        // What hangs is given up after twice its deadline. Where everything that waits has failed by now, each of the bad
        // ones may be tried before a good one is.
        let noticed = patient().trial_backoff_max + patient().timeout * 2;
        let noticed = if cell.sticks { noticed * (1 + BAD.len() as u32) } else { noticed };
        pass(noticed + DELAY_MAX * 2).await;
        let first = cell.receiver.first_after(well).map(|at| at - well);
        let at_once = waits.is_none() || first.is_some_and(|first| first <= noticed);
        assert!(at_once, "{}: noticed after {first:?}: {waits:?}", cell.text);
        cell.check_delivered(0, Some(well), noticed + DELAY_MAX * 2);
    }
    // It goes on as if nothing had been.
    let first = cell.sent.len();
    cell.admit(20, true).await;
    // What hangs may hold a place, and throttle the target, twice.
    let delay = if poison.1 == Some(Poison::Hangs) { DELAY_MAX * 2 } else { DELAY_MAX };
    pass(delay).await;
    cell.check_delivered(first, None, delay);
    check_sums(&cell.runtime);
    let status = only(&cell.runtime);
    assert_eq!(status.failed, if refused { 2 } else { 0 }, "{}: {status:?}", cell.text);
    assert_eq!(cell.receiver.broken(), Vec::<String>::new(), "{}", cell.text);
}

#[tokio::test(start_paused = true)]
async fn sim_no_poison_stops_a_target_and_no_outage_burns_attempts() {
    let first = seed("sim_poisons");
    for seed in first..first + scale() {
        for (poison, outage) in POISONS.iter().flat_map(|p| OUTAGES.iter().map(move |o| (*p, *o))) {
            for order in [BatchOrder::None, BatchOrder::Prefix] {
                cell(seed, poison, outage, order).await;
            }
        }
    }
}

/// One process that delivers until everything but the crasher is there, or until that ends it. Returns whether it did.
async fn until_crash(
    receiver: &Receiver,
    fs: &SimFileSystem,
    wall: &Wall,
    outage: Option<Mood>,
    first: bool,
) -> bool {
    receiver.next_life();
    wall.start();
    let store = open(fs, wall).await.unwrap();
    let spec = TargetSpec::new(name("a"), Arc::new(receiver.clone()), patient(), "test:a");
    let runtime = start_on(store, vec![spec]).await.unwrap();
    if first {
        receiver.mood(outage.unwrap_or(Mood::Good));
        admit(&runtime, (0..40).map(|number| event(number, Some(&format!("pid-{}", number % 5))))).await;
    }
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(60) && !receiver.wants_crash() {
        pass(Duration::from_millis(100)).await;
        check_sums(&runtime);
    }
    receiver.mood(Mood::Good);
    while begun.elapsed() < Duration::from_secs(80) && !receiver.wants_crash() {
        pass(Duration::from_millis(100)).await;
    }
    wall.stop();
    if !receiver.wants_crash() {
        assert_eq!(runtime.failed().count(None), 1, "{:?}", only(&runtime));
        assert_eq!(only(&runtime).waiting, 0);
    }
    receiver.wants_crash()
}

#[test]
fn sim_what_crashes_the_process_is_found_and_stops_nobody() {
    let first = seed("sim_crashers");
    for seed in first..first + 2 * scale() {
        for (text, outage) in OUTAGES {
            let receiver = Receiver::new("a", seed, Capabilities::default());
            receiver.poison(7, Poison::Crashes);
            let (mut disk, wall, mut crashes) = (SimDisk::default(), Wall::new(), 0);
            let mut random = fastrand::Rng::with_seed(seed);
            loop {
                let runtime =
                    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
                let fs = SimFileSystem::new(disk);
                if !runtime.unwrap().block_on(until_crash(&receiver, &fs, &wall, outage, crashes == 0)) {
                    break;
                }
                crashes += 1;
                assert!(crashes <= 4, "OUTHAUL_TEST_SEED={seed}, outage: {text}: {crashes} crashes");
                disk = fs.disk().crash(&mut random);
            }
            assert_eq!(receiver.broken(), Vec::<String>::new(), "OUTHAUL_TEST_SEED={seed}, outage: {text}");
            let missing: Vec<_> = (0..40).filter(|id| *id != 7 && !receiver.has(*id)).collect();
            assert!(missing.is_empty(), "OUTHAUL_TEST_SEED={seed}, outage: {text}: {missing:?}");
        }
    }
}
