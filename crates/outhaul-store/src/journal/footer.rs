//! The footer of a sealed segment: what an open needs to know of it without reading its records.
//!
//! It stands behind the last batch, and a locator in the file's last 32 bytes says where. Everything in it can be had
//! from the records: where it is missing or does not verify they are read, and it is written again. Its head is small
//! and is all that an open reads, unless a queue has settled a part of the segment.
//!
//! ```text
//! head     magic, CRC of the rest of head and tables, salt, first and end sequence, end of the batches, offset of a
//!          closing checkpoint or 0, counts and lengths of what follows, CRC of the rows
//! tables   per queue: number, entries, bytes, sequence of the entry before its first; sets of queues; sparse index
//! rows     per entry: sequence, batch, place in the batch, length, CRC, hashes of pid and dedup_id, set of queues
//! locator  magic, CRC, salt, offset of the footer, its length
//! ```

use std::collections::HashMap;
use std::io;

use bytes::BufMut;
use outhaul_event::DecodeError;
use outhaul_event::wire::{Reader, put_varint};
use smallvec::SmallVec;

use super::format::RecordHeader;
use super::segment::INDEX_STEP;
use crate::fs::File;
use crate::queue::QueueId;

const FOOTER_MAGIC: [u8; 4] = *b"OHF1";
const LOCATOR_MAGIC: [u8; 4] = *b"OHL1";
const HEAD: usize = 72;
pub(super) const LOCATOR: u64 = 32;
/// A footer that claims more is none: nothing is allocated for it.
const LENGTH_MAX: u64 = 1 << 28;

/// The smallest row.
const ROW_MIN: usize = 25;

type Set = SmallVec<[QueueId; 2]>;

/// What a queue has in a segment, settled or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Total {
    pub(crate) queue: QueueId,
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    /// The sequence of the entry before its first one here.
    pub(crate) previous: u64,
    /// Its last one here.
    pub(crate) last: u64,
}

/// Head and tables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Footer {
    pub(crate) first_sequence: u64,
    pub(crate) end_sequence: u64,
    pub(crate) end: u64,
    pub(crate) checkpoint: u64,
    pub(crate) totals: Vec<Total>,
    pub(crate) index: Vec<(u64, u64)>,
    sets: Vec<Set>,
    rows: u32,
    rows_length: u32,
    rows_crc: u32,
    rows_offset: u64,
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) sequence: u64,
    /// Where its batch starts in the file.
    pub(crate) batch: u64,
    /// Where its body starts in the batch, decompressed.
    pub(crate) start: u64,
    pub(crate) length: u64,
    pub(crate) crc: u32,
    pub(crate) pid_hash: u64,
    pub(crate) dedup_hash: u64,
    set: u32,
}

/// More rows than that are not kept in memory.
const ROWS_BYTES_MAX: usize = 8 << 20;

/// Collects the rows while a segment is written, or read front to back.
#[derive(Debug, Default)]
pub(crate) struct FooterBuilder {
    footer: Footer,
    bytes: Vec<u8>,
    by_set: HashMap<Set, u32>,
    last_set: u32,
    at: Cursor,
}

/// What a row is written relative to.
#[derive(Debug, Clone, Copy, Default)]
struct Cursor {
    sequence: u64,
    batch: u64,
    end: u64,
}

impl FooterBuilder {
    /// A batch begins; `first_sequence` is the one in its header.
    pub(crate) fn batch(&mut self, first_sequence: u64, offset: u64) {
        // What a damaged batch before this one held has its sequences still.
        self.footer.end_sequence = self.footer.end_sequence.max(first_sequence);
        let index = &mut self.footer.index;
        // Sequences grow with the offset, or the file makes no sense.
        if index.last().is_none_or(|&(before, last)| offset >= last + INDEX_STEP && first_sequence >= before)
        {
            index.push((first_sequence, offset));
        }
    }

    /// Whether this is a segment of very many small entries.
    pub(crate) fn is_large(&self) -> bool {
        self.bytes.len() > ROWS_BYTES_MAX
    }

    /// An entry of the batch; they come in ascending order.
    pub(crate) fn entry(&mut self, record: &RecordHeader, batch: u64, hashes: (u64, u64)) {
        self.footer.end_sequence = self.footer.end_sequence.max(record.sequence.saturating_add(1));
        if self.footer.rows > 0 && record.sequence <= self.at.sequence {
            return;
        }
        let index = self.set(record.targets.iter().map(|&(queue, _)| queue));
        for &(queue, gap) in &record.targets {
            self.total(queue, record, gap);
        }
        let same = batch == self.at.batch;
        let start = record.start as u64;
        put_varint(&mut self.bytes, record.sequence - self.at.sequence);
        put_varint(&mut self.bytes, batch - self.at.batch);
        put_varint(&mut self.bytes, start - if same { self.at.end } else { 0 });
        put_varint(&mut self.bytes, record.length as u64);
        self.bytes.put_u32_le(record.crc);
        self.bytes.put_u64_le(hashes.0);
        self.bytes.put_u64_le(hashes.1);
        put_varint(&mut self.bytes, index.into());
        self.at = Cursor { sequence: record.sequence, batch, end: start + record.length as u64 };
        self.footer.rows += 1;
    }

    fn set(&mut self, queues: impl Iterator<Item = QueueId> + Clone) -> u32 {
        // Mostly it is that of the entry before.
        let last = self.footer.sets.get(self.last_set as usize);
        if last.is_none_or(|last| !last.iter().copied().eq(queues.clone())) {
            let next = self.by_set.len() as u32;
            self.last_set = *self.by_set.entry(queues.collect()).or_insert_with_key(|set| {
                self.footer.sets.push(set.clone());
                next
            });
        }
        self.last_set
    }

    fn total(&mut self, queue: QueueId, record: &RecordHeader, gap: u64) {
        let totals = &mut self.footer.totals;
        let at = match totals.binary_search_by_key(&queue, |total| total.queue) {
            Ok(at) => at,
            Err(at) => {
                let previous = record.sequence.saturating_sub(gap);
                totals.insert(at, Total { queue, entries: 0, bytes: 0, previous, last: 0 });
                at
            }
        };
        totals[at].entries += 1;
        totals[at].bytes += record.length as u64;
        totals[at].last = record.sequence;
    }

    /// Head and tables of a segment, and the rows.
    pub(crate) fn finish(mut self, first_sequence: u64, end: u64) -> (Footer, Vec<u8>) {
        let footer = &mut self.footer;
        (footer.first_sequence, footer.end_sequence) =
            (first_sequence, footer.end_sequence.max(first_sequence));
        footer.end = end;
        footer.rows_length = self.bytes.len() as u32;
        footer.rows_crc = crc32c::crc32c(&self.bytes);
        (self.footer, self.bytes)
    }
}

impl Footer {
    fn tables(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for total in &self.totals {
            for field in [total.queue.into(), total.entries, total.bytes, total.previous, total.last] {
                put_varint(&mut out, field);
            }
        }
        for set in &self.sets {
            put_varint(&mut out, set.len() as u64);
            set.iter().for_each(|&queue| put_varint(&mut out, queue.into()));
        }
        let mut before = (0, 0);
        for &(sequence, offset) in &self.index {
            put_varint(&mut out, sequence - before.0);
            put_varint(&mut out, offset - before.1);
            before = (sequence, offset);
        }
        out
    }

    /// Writes the footer behind the batches, and the locator at the end of the file; not synced.
    pub(crate) fn write(&self, rows: &[u8], salt: u64, file: &dyn File) -> io::Result<()> {
        let tables = self.tables();
        let mut out = Vec::with_capacity(HEAD + tables.len() + rows.len() + LOCATOR as usize);
        out.put_slice(&FOOTER_MAGIC);
        out.put_u32_le(0);
        for field in [salt, self.first_sequence, self.end_sequence, self.end, self.checkpoint] {
            out.put_u64_le(field);
        }
        let counts = [self.totals.len(), self.sets.len(), self.index.len(), tables.len()];
        counts.into_iter().for_each(|count| out.put_u32_le(count as u32));
        for field in [self.rows, self.rows_length] {
            out.put_u32_le(field);
        }
        debug_assert_eq!(out.len(), HEAD);
        out.put_slice(&tables);
        out.put_u32_le(self.rows_crc);
        let crc = crc32c::crc32c(&out[8..]);
        out[4..8].copy_from_slice(&crc.to_le_bytes());
        out.put_slice(rows);
        let length = out.len() as u64;
        let locator = locator(salt, self.end, length);
        let file_length = file.len()?;
        if self.end + length + LOCATOR > file_length {
            out.put_slice(&locator);
            return file.write_at(&out, self.end);
        }
        file.write_at(&out, self.end)?;
        file.write_at(&locator, file_length - LOCATOR)
    }

    /// Reads head and tables of a segment with this salt; None if there are none that verify.
    pub(crate) fn read(file: &dyn File, salt: u64, file_length: u64) -> io::Result<Option<Self>> {
        let mut bytes = [0; LOCATOR as usize];
        let Some(at) = file_length.checked_sub(LOCATOR) else { return Ok(None) };
        if file.read_at(&mut bytes, at)? < bytes.len() {
            return Ok(None);
        }
        let Some((offset, length)) = read_locator(&bytes, salt) else { return Ok(None) };
        if offset.checked_add(length).is_none_or(|end| end > file_length) {
            return Ok(None);
        }
        let mut head = [0; HEAD];
        if file.read_at(&mut head, offset)? < HEAD {
            return Ok(None);
        }
        let tables_length = u64::from(u32::from_le_bytes([head[60], head[61], head[62], head[63]]));
        if HEAD as u64 + tables_length + 4 > length {
            return Ok(None);
        }
        let mut all = vec![0; HEAD + tables_length as usize + 4];
        let read = file.read_at(&mut all, offset)?;
        let crc = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        if read < all.len() || head[..4] != FOOTER_MAGIC || crc32c::crc32c(&all[8..]) != crc {
            return Ok(None);
        }
        Ok(Self::decode(&all, salt, offset).ok().filter(|footer| footer.end == offset))
    }

    /// Where the footer in a file, if there is one, does not say what its records say: offset and length.
    pub(crate) fn damaged(
        file: &dyn File,
        salt: u64,
        file_length: u64,
        derived: &Self,
    ) -> Option<(u64, u64)> {
        let mut bytes = [0; LOCATOR as usize];
        let at = file_length.saturating_sub(LOCATOR);
        let located = file.read_at(&mut bytes, at).is_ok() && read_locator(&bytes, salt).is_some();
        if !located {
            // It may never have been written, or not to its end: the place then has what was there before, which is
            // zeros or the locator of an earlier life.
            let mut head = [0; 16];
            let read = file.read_at(&mut head, derived.end).unwrap_or(0);
            let begun = read == head.len() && head[..4] == FOOTER_MAGIC && head[8..] == salt.to_le_bytes();
            let before = bytes.iter().all(|&byte| byte == 0) || any_locator(&bytes).is_some();
            let written = derived.end < at && (begun && !before || bytes[8..16] == salt.to_le_bytes());
            return written.then_some((at, LOCATOR));
        }
        let place = (derived.end, file_length.saturating_sub(derived.end));
        let Ok(Some(footer)) = Self::read(file, salt, file_length) else { return Some(place) };
        let Self { checkpoint, rows_offset, .. } = footer;
        let derived = Self { checkpoint, rows_offset, ..derived.clone() };
        let same = footer == derived && matches!(footer.rows(file), Ok(Some(_)));
        (!same).then_some(place)
    }

    /// `bytes` are head, tables and the CRC of the rows.
    pub(crate) fn decode(bytes: &[u8], salt: u64, offset: u64) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        reader.take(8)?;
        if reader.u64()? != salt {
            return Err(DecodeError::Impossible(8));
        }
        let mut footer = Self {
            first_sequence: reader.u64()?,
            end_sequence: reader.u64()?,
            end: reader.u64()?,
            checkpoint: reader.u64()?,
            ..Self::default()
        };
        let (totals, sets, index) = (reader.u32()?, reader.u32()?, reader.u32()?);
        reader.u32()?;
        (footer.rows, footer.rows_length) = (reader.u32()?, reader.u32()?);
        for _ in 0..totals {
            let at = reader.position();
            let queue = reader.varint()?.try_into().map_err(|_| DecodeError::Impossible(at))?;
            let (entries, bytes) = (reader.varint()?, reader.varint()?);
            let (previous, last) = (reader.varint()?, reader.varint()?);
            footer.totals.push(Total { queue, entries, bytes, previous, last });
        }
        for _ in 0..sets {
            let mut set = Set::new();
            for _ in 0..reader.varint()? {
                let at = reader.position();
                set.push(reader.varint()?.try_into().map_err(|_| DecodeError::Impossible(at))?);
            }
            footer.sets.push(set);
        }
        let mut before = (0_u64, 0_u64);
        for _ in 0..index {
            let at = reader.position();
            let next = (before.0.checked_add(reader.varint()?), before.1.checked_add(reader.varint()?));
            let (Some(sequence), Some(offset)) = next else { return Err(DecodeError::Impossible(at)) };
            before = (sequence, offset);
            footer.index.push(before);
        }
        footer.rows_offset = offset + reader.position() as u64 + 4;
        footer.rows_crc = reader.u32()?;
        match reader.is_at_end() {
            true => Ok(footer),
            false => Err(DecodeError::Impossible(reader.position())),
        }
    }

    /// The rows; None if they do not verify.
    pub(crate) fn rows(&self, file: &dyn File) -> io::Result<Option<Vec<Row>>> {
        if self.rows_offset.saturating_add(self.rows_length.into()) > file.len()? {
            return Ok(None);
        }
        let mut bytes = vec![0; self.rows_length as usize];
        let read = file.read_at(&mut bytes, self.rows_offset)?;
        if read < bytes.len() || crc32c::crc32c(&bytes) != self.rows_crc {
            return Ok(None);
        }
        Ok(self.decode_rows(&bytes).ok())
    }

    pub(crate) fn decode_rows(&self, bytes: &[u8]) -> Result<Vec<Row>, DecodeError> {
        let mut reader = Reader::new(bytes);
        let mut at = Cursor::default();
        let mut rows = Vec::with_capacity((self.rows as usize).min(bytes.len() / ROW_MIN));
        for _ in 0..self.rows {
            let position = reader.position();
            let impossible = || DecodeError::Impossible(position);
            let sequence = at.sequence.checked_add(reader.varint()?).ok_or_else(impossible)?;
            let batch = at.batch.checked_add(reader.varint()?).ok_or_else(impossible)?;
            let from = if batch == at.batch { at.end } else { 0 };
            let start = from.checked_add(reader.varint()?).ok_or_else(impossible)?;
            let length = reader.varint()?;
            let (crc, pid_hash, dedup_hash) = (reader.u32()?, reader.u64()?, reader.u64()?);
            let set = reader.varint()?.try_into().map_err(|_| impossible())?;
            if set as usize >= self.sets.len() {
                return Err(impossible());
            }
            at = Cursor { sequence, batch, end: start.checked_add(length).ok_or_else(impossible)? };
            rows.push(Row { sequence, batch, start, length, crc, pid_hash, dedup_hash, set });
        }
        if reader.is_at_end() { Ok(rows) } else { Err(DecodeError::Impossible(reader.position())) }
    }

    /// The queues that an entry was for.
    pub(crate) fn queues(&self, row: &Row) -> &[QueueId] {
        &self.sets[row.set as usize]
    }
}

fn locator(salt: u64, offset: u64, length: u64) -> [u8; LOCATOR as usize] {
    let mut out = Vec::with_capacity(LOCATOR as usize);
    out.put_slice(&LOCATOR_MAGIC);
    out.put_u32_le(0);
    [salt, offset, length].into_iter().for_each(|field| out.put_u64_le(field));
    let crc = crc32c::crc32c(&out[8..]);
    out[4..8].copy_from_slice(&crc.to_le_bytes());
    let mut array = [0; LOCATOR as usize];
    array.copy_from_slice(&out);
    array
}

fn read_locator(bytes: &[u8; LOCATOR as usize], salt: u64) -> Option<(u64, u64)> {
    let (found, offset, length) = any_locator(bytes)?;
    (found == salt).then_some((offset, length))
}

/// The salt, offset and length in a locator.
fn any_locator(bytes: &[u8; LOCATOR as usize]) -> Option<(u64, u64, u64)> {
    let mut reader = Reader::new(&bytes[4..]);
    let crc = reader.u32().ok()?;
    let valid = bytes[..4] == LOCATOR_MAGIC && crc32c::crc32c(&bytes[8..]) == crc;
    let mut field = || reader.u64().ok();
    let (found, offset, length) = (field()?, field()?, field()?);
    (valid && length <= LENGTH_MAX).then_some((found, offset, length))
}
