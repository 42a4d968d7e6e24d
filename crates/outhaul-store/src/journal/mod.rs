//! The `journal` engine: one log per data directory, shared by all of its queues.
//!
//! # How it works
//!
//! An event is written once, with the list of its queues. Whatever waits to be written goes into one batch: one
//! write and one sync. Whose turn it is to write is in [`turn`], the round itself in [`commit`]. Settlements, retry
//! states, what is in flight and new queues are collected in the queues' memory and ride with the next batch; all but
//! what is in flight get one of their own after a short while.
//!
//! A segment is sealed when it is full, and at every open; the next one starts with a checkpoint, and the sealed one
//! gets a footer that says what is in it. A sealed segment in which nothing waits any more is used again or removed,
//! once a record of that is durable; those in which hardly anything waits are merged ([`merge`]). The files are in
//! [`files`], what is done beside the commits in [`upkeep`], the bytes in [`format`] and [`footer`], recovery in
//! [`recover`].
//!
//! # What can fail
//!
//! A full disk refuses events and leaves the log as it was; settlements still find room in a small file that is held
//! back for them, and what they free is taken up by itself. A sync that fails leaves the events of its batch
//! *unknown*; the log reads what it acknowledged back from the device and goes on in a new segment, or stays refused
//! ([`heal`]).

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, Weak};
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;
use outhaul_event::{TargetName, Uid};
use smallvec::{SmallVec, smallvec};
use tokio::sync::watch;

use crate::error::{AppendError, StoreError};
use crate::fs::{FileSystem, FsKind};
use crate::log::{
    Admission, Durability, Input, Lease, Log, OpenReport, QueueSettings, QueueStats, ReadBatch, Receipt,
    Scan, Settlement, Shards,
};
use crate::queue::SharedQueues;

mod checkpoint;
mod commit;
mod files;
mod footer;
mod format;
#[cfg(feature = "testkit")]
pub(crate) mod fuzzing;
mod heal;
mod mark;
mod mend;
mod merge;
#[cfg(all(test, outhaul_model, feature = "testkit"))]
mod model;
mod options;
mod peek;
mod progress;
mod read;
mod recover;
mod scan;
mod segment;
mod survey;
mod sync;
mod turn;
mod upkeep;

use commit::Core;
pub(crate) use format::{FORMAT, from_millis, to_millis};
pub use options::{JournalOptions, Upkeep};
pub use progress::OpenWatch;
use recover::{Recovered, Recovery};
use segment::Segment;
use sync::{Condvar, JoinHandle, Mutex, MutexGuard};
use turn::{Call, Encoded, Inner, Reply};
use upkeep::Chores;

/// A journal. The methods that end in `_sync` block the calling thread and need no async runtime.
#[derive(Debug)]
pub struct Journal {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    started: AtomicBool,
}

#[derive(Debug)]
struct Shared {
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    options: JournalOptions,
    /// The disk. Locked for a whole round; before `inner`, which is before `queues`.
    core: Mutex<Core>,
    inner: Mutex<Inner>,
    wake: Condvar,
    queues: SharedQueues,
    /// The process before this one did not close it.
    unclean: bool,
    /// The epoch of the newest lease.
    epoch: AtomicU64,
    bytes_default: u64,
    report: Mutex<OpenReport>,
    /// The segments in which the open found damage.
    damaged: Mutex<Vec<u64>>,
    /// What was read last to look ahead.
    peeked: Mutex<Option<peek::Peeked>>,
    kind: FsKind,
    /// The disk was full.
    full: AtomicBool,
    chores: Mutex<Chores>,
    chores_wake: Condvar,
    keeper: Mutex<Option<JoinHandle<()>>>,
    /// A file that is being prepared. Locked for each step.
    preparing: Mutex<Option<files::Spare>>,
    spare_wanted: AtomicBool,
    me: Weak<Shared>,
    /// The directory's lock, for as long as anybody can write.
    lock: std::sync::OnceLock<Arc<dyn crate::fs::Lock>>,
}

/// A call is one batch, and a batch has a bounded length; hardly any call is more than one part.
fn parts(batch: Vec<Admission>) -> SmallVec<[Vec<Admission>; 1]> {
    if batch.len() <= 1 || batch.iter().map(Admission::size).sum::<u64>() <= turn::BATCH_BYTES_MAX {
        return smallvec![batch];
    }
    let mut parts = SmallVec::new();
    let (mut part, mut bytes) = (Vec::with_capacity(batch.len()), 0);
    for admission in batch {
        let size = admission.size();
        if bytes + size > turn::BATCH_BYTES_MAX && !part.is_empty() {
            parts.push(std::mem::take(&mut part));
            bytes = 0;
        }
        bytes += size;
        part.push(admission);
    }
    parts.push(part);
    parts
}

/// Says once what was found about the file system, where that matters.
fn tell_kind(kind: FsKind, dir: &Path) {
    let dir = dir.display();
    match kind {
        FsKind::InPlace => {}
        FsKind::CopyOnWrite => {
            tracing::info!(%dir, "the file system never overwrites in place: no files are prepared");
        }
        FsKind::Memory => {
            tracing::warn!(%dir, "the file system is in memory: nothing survives a loss of power")
        }
        FsKind::Network => {
            tracing::warn!(%dir, "the file system is on another machine: a sync is as good as that machine makes it");
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Journal {
    /// Opens the journal in a directory, creating it if there is none. Blocks while it recovers.
    ///
    /// The caller holds a lock on the directory. Damaged stretches are copied to `quarantine`.
    pub fn open(
        fs: Arc<dyn FileSystem>,
        dir: &Path,
        quarantine: &Path,
        options: JournalOptions,
    ) -> Result<Self, StoreError> {
        if !options.read_only {
            fs.create_dir_all(dir).map_err(StoreError::io("create", dir))?;
        }
        let JournalOptions { read_only, verify, watch, .. } = &options;
        let (read_only, verify) = (*read_only, *verify);
        let recovery = Recovery { fs: &*fs, dir, quarantine, read_only, verify, watch };
        let Recovered {
            queues,
            segments,
            spares,
            next_sequence,
            next_number,
            next_base,
            epoch,
            input,
            report,
            damaged,
            clean,
            ..
        } = recovery.run()?;
        if report.torn_bytes > 0 {
            tracing::debug!(bytes = report.torn_bytes, dir = %dir.display(), "an unfinished write was cut off");
        }
        for damage in &report.damage {
            let file = dir.join(&damage.file);
            let copy =
                damage.quarantined.as_deref().map(|path| path.display().to_string()).unwrap_or_default();
            let (file, offset, bytes, reason) =
                (file.display(), damage.offset, damage.length, &damage.reason);
            tracing::error!(%file, offset, bytes, reason, copy, "the journal is damaged");
        }
        let space = fs.space(dir).map_err(StoreError::io("look at the file system of", dir))?;
        let kind = fs.kind(dir).map_err(StoreError::io("look at the file system of", dir))?;
        tell_kind(kind, dir);
        // Neither is anything written to a segment behind a clean end.
        let unclean = !clean && !segments.is_empty();
        let inner = Inner { segments, spares, input, marked: read_only, ..Inner::default() };
        let core = Core::new(&queues, next_sequence, next_number, next_base);
        let shared = Arc::new_cyclic(|me| Shared {
            fs,
            dir: dir.to_owned(),
            core: Mutex::new(core),
            inner: Mutex::new(inner),
            wake: Condvar::new(),
            queues: SharedQueues::new(queues),
            unclean,
            epoch: AtomicU64::new(epoch),
            bytes_default: (space.total / 4).min(10 << 30),
            report: Mutex::new(report),
            damaged: Mutex::new(damaged),
            peeked: Mutex::default(),
            kind,
            full: AtomicBool::new(false),
            chores: Mutex::default(),
            chores_wake: Condvar::new(),
            keeper: Mutex::default(),
            preparing: Mutex::default(),
            spare_wanted: AtomicBool::new(false),
            me: me.clone(),
            lock: std::sync::OnceLock::new(),
            options,
        });
        if !read_only {
            shared.start()?;
            shared.work_off();
        }
        let journal = Self { shared, thread: Mutex::new(None), started: AtomicBool::new(false) };
        if matches!(journal.shared.options.durability, Durability::Interval(_)) && !read_only {
            // Somebody has to keep the time.
            journal.commit_thread();
        }
        Ok(journal)
    }

    /// Reads every record of the journal in a directory at rest and verifies every checksum; changes nothing. What is
    /// wrong is in the [report](Log::report) of what it returns, entries that are unreadable included.
    pub fn verify(fs: Arc<dyn FileSystem>, dir: &Path, watch: Arc<OpenWatch>) -> Result<Self, StoreError> {
        let options = JournalOptions { read_only: true, verify: true, watch, ..JournalOptions::default() };
        Self::open(fs, dir, dir, options)
    }

    /// Keeps the lock of the data directory until nobody can write to this journal any more.
    pub(crate) fn keep(&self, lock: Arc<dyn crate::fs::Lock>) {
        self.shared.lock.get_or_init(|| lock);
    }

    /// As [`Log::append`], in the calling thread.
    pub fn append_sync(&self, batch: Vec<Admission>) -> Vec<Result<Receipt, AppendError>> {
        let each = |part: Vec<Admission>| {
            let length = part.len();
            let (reply, slot) = Reply::thread();
            self.shared.enqueue(part, reply);
            self.shared.answered(self.shared.drive(&slot), length)
        };
        parts(batch).into_iter().flat_map(each).collect()
    }

    /// As [`Log::flush`], in the calling thread.
    pub fn flush_sync(&self) -> Result<(), StoreError> {
        let (reply, slot) = Reply::thread();
        self.shared.push_flush(reply);
        self.shared.drive(&slot).unwrap_or(Err(StoreError::Closed))
    }

    /// As [`Log::set_input`], in the calling thread.
    pub fn set_input_sync(&self, note: Bytes) -> Result<(), StoreError> {
        let (reply, slot) = Reply::thread();
        self.shared.push_input(note, reply);
        self.shared.drive(&slot).unwrap_or(Err(StoreError::Closed))
    }

    /// As [`Log::remove`], in the calling thread.
    pub fn remove_sync(&self, name: &TargetName) -> Result<u64, StoreError> {
        let discarded = self.shared.remove(name)?;
        self.flush_sync().map(|()| discarded)
    }

    /// As [`Lease::read`], in the calling thread.
    pub fn read_sync(
        &self,
        queue: &TargetName,
        after: u64,
        entries_max: usize,
        bytes_max: usize,
    ) -> Result<ReadBatch, StoreError> {
        self.shared.read(queue, after, entries_max, bytes_max)
    }

    /// As [`Lease::scan`], in the calling thread.
    pub fn scan_sync(&self, queue: &TargetName, after: u64, rows_max: usize) -> Result<Scan, StoreError> {
        self.shared.scan(queue, after, rows_max)
    }

    /// As [`Lease::settle`]: nothing waits.
    pub fn settle_sync(&self, settlements: &[Settlement]) -> Result<(), StoreError> {
        self.shared.settle(settlements)
    }

    /// As [`Log::close`], in the calling thread.
    pub fn close_sync(&self) -> Result<(), StoreError> {
        {
            let mut inner = lock(&self.shared.inner);
            inner.closing = true;
        }
        self.shared.wake.notify_all();
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            // A panic in the thread was reported by the panic hook; what it left is taken care of below.
            thread.join().unwrap_or_default();
        }
        self.shared.stop_upkeep();
        self.shared.finish()
    }

    /// As [`Log::mend`], in the calling thread.
    pub fn mend_sync(&self) -> Result<Vec<(String, String)>, StoreError> {
        self.shared.mend()
    }

    fn in_caller(&self) -> bool {
        self.shared.options.upkeep.in_caller()
    }

    /// Starts the commit thread at the first async call.
    fn commit_thread(&self) {
        if self.started.load(Ordering::Acquire) || self.in_caller() {
            return;
        }
        let mut thread = lock(&self.thread);
        if thread.is_none() && !lock(&self.shared.inner).closing {
            let shared = Arc::clone(&self.shared);
            let builder = sync::Builder::new().name("outhaul-commit".to_owned());
            match builder.spawn(move || shared.commit_loop()) {
                Ok(handle) => {
                    *thread = Some(handle);
                    self.started.store(true, Ordering::Release);
                }
                Err(error) => self.shared.fail(&format!("no thread could be started: {error}")),
            }
        }
    }
}

impl Drop for Journal {
    /// Without a close: what was appended is durable; settlements may be repeated.
    fn drop(&mut self) {
        lock(&self.shared.inner).closing = true;
        self.shared.wake.notify_all();
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            thread.join().unwrap_or_default();
        }
        self.shared.stop_upkeep();
    }
}

#[async_trait]
impl Log for Journal {
    fn attach(&self, name: &TargetName, settings: QueueSettings) -> Result<(), StoreError> {
        let inner = lock(&self.shared.inner);
        inner.alive()?;
        let last = inner.segments.last().map_or(0, |segment| segment.end_sequence.saturating_sub(1));
        let mut queues = self.shared.queues.lock();
        queues.attach_behind(name, settings, self.shared.bytes_default, last);
        Ok(())
    }

    fn detach(&self, name: &TargetName) -> Result<(), StoreError> {
        self.shared.alive()?;
        self.shared.queues.lock().detach(name)
    }

    async fn rename(&self, name: &TargetName, new: &TargetName) -> Result<(), StoreError> {
        let mut inner = lock(&self.shared.inner);
        inner.alive()?;
        self.shared.queues.lock().orphan_as(name, new)?;
        inner.unwritten_since.get_or_insert_with(sync::now);
        Ok(())
    }

    async fn remove(&self, name: &TargetName) -> Result<u64, StoreError> {
        let discarded = self.shared.remove(name)?;
        self.flush().await.map(|()| discarded)
    }

    fn reserve(&self, admissions: &mut [Admission]) -> Result<(), AppendError> {
        if admissions.len() > 1 {
            self.shared.has_space(admissions)?;
        }
        self.shared.queues.reserve(admissions)
    }

    async fn append(&self, batch: Vec<Admission>) -> Vec<Result<Receipt, AppendError>> {
        if self.in_caller() {
            return self.append_sync(batch);
        }
        self.commit_thread();
        let mut results = Vec::new();
        for part in parts(batch) {
            let length = part.len();
            let (reply, answer) = Reply::task();
            self.shared.enqueue(part, reply);
            let part = self.shared.answered(answer.await.ok(), length);
            if results.is_empty() {
                results = part;
            } else {
                results.extend(part);
            }
        }
        results
    }

    async fn lease(&self, _: Shards) -> Result<Arc<dyn Lease>, StoreError> {
        self.shared.alive()?;
        let epoch = self.shared.epoch.fetch_add(1, Ordering::AcqRel) + 1;
        self.commit_thread();
        Ok(Arc::new(JournalLease { shared: Arc::clone(&self.shared), epoch }))
    }

    fn stats(&self) -> Vec<QueueStats> {
        self.shared.queues.lock().stats()
    }

    fn excess(&self, queue: &TargetName) -> u64 {
        let queues = self.shared.queues.lock();
        queues.find(queue).map_or(0, |id| queues.get(id).excess())
    }

    fn filled(&self, queue: &TargetName) -> u8 {
        self.shared.queues.lock().filled(queue)
    }

    fn input(&self) -> Option<Input> {
        let inner = lock(&self.shared.inner);
        let input = inner.input.as_ref()?;
        Some(Input { note: input.note.clone(), admitted: input.admitted.iter().collect() })
    }

    async fn set_input(&self, note: Bytes) -> Result<(), StoreError> {
        if self.in_caller() {
            return self.set_input_sync(note);
        }
        self.commit_thread();
        let (reply, answer) = Reply::task();
        self.shared.push_input(note, reply);
        answer.await.unwrap_or(Err(StoreError::Closed))
    }

    fn pass_over(&self, sequence: u64) {
        let mut core = lock(&self.shared.core);
        core.next_sequence = core.next_sequence.max(sequence.saturating_add(1));
    }

    fn report(&self) -> OpenReport {
        lock(&self.shared.report).clone()
    }

    async fn mend(&self) -> Result<Vec<(String, String)>, StoreError> {
        let shared = Arc::clone(&self.shared);
        self.shared.options.upkeep.blocking(move || shared.mend()).await
    }

    fn disk_full(&self) -> bool {
        self.shared.is_full()
    }

    fn now(&self) -> SystemTime {
        self.shared.options.clock.now()
    }

    fn stored_bytes(&self) -> Option<(u64, u64)> {
        let inner = lock(&self.shared.inner);
        let stored = inner.segments.iter().map(|segment| segment.stored_bytes).sum();
        Some((stored, inner.segments.iter().map(Segment::waiting_bytes).sum()))
    }

    fn file_of(&self, uid: &Uid) -> Option<String> {
        let mut inner = lock(&self.shared.inner);
        inner.segment_mut(uid.sequence).map(|segment| Segment::file_name(segment.number))
    }

    fn ended_unclean(&self) -> bool {
        self.shared.unclean
    }

    fn failure(&self) -> Option<StoreError> {
        lock(&self.shared.inner).failure.clone()
    }

    async fn flush(&self) -> Result<(), StoreError> {
        if self.in_caller() {
            return self.flush_sync();
        }
        self.commit_thread();
        let (reply, answer) = Reply::task();
        self.shared.push_flush(reply);
        answer.await.unwrap_or(Err(StoreError::Closed))
    }

    async fn close(&self) -> Result<(), StoreError> {
        let flushed = match self.flush().await {
            Err(StoreError::Closed) => Ok(()),
            other => other,
        };
        let thread = {
            lock(&self.shared.inner).closing = true;
            self.shared.wake.notify_all();
            lock(&self.thread).take()
        };
        let shared = Arc::clone(&self.shared);
        let finish = move || {
            if let Some(thread) = thread {
                thread.join().unwrap_or_default();
            }
            shared.stop_upkeep();
            shared.finish()
        };
        let finished = self.shared.options.upkeep.blocking(finish).await;
        flushed.and(finished)
    }
}

#[derive(Debug)]
struct JournalLease {
    shared: Arc<Shared>,
    epoch: u64,
}

impl JournalLease {
    fn check(&self) -> Result<(), StoreError> {
        match self.shared.epoch.load(Ordering::Acquire) == self.epoch {
            true => Ok(()),
            false => Err(StoreError::Fenced(self.epoch)),
        }
    }
}

#[async_trait]
impl Lease for JournalLease {
    fn epoch(&self) -> u64 {
        self.epoch
    }

    async fn read(
        &self,
        queue: &TargetName,
        after: u64,
        entries_max: usize,
        bytes_max: usize,
    ) -> Result<ReadBatch, StoreError> {
        self.check()?;
        if self.shared.is_near(queue, after)? {
            return self.shared.read(queue, after, entries_max, bytes_max);
        }
        let (shared, queue) = (Arc::clone(&self.shared), queue.clone());
        let upkeep = self.shared.options.upkeep;
        upkeep.blocking(move || shared.read(&queue, after, entries_max, bytes_max)).await
    }

    async fn scan(&self, queue: &TargetName, after: u64, rows_max: usize) -> Result<Scan, StoreError> {
        self.check()?;
        let (shared, queue) = (Arc::clone(&self.shared), queue.clone());
        let upkeep = self.shared.options.upkeep;
        upkeep.blocking(move || shared.scan(&queue, after, rows_max)).await
    }

    fn crashed(&self, queue: &TargetName) -> Result<Vec<u64>, StoreError> {
        self.check()?;
        let queues = self.shared.queues.lock();
        Ok(queues.get(queues.find(queue)?).crashes.keys().copied().collect())
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<(), StoreError> {
        self.check()?;
        self.shared.settle(&settlements)
    }

    fn in_flight(&self, queue: &TargetName, sequences: &[u64]) -> Result<(), StoreError> {
        self.check()?;
        let mut queues = self.shared.queues.lock();
        let id = queues.find(queue)?;
        let queue = queues.get_mut(id);
        if queue.in_flight != sequences {
            queue.in_flight = sequences.to_vec();
            queue.unwritten.in_flight = true;
        }
        Ok(())
    }

    fn watch(&self, queue: &TargetName) -> Result<watch::Receiver<u64>, StoreError> {
        self.check()?;
        let queues = self.shared.queues.lock();
        Ok(queues.get(queues.find(queue)?).watch())
    }
}

impl Shared {
    fn alive(&self) -> Result<(), StoreError> {
        lock(&self.inner).alive()
    }

    /// Refuses together what the disk would take only in part. Others write meanwhile, so this is no promise.
    fn has_space(&self, admissions: &[Admission]) -> Result<(), AppendError> {
        let wanted: u64 = admissions.iter().map(Admission::size).sum();
        let room = lock(&self.inner).room;
        match self.fs.space(&self.dir) {
            Ok(space) if room + space.available < wanted + wanted / 8 + 4096 => {
                Err(AppendError::DiskFull(self.dir.clone()))
            }
            // Whatever is wrong shows when it is written.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Encodes events and queues them. The work is done here, not in the round: while the disk is busy.
    fn enqueue(&self, batch: Vec<Admission>, reply: turn::AppendReply) {
        let admitted_ms = to_millis(self.options.clock.now());
        let mut bytes = 0;
        let encode = |mut admission: Admission| {
            self.queues.reserve(std::slice::from_mut(&mut admission))?;
            let encoded = Encoded::new(admission, admitted_ms);
            bytes += encoded.length() as u64;
            Ok(encoded)
        };
        let events: Vec<_> = batch.into_iter().map(encode).collect();
        self.push_call(Call { events, bytes, reply });
    }

    /// The answer of a round; without one, it ended in a panic.
    fn answered(
        &self,
        events: Option<Vec<Result<Encoded, AppendError>>>,
        length: usize,
    ) -> Vec<Result<Receipt, AppendError>> {
        let durable = self.options.durability == Durability::Synced;
        let Some(events) = events else {
            return vec![Err(AppendError::Unknown("the commit ended early".into())); length];
        };
        events.into_iter().map(|event| event.map(|event| event.receipt(&self.queues, durable))).collect()
    }

    /// Discards what waits in an orphan; durable with the next flush.
    fn remove(&self, name: &TargetName) -> Result<u64, StoreError> {
        let mut inner = lock(&self.inner);
        inner.alive()?;
        let (id, discarded) = self.queues.lock().remove(name)?;
        inner.segments.iter_mut().for_each(|segment| segment.forget(id));
        inner.unwritten_since.get_or_insert_with(sync::now);
        Ok(discarded)
    }

    fn settle(&self, settlements: &[Settlement]) -> Result<(), StoreError> {
        let mut inner = lock(&self.inner);
        if let Some(failure) = &inner.failure {
            return Err(failure.clone());
        }
        let mut queues = self.queues.lock();
        let mut unknown = None;
        for settlement in settlements {
            let sequence = settlement.place.uid.sequence;
            let id = match queues.find(&settlement.place.uid.queue) {
                Ok(id) => id,
                Err(error) => {
                    unknown.get_or_insert(error);
                    continue;
                }
            };
            if queues.settle(id, settlement)
                && let Some(segment) = inner.segment_mut(sequence)
            {
                segment.settle(id, settlement.place.bytes);
            }
        }
        drop(queues);
        if inner.unwritten_since.is_none() {
            inner.unwritten_since = Some(sync::now());
            self.wake.notify_all();
        }
        unknown.map_or(Ok(()), Err)
    }

    fn fail(&self, reason: &str) {
        tracing::error!(reason, "the journal stops writing");
        lock(&self.inner).failure = Some(StoreError::Failed(reason.into()));
    }
}

impl Inner {
    fn segment_mut(&mut self, sequence: u64) -> Option<&mut Segment> {
        let after = self.segments.partition_point(|segment| segment.first_sequence <= sequence);
        self.segments[..after].iter_mut().rev().find(|segment| segment.holds(sequence))
    }
}
