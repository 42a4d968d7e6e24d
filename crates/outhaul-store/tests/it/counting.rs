//! A file system that counts syncs.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use outhaul_store::{DirEntry, File, FileSystem, Lock, SimFileSystem, Space, Stat};

#[derive(Debug, Clone)]
pub(crate) struct Counting {
    disk: Arc<dyn FileSystem>,
    files: Arc<AtomicU64>,
    dirs: Arc<AtomicU64>,
}

impl Default for Counting {
    fn default() -> Self {
        Self::over(SimFileSystem::default())
    }
}

impl Counting {
    pub(crate) fn over(disk: impl FileSystem) -> Self {
        Self { disk: Arc::new(disk), files: Arc::default(), dirs: Arc::default() }
    }

    /// Syncs of files and directories.
    pub(crate) fn syncs(&self) -> u64 {
        self.file_syncs() + self.dirs.load(Ordering::SeqCst)
    }

    pub(crate) fn file_syncs(&self) -> u64 {
        self.files.load(Ordering::SeqCst)
    }

    fn file(&self, file: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(Counted { file, syncs: Arc::clone(&self.files) })
    }
}

#[derive(Debug)]
struct Counted {
    file: Arc<dyn File>,
    syncs: Arc<AtomicU64>,
}

impl FileSystem for Counting {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.disk.create_dir_all(dir)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.disk.create(path).map(|file| self.file(file))
    }

    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn File>> {
        self.disk.open(path, write).map(|file| self.file(file))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.disk.list(dir)
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        self.disk.stat(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.dirs.fetch_add(1, Ordering::SeqCst);
        self.disk.sync_dir(dir)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>> {
        self.disk.lock(path)
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        self.disk.space(path)
    }
}

impl File for Counted {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_at(buffer, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.syncs.fetch_add(1, Ordering::SeqCst);
        self.file.sync()
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.file.set_len(length)
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
}
