//! A disk that cannot read. The outcome is an error, or damage that is reported: never a silent gap, never a wrong
//! event; and a later open, when the disk can read again, finds everything.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use outhaul_store::{
    Journal, Log, OpenWatch, Outcome, SimDisk, SimFileSystem, Spool, SpoolOptions, StoreError,
};

use crate::segments::{append, files, on};
use crate::support::{DIR, attach, event, ids, name, open, options, settle, sized, waiting};

const QUEUES: [&str; 2] = ["a", "b"];
const EVENTS: u64 = 24;

fn targets(id: u64) -> &'static [&'static str] {
    if id.is_multiple_of(3) { &QUEUES } else { &QUEUES[..1] }
}

/// What waits in the two queues at the end: of `a` every fourth is delivered.
fn expected(queue: &str) -> Vec<u64> {
    let of = |id: &u64| if queue == "a" { id % 4 != 1 } else { id.is_multiple_of(3) };
    (0..EVENTS).filter(of).collect()
}

/// Logs of several segments: closed in order; killed; and killed with footers that were never written.
fn disks() -> Vec<SimDisk> {
    let mut all = Vec::new();
    let (fs, log) = on(SimDisk::default(), options(1500));
    attach(&log, &QUEUES);
    for id in 0..EVENTS {
        append(&log, id, targets(id), 150);
    }
    for entry in waiting(&log, "a") {
        if entry.event.as_ref().unwrap().id().parse::<u64>().unwrap() % 4 == 1 {
            settle(&log, &entry, Outcome::Delivered);
        }
    }
    log.flush_sync().unwrap();
    let killed = fs.disk();
    log.close_sync().unwrap();
    let mut bare = killed.clone();
    for path in files(&killed, ".seg") {
        let mut content = killed.content(&path).unwrap().to_vec();
        let length = content.len();
        content[length - 32..].fill(0);
        bare.put(&path, content);
    }
    all.extend([fs.disk(), killed, bare]);
    all
}

/// All that can be read of a queue: whether anything in it was unreadable, and the ids of the rest.
fn read(log: &Journal, queue: &str) -> Result<(bool, Vec<u64>), StoreError> {
    let (mut after, mut bad, mut found) = (0, false, Vec::new());
    loop {
        let read = log.read_sync(&name(queue), after, 5, 1 << 20)?;
        if read.entries.is_empty() {
            return Ok((bad, found));
        }
        after = read.next;
        for entry in read.entries {
            let Ok(read) = entry.event else {
                bad = true;
                continue;
            };
            let id = read.id().parse().unwrap();
            assert_eq!(read, event(id, 150), "an event is whole");
            found.push(id);
        }
    }
}

/// One life on a disk that cannot read everything. True if it went as if nothing were wrong.
fn live(fs: &SimFileSystem, what: &str) -> bool {
    let log = match open(Arc::new(fs.clone()), options(1500)) {
        Ok(log) => log,
        Err(StoreError::Io { .. }) => return false,
        Err(error) => panic!("{what}: {error}"),
    };
    attach(&log, &QUEUES);
    let mut whole = true;
    for queue in QUEUES {
        match read(&log, queue) {
            Ok((bad, found)) => {
                let (got, all) = (BTreeSet::from_iter(found.clone()), BTreeSet::from_iter(expected(queue)));
                assert!(found.is_sorted() && got.is_subset(&all), "{what}: {queue} {found:?}");
                let missing = got.len() < all.len();
                let told = bad || !log.report().damage.is_empty();
                assert!(!missing || told, "{what}: {queue} misses some in silence: {found:?}");
                whole &= !missing && !bad;
            }
            Err(StoreError::Io { .. }) => whole = false,
            Err(error) => panic!("{what}: {error}"),
        }
    }
    // It goes on as well as it can.
    for id in [1000, 1001] {
        drop(log.append_sync(vec![sized(id, &QUEUES, 150)]));
        settle_new(&log);
    }
    log.close_sync().unwrap_or_default();
    whole
}

/// Delivers what came behind all of it: that says nothing of what is before.
fn settle_new(log: &Journal) {
    for queue in QUEUES {
        let Ok(read) = log.read_sync(&name(queue), 0, 100, 1 << 20) else { continue };
        for entry in read.entries {
            if entry.event.as_ref().is_ok_and(|event| event.id() == "1000") {
                settle(log, &entry, Outcome::Delivered);
            }
        }
    }
}

fn check_later(fs: &SimFileSystem, what: &str) {
    fs.heal();
    let (_, log) = on(fs.disk(), options(1500));
    attach(&log, &QUEUES);
    for queue in QUEUES {
        let found: Vec<u64> = ids(&log, queue).into_iter().filter(|id| *id < 1000).collect();
        assert_eq!(found, expected(queue), "{what}: {queue} later; {:?}", log.report());
    }
}

#[test]
fn each_read_that_fails_is_told_and_costs_nothing_later() {
    for (at, disk) in disks().into_iter().enumerate() {
        for count in [1, 2, 3, u64::MAX / 2] {
            let mut whole = 0;
            for n in 1.. {
                let fs = SimFileSystem::new(disk.clone());
                fs.fail_reads_at(n, count);
                let what = format!("disk {at}, {count} reads from read {n} on");
                whole += u64::from(live(&fs, &what));
                let over = fs.reads() < n;
                check_later(&fs, &what);
                if over {
                    assert!(n > 30, "{what}: there are more reads");
                    // One that fails once is read again.
                    assert!(count > 1 || whole > n / 2, "{what}: {whole} went well");
                    break;
                }
            }
        }
    }
}

#[test]
fn a_place_that_cannot_be_read_is_told_and_costs_nothing_later() {
    for (at, disk) in disks().into_iter().enumerate() {
        for path in files(&disk, "") {
            let length = disk.content(&path).unwrap().len() as u64;
            for from in (0..length).step_by(64) {
                let fs = SimFileSystem::new(disk.clone());
                fs.spoil(&path, from, from + 64);
                let what = format!("disk {at}, {} from {from}", path.display());
                live(&fs, &what);
                check_later(&fs, &what);
            }
        }
    }
}

/// Verifying reads everything, changes nothing, and tells what could not be read.
#[test]
fn a_place_that_cannot_be_read_is_found_by_verifying() {
    for (at, disk) in disks().into_iter().enumerate() {
        for path in files(&disk, ".seg") {
            // Into the batches, which begin behind the header.
            for from in (64..600).step_by(67) {
                let fs = SimFileSystem::new(disk.clone());
                fs.spoil(&path, from, from + 32);
                let verified = Journal::verify(Arc::new(fs), Path::new(DIR), Arc::new(OpenWatch::default()));
                match verified {
                    Ok(log) => {
                        assert_ne!(log.report().damage, [], "disk {at}, {} from {from}", path.display())
                    }
                    Err(error) => assert!(matches!(error, StoreError::Io { .. }), "{error}"),
                }
            }
        }
    }
}

#[test]
fn each_read_of_a_spool_that_fails_is_told_and_costs_nothing_later() {
    let open = |fs: &SimFileSystem| {
        Spool::open(Arc::new(fs.clone()), Path::new("/data/spool"), SpoolOptions::default())
    };
    let fs = SimFileSystem::default();
    let spool = open(&fs).unwrap();
    attach(&spool, &["a"]);
    for id in 0..8 {
        spool.append_sync(vec![crate::support::sized(id, &["a"], 150)]).remove(0).unwrap();
    }
    spool.close_sync().unwrap();
    let disk = fs.disk();
    let all: Vec<u64> = (0..8).collect();
    let read = |spool: &Spool| -> Result<Vec<u64>, StoreError> {
        let entries = spool.read_sync(&name("a"), 0, 100, 1 << 20)?.entries;
        Ok(entries.iter().map(|entry| entry.event.as_ref().unwrap().id().parse().unwrap()).collect())
    };
    for count in [1, 3, u64::MAX / 2] {
        for n in 1.. {
            let fs = SimFileSystem::new(disk.clone());
            fs.fail_reads_at(n, count);
            if let Ok(spool) = open(&fs) {
                attach(&spool, &["a"]);
                // A part, and the next read goes on from there or fails.
                match read(&spool) {
                    Ok(found) => assert!(all.starts_with(&found) && !found.is_empty(), "read {n}: {found:?}"),
                    Err(error) => assert!(matches!(error, StoreError::Io { .. }), "{error}"),
                }
            }
            let over = fs.reads() < n;
            fs.heal();
            let spool = open(&SimFileSystem::new(fs.disk())).unwrap();
            attach(&spool, &["a"]);
            assert_eq!(read(&spool).unwrap(), all, "read {n}, later");
            if over {
                assert!(n > 8);
                break;
            }
        }
    }
}
