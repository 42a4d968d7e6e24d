//! The `journal` engine: one log per data directory, shared by all of its queues.
//!
//! # How it works
//!
//! An event is written once, with the list of its queues. Whatever waits to be written goes into one batch: one
//! write and one sync. A round is led by whoever gets to the disk first: the commit thread for async callers, the
//! calling thread for synchronous ones; all others find their result done. Settlements, retry states and new queues
//! are collected in the queues' memory and ride with the next batch, or get one of their own after a short while.
//!
//! A segment is sealed when it is full, and at every open; the next one starts with a checkpoint. A sealed segment
//! in which nothing waits any more is removed. The bytes are in [`format`], recovery is in [`recover`].
//!
//! # What can fail
//!
//! A full disk refuses events and leaves the log as it was; settlements still find room in a small file that is held
//! back for them, and what they free is taken up by itself. A sync that fails ends the log's life in this process: the events of that batch are *unknown*, everything later is refused.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use outhaul_event::TargetName;
use tokio::sync::{oneshot, watch};

use crate::error::{AppendError, StoreError};
use crate::fs::FileSystem;
use crate::log::{
    Admission, Durability, Input, Lease, Log, OpenReport, QueueSettings, QueueStats, ReadBatch, Receipt,
    Settlement, Shards,
};
use crate::queue::SharedQueues;

mod checkpoint;
mod commit;
mod format;
mod read;
mod recover;
mod scan;
mod segment;

use checkpoint::InputState;
use commit::Core;
pub(crate) use format::{FORMAT, from_millis, to_millis};
use recover::{Recovered, Recovery};
use segment::Segment;

/// How a journal is kept.
#[derive(Debug, Clone)]
pub struct JournalOptions {
    /// A segment is sealed when it has this many bytes.
    pub segment_bytes_max: u64,
    /// How long settlements may wait for a batch to ride with.
    pub settle_linger: Duration,
    /// After this long without anything to write, the log notes that all of it is durable.
    pub idle_mark: Duration,
    /// Space held back for settlements and checkpoints when the disk is full: a file of this size.
    pub reserve_bytes: u64,
    /// Nothing on disk is changed, and nothing can be appended: for looking at a directory at rest.
    pub read_only: bool,
    /// What a receipt promises.
    pub durability: Durability,
}

impl Default for JournalOptions {
    fn default() -> Self {
        Self {
            segment_bytes_max: 64 << 20,
            settle_linger: Duration::from_millis(50),
            idle_mark: Duration::from_secs(1),
            reserve_bytes: 256 << 10,
            read_only: false,
            durability: Durability::Synced,
        }
    }
}

/// A journal. The methods that end in `_sync` block the calling thread and need no async runtime.
#[derive(Debug)]
pub struct Journal {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
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
    /// The epoch of the newest lease.
    epoch: AtomicU64,
    bytes_default: u64,
    report: OpenReport,
    /// The directory's lock, for as long as anybody can write.
    lock: std::sync::OnceLock<Arc<dyn crate::fs::Lock>>,
}

/// What waits for the next round, and where everything is.
#[derive(Debug, Default)]
struct Inner {
    calls: Vec<Call>,
    input_calls: Vec<(Bytes, oneshot::Sender<Result<(), StoreError>>)>,
    flushes: Vec<oneshot::Sender<Result<(), StoreError>>>,
    /// Since when something in the queues is unwritten.
    unwritten_since: Option<Instant>,
    /// No round before this: the disk was full.
    not_before: Option<Instant>,
    /// Live segments in order; the last one is written to.
    segments: Vec<Segment>,
    input: Option<InputState>,
    /// Whether everything is durable and a batch says so.
    marked: bool,
    closing: bool,
    failure: Option<StoreError>,
}

#[derive(Debug)]
struct Call {
    /// Those that have room; for the others the answer is there already.
    admissions: Vec<Result<Admission, AppendError>>,
    reply: oneshot::Sender<Vec<Result<Receipt, AppendError>>>,
}

/// Why a round begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Ready,
    /// Nothing came for a while.
    Idle,
    /// The log is being closed.
    Last,
}

/// A call is one batch, and a batch has a bounded length; hardly any call is more than one part.
fn parts(batch: Vec<Admission>) -> Vec<Vec<Admission>> {
    const PART_BYTES_MAX: u64 = 64 << 20;
    let mut parts = Vec::with_capacity(1);
    let (mut part, mut bytes) = (Vec::with_capacity(batch.len()), 0);
    for admission in batch {
        let size = admission.size();
        if bytes + size > PART_BYTES_MAX && !part.is_empty() {
            parts.push(std::mem::take(&mut part));
            bytes = 0;
        }
        bytes += size;
        part.push(admission);
    }
    parts.push(part);
    parts
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
        let recovery = Recovery { fs: &*fs, dir, quarantine, read_only: options.read_only };
        let Recovered { queues, segments, next_sequence, next_number, next_base, epoch, input, report } =
            recovery.run()?;
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
        let inner = Inner { segments, input, ..Inner::default() };
        let shared = Shared {
            core: Mutex::new(Core::new(&queues, next_sequence, next_number, next_base)),
            inner: Mutex::new(inner),
            wake: Condvar::new(),
            queues: SharedQueues::new(queues),
            epoch: AtomicU64::new(epoch),
            bytes_default: (space.total / 4).clamp(1, 10 << 30),
            report,
            lock: std::sync::OnceLock::new(),
            fs,
            dir: dir.to_owned(),
            options,
        };
        if !shared.options.read_only {
            shared.start()?;
        }
        Ok(Self { shared: Arc::new(shared), thread: Mutex::new(None) })
    }

    /// Keeps the lock of the data directory until nobody can write to this journal any more.
    pub(crate) fn keep(&self, lock: Arc<dyn crate::fs::Lock>) {
        self.shared.lock.get_or_init(|| lock);
    }

    /// As [`Log::append`], in the calling thread.
    pub fn append_sync(&self, batch: Vec<Admission>) -> Vec<Result<Receipt, AppendError>> {
        let each = |part| self.drive(self.shared.enqueue(part)).unwrap_or_default();
        parts(batch).into_iter().flat_map(each).collect()
    }

    /// As [`Log::flush`], in the calling thread.
    pub fn flush_sync(&self) -> Result<(), StoreError> {
        self.drive(self.shared.enqueue_flush()).unwrap_or(Err(StoreError::Closed))
    }

    /// As [`Log::set_input`], in the calling thread.
    pub fn set_input_sync(&self, note: Bytes) -> Result<(), StoreError> {
        self.drive(self.shared.enqueue_input(note)).unwrap_or(Err(StoreError::Closed))
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
        if let Some(thread) = lock(&self.thread).take() {
            // A panic in the thread was reported by the panic hook; what it left is taken care of below.
            thread.join().unwrap_or_default();
        }
        self.shared.finish()
    }

    /// Leads rounds until an answer is there.
    fn drive<T>(&self, mut answer: oneshot::Receiver<T>) -> Option<T> {
        loop {
            let mut core = lock(&self.shared.core);
            match answer.try_recv() {
                Ok(value) => return Some(value),
                Err(oneshot::error::TryRecvError::Closed) => return None,
                Err(oneshot::error::TryRecvError::Empty) => self.shared.round(&mut core, false),
            }
        }
    }

    /// Starts the commit thread at the first async call.
    fn commit_thread(&self) {
        let mut thread = lock(&self.thread);
        if thread.is_none() && !lock(&self.shared.inner).closing {
            let shared = Arc::clone(&self.shared);
            let builder = std::thread::Builder::new().name("outhaul-commit".to_owned());
            match builder.spawn(move || shared.commit_loop()) {
                Ok(handle) => *thread = Some(handle),
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
        if let Some(thread) = lock(&self.thread).take() {
            thread.join().unwrap_or_default();
        }
    }
}

#[async_trait]
impl Log for Journal {
    fn attach(&self, name: &TargetName, settings: QueueSettings) -> Result<(), StoreError> {
        self.shared.alive()?;
        self.shared.queues.lock().attach(name, settings, self.shared.bytes_default);
        Ok(())
    }

    fn detach(&self, name: &TargetName) -> Result<(), StoreError> {
        self.shared.alive()?;
        self.shared.queues.lock().detach(name)
    }

    async fn remove(&self, name: &TargetName) -> Result<u64, StoreError> {
        self.shared.alive()?;
        let (_, discarded) = self.shared.queues.lock().remove(name)?;
        self.flush().await.map(|()| discarded)
    }

    fn reserve(&self, admissions: &mut [Admission]) -> Result<(), AppendError> {
        if admissions.len() > 1 {
            self.shared.has_space(admissions)?;
        }
        self.shared.queues.reserve(admissions)
    }

    async fn append(&self, batch: Vec<Admission>) -> Vec<Result<Receipt, AppendError>> {
        self.commit_thread();
        let mut results = Vec::with_capacity(batch.len());
        for part in parts(batch) {
            let length = part.len();
            let answer = self.shared.enqueue(part);
            self.shared.wake.notify_all();
            // No answer: the commit thread ended over it.
            let lost = || vec![Err(AppendError::Unknown("the commit thread ended".into())); length];
            results.extend(answer.await.unwrap_or_else(|_| lost()));
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

    fn input(&self) -> Option<Input> {
        let inner = lock(&self.shared.inner);
        let input = inner.input.as_ref()?;
        Some(Input { note: input.note.clone(), admitted: input.admitted.iter().collect() })
    }

    async fn set_input(&self, note: Bytes) -> Result<(), StoreError> {
        self.commit_thread();
        let answer = self.shared.enqueue_input(note);
        self.shared.wake.notify_all();
        answer.await.unwrap_or(Err(StoreError::Closed))
    }

    fn report(&self) -> OpenReport {
        self.shared.report.clone()
    }

    fn failure(&self) -> Option<StoreError> {
        lock(&self.shared.inner).failure.clone()
    }

    async fn flush(&self) -> Result<(), StoreError> {
        self.commit_thread();
        let answer = self.shared.enqueue_flush();
        self.shared.wake.notify_all();
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
            shared.finish()
        };
        let finished = tokio::task::spawn_blocking(finish).await.unwrap_or(Err(StoreError::Closed));
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
        let (shared, queue) = (Arc::clone(&self.shared), queue.clone());
        let read = tokio::task::spawn_blocking(move || shared.read(&queue, after, entries_max, bytes_max));
        read.await.unwrap_or(Err(StoreError::Closed))
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
        match self.fs.space(&self.dir) {
            Ok(space) if space.available < wanted + wanted / 8 + 4096 => {
                Err(AppendError::DiskFull(self.dir.clone()))
            }
            // Whatever is wrong shows when it is written.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn enqueue(&self, batch: Vec<Admission>) -> oneshot::Receiver<Vec<Result<Receipt, AppendError>>> {
        let (reply, answer) = oneshot::channel();
        if let Err(error) = self.alive() {
            // The receiver is in our hands: the answer arrives.
            reply.send(vec![Err(AppendError::Store(error)); batch.len()]).unwrap_or_default();
            return answer;
        }
        let reserve = |mut admission: Admission| {
            self.queues.reserve(std::slice::from_mut(&mut admission)).map(|()| admission)
        };
        let admissions: Vec<_> = batch.into_iter().map(reserve).collect();
        // Asked again under the lock: behind `closing` nothing is queued, so what is queued is answered.
        let mut inner = lock(&self.inner);
        match inner.alive() {
            Ok(()) => inner.calls.push(Call { admissions, reply }),
            Err(error) => {
                drop(inner);
                reply.send(vec![Err(AppendError::Store(error)); admissions.len()]).unwrap_or_default();
            }
        }
        answer
    }

    fn enqueue_flush(&self) -> oneshot::Receiver<Result<(), StoreError>> {
        let (reply, answer) = oneshot::channel();
        let mut inner = lock(&self.inner);
        match inner.alive() {
            Ok(()) => inner.flushes.push(reply),
            Err(error) => reply.send(Err(error)).unwrap_or_default(),
        }
        answer
    }

    fn enqueue_input(&self, note: Bytes) -> oneshot::Receiver<Result<(), StoreError>> {
        let (reply, answer) = oneshot::channel();
        let mut inner = lock(&self.inner);
        match inner.alive() {
            Ok(()) => inner.input_calls.push((note, reply)),
            Err(error) => reply.send(Err(error)).unwrap_or_default(),
        }
        answer
    }

    fn settle(&self, settlements: &[Settlement]) -> Result<(), StoreError> {
        let mut inner = lock(&self.inner);
        if let Some(failure) = &inner.failure {
            return Err(failure.clone());
        }
        let mut queues = self.queues.lock();
        for settlement in settlements {
            let sequence = settlement.place.uid.sequence;
            let id = queues.find(&settlement.place.uid.queue)?;
            if queues.settle(id, settlement)
                && let Some(segment) = inner.segment_mut(sequence)
            {
                segment.unsettled = segment.unsettled.saturating_sub(1);
            }
        }
        drop(queues);
        if inner.unwritten_since.is_none() {
            inner.unwritten_since = Some(Instant::now());
            self.wake.notify_all();
        }
        Ok(())
    }

    /// The life of the commit thread.
    fn commit_loop(&self) {
        let _guard = OnPanic(self);
        loop {
            let work = self.wait_for_work();
            let mut core = lock(&self.core);
            self.round(&mut core, work == Work::Idle);
            if work == Work::Last {
                // A round takes a bounded part of the calls.
                while lock(&self.inner).asked() {
                    self.round(&mut core, false);
                }
                return;
            }
        }
    }

    /// Waits until a round has something to do.
    fn wait_for_work(&self) -> Work {
        let mut inner = lock(&self.inner);
        loop {
            if inner.closing {
                return Work::Last;
            }
            let now = Instant::now();
            let waits = inner.failure.is_none();
            let ready = !inner.calls.is_empty() || !inner.input_calls.is_empty() || !inner.flushes.is_empty();
            let due = match (inner.unwritten_since, inner.marked) {
                (Some(since), _) if waits => {
                    Some(inner.not_before.unwrap_or(since + self.options.settle_linger))
                }
                (None, false) if waits => Some(now + self.options.idle_mark),
                _ => None,
            };
            if ready || due.is_some_and(|due| due <= now) {
                return Work::Ready;
            }
            let idle = inner.unwritten_since.is_none();
            inner = match due {
                None => self.wake.wait(inner).unwrap_or_else(PoisonError::into_inner),
                Some(due) => {
                    let waited = self.wake.wait_timeout(inner, due - now);
                    let (inner, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                    if timeout.timed_out() && idle {
                        return Work::Idle;
                    }
                    inner
                }
            };
        }
    }

    fn fail(&self, reason: &str) {
        tracing::error!(reason, "the journal stops writing");
        lock(&self.inner).failure = Some(StoreError::Failed(reason.into()));
    }
}

/// A commit thread that panics answers whoever waits, now and later.
struct OnPanic<'a>(&'a Shared);

impl Drop for OnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail("the commit thread panicked: a defect");
            let mut inner = lock(&self.0.inner);
            let left = (
                std::mem::take(&mut inner.calls),
                std::mem::take(&mut inner.input_calls),
                std::mem::take(&mut inner.flushes),
            );
            drop(inner);
            drop(left);
        }
    }
}

impl Inner {
    fn alive(&self) -> Result<(), StoreError> {
        match &self.failure {
            Some(failure) => Err(failure.clone()),
            None if self.closing => Err(StoreError::Closed),
            None => Ok(()),
        }
    }

    fn asked(&self) -> bool {
        !self.calls.is_empty() || !self.input_calls.is_empty() || !self.flushes.is_empty()
    }

    /// Sealed segments in which nothing waits; the last one is written to.
    fn finished(&self) -> Vec<Segment> {
        let sealed = self.segments.len().saturating_sub(1);
        self.segments[..sealed].iter().filter(|segment| segment.unsettled == 0).cloned().collect()
    }

    fn segment_mut(&mut self, sequence: u64) -> Option<&mut Segment> {
        let after = self.segments.partition_point(|segment| segment.first_sequence <= sequence);
        self.segments[..after].iter_mut().rev().find(|segment| segment.holds(sequence))
    }
}
