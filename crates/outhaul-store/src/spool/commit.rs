//! The round: whatever waits is written, each directory is synced once, and everybody is told.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use super::index::Slot;
use super::mapping::{self, Content};
use super::names::{Minter, UNFINISHED};
use super::sidecar::{self, QUEUE, QueueFile};
use super::{Call, Inner, Removal, Reply, Shared, lock, rqp1};
use crate::error::{AppendError, StoreError, is_full};
use crate::fs::{File, write_atomically};
use crate::log::{Admission, Durability, Origin, Receipt};
use crate::queue::QueueId;

/// A file that has no name yet, and the directory where it gets one.
type Unfinished = (PathBuf, Arc<dyn File>);

/// Files that are open at the same time.
const FILES_MAX: usize = 256;
/// After a removal that failed.
const REMOVE_AGAIN: Duration = Duration::from_secs(1);

/// Why a round begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    Ready,
    /// Settled files are to go, or notes to be written.
    Due,
    Last,
}

/// What a round alone touches.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) minter: Minter,
    /// Written and renamed, not synced: with a durability that allows it.
    unsynced: Vec<(QueueId, Arc<dyn File>)>,
    pub(super) noted_at: Option<Instant>,
}

impl Core {
    pub(super) fn above(sequence: u64) -> Self {
        Self { minter: Minter::above(sequence), unsynced: Vec::new(), noted_at: None }
    }
}

/// One event on its way into some directories.
pub(super) struct Job {
    sequence: u64,
    slot: Slot,
    bytes: Vec<u8>,
    pub(super) admission: Admission,
    /// What became of it in each of its queues.
    pub(super) queues: Vec<(QueueId, Result<(), Failed>)>,
}

/// Why an event is not in a directory.
#[derive(Debug, Clone)]
pub(super) enum Failed {
    /// It is not there.
    Absent(StoreError),
    /// It may be there.
    Unknown(Arc<str>),
}

/// The answer to one admission: there already, or that of a job.
enum Answer {
    Refused(AppendError),
    Job(usize),
    /// Nobody is to get it.
    Nobody(Admission),
}

impl Shared {
    /// The thread: sleeps until there is work.
    pub(super) fn run(&self) {
        loop {
            let work = self.wait();
            if work == Work::Last {
                return;
            }
            self.round(work);
        }
    }

    fn wait(&self) -> Work {
        let mut inner = lock(&self.inner);
        loop {
            if inner.closing {
                return Work::Last;
            }
            if inner.is_ready() {
                return Work::Ready;
            }
            let now = Instant::now();
            let lingered = inner.unwritten_since.map(|since| since + self.options.settle_linger);
            let Some(due) = lingered.into_iter().chain(inner.sync_due).min() else {
                inner = self.wake.wait(inner).unwrap_or_else(std::sync::PoisonError::into_inner);
                continue;
            };
            if due <= now {
                return Work::Due;
            }
            let waited = self.wake.wait_timeout(inner, due - now);
            inner = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }

    /// Whatever came until the thread ended, then everything that is to be written down.
    pub(super) fn last_round(&self) -> Result<(), StoreError> {
        let (reply, mut answer) = tokio::sync::oneshot::channel();
        lock(&self.inner).flushes.push(reply);
        self.round(Work::Last);
        answer.try_recv().unwrap_or(Err(StoreError::Closed))
    }

    /// Does all that waits. Whoever comes meanwhile waits for the next one.
    pub(super) fn round(&self, work: Work) {
        let mut core = lock(&self.core);
        let taken = {
            let mut inner = lock(&self.inner);
            let taken = Inner {
                calls: std::mem::take(&mut inner.calls),
                input_calls: std::mem::take(&mut inner.input_calls),
                remove_calls: std::mem::take(&mut inner.remove_calls),
                rename_calls: std::mem::take(&mut inner.rename_calls),
                flushes: std::mem::take(&mut inner.flushes),
                unwritten_since: None,
                note_now: std::mem::take(&mut inner.note_now),
                sync_due: inner.sync_due,
                input: None,
                closing: false,
                failure: inner.failure.clone(),
            };
            if work != Work::Ready || !taken.flushes.is_empty() {
                inner.unwritten_since = None;
            }
            taken
        };
        if let Some(failure) = taken.failure.clone() {
            return refuse(&failure, taken);
        }
        // Whoever waits for a receipt does not wait for removals as well, unless somebody waits for those.
        let at_once = work != Work::Ready || !taken.flushes.is_empty() || !taken.rename_calls.is_empty();
        let afterwards = !at_once && !taken.calls.is_empty();
        let mut touched = BTreeSet::new();
        let removed = if at_once { self.remove_settled(&mut touched) } else { Ok(()) };
        let (mut jobs, answers) = self.prepare(&mut core, taken.calls);
        self.write(&mut core, &mut jobs, &mut touched);
        let synced = self.sync_dirs(&touched, &mut jobs, &mut core, work, !taken.flushes.is_empty());
        self.remember_positions(&mut core, &jobs);
        self.publish(jobs, answers);
        if afterwards {
            self.remove_behind();
        }
        for (note, reply) in taken.input_calls {
            self.answer(reply, self.set_input(&core, note));
        }
        for (name, reply) in taken.remove_calls {
            self.answer(reply, self.remove_queue(&name));
        }
        for (name, new, reply) in taken.rename_calls {
            let renamed = self.rename_queue(&name, &new);
            if renamed.is_ok() {
                self.note(&mut core, false);
            }
            self.answer(reply, renamed);
        }
        if work == Work::Due {
            self.note_when_due(&mut core);
        } else if work == Work::Last {
            self.note(&mut core, true);
        }
        if taken.note_now && work != Work::Last {
            self.note_flight();
        }
        let flushed = synced.and(removed);
        for reply in taken.flushes {
            self.answer(reply, flushed.clone());
        }
    }

    fn answer<T>(&self, reply: Reply<T>, result: Result<T, StoreError>) {
        // Whoever asked may have gone.
        drop(reply.send(result));
    }

    /// Removes the files of settled entries. What cannot be removed stays on the list.
    fn remove_settled(&self, touched: &mut BTreeSet<QueueId>) -> Result<(), StoreError> {
        let work: Vec<_> = {
            let mut dirs = lock(&self.dirs);
            let busy = dirs.iter_mut().filter(|(_, dir)| !dir.removals.is_empty() || dir.unsynced);
            busy.map(|(&id, dir)| {
                dir.unsynced = false;
                (id, dir.path.clone(), std::mem::take(&mut dir.removals))
            })
            .collect()
        };
        let mut failure = None;
        for (id, path, removals) in work {
            touched.insert(id);
            for removal in removals {
                let file = path.join(&removal.file);
                let done = if removal.kept {
                    self.fs.rename(&file, &path.join(format!("{}.kept", removal.file)))
                } else {
                    self.fs.remove(&file)
                };
                match done {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        let error = StoreError::io("remove", &file)(error);
                        tracing::warn!(%error, "a settled entry's file stays until it can be removed");
                        failure.get_or_insert(error);
                        self.remove_later(id, removal);
                    }
                    _ => {}
                }
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// Removes settled files; the directory sync of a later round makes that durable.
    fn remove_behind(&self) {
        let mut touched = BTreeSet::new();
        // What cannot be removed is on the list still, and was told.
        self.remove_settled(&mut touched).unwrap_or_default();
        let mut dirs = lock(&self.dirs);
        for id in touched {
            if let Some(dir) = dirs.get_mut(&id) {
                dir.unsynced = true;
            }
        }
    }

    fn remove_later(&self, id: QueueId, removal: Removal) {
        // The lock of what waits comes before that of the directories.
        let again = Instant::now() + REMOVE_AGAIN;
        lock(&self.inner).unwritten_since.get_or_insert(again);
        if let Some(dir) = lock(&self.dirs).get_mut(&id) {
            dir.removals.push(removal);
        }
    }

    /// Names and encodes what is to be written.
    fn prepare(&self, core: &mut Core, calls: Vec<Call>) -> (Vec<Job>, Vec<(Vec<Answer>, Call)>) {
        let now = SystemTime::now();
        let mut jobs = Vec::new();
        let mut answers = Vec::with_capacity(calls.len());
        for mut call in calls {
            let mut own = Vec::with_capacity(call.admissions.len());
            for admission in std::mem::take(&mut call.admissions) {
                own.push(match admission {
                    Err(error) => Answer::Refused(error),
                    Ok(admission) if admission.granted().is_empty() => Answer::Nobody(admission),
                    Ok(admission) => match self.job(core, admission, now) {
                        Ok(job) => {
                            jobs.push(job);
                            Answer::Job(jobs.len() - 1)
                        }
                        Err(error) => Answer::Refused(error),
                    },
                });
            }
            answers.push((own, call));
        }
        (jobs, answers)
    }

    fn job(&self, core: &mut Core, admission: Admission, now: SystemTime) -> Result<Job, AppendError> {
        let Some((sequence, id)) = core.minter.mint(now) else {
            let full = io::Error::other("a file there has the greatest name that there can be");
            return Err(AppendError::Store(StoreError::io("name an entry in", &self.dir)(full)));
        };
        let content = Content {
            event: Arc::clone(&admission.event),
            dedup_id: admission.dedup_id,
            admitted_at: now,
            attachment: admission.attachment.clone(),
            requeue_of: match admission.origin {
                Origin::Requeue(sequence) => Some(sequence),
                Origin::Producer | Origin::Import => None,
            },
            position: admission.position,
            fan_out: admission.granted().len() as u32,
        };
        let mut bytes = mapping::encode(&content);
        if bytes.len() > rqp1::ENTRY_BYTES_MAX {
            let long = io::Error::new(io::ErrorKind::InvalidInput, "it is longer than an entry can be");
            return Err(AppendError::Store(StoreError::io("write an entry into", &self.dir)(long)));
        }
        // What does not become shorter is written as it is: each file tells by its name.
        let compressed = if self.options.compress { rqp1::compress(&bytes).ok() } else { None };
        let is_compressed = compressed.is_some();
        if let Some(compressed) = compressed {
            bytes = compressed;
        }
        let slot = Slot::minted(id, bytes.len() as u64, is_compressed);
        let queues = admission.granted().iter().map(|&id| (id, Ok(()))).collect();
        Ok(Job { sequence, slot, bytes, admission, queues })
    }

    /// Writes every file of every job, several at a time. They are on their way to the disk before the first of them is
    /// synced, so that the file system makes many of them durable at once.
    fn write(&self, core: &mut Core, jobs: &mut [Job], touched: &mut BTreeSet<QueueId>) {
        if jobs.is_empty() {
            return;
        }
        let paths = self.directories(jobs);
        let total: u64 = jobs.iter().map(|job| (job.bytes.len() * job.queues.len()) as u64).sum();
        let space = self.fs.space(&self.dir).ok();
        let full = space.filter(|space| space.available < total.saturating_add(self.options.reserve_bytes));
        let tasks: Vec<_> = jobs
            .iter()
            .enumerate()
            .flat_map(|(job, of)| (0..of.queues.len()).map(move |queue| (job, queue)))
            .collect();
        let create = |&(job, queue): &(usize, usize)| -> Result<_, Failed> {
            let job = &jobs[job];
            let path = paths.get(&job.queues[queue].0).cloned().unwrap_or(Err(StoreError::Closed));
            let path = path.map_err(Failed::Absent)?;
            if full.is_some() {
                let error = io::ErrorKind::StorageFull.into();
                return Err(Failed::Absent(StoreError::io("write an entry into", &path)(error)));
            }
            self.unfinished(&path, job, |temporary| self.write_file(&path, temporary, &job.bytes))
                .map(|file| (path, file))
        };
        let synced = self.options.durability == Durability::Synced;
        let sync = |((job, _), written): &((usize, usize), Result<Unfinished, Failed>)| {
            let (dir, file) = written.as_ref().map_err(Failed::clone)?;
            self.unfinished(dir, &jobs[*job], |_| if synced { file.sync() } else { Ok(()) })?;
            Ok(Arc::clone(file))
        };
        let done = tasks.chunks(FILES_MAX).flat_map(|tasks| {
            // One by one: a directory takes one new name at a time.
            let created: Vec<_> = tasks.iter().map(|task| (*task, create(task))).collect();
            in_parallel(&created, self.options.writers, sync)
        });
        let done: Vec<Result<Arc<dyn File>, Failed>> = done.collect();
        for (&(job, queue), written) in tasks.iter().zip(done) {
            // The names come one after the other: a kill between them leaves no later entry without an earlier one.
            let id = jobs[job].queues[queue].0;
            let result = match (written, paths.get(&id)) {
                (Ok(file), Some(Ok(dir))) => self.name_file(dir, &jobs[job]).map(|()| file),
                (written, _) => written,
            };
            let (id, outcome) = &mut jobs[job].queues[queue];
            touched.insert(*id);
            match result {
                Ok(file) if matches!(self.options.durability, Durability::Interval(_)) => {
                    core.unsynced.push((*id, file));
                }
                Ok(_) => {}
                Err(failed) => *outcome = Err(failed),
            }
        }
    }

    /// The directories of some jobs, created and declared if need be.
    fn directories(&self, jobs: &[Job]) -> BTreeMap<QueueId, Result<PathBuf, StoreError>> {
        let ids: BTreeSet<_> = jobs.iter().flat_map(|job| job.queues.iter().map(|(id, _)| *id)).collect();
        let path = |id| {
            let (path, stem, created) = {
                let dirs = lock(&self.dirs);
                let dir = dirs.get(&id).ok_or(StoreError::Closed)?;
                (dir.path.clone(), dir.stem.clone(), dir.created)
            };
            let declared = {
                let mut queues = self.queues.lock();
                let queue = queues.get_mut(id);
                let (name, label) = (queue.name.to_string(), queue.label.clone());
                let file = QueueFile { name, label, moving_from: None };
                std::mem::take(&mut queue.unwritten.declaration).then_some(file)
            };
            if let Some(file) = declared
                && let Err(error) = self.declare(&stem, &file)
            {
                self.queues.lock().get_mut(id).unwritten.declaration = true;
                return Err(error);
            }
            if !created {
                self.fs.create_dir_all(&path).map_err(StoreError::io("create", &path))?;
                if let Some(dir) = lock(&self.dirs).get_mut(&id) {
                    dir.created = true;
                }
            }
            Ok(path)
        };
        ids.into_iter().map(|id| (id, path(id))).collect()
    }

    pub(super) fn declare(&self, stem: &str, file: &QueueFile) -> Result<(), StoreError> {
        let name = format!("{stem}{QUEUE}");
        // Strings always serialise.
        let content = sidecar::seal(serde_json::to_vec(file).unwrap_or_default());
        let written = write_atomically(&*self.fs, &self.dir, &name, &content);
        written.map_err(StoreError::io("write", &self.dir.join(name)))
    }

    /// Does something to the file of an entry that has no name yet, and takes the file away if that fails.
    fn unfinished<T>(
        &self,
        dir: &Path,
        job: &Job,
        work: impl FnOnce(&Path) -> io::Result<T>,
    ) -> Result<T, Failed> {
        let name = job.slot.file();
        let temporary = dir.join(format!("{name}{UNFINISHED}"));
        work(&temporary).map_err(|error| {
            // What is left of it goes at the next open.
            self.fs.remove(&temporary).unwrap_or_default();
            Failed::Absent(StoreError::io("write", &dir.join(name))(error))
        })
    }

    fn write_file(&self, dir: &Path, temporary: &Path, content: &[u8]) -> io::Result<Arc<dyn File>> {
        let file = match self.fs.create(temporary) {
            // Somebody removed the directory.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.fs.create_dir_all(dir)?;
                self.fs.create(temporary)?
            }
            other => other?,
        };
        file.write_at(content, 0)?;
        if self.options.durability == Durability::Synced {
            file.start_sync();
        }
        Ok(file)
    }

    /// Gives a file that is written its name.
    fn name_file(&self, dir: &Path, job: &Job) -> Result<(), Failed> {
        let name = job.slot.file();
        let (path, temporary) = (dir.join(&name), dir.join(format!("{name}{UNFINISHED}")));
        self.fs
            .rename(&temporary, &path)
            .map_err(|error| Failed::Unknown(StoreError::io("rename", &path)(error).to_string().into()))
    }

    /// One sync for each directory in which something changed. One that fails is the last one.
    fn sync_dirs(
        &self,
        touched: &BTreeSet<QueueId>,
        jobs: &mut [Job],
        core: &mut Core,
        work: Work,
        flush: bool,
    ) -> Result<(), StoreError> {
        let mut touched = touched.clone();
        // Each of them is an open file.
        let many = core.unsynced.len() >= 256;
        let late = work != Work::Ready || flush || many || self.options.durability == Durability::Synced;
        if !late {
            return self.sync_later(&touched);
        }
        let mut failure = None;
        for (id, file) in std::mem::take(&mut core.unsynced) {
            touched.insert(id);
            if let Err(error) = file.sync() {
                failure.get_or_insert(StoreError::io("sync a file in", &self.dir)(error));
            }
        }
        lock(&self.inner).sync_due = None;
        for id in touched {
            let Some(path) = lock(&self.dirs).get(&id).filter(|dir| dir.created).map(|dir| dir.path.clone())
            else {
                continue;
            };
            if let Err(error) = self.fs.sync_dir(&path) {
                let error = StoreError::io("sync", &path)(error);
                let reason: Arc<str> = error.to_string().into();
                for (_, outcome) in
                    jobs.iter_mut().flat_map(|job| &mut job.queues).filter(|(own, _)| *own == id)
                {
                    if outcome.is_ok() {
                        *outcome = Err(Failed::Unknown(Arc::clone(&reason)));
                    }
                }
                failure.get_or_insert(error);
            }
        }
        let Some(failure) = failure else { return Ok(()) };
        tracing::error!(error = %failure, "the spool writes nothing any more");
        let failed = StoreError::Failed(failure.to_string().into());
        lock(&self.inner).failure = Some(failed.clone());
        Err(failed)
    }

    /// Receipts do not wait for a sync: it comes when its time is over, or with a flush.
    fn sync_later(&self, touched: &BTreeSet<QueueId>) -> Result<(), StoreError> {
        if let Durability::Interval(every) = self.options.durability
            && !touched.is_empty()
        {
            lock(&self.inner).sync_due.get_or_insert(Instant::now() + every);
        }
        let mut dirs = lock(&self.dirs);
        for id in touched {
            if let Some(dir) = dirs.get_mut(id) {
                dir.unsynced = true;
            }
        }
        Ok(())
    }

    /// Lets everybody see what is durable, and tells the callers.
    fn publish(&self, jobs: Vec<Job>, answers: Vec<(Vec<Answer>, Call)>) {
        {
            let mut dirs = lock(&self.dirs);
            let mut queues = self.queues.lock();
            for job in &jobs {
                let (sequence, bytes) = (job.sequence, u64::from(job.slot.bytes));
                let whole = job.queues.iter().all(|(_, outcome)| outcome.is_ok());
                if whole {
                    queues.admit(&job.admission, sequence, bytes);
                }
                for (id, _) in job.queues.iter().filter(|(_, outcome)| outcome.is_ok()) {
                    let Some(dir) = dirs.get_mut(id) else { continue };
                    dir.index.insert(sequence, job.slot, None);
                    if !whole {
                        // The room that it held is given back with the rest of it.
                        queues.get_mut(*id).admitted(sequence, bytes, job.admission.origin);
                    }
                    queues.announce(&[*id], sequence);
                }
            }
        }
        let mut results: Vec<_> = jobs.iter().map(|job| Some(self.result(job))).collect();
        // What they hold is given back, which takes the lock of the queues.
        drop(jobs);
        let mut unwanted = Vec::new();
        for (own, call) in answers {
            let each = own.into_iter().map(|answer| match answer {
                Answer::Refused(error) => Err(error),
                Answer::Job(index) => {
                    results[index].take().unwrap_or(Err(AppendError::Store(StoreError::Closed)))
                }
                Answer::Nobody(admission) => {
                    let receipt = self.receipt(0, &admission);
                    unwanted.extend(admission.position);
                    Ok(receipt)
                }
            });
            let each = each.collect();
            // Whoever asked may have gone.
            drop(call.reply.send(each));
        }
        let covers = lock(&self.inner).input.as_ref().map_or(0, |input| input.covers);
        self.admit_positions(&unwanted, covers);
    }

    fn result(&self, job: &Job) -> Result<Receipt, AppendError> {
        let names = |ok: bool| {
            let ids: Vec<_> =
                job.queues.iter().filter(|(_, outcome)| outcome.is_ok() == ok).map(|(id, _)| *id).collect();
            self.queues.lock().names(&ids)
        };
        let Some(first) = job.queues.iter().find_map(|(_, outcome)| outcome.clone().err()) else {
            return Ok(self.receipt(job.sequence, &job.admission));
        };
        let durable = names(true);
        if !durable.is_empty() {
            let reason = match first {
                Failed::Absent(error) => error.to_string().into(),
                Failed::Unknown(reason) => reason,
            };
            return Err(AppendError::Partial { durable, failed: names(false), reason });
        }
        // One that may be there is worth more than one that is not.
        let unknown = job.queues.iter().find_map(|(_, outcome)| match outcome {
            Err(Failed::Unknown(reason)) => Some(Arc::clone(reason)),
            _ => None,
        });
        match (unknown, first) {
            (Some(reason), _) | (None, Failed::Unknown(reason)) => Err(AppendError::Unknown(reason)),
            (None, Failed::Absent(StoreError::Io { source, .. })) if is_full(&source) => {
                Err(AppendError::DiskFull(self.dir.clone()))
            }
            (None, Failed::Absent(error)) => Err(AppendError::Store(error)),
        }
    }

    fn receipt(&self, sequence: u64, admission: &Admission) -> Receipt {
        let (targets, shed) = admission.outcome(&self.queues);
        Receipt {
            sequence,
            dedup_id: admission.dedup_id,
            targets,
            shed,
            durable: self.options.durability == Durability::Synced,
        }
    }
}

impl Inner {
    fn is_ready(&self) -> bool {
        !self.calls.is_empty()
            || !self.input_calls.is_empty()
            || !self.remove_calls.is_empty()
            || !self.rename_calls.is_empty()
            || !self.flushes.is_empty()
            || self.note_now
    }
}

fn refuse(failure: &StoreError, taken: Inner) {
    // Whoever asked may have gone.
    for call in taken.calls {
        let refused =
            |one: Result<Admission, AppendError>| one.and_then(|_| Err(AppendError::Store(failure.clone())));
        drop(call.reply.send(call.admissions.into_iter().map(refused).collect()));
    }
    let inputs = taken.input_calls.into_iter().map(|(_, reply)| reply);
    let renames = taken.rename_calls.into_iter().map(|(_, _, reply)| reply);
    for reply in inputs.chain(renames).chain(taken.flushes) {
        drop(reply.send(Err(failure.clone())));
    }
    for (_, reply) in taken.remove_calls {
        drop(reply.send(Err(failure.clone())));
    }
}

/// Applies a function to each task, on a few threads if there are many. The results are in the order of the tasks.
fn in_parallel<T: Sync, R: Send>(tasks: &[T], threads_max: usize, apply: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = threads_max.min(tasks.len());
    if threads < 2 {
        return tasks.iter().map(apply).collect();
    }
    let next = AtomicUsize::new(0);
    let work = || {
        let mut own = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(task) = tasks.get(index) else { return own };
            own.push((index, apply(task)));
        }
    };
    let mut done: Vec<(usize, R)> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut done = work();
        for other in others {
            match other.join() {
                Ok(more) => done.extend(more),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        done
    });
    done.sort_unstable_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}
