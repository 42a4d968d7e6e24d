//! Looking ahead in a queue without reading its events: rows of the footers, and of the active segment its records.

use std::io;
use std::sync::Arc;

use outhaul_event::TargetName;

use super::footer::Footer;
use super::format::{self, FLAG_HOLE, SEGMENT_HEADER, StoredEvent};
use super::scan::{Scanner, Step};
use super::segment::Segment;
use super::{Shared, lock};
use crate::error::StoreError;
use crate::fs::File;
use crate::log::{Scan, ScanRow};
use crate::queue::QueueId;

/// Sequences and hashes of pids.
type Rows = Arc<[(u64, u64)]>;

/// The rows of one queue in a sealed segment: whoever looks ahead comes again and again until it is at the end of it.
#[derive(Debug)]
pub(super) struct Peeked {
    /// Number, salt and end of the segment.
    segment: (u64, u64, u64),
    id: QueueId,
    rows: Rows,
}

struct Wanted {
    id: QueueId,
    from: u64,
    rows_max: usize,
    out: Scan,
}

impl Wanted {
    /// Adds a row; false if there is no room for it.
    fn take(&mut self, sequence: u64, pid_hash: u64) -> bool {
        if self.out.rows.len() >= self.rows_max {
            return false;
        }
        self.out.next = sequence;
        self.out.rows.push(ScanRow { sequence, pid_hash: (pid_hash != 0).then_some(pid_hash) });
        true
    }
}

impl Shared {
    pub(super) fn scan(&self, queue: &TargetName, after: u64, rows_max: usize) -> Result<Scan, StoreError> {
        let id = self.queues.lock().find(queue)?;
        let out = Scan { rows: Vec::new(), next: after };
        let mut wanted = Wanted { id, from: 0, rows_max: rows_max.max(1), out };
        loop {
            let Some((segment, from)) = self.segment_ahead(id, wanted.out.next) else {
                return Ok(wanted.out);
            };
            wanted.from = from;
            let path = segment.path(&self.dir);
            match self.scan_segment(&mut wanted, &segment) {
                Ok(true) => wanted.out.next = wanted.out.next.max(segment.end_sequence - 1),
                Ok(false) => return Ok(wanted.out),
                // It was removed or used again: another one may hold what it held.
                Err(_) if !self.still_there(segment.number) => {}
                Err(error) => return Err(StoreError::io("read", &path)(error)),
            }
        }
    }

    /// The rows of one segment; false if there was no room for all of them.
    fn scan_segment(&self, wanted: &mut Wanted, segment: &Segment) -> io::Result<bool> {
        let file = self.fs.open(&segment.path(&self.dir), false)?;
        if let Some(rows) = self.peeked_rows(segment, &*file, wanted.id)? {
            let queues = self.queues.lock();
            let queue = queues.get(wanted.id);
            let from = rows.partition_point(|row| row.0 < wanted.from);
            for &(sequence, pid_hash) in rows[from..].iter().filter(|row| queue.wants(row.0)) {
                if !wanted.take(sequence, pid_hash) {
                    return Ok(false);
                }
            }
            *lock(&self.peeked) = None;
            return Ok(true);
        }
        let offset = segment.offset_before(wanted.from, SEGMENT_HEADER).unwrap_or(SEGMENT_HEADER);
        let mut scanner = Scanner::new(&*file, Some(segment.salt), offset, segment.end);
        loop {
            let header = match scanner.step()? {
                Step::Batch { header, .. } if header.flags & FLAG_HOLE == 0 => header,
                Step::Bad { .. } | Step::Tail { .. } if !self.still_there(segment.number) => {
                    return Err(io::ErrorKind::NotFound.into());
                }
                Step::End { .. } | Step::Tail { .. } => return Ok(true),
                // What is damaged is found, and told, when it is read.
                Step::Batch { .. } | Step::Bad { .. } => continue,
            };
            let batch = scanner.batch();
            let Ok(mut records) = format::records(&header, batch) else { continue };
            self.retain_wanted(&mut records, wanted.id, wanted.from);
            for record in &records {
                let pid_hash =
                    record.body(batch).and_then(StoredEvent::peek_hashes).map_or(0, |(pid, _)| pid);
                if !wanted.take(record.sequence, pid_hash) {
                    return Ok(false);
                }
            }
        }
    }

    /// The rows of one queue out of a segment's footer, if it has a valid one.
    fn peeked_rows(&self, segment: &Segment, file: &dyn File, id: QueueId) -> io::Result<Option<Rows>> {
        let key = (segment.number, segment.salt, segment.end);
        if let Some(peeked) = lock(&self.peeked).as_ref().filter(|one| one.segment == key && one.id == id) {
            return Ok(Some(Arc::clone(&peeked.rows)));
        }
        let footer = match segment.footer {
            true => Footer::read(file, segment.salt, file.len()?)?,
            false => None,
        };
        let Some(footer) = footer.filter(|footer| footer.end == segment.end) else { return Ok(None) };
        let Some(rows) = footer.rows(file)? else { return Ok(None) };
        let own = rows.iter().filter(|row| footer.queues(row).contains(&id));
        let rows: Rows = own.map(|row| (row.sequence, row.pid_hash)).collect();
        *lock(&self.peeked) = Some(Peeked { segment: key, id, rows: Arc::clone(&rows) });
        Ok(Some(rows))
    }
}
