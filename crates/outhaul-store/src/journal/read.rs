//! Reading a queue: batches from the segments in order, of which only the queue's unsettled entries are kept.

use std::sync::Arc;

use bytes::Bytes;
use outhaul_event::{Event, TargetName, Uid};

use super::format::{self, FLAG_HOLE, SEGMENT_HEADER, StoredEvent};
use super::scan::{Scanner, Step};
use super::segment::Segment;
use super::{Shared, lock};
use crate::error::StoreError;
use crate::log::{Entry, Place, ReadBatch, Unreadable};
use crate::queue::QueueId;

/// What is looked for, and how much of it.
struct Wanted<'a> {
    queue: &'a TargetName,
    id: QueueId,
    entries_max: usize,
    bytes_max: usize,
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
        let wanted = Wanted { queue, id, entries_max: entries_max.max(1), bytes_max };
        let mut out = ReadBatch { entries: Vec::new(), next: after };
        let mut bytes = 0;
        loop {
            // Settling goes on meanwhile, so where to go on is asked anew for each segment.
            let low = {
                let queues = self.queues.lock();
                let queue = queues.get(id);
                if queue.waiting() == 0 {
                    return Ok(out);
                }
                queue.settled.low_water()
            };
            let from = low.max(out.next + 1);
            let segment = {
                let inner = lock(&self.inner);
                let after = inner.segments.partition_point(|segment| segment.end_sequence <= from);
                inner.segments[after..].iter().find(|segment| segment.unsettled > 0).cloned()
            };
            let Some(segment) = segment else { return Ok(out) };
            let full = self.read_segment(&wanted, &segment, from, &mut out, &mut bytes)?;
            if full {
                return Ok(out);
            }
            out.next = out.next.max(segment.end_sequence - 1);
        }
    }

    /// Reads the entries from a sequence on; true when a bound was reached.
    fn read_segment(
        &self,
        wanted: &Wanted<'_>,
        segment: &Segment,
        from: u64,
        out: &mut ReadBatch,
        bytes: &mut usize,
    ) -> Result<bool, StoreError> {
        let path = segment.path(&self.dir);
        let file = match self.fs.open(&path, false) {
            // It was finished and removed in between.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            other => other.map_err(StoreError::io("open", &path))?,
        };
        let offset = segment.offset_before(from, SEGMENT_HEADER);
        let mut scanner = Scanner::new(&*file, Some(segment.salt), offset, segment.end);
        loop {
            let header = match scanner.step().map_err(StoreError::io("read", &path))? {
                Step::Batch { header, .. } if header.flags & FLAG_HOLE == 0 => header,
                Step::Batch { .. } | Step::Bad { .. } => continue,
                Step::End { .. } | Step::Tail { .. } => return Ok(false),
            };
            let batch = scanner.batch();
            let Ok(mut records) = format::records(&header, batch) else { continue };
            {
                let queues = self.queues.lock();
                let settled = &queues.get(wanted.id).settled;
                records.retain(|record| {
                    record.sequence >= from
                        && record.previous(wanted.id).is_some()
                        && !settled.contains(record.sequence)
                });
            }
            for record in &records {
                if !out.entries.is_empty()
                    && (out.entries.len() >= wanted.entries_max || *bytes + record.length > wanted.bytes_max)
                {
                    return Ok(true);
                }
                *bytes += record.length;
                out.next = record.sequence;
                let place = Place {
                    uid: Uid { queue: wanted.queue.clone(), sequence: record.sequence },
                    previous: record.previous(wanted.id).unwrap_or(0),
                    bytes: record.length as u64,
                };
                out.entries.push(self.entry(place, record, batch, wanted.id));
            }
        }
    }

    fn entry(&self, place: Place, record: &format::RecordHeader, batch: &[u8], id: QueueId) -> Entry {
        let (retry, crashes) = {
            let queues = self.queues.lock();
            let (queue, sequence) = (queues.get(id), &record.sequence);
            (queue.retries.get(sequence).copied(), queue.crashes.get(sequence).copied().unwrap_or(0))
        };
        let stored = match record.body(batch) {
            Some(body) => {
                let body = Bytes::copy_from_slice(body);
                StoredEvent::decode(&body).map_err(|error| (body, error.to_string()))
            }
            None => {
                let raw = &batch[record.start..record.start + record.length];
                Err((Bytes::copy_from_slice(raw), "its bytes do not match their checksum".to_owned()))
            }
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
