//! Merging, and what frees segments besides delivering: a stuck queue, a log that is opened often, a queue that goes.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use outhaul_store::{
    AppendError, DirEntry, File, FileSystem, Journal, Lock, Log, Outcome, RetryState, Shards, SimDisk,
    SimFileSystem, Space, Stat, StoreError,
};

use crate::segments::{append, files, on, settle_all};
use crate::support::{admission, attach, check_sums, ids, name, open, options, settle, sized, waiting};

const SEGMENT: u64 = 3000;
const RETRIED: RetryState = RetryState { attempts: 4, not_before: UNIX_EPOCH };

fn stuck_ids() -> Vec<u64> {
    (0..60).step_by(15).collect()
}

/// A log in which one queue is stuck at a few entries of many; the other has not delivered yet.
fn stuck() -> (SimFileSystem, Journal) {
    let (fs, log) = on(SimDisk::default(), options(SEGMENT));
    attach(&log, &["a", "stuck"]);
    for id in 0..60 {
        append(&log, id, if id % 15 == 0 { &["stuck", "a"] } else { &["a"] }, 250);
    }
    settle(&log, &waiting(&log, "stuck")[1], Outcome::Retry(RETRIED));
    log.flush_sync().unwrap();
    (fs, log)
}

/// What must stay as it is: sequence, number of the event, attempts.
fn picture(log: &Journal) -> Vec<(u64, u64, u32)> {
    let each = |entry: outhaul_store::Entry| {
        let id = entry.event.unwrap().id().parse().unwrap();
        (entry.place.uid.sequence, id, entry.retry.map_or(0, |retry| retry.attempts))
    };
    waiting(log, "stuck").into_iter().map(each).collect()
}

#[test]
fn a_stuck_queue_pins_only_what_it_wants() {
    let (fs, log) = stuck();
    let before = (picture(&log), fs.used(), files(&fs.disk(), ".seg").len());
    settle_all(&log, "a");
    for _ in 0..5 {
        log.flush_sync().unwrap();
    }
    assert_eq!(picture(&log), before.0, "sequences, order, retries");
    let left = files(&fs.disk(), ".seg").len();
    assert!(left <= 3 && before.2 > 5, "{left} of {} segments", before.2);
    assert!(fs.used() < before.1 / 2, "{} of {} bytes", fs.used(), before.1);
    check_sums(&log);
    log.close_sync().unwrap();
    let (fs, log) = on(fs.disk(), options(SEGMENT));
    assert_eq!((picture(&log), log.report().damage), (before.0, vec![]));
    // Places of merged entries settle as any.
    attach(&log, &["stuck"]);
    append(&log, 70, &["stuck"], 20);
    settle(&log, &waiting(&log, "stuck")[2], Outcome::Delivered);
    assert_eq!(ids(&log, "stuck"), [0, 15, 45, 70]);
    settle_all(&log, "stuck");
    for _ in 0..3 {
        log.flush_sync().unwrap();
    }
    assert_eq!(files(&fs.disk(), ".seg").len(), 1, "{:?}", fs.disk().files());
    check_sums(&log);
}

/// A power cut behind every call of a merge; on each image the merge may happen again, and is cut again.
#[test]
fn a_power_cut_during_a_merge_loses_and_repeats_nothing_of_a_stuck_queue() {
    let (fs, log) = stuck();
    let expected = picture(&log);
    fs.record();
    settle_all(&log, "a");
    for _ in 0..3 {
        log.flush_sync().unwrap();
    }
    log.close_sync().unwrap();
    let snapshots = fs.recorded();
    assert!(snapshots.iter().any(|(_, disk)| !files(disk, ".tmp").is_empty()), "there was a merge");
    let mut random = fastrand::Rng::with_seed(3);
    for (call, (_, disk)) in snapshots.into_iter().enumerate() {
        for _ in 0..4 {
            let fs = SimFileSystem::new(disk.crash(&mut random));
            fs.record();
            let log = open(Arc::new(fs.clone()), options(SEGMENT)).unwrap();
            assert_eq!((picture(&log), log.report().damage), (expected.clone(), vec![]), "call {call}");
            check_sums(&log);
            settle_all(&log, "a");
            log.flush_sync().unwrap();
            let images = fs.recorded();
            let (_, again) = &images[random.usize(..images.len())];
            let (_, log) = on(again.crash(&mut random), options(SEGMENT));
            let both = (picture(&log), log.report().damage);
            assert_eq!(both, (expected.clone(), vec![]), "call {call}, cut twice");
        }
    }
}

#[test]
fn what_is_settled_behind_a_merge_stays_settled_over_a_power_cut() {
    let (fs, log) = stuck();
    settle_all(&log, "a");
    for _ in 0..3 {
        log.flush_sync().unwrap();
    }
    settle(&log, &waiting(&log, "stuck")[0], Outcome::Delivered);
    log.flush_sync().unwrap();
    for seed in 0..20 {
        let (_, log) = on(fs.disk().crash(&mut fastrand::Rng::with_seed(seed)), options(SEGMENT));
        assert_eq!(ids(&log, "stuck"), stuck_ids()[1..]);
    }
}

#[test]
fn entries_settled_while_their_segments_are_merged_are_settled_once() {
    let (fs, log) = stuck();
    settle_all(&log, "a");
    let stuck: Vec<_> = waiting(&log, "stuck");
    // Places that were read before the merge are used behind it.
    log.flush_sync().unwrap();
    for entry in &stuck[..2] {
        settle(&log, entry, Outcome::Delivered);
        settle(&log, entry, Outcome::Failed);
        log.flush_sync().unwrap();
    }
    let stats = log.stats().into_iter().find(|stats| stats.name == name("stuck")).unwrap();
    assert_eq!((stats.delivered, stats.failed, stats.waiting), (2, 0, 2));
    check_sums(&log);
    let (_, log) = on(fs.disk(), options(SEGMENT));
    assert_eq!(ids(&log, "stuck"), stuck_ids()[2..]);
}

#[test]
fn failing_calls_during_a_merge_lose_nothing() {
    for n in 1..80 {
        for kind in [io::ErrorKind::Other, io::ErrorKind::StorageFull] {
            let (fs, log) = stuck();
            let expected = picture(&log);
            settle_all(&log, "a");
            fs.fail_at(n, kind, false);
            // A flush that meets the error says so.
            log.flush_sync().unwrap_or_default();
            log.flush_sync().unwrap_or_default();
            fs.heal();
            assert_eq!(picture(&log), expected, "call {n}");
            check_sums(&log);
            let image = fs.disk().crash(&mut fastrand::Rng::with_seed(n));
            let (_, log) = on(image, options(SEGMENT));
            assert_eq!((picture(&log), log.report().damage), (expected, vec![]), "call {n}");
        }
    }
}

/// A disk on which one file stays, whatever is asked.
#[derive(Debug)]
struct Stubborn {
    disk: SimFileSystem,
    stays: PathBuf,
}

impl FileSystem for Stubborn {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.disk.create_dir_all(dir)
    }
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.disk.create(path)
    }
    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn File>> {
        self.disk.open(path, write)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.disk.list(dir)
    }
    fn stat(&self, path: &Path) -> io::Result<Stat> {
        self.disk.stat(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        if from == self.stays {
            Err(io::ErrorKind::PermissionDenied.into())
        } else {
            self.disk.rename(from, to)
        }
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        if path == self.stays { Err(io::ErrorKind::PermissionDenied.into()) } else { self.disk.remove(path) }
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.sync_dir(dir)
    }
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>> {
        FileSystem::lock(&self.disk, path)
    }
    fn space(&self, path: &Path) -> io::Result<Space> {
        self.disk.space(path)
    }
}

#[test]
fn a_finished_segment_that_cannot_be_removed_hides_nothing_of_what_was_merged_around_it() {
    let disk = SimFileSystem::default();
    let stays = Path::new(crate::support::DIR).join("00000000000000000002.seg");
    let log =
        open(Arc::new(Stubborn { disk: disk.clone(), stays: stays.clone() }), options(SEGMENT)).unwrap();
    attach(&log, &["a", "stuck"]);
    for id in 0..60 {
        append(&log, id, if id % 15 == 0 { &["stuck", "a"] } else { &["a"] }, 250);
    }
    settle_all(&log, "a");
    for _ in 0..3 {
        log.flush_sync().unwrap();
    }
    let left = files(&disk.disk(), ".seg");
    assert!(left.contains(&stays) && left.len() <= 4, "{left:?}");
    assert_eq!(ids(&log, "stuck"), stuck_ids());
    let (_, log) = on(disk.disk(), options(SEGMENT));
    assert_eq!((ids(&log, "stuck"), log.report().damage), (stuck_ids(), vec![]));
}

#[test]
fn a_log_that_is_opened_often_does_not_collect_small_files() {
    for close in [true, false] {
        let mut disk = SimDisk::default();
        for id in 0..40 {
            let (fs, log) = on(disk, options(1 << 16));
            attach(&log, &["a"]);
            append(&log, id, &["a"], 20);
            if close {
                log.close_sync().unwrap();
            }
            assert_eq!(ids(&log, "a"), (0..=id).collect::<Vec<_>>());
            disk = fs.disk();
        }
        let left = files(&disk, ".seg").len();
        assert!(left <= 12, "{left} segments, closed {close}");
        let (_, log) = on(disk, options(1 << 16));
        assert_eq!((ids(&log, "a"), log.report().damage), ((0..40).collect::<Vec<_>>(), vec![]));
        check_sums(&log);
    }
}

#[test]
fn a_queue_that_is_removed_frees_its_segments_and_its_name() {
    let (fs, log) = on(SimDisk::default(), options(2000));
    attach(&log, &["a", "gone"]);
    for id in 0..40 {
        append(&log, id, if id % 20 == 0 { &["a", "gone"] } else { &["gone"] }, 250);
    }
    assert!(matches!(log.remove_sync(&name("gone")), Err(StoreError::Attached(_))));
    assert!(matches!(log.remove_sync(&name("never")), Err(StoreError::UnknownQueue(_))));
    log.detach(&name("gone")).unwrap();
    let refused = log.append_sync(vec![admission(90, &["gone"])]).remove(0);
    assert!(matches!(refused, Err(AppendError::UnknownQueue(_))), "{refused:?}");
    let before = fs.used();
    assert_eq!(log.remove_sync(&name("gone")).unwrap(), 40);
    // Durable when it is confirmed, whatever the disk kept of the rest.
    for seed in 0..20 {
        let (_, log) = on(fs.disk().crash(&mut fastrand::Rng::with_seed(seed)), options(2000));
        assert!(log.stats().iter().all(|stats| stats.name != name("gone")), "seed {seed}");
        assert_eq!((ids(&log, "a"), log.report().damage), (vec![0, 20], vec![]));
    }
    assert!(log.read_sync(&name("gone"), 0, 1, 1).is_err());
    for _ in 0..4 {
        log.flush_sync().unwrap();
    }
    assert!(fs.used() < before / 2, "{} of {before} bytes", fs.used());
    // The name is a new queue's: nothing of the old one is in it, now or later.
    attach(&log, &["gone"]);
    assert!(ids(&log, "gone").is_empty());
    append(&log, 41, &["gone", "a"], 20);
    check_sums(&log);
    log.close_sync().unwrap();
    let (_, log) = on(fs.disk(), options(2000));
    assert_eq!((ids(&log, "gone"), ids(&log, "a")), (vec![41], vec![0, 20, 41]));
    assert_eq!(log.report().damage, []);
    check_sums(&log);
}

#[tokio::test]
async fn a_queue_is_removed_through_the_contract_and_its_lease_knows_it_no_more() {
    let (_, log) = on(SimDisk::default(), options(1 << 16));
    attach(&log, &["a", "b"]);
    log.append(vec![admission(1, &["a", "b"]), admission(2, &["a"])]).await;
    let lease = log.lease(Shards::All).await.unwrap();
    let read = lease.read(&name("a"), 0, 9, 1 << 20).await.unwrap();
    log.detach(&name("a")).unwrap();
    assert_eq!(log.remove(&name("a")).await.unwrap(), 2);
    assert!(matches!(lease.read(&name("a"), 0, 9, 1 << 20).await, Err(StoreError::UnknownQueue(_))));
    let place = read.entries[0].place.clone();
    let late = outhaul_store::Settlement { place, outcome: Outcome::Delivered };
    assert!(matches!(lease.settle(vec![late.clone()]).await, Err(StoreError::UnknownQueue(_))));
    // A new queue of that name is not settled by what was read from the old one.
    attach(&log, &["a"]);
    log.append(vec![admission(3, &["a"])]).await.remove(0).unwrap();
    lease.settle(vec![late]).await.unwrap();
    assert_eq!((ids(&log, "a"), ids(&log, "b")), (vec![3], vec![1]));
    check_sums(&log);
    log.close().await.unwrap();
}

/// Removal and what is being written at the time: the events of other queues stay, at every cut.
#[test]
fn a_power_cut_during_a_removal_leaves_the_queue_whole_or_gone() {
    let (fs, log) = on(SimDisk::default(), options(2000));
    attach(&log, &["a", "gone"]);
    for id in 0..12 {
        append(&log, id, if id % 3 == 0 { &["a", "gone"] } else { &["gone"] }, 250);
    }
    log.detach(&name("gone")).unwrap();
    fs.record();
    fs.set_tag(0);
    log.remove_sync(&name("gone")).unwrap();
    fs.set_tag(1);
    append(&log, 12, &["a"], 250);
    log.flush_sync().unwrap();
    let mut random = fastrand::Rng::with_seed(1);
    for (confirmed, disk) in fs.recorded() {
        for _ in 0..10 {
            let (_, log) = on(disk.crash(&mut random), options(2000));
            let found = ids(&log, "a");
            assert_eq!(found[..4], [0, 3, 6, 9]);
            let there = log.stats().iter().any(|stats| stats.name == name("gone"));
            assert!(!there || confirmed == 0, "it was confirmed");
            if there {
                assert_eq!(ids(&log, "gone"), (0..12).collect::<Vec<_>>());
            }
            assert_eq!(log.report().damage, []);
            check_sums(&log);
        }
    }
}

/// Merged entries keep what requeueing and diagnosing need.
#[test]
fn attachments_and_times_survive_a_merge() {
    let (fs, log) = on(SimDisk::default(), options(SEGMENT));
    attach(&log, &["a", "stuck"]);
    for id in 0..30 {
        let mut admission = sized(id, if id % 10 == 0 { &["stuck"] } else { &["a"] }, 250);
        admission.attachment = vec![id as u8; 5].into();
        log.append_sync(vec![admission]).remove(0).unwrap();
    }
    let details = |log: &Journal| -> BTreeMap<u64, _> {
        let each = |entry: outhaul_store::Entry| {
            (entry.place.uid.sequence, (entry.attachment, entry.admitted_at, entry.dedup_id))
        };
        waiting(log, "stuck").into_iter().map(each).collect()
    };
    let before = details(&log);
    settle_all(&log, "a");
    for _ in 0..3 {
        log.flush_sync().unwrap();
    }
    assert!(files(&fs.disk(), ".seg").len() <= 3);
    assert_eq!(details(&log), before);
    assert!(before.values().all(|(_, at, _)| *at > UNIX_EPOCH + Duration::from_secs(1)));
    log.close_sync().unwrap();
    let (_, log) = on(fs.disk(), options(SEGMENT));
    assert_eq!(details(&log), before);
}

#[test]
fn a_merged_segment_that_is_merged_again_leaves_nothing_missing() {
    let (fs, log) = on(SimDisk::default(), options(6000));
    attach(&log, &["a", "b", "stuck"]);
    for id in 0..120 {
        let queue = match id {
            0..40 if id % 5 == 0 => "stuck",
            0..40 => "a",
            _ => "b",
        };
        append(&log, id, &[queue], 250);
    }
    let b = waiting(&log, "b");
    settle_all(&log, "a");
    b[..30].iter().for_each(|entry| settle(&log, entry, Outcome::Delivered));
    (0..3).for_each(|_| log.flush_sync().unwrap());
    waiting(&log, "stuck")[..7].iter().for_each(|entry| settle(&log, entry, Outcome::Delivered));
    b[30..60].iter().for_each(|entry| settle(&log, entry, Outcome::Delivered));
    (0..3).for_each(|_| log.flush_sync().unwrap());
    let left = ids(&log, "stuck");
    let (_, log) = on(fs.disk(), options(6000));
    assert_eq!((ids(&log, "stuck"), log.report().damage), (left, vec![]));
}
