//! A disk that does not answer: what stands still is shown, and goes on when the disk does.

use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use outhaul_runtime::store::{
    DirEntry, File, FileSystem, JournalOptions, Lock, OsFileSystem, Space, Stat, Store,
};
use outhaul_runtime::writer::WriterOptions;
use outhaul_runtime::{Health, Runtime, RuntimeOptions, State};

use crate::support::{Scripted, event, only, options, pass, send, settled, spec};

/// What does not answer.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Hang {
    #[default]
    Nothing,
    Reads,
    Syncs,
}

#[derive(Debug, Default, Clone)]
struct Disk(Arc<(Mutex<Hang>, Condvar)>);

impl Disk {
    fn hang(&self, what: Hang) {
        *self.0.0.lock().unwrap() = what;
        self.0.1.notify_all();
    }

    fn pass(&self, what: Hang) {
        let hangs = self.0.0.lock().unwrap();
        drop(self.0.1.wait_while(hangs, |hangs| *hangs == what).unwrap());
    }

    fn file(&self, file: io::Result<Arc<dyn File>>) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(Slow { file: file?, disk: self.clone() }))
    }
}

#[derive(Debug)]
struct Slow {
    file: Arc<dyn File>,
    disk: Disk,
}

impl File for Slow {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.disk.pass(Hang::Reads);
        self.file.read_at(buffer, offset)
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_at(buffer, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.pass(Hang::Syncs);
        self.file.sync()
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.file.set_len(length)
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
}

impl FileSystem for Disk {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        OsFileSystem.create_dir_all(dir)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.file(OsFileSystem.create(path))
    }

    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn File>> {
        self.file(OsFileSystem.open(path, write))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        OsFileSystem.list(dir)
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        OsFileSystem.stat(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        OsFileSystem.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        OsFileSystem.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        OsFileSystem.sync_dir(dir)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>> {
        OsFileSystem.lock(path)
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        OsFileSystem.space(path)
    }
}

async fn start(disk: &Disk, dir: &Path, target: &Scripted, writer: WriterOptions) -> Runtime {
    let store = Store::open_on(Arc::new(disk.clone()), dir, JournalOptions::default()).await.unwrap();
    let options_of = RuntimeOptions { writer, seed: Some(7), ..RuntimeOptions::default() };
    Runtime::start(store, vec![spec("a", target, options())], options_of).await.unwrap()
}

#[tokio::test]
async fn a_target_whose_entries_cannot_be_read_makes_no_progress_and_says_so() {
    let (dir, disk, target) = (tempfile::tempdir().unwrap(), Disk::default(), Scripted::good());
    let runtime = start(&disk, dir.path(), &target, WriterOptions::default()).await;
    send(&runtime, [(1, "p")]).await;
    settled(&runtime).await;
    disk.hang(Hang::Reads);
    send(&runtime, [(2, "p")]).await;
    // bounded: until the worker has begun to read.
    pass(Duration::from_millis(200)).await;
    assert_eq!(only(&runtime).waiting, 1);
    assert_ne!(only(&runtime).health, Health::Error, "it is not long yet");
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(31)).await;
    let status = only(&runtime);
    assert_eq!((status.state, status.health, status.reason), (State::Running, Health::Error, "no_progress"));
    tokio::time::resume();
    disk.hang(Hang::Nothing);
    settled(&runtime).await;
    // bounded: until the worker has shown it.
    pass(Duration::from_millis(50)).await;
    assert_eq!((target.delivered().len(), only(&runtime).health), (2, Health::Online));
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_counted_until_it_does() {
    let (dir, disk, target) = (tempfile::tempdir().unwrap(), Disk::default(), Scripted::good());
    let writer = WriterOptions { apply_max: Duration::from_millis(200), ..WriterOptions::default() };
    let runtime = start(&disk, dir.path(), &target, writer).await;
    send(&runtime, [(1, "p")]).await;
    disk.hang(Hang::Syncs);
    let refused = runtime.send(event(2, Some("p"))).await.unwrap_err();
    assert_eq!(refused.reason(), "unknown_outcome");
    assert_eq!(runtime.writer_stats().hung_shards, 1);
    disk.hang(Hang::Nothing);
    // What was unknown may be there; whatever comes next is safe again.
    runtime.send(event(3, Some("p"))).await.unwrap();
    assert_eq!(runtime.writer_stats().hung_shards, 0);
    settled(&runtime).await;
    assert!(target.delivered().contains(&"3".to_owned()));
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}
