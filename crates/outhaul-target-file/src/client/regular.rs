//! A regular file: locked, appended, synced, and never left with half a line.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat};
use rustix::io::{Errno, write};

use crate::codec::{Tail, judge};
use crate::error::Failure;

pub(crate) struct Regular {
    file: File,
    device: u64,
    inode: u64,
}

impl Regular {
    /// Opens or creates the file, locks it, and repairs its end.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NOCTTY;
        let existing = rustix::fs::open(path, flags, Mode::empty());
        let created = matches!(existing, Err(Errno::NOENT));
        let fd = match existing {
            Err(Errno::NOENT) => rustix::fs::open(path, flags | OFlags::CREATE, Mode::RUSR | Mode::WUSR),
            other => other,
        };
        let fd = fd.map_err(|e| Failure::io("cannot open the file", e))?;
        let stat = fstat(&fd).map_err(|e| Failure::io("cannot look at the file", e))?;
        match flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            // A file system without locks is used without.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOLCK) => {}
            Err(e) => return Err(Failure::io("another process writes to the file", e)),
        }
        let mut file = File::from(fd);
        if created {
            sync_directory(path).map_err(|e| Failure::io("cannot sync the directory", e))?;
        }
        repair(&mut file).map_err(|e| Failure::io("cannot repair the end of the file", e))?;
        Ok(Self { file, device: stat.st_dev, inode: stat.st_ino })
    }

    /// Whether the path still names this file.
    pub(crate) fn is_at(&self, path: &Path) -> bool {
        rustix::fs::stat(path).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (self.device, self.inode))
    }

    /// Writes and syncs, or leaves the file as it was. After an error the file has to be opened anew.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let before = self.length().map_err(|e| Failure::io("cannot look at the file", e))?;
        let mut sent = 0;
        while sent < bytes.len() {
            match write(&self.file, &bytes[sent..]) {
                Ok(count) => sent += count,
                Err(Errno::INTR) => {}
                Err(e) => {
                    return Err(self.cut_back(before, sent, Failure::io("cannot write to the file", e)));
                }
            }
        }
        match self.file.sync_data() {
            Ok(()) => Ok(()),
            // Never synced again: what may not be on the disk goes, and is written anew.
            Err(e) => Err(self.cut_back(before, sent, Failure::io("cannot sync the file", e))),
        }
    }

    /// Takes back what was written. If somebody else has appended meanwhile, or the cut fails, the next opening
    /// finds the half line.
    fn cut_back(&self, before: u64, sent: usize, failure: Failure) -> Failure {
        if sent == 0 || self.length().is_ok_and(|length| length != before + sent as u64) {
            return failure;
        }
        match self.file.set_len(before) {
            Ok(()) => failure,
            Err(_) => Failure::new(failure.kind(), "a write failed, and could not be taken back"),
        }
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }
}

/// Ends, or cuts off, a last line without a line feed.
fn repair(file: &mut File) -> io::Result<()> {
    const STEP: u64 = 64 * 1024;
    let length = file.metadata()?.len();
    let mut last = Vec::new();
    let mut start = length;
    // Backwards, piece by piece, up to the last line feed.
    while start > 0 {
        let step = STEP.min(start);
        let mut piece = vec![0; step as usize];
        file.seek(SeekFrom::Start(start - step))?;
        file.read_exact(&mut piece)?;
        let line_feed = piece.iter().rposition(|&b| b == b'\n');
        let from = line_feed.map_or(0, |at| at + 1);
        start -= step - from as u64;
        piece.drain(..from);
        piece.append(&mut last);
        last = piece;
        if line_feed.is_some() {
            break;
        }
    }
    if last.is_empty() {
        return Ok(());
    }
    match judge(&last) {
        Tail::Cut => file.set_len(start)?,
        Tail::End => {
            if write(&*file, b"\n")? != 1 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
    }
    file.sync_data()
}

fn sync_directory(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}
