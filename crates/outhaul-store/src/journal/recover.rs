//! Opening a journal: what is valid, what is a torn tail, what is damage.
//!
//! 1. Every file that is named like a segment tells which one it is: by its header, else by its first record. A file
//!    with neither, and no valid batch, is an unfinished creation: removed. A segment that was made of others stands
//!    for them.
//! 2. The newest segment is read whole, unless the log was closed in order. The highest `synced_to` of its batches
//!    divides: what does not verify at or above it was never acknowledged and is passed over; below it, and in every
//!    older segment, it is damage. A copy goes to the quarantine, the place becomes a hole, and everything around it
//!    stays.
//! 3. The newest valid checkpoint is the state; the records behind it are applied to it.
//! 4. What a segment holds is in its footer; one without a valid footer is read whole, and gets one. What is not
//!    settled waits.
//!
//! A record whose body alone is damaged stays in its queue as unreadable; the runtime shows it to a person. A segment
//! that the checkpoint lists and that is not there is reported, and the log goes on without it.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use outhaul_event::wire::Reader;
use outhaul_event::{DecodeError, TargetName};

use super::checkpoint::{Checkpoint, InputState, Listed};
use super::commit::RESERVE;
use super::footer::{Footer, Row};
use super::format::{self, FLAG_CLEAN, FORMAT, FORMAT_MIN, Kind, SEGMENT_HEADER, SegmentHeader};
use super::mark::{END, EndMark};
use super::progress::OpenWatch;
use super::scan::{self, Scanner, Step, readable};
use super::segment::Segment;
use super::survey::{Control, Cut, MergedNote, Survey, find_end, first_record, read_checkpoint, survey};
use crate::error::StoreError;
use crate::fs::{File, FileSystem};
use crate::log::{Damage, OpenReport};
use crate::queue::{Overlap, QueueId, Queues, Runs};

/// What was found, ready to go on from.
#[derive(Debug, Default)]
pub(crate) struct Recovered {
    pub(crate) queues: Queues,
    pub(crate) segments: Vec<Segment>,
    /// Files that are ready to become segments, with their lengths.
    pub(crate) spares: Vec<(String, u64)>,
    pub(crate) next_sequence: u64,
    pub(crate) next_number: u64,
    pub(crate) next_base: u64,
    pub(crate) epoch: u64,
    pub(crate) input: Option<InputState>,
    pub(crate) report: OpenReport,
    /// The segments in which something is damaged.
    pub(crate) damaged: Vec<u64>,
    /// Files in which nothing valid is.
    unfinished: Vec<(u64, Arc<dyn File>, u64)>,
    /// What the checkpoint says of the segments, and which of them were removed since.
    listed: Vec<Listed>,
    removed: BTreeSet<u64>,
    pub(crate) clean: bool,
}

pub(crate) struct Recovery<'a> {
    pub(crate) fs: &'a dyn FileSystem,
    pub(crate) dir: &'a Path,
    pub(crate) quarantine: &'a Path,
    /// Changes nothing on disk.
    pub(crate) read_only: bool,
    /// Reads every record, whatever the footers say.
    pub(crate) verify: bool,
    pub(crate) watch: &'a OpenWatch,
}

/// A segment while it is being recovered.
pub(super) struct Found {
    pub(super) segment: Segment,
    pub(super) file: Arc<dyn File>,
    pub(super) length: u64,
    pub(super) format: u32,
    footer: Option<Footer>,
    /// The footer that is there, where every record is read whatever it says.
    known: Option<Footer>,
    survey: Option<Survey>,
    replaces: Vec<u64>,
}

enum Identity {
    Known { found: Box<Found>, header_lost: bool },
    Unfinished,
    Unknown,
}

impl Recovery<'_> {
    pub(crate) fn run(&self) -> Result<Recovered, StoreError> {
        let mut out = Recovered { next_sequence: 1, next_number: 1, ..Recovered::default() };
        let mut found = self.identify(&mut out)?;
        self.supersede(&mut found)?;
        let total = found.iter().map(|each| each.length).sum();
        self.watch.begin(total);
        let mark = EndMark::read(self.fs, self.dir);
        if let Some(newest) = found.iter_mut().rev().find(|each| !each.segment.merged) {
            self.end_newest(newest, mark, &mut out.report)?;
        }
        lost_end(&found, mark, &mut out);
        self.state(&mut found, &mut out)?;
        self.unfinished(&mut out)?;
        self.missing(&mut found, &mut out);
        found.sort_by_key(|each| each.segment.first_sequence);
        let firsts: Vec<u64> = found.iter().map(|each| each.segment.first_sequence).collect();
        for (at, each) in found.iter_mut().enumerate() {
            self.count(each, firsts.get(at + 1).copied(), &mut out)?;
        }
        cover_gaps(&mut out.queues, &out.segments);
        out.queues.landed(out.clean);
        Ok(out)
    }

    /// Finds the segments, in the order of their numbers.
    fn identify(&self, out: &mut Recovered) -> Result<Vec<Found>, StoreError> {
        let mut numbers = Vec::new();
        for entry in self.fs.list(self.dir).map_err(StoreError::io("list", self.dir))? {
            match Segment::parse_name(&entry.name).filter(|_| entry.is_file) {
                Some(number) => numbers.push(number),
                None if entry.name == RESERVE || entry.name == END => {}
                None if entry.is_file && entry.name.ends_with(SPARE) => {
                    out.spares.push((entry.name, 0));
                }
                None if entry.is_file && entry.name.ends_with(UNFINISHED) => {
                    if !self.read_only {
                        let path = self.dir.join(&entry.name);
                        self.fs.remove(&path).map_err(StoreError::io("remove", &path))?;
                    }
                }
                None => out.report.foreign.push(entry.name),
            }
        }
        numbers.sort_unstable();
        let mut found = Vec::with_capacity(numbers.len());
        for number in numbers {
            out.next_number = out.next_number.max(number.saturating_add(1));
            let path = self.dir.join(Segment::file_name(number));
            let file = self.fs.open(&path, !self.read_only).map_err(StoreError::io("open", &path))?;
            let length = file.len().map_err(StoreError::io("read", &path))?;
            let identity = self.identify_one(number, &file, length);
            match identity.map_err(StoreError::io("read", &path))? {
                Identity::Known { found: each, header_lost } => {
                    if header_lost {
                        self.mend_header(&each, &mut out.report)?;
                    }
                    found.push(*each);
                }
                Identity::Unfinished => out.unfinished.push((number, file, length)),
                Identity::Unknown => {
                    let reason = "a file that holds batches of another segment, or of none";
                    self.set_aside(number, &*file, length, reason, &mut out.report)?;
                }
            }
        }
        self.drop_twins(&found, &mut out.spares)?;
        Ok(found)
    }

    /// A power cut during a rename may leave a file under both names. One that is a segment is not to be used as a
    /// spare.
    fn drop_twins(&self, found: &[Found], spares: &mut Vec<(String, u64)>) -> Result<(), StoreError> {
        for (name, _) in std::mem::take(spares) {
            let path = self.dir.join(&name);
            let file = self.fs.open(&path, false).map_err(StoreError::io("open", &path))?;
            let mut head = [0; SEGMENT_HEADER as usize];
            let read = readable(file.read_at(&mut head, 0)).map_err(StoreError::io("read", &path))?;
            let header = SegmentHeader::decode(&head[..read.unwrap_or(0)]);
            let twin = header.is_some_and(|header| found.iter().any(|each| each.segment.salt == header.salt));
            // Nothing is worth less than a spare that cannot be read.
            let twin = twin || read.is_none();
            if !twin {
                spares.push((name, file.len().map_err(StoreError::io("read", &path))?));
            } else if !self.read_only {
                self.fs.remove(&path).map_err(StoreError::io("remove", &path))?;
            }
        }
        Ok(())
    }

    fn identify_one(&self, number: u64, file: &Arc<dyn File>, length: u64) -> io::Result<Identity> {
        let mut head = [0; SEGMENT_HEADER as usize];
        let read = file.read_at(&mut head, 0)?;
        let known = |segment: Segment, format, header_lost| {
            let file = Arc::clone(file);
            let (footer, known, survey, replaces) = (None, None, None, Vec::new());
            let found = Found { segment, file, length, format, footer, known, survey, replaces };
            Identity::Known { found: Box::new(found), header_lost }
        };
        if let Some(header) = SegmentHeader::decode(&head[..read]) {
            if header.number != number {
                return Ok(Identity::Unknown);
            }
            let SegmentHeader { salt, base, first_sequence, merged, .. } = header;
            let segment = Segment { number, salt, base, first_sequence, merged, ..Segment::default() };
            let there = readable(Footer::read(&**file, salt, length))?.flatten();
            let (footer, old) = match self.verify {
                true => (None, there),
                false => (there, None),
            };
            // The first record is durable before anything is acknowledged from the segment.
            if footer.is_none() && old.is_none() && !has_batch(&**file, Some(salt), length)? {
                return Ok(Identity::Unfinished);
            }
            let replaces = match merged {
                true => {
                    merged_note(&**file, Some(salt), length)?.map_or(Vec::new(), |(_, note)| note.replaces)
                }
                false => Vec::new(),
            };
            let mut identity = known(segment, header.format, false);
            if let Identity::Known { found, .. } = &mut identity {
                (found.footer, found.known, found.replaces) = (footer, old, replaces);
            }
            return Ok(identity);
        }
        for format in (FORMAT_MIN..=FORMAT).rev() {
            if let Some((batch, checkpoint)) = read_checkpoint(&**file, None, SEGMENT_HEADER, length, format)?
                && checkpoint.number == number
            {
                let (salt, base) = (batch.salt, checkpoint.base);
                let first_sequence = checkpoint.next_sequence;
                let segment = Segment { number, salt, base, first_sequence, ..Segment::default() };
                return Ok(known(segment, format, true));
            }
        }
        if let Some((salt, note)) = merged_note(&**file, None, length)?
            && note.number == number
        {
            let (base, first_sequence) = (note.base, note.first_sequence);
            let segment = Segment { number, salt, base, first_sequence, merged: true, ..Segment::default() };
            let mut identity = known(segment, FORMAT, true);
            if let Identity::Known { found, .. } = &mut identity {
                found.replaces = note.replaces;
            }
            return Ok(identity);
        }
        Ok(if has_batch(&**file, None, length)? { Identity::Unknown } else { Identity::Unfinished })
    }

    /// Segments whose waiting entries are in a merged one go.
    fn supersede(&self, found: &mut Vec<Found>) -> Result<(), StoreError> {
        let replaced: BTreeSet<u64> = found.iter().flat_map(|each| each.replaces.iter().copied()).collect();
        for each in found.iter().filter(|each| replaced.contains(&each.segment.number)) {
            if !self.read_only {
                let path = each.segment.path(self.dir);
                self.fs.remove(&path).map_err(StoreError::io("remove", &path))?;
            }
        }
        found.retain(|each| !replaced.contains(&each.segment.number));
        Ok(())
    }

    /// Decides where the newest segment ends.
    fn end_newest(
        &self,
        newest: &mut Found,
        mark: Option<EndMark>,
        report: &mut OpenReport,
    ) -> Result<(), StoreError> {
        let path = newest.segment.path(self.dir);
        if let Some(footer) = newest.footer.as_ref().or(newest.known.as_ref()) {
            newest.segment.end = footer.end;
            return Ok(());
        }
        let cut = find_end(&*newest.file, &newest.segment, newest.length);
        let Cut { end, confirmed, torn, stale, unreadable } = cut.map_err(StoreError::io("read", &path))?;
        self.must_be_readable(unreadable, &path)?;
        // Behind a clean end nothing was under way: what does not verify before it is damage.
        let closed = mark.filter(|mark| mark.number == newest.segment.number);
        if let Some(mark) = closed.filter(|mark| mark.end > end) {
            newest.segment.end = mark.end;
            return Ok(());
        }
        newest.segment.end = end;
        report.torn_bytes += torn;
        if !self.read_only {
            for offset in stale {
                self.erase(newest, offset)?;
            }
            // A process that was killed leaves valid bytes that only the page cache has; after a sync that failed the
            // operating system takes them for written, so they are written again.
            rewrite(&*newest.file, confirmed, end).map_err(StoreError::io("write", &path))?;
            newest.file.sync().map_err(StoreError::io("sync", &path))?;
        }
        Ok(())
    }

    /// The state of the log is not guessed: what is written from here on would be built upon it.
    fn must_be_readable(&self, unreadable: bool, path: &Path) -> Result<(), StoreError> {
        match unreadable && !self.read_only {
            true => Err(StoreError::io("read", path)(scan::unreadable())),
            false => Ok(()),
        }
    }

    /// The newest valid checkpoint, and what was recorded since.
    fn state(&self, found: &mut [Found], out: &mut Recovered) -> Result<(), StoreError> {
        let mut from = found.len();
        for at in (0..found.len()).rev().filter(|&at| !found[at].segment.merged).collect::<Vec<_>>() {
            if self.closing_checkpoint(&found[at], out)? {
                break;
            }
            self.survey(found, at)?;
            from = at;
            let unreadable = found[at].survey.as_ref().is_some_and(|survey| survey.unreadable);
            self.must_be_readable(unreadable, &found[at].segment.path(self.dir))?;
            let control = found[at].survey.iter().flat_map(|survey| &survey.control);
            if control.into_iter().any(|each| matches!(each, Control::Record(Kind::Checkpoint, _))) {
                break;
            }
        }
        for each in found[from..].iter_mut().filter(|each| !each.segment.merged) {
            let Some(survey) = &mut each.survey else { continue };
            for control in std::mem::take(&mut survey.control) {
                // One that makes no sense is passed over: the worst that follows is a repeated delivery.
                if apply(out, &control, each.format).is_err() {
                    let file = Segment::file_name(each.segment.number);
                    tracing::error!(file, "a record of the journal makes no sense and is passed over");
                }
            }
            out.clean = survey.clean;
        }
        Ok(())
    }

    /// The state of a log that was closed in order, from its last segment.
    fn closing_checkpoint(&self, found: &Found, out: &mut Recovered) -> Result<bool, StoreError> {
        let Some(offset) = found.footer.as_ref().map(|footer| footer.checkpoint).filter(|&at| at > 0) else {
            return Ok(false);
        };
        let Segment { salt, end, .. } = found.segment;
        let end = if end == 0 { found.length } else { end };
        let read = read_checkpoint(&*found.file, Some(salt), offset, end, found.format);
        let path = found.segment.path(self.dir);
        let Some((batch, checkpoint)) = read.map_err(StoreError::io("read", &path))? else {
            return Ok(false);
        };
        out.clean = batch.flags & FLAG_CLEAN != 0;
        restore(out, checkpoint);
        Ok(true)
    }

    /// Reads a segment whole, once.
    fn survey(&self, found: &mut [Found], at: usize) -> Result<(), StoreError> {
        if found[at].survey.is_some() {
            return Ok(());
        }
        let end = match found[at].segment.end {
            0 => sealed_end(found, at),
            end => Some(end),
        };
        found[at].survey = Some(self.survey_one(&found[at], end)?);
        Ok(())
    }

    fn survey_one(&self, each: &Found, end: Option<u64>) -> Result<Survey, StoreError> {
        let path = each.segment.path(self.dir);
        let done = self.watch.done();
        let read = survey(&*each.file, &each.segment, end, each.length, |at| self.watch.reached(done + at));
        let read = read.map_err(StoreError::io("read", &path))?.ok_or(StoreError::Cancelled)?;
        self.watch.reached(done + each.length);
        Ok(read)
    }

    /// Files in which nothing valid is were being created when the process ended, and go; unless the checkpoint knows
    /// better.
    fn unfinished(&self, out: &mut Recovered) -> Result<(), StoreError> {
        for (number, file, length) in std::mem::take(&mut out.unfinished) {
            if length > 0 && out.listed.iter().any(|listed| listed.number == number) {
                let reason = "a segment in which nothing can be read";
                self.set_aside(number, &*file, length, reason, &mut out.report)?;
                continue;
            }
            out.report.torn_bytes += length;
            if !self.read_only {
                let path = self.dir.join(Segment::file_name(number));
                self.fs.remove(&path).map_err(StoreError::io("remove", &path))?;
            }
        }
        Ok(())
    }

    /// Reports the segments that should be there and are not, and tells the others where they end.
    fn missing(&self, found: &mut [Found], out: &mut Recovered) {
        let mut there: BTreeSet<u64> = found.iter().map(|each| each.segment.number).collect();
        there.extend(found.iter().flat_map(|each| each.replaces.iter().copied()));
        for listed in std::mem::take(&mut out.listed).into_iter().filter(|listed| listed.end > 0) {
            if let Some(each) = found.iter_mut().find(|each| each.segment.number == listed.number) {
                each.segment.end = listed.end;
                each.footer.take_if(|footer| footer.end != listed.end);
                each.known.take_if(|footer| footer.end != listed.end);
            } else if !there.contains(&listed.number) && !out.removed.contains(&listed.number) {
                out.next_sequence = out.next_sequence.max(listed.end_sequence);
                let reason = format!(
                    "the segment is missing; of the events {} to {}, up to {} entries that waited are lost",
                    listed.first_sequence,
                    listed.end_sequence.saturating_sub(1),
                    listed.waiting
                );
                let file = Segment::file_name(listed.number);
                let damage = Damage { file, offset: 0, length: listed.end, reason, quarantined: None };
                out.report.damage.push(damage);
            }
        }
        for at in 0..found.len() {
            let end = sealed_end(found, at);
            let segment = &mut found[at].segment;
            if segment.end == 0 && found[at].footer.is_none() {
                segment.end = end.unwrap_or(0);
            }
        }
    }

    /// Counts what waits in a segment; `next` is the first sequence of the one behind it.
    fn count(&self, each: &mut Found, next: Option<u64>, out: &mut Recovered) -> Result<(), StoreError> {
        let path = each.segment.path(self.dir);
        if each.footer.is_none() && each.survey.is_none() {
            let end = (each.segment.end > 0).then_some(each.segment.end);
            each.survey = Some(self.survey_one(each, end)?);
        }
        let counted = match (&each.footer, &each.survey) {
            (Some(footer), None) => {
                let rows = || Ok(readable(footer.rows(&*each.file))?.flatten());
                count(&mut out.queues, &mut each.segment, footer, rows)
                    .map_err(StoreError::io("read", &path))?
            }
            _ => false,
        };
        if !counted {
            let mut survey = match each.survey.take() {
                Some(survey) => survey,
                None => self.survey_one(each, each.footer.as_ref().map(|footer| footer.end))?,
            };
            if survey.unreadable {
                // What could not be read at its end is not settled for that.
                let end = &mut survey.footer.end_sequence;
                *end = next.unwrap_or(*end).max(*end);
                each.segment.pinned = true;
            }
            let known = self.better_than(each, &survey).map_err(StoreError::io("read", &path))?;
            let counted = match &known {
                Some(known) => count(&mut out.queues, &mut each.segment, known, || known.rows(&*each.file)),
                None => count(&mut out.queues, &mut each.segment, &survey.footer, || {
                    Ok(survey.footer.decode_rows(&survey.rows).ok())
                }),
            };
            counted.map_err(StoreError::io("read", &path))?;
            for bad in &survey.bad {
                self.damaged(each, bad, known.is_some(), &mut out.report)?;
            }
            self.tell_broken(each, &survey, &mut out.report)?;
            if !survey.is_sound() {
                out.damaged.push(each.segment.number);
            }
            if known.is_none() {
                self.write_footer(each, &survey);
            }
        }
        let segment = &each.segment;
        out.next_sequence = out.next_sequence.max(segment.end_sequence);
        if !segment.merged {
            out.next_base = out.next_base.max(segment.base + segment.end.max(SEGMENT_HEADER));
        }
        each.segment.replaces = std::mem::take(&mut each.replaces);
        out.segments.push(each.segment.clone());
        Ok(())
    }

    /// The footer from before the damage, where it tells more than what can be derived now.
    fn better_than(&self, each: &mut Found, survey: &Survey) -> io::Result<Option<Footer>> {
        let Some(known) = each.known.take().filter(|_| !survey.is_sound()) else { return Ok(None) };
        Ok(known.rows(&*each.file)?.is_some().then_some(known))
    }

    /// Gives a segment the footer it lacks. It is a convenience: a disk that has no room for it is no obstacle.
    fn write_footer(&self, each: &mut Found, survey: &Survey) {
        if self.read_only || survey.unreadable {
            // The index is in memory alone.
            each.segment.set_index(survey.footer.index.clone());
            return;
        }
        let written = survey.footer.write(&survey.rows, each.segment.salt, &*each.file);
        each.segment.footer = written.and_then(|()| each.file.sync()).is_ok();
        each.segment.set_index(survey.footer.index.clone());
    }
}

/// Reports that the newest segment is missing.
fn lost_end(found: &[Found], mark: Option<EndMark>, out: &mut Recovered) {
    let newest = found.iter().rev().find(|each| !each.segment.merged);
    let number = newest.map_or(0, |each| each.segment.number);
    let Some(mark) = mark.filter(|mark| number < mark.number) else { return };
    out.next_number = out.next_number.max(mark.number.saturating_add(1));
    let reason = "the newest segment is missing; what was in it is lost".to_owned();
    let (file, length) = (Segment::file_name(mark.number), mark.end);
    out.report.damage.push(Damage { file, offset: 0, length, reason, quarantined: None });
}

/// A file that is ready to become a segment.
pub(super) const SPARE: &str = ".spare";
/// A file that is being made.
pub(super) const UNFINISHED: &str = ".tmp";

/// Writes a stretch of a file once more, as it is read.
fn rewrite(file: &dyn File, from: u64, end: u64) -> io::Result<()> {
    let mut chunk = vec![0; 1 << 20];
    let mut at = from;
    while at < end {
        let want = usize::try_from(end - at).unwrap_or(usize::MAX).min(chunk.len());
        let read = file.read_at(&mut chunk[..want], at)?;
        if read == 0 {
            return Ok(());
        }
        file.write_at(&chunk[..read], at)?;
        at += read as u64;
    }
    Ok(())
}

/// A segment ends where the next one begins.
fn sealed_end(found: &[Found], at: usize) -> Option<u64> {
    let segment = &found[at].segment;
    let next = &found[at + 1..].iter().find(|each| !each.segment.merged)?.segment;
    let follows = !segment.merged && next.number == segment.number + 1;
    follows.then(|| next.base.saturating_sub(segment.base))
}

fn merged_note(file: &dyn File, salt: Option<u64>, length: u64) -> io::Result<Option<(u64, MergedNote)>> {
    let Some((header, body)) = first_record(file, salt, SEGMENT_HEADER, length, Kind::Merged)? else {
        return Ok(None);
    };
    Ok(MergedNote::decode(&body).ok().map(|note| (header.salt, note)))
}

fn has_batch(file: &dyn File, salt: Option<u64>, length: u64) -> io::Result<bool> {
    let mut scanner = Scanner::new(file, salt, SEGMENT_HEADER, length);
    let found = matches!(scanner.step()?, Step::Batch { .. } | Step::Bad { .. });
    if found || !scanner.met_unreadable() { Ok(found) } else { Err(scan::unreadable()) }
}

fn restore(out: &mut Recovered, checkpoint: Checkpoint) {
    out.epoch = checkpoint.epoch;
    out.next_sequence = checkpoint.next_sequence.max(1);
    out.input = checkpoint.input;
    out.listed = checkpoint.segments;
    out.removed.clear();
    out.queues = Queues::default();
    for each in checkpoint.queues {
        let id = each.number;
        let removed = each.name.is_none();
        declare(&mut out.queues, id, each.name);
        let queue = out.queues.get_mut(id);
        (queue.label, queue.last) = (each.label, each.last);
        (queue.settled, queue.retries) = (each.settled, each.retries);
        (queue.crashes, queue.in_flight) = (each.crashes, each.in_flight);
        if removed {
            out.queues.forget(id);
        }
    }
}

/// Applies what one record says to the state.
fn apply(out: &mut Recovered, control: &Control, format: u32) -> Result<(), DecodeError> {
    let (kind, body) = match control {
        Control::Record(kind, body) => (*kind, &body[..]),
        Control::Position(position) => {
            if let Some(input) = &mut out.input {
                input.admitted.insert(*position, *position);
            }
            return Ok(());
        }
    };
    let mut reader = Reader::new(body);
    match kind {
        Kind::Checkpoint => restore(out, Checkpoint::decode(body, format)?),
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
            for (first, last) in format::read_runs(&mut reader)?.iter() {
                out.queues.get_mut(id).settle_run(first, last);
            }
        }
        Kind::Retry => {
            let id = queue_id(&mut reader)?;
            declare(&mut out.queues, id, None);
            let (sequence, state) = format::read_retry(&mut reader)?;
            let queue = out.queues.get_mut(id);
            if queue.wants(sequence) {
                queue.retries.insert(sequence, state);
            }
        }
        Kind::InFlight => {
            let id = queue_id(&mut reader)?;
            declare(&mut out.queues, id, None);
            out.queues.get_mut(id).in_flight = format::read_sequences(&mut reader)?;
        }
        Kind::Dropped => {
            let id = queue_id(&mut reader)?;
            let last = reader.varint()?;
            declare(&mut out.queues, id, None);
            out.queues.get_mut(id).last = last;
            out.queues.forget(id);
        }
        Kind::Input => {
            out.input = Some(InputState { note: Bytes::copy_from_slice(body), admitted: Runs::default() });
        }
        Kind::Epoch => out.epoch = out.epoch.max(reader.varint()?),
        Kind::Removed => out.removed.extend(format::read_sequences(&mut reader)?),
        Kind::Event | Kind::Moved | Kind::Merged => {}
    }
    Ok(())
}

fn queue_id(reader: &mut Reader<'_>) -> Result<QueueId, DecodeError> {
    QueueId::try_from(reader.varint()?).map_err(|_| DecodeError::Impossible(0))
}

/// The name of a queue whose own was lost.
fn placeholder(id: QueueId) -> Option<TargetName> {
    TargetName::new(&format!("lost-{id}")).ok()
}

/// Has a queue under a number. One whose name was lost to damage gets another: its entries stay.
fn declare(queues: &mut Queues, id: QueueId, name: Option<TargetName>) {
    match name {
        Some(name) if queues.contains(id) => queues.rename(id, name),
        None if queues.contains(id) => {}
        name => {
            if let Some(name) = name.or_else(|| placeholder(id)) {
                queues.declare(id, name);
            }
        }
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

/// Counts what waits of a segment; false, and nothing is counted, if the rows are needed and are not there.
fn count(
    queues: &mut Queues,
    segment: &mut Segment,
    footer: &Footer,
    rows: impl FnOnce() -> io::Result<Option<Vec<Row>>>,
) -> io::Result<bool> {
    let (first, end) = (footer.first_sequence, footer.end_sequence);
    let last = end.saturating_sub(1).max(first);
    footer.totals.iter().for_each(|total| declare(queues, total.queue, None));
    let overlap = |queues: &Queues, id| queues.get(id).settled.overlap(first, last);
    let rows = match footer.totals.iter().any(|total| overlap(queues, total.queue) == Overlap::Part) {
        false => Vec::new(),
        true => match rows()? {
            Some(rows) => rows,
            None => return Ok(false),
        },
    };
    (segment.end, segment.end_sequence) = (footer.end, end);
    segment.footer = true;
    segment.stored_bytes = footer.totals.iter().map(|total| total.bytes).sum();
    for total in &footer.totals {
        let id = total.queue;
        let (mut entries, mut bytes) = (0, 0);
        match overlap(queues, id) {
            Overlap::All => {}
            Overlap::None => (entries, bytes) = (total.entries, total.bytes),
            Overlap::Part => {
                let settled = &queues.get(id).settled;
                let wanted = rows.iter().filter(|row| footer.queues(row).contains(&id));
                for row in wanted.filter(|row| !settled.contains(row.sequence)) {
                    (entries, bytes) = (entries + 1, bytes + row.length);
                }
            }
        }
        queues.get_mut(id).recovered(total.last, entries, bytes);
        if entries > 0 && !queues.get(id).removed {
            segment.add(id, entries, bytes);
        }
    }
    Ok(true)
}

#[cfg(all(test, feature = "testkit"))]
#[expect(clippy::unwrap_used, reason = "a failed expectation ends a test")]
mod tests;
