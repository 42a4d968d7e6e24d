//! Merging: neighbouring segments in which hardly anything waits become one that holds just that.
//!
//! So a target that is down for long pins only what it still wants, and a log that is opened often does not collect
//! small files. The entries keep their sequences, so readers see no difference. The new file is complete and durable,
//! and so is the settlement of everything that it leaves out, before it gets its name; with the name it stands for the
//! old ones, which may then go at any time.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::sync::Arc;

use super::footer::Footer;
use super::format::{
    self, BatchBuilder, FLAG_HOLE, FORMAT, Kind, Mark, SEGMENT_HEADER, SegmentHeader, Targets,
};
use super::read::read_row;
use super::recover::UNFINISHED;
use super::scan::{Scanner, Step, unreadable};
use super::segment::Segment;
use super::survey::{MergedNote, survey};
use super::turn::Reply;
use super::{Shared, lock};
use crate::error::StoreError;
use crate::fs::File;

/// A batch of a merged segment.
const BATCH_BYTES: usize = 256 * 1024;
/// As many small neighbours become one.
const SMALL_MIN: usize = 8;

/// The file that is being made.
struct Target {
    file: Arc<dyn File>,
    salt: u64,
    offset: u64,
    builder: BatchBuilder,
    bodies: Vec<Vec<u8>>,
    bytes: usize,
    first: u64,
    next: u64,
}

impl Shared {
    /// Merges once, if that is worth it.
    pub(super) fn merge(&self) {
        let Some(group) = self.worth_merging() else { return };
        if let Err(error) = self.merge_group(&group) {
            tracing::debug!(%error, "segments could not be merged");
        }
    }

    fn merge_group(&self, group: &[Segment]) -> Result<(), StoreError> {
        let number = {
            let mut core = lock(&self.core);
            core.next_number += 1;
            core.next_number - 1
        };
        let unfinished = self.dir.join(format!("{number}{UNFINISHED}"));
        let merged = self.merge_into(group, number, &unfinished);
        if merged.is_err() && self.fs.remove(&unfinished).is_err() {
            tracing::debug!(path = %unfinished.display(), "nothing is left of a merge");
        }
        merged
    }

    /// Takes what waits out of the segments in which an open that verified them found damage: each is replaced by one
    /// that is sound, or goes. Returns the files that stay, and why.
    pub(super) fn mend(&self) -> Result<Vec<(String, String)>, StoreError> {
        let damaged = std::mem::take(&mut *lock(&self.damaged));
        let mut left = Vec::new();
        for number in damaged {
            let find = |segment: &&Segment| segment.number == number && !segment.going;
            let segment = lock(&self.inner).segments.iter().find(find).cloned();
            let Some(segment) = segment.filter(|segment| segment.unsettled() > 0) else { continue };
            if let Err(error) = self.merge_group(&[segment])
                && self.still_there(number)
            {
                left.push((Segment::file_name(number), error.to_string()));
            }
        }
        // Those in which nothing waits go behind a round.
        let (reply, slot) = Reply::thread();
        self.push_flush(reply);
        self.drive(&slot).unwrap_or(Err(StoreError::Closed))?;
        self.work_all_off();
        Ok(left)
    }

    /// Neighbours of which little is left, or that are many and small.
    fn worth_merging(&self) -> Option<Vec<Segment>> {
        // A repair looks for what is damaged where it was found.
        let damaged = lock(&self.damaged).clone();
        let inner = lock(&self.inner);
        if inner.failure.is_some() || inner.closing {
            return None;
        }
        let max = self.options.segment_bytes_max;
        let sealed = inner.segments.len().saturating_sub(1);
        let (mut group, mut live) = (Vec::<Segment>::new(), 0);
        let worth = |group: &[Segment], live: u64| {
            let all: u64 = group.iter().map(|segment| segment.end).sum();
            !group.is_empty() && (group.len() >= SMALL_MIN || (group.iter().any(sparse) && all / 4 >= live))
        };
        // A finished one between them goes soon; a reader does not mind it.
        for segment in inner.segments[..sealed].iter().filter(|segment| segment.unsettled() > 0) {
            let bytes = segment.waiting_bytes().min(segment.end);
            let fits = live + bytes <= max / 2 && segment.footer && !damaged.contains(&segment.number);
            if !fits || !(sparse(segment) || segment.end <= max / 8) {
                if worth(&group, live) {
                    break;
                }
                (group, live) = (Vec::new(), 0);
                continue;
            }
            live += bytes;
            group.push(segment.clone());
        }
        worth(&group, live).then_some(group)
    }

    fn merge_into(
        &self,
        group: &[Segment],
        number: u64,
        unfinished: &std::path::Path,
    ) -> Result<(), StoreError> {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { return Ok(()) };
        let failed = |what| StoreError::io(what, unfinished);
        // What they replaced themselves may still be listed, or come back.
        let own = group.iter().map(|segment| segment.number);
        let replaces: Vec<u64> =
            own.chain(group.iter().flat_map(|segment| segment.replaces.iter().copied())).collect();
        let salt = uuid::Uuid::new_v4().as_u64_pair().0;
        let (base, first_sequence) = (first.base, first.first_sequence);
        let header = SegmentHeader { format: FORMAT, merged: true, number, salt, base, first_sequence };
        let file = self.fs.create(unfinished).map_err(failed("create"))?;
        file.write_at(&header.encode(), 0).map_err(failed("write"))?;
        let mut target = Target::new(file, salt, first_sequence);
        let end_sequence = last.end_sequence;
        let note = MergedNote { number, base, first_sequence, end_sequence, replaces: replaces.clone() };
        target.builder.add(Kind::Merged, |out| note.encode(out));
        target.flush(first_sequence).map_err(failed("write"))?;
        for segment in group {
            self.copy_waiting(segment, &mut target)?;
        }
        target.flush(end_sequence).map_err(failed("write"))?;
        let mut merged = Segment {
            number,
            salt,
            base,
            first_sequence,
            end_sequence,
            end: target.offset,
            merged: true,
            replaces,
            ..Segment::default()
        };
        let read = survey(&*target.file, &merged, Some(target.offset), target.offset, |_| true);
        let read = read.map_err(failed("read"))?.filter(|survey| survey.bad.is_empty() && !survey.unreadable);
        let survey = read.ok_or_else(|| failed("read back")(io::ErrorKind::InvalidData.into()))?;
        survey.footer.write(&survey.rows, salt, &*target.file).map_err(failed("write"))?;
        target.file.sync().map_err(failed("sync"))?;
        // What was left out is settled; that must be durable before the old files may go.
        let (reply, slot) = Reply::thread();
        self.push_flush(reply);
        self.drive(&slot).unwrap_or(Err(StoreError::Closed))?;
        merged.footer = true;
        merged.set_index(survey.footer.index);
        self.swap(group, merged, unfinished)
    }

    fn swap(
        &self,
        group: &[Segment],
        mut merged: Segment,
        unfinished: &std::path::Path,
    ) -> Result<(), StoreError> {
        let path = merged.path(&self.dir);
        {
            let mut inner = lock(&self.inner);
            let there =
                |old: &&Segment| inner.segments.iter().any(|each| each.number == old.number && !each.going);
            if group.iter().filter(there).count() < group.len() {
                // One of them was finished meanwhile: the next attempt has less to copy.
                return Err(StoreError::io("replace", &path)(io::ErrorKind::Interrupted.into()));
            }
            self.fs.rename(unfinished, &path).map_err(StoreError::io("rename", unfinished))?;
            if let Err(error) = self.fs.sync_dir(&self.dir) {
                // The old ones stay; what has the name now must not stand for them at the next open.
                self.discard(&path);
                return Err(StoreError::io("sync", &self.dir)(error));
            }
            let at = inner.segments.iter().position(|each| each.number == group[0].number).unwrap_or(0);
            let old = |each: &Segment| group.iter().any(|old| old.number == each.number);
            for each in inner.segments.iter().filter(|each| old(each)) {
                each.tallies().iter().for_each(|tally| merged.add(tally.queue, tally.entries, tally.bytes));
            }
            inner.segments.retain(|each| !old(each));
            let at = at.min(inner.segments.len());
            inner.segments.insert(at, merged);
        }
        self.remove_segments(group);
        Ok(())
    }

    /// Copies the entries for which somebody waits.
    fn copy_waiting(&self, segment: &Segment, target: &mut Target) -> Result<(), StoreError> {
        let path = segment.path(&self.dir);
        let failed = |what| StoreError::io(what, &path);
        let file = self.fs.open(&path, false).map_err(failed("open"))?;
        let mut scanner = Scanner::new(&*file, Some(segment.salt), SEGMENT_HEADER, segment.end);
        loop {
            let header = match scanner.step().map_err(failed("read"))? {
                Step::Batch { header, .. } if header.flags & FLAG_HOLE == 0 => header,
                Step::Batch { .. } => continue,
                Step::End { .. } => return Ok(()),
                Step::Bad { offset, end } => {
                    self.copy_damaged(segment, &*file, (offset, end), target).map_err(failed("copy"))?;
                    continue;
                }
                Step::Tail { offset, .. } => {
                    let end = segment.end;
                    return self.copy_damaged(segment, &*file, (offset, end), target).map_err(failed("copy"));
                }
            };
            if scanner.met_unreadable() {
                // Whole some other time, perhaps.
                return Err(failed("read")(unreadable()));
            }
            let batch = scanner.batch();
            let nonsense = |_| failed("merge")(io::ErrorKind::InvalidData.into());
            for record in format::records(&header, batch).map_err(nonsense)? {
                if !record.kind.is_entry() {
                    continue;
                }
                let wanted: Targets = {
                    let queues = self.queues.lock();
                    let wants = |id| queues.wants(id, record.sequence);
                    record.targets.iter().copied().filter(|&(id, _)| wants(id)).collect()
                };
                if !wanted.is_empty() {
                    let lost = || failed("merge")(io::ErrorKind::InvalidData.into());
                    let body = record.raw(batch).ok_or_else(lost)?;
                    target.add(&record, &wanted, body).map_err(failed("copy"))?;
                }
            }
        }
    }
}

impl Shared {
    /// Copies the waiting entries of a stretch that does not verify, as the footer has them.
    fn copy_damaged(
        &self,
        segment: &Segment,
        file: &dyn File,
        (offset, end): (u64, u64),
        target: &mut Target,
    ) -> io::Result<()> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        let footer = Footer::read(file, segment.salt, file.len()?)?;
        let Some(footer) = footer.filter(|footer| footer.end == segment.end) else {
            // Nothing that waits was counted in it.
            return Ok(());
        };
        let rows = footer.rows(file)?.ok_or_else(invalid)?;
        let mut before: BTreeMap<_, _> =
            footer.totals.iter().map(|total| (total.queue, total.previous)).collect();
        for row in rows {
            let mut wanted = Targets::new();
            for &id in footer.queues(&row) {
                let previous = before.insert(id, row.sequence).unwrap_or(0);
                let wants =
                    (offset..end).contains(&row.batch) && self.queues.lock().get(id).wants(row.sequence);
                if wants {
                    wanted.push((id, row.sequence.saturating_sub(previous)));
                }
            }
            if wanted.is_empty() {
                continue;
            }
            // Damage to what waits is for the readers to find, and to say which entries are lost.
            let body = read_row(file, &row)?.map_err(|_| invalid())?;
            let record = format::RecordHeader {
                kind: Kind::Moved,
                sequence: row.sequence,
                start: 0,
                length: body.len(),
                crc: row.crc,
                targets: Targets::new(),
            };
            target.add(&record, &wanted, &body)?;
        }
        Ok(())
    }
}

/// A quarter of it, or less, waits.
fn sparse(segment: &Segment) -> bool {
    segment.waiting_bytes() <= segment.end / 4
}

impl Target {
    fn new(file: Arc<dyn File>, salt: u64, first_sequence: u64) -> Self {
        Self {
            file,
            salt,
            offset: SEGMENT_HEADER,
            builder: BatchBuilder::default(),
            bodies: Vec::new(),
            bytes: 0,
            first: first_sequence,
            next: first_sequence,
        }
    }

    fn add(
        &mut self,
        record: &format::RecordHeader,
        targets: &[(crate::queue::QueueId, u64)],
        body: &[u8],
    ) -> io::Result<()> {
        if self.bytes + body.len() > BATCH_BYTES && self.bytes > 0 {
            self.flush(record.sequence)?;
        }
        self.builder.add_moved(record.sequence.saturating_sub(self.next), record, targets);
        self.next = record.sequence + 1;
        self.bytes += body.len();
        self.bodies.push(body.to_vec());
        Ok(())
    }

    /// Writes the batch; the next one starts with this sequence.
    fn flush(&mut self, next: u64) -> io::Result<()> {
        if !self.builder.is_empty() {
            let mut head = Vec::new();
            let mark = Mark { salt: self.salt, synced_to: 0, first_sequence: self.first, flags: 0 };
            self.builder.head(mark, &mut head);
            let bodies = self.bodies.iter().map(|body| IoSlice::new(body));
            let mut slices: Vec<_> = std::iter::once(IoSlice::new(&head)).chain(bodies).collect();
            let length: usize = slices.iter().map(|slice| slice.len()).sum();
            self.file.write_vectored_at(&mut slices, self.offset)?;
            self.offset += length as u64;
        }
        self.builder.clear();
        self.bodies.clear();
        (self.bytes, self.first, self.next) = (0, next, next);
        Ok(())
    }
}
