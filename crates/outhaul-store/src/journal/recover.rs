//! Opening a journal: what is valid, what is a torn tail, what is damage.
//!
//! 1. Every file that is named like a segment tells which one it is: by its header, else by its checkpoint. A file
//!    with neither, and no valid batch, is an unfinished creation: removed.
//! 2. In the newest segment the highest `synced_to` of all valid batches divides: what does not verify at or above
//!    it was never acknowledged and is cut off; below it, and in every older segment, it is damage. A copy goes to
//!    the quarantine, the place becomes a hole, and everything around it stays.
//! 3. The newest valid checkpoint is the state; the records behind it are applied to it.
//! 4. Events are counted against that state: what is not settled waits.
//!
//! A record whose body alone is damaged stays in its queue as unreadable; the runtime shows it to a person.

use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use outhaul_event::wire::Reader;
use outhaul_event::{DecodeError, TargetName};

use crate::error::StoreError;
use crate::fs::{File, FileSystem};
use crate::journal::checkpoint::{Checkpoint, InputState};
use crate::journal::commit::RESERVE;
use crate::journal::format::{
    self, BATCH_HEADER, BatchHeader, FLAG_HOLE, Kind, RecordHeader, SEGMENT_HEADER, SegmentHeader,
    StoredEvent,
};
use crate::journal::scan::{Scanner, Step};
use crate::journal::segment::Segment;
use crate::log::{Damage, OpenReport};
use crate::queue::{QueueId, Queues, Runs};

/// What was found, ready to go on from.
#[derive(Debug, Default)]
pub(crate) struct Recovered {
    pub(crate) queues: Queues,
    pub(crate) segments: Vec<Segment>,
    pub(crate) next_sequence: u64,
    pub(crate) next_number: u64,
    pub(crate) next_base: u64,
    pub(crate) epoch: u64,
    pub(crate) input: Option<InputState>,
    pub(crate) report: OpenReport,
}

pub(crate) struct Recovery<'a> {
    pub(crate) fs: &'a dyn FileSystem,
    pub(crate) dir: &'a Path,
    pub(crate) quarantine: &'a Path,
    /// Changes nothing on disk.
    pub(crate) read_only: bool,
}

/// A segment while it is being recovered.
struct Found {
    segment: Segment,
    file: Arc<dyn File>,
    length: u64,
    checkpoint: Option<Box<Checkpoint>>,
}

struct Bad {
    offset: u64,
    end: u64,
    reason: &'static str,
}

type Batch<'a> = (u64, BatchHeader, Vec<RecordHeader>, &'a [u8]);

impl Recovery<'_> {
    pub(crate) fn run(&self) -> Result<Recovered, StoreError> {
        let mut out = Recovered { next_sequence: 1, next_number: 1, ..Recovered::default() };
        let mut found = self.identify(&mut out)?;
        if let Some(last) = found.last_mut() {
            self.cut_tail(last, &mut out.report)?;
        }
        let from = found.iter().rposition(|each| each.checkpoint.is_some());
        if let Some(checkpoint) = from.and_then(|at| found[at].checkpoint.take()) {
            restore(&mut out, *checkpoint);
        }
        for each in &found[from.unwrap_or(0)..] {
            self.batches(each, |(_, _, records, bytes)| apply(&mut out, &records, bytes))?;
        }
        for each in found {
            let mut segment = each.segment.clone();
            let bad = self.batches(&each, |(offset, header, records, _)| {
                count(&mut out.queues, &mut segment, offset, &header, &records);
                Ok(())
            })?;
            for bad in bad {
                self.damaged(&each, &bad, &mut out.report)?;
            }
            out.next_sequence = out.next_sequence.max(segment.end_sequence);
            out.next_base = out.next_base.max(segment.base + each.length);
            out.segments.push(segment);
        }
        cover_gaps(&mut out.queues, &out.segments);
        Ok(out)
    }

    /// Finds the segments, in order.
    fn identify(&self, out: &mut Recovered) -> Result<Vec<Found>, StoreError> {
        let mut numbers = Vec::new();
        for entry in self.fs.list(self.dir).map_err(StoreError::io("list", self.dir))? {
            match Segment::parse_name(&entry.name).filter(|_| entry.is_file) {
                Some(number) => numbers.push(number),
                None if entry.name == RESERVE => {}
                None => out.report.foreign.push(entry.name),
            }
        }
        numbers.sort_unstable();
        let mut found = Vec::new();
        for number in numbers {
            out.next_number = out.next_number.max(number.saturating_add(1));
            let path = self.dir.join(Segment::file_name(number));
            let file = self.fs.open(&path, !self.read_only).map_err(StoreError::io("open", &path))?;
            let length = file.len().map_err(StoreError::io("read", &path))?;
            match self.identify_one(number, &*file, length).map_err(StoreError::io("read", &path))? {
                Identity::Known { segment, checkpoint, header_lost } => {
                    let each = Found { segment, file, length, checkpoint };
                    if header_lost {
                        self.mend_header(&each, &mut out.report)?;
                    }
                    found.push(each);
                }
                Identity::Unfinished => {
                    out.report.torn_bytes += length;
                    if !self.read_only {
                        self.fs.remove(&path).map_err(StoreError::io("remove", &path))?;
                    }
                }
                Identity::Unknown => self.set_aside(number, &*file, length, &mut out.report)?,
            }
        }
        Ok(found)
    }

    fn identify_one(&self, number: u64, file: &dyn File, length: u64) -> io::Result<Identity> {
        let mut head = [0; SEGMENT_HEADER as usize];
        let read = file.read_at(&mut head, 0)?;
        let header = SegmentHeader::decode(&head[..read]);
        let salt = header.map(|header| header.salt);
        let checkpoint = read_checkpoint(file, salt, length)?;
        let segment = |salt, base, first_sequence| Segment {
            number,
            salt,
            base,
            first_sequence,
            end_sequence: first_sequence,
            end: length,
            ..Segment::default()
        };
        match (header, checkpoint) {
            (Some(header), checkpoint) if header.number == number => {
                let checkpoint = checkpoint.map(|(_, checkpoint)| Box::new(checkpoint));
                // The checkpoint is durable before anything is acknowledged from the segment.
                if checkpoint.is_none() && !has_batch(file, salt, length)? {
                    return Ok(Identity::Unfinished);
                }
                let segment = segment(header.salt, header.base, header.first_sequence);
                Ok(Identity::Known { segment, checkpoint, header_lost: false })
            }
            (None, Some((batch, checkpoint))) if checkpoint.number == number => {
                let segment = segment(batch.salt, checkpoint.base, checkpoint.next_sequence);
                Ok(Identity::Known { segment, checkpoint: Some(Box::new(checkpoint)), header_lost: true })
            }
            (None, None) if !has_batch(file, None, length)? => Ok(Identity::Unfinished),
            _ => Ok(Identity::Unknown),
        }
    }

    /// Cuts what was never acknowledged off the newest segment.
    fn cut_tail(&self, last: &mut Found, report: &mut OpenReport) -> Result<(), StoreError> {
        let path = last.segment.path(self.dir);
        let io = |what| StoreError::io(what, &path);
        let synced = highest_synced(last).map_err(io("read"))?;
        let mut scanner = Scanner::new(&*last.file, Some(last.segment.salt), SEGMENT_HEADER, last.length);
        let cut = loop {
            match scanner.step().map_err(io("read"))? {
                Step::Batch { offset, header } => {
                    let durable = last.segment.base + offset < synced || header.flags & FLAG_HOLE != 0;
                    if !durable && !is_whole(&header, scanner.batch()) {
                        break offset;
                    }
                }
                Step::Bad { offset, .. } | Step::Tail { offset } if last.segment.base + offset >= synced => {
                    break offset;
                }
                Step::Bad { .. } => {}
                Step::Tail { .. } => break last.length,
                Step::End { offset } => break offset,
            }
        };
        last.segment.end = cut;
        if cut < last.length {
            let zero = matches!(
                Scanner::new(&*last.file, Some(last.segment.salt), cut, last.length)
                    .step()
                    .map_err(io("read"))?,
                Step::End { .. }
            );
            if !zero {
                report.torn_bytes += last.length - cut;
            }
            if !self.read_only {
                last.file.set_len(cut).map_err(io("cut"))?;
            }
            last.length = cut;
        }
        // A process that was killed leaves valid bytes that only the page cache has.
        if !self.read_only {
            last.file.sync().map_err(io("sync"))?;
        }
        Ok(())
    }

    /// Calls `each` with every valid batch; returns what lies between them.
    fn batches(
        &self,
        found: &Found,
        mut each: impl FnMut(Batch<'_>) -> Result<(), DecodeError>,
    ) -> Result<Vec<Bad>, StoreError> {
        let path = found.segment.path(self.dir);
        let mut scanner =
            Scanner::new(&*found.file, Some(found.segment.salt), SEGMENT_HEADER, found.segment.end);
        let mut bad = Vec::new();
        loop {
            match scanner.step().map_err(StoreError::io("read", &path))? {
                Step::Batch { header, .. } if header.flags & FLAG_HOLE != 0 => {}
                Step::Batch { offset, header } => {
                    let bytes = scanner.batch();
                    let done = format::records(&header, bytes)
                        .and_then(|records| each((offset, header, records, bytes)));
                    if done.is_err() {
                        let end = offset + header.length();
                        bad.push(Bad { offset, end, reason: "a batch whose records make no sense" });
                    }
                }
                Step::Bad { offset, end } => {
                    bad.push(Bad { offset, end, reason: "bytes that are no batch" });
                }
                Step::Tail { offset } => {
                    let end = found.segment.end;
                    bad.push(Bad {
                        offset,
                        end,
                        reason: "bytes that are no batch, at the end of a sealed file",
                    });
                    return Ok(bad);
                }
                Step::End { .. } => return Ok(bad),
            }
        }
    }

    /// Copies a damaged stretch to the quarantine and makes it a hole, so that it is reported once.
    fn damaged(&self, found: &Found, bad: &Bad, report: &mut OpenReport) -> Result<(), StoreError> {
        let name = Segment::file_name(found.segment.number);
        let quarantined = self.quarantine(&name, &*found.file, bad)?;
        if quarantined.is_some()
            && let Ok(length) = u32::try_from(bad.end - bad.offset)
            && length as usize >= BATCH_HEADER
        {
            let path = found.segment.path(self.dir);
            let hole = BatchHeader::hole(found.segment.salt, 0, length);
            found.file.write_at(&hole, bad.offset).map_err(StoreError::io("write", &path))?;
            found.file.sync().map_err(StoreError::io("sync", &path))?;
        }
        let (offset, length) = (bad.offset, bad.end - bad.offset);
        report.damage.push(Damage { file: name, offset, length, reason: bad.reason.to_owned(), quarantined });
        Ok(())
    }

    fn mend_header(&self, found: &Found, report: &mut OpenReport) -> Result<(), StoreError> {
        let Segment { number, salt, base, first_sequence, .. } = found.segment;
        let bad = Bad { offset: 0, end: SEGMENT_HEADER, reason: "a segment header that was overwritten" };
        let file = Segment::file_name(number);
        let quarantined = self.quarantine(&file, &*found.file, &bad)?;
        if quarantined.is_some() {
            let header = SegmentHeader { number, salt, base, first_sequence };
            let path = found.segment.path(self.dir);
            found.file.write_at(&header.encode(), 0).map_err(StoreError::io("write", &path))?;
            found.file.sync().map_err(StoreError::io("sync", &path))?;
        }
        let reason = bad.reason.to_owned();
        report.damage.push(Damage { file, offset: 0, length: SEGMENT_HEADER, reason, quarantined });
        Ok(())
    }

    /// Moves a file that holds batches but does not say of which segment.
    fn set_aside(
        &self,
        number: u64,
        file: &dyn File,
        length: u64,
        report: &mut OpenReport,
    ) -> Result<(), StoreError> {
        let bad = Bad {
            offset: 0,
            end: length,
            reason: "a file that holds batches of another segment, or of none",
        };
        let name = Segment::file_name(number);
        let quarantined = self.quarantine(&name, file, &bad)?;
        if quarantined.is_some() {
            let path = self.dir.join(&name);
            self.fs.remove(&path).map_err(StoreError::io("remove", &path))?;
        }
        let reason = bad.reason.to_owned();
        report.damage.push(Damage { file: name, offset: 0, length, reason, quarantined });
        Ok(())
    }

    /// Copies a stretch, durably. None if nothing may be written, or the copy failed: then all stays as it is.
    fn quarantine(
        &self,
        name: &str,
        file: &dyn File,
        bad: &Bad,
    ) -> Result<Option<std::path::PathBuf>, StoreError> {
        if self.read_only {
            return Ok(None);
        }
        let dir = self.quarantine;
        let path = dir.join(format!("{name}-{}-{}.bin", bad.offset, bad.end));
        let copy = || -> io::Result<()> {
            self.fs.create_dir_all(dir)?;
            let to = match self.fs.create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.fs.open(&path, true)?,
                other => other?,
            };
            let mut chunk = vec![0; 1 << 20];
            let mut at = bad.offset;
            while at < bad.end {
                let want = usize::try_from(bad.end - at).unwrap_or(usize::MAX).min(chunk.len());
                let read = file.read_at(&mut chunk[..want], at)?;
                if read == 0 {
                    break;
                }
                to.write_at(&chunk[..read], at - bad.offset)?;
                at += read as u64;
            }
            to.sync()?;
            self.fs.sync_dir(dir)
        };
        match copy() {
            Ok(()) => Ok(Some(path)),
            Err(error) => {
                tracing::error!(path = %path.display(), %error, "damage could not be copied to the quarantine");
                Ok(None)
            }
        }
    }
}

enum Identity {
    Known { segment: Segment, checkpoint: Option<Box<Checkpoint>>, header_lost: bool },
    Unfinished,
    Unknown,
}

/// The checkpoint that opens a segment.
fn read_checkpoint(
    file: &dyn File,
    salt: Option<u64>,
    length: u64,
) -> io::Result<Option<(BatchHeader, Checkpoint)>> {
    let mut scanner = Scanner::new(file, salt, SEGMENT_HEADER, length);
    let Step::Batch { offset: SEGMENT_HEADER, header } = scanner.step()? else { return Ok(None) };
    let decode = |batch| {
        let records = format::records(&header, batch).ok()?;
        let first = records.first().filter(|record| record.kind == Kind::Checkpoint)?;
        Checkpoint::decode(first.body(batch)?).ok()
    };
    Ok(decode(scanner.batch()).map(|checkpoint| (header, checkpoint)))
}

fn has_batch(file: &dyn File, salt: Option<u64>, length: u64) -> io::Result<bool> {
    let step = Scanner::new(file, salt, SEGMENT_HEADER, length).step()?;
    Ok(matches!(step, Step::Batch { .. } | Step::Bad { .. }))
}

/// The highest position that a valid batch calls synced.
fn highest_synced(found: &Found) -> io::Result<u64> {
    let mut scanner = Scanner::new(&*found.file, Some(found.segment.salt), SEGMENT_HEADER, found.length);
    let mut highest = 0;
    loop {
        match scanner.step()? {
            Step::Batch { header, .. } => highest = highest.max(header.synced_to),
            Step::Bad { .. } => {}
            Step::End { .. } | Step::Tail { .. } => return Ok(highest),
        }
    }
}

fn is_whole(header: &BatchHeader, bytes: &[u8]) -> bool {
    format::records(header, bytes)
        .is_ok_and(|records| records.iter().all(|record| record.body(bytes).is_some()))
}

fn restore(out: &mut Recovered, checkpoint: Checkpoint) {
    out.epoch = checkpoint.epoch;
    out.next_sequence = checkpoint.next_sequence.max(1);
    out.input = checkpoint.input;
    for each in checkpoint.queues {
        let id = out.queues.add(each.name);
        let queue = out.queues.get_mut(id);
        (queue.label, queue.last) = (each.label, each.last);
        (queue.settled, queue.retries) = (each.settled, each.retries);
    }
}

/// Applies the records of a batch to the state. A control record whose body is damaged is passed over: the worst that
/// follows is a repeated delivery.
fn apply(out: &mut Recovered, records: &[RecordHeader], batch: &[u8]) -> Result<(), DecodeError> {
    for record in records {
        let Some(body) = record.body(batch) else { continue };
        let mut reader = Reader::new(body);
        match record.kind {
            Kind::Event => {
                if let Some(input) = &mut out.input
                    && let Some(position) = StoredEvent::peek_position(body)
                {
                    input.admitted.insert(position, position);
                }
            }
            Kind::Queue => {
                let id = queue_id(&mut reader)?;
                let name = TargetName::new(reader.string()?).map_err(|_| DecodeError::Impossible(0))?;
                let label = reader.string()?.to_owned();
                declare(&mut out.queues, id, Some(name));
                out.queues.get_mut(id).label = label;
            }
            Kind::Settled => {
                let id = queue_id(&mut reader)?;
                declare(&mut out.queues, id, None);
                let queue = out.queues.get_mut(id);
                for (first, last) in format::read_runs(&mut reader)?.iter() {
                    queue.settled.insert(first, last);
                    let over: Vec<u64> = queue.retries.range(first..=last).map(|(&s, _)| s).collect();
                    for sequence in over {
                        queue.retries.remove(&sequence);
                    }
                }
            }
            Kind::Retry => {
                let id = queue_id(&mut reader)?;
                declare(&mut out.queues, id, None);
                let (sequence, state) = format::read_retry(&mut reader)?;
                out.queues.get_mut(id).retries.insert(sequence, state);
            }
            Kind::Input => {
                out.input =
                    Some(InputState { note: Bytes::copy_from_slice(body), admitted: Runs::default() });
            }
            Kind::Epoch => out.epoch = out.epoch.max(reader.varint()?),
            Kind::Checkpoint => {}
        }
    }
    Ok(())
}

fn queue_id(reader: &mut Reader<'_>) -> Result<QueueId, DecodeError> {
    QueueId::try_from(reader.varint()?).ok().filter(|&id| id < 1 << 20).ok_or(DecodeError::Impossible(0))
}

/// Has a queue under a number. One whose name was lost to damage gets a name that says so, and its entries stay.
fn declare(queues: &mut Queues, id: QueueId, name: Option<TargetName>) {
    let placeholder = |id| TargetName::new(&format!("lost-{id}")).ok();
    while queues.len() <= id as usize {
        let next = queues.len() as QueueId;
        let name = name.clone().filter(|_| next == id).or_else(|| placeholder(next));
        let Some(name) = name else { return };
        queues.add(name);
    }
    if let Some(name) = name {
        queues.rename(id, name);
    }
}

/// Whatever lies before and between the segments that are there is settled: its files are gone.
fn cover_gaps(queues: &mut Queues, segments: &[Segment]) {
    let mut from = 0;
    for segment in segments {
        if segment.first_sequence > from {
            for (_, queue) in queues.iter_mut() {
                queue.settled.insert(from, segment.first_sequence - 1);
            }
        }
        from = from.max(segment.end_sequence);
    }
}

fn count(
    queues: &mut Queues,
    segment: &mut Segment,
    offset: u64,
    header: &BatchHeader,
    records: &[RecordHeader],
) {
    segment.index(header.first_sequence, offset);
    // What a damaged batch before this one held has its sequences still.
    segment.end_sequence = segment.end_sequence.max(header.first_sequence);
    for record in records.iter().filter(|record| record.kind == Kind::Event) {
        segment.end_sequence = segment.end_sequence.max(record.sequence + 1);
        for &(id, _) in &record.targets {
            if id >= 1 << 20 {
                continue;
            }
            declare(queues, id, None);
            let queue = queues.get_mut(id);
            if queue.settled.contains(record.sequence) {
                queue.last = queue.last.max(record.sequence);
            } else {
                queue.recovered(record.sequence, record.length as u64);
                segment.unsettled += 1;
            }
        }
    }
}
