//! Reading one segment front to back at open, every checksum verified: what its footer would say, the records that
//! are no entries, and what is damaged.

use std::io;

use outhaul_event::DecodeError;
use outhaul_event::wire::{Reader, put_varint};

use super::checkpoint::Checkpoint;
use super::footer::{Footer, FooterBuilder};
use super::format::{
    self, BATCH_HEADER, BatchHeader, FLAG_CLEAN, FLAG_COMPRESSED, FLAG_HOLE, Kind, RecordHeader,
    SEGMENT_HEADER, StoredEvent,
};
use super::scan::{Scanner, Step, unreadable};
use super::segment::Segment;
use crate::fs::File;

/// A stretch that should have been readable.
#[derive(Debug)]
pub(super) struct Bad {
    pub(super) offset: u64,
    pub(super) end: u64,
    pub(super) reason: &'static str,
    /// The disk cannot read it, so nobody knows whether it is damaged: it stays as it is.
    pub(super) unreadable: bool,
}

/// A record that is no entry, or the position that an entry carries.
#[derive(Debug)]
pub(super) enum Control {
    Record(Kind, Vec<u8>),
    Position(u64),
}

#[derive(Debug, Default)]
pub(super) struct Survey {
    pub(super) footer: Footer,
    /// The footer's rows, encoded.
    pub(super) rows: Vec<u8>,
    pub(super) control: Vec<Control>,
    pub(super) bad: Vec<Bad>,
    /// Records in valid batches whose own bytes do not verify; those that are entries are read as unreadable.
    pub(super) broken: Vec<Broken>,
    pub(super) clean: bool,
    /// The disk could not read all of it: what is missing may be there another time.
    pub(super) unreadable: bool,
}

impl Survey {
    /// Whether nothing in it is damaged.
    pub(super) fn is_sound(&self) -> bool {
        self.bad.is_empty() && self.broken.is_empty()
    }
}

#[derive(Debug)]
pub(super) struct Broken {
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) kind: Kind,
    pub(super) sequence: u64,
}

const UNREADABLE: &str = "the disk cannot read it; nothing is known of it before it can";

/// Where the newest segment ends.
#[derive(Debug, Default)]
pub(super) struct Cut {
    pub(super) end: u64,
    /// Everything before this was durable when something behind it was written.
    pub(super) confirmed: u64,
    /// Bytes of a write that was not finished.
    pub(super) torn: u64,
    /// Valid batches behind it, which never were acknowledged: they must not read as valid later.
    pub(super) stale: Vec<u64>,
    /// The disk could not read all of it, so the end is a guess.
    pub(super) unreadable: bool,
}

/// Finds the end of the segment that was written to last: the highest `synced_to` divides damage from what was never
/// acknowledged.
pub(super) fn find_end(file: &dyn File, segment: &Segment, length: u64) -> io::Result<Cut> {
    let mut scanner = Scanner::new(file, Some(segment.salt), SEGMENT_HEADER, length);
    let (mut steps, mut synced, mut torn_tail) = (Vec::new(), 0, 0);
    let end = loop {
        match scanner.step()? {
            Step::Batch { offset, header } => {
                synced = synced.max(header.synced_to);
                steps.push((offset, offset + header.length(), header.flags & FLAG_HOLE != 0, true));
            }
            Step::Bad { offset, end } => steps.push((offset, end, false, false)),
            Step::End { offset } => break offset,
            Step::Tail { offset, torn } => {
                torn_tail = if torn { torn_length(file, offset, length)? } else { 0 };
                break offset;
            }
        }
    };
    let confirmed = synced.saturating_sub(segment.base);
    let mut unreadable = scanner.met_unreadable();
    for (at, &(offset, after, hole, valid)) in steps.iter().enumerate() {
        if segment.base + offset < synced
            || hole
            || (valid && is_whole(file, segment, offset, after, &mut unreadable)?)
        {
            continue;
        }
        let stale = steps[at + 1..].iter().filter(|step| step.3).map(|step| step.0).collect();
        return Ok(Cut { end: offset, confirmed, torn: end - offset + torn_tail, stale, unreadable });
    }
    Ok(Cut { end, confirmed, torn: torn_tail, stale: Vec::new(), unreadable })
}

/// How much of a write is there that has a beginning and no end.
fn torn_length(file: &dyn File, offset: u64, length: u64) -> io::Result<u64> {
    let mut head = [0; BATCH_HEADER];
    let read = file.read_at(&mut head, offset)?;
    let header = BatchHeader::decode(&head[..read], None);
    Ok(header.map_or(0, |header| header.length().min(length - offset)))
}

fn is_whole(
    file: &dyn File,
    segment: &Segment,
    offset: u64,
    end: u64,
    unreadable: &mut bool,
) -> io::Result<bool> {
    let mut scanner = Scanner::new(file, Some(segment.salt), offset, end);
    let step = scanner.step()?;
    *unreadable |= scanner.met_unreadable();
    let Step::Batch { header, .. } = step else { return Ok(false) };
    let batch = scanner.batch();
    Ok(format::records(&header, batch)
        .is_ok_and(|records| records.iter().all(|record| record.body(batch).is_some())))
}

/// Reads a segment up to where its bytes end; without that, up to its last valid batch. `file_length` bounds it.
pub(super) fn survey(
    file: &dyn File,
    segment: &Segment,
    end: Option<u64>,
    file_length: u64,
    mut step: impl FnMut(u64) -> bool,
) -> io::Result<Option<Survey>> {
    let mut out = Survey::default();
    let mut builder = FooterBuilder::default();
    let limit = end.unwrap_or(file_length);
    let mut scanner = Scanner::new(file, Some(segment.salt), SEGMENT_HEADER, limit);
    let reached = loop {
        match scanner.step()? {
            Step::Batch { header, offset } if header.flags & FLAG_HOLE != 0 => {
                if !step(offset) {
                    return Ok(None);
                }
            }
            Step::Batch { offset, header } => {
                if !step(offset) {
                    return Ok(None);
                }
                out.clean = header.flags & FLAG_CLEAN != 0;
                builder.batch(header.first_sequence, offset);
                match format::records(&header, scanner.batch()) {
                    Ok(records) => {
                        for record in &records {
                            take(record, (offset, &header), scanner.batch(), &mut builder, &mut out);
                        }
                    }
                    Err(_) => {
                        let end = offset + header.length();
                        let reason = "a batch whose records make no sense";
                        out.bad.push(Bad { offset, end, reason, unreadable: false });
                    }
                }
            }
            Step::Bad { offset, end } => {
                let (reason, unreadable) = match scanner.is_unreadable(offset, end) {
                    true => (UNREADABLE, true),
                    false => ("bytes that are no batch", false),
                };
                out.bad.push(Bad { offset, end, reason, unreadable });
            }
            Step::End { offset } => break offset,
            Step::Tail { offset, .. } => break offset,
        }
    };
    if let Some(end) = end.filter(|&end| end > reached) {
        // One stretch, whatever of it is there: no batch is shorter than what can be made a hole.
        let unreadable = scanner.is_unreadable(reached, limit);
        let reason = match end > file_length {
            _ if unreadable => UNREADABLE,
            true => "the file is shorter than what was written to it",
            false => "bytes that are no batch, at the end of a sealed file",
        };
        out.bad.push(Bad { offset: reached, end, reason, unreadable });
    }
    if reached == limit && limit > file_length {
        let reason = "the file is shorter than what was written to it";
        out.bad.push(Bad { offset: file_length, end: limit, reason, unreadable: false });
    }
    out.unreadable = scanner.met_unreadable();
    let end = end.unwrap_or(reached);
    (out.footer, out.rows) = builder.finish(segment.first_sequence, end);
    Ok(Some(out))
}

/// A control record whose body is damaged is passed over: the worst that follows is a repeated delivery.
fn take(
    record: &RecordHeader,
    (offset, header): (u64, &BatchHeader),
    batch: &[u8],
    builder: &mut FooterBuilder,
    out: &mut Survey,
) {
    let body = record.body(batch);
    if body.is_none() {
        // Within a compressed batch there are no places of records in the file.
        let (offset, length) = match header.flags & FLAG_COMPRESSED {
            0 => (offset + record.start as u64, record.length as u64),
            _ => (offset, header.length()),
        };
        out.broken.push(Broken { offset, length, kind: record.kind, sequence: record.sequence });
    }
    if record.kind.is_entry() {
        let hashes = body.and_then(StoredEvent::peek_hashes).unwrap_or_default();
        builder.entry(record, offset, hashes);
        if record.kind == Kind::Event {
            out.control.extend(body.and_then(StoredEvent::peek_position).map(Control::Position));
        }
    } else if let Some(body) = body {
        out.control.push(Control::Record(record.kind, body.to_vec()));
    }
}

/// The checkpoint in the batch at an offset, and whether the log was closed behind it.
pub(super) fn read_checkpoint(
    file: &dyn File,
    salt: Option<u64>,
    offset: u64,
    length: u64,
    format: u32,
) -> io::Result<Option<(BatchHeader, Checkpoint)>> {
    let Some((header, body)) = first_record(file, salt, offset, length, Kind::Checkpoint)? else {
        return Ok(None);
    };
    Ok(Checkpoint::decode(&body, format).ok().map(|checkpoint| (header, checkpoint)))
}

/// The first record of the batch at an offset, if it is of this kind.
pub(super) fn first_record(
    file: &dyn File,
    salt: Option<u64>,
    offset: u64,
    length: u64,
    kind: Kind,
) -> io::Result<Option<(BatchHeader, Vec<u8>)>> {
    let mut scanner = Scanner::new(file, salt, offset, length);
    let header = match scanner.step()? {
        Step::Batch { offset: at, header } if at == offset => header,
        // It may well be there.
        _ if scanner.met_unreadable() => return Err(unreadable()),
        _ => return Ok(None),
    };
    let Ok(records) = format::records(&header, scanner.batch()) else { return Ok(None) };
    let first = records.first().filter(|record| record.kind == kind);
    let body = first.map(|record| record.body(scanner.batch()).ok_or_else(|| scanner.met_unreadable()));
    match body {
        Some(Err(true)) => Err(unreadable()),
        Some(Ok(body)) => Ok(Some((header, body.to_vec()))),
        Some(Err(false)) | None => Ok(None),
    }
}

/// What a merged segment says of itself, in its first record.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct MergedNote {
    pub(super) number: u64,
    pub(super) base: u64,
    pub(super) first_sequence: u64,
    pub(super) end_sequence: u64,
    pub(super) replaces: Vec<u64>,
}

impl MergedNote {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        for field in [self.number, self.base, self.first_sequence, self.end_sequence] {
            put_varint(out, field);
        }
        format::put_sequences(out, &self.replaces);
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let mut field = || reader.varint();
        let (number, base, first_sequence, end_sequence) = (field()?, field()?, field()?, field()?);
        let replaces = format::read_sequences(&mut reader)?;
        Ok(Self { number, base, first_sequence, end_sequence, replaces })
    }
}
