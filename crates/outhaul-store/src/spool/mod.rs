//! The `spool` engine: one directory per target, one file per entry, in the format that RustFS reads and writes.
//!
//! # How it works
//!
//! An event becomes one file in the directory of each of its targets, under the same name: written to a temporary
//! file, synced, renamed; then each directory is synced, once for all that came meanwhile. Directories are told from
//! each other by the target's name alone: `outhaul-<name>`. One that RustFS made, `rustfs-<type>-<name>`, is taken
//! over when it is put here; one of ours is RustFS's when it is renamed so. What is of no use to RustFS lies beside the
//! directories, never in them; `docs/spool-format.md` tells all of it.
//!
//! A directory is listed once, at open. From then on the index of names is what is there: entries are read in its
//! order, each once; a file that somebody else removed is found missing when its turn comes, frees its place and is
//! counted as vanished. A batch that RustFS wrote is read as its items; which of them are settled is in memory, is
//! written down at a clean end, and its file goes with the last of them. This engine writes no batches: RustFS's have
//! no place for what an event has beyond its body.
//!
//! # What is weaker than in the journal
//!
//! - An event is several files, so it can be stored for some of its targets and not for others:
//!   [`AppendError::Partial`]. Limits are reserved for all of them first.
//! - The format has no place for retries and notes of what is in flight. They are written beside the directory:
//!   durably, at most once a second, so a loss of power may forget the last second of them; what is in flight besides
//!   at once and not synced, for a crash of the process.
//! - A batch of which some items are settled is repeated as a whole after a crash.
//!
//! # What can fail
//!
//! A file that cannot be written or synced is an event that was refused; the next one is another file. A directory
//! sync that fails ends the engine's life in this process: what it was for is *unknown*
//! ([`AppendError::Unknown`]), everything later is refused.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use outhaul_event::TargetName;
use tokio::sync::{oneshot, watch};

use crate::error::{AppendError, StoreError};
use crate::fs::FileSystem;
use crate::log::{
    Admission, Durability, Input, OpenReport, Outcome, QueueSettings, QueueStats, Receipt, Settlement,
};
use crate::queue::{QueueId, Runs, SharedQueues};

pub mod batch;
mod commit;
mod failed;
#[cfg(feature = "testkit")]
pub mod fuzzing;
mod index;
mod log;
pub mod mapping;
pub mod names;
mod notes;
pub mod notification;
mod open;
mod read;
mod rename;
pub mod rqp1;
mod sidecar;

use commit::Core;
pub(crate) use failed::{FIRST_FOREIGN, SpoolFailed, decode as decode_failed, record_key};
use index::{Gone, Index};
pub use names::safe_id;

/// How a spool is kept.
#[derive(Debug, Clone)]
pub struct SpoolOptions {
    /// Whether new entries are compressed. Those that are there are read either way.
    pub compress: bool,
    /// What a receipt promises.
    pub durability: Durability,
    /// How long the removal of settled files may wait for a directory sync to ride with.
    pub settle_linger: Duration,
    /// How many files are written and synced at the same time.
    pub writers: usize,
    /// Space that appends leave free, for moves to the failed store.
    pub reserve_bytes: u64,
    /// Nothing on disk is changed, and nothing can be appended: for looking at a directory at rest.
    pub read_only: bool,
}

impl Default for SpoolOptions {
    fn default() -> Self {
        Self {
            compress: true,
            durability: Durability::Synced,
            settle_linger: Duration::from_millis(50),
            writers: 8,
            reserve_bytes: 1 << 20,
            read_only: false,
        }
    }
}

/// A spool. The methods that end in `_sync` block the calling thread and need no async runtime.
#[derive(Debug)]
pub struct Spool {
    handle: Handle,
}

/// What closing needs.
#[derive(Debug, Clone)]
struct Handle {
    shared: Arc<Shared>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

#[derive(Debug)]
struct Shared {
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    options: SpoolOptions,
    /// The disk. Locked for a whole round; before `inner`, which is before `dirs`, which is before `queues`.
    core: Mutex<Core>,
    inner: Mutex<Inner>,
    wake: Condvar,
    dirs: Mutex<HashMap<QueueId, Dir>>,
    queues: SharedQueues,
    /// The epoch of the newest lease.
    epoch: AtomicU64,
    bytes_default: u64,
    report: OpenReport,
    /// The data directory's lock, for as long as anybody can write.
    lock: OnceLock<Arc<dyn crate::fs::Lock>>,
}

/// What waits for the next round.
#[derive(Debug, Default)]
struct Inner {
    calls: Vec<Call>,
    input_calls: Vec<(Bytes, Reply<()>)>,
    remove_calls: Vec<(TargetName, Reply<u64>)>,
    rename_calls: Vec<(TargetName, TargetName, Reply<()>)>,
    flushes: Vec<Reply<()>>,
    /// Since when there is something to remove or to note.
    unwritten_since: Option<Instant>,
    /// What is in flight changed.
    note_now: bool,
    /// When what was acknowledged without a sync is to be synced.
    sync_due: Option<Instant>,
    input: Option<InputState>,
    closing: bool,
    failure: Option<StoreError>,
}

type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

#[derive(Debug)]
struct Call {
    admissions: Vec<Result<Admission, AppendError>>,
    reply: oneshot::Sender<Vec<Result<Receipt, AppendError>>>,
}

/// How far the input was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct InputState {
    note: Bytes,
    admitted: Runs,
    /// Up to which sequence the positions of entries are in it.
    covers: u64,
}

/// One target's directory.
#[derive(Debug)]
struct Dir {
    /// Its name within the spool.
    stem: String,
    path: PathBuf,
    /// Whether it is known to be there.
    created: bool,
    index: Index,
    /// The batch that was read last.
    cache: Option<read::Batch>,
    /// Files of settled entries.
    removals: Vec<Removal>,
    /// Whether a removal is not durable yet.
    unsynced: bool,
    /// Whether what is noted beside it has changed, and when it was written last.
    noted: bool,
    /// Whether what is in flight has changed.
    flight: bool,
    /// Its files are on their way to another directory: nothing is read meanwhile.
    moving: bool,
}

/// A file whose entries are settled.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Removal {
    file: String,
    /// It is renamed to what is nobody's, as there is no copy of it.
    kept: bool,
}

impl Dir {
    fn new(spool: &Path, stem: String) -> Self {
        let path = spool.join(&stem);
        Self {
            stem,
            path,
            created: false,
            index: Index::default(),
            cache: None,
            removals: Vec::new(),
            unsynced: false,
            noted: true,
            flight: false,
            moving: false,
        }
    }
}

/// The directory of a target's failed entries, within its own.
const FAILED: &str = "failed";

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Spool {
    /// Opens the spool in a directory, creating it if there is none. Blocks while it lists what is there.
    ///
    /// The caller holds a lock on the data directory.
    pub fn open(fs: Arc<dyn FileSystem>, dir: &Path, options: SpoolOptions) -> Result<Self, StoreError> {
        let read_only = options.read_only;
        let shared = Arc::new(open::open(fs, dir, options)?);
        let thread = if read_only {
            lock(&shared.inner).failure = Some(StoreError::Closed);
            None
        } else {
            let own = Arc::clone(&shared);
            let spawned =
                std::thread::Builder::new().name("outhaul-spool".to_owned()).spawn(move || own.run());
            Some(spawned.map_err(StoreError::io("start a thread for", dir))?)
        };
        Ok(Self { handle: Handle { shared, thread: Arc::new(Mutex::new(thread)) } })
    }

    /// Keeps the data directory's lock for as long as anything can be written.
    pub fn keep(&self, held: Arc<dyn crate::fs::Lock>) {
        // A second lock of the same directory cannot be had.
        self.shared().lock.set(held).unwrap_or_default();
    }

    /// As [`Log::attach`](crate::Log::attach).
    pub fn attach_sync(&self, name: &TargetName, settings: QueueSettings) -> Result<(), StoreError> {
        let shared = self.shared();
        if lock(&shared.inner).closing {
            return Err(StoreError::Closed);
        }
        let mut dirs = lock(&shared.dirs);
        let mut queues = shared.queues.lock();
        queues.attach(name, settings, shared.bytes_default);
        let id = queues.find(name)?;
        dirs.entry(id).or_insert_with(|| Dir::new(&shared.dir, names::directory(name)));
        Ok(())
    }

    /// As [`Log::append`](crate::Log::append), in the calling thread. An empty batch is answered by one error.
    pub fn append_sync(&self, batch: Vec<Admission>) -> Vec<Result<Receipt, AppendError>> {
        let (reply, mut answer) = oneshot::channel();
        let Some(call) = self.shared().call(batch, reply) else { return vec![Err(AppendError::Empty)] };
        lock(&self.shared().inner).calls.push(call);
        self.shared().round(commit::Work::Ready);
        answer.try_recv().unwrap_or_default()
    }

    /// As [`Lease::read`](crate::Lease::read), without a lease.
    pub fn read_sync(
        &self,
        queue: &TargetName,
        after: u64,
        entries_max: usize,
        bytes_max: usize,
    ) -> Result<crate::ReadBatch, StoreError> {
        self.shared().read(queue, after, entries_max, bytes_max)
    }

    /// As [`Lease::settle`](crate::Lease::settle), without a lease.
    pub fn settle_sync(&self, settlements: &[Settlement]) -> Result<(), StoreError> {
        self.shared().settle(settlements)
    }

    /// As [`Log::flush`](crate::Log::flush), in the calling thread.
    pub fn flush_sync(&self) -> Result<(), StoreError> {
        let (reply, mut answer) = oneshot::channel();
        lock(&self.shared().inner).flushes.push(reply);
        self.shared().round(commit::Work::Ready);
        answer.try_recv().unwrap_or(Err(StoreError::Closed))
    }

    /// As [`Log::set_input`](crate::Log::set_input), in the calling thread.
    pub fn set_input_sync(&self, note: Bytes) -> Result<(), StoreError> {
        let (reply, mut answer) = oneshot::channel();
        lock(&self.shared().inner).input_calls.push((note, reply));
        self.shared().round(commit::Work::Ready);
        answer.try_recv().unwrap_or(Err(StoreError::Closed))
    }

    /// As [`Log::remove`](crate::Log::remove), in the calling thread.
    pub fn remove_sync(&self, name: &TargetName) -> Result<u64, StoreError> {
        let (reply, mut answer) = oneshot::channel();
        lock(&self.shared().inner).remove_calls.push((name.clone(), reply));
        self.shared().round(commit::Work::Ready);
        answer.try_recv().unwrap_or(Err(StoreError::Closed))
    }

    /// As [`Log::rename`](crate::Log::rename), in the calling thread.
    pub fn rename_sync(&self, name: &TargetName, new: &TargetName) -> Result<(), StoreError> {
        let (reply, mut answer) = oneshot::channel();
        lock(&self.shared().inner).rename_calls.push((name.clone(), new.clone(), reply));
        self.shared().round(commit::Work::Ready);
        answer.try_recv().unwrap_or(Err(StoreError::Closed))
    }

    /// As [`Log::close`](crate::Log::close), in the calling thread.
    pub fn close_sync(&self) -> Result<(), StoreError> {
        self.handle.close()
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }
}

impl Handle {
    fn close(&self) -> Result<(), StoreError> {
        if self.shared.options.read_only {
            return Ok(());
        }
        let first = !std::mem::replace(&mut lock(&self.shared.inner).closing, true);
        self.shared.wake.notify_all();
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            // A panic of the thread was told when it happened.
            thread.join().unwrap_or_default();
        }
        if !first {
            return Ok(());
        }
        let done = self.shared.last_round();
        lock(&self.shared.inner).failure.get_or_insert(StoreError::Closed);
        done
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        if let Err(error) = self.close_sync() {
            tracing::error!(%error, "the spool did not close cleanly");
        }
    }
}

impl Shared {
    /// None for an empty batch.
    fn call(
        &self,
        batch: Vec<Admission>,
        reply: oneshot::Sender<Vec<Result<Receipt, AppendError>>>,
    ) -> Option<Call> {
        if batch.is_empty() {
            return None;
        }
        let reserve = |mut admission: Admission| {
            self.queues.reserve(std::slice::from_mut(&mut admission))?;
            Ok(admission)
        };
        Some(Call { admissions: batch.into_iter().map(reserve).collect(), reply })
    }

    fn settle(&self, settlements: &[Settlement]) -> Result<(), StoreError> {
        let mut noted = false;
        {
            let mut dirs = lock(&self.dirs);
            let mut queues = self.queues.lock();
            for settlement in settlements {
                let uid = &settlement.place.uid;
                let id = queues.find(&uid.queue)?;
                let Some(dir) = dirs.get_mut(&id) else { continue };
                if !dir.index.contains(uid.sequence) {
                    continue;
                }
                noted = true;
                dir.noted = true;
                queues.settle(id, settlement);
                // The files are what is written; nothing is to be written down besides.
                let unwritten = &mut queues.get_mut(id).unwritten;
                (unwritten.settled, unwritten.retries) = Default::default();
                if matches!(settlement.outcome, Outcome::Retry(_)) {
                    continue;
                }
                match dir.index.settle(uid.sequence) {
                    Gone::File(file) => dir.removals.push(Removal { file, kept: false }),
                    Gone::Oversized(file) => dir.removals.push(Removal { file, kept: true }),
                    Gone::Unknown | Gone::Item => {}
                }
            }
        }
        if noted {
            self.touch();
        }
        Ok(())
    }

    /// Lets the thread know that something is to be written down some time.
    fn touch(&self) {
        let mut inner = lock(&self.inner);
        if inner.unwritten_since.is_none() {
            inner.unwritten_since = Some(Instant::now());
            self.wake.notify_all();
        }
    }

    fn note_in_flight(&self, queue: &TargetName, sequences: &[u64]) -> Result<(), StoreError> {
        {
            let mut dirs = lock(&self.dirs);
            let mut queues = self.queues.lock();
            let id = queues.find(queue)?;
            queues.get_mut(id).in_flight = sequences.to_vec();
            if let Some(dir) = dirs.get_mut(&id) {
                (dir.noted, dir.flight) = (true, true);
            }
        }
        let mut inner = lock(&self.inner);
        inner.note_now = true;
        inner.unwritten_since.get_or_insert_with(Instant::now);
        self.wake.notify_all();
        Ok(())
    }

    fn crashed(&self, queue: &TargetName) -> Result<Vec<u64>, StoreError> {
        let queues = self.queues.lock();
        Ok(queues.get(queues.find(queue)?).crashes.keys().copied().collect())
    }

    fn stats(&self) -> Vec<QueueStats> {
        self.queues.lock().stats()
    }

    fn watch(&self, queue: &TargetName) -> Result<watch::Receiver<u64>, StoreError> {
        let queues = self.queues.lock();
        Ok(queues.get(queues.find(queue)?).watch())
    }

    fn input(&self) -> Option<Input> {
        let inner = lock(&self.inner);
        let input = inner.input.as_ref()?;
        Some(Input { note: input.note.clone(), admitted: input.admitted.iter().collect() })
    }

    fn check_epoch(&self, epoch: u64) -> Result<(), StoreError> {
        let current = self.epoch.load(Ordering::Acquire) == epoch;
        if current { Ok(()) } else { Err(StoreError::Fenced(epoch)) }
    }
}
