//! What is open at the moment: nothing, a regular file, or a stream.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Instant;

use outhaul_target::ErrorKind;
use rustix::fs::{Access, FileType};

use super::regular::Regular;
use super::stream::{self, Stream};
use crate::config::Destination;
use crate::error::Failure;

/// How many lines were delivered, and what stopped the others.
pub(crate) type Outcome = (usize, Option<Failure>);

pub(crate) struct Sink {
    /// None: standard output, or a stream that was handed over.
    path: Option<PathBuf>,
    open: Open,
}

enum Open {
    Nothing,
    Regular(Regular),
    Stream(Stream),
    Closed,
}

impl Sink {
    pub(crate) fn new(destination: &Destination) -> Self {
        let path = match destination {
            Destination::Path(path) => Some(path.clone()),
            Destination::Stdout => None,
        };
        Self { path, open: Open::Nothing }
    }

    pub(crate) fn stream(stream: OwnedFd) -> Self {
        Self { path: None, open: Open::Stream(Stream::new(stream)) }
    }

    /// Appends lines that end at `ends`.
    pub(crate) fn append(&mut self, bytes: &[u8], ends: &[usize], deadline: Instant) -> Outcome {
        if let Err(failure) = self.open() {
            return (0, Some(failure));
        }
        match &mut self.open {
            Open::Regular(file) => match file.append(bytes) {
                Ok(()) => (ends.len(), None),
                Err(failure) => {
                    // What is in the file now is judged anew when it is opened again.
                    self.open = Open::Nothing;
                    (0, Some(failure))
                }
            },
            Open::Stream(stream) => {
                let outcome = stream.append(bytes, ends, deadline);
                // A pipe with a path may get a new reader; standard output never does.
                let gone = outcome.1.as_ref().is_some_and(|f| f.kind() == ErrorKind::ConnectionReset);
                if gone && self.path.is_some() {
                    self.open = Open::Nothing;
                }
                outcome
            }
            Open::Nothing | Open::Closed => (0, Some(closed())),
        }
    }

    pub(crate) fn probe(&mut self) -> Result<(), Failure> {
        match (&self.open, &self.path) {
            (Open::Closed, _) => Err(closed()),
            (Open::Stream(stream), _) => stream.probe(),
            (_, Some(path)) => probe_path(path),
            (_, None) => self.open(),
        }
    }

    pub(crate) fn close(&mut self) {
        self.open = Open::Closed;
    }

    pub(crate) fn reopen(&mut self) -> Result<(), Failure> {
        match self.open {
            Open::Closed => return Err(closed()),
            Open::Regular(_) => self.open = Open::Nothing,
            Open::Stream(_) | Open::Nothing => {}
        }
        // A pipe without a reader is no fault of a rotation.
        match self.open() {
            Err(failure) if failure.kind() == ErrorKind::Unreachable => Ok(()),
            other => other,
        }
    }

    /// Opens what the path names, unless that is open already.
    fn open(&mut self) -> Result<(), Failure> {
        match (&self.open, &self.path) {
            (Open::Closed, _) => return Err(closed()),
            (Open::Stream(_), _) => return Ok(()),
            (Open::Regular(file), Some(path)) if file.is_at(path) => return Ok(()),
            _ => {}
        }
        // The old file is given up first: it may be the one that we are about to lock again.
        self.open = Open::Nothing;
        self.open = match &self.path {
            None => {
                let stdout = io::stdout();
                let copy = stdout.as_fd().try_clone_to_owned();
                Open::Stream(Stream::new(copy.map_err(|e| Failure::io("cannot use standard output", e))?))
            }
            Some(path) => match rustix::fs::stat(path) {
                Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                    return Err(Failure::new(ErrorKind::Configuration, "the path is a directory"));
                }
                Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile => {
                    Open::Stream(Stream::open(path)?)
                }
                _ => Open::Regular(Regular::open(path)?),
            },
        };
        Ok(())
    }
}

fn probe_path(path: &Path) -> Result<(), Failure> {
    match rustix::fs::stat(path) {
        Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Err(Failure::new(ErrorKind::Configuration, "the path is a directory")),
            FileType::Fifo => stream::probe_fifo(path),
            _ => rustix::fs::access(path, Access::WRITE_OK)
                .map_err(|e| Failure::io("the file cannot be written", e)),
        },
        Err(rustix::io::Errno::NOENT) => {
            let directory = path.parent().unwrap_or(path);
            rustix::fs::access(directory, Access::WRITE_OK | Access::EXEC_OK)
                .map_err(|e| Failure::io("the directory cannot be written", e))
        }
        Err(e) => Err(Failure::io("the file cannot be looked at", e)),
    }
}

fn closed() -> Failure {
    Failure::new(ErrorKind::Closed, "the target is closed")
}
