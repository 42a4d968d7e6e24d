//! The operating system's file system (Linux; other Unixes are not tried).

use std::fs::{self, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use super::{DirEntry, File, FileSystem, FsKind, Lock, Space, Stat};

/// The real disk.
#[derive(Debug, Clone, Copy, Default)]
pub struct OsFileSystem;

impl FileSystem for OsFileSystem {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
        if dir.is_dir() {
            // Whoever created it may have ended before its name was durable.
            return self.sync_dir(parent.unwrap_or(Path::new(".")));
        }
        if let Some(parent) = parent {
            self.create_dir_all(parent)?;
        }
        match fs::DirBuilder::new().mode(0o700).create(dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => return Ok(()),
            other => other?,
        }
        self.sync_dir(parent.unwrap_or(Path::new(".")))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        Ok(Arc::new(file))
    }

    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(OpenOptions::new().read(true).write(write).open(path)?))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let entry = |entry: fs::DirEntry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            Ok(DirEntry { name, is_file: entry.file_type()?.is_file() })
        };
        fs::read_dir(dir)?.map(|found| found.and_then(entry)).collect()
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        let found = fs::symlink_metadata(path)?;
        Ok(Stat { is_file: found.is_file(), bytes: found.len(), modified: found.modified()? })
    }

    #[expect(clippy::disallowed_methods, reason = "this is the one place; callers sync the directory")]
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::hard_link(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        fs::File::open(dir)?.sync_all()
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Box::new(OsLock { _file: file })),
            Err(fs::TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    }

    #[cfg(target_os = "linux")]
    fn lock_holder(&self, path: &Path) -> Option<u32> {
        use std::os::unix::fs::MetadataExt as _;
        let found = fs::metadata(path).ok()?;
        let (major, minor) = (rustix::fs::major(found.dev()), rustix::fs::minor(found.dev()));
        let file = format!("{major:02x}:{minor:02x}:{}", found.ino());
        // proc(5): `1: FLOCK ADVISORY WRITE <pid> <device and inode> 0 EOF`.
        let locks = fs::read_to_string("/proc/locks").ok()?;
        let held = locks.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let own =
            held.into_iter().find(|words| words.get(1) == Some(&"FLOCK") && words.get(5) == Some(&&*file));
        own?.get(4)?.parse().ok().filter(|&pid| pid > 0)
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        let stat = rustix::fs::statvfs(path)?;
        Ok(Space {
            total: stat.f_blocks.saturating_mul(stat.f_frsize),
            available: stat.f_bavail.saturating_mul(stat.f_frsize),
        })
    }

    #[cfg(target_os = "linux")]
    fn kind(&self, path: &Path) -> io::Result<FsKind> {
        // The magic numbers of statfs(2).
        Ok(match rustix::fs::statfs(path)?.f_type as u32 {
            // btrfs, ZFS, bcachefs, overlay over whatever.
            0x9123_683E | 0x2FC1_2FC1 | 0xCA45_1A4E => FsKind::CopyOnWrite,
            // tmpfs, ramfs.
            0x0102_1994 | 0x8584_58F6 => FsKind::Memory,
            // NFS, SMB, CIFS, SMB2, Ceph, AFS, 9P.
            0x6969 | 0x517B | 0xFF53_4D42 | 0xFE53_4D42 | 0x00C3_6400 | 0x5346_414F | 0x0102_1997 => {
                FsKind::Network
            }
            _ => FsKind::InPlace,
        })
    }

    #[cfg(target_os = "linux")]
    fn read_uncached(&self, path: &Path, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let (start, end) = (offset / ALIGN * ALIGN, (offset + length as u64).next_multiple_of(ALIGN));
        let aligned = (end - start) as usize;
        let mut memory = vec![0; aligned + ALIGN as usize];
        let from = memory.as_ptr().align_offset(ALIGN as usize);
        let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
        let read = match OpenOptions::new().read(true).custom_flags(direct).open(path) {
            Ok(file) => File::read_at(&file, &mut memory[from..from + aligned], start)?,
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                let file = fs::File::open(path)?;
                let whole = std::num::NonZeroU64::new(end - start);
                rustix::fs::fadvise(&file, start, whole, rustix::fs::Advice::DontNeed)?;
                File::read_at(&file, &mut memory[from..from + aligned], start)?
            }
            Err(error) => return Err(error),
        };
        let skip = (offset - start) as usize;
        let there = read.saturating_sub(skip).min(length);
        Ok(memory[from + skip..from + skip + there].to_vec())
    }
}

/// What direct reads are aligned to: the largest block of any disk.
const ALIGN: u64 = 4096;
/// Buffers that one call takes (`IOV_MAX`).
const BUFFERS_MAX: usize = 1024;

#[derive(Debug)]
struct OsLock {
    _file: fs::File,
}

impl Lock for OsLock {}

impl File for fs::File {
    #[cfg(target_os = "linux")]
    fn is_cached(&self, offset: u64, length: u64) -> bool {
        let there = |at: u64| {
            let mut byte = [0];
            let buffers = &mut [io::IoSliceMut::new(&mut byte)];
            rustix::io::preadv2(self, buffers, at, rustix::io::ReadWriteFlags::NOWAIT).is_ok()
        };
        there(offset) && there(offset.saturating_add(length.saturating_sub(1)))
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            match FileExt::read_at(self, &mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn will_read(&self, offset: u64, length: u64) {
        let length = std::num::NonZeroU64::new(length);
        // It is advice: without it the read takes longer.
        rustix::fs::fadvise(self, offset, length, rustix::fs::Advice::WillNeed).unwrap_or_default();
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        FileExt::write_all_at(self, buffer, offset)
    }

    fn write_vectored_at(&self, buffers: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        let (mut rest, mut at) = (buffers, offset);
        while !rest.is_empty() {
            let some = rest.len().min(BUFFERS_MAX);
            match rustix::io::pwritev(self, &rest[..some], at) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    at += written as u64;
                    IoSlice::advance_slices(&mut rest, written);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn start_sync(&self) {
        // The advice begins to write what is dirty. It is advice: without it the sync takes longer.
        rustix::fs::fadvise(self, 0, None, rustix::fs::Advice::DontNeed).unwrap_or_default();
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        fs::File::set_len(self, length)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }
}
