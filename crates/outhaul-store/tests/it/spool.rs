//! The spool on a real directory: order, limits, batches, foreign files, what is beside it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use outhaul_store::event::{Event, HeaderValue};
use outhaul_store::spool::names::EntryName;
use outhaul_store::spool::rqp1;
use outhaul_store::{
    Admission, AppendError, Durability, Entry, Log, Origin, OsFileSystem, Outcome, QueueSettings, RetryState,
    Settlement, Shards, Spool, SpoolOptions, WhenFull,
};

use crate::support::{admission, check_sums, event, name, sized};

pub(crate) fn open(dir: &Path) -> Spool {
    Spool::open(Arc::new(OsFileSystem), dir, SpoolOptions::default()).unwrap()
}

fn attached(dir: &Path, queues: &[&str]) -> Spool {
    let spool = open(dir);
    for queue in queues {
        spool.attach(&name(queue), QueueSettings::default()).unwrap();
    }
    spool
}

pub(crate) fn waiting(spool: &Spool, queue: &str) -> Vec<Entry> {
    let (mut all, mut after) = (Vec::new(), 0);
    loop {
        let read = spool.read_sync(&name(queue), after, 3, 1 << 20).unwrap();
        if read.entries.is_empty() {
            return all;
        }
        after = read.next;
        all.extend(read.entries);
    }
}

pub(crate) fn ids(spool: &Spool, queue: &str) -> Vec<String> {
    let id = |entry: &Entry| entry.event.as_ref().map_or("?".to_owned(), |event| event.id().to_owned());
    waiting(spool, queue).iter().map(id).collect()
}

pub(crate) fn settle(spool: &Spool, entry: &Entry, outcome: Outcome) {
    spool.settle_sync(&[Settlement { place: entry.place.clone(), outcome }]).unwrap();
}

fn files(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn stat(spool: &Spool, queue: &str) -> outhaul_store::QueueStats {
    check_sums(spool);
    spool.stats().into_iter().find(|stats| stats.name.as_str() == queue).unwrap()
}

const NOTIFICATION: &str = r#"{"EventName":"s3:ObjectCreated:Put","Key":"b/k","Records":[]}"#;

/// An entry as RustFS writes it.
fn foreign(body: &str) -> Vec<u8> {
    let json = format!(
        r#"{{"event_name":"s3:ObjectCreated:Put","bucket_name":"b","object_name":"k","content_type":"application/json","queued_at_unix_ms":1700000000000,"payload_len":{}}}"#,
        body.len()
    );
    rqp1::encode(&serde_json::from_str(&json).unwrap(), body.as_bytes())
}

fn id(last: u8) -> String {
    format!("01890a5d-ac96-774b-bcce-b302099a80{last:02x}")
}

fn foreign_dir(dir: &Path) -> PathBuf {
    let path = dir.join("rustfs-webhook-a");
    fs::create_dir_all(&path).unwrap();
    path
}

#[test]
fn an_event_comes_back_as_it_was_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let spool = attached(dir.path(), &["a", "b"]);
    let event = Event::builder("com.example.order.paid", "/shop")
        .pid("order 1")
        .subject("Größe")
        .header("n", HeaderValue::Integer(3))
        .body("application/octet-stream", vec![0, 255])
        .build()
        .unwrap();
    let mut one = Admission::new(Arc::new(event.clone()), [name("a"), name("b")].into());
    one.attachment = "note".into();
    one.origin = Origin::Requeue(41);
    let receipt = spool.append_sync(vec![one]).remove(0).unwrap();
    assert!(receipt.durable && receipt.targets.len() == 2);
    spool.close_sync().unwrap();

    let spool = open(dir.path());
    for queue in ["a", "b"] {
        let entry = waiting(&spool, queue).remove(0);
        assert_eq!(entry.place.uid.sequence, receipt.sequence);
        assert_eq!(**entry.event.as_ref().unwrap(), event);
        assert_eq!((entry.dedup_id, entry.requeue_of), (receipt.dedup_id, Some(41)));
        assert_eq!(&entry.attachment[..], b"note");
        assert_eq!(stat(&spool, queue).recovered, 1);
    }
    let name = files(&dir.path().join("outhaul-a")).remove(0);
    assert!(name.ends_with(".event.snappy") && !name.contains(':'), "{name}");
}

#[test]
fn order_holds_and_settled_files_go() {
    let dir = tempfile::tempdir().unwrap();
    let spool = attached(dir.path(), &["a"]);
    for round in 0..5 {
        let batch = (0..20).map(|n| admission(round * 20 + n, &["a"])).collect();
        assert!(spool.append_sync(batch).iter().all(Result::is_ok));
    }
    let all = waiting(&spool, "a");
    let found = ids(&spool, "a");
    assert_eq!(found, (0..100).map(|n| n.to_string()).collect::<Vec<_>>());
    assert!(all.windows(2).all(|pair| pair[0].place.uid.sequence < pair[1].place.uid.sequence));
    for entry in all.iter().filter(|entry| entry.place.uid.sequence % 3 != 0) {
        settle(&spool, entry, Outcome::Delivered);
        // Once more is nothing.
        settle(&spool, entry, Outcome::Failed);
    }
    let left = ids(&spool, "a");
    spool.flush_sync().unwrap();
    assert_eq!(files(&dir.path().join("outhaul-a")).len(), left.len());
    assert_eq!(stat(&spool, "a").waiting, left.len() as u64);
    spool.close_sync().unwrap();
    assert_eq!(ids(&open(dir.path()), "a"), left);
}

#[test]
fn settling_an_unknown_entry_is_nothing_and_an_empty_append_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let spool = attached(dir.path(), &["a"]);
    assert!(spool.append_sync(vec![admission(1, &["a"])])[0].is_ok());
    let entry = waiting(&spool, "a").remove(0);
    for outcome in [Outcome::Delivered, Outcome::Failed, Outcome::Discarded] {
        let mut place = entry.place.clone();
        place.uid.sequence += 1;
        spool.settle_sync(&[Settlement { place, outcome }]).unwrap();
    }
    let state = RetryState { attempts: 1, not_before: std::time::UNIX_EPOCH };
    settle(&spool, &entry, Outcome::Delivered);
    settle(&spool, &entry, Outcome::Retry(state));
    let stats = stat(&spool, "a");
    assert_eq!((stats.waiting, stats.delivered, stats.failed), (0, 1, 0));
    assert!(matches!(spool.append_sync(Vec::new())[..], [Err(AppendError::Empty)]));
}

#[test]
fn a_limit_of_one_with_four_racing_producers_admits_one() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open(dir.path());
    spool.attach(&name("a"), QueueSettings { entries_max: 1, ..QueueSettings::default() }).unwrap();
    spool.attach(&name("b"), QueueSettings::default()).unwrap();
    let admitted: usize = std::thread::scope(|scope| {
        let spool = &spool;
        let threads: Vec<_> = (0..4)
            .map(|n| {
                scope.spawn(move || spool.append_sync(vec![admission(n, &["b", "a"])]).remove(0).is_ok())
            })
            .collect();
        threads.into_iter().map(|thread| usize::from(thread.join().unwrap())).sum()
    });
    assert_eq!((admitted, ids(&spool, "a").len(), ids(&spool, "b").len()), (1, 1, 1));
    settle(&spool, &waiting(&spool, "a")[0], Outcome::Delivered);
    assert!(spool.append_sync(vec![admission(9, &["a"])])[0].is_ok());
}

#[test]
fn a_file_that_somebody_removes_frees_its_place_and_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open(dir.path());
    spool.attach(&name("a"), QueueSettings { entries_max: 2, ..QueueSettings::default() }).unwrap();
    assert!(spool.append_sync(vec![admission(1, &["a"]), admission(2, &["a"])]).iter().all(Result::is_ok));
    let full = spool.append_sync(vec![admission(3, &["a"])]).remove(0);
    assert!(matches!(full, Err(AppendError::QueueFull { .. })));
    let path = dir.path().join("outhaul-a");
    fs::remove_file(path.join(&files(&path)[0])).unwrap();
    assert_eq!(ids(&spool, "a"), ["2"]);
    let stats = stat(&spool, "a");
    assert_eq!((stats.vanished, stats.discarded, stats.waiting), (1, 0, 1));
    assert!(spool.append_sync(vec![admission(3, &["a"])])[0].is_ok());
    // One that was read before and is delivered all the same was delivered.
    let entry = waiting(&spool, "a").remove(0);
    fs::remove_file(path.join(&files(&path)[0])).unwrap();
    settle(&spool, &entry, Outcome::Delivered);
    spool.flush_sync().unwrap();
    assert_eq!((stat(&spool, "a").vanished, stat(&spool, "a").delivered), (1, 1));
}

#[test]
fn what_is_in_the_directory_at_open_is_kept_left_or_removed_as_rustfs_does() {
    let dir = tempfile::tempdir().unwrap();
    let path = foreign_dir(dir.path());
    fs::write(path.join(format!("{}.event", id(1))), foreign(NOTIFICATION)).unwrap();
    fs::write(path.join(format!("{}.event.tmp", id(2))), "half").unwrap();
    fs::write(path.join(format!("{}.event", id(3))), "").unwrap();
    fs::write(path.join(format!("{}.audit", id(4))), foreign(NOTIFICATION)).unwrap();
    fs::write(path.join("notes.txt"), "x").unwrap();
    fs::create_dir(path.join(format!("{}.event", id(5)))).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", path.join(format!("{}.event", id(6)))).unwrap();
    fs::write(path.join(format!("{}.event", id(7))), "no entry").unwrap();
    let spool = attached(dir.path(), &["a"]);
    let all = waiting(&spool, "a");
    assert_eq!(all.len(), 2);
    assert_eq!(all[0].event.as_ref().unwrap().pid(), Some("b/k"));
    let bad = all[1].event.as_ref().unwrap_err();
    assert_eq!((&bad.bytes[..], &bad.reason[..]), (&b"no entry"[..], "it does not start with RQP1"));
    let mut reported = spool.report().foreign;
    reported.sort();
    assert_eq!(
        reported,
        [format!("rustfs-webhook-a/{}.audit", id(4)), "rustfs-webhook-a/notes.txt".to_owned()]
    );
    let left: Vec<_> = [1, 4, 5, 6, 7].map(id).to_vec();
    let names = files(&path);
    assert_eq!(names.len(), 6);
    assert!(left.iter().all(|id| names.iter().any(|name| name.starts_with(id))), "{names:?}");
    // What cannot be read leaves only as everything leaves: by being settled.
    settle(&spool, &all[1], Outcome::Failed);
    spool.flush_sync().unwrap();
    assert_eq!(files(&path).len(), 5);
}

#[test]
fn a_batch_is_its_items_and_goes_with_the_last() {
    let dir = tempfile::tempdir().unwrap();
    let path = foreign_dir(dir.path());
    let batch: String = (0..3).map(|n| NOTIFICATION.replace("b/k", &format!("b/{n}"))).collect();
    fs::write(path.join(format!("3:{}.event", id(1))), &batch).unwrap();
    let compressed = rqp1::compress(batch.as_bytes()).unwrap();
    fs::write(path.join(format!("3_{}.event.snappy", id(2))), compressed).unwrap();
    let spool = attached(dir.path(), &["a"]);
    let all = waiting(&spool, "a");
    let pids: Vec<_> =
        all.iter().map(|entry| entry.event.as_ref().unwrap().pid().unwrap().to_owned()).collect();
    assert_eq!(pids, ["b/0", "b/1", "b/2", "b/0", "b/1", "b/2"]);
    assert_eq!(ids(&spool, "a")[..2], [format!("{}-0", id(1)), format!("{}-1", id(1))]);
    for entry in [&all[1], &all[0], &all[4]] {
        settle(&spool, entry, Outcome::Delivered);
    }
    spool.flush_sync().unwrap();
    assert_eq!(files(&path).len(), 2);
    assert_eq!(stat(&spool, "a").waiting, 3);
    // A clean end repeats nothing, and the uids are the same.
    spool.close_sync().unwrap();
    let spool = attached(dir.path(), &["a"]);
    let again: Vec<_> = waiting(&spool, "a").into_iter().map(|entry| entry.place.uid).collect();
    assert_eq!(again, [2, 3, 5].map(|index| all[index].place.uid.clone()));
    settle(&spool, &all[2], Outcome::Delivered);
    spool.flush_sync().unwrap();
    assert_eq!(files(&path), [format!("3_{}.event.snappy", id(2))]);
}

#[test]
fn a_batch_with_too_few_or_too_many_values_is_one_unreadable_entry() {
    for count in [2, 4] {
        let dir = tempfile::tempdir().unwrap();
        let path = foreign_dir(dir.path());
        let file = format!("{count}_{}.event", id(1));
        fs::write(path.join(&file), NOTIFICATION.repeat(3)).unwrap();
        let spool = attached(dir.path(), &["a"]);
        assert_eq!(stat(&spool, "a").waiting, count);
        let all = waiting(&spool, "a");
        assert_eq!(all.len(), 1);
        let bad = all[0].event.as_ref().unwrap_err();
        assert_eq!(bad.reason, format!("it has 3 values and not {count}"));
        assert_eq!(&bad.bytes[..], NOTIFICATION.repeat(3).as_bytes());
        assert_eq!((stat(&spool, "a").waiting, stat(&spool, "a").recovered), (1, 1));
        settle(&spool, &all[0], Outcome::Failed);
        spool.flush_sync().unwrap();
        assert_eq!((files(&path).len(), stat(&spool, "a").bytes), (0, 0));
    }
}

#[test]
fn hostile_files_take_no_memory_and_stay_visible() {
    let dir = tempfile::tempdir().unwrap();
    let path = foreign_dir(dir.path());
    fs::write(path.join(format!("4000000000_{}.event", id(1))), "{}{}").unwrap();
    fs::write(path.join(format!("{}.event.snappy", id(2))), [0xff, 0xff, 0xff, 0xff, 0x0f, 0]).unwrap();
    fs::write(path.join(format!("{}.event", id(3))), b"RQP1\xff\xff\xff\xff{}").unwrap();
    let huge = fs::File::create(path.join(format!("{}.event", id(4)))).unwrap();
    huge.set_len(rqp1::ENTRY_BYTES_MAX as u64 + 1).unwrap();
    let spool = attached(dir.path(), &["a"]);
    let all = waiting(&spool, "a");
    assert_eq!(all.len(), 4);
    assert!(all.iter().all(|entry| entry.event.is_err()));
    // The last one is longer than what is read, so nobody has a copy of it.
    settle(&spool, &all[3], Outcome::Failed);
    spool.flush_sync().unwrap();
    assert!(files(&path).contains(&format!("{}.event.kept", id(4))));
}

#[test]
fn names_are_above_all_that_are_held_when_the_clock_went_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = foreign_dir(dir.path());
    let future = "f1890a5d-ac96-774b-bcce-b302099a8057";
    fs::write(path.join(format!("{future}.event")), foreign(NOTIFICATION)).unwrap();
    let spool = attached(dir.path(), &["a"]);
    assert!((0..50).all(|n| spool.append_sync(vec![admission(n, &["a"])])[0].is_ok()));
    assert_eq!(ids(&spool, "a")[..3], [future, "0", "1"]);
    let names = files(&path);
    let own: Vec<_> = names.iter().map(|file| EntryName::parse(file).name).collect();
    assert_eq!((own.len(), own[0]), (51, future));
    for name in &own[1..] {
        assert_eq!((name.len(), &name[14..15]), (36, "7"));
    }
    // A name that has none above it refuses, and says why.
    fs::write(path.join("ffffffff-ffff-7fff-bfff-ffffffffffff.event"), foreign(NOTIFICATION)).unwrap();
    drop(spool);
    let spool = attached(dir.path(), &["a"]);
    let refused = spool.append_sync(vec![admission(1, &["a"])]).remove(0).unwrap_err();
    assert!(refused.to_string().contains("greatest name"), "{refused}");
}

#[test]
fn compressed_and_plain_entries_live_in_one_directory() {
    let dir = tempfile::tempdir().unwrap();
    for (round, compress) in [true, false, true].into_iter().enumerate() {
        let options = SpoolOptions { compress, ..SpoolOptions::default() };
        let spool = Spool::open(Arc::new(OsFileSystem), dir.path(), options).unwrap();
        spool.attach(&name("a"), QueueSettings::default()).unwrap();
        assert!(spool.append_sync(vec![sized(round as u64, &["a"], 500)])[0].is_ok());
    }
    let spool = open(dir.path());
    assert_eq!(ids(&spool, "a"), ["0", "1", "2"]);
    let suffixes: Vec<_> =
        files(&dir.path().join("outhaul-a")).iter().map(|file| file.ends_with(".snappy")).collect();
    assert_eq!(suffixes, [true, false, true]);
}

#[test]
fn an_event_is_stored_for_some_targets_when_another_directory_fails() {
    let dir = tempfile::tempdir().unwrap();
    let spool = attached(dir.path(), &["a", "b"]);
    assert!(spool.append_sync(vec![admission(1, &["a", "b"])])[0].is_ok());
    fs::remove_dir_all(dir.path().join("outhaul-b")).unwrap();
    fs::write(dir.path().join("outhaul-b"), "no directory").unwrap();
    let partial = spool.append_sync(vec![admission(2, &["a", "b"])]).remove(0).unwrap_err();
    let AppendError::Partial { durable, failed, .. } = partial else { panic!("{partial}") };
    assert_eq!((durable, failed), (vec![name("a")], vec![name("b")]));
    assert_eq!(ids(&spool, "a"), ["1", "2"]);
    // What was reserved for the other is free again.
    assert_eq!(stat(&spool, "b").waiting, 1);
}

#[test]
fn a_queue_that_is_removed_leaves_nothing_that_is_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let spool = attached(dir.path(), &["a", "b"]);
    assert!((0..9).all(|n| spool.append_sync(vec![admission(n, &["a", "b"])])[0].is_ok()));
    settle(&spool, &waiting(&spool, "a")[0], Outcome::Delivered);
    assert!(spool.remove_sync(&name("a")).is_err(), "it is attached");
    spool.detach(&name("a")).unwrap();
    assert_eq!(spool.remove_sync(&name("a")).unwrap(), 8);
    assert!(files(&dir.path().join("outhaul-a")).is_empty());
    assert!(!files(dir.path()).iter().any(|file| file.starts_with("outhaul-a.")));
    drop(spool);
    let spool = open(dir.path());
    let names: Vec<_> = spool.stats().into_iter().map(|stats| stats.name.to_string()).collect();
    assert_eq!(names, ["b"]);
    spool.attach(&name("a"), QueueSettings::default()).unwrap();
    assert!(spool.append_sync(vec![admission(20, &["a"])])[0].is_ok());
    assert_eq!(ids(&spool, "a"), ["20"]);
}

#[test]
fn names_that_windows_would_change_keep_their_queue() {
    let dir = tempfile::tempdir().unwrap();
    let spool = attached(dir.path(), &["a.", "a_"]);
    assert!(spool.append_sync(vec![admission(1, &["a."])])[0].is_ok());
    assert!(spool.append_sync(vec![admission(2, &["a_"])])[0].is_ok());
    drop(spool);
    let spool = open(dir.path());
    assert_eq!((ids(&spool, "a."), ids(&spool, "a_")), (vec!["1".to_owned()], vec!["2".to_owned()]));
    for file in files(dir.path()) {
        assert!(!file.ends_with('.') && !file.contains(':'), "{file}");
    }
}

#[test]
fn labels_retries_and_the_input_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open(dir.path());
    let settings = QueueSettings { label: "webhook:http://x/".to_owned(), ..QueueSettings::default() };
    spool.attach(&name("a"), settings).unwrap();
    spool.set_input_sync("a note".into()).unwrap();
    for position in [1, 2, 5] {
        let mut one = admission(position, &["a"]);
        one.position = Some(position);
        assert!(spool.append_sync(vec![one])[0].is_ok());
    }
    let not_before = std::time::UNIX_EPOCH + std::time::Duration::from_millis(1_700_000_000_000);
    settle(&spool, &waiting(&spool, "a")[1], Outcome::Retry(RetryState { attempts: 4, not_before }));
    settle(&spool, &waiting(&spool, "a")[0], Outcome::Delivered);
    spool.close_sync().unwrap();
    let spool = open(dir.path());
    assert_eq!(stat(&spool, "a").label, "webhook:http://x/");
    let retry = waiting(&spool, "a")[0].retry.unwrap();
    assert_eq!((retry.attempts, retry.not_before), (4, not_before));
    let input = spool.input().unwrap();
    assert_eq!((&input.note[..], &input.admitted[..]), (&b"a note"[..], &[(1, 2), (5, 5)][..]));
}

#[tokio::test]
async fn the_lease_reads_settles_and_is_fenced_by_a_later_one() {
    let dir = tempfile::tempdir().unwrap();
    let spool = attached(dir.path(), &["a"]);
    let lease = spool.lease(Shards::All).await.unwrap();
    let mut watch = lease.watch(&name("a")).unwrap();
    let receipts = spool.append(vec![admission(1, &["a"]), admission(2, &["a"])]).await;
    assert!(receipts.iter().all(Result::is_ok));
    assert!(matches!(spool.append(Vec::new()).await[..], [Err(AppendError::Empty)]));
    watch.changed().await.unwrap();
    let read = lease.read(&name("a"), 0, 1, 1 << 20).await.unwrap();
    assert_eq!(*watch.borrow(), receipts[1].as_ref().unwrap().sequence);
    lease.in_flight(&name("a"), &[read.entries[0].place.uid.sequence]).unwrap();
    let place = read.entries[0].place.clone();
    lease.settle(vec![Settlement { place, outcome: Outcome::Delivered }]).await.unwrap();
    let later = spool.lease(Shards::All).await.unwrap();
    assert!(later.epoch() > lease.epoch());
    assert!(lease.read(&name("a"), 0, 1, 1).await.is_err());
    spool.flush().await.unwrap();
    spool.close().await.unwrap();
    spool.close().await.unwrap();
    let refused = spool.append(vec![admission(3, &["a"])]).await;
    assert!(matches!(refused[..], [Err(AppendError::Store(_))]));
    let spool = attached(dir.path(), &["a"]);
    assert!(spool.lease(Shards::All).await.unwrap().epoch() > later.epoch());
}

#[test]
fn what_was_in_flight_at_an_unclean_end_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let spool = attached(dir.path(), &["a"]);
    assert!((0..3).all(|n| spool.append_sync(vec![admission(n, &["a"])])[0].is_ok()));
    let second = waiting(&spool, "a")[1].place.uid.sequence;
    let lease =
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(spool.lease(Shards::All));
    lease.unwrap().in_flight(&name("a"), &[second]).unwrap();
    // The thread writes it down by itself; a round of our own comes behind it.
    spool.set_input_sync("x".into()).unwrap();
    let copy = tempfile::tempdir().unwrap();
    copy_dir(dir.path(), copy.path());
    let crashed = open(copy.path());
    let crashes: Vec<_> = waiting(&crashed, "a").iter().map(|entry| entry.crashes).collect();
    assert_eq!(crashes, [0, 1, 0]);
    drop(spool);
    assert!(waiting(&open(dir.path()), "a").iter().all(|entry| entry.crashes == 0));
}

pub(crate) fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn weaker_durability_is_told_in_the_receipt() {
    for durability in [Durability::Buffered, Durability::Interval(std::time::Duration::from_millis(1))] {
        let dir = tempfile::tempdir().unwrap();
        let options = SpoolOptions { durability, ..SpoolOptions::default() };
        let spool = Spool::open(Arc::new(OsFileSystem), dir.path(), options).unwrap();
        spool.attach(&name("a"), QueueSettings::default()).unwrap();
        for n in 0..300 {
            assert!(!spool.append_sync(vec![admission(n, &["a"])])[0].as_ref().unwrap().durable);
        }
        spool.close_sync().unwrap();
        assert_eq!(ids(&open(dir.path()), "a").len(), 300);
    }
}

#[test]
fn overflow_and_shed_are_as_in_every_engine() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open(dir.path());
    let one = |when_full| QueueSettings { entries_max: 1, when_full, ..QueueSettings::default() };
    spool.attach(&name("a"), one(WhenFull::Shed)).unwrap();
    spool.attach(&name("b"), one(WhenFull::Overflow)).unwrap();
    for n in 0..3 {
        assert!(spool.append_sync(vec![admission(n, &["a", "b"])])[0].is_ok());
    }
    assert_eq!((ids(&spool, "a"), ids(&spool, "b").len()), (vec!["0".to_owned()], 3));
    assert_eq!((stat(&spool, "a").shed, spool.excess(&name("b"))), (2, 2));
    let batch = spool.append_sync(vec![admission(7, &["a"])]).remove(0).unwrap();
    assert_eq!((batch.sequence, batch.shed), (0, vec![name("a")]));
    assert_eq!(**waiting(&spool, "b")[2].event.as_ref().unwrap(), *event(2, 20));
}

#[test]
fn a_directory_looked_at_is_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    let path = foreign_dir(dir.path());
    fs::write(path.join(format!("{}.event", id(1))), foreign(NOTIFICATION)).unwrap();
    fs::write(path.join(format!("{}.event.tmp", id(2))), "half").unwrap();
    let options = SpoolOptions { read_only: true, ..SpoolOptions::default() };
    let spool = Spool::open(Arc::new(OsFileSystem), dir.path(), options).unwrap();
    assert_eq!(ids(&spool, "a"), [id(1)]);
    spool.attach(&name("a"), QueueSettings::default()).unwrap();
    assert!(matches!(spool.append_sync(vec![admission(1, &["a"])])[..], [Err(AppendError::Store(_))]));
    drop(spool);
    assert_eq!((files(dir.path()), files(&path).len()), (vec!["rustfs-webhook-a".to_owned()], 2));
}
