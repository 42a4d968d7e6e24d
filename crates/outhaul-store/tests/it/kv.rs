//! The key-value store: one suite for all engines, then what only an engine on a disk can do wrong.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use outhaul_store::kv::{Batch, KvError, KvLimits, KvStore, MemoryKv, Page, Revision, Scan, Versioned};
use proptest::prelude::*;
use tokio::task::JoinSet;

#[cfg(feature = "kv-fjall")]
#[path = "kv_disk.rs"]
mod disk;

type Store = Arc<dyn KvStore>;

const LIMITS: KvLimits = KvLimits {
    key_bytes_max: 16,
    value_bytes_max: 100,
    batch_bytes_max: 4000,
    get_keys_max: 60,
    page_bytes_max: 4000,
};

/// Where a store of an engine lives.
enum Home {
    Memory,
    #[cfg(feature = "kv-fjall")]
    Fjall(tempfile::TempDir),
}

impl Home {
    async fn open(&self, limits: KvLimits) -> Result<Store, KvError> {
        match self {
            Self::Memory => Ok(Arc::new(MemoryKv::new(limits)?)),
            #[cfg(feature = "kv-fjall")]
            Self::Fjall(dir) => Ok(Arc::new(disk::open(&dir.path().join("kv"), limits).await?)),
        }
    }

    /// Closes, and opens again if that keeps anything.
    async fn reopen(&self, store: Store) -> Store {
        match self {
            Self::Memory => store,
            #[cfg(feature = "kv-fjall")]
            Self::Fjall(_) => {
                store.close().await.unwrap();
                self.open(LIMITS).await.unwrap()
            }
        }
    }
}

macro_rules! suite {
    ($($test:ident)+) => {
        mod memory {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(&super::Home::Memory).await;
            })+
        }
        #[cfg(feature = "kv-fjall")]
        mod fjall {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(&super::Home::Fjall(tempfile::tempdir().unwrap())).await;
            })+
        }
    };
}

suite! {
    what_was_put_is_read_with_its_revision
    a_revision_never_comes_back
    a_failed_condition_refuses_the_whole_batch_and_names_what_was_found
    conditions_hold_for_keys_that_are_not_written
    the_last_write_of_a_key_in_a_batch_counts
    a_batch_without_writes_changes_nothing
    batches_handed_over_together_are_answered_one_by_one
    of_two_writers_exactly_one_wins
    no_increment_is_lost
    a_batch_is_seen_whole_or_not_at_all
    scans_are_ordered_and_bounded
    a_scan_that_is_paged_sees_what_stays_exactly_once
    a_page_ends_before_it_grows_too_large
    what_is_too_large_is_refused_and_nothing_written
    a_closed_store_says_so
}

async fn put(store: &dyn KvStore, key: &str, value: &str) -> Revision {
    let mut batch = Batch::new();
    store.apply(batch.put(key.to_owned(), value.to_owned()).clone()).await.unwrap()
}

fn keys(page: &Page) -> Vec<&str> {
    page.rows.iter().map(|row| std::str::from_utf8(&row.key).unwrap()).collect()
}

async fn scanned(store: &dyn KvStore, scan: Scan) -> String {
    keys(&store.scan(scan).await.unwrap()).join(" ")
}

async fn what_was_put_is_read_with_its_revision(home: &Home) {
    let store = home.open(LIMITS).await.unwrap();
    assert_eq!(store.get(b"a").await.unwrap(), None);
    let first = put(&*store, "a", "1").await;
    let second = put(&*store, "b", "").await;
    let third = put(&*store, "a", "2").await;
    assert!(first < second && second < third);
    let expected = [
        Some(Versioned { value: "2".into(), revision: third }),
        None,
        Some(Versioned { value: Bytes::new(), revision: second }),
        Some(Versioned { value: "2".into(), revision: third }),
    ];
    let found = store.get_many(&["a".into(), "x".into(), "b".into(), "a".into()]).await.unwrap();
    assert_eq!(found, expected);
    assert_eq!(store.get(b"b").await.unwrap(), expected[2]);
    assert!(store.get_many(&[]).await.unwrap().is_empty());
    store.flush().await.unwrap();
    assert!(store.failure().is_none());
}

async fn a_revision_never_comes_back(home: &Home) {
    let mut store = home.open(LIMITS).await.unwrap();
    let mut before = put(&*store, "a", "1").await;
    for _ in 0..3 {
        let deleted = store.apply(Batch::new().delete("a").delete("never there").clone()).await.unwrap();
        assert!(deleted > before);
        assert_eq!(store.get(b"a").await.unwrap(), None);
        // Nothing but the newest revision is left to be kept.
        store = home.reopen(store).await;
        let again = put(&*store, "a", "1").await;
        assert!(again > deleted);
        before = again;
    }
}

async fn a_failed_condition_refuses_the_whole_batch_and_names_what_was_found(home: &Home) {
    let store = home.open(LIMITS).await.unwrap();
    let revision = put(&*store, "a", "1").await;
    let stale = Revision(revision.0 + 7);
    let cases = [("a", None, Some(revision)), ("a", Some(stale), Some(revision)), ("x", Some(stale), None)];
    for (key, expected, found) in cases {
        let mut batch = Batch::new();
        batch.put("a", "2").put("b", "2").require("a", Some(revision)).require(key, expected);
        match store.apply(batch).await.unwrap_err() {
            KvError::Conflict { key: named, found: was, expected: wanted } => {
                assert_eq!((&named[..], was, wanted), (key.as_bytes(), found, expected));
            }
            other => panic!("{other}"),
        }
    }
    assert_eq!(store.get(b"a").await.unwrap(), Some(Versioned { value: "1".into(), revision }));
    assert_eq!(store.get(b"b").await.unwrap(), None);
    let mut batch = Batch::new();
    let written =
        store.apply(batch.put("a", "2").require("a", Some(revision)).require("b", None).clone()).await;
    assert!(written.unwrap() > revision);
    let error = store.apply(batch).await.unwrap_err().to_string();
    assert!(error.starts_with("the key \"a\" has revision 2; expected was revision 1"), "{error}");
}

async fn conditions_hold_for_keys_that_are_not_written(home: &Home) {
    let store = home.open(LIMITS).await.unwrap();
    let lease = put(&*store, "lease", "mine").await;
    let mut batch = Batch::new();
    batch.put("a", "1").require("lease", Some(lease));
    let written = store.apply(batch.clone()).await.unwrap();
    put(&*store, "lease", "another's").await;
    assert!(matches!(store.apply(batch.put("a", "2").clone()).await, Err(KvError::Conflict { .. })));
    assert_eq!(store.get(b"a").await.unwrap().unwrap().revision, written);
}

async fn the_last_write_of_a_key_in_a_batch_counts(home: &Home) {
    let store = home.open(LIMITS).await.unwrap();
    let mut batch = Batch::new();
    batch.put("a", "1").put("a", "2").delete("b").put("b", "1").put("c", "1").delete("c");
    // A condition is about what was there before the batch.
    let revision = store.apply(batch.require("a", None).clone()).await.unwrap();
    let page = store.scan(Scan::default()).await.unwrap();
    assert_eq!(keys(&page), ["a", "b"]);
    assert_eq!((&page.rows[0].value[..], page.rows[0].revision), (&b"2"[..], revision));
}

async fn a_batch_without_writes_changes_nothing(home: &Home) {
    let store = home.open(LIMITS).await.unwrap();
    assert_eq!(store.apply(Batch::new()).await.unwrap(), Revision(0));
    let revision = put(&*store, "a", "1").await;
    assert_eq!(store.apply(Batch::new()).await.unwrap(), revision);
    let mut looked = Batch::new();
    assert_eq!(store.apply(looked.require("a", Some(revision)).clone()).await.unwrap(), revision);
    assert!(matches!(store.apply(looked.require("a", None).clone()).await, Err(KvError::Conflict { .. })));
    assert!(store.apply_many(Vec::new()).await.is_empty());
}

async fn batches_handed_over_together_are_answered_one_by_one(home: &Home) {
    let store = home.open(LIMITS).await.unwrap();
    let take = |by: &str| Batch::new().put("lock", by.to_owned()).require("lock", None).clone();
    let batches = vec![
        take("first"),
        take("second"),
        Batch::new().put("", "no key").clone(),
        Batch::new().delete("lock").clone(),
        take("fifth"),
    ];
    let answers = store.apply_many(batches).await;
    let revisions = [&answers[0], &answers[3], &answers[4]].map(|answer| *answer.as_ref().unwrap());
    assert!(revisions[0] < revisions[1] && revisions[1] < revisions[2]);
    match &answers[1] {
        Err(KvError::Conflict { found, .. }) => assert_eq!(*found, Some(revisions[0])),
        other => panic!("{other:?}"),
    }
    assert!(matches!(answers[2], Err(KvError::KeyLength { length: 0, max: 16 })));
    let found = store.get(b"lock").await.unwrap().unwrap();
    assert_eq!((&found.value[..], found.revision), (&b"fifth"[..], revisions[2]));
}

async fn of_two_writers_exactly_one_wins(home: &Home) {
    let store = home.open(LIMITS).await.unwrap();
    let mut seen = None;
    for round in 0..40 {
        let mut writers = JoinSet::new();
        for writer in ["one", "two"] {
            let store = Arc::clone(&store);
            let batch =
                Batch::new().put("a", writer).put(format!("{round}/{writer}"), "").require("a", seen).clone();
            writers.spawn(async move { (writer, store.apply(batch).await) });
        }
        let answers = writers.join_all().await;
        let won = answers.iter().filter_map(|(writer, answer)| Some((writer, answer.as_ref().ok()?)));
        let won = won.collect::<Vec<_>>();
        assert_eq!(won.len(), 1, "{answers:?}");
        let found = store.get(b"a").await.unwrap().unwrap();
        assert_eq!((&found.value[..], found.revision), (won[0].0.as_bytes(), *won[0].1));
        let traces = scanned(&*store, Scan::prefix(format!("{round}/"))).await;
        assert_eq!(traces, format!("{round}/{}", won[0].0));
        seen = Some(found.revision);
    }
}

async fn no_increment_is_lost(home: &Home) {
    let store = home.open(LIMITS).await.unwrap();
    let mut writers = JoinSet::new();
    for _ in 0..4 {
        let store = Arc::clone(&store);
        writers.spawn(async move {
            let mut done = 0;
            while done < 20 {
                let found = store.get(b"n").await.unwrap();
                let number = found.as_ref().map_or(0, |found| found.value[0]);
                let mut batch = Batch::new();
                batch.put("n", vec![number + 1]).require("n", found.map(|found| found.revision));
                match store.apply(batch).await {
                    Ok(_) => done += 1,
                    Err(KvError::Conflict { .. }) => {}
                    Err(other) => panic!("{other}"),
                }
            }
        });
    }
    writers.join_all().await;
    assert_eq!(store.get(b"n").await.unwrap().unwrap().value[..], [80]);
}

async fn a_batch_is_seen_whole_or_not_at_all(home: &Home) {
    let store = home.open(LIMITS).await.unwrap();
    let names: Vec<Bytes> = ["a", "m", "z"].map(Bytes::from).into();
    let writer = {
        let (store, names) = (Arc::clone(&store), names.clone());
        async move {
            for round in 1..=100_u8 {
                let mut batch = Batch::new();
                for name in &names {
                    match round % 5 {
                        0 => batch.delete(name.clone()),
                        _ => batch.put(name.clone(), vec![round]),
                    };
                }
                store.apply(batch).await.unwrap();
            }
        }
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(writer);
    while tasks.try_join_next().is_none() {
        let many = store.get_many(&names).await.unwrap();
        assert!(many.iter().all(|found| *found == many[0]), "{many:?}");
        let page = store.scan(Scan::default()).await.unwrap();
        assert!(page.rows.is_empty() || page.rows.len() == names.len(), "{page:?}");
        assert!(page.rows.iter().all(|row| row.revision == page.rows[0].revision), "{page:?}");
    }
}

async fn scans_are_ordered_and_bounded(home: &Home) {
    let store = home.open(LIMITS).await.unwrap();
    for key in ["b", "a", "ab", "c/1", "c/2", "c", "d"] {
        put(&*store, key, key).await;
    }
    put(&*store, "c/\u{7f}", "").await;
    let store = &*store;
    let key = Bytes::from_static;
    assert_eq!(scanned(store, Scan::default()).await, "a ab b c c/1 c/2 c/\u{7f} d");
    assert_eq!(
        scanned(store, Scan { reverse: true, ..Scan::default() }).await,
        "d c/\u{7f} c/2 c/1 c b ab a"
    );
    assert_eq!(scanned(store, Scan::prefix("c/")).await, "c/1 c/2 c/\u{7f}");
    assert_eq!(scanned(store, Scan::prefix("c/3")).await, "");
    assert_eq!(scanned(store, Scan::prefix("")).await, "a ab b c c/1 c/2 c/\u{7f} d");
    assert_eq!(scanned(store, Scan::range(key(b"ab")..key(b"c/1"))).await, "ab b c");
    assert_eq!(scanned(store, Scan::range(key(b"ab")..=key(b"c/1"))).await, "ab b c c/1");
    assert_eq!(scanned(store, Scan::range(..key(b"b"))).await, "a ab");
    let behind = Scan { start: Bound::Excluded(key(b"c/2")), ..Scan::default() };
    assert_eq!(scanned(store, behind).await, "c/\u{7f} d");
    for empty in [
        Scan::range(key(b"c")..key(b"c")),
        Scan::range(key(b"d")..key(b"a")),
        Scan::range(key(b"d")..=key(b"a")),
        Scan { start: Bound::Excluded(key(b"a")), end: Bound::Excluded(key(b"a")), ..Scan::default() },
        Scan { after: Some(key(b"d")), ..Scan::default() },
        Scan { after: Some(key(b"a")), reverse: true, ..Scan::default() },
    ] {
        assert_eq!(store.scan(empty.clone()).await.unwrap(), Page::default(), "{empty:?}");
    }
    let none = Scan { limit: 0, ..Scan::default() };
    assert!(matches!(store.scan(none).await, Err(KvError::Zero("the limit of a scan"))));

    let page = store.scan(Scan { limit: 3, ..Scan::prefix("c") }).await.unwrap();
    assert_eq!((keys(&page), page.next.as_deref()), (vec!["c", "c/1", "c/2"], Some(&b"c/2"[..])));
    let last = store.scan(Scan { limit: 3, after: page.next, ..Scan::prefix("c") }).await.unwrap();
    assert_eq!((keys(&last), last.next.clone()), (vec!["c/\u{7f}"], None));
    let exact = store.scan(Scan { limit: 4, ..Scan::prefix("c") }).await.unwrap();
    assert_eq!((exact.rows.len(), exact.next), (4, None));

    // A cursor outside of the range changes nothing on the one side, and ends the scan on the other.
    let outside = |after: &'static str| Scan { after: Some(after.into()), ..Scan::prefix("c") };
    assert_eq!(scanned(store, outside("a")).await, "c c/1 c/2 c/\u{7f}");
    assert_eq!(scanned(store, outside("x")).await, "");
    assert_eq!(scanned(store, Scan { reverse: true, ..outside("x") }).await, "c/\u{7f} c/2 c/1 c");
    assert_eq!(scanned(store, Scan { reverse: true, ..outside("a") }).await, "");
}

#[tokio::test]
async fn a_prefix_of_the_highest_bytes_has_an_end() {
    let store = MemoryKv::default();
    let mut batch = Batch::new();
    for key in [&b"\xfe"[..], b"\xfe\xff", b"\xfe\xff\x01", b"\xff", b"\xff\xff", b"\xff\xff\xff"] {
        batch.put(key, "");
    }
    store.apply(batch).await.unwrap();
    for (prefix, count) in [(&b"\xfe"[..], 3), (b"\xfe\xff", 2), (b"\xff", 3), (b"\xff\xff", 2)] {
        assert_eq!(store.scan(Scan::prefix(prefix)).await.unwrap().rows.len(), count, "{prefix:?}");
    }
}

async fn a_scan_that_is_paged_sees_what_stays_exactly_once(home: &Home) {
    let store = home.open(LIMITS).await.unwrap();
    let name = |number: u32| format!("{number:03}");
    for reverse in [false, true] {
        for first in (0..40).step_by(10) {
            let mut batch = Batch::new();
            for number in first..first + 10 {
                batch.put(name(number * 2), "stays").delete(name(number * 2 + 1));
            }
            store.apply(batch).await.unwrap();
        }
        let (mut seen, mut after, mut page_number) = (Vec::new(), None, 0);
        loop {
            let scan = Scan { limit: 7, after, reverse, ..Scan::default() };
            let page = store.scan(scan).await.unwrap();
            seen.extend(page.rows.iter().map(|row| row.key.clone()));
            let Some(next) = page.next else { break };
            // Behind the cursor and before it something comes, and the cursor itself may go.
            let odd = |number: u32| name((number * 2 + 1).min(79));
            let mut change = Batch::new();
            change.put(odd(page_number), "comes").put(odd(39 - page_number), "comes");
            if page_number == 2 {
                change.delete(next.clone());
            }
            store.apply(change).await.unwrap();
            (after, page_number) = (Some(next), page_number + 1);
        }
        let mut sorted = seen.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), seen.len(), "something was seen twice");
        if reverse {
            sorted.reverse();
        }
        assert_eq!(sorted, seen);
        let stayed = (0..40).map(|number| Bytes::from(name(number * 2)));
        assert!(stayed.into_iter().all(|key| seen.contains(&key)), "something was not seen");
        assert!(page_number > 4);
    }
}

async fn a_page_ends_before_it_grows_too_large(home: &Home) {
    let store = home.open(KvLimits { page_bytes_max: 300, ..LIMITS }).await.unwrap();
    for number in 0..5 {
        put(&*store, &format!("{number}"), &"x".repeat(80)).await;
    }
    let (mut sizes, mut after) = (Vec::new(), None);
    loop {
        let page = store.scan(Scan { after, ..Scan::default() }).await.unwrap();
        sizes.push(page.rows.len());
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(sizes, [2, 2, 1]);
    store.close().await.unwrap();
    drop(store);
    if !matches!(home, Home::Memory) {
        let store = home.open(KvLimits { page_bytes_max: 1, ..LIMITS }).await.unwrap();
        assert_eq!(store.scan(Scan::default()).await.unwrap().rows.len(), 1, "one row is always given");
    }
}

async fn what_is_too_large_is_refused_and_nothing_written(home: &Home) {
    for zero in [
        KvLimits { key_bytes_max: 0, ..LIMITS },
        KvLimits { value_bytes_max: 0, ..LIMITS },
        KvLimits { batch_bytes_max: 0, ..LIMITS },
        KvLimits { get_keys_max: 0, ..LIMITS },
        KvLimits { page_bytes_max: 0, ..LIMITS },
    ] {
        assert!(matches!(home.open(zero).await, Err(KvError::Zero(_))));
    }
    let long = home.open(KvLimits { key_bytes_max: 40_000, ..LIMITS }).await;
    assert!(matches!(long, Err(KvError::KeyLength { length: 40_000, max: 32_768 })));

    let store = home.open(LIMITS).await.unwrap();
    assert_eq!(store.limits(), LIMITS);
    let (key, value) = (Bytes::from(vec![b'k'; 16]), Bytes::from(vec![0; 100]));
    store.apply(Batch::new().put(key.clone(), value).clone()).await.unwrap();
    assert!(store.get(&key).await.unwrap().is_some());
    let before = store.scan(Scan::default()).await.unwrap();

    let too_long = Bytes::from(vec![b'k'; 17]);
    let refused = |mut batch: Batch| {
        let store = Arc::clone(&store);
        async move { store.apply(batch.put("fine", "").clone()).await.unwrap_err() }
    };
    for batch in [
        Batch::new().put(too_long.clone(), "").clone(),
        Batch::new().delete(too_long.clone()).clone(),
        Batch::new().require(too_long.clone(), None).clone(),
        Batch::new().put("", "").clone(),
    ] {
        assert!(matches!(refused(batch).await, KvError::KeyLength { length: 0 | 17, max: 16 }));
    }
    let error = refused(Batch::new().put("big", vec![0; 101]).clone()).await;
    assert!(matches!(error, KvError::ValueTooLarge { key, length: 101, max: 100 } if key == "big"));
    let mut batch = Batch::new();
    for number in 0..25 {
        batch.put(format!("{number:02}"), vec![0; 100]);
    }
    assert_eq!(batch.bytes(), 25 * (64 + 2 + 100));
    let error = refused(batch).await;
    assert!(matches!(error, KvError::BatchTooLarge { bytes: 4218, max: 4000 }), "{error}");
    assert!(matches!(store.get(&too_long).await, Err(KvError::KeyLength { .. })));
    let many = vec![key; 61];
    let error = store.get_many(&many).await.unwrap_err();
    assert!(matches!(error, KvError::TooManyKeys { count: 61, max: 60 }));
    assert_eq!(store.get_many(&many[1..]).await.unwrap().len(), 60);
    assert_eq!(store.scan(Scan::default()).await.unwrap(), before);
}

async fn a_closed_store_says_so(home: &Home) {
    let store = home.open(LIMITS).await.unwrap();
    put(&*store, "a", "1").await;
    let (one, other) = tokio::join!(store.close(), store.close());
    one.and(other).unwrap();
    store.close().await.unwrap();
    assert!(matches!(store.get(b"a").await, Err(KvError::Closed)));
    assert!(matches!(store.get_many(&["a".into()]).await, Err(KvError::Closed)));
    assert!(matches!(store.apply(Batch::new()).await, Err(KvError::Closed)));
    assert!(matches!(store.apply(Batch::new().put("a", "").clone()).await, Err(KvError::Closed)));
    assert!(matches!(store.scan(Scan::default()).await, Err(KvError::Closed)));
    assert!(matches!(store.flush().await, Err(KvError::Closed)));
}

#[derive(Debug, Clone)]
enum Action {
    Apply(Vec<ModelBatch>),
    GetMany(Vec<u8>),
    Scan { start: Option<u8>, end: Option<u8>, after: Option<u8>, limit: usize, reverse: bool },
    Reopen,
}

/// Which keys, with a value or without; and conditions: absent, the right revision, a wrong one.
#[derive(Debug, Clone)]
struct ModelBatch {
    writes: Vec<(u8, Option<u8>)>,
    conditions: Vec<(u8, Expect)>,
}

#[derive(Debug, Clone, Copy)]
enum Expect {
    Absent,
    AsItWas,
    Wrong,
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let key = 0..12_u8;
    let expect = prop_oneof![1 => Just(Expect::Absent), 6 => Just(Expect::AsItWas), 1 => Just(Expect::Wrong)];
    let writes = prop::collection::vec((key.clone(), prop::option::of(any::<u8>())), 0..5);
    let conditions = prop::collection::vec((key.clone(), expect), 0..3);
    let batch = (writes, conditions).prop_map(|(writes, conditions)| ModelBatch { writes, conditions });
    let some = || prop::option::of(0..12_u8);
    let action = prop_oneof![
        6 => prop::collection::vec(batch, 0..4).prop_map(Action::Apply),
        2 => prop::collection::vec(key, 0..5).prop_map(Action::GetMany),
        3 => (some(), some(), some(), 1..6_usize, any::<bool>())
            .prop_map(|(start, end, after, limit, reverse)| Action::Scan { start, end, after, limit, reverse }),
        1 => Just(Action::Reopen),
    ];
    prop::collection::vec(action, 1..25)
}

type Model = BTreeMap<Bytes, Versioned>;

fn model_key(key: u8) -> Bytes {
    format!("k{key:02}").into()
}

async fn follows_the_model(home: &Home, actions: Vec<Action>) {
    let mut store = home.open(LIMITS).await.unwrap();
    let (mut model, mut newest) = (Model::new(), Revision(0));
    for action in actions {
        match action {
            Action::Apply(batches) => {
                // What `AsItWas` means is fixed now; an earlier batch of the call may break it.
                let batches = batches.iter().map(|batch| real_batch(batch, &model)).collect::<Vec<_>>();
                let answers = store.apply_many(batches.clone()).await;
                assert_eq!(answers.len(), batches.len());
                for (batch, answer) in batches.iter().zip(answers) {
                    let broken = batch.conditions().iter().find(|condition| {
                        model.get(&condition.key).map(|row| row.revision) != condition.expected
                    });
                    match (broken, answer) {
                        (Some(condition), Err(KvError::Conflict { key, found, expected })) => {
                            let is = model.get(&key).map(|row| row.revision);
                            assert_eq!((&key, found, expected), (&condition.key, is, condition.expected));
                        }
                        (None, Ok(revision)) => newest = written(batch, revision, newest, &mut model),
                        (broken, answer) => panic!("{broken:?} {answer:?}"),
                    }
                }
            }
            Action::GetMany(keys) => {
                let keys = keys.into_iter().map(model_key).collect::<Vec<_>>();
                let expected = keys.iter().map(|key| model.get(key).cloned()).collect::<Vec<_>>();
                assert_eq!(store.get_many(&keys).await.unwrap(), expected);
            }
            Action::Scan { start, end, after, limit, reverse } => {
                let bound =
                    |key: Option<u8>| key.map_or(Bound::Unbounded, |key| Bound::Included(model_key(key)));
                let after = after.map(model_key);
                let scan =
                    Scan { start: bound(start), end: bound(end), after: after.clone(), limit, reverse };
                let inside = |key: &Bytes| {
                    start.is_none_or(|start| *key >= model_key(start))
                        && end.is_none_or(|end| *key <= model_key(end))
                        && after.as_ref().is_none_or(|after| if reverse { key < after } else { key > after })
                };
                let mut expected = model.iter().filter(|(key, _)| inside(key)).collect::<Vec<_>>();
                if reverse {
                    expected.reverse();
                }
                let page = store.scan(scan).await.unwrap();
                let more = expected.len() > limit;
                expected.truncate(limit);
                let found =
                    page.rows.iter().map(|row| (&row.key, &row.value, row.revision)).collect::<Vec<_>>();
                let expected = expected
                    .into_iter()
                    .map(|(key, row)| (key, &row.value, row.revision))
                    .collect::<Vec<_>>();
                assert_eq!(found, expected);
                assert_eq!(page.next, more.then(|| page.rows[limit - 1].key.clone()));
            }
            Action::Reopen => store = home.reopen(store).await,
        }
    }
    store.close().await.unwrap();
}

fn real_batch(batch: &ModelBatch, model: &Model) -> Batch {
    let mut real = Batch::new();
    for (key, value) in &batch.writes {
        match value {
            Some(value) => real.put(model_key(*key), vec![*value]),
            None => real.delete(model_key(*key)),
        };
    }
    for (key, expect) in &batch.conditions {
        let key = model_key(*key);
        let expected = match expect {
            Expect::Absent => None,
            Expect::AsItWas => model.get(&key).map(|row| row.revision),
            Expect::Wrong => Some(Revision(u64::MAX)),
        };
        real.require(key, expected);
    }
    real
}

fn written(batch: &Batch, revision: Revision, newest: Revision, model: &mut Model) -> Revision {
    assert!(if batch.writes().is_empty() { revision == newest } else { revision > newest });
    for write in batch.writes() {
        match &write.value {
            Some(value) => {
                model.insert(write.key.clone(), Versioned { value: value.clone(), revision });
            }
            None => {
                model.remove(&write.key);
            }
        }
    }
    revision
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap().block_on(future)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100 * crate::support::scale() as u32, ..ProptestConfig::default() })]
    #[test]
    fn memory_follows_the_model(actions in actions()) {
        block_on(follows_the_model(&Home::Memory, actions));
    }
}

#[cfg(feature = "kv-fjall")]
proptest! {
    #![proptest_config(ProptestConfig { cases: 12 * crate::support::scale() as u32, ..ProptestConfig::default() })]
    #[test]
    fn fjall_follows_the_model(actions in actions()) {
        block_on(follows_the_model(&Home::Fjall(tempfile::tempdir().unwrap()), actions));
    }
}
