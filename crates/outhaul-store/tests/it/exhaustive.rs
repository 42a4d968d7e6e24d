//! Every state that a power cut can leave of small workloads: behind every call, of every unsynced block, name and
//! length either state, the last block torn; then the same of the recovery from it, of the recovery from that, and of
//! what is written then. And every call failing, once and for good, and every write too short.

use std::collections::{BTreeSet, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::sync::Arc;

use outhaul_store::{
    AppendError, Journal, JournalOptions, Kept, Log, Outcome, SimDisk, SimFileSystem, StoreError,
};

use crate::support::{attach, check_sums, open, options, scale, seed, settle, sized, waiting};

#[derive(Debug, Clone, Copy)]
enum Step {
    /// To `a`, to `b`, or to both; with so long a body.
    Append(&'static [&'static str], usize),
    /// The oldest entry of a queue.
    Settle(&'static str),
    SettleAll(&'static str),
    Flush,
    Close,
    Reopen,
}

use Step::{Append, Close, Flush, Reopen, Settle, SettleAll};

const A: &[&str] = &["a"];
const AB: &[&str] = &["a", "b"];

/// Small enough for every state, and between them all that happens to a segment.
const WORKLOADS: &[(&str, u64, &[Step])] = &[
    ("one segment", 4000, &[Append(A, 30), Append(AB, 30), Settle("a"), Append(A, 30)]),
    ("a batch over blocks", 4000, &[Append(A, 700), Append(A, 30)]),
    ("every event a segment", 600, &[Append(A, 300), Append(A, 300), Append(A, 300)]),
    (
        "used again",
        700,
        &[
            Append(A, 300),
            Append(A, 300),
            SettleAll("a"),
            Flush,
            Flush,
            Append(A, 250),
            Append(A, 250),
            Append(A, 250),
        ],
    ),
    ("closed and opened", 900, &[Append(AB, 100), Close, Reopen, Append(A, 100), Settle("b"), Close, Reopen]),
    ("killed and opened", 900, &[Append(A, 200), Reopen, Append(A, 200), Settle("a"), Reopen, Append(A, 20)]),
    (
        "a stuck queue",
        1200,
        &[Append(AB, 20), Append(A, 400), Append(A, 400), Append(A, 400), SettleAll("a"), Flush, Flush],
    ),
];

/// What must hold of a log that is found behind a step.
#[derive(Debug, Clone, Default)]
struct Facts {
    /// Per queue: acknowledged, and not settled for sure.
    there: [BTreeSet<u64>; 2],
    /// Per queue: what may be there besides.
    maybe: [BTreeSet<u64>; 2],
    next: u64,
}

const QUEUES: [&str; 2] = ["a", "b"];

fn at(queue: &str) -> usize {
    usize::from(queue == "b")
}

impl Facts {
    /// What is known while a step is under way.
    fn begun(&self, step: Step) -> Self {
        let mut now = self.clone();
        match step {
            Append(targets, _) => {
                for target in targets {
                    now.maybe[at(target)].insert(self.next);
                }
            }
            // Settled, and not durably: there or not.
            Settle(queue) => now.maybe[at(queue)].extend(now.there[at(queue)].pop_first()),
            SettleAll(queue) => now.maybe[at(queue)].append(&mut std::mem::take(&mut now.there[at(queue)])),
            Flush | Close | Reopen => {}
        }
        now
    }

    fn done(&self, step: Step) -> Self {
        let mut now = self.begun(step);
        match step {
            Append(targets, _) => {
                for target in targets {
                    now.maybe[at(target)].remove(&self.next);
                    now.there[at(target)].insert(self.next);
                }
                now.next += 1;
            }
            // What was settled before is gone for good.
            Flush | Close => now.maybe.iter_mut().for_each(BTreeSet::clear),
            Settle(_) | SettleAll(_) | Reopen => {}
        }
        now
    }

    fn check(&self, log: &Journal, context: &dyn Fn() -> String) {
        check_sums(log);
        assert_eq!(log.report().damage, [], "{}", context());
        for queue in QUEUES {
            let known = log.stats().iter().any(|stats| stats.name.as_str() == queue);
            let entries = if known { waiting(log, queue) } else { Vec::new() };
            let mut found = Vec::new();
            for entry in &entries {
                let event = entry.event.as_ref().unwrap_or_else(|_| panic!("{}: unreadable", context()));
                let id = event.id().parse::<u64>().unwrap();
                assert!(event.body().iter().all(|byte| *byte == id as u8), "{}", context());
                found.push(id);
            }
            assert!(found.is_sorted_by(|a, b| a < b), "{}: {queue}: {found:?}", context());
            let (there, maybe) = (&self.there[at(queue)], &self.maybe[at(queue)]);
            let lost: Vec<_> = there.iter().filter(|id| !found.contains(id)).collect();
            assert!(lost.is_empty(), "{}: {lost:?} lost from {queue}: {found:?}", context());
            let wrong: Vec<_> =
                found.iter().filter(|id| !there.contains(id) && !maybe.contains(id)).collect();
            assert!(wrong.is_empty(), "{}: {wrong:?} in {queue}: {found:?}", context());
        }
    }
}

fn small(size: u64) -> JournalOptions {
    JournalOptions { segment_bytes_first: size, reserve_bytes: 0, ..options(size) }
}

fn opened(fs: &SimFileSystem, size: u64) -> Result<Journal, StoreError> {
    let log = open(Arc::new(fs.clone()), small(size))?;
    attach(&log, &QUEUES);
    Ok(log)
}

/// Runs a workload; the mark of a snapshot is the step that was under way.
fn run(fs: &SimFileSystem, size: u64, steps: &[Step]) {
    let mut log = Some(opened(fs, size).unwrap());
    let mut next = 0;
    for (number, &step) in (0..).zip(steps) {
        fs.set_tag(number);
        let own = || log.as_ref().unwrap();
        match step {
            Append(targets, body) => {
                own().append_sync(vec![sized(next, targets, body)]).remove(0).unwrap();
                next += 1;
            }
            Settle(queue) => settle(own(), &waiting(own(), queue)[0], Outcome::Delivered),
            SettleAll(queue) => {
                waiting(own(), queue).iter().for_each(|entry| settle(own(), entry, Outcome::Delivered));
            }
            Flush => own().flush_sync().unwrap(),
            Close => own().close_sync().unwrap(),
            Reopen => {
                drop(log.take());
                log = Some(opened(fs, size).unwrap());
            }
        }
    }
}

/// Unsynced things of which every subset is tried; of more, so many are drawn.
const ALL_SUBSETS: usize = 7;
const DRAWN: usize = 40;

/// The disks that a power cut could leave, each once.
fn cuts(disk: &SimDisk, random: &mut fastrand::Rng, seen: &mut HashSet<u64>, most: usize) -> Vec<SimDisk> {
    let unsynced = disk.unsynced();
    let mut masks: Vec<u64> = match unsynced {
        0..=ALL_SUBSETS => (0..1 << unsynced).collect(),
        _ => (0..DRAWN).map(|_| random.u64(..)).chain([0, u64::MAX]).collect(),
    };
    if masks.len() > most {
        random.shuffle(&mut masks);
        masks.truncate(most);
    }
    let mut all = Vec::new();
    for mask in masks {
        let whole = |at: usize| if mask >> (at % 64) & 1 == 1 { Kept::All } else { Kept::Nothing };
        // Of the last block that survives, a part; 48 bytes are the header of a batch.
        for torn in [None, Some(1), Some(48), Some(random.usize(2..512))] {
            let last = (0..unsynced).rev().find(|&at| whole(at) == Kept::All);
            let kept = |at: usize| match torn {
                Some(bytes) if Some(at) == last => Kept::Torn(bytes),
                _ => whole(at),
            };
            let image = disk.crash_with(kept);
            if seen.insert(fingerprint(&image)) {
                all.push(image);
            }
            if last.is_none() {
                break;
            }
        }
    }
    all
}

fn fingerprint(disk: &SimDisk) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (path, _) in disk.files() {
        (&path, disk.content(&path)).hash(&mut hasher);
    }
    hasher.finish()
}

/// Opens what a cut left, checks it, and returns what the recovery did on the way.
fn recover(image: SimDisk, size: u64, facts: &Facts, context: &dyn Fn() -> String) -> Vec<(u64, SimDisk)> {
    let fs = SimFileSystem::new(image);
    fs.record();
    let log = opened(&fs, size).unwrap_or_else(|error| panic!("{}: does not open: {error}", context()));
    facts.check(&log, context);
    let recovery = fs.recorded();
    // Then something is written, and the power goes again.
    fs.record();
    let id = facts.next + 1;
    log.append_sync(vec![sized(id, AB, 40)]).remove(0).unwrap();
    let mut after = facts.clone();
    after.there.iter_mut().for_each(|queue| queue.extend([id]));
    for kept in [Kept::All, Kept::Nothing, Kept::Torn(100)] {
        let fs = SimFileSystem::new(fs.disk().crash_with(|_| kept));
        let again = opened(&fs, size).unwrap_or_else(|error| panic!("{}: {error}", context()));
        after.check(&again, context);
    }
    recovery
}

fn search(number: usize, seed: u64) -> usize {
    let (name, size, steps) = WORKLOADS[number];
    let mut random = fastrand::Rng::with_seed(seed);
    let fs = SimFileSystem::default();
    fs.record();
    run(&fs, size, steps);
    let mut facts = vec![Facts::default()];
    for &step in steps {
        facts.push(facts[facts.len() - 1].done(step));
    }
    let (mut states, mut seen) = (0, HashSet::new());
    for (call, (step, disk)) in fs.recorded().into_iter().enumerate() {
        let step = step as usize;
        let now = facts[step].begun(steps[step]);
        for image in cuts(&disk, &mut random, &mut seen, usize::MAX) {
            states += 1;
            let state = states;
            let context =
                || format!("{name}, seed {seed}, call {call}, step {step} {:?}, state {state}", steps[step]);
            let recovery = recover(image, size, &now, &context);
            // Every image has a first recovery; some of those are cut behind each of their calls, twice in a row.
            if random.usize(..3) > 0 {
                continue;
            }
            for (_, second) in recovery {
                for image in cuts(&second, &mut random, &mut seen, 3) {
                    let context = || format!("{}, recovery cut", context());
                    let again = recover(image, size, &now, &context);
                    let (_, third) = &again[random.usize(..again.len())];
                    for image in cuts(third, &mut random, &mut seen, 1) {
                        let context = || format!("{} twice", context());
                        recover(image, size, &now, &context);
                        states += 1;
                    }
                    states += 1;
                }
            }
        }
    }
    states
}

#[test]
fn sim_every_state_that_a_power_cut_can_leave_of_a_small_workload_is_recovered() {
    let seed = seed("sim_every_state_that_a_power_cut_can_leave_of_a_small_workload_is_recovered");
    for (number, (name, ..)) in WORKLOADS.iter().enumerate() {
        // What is drawn differs from round to round.
        let states: usize = (0..scale()).map(|round| search(number, seed.wrapping_add(round))).sum();
        println!("{name}: {states} states");
        assert!(states > 50, "{name}: {states} states are not every one");
    }
}

/// How a call is spoilt.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Once(io::ErrorKind),
    Forever(io::ErrorKind),
    /// A write ends early, with an error; other calls fail.
    Short(usize),
}

/// All that a log does in one life and the beginning of the next, with whatever fails; returns what was acknowledged
/// and what was settled.
fn spoilt(fs: &SimFileSystem, context: &dyn Fn() -> String) -> Facts {
    let mut facts = Facts::default();
    for life in 0..2 {
        let Ok(log) = opened(fs, 700) else { continue };
        for _ in 0..5 {
            let id = facts.next;
            facts.next += 1;
            match log.append_sync(vec![sized(id, AB, 150)]).remove(0) {
                Ok(_) => facts.there.iter_mut().for_each(|queue| queue.extend([id])),
                // Refused outright: it is not there, and never comes.
                Err(AppendError::DiskFull(_)) => {}
                Err(_) => facts.maybe.iter_mut().for_each(|queue| queue.extend([id])),
            }
        }
        let read = log.read_sync(&crate::support::name("a"), 0, 3, 4000);
        for entry in read.map(|read| read.entries).unwrap_or_default() {
            let id = entry.event.as_ref().unwrap_or_else(|_| panic!("{}", context())).id().parse().unwrap();
            let settlement = outhaul_store::Settlement { place: entry.place, outcome: Outcome::Delivered };
            if log.settle_sync(&[settlement]).is_ok() {
                facts.there[0].remove(&id);
                facts.maybe[0].insert(id);
            }
        }
        log.flush_sync().unwrap_or_default();
        check_sums(&log);
        if life == 0 {
            log.close_sync().unwrap_or_default();
        }
    }
    facts
}

#[test]
fn every_call_may_fail_once_or_for_good_and_every_write_may_be_short() {
    let fs = SimFileSystem::default();
    spoilt(&fs, &|| "nothing fails".to_owned());
    let calls = fs.calls();
    assert!(calls > 60, "{calls} calls");
    let mut random = fastrand::Rng::with_seed(1);
    for n in 1..=calls {
        for fault in [
            Fault::Once(io::ErrorKind::Other),
            Fault::Once(io::ErrorKind::StorageFull),
            Fault::Forever(io::ErrorKind::Other),
            Fault::Forever(io::ErrorKind::StorageFull),
            Fault::Short(1),
            Fault::Short(60),
            Fault::Short(511),
        ] {
            let context = || format!("call {n} of {calls}, {fault:?}");
            let fs = SimFileSystem::default();
            match fault {
                Fault::Once(kind) => fs.fail_at(n, kind, false),
                Fault::Forever(kind) => fs.fail_at(n, kind, true),
                Fault::Short(bytes) => fs.shorten_at(n, bytes),
            }
            let facts = spoilt(&fs, &context);
            fs.heal();
            for image in [fs.disk(), fs.disk().crash(&mut random), fs.disk().crash(&mut random)] {
                let fs = SimFileSystem::new(image);
                let log = opened(&fs, 700).unwrap_or_else(|error| panic!("{}: {error}", context()));
                facts.check(&log, &context);
                log.append_sync(vec![sized(facts.next, AB, 40)]).remove(0).unwrap();
            }
        }
    }
}

#[test]
fn the_disk_may_be_full_at_any_byte() {
    let fs = SimFileSystem::default();
    spoilt(&fs, &|| "nothing fails".to_owned());
    for capacity in (0..fs.used() + 200).step_by(37) {
        let context = || format!("{capacity} bytes");
        let fs = SimFileSystem::default();
        fs.set_capacity(Some(capacity));
        let facts = spoilt(&fs, &context);
        // Room comes back, and all goes on by itself.
        fs.set_capacity(None);
        let log = opened(&fs, 700).unwrap_or_else(|error| panic!("{}: {error}", context()));
        facts.check(&log, &context);
        log.append_sync(vec![sized(facts.next, AB, 40)]).remove(0).unwrap();
    }
}
