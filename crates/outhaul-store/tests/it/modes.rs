//! What the options change: durability, compression, looking without touching, cancelling; and what is noted of
//! entries in flight.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use outhaul_store::{
    AppendError, Durability, Journal, JournalOptions, Kept, Log, OpenWatch, Outcome, Shards, SimDisk,
    SimFileSystem, Store, StoreError, StoreOptions,
};

use crate::segments::{append, files, on, settle_all};
use crate::support::{
    admission, attach, check_sums, event, failed, ids, name, open, options, settle, sized, waiting,
};

fn crashes(log: &Journal) -> Vec<u32> {
    waiting(log, "a").iter().map(|entry| entry.crashes).collect()
}

async fn note(log: &Journal, sequences: &[u64]) {
    let lease = log.lease(Shards::All).await.unwrap();
    lease.in_flight(&name("a"), sequences).unwrap();
}

#[tokio::test]
async fn an_entry_that_was_in_flight_at_an_unclean_end_has_one_crash_more() {
    let (fs, log) = on(SimDisk::default(), options(1 << 16));
    attach(&log, &["a"]);
    for id in 0..3 {
        append(&log, id, &["a"], 20);
    }
    assert_eq!(crashes(&log), [0, 0, 0]);
    note(&log, &[1, 3]).await;
    // The note rides with the next commit.
    append(&log, 3, &["a"], 20);
    drop(log);
    let mut disk = fs.disk().crash(&mut fastrand::Rng::with_seed(0));
    // An open that ends uncleanly before anything is in flight again counts nothing.
    for _ in 0..3 {
        let (fs, log) = on(disk, options(1 << 16));
        assert_eq!(crashes(&log), [1, 0, 1, 0]);
        disk = fs.disk();
    }
    let (fs, log) = on(disk, options(1 << 16));
    note(&log, &[3, 4]).await;
    log.flush_sync().unwrap();
    drop(log);
    let (fs, log) = on(fs.disk(), options(1 << 16));
    assert_eq!(crashes(&log), [1, 0, 2, 1]);
    note(&log, &[1, 2, 3, 4]).await;
    log.close_sync().unwrap();
    let (fs, log) = on(fs.disk(), options(1 << 16));
    assert_eq!(crashes(&log), [1, 0, 2, 1], "a clean end counts nothing");
    // What is settled is forgotten, also by the count.
    note(&log, &[1, 2]).await;
    settle(&log, &waiting(&log, "a")[0], Outcome::Delivered);
    log.flush_sync().unwrap();
    drop(log);
    let (_, log) = on(fs.disk(), options(1 << 16));
    assert_eq!(crashes(&log), [1, 2, 1]);
    check_sums(&log);
}

#[tokio::test]
async fn a_note_of_what_is_in_flight_is_replaced_by_the_next_one() {
    let (fs, log) = on(SimDisk::default(), options(1 << 16));
    attach(&log, &["a"]);
    for id in 0..3 {
        append(&log, id, &["a"], 20);
    }
    note(&log, &[1, 2]).await;
    append(&log, 3, &["a"], 20);
    note(&log, &[]).await;
    append(&log, 4, &["a"], 20);
    drop(log);
    let (_, log) = on(fs.disk(), options(1 << 16));
    assert_eq!(crashes(&log), [0; 5]);
}

#[test]
fn a_weaker_durability_says_so_and_loses_only_the_end_of_each_queue() {
    for durability in [Durability::Buffered, Durability::Interval(Duration::from_secs(3600))] {
        for seed in 0..150 {
            let mut random = fastrand::Rng::with_seed(seed);
            let options = JournalOptions { durability, ..options(random.u64(1500..6000)) };
            let (fs, log) = on(SimDisk::default(), options.clone());
            attach(&log, &["a", "b"]);
            let mut sent = BTreeMap::from([("a", Vec::new()), ("b", Vec::new())]);
            let mut safe = sent.clone();
            for id in 0..random.u64(1..25) {
                let targets: &[&str] = [&["a"][..], &["b"], &["a", "b"]][random.usize(..3)];
                let receipt = log.append_sync(vec![sized(id, targets, 200)]).remove(0).unwrap();
                assert!(!receipt.durable);
                for target in targets {
                    sent.get_mut(target).unwrap().push(id);
                }
                if random.u8(0..8) == 0 {
                    log.flush_sync().unwrap();
                    safe = sent.clone();
                }
            }
            // The process alone ends: nothing is lost.
            let (_, killed) = on(fs.disk(), options.clone());
            assert_eq!([ids(&killed, "a"), ids(&killed, "b")], [sent["a"].clone(), sent["b"].clone()]);
            let (fs, cut) = on(fs.disk().crash(&mut random), options.clone());
            assert_eq!(cut.report().damage, [], "seed {seed}");
            attach(&cut, &["a", "b"]);
            for queue in ["a", "b"] {
                let left = ids(&cut, queue);
                assert!(
                    sent[queue].starts_with(&left),
                    "seed {seed}: a suffix is lost: {left:?} of {sent:?}"
                );
                assert!(left.len() >= safe[queue].len(), "seed {seed}: what was flushed stays");
            }
            append(&cut, 99, &["a"], 20);
            cut.flush_sync().unwrap();
            let (_, again) = on(fs.disk().crash(&mut random), options);
            assert_eq!(ids(&again, "a"), ids(&cut, "a"));
            check_sums(&again);
        }
    }
}

#[test]
fn a_synced_log_opened_where_a_weaker_one_was_promises_again() {
    let weak = JournalOptions { durability: Durability::Buffered, ..options(4000) };
    let (fs, log) = on(SimDisk::default(), weak);
    attach(&log, &["a"]);
    append(&log, 0, &["a"], 20);
    drop(log);
    let (fs, log) = on(fs.disk(), options(4000));
    attach(&log, &["a"]);
    let receipt = log.append_sync(vec![admission(1, &["a"])]).remove(0).unwrap();
    assert!(receipt.durable);
    for seed in 0..20 {
        let (_, log) = on(fs.disk().crash(&mut fastrand::Rng::with_seed(seed)), options(4000));
        assert_eq!(ids(&log, "a"), [0, 1], "what the page cache had was made durable first");
    }
}

fn compressed(size: u64) -> JournalOptions {
    JournalOptions { compress: true, ..options(size) }
}

#[test]
fn a_compressed_log_is_smaller_and_tells_the_same() {
    let run = |options: JournalOptions| {
        let (fs, log) = on(SimDisk::default(), options.clone());
        attach(&log, &["a", "b"]);
        for first in (0..40).step_by(4) {
            let batch =
                (first..first + 4).map(|id| sized(id, if id % 3 == 0 { &["a", "b"] } else { &["a"] }, 300));
            assert!(log.append_sync(batch.collect()).iter().all(Result::is_ok));
        }
        for entry in waiting(&log, "a").iter().filter(|entry| entry.place.uid.sequence % 5 != 0) {
            settle(&log, entry, Outcome::Delivered);
        }
        let written: usize = files(&fs.disk(), ".seg")
            .iter()
            .map(|path| fs.disk().content(path).unwrap().iter().filter(|byte| **byte != 0).count())
            .sum();
        log.close_sync().unwrap();
        // Either is read whatever the options say now.
        let (_, log) = on(fs.disk(), JournalOptions { compress: !options.compress, ..options });
        check_sums(&log);
        for entry in waiting(&log, "a").iter().chain(&waiting(&log, "b")) {
            let found = entry.event.as_ref().unwrap();
            assert_eq!(**found, *event(found.id().parse().unwrap(), 300));
        }
        assert_eq!(log.report().damage, []);
        (ids(&log, "a"), ids(&log, "b"), written)
    };
    let (plain, packed) = (run(options(5000)), run(compressed(5000)));
    assert_eq!((&plain.0, &plain.1), (&packed.0, &packed.1));
    assert!(packed.2 < plain.2 * 2 / 3, "{} of {} bytes", packed.2, plain.2);
}

#[test]
fn no_bit_flipped_in_a_compressed_log_passes_for_an_event() {
    let (fs, log) = on(SimDisk::default(), compressed(2000));
    attach(&log, &["a"]);
    for id in 0..4 {
        append(&log, id, &["a"], 200);
    }
    log.close_sync().unwrap();
    let disk = fs.disk();
    for path in files(&disk, ".seg") {
        for bit in 0..disk.content(&path).unwrap().len() * 8 {
            let mut disk = disk.clone();
            disk.flip(&path, bit);
            let (_, log) = on(disk, compressed(2000));
            let entries = waiting(&log, "a");
            let intact: Vec<_> = entries.iter().filter_map(|entry| entry.event.as_ref().ok()).collect();
            for found in &intact {
                assert_eq!(***found, *event(found.id().parse().unwrap(), 200), "bit {bit}");
            }
            let told = entries.len() > intact.len() || !log.report().damage.is_empty();
            assert!(intact.len() == 4 || (intact.len() == 3 && told), "bit {bit}: {} left", intact.len());
        }
    }
}

fn image(disk: &SimDisk) -> BTreeMap<PathBuf, Vec<u8>> {
    disk.files().into_iter().map(|(path, _)| (path.clone(), disk.content(&path).unwrap().to_vec())).collect()
}

/// Disks in many states: closed, killed, cut, damaged, full of leftovers.
fn disks() -> Vec<SimDisk> {
    let (fs, log) = on(SimDisk::default(), options(1500));
    attach(&log, &["a"]);
    fs.record();
    for id in 0..14 {
        append(&log, id, &["a"], 200);
    }
    settle_all(&log, "a");
    append(&log, 20, &["a"], 200);
    log.close_sync().unwrap();
    let mut random = fastrand::Rng::with_seed(5);
    let mut disks: Vec<_> =
        fs.recorded().into_iter().step_by(3).map(|(_, disk)| disk.crash(&mut random)).collect();
    disks.push(fs.disk());
    for _ in 0..60 {
        let mut disk = disks[random.usize(..disks.len())].clone();
        let all = files(&disk, "");
        let Some(path) = all.get(random.usize(..all.len().max(1))) else { continue };
        let length = disk.content(path).unwrap().len();
        match random.u8(..4) {
            0 => disk.delete(path),
            1 => disk.put(path, disk.content(path).unwrap()[..length / 2].to_vec()),
            _ if length == 0 => continue,
            _ => disk.flip(path, random.usize(..length * 8)),
        }
        disks.push(disk);
    }
    disks
}

#[test]
fn looking_changes_nothing_on_disk_and_sees_what_an_open_would() {
    let mut seen = 0;
    for disk in disks() {
        let before = image(&disk);
        for verify in [false, true] {
            let looking = JournalOptions { read_only: true, verify, ..options(1500) };
            let fs = SimFileSystem::new(disk.clone());
            let log = match open(Arc::new(fs.clone()), looking) {
                // There was no directory yet.
                Err(StoreError::Io { what: "list", .. }) => continue,
                other => other.unwrap(),
            };
            let queue = log.stats().iter().any(|stats| stats.name == name("a"));
            let found = if queue { ids_of_readable(&log) } else { Vec::new() };
            let damaged = !log.report().damage.is_empty();
            check_sums(&log);
            assert!(log.append_sync(vec![admission(1, &["a"])])[0].is_err());
            log.close_sync().unwrap();
            drop(log);
            assert_eq!(image(&fs.disk()), before, "verify {verify}");
            let (_, log) = on(disk.clone(), JournalOptions { verify, ..options(1500) });
            let known = log.stats().iter().any(|stats| stats.name == name("a"));
            assert_eq!(if known { ids_of_readable(&log) } else { Vec::new() }, found);
            assert_eq!(!log.report().damage.is_empty(), damaged);
            seen += found.len();
        }
    }
    assert!(seen > 100);
}

fn ids_of_readable(log: &Journal) -> Vec<u64> {
    let entries = waiting(log, "a");
    entries.iter().filter_map(|entry| entry.event.as_ref().ok()?.id().parse().ok()).collect()
}

#[test]
fn verifying_finds_what_the_footers_pass_over() {
    let (fs, log) = on(SimDisk::default(), options(1500));
    attach(&log, &["a"]);
    for id in 0..10 {
        append(&log, id, &["a"], 250);
    }
    log.close_sync().unwrap();
    let mut disk = fs.disk();
    let path = files(&disk, ".seg").remove(1);
    let content = disk.content(&path).unwrap();
    // The second one: the first is the checkpoint.
    let batch = content.windows(4).enumerate().filter(|(_, four)| four == b"OHB0").nth(1).unwrap().0;
    disk.flip(&path, (batch + 20) * 8);
    let looking = |verify| JournalOptions { read_only: true, verify, ..options(1500) };
    let (_, log) = on(disk.clone(), looking(false));
    assert_eq!(log.report().damage, [], "nobody looked");
    let (_, log) = on(disk, looking(true));
    let damage = log.report().damage;
    assert!(damage.len() == 1 && damage[0].offset == batch as u64, "{damage:?}");
}

/// A footer is noted while its segment is written; verifying derives it from the records and compares.
#[test]
fn a_footer_says_what_the_records_of_its_segment_say() {
    for compress in [false, true] {
        let (fs, log) = on(SimDisk::default(), JournalOptions { compress, ..options(20_000) });
        attach(&log, &["a", "b", "c"]);
        let mut random = fastrand::Rng::with_seed(7);
        for round in 0..60 {
            // Bodies that are written from where they are, and such that are copied.
            let count = random.u64(1..9);
            let one = |at: u64| {
                let targets: &[&str] = [&["a"][..], &["a", "b"], &["c", "a"], &[]][random.usize(..4)];
                let mut admission = admission(round * 10 + at, targets);
                admission.position = random.bool().then_some(round * 10 + at);
                admission
            };
            let mut batch: Vec<_> = (0..count).map(one).collect();
            let large = random.usize(..batch.len());
            batch[large].event = sized(round, &["a"], random.usize(200..900)).event;
            let results = log.append_sync(batch);
            assert!(results.iter().all(Result::is_ok));
            if round % 7 == 0 {
                settle(&log, &waiting(&log, "a")[0], Outcome::Delivered);
            }
        }
        log.close_sync().unwrap();
        let footers = files(&fs.disk(), ".seg").len();
        assert!(footers > 2, "{footers}");
        let (_, log) = on(fs.disk(), JournalOptions { read_only: true, verify: true, ..options(20_000) });
        assert_eq!(log.report().damage, [], "compressed: {compress}");
    }
}

#[test]
fn an_open_that_is_cancelled_says_so_and_changes_nothing_that_matters() {
    let (fs, log) = on(SimDisk::default(), options(1500));
    attach(&log, &["a"]);
    for id in 0..10 {
        append(&log, id, &["a"], 200);
    }
    let killed = fs.disk();
    log.close_sync().unwrap();
    for (disk, verify) in [(killed.clone(), false), (killed, true), (fs.disk(), true)] {
        let watch = Arc::new(OpenWatch::default());
        watch.cancel();
        let fs = SimFileSystem::new(disk);
        let options = JournalOptions { verify, watch: Arc::clone(&watch), ..options(1500) };
        let result = open(Arc::new(fs.clone()), options.clone());
        assert!(matches!(result, Err(StoreError::Cancelled)), "{result:?}");
        assert!(watch.total() > 0);
        let watch = Arc::new(OpenWatch::default());
        let log = open(Arc::new(fs), JournalOptions { watch: Arc::clone(&watch), ..options }).unwrap();
        assert_eq!((ids(&log, "a"), log.report().damage), ((0..10).collect::<Vec<_>>(), vec![]));
        assert!(watch.done() > 0 && watch.done() <= watch.total());
    }
}

/// A second failure at each call of what follows a failed sync.
#[test]
fn a_second_failure_while_a_failed_sync_is_healed_loses_nothing() {
    let (mut went_on, mut stopped) = (0, 0);
    for second in 1..25 {
        for kind in [io::ErrorKind::Other, io::ErrorKind::StorageFull] {
            let (fs, log) = on(SimDisk::default(), options(6000));
            attach(&log, &["a"]);
            append(&log, 0, &["a"], 200);
            fs.fail_at(2, io::ErrorKind::Other, false);
            fs.also_fail_at(2 + second, kind);
            let result = log.append_sync(vec![sized(1, &["a"], 200)]).remove(0);
            assert!(matches!(result, Err(AppendError::Unknown(_))), "{result:?}");
            fs.heal();
            let context = format!("second failure {second}, {kind:?}");
            assert_eq!(ids(&log, "a"), [0], "{context}: what is unknown is not shown");
            let result = log.append_sync(vec![sized(2, &["a"], 200)]).remove(0);
            match (&result, log.failure()) {
                (Ok(_), None) => went_on += 1,
                (Err(AppendError::Store(StoreError::Failed(_))), Some(_)) => stopped += 1,
                other => panic!("{context}: {other:?}"),
            }
            for seed in 0..10 {
                let image = fs.disk().crash(&mut fastrand::Rng::with_seed(seed));
                let (fs, again) = on(image, options(6000));
                let found = ids(&again, "a");
                assert!(found.starts_with(&[0]), "{context}: {found:?}");
                assert_eq!(found.contains(&2), result.is_ok(), "{context}: {found:?}");
                assert!(found.iter().all(|id| *id < 3), "{context}: {found:?}");
                assert_eq!(again.report().damage, [], "{context}");
                attach(&again, &["a"]);
                append(&again, 3, &["a"], 20);
                drop(again);
                let (_, again) = on(fs.disk(), options(6000));
                assert_eq!(ids(&again, "a"), [&found[..], &[3]].concat(), "{context}");
            }
        }
    }
    assert!(went_on > 0 && stopped > 0, "{went_on} went on, {stopped} stopped");
}

#[test]
fn the_reserve_is_no_segment_of_a_log_that_is_looked_at() {
    let (fs, log) = on(SimDisk::default(), options(1500));
    log.close_sync().unwrap();
    assert!(fs.disk().content(&Path::new(crate::support::DIR).join("reserve")).is_some());
    let (_, log) = on(fs.disk(), JournalOptions { read_only: true, ..options(1500) });
    assert_eq!(log.report(), Default::default());
}

#[tokio::test]
async fn an_event_behind_a_lost_end_is_not_taken_for_one_that_failed() {
    let open = async |disk| {
        let fs = SimFileSystem::new(disk);
        let mut options = StoreOptions::from(options(1 << 16));
        options.durability = Durability::Interval(Duration::from_secs(60));
        let store = Store::open_on(Arc::new(fs.clone()), std::path::Path::new("/data"), options).await;
        let store = store.unwrap();
        attach(&**store.log(), &["a"]);
        (fs, store)
    };
    let (fs, store) = open(SimDisk::default()).await;
    store.log().flush().await.unwrap();
    let receipt = store.log().append(vec![admission(1, &["a"])]).await.remove(0).unwrap();
    assert!(!receipt.durable);
    store.failed().put(vec![failed("a", receipt.sequence)]).await.unwrap();
    let disk = fs.disk().crash_with(|_| Kept::Nothing);
    drop(store);
    let (fs, store) = open(disk).await;
    let again = store.log().append(vec![admission(2, &["a"])]).await.remove(0).unwrap();
    assert!(again.sequence > receipt.sequence, "{again:?}");
    store.close().await.unwrap();
    drop(store);
    let (_, store) = open(fs.disk()).await;
    assert_eq!(store.log().stats()[0].waiting, 1);
}
