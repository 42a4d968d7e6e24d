//! The contract of an engine: [`Log`] and [`Lease`], and the values that pass through them.

use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;
use outhaul_event::{DedupId, Event, TargetName, Uid, fnv1a64};
use tokio::sync::watch;

use crate::error::{AppendError, StoreError};
use crate::queue::Held;

/// A durable log of events, seen through one queue per target.
///
/// Admission needs no lease; whatever reads or settles holds one. All methods may be called from many tasks at once.
#[async_trait]
pub trait Log: Send + Sync + 'static {
    /// Attaches a queue: creates it, or takes over the one that is there, with these settings. The name becomes
    /// durable with the first event.
    fn attach(&self, name: &TargetName, settings: QueueSettings) -> Result<(), StoreError>;

    /// Leaves a queue without a target: it keeps what waits and takes nothing new, until it is attached again.
    fn detach(&self, name: &TargetName) -> Result<(), StoreError>;

    /// Discards whatever waits in a queue without a target, and forgets its name; durable when the future resolves.
    /// Returns how many entries were discarded. A queue that is attached is refused with [`StoreError::Attached`].
    ///
    /// Dropping the future does not take the removal back.
    async fn remove(&self, name: &TargetName) -> Result<u64, StoreError>;

    /// Gives a queue another name, and leaves it without a target: what waits in it is an orphan. Durable with the next
    /// flush. Admissions under way for it end up in it, whatever it is called.
    ///
    /// Dropping the future does not take it back.
    ///
    /// # Errors
    /// [`StoreError::Attached`] if there is a queue of the new name.
    async fn rename(&self, name: &TargetName, new: &TargetName) -> Result<(), StoreError>;

    /// Reserves room for all of these admissions, or for none. What is reserved is given back when the admission is
    /// dropped.
    fn reserve(&self, admissions: &mut [Admission]) -> Result<(), AppendError>;

    /// Makes a batch durable. The result at index i is that of `batch[i]`; each event is admitted for all of its
    /// targets or refused. Admissions of one pid keep their order. Room is reserved here for those that hold none.
    ///
    /// Dropping the future does not take the batch back: it may become durable.
    async fn append(&self, batch: Vec<Admission>) -> Vec<Result<Receipt, AppendError>>;

    /// Takes the ownership of shards. A local engine grants all of them; an earlier lease is fenced by it.
    async fn lease(&self, shards: Shards) -> Result<Arc<dyn Lease>, StoreError>;

    /// One consistent picture of all queues, attached or orphaned, sorted by name.
    fn stats(&self) -> Vec<QueueStats>;

    /// About how many entries have to leave a queue until it is within its limits, as one that overflows can be
    /// beyond them.
    fn excess(&self, queue: &TargetName) -> u64;

    /// How full a queue is, in percent of the limit that it is nearest to; 0 if there is none of this name.
    fn filled(&self, queue: &TargetName) -> u8;

    /// How far the one input of this log was admitted. None before the first [`set_input`](Self::set_input).
    fn input(&self) -> Option<Input>;

    /// Remembers, durably, a note about the input, and forgets the positions admitted before it.
    async fn set_input(&self, note: Bytes) -> Result<(), StoreError>;

    /// Gives no sequence up to this one any more: the failed store has entries that were given it, and a log that lost
    /// its end would give it again.
    fn pass_over(&self, sequence: u64) {
        let _ = sequence;
    }

    /// What recovery found, for a person.
    fn report(&self) -> OpenReport;

    /// Replaces the files in which an open that verified them found damage by sound ones that hold what waits in them.
    /// What cannot be read has to be taken out of its queue before. Returns the files that stay, and why.
    ///
    /// Dropping the future does not stop it.
    async fn mend(&self) -> Result<Vec<(String, String)>, StoreError> {
        Ok(Vec::new())
    }

    /// The file that an entry is in, from the directory of the engine; None without one.
    fn file_of(&self, uid: &Uid) -> Option<String> {
        let _ = uid;
        None
    }

    /// Whether events are refused because the disk is full. It is over by itself when there is room.
    fn disk_full(&self) -> bool {
        false
    }

    /// Bytes of the entries in the files, and of those among them that wait, over all queues, as they were at open; None
    /// where a file goes with its entry.
    fn stored_bytes(&self) -> Option<(u64, u64)> {
        None
    }

    /// The wall clock by which events were admitted, and by which retries are remembered.
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    /// Whether the process before this one ended without closing the log.
    fn ended_unclean(&self) -> bool {
        false
    }

    /// Whether and why nothing can be written any more.
    fn failure(&self) -> Option<StoreError>;

    /// Waits until every settlement made before is durable.
    async fn flush(&self) -> Result<(), StoreError>;

    /// Flushes, marks the end as clean and stops. Later calls fail with `Closed`; twice is fine.
    async fn close(&self) -> Result<(), StoreError>;
}

/// The right to read and settle. Every method fails with [`StoreError::Fenced`] once a later lease was granted.
#[async_trait]
pub trait Lease: Send + Sync + 'static {
    /// Grows with every lease granted on the same data.
    fn epoch(&self) -> u64;

    /// Reads unsettled, durable entries of a queue in their order, from the first one above `after`, until one of
    /// the bounds is reached (at least one entry is read if there is one).
    async fn read(
        &self,
        queue: &TargetName,
        after: u64,
        entries_max: usize,
        bytes_max: usize,
    ) -> Result<ReadBatch, StoreError>;

    /// As [`read`](Self::read), but says only which entries there are and which pids they have: for looking far ahead.
    /// An engine that keeps footers reads no event for it. May return fewer rows than were asked for; none: there is
    /// nothing behind `after`.
    async fn scan(&self, queue: &TargetName, after: u64, rows_max: usize) -> Result<Scan, StoreError> {
        const ENTRIES_MAX: usize = 256;
        const BYTES_MAX: usize = 4 << 20;
        let read = self.read(queue, after, rows_max.min(ENTRIES_MAX), BYTES_MAX).await?;
        let row = |entry: Entry| ScanRow {
            sequence: entry.place.uid.sequence,
            pid_hash: entry.event.ok().and_then(|event| pid_hash(&event)),
        };
        Ok(Scan { rows: read.entries.into_iter().map(row).collect(), next: read.next })
    }

    /// Entries that were being delivered when the process ended without closing the log, in their order.
    fn crashed(&self, queue: &TargetName) -> Result<Vec<u64>, StoreError> {
        let _ = queue;
        Ok(Vec::new())
    }

    /// Takes entries out of their queues, or notes a retry. It counts at once and becomes durable with the next
    /// commit, within a bounded time; [`Log::flush`] waits for that. An entry that was settled before is passed over.
    async fn settle(&self, settlements: Vec<Settlement>) -> Result<(), StoreError>;

    /// Notes which entries of a queue are being delivered, instead of those noted before. The note rides with the next
    /// commit; after an unclean end the entries in it have one crash more, which [`Entry::crashes`] tells.
    fn in_flight(&self, queue: &TargetName, sequences: &[u64]) -> Result<(), StoreError>;

    /// Announces the last durable sequence of a queue, whenever it grows.
    fn watch(&self, queue: &TargetName) -> Result<watch::Receiver<u64>, StoreError>;
}

/// Tells the time of day. The default is the machine's clock.
#[derive(Clone)]
pub struct WallClock(Arc<dyn Fn() -> SystemTime + Send + Sync>);

impl WallClock {
    /// A clock that tells what the function tells.
    pub fn new(now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// What it shows.
    pub fn now(&self) -> SystemTime {
        (self.0)()
    }
}

impl Default for WallClock {
    fn default() -> Self {
        Self::new(SystemTime::now)
    }
}

impl std::fmt::Debug for WallClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WallClock")
    }
}

/// Which shards a lease is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shards {
    /// All of them.
    All,
}

/// What a target wants of its queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueSettings {
    /// Entries at most.
    pub entries_max: u64,
    /// Bytes of events at most; None is the smaller of 10 GiB and a quarter of the file system.
    pub bytes_max: Option<u64>,
    /// What happens at a limit.
    pub when_full: WhenFull,
    /// An opaque note that is kept with the queue: the runtime's canonical destination.
    pub label: String,
}

impl Default for QueueSettings {
    fn default() -> Self {
        Self { entries_max: 10_000_000, bytes_max: None, when_full: WhenFull::Refuse, label: String::new() }
    }
}

/// What happens to an event when the queue of one of its targets is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenFull {
    /// The event is refused for all of its targets: nothing is lost, and the producer is told.
    #[default]
    Refuse,
    /// This target alone misses it; counted, and named in the receipt.
    Shed,
    /// It is admitted, and the target's oldest entry goes to the failed store.
    Overflow,
}

/// What a receipt promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// An event is synced to the disk before it is acknowledged. Nothing acknowledged is lost, whatever ends.
    #[default]
    Synced,
    /// An event is acknowledged when the operating system has it, and synced within this time. A crash of the process
    /// loses nothing; a loss of power, or of the kernel, loses what was acknowledged since the last sync.
    Interval(std::time::Duration),
    /// An event is acknowledged when the operating system has it, which writes it when it likes. A crash of the process
    /// loses nothing; a loss of power, or of the kernel, may lose many seconds of acknowledged events.
    Buffered,
}

/// One event on its way into the log.
#[derive(Debug, Clone)]
pub struct Admission {
    /// The event.
    pub event: Arc<Event>,
    /// The identity that its receivers see.
    pub dedup_id: DedupId,
    /// Its targets; an event without any is not written.
    pub targets: Arc<[TargetName]>,
    /// Where in the input it stood, if that is to be remembered.
    pub position: Option<u64>,
    /// Opaque bytes that stay with the entry.
    pub attachment: Bytes,
    /// Where it comes from.
    pub origin: Origin,
    pub(crate) held: Option<Arc<Held>>,
}

impl Admission {
    /// An event for some targets.
    pub fn new(event: Arc<Event>, targets: Arc<[TargetName]>) -> Self {
        let dedup_id = event.dedup_id();
        Self {
            event,
            dedup_id,
            targets,
            position: None,
            attachment: Bytes::new(),
            origin: Origin::Producer,
            held: None,
        }
    }

    /// What it counts against the byte limits: the event and 64 bytes for its frame.
    pub fn size(&self) -> u64 {
        size_of(&self.event, &self.attachment)
    }
}

pub(crate) fn size_of(event: &Event, attachment: &[u8]) -> u64 {
    (event.size() + attachment.len() + 64) as u64
}

/// Where an admission comes from: how it is counted, and whether the limits of its queues apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Origin {
    /// A producer.
    #[default]
    Producer,
    /// The failed store: the sequence that the entry had in its queue. No limit applies. It is stored with the entry.
    Requeue(u64),
    /// Another product's directory.
    Import,
}

/// The answer to an admission: the event is safe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// The event's place in the log; with a target's name it is the entry's uid.
    pub sequence: u64,
    /// The identity that its receivers see.
    pub dedup_id: DedupId,
    /// The targets that will get it.
    pub targets: Arc<[TargetName]>,
    /// The targets that miss it, because they are full and set to shed.
    pub shed: Vec<TargetName>,
    /// Whether it survives a loss of power from now on.
    pub durable: bool,
}

/// An entry's place: what settling it needs. Comes from reading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The entry.
    pub uid: Uid,
    /// The sequence of the entry before it in the same queue, or 0.
    pub(crate) previous: u64,
    /// What it counts against the byte limit.
    pub(crate) bytes: u64,
}

impl Place {
    /// What the entry counts against the byte limit.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// What a read returns.
#[derive(Debug, Default)]
pub struct ReadBatch {
    /// The entries.
    pub entries: Vec<Entry>,
    /// Where the next read goes on: the `after` to pass.
    pub next: u64,
}

/// What a scan returns.
#[derive(Debug, Default)]
pub struct Scan {
    /// The entries.
    pub rows: Vec<ScanRow>,
    /// Where the next scan goes on: the `after` to pass.
    pub next: u64,
}

/// An entry as a scan sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanRow {
    /// Its place in the log.
    pub sequence: u64,
    /// That of [`pid_hash`]; None without a pid, or if the entry cannot be read.
    pub pid_hash: Option<u64>,
}

/// The hash of an event's pid by which footers and lanes know it: FNV-1a of its bytes, and 1 where that is 0.
pub fn pid_hash(event: &Event) -> Option<u64> {
    event.pid().map(|pid| fnv1a64(pid.as_bytes()).max(1))
}

/// An event as it waits in a queue.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Where it is.
    pub place: Place,
    /// The identity that its receivers see.
    pub dedup_id: DedupId,
    /// The event, or what is left of it if its bytes were damaged.
    pub event: Result<Arc<Event>, Unreadable>,
    /// When it was admitted.
    pub admitted_at: SystemTime,
    /// Attempts that ended in a retry, and the time before which there is no next one.
    pub retry: Option<RetryState>,
    /// The bytes given with the admission.
    pub attachment: Bytes,
    /// The sequence under which it was in this queue before it failed and was requeued.
    pub requeue_of: Option<u64>,
    /// How often the process ended while it was being delivered.
    pub crashes: u32,
}

/// An entry whose bytes do not match their checksum or cannot be decoded.
#[derive(Debug, Clone)]
pub struct Unreadable {
    /// What is on disk.
    pub bytes: Bytes,
    /// What is wrong with it.
    pub reason: String,
}

/// What is remembered of an entry that was tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryState {
    /// Attempts that counted.
    pub attempts: u32,
    /// Not to be tried before.
    pub not_before: SystemTime,
}

/// The end, or the postponement, of an entry.
#[derive(Debug, Clone)]
pub struct Settlement {
    /// Which.
    pub place: Place,
    /// How.
    pub outcome: Outcome,
}

/// How an entry leaves its queue, or that it stays for another try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The target has it.
    Delivered,
    /// The failed store has it: the copy is durable already.
    Failed,
    /// A person or a policy removed it.
    Discarded,
    /// It stays.
    Retry(RetryState),
}

/// One queue in numbers. In every picture `recovered + admitted + requeued + imported` equals
/// `delivered + failed + discarded + waiting`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueStats {
    /// The queue.
    pub name: TargetName,
    /// Whether a target is attached to it; an orphan has none.
    pub attached: bool,
    /// The note given when it was attached.
    pub label: String,
    /// Waiting at open.
    pub recovered: u64,
    /// Admitted since.
    pub admitted: u64,
    /// Put back from the failed store since.
    pub requeued: u64,
    /// Brought in from another product's directory since.
    pub imported: u64,
    /// Delivered since.
    pub delivered: u64,
    /// Moved to the failed store since.
    pub failed: u64,
    /// Removed since.
    pub discarded: u64,
    /// Events that missed this queue because it was full; they were never in it.
    pub shed: u64,
    /// Of the discarded ones, those whose file somebody else removed (engine `spool`).
    pub vanished: u64,
    /// What is in it now.
    pub waiting: u64,
    /// Bytes of what is in it now.
    pub bytes: u64,
    /// The limit on entries.
    pub entries_max: u64,
    /// The limit on bytes.
    pub bytes_max: u64,
}

/// How far the input of a log was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// The note that was set last.
    pub note: Bytes,
    /// The positions admitted since, as runs of first and last, in order.
    pub admitted: Vec<(u64, u64)>,
}

/// What recovery found at open.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OpenReport {
    /// Bytes of an unfinished last write that were cut off: normal after a loss of power.
    pub torn_bytes: u64,
    /// Damage to data that was safe once. A person should look.
    pub damage: Vec<Damage>,
    /// Files in the log's directory that are not ours; left alone.
    pub foreign: Vec<String>,
}

/// A stretch of a file that should have been readable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The file's name.
    pub file: String,
    /// Where it starts.
    pub offset: u64,
    /// How long it is.
    pub length: u64,
    /// What is wrong.
    pub reason: String,
    /// Where a copy went, if one could be made.
    pub quarantined: Option<std::path::PathBuf>,
}
