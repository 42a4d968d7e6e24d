//! A round of the commit: everything that waits becomes one batch, one write, one sync.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use outhaul_event::wire::put_varint;

use super::checkpoint::InputState;
use super::footer::FooterBuilder;
use super::format::{
    BatchBuilder, FLAG_CLEAN, Kind, Mark, RecordHeader, put_queue, put_retry, put_runs, put_sequences,
};
use super::segment::Segment;
use super::turn::{Call, Encoded, Inner, UnitReply};
use super::{Shared, lock, sync};
use crate::error::{AppendError, StoreError, is_full};
use crate::fs::File;
use crate::log::Durability;
use crate::queue::{QueueId, Queues, Runs, Unwritten};

/// The file in the log's directory whose space is held back.
pub(super) const RESERVE: &str = "reserve";
/// How long settlements wait after the disk was full.
const FULL_BACKOFF: Duration = Duration::from_secs(1);

/// The writing end of the log; whoever has it is its only writer.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) active: Option<Active>,
    pub(super) next_sequence: u64,
    pub(super) next_number: u64,
    pub(super) next_base: u64,
    /// Per queue the newest sequence that was given out.
    last: BTreeMap<QueueId, u64>,
    /// The epoch that was written down.
    pub(super) epoch: u64,
    pub(super) builder: BatchBuilder,
    buffer: Vec<u8>,
    /// The disk was full, or the reserve is not there.
    pub(super) starved: bool,
    closed: bool,
}

#[derive(Debug)]
pub(super) struct Active {
    pub(super) file: Arc<dyn File>,
    pub(super) salt: u64,
    pub(super) base: u64,
    /// Where the next batch goes.
    pub(super) offset: u64,
    /// Everything before this is durable.
    pub(super) synced: u64,
    /// Where the first batch after the checkpoint starts.
    pub(super) start: u64,
    /// A segment is left when it would become longer.
    pub(super) capacity: u64,
    /// The next file is to be prepared so far.
    pub(super) asked: u64,
    /// The batches in it, without the checkpoint.
    pub(super) batches: u64,
    /// What its footer will say; None if that became too much to keep, or if the file is to be read first.
    pub(super) footer: Option<FooterBuilder>,
}

impl Active {
    /// Notes a batch for the footer.
    fn note(&mut self, first_sequence: u64, offset: u64, entries_start: usize, calls: &[Call]) {
        let Some(footer) = &mut self.footer else { return };
        footer.batch(first_sequence, offset);
        let mut start = entries_start;
        for event in events_of(calls) {
            let (length, targets) = (event.length(), event.targets.clone());
            let (sequence, crc) = (event.sequence, event.crc);
            let record = RecordHeader { kind: Kind::Event, sequence, start, length, crc, targets };
            footer.entry(&record, offset, event.hashes);
            start += length;
        }
        if footer.is_large() {
            self.footer = None;
        }
    }
}

/// What one round took from the queue of calls, to be answered at its end.
#[derive(Default)]
pub(super) struct Taken {
    calls: Vec<Call>,
    inputs: Vec<(Bytes, UnitReply)>,
    flushes: Vec<UnitReply>,
    unwritten: Vec<(QueueId, Unwritten)>,
    positions: Runs,
    dead: Vec<Segment>,
}

/// Why a batch is not on disk.
pub(super) enum WriteFailure {
    /// The disk is full; the file is as it was.
    Full,
    /// No new segment could be started; nothing of the batch was written.
    NotBegun(StoreError),
    /// Nobody knows what is on disk.
    Unknown(String),
}

impl Core {
    pub(super) fn new(queues: &Queues, next_sequence: u64, next_number: u64, next_base: u64) -> Self {
        Self {
            active: None,
            next_sequence,
            next_number,
            next_base,
            last: given(queues),
            epoch: 0,
            builder: BatchBuilder::default(),
            buffer: Vec::new(),
            starved: false,
            closed: false,
        }
    }

    /// Whether a batch of this length is for the next segment.
    fn must_turn(&self, length: u64) -> bool {
        self.active.as_ref().is_none_or(|active| {
            active.offset > active.start && active.offset.saturating_add(length) > active.capacity
        })
    }
}

/// Per queue the newest sequence.
fn given(queues: &Queues) -> BTreeMap<QueueId, u64> {
    queues.iter().map(|(id, queue)| (id, queue.last)).collect()
}

impl Shared {
    /// Writes whatever waits. `idle`: nothing came for a while, so a batch may say that all is durable.
    pub(super) fn round(&self, core: &mut Core, idle: bool) {
        let began = sync::now();
        let (mut taken, calls, sync) = self.take(core, idle, began);
        if self.writable().is_err() || core.closed {
            let error = self.writable().err().unwrap_or(StoreError::Closed);
            refuse(taken, calls, &error);
            return;
        }
        let calls = match core.starved && !self.find_space(core) {
            true => self.refuse_full(calls),
            false => calls,
        };
        core.builder.clear();
        self.add_control(core, &mut taken);
        let first_sequence = core.next_sequence;
        taken.calls = calls;
        for event in taken.calls.iter_mut().flat_map(|call| call.events.iter_mut().flatten()) {
            add_event(core, event, &mut taken.positions);
        }
        let marked = lock(&self.inner).marked;
        let nothing = core.builder.is_empty() && (!idle || marked);
        // A mark vouches for what is before it.
        let before = self.sync_only(core, sync && (nothing || idle));
        let mut written = match before {
            Ok(()) if nothing => Ok(None),
            Err(failure) => Err(failure),
            Ok(()) => self.write_batch(core, first_sequence, 0, sync, &taken.calls).map(Some),
        };
        if matches!(written, Err(WriteFailure::Full)) {
            self.starved(core);
            // What is held back is for whatever is no event; it does not wait for a round without events.
            self.take_back(core, first_sequence);
            taken.refuse_events(|| AppendError::DiskFull(self.dir.clone()));
            core.builder.clear();
            self.add_control(core, &mut taken);
            if core.builder.is_empty() {
                // A flush has nothing to wait for.
                written = self.sync_only(core, sync).map(|()| None);
            } else if self.release_space() {
                written = self.write_batch(core, first_sequence, 0, sync, &[]).map(Some);
            }
        }
        match written {
            Ok(offset) => self.publish(core, taken, offset.map(|at| (first_sequence, at)), began, sync),
            Err(WriteFailure::Full) => {
                self.take_back(core, first_sequence);
                let source = Arc::new(io::ErrorKind::StorageFull.into());
                let error = StoreError::Io { what: "write to", path: self.dir.clone(), source };
                self.put_back(taken, || AppendError::DiskFull(self.dir.clone()), &error);
            }
            Err(WriteFailure::NotBegun(error)) => {
                self.take_back(core, first_sequence);
                self.put_back(taken, || AppendError::Store(error.clone()), &error);
            }
            Err(WriteFailure::Unknown(reason)) => {
                let answer: Arc<str> = reason.as_str().into();
                self.put_back(
                    taken,
                    || AppendError::Unknown(Arc::clone(&answer)),
                    &StoreError::Failed(Arc::clone(&answer)),
                );
                self.heal(core, &reason);
            }
        }
    }

    fn must_sync(&self, inner: &Inner, idle: bool, now: Instant) -> bool {
        let asked = idle || inner.closing || !inner.flushes.is_empty() || !inner.input_calls.is_empty();
        match self.options.durability {
            Durability::Synced => true,
            Durability::Interval(every) => asked || inner.unsynced_since.is_some_and(|at| at + every <= now),
            Durability::Buffered => asked,
        }
    }

    fn writable(&self) -> Result<(), StoreError> {
        if self.options.read_only {
            return Err(StoreError::Closed);
        }
        lock(&self.inner).failure.clone().map_or(Ok(()), Err)
    }

    /// Takes what waits, and the segments that may go once this round is durable; and whether it is to be synced: a
    /// flush that is taken is.
    fn take(&self, core: &Core, idle: bool, now: Instant) -> (Taken, Vec<Call>, bool) {
        let mut inner = lock(&self.inner);
        let sync = self.must_sync(&inner, idle, now);
        let calls = inner.take_calls();
        let mut taken = Taken { inputs: inner.take_inputs(), ..Taken::default() };
        // A flush covers the settlements before it; those are all taken in this round.
        taken.flushes = inner.take_flushes();
        inner.unwritten_since = None;
        inner.not_before = None;
        // Without an active segment the newest checkpoint is in a sealed one.
        if core.active.is_some() && sync {
            let sealed = inner.segments.len().saturating_sub(1);
            let dead = inner.segments[..sealed].iter_mut();
            for segment in dead.filter(|segment| segment.is_finished() && !segment.going) {
                segment.going = true;
                taken.dead.push(segment.clone());
            }
        }
        let mut queues = self.queues.lock();
        for (id, queue) in queues.iter_mut().filter(|(_, queue)| queue.unwritten.any()) {
            taken.unwritten.push((id, std::mem::take(&mut queue.unwritten)));
        }
        (taken, calls, sync)
    }

    /// Records that are no events, in front of them: an event's queue is known before it.
    fn add_control(&self, core: &mut Core, taken: &mut Taken) {
        let epoch = self.epoch.load(Ordering::Acquire);
        if core.epoch != epoch {
            core.builder.add(Kind::Epoch, |out| put_varint(out, epoch));
            core.epoch = epoch;
        }
        let queues = self.queues.lock();
        for (id, unwritten) in &taken.unwritten {
            let queue = queues.get(*id);
            if unwritten.declaration && !queue.removed {
                core.builder.add(Kind::Queue, |out| put_queue(out, *id, queue.name.as_str(), &queue.label));
            }
            let id = u64::from(*id);
            if !unwritten.settled.is_empty() {
                core.builder.add(Kind::Settled, |out| {
                    put_varint(out, id);
                    put_runs(out, &unwritten.settled);
                });
            }
            for (&sequence, &state) in &unwritten.retries {
                core.builder.add(Kind::Retry, |out| {
                    put_varint(out, id);
                    put_retry(out, sequence, state);
                });
            }
            if unwritten.in_flight {
                core.builder.add(Kind::InFlight, |out| {
                    put_varint(out, id);
                    put_sequences(out, &queue.in_flight);
                });
            }
            if unwritten.removal {
                core.builder.add(Kind::Dropped, |out| {
                    put_varint(out, id);
                    put_varint(out, queue.last);
                });
            }
        }
        for (note, _) in &taken.inputs {
            core.builder.add(Kind::Input, |out| out.extend_from_slice(note));
        }
        if !taken.dead.is_empty() {
            let all = taken
                .dead
                .iter()
                .flat_map(|segment| [segment.number].into_iter().chain(segment.replaces.iter().copied()));
            let numbers: Vec<u64> = all.collect();
            core.builder.add(Kind::Removed, |out| put_sequences(out, &numbers));
        }
    }

    /// Writes the collected batch, and syncs it if asked, in a new segment if the active one is full; returns where
    /// it went.
    fn write_batch(
        &self,
        core: &mut Core,
        first_sequence: u64,
        flags: u32,
        sync: bool,
        calls: &[Call],
    ) -> Result<u64, WriteFailure> {
        if core.must_turn(core.builder.length()) {
            self.turn(core, first_sequence)?;
        }
        let Core { active, builder, buffer, .. } = core;
        let Some(active) = active else { return Err(WriteFailure::Unknown("no segment is open".to_owned())) };
        let (salt, synced_to) = (active.salt, active.base + active.synced);
        let mark = Mark { salt, synced_to, first_sequence, flags };
        buffer.clear();
        let all = events_of(calls).flat_map(Encoded::slices);
        let packed = self.options.compress && builder.compressed(mark, all.clone(), buffer);
        if !packed {
            builder.head(mark, buffer);
        }
        let rest = all.filter(|_| !packed).map(IoSlice::new);
        let mut slices: Vec<_> = std::iter::once(IoSlice::new(buffer)).chain(rest).collect();
        let written: usize = slices.iter().map(|slice| slice.len()).sum();
        let offset = active.offset;
        if let Err(error) = active.file.write_vectored_at(&mut slices, offset) {
            // What was written of it is no batch: the next one goes over it.
            return Err(match is_full(&error) {
                true => WriteFailure::Full,
                false => WriteFailure::Unknown(format!("a write failed: {error}")),
            });
        }
        active.offset += written as u64;
        active.batches += 1;
        active.note(first_sequence, offset, builder.entries_start(), calls);
        self.sync_only(core, sync).map(|()| offset)
    }

    /// Goes on in a new segment.
    fn turn(&self, core: &mut Core, first_sequence: u64) -> Result<(), WriteFailure> {
        self.sync_only(core, true)?;
        self.start_segment(core, first_sequence).map_err(|error| match error {
            error if error.is_disk_full() => WriteFailure::Full,
            error => WriteFailure::NotBegun(error),
        })
    }

    /// Makes what was written durable.
    pub(super) fn sync_only(&self, core: &mut Core, sync: bool) -> Result<(), WriteFailure> {
        let Some(active) = core.active.as_mut().filter(|active| sync && active.synced < active.offset) else {
            return Ok(());
        };
        match active.file.sync() {
            Ok(()) => {
                active.synced = active.offset;
                Ok(())
            }
            Err(error) => Err(WriteFailure::Unknown(format!("the disk did not confirm a write: {error}"))),
        }
    }

    fn refuse_full(&self, calls: Vec<Call>) -> Vec<Call> {
        for call in calls {
            call.refuse(|event| event.is_ok(), || AppendError::DiskFull(self.dir.clone()));
        }
        Vec::new()
    }

    /// Counts what is in the log, and answers.
    fn publish(
        &self,
        core: &mut Core,
        taken: Taken,
        written: Option<(u64, u64)>,
        began: Instant,
        sync: bool,
    ) {
        {
            let mut inner = lock(&self.inner);
            let mut queues = self.queues.lock();
            if let Some((first_sequence, offset)) = written {
                inner.marked = core.builder.is_empty();
                if let (Some(segment), Some(active)) = (inner.segments.last_mut(), &core.active) {
                    segment.index(first_sequence, offset);
                    segment.end_sequence = core.next_sequence;
                    segment.end = active.offset;
                    for event in events_of(&taken.calls) {
                        // A queue may have been removed in the meantime.
                        let there = event.targets.iter().filter(|(id, _)| !queues.get(*id).removed);
                        there.for_each(|(id, _)| segment.add(*id, 1, event.length() as u64));
                    }
                    inner.room = active.capacity.saturating_sub(active.offset);
                }
            }
            if sync {
                inner.unsynced_since = None;
            } else if written.is_some() {
                inner.unsynced_since.get_or_insert(began);
            }
            for (note, _) in &taken.inputs {
                inner.input = Some(InputState { note: note.clone(), admitted: Runs::default() });
            }
            if let Some(input) = &mut inner.input {
                for (first, last) in taken.positions.iter() {
                    input.admitted.insert(first, last);
                }
            }
            let events = events_of(&taken.calls);
            for event in events.clone() {
                queues.admit(&event.admission, event.sequence, event.length() as u64);
            }
            for event in events.rev() {
                queues.announce(event.admission.granted(), event.sequence);
            }
            // A removed queue wants nothing of what came in the meantime.
            for (id, _) in taken.unwritten.iter().filter(|(_, unwritten)| unwritten.removal) {
                inner.segments.iter_mut().for_each(|segment| segment.forget(*id));
            }
            let bytes = written.map_or(0, |_| core.builder.length());
            inner.gather(taken.calls.len(), bytes, began.elapsed());
        }
        for call in taken.calls {
            call.reply.send(call.events);
        }
        for reply in taken.inputs.into_iter().map(|(_, reply)| reply).chain(taken.flushes) {
            reply.send(Ok(()));
        }
        self.upkeep(core, taken.dead);
    }

    /// Nothing of a batch was written: its sequences are free again.
    fn take_back(&self, core: &mut Core, first_sequence: u64) {
        core.next_sequence = first_sequence;
        self.forget_given(core);
    }

    pub(super) fn forget_given(&self, core: &mut Core) {
        core.last = given(&self.queues.lock());
        // Whatever epoch was in the batch is to be written again.
        core.epoch = 0;
    }

    /// Refuses the events of a round and puts everything else back for a later one.
    fn put_back(&self, mut taken: Taken, refused: impl Fn() -> AppendError, error: &StoreError) {
        let mut inner = lock(&self.inner);
        {
            let mut queues = self.queues.lock();
            for (id, unwritten) in std::mem::take(&mut taken.unwritten) {
                queues.get_mut(id).put_back(unwritten);
            }
        }
        for segment in &taken.dead {
            for each in inner.segments.iter_mut().filter(|each| each.number == segment.number) {
                each.going = false;
            }
        }
        let now = sync::now();
        inner.unwritten_since.get_or_insert(now);
        inner.not_before = Some(now + FULL_BACKOFF);
        drop(inner);
        taken.fail(refused, error);
    }

    /// The last write of a log that is being closed: the state, so that the next open has nothing to work out.
    pub(super) fn finish(&self) -> Result<(), StoreError> {
        let mut core = lock(&self.core);
        if core.closed || self.options.read_only {
            return Ok(());
        }
        self.round(&mut core, false);
        while lock(&self.inner).asked() {
            self.round(&mut core, false);
        }
        self.writable()?;
        let checkpoint = match self.write_closing(&mut core) {
            Ok(offset) => {
                // The footer goes behind it.
                let active = core.active.as_ref().map(|active| active.offset);
                if let (Some(segment), Some(end)) = (lock(&self.inner).segments.last_mut(), active) {
                    segment.end = end;
                }
                offset
            }
            // The mark is a courtesy: everything acknowledged is durable without it.
            Err(WriteFailure::Full | WriteFailure::NotBegun(_)) => 0,
            Err(WriteFailure::Unknown(reason)) => {
                core.closed = true;
                return Err(StoreError::Failed(reason.into()));
            }
        };
        core.closed = true;
        let last = lock(&self.inner).segments.last().map(|segment| (segment.number, segment.end));
        if let Some((number, end)) = last.filter(|_| checkpoint > 0) {
            self.mark_end(number, end);
        }
        self.seal(&mut core, checkpoint);
        core.active = None;
        Ok(())
    }

    fn write_closing(&self, core: &mut Core) -> Result<u64, WriteFailure> {
        let next = core.next_sequence;
        core.builder.clear();
        self.add_closing_checkpoint(core);
        if core.must_turn(core.builder.length()) {
            // It names the segment that it is in, and lists the others.
            self.turn(core, next)?;
            core.builder.clear();
            self.add_closing_checkpoint(core);
        }
        self.write_batch(core, next, FLAG_CLEAN, true, &[])
    }
}

fn refuse(taken: Taken, calls: Vec<Call>, error: &StoreError) {
    for call in calls {
        call.refuse(|_| true, || AppendError::Store(error.clone()));
    }
    taken.fail(|| AppendError::Store(error.clone()), error);
}

impl Taken {
    /// Answers the calls of a round that writes no events.
    fn refuse_events(&mut self, error: impl Fn() -> AppendError) {
        self.positions = Runs::default();
        for call in std::mem::take(&mut self.calls) {
            // An event for nobody was not to be written: it has no sequence.
            call.refuse(|event| event.as_ref().is_ok_and(|event| event.sequence > 0), &error);
        }
    }

    fn fail(mut self, append: impl Fn() -> AppendError, error: &StoreError) {
        self.refuse_events(append);
        for reply in self.inputs.into_iter().map(|(_, reply)| reply).chain(self.flushes) {
            reply.send(Err(error.clone()));
        }
    }
}

/// Gives an event its sequence, and adds it to the batch.
fn add_event(core: &mut Core, event: &mut Encoded, positions: &mut Runs) {
    let granted = event.admission.granted();
    if granted.is_empty() && event.admission.position.is_none() {
        return;
    }
    let sequence = core.next_sequence;
    core.next_sequence += 1;
    let gap = |&id| (id, sequence - core.last.insert(id, sequence).unwrap_or(0));
    event.targets = granted.iter().map(gap).collect();
    event.sequence = sequence;
    core.builder.add_event(event.length(), event.crc, &event.targets);
    if let Some(position) = event.admission.position {
        positions.insert(position, position);
    }
}

/// The events of a batch.
fn events_of(calls: &[Call]) -> impl DoubleEndedIterator<Item = &Encoded> + Clone {
    calls.iter().flat_map(|call| call.events.iter().flatten()).filter(|event| event.sequence > 0)
}
