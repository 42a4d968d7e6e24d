//! Damage, kills, full disks and defects, one after the other: what was acknowledged stays, and every caller gets an
//! answer.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outhaul_store::{
    Admission, AppendError, DirEntry, File, FileSystem, Journal, JournalOptions, Lock, Log, OsFileSystem,
    Outcome, Settlement, Shards, SimDisk, SimFileSystem, Space, Store, StoreError, Upkeep,
};

use crate::support::{
    admission, attach, check_sums, event, failed, ids, name, open, options, settle, sized, waiting,
};

const DATA: &str = "/data";

async fn store_on(fs: &SimFileSystem) -> Result<Store, StoreError> {
    Store::open_on(Arc::new(fs.clone()), Path::new(DATA), JournalOptions::default()).await
}

fn segments(disk: &SimDisk) -> Vec<PathBuf> {
    let paths = disk.files().into_iter().map(|(path, _)| path);
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "seg")).collect()
}

/// Flips a bit in the header of the batch in which an event is, in the only segment of the log.
fn damage_batch_of(disk: &mut SimDisk, id: u64) {
    let path = segments(disk).into_iter().find(|path| path.parent() == Some(&Path::new(DATA).join("log")));
    let path = path.unwrap();
    let content = disk.content(&path).unwrap();
    let body = content.windows(20).position(|window| window == [id as u8; 20]).unwrap();
    let batch = content[..body].windows(4).rposition(|window| window == b"OHB0").unwrap();
    disk.flip(&path, (batch + 20) * 8);
}

#[test]
fn the_sequences_of_a_damaged_batch_are_not_given_again() {
    let fs = SimFileSystem::default();
    let log = open(Arc::new(fs.clone()), options(1 << 20)).unwrap();
    attach(&log, &["a"]);
    log.append_sync(vec![admission(100, &["a"])]).remove(0).unwrap();
    assert!(log.append_sync((1..4).map(|id| admission(id, &["a"])).collect()).iter().all(Result::is_ok));
    for entry in waiting(&log, "a") {
        settle(&log, &entry, Outcome::Delivered);
    }
    // The settlements are in a batch of their own, which stays intact.
    log.flush_sync().unwrap();
    let killed = fs.disk();
    log.close_sync().unwrap();
    // Behind a clean end the footer knows what was in the batch, and nobody wants it.
    for (mut disk, damage) in [(killed, 1), (fs.disk(), 0)] {
        damage_batch_of(&mut disk, 1);
        let log = open(Arc::new(SimFileSystem::new(disk)), options(1 << 20)).unwrap();
        assert_eq!(log.report().damage.len(), damage);
        attach(&log, &["a"]);
        let receipt = log.append_sync(vec![admission(7, &["a"])]).remove(0).unwrap();
        assert_eq!((ids(&log, "a"), receipt.sequence), (vec![7], 5), "an acknowledged event is in its queue");
    }
}

#[tokio::test]
async fn a_new_entry_behind_damage_is_not_taken_for_one_that_failed_before() {
    let fs = SimFileSystem::default();
    let store = store_on(&fs).await.unwrap();
    attach(&**store.log(), &["a"]);
    for id in [100, 101] {
        store.log().append(vec![admission(id, &["a"])]).await.remove(0).unwrap();
    }
    store.failed().put(vec![failed("a", 2)]).await.unwrap();
    let lease = store.log().lease(Shards::All).await.unwrap();
    for entry in lease.read(&name("a"), 0, 10, 1 << 20).await.unwrap().entries {
        lease.settle(vec![Settlement { place: entry.place, outcome: Outcome::Delivered }]).await.unwrap();
    }
    store.close().await.unwrap();
    drop((lease, store));
    let mut disk = fs.disk();
    damage_batch_of(&mut disk, 101);
    let store = store_on(&SimFileSystem::new(disk)).await.unwrap();
    attach(&**store.log(), &["a"]);
    let receipt = store.log().append(vec![admission(7, &["a"])]).await.remove(0).unwrap();
    store.failed().put(vec![failed("a", receipt.sequence)]).await.unwrap();
    assert_eq!((receipt.sequence, store.failed().count(None)), (3, 2), "the new one is kept as well");
}

#[test]
fn damage_to_a_checkpoint_takes_no_queue_from_its_target() {
    let fs = SimFileSystem::default();
    let log = open(Arc::new(fs.clone()), options(1 << 20)).unwrap();
    attach(&log, &["a"]);
    log.append_sync(vec![admission(0, &["a"])]).remove(0).unwrap();
    settle(&log, &waiting(&log, "a")[0], Outcome::Delivered);
    log.close_sync().unwrap();
    // The checkpoint of the second life is the only one that is left.
    let log = open(Arc::new(fs.clone()), options(1 << 20)).unwrap();
    attach(&log, &["a"]);
    for id in 1..4 {
        log.append_sync(vec![admission(id, &["a"])]).remove(0).unwrap();
    }
    let killed = fs.disk();
    log.close_sync().unwrap();
    // Behind a clean end the closing checkpoint counts.
    for (mut disk, damage) in [(killed, 1), (fs.disk(), 0)] {
        let [segment] = &segments(&disk)[..] else { panic!("one segment: {:?}", disk.files()) };
        disk.flip(segment, (64 + 30) * 8);
        let log = open(Arc::new(SimFileSystem::new(disk)), options(1 << 20)).unwrap();
        assert_eq!(log.report().damage.len(), damage);
        attach(&log, &["a"]);
        assert_eq!(ids(&log, "a"), [1, 2, 3]);
    }
}

/// A process is killed between a write and its sync; the next one finds the bytes in the page cache; then the power
/// goes.
#[test]
fn what_the_input_calls_admitted_survives_a_kill_and_a_power_cut() {
    for seed in 0..100 {
        let fs = SimFileSystem::default();
        let log = open(Arc::new(fs.clone()), options(1 << 20)).unwrap();
        attach(&log, &["a"]);
        log.set_input_sync("file".into()).unwrap();
        log.append_sync(vec![admission(0, &["a"])]).remove(0).unwrap();
        fs.fail_at(2, io::ErrorKind::Other, true);
        let mut unknown = admission(1, &["a"]);
        unknown.position = Some(1);
        let result = log.append_sync(vec![unknown]).remove(0);
        assert!(matches!(result, Err(AppendError::Unknown(_))), "{result:?}");
        drop(log);
        fs.heal();
        let log = open(Arc::new(fs.clone()), options(1 << 20)).unwrap();
        attach(&log, &["a"]);
        assert_eq!(log.input().unwrap().admitted, [(1, 1)], "the page cache has it");
        log.append_sync(vec![admission(2, &["a"])]).remove(0).unwrap();
        let image = fs.disk().crash(&mut fastrand::Rng::with_seed(seed));
        let again = open(Arc::new(SimFileSystem::new(image)), options(1 << 20)).unwrap();
        assert_eq!(ids(&again, "a"), [0, 1, 2], "seed {seed}");
    }
}

/// The same between the halves of a move.
#[tokio::test]
async fn an_entry_is_in_its_queue_or_in_the_failed_store_after_a_kill_and_a_power_cut() {
    for seed in 0..100 {
        let fs = SimFileSystem::default();
        let store = store_on(&fs).await.unwrap();
        attach(&**store.log(), &["a"]);
        store.log().append(vec![admission(1, &["a"])]).await.remove(0).unwrap();
        store.failed().put(vec![failed("z", 9)]).await.unwrap();
        fs.fail_at(2, io::ErrorKind::Other, true);
        assert!(store.failed().put(vec![failed("a", 1)]).await.is_err());
        fs.heal();
        drop(store);
        let store = store_on(&fs).await.unwrap();
        store.log().flush().await.unwrap();
        let image = fs.disk().crash(&mut fastrand::Rng::with_seed(seed));
        drop(store);
        let store = store_on(&SimFileSystem::new(image)).await.unwrap();
        let waits = store.log().stats().iter().find(|queue| queue.name == name("a")).unwrap().waiting;
        assert_eq!(waits + store.failed().count(Some(&name("a"))), 1, "seed {seed}");
    }
}

#[tokio::test]
async fn a_call_that_fails_at_open_is_an_error_and_no_empty_failed_store() {
    let fs = SimFileSystem::default();
    let store = store_on(&fs).await.unwrap();
    store.failed().put(vec![failed("a", 1)]).await.unwrap();
    store.close().await.unwrap();
    let disk = fs.disk();
    for n in 1.. {
        let fs = SimFileSystem::new(disk.clone());
        fs.fail_at(n, io::ErrorKind::Other, false);
        if let Ok(store) = store_on(&fs).await {
            assert_eq!(store.failed().count(None), 1, "call {n} failed");
            if fs.calls() < n {
                assert!(n > 20, "an open is more than {n} calls");
                break;
            }
        }
    }
}

#[test]
fn a_log_on_a_full_disk_opens_and_is_delivered() {
    let fs = SimFileSystem::default();
    let log = open(Arc::new(fs.clone()), options(4000)).unwrap();
    attach(&log, &["a"]);
    for id in 0..100 {
        log.append_sync(vec![sized(id, &["a"], 100)]).remove(0).unwrap();
    }
    drop(log);
    fs.set_capacity(Some(fs.used()));
    let log = open(Arc::new(fs), options(4000)).unwrap();
    attach(&log, &["a"]);
    assert_eq!(ids(&log, "a"), (0..100).collect::<Vec<_>>());
}

#[test]
fn a_disk_that_the_log_itself_filled_is_freed_by_delivering() {
    let fs = SimFileSystem::default();
    let log = open(Arc::new(fs.clone()), options(4000)).unwrap();
    attach(&log, &["a"]);
    for id in 0..100 {
        log.append_sync(vec![sized(id, &["a"], 100)]).remove(0).unwrap();
    }
    let full = fs.used();
    fs.set_capacity(Some(full));
    // What is prepared already is still written to.
    let mut refused = (1000..1100).map(|id| log.append_sync(vec![admission(id, &["a"])]).remove(0));
    assert!(refused.any(|result| result.is_err()));
    for entry in waiting(&log, "a") {
        settle(&log, &entry, Outcome::Delivered);
    }
    for _ in 0..10 {
        // One that still finds no room says so; a later one has it.
        log.flush_sync().unwrap_or_default();
    }
    assert!(fs.used() < full / 2, "{} of {full} bytes, {:?}", fs.used(), segments(&fs.disk()));
    log.append_sync(vec![admission(201, &["a"])]).remove(0).unwrap();
    assert_eq!(ids(&log, "a"), [201]);
}

#[test]
fn a_write_that_met_a_full_disk_is_no_damage_after_a_power_cut() {
    for seed in 0..200 {
        let fs = SimFileSystem::default();
        let log = open(Arc::new(fs.clone()), options(3000)).unwrap();
        attach(&log, &["a"]);
        // Too little for a prepared file: the second one goes into a file that grows.
        fs.set_capacity(Some(fs.used() + 20_000));
        for id in 0..2 {
            log.append_sync(vec![sized(id, &["a"], 1800)]).remove(0).unwrap();
        }
        fs.set_capacity(Some(fs.used() + 300));
        assert!(log.append_sync(vec![sized(2, &["a"], 800)])[0].is_err());
        fs.set_capacity(None);
        // Into a new segment: what is left of the write is behind the end of the sealed one.
        log.append_sync(vec![sized(3, &["a"], 2500)]).remove(0).unwrap();
        let image = fs.disk().crash(&mut fastrand::Rng::with_seed(seed));
        let again = open(Arc::new(SimFileSystem::new(image)), options(3000)).unwrap();
        assert_eq!(ids(&again, "a"), [0, 1, 3]);
        assert_eq!(again.report().damage, [], "seed {seed}");
    }
}

#[test]
fn a_target_that_is_named_twice_is_one() {
    let log = open(Arc::new(SimFileSystem::default()), options(4000)).unwrap();
    attach(&log, &["a"]);
    log.append_sync(vec![admission(0, &["a", "a"])]).remove(0).unwrap();
    for entry in waiting(&log, "a") {
        settle(&log, &entry, Outcome::Delivered);
    }
    let stats = log.stats().remove(0);
    assert_eq!((stats.admitted, stats.waiting), (1, 0));
    check_sums(&log);
}

#[test]
fn a_call_that_is_larger_than_a_batch_may_be_is_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let (log, quarantine) = (dir.path().join("log"), dir.path().join("quarantine"));
        Journal::open(Arc::new(OsFileSystem), &log, &quarantine, JournalOptions::default()).unwrap()
    };
    let log = open();
    attach(&log, &["a"]);
    // 256 MiB is what a reader believes at most.
    let event = event(1, 1_000_000);
    let admissions = (0..270).map(|_| Admission::new(Arc::clone(&event), [name("a")].into()));
    assert!(log.append_sync(admissions.collect()).iter().all(Result::is_ok));
    assert_eq!(log.read_sync(&name("a"), 0, 1, 1).unwrap().entries.len(), 1);
    log.close_sync().unwrap();
    drop(log);
    let log = open();
    assert_eq!((log.report().damage, log.stats()[0].waiting), (vec![], 270));
}

/// A simulated disk whose syncs are slow, or a defect.
#[derive(Debug, Clone, Default)]
struct Odd {
    disk: SimFileSystem,
    slow: Duration,
    panics: Arc<AtomicBool>,
    fails: Arc<AtomicBool>,
    /// The thread in which it panics or fails; None: in every one.
    only: Option<&'static str>,
}

impl Odd {
    fn is_here(&self) -> bool {
        self.only.is_none_or(|only| std::thread::current().name() == Some(only))
    }
}

#[derive(Debug)]
struct OddFile(Arc<dyn File>, Odd);

impl File for OddFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buffer, offset)
    }
    fn write_at(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_at(buffer, offset)
    }
    fn sync(&self) -> io::Result<()> {
        assert!(!(self.1.is_here() && self.1.panics.load(Ordering::Relaxed)), "a defect");
        if self.1.is_here() && self.1.fails.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Other.into());
        }
        // bounded: as slow as a test says.
        std::thread::sleep(self.1.slow);
        self.0.sync()
    }
    fn set_len(&self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
}

impl FileSystem for Odd {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.disk.create_dir_all(dir)
    }
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(OddFile(self.disk.create(path)?, self.clone())))
    }
    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(OddFile(self.disk.open(path, write)?, self.clone())))
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.disk.list(dir)
    }
    fn stat(&self, path: &Path) -> io::Result<outhaul_store::Stat> {
        self.disk.stat(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.sync_dir(dir)
    }
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>> {
        FileSystem::lock(&self.disk, path)
    }
    fn space(&self, path: &Path) -> io::Result<Space> {
        self.disk.space(path)
    }
}

#[tokio::test]
async fn appends_that_are_queued_when_the_log_is_closed_are_answered() {
    let slow = Odd { slow: Duration::from_millis(50), ..Odd::default() };
    let log = Arc::new(open(Arc::new(slow), JournalOptions::default()).unwrap());
    attach(&*log, &["a"]);
    let mut tasks = tokio::task::JoinSet::new();
    for id in 0..20 {
        let log = Arc::clone(&log);
        tasks.spawn(async move { log.append(vec![sized(id, &["a"], 900_000)]).await.remove(0).is_ok() });
    }
    tokio::task::yield_now().await;
    log.close().await.unwrap();
    // bounded: an answer is there before the close has returned.
    let answers = tokio::time::timeout(Duration::from_secs(3), tasks.join_all()).await.unwrap();
    let acknowledged = answers.into_iter().filter(|acknowledged| *acknowledged).count();
    assert_eq!(ids(&log, "a").len(), acknowledged);
}

/// A close ends, and loses nothing, when the thread for the upkeep is gone, or can do nothing.
#[tokio::test]
async fn a_close_ends_when_the_upkeep_is_gone_or_fails() {
    for panics in [true, false] {
        let odd = Odd { only: Some("outhaul-upkeep"), ..Odd::default() };
        let small = || JournalOptions { upkeep: Upkeep::Thread, segment_bytes_first: 2000, ..options(8000) };
        let log = open(Arc::new(odd.clone()), small()).unwrap();
        attach(&log, &["a"]);
        if panics { &odd.panics } else { &odd.fails }.store(true, Ordering::Relaxed);
        for id in 0..40 {
            log.append(vec![sized(id, &["a"], 500)]).await.remove(0).unwrap();
            if id % 2 == 0 {
                for entry in waiting(&log, "a") {
                    settle(&log, &entry, Outcome::Delivered);
                }
            }
        }
        // bounded: what is left to be done is little.
        let closed = tokio::time::timeout(Duration::from_secs(10), log.close()).await;
        closed.expect("the close ends").unwrap();
        let log = open(Arc::new(odd.disk.clone()), small()).unwrap();
        assert_eq!((ids(&log, "a"), log.report()), (vec![39], Default::default()), "panics: {panics}");
    }
}

/// The same of the thread that commits, for both ways to close.
#[tokio::test]
async fn a_close_ends_when_the_commit_thread_is_gone() {
    for in_thread in [true, false] {
        let odd = Odd { only: Some("outhaul-commit"), ..Odd::default() };
        let log = Arc::new(open(Arc::new(odd.clone()), options(1 << 20)).unwrap());
        attach(&*log, &["a"]);
        log.append(vec![admission(0, &["a"])]).await.remove(0).unwrap();
        odd.panics.store(true, Ordering::Relaxed);
        assert!(log.append(vec![admission(1, &["a"])]).await[0].is_err());
        let own = Arc::clone(&log);
        let close = async move {
            match in_thread {
                true => tokio::task::spawn_blocking(move || own.close_sync()).await.unwrap(),
                false => own.close().await,
            }
        };
        // bounded: a log that has failed has nothing left to do.
        let closed = tokio::time::timeout(Duration::from_secs(10), close).await.expect("the close ends");
        assert!(closed.is_err(), "what is unknown is told");
        drop(log);
        let again = open(Arc::new(odd.disk.clone()), options(1 << 20)).unwrap();
        assert!(ids(&again, "a").starts_with(&[0]));
    }
}

#[tokio::test]
async fn a_panic_in_the_commit_thread_leaves_no_caller_waiting() {
    let odd = Odd::default();
    let log = open(Arc::new(odd.clone()), options(1 << 20)).unwrap();
    attach(&log, &["a"]);
    log.append(vec![admission(0, &["a"])]).await.remove(0).unwrap();
    odd.panics.store(true, Ordering::Relaxed);
    for id in 1..3 {
        // bounded: a log that has failed answers at once.
        let answer = tokio::time::timeout(Duration::from_secs(3), log.append(vec![admission(id, &["a"])]));
        assert!(answer.await.unwrap()[0].is_err());
    }
    assert!(log.failure().is_some());
}

#[tokio::test]
async fn the_lock_is_held_for_as_long_as_anybody_can_write() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Store::open(dir.path(), JournalOptions::default());
    let store = open().await.unwrap();
    attach(&**store.log(), &["a"]);
    let log = Arc::clone(store.log());
    log.append(vec![admission(0, &["a"])]).await.remove(0).unwrap();
    drop(store);
    assert!(matches!(open().await, Err(StoreError::InUse { .. })));
    log.append(vec![admission(1, &["a"])]).await.remove(0).unwrap();
    drop(log);
    let store = open().await.unwrap();
    assert_eq!(store.log().stats()[0].waiting, 2);
}
