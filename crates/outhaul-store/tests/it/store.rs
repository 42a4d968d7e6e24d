//! A data directory as a whole: lock, format, failed store, interrupted moves; and both engines alike.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use outhaul_store::{
    AppendError, JournalOptions, Lease, Outcome, QueueSettings, Settlement, Shards, SimFileSystem, Store,
    StoreError,
};

use crate::support::{admission, attach, check_sums, failed, name};

async fn open(dir: &Path) -> Result<Store, StoreError> {
    Store::open(dir, JournalOptions::default()).await
}

async fn waiting(lease: &dyn Lease, queue: &str) -> Vec<u64> {
    let read = lease.read(&name(queue), 0, 1000, 1 << 20).await.unwrap();
    read.entries.iter().map(|entry| entry.place.uid.sequence).collect()
}

#[tokio::test]
async fn a_directory_has_one_owner_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("deep/data");
    let first = open(&data).await.unwrap();
    let error = open(&data).await.unwrap_err();
    assert!(
        matches!(error, StoreError::InUse { .. }) && error.to_string().contains("in use by another process")
    );
    first.close().await.unwrap();
    drop(first);
    open(&data).await.unwrap();
    assert_eq!(std::fs::metadata(&data).unwrap().permissions().mode() & 0o777, 0o700);
    let segment = std::fs::read_dir(data.join("log")).unwrap().next().unwrap().unwrap();
    assert_eq!(segment.metadata().unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn what_is_no_data_directory_of_this_format_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("holiday.jpg"), "x").unwrap();
    assert!(matches!(open(dir.path()).await, Err(StoreError::NotADataDirectory(_))));
    let newer = r#"{"engine":"journal","format":7,"written_by":"9.8.7"}"#;
    std::fs::write(dir.path().join("format"), newer).unwrap();
    let error = open(dir.path()).await.unwrap_err().to_string();
    assert!(
        error.contains("journal 7") && error.contains("9.8.7") && error.contains("journal 0 to 2"),
        "{error}"
    );
    std::fs::write(dir.path().join("format"), "rubbish").unwrap();
    assert!(matches!(open(dir.path()).await, Err(StoreError::NotADataDirectory(_))));
    let options = JournalOptions { read_only: true, ..JournalOptions::default() };
    let missing = Store::open(&dir.path().join("nowhere"), options).await.unwrap_err();
    assert!(matches!(missing, StoreError::Missing(_)), "{missing}");
}

#[tokio::test]
async fn failed_entries_are_kept_once_and_found_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await.unwrap();
    assert!(!dir.path().join("failed").exists(), "created at the first use");
    store.failed().put(vec![failed("a", 1), failed("b", 2), failed("a", 3)]).await.unwrap();
    store.failed().put(vec![failed("a", 3), failed("a", 4)]).await.unwrap();
    assert_eq!((store.failed().count(None), store.failed().count(Some(&name("a")))), (4, 3));
    store.close().await.unwrap();
    drop(store);

    let store = open(dir.path()).await.unwrap();
    store.failed().put(vec![failed("a", 3)]).await.unwrap();
    let page = store.failed().list(&name("a"), 1, 1).await.unwrap();
    assert_eq!(page.iter().map(|entry| entry.uid.sequence).collect::<Vec<_>>(), [3]);
    let entry = store.failed().get(&"b:2".parse().unwrap()).await.unwrap().unwrap();
    let expected = failed("b", 2);
    assert_eq!(
        (entry.failure, entry.dedup_id, entry.event),
        (expected.failure, expected.dedup_id, expected.event)
    );
    assert!(store.failed().get(&"b:9".parse().unwrap()).await.unwrap().is_none());
    assert_eq!(store.failed().counts().into_iter().collect::<Vec<_>>(), [(name("a"), 3), (name("b"), 1)]);
}

#[tokio::test]
async fn a_move_that_was_interrupted_after_its_copy_is_finished_at_open() {
    let fs = SimFileSystem::default();
    let data = Path::new("/data");
    let store = Store::open_on(Arc::new(fs.clone()), data, JournalOptions::default()).await.unwrap();
    attach(&**store.log(), &["a"]);
    store.log().append((0..3).map(|id| admission(id, &["a"])).collect()).await;
    store.failed().put(vec![failed("a", 2)]).await.unwrap();
    let disk = fs.disk().crash(&mut fastrand::Rng::with_seed(1));
    let store =
        Store::open_on(Arc::new(SimFileSystem::new(disk)), data, JournalOptions::default()).await.unwrap();
    let lease = store.log().lease(Shards::All).await.unwrap();
    assert_eq!(waiting(&*lease, "a").await, [1, 3]);
    assert_eq!(store.failed().count(None), 1);
    check_sums(&**store.log());
}

#[tokio::test]
async fn a_full_failed_store_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await.unwrap();
    let many: Vec<_> = (1..=100_001).map(|sequence| failed("a", sequence)).collect();
    let error = store.failed().put(many.clone()).await.unwrap_err();
    assert!(
        matches!(error, AppendError::FailedStoreFull { .. }),
        "more than there ever is room for: {error}"
    );
    assert_eq!(store.failed().count(None), 0, "all or none");
    store.failed().put(many[..100_000].to_vec()).await.unwrap();
    let error = store.failed().put(vec![failed("a", 200_000)]).await.unwrap_err();
    assert!(matches!(error, AppendError::FailedStoreFull { .. }), "{error}");
    store.failed().put(vec![failed("b", 1)]).await.unwrap();
}

/// The same for every engine.
#[tokio::test]
async fn both_engines_keep_the_contract() {
    let dir = tempfile::tempdir().unwrap();
    for store in [Store::memory(), open(dir.path()).await.unwrap()] {
        let log = store.log();
        attach(&**log, &["a", "b"]);
        let batch = (0..6).map(|id| admission(id, if id % 2 == 0 { &["a"] } else { &["a", "b"] })).collect();
        let receipts = log.append(batch).await;
        let sequences: Vec<_> = receipts.iter().map(|receipt| receipt.as_ref().unwrap().sequence).collect();
        assert_eq!(sequences, [1, 2, 3, 4, 5, 6]);
        let lease = log.lease(Shards::All).await.unwrap();
        assert_eq!(waiting(&*lease, "b").await, [2, 4, 6]);
        let read = lease.read(&name("a"), 2, 2, 1 << 20).await.unwrap();
        assert_eq!(read.next, 4);
        for entry in read.entries {
            lease.settle(vec![Settlement { place: entry.place, outcome: Outcome::Delivered }]).await.unwrap();
        }
        assert_eq!(waiting(&*lease, "a").await, [1, 2, 5, 6]);
        assert_eq!(waiting(&*lease, "b").await, [2, 4, 6]);
        assert_eq!(
            lease.read(&name("a"), 0, 9, 1).await.unwrap().entries.len(),
            1,
            "one entry whatever its size"
        );
        let full = QueueSettings { entries_max: 3, ..QueueSettings::default() };
        log.attach(&name("b"), full).unwrap();
        assert!(log.append(vec![admission(9, &["a", "b"])]).await[0].is_err());
        assert!(matches!(lease.read(&name("x"), 0, 1, 1).await, Err(StoreError::UnknownQueue(_))));
        check_sums(&**log);
        log.flush().await.unwrap();
        store.close().await.unwrap();
        assert!(log.append(vec![admission(9, &["a"])]).await[0].is_err());
    }
}

#[tokio::test]
async fn a_memo_is_what_was_set_last() {
    let fs = Arc::new(SimFileSystem::default());
    let open = |fs: &Arc<SimFileSystem>| {
        let fs: Arc<dyn outhaul_store::FileSystem> = Arc::clone(fs) as _;
        async move { Store::open_on(fs, Path::new("/data"), JournalOptions::default()).await.unwrap() }
    };
    let store = open(&fs).await;
    assert_eq!(store.memo("paused").await.unwrap(), None);
    store.set_memo("paused", b"a".to_vec()).await.unwrap();
    store.set_memo("paused", b"a b".to_vec()).await.unwrap();
    assert!(store.set_memo("paused", vec![0; (1 << 20) + 1]).await.is_err());
    store.close().await.unwrap();
    drop(store);
    assert_eq!(open(&fs).await.memo("paused").await.unwrap().as_deref(), Some(&b"a b"[..]));

    let memory = Store::memory();
    memory.set_memo("paused", b"x".to_vec()).await.unwrap();
    assert_eq!(memory.memo("paused").await.unwrap().as_deref(), Some(&b"x"[..]));
}
