//! A round of the commit: everything that waits becomes one batch, one write, one sync.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use outhaul_event::wire::put_varint;
use tokio::sync::oneshot;

use super::checkpoint::{Checkpoint, InputState};
use super::format::{
    BatchBuilder, EventRecord, FLAG_CLEAN, Kind, SegmentHeader, put_queue, put_retry, put_runs, to_millis,
};
use super::segment::Segment;
use super::{Shared, lock};
use crate::error::{AppendError, StoreError, is_full};
use crate::fs::File;
use crate::log::{Admission, Origin, Receipt};
use crate::queue::{QueueId, Queues, Runs, Unwritten};

/// Calls are taken into one batch until they have this many bytes.
const BATCH_BYTES_MAX: u64 = 1 << 20;
/// The file in the log's directory whose space is held back.
pub(super) const RESERVE: &str = "reserve";
/// How long settlements wait after the disk was full.
const FULL_BACKOFF: Duration = Duration::from_secs(1);

/// The writing end of the log; whoever has it is its only writer.
#[derive(Debug)]
pub(super) struct Core {
    active: Option<Active>,
    next_sequence: u64,
    next_number: u64,
    next_base: u64,
    /// Per queue the newest sequence that was given out.
    last: Vec<u64>,
    /// The epoch that was written down.
    epoch: u64,
    builder: BatchBuilder,
    buffer: Vec<u8>,
    /// The disk was full, or the reserve is not there.
    starved: bool,
    closed: bool,
}

#[derive(Debug)]
struct Active {
    file: Arc<dyn File>,
    salt: u64,
    base: u64,
    /// Where the next batch goes; everything before it is durable.
    offset: u64,
    /// Where the first batch after the checkpoint starts.
    start: u64,
}

/// What one round took from the queue of calls, to be answered at its end.
#[derive(Default)]
struct Taken {
    answers: Vec<Answer>,
    events: Vec<EventDone>,
    inputs: Vec<(Bytes, oneshot::Sender<Result<(), StoreError>>)>,
    flushes: Vec<oneshot::Sender<Result<(), StoreError>>>,
    unwritten: Vec<(QueueId, Unwritten)>,
    positions: Runs,
}

struct Answer {
    results: Vec<Result<Receipt, AppendError>>,
    /// Which results stand for written events.
    written: Vec<usize>,
    /// Their reservations, kept until the entries count themselves.
    admissions: Vec<Admission>,
    reply: oneshot::Sender<Vec<Result<Receipt, AppendError>>>,
}

struct EventDone {
    sequence: u64,
    length: u64,
    origin: Origin,
    queues: Vec<QueueId>,
}

/// Why a batch is not on disk.
enum WriteFailure {
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
            last: queues.iter().map(|(_, queue)| queue.last).collect(),
            epoch: 0,
            builder: BatchBuilder::default(),
            buffer: Vec::new(),
            starved: false,
            closed: false,
        }
    }

    fn last_mut(&mut self, id: QueueId) -> &mut u64 {
        let at = id as usize;
        if at >= self.last.len() {
            self.last.resize(at + 1, 0);
        }
        &mut self.last[at]
    }
}

impl Shared {
    /// Writes whatever waits. `idle`: nothing came for a while, so a batch may say that all is durable.
    pub(super) fn round(&self, core: &mut Core, idle: bool) {
        let (mut taken, calls, dead) = self.take(core);
        if self.alive_in_round().is_err() || core.closed {
            let error = self.alive_in_round().err().unwrap_or(StoreError::Closed);
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
        for call in calls {
            let answer = self.add_call(core, call, &mut taken);
            taken.answers.push(answer);
        }
        let marked = lock(&self.inner).marked;
        if core.builder.is_empty() && (!idle || marked) {
            self.publish(taken, None, &dead);
            return;
        }
        let mut written = self.write_batch(core, first_sequence, 0);
        if matches!(written, Err(WriteFailure::Full)) {
            core.starved = true;
            // What is held back is for whatever is no event.
            if taken.events.is_empty() && self.release_reserve() {
                written = self.write_batch(core, first_sequence, 0);
            }
        }
        match written {
            Ok(offset) => self.publish(taken, Some((first_sequence, offset, core)), &dead),
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
                self.fail(&reason);
                let reason: Arc<str> = reason.into();
                taken.fail(
                    || AppendError::Unknown(Arc::clone(&reason)),
                    &StoreError::Failed(Arc::clone(&reason)),
                );
            }
        }
    }

    fn alive_in_round(&self) -> Result<(), StoreError> {
        if self.options.read_only {
            return Err(StoreError::Closed);
        }
        lock(&self.inner).failure.clone().map_or(Ok(()), Err)
    }

    /// Takes what waits, and the segments that may go once this round is durable.
    fn take(&self, core: &Core) -> (Taken, Vec<super::Call>, Vec<Segment>) {
        let mut inner = lock(&self.inner);
        let mut taken = Taken::default();
        let mut bytes = 0;
        let mut calls = std::mem::take(&mut inner.calls);
        let fits = calls.iter().take_while(|call| {
            let fits = bytes < BATCH_BYTES_MAX;
            bytes += call.size();
            fits
        });
        let fits = fits.count();
        inner.calls = calls.split_off(fits);
        taken.inputs = std::mem::take(&mut inner.input_calls);
        // A flush covers the settlements before it; those are all taken in this round.
        taken.flushes = std::mem::take(&mut inner.flushes);
        inner.unwritten_since = None;
        inner.not_before = None;
        // Without an active segment the newest checkpoint is in a sealed one.
        let dead = if core.active.is_some() { inner.finished() } else { Vec::new() };
        let mut queues = self.queues.lock();
        for (id, queue) in queues.iter_mut().filter(|(_, queue)| !queue.unwritten.is_empty()) {
            taken.unwritten.push((id, std::mem::take(&mut queue.unwritten)));
        }
        (taken, calls, dead)
    }

    /// Records that are no events, in front of them: an event's queue is known before it.
    fn add_control(&self, core: &mut Core, taken: &mut Taken) {
        let epoch = self.epoch.load(std::sync::atomic::Ordering::Acquire);
        if core.epoch != epoch {
            core.builder.add(Kind::Epoch, |out| put_varint(out, epoch));
            core.epoch = epoch;
        }
        let queues = self.queues.lock();
        for (id, unwritten) in &taken.unwritten {
            let queue = queues.get(*id);
            if unwritten.declaration {
                core.builder.add(Kind::Queue, |out| put_queue(out, *id, queue.name.as_str(), &queue.label));
            }
            if !unwritten.settled.is_empty() {
                core.builder.add(Kind::Settled, |out| {
                    put_varint(out, (*id).into());
                    put_runs(out, &unwritten.settled);
                });
            }
            for (&sequence, &state) in &unwritten.retries {
                core.builder.add(Kind::Retry, |out| {
                    put_varint(out, (*id).into());
                    put_retry(out, sequence, state);
                });
            }
        }
        for (note, _) in &taken.inputs {
            core.builder.add(Kind::Input, |out| out.extend_from_slice(note));
        }
    }

    fn add_call(&self, core: &mut Core, call: super::Call, taken: &mut Taken) -> Answer {
        let mut answer = Answer {
            results: Vec::with_capacity(call.admissions.len()),
            written: Vec::new(),
            admissions: Vec::with_capacity(call.admissions.len()),
            reply: call.reply,
        };
        let admitted_ms = to_millis(SystemTime::now());
        for admission in call.admissions {
            let result = admission.map(|admission| {
                let receipt = self.add_event(core, &admission, admitted_ms, taken);
                if receipt.sequence > 0 {
                    answer.written.push(answer.results.len());
                    answer.admissions.push(admission);
                }
                receipt
            });
            answer.results.push(result);
        }
        answer
    }

    fn add_event(
        &self,
        core: &mut Core,
        admission: &Admission,
        admitted_ms: u64,
        taken: &mut Taken,
    ) -> Receipt {
        let dedup_id = admission.dedup_id;
        let held = admission.held.as_deref();
        let granted = held.map_or(&[][..], |held| &held.granted);
        let shed = held.map_or(&[][..], |held| &held.shed);
        let (targets, shed) = {
            let queues = self.queues.lock();
            (queues.names(granted), queues.names(shed))
        };
        let mut receipt = Receipt { sequence: 0, dedup_id, targets, shed, durable: true };
        if granted.is_empty() && admission.position.is_none() {
            return receipt;
        }
        let sequence = core.next_sequence;
        core.next_sequence += 1;
        let gaps: Vec<_> = granted
            .iter()
            .map(|&id| (id, sequence - std::mem::replace(core.last_mut(id), sequence)))
            .collect();
        let record = EventRecord {
            dedup_id,
            admitted_ms,
            position: admission.position,
            requeue_of: match admission.origin {
                Origin::Requeue(sequence) => Some(sequence),
                Origin::Producer | Origin::Import => None,
            },
            attachment: &admission.attachment,
            event: &admission.event,
        };
        let length = core.builder.add_event(&record, &gaps) as u64;
        if let Some(position) = admission.position {
            taken.positions.insert(position, position);
        }
        taken.events.push(EventDone { sequence, length, origin: admission.origin, queues: granted.to_vec() });
        receipt.sequence = sequence;
        receipt
    }

    /// Writes and syncs the collected batch, in a new segment if the active one is full; returns where it went.
    fn write_batch(&self, core: &mut Core, first_sequence: u64, flags: u32) -> Result<u64, WriteFailure> {
        let length = core.builder.length();
        let max = self.options.segment_bytes_max;
        let full = core
            .active
            .as_ref()
            .is_none_or(|active| active.offset > active.start && active.offset.saturating_add(length) > max);
        if full {
            self.start_segment(core, first_sequence).map_err(|error| match error {
                error if error.is_disk_full() => WriteFailure::Full,
                error => WriteFailure::NotBegun(error),
            })?;
        }
        let Core { active, builder, buffer, .. } = core;
        let Some(active) = active else { return Err(WriteFailure::Unknown("no segment is open".to_owned())) };
        buffer.clear();
        builder.finish(active.salt, active.base + active.offset, first_sequence, flags, buffer);
        let offset = active.offset;
        if let Err(error) = active.file.write_at(buffer, offset) {
            return Err(cut_back(&*active.file, offset, &error));
        }
        if let Err(error) = active.file.sync() {
            return Err(WriteFailure::Unknown(format!("the disk did not confirm a write: {error}")));
        }
        active.offset += buffer.len() as u64;
        Ok(offset)
    }

    /// Starts the first segment of this life of the log. Where the disk is full even for that, the log can be read and
    /// delivered, and a later round tries again.
    pub(super) fn start(&self) -> Result<(), StoreError> {
        let mut core = lock(&self.core);
        let first_sequence = core.next_sequence;
        match self.start_segment_for_sure(&mut core, first_sequence) {
            Err(error) if error.is_disk_full() && !lock(&self.inner).segments.is_empty() => {
                core.starved = true
            }
            started => {
                started?;
                self.remove_dead();
                core.starved = !self.hold_reserve();
            }
        }
        Ok(())
    }

    /// Starts a segment, with what is held back if need be.
    fn start_segment_for_sure(&self, core: &mut Core, first_sequence: u64) -> Result<(), StoreError> {
        match self.start_segment(core, first_sequence) {
            Err(error) if error.is_disk_full() && self.release_reserve() => {
                core.starved = true;
                self.start_segment(core, first_sequence)
            }
            started => started,
        }
    }

    /// On a disk that was full: whether there is room again, or can be made by giving up a segment in which nothing
    /// waits.
    fn find_space(&self, core: &mut Core) -> bool {
        let finished = core.active.as_ref().is_none_or(|active| {
            let inner = lock(&self.inner);
            active.offset > active.start
                && inner.segments.last().is_some_and(|segment| segment.unsettled == 0)
        });
        let first_sequence = core.next_sequence;
        if finished && self.start_segment_for_sure(core, first_sequence).is_ok() {
            self.remove_dead();
        }
        core.starved = core.active.is_none() || !self.hold_reserve();
        !core.starved
    }

    fn refuse_full(&self, calls: Vec<super::Call>) -> Vec<super::Call> {
        for call in calls {
            let full = |admission: Result<Admission, AppendError>| {
                Err(admission.err().unwrap_or_else(|| AppendError::DiskFull(self.dir.clone())))
            };
            call.reply.send(call.admissions.into_iter().map(full).collect()).unwrap_or_default();
        }
        Vec::new()
    }

    /// Gives the space up that is held back; false if there is none.
    fn release_reserve(&self) -> bool {
        self.fs.remove(&self.dir.join(RESERVE)).is_ok()
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
        if held.is_err() {
            // A part of it is of no use to anybody.
            self.release_reserve();
        }
        held.is_ok()
    }

    /// Seals the active segment and starts the next one with a checkpoint.
    fn start_segment(&self, core: &mut Core, first_sequence: u64) -> Result<(), StoreError> {
        let number = core.next_number;
        let base = core.active.as_ref().map_or(core.next_base, |active| active.base + active.offset);
        let salt = uuid::Uuid::new_v4().as_u64_pair().0;
        let (segment, checkpoint) = {
            let inner = lock(&self.inner);
            let checkpoint = Checkpoint {
                number,
                base,
                epoch: self.epoch.load(std::sync::atomic::Ordering::Acquire),
                next_sequence: first_sequence,
                segments: inner.segments.iter().map(|segment| segment.number).collect(),
                queues: Vec::new(),
                input: inner.input.clone(),
            };
            let end_sequence = first_sequence;
            (Segment { number, salt, base, first_sequence, end_sequence, ..Segment::default() }, checkpoint)
        };
        let mut builder = BatchBuilder::default();
        {
            let queues = self.queues.lock();
            builder.add(Kind::Checkpoint, |out| checkpoint.encode(&queues, out));
        }
        let header = SegmentHeader { number, salt, base, first_sequence };
        let mut bytes = header.encode().to_vec();
        builder.finish(salt, base, first_sequence, 0, &mut bytes);
        let path = segment.path(&self.dir);
        // The number is used up even if this fails: a name is never written twice.
        core.next_number += 1;
        let file = self.fs.create(&path).map_err(StoreError::io("create", &path))?;
        let written = file
            .write_at(&bytes, 0)
            .and_then(|()| file.sync())
            .and_then(|()| self.fs.sync_dir(&self.dir))
            .map_err(StoreError::io("write", &path));
        if let Err(error) = written {
            // An unfinished segment is removed at the next open as well.
            if let Err(error) = self.fs.remove(&path) {
                tracing::warn!(path = %path.display(), %error, "an unfinished segment could not be removed");
            }
            return Err(error);
        }
        let offset = bytes.len() as u64;
        core.active = Some(Active { file, salt, base, offset, start: offset });
        core.epoch = checkpoint.epoch;
        let mut inner = lock(&self.inner);
        // Said once more behind the checkpoint: damage to it takes no queue from its target.
        for (_, queue) in self.queues.lock().iter_mut() {
            queue.unwritten.declaration = true;
        }
        inner.segments.push(Segment { end: offset, ..segment });
        Ok(())
    }

    /// Counts what became durable, and answers.
    fn publish(&self, taken: Taken, written: Option<(u64, u64, &mut Core)>, dead: &[Segment]) {
        {
            let mut inner = lock(&self.inner);
            if let Some((first_sequence, offset, core)) = written {
                inner.marked = core.builder.is_empty();
                if let Some(segment) = inner.segments.last_mut() {
                    segment.index(first_sequence, offset);
                    segment.end_sequence = core.next_sequence;
                    segment.end = core.active.as_ref().map_or(segment.end, |active| active.offset);
                    segment.unsettled +=
                        taken.events.iter().map(|event| event.queues.len() as u64).sum::<u64>();
                }
            }
            for (note, _) in &taken.inputs {
                inner.input = Some(InputState { note: note.clone(), admitted: Runs::default() });
            }
            if let Some(input) = &mut inner.input {
                for (first, last) in taken.positions.iter() {
                    input.admitted.insert(first, last);
                }
            }
            let mut queues = self.queues.lock();
            for event in &taken.events {
                for &id in &event.queues {
                    queues.get_mut(id).admitted(event.sequence, event.length, event.origin);
                }
            }
        }
        for answer in taken.answers {
            drop(answer.admissions);
            // Nobody waits any more: fine, the event is durable all the same.
            answer.reply.send(answer.results).unwrap_or_default();
        }
        for reply in taken.inputs.into_iter().map(|(_, reply)| reply).chain(taken.flushes) {
            reply.send(Ok(())).unwrap_or_default();
        }
        self.remove(dead);
    }

    /// Nothing of a batch was written: its sequences are free again.
    fn take_back(&self, core: &mut Core, first_sequence: u64) {
        core.next_sequence = first_sequence;
        core.last = self.queues.lock().iter().map(|(_, queue)| queue.last).collect();
        // Whatever epoch was in the batch is to be written again.
        core.epoch = 0;
    }

    /// Refuses the events of a round and puts everything else back for a later one.
    fn put_back(&self, mut taken: Taken, refused: impl Fn() -> AppendError, error: &StoreError) {
        let mut inner = lock(&self.inner);
        {
            let mut queues = self.queues.lock();
            for (id, unwritten) in std::mem::take(&mut taken.unwritten) {
                let queue = queues.get_mut(id);
                queue.unwritten.declaration |= unwritten.declaration;
                for (first, last) in unwritten.settled.iter() {
                    queue.unwritten.settled.insert(first, last);
                }
                for (sequence, state) in unwritten.retries {
                    queue.unwritten.retries.entry(sequence).or_insert(state);
                }
            }
        }
        let now = Instant::now();
        inner.unwritten_since.get_or_insert(now);
        inner.not_before = Some(now + FULL_BACKOFF);
        drop(inner);
        taken.fail(refused, error);
    }

    /// Removes sealed segments in which nothing waits: a later checkpoint covers them.
    fn remove(&self, dead: &[Segment]) {
        if dead.is_empty() {
            return;
        }
        for segment in dead {
            let path = segment.path(&self.dir);
            match self.fs.remove(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    // It stays in the list and is tried again with the next round.
                    tracing::warn!(path = %path.display(), %error, "a finished segment could not be removed");
                }
                _ => lock(&self.inner).segments.retain(|each| each.number != segment.number),
            }
        }
        if let Err(error) = self.fs.sync_dir(&self.dir) {
            // A segment that comes back holds settled entries only.
            tracing::warn!(dir = %self.dir.display(), %error, "the removal of a segment may not be durable");
        }
    }

    /// Removes, after an open, the segments that were finished before.
    pub(super) fn remove_dead(&self) {
        let dead = lock(&self.inner).finished();
        self.remove(&dead);
    }

    /// The last write of a log that is being closed.
    pub(super) fn finish(&self) -> Result<(), StoreError> {
        let mut core = lock(&self.core);
        if core.closed || self.options.read_only {
            return Ok(());
        }
        self.round(&mut core, false);
        while lock(&self.inner).asked() {
            self.round(&mut core, false);
        }
        self.alive_in_round()?;
        core.builder.clear();
        let next = core.next_sequence;
        let marked = self.write_batch(&mut core, next, FLAG_CLEAN);
        core.closed = true;
        core.active = None;
        match marked {
            Ok(_) => Ok(()),
            // The mark is a courtesy: everything acknowledged is durable without it.
            Err(WriteFailure::Full | WriteFailure::NotBegun(_)) => Ok(()),
            Err(WriteFailure::Unknown(reason)) => Err(StoreError::Failed(reason.into())),
        }
    }
}

/// After a write that failed: a full disk is harmless if the file is as long as before.
fn cut_back(file: &dyn File, offset: u64, error: &io::Error) -> WriteFailure {
    if is_full(error) {
        // Synced, or bytes behind the end of a segment that is sealed next would look like damage.
        match file.set_len(offset).and_then(|()| file.sync()) {
            Ok(()) => return WriteFailure::Full,
            Err(cut) => {
                return WriteFailure::Unknown(format!("the disk is full, and the file cannot be cut: {cut}"));
            }
        }
    }
    WriteFailure::Unknown(format!("a write failed: {error}"))
}

fn refuse(taken: Taken, calls: Vec<super::Call>, error: &StoreError) {
    for call in calls {
        let results = call.admissions.iter().map(|_| Err(AppendError::Store(error.clone()))).collect();
        call.reply.send(results).unwrap_or_default();
    }
    taken.fail(|| AppendError::Store(error.clone()), error);
}

impl Taken {
    fn fail(self, append: impl Fn() -> AppendError, error: &StoreError) {
        for answer in self.answers {
            answer.fail(&append);
        }
        for reply in self.inputs.into_iter().map(|(_, reply)| reply).chain(self.flushes) {
            reply.send(Err(error.clone())).unwrap_or_default();
        }
    }
}

impl Answer {
    fn fail(mut self, error: impl Fn() -> AppendError) {
        for &index in &self.written {
            self.results[index] = Err(error());
        }
        drop(self.admissions);
        self.reply.send(self.results).unwrap_or_default();
    }
}

impl super::Call {
    fn size(&self) -> u64 {
        self.admissions.iter().flatten().map(Admission::size).sum()
    }
}
