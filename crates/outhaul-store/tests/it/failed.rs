//! The failed store: bounds, listing, requeue, discard, and what can come between.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use outhaul_store::event::Uid;
use outhaul_store::{
    AppendError, Discard, Engine, Entry, FailedEntry, FailedFull, FailedOptions, FailedQuery, FailedStore,
    FileSystem, Journal, JournalOptions, ListOrder, RequeueError, Rule, Shards, SimFileSystem, Store,
    StoreError, StoreOptions,
};

use crate::counting::Counting;
use crate::support::{admission, attach, check_sums, event, failed, name};

const DATA: &str = "/data";

async fn open_with(fs: &SimFileSystem, failed: FailedOptions) -> Store {
    let options = StoreOptions { failed, ..StoreOptions::default() };
    Store::open_on(Arc::new(fs.clone()), Path::new(DATA), options).await.unwrap()
}

async fn open(fs: &SimFileSystem) -> Store {
    open_with(fs, FailedOptions::default()).await
}

fn memory(failed: FailedOptions) -> impl Future<Output = Store> {
    let options = StoreOptions { engine: Engine::Memory, failed, ..StoreOptions::default() };
    async { Store::open(Path::new("/nowhere"), options).await.unwrap() }
}

fn uid(text: &str) -> Uid {
    text.parse().unwrap()
}

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

/// A failed entry with the time of its failure in seconds since 1970.
fn failed_at(target: &str, sequence: u64, seconds: u64) -> FailedEntry {
    let mut entry = failed(target, sequence);
    entry.failure.failed_ms = seconds * 1000;
    entry
}

fn uids(store: &FailedStore) -> Vec<String> {
    store.uids().iter().map(ToString::to_string).collect()
}

/// All that waits in a queue.
async fn waiting(store: &Store, queue: &str) -> Vec<Entry> {
    let lease = store.log().lease(Shards::All).await.unwrap();
    lease.read(&name(queue), 0, 1000, 1 << 20).await.unwrap().entries
}

/// A store with three entries admitted to queue `a`, of which the first two failed.
async fn two_failed(store: &Store) {
    attach(&**store.log(), &["a"]);
    store.log().append((1..=3).map(|id| admission(id, &["a"])).collect()).await;
    let lease = store.log().lease(Shards::All).await.unwrap();
    let entries = lease.read(&name("a"), 0, 2, 1 << 20).await.unwrap().entries;
    store.failed().put(vec![failed("a", 1), failed("a", 2)]).await.unwrap();
    for entry in entries {
        let outcome = outhaul_store::Outcome::Failed;
        lease.settle(vec![outhaul_store::Settlement { place: entry.place, outcome }]).await.unwrap();
    }
    store.log().flush().await.unwrap();
}

#[tokio::test]
async fn ten_thousand_rejects_cost_a_handful_of_syncs() {
    let fs = Counting::default();
    let store = Store::open_on(Arc::new(fs.clone()), Path::new(DATA), StoreOptions::default()).await.unwrap();
    let before = fs.syncs();
    store.failed().put((1..=10_000).map(|sequence| failed("a", sequence)).collect()).await.unwrap();
    let syncs = fs.syncs() - before;
    assert!((1..=12).contains(&syncs), "{syncs} syncs");
    assert_eq!(store.failed().count(None), 10_000);
    let before = fs.syncs();
    assert_eq!(store.failed().discard(Discard::All { target: None }).await.unwrap(), 10_000);
    let syncs = fs.syncs() - before;
    assert!((1..=12).contains(&syncs), "{syncs} syncs");
}

#[tokio::test]
async fn pages_go_both_ways_and_over_targets() {
    let fs = SimFileSystem::default();
    let store = open(&fs).await;
    let put = [("b", 2), ("a", 5), ("a", 1), ("c", 9), ("a", 7)];
    store.failed().put(put.map(|(target, sequence)| failed(target, sequence)).into()).await.unwrap();
    let all = ["a:1", "a:5", "a:7", "b:2", "c:9"];
    for size in 1..=6 {
        for (order, expected) in [
            (ListOrder::OldestFirst, all.to_vec()),
            (ListOrder::NewestFirst, all.iter().rev().copied().collect()),
        ] {
            let mut query = FailedQuery { order, ..FailedQuery::default() };
            let mut seen = Vec::new();
            loop {
                let page = store.failed().page(&query, size).await.unwrap();
                assert!(page.entries.len() <= size);
                seen.extend(page.entries.iter().map(|entry| entry.uid.to_string()));
                query.after = page.next;
                if query.after.is_none() {
                    break;
                }
            }
            assert_eq!(seen, expected, "{order:?} by {size}");
        }
    }
    let query =
        FailedQuery { target: Some(name("a")), order: ListOrder::NewestFirst, ..FailedQuery::default() };
    let page = store.failed().page(&query, 2).await.unwrap();
    assert_eq!(page.entries.iter().map(|entry| entry.uid.sequence).collect::<Vec<_>>(), [7, 5]);
    assert_eq!(page.next, Some(uid("a:5")));
}

#[tokio::test]
async fn entries_that_vanish_in_the_middle_of_a_scan_are_passed_over() {
    let store = memory(FailedOptions::default()).await;
    store.failed().put((1..=6).map(|sequence| failed("a", sequence)).collect()).await.unwrap();
    let mut query = FailedQuery::default();
    let page = store.failed().page(&query, 2).await.unwrap();
    query.after = page.next;
    // The entry at the cursor, and the next ones.
    let gone = Discard::Uids(["a:2", "a:3", "a:4"].map(uid).into());
    assert_eq!(store.failed().discard(gone.clone()).await.unwrap(), 3);
    assert_eq!(store.failed().discard(gone).await.unwrap(), 0, "it is said how many there were");
    let page = store.failed().page(&query, 10).await.unwrap();
    assert_eq!(page.entries.iter().map(|entry| entry.uid.sequence).collect::<Vec<_>>(), [5, 6]);
    assert_eq!(page.next, None);
}

#[tokio::test]
async fn a_scan_beside_writers_sees_each_old_entry_once() {
    let fs = SimFileSystem::default();
    let store = Arc::new(open(&fs).await);
    store.failed().put((1..=200).map(|sequence| failed("a", sequence * 2)).collect()).await.unwrap();
    let writer = {
        let store = Arc::clone(&store);
        async move {
            for sequence in 0..50 {
                store.failed().put(vec![failed("a", sequence * 8 + 1)]).await.unwrap();
                let gone = Discard::Uids(vec![uid(&format!("a:{}", 400 - sequence * 2))]);
                store.failed().discard(gone).await.unwrap();
            }
        }
    };
    let scan = async {
        let (mut query, mut seen) = (FailedQuery::default(), Vec::new());
        loop {
            let page = store.failed().page(&query, 7).await.unwrap();
            seen.extend(page.entries.iter().map(|entry| entry.uid.sequence));
            query.after = page.next;
            if query.after.is_none() {
                return seen;
            }
        }
    };
    let ((), seen) = tokio::join!(writer, scan);
    assert!(seen.is_sorted_by(|a, b| a < b), "in order, none twice: {seen:?}");
    assert!((1..=150).all(|sequence| seen.contains(&(sequence * 2))), "{seen:?}");
    assert_eq!(store.failed().count(None), 200);
}

#[tokio::test]
async fn a_requeued_entry_is_new_in_its_queue_and_asking_again_names_it() {
    let fs = SimFileSystem::default();
    let store = open(&fs).await;
    two_failed(&store).await;
    let dedup_id = failed("a", 1).dedup_id;
    let asked = ["a:2", "a:9", "a:1"].map(uid);
    let answers = store.failed().requeue(&asked).await;
    let (second, first) = (answers[0].clone().unwrap(), answers[2].clone().unwrap());
    assert!(matches!(&answers[1], Err(RequeueError::NotFound(uid)) if uid.sequence == 9));
    assert!(!first.again && first.requeued_as.sequence > 3 && second.requeued_as.sequence > 3);
    let entries = waiting(&store, "a").await;
    assert_eq!(entries.len(), 3);
    let entry = entries.iter().find(|entry| entry.place.uid == first.requeued_as).unwrap();
    assert_eq!((entry.dedup_id, entry.requeue_of, entry.retry), (dedup_id, Some(1), None));
    assert!(entry.admitted_at > at(1_000_000_000), "its age begins anew");
    assert_eq!((store.failed().count(None), store.failed().stats()[0].requeued), (0, 2));
    check_sums(&**store.log());

    let again = store.failed().requeue(&[uid("a:1")]).await.remove(0).unwrap();
    assert_eq!((&again.requeued_as, again.again), (&first.requeued_as, true));
    // A move that was interrupted before is passed over as well.
    store.failed().put(vec![failed("a", 1)]).await.unwrap();
    assert_eq!(store.failed().count(None), 0);
    store.close().await.unwrap();

    let store = open(&fs).await;
    assert_eq!(store.failed().requeued_as(&uid("a:1")), Some(first.requeued_as.clone()));
    attach(&**store.log(), &["a"]);
    let again = store.failed().requeue(&[uid("a:1")]).await.remove(0).unwrap();
    assert_eq!((&again.requeued_as, again.again), (&first.requeued_as, true));
    assert_eq!(waiting(&store, "a").await.len(), 3);
}

#[tokio::test]
async fn concurrent_requeues_of_one_entry_make_one() {
    let fs = SimFileSystem::default();
    let store = open(&fs).await;
    two_failed(&store).await;
    let one = [uid("a:1")];
    let both = [uid("a:2"), uid("a:1")];
    let (a, b, c) = tokio::join!(
        store.failed().requeue(&one),
        store.failed().requeue(&both),
        store.failed().requeue(&one)
    );
    let all = [a[0].clone().unwrap(), b[1].clone().unwrap(), c[0].clone().unwrap()];
    assert!(all.iter().all(|answer| answer.requeued_as == all[0].requeued_as));
    assert_eq!(all.iter().filter(|answer| !answer.again).count(), 1);
    assert_eq!(waiting(&store, "a").await.len(), 3);
}

#[tokio::test]
async fn a_requeue_goes_on_when_nobody_waits_for_it() {
    let fs = SimFileSystem::default();
    let store = open(&fs).await;
    two_failed(&store).await;
    {
        let one = [uid("a:1")];
        let mut requeue = Box::pin(store.failed().requeue(&one));
        assert!(poll_once(requeue.as_mut()).is_none());
    }
    store.failed().close().await.unwrap();
    assert_eq!(waiting(&store, "a").await.len(), 2);
    assert_eq!(store.failed().count(None), 1);
}

fn poll_once<T>(future: std::pin::Pin<&mut (dyn Future<Output = T> + Send)>) -> Option<T> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.poll(&mut context) {
        std::task::Poll::Ready(value) => Some(value),
        std::task::Poll::Pending => None,
    }
}

/// At every point at which the power can go, the entry is in the failed store or in its queue after the next open, and
/// never in both.
#[tokio::test]
async fn a_power_cut_leaves_a_requeued_entry_in_one_place() {
    let fs = SimFileSystem::default();
    let store = open(&fs).await;
    two_failed(&store).await;
    fs.record();
    fs.set_tag(0);
    let answer = store.failed().requeue(&[uid("a:1")]).await.remove(0).unwrap();
    fs.set_tag(1);
    store.failed().discard(Discard::Uids(vec![uid("a:2")])).await.unwrap();
    fs.set_tag(2);
    store.close().await.unwrap();
    let mut seen = [0, 0];
    for (index, (tag, disk)) in fs.recorded().into_iter().enumerate() {
        for seed in 0..8 {
            let mut random = fastrand::Rng::with_seed(seed);
            let fs = SimFileSystem::new(disk.crash(&mut random));
            let store = open(&fs).await;
            let queued = waiting(&store, "a").await;
            let queued: Vec<_> = queued.iter().filter(|entry| entry.requeue_of == Some(1)).collect();
            let kept = store.failed().get(&uid("a:1")).await.unwrap().is_some();
            assert_eq!(queued.len() + usize::from(kept), 1, "snapshot {index}, seed {seed}");
            seen[usize::from(kept)] += 1;
            if tag > 0 {
                assert!(!kept, "it was confirmed");
                assert_eq!(store.failed().requeued_as(&uid("a:1")), Some(answer.requeued_as.clone()));
            }
            if tag > 1 {
                assert_eq!(store.failed().count(None), 0, "the discard was confirmed");
            }
            // Whatever was left half done is done now.
            attach(&**store.log(), &["a"]);
            let again = store.failed().requeue(&[uid("a:1")]).await.remove(0).unwrap();
            assert_eq!(again.again, !kept);
            let queued = waiting(&store, "a").await;
            assert_eq!(queued.iter().filter(|entry| entry.requeue_of == Some(1)).count(), 1);
            check_sums(&**store.log());
        }
    }
    assert!(seen.iter().all(|&count| count > 0), "both outcomes are visited: {seen:?}");
}

#[tokio::test]
async fn what_cannot_go_back_says_why_and_stays() {
    let store = memory(FailedOptions::default()).await;
    let mut damaged = failed("a", 2);
    damaged.failure.rule = Rule::Unreadable;
    store.failed().put(vec![failed("a", 1), damaged]).await.unwrap();
    let answers = store.failed().requeue(&["a:1", "a:2"].map(uid)).await;
    assert!(matches!(answers[0], Err(RequeueError::Append(AppendError::UnknownQueue(_)))), "{answers:?}");
    assert!(matches!(answers[1], Err(RequeueError::Unreadable(_))), "{answers:?}");
    assert_eq!(uids(store.failed()), ["a:1", "a:2"]);
    attach(&**store.log(), &["a"]);
    assert!(store.failed().requeue(&[uid("a:1")]).await[0].is_ok(), "the queue is there now");
}

#[tokio::test]
async fn a_requeue_passes_the_limit_of_its_queue() {
    let store = memory(FailedOptions::default()).await;
    let settings = outhaul_store::QueueSettings { entries_max: 1, ..Default::default() };
    store.log().attach(&name("a"), settings).unwrap();
    store.log().append(vec![admission(1, &["a"])]).await.remove(0).unwrap();
    store.failed().put(vec![failed("a", 7)]).await.unwrap();
    store.failed().requeue(&[uid("a:7")]).await.remove(0).unwrap();
    assert_eq!(waiting(&store, "a").await.len(), 2);
}

#[tokio::test]
async fn entries_are_discarded_by_uid_age_and_target() {
    let fs = SimFileSystem::default();
    let store = open(&fs).await;
    let put = [("a", 1, 10), ("a", 2, 20), ("a", 3, 30), ("b", 4, 10), ("b", 5, 40)];
    store.failed().put(put.map(|(target, n, age)| failed_at(target, n, age)).into()).await.unwrap();
    let before = |seconds, target| Discard::Before { failed_before: at(seconds), target };
    assert_eq!(store.failed().discard(before(20, Some(name("a")))).await.unwrap(), 1);
    assert_eq!(uids(store.failed()), ["a:2", "a:3", "b:4", "b:5"]);
    assert_eq!(store.failed().discard(before(31, None)).await.unwrap(), 3);
    let some = vec![uid("b:5"), uid("b:5"), uid("x:1")];
    assert_eq!(store.failed().discard(Discard::Uids(some)).await.unwrap(), 1);
    store.failed().put(vec![failed("a", 9), failed("b", 9)]).await.unwrap();
    assert_eq!(store.failed().discard(Discard::All { target: Some(name("a")) }).await.unwrap(), 1);
    // Confirmed is durable: the power goes right now.
    let fs = SimFileSystem::new(fs.disk().crash(&mut fastrand::Rng::with_seed(3)));
    assert_eq!(uids(open(&fs).await.failed()), ["b:9"]);
    assert_eq!(store.failed().stats().iter().map(|stats| stats.discarded).collect::<Vec<_>>(), [4, 2]);
}

#[tokio::test]
async fn writers_that_race_at_the_bound_share_the_room() {
    let fs = SimFileSystem::default();
    let store = open_with(&fs, FailedOptions { entries_max: 1, ..FailedOptions::default() }).await;
    let results = race(&store, (1..=4).map(|sequence| vec![failed("a", sequence)])).await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
    let error = results.into_iter().find_map(Result::err).unwrap();
    assert!(error.to_string().contains("the failed store of target a is full (1 entries)"), "{error}");
    assert_eq!(store.failed().count(None), 1);
    store.failed().discard(Discard::All { target: None }).await.unwrap();
    store.failed().put(vec![failed("a", 9)]).await.unwrap();
    store.failed().put(vec![failed("b", 9)]).await.unwrap();
}

#[tokio::test]
async fn one_uid_that_is_put_at_the_same_time_is_there_once() {
    let fs = SimFileSystem::default();
    let store = open_with(&fs, FailedOptions { entries_max: 2, ..FailedOptions::default() }).await;
    let batch = vec![failed("a", 1), failed("a", 2), failed("a", 1)];
    let results = race(&store, (0..8).map(|_| batch.clone())).await;
    assert!(results.iter().all(Result::is_ok), "what is there takes no room");
    store.close().await.unwrap();
    assert_eq!(uids(open(&fs).await.failed()), ["a:1", "a:2"]);
}

#[tokio::test]
async fn bytes_are_bounded_too() {
    let store = memory(FailedOptions { bytes_max: 2_000, ..FailedOptions::default() }).await;
    let mut large = failed("a", 1);
    large.event = event(1, 3_000);
    let error = store.failed().put(vec![large]).await.unwrap_err();
    assert!(matches!(&error, AppendError::FailedStoreFull { limit, .. } if limit == "2000 bytes"), "{error}");
    store.failed().put(vec![failed("a", 2)]).await.unwrap();
    assert!(store.failed().stats()[0].bytes > 0);
}

#[tokio::test]
async fn the_oldest_make_room_where_that_was_chosen() {
    let fs = SimFileSystem::default();
    let bounds =
        || FailedOptions { entries_max: 3, when_full: FailedFull::DiscardOldest, ..FailedOptions::default() };
    let store = open_with(&fs, bounds()).await;
    // By the time of the failure, not of the admission.
    for (sequence, age) in [(9, 10), (1, 20), (2, 30), (3, 40)] {
        store.failed().put(vec![failed_at("a", sequence, age)]).await.unwrap();
    }
    assert_eq!(uids(store.failed()), ["a:1", "a:2", "a:3"]);
    store.failed().put((10..20).map(|n| failed_at("a", n, n * 10)).collect()).await.unwrap();
    assert_eq!(uids(store.failed()), ["a:17", "a:18", "a:19"], "of a large batch the last are kept");
    assert_eq!(store.failed().stats()[0].discarded_oldest, 11);
    let results = race(&store, (20..28).map(|n| vec![failed_at("a", n, n * 10)])).await;
    assert!(results.iter().all(Result::is_ok));
    assert_eq!(store.failed().count(None), 3);
    store.close().await.unwrap();
    let store = open_with(&fs, FailedOptions { entries_max: 1, ..bounds() }).await;
    assert_eq!(store.failed().count(None), 1, "a smaller bound is kept right after open");
}

#[tokio::test]
async fn what_is_too_old_goes_where_that_was_chosen() {
    let options = FailedOptions::rustfs();
    assert_eq!((options.entries_max, options.expire_after), (10_000, Some(Duration::from_secs(259_200))));
    let fs = SimFileSystem::default();
    let store = open(&fs).await;
    store.failed().put(vec![failed("a", 1), failed("b", 1)]).await.unwrap();
    assert_eq!(store.failed().maintain(SystemTime::now()).await.unwrap(), 0, "nothing expires by default");
    store.failed().configure(&name("a"), options.clone());
    assert_eq!(store.failed().maintain(at(259_200)).await.unwrap(), 0);
    assert_eq!(store.failed().maintain(at(259_201)).await.unwrap(), 1);
    assert_eq!(store.failed().stats()[0].expired, 1);
    store.close().await.unwrap();
    assert_eq!(open_with(&fs, options).await.failed().count(None), 0, "right after open");
}

#[tokio::test(start_paused = true)]
async fn upkeep_runs_at_most_once_a_minute() {
    let store = memory(FailedOptions::rustfs()).await;
    store.failed().maintain(SystemTime::now()).await.unwrap();
    store.failed().put(vec![failed("a", 1)]).await.unwrap();
    // bounded: the clock is paused
    tokio::time::sleep(Duration::from_secs(59)).await;
    assert_eq!(store.failed().count(None), 1);
    // bounded: the clock is paused
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(store.failed().count(None), 0);
}

#[tokio::test]
async fn a_store_in_which_nothing_failed_creates_nothing() {
    let fs = SimFileSystem::default();
    let store = open_with(&fs, FailedOptions::rustfs()).await;
    store.failed().maintain(SystemTime::now()).await.unwrap();
    assert_eq!(store.failed().discard(Discard::All { target: None }).await.unwrap(), 0);
    assert!(store.failed().requeue(&[uid("a:1")]).await[0].is_err());
    assert!(store.failed().page(&FailedQuery::default(), 10).await.unwrap().entries.is_empty());
    store.failed().put(Vec::new()).await.unwrap();
    store.close().await.unwrap();
    assert!(fs.list(&Path::new(DATA).join("failed")).is_err());
}

/// Writes into the failed store's own journal, as no version of outhaul does.
fn tamper(fs: &SimFileSystem, attachments: &[&str]) {
    let dir = Path::new(DATA).join("failed");
    let quarantine = Path::new(DATA).join("quarantine");
    let journal = Journal::open(Arc::new(fs.clone()), &dir, &quarantine, JournalOptions::default()).unwrap();
    attach(&journal, &["a"]);
    for (id, attachment) in (50..).zip(attachments) {
        let mut admission = admission(id, &["a"]);
        admission.attachment = attachment.as_bytes().to_vec().into();
        journal.append_sync(vec![admission]).remove(0).unwrap();
    }
    journal.close_sync().unwrap();
}

#[tokio::test]
async fn a_record_that_is_there_twice_is_reconciled_and_one_that_makes_no_sense_is_kept() {
    let fs = SimFileSystem::default();
    let store = open(&fs).await;
    store.failed().put(vec![failed("a", 1)]).await.unwrap();
    store.close().await.unwrap();
    let twin = r#"{"sequence":1,"admitted_ms":5,"rule":"rejected","class":"c","detail":"","attempts":1,
        "first_attempt_ms":null,"last_attempt_ms":null,"failed_ms":7}"#;
    tamper(&fs, &[twin, "nonsense", r#"{"requeue":8,"requeued_as":12}"#]);
    for _ in 0..2 {
        let store = open(&fs).await;
        assert_eq!((store.failed().count(None), store.failed().unreadable().len()), (1, 1));
        let unreadable = &store.failed().unreadable()[0];
        assert!(unreadable.reason.contains("makes no sense"), "{unreadable:?}");
        assert_eq!(store.failed().requeued_as(&uid("a:8")), Some(uid("a:12")));
        store.close().await.unwrap();
    }
    let store = open(&fs).await;
    store.failed().discard(Discard::All { target: None }).await.unwrap();
    store.close().await.unwrap();
    let store = open(&fs).await;
    assert_eq!((store.failed().count(None), store.failed().unreadable().len()), (0, 1), "no twin comes up");
}

#[tokio::test]
async fn errors_of_the_disk_surface() {
    let fs = SimFileSystem::default();
    let store = open(&fs).await;
    store.failed().put(vec![failed("a", 1)]).await.unwrap();
    fs.fail_at(1, std::io::ErrorKind::PermissionDenied, true);
    assert!(store.failed().put(vec![failed("a", 2)]).await.is_err());
    assert!(store.failed().discard(Discard::All { target: None }).await.is_err());
    assert_eq!(store.failed().count(None), 1, "what could not be removed is still counted");
}

#[tokio::test]
async fn a_directory_names_its_engine_and_others_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    assert!(matches!(Store::engine_of(&data), Err(StoreError::Missing(_))));
    drop(Store::open(&data, StoreOptions::default()).await.unwrap());
    assert_eq!(Store::engine_of(&data).unwrap(), Some(Engine::Journal));
    let newest: serde_json::Value =
        serde_json::from_slice(&std::fs::read(data.join("format")).unwrap()).unwrap();
    // Every format up to the newest is read.
    for format in 0..=newest["format"].as_u64().unwrap() {
        let text = format!(r#"{{"engine":"journal","format":{format},"written_by":"0.0.1"}}"#);
        std::fs::write(data.join("format"), text).unwrap();
        drop(Store::open(&data, StoreOptions::default()).await.unwrap());
        assert_eq!(
            std::fs::read(data.join("format")).unwrap(),
            format!("{newest}\n").into_bytes(),
            "what is written from now on is new"
        );
    }
    std::fs::write(data.join("format"), r#"{"engine":"memory","format":0,"written_by":"0.1.0"}"#).unwrap();
    let error = Store::open(&data, StoreOptions::default()).await.unwrap_err();
    let told = error.to_string();
    assert!(matches!(error, StoreError::OtherEngine { .. }), "{told}");
    assert!(told.contains("`memory`") && told.contains("`journal`") && told.contains("of its own"), "{told}");
}

/// Puts batches at the same time, each from a task of its own.
async fn race(
    store: &Store,
    batches: impl Iterator<Item = Vec<FailedEntry>>,
) -> Vec<Result<(), AppendError>> {
    let mut tasks = tokio::task::JoinSet::new();
    for batch in batches {
        let failed = Arc::clone(store.failed());
        tasks.spawn(async move { failed.put(batch).await });
    }
    tasks.join_all().await
}

#[tokio::test]
async fn of_a_burst_that_is_more_than_there_is_room_for_as_much_as_fits_is_taken() {
    let store = memory(FailedOptions { entries_max: 5, ..FailedOptions::default() }).await;
    let burst =
        |from: u64| (from..from + 4).flat_map(|n| [failed("a", n), failed("b", n)]).collect::<Vec<_>>();
    assert!(store.failed().put_each(burst(1)).await.iter().all(Result::is_ok));
    let results = store.failed().put_each(burst(5)).await;
    let ok: Vec<_> = results.iter().map(Result::is_ok).collect();
    assert_eq!(ok, [true, true, false, false, false, false, false, false], "one more of each");
    for error in results.into_iter().filter_map(Result::err) {
        assert!(matches!(error, AppendError::FailedStoreFull { .. }), "{error}");
    }
    assert_eq!(uids(store.failed()).len(), 10);
    // Those that are there are passed over, and the answer for them is the same.
    let again = store.failed().put_each(burst(5)).await;
    assert_eq!(again.iter().filter(|result| result.is_ok()).count(), 2);
    store.failed().discard(Discard::Uids(vec![uid("a:1"), uid("a:2")])).await.unwrap();
    let again = store.failed().put_each(burst(5)).await;
    let ok: Vec<_> = again.iter().map(Result::is_ok).collect();
    assert_eq!(
        ok,
        [true, true, true, false, true, false, false, false],
        "the first that were refused come first"
    );
}

#[tokio::test]
async fn what_is_discarded_to_make_room_is_counted() {
    let options =
        FailedOptions { entries_max: 2, when_full: FailedFull::DiscardOldest, ..FailedOptions::default() };
    let store = memory(options).await;
    let results = store.failed().put_each((1..=5).map(|n| failed_at("a", n, n)).collect()).await;
    assert!(results.iter().all(Result::is_ok));
    let stats = store.failed().stats().remove(0);
    assert_eq!((stats.entries, stats.discarded_oldest), (2, 3));
}
