//! The journal on a real disk.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use outhaul_store::{
    AppendError, Journal, Log, OsFileSystem, Outcome, QueueSettings, RetryState, Shards, StoreError, WhenFull,
};

use crate::support::{admission, attach, check_sums, ids, name, options, settle, sized, waiting};

fn open(dir: &tempfile::TempDir, segment: u64) -> Journal {
    let path = dir.path();
    Journal::open(Arc::new(OsFileSystem), &path.join("log"), &path.join("quarantine"), options(segment))
        .unwrap()
}

fn segments(dir: &tempfile::TempDir) -> usize {
    let names = std::fs::read_dir(dir.path().join("log")).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_str().unwrap().ends_with(".seg")).count()
}

#[test]
fn what_was_acknowledged_is_there_after_a_restart_and_what_was_settled_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir, 1 << 20);
    attach(&log, &["a", "b"]);
    for id in 0..10 {
        let targets: &[&str] = if id % 2 == 0 { &["a", "b"] } else { &["b"] };
        assert!(log.append_sync(vec![admission(id, targets)])[0].is_ok());
    }
    assert_eq!(ids(&log, "a"), [0, 2, 4, 6, 8]);
    for entry in waiting(&log, "b").iter().filter(|entry| entry.place.uid.sequence % 3 == 0) {
        settle(&log, entry, Outcome::Delivered);
    }
    let retry = RetryState { attempts: 3, not_before: UNIX_EPOCH + Duration::from_secs(7) };
    settle(&log, &waiting(&log, "a")[0], Outcome::Retry(retry));
    let left = ids(&log, "b");
    check_sums(&log);
    log.close_sync().unwrap();

    let log = open(&dir, 1 << 20);
    assert_eq!(ids(&log, "a"), [0, 2, 4, 6, 8]);
    assert_eq!(ids(&log, "b"), left);
    assert_eq!(waiting(&log, "a")[0].retry, Some(retry));
    let stats = log.stats();
    assert_eq!((stats[0].recovered, stats[0].attached), (5, false), "nothing is attached yet");
    assert_eq!(log.report(), Default::default());
    check_sums(&log);
}

#[test]
fn finished_segments_go_and_stuck_entries_stay_readable() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir, 4096);
    attach(&log, &["a", "b"]);
    for id in 0..200 {
        let targets: &[&str] = if id == 100 { &["a", "b"] } else { &["a"] };
        assert!(log.append_sync(vec![sized(id, targets, 300)])[0].is_ok());
    }
    assert!(segments(&dir) > 10);
    for entry in waiting(&log, "a") {
        settle(&log, &entry, Outcome::Delivered);
    }
    log.flush_sync().unwrap();
    log.flush_sync().unwrap();
    assert!(segments(&dir) <= 3, "{} segments", segments(&dir));
    assert_eq!(ids(&log, "b"), [100]);
    log.close_sync().unwrap();
    let log = open(&dir, 4096);
    assert_eq!((ids(&log, "a"), ids(&log, "b")), (vec![], vec![100]));
    settle(&log, &waiting(&log, "b")[0], Outcome::Failed);
    assert!(log.append_sync(vec![admission(7, &["b"])])[0].is_err(), "an orphan gets nothing new");
}

#[test]
fn an_entry_is_settled_once_whoever_asks_again() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir, 1 << 20);
    attach(&log, &["a"]);
    log.append_sync(vec![admission(0, &["a"]), admission(1, &["a"])]);
    let entries = waiting(&log, "a");
    for _ in 0..3 {
        settle(&log, &entries[1], Outcome::Delivered);
    }
    settle(&log, &entries[1], Outcome::Discarded);
    let stats = log.stats().remove(0);
    assert_eq!((stats.delivered, stats.discarded, stats.waiting), (1, 0, 1));
    assert_eq!(ids(&log, "a"), [0]);
}

#[test]
fn a_limit_refuses_sheds_or_overflows() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir, 1 << 20);
    let limited = |when_full| QueueSettings { entries_max: 2, when_full, ..QueueSettings::default() };
    log.attach(&name("refuses"), limited(WhenFull::Refuse)).unwrap();
    log.attach(&name("sheds"), limited(WhenFull::Shed)).unwrap();
    log.attach(&name("overflows"), limited(WhenFull::Overflow)).unwrap();
    attach(&log, &["free"]);
    let send = |id, targets: &[&str]| log.append_sync(vec![admission(id, targets)]).remove(0);

    for id in 0..2 {
        send(id, &["refuses", "free"]).unwrap();
    }
    let error = send(2, &["free", "refuses"]).unwrap_err();
    assert!(
        matches!(&error, AppendError::QueueFull { target, .. } if target.as_str() == "refuses"),
        "{error}"
    );
    assert_eq!(ids(&log, "free"), [0, 1], "refused for all of its targets");

    for id in 3..6 {
        send(id, &["sheds"]).unwrap();
    }
    let receipt = send(6, &["sheds", "free"]).unwrap();
    assert_eq!((&receipt.targets[..], &receipt.shed[..]), (&[name("free")][..], &[name("sheds")][..]));
    let stats = log.stats().into_iter().find(|stats| stats.name.as_str() == "sheds").unwrap();
    assert_eq!((stats.waiting, stats.shed), (2, 2));

    for id in 7..10 {
        send(id, &["overflows"]).unwrap();
    }
    assert_eq!(log.excess(&name("overflows")), 1);
    settle(&log, &waiting(&log, "overflows")[0], Outcome::Failed);
    assert_eq!(log.excess(&name("overflows")), 0);
    check_sums(&log);
}

#[test]
fn a_limit_of_one_with_four_racing_producers_admits_exactly_one() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir, 1 << 20);
    log.attach(&name("a"), QueueSettings { entries_max: 1, ..QueueSettings::default() }).unwrap();
    let admitted: usize = std::thread::scope(|scope| {
        let racers: Vec<_> = (0..4)
            .map(|id| {
                scope.spawn({
                    let log = &log;
                    move || log.append_sync(vec![admission(id, &["a"])]).remove(0)
                })
            })
            .collect();
        racers.into_iter().filter(|_| true).map(|racer| usize::from(racer.join().unwrap().is_ok())).sum()
    });
    assert_eq!(admitted, 1);
}

#[test]
fn a_reservation_is_for_all_or_for_none_and_is_given_back() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir, 1 << 20);
    log.attach(&name("a"), QueueSettings { entries_max: 3, ..QueueSettings::default() }).unwrap();
    let batch = |count: u64| (0..count).map(|id| admission(id, &["a"])).collect::<Vec<_>>();
    assert!(log.reserve(&mut batch(4)).is_err());
    let mut three = batch(3);
    log.reserve(&mut three).unwrap();
    assert!(log.reserve(&mut batch(1)).is_err(), "all room is taken");
    assert!(log.append_sync(batch(1))[0].is_err(), "also for those who did not reserve");
    drop(three);
    assert!(log.append_sync(batch(3)).iter().all(Result::is_ok), "what was dropped is given back");
    assert!(log.append_sync(batch(1))[0].is_err());
}

#[test]
fn the_input_remembers_what_was_admitted_since_its_note() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir, 600);
    attach(&log, &["a"]);
    let at = |position| {
        let mut admission = admission(position, &["a"]);
        admission.position = Some(position);
        admission
    };
    assert_eq!(log.input(), None);
    log.set_input_sync("first".into()).unwrap();
    log.append_sync(vec![at(1), at(2), at(5)]);
    let input = log.input().unwrap();
    assert_eq!((&input.note[..], &input.admitted[..]), (&b"first"[..], &[(1, 2), (5, 5)][..]));
    log.set_input_sync("second".into()).unwrap();
    for position in 6..30 {
        log.append_sync(vec![at(position)]);
    }
    drop(log);
    let input = open(&dir, 600).input().unwrap();
    assert_eq!((&input.note[..], &input.admitted[..]), (&b"second"[..], &[(6, 29)][..]));
}

#[test]
fn an_event_without_targets_is_answered_and_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir, 1 << 20);
    let receipt = log.append_sync(vec![admission(0, &[])]).remove(0).unwrap();
    assert_eq!((receipt.sequence, receipt.targets.len()), (0, 0));
}

#[tokio::test]
async fn a_later_lease_fences_the_earlier_one_and_epochs_grow_over_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir, 1 << 20);
    attach(&log, &["a"]);
    let first = log.lease(Shards::All).await.unwrap();
    let second = log.lease(Shards::All).await.unwrap();
    assert!(second.epoch() > first.epoch());
    assert!(matches!(first.read(&name("a"), 0, 1, 1).await, Err(StoreError::Fenced(_))));
    assert!(matches!(first.settle(vec![]).await, Err(StoreError::Fenced(_))));
    assert!(first.watch(&name("a")).is_err());
    let mut watch = second.watch(&name("a")).unwrap();
    let receipt = log.append(vec![admission(0, &["a"])]).await.remove(0).unwrap();
    watch.changed().await.unwrap();
    assert_eq!(*watch.borrow(), receipt.sequence);
    log.close().await.unwrap();
    log.close().await.unwrap();
    assert!(log.append(vec![admission(1, &["a"])]).await[0].is_err());
    assert!(open(&dir, 1 << 20).lease(Shards::All).await.unwrap().epoch() > second.epoch());
}

#[tokio::test]
async fn many_tasks_share_batches_and_keep_their_order() {
    let dir = tempfile::tempdir().unwrap();
    let log = Arc::new(open(&dir, 16 << 10));
    attach(&*log, &["a"]);
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..16 {
        let log = Arc::clone(&log);
        tasks.spawn(async move {
            for step in 0..20 {
                assert!(log.append(vec![admission(task * 1000 + step, &["a"])]).await[0].is_ok());
            }
        });
    }
    tasks.join_all().await;
    let ids = ids(&log, "a");
    assert_eq!(ids.len(), 320);
    for task in 0..16 {
        let own: Vec<_> = ids.iter().filter(|id| **id / 1000 == task).collect();
        assert!(own.is_sorted());
    }
    log.close().await.unwrap();
}

#[test]
fn a_read_only_journal_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir, 1 << 20);
    attach(&log, &["a"]);
    log.append_sync(vec![admission(0, &["a"])]);
    drop(log);
    let before = segments(&dir);
    let mut options = options(1 << 20);
    options.read_only = true;
    let log = Journal::open(Arc::new(OsFileSystem), &dir.path().join("log"), &dir.path().join("q"), options)
        .unwrap();
    assert_eq!(ids(&log, "a"), [0]);
    assert!(log.append_sync(vec![admission(1, &["a"])])[0].is_err());
    log.close_sync().unwrap();
    assert_eq!(segments(&dir), before);
}
