//! The bytes of a segment: headers, batches, records. Bytes in, bytes out, no I/O. `docs/journal-format.md` tells the
//! same for readers of other languages.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::{BufMut, Bytes};
use outhaul_event::DedupId;
use outhaul_event::wire::{Reader, put_bytes, put_varint};
use outhaul_event::{DecodeError, Event, fnv1a64};
use smallvec::SmallVec;

use crate::log::{RetryState, pid_hash};
use crate::queue::{QueueId, Runs};

/// The version of everything in this file.
pub(crate) const FORMAT: u32 = 2;
/// The oldest version that is read.
pub(crate) const FORMAT_MIN: u32 = 0;
pub(crate) const SEGMENT_HEADER: u64 = 64;
pub(crate) const BATCH_HEADER: usize = 48;
pub(crate) const BATCH_MAGIC: [u8; 4] = *b"OHB0";
const SEGMENT_MAGIC: [u8; 8] = *b"OUTHAULJ";
/// A batch that claims more is no batch: nothing is allocated for it.
const PART_MAX: u32 = 1 << 28;

/// The segment was made of the waiting entries of older ones, which it replaces.
const SEGMENT_MERGED: u32 = 1;

/// The first 64 bytes of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) format: u32,
    pub(crate) merged: bool,
    pub(crate) number: u64,
    /// Random for each life of a file: bytes of an earlier life never read as valid.
    pub(crate) salt: u64,
    /// The log's position of the file's first byte.
    pub(crate) base: u64,
    pub(crate) first_sequence: u64,
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> [u8; SEGMENT_HEADER as usize] {
        let mut out = Vec::with_capacity(SEGMENT_HEADER as usize);
        out.put_slice(&SEGMENT_MAGIC);
        out.put_u32_le(self.format);
        out.put_u32_le(u32::from(self.merged) * SEGMENT_MERGED);
        for field in [self.number, self.salt, self.base, self.first_sequence] {
            out.put_u64_le(field);
        }
        out.resize(60, 0);
        out.put_u32_le(crc32c::crc32c(&out));
        let mut array = [0; SEGMENT_HEADER as usize];
        array.copy_from_slice(&out);
        array
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, crc) = bytes.get(..SEGMENT_HEADER as usize)?.split_at(60);
        if crc32c::crc32c(head).to_le_bytes() != *crc || head[..8] != SEGMENT_MAGIC {
            return None;
        }
        let mut reader = Reader::new(&head[8..]);
        let (format, flags) = (reader.u32().ok()?, reader.u32().ok()?);
        if !(FORMAT_MIN..=FORMAT).contains(&format) || flags & !SEGMENT_MERGED != 0 {
            return None;
        }
        let merged = flags & SEGMENT_MERGED != 0;
        let mut field = || reader.u64().ok();
        Some(Self {
            format,
            merged,
            number: field()?,
            salt: field()?,
            base: field()?,
            first_sequence: field()?,
        })
    }
}

/// The first 48 bytes of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchHeader {
    pub(crate) salt: u64,
    /// Everything in the log before this position was durable when the batch was written.
    pub(crate) synced_to: u64,
    pub(crate) first_sequence: u64,
    pub(crate) meta_length: u32,
    pub(crate) body_length: u32,
    pub(crate) records: u32,
    pub(crate) flags: u32,
    crc: u32,
}

/// The batch stands where something unreadable was; its body means nothing.
pub(crate) const FLAG_HOLE: u32 = 1;
/// The log was closed in order behind this batch.
pub(crate) const FLAG_CLEAN: u32 = 2;
/// The bodies are one Snappy block.
pub(crate) const FLAG_COMPRESSED: u32 = 4;

impl BatchHeader {
    /// A batch that covers `length` bytes of rubbish.
    pub(crate) fn hole(salt: u64, first_sequence: u64, length: u32) -> [u8; BATCH_HEADER] {
        let body_length = length - BATCH_HEADER as u32;
        let header = Self {
            salt,
            synced_to: 0,
            first_sequence,
            meta_length: 0,
            body_length,
            records: 0,
            flags: FLAG_HOLE,
            crc: 0,
        };
        header.encode(&[])
    }

    fn encode(&self, meta: &[u8]) -> [u8; BATCH_HEADER] {
        let mut out = Vec::with_capacity(BATCH_HEADER);
        out.put_slice(&BATCH_MAGIC);
        out.put_u32_le(0);
        for field in [self.salt, self.synced_to, self.first_sequence] {
            out.put_u64_le(field);
        }
        for field in [self.meta_length, self.body_length, self.records, self.flags] {
            out.put_u32_le(field);
        }
        let crc = crc32c::crc32c_append(crc32c::crc32c(&out[8..]), meta);
        out[4..8].copy_from_slice(&crc.to_le_bytes());
        let mut array = [0; BATCH_HEADER];
        array.copy_from_slice(&out);
        array
    }

    /// Reads a header; the checksum is [`verify`](Self::verify)'s business. None if it is none of this segment.
    pub(crate) fn decode(bytes: &[u8], salt: Option<u64>) -> Option<Self> {
        let bytes = bytes.get(..BATCH_HEADER)?;
        if bytes[..4] != BATCH_MAGIC {
            return None;
        }
        let mut reader = Reader::new(&bytes[4..]);
        let crc = reader.u32().ok()?;
        let header = Self {
            salt: reader.u64().ok()?,
            synced_to: reader.u64().ok()?,
            first_sequence: reader.u64().ok()?,
            meta_length: reader.u32().ok()?,
            body_length: reader.u32().ok()?,
            records: reader.u32().ok()?,
            flags: reader.u32().ok()?,
            crc,
        };
        let plausible = header.meta_length <= PART_MAX
            && header.body_length <= PART_MAX
            && header.records <= header.meta_length
            && salt.is_none_or(|salt| salt == header.salt);
        plausible.then_some(header)
    }

    /// Whether header and meta are what was written. `bytes` starts at the batch.
    pub(crate) fn verify(&self, bytes: &[u8]) -> bool {
        bytes.get(8..BATCH_HEADER + self.meta_length as usize).map(crc32c::crc32c) == Some(self.crc)
    }

    pub(crate) fn length(&self) -> u64 {
        BATCH_HEADER as u64 + u64::from(self.meta_length) + u64::from(self.body_length)
    }
}

/// What a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Event = 1,
    Queue = 2,
    Settled = 3,
    Retry = 4,
    Checkpoint = 5,
    Input = 6,
    Epoch = 7,
    /// A segment that goes.
    Removed = 8,
    /// An event that was moved out of an older segment.
    Moved = 9,
    InFlight = 10,
    /// A queue that goes.
    Dropped = 11,
    /// Which segments this one replaces.
    Merged = 12,
}

impl Kind {
    fn decode(byte: u8) -> Option<Self> {
        use Kind::*;
        const ALL: [Kind; 12] = [
            Event, Queue, Settled, Retry, Checkpoint, Input, Epoch, Removed, Moved, InFlight, Dropped, Merged,
        ];
        ALL.into_iter().find(|kind| *kind as u8 == byte)
    }

    pub(crate) fn is_entry(self) -> bool {
        matches!(self, Self::Event | Self::Moved)
    }
}

/// A record's header, from the meta part of its batch.
#[derive(Debug, Clone)]
pub(crate) struct RecordHeader {
    pub(crate) kind: Kind,
    /// Of an event; for other records that of the next event.
    pub(crate) sequence: u64,
    /// Where the body starts, from the start of the batch.
    pub(crate) start: usize,
    pub(crate) length: usize,
    pub(crate) crc: u32,
    /// Of an event: its queues, each with the distance to the entry before it there.
    pub(crate) targets: Targets,
}

pub(crate) type Targets = SmallVec<[(QueueId, u64); 2]>;

impl RecordHeader {
    /// The body, if it is what was written. `batch` starts at the batch.
    pub(crate) fn body<'a>(&self, batch: &'a [u8]) -> Option<&'a [u8]> {
        let body = self.raw(batch)?;
        (crc32c::crc32c(body) == self.crc).then_some(body)
    }

    /// The bytes where the body should be; None if the batch could not be decompressed.
    pub(crate) fn raw<'a>(&self, batch: &'a [u8]) -> Option<&'a [u8]> {
        batch.get(self.start..self.start + self.length)
    }

    /// The sequence of the entry before this one in a queue; None if it is not in that queue.
    pub(crate) fn previous(&self, queue: QueueId) -> Option<u64> {
        let gap = self.targets.iter().find(|(id, _)| *id == queue)?.1;
        Some(self.sequence.saturating_sub(gap))
    }
}

/// Reads the record headers of a verified batch. `batch` starts at the batch and holds at least header and meta.
pub(crate) fn records(header: &BatchHeader, batch: &[u8]) -> Result<Vec<RecordHeader>, DecodeError> {
    let meta_end = BATCH_HEADER + header.meta_length as usize;
    let mut reader = Reader::new(&batch[BATCH_HEADER..meta_end]);
    // The smallest record header has 6 bytes.
    let mut records = Vec::with_capacity(header.records.min(header.meta_length / 6 + 1) as usize);
    let (mut start, mut sequence) = (meta_end, header.first_sequence);
    for _ in 0..header.records {
        let at = reader.position();
        let kind = Kind::decode(reader.u8()?).ok_or(DecodeError::Impossible(at))?;
        let length = reader.varint()? as usize;
        let crc = reader.u32()?;
        let mut targets = Targets::new();
        if kind == Kind::Moved {
            sequence = sequence.saturating_add(reader.varint()?);
        }
        if kind.is_entry() {
            for _ in 0..reader.varint()? {
                let queue = QueueId::try_from(reader.varint()?).map_err(|_| DecodeError::Impossible(at))?;
                targets.push((queue, reader.varint()?));
            }
        }
        records.push(RecordHeader { kind, sequence, start, length, crc, targets });
        start = start.checked_add(length).ok_or(DecodeError::Impossible(at))?;
        sequence = sequence.saturating_add(u64::from(kind.is_entry()));
    }
    let whole = header.flags & FLAG_COMPRESSED != 0 || start as u64 == header.length();
    if !whole || !reader.is_at_end() {
        return Err(DecodeError::Impossible(reader.position()));
    }
    Ok(records)
}

/// Collects the records of one batch: first those that are no entries, whose bodies it keeps, then entries, whose
/// bodies stay where they are.
#[derive(Debug, Default)]
pub(crate) struct BatchBuilder {
    meta: Vec<u8>,
    control: Vec<u8>,
    entry_bytes: usize,
    records: u32,
}

impl BatchBuilder {
    pub(crate) fn clear(&mut self) {
        self.meta.clear();
        self.control.clear();
        (self.entry_bytes, self.records) = (0, 0);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records == 0
    }

    pub(crate) fn length(&self) -> u64 {
        (self.entries_start() + self.entry_bytes) as u64
    }

    /// Where the body of the first entry starts.
    pub(crate) fn entries_start(&self) -> usize {
        BATCH_HEADER + self.meta.len() + self.control.len()
    }

    /// Adds a record whose body `write` appends.
    pub(crate) fn add(&mut self, kind: Kind, write: impl FnOnce(&mut Vec<u8>)) {
        debug_assert!(self.entry_bytes == 0, "entries come last");
        let start = self.control.len();
        write(&mut self.control);
        let body = &self.control[start..];
        let (length, crc) = (body.len(), crc32c::crc32c(body));
        self.put_header(kind, length, crc);
    }

    /// Adds an event that takes the next sequence.
    pub(crate) fn add_event(&mut self, length: usize, crc: u32, targets: &[(QueueId, u64)]) {
        self.put_header(Kind::Event, length, crc);
        self.put_targets(length, targets);
    }

    /// Adds an event that keeps its sequence: as many are passed over before it.
    pub(crate) fn add_moved(&mut self, skipped: u64, record: &RecordHeader, targets: &[(QueueId, u64)]) {
        self.put_header(Kind::Moved, record.length, record.crc);
        put_varint(&mut self.meta, skipped);
        self.put_targets(record.length, targets);
    }

    fn put_header(&mut self, kind: Kind, length: usize, crc: u32) {
        self.meta.put_u8(kind as u8);
        put_varint(&mut self.meta, length as u64);
        self.meta.put_u32_le(crc);
        self.records += 1;
    }

    fn put_targets(&mut self, length: usize, targets: &[(QueueId, u64)]) {
        put_varint(&mut self.meta, targets.len() as u64);
        for &(queue, gap) in targets {
            put_varint(&mut self.meta, queue.into());
            put_varint(&mut self.meta, gap);
        }
        self.entry_bytes += length;
    }

    /// Appends everything but the bodies of the entries, which follow it as they are.
    pub(crate) fn head(&self, mark: Mark, out: &mut Vec<u8>) {
        let body_length = (self.control.len() + self.entry_bytes) as u32;
        out.put_slice(&self.header(mark, body_length).encode(&self.meta));
        out.put_slice(&self.meta);
        out.put_slice(&self.control);
    }

    /// Appends the whole batch, compressed; false, and nothing, if that saves less than an eighth.
    pub(crate) fn compressed<'a>(
        &self,
        mark: Mark,
        bodies: impl Iterator<Item = &'a [u8]>,
        out: &mut Vec<u8>,
    ) -> bool {
        let mut plain = Vec::with_capacity(self.control.len() + self.entry_bytes);
        plain.extend_from_slice(&self.control);
        bodies.for_each(|body| plain.extend_from_slice(body));
        let Ok(packed) = snap::raw::Encoder::new().compress_vec(&plain) else { return false };
        if packed.len() > plain.len() - plain.len() / 8 {
            return false;
        }
        let mark = Mark { flags: mark.flags | FLAG_COMPRESSED, ..mark };
        out.put_slice(&self.header(mark, packed.len() as u32).encode(&self.meta));
        out.put_slice(&self.meta);
        out.put_slice(&packed);
        true
    }

    fn header(&self, mark: Mark, body_length: u32) -> BatchHeader {
        BatchHeader {
            salt: mark.salt,
            synced_to: mark.synced_to,
            first_sequence: mark.first_sequence,
            meta_length: self.meta.len() as u32,
            body_length,
            records: self.records,
            flags: mark.flags,
            crc: 0,
        }
    }
}

/// Where a batch stands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark {
    pub(crate) salt: u64,
    pub(crate) synced_to: u64,
    pub(crate) first_sequence: u64,
    pub(crate) flags: u32,
}

/// The bodies of a batch that is compressed; None if they are damaged. `batch` starts at the batch.
pub(crate) fn decompress(header: &BatchHeader, batch: &[u8]) -> Option<Vec<u8>> {
    let (head, packed) = batch.split_at_checked(BATCH_HEADER + header.meta_length as usize)?;
    // Three bytes say at most 64: whatever claims much more is no block, and nothing is allocated for it.
    let most = packed.len().saturating_mul(32).min(PART_MAX as usize);
    let length = snap::raw::decompress_len(packed).ok().filter(|&length| length <= most)?;
    let mut plain = head.to_vec();
    plain.resize(head.len() + length, 0);
    snap::raw::Decoder::new().decompress(packed, &mut plain[head.len()..]).ok()?;
    Some(plain)
}

/// The body of an event's record, to be written.
pub(crate) struct EventRecord<'a> {
    pub(crate) dedup_id: DedupId,
    pub(crate) admitted_ms: u64,
    pub(crate) position: Option<u64>,
    pub(crate) requeue_of: Option<u64>,
    pub(crate) attachment: &'a [u8],
    pub(crate) event: &'a Event,
}

const HAS_POSITION: u8 = 1;
const HAS_ATTACHMENT: u8 = 2;
const HAS_REQUEUE: u8 = 4;

impl EventRecord<'_> {
    /// All but the event's body, which is the end of the record's.
    pub(crate) fn encode_head(&self, out: &mut Vec<u8>) {
        out.put_slice(&self.dedup_id.to_bytes());
        out.put_u64_le(self.admitted_ms);
        let attached = !self.attachment.is_empty();
        out.put_u8(
            (u8::from(self.position.is_some()) * HAS_POSITION)
                | (u8::from(attached) * HAS_ATTACHMENT)
                | (u8::from(self.requeue_of.is_some()) * HAS_REQUEUE),
        );
        if let Some(position) = self.position {
            put_varint(out, position);
        }
        if attached {
            put_bytes(out, self.attachment);
        }
        if let Some(sequence) = self.requeue_of {
            put_varint(out, sequence);
        }
        self.event.encode_attributes(out);
    }

    /// Hashes of the pid (0 without one) and of the `dedup_id`.
    pub(crate) fn hashes(&self) -> (u64, u64) {
        (pid_hash(self.event).unwrap_or(0), fnv1a64(&self.dedup_id.to_bytes()))
    }
}

/// The body of an event's record as it was read; the event itself is still encoded.
pub(crate) struct StoredEvent {
    pub(crate) dedup_id: DedupId,
    pub(crate) admitted_at: SystemTime,
    pub(crate) requeue_of: Option<u64>,
    pub(crate) attachment: Bytes,
    pub(crate) event: Bytes,
}

impl StoredEvent {
    pub(crate) fn decode(body: &Bytes) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let dedup_id = DedupId::from_bytes(reader.array()?);
        let admitted_at = from_millis(reader.u64()?);
        let flags = reader.u8()?;
        if flags & !(HAS_POSITION | HAS_ATTACHMENT | HAS_REQUEUE) != 0 {
            return Err(DecodeError::Impossible(reader.position() - 1));
        }
        if flags & HAS_POSITION != 0 {
            reader.varint()?;
        }
        let attachment = match flags & HAS_ATTACHMENT {
            0 => Bytes::new(),
            _ => body.slice_ref(reader.bytes()?),
        };
        let requeue_of = match flags & HAS_REQUEUE {
            0 => None,
            _ => Some(reader.varint()?),
        };
        Ok(Self { dedup_id, admitted_at, requeue_of, attachment, event: body.slice(reader.position()..) })
    }

    /// Hashes of the pid (0 without one) and of the `dedup_id`; None if the bytes are no entry.
    pub(crate) fn peek_hashes(body: &[u8]) -> Option<(u64, u64)> {
        let mut reader = Reader::new(body);
        let dedup_id = reader.take(16).ok()?;
        reader.u64().ok()?;
        let flags = reader.u8().ok()?;
        if flags & HAS_POSITION != 0 {
            reader.varint().ok()?;
        }
        if flags & HAS_ATTACHMENT != 0 {
            reader.bytes().ok()?;
        }
        if flags & HAS_REQUEUE != 0 {
            reader.varint().ok()?;
        }
        let pid = Event::peek_pid(&body[reader.position()..]).ok()?;
        Some((pid.map_or(0, |pid| fnv1a64(pid.as_bytes()).max(1)), fnv1a64(dedup_id)))
    }

    /// The position alone.
    pub(crate) fn peek_position(body: &[u8]) -> Option<u64> {
        let mut reader = Reader::new(body);
        reader.take(24).ok()?;
        if reader.u8().ok()? & HAS_POSITION == 0 {
            return None;
        }
        reader.varint().ok()
    }
}

pub(crate) fn put_queue(out: &mut Vec<u8>, id: QueueId, name: &str, label: &str) {
    put_varint(out, id.into());
    put_bytes(out, name.as_bytes());
    put_bytes(out, label.as_bytes());
}

pub(crate) fn put_runs(out: &mut Vec<u8>, runs: &Runs) {
    put_varint(out, runs.iter().len() as u64);
    for (first, last) in runs.iter() {
        put_varint(out, first);
        put_varint(out, last - first);
    }
}

pub(crate) fn read_runs(reader: &mut Reader<'_>) -> Result<Runs, DecodeError> {
    let mut runs = Runs::default();
    for _ in 0..reader.varint()? {
        let at = reader.position();
        let (first, more) = (reader.varint()?, reader.varint()?);
        runs.insert(first, first.checked_add(more).ok_or(DecodeError::Impossible(at))?);
    }
    Ok(runs)
}

pub(crate) fn put_sequences(out: &mut Vec<u8>, sequences: &[u64]) {
    put_varint(out, sequences.len() as u64);
    for &sequence in sequences {
        put_varint(out, sequence);
    }
}

pub(crate) fn read_sequences(reader: &mut Reader<'_>) -> Result<Vec<u64>, DecodeError> {
    let mut sequences = Vec::new();
    for _ in 0..reader.varint()? {
        sequences.push(reader.varint()?);
    }
    Ok(sequences)
}

pub(crate) fn put_retry(out: &mut Vec<u8>, sequence: u64, state: RetryState) {
    put_varint(out, sequence);
    put_varint(out, state.attempts.into());
    put_varint(out, to_millis(state.not_before));
}

pub(crate) fn read_retry(reader: &mut Reader<'_>) -> Result<(u64, RetryState), DecodeError> {
    let sequence = reader.varint()?;
    let attempts = u32::try_from(reader.varint()?).unwrap_or(u32::MAX);
    Ok((sequence, RetryState { attempts, not_before: from_millis(reader.varint()?) }))
}

/// Milliseconds since 1970; earlier is 0.
pub(crate) fn to_millis(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The inverse; what the clock cannot express is its start.
pub(crate) fn from_millis(millis: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_millis(millis)).unwrap_or(UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch() -> Vec<u8> {
        let event = Event::builder("t", "/s").id("1").pid("p").json("{}").build().unwrap();
        let record = EventRecord {
            dedup_id: event.dedup_id(),
            admitted_ms: 7,
            position: Some(300),
            requeue_of: Some(70_000),
            attachment: b"note",
            event: &event,
        };
        let mut body = Vec::new();
        record.encode_head(&mut body);
        body.extend_from_slice(event.body());
        assert_eq!(StoredEvent::peek_hashes(&body), Some(record.hashes()));
        let mut builder = BatchBuilder::default();
        builder.add(Kind::Queue, |out| put_queue(out, 0, "a", ""));
        builder.add_event(body.len(), crc32c::crc32c(&body), &[(0, 1), (1, 300)]);
        let mut out = Vec::new();
        builder.head(Mark { salt: 9, synced_to: 64, first_sequence: 5, flags: 0 }, &mut out);
        out.extend_from_slice(&body);
        out
    }

    #[test]
    fn a_batch_is_read_back() {
        let bytes = batch();
        let header = BatchHeader::decode(&bytes, Some(9)).unwrap();
        assert!(header.verify(&bytes));
        assert_eq!(header.length(), bytes.len() as u64);
        let records = records(&header, &bytes).unwrap();
        assert_eq!((records[1].kind, records[1].sequence, records[1].previous(1)), (Kind::Event, 5, Some(0)));
        let body = Bytes::copy_from_slice(records[1].body(&bytes).unwrap());
        let stored = StoredEvent::decode(&body).unwrap();
        assert_eq!(&stored.attachment[..], b"note");
        assert_eq!(StoredEvent::peek_position(&body), Some(300));
        assert_eq!(Event::decode(&stored.event).unwrap().pid(), Some("p"));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let good = batch();
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let intact = BatchHeader::decode(&bytes, Some(9)).filter(|h| h.verify(&bytes)).is_some_and(|h| {
                records(&h, &bytes).is_ok_and(|all| all.iter().all(|r| r.body(&bytes).is_some()))
            });
            assert!(!intact, "bit {bit}");
        }
    }

    #[test]
    fn a_segment_header_is_read_back_and_flipped_bits_are_noticed() {
        let header =
            SegmentHeader { format: FORMAT, merged: true, number: 1, salt: 2, base: 3, first_sequence: 4 };
        let bytes = header.encode();
        assert_eq!(SegmentHeader::decode(&bytes), Some(header));
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SegmentHeader::decode(&bytes), None);
        }
    }
}
