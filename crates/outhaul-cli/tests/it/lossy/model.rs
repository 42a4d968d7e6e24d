//! The disk itself: what it keeps and what it loses.

use std::collections::BTreeSet;
use std::ffi::OsStr;

use fastrand::Rng;
use fuser::Errno;

use super::disk::{BLOCK_BYTES, Disk, ROOT};

fn name(text: &str) -> &OsStr {
    OsStr::new(text)
}

/// A disk with one durable, empty file.
fn with_file() -> (Disk, u64) {
    let mut disk = Disk::new();
    let node = disk.create(ROOT, name("a"), false).unwrap().node;
    disk.sync_dir(ROOT).unwrap();
    (disk, node)
}

fn content(disk: &Disk, node: u64) -> Vec<u8> {
    disk.read(node, 0, 1 << 20, false).unwrap()
}

#[test]
fn what_was_not_synced_is_gone_and_what_was_stays() {
    let (mut disk, node) = with_file();
    disk.write(node, 0, b"kept").unwrap();
    disk.sync(node).unwrap();
    disk.write(node, 2, b"changed").unwrap();
    assert_eq!(content(&disk, node), b"kechanged");
    disk.cut(None);
    assert_eq!(content(&disk, node), b"kept");
}

#[test]
fn a_name_is_durable_with_its_directory_and_not_with_its_file() {
    let mut disk = Disk::new();
    let dir = disk.create(ROOT, name("d"), true).unwrap().node;
    disk.sync_dir(ROOT).unwrap();
    for (file, synced) in [("x", false), ("y", true)] {
        let node = disk.create(dir, name(file), false).unwrap().node;
        disk.write(node, 0, b"1").unwrap();
        disk.sync(node).unwrap();
        if synced {
            // Both are in it by now, so only the later one is asked for without the former.
            disk.remove(dir, name("x")).unwrap();
            disk.sync_dir(dir).unwrap();
        }
    }
    let node = disk.create(dir, name("z"), false).unwrap().node;
    disk.sync(node).unwrap();
    disk.cut(None);
    let names: Vec<_> = disk.names(dir).unwrap().keys().collect();
    assert_eq!(names, [name("y")]);
}

#[test]
fn a_rename_without_a_sync_of_the_directory_may_be_either_and_is_never_neither() {
    let seen: BTreeSet<(bool, bool)> = (0..64)
        .map(|seed| {
            let (mut disk, node) = with_file();
            disk.rename((ROOT, name("a")), (ROOT, name("b"))).unwrap();
            disk.cut(Some(&mut Rng::with_seed(seed)));
            let found = |text| disk.lookup(ROOT, name(text)).is_ok_and(|found| found.node == node);
            (found("a"), found("b"))
        })
        .collect();
    assert_eq!(seen, [(true, false), (false, true)].into());
}

#[test]
fn any_subset_of_unsynced_blocks_may_stay_and_one_may_be_torn() {
    let mut outcomes = BTreeSet::new();
    let mut torn = 0;
    for seed in 0..2_000 {
        let (mut disk, node) = with_file();
        disk.write(node, 0, &[1; 3 * BLOCK_BYTES]).unwrap();
        disk.sync(node).unwrap();
        disk.write(node, 0, &[2; 3 * BLOCK_BYTES]).unwrap();
        disk.cut(Some(&mut Rng::with_seed(seed)));
        let bytes = content(&disk, node);
        let new: Vec<_> =
            bytes.chunks(BLOCK_BYTES).map(|block| block.iter().filter(|b| **b == 2).count()).collect();
        torn += new.iter().filter(|count| !matches!(**count, 0 | BLOCK_BYTES)).count();
        assert!(new.iter().all(|count| count % 512 == 0), "a sector is whole: {new:?}");
        outcomes.insert(new.iter().map(|count| *count > 0).collect::<Vec<_>>());
    }
    assert_eq!(outcomes.len(), 8);
    assert!(torn > 0);
}

#[test]
fn a_cut_of_a_file_that_grew_leaves_no_bytes_behind_its_end() {
    for seed in 0..500 {
        let (mut disk, node) = with_file();
        disk.write(node, 0, &[1; 100]).unwrap();
        disk.sync(node).unwrap();
        disk.write(node, 100, &[2; 2 * BLOCK_BYTES]).unwrap();
        disk.cut(Some(&mut Rng::with_seed(seed)));
        let length = disk.stat(node).unwrap().length;
        assert!((100..=100 + 2 * BLOCK_BYTES as u64).contains(&length));
        assert_eq!(content(&disk, node)[..100], [1; 100]);
        disk.set_length(node, 4 * BLOCK_BYTES as u64).unwrap();
        assert!(content(&disk, node)[length as usize..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn a_file_that_was_cut_short_has_its_old_length_until_the_sync() {
    let (mut disk, node) = with_file();
    disk.write(node, 0, &[1; 2 * BLOCK_BYTES]).unwrap();
    disk.sync(node).unwrap();
    disk.set_length(node, 10).unwrap();
    assert_eq!(content(&disk, node), [1; 10]);
    disk.cut(None);
    assert_eq!(content(&disk, node), [1; 2 * BLOCK_BYTES]);
    disk.set_length(node, 10).unwrap();
    disk.sync(node).unwrap();
    disk.cut(None);
    assert_eq!(content(&disk, node), [1; 10]);
}

#[test]
fn what_a_failed_sync_left_is_not_written_by_the_next_one() {
    let (mut disk, node) = with_file();
    disk.write(node, 0, b"old").unwrap();
    disk.sync(node).unwrap();
    disk.write(node, 0, b"new").unwrap();
    disk.fail_sync(node);
    disk.sync(node).unwrap();
    assert_eq!(content(&disk, node), b"new");
    assert_eq!(disk.read(node, 0, 3, true).unwrap(), b"old");
    disk.cut(None);
    assert_eq!(content(&disk, node), b"old");
}

#[test]
fn a_full_disk_takes_a_part_and_then_nothing_until_something_goes() {
    let (mut disk, node) = with_file();
    disk.capacity = 2 * BLOCK_BYTES as u64;
    assert_eq!(disk.write(node, 0, &[1; 3 * BLOCK_BYTES]).unwrap(), 2 * BLOCK_BYTES);
    assert_eq!(disk.write(node, 2 * BLOCK_BYTES as u64, &[1]).unwrap_err(), Errno::ENOSPC);
    // What is there already can be written over.
    assert_eq!(disk.write(node, 0, &[3; 10]).unwrap(), 10);
    disk.remove(ROOT, name("a")).unwrap();
    assert_eq!(disk.used(), 0);
    assert!(disk.create(ROOT, name("b"), false).is_ok());
}
