//! A look at a whole data directory, and its repair: whatever was damaged, what could be read can be read afterwards, and
//! the next look finds nothing.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use outhaul_store::event::Uid;
use outhaul_store::{
    Engine, JournalOptions, Outcome, RepairReport, Settlement, Shards, SimDisk, SimFileSystem, Store,
    StoreOptions,
};

use crate::support::{attach, failed, options, scale, sized};

const DATA: &str = "/data";

#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Open,
    Look,
    Verify,
    Repair,
}

async fn open(disk: &SimFileSystem, how: How) -> Store {
    let verify = matches!(how, How::Verify | How::Repair);
    let read_only = matches!(how, How::Look | How::Verify);
    let journal = JournalOptions { verify, read_only, ..options(1800) };
    let store = StoreOptions { read_only, journal, ..StoreOptions::default() };
    Store::open_on(Arc::new(disk.clone()), Path::new(DATA), store).await.unwrap()
}

/// The entries that wait: those that can be read, and those that cannot.
async fn entries(store: &Store) -> (BTreeSet<Uid>, BTreeSet<Uid>) {
    let (mut whole, mut bad) = (BTreeSet::new(), BTreeSet::new());
    let lease = store.log().lease(Shards::All).await.unwrap();
    for queue in store.log().stats() {
        let mut after = 0;
        loop {
            let read = lease.read(&queue.name, after, 7, 1 << 20).await.unwrap();
            if read.entries.is_empty() {
                break;
            }
            after = read.next;
            for entry in read.entries {
                let side = if entry.event.is_ok() { &mut whole } else { &mut bad };
                side.insert(entry.place.uid);
            }
        }
    }
    (whole, bad)
}

/// What a look at everything finds, by file.
async fn damage(disk: &SimFileSystem) -> Vec<String> {
    let store = open(disk, How::Verify).await;
    let mut found: Vec<_> = store.report().damage.into_iter().map(|damage| damage.file).collect();
    found.extend(store.failed().unreadable().into_iter().map(|record| record.file));
    store.close().await.unwrap();
    let store = open(disk, How::Look).await;
    found.extend(store.report().damage.into_iter().map(|damage| damage.file));
    found.extend(entries(&store).await.1.iter().filter_map(|uid| store.log().file_of(uid)));
    store.close().await.unwrap();
    found
}

/// Several segments with entries of two queues, some of them settled, and failed entries.
async fn full(compress: bool) -> SimDisk {
    let fs = SimFileSystem::default();
    let journal = JournalOptions { compress, ..options(1800) };
    let options = StoreOptions { journal, ..StoreOptions::default() };
    let store = Store::open_on(Arc::new(fs.clone()), Path::new(DATA), options).await.unwrap();
    attach(&**store.log(), &["a", "b"]);
    for id in 0..15 {
        let targets: &[&str] = if id % 2 == 0 { &["a", "b"] } else { &["a"] };
        let batch = vec![sized(id * 2, targets, 120), sized(id * 2 + 1, targets, 120)];
        store.log().append(batch).await.into_iter().for_each(|result| drop(result.unwrap()));
    }
    for sequence in 1..=3 {
        store.failed().put(vec![failed("a", sequence)]).await.unwrap();
    }
    let lease = store.log().lease(Shards::All).await.unwrap();
    let read = lease.read(&crate::support::name("a"), 0, 100, 1 << 20).await.unwrap();
    let gone = read.entries.into_iter().filter(|entry| entry.place.uid.sequence % 4 < 2);
    let settled = gone.map(|entry| Settlement { place: entry.place, outcome: Outcome::Delivered }).collect();
    lease.settle(settled).await.unwrap();
    store.close().await.unwrap();
    fs.disk()
}

fn segments(disk: &SimDisk) -> Vec<PathBuf> {
    let all = disk.files().into_iter().map(|(path, _)| path);
    all.filter(|path| path.extension().is_some_and(|extension| extension == "seg")).collect()
}

/// Damages a disk, repairs it, and checks what is left. Returns what the repair did, and whether there was any damage.
async fn repaired(disk: SimDisk, what: &str) -> (RepairReport, bool) {
    let fs = SimFileSystem::new(disk);
    let before = {
        // As it is without a repair, on a disk of its own.
        let store = open(&SimFileSystem::new(fs.disk()), How::Open).await;
        let found = entries(&store).await;
        (found, store.failed().uids().into_iter().collect::<BTreeSet<_>>())
    };
    let ((whole, _), kept) = before;
    let unharmed = fs.disk();
    let found = damage(&fs).await;
    assert_eq!(fs.disk().files(), unharmed.files(), "{what}: looking changes nothing");
    let store = open(&fs, How::Repair).await;
    for damage in store.report().damage {
        let Some(copy) = damage.quarantined else { continue };
        let disk = fs.disk();
        let length = disk.content(&copy).map(|content| content.len() as u64);
        assert_eq!(length, Some(damage.length), "{what}: no more is moved than is there");
    }
    let report = store.repair().await.unwrap();
    store.close().await.unwrap();
    assert_eq!(report.left, [], "{what}");
    assert_eq!(
        damage(&fs).await,
        Vec::<String>::new(),
        "{what}: damaged after the repair; before: {found:?}"
    );
    let store = open(&fs, How::Open).await;
    let (after, bad) = entries(&store).await;
    assert!(after.is_superset(&whole), "{what}: lost {:?}", whole.difference(&after).collect::<Vec<_>>());
    assert!(bad.is_empty(), "{what}");
    let failed: BTreeSet<_> = store.failed().uids().into_iter().collect();
    assert!(failed.is_superset(&kept), "{what}: failed entries are lost");
    store.close().await.unwrap();
    (report, !found.is_empty())
}

/// One byte after the other, in every segment of the log and of the failed store.
#[tokio::test]
async fn a_repair_of_any_damaged_byte_ends_and_loses_nothing_that_can_be_read() {
    for compress in [false, true] {
        let good = full(compress).await;
        let (mut damaged, mut moved) = (0, 0);
        // More often in the slow suite.
        let step = if scale() > 1 { 1 } else { 29 };
        for path in segments(&good) {
            for at in (0..good.content(&path).unwrap().len()).step_by(step) {
                let mut content = good.content(&path).unwrap().to_vec();
                content[at] ^= 0x55;
                let mut disk = good.clone();
                disk.put(&path, content);
                let (report, found) = repaired(disk, &format!("{} byte {at}", path.display())).await;
                damaged += usize::from(found);
                moved += report.failed.len();
            }
        }
        assert!(damaged > 20 && moved > 2, "{damaged} {moved}");
    }
}

#[tokio::test]
async fn a_repair_of_a_file_that_was_cut_moves_what_is_there_and_is_done_once() {
    let good = full(false).await;
    for path in segments(&good) {
        let whole = good.content(&path).unwrap();
        for length in (0..whole.len()).step_by(37) {
            let mut disk = good.clone();
            disk.put(&path, whole[..length].to_vec());
            repaired(disk, &format!("{} cut to {length}", path.display())).await;
        }
    }
}

#[tokio::test]
async fn stretches_of_rubbish_are_repaired_once() {
    let good = full(false).await;
    let mut random = fastrand::Rng::with_seed(crate::support::seed("stretches_of_rubbish_are_repaired_once"));
    for path in segments(&good) {
        for _ in 0..10 {
            let mut content = good.content(&path).unwrap().to_vec();
            let from = random.usize(..content.len());
            let to = random.usize(from..content.len()) + 1;
            content[from..to].fill(0xAA);
            let mut disk = good.clone();
            disk.put(&path, content);
            repaired(disk, &format!("{} bytes {from} to {to}", path.display())).await;
        }
    }
}

#[tokio::test]
async fn a_look_tells_of_every_bit_of_a_locator_and_names_the_file() {
    let good = full(false).await;
    for path in segments(&good) {
        let length = good.content(&path).unwrap().len();
        assert_eq!(&good.content(&path).unwrap()[length - 32..length - 28], b"OHL1");
        for bit in (length - 32) * 8..length * 8 {
            let fs = SimFileSystem::new(good.clone());
            fs.flip(&path, bit);
            let store = open(&fs, How::Verify).await;
            let found = store.report().damage;
            let [found] = &found[..] else { panic!("{} bit {bit}: {found:?}", path.display()) };
            assert!(
                Path::new(DATA).join(&found.file) == path && found.reason.contains("derives it again"),
                "{found:?}"
            );
        }
    }
}

/// On a real directory: everything beside the entries of a spool.
#[tokio::test]
async fn a_damaged_file_of_the_spool_is_told_by_name_and_moved_once() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let options = |read_only| StoreOptions { engine: Engine::Spool, read_only, ..StoreOptions::default() };
    let open = async |read_only| Store::open(&data, options(read_only)).await.unwrap();
    let foreign = "01890a5d-ac96-474b-bcce-b302099a8057.event";
    {
        let store = open(false).await;
        attach(&**store.log(), &["a"]);
        store.log().set_input(b"note".as_slice().into()).await.unwrap();
        let batch = (0..5).map(|id| sized(id, &["a"], 50)).collect();
        store.log().append(batch).await.into_iter().for_each(|result| drop(result.unwrap()));
        store.failed().put(vec![failed("a", 1)]).await.unwrap();
        store.failed().requeue(&store.failed().uids()).await.remove(0).unwrap();
        store.close().await.unwrap();
        drop(store);
        std::fs::write(data.join("spool/outhaul-a").join(foreign), "{}").unwrap();
        let store = open(false).await;
        store.close().await.unwrap();
    }
    let sound = {
        let store = open(true).await;
        assert_eq!(store.report().damage, []);
        entries(&store).await
    };
    assert_eq!(sound.0.len() + sound.1.len(), 7);
    for file in
        ["input", "opens", "outhaul-a.queue", "outhaul-a.sequences", "outhaul-a.state", "outhaul-a.requeued"]
    {
        let path = data.join("spool").join(file);
        let good = std::fs::read(&path).unwrap();
        assert!(good.windows(5).any(|window| window == b"\nsum="), "{file}");
        for at in 0..good.len() {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            std::fs::write(&path, bytes).unwrap();
            let store = open(true).await;
            let found = store.report().damage;
            let named = found.iter().any(|found| found.file == format!("spool/{file}"));
            assert!(named, "{file} byte {at}: {found:?}");
        }
        // Moved once by whoever opens it to work, and nothing that waits depends on it.
        let store = open(false).await;
        let found = store.report().damage;
        let copy = found[0].quarantined.clone().unwrap();
        assert!(copy.starts_with(data.join("quarantine")) && copy.exists(), "{found:?}");
        store.close().await.unwrap();
        drop(store);
        let store = open(true).await;
        assert_eq!(store.report().damage, [], "{file}: it is told once");
        let left = entries(&store).await;
        assert_eq!(left.0.len() + left.1.len(), 7, "{file}");
        drop(store);
        // Without a checksum, as version 0 wrote it, it is read.
        let at = good.len() - b"sum=00000000\n".len();
        std::fs::write(&path, &good[..at]).unwrap();
        let store = open(true).await;
        assert_eq!(store.report().damage, [], "{file}");
        drop(store);
        std::fs::write(&path, &good).unwrap();
    }
}

#[tokio::test]
async fn entries_and_failed_records_of_a_spool_that_cannot_be_read_are_taken_out() {
    let dir = tempfile::tempdir().unwrap();
    let options = |read_only| StoreOptions { engine: Engine::Spool, read_only, ..StoreOptions::default() };
    let store = Store::open(dir.path(), options(false)).await.unwrap();
    attach(&**store.log(), &["a"]);
    let batch = (0..3).map(|id| sized(id, &["a"], 50)).collect();
    store.log().append(batch).await.into_iter().for_each(|result| drop(result.unwrap()));
    store.failed().put(vec![failed("a", 1), failed("a", 2)]).await.unwrap();
    store.close().await.unwrap();
    drop(store);
    let queue = dir.path().join("spool/outhaul-a");
    let damage = |dir: &Path| {
        let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        let path = files.filter(|path| path.is_file()).min().unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, bytes).unwrap();
        path.strip_prefix(&queue).unwrap().display().to_string()
    };
    let (entry, record) = (damage(&queue), damage(&queue.join("failed")));
    let store = Store::open(dir.path(), options(true)).await.unwrap();
    let bad = entries(&store).await.1;
    let file = store.log().file_of(bad.first().unwrap());
    assert_eq!((bad.len(), file), (1, Some(format!("outhaul-a/{entry}"))));
    assert_eq!(store.failed().unreadable()[0].file, format!("spool/outhaul-a/{record}"));
    drop(store);
    let store = Store::open(dir.path(), options(false)).await.unwrap();
    let report = store.repair().await.unwrap();
    assert_eq!((report.failed.len(), report.moved.len(), report.left.len()), (1, 1, 0), "{report:?}");
    assert!(report.moved[0].1.starts_with(dir.path().join("quarantine")) && report.moved[0].1.exists());
    store.close().await.unwrap();
    drop(store);
    let store = Store::open(dir.path(), options(true)).await.unwrap();
    let (whole, bad) = entries(&store).await;
    assert_eq!((whole.len(), bad.len(), store.failed().count(None)), (2, 0, 2));
    assert_eq!((store.failed().unreadable().len(), store.report().damage.len()), (0, 0));
}
