//! Reads a segment front to back: its valid batches, and what lies between them.

use std::io;

use crate::fs::File;
use crate::journal::format::{BATCH_HEADER, BATCH_MAGIC, BatchHeader, FLAG_COMPRESSED, decompress};

const CHUNK: usize = 256 * 1024;
/// What is fetched while a chunk is looked at.
const AHEAD: u64 = 4 << 20;
/// What is read at once where the disk fails.
const PIECE: usize = 4096;
/// The error of a disk that cannot read: 5 on every Unix.
const EIO: i32 = 5;

/// The error of a place that the disk cannot read.
pub(crate) fn unreadable() -> io::Error {
    io::Error::from_raw_os_error(EIO)
}

pub(crate) fn is_unreadable(error: &io::Error) -> bool {
    error.raw_os_error() == Some(EIO)
}

/// None where the disk cannot read.
pub(crate) fn readable<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Err(error) if is_unreadable(&error) => Ok(None),
        other => other.map(Some),
    }
}

/// A stretch of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// A batch whose header and meta are valid; [`Scanner::batch`] has its bytes until the next step.
    Batch { offset: u64, header: BatchHeader },
    /// Bytes that are no batch, up to the next valid one.
    Bad { offset: u64, end: u64 },
    /// The end that was asked for.
    End { offset: u64 },
    /// What follows is no batch, and no valid batch follows it. `torn`: it looks like the beginning of one.
    Tail { offset: u64, torn: bool },
}

/// Steps through a segment. Memory: one batch.
#[derive(Debug)]
pub(crate) struct Scanner<'a> {
    file: &'a dyn File,
    salt: Option<u64>,
    offset: u64,
    end: u64,
    buffer: Vec<u8>,
    buffer_start: u64,
    /// Up to here the file is being fetched.
    ahead: u64,
    batch: (usize, usize),
    /// The batch with its bodies decompressed, if they were compressed.
    plain: Option<Vec<u8>>,
    /// What the disk could not read, in the order in which it was met.
    unreadable: Vec<(u64, u64)>,
}

impl<'a> Scanner<'a> {
    /// Scans from an offset at which a batch starts up to `end`: where something ends that was written once, or the file.
    /// Without a salt any batch is taken.
    pub(crate) fn new(file: &'a dyn File, salt: Option<u64>, offset: u64, end: u64) -> Self {
        let (buffer, buffer_start, ahead) = (Vec::new(), 0, offset + CHUNK as u64);
        let (batch, plain, unreadable) = ((0, 0), None, Vec::new());
        Self { file, salt, offset, end, buffer, buffer_start, ahead, batch, plain, unreadable }
    }

    /// The bytes of the batch that the last step returned, decompressed. Of one whose bodies cannot be decompressed
    /// there are header and meta alone.
    pub(crate) fn batch(&self) -> &[u8] {
        self.plain.as_deref().unwrap_or_else(|| self.stored())
    }

    /// Whether the disk could not read some of this stretch: what is there is not known to be damaged.
    pub(crate) fn is_unreadable(&self, offset: u64, end: u64) -> bool {
        self.unreadable.iter().any(|&(from, to)| from < end && offset < to)
    }

    /// Whether there was anything that the disk could not read.
    pub(crate) fn met_unreadable(&self) -> bool {
        !self.unreadable.is_empty()
    }

    fn stored(&self) -> &[u8] {
        &self.buffer[self.batch.0..self.batch.1]
    }

    pub(crate) fn step(&mut self) -> io::Result<Step> {
        let offset = self.offset;
        if offset >= self.end {
            return Ok(Step::End { offset });
        }
        if let Some(header) = self.try_batch(offset)? {
            self.offset = offset + header.length();
            return Ok(Step::Batch { offset, header });
        }
        if let Some(next) = self.find_batch(offset + 1)? {
            self.offset = next;
            return Ok(Step::Bad { offset, end: next });
        }
        self.offset = self.end;
        let start = self.fill(offset, BATCH_HEADER)?;
        let torn = BatchHeader::decode(&self.buffer[start..], self.salt).is_some();
        Ok(Step::Tail { offset, torn })
    }

    fn try_batch(&mut self, offset: u64) -> io::Result<Option<BatchHeader>> {
        let head = self.fill(offset, BATCH_HEADER)?;
        let Some(header) = BatchHeader::decode(&self.buffer[head..], self.salt) else { return Ok(None) };
        if header.length() > self.end - offset {
            return Ok(None);
        }
        let length = header.length() as usize;
        let start = self.fill(offset, length)?;
        self.batch = (start, (start + length).min(self.buffer.len()));
        self.plain = None;
        // The end that was asked for is known to be one: where the file is shorter, what is left of a batch is read.
        if !header.verify(self.stored()) {
            return Ok(None);
        }
        if header.flags & FLAG_COMPRESSED != 0 {
            let head = BATCH_HEADER + header.meta_length as usize;
            self.plain =
                Some(decompress(&header, self.stored()).unwrap_or_else(|| self.stored()[..head].to_vec()));
        }
        Ok(Some(header))
    }

    /// The offset of the next valid batch at or after `from`.
    fn find_batch(&mut self, from: u64) -> io::Result<Option<u64>> {
        let mut at = from;
        while at + BATCH_HEADER as u64 <= self.end {
            let start = self.fill(at, BATCH_HEADER)?;
            let window = &self.buffer[start..];
            if window.len() < BATCH_HEADER {
                return Ok(None);
            }
            match memchr::memmem::find(window, &BATCH_MAGIC) {
                Some(found) => {
                    at += found as u64;
                    if self.try_batch(at)?.is_some() {
                        return Ok(Some(at));
                    }
                    at += 1;
                }
                None => at += (window.len() - 3) as u64,
            }
        }
        Ok(None)
    }

    /// Fills the buffer where the disk cannot read all of it: what it cannot is zeros, which are no batch. Where it
    /// cannot read anything at all, the fault is no bad place in the file.
    fn read_around(&mut self, offset: u64, error: io::Error) -> io::Result<usize> {
        let (mut done, mut any) = (0, false);
        for piece in self.buffer.chunks_mut(PIECE) {
            let wanted = piece.len();
            let read = match self.file.read_at(piece, offset + done as u64) {
                Err(error) if is_unreadable(&error) => {
                    piece.fill(0);
                    let (from, end) = (offset + done as u64, offset + (done + wanted) as u64);
                    match self.unreadable.last_mut().filter(|last| (last.0..=last.1).contains(&from)) {
                        Some(last) => last.1 = last.1.max(end),
                        None => self.unreadable.push((from, end)),
                    }
                    wanted
                }
                read => {
                    any = true;
                    read?
                }
            };
            done += read;
            if read < wanted {
                break;
            }
        }
        if !any && self.file.read_at(&mut [0; 8], 0).is_err() {
            return Err(error);
        }
        Ok(done)
    }

    /// Has what follows fetched, so that the disk is busy while a chunk is looked at.
    fn read_ahead(&mut self, offset: u64) {
        // Not at the first chunk: most scans end there.
        if !self.buffer.is_empty() && offset + AHEAD / 2 > self.ahead && self.ahead < self.end {
            let from = self.ahead.max(offset);
            self.ahead = (from + AHEAD).min(self.end);
            self.file.will_read(from, self.ahead.saturating_sub(from));
        }
    }

    /// Has at least `length` bytes from `offset` in the buffer, as far as the file has them; returns where they start.
    fn fill(&mut self, offset: u64, length: usize) -> io::Result<usize> {
        let there = self.buffer_start + self.buffer.len() as u64;
        if offset < self.buffer_start || offset + length as u64 > there {
            let want = (length.max(CHUNK) as u64).min(self.end.saturating_sub(offset)) as usize;
            self.read_ahead(offset);
            self.buffer.resize(want, 0);
            let read = match self.file.read_at(&mut self.buffer, offset) {
                Err(error) if is_unreadable(&error) => self.read_around(offset, error)?,
                read => read?,
            };
            self.buffer.truncate(read);
            self.buffer_start = offset;
        }
        Ok((offset - self.buffer_start) as usize)
    }
}
