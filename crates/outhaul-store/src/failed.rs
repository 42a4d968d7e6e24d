//! The failed store: where entries go that are not to be delivered, until a person decides.
//!
//! It is a log of its own in the directory `failed`, of the same engine and format, created when the first entry
//! fails. A burst of rejects is one write and one sync. A record is named by the uid that its entry had; putting the
//! same uid again changes nothing, so a move that was interrupted can be repeated.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use outhaul_event::{DedupId, Event, TargetName, Uid};
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;

use crate::error::{AppendError, StoreError};
use crate::fs::FileSystem;
use crate::journal::{Journal, JournalOptions};
use crate::log::{Admission, Lease, Log, OpenReport, QueueSettings, Shards, WhenFull};
use crate::memory::MemoryLog;

/// The rule by which an entry left its queue without being delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Rule {
    /// The receiver will never take it.
    Rejected,
    /// It was tried as often as its target allows.
    Exhausted,
    /// It became older than its target allows.
    Expired,
    /// It was the oldest of a queue that was full.
    Overflow,
    /// Its bytes were damaged.
    Unreadable,
    /// The process ended three times while it was being delivered.
    CrashSuspect,
}

impl Rule {
    /// The word for it, as it is stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rejected => "rejected",
            Self::Exhausted => "exhausted",
            Self::Expired => "expired",
            Self::Overflow => "overflow",
            Self::Unreadable => "unreadable",
            Self::CrashSuspect => "crash_suspect",
        }
    }
}

/// Why an entry failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The rule.
    pub rule: Rule,
    /// The kind of the last error, a word to branch on.
    pub class: String,
    /// What the receiver or client said: at most 256 bytes, without credentials.
    pub detail: String,
    /// How often it was tried.
    pub attempts: u32,
    /// The first attempt in milliseconds since 1970, if there was one.
    pub first_attempt_ms: Option<u64>,
    /// The last attempt.
    pub last_attempt_ms: Option<u64>,
    /// When it was moved here.
    pub failed_ms: u64,
}

/// An entry in the failed store.
#[derive(Debug, Clone)]
pub struct FailedEntry {
    /// The uid that it had in its queue.
    pub uid: Uid,
    /// The identity that its receivers would have seen.
    pub dedup_id: DedupId,
    /// The event. For an unreadable entry, one of type `outhaul.unreadable` with the bytes as its body.
    pub event: Arc<Event>,
    /// When it was admitted, in milliseconds since 1970.
    pub admitted_ms: u64,
    /// Why it is here.
    pub failure: Failure,
}

/// What stands beside the event in the log.
#[derive(Serialize, Deserialize)]
struct Note {
    sequence: u64,
    admitted_ms: u64,
    #[serde(flatten)]
    failure: Failure,
}

/// The entries that failed, of all targets of a data directory.
#[derive(Debug)]
pub struct FailedStore {
    place: PlaceOnDisk,
    /// Bounds of each target's part.
    pub(crate) settings: QueueSettings,
    opened: OnceCell<Opened>,
    /// Per uid the sequence of its record.
    index: Mutex<BTreeMap<Uid, u64>>,
}

#[derive(Debug)]
enum PlaceOnDisk {
    Memory,
    Journal {
        fs: Arc<dyn FileSystem>,
        dir: PathBuf,
        quarantine: PathBuf,
        options: JournalOptions,
        lock: Arc<dyn crate::fs::Lock>,
    },
}

struct Opened {
    log: Arc<dyn Log>,
    lease: Arc<dyn Lease>,
}

impl std::fmt::Debug for Opened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opened").field("epoch", &self.lease.epoch()).finish_non_exhaustive()
    }
}

impl FailedStore {
    fn new(place: PlaceOnDisk) -> Self {
        let settings = QueueSettings {
            entries_max: 100_000,
            bytes_max: Some(1 << 30),
            when_full: WhenFull::Refuse,
            label: String::new(),
        };
        Self { place, settings, opened: OnceCell::new(), index: Mutex::default() }
    }

    pub(crate) fn memory() -> Self {
        Self::new(PlaceOnDisk::Memory)
    }

    pub(crate) fn journal(
        fs: Arc<dyn FileSystem>,
        dir: PathBuf,
        quarantine: PathBuf,
        options: JournalOptions,
        lock: Arc<dyn crate::fs::Lock>,
    ) -> Self {
        Self::new(PlaceOnDisk::Journal { fs, dir, quarantine, options, lock })
    }

    fn index(&self) -> MutexGuard<'_, BTreeMap<Uid, u64>> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens what an earlier process left, if there is anything. Reads all of its records.
    pub(crate) async fn load(&self) -> Result<(), StoreError> {
        let PlaceOnDisk::Journal { fs, dir, .. } = &self.place else { return Ok(()) };
        match fs.list(dir) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(StoreError::io("list", dir)(error)),
            Ok(_) => self.open().await.map(drop),
        }
    }

    async fn open(&self) -> Result<&Opened, StoreError> {
        self.opened.get_or_try_init(|| self.open_now()).await
    }

    async fn open_now(&self) -> Result<Opened, StoreError> {
        let log: Arc<dyn Log> = match &self.place {
            PlaceOnDisk::Memory => Arc::new(MemoryLog::default()),
            PlaceOnDisk::Journal { fs, dir, quarantine, options, lock } => {
                let lock = Arc::clone(lock);
                let (fs, dir, quarantine) = (Arc::clone(fs), dir.clone(), quarantine.clone());
                let options = options.clone();
                let open = move || Journal::open(fs, &dir, &quarantine, options);
                let journal = tokio::task::spawn_blocking(open).await.unwrap_or(Err(StoreError::Closed))?;
                journal.keep(lock);
                Arc::new(journal)
            }
        };
        let lease = log.lease(Shards::All).await?;
        for queue in log.stats() {
            let mut after = 0;
            loop {
                let read = lease.read(&queue.name, after, 1000, 4 << 20).await?;
                if read.entries.is_empty() {
                    break;
                }
                after = read.next;
                let mut index = self.index();
                for entry in read.entries {
                    let record = entry.place.uid.sequence;
                    let uid = match serde_json::from_slice::<Note>(&entry.attachment) {
                        Ok(note) => Uid { queue: queue.name.clone(), sequence: note.sequence },
                        Err(error) => {
                            tracing::error!(target = %queue.name, record, %error, "a failed entry is unreadable");
                            continue;
                        }
                    };
                    index.insert(uid, record);
                }
            }
        }
        Ok(Opened { log, lease })
    }

    /// Makes failed entries durable. Those that are there already are passed over. All of the others, or none, are
    /// there afterwards, unless the outcome is unknown.
    ///
    /// Dropping the future may leave some of them: putting them again is safe.
    pub async fn put(&self, entries: Vec<FailedEntry>) -> Result<(), AppendError> {
        let opened = self.open().await.map_err(AppendError::Store)?;
        let new: Vec<_> = {
            let index = self.index();
            entries.into_iter().filter(|entry| !index.contains_key(&entry.uid)).collect()
        };
        let mut batch = Vec::with_capacity(new.len());
        let mut uids = Vec::with_capacity(new.len());
        for entry in new {
            opened.log.attach(&entry.uid.queue, self.settings.clone()).map_err(AppendError::Store)?;
            let mut admission = Admission::new(entry.event, [entry.uid.queue.clone()].into());
            admission.dedup_id = entry.dedup_id;
            let note =
                Note { sequence: entry.uid.sequence, admitted_ms: entry.admitted_ms, failure: entry.failure };
            // Strings and numbers always serialise.
            admission.attachment = serde_json::to_vec(&note).unwrap_or_default().into();
            batch.push(admission);
            uids.push(entry.uid);
        }
        opened.log.reserve(&mut batch)?;
        let mut failure = None;
        for (uid, result) in uids.into_iter().zip(opened.log.append(batch).await) {
            match result {
                Ok(receipt) => {
                    self.index().insert(uid, receipt.sequence);
                }
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// How many entries a target has here, or all targets together.
    pub fn count(&self, target: Option<&TargetName>) -> u64 {
        let index = self.index();
        match target {
            None => index.len() as u64,
            Some(target) => {
                index.range(from(target, 0)..).take_while(|(uid, _)| uid.queue == *target).count() as u64
            }
        }
    }

    /// The targets that have entries here, each with their number.
    pub fn counts(&self) -> BTreeMap<TargetName, u64> {
        let mut counts = BTreeMap::new();
        for uid in self.index().keys() {
            *counts.entry(uid.queue.clone()).or_default() += 1;
        }
        counts
    }

    /// The uids of all entries, by target and sequence.
    pub fn uids(&self) -> Vec<Uid> {
        self.index().keys().cloned().collect()
    }

    /// One page of a target's entries, oldest first: those above a sequence.
    pub async fn list(
        &self,
        target: &TargetName,
        after: u64,
        entries_max: usize,
    ) -> Result<Vec<FailedEntry>, StoreError> {
        let page: Vec<_> = {
            let index = self.index();
            let from = index.range(from(target, after + 1)..).take_while(|(uid, _)| uid.queue == *target);
            from.take(entries_max).map(|(uid, &record)| (uid.clone(), record)).collect()
        };
        let mut entries = Vec::with_capacity(page.len());
        for (uid, record) in page {
            entries.extend(self.read(&uid, record).await?);
        }
        Ok(entries)
    }

    /// One entry.
    pub async fn get(&self, uid: &Uid) -> Result<Option<FailedEntry>, StoreError> {
        let record = self.index().get(uid).copied();
        match record {
            Some(record) => self.read(uid, record).await,
            None => Ok(None),
        }
    }

    async fn read(&self, uid: &Uid, record: u64) -> Result<Option<FailedEntry>, StoreError> {
        let opened = self.open().await?;
        let read = opened.lease.read(&uid.queue, record - 1, 1, 1).await?;
        let Some(entry) = read.entries.into_iter().find(|entry| entry.place.uid.sequence == record) else {
            return Ok(None);
        };
        let (Ok(event), Ok(note)) = (entry.event, serde_json::from_slice::<Note>(&entry.attachment)) else {
            return Ok(None);
        };
        let (uid, dedup_id) = (uid.clone(), entry.dedup_id);
        Ok(Some(FailedEntry { uid, dedup_id, event, admitted_ms: note.admitted_ms, failure: note.failure }))
    }

    /// What recovery found, if the store was ever used.
    pub(crate) fn report(&self) -> OpenReport {
        self.opened.get().map(|opened| opened.log.report()).unwrap_or_default()
    }

    /// Waits for what is written, and closes; later calls fail with `Closed`.
    pub async fn close(&self) -> Result<(), StoreError> {
        match self.opened.get() {
            Some(opened) => opened.log.close().await,
            None => Ok(()),
        }
    }
}

fn from(target: &TargetName, sequence: u64) -> Uid {
    Uid { queue: target.clone(), sequence }
}

/// Milliseconds since 1970, for the fields of a failure.
pub fn unix_millis(time: SystemTime) -> u64 {
    crate::journal::to_millis(time)
}
