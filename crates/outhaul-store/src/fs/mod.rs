//! Every disk call of this crate, behind one small trait.
//!
//! The engines are written against [`FileSystem`], so the tests run the production code on a simulated disk that
//! loses whatever was not synced. [`OsFileSystem`] is the real one.

use std::fmt;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

mod os;
#[cfg(feature = "testkit")]
pub(crate) mod sim;

pub use os::OsFileSystem;

/// The calls that an engine makes. Errors are the operating system's; nothing is retried here.
pub trait FileSystem: Send + Sync + fmt::Debug + 'static {
    /// Creates a directory and its parents (mode 0700) and makes their names durable. Fine if it exists.
    fn create_dir_all(&self, dir: &Path) -> io::Result<()>;
    /// Creates a file (mode 0600) that must not exist yet. Its name is durable after [`sync_dir`](Self::sync_dir).
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>>;
    /// Opens a file, for reading alone unless `write` is set.
    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn File>>;
    /// The entries of a directory, in no order.
    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>>;
    /// What is at a path; a link is told of as itself.
    fn stat(&self, path: &Path) -> io::Result<Stat>;
    /// Renames a file over whatever is there.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Gives a file a second name, which must not be there. `Unsupported` where that cannot be had.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let _ = (from, to);
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in a directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Takes an exclusive lock on a file, creating it if need be; `WouldBlock` if another process has it. The lock
    /// ends with the returned value or with the process, never with a file's existence.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>>;
    /// The process that holds a lock which [`lock`](Self::lock) did not get, where that can be known.
    fn lock_holder(&self, path: &Path) -> Option<u32> {
        let _ = path;
        None
    }
    /// The size of the file system that holds a path.
    fn space(&self, path: &Path) -> io::Result<Space>;
    /// What kind of file system holds a path.
    fn kind(&self, path: &Path) -> io::Result<FsKind> {
        let _ = path;
        Ok(FsKind::InPlace)
    }
    /// Reads a stretch of a file from the device, past whatever the operating system keeps of it in memory; fewer
    /// bytes only at the end of the file. `Unsupported` where that cannot be had.
    fn read_uncached(&self, path: &Path, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let _ = (path, offset, length);
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// An open file. Positions are bytes from its start.
pub trait File: Send + Sync + fmt::Debug {
    /// Reads up to the length of the buffer; fewer only at the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Says that a stretch is going to be read soon, so that it is fetched meanwhile.
    fn will_read(&self, offset: u64, length: u64) {
        let _ = (offset, length);
    }
    /// Whether a stretch can be read without waiting for the disk, as far as its two ends tell. `false` where that cannot
    /// be known.
    fn is_cached(&self, offset: u64, length: u64) -> bool {
        let _ = (offset, length);
        false
    }
    /// Writes the whole buffer. After an error any part of it may have been written.
    fn write_at(&self, buffer: &[u8], offset: u64) -> io::Result<()>;
    /// Writes several buffers as one stretch. After an error any part of it may have been written.
    fn write_vectored_at(&self, buffers: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        let mut at = offset;
        for buffer in buffers {
            self.write_at(buffer, at)?;
            at += buffer.len() as u64;
        }
        Ok(())
    }
    /// Has what was written sent to the disk, without waiting for it: a sync that follows has less to do.
    fn start_sync(&self) {}
    /// Makes what was written, and the length, durable. After an error the state of the pages is unknown.
    fn sync(&self) -> io::Result<()>;
    /// Cuts or extends the file.
    fn set_len(&self, length: u64) -> io::Result<()>;
    /// The length.
    fn len(&self) -> io::Result<u64>;
    /// Whether the file has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// A lock that is held until it is dropped.
pub trait Lock: Send + Sync + fmt::Debug {}

/// One name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The name; one that is not UTF-8 is given with replacement characters and is never ours.
    pub name: String,
    /// Whether it is a regular file.
    pub is_file: bool,
}

/// What a name in a directory stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Whether it is a regular file.
    pub is_file: bool,
    /// Its length in bytes.
    pub bytes: u64,
    /// When its content last changed.
    pub modified: std::time::SystemTime,
}

/// What matters of a file system's kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FsKind {
    /// Bytes that are written again are written where they were: preparing a file saves work later.
    InPlace,
    /// Every write goes to a new place, so preparing a file saves nothing.
    CopyOnWrite,
    /// It is in memory: nothing on it survives a loss of power.
    Memory,
    /// It is on another machine, whose promises about a sync are its own.
    Network,
}

/// The size of a file system in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// All of it.
    pub total: u64,
    /// What an unprivileged writer can still take.
    pub available: u64,
}

/// Writes a small file so that a reader sees the old content or the new one: temporary file, sync, rename, sync of
/// the directory.
pub(crate) fn write_atomically(
    fs: &dyn FileSystem,
    dir: &Path,
    name: &str,
    content: &[u8],
) -> io::Result<()> {
    let temporary = dir.join(format!("{name}.tmp"));
    match fs.remove(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = fs.create(&temporary)?;
    file.write_at(content, 0)?;
    file.sync()?;
    fs.rename(&temporary, &dir.join(name))?;
    fs.sync_dir(dir)
}

/// Moves a file to the quarantine under a name that is free there, durably. Returns where it is.
pub(crate) fn move_aside(
    fs: &dyn FileSystem,
    path: &Path,
    quarantine: &Path,
    name: &str,
) -> io::Result<PathBuf> {
    fs.create_dir_all(quarantine)?;
    let free = |to: &PathBuf| fs.stat(to).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    let names = std::iter::once(name.to_owned()).chain((1..1000).map(|n| format!("{name}.{n}")));
    let to = names.map(|name| quarantine.join(name)).find(free).ok_or(io::ErrorKind::AlreadyExists)?;
    fs.rename(path, &to)?;
    fs.sync_dir(quarantine)?;
    path.parent().map_or(Ok(()), |dir| fs.sync_dir(dir))?;
    Ok(to)
}

/// Reads a whole file of at most `max` bytes; a longer one is `InvalidData`.
pub(crate) fn read_whole(fs: &dyn FileSystem, path: &Path, max: usize) -> io::Result<Vec<u8>> {
    let file = fs.open(path, false)?;
    let length = usize::try_from(file.len()?).ok().filter(|&length| length <= max);
    let mut content = vec![0; length.ok_or(io::ErrorKind::InvalidData)?];
    let read = file.read_at(&mut content, 0)?;
    content.truncate(read);
    Ok(content)
}
