//! Bringing in the directories of RustFS and MinIO, from the golden ones in `tests/golden`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use outhaul_store::import::{self, ImportFailure, ImportReport, Source, import_into};
use outhaul_store::{
    AppendError, JournalOptions, Log, OsFileSystem, QueueSettings, Shards, SimFileSystem, Spool,
    SpoolOptions, Store,
};

use crate::spool::{copy_dir, ids, waiting};
use crate::support::{check_sums, name};

fn golden(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(path)
}

fn rustfs(dir: &Path) -> Source {
    import::rustfs(Arc::new(OsFileSystem), dir).unwrap()
}

fn id(last: u8) -> String {
    format!("01890a5d-ac96-774b-bcce-b302099a80{last:02x}")
}

/// A copy of MinIO's golden directory with the modification times that its order file tells.
fn minio_dir() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    copy_dir(&golden("minio/minio-webhook-primary"), dir.path());
    let order = fs::read_to_string(golden("minio/order.txt")).unwrap();
    for (seconds, file) in (1..).zip(order.lines()) {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds);
        fs::File::options().write(true).open(dir.path().join(file)).unwrap().set_modified(time).unwrap();
    }
    dir
}

/// Names and contents of all files.
fn snapshot(dir: &Path) -> Vec<(PathBuf, Vec<u8>, SystemTime)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(snapshot(&path));
        } else {
            let time = path.metadata().unwrap().modified().unwrap();
            all.push((path.clone(), fs::read(&path).unwrap(), time));
        }
    }
    all.sort();
    all
}

async fn import(store: &Store, data: &Path, source: Source) -> ImportReport {
    let fs = Arc::new(OsFileSystem);
    let mut last = 0;
    let files = source.len();
    let progress = |progress: import::Progress| {
        assert!(progress.files_done >= last && progress.files == files);
        last = progress.files_done;
    };
    let failed = Some(&**store.failed());
    let report = import_into(&**store.log(), failed, fs, data, &name("a"), source, progress).await.unwrap();
    assert_eq!(last, files);
    report
}

async fn open(data: &Path) -> Store {
    let store = Store::open(data, JournalOptions::default()).await.unwrap();
    store.log().attach(&name("a"), QueueSettings::default()).unwrap();
    store
}

async fn queue(store: &Store) -> Vec<(String, String)> {
    let lease = store.log().lease(Shards::All).await.unwrap();
    let read = lease.read(&name("a"), 0, 10_000, 64 << 20).await.unwrap();
    let one = |entry: outhaul_store::Entry| {
        (entry.event.as_ref().unwrap().id().to_owned(), entry.dedup_id.to_string())
    };
    read.entries.into_iter().map(one).collect()
}

#[test]
fn a_directory_of_rustfs_is_read_in_the_order_of_its_names() {
    let source = rustfs(&golden("rustfs/rustfs-webhook-primary"));
    assert_eq!(source.ignored(), ["01890a5d-ac96-774b-bcce-b302099a8006.event.tmp", "README"]);
    let all: Vec<_> = source.collect();
    let names: Vec<_> = all.iter().map(|file| file.name.clone()).collect();
    let expected = [
        format!("{}.event", id(1)),
        format!("{}.event.snappy", id(2)),
        format!("{}.event", id(3)),
        format!("3_{}.event.snappy", id(4)),
        format!("2:{}.event", id(5)),
        format!("{}.event", id(7)),
        format!("4_{}.event", id(8)),
        format!("failed/{}", id(9)),
    ];
    assert_eq!(names, expected);
    let counts: Vec<_> = all.iter().map(|file| file.entries.as_ref().map_or(0, Vec::len)).collect();
    assert_eq!(counts, [1, 1, 1, 3, 2, 0, 0, 1]);
    let event = |file: usize, index: usize| Arc::clone(&all[file].entries.as_ref().unwrap()[index].event);
    let first = event(0, 0);
    assert_eq!((first.kind(), first.source()), ("s3:ObjectCreated:Put", "arn:aws:s3:::b"));
    assert_eq!((first.subject(), first.pid(), first.time()), (Some("k"), Some("b/k"), None));
    assert_eq!((first.id(), first.content_type()), (&id(1)[..], Some("application/json")));
    assert_eq!(&first.body()[..], br#"{"EventName":"s3:ObjectCreated:Put","Key":"b/k","Records":[]}"#);
    let spaced = event(1, 0);
    assert_eq!(spaced.subject(), Some("2026/Größe 1.jpg"));
    assert_eq!(spaced.pid(), Some("photos/2026/Größe 1.jpg"));
    assert_eq!(spaced.time(), Some("2026-08-23T10:00:00.123Z"));
    assert_eq!(event(2, 0).kind(), "s3:ObjectRemoved:Delete");
    // RustFS had given this one an identity: receivers know it by that.
    let kept = all[2].entries.as_ref().unwrap()[0].dedup_id;
    assert_eq!(kept.to_string(), "7b0a3b6e-1f6f-4c65-9d7e-2f8d6f3f0c11");
    assert_eq!(event(3, 2).pid(), Some("photos/2.jpg"));
    assert_eq!(event(4, 1).id(), format!("{}-1", id(5)));
    assert_eq!(event(7, 0).subject(), Some("bad.jpg"));
    let reasons: Vec<_> = all[5..7].iter().map(|file| file.entries.as_ref().unwrap_err().clone()).collect();
    assert_eq!(reasons[0], "its metadata is cut short: 158 bytes are claimed and 92 are there");
    assert_eq!(reasons[1], "it has 3 values and not 4");
    let audit: Vec<_> = rustfs(&golden("rustfs/rustfs-kafka-audit")).collect();
    let audit = &audit[0].entries.as_ref().unwrap()[0].event;
    assert_eq!((audit.kind(), audit.pid()), ("s3:ObjectAccessed:Get", Some("b/k")));
}

#[test]
fn a_directory_of_minio_is_read_in_the_order_of_modification() {
    let dir = minio_dir();
    let all: Vec<_> = import::minio(Arc::new(OsFileSystem), dir.path()).unwrap().collect();
    let names: Vec<_> = all.iter().map(|file| file.name.clone()).collect();
    let order = fs::read_to_string(golden("minio/order.txt")).unwrap();
    assert_eq!(names, order.lines().collect::<Vec<_>>());
    let counts: Vec<_> = all.iter().map(|file| file.entries.as_ref().map_or(0, Vec::len)).collect();
    assert_eq!(counts, [1, 1, 20, 1, 0, 0, 0]);
    let entry = |file: usize, index: usize| all[file].entries.as_ref().unwrap()[index].clone();
    let spaced = entry(1, 0).event;
    assert_eq!(spaced.pid(), Some("photos/2026/Größe 2.jpg"));
    assert_eq!(spaced.id(), "0a1b2c3d-4e5f-4071-8293-a4b5c6d7e8f9");
    // A bare record becomes what receivers get; the record itself is not touched.
    let raw = fs::read_to_string(dir.path().join(&names[1])).unwrap();
    let body = format!(
        r#"{{"EventName":"s3:ObjectCreated:Put","Key":"photos/2026/Größe 2.jpg","Records":[{raw}]}}"#
    );
    assert_eq!(spaced.body(), body.as_bytes());
    let last = entry(2, 19);
    assert_eq!((last.event.subject(), last.index), (Some("19.jpg"), 19));
    assert_eq!(last.event.id(), "7c9e6679-7425-40de-944b-e07fc1f90ae7-19");
    assert_eq!(last.dedup_id, last.event.dedup_id());
    let reasons: Vec<_> = all[4..].iter().map(|file| file.entries.as_ref().unwrap_err().clone()).collect();
    assert_eq!(reasons[0], "it is empty");
    assert_eq!(reasons[1], "it has 0 values and not 1");
    assert_eq!(reasons[2], "it has 20 values and not 21");
}

#[tokio::test]
async fn an_import_keeps_order_and_ids_and_leaves_its_source_alone() {
    for product in ["rustfs", "minio"] {
        let data = tempfile::tempdir().unwrap();
        let store = open(data.path()).await;
        let copy = minio_dir();
        let (dir, events) = match product {
            "rustfs" => (golden("rustfs/rustfs-webhook-primary"), 8),
            _ => (copy.path().to_owned(), 23),
        };
        let source = || match product {
            "rustfs" => rustfs(&dir),
            _ => import::minio(Arc::new(OsFileSystem), &dir).unwrap(),
        };
        let before = snapshot(&dir);
        let report = import(&store, data.path(), source()).await;
        assert_eq!((report.imported, report.skipped_already), (events, 0));
        assert_eq!(report.undecodable.len(), if product == "rustfs" { 2 } else { 3 });
        let failed = u64::from(product == "rustfs");
        assert_eq!((report.failed, store.failed().count(Some(&name("a")))), (failed, failed));
        let queued = source().filter(|file| !file.name.starts_with("failed/"));
        let entries = queued.flat_map(|file| file.entries.unwrap_or_default());
        let expected: Vec<_> =
            entries.map(|entry| (entry.event.id().to_owned(), entry.dedup_id.to_string())).collect();
        assert_eq!(queue(&store).await, expected);
        // Again, in the same process and in another, is nothing.
        let again = import(&store, data.path(), source()).await;
        assert_eq!((again.imported, again.skipped_already), (0, events + failed));
        assert_eq!(again.undecodable, report.undecodable);
        store.close().await.unwrap();
        drop(store);
        let store = open(data.path()).await;
        assert_eq!(import(&store, data.path(), source()).await.imported, 0);
        assert_eq!(queue(&store).await, expected);
        let stats = store.log().stats().remove(0);
        assert_eq!((stats.recovered, stats.imported), (events, 0));
        check_sums(&**store.log());
        assert_eq!(snapshot(&dir), before);
        store.close().await.unwrap();
    }
}

#[tokio::test]
async fn more_that_comes_later_and_what_was_changed_is_taken_by_the_next_import() {
    let (data, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = open(data.path()).await;
    let golden = golden("rustfs/rustfs-webhook-primary");
    let file = format!("{}.event", id(1));
    fs::copy(golden.join(&file), dir.path().join(&file)).unwrap();
    assert_eq!(import(&store, data.path(), rustfs(dir.path())).await.imported, 1);
    fs::copy(golden.join(format!("{}.event", id(3))), dir.path().join(format!("{}.event", id(3)))).unwrap();
    // The same name with something else in it is another entry.
    fs::copy(golden.join(format!("{}.event", id(3))), dir.path().join(&file)).unwrap();
    let report = import(&store, data.path(), rustfs(dir.path())).await;
    assert_eq!((report.imported, report.skipped_already), (2, 0));
    store.close().await.unwrap();
}

#[tokio::test]
async fn an_import_that_a_full_queue_stops_goes_on_where_it_stopped() {
    let data = tempfile::tempdir().unwrap();
    let store = open(data.path()).await;
    let limited = |entries_max| QueueSettings { entries_max, ..QueueSettings::default() };
    store.log().attach(&name("a"), limited(5)).unwrap();
    let dir = golden("rustfs/rustfs-webhook-primary");
    let fs: Arc<OsFileSystem> = Arc::new(OsFileSystem);
    let stopped = import_into(&**store.log(), None, fs, data.path(), &name("a"), rustfs(&dir), |_| {})
        .await
        .unwrap_err();
    assert!(matches!(stopped.source, ImportFailure::Append(AppendError::QueueFull { .. })), "{stopped}");
    // Three single ones; the batch of three has no room, and nothing overtakes it.
    assert_eq!((stopped.report.imported, queue(&store).await.len()), (3, 3));
    store.log().attach(&name("a"), limited(100)).unwrap();
    let report = import(&store, data.path(), rustfs(&dir)).await;
    assert_eq!((report.imported, report.skipped_already, report.failed), (5, 3, 1));
    let mut ids: Vec<_> = queue(&store).await.into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids.len(), 8);
    ids.dedup();
    assert_eq!(ids.len(), 8);
    store.close().await.unwrap();
}

#[tokio::test]
async fn what_rustfs_gave_up_is_in_the_failed_store_and_stays_there_over_a_restart() {
    let data = tempfile::tempdir().unwrap();
    let store = open(data.path()).await;
    import(&store, data.path(), rustfs(&golden("rustfs/rustfs-webhook-primary"))).await;
    let failed = store.failed().list(&name("a"), 0, 10).await.unwrap().remove(0);
    assert_eq!((failed.failure.rule.as_str(), failed.event.subject()), ("rejected", Some("bad.jpg")));
    store.close().await.unwrap();
    drop(store);
    let store = open(data.path()).await;
    // Its sequence is none of the log's.
    let batch = vec![crate::support::admission(1, &["a"])];
    let receipt = store.log().append(batch).await.remove(0).unwrap();
    assert!(receipt.sequence < 1000, "{receipt:?}");
    let again = store.failed().requeue(std::slice::from_ref(&failed.uid)).await.remove(0).unwrap();
    assert!(again.requeued_as.sequence < 1000);
    let report = import(&store, data.path(), rustfs(&golden("rustfs/rustfs-webhook-primary"))).await;
    assert_eq!((report.failed, store.failed().count(None)), (0, 0), "it was taken before");
    store.close().await.unwrap();
}

#[test]
fn the_directory_of_the_other_product_is_refused_and_one_that_says_nothing_is_not() {
    let fs: Arc<OsFileSystem> = Arc::new(OsFileSystem);
    let told = |source: Result<Source, outhaul_store::StoreError>| source.unwrap_err().to_string();
    // A copy whose own name says nothing.
    let copy = tempfile::tempdir().unwrap();
    copy_dir(&golden("rustfs/rustfs-webhook-primary"), copy.path());
    for dir in
        [golden("rustfs/rustfs-webhook-primary"), golden("rustfs/rustfs-kafka-audit"), copy.path().to_owned()]
    {
        assert!(
            told(import::minio(Arc::clone(&fs) as _, &dir)).contains("was written by rustfs, not by minio")
        );
        import::rustfs(Arc::clone(&fs) as _, &dir).unwrap();
    }
    let minio = minio_dir();
    for dir in [golden("minio/minio-webhook-primary"), minio.path().to_owned()] {
        assert!(
            told(import::rustfs(Arc::clone(&fs) as _, &dir)).contains("was written by minio, not by rustfs")
        );
    }
    let unknown = tempfile::tempdir().unwrap();
    fs::write(unknown.path().join("1.event"), "{}").unwrap();
    import::rustfs(Arc::clone(&fs) as _, unknown.path()).unwrap();
    import::minio(fs, unknown.path()).unwrap();
}

#[test]
fn links_and_directories_in_a_source_are_named() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("failed/deeper")).unwrap();
    fs::create_dir(dir.path().join("more")).unwrap();
    std::os::unix::fs::symlink("nowhere", dir.path().join("1.event")).unwrap();
    let source = rustfs(dir.path());
    let names: Vec<_> = source.ignored().iter().map(|name| name.split(' ').next().unwrap()).collect();
    assert_eq!(names, ["1.event", "more", "failed/deeper"]);
    assert_eq!(source.len(), 0);
}

/// Cut behind every call that changes the disk, then imported again: everything is there, once.
#[test]
fn an_import_can_be_repeated_after_a_crash_at_any_point() {
    let seed = crate::support::seed("an_import_can_be_repeated_after_a_crash_at_any_point");
    let mut random = fastrand::Rng::with_seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let source = || rustfs(&golden("rustfs/rustfs-webhook-primary"));
    let expected: Vec<_> = source()
        .filter(|file| !file.name.starts_with("failed/"))
        .flat_map(|file| file.entries.unwrap_or_default())
        .map(|entry| entry.event.id().to_owned())
        .collect();
    let run = |fs: &SimFileSystem| {
        let options =
            SpoolOptions { writers: 1, settle_linger: Duration::from_secs(3600), ..SpoolOptions::default() };
        let spool = Spool::open(Arc::new(fs.clone()), Path::new("/data/spool"), options).unwrap();
        spool.attach(&name("a"), QueueSettings::default()).unwrap();
        let (target, disk) = (name("a"), Arc::new(fs.clone()));
        let import = import_into(&spool, None, disk, Path::new("/data"), &target, source(), |_| {});
        let failed = runtime.block_on(import).unwrap().ignored.pop();
        assert_eq!(failed, Some(format!("failed/{}", id(9))), "there is no failed store to put it into");
        spool
    };
    let fs = SimFileSystem::default();
    fs.record();
    assert_eq!(ids(&run(&fs), "a"), expected);
    for (call, (_, disk)) in fs.recorded().into_iter().enumerate() {
        for _ in 0..3 {
            let fs = SimFileSystem::new(disk.crash(&mut random));
            let spool = run(&fs);
            let mut found = ids(&spool, "a");
            assert!(waiting(&spool, "a").iter().all(|entry| entry.event.is_ok()));
            // What of a chunk was on disk before the cut stays in front.
            found.sort();
            let mut expected = expected.clone();
            expected.sort();
            assert_eq!(found, expected, "seed {seed}, call {call}");
        }
    }
}

/// The spool takes over a directory of RustFS in its place: the same events as an import.
#[test]
fn the_spool_reads_a_directory_of_rustfs_in_place() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rustfs-webhook-primary");
    copy_dir(&golden("rustfs/rustfs-webhook-primary"), &path);
    let spool = Spool::open(Arc::new(OsFileSystem), dir.path(), SpoolOptions::default()).unwrap();
    let entries = waiting(&spool, "primary");
    let imported = rustfs(&golden("rustfs/rustfs-webhook-primary"))
        .filter(|file| !file.name.starts_with("failed/"))
        .flat_map(|file| file.entries.map_or_else(|_| vec![None], |all| all.into_iter().map(Some).collect()));
    let imported: Vec<_> = imported.collect();
    assert_eq!(entries.len(), imported.len());
    for (entry, imported) in entries.iter().zip(imported) {
        let found = entry.event.as_ref().ok().map(|event| (Arc::clone(event), entry.dedup_id));
        assert_eq!(found, imported.map(|imported| (imported.event, imported.dedup_id)));
    }
    assert_eq!(spool.report().foreign, ["rustfs-webhook-primary/README"]);
    assert!(!path.join(format!("{}.event.tmp", id(6))).exists());
}
