//! Entries of the spool that stay behind under another name, on a real directory and on one that fails.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use outhaul_store::{
    Engine, Log, Outcome, QueueSettings, RetryState, Settlement, Shards, SimDisk, SimFileSystem, Spool,
    SpoolOptions, Store, StoreError, StoreOptions,
};

use crate::spool::{ids, settle, waiting};
use crate::support::{admission, check_sums, failed, name, sized};

fn files(dir: &Path) -> usize {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    entries.filter(|name| name.contains(".event")).count()
}

#[tokio::test]
async fn entries_keep_their_uids_and_attempts_and_what_failed_stays_with_the_name() {
    for stem in ["outhaul-a", "rustfs-webhook-a"] {
        let dir = tempfile::tempdir().unwrap();
        let spool = dir.path().join("spool");
        let open = async || {
            let options = StoreOptions { engine: Engine::Spool, ..StoreOptions::default() };
            Store::open(dir.path(), options).await.unwrap()
        };
        // The directory is one of ours before anything is put into it.
        open().await.close().await.unwrap();
        fs::create_dir_all(spool.join(stem)).unwrap();
        let store = open().await;
        let log = store.log();
        let settings = |label: &str| QueueSettings { label: label.to_owned(), ..QueueSettings::default() };
        log.attach(&name("a"), settings("old")).unwrap();
        let batch = (1..=4).map(|number| admission(number, &["a"])).collect();
        assert!(log.append(batch).await.iter().all(Result::is_ok));
        let lease = log.lease(Shards::All).await.unwrap();
        let before = lease.read(&name("a"), 0, 100, 1 << 20).await.unwrap().entries;
        // The first was delivered, the second tried, the third has failed.
        let not_before = SystemTime::now() + Duration::from_secs(1000);
        let outcomes =
            [Outcome::Delivered, Outcome::Retry(RetryState { attempts: 3, not_before }), Outcome::Failed];
        let mut record = failed("a", 3);
        record.uid = before[2].place.uid.clone();
        store.failed().put(vec![record.clone()]).await.unwrap();
        let settled = before.iter().zip(outcomes);
        let settled = settled.map(|(entry, outcome)| Settlement { place: entry.place.clone(), outcome });
        lease.settle(settled.collect()).await.unwrap();
        let refused = log.rename(&name("nobody"), &name("a.orphan-1")).await.unwrap_err();
        assert!(matches!(refused, StoreError::UnknownQueue(_)), "{refused}");
        log.rename(&name("a"), &name("a.orphan-1")).await.unwrap();
        log.attach(&name("a"), settings("new")).unwrap();
        assert!(log.append(vec![admission(5, &["a"])]).await[0].is_ok());
        let refused = log.rename(&name("a"), &name("a.orphan-1")).await.unwrap_err();
        assert!(matches!(refused, StoreError::Attached(_)), "{refused}");
        let check = async |store: &Store| {
            check_sums(&**store.log());
            let lease = store.log().lease(Shards::All).await.unwrap();
            let of = async |queue: &str| {
                let read = lease.read(&name(queue), 0, 100, 1 << 20).await.unwrap().entries;
                let each = read.into_iter().map(|entry| {
                    let id = entry.event.unwrap().id().to_owned();
                    (id, entry.place.uid.sequence, entry.retry.map_or(0, |retry| retry.attempts))
                });
                each.collect::<Vec<_>>()
            };
            let uid = |index: usize| before[index].place.uid.sequence;
            let expected = [("2".to_owned(), uid(1), 3), ("4".to_owned(), uid(3), 0)];
            assert_eq!(of("a.orphan-1").await, expected, "{stem}");
            let new = of("a").await;
            assert_eq!((new.len(), new[0].0.as_str()), (1, "5"), "{stem}");
            assert!(store.failed().get(&record.uid).await.unwrap().is_some(), "{stem}");
            let labels: Vec<_> =
                store.log().stats().into_iter().map(|queue| (queue.name.to_string(), queue.label)).collect();
            let own = |name: &str, label: &str| (name.to_owned(), label.to_owned());
            assert_eq!(labels, [own("a", "new"), own("a.orphan-1", "old")], "{stem}");
        };
        check(&store).await;
        assert_eq!((files(&spool.join("outhaul-a.orphan-1")), files(&spool.join(stem))), (2, 1));
        store.close().await.unwrap();
        // A lease keeps the directory's lock.
        drop((lease, store));
        let store = open().await;
        assert!(store.report().foreign.is_empty(), "{:?}", store.report());
        check(&store).await;
        store.close().await.unwrap();
    }
}

fn open(fs: &SimFileSystem) -> Spool {
    // One writer and no timer: the order of the calls is that of the test.
    let options =
        SpoolOptions { writers: 1, settle_linger: Duration::from_secs(3600), ..SpoolOptions::default() };
    let spool = Spool::open(Arc::new(fs.clone()), Path::new("/data/spool"), options).unwrap();
    spool.attach(&name("a"), QueueSettings::default()).unwrap();
    spool
}

/// Six of eight wait.
fn prepared() -> (SimFileSystem, Spool) {
    let fs = SimFileSystem::default();
    let spool = open(&fs);
    for id in 0..8 {
        assert!(spool.append_sync(vec![sized(id, &["a"], 30)])[0].is_ok());
    }
    for entry in &waiting(&spool, "a")[..2] {
        settle(&spool, entry, Outcome::Delivered);
    }
    spool.flush_sync().unwrap();
    (fs, spool)
}

/// Each of the six is in one of the two queues, and in its order.
fn check(disk: SimDisk, context: &str) {
    let again = open(&SimFileSystem::new(disk));
    let (old, new) = (
        ids(&again, "a"),
        match again.stats().iter().any(|q| q.name == name("b")) {
            true => ids(&again, "b"),
            false => Vec::new(),
        },
    );
    assert!(old.is_sorted() && new.is_sorted(), "{context}: {old:?} {new:?}");
    let all: BTreeSet<_> = old.iter().chain(&new).cloned().collect();
    let expected: BTreeSet<_> = (2..8).map(|id| id.to_string()).collect();
    assert_eq!(all, expected, "{context}: {old:?} {new:?}");
    assert_eq!(old.len() + new.len(), 6, "{context}: {old:?} {new:?}");
}

#[test]
fn no_power_cut_on_the_way_loses_an_entry() {
    let (fs, spool) = prepared();
    fs.record();
    spool.rename_sync(&name("a"), &name("b")).unwrap();
    assert_eq!((ids(&spool, "a").len(), ids(&spool, "b").len()), (0, 6));
    let images = fs.recorded();
    check(fs.disk().crash(&mut fastrand::Rng::with_seed(0)), "behind it");
    assert!(images.len() >= 10, "{} calls", images.len());
    for (call, (_, disk)) in images.into_iter().enumerate() {
        for seed in 0..8 {
            let context = format!("call {call}, seed {seed}");
            check(disk.crash(&mut fastrand::Rng::with_seed(seed)), &context);
        }
    }
}

#[test]
fn a_call_that_fails_on_the_way_leaves_every_entry_where_it_was_or_stops_the_spool() {
    for forever in [false, true] {
        for call in 1..40 {
            let (fs, spool) = prepared();
            fs.fail_at(call, io::ErrorKind::Other, forever);
            let renamed = spool.rename_sync(&name("a"), &name("b"));
            fs.heal();
            let context = format!("call {call}, forever {forever}, {renamed:?}");
            check_sums(&spool);
            if renamed.is_ok() {
                assert_eq!((ids(&spool, "a").len(), ids(&spool, "b").len()), (0, 6), "{context}");
            } else if spool.failure().is_none() {
                assert_eq!(ids(&spool, "a").len(), 6, "{context}");
                assert!(spool.rename_sync(&name("a"), &name("b")).is_ok(), "{context}");
                assert_eq!(ids(&spool, "b").len(), 6, "{context}");
            }
            drop(spool);
            check(fs.disk(), &context);
        }
    }
}
