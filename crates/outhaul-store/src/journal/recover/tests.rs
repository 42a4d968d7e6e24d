//! What a valid record may make an open allocate.

use std::path::PathBuf;

use super::*;
use crate::fs::sim::{SimDisk, SimFileSystem};
use crate::journal::format::{BatchBuilder, Mark, put_retry, put_runs};
use crate::journal::{Journal, JournalOptions, Upkeep};
use crate::log::{Admission, Log, QueueSettings, RetryState};
use outhaul_event::Event;
use outhaul_event::wire::{put_bytes, put_varint};

const DIR: &str = "/data/log";

fn open(fs: &SimFileSystem) -> Journal {
    let options = JournalOptions { upkeep: Upkeep::Inline, reserve_bytes: 0, ..JournalOptions::default() };
    Journal::open(Arc::new(fs.clone()), Path::new(DIR), Path::new("/data/quarantine"), options).unwrap()
}

fn name(text: &str) -> TargetName {
    TargetName::new(text).unwrap()
}

fn append(log: &Journal, targets: &[&str]) {
    let event = Event::builder("t", "/test").id("1").body("text/plain", "body".as_bytes()).build().unwrap();
    let targets: Vec<_> = targets.iter().map(|target| name(target)).collect();
    log.append_sync(vec![Admission::new(event.into(), targets.into())]).remove(0).unwrap();
}

/// A log that was not closed, with one more valid batch at its end.
fn with_batch(build: impl FnOnce(&mut BatchBuilder)) -> SimFileSystem {
    let fs = SimFileSystem::new(SimDisk::default());
    let log = open(&fs);
    log.attach(&name("a"), QueueSettings::default()).unwrap();
    append(&log, &["a"]);
    let mut disk = fs.disk();
    let path = PathBuf::from(DIR).join(Segment::file_name(1));
    let mut content = disk.content(&path).unwrap().to_vec();
    let salt = SegmentHeader::decode(&content).unwrap().salt;
    let file = fs.open(&path, false).unwrap();
    let mut scanner = Scanner::new(&*file, Some(salt), SEGMENT_HEADER, content.len() as u64);
    let mut end = SEGMENT_HEADER;
    while let Step::Batch { offset, header } = scanner.step().unwrap() {
        end = offset + header.length();
    }
    let mut builder = BatchBuilder::default();
    build(&mut builder);
    let mut batch = Vec::new();
    builder.head(Mark { salt, synced_to: 0, first_sequence: 2, flags: 0 }, &mut batch);
    content[end as usize..end as usize + batch.len()].copy_from_slice(&batch);
    disk.put(&path, content);
    SimFileSystem::new(disk)
}

fn queues(log: &Journal) -> Vec<String> {
    log.stats().into_iter().map(|stats| format!("{} {}", stats.name, stats.waiting)).collect()
}

/// Each kind of record that names a queue, and the highest number there is: one queue, not as many as the number says.
#[test]
fn a_number_that_was_never_declared_costs_one_queue() {
    let high = u64::from(QueueId::MAX);
    let mut runs = Runs::default();
    runs.insert(0, 0);
    let retry = RetryState { attempts: 1, not_before: std::time::UNIX_EPOCH };
    type Body<'a> = &'a dyn Fn(&mut Vec<u8>);
    let records: [(Kind, Body<'_>); 4] = [
        (Kind::Settled, &|out| put_runs(out, &runs)),
        (Kind::Retry, &|out| put_retry(out, 1, retry)),
        (Kind::InFlight, &|out| format::put_sequences(out, &[1])),
        (Kind::Queue, &|out| {
            put_bytes(out, b"high");
            put_bytes(out, b"");
        }),
    ];
    for (kind, body) in records {
        let fs = with_batch(|builder| {
            builder.add(kind, |out| {
                put_varint(out, high);
                body(out);
            });
        });
        let other = if kind == Kind::Queue { "high 0".to_owned() } else { format!("lost-{high} 0") };
        let log = open(&fs);
        assert_eq!(queues(&log), ["a 1".to_owned(), other.clone()], "{kind:?}");
        // The last number is used up; a new queue gets one that is free, and all of it outlives a checkpoint.
        for queue in ["a", "b"] {
            log.attach(&name(queue), QueueSettings::default()).unwrap();
        }
        append(&log, &["a", "b"]);
        log.close_sync().unwrap();
        let log = open(&fs);
        assert_eq!(queues(&log), ["a 2".to_owned(), "b 1".to_owned(), other], "{kind:?}");
        let written: usize = fs.disk().files().iter().map(|(_, length)| length).sum();
        assert!(written < 4 << 20, "{written} bytes for three queues");
    }
}

#[test]
fn an_entry_of_a_queue_that_was_never_declared_is_kept() {
    let fs = with_batch(|builder| builder.add_event(0, 0, &[(0, 1), (1 << 30, 2)]));
    let log = open(&fs);
    assert_eq!(queues(&log), ["a 2", "lost-1073741824 1"]);
    log.close_sync().unwrap();
    assert_eq!(queues(&open(&fs)), ["a 2", "lost-1073741824 1"]);
}

#[test]
fn a_number_above_all_queue_numbers_is_passed_over() {
    let fs = with_batch(|builder| {
        builder.add(Kind::InFlight, |out| {
            put_varint(out, 1 << 32);
            format::put_sequences(out, &[1]);
        });
    });
    assert_eq!(queues(&open(&fs)), ["a 1"]);
}
