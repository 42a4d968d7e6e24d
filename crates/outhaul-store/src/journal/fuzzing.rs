//! What the fuzz targets call, and the tests with a few thousand inputs: any bytes at all go into the readers of the
//! journal's format. Nothing may panic, loop for long, or allocate much more than it is given.
//!
//! A checksum keeps random bytes out of most of the code, so each function runs twice: with the bytes as they are,
//! and with checksums, magic numbers and salts put right.

use std::io;

use bytes::Bytes;
use outhaul_event::Event;

use super::checkpoint::Checkpoint;
use super::footer::{Footer, LOCATOR};
use super::format::{
    self, BATCH_HEADER, BATCH_MAGIC, BatchHeader, SEGMENT_HEADER, SegmentHeader, StoredEvent,
};
use super::scan::{Scanner, Step};
use super::segment::Segment;
use super::survey::{MergedNote, find_end, read_checkpoint, survey};
use crate::fs::File;

const SALT: u64 = 7;

#[derive(Debug)]
struct Memory(Vec<u8>);

impl File for Memory {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let rest = usize::try_from(offset).ok().and_then(|at| self.0.get(at..)).unwrap_or_default();
        let read = rest.len().min(buffer.len());
        buffer[..read].copy_from_slice(&rest[..read]);
        Ok(read)
    }

    fn write_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sync(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }
}

/// A segment file.
pub fn segment(bytes: &[u8]) {
    read_segment(bytes.to_vec());
    read_segment(mended(bytes));
}

fn read_segment(bytes: Vec<u8>) {
    let header = SegmentHeader::decode(&bytes);
    let salt = header.map_or(SALT, |header| header.salt);
    let file = Memory(bytes);
    let length = file.0.len() as u64;
    for salt in [None, Some(salt)] {
        let mut scanner = Scanner::new(&file, salt, SEGMENT_HEADER, length);
        let mut before = SEGMENT_HEADER;
        while let Ok(step) = scanner.step() {
            let (at, header) = match step {
                Step::Batch { offset, header } => (offset, Some(header)),
                Step::Bad { offset, end } => {
                    assert!(end > offset);
                    (offset, None)
                }
                Step::End { .. } | Step::Tail { .. } => break,
            };
            assert!(at >= before, "a scan goes on");
            before = at;
            if let Some(header) = header {
                read_batch(&header, scanner.batch());
            }
        }
    }
    let own = Segment { number: 1, salt, ..Segment::default() };
    let end = find_end(&file, &own, length).map_or(length, |cut| cut.end);
    assert!(end <= length.max(SEGMENT_HEADER));
    for end in [None, Some(end), Some(length)] {
        let Ok(Some(read)) = survey(&file, &own, end, length, |_| true) else { continue };
        drop(read.footer.decode_rows(&read.rows));
    }
    drop(read_checkpoint(&file, None, SEGMENT_HEADER, length, format::FORMAT));
}

fn read_batch(header: &BatchHeader, batch: &[u8]) {
    let Ok(records) = format::records(header, batch) else { return };
    for record in records {
        let Some(body) = record.raw(batch) else { continue };
        StoredEvent::peek_hashes(body);
        StoredEvent::peek_position(body);
        if let Ok(stored) = StoredEvent::decode(&Bytes::copy_from_slice(body)) {
            drop(Event::decode(&stored.event));
        }
        drop(MergedNote::decode(body));
    }
}

/// The same bytes, with a valid header, and batches that verify as far as their lengths allow.
fn mended(bytes: &[u8]) -> Vec<u8> {
    let header = SegmentHeader {
        format: format::FORMAT,
        merged: false,
        number: 1,
        salt: SALT,
        base: 0,
        first_sequence: 1,
    };
    let mut out = header.encode().to_vec();
    out.extend_from_slice(bytes.get(out.len()..).unwrap_or_default());
    let mut at = SEGMENT_HEADER as usize;
    while at + BATCH_HEADER <= out.len() {
        out[at..at + 4].copy_from_slice(&BATCH_MAGIC);
        out[at + 8..at + 16].copy_from_slice(&SALT.to_le_bytes());
        let rest = out.len() - at - BATCH_HEADER;
        // Lengths that are too long are cut to what is there.
        let cut = |field: &[u8], most: usize| {
            let length = field.try_into().map_or(0, u32::from_le_bytes) as usize;
            if length > most { length % (most + 1) } else { length }
        };
        let meta = cut(&out[at + 32..at + 36], rest);
        let body = cut(&out[at + 36..at + 40], rest - meta);
        out[at + 32..at + 36].copy_from_slice(&(meta as u32).to_le_bytes());
        out[at + 36..at + 40].copy_from_slice(&(body as u32).to_le_bytes());
        let crc = crc32c::crc32c(&out[at + 8..at + BATCH_HEADER + meta]);
        out[at + 4..at + 8].copy_from_slice(&crc.to_le_bytes());
        at += BATCH_HEADER + meta + body;
    }
    out
}

/// A file that ends in a footer.
pub fn footer(bytes: &[u8]) {
    let length = bytes.len() as u64;
    let salt =
        bytes.len().checked_sub(24).and_then(|at| bytes[at..at + 8].try_into().ok()).map(u64::from_le_bytes);
    read_footer(&Memory(bytes.to_vec()), salt.unwrap_or(SALT), length);
    // All of it as a footer of a segment that ends before it; with valid rows as far as there are any.
    let mut out = bytes.to_vec();
    if out.len() < 76 {
        return;
    }
    out[..4].copy_from_slice(b"OHF1");
    out[8..16].copy_from_slice(&SALT.to_le_bytes());
    out[32..40].copy_from_slice(&0_u64.to_le_bytes());
    let most = out.len() - 76;
    let tables = out[60..64].try_into().map_or(0, u32::from_le_bytes) as usize % (most + 1);
    out[60..64].copy_from_slice(&(tables as u32).to_le_bytes());
    let rows_at = 72 + tables + 4;
    let rows = (out.len() - rows_at) as u32;
    out[68..72].copy_from_slice(&rows.to_le_bytes());
    let crc = crc32c::crc32c(&out[rows_at..]);
    out[rows_at - 4..rows_at].copy_from_slice(&crc.to_le_bytes());
    let crc = crc32c::crc32c(&out[8..rows_at]);
    out[4..8].copy_from_slice(&crc.to_le_bytes());
    let footer_length = out.len() as u64;
    let mut locator = Vec::with_capacity(LOCATOR as usize);
    [SALT, 0, footer_length].iter().for_each(|field| locator.extend_from_slice(&field.to_le_bytes()));
    let crc = crc32c::crc32c(&locator);
    out.extend_from_slice(b"OHL1");
    out.extend_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(&locator);
    let length = out.len() as u64;
    read_footer(&Memory(out), SALT, length);
}

fn read_footer(file: &Memory, salt: u64, length: u64) {
    let Ok(Some(footer)) = Footer::read(file, salt, length) else { return };
    if let Ok(Some(rows)) = footer.rows(file) {
        for row in &rows {
            footer.queues(row);
        }
    }
}

/// The body of a checkpoint, and of a merge's note.
pub fn checkpoint(bytes: &[u8]) {
    for format in format::FORMAT_MIN..=format::FORMAT {
        drop(Checkpoint::decode(bytes, format));
    }
    drop(MergedNote::decode(bytes));
}
