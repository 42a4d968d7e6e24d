//! The life of a segment: used again, resized, with and without its footer, damaged, gone, and doubled.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use outhaul_store::{
    AppendError, Journal, JournalOptions, Log, Outcome, QueueSettings, SimDisk, SimFileSystem,
};

use crate::support::{
    DIR, admission, attach, check_sums, event, ids, name, open, options, settle, sized, waiting,
};

const BATCH_MAGIC: &[u8] = b"OHB0";

pub(crate) fn on(disk: SimDisk, options: JournalOptions) -> (SimFileSystem, Journal) {
    let fs = SimFileSystem::new(disk);
    let log = open(Arc::new(fs.clone()), options).unwrap();
    (fs, log)
}

pub(crate) fn files(disk: &SimDisk, ending: &str) -> Vec<PathBuf> {
    let inside = disk.files().into_iter().map(|(path, _)| path).filter(|path| path.starts_with(DIR));
    inside.filter(|path| path.to_str().unwrap().ends_with(ending)).collect()
}

pub(crate) fn settle_all(log: &Journal, queue: &str) {
    for entry in waiting(log, queue) {
        settle(log, &entry, Outcome::Delivered);
    }
}

pub(crate) fn append(log: &Journal, id: u64, targets: &[&str], body_bytes: usize) {
    log.append_sync(vec![sized(id, targets, body_bytes)]).remove(0).unwrap();
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

/// Where batches seem to start, and the salt of each.
fn batches(content: &[u8]) -> Vec<(usize, [u8; 8])> {
    let starts = content.windows(4).enumerate().filter(|(_, four)| *four == BATCH_MAGIC).map(|(at, _)| at);
    starts.filter_map(|at| Some((at, content.get(at + 8..at + 16)?.try_into().unwrap()))).collect()
}

/// A log whose finished files were kept, and are full of valid old batches.
fn with_spares() -> (SimFileSystem, Journal) {
    let (fs, log) = on(SimDisk::default(), options(2000));
    attach(&log, &["a"]);
    for id in 0..12 {
        append(&log, id, &["a"], 300);
    }
    settle_all(&log, "a");
    for _ in 0..3 {
        log.flush_sync().unwrap();
    }
    let disk = fs.disk();
    let spares = files(&disk, ".spare");
    let used = spares.iter().any(|path| batches(disk.content(path).unwrap()).len() > 2);
    assert!(used, "finished files are kept: {:?}", disk.files());
    (fs, log)
}

#[test]
fn a_file_that_is_used_again_never_shows_what_was_in_it_before() {
    let (fs, log) = with_spares();
    fs.record();
    for id in 100..112 {
        fs.set_tag(id);
        append(&log, id, &["a"], 300);
    }
    let snapshots = fs.recorded();
    let two_lives = |path: &PathBuf, disk: &SimDisk| {
        let found = batches(disk.content(path).unwrap());
        found.iter().any(|(_, salt)| *salt != found[0].1)
    };
    let again =
        snapshots.iter().flat_map(|(_, disk)| files(disk, ".seg").into_iter().map(move |path| (path, disk)));
    assert!(again.filter(|(path, disk)| two_lives(path, disk)).count() > 0, "a file was used again");
    let mut random = fastrand::Rng::with_seed(7);
    for (acknowledged, disk) in snapshots {
        for _ in 0..6 {
            let (_, log) = on(disk.crash(&mut random), options(2000));
            attach(&log, &["a"]);
            let found = ids(&log, "a");
            let expected: Vec<u64> = (100..100 + found.len() as u64).collect();
            assert_eq!(found, expected, "nothing old, nothing twice");
            assert!(found.len() as u64 >= acknowledged - 100, "{found:?} of {acknowledged}");
            assert_eq!(log.report().damage, []);
        }
    }
}

#[test]
fn a_file_whose_new_life_ends_behind_its_header_or_its_checkpoint_shows_nothing_old() {
    let (fs, log) = with_spares();
    let before = fs.disk();
    fs.record();
    for id in 100..112 {
        append(&log, id, &["a"], 300);
    }
    let mut seen = 0;
    for (_, disk) in fs.recorded() {
        for path in files(&disk, ".seg") {
            let new = disk.content(&path).unwrap();
            let starts = batches(new);
            let Some(&(_, salt)) = starts.first() else { continue };
            let own: Vec<usize> =
                starts.iter().filter(|(_, each)| *each == salt).map(|(at, _)| *at).collect();
            // Its file before: the spare that is not there any more.
            let was = files(&before, ".spare").into_iter().find(|spare| {
                let old = before.content(spare).unwrap();
                old.len() == new.len() && old[old.len() - 64..] == new[new.len() - 64..]
            });
            let Some(was) = was.filter(|_| own.len() == 1) else { continue };
            seen += 1;
            let old = before.content(&was).unwrap();
            let checkpoint_end = (own[0] + 1..new.len()).find(|&at| new[at..] == old[at..]).unwrap();
            for cut in [64, own[0] + 20, checkpoint_end] {
                let mut disk = disk.clone();
                let content = [&new[..cut], &old[cut..]].concat();
                disk.put(&path, content);
                // The file gets its name, and is noted as the newest, after that.
                disk.delete(&Path::new(DIR).join("end"));
                let (_, log) = on(disk, options(2000));
                let found = ids(&log, "a");
                assert!(found.iter().all(|id| *id >= 100), "cut at {cut}: {found:?}");
                assert_eq!(log.report().damage, [], "cut at {cut}");
            }
        }
    }
    assert!(seen > 0, "a file was used again");
}

#[test]
fn the_size_of_segments_may_change_with_data_in_place() {
    let mut disk = SimDisk::default();
    let (mut next, mut expected) = (0, std::collections::VecDeque::new());
    for (turn, size) in [700, 60_000, 300, 5000, 1 << 20, 1000, 1, 2000].into_iter().enumerate() {
        let (fs, log) = on(disk, options(size));
        assert_eq!(log.report().damage, []);
        attach(&log, &["a"]);
        assert_eq!(ids(&log, "a"), expected.iter().copied().collect::<Vec<u64>>(), "size {size}");
        for _ in 0..9 {
            append(&log, next, &["a"], 250);
            expected.push_back(next);
            next += 1;
        }
        for entry in waiting(&log, "a").iter().take(5) {
            settle(&log, entry, Outcome::Delivered);
            expected.pop_front();
        }
        check_sums(&log);
        log.flush_sync().unwrap();
        if turn % 2 == 0 {
            log.close_sync().unwrap();
        }
        disk = fs.disk();
    }
}

#[test]
fn limits_may_change_with_data_in_place() {
    let (fs, log) = on(SimDisk::default(), options(1000));
    attach(&log, &["a"]);
    for id in 0..9 {
        append(&log, id, &["a"], 100);
    }
    log.close_sync().unwrap();
    let (_, log) = on(fs.disk(), options(1000));
    let limited =
        |entries_max, bytes_max| QueueSettings { entries_max, bytes_max, ..QueueSettings::default() };
    for settings in [limited(3, None), limited(100, Some(10))] {
        log.attach(&name("a"), settings).unwrap();
        let refused = log.append_sync(vec![admission(50, &["a"])]).remove(0);
        let full = matches!(refused, Err(AppendError::QueueFull { .. } | AppendError::TooLarge { .. }));
        assert!(full, "{refused:?}");
        assert_eq!(ids(&log, "a"), (0..9).collect::<Vec<_>>(), "what is over the limit stays");
        assert!(log.excess(&name("a")) > 0);
    }
    log.attach(&name("a"), limited(10, None)).unwrap();
    append(&log, 9, &["a"], 100);
    assert_eq!(ids(&log, "a"), (0..10).collect::<Vec<_>>());
    check_sums(&log);
}

/// A closed log of a few sealed segments, in each of which a queue has settled a part; with the waiting of both queues.
fn sealed() -> (SimDisk, [Vec<u64>; 2]) {
    let (fs, log) = on(SimDisk::default(), options(1800));
    attach(&log, &["a", "b"]);
    for id in 0..15 {
        append(&log, id, if id % 2 == 0 { &["a", "b"] } else { &["a"] }, 250);
    }
    for entry in waiting(&log, "a").iter().filter(|entry| entry.place.uid.sequence % 4 == 2) {
        settle(&log, entry, Outcome::Delivered);
    }
    let both = [ids(&log, "a"), ids(&log, "b")];
    log.close_sync().unwrap();
    let disk = fs.disk();
    let sealed = files(&disk, ".seg").len();
    assert!((3..8).contains(&sealed), "{sealed} segments, and nothing to merge");
    (disk, both)
}

fn both(log: &Journal) -> [Vec<u64>; 2] {
    [ids(log, "a"), ids(log, "b")]
}

/// Where the footer and the locator of a sealed segment are.
fn footer_of(content: &[u8]) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
    let locator = content.len() - 32..content.len();
    assert_eq!(&content[locator.start..locator.start + 4], b"OHL1");
    let field = |at: usize| u64::from_le_bytes(content[at..at + 8].try_into().unwrap()) as usize;
    let (offset, length) = (field(locator.start + 16), field(locator.start + 24));
    assert_eq!(&content[offset..offset + 4], b"OHF1");
    (offset..offset + length, locator)
}

#[test]
fn a_bit_flipped_in_a_footer_costs_nothing_but_reading_the_segment() {
    let (disk, expected) = sealed();
    let segments = files(&disk, ".seg");
    for (at, path) in segments.iter().enumerate() {
        let good = disk.content(path).unwrap();
        let (footer, locator) = footer_of(good);
        for bit in footer.clone().chain(locator).flat_map(|byte| byte * 8..byte * 8 + 8) {
            let mut disk = disk.clone();
            disk.flip(path, bit);
            let (fs, log) = on(disk, options(1800));
            assert_eq!(both(&log), expected, "{} bit {bit}", path.display());
            assert_eq!(log.report().damage, [], "{} bit {bit}", path.display());
            // That of the last one said where the closing checkpoint is, which is of no use any more.
            if at + 1 < segments.len() {
                let disk = fs.disk();
                let now = disk.content(path).unwrap();
                assert_eq!(now[footer.clone()], good[footer.clone()], "bit {bit}: derived again");
            }
        }
    }
}

#[test]
fn a_footer_that_is_missing_stale_or_of_another_segment_is_derived_again() {
    let (disk, expected) = sealed();
    let segments = files(&disk, ".seg");
    let foreign = disk.content(&segments[1]).unwrap();
    let foreign_tail = &foreign[footer_of(foreign).0.start..];
    for path in &segments {
        let good = disk.content(path).unwrap();
        let start = footer_of(good).0.start;
        let mut other_salt = good.to_vec();
        other_salt[start + 8] ^= 1;
        let crc_of_none = [&good[..start], &[0; 300]].concat();
        let cut = good[..start].to_vec();
        let half = good[..start + 40].to_vec();
        let stale = [&good[..start], foreign_tail].concat();
        for content in [cut, half, other_salt, crc_of_none, stale] {
            if content == good {
                continue;
            }
            let mut disk = disk.clone();
            disk.put(path, content);
            let (fs, log) = on(disk, options(1800));
            assert_eq!(both(&log), expected, "{}", path.display());
            assert_eq!(log.report().damage, [], "{}", path.display());
            check_sums(&log);
            drop(log);
            let (_, log) = on(fs.disk(), options(1800));
            assert_eq!((both(&log), log.report().damage), (expected.clone(), vec![]), "{}", path.display());
        }
    }
}

/// Damages the header of the batch that holds an event of a sealed segment, while the log is open.
fn damage_while_open(compress: bool, body_too: bool) {
    let options = JournalOptions { compress, ..options(1500) };
    let (fs, log) = on(SimDisk::default(), options);
    attach(&log, &["a"]);
    let all = if compress { 60 } else { 12 };
    for id in 0..all {
        append(&log, id, &["a"], 250);
    }
    let disk = fs.disk();
    let segments = files(&disk, ".seg");
    assert!(segments.len() > 2, "the one in the middle is sealed");
    let path = &segments[1];
    let content = disk.content(path).unwrap();
    let own = batches(content);
    // The first one behind the checkpoint.
    let (batch, _) = own[1];
    let damaged = ids(&log, "a")
        .into_iter()
        .find(|id| content[batch..own[2].0].windows(8).any(|bytes| bytes == [*id as u8; 8]));
    fs.flip(path, (batch + 20) * 8);
    if body_too {
        let body =
            content[batch..].windows(8).position(|bytes| bytes == [damaged.unwrap() as u8; 8]).unwrap();
        fs.flip(path, (batch + body) * 8);
    }
    let entries = waiting(&log, "a");
    assert_eq!(entries.len(), all as usize, "every entry is shown");
    let unreadable: Vec<_> = entries.iter().filter(|entry| entry.event.is_err()).collect();
    assert_eq!(unreadable.len(), usize::from(compress || body_too));
    for (id, entry) in (0..).zip(&entries).filter(|(_, entry)| entry.event.is_ok()) {
        assert_eq!(**entry.event.as_ref().unwrap(), *event(id, 250), "in order, and right");
    }
    assert_eq!(waiting(&log, "a").len(), entries.len());
    let damage = log.report().damage;
    assert_eq!(damage.len(), 1, "said once: {damage:?}");
    assert_eq!((damage[0].file.clone(), damage[0].offset), (file_name(path), batch as u64));
    for entry in &entries {
        settle(&log, entry, if entry.event.is_ok() { Outcome::Delivered } else { Outcome::Failed });
    }
    assert_eq!(log.stats()[0].waiting, 0);
    check_sums(&log);
}

#[test]
fn a_batch_that_is_damaged_while_the_log_is_open_is_read_through_the_footer() {
    damage_while_open(false, false);
    damage_while_open(false, true);
    damage_while_open(true, false);
}

#[test]
fn a_segment_that_is_missing_is_reported_and_the_log_goes_on() {
    let (disk, expected) = sealed();
    let segments = files(&disk, ".seg");
    for path in &segments[..segments.len() - 1] {
        let mut disk = disk.clone();
        disk.delete(path);
        let (fs, log) = on(disk, options(1800));
        let damage = log.report().damage;
        assert_eq!(damage.len(), 1, "{damage:?}");
        assert!(damage[0].file == file_name(path) && damage[0].reason.contains("missing"), "{damage:?}");
        attach(&log, &["a", "b"]);
        for (found, all) in both(&log).iter().zip(&expected) {
            assert!(found.len() < all.len() && found.iter().all(|id| all.contains(id)), "{found:?}");
        }
        check_sums(&log);
        let before = both(&log);
        append(&log, 50, &["a"], 20);
        drop(log);
        let (_, log) = on(fs.disk(), options(1800));
        assert_eq!(log.report().damage, [], "said once");
        assert_eq!(ids(&log, "a"), [&before[0][..], &[50]].concat());
    }
}

#[test]
fn a_segment_that_is_there_twice_is_set_aside_once() {
    let (disk, expected) = sealed();
    for path in files(&disk, ".seg") {
        for number in [90, 7] {
            let copy = Path::new(DIR).join(format!("{number:020}.seg"));
            if disk.content(&copy).is_some() {
                continue;
            }
            let mut disk = disk.clone();
            disk.put(&copy, disk.content(&path).unwrap().to_vec());
            let (fs, log) = on(disk, options(1800));
            assert_eq!(both(&log), expected, "{} as {number}", path.display());
            let damage = log.report().damage;
            assert!(damage.len() == 1 && damage[0].file == file_name(&copy), "{damage:?}");
            let kept = damage[0].quarantined.clone().unwrap();
            assert!(disk_content(&fs, &kept) == disk_content(&fs, &path), "nothing is thrown away");
            assert_eq!(fs.disk().content(&copy), None);
        }
    }
}

fn disk_content(fs: &SimFileSystem, path: &Path) -> Option<Vec<u8>> {
    fs.disk().content(path).map(<[u8]>::to_vec)
}

#[test]
fn an_empty_or_truncated_segment_takes_what_it_held_and_no_more() {
    let (disk, expected) = sealed();
    let segments = files(&disk, ".seg");
    for path in &segments[..segments.len() - 1] {
        let content = disk.content(path).unwrap();
        for length in [0, 10, 64, 70, content.len() / 3, content.len() / 2] {
            let mut disk = disk.clone();
            disk.put(path, content[..length].to_vec());
            let (fs, log) = on(disk, options(1800));
            let damage = log.report().damage;
            assert!(damage.iter().any(|each| each.file == file_name(path)), "length {length}: {damage:?}");
            for (found, all) in both(&log).iter().zip(&expected) {
                assert!(found.iter().all(|id| all.contains(id)), "length {length}: {found:?}");
                assert!(found.len() + 5 >= all.len(), "length {length}: {found:?} of {all:?}");
            }
            check_sums(&log);
            let before = both(&log);
            attach(&log, &["a"]);
            append(&log, 50, &["a"], 20);
            drop(log);
            let (_, log) = on(fs.disk(), options(1800));
            assert_eq!(ids(&log, "a"), [&before[0][..], &[50]].concat(), "length {length}");
        }
    }
    // One that nobody ever wrote to.
    let mut disk = disk;
    let empty = Path::new(DIR).join(format!("{:020}.seg", 90));
    disk.put(&empty, Vec::new());
    let (fs, log) = on(disk, options(1800));
    assert_eq!((both(&log), log.report().damage), (expected, vec![]));
    assert_eq!(fs.disk().content(&empty), None);
}

#[test]
fn foreign_files_are_named_and_left_alone() {
    let (mut disk, expected) = sealed();
    let foreign = ["holiday.jpg", "7.seg", "00000000000000000001.seg.bak", "reserve.old"];
    for name in foreign {
        disk.put(&Path::new(DIR).join(name), b"mine".to_vec());
    }
    let (fs, log) = on(disk, options(1800));
    assert_eq!((both(&log), log.report().damage), (expected, vec![]));
    let mut found = log.report().foreign;
    found.sort();
    let mut names: Vec<_> = foreign.iter().map(|name| (*name).to_owned()).collect();
    names.sort();
    assert_eq!(found, names);
    log.close_sync().unwrap();
    for name in foreign {
        assert_eq!(fs.disk().content(&Path::new(DIR).join(name)), Some(&b"mine"[..]));
    }
}

#[test]
fn a_spare_that_was_never_filled_is_not_used() {
    let mut disk = SimDisk::default();
    disk.put(std::path::Path::new("/data/log/0.spare"), Vec::new());
    let (fs, log) = on(disk, options(1 << 20));
    attach(&log, &["a"]);
    (0..50).for_each(|id| append(&log, id, &["a"], 250));
    let segments = files(&fs.disk(), ".seg").len();
    assert!(segments < 10, "{segments} segments for 50 events");
}

/// Cut within its batch, the newest segment and an older one: every event that is whole is read, the rest is told.
#[test]
fn a_batch_that_was_cut_costs_the_events_that_are_not_whole() {
    let (fs, log) = on(SimDisk::default(), options(1 << 16));
    attach(&log, &["a"]);
    let batch = |first: u64| (first..first + 10).map(|id| sized(id, &["a"], 100)).collect();
    assert!(log.append_sync(batch(100)).iter().all(Result::is_ok));
    log.close_sync().unwrap();
    let (fs, log) = on(fs.disk(), options(1 << 16));
    attach(&log, &["a"]);
    assert!(log.append_sync(batch(200)).iter().all(Result::is_ok));
    log.close_sync().unwrap();
    let disk = fs.disk();
    for (at, path) in files(&disk, ".seg").into_iter().enumerate() {
        let content = disk.content(&path).unwrap();
        for keep in 1..9 {
            let first = at as u64 * 100 + 100;
            let last = [(first + keep - 1) as u8; 100];
            let after = content.windows(100).position(|bytes| bytes == last).unwrap() + 100;
            let mut disk = disk.clone();
            disk.put(&path, content[..after + 20].to_vec());
            let (_, log) = on(disk, options(1 << 16));
            let all = waiting(&log, "a");
            let whole = |entry: &outhaul_store::Entry| entry.event.as_ref().ok()?.id().parse::<u64>().ok();
            let here = all.iter().filter_map(whole).filter(|id| id / 100 == first / 100).count() as u64;
            let others = all.iter().filter_map(whole).filter(|id| id / 100 != first / 100).count();
            assert_eq!((here, others), (keep, 10), "{}", path.display());
            assert_eq!(all.len(), 20, "the others are unreadable");
            assert!(!log.report().damage.is_empty());
        }
    }
}

#[test]
fn a_log_that_lost_its_end_says_so() {
    let (fs, log) = on(SimDisk::default(), options(3000));
    attach(&log, &["a"]);
    (0..30).for_each(|id| append(&log, id, &["a"], 250));
    let killed = fs.disk();
    log.close_sync().unwrap();
    let closed = fs.disk();
    for (mut disk, shorter) in [(killed, false), (closed.clone(), false), (closed, true)] {
        let newest = files(&disk, ".seg").pop().unwrap();
        if shorter {
            let content = disk.content(&newest).unwrap()[..400].to_vec();
            disk.put(&newest, content);
        } else {
            disk.delete(&newest);
        }
        let (fs, log) = on(disk, options(3000));
        let damage = log.report().damage;
        assert!(damage.len() == 1 && newest.ends_with(&damage[0].file), "{damage:?}");
        attach(&log, &["a"]);
        // What is whole of a batch that was cut is read.
        let readable = |log: &Journal| -> Vec<u64> {
            let all = waiting(log, "a");
            assert!(all.iter().filter(|entry| entry.event.is_err()).count() <= usize::from(shorter));
            all.iter().filter_map(|entry| entry.event.as_ref().ok()?.id().parse().ok()).collect()
        };
        let there = readable(&log);
        assert!(!there.is_empty() && there.len() < 30, "{there:?}");
        append(&log, 100, &["a"], 250);
        drop(log);
        let (_, log) = on(fs.disk(), options(3000));
        assert_eq!((log.report().damage, readable(&log).pop()), (vec![], Some(100)), "it is told once");
    }
}
