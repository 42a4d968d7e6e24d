//! The files of a log: how a segment begins and ends, the ones that are kept ready, and the space that is held back.
//!
//! A file that is written before it is used needs no new block and no new length when events go into it, so its sync
//! is one flush of the device. The first segment of a life is small and is prepared at once; each further one is twice
//! as long up to the limit, and is prepared beside the commits, or is a finished segment that is used again. Bytes of
//! an earlier life carry another salt. Where overwriting in place does not exist, nothing is prepared.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::checkpoint::{Checkpoint, Listed};
use super::commit::{Active, Core, RESERVE};
use super::footer::FooterBuilder;
use super::format::{BatchBuilder, FORMAT, Kind, Mark, SEGMENT_HEADER, SegmentHeader};
use super::mark::EndMark;
use super::recover::SPARE;
use super::segment::{Index, Segment};
use super::upkeep::Chore;
use super::{Shared, lock, sync};
use crate::error::StoreError;
use crate::fs::{File, FsKind};

/// Bytes that are prepared with one sync.
pub(super) const PREPARE_BYTES: u64 = 256 << 10;
/// Nothing is prepared on a disk that has less than this many times the size of it.
const SPACE_FACTOR: u64 = 8;

/// A file that is being prepared, and how far it is.
#[derive(Debug)]
pub(super) struct Spare {
    name: String,
    file: Arc<dyn File>,
    at: u64,
    length: u64,
}

impl Shared {
    /// Starts the first segment of this life of the log. Where the disk is full even for that, the log can be read and
    /// delivered, and a later round tries again.
    pub(super) fn start(&self) -> Result<(), StoreError> {
        let mut core = lock(&self.core);
        let first_sequence = core.next_sequence;
        match self.start_segment_for_sure(&mut core, first_sequence) {
            Err(error) if error.is_disk_full() && !lock(&self.inner).segments.is_empty() => {
                self.set_starved(&mut core, true);
            }
            started => {
                started?;
                self.drop_spares(self.options.spares_max);
                let dead = self.unlisted();
                self.remove_segments(&dead);
                let held = self.hold_reserve();
                self.set_starved(&mut core, !held);
            }
        }
        Ok(())
    }

    /// Sealed segments in which nothing waits: the newest checkpoint does not list them.
    fn unlisted(&self) -> Vec<Segment> {
        let mut inner = lock(&self.inner);
        let sealed = inner.segments.len().saturating_sub(1);
        let dead = inner.segments[..sealed].iter_mut().filter(|segment| segment.is_finished());
        let mark = |segment: &mut Segment| {
            segment.going = true;
            segment.clone()
        };
        dead.map(mark).collect()
    }

    /// Starts a segment, with what is held back if need be.
    fn start_segment_for_sure(&self, core: &mut Core, first_sequence: u64) -> Result<(), StoreError> {
        match self.start_segment(core, first_sequence) {
            Err(error) if error.is_disk_full() && self.release_space() => {
                self.set_starved(core, true);
                self.start_segment(core, first_sequence)
            }
            started => started,
        }
    }

    /// On a disk that was full: whether there is room again, or can be made by giving up a segment in which nothing
    /// waits.
    pub(super) fn find_space(&self, core: &mut Core) -> bool {
        let finished = core.active.as_ref().is_none_or(|active| {
            let inner = lock(&self.inner);
            active.offset > active.start && inner.segments.last().is_some_and(Segment::is_finished)
        });
        let first_sequence = core.next_sequence;
        if finished {
            // Those that the checkpoint will not list: what is settled after it was made is not in it.
            let dead: Vec<Segment> = {
                let inner = lock(&self.inner);
                inner.segments.iter().filter(|segment| segment.is_finished()).cloned().collect()
            };
            if self.start_segment_for_sure(core, first_sequence).is_ok() {
                self.remove_segments(&dead);
            }
        }
        self.drop_spares(0);
        let starved = core.active.is_none() || !self.hold_reserve();
        self.set_starved(core, starved);
        if !core.starved {
            tracing::info!(dir = %self.dir.display(), "the disk has room again: events are taken");
        }
        !core.starved
    }

    fn set_starved(&self, core: &mut Core, starved: bool) {
        core.starved = starved;
        self.full.store(starved, Ordering::Release);
    }

    /// Whether the disk was full, and is not known to have room again. The next round finds out; who only asks looks
    /// at the file system.
    pub(super) fn is_full(&self) -> bool {
        // What is held back, and a little to write.
        let enough = self.options.reserve_bytes + (64 << 10);
        self.full.load(Ordering::Acquire)
            && self.fs.space(&self.dir).is_ok_and(|space| space.available < enough)
    }

    /// Notes that the disk is full, and says so once.
    pub(super) fn starved(&self, core: &mut Core) {
        let before = core.starved;
        self.set_starved(core, true);
        if !before {
            let dir = self.dir.display();
            tracing::error!(%dir, "the disk is full: events are refused until there is room; what waits is delivered");
        }
    }

    /// Gives space up that is not needed at once; false if there is none.
    pub(super) fn release_space(&self) -> bool {
        self.drop_spares(0) || self.fs.remove(&self.dir.join(RESERVE)).is_ok()
    }

    /// Removes spare files until this many are left; true if there were any.
    fn drop_spares(&self, left: usize) -> bool {
        let mut removed = false;
        loop {
            let spare = {
                let mut inner = lock(&self.inner);
                inner.spares.sort_by_key(|(_, length)| std::cmp::Reverse(*length));
                if inner.spares.len() > left { inner.spares.pop() } else { None }
            };
            let Some((name, _)) = spare else { return removed };
            let path = self.dir.join(name);
            match self.fs.remove(&path) {
                Ok(()) => removed = true,
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "a spare file could not be removed");
                }
            }
        }
    }

    /// Holds space back, if it is not yet; false if there is none.
    fn hold_reserve(&self) -> bool {
        let (path, length) = (self.dir.join(RESERVE), self.options.reserve_bytes);
        if self.fs.open(&path, false).and_then(|file| file.len()).is_ok_and(|there| there == length) {
            return true;
        }
        let hold = || {
            match self.fs.remove(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let file = self.fs.create(&path)?;
            file.write_at(&vec![0; usize::try_from(length).unwrap_or(0)], 0)?;
            file.sync()
        };
        let held: io::Result<()> = hold();
        if held.is_err() && self.fs.remove(&path).is_err() {
            // A part of it is of no use to anybody; one that was not even created is none.
            tracing::debug!(path = %path.display(), "no space is held back");
        }
        held.is_ok()
    }

    /// Seals the active segment and starts the next one with a checkpoint.
    pub(super) fn start_segment(&self, core: &mut Core, first_sequence: u64) -> Result<(), StoreError> {
        let number = core.next_number;
        let base = core.active.as_ref().map_or(core.next_base, |active| active.base + active.offset);
        let salt = uuid::Uuid::new_v4().as_u64_pair().0;
        let epoch = self.epoch.load(Ordering::Acquire);
        let mut builder = BatchBuilder::default();
        self.add_checkpoint(&mut builder, number, base, epoch, first_sequence);
        let header = SegmentHeader { format: FORMAT, merged: false, number, salt, base, first_sequence };
        let mut bytes = header.encode().to_vec();
        builder.head(Mark { salt, synced_to: base, first_sequence, flags: 0 }, &mut bytes);
        let segment = Segment {
            number,
            salt,
            base,
            first_sequence,
            end_sequence: first_sequence,
            end: bytes.len() as u64,
            index: Index::Growing(Vec::new()),
            ..Segment::default()
        };
        // The number is used up even if this fails: a name is never written twice.
        core.next_number += 1;
        let offset = bytes.len() as u64;
        let (file, capacity) = self.place(&segment.path(&self.dir), bytes, core)?;
        self.mark_end(number, 0);
        let before = lock(&self.inner).segments.last().map(|segment| segment.number);
        let mut footer = FooterBuilder::default();
        footer.batch(first_sequence, SEGMENT_HEADER);
        let sealed = core.active.replace(Active {
            file,
            salt,
            base,
            offset,
            synced: offset,
            start: offset,
            capacity,
            asked: 0,
            batches: 0,
            footer: Some(footer),
        });
        core.epoch = epoch;
        {
            let mut inner = lock(&self.inner);
            // Said once more behind the checkpoint: damage to it takes no queue from its target.
            for (_, queue) in self.queues.lock().iter_mut() {
                queue.unwritten.declaration |= !queue.removed;
            }
            inner.room = capacity.saturating_sub(offset);
            inner.capacity = capacity;
            // Older checkpoints, which list what was merged, are of no use any more.
            inner.segments.iter_mut().for_each(|segment| {
                segment.replaces.clear();
                segment.going = false;
            });
            inner.segments.push(segment);
        }
        if let Some(number) = before {
            let footer = sealed.and_then(|sealed| sealed.footer).map(Box::new);
            self.chore(Chore::Seal { number, footer });
        }
        Ok(())
    }

    /// Notes which segment is the newest. A courtesy: it lets an open tell that the end of the log is missing.
    pub(super) fn mark_end(&self, number: u64, end: u64) {
        if let Err(error) = (EndMark { number, end }).write(&*self.fs, &self.dir) {
            tracing::debug!(dir = %self.dir.display(), %error, "the end of the log could not be noted");
        }
    }

    /// Has a file whose first bytes are these, durably and under this name; returns it and how long it is to become.
    fn place(
        &self,
        path: &std::path::Path,
        mut bytes: Vec<u8>,
        core: &Core,
    ) -> Result<(Arc<dyn File>, u64), StoreError> {
        let max = self.options.segment_bytes_max;
        let first = self.options.segment_bytes_first.min(max);
        let at_least = core.active.as_ref().map_or(first, |active| active.capacity / 2);
        if let Some((name, length)) = self.take_spare(at_least.max(bytes.len() as u64)) {
            let from = self.dir.join(&name);
            let used = self.fs.open(&from, true).and_then(|file| {
                file.write_at(&bytes, 0)?;
                file.sync()?;
                self.fs.rename(&from, path)?;
                self.fs.sync_dir(&self.dir)?;
                Ok(file)
            });
            return match used {
                Ok(file) => Ok((file, length.min(max))),
                Err(error) => {
                    // Under which name it is now is found out at the next open; it holds nothing.
                    self.discard(&from);
                    self.discard(path);
                    Err(StoreError::io("write", path)(error))
                }
            };
        }
        let in_place = self.kind == FsKind::InPlace;
        let capacity = match core.active.as_ref() {
            _ if !in_place => max,
            None => first,
            Some(active) => active.capacity.saturating_mul(2).min(max),
        };
        // The first one is small enough to be prepared at once.
        if in_place && core.active.is_none() && self.has_room(capacity) && (bytes.len() as u64) < capacity {
            bytes.resize(usize::try_from(capacity).unwrap_or(bytes.len()), 0);
        }
        let file = self.fs.create(path).map_err(StoreError::io("create", path))?;
        let written = file
            .write_at(&bytes, 0)
            .and_then(|()| file.sync())
            .and_then(|()| self.fs.sync_dir(&self.dir))
            .map_err(StoreError::io("write", path));
        if let Err(error) = written {
            // An unfinished segment is removed at the next open as well.
            self.discard(path);
            return Err(error);
        }
        Ok((file, capacity))
    }

    pub(super) fn discard(&self, path: &std::path::Path) {
        match self.fs.remove(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %path.display(), %error, "an unfinished segment could not be removed");
            }
            _ => {}
        }
    }

    fn has_room(&self, length: u64) -> bool {
        self.fs.space(&self.dir).is_ok_and(|space| space.available / SPACE_FACTOR >= length)
    }

    pub(super) fn add_closing_checkpoint(&self, core: &mut Core) {
        let Some(active) = &core.active else { return };
        let number = lock(&self.inner).segments.last().map_or(0, |segment| segment.number);
        let epoch = self.epoch.load(Ordering::Acquire);
        let (base, next_sequence) = (active.base, core.next_sequence);
        self.add_checkpoint(&mut core.builder, number, base, epoch, next_sequence);
    }

    /// The state as it is, for the segment of this number.
    fn add_checkpoint(
        &self,
        builder: &mut BatchBuilder,
        number: u64,
        base: u64,
        epoch: u64,
        next_sequence: u64,
    ) {
        let inner = lock(&self.inner);
        let others = inner.segments.iter().filter(|each| each.number != number && !each.is_finished());
        let list = |segment: &Segment| Listed {
            number: segment.number,
            first_sequence: segment.first_sequence,
            end_sequence: segment.end_sequence,
            end: segment.end,
            waiting: segment.unsettled(),
        };
        let checkpoint = Checkpoint {
            number,
            base,
            epoch,
            next_sequence,
            segments: others.map(list).collect(),
            queues: Vec::new(),
            input: inner.input.clone(),
        };
        let queues = self.queues.lock();
        builder.add(Kind::Checkpoint, |out| checkpoint.encode(&queues, out));
    }

    /// Prepares a file that is to have `length` bytes as far as `until`, off the commits. One that is needed earlier is
    /// taken as long as it is by then.
    pub(super) fn prepare(&self, length: u64, until: u64) {
        loop {
            let mut preparing = lock(&self.preparing);
            if preparing.is_none() {
                *preparing = self.begin_spare(length);
            }
            let Some(spare) = &mut *preparing else { return };
            if spare.at >= until.min(spare.length) {
                return;
            }
            let some = (spare.length - spare.at).min(PREPARE_BYTES) as usize;
            // In small steps, so that no commit waits for long behind one.
            let step = spare.file.write_at(&vec![0; some], spare.at).and_then(|()| spare.file.sync());
            spare.at += some as u64;
            let done = spare.at >= spare.length;
            if done || step.is_err() {
                let spare = preparing.take();
                drop(preparing);
                self.end_spare(spare, step);
                return;
            }
            drop(preparing);
            if self.spare_wanted.load(Ordering::Acquire) {
                // The lock is about to be asked for; it is not taken again at once.
                sync::yield_now();
            }
        }
    }

    fn begin_spare(&self, length: u64) -> Option<Spare> {
        let enough = lock(&self.inner).spares.len() >= self.options.spares_max;
        if enough || self.kind != FsKind::InPlace || !self.has_room(length) {
            return None;
        }
        let (name, path) = self.new_spare()?;
        match self.fs.create(&path) {
            Ok(file) => Some(Spare { name, file, at: 0, length }),
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "a file could not be prepared");
                None
            }
        }
    }

    fn end_spare(&self, spare: Option<Spare>, step: io::Result<()>) {
        let Some(Spare { name, at, .. }) = spare else { return };
        match step {
            Ok(()) => lock(&self.inner).spares.push((name, at)),
            Err(error) => {
                let path = self.dir.join(name);
                tracing::debug!(path = %path.display(), %error, "a file could not be prepared");
                self.discard(&path);
            }
        }
    }

    /// The longest file that is ready, or as much of the next one as there is.
    fn take_spare(&self, at_least: u64) -> Option<(String, u64)> {
        let spare = {
            let mut inner = lock(&self.inner);
            inner.spares.sort_by_key(|(_, length)| *length);
            inner.spares.pop()
        };
        match spare {
            Some((name, length)) if length < at_least => self.discard(&self.dir.join(name)),
            Some(spare) => return Some(spare),
            None => {}
        }
        self.spare_wanted.store(true, Ordering::Release);
        let taken = lock(&self.preparing).take_if(|spare| spare.at >= at_least);
        self.spare_wanted.store(false, Ordering::Release);
        taken.map(|spare| (spare.name, spare.at))
    }

    fn new_spare(&self) -> Option<(String, PathBuf)> {
        let taken: Vec<String> = self.fs.list(&self.dir).ok()?.into_iter().map(|entry| entry.name).collect();
        let name = (0..).map(|n| format!("{n}{SPARE}")).find(|name| !taken.contains(name))?;
        let path = self.dir.join(&name);
        Some((name, path))
    }

    /// Removes segments in which nothing waits: what supersedes them is durable. One that is long enough is kept to
    /// be used again.
    pub(super) fn remove_segments(&self, dead: &[Segment]) {
        if dead.is_empty() {
            return;
        }
        let mut spares = Vec::new();
        for segment in dead {
            let path = segment.path(&self.dir);
            let spare = self.worth_keeping(segment, &path, spares.len());
            let done = match &spare {
                Some((name, _)) => self.fs.rename(&path, &self.dir.join(name)),
                None => self.fs.remove(&path),
            };
            let mut inner = lock(&self.inner);
            match done {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    // Tried again when the next segment begins.
                    tracing::warn!(path = %path.display(), %error, "a finished segment could not be removed");
                }
                result => {
                    inner.segments.retain(|each| each.number != segment.number);
                    spares.extend(spare.filter(|_| result.is_ok()));
                }
            }
        }
        match self.fs.sync_dir(&self.dir) {
            // Only now: a file must not be found under its old name with a new content.
            Ok(()) => lock(&self.inner).spares.extend(spares),
            // A segment that comes back holds settled entries only.
            Err(error) => {
                tracing::warn!(dir = %self.dir.display(), %error, "the removal of a segment may not be durable");
            }
        }
    }

    /// Never one without a footer: somebody may be about to write it, and would do so whatever the file is by then.
    fn worth_keeping(&self, segment: &Segment, path: &std::path::Path, kept: usize) -> Option<(String, u64)> {
        let (wanted, spares) = {
            let inner = lock(&self.inner);
            (inner.capacity / 2, inner.spares.len() + kept)
        };
        if self.kind != FsKind::InPlace
            || segment.merged
            || !segment.footer
            || spares >= self.options.spares_max
        {
            return None;
        }
        let length = self.fs.open(path, false).and_then(|file| file.len()).ok()?;
        let name = format!("{}{SPARE}", Segment::file_name(segment.number));
        (length >= wanted.max(1) && length <= self.options.segment_bytes_max.saturating_mul(2))
            .then_some((name, length))
    }
}
