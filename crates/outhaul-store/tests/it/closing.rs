//! Closing and opening again, over and over: nothing piles up, and what is found is what was left.

use std::path::Path;
use std::sync::Arc;

use outhaul_store::{JournalOptions, Log, QueueSettings, SimDisk, SimFileSystem};

use crate::segments::{append, files, on, settle_all};
use crate::support::{DIR, attach, check_sums, ids, name, open, options};

/// A label that makes a checkpoint so long that no second one fits behind it.
fn attach_long(log: &dyn Log, queue: &str) {
    let label = "l".repeat(1000);
    log.attach(&name(queue), QueueSettings { label, ..QueueSettings::default() }).unwrap();
}

fn small() -> JournalOptions {
    JournalOptions { segment_bytes_first: 2000, ..options(64 << 10) }
}

/// The log of one life whose closing checkpoint had no room in the segment that was written to.
fn closed_in_a_new_segment() -> SimDisk {
    let (fs, log) = on(SimDisk::default(), small());
    attach_long(&log, "a");
    append(&log, 1, &["a"], 300);
    let before = files(&fs.disk(), ".seg").len();
    log.close_sync().unwrap();
    assert_eq!((before, files(&fs.disk(), ".seg").len()), (1, 2), "the checkpoint is in a new segment");
    fs.disk()
}

#[test]
fn a_closing_checkpoint_in_a_new_segment_is_the_state() {
    let disk = closed_in_a_new_segment();
    for path in files(&disk, ".seg") {
        let content = disk.content(&path).unwrap();
        let locator = content.windows(4).rposition(|four| four == b"OHL1");
        assert_eq!(locator, Some(content.len() - 32), "{}: the footer", path.display());
    }
    let (_, log) = on(disk, small());
    assert_eq!(log.report(), Default::default());
    assert_eq!(ids(&log, "a"), [1]);
    assert_eq!(log.stats()[0].label.len(), 1000);
}

#[test]
fn a_closing_checkpoint_in_a_new_segment_lists_the_one_before() {
    let mut disk = closed_in_a_new_segment();
    let first = files(&disk, ".seg").remove(0);
    disk.delete(&first);
    let (_, log) = on(disk, small());
    let damage = log.report().damage;
    assert_eq!(damage.len(), 1, "{damage:?}");
    assert!(damage[0].reason.contains("the segment is missing"), "{damage:?}");
    attach_long(&log, "a");
    append(&log, 2, &["a"], 10);
    assert_eq!(ids(&log, "a"), [2]);
}

#[test]
fn closing_and_opening_again_leaves_no_files_behind() {
    let mut disk = SimDisk::default();
    let mut counts = Vec::new();
    for life in 0..30_u64 {
        let (fs, log) = on(disk, small());
        assert_eq!(log.report(), Default::default(), "life {life}");
        attach_long(&log, "a");
        attach(&log, &["b"]);
        assert_eq!(ids(&log, "a"), (0..life).collect::<Vec<_>>(), "life {life}");
        // What waits in one queue pins no more than itself.
        append(&log, life, &["a"], 10);
        append(&log, 1000 + life, &["b"], 300);
        settle_all(&log, "b");
        check_sums(&log);
        log.close_sync().unwrap();
        disk = fs.disk();
        counts.push(disk.files().iter().filter(|(path, _)| path.starts_with(DIR)).count());
    }
    assert!(counts.iter().all(|&count| count <= 24), "the number of files is bounded: {counts:?}");
    for life in 0..4 {
        let (fs, log) = on(disk, small());
        attach_long(&log, "a");
        if life == 0 {
            settle_all(&log, "a");
        }
        assert_eq!(log.stats()[0].waiting, 0, "life {life}");
        log.close_sync().unwrap();
        disk = fs.disk();
    }
    assert!(files(&disk, ".seg").len() <= 2, "nothing pins a segment: {:?}", disk.files());
}

/// Without anything to write, a life of a log leaves its last two files at most.
#[test]
fn lives_in_which_nothing_happens_leave_no_files_behind() {
    let mut disk = SimDisk::default();
    for life in 0..20 {
        let (fs, log) = on(disk, small());
        attach_long(&log, "a");
        log.close_sync().unwrap();
        disk = fs.disk();
        let all = files(&disk, "");
        assert!(all.iter().filter(|path| path.starts_with(Path::new(DIR))).count() <= 6, "{life}: {all:?}");
    }
}

/// A footer is written beside everything else. A file that may still get one must not become another segment.
#[test]
fn a_segment_whose_footer_could_not_be_written_is_not_used_again() {
    let (fs, log) = on(SimDisk::default(), small());
    attach(&log, &["a"]);
    append(&log, 1, &["a"], 1500);
    settle_all(&log, "a");
    log.flush_sync().unwrap();
    let disk = fs.disk();
    let mut kept = 0;
    for n in 1..200 {
        let fs = SimFileSystem::new(disk.clone());
        fs.fail_at(n, std::io::ErrorKind::Other, false);
        let Ok(log) = open(Arc::new(fs.clone()), small()) else { continue };
        if fs.calls() < n {
            break;
        }
        drop(log);
        let disk = fs.disk();
        for spare in files(&disk, ".spare") {
            let content = disk.content(&spare).unwrap();
            if content.starts_with(b"OUTHAULJ") {
                kept += 1;
                let locator = &content[content.len() - 32..];
                let salt = &content[24..32];
                assert_eq!((&locator[..4], &locator[8..16]), (&b"OHL1"[..], salt), "call {n}");
            }
        }
    }
    assert!(kept > 0, "a finished segment is used again: {kept}");
}
