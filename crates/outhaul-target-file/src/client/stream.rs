//! Pipes, terminals and devices: whole lines, never blocking past the deadline.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

use outhaul_target::ErrorKind;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags, fstat};
use rustix::io::{Errno, write};

use super::sink::Outcome;
use crate::error::Failure;

/// A pipe that reports room has room for this much (`PIPE_BUF`), so that a write does not block.
const PIECE: usize = 4096;

pub(crate) struct Stream {
    fd: OwnedFd,
    /// A file never blocks for longer than its disk: it is written in one piece.
    piece: usize,
    /// The rest of a line that was begun.
    owed: Vec<u8>,
}

impl Stream {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        let regular = fstat(&fd).is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::RegularFile);
        Self { fd, piece: if regular { usize::MAX } else { PIECE }, owed: Vec::new() }
    }

    /// Opens what is there already. A pipe that nobody reads is `ENXIO`, and opening it does not wait.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty());
        Ok(Self::new(fd.map_err(|e| match e {
            Errno::NXIO => Failure::io("nobody reads the pipe", e),
            _ => Failure::io("cannot open it", e),
        })?))
    }

    /// Writes the lines. Those that went out whole are delivered; what is left of the last one that did not is owed.
    pub(crate) fn append(&mut self, bytes: &[u8], ends: &[usize], deadline: Instant) -> Outcome {
        let owed = std::mem::take(&mut self.owed);
        let (sent, failure) = self.write(&owed, deadline);
        if failure.is_some() {
            self.owed = owed[sent..].to_vec();
            return (0, failure);
        }
        let (sent, failure) = self.write(bytes, deadline);
        let lines = ends.partition_point(|&end| end <= sent);
        let begun = if lines == 0 { 0 } else { ends[lines - 1] };
        if begun < sent {
            self.owed = bytes[sent..ends[lines]].to_vec();
        }
        (lines, failure)
    }

    pub(crate) fn probe(&self) -> Result<(), Failure> {
        let mut fds = [PollFd::new(&self.fd, PollFlags::OUT)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))
            .map_err(|e| Failure::io("cannot look at the output", e))?;
        match fds[0].revents().intersects(PollFlags::ERR) {
            true => Err(Failure::io("the reader of the output is gone", Errno::PIPE)),
            false => Ok(()),
        }
    }

    /// Returns how much was written, and what stopped the rest.
    fn write(&self, bytes: &[u8], deadline: Instant) -> (usize, Option<Failure>) {
        let mut sent = 0;
        while sent < bytes.len() {
            if let Err(failure) = self.wait(deadline) {
                return (sent, Some(failure));
            }
            let piece = &bytes[sent..bytes.len().min(sent.saturating_add(self.piece))];
            match write(&self.fd, piece) {
                Ok(count) => sent += count,
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(e) => return (sent, Some(Failure::io("cannot write", e))),
            }
        }
        (sent, None)
    }

    fn wait(&self, deadline: Instant) -> Result<(), Failure> {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&self.fd, PollFlags::OUT)], Some(&timeout)) {
            Ok(0) => Err(Failure::new(ErrorKind::TimedOut, "nobody read the output within the deadline")),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(e) => Err(Failure::io("cannot wait for the output", e)),
        }
    }
}

/// Whether somebody reads a pipe.
pub(crate) fn probe_fifo(path: &Path) -> Result<(), Failure> {
    Stream::open(path).map(drop)
}
