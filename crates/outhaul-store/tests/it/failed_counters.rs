//! The numbers of the failed store against a recount: after every operation the disk is opened once more, as it is
//! then, and must hold just what the numbers say. Some operations meet a disk that fails.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use outhaul_store::event::Uid;
use outhaul_store::{
    AppendError, Discard, Engine, FailedEntry, FailedFull, FailedOptions, FailedStats, SimFileSystem, Store,
    StoreError, StoreOptions, Upkeep,
};
use proptest::prelude::*;

use crate::support::{attach, failed, name};

/// `a` holds at its bound, `b` discards the oldest, `c` lets them expire.
const TARGETS: [&str; 3] = ["a", "b", "c"];
const HOUR: Duration = Duration::from_secs(3600);
const SEQUENCES: u64 = 12;

#[derive(Debug, Clone)]
enum Op {
    /// A target, the sequences, and how many hours ago they failed.
    Put(usize, BTreeSet<u64>, u8),
    Requeue(usize, BTreeSet<u64>),
    Discard(usize, BTreeSet<u64>),
    DiscardBefore(usize, u8),
    DiscardAll(Option<usize>),
    /// The upkeep, so many hours from now.
    Maintain(u8),
    Reopen,
}

fn op() -> impl Strategy<Value = Op> {
    let target = || 0..TARGETS.len();
    let some = || proptest::collection::btree_set(1..=SEQUENCES, 1..6);
    prop_oneof![
        6 => (target(), some(), 0_u8..10).prop_map(|(target, some, ago)| Op::Put(target, some, ago)),
        2 => (target(), some()).prop_map(|(target, some)| Op::Requeue(target, some)),
        2 => (target(), some()).prop_map(|(target, some)| Op::Discard(target, some)),
        1 => (target(), 0_u8..10).prop_map(|(target, ago)| Op::DiscardBefore(target, ago)),
        1 => proptest::option::of(target()).prop_map(Op::DiscardAll),
        2 => (0_u8..10).prop_map(Op::Maintain),
        1 => Just(Op::Reopen),
    ]
}

fn options(target: &str) -> FailedOptions {
    let bounds = FailedOptions { entries_max: 6, ..FailedOptions::default() };
    match target {
        "a" => bounds,
        "b" => FailedOptions { when_full: FailedFull::DiscardOldest, ..bounds },
        _ => FailedOptions { expire_after: Some(8 * HOUR), ..FailedOptions::default() },
    }
}

async fn open(fs: &SimFileSystem, engine: Engine) -> Result<Store, StoreError> {
    let mut options = StoreOptions { engine, ..StoreOptions::default() };
    options.journal.upkeep = Upkeep::Inline;
    options.journal.reserve_bytes = 0;
    options.journal.segment_bytes_first = 4096;
    Store::open_on(Arc::new(fs.clone()), Path::new("/data"), options).await
}

async fn open_configured(fs: &SimFileSystem, engine: Engine) -> Store {
    let store = open(fs, engine).await.unwrap();
    attach(&**store.log(), &TARGETS);
    for target in TARGETS {
        store.failed().configure(&name(target), options(target));
    }
    store
}

type Numbers = BTreeMap<String, (u64, u64, Option<u64>)>;

/// Entries, bytes and the oldest of each target that has any.
fn numbers(stats: &[FailedStats]) -> Numbers {
    let some = stats.iter().filter(|stats| stats.entries > 0);
    some.map(|s| (s.target.to_string(), (s.entries, s.bytes, s.oldest_ms))).collect()
}

/// What left since open, by each counter.
fn left(store: &Store) -> [u64; 4] {
    let mut sums = [0; 4];
    for s in store.failed().stats() {
        for (sum, more) in sums.iter_mut().zip([s.requeued, s.discarded, s.discarded_oldest, s.expired]) {
            *sum += more;
        }
    }
    sums
}

fn here(store: &Store) -> BTreeSet<Uid> {
    store.failed().uids().into_iter().collect()
}

/// What somebody finds who opens the disk as it is now.
async fn recount(fs: &SimFileSystem, engine: Engine) -> (Numbers, BTreeSet<Uid>) {
    let store = open(&SimFileSystem::new(fs.disk()), engine).await.unwrap();
    let found = (numbers(&store.failed().stats()), here(&store));
    store.close().await.unwrap();
    found
}

/// An entry of the failed store, and the newest sequences that its queue ever had are above it.
fn entry(target: &str, sequence: u64, failed_ms: u64) -> FailedEntry {
    let mut entry = failed(target, sequence);
    // Lengths that need one byte and two, in whatever stores them.
    entry.failure.detail = "x".repeat(sequence as usize * 17);
    entry.failure.failed_ms = failed_ms;
    entry
}

/// Does it; true if it was refused or failed.
async fn run(store: &Store, op: &Op, now: SystemTime) -> bool {
    let failed = store.failed();
    let hours = |count: &u8| u32::from(*count) * HOUR;
    let ago_ms = |ago: &u8| outhaul_store::unix_millis(now - hours(ago));
    match op {
        Op::Put(target, some, ago) => {
            let entries = some.iter().map(|&sequence| entry(TARGETS[*target], sequence, ago_ms(ago)));
            failed.put(entries.collect()).await.is_err()
        }
        Op::Requeue(target, some) => {
            failed.requeue(&uids_of(*target, some)).await.iter().any(|answer| answer.is_err())
        }
        Op::Discard(target, some) => failed.discard(Discard::Uids(uids_of(*target, some))).await.is_err(),
        Op::DiscardBefore(target, ago) => {
            let before =
                Discard::Before { failed_before: now - hours(ago), target: Some(name(TARGETS[*target])) };
            failed.discard(before).await.is_err()
        }
        Op::DiscardAll(target) => {
            failed.discard(Discard::All { target: target.map(|at| name(TARGETS[at])) }).await.is_err()
        }
        Op::Maintain(hours_on) => failed.maintain(now + hours(hours_on)).await.is_err(),
        Op::Reopen => false,
    }
}

/// Which of the counters an operation may move: requeued, discarded, discarded as the oldest, expired.
fn moves(op: &Op) -> [bool; 4] {
    match op {
        Op::Put(..) => [false, false, true, false],
        Op::Requeue(..) => [true, false, false, false],
        Op::Discard(..) | Op::DiscardBefore(..) | Op::DiscardAll(_) => [false, true, false, false],
        Op::Maintain(_) => [false, false, true, true],
        Op::Reopen => [false; 4],
    }
}

async fn check(engine: Engine, ops: Vec<(Op, Option<u64>)>) {
    let fs = SimFileSystem::default();
    let mut store = open_configured(&fs, engine).await;
    // Sequences of the queues are above those of the failed entries.
    store.log().pass_over(SEQUENCES);
    let now = SystemTime::now();
    for (at, (op, fails)) in ops.into_iter().enumerate() {
        if matches!(op, Op::Reopen) {
            let before = (numbers(&store.failed().stats()), here(&store));
            store.close().await.unwrap();
            store = open_configured(&fs, engine).await;
            assert_eq!((numbers(&store.failed().stats()), here(&store)), before, "{at}: reopened");
            continue;
        }
        let (before, counted) = (here(&store), left(&store));
        if let Some(n) = fails {
            fs.fail_at(n, io::ErrorKind::Other, false);
        }
        let failed = run(&store, &op, now).await;
        fs.heal();
        let after = here(&store);
        let what = format!("{at}: {op:?} {fails:?}, failed: {failed}");
        let mut gone = 0;
        for ((was, is), may) in counted.into_iter().zip(left(&store)).zip(moves(&op)) {
            assert!(is == was || (may && is > was), "{what}: {counted:?} became {:?}", left(&store));
            gone += is - was;
        }
        let (went, came) =
            (before.difference(&after).count() as u64, after.difference(&before).count() as u64);
        match &op {
            // One that is older than all of the others goes as soon as it comes.
            Op::Put(_, some, _) => {
                assert!(
                    gone >= went && gone - went + came <= some.len() as u64,
                    "{what}: {gone} {went} {came}"
                );
            }
            _ => assert_eq!((gone, 0), (went, came), "{what}"),
        }
        for uid in &after {
            assert!(
                store.failed().get(uid).await.unwrap().is_some(),
                "{what}: {uid} is counted, and is not there"
            );
        }
        let (recounted, found) = recount(&fs, engine).await;
        match failed || fails.is_some() {
            false => {
                assert_eq!(numbers(&store.failed().stats()), recounted, "{what}");
                assert_eq!(after, found, "{what}");
            }
            // What was not confirmed may be there still, or again, at the next open.
            true => {
                // A requeue whose removal failed is finished at the next open.
                let finished: BTreeSet<_> = match &op {
                    Op::Requeue(target, some) => uids_of(*target, some).into_iter().collect(),
                    _ => BTreeSet::new(),
                };
                let lost: BTreeSet<_> = after.difference(&found).cloned().collect();
                assert!(lost.is_subset(&finished), "{what}: counted {after:?}, found {found:?}");
                assert!(
                    found.is_subset(&before.union(&after).cloned().chain(asked(&op)).collect()),
                    "{what}"
                );
            }
        }
        if fails.is_some() {
            // A log that stopped writing is opened again, as a process would be started again.
            drop(store);
            store = open_configured(&fs, engine).await;
        }
    }
}

fn asked(op: &Op) -> Vec<Uid> {
    match op {
        Op::Put(target, some, _) => uids_of(*target, some),
        _ => Vec::new(),
    }
}

fn uids_of(target: usize, some: &BTreeSet<u64>) -> Vec<Uid> {
    some.iter().map(|&sequence| Uid { queue: name(TARGETS[target]), sequence }).collect()
}

fn run_all(engine: Engine, ops: Vec<(Op, Option<u64>)>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(check(engine, ops));
}

fn workload(fails: impl Strategy<Value = Option<u64>>) -> impl Strategy<Value = Vec<(Op, Option<u64>)>> {
    proptest::collection::vec((op(), fails), 1..25)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_numbers_of_the_failed_store_are_what_a_recount_finds(ops in workload(Just(None))) {
        run_all(Engine::Journal, ops.clone());
        run_all(Engine::Spool, ops);
    }

    #[test]
    fn a_disk_that_fails_leaves_the_numbers_right(
        ops in workload(proptest::option::weighted(0.3, 1_u64..40)),
    ) {
        run_all(Engine::Journal, ops.clone());
        run_all(Engine::Spool, ops);
    }
}

/// A batch larger than the bound, on a disk that fails: what is dropped by policy is counted once, with the put that
/// is done.
#[tokio::test]
async fn what_does_not_fit_is_counted_with_the_put_that_is_done() {
    for engine in [Engine::Journal, Engine::Spool] {
        let fs = SimFileSystem::default();
        let store = open_configured(&fs, engine).await;
        let all = || (1..=9).map(|sequence| entry("b", sequence, sequence)).collect::<Vec<_>>();
        store.failed().put(vec![entry("b", 100, 1)]).await.unwrap();
        store.failed().discard(Discard::All { target: None }).await.unwrap();
        fs.fail_at(1, io::ErrorKind::StorageFull, true);
        let refused = store.failed().put(all()).await.unwrap_err();
        assert!(matches!(refused, AppendError::DiskFull(_)), "{engine:?}: {refused:?}");
        fs.heal();
        store.failed().put(all()).await.unwrap();
        let stats = store.failed().stats().into_iter().find(|stats| stats.target == name("b")).unwrap();
        assert_eq!((stats.entries, stats.discarded_oldest), (6, 3), "{engine:?}");
    }
}
