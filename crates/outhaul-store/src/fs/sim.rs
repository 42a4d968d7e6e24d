//! A simulated disk that loses what was not synced.
//!
//! Files are kept twice: as the process sees them, and as they would be found after a loss of power. A sync copies
//! what changed of the first to the second; one that fails forgets that it changed, as Linux does. [`SimDisk::crash`] makes the disk that a power cut could have left: of every block
//! written since the last sync the new bytes, the old ones, or a torn mixture; of every name created, renamed or
//! removed since the directory's last sync either state. Any subset is possible, since real disks reorder.
//!
//! Also: the n-th call can fail with a chosen error, space can run out, and a snapshot can be kept behind every call
//! that changes something, so that one run of a workload gives all of its crash states.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{DirEntry, File, FileSystem, Lock, Space, Stat};

const BLOCK: usize = 512;

type FileId = u64;

#[derive(Debug, Clone, Default)]
struct SimFile {
    /// As the process sees it.
    live: Vec<u8>,
    /// As a power cut would leave it at least.
    durable: Vec<u8>,
    dirty: BTreeSet<usize>,
    length_dirty: bool,
}

/// The whole state of a simulated disk.
#[derive(Debug, Clone, Default)]
pub struct SimDisk {
    files: HashMap<FileId, SimFile>,
    names: BTreeMap<PathBuf, FileId>,
    durable_names: BTreeMap<PathBuf, FileId>,
    dirs: BTreeSet<PathBuf>,
    next_file: FileId,
    calls: u64,
    /// The number of the call, its error, and whether every later one fails as well.
    fail: Vec<(u64, io::ErrorKind, bool)>,
    /// The number of the call, and how much of what it is to write is written.
    shorten: Option<(u64, usize)>,
    /// The reads that were made; of which the first that fails, and how many do.
    reads: u64,
    fail_reads: Option<(u64, u64)>,
    /// A stretch of a file that cannot be read.
    spoiled: Option<(FileId, u64, u64)>,
    capacity: Option<u64>,
    snapshots: Option<Vec<(u64, SimDisk)>>,
}

/// Something that was changed and not synced.
#[derive(Debug, Clone, Copy)]
enum Item<'a> {
    Name(&'a Path),
    Length(FileId),
    Block(FileId, usize),
}

/// How much of an unsynced thing survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// It is as it was at the last sync.
    Nothing,
    /// It is as it was written.
    All,
    /// Of a block so many bytes are new.
    Torn(usize),
}

/// A simulated file system. Clones share one disk.
#[derive(Debug, Clone, Default)]
pub struct SimFileSystem {
    disk: Arc<Mutex<SimDisk>>,
    tag: Arc<Mutex<u64>>,
}

impl SimDisk {
    /// The disk that a power cut could leave now; which of the many is the generator's choice.
    #[must_use]
    pub fn crash(&self, random: &mut fastrand::Rng) -> Self {
        let mut after = Self { dirs: self.dirs.clone(), next_file: self.next_file, ..Self::default() };
        let all: BTreeSet<&PathBuf> = self.names.keys().chain(self.durable_names.keys()).collect();
        // Sometimes everything unsynced goes one way: the extremes matter most.
        let bias = random.u8(0..4);
        let keep = |random: &mut fastrand::Rng| match bias {
            0 => true,
            1 => false,
            _ => random.bool(),
        };
        for path in all {
            let (now, then) = (self.names.get(path), self.durable_names.get(path));
            let found = if now != then && !keep(random) { then } else { now };
            if let Some(&id) = found {
                after.names.insert(path.clone(), id);
            }
        }
        for &id in after.names.values() {
            let file = &self.files[&id];
            let content = file.after_crash(random, keep);
            let sim = SimFile { live: content.clone(), durable: content, ..SimFile::default() };
            after.files.insert(id, sim);
        }
        after.durable_names = after.names.clone();
        after
    }

    /// How many things were changed and not synced: names, lengths, blocks. Each survives a power cut or does not.
    pub fn unsynced(&self) -> usize {
        self.items().len()
    }

    /// The disk that a power cut leaves if of each unsynced thing, by its number, so much survives.
    #[must_use]
    pub fn crash_with(&self, kept: impl Fn(usize) -> Kept) -> Self {
        let mut after = Self { dirs: self.dirs.clone(), next_file: self.next_file, ..Self::default() };
        let items = self.items();
        after.names.clone_from(&self.durable_names);
        for (at, item) in items.iter().enumerate() {
            if let Item::Name(path) = *item
                && kept(at) != Kept::Nothing
            {
                match self.names.get(path) {
                    Some(&id) => after.names.insert(path.to_owned(), id),
                    None => after.names.remove(path),
                };
            }
        }
        for &id in after.names.values() {
            let mut content = self.files[&id].durable.clone();
            for (at, item) in items.iter().enumerate() {
                self.files[&id].survive(id, *item, kept(at), &mut content);
            }
            let sim = SimFile { live: content.clone(), durable: content, ..SimFile::default() };
            after.files.insert(id, sim);
        }
        after.durable_names = after.names.clone();
        after
    }

    fn items(&self) -> Vec<Item<'_>> {
        let all: BTreeSet<&PathBuf> = self.names.keys().chain(self.durable_names.keys()).collect();
        let changed = all.iter().filter(|path| self.names.get(**path) != self.durable_names.get(**path));
        let mut items: Vec<_> = changed.map(|path| Item::Name(path)).collect();
        let files: BTreeSet<FileId> =
            self.names.values().chain(self.durable_names.values()).copied().collect();
        for id in files {
            let file = &self.files[&id];
            items.extend(file.length_dirty.then_some(Item::Length(id)));
            items.extend(file.dirty.iter().map(|&block| Item::Block(id, block)));
        }
        items
    }

    /// Has a file with this content, durably, whatever was there.
    pub fn put(&mut self, path: &Path, content: Vec<u8>) {
        self.next_file += 1;
        let file = SimFile { live: content.clone(), durable: content, ..SimFile::default() };
        self.files.insert(self.next_file, file);
        self.names.insert(path.to_owned(), self.next_file);
        self.durable_names.insert(path.to_owned(), self.next_file);
    }

    /// Takes a file away, durably.
    pub fn delete(&mut self, path: &Path) {
        self.names.remove(path);
        self.durable_names.remove(path);
    }

    /// Flips one bit of a file, durably.
    pub fn flip(&mut self, path: &Path, bit: usize) {
        if let Some(file) = self.names.get(path).and_then(|id| self.files.get_mut(id)) {
            file.live[bit / 8] ^= 1 << (bit % 8);
            file.durable = file.live.clone();
        }
    }

    /// The files, with their lengths.
    pub fn files(&self) -> Vec<(PathBuf, usize)> {
        self.names.iter().map(|(path, id)| (path.clone(), self.files[id].live.len())).collect()
    }

    /// The content of a file as the process sees it.
    pub fn content(&self, path: &Path) -> Option<&[u8]> {
        Some(&self.files[self.names.get(path)?].live)
    }

    fn used(&self) -> u64 {
        self.names.values().map(|id| self.files[id].live.len() as u64).sum()
    }

    /// Counts a call, and fails it if it is its turn.
    fn call(&mut self) -> io::Result<()> {
        self.calls += 1;
        let now = self.calls;
        let mut due = self.fail.iter().filter(|(at, _, forever)| now == *at || (*forever && now > *at));
        due.next().map_or(Ok(()), |(_, kind, _)| Err((*kind).into()))
    }

    /// Counts a read, and fails it if it is to fail.
    fn read(&mut self, id: FileId, from: u64, length: usize) -> io::Result<()> {
        self.call()?;
        self.reads += 1;
        let now = self.reads;
        let due = self.fail_reads.is_some_and(|(at, count)| now >= at && now - at < count);
        let bad = |(of, start, end)| of == id && from < end && start < from.saturating_add(length as u64);
        if due || self.spoiled.is_some_and(bad) { Err(io::Error::from_raw_os_error(5)) } else { Ok(()) }
    }

    fn file(&mut self, id: FileId) -> io::Result<&mut SimFile> {
        self.files.get_mut(&id).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn snapshot(&mut self, tag: u64) {
        if let Some(mut snapshots) = self.snapshots.take() {
            snapshots.push((tag, self.clone()));
            self.snapshots = Some(snapshots);
        }
    }
}

impl SimFile {
    fn write(&mut self, bytes: &[u8], start: usize) {
        let end = start + bytes.len();
        if end > self.live.len() {
            self.live.resize(end, 0);
            self.length_dirty = true;
        }
        self.live[start..end].copy_from_slice(bytes);
        if !bytes.is_empty() {
            self.dirty.extend(start / BLOCK..=(end - 1) / BLOCK);
        }
    }

    fn survive(&self, id: FileId, item: Item<'_>, kept: Kept, content: &mut Vec<u8>) {
        match item {
            Item::Length(of) if of == id && kept != Kept::Nothing => content.resize(self.live.len(), 0),
            Item::Block(of, block) if of == id => {
                let start = block * BLOCK;
                let whole = (start + BLOCK).min(self.live.len()).saturating_sub(start);
                let new = match kept {
                    Kept::Nothing => 0,
                    Kept::All => whole,
                    Kept::Torn(bytes) => bytes.min(whole),
                };
                if new > 0 {
                    content.resize(content.len().max(start + new), 0);
                    content[start..start + new].copy_from_slice(&self.live[start..start + new]);
                }
            }
            _ => {}
        }
    }

    /// Brings what was written since the last time to the device.
    fn write_back(&mut self) {
        self.durable.resize(self.live.len(), 0);
        for block in std::mem::take(&mut self.dirty) {
            let (start, end) = (block * BLOCK, ((block + 1) * BLOCK).min(self.live.len()));
            if start < end {
                self.durable[start..end].copy_from_slice(&self.live[start..end]);
            }
        }
        self.length_dirty = false;
    }

    fn after_crash(&self, random: &mut fastrand::Rng, keep: impl Fn(&mut fastrand::Rng) -> bool) -> Vec<u8> {
        let grown = self.live.len() >= self.durable.len();
        let mut content = self.durable.clone();
        if self.length_dirty && keep(random) {
            content.resize(self.live.len(), 0);
        }
        for &block in &self.dirty {
            let start = block * BLOCK;
            if start >= content.len() && !(grown && keep(random)) {
                continue;
            }
            let end = (start + BLOCK).min(self.live.len());
            if start >= end {
                continue;
            }
            let torn = random.u8(0..4) == 0;
            let kept =
                if torn { random.usize(0..=end - start) } else { (end - start) * usize::from(keep(random)) };
            if kept > 0 {
                content.resize(content.len().max(start + kept), 0);
                content[start..start + kept].copy_from_slice(&self.live[start..start + kept]);
            }
        }
        content
    }
}

impl SimFileSystem {
    /// A file system over a disk, with fresh counters and no faults.
    pub fn new(disk: SimDisk) -> Self {
        let disk = SimDisk {
            calls: 0,
            fail: Vec::new(),
            shorten: None,
            reads: 0,
            fail_reads: None,
            spoiled: None,
            capacity: None,
            snapshots: None,
            ..disk
        };
        Self { disk: Arc::new(Mutex::new(disk)), tag: Arc::default() }
    }

    /// The disk as it is.
    pub fn disk(&self) -> SimDisk {
        self.lock().clone()
    }

    /// How many calls were made.
    pub fn calls(&self) -> u64 {
        self.lock().calls
    }

    /// Lets the n-th call from now on fail; with `forever`, every later one as well.
    pub fn fail_at(&self, n: u64, kind: io::ErrorKind, forever: bool) {
        let mut disk = self.lock();
        disk.fail = vec![(disk.calls + n, kind, forever)];
    }

    /// Lets one more call fail, once, besides those that are to fail already.
    pub fn also_fail_at(&self, n: u64, kind: io::ErrorKind) {
        let mut disk = self.lock();
        let at = disk.calls + n;
        disk.fail.push((at, kind, false));
    }

    /// No call fails any more.
    pub fn heal(&self) {
        let mut disk = self.lock();
        (disk.shorten, disk.fail_reads, disk.spoiled) = (None, None, None);
        disk.fail.clear();
    }

    /// Lets reads fail as those of a broken disk do: so many from the n-th on.
    pub fn fail_reads_at(&self, n: u64, count: u64) {
        let mut disk = self.lock();
        disk.fail_reads = Some((disk.reads + n, count));
    }

    /// How many reads were made.
    pub fn reads(&self) -> u64 {
        self.lock().reads
    }

    /// Lets every read of this stretch of a file fail.
    pub fn spoil(&self, path: &Path, from: u64, end: u64) {
        let mut disk = self.lock();
        disk.spoiled = disk.names.get(path).map(|&id| (id, from, end));
    }

    /// Lets the n-th call from now on, if it writes, end with an error behind so many bytes.
    pub fn shorten_at(&self, n: u64, bytes: usize) {
        let mut disk = self.lock();
        disk.shorten = Some((disk.calls + n, bytes));
    }

    /// Flips one bit of a file that may be in use, for the process and on the device.
    pub fn flip(&self, path: &Path, bit: usize) {
        self.lock().flip(path, bit);
    }

    /// Changes a byte on the device that was confirmed; whoever reads through the page cache sees the old one.
    pub fn lose(&self, path: &Path, at: usize) {
        let mut disk = self.lock();
        let id = disk.names.get(path).copied();
        if let Some(file) = id.and_then(|id| disk.files.get_mut(&id)) {
            file.durable[at] ^= 0xFF;
        }
    }

    /// Bounds the bytes in all files together; None is no bound.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.lock().capacity = bytes;
    }

    /// The bytes in all files together.
    pub fn used(&self) -> u64 {
        self.lock().used()
    }

    /// Starts to keep the disk behind every call that changes it.
    pub fn record(&self) {
        self.lock().snapshots = Some(Vec::new());
    }

    /// Marks the snapshots from now on.
    pub fn set_tag(&self, tag: u64) {
        *self.tag.lock().unwrap_or_else(PoisonError::into_inner) = tag;
    }

    /// The snapshots since [`record`](Self::record), each with its mark.
    pub fn recorded(&self) -> Vec<(u64, SimDisk)> {
        self.lock().snapshots.take().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, SimDisk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut SimDisk) -> io::Result<T>) -> io::Result<T> {
        let tag = *self.tag.lock().unwrap_or_else(PoisonError::into_inner);
        let mut disk = self.lock();
        disk.call()?;
        let done = change(&mut disk);
        disk.snapshot(tag);
        done
    }
}

#[derive(Debug)]
struct SimHandle {
    fs: SimFileSystem,
    id: FileId,
}

#[derive(Debug)]
struct SimLock;

impl Lock for SimLock {}

impl FileSystem for SimFileSystem {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.change(|disk| {
            disk.dirs.extend(dir.ancestors().map(Path::to_owned));
            Ok(())
        })
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let id = self.change(|disk| {
            if disk.names.contains_key(path) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            disk.next_file += 1;
            let id = disk.next_file;
            disk.files.insert(id, SimFile::default());
            disk.names.insert(path.to_owned(), id);
            Ok(id)
        })?;
        Ok(Arc::new(SimHandle { fs: self.clone(), id }))
    }

    fn open(&self, path: &Path, _: bool) -> io::Result<Arc<dyn File>> {
        let mut disk = self.lock();
        disk.call()?;
        let id = *disk.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(SimHandle { fs: self.clone(), id }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let mut disk = self.lock();
        disk.call()?;
        if !disk.dirs.contains(dir) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let files = disk.names.keys().map(|path| (path, true));
        let dirs = disk.dirs.iter().map(|path| (path, false));
        let inside = files.chain(dirs).filter(|(path, _)| path.parent() == Some(dir));
        let entry = |(path, is_file): (&PathBuf, bool)| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            DirEntry { name, is_file }
        };
        Ok(inside.map(entry).collect())
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        let mut disk = self.lock();
        disk.call()?;
        // Files are as old as the order in which they were created.
        let at = |seconds| std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        match disk.names.get(path) {
            Some(id) => {
                let bytes = disk.files[id].live.len() as u64;
                Ok(Stat { is_file: true, bytes, modified: at(*id) })
            }
            None if disk.dirs.contains(path) => Ok(Stat { is_file: false, bytes: 0, modified: at(0) }),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.change(|disk| {
            let id = disk.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
            disk.names.insert(to.to_owned(), id);
            Ok(())
        })
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.change(|disk| {
            let id = *disk.names.get(from).ok_or(io::ErrorKind::NotFound)?;
            if disk.names.contains_key(to) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            disk.names.insert(to.to_owned(), id);
            Ok(())
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.change(|disk| {
            disk.names.remove(path).ok_or(io::ErrorKind::NotFound)?;
            Ok(())
        })
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.change(|disk| {
            disk.durable_names.retain(|path, _| path.parent() != Some(dir));
            let inside = disk.names.iter().filter(|(path, _)| path.parent() == Some(dir));
            let inside: Vec<_> = inside.map(|(path, &id)| (path.clone(), id)).collect();
            disk.durable_names.extend(inside);
            Ok(())
        })
    }

    fn lock(&self, _: &Path) -> io::Result<Box<dyn Lock>> {
        Ok(Box::new(SimLock))
    }

    fn space(&self, _: &Path) -> io::Result<Space> {
        let disk = SimFileSystem::lock(self);
        let total = disk.capacity.unwrap_or(1 << 40);
        Ok(Space { total, available: total.saturating_sub(disk.used()) })
    }

    fn read_uncached(&self, path: &Path, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut disk = SimFileSystem::lock(self);
        let id = *disk.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        disk.read(id, offset, length)?;
        let durable = &disk.file(id)?.durable;
        let start = (offset as usize).min(durable.len());
        Ok(durable[start..(start + length).min(durable.len())].to_vec())
    }
}

impl File for SimHandle {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut disk = self.fs.lock();
        disk.read(self.id, offset, buffer.len())?;
        let file = disk.file(self.id)?;
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(file.live.len());
        let read = buffer.len().min(file.live.len() - start);
        buffer[..read].copy_from_slice(&file.live[start..start + read]);
        Ok(read)
    }

    fn write_vectored_at(&self, buffers: &mut [std::io::IoSlice<'_>], offset: u64) -> io::Result<()> {
        let all: Vec<u8> = buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect();
        self.write_at(&all, offset)
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        self.fs.change(|disk| {
            let (used, capacity) = (disk.used(), disk.capacity);
            let short = disk.shorten.filter(|(at, _)| *at == disk.calls).map(|(_, bytes)| bytes);
            if let Some(bytes) = short.filter(|&bytes| bytes < buffer.len()) {
                let file = disk.file(self.id)?;
                file.write(&buffer[..bytes], offset as usize);
                return Err(io::ErrorKind::Other.into());
            }
            let file = disk.file(self.id)?;
            let start = offset as usize;
            let growth = (start + buffer.len()).saturating_sub(file.live.len()) as u64;
            let room = capacity.map_or(u64::MAX, |capacity| capacity.saturating_sub(used));
            // As a real disk does: what fits is written, then the error comes.
            let fits = buffer.len() - growth.saturating_sub(room) as usize;
            file.write(&buffer[..fits], start);
            if fits < buffer.len() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
        })
    }

    fn sync(&self) -> io::Result<()> {
        let synced = self.fs.change(|disk| {
            disk.file(self.id)?.write_back();
            Ok(())
        });
        if synced.is_err() {
            // As Linux does: what could not be written is taken for written from now on.
            if let Ok(file) = self.fs.lock().file(self.id) {
                file.dirty.clear();
            }
        }
        synced
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.fs.change(|disk| {
            let file = disk.file(self.id)?;
            file.live.resize(length as usize, 0);
            file.length_dirty = true;
            Ok(())
        })
    }

    fn len(&self) -> io::Result<u64> {
        let mut disk = self.fs.lock();
        disk.call()?;
        Ok(disk.file(self.id)?.live.len() as u64)
    }
}
