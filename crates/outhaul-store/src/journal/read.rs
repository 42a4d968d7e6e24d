//! Reading a queue: batches from the segments in order, of which only the queue's unsettled entries are kept.
//!
//! Where a batch does not verify, the segment's footer tells which entries were in it: they are shown as unreadable,
//! or whole if their own bytes are.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use outhaul_event::{Event, TargetName, Uid};

use super::footer::{Footer, Row};
use super::format::{self, FLAG_HOLE, RecordHeader, SEGMENT_HEADER, StoredEvent};
use super::scan::{Scanner, Step, readable};
use super::segment::Segment;
use super::{Shared, lock};
use crate::error::StoreError;
use crate::fs::File;
use crate::log::{Damage, Entry, Place, ReadBatch, Unreadable};
use crate::queue::QueueId;

/// The end of the log up to which it is read at once: about one batch.
const NEAR_BYTES: u64 = 256 << 10;

/// What is looked for, how much of it, and what was found.
struct Wanted<'a> {
    queue: &'a TargetName,
    id: QueueId,
    entries_max: usize,
    bytes_max: usize,
    bytes: usize,
    out: ReadBatch,
}

/// How the reading of a segment ended.
enum Ended {
    /// A bound was reached.
    Full,
    /// At its end.
    Whole,
    /// It is not there any more: another one may hold what it held.
    Gone,
}

impl Shared {
    pub(super) fn read(
        &self,
        queue: &TargetName,
        after: u64,
        entries_max: usize,
        bytes_max: usize,
    ) -> Result<ReadBatch, StoreError> {
        let id = self.queues.lock().find(queue)?;
        let out = ReadBatch { entries: Vec::new(), next: after };
        let mut wanted = Wanted { queue, id, entries_max: entries_max.max(1), bytes_max, bytes: 0, out };
        loop {
            let Some((segment, from)) = self.segment_ahead(id, wanted.out.next) else {
                return Ok(wanted.out);
            };
            match self.read_segment(&mut wanted, &segment, from)? {
                Ended::Full => return Ok(wanted.out),
                Ended::Whole => wanted.out.next = wanted.out.next.max(segment.end_sequence - 1),
                Ended::Gone => {}
            }
        }
    }

    /// Whether what comes next in a queue was written so lately that it is in the cache: reading it takes less time than
    /// handing it to another thread, and whoever waits for an event that has just come waits for that.
    pub(super) fn is_near(&self, queue: &TargetName, after: u64) -> Result<bool, StoreError> {
        let id = self.queues.lock().find(queue)?;
        let Some((segment, from)) = self.segment_ahead(id, after) else { return Ok(true) };
        let offset = segment.offset_before(from, SEGMENT_HEADER);
        let last = lock(&self.inner).segments.last().is_some_and(|last| last.number == segment.number);
        let near = offset.filter(|offset| last && segment.end.saturating_sub(*offset) <= NEAR_BYTES);
        // A disk that hangs must not hold a thread that others need.
        Ok(near.is_some_and(|offset| {
            let file = self.fs.open(&segment.path(&self.dir), false);
            file.is_ok_and(|file| file.is_cached(offset, segment.end.saturating_sub(offset)))
        }))
    }

    /// The segment that has the next entries of a queue behind a sequence, and the first sequence that may be one of them.
    /// Settling goes on meanwhile, so this is asked anew for each segment.
    pub(super) fn segment_ahead(&self, id: QueueId, after: u64) -> Option<(Segment, u64)> {
        let low = {
            let queues = self.queues.lock();
            let queue = queues.get(id);
            if queue.waiting() == 0 {
                return None;
            }
            queue.settled.low_water()
        };
        let from = low.max(after + 1);
        let inner = lock(&self.inner);
        // No binary search: a merged segment may span a finished one that is not gone yet.
        let ahead = |segment: &&Segment| segment.end_sequence > from && segment.waits_for(id);
        inner.segments.iter().find(ahead).cloned().map(|segment| (segment, from))
    }

    /// Leaves the records of a batch that a queue waits for, from a sequence on.
    pub(super) fn retain_wanted(&self, records: &mut Vec<RecordHeader>, id: QueueId, from: u64) {
        let queues = self.queues.lock();
        let queue = queues.get(id);
        records.retain(|record| {
            record.sequence >= from && record.previous(id).is_some() && queue.wants(record.sequence)
        });
    }

    /// Reads the entries of a segment from a sequence on. What was read of a segment that turns out to be gone is kept:
    /// it verified.
    fn read_segment(
        &self,
        wanted: &mut Wanted<'_>,
        segment: &Segment,
        from: u64,
    ) -> Result<Ended, StoreError> {
        let path = segment.path(&self.dir);
        let failed = |what| StoreError::io(what, &path);
        let file = match self.fs.open(&path, false) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && !self.still_there(segment.number) => {
                return Ok(Ended::Gone);
            }
            other => other.map_err(failed("open"))?,
        };
        let offset = match segment.offset_before(from, SEGMENT_HEADER) {
            Some(offset) => offset,
            None => self.load_index(segment, &*file, from).map_err(failed("read"))?,
        };
        let mut scanner = Scanner::new(&*file, Some(segment.salt), offset, segment.end);
        loop {
            let header = match scanner.step().map_err(failed("read"))? {
                Step::Batch { header, .. } if header.flags & FLAG_HOLE == 0 => header,
                Step::Batch { .. } => continue,
                Step::End { .. } => return Ok(Ended::Whole),
                Step::Bad { .. } | Step::Tail { .. } if !self.still_there(segment.number) => {
                    return Ok(Ended::Gone);
                }
                Step::Bad { offset, end } => {
                    if self
                        .read_damaged(wanted, segment, &*file, from, (offset, end))
                        .map_err(failed("read"))?
                    {
                        return Ok(Ended::Full);
                    }
                    continue;
                }
                Step::Tail { offset, .. } => {
                    let bad = (offset, segment.end);
                    let full = self.read_damaged(wanted, segment, &*file, from, bad);
                    return Ok(if full.map_err(failed("read"))? { Ended::Full } else { Ended::Whole });
                }
            };
            let batch = scanner.batch();
            let Ok(mut records) = format::records(&header, batch) else { continue };
            self.retain_wanted(&mut records, wanted.id, from);
            for record in &records {
                let previous = record.previous(wanted.id).unwrap_or(0);
                let body = match record.body(batch) {
                    Some(body) => Ok(Bytes::copy_from_slice(body)),
                    None => Err(Bytes::copy_from_slice(record.raw(batch).unwrap_or_default())),
                };
                if !self.take_entry(wanted, record.sequence, previous, record.length as u64, body) {
                    return Ok(Ended::Full);
                }
            }
        }
    }

    /// Adds an entry; false if there is no room for it.
    fn take_entry(
        &self,
        wanted: &mut Wanted<'_>,
        sequence: u64,
        previous: u64,
        length: u64,
        body: Result<Bytes, Bytes>,
    ) -> bool {
        let out = &mut wanted.out;
        let full =
            out.entries.len() >= wanted.entries_max || wanted.bytes as u64 + length > wanted.bytes_max as u64;
        if full && !out.entries.is_empty() {
            return false;
        }
        wanted.bytes += length as usize;
        out.next = sequence;
        let uid = Uid { queue: wanted.queue.clone(), sequence };
        let place = Place { uid, previous, bytes: length };
        out.entries.push(self.entry(place, body, wanted.id));
        true
    }

    /// The entries in a stretch of a segment that does not verify, as the footer has them; true when a bound was
    /// reached.
    fn read_damaged(
        &self,
        wanted: &mut Wanted<'_>,
        segment: &Segment,
        file: &dyn File,
        from: u64,
        (offset, end): (u64, u64),
    ) -> io::Result<bool> {
        self.found_damage(Damage {
            file: Segment::file_name(segment.number),
            offset,
            length: end - offset,
            reason: "bytes that are no batch".to_owned(),
            quarantined: None,
        });
        let footer = readable(Footer::read(file, segment.salt, file.len()?))?.flatten();
        let Some(footer) = footer.filter(|footer| footer.end == segment.end) else { return Ok(false) };
        let Some(rows) = readable(footer.rows(file))?.flatten() else { return Ok(false) };
        let before = footer.totals.iter().find(|total| total.queue == wanted.id).map(|total| total.previous);
        let mut previous = before.unwrap_or(0);
        let id = wanted.id;
        for row in rows.iter().filter(|row| footer.queues(row).contains(&id)) {
            let own = std::mem::replace(&mut previous, row.sequence);
            let inside = (offset..end).contains(&row.batch) && row.sequence >= from;
            if inside && self.queues.lock().get(wanted.id).wants(row.sequence) {
                let body = read_row(file, row)?;
                if !self.take_entry(wanted, row.sequence, own, row.length, body) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Reads where the batches of a sealed segment are, once; returns the offset to start from.
    fn load_index(&self, segment: &Segment, file: &dyn File, from: u64) -> io::Result<u64> {
        let footer = readable(Footer::read(file, segment.salt, file.len()?))?.flatten();
        let index =
            footer.filter(|footer| footer.end == segment.end).map_or(Vec::new(), |footer| footer.index);
        let mut own = segment.clone();
        own.set_index(index);
        let mut inner = lock(&self.inner);
        if let Some(each) = inner.segments.iter_mut().find(|each| each.number == segment.number) {
            each.index = own.index.clone();
        }
        Ok(own.offset_before(from, SEGMENT_HEADER).unwrap_or(SEGMENT_HEADER))
    }

    fn entry(&self, place: Place, body: Result<Bytes, Bytes>, id: QueueId) -> Entry {
        let (retry, crashes) = {
            let queues = self.queues.lock();
            let (queue, sequence) = (queues.get(id), &place.uid.sequence);
            (queue.retries.get(sequence).copied(), queue.crashes.get(sequence).copied().unwrap_or(0))
        };
        let stored = match body {
            Ok(body) => StoredEvent::decode(&body).map_err(|error| (body, error.to_string())),
            Err(raw) => Err((raw, "its bytes do not match their checksum".to_owned())),
        };
        match stored {
            Ok(stored) => {
                let event = Event::decode(&stored.event).map(Arc::new);
                let event =
                    event.map_err(|error| Unreadable { bytes: stored.event, reason: error.to_string() });
                let StoredEvent { dedup_id, admitted_at, requeue_of, attachment, .. } = stored;
                Entry { place, dedup_id, event, admitted_at, retry, attachment, requeue_of, crashes }
            }
            Err((bytes, reason)) => Entry {
                place,
                dedup_id: outhaul_event::DedupId::mint(),
                event: Err(Unreadable { bytes, reason }),
                admitted_at: std::time::SystemTime::UNIX_EPOCH,
                retry,
                attachment: Bytes::new(),
                requeue_of: None,
                crashes,
            },
        }
    }
}

/// The bytes where an entry's body is, if its batch was not compressed: whole, or what is there.
pub(super) fn read_row(file: &dyn File, row: &Row) -> io::Result<Result<Bytes, Bytes>> {
    let at = row.batch.saturating_add(row.start);
    let mut body = vec![0; row.length.min(file.len()?.saturating_sub(at)) as usize];
    let read = readable(file.read_at(&mut body, at))?;
    body.truncate(read.unwrap_or(0));
    let whole = body.len() as u64 == row.length && crc32c::crc32c(&body) == row.crc;
    Ok(if whole { Ok(body.into()) } else { Err(body.into()) })
}
