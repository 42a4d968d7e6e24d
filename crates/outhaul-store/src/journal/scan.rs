//! Reads a segment front to back: its valid batches, and what lies between them.

use std::io;

use crate::fs::File;
use crate::journal::format::{BATCH_HEADER, BATCH_MAGIC, BatchHeader};

const CHUNK: usize = 256 * 1024;

/// A stretch of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// A batch whose header and meta are valid; [`Scanner::batch`] has its bytes until the next step.
    Batch { offset: u64, header: BatchHeader },
    /// Bytes that are no batch, up to the next valid one.
    Bad { offset: u64, end: u64 },
    /// Nothing more follows: the end of the file, or zeros up to it.
    End { offset: u64 },
    /// What follows is no batch, and no valid batch follows it.
    Tail { offset: u64 },
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
    batch: (usize, usize),
}

impl<'a> Scanner<'a> {
    /// Scans from an offset at which a batch starts up to `end`. Without a salt any batch is taken.
    pub(crate) fn new(file: &'a dyn File, salt: Option<u64>, offset: u64, end: u64) -> Self {
        Self { file, salt, offset, end, buffer: Vec::new(), buffer_start: 0, batch: (0, 0) }
    }

    /// The bytes of the batch that the last step returned.
    pub(crate) fn batch(&self) -> &[u8] {
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
        Ok(if self.is_zero(offset)? { Step::End { offset } } else { Step::Tail { offset } })
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
        let whole = self.batch.1 - self.batch.0 == length;
        Ok((whole && header.verify(self.batch())).then_some(header))
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
            match window.windows(4).position(|four| four == BATCH_MAGIC) {
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

    fn is_zero(&mut self, from: u64) -> io::Result<bool> {
        let mut at = from;
        while at < self.end {
            let start = self.fill(at, 1)?;
            let rest = &self.buffer[start..];
            if rest.is_empty() {
                return Ok(true);
            }
            if rest.iter().any(|&byte| byte != 0) {
                return Ok(false);
            }
            at += rest.len() as u64;
        }
        Ok(true)
    }

    /// Has at least `length` bytes from `offset` in the buffer, as far as the file has them; returns where they start.
    fn fill(&mut self, offset: u64, length: usize) -> io::Result<usize> {
        let there = self.buffer_start + self.buffer.len() as u64;
        if offset < self.buffer_start || offset + length as u64 > there {
            let want = (length.max(CHUNK) as u64).min(self.end.saturating_sub(offset)) as usize;
            self.buffer.resize(want, 0);
            let read = self.file.read_at(&mut self.buffer, offset)?;
            self.buffer.truncate(read);
            self.buffer_start = offset;
        }
        Ok((offset - self.buffer_start) as usize)
    }
}
