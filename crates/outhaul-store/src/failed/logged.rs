//! The medium that is a log of its own: a second, small journal, or a log in memory.
//!
//! A record is an event whose attachment says which entry it was and why it failed; a note is an empty event whose
//! attachment says what became of a record. A burst of rejects is one write and one sync.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use outhaul_event::{Event, TargetName, Uid};
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;

use super::medium::{Loaded, Medium, Note, Record, Repaired, Slot, UnreadableRecord};
use super::{FailedEntry, Failure};
use crate::error::{AppendError, StoreError};
use crate::fs::{FileSystem, Lock, write_atomically};
use crate::journal::{Journal, JournalOptions};
use crate::log::{
    Admission, Entry, Lease, Log, OpenReport, Outcome, QueueSettings, Settlement, Shards, WhenFull, pid_hash,
    size_of,
};
use crate::memory::MemoryLog;

/// Entries read at a time.
const PAGE: usize = 512;
const PAGE_BYTES: usize = 4 << 20;
/// The furthest that two records lie apart and are read together.
const STRIDE: u64 = 8;

/// Records in a log.
#[derive(Debug)]
pub(crate) struct Logged {
    place: Place,
    opened: OnceCell<Opened>,
}

#[derive(Debug)]
enum Place {
    Memory,
    Journal {
        fs: Arc<dyn FileSystem>,
        dir: PathBuf,
        quarantine: PathBuf,
        options: JournalOptions,
        lock: Arc<dyn Lock>,
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

/// What stands beside the event in the log.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Attachment {
    Record {
        sequence: u64,
        admitted_ms: u64,
        #[serde(flatten)]
        failure: Failure,
    },
    Note {
        requeue: u64,
        requeued_as: Option<u64>,
    },
}

impl Attachment {
    fn encode(&self) -> bytes::Bytes {
        // Strings and numbers always serialise.
        serde_json::to_vec(self).unwrap_or_default().into()
    }
}

impl Logged {
    pub(crate) fn memory() -> Self {
        Self { place: Place::Memory, opened: OnceCell::new() }
    }

    pub(crate) fn journal(
        fs: Arc<dyn FileSystem>,
        dir: PathBuf,
        quarantine: PathBuf,
        options: JournalOptions,
        lock: Arc<dyn Lock>,
    ) -> Self {
        Self { place: Place::Journal { fs, dir, quarantine, options, lock }, opened: OnceCell::new() }
    }

    async fn open(&self) -> Result<&Opened, StoreError> {
        self.opened.get_or_try_init(|| self.open_now()).await
    }

    async fn open_now(&self) -> Result<Opened, StoreError> {
        let log: Arc<dyn Log> = match &self.place {
            Place::Memory => Arc::new(MemoryLog::default()),
            Place::Journal { fs, dir, quarantine, options, lock } => {
                let lock = Arc::clone(lock);
                let (fs, dir, quarantine) = (Arc::clone(fs), dir.clone(), quarantine.clone());
                let (options, upkeep) = (options.clone(), options.upkeep);
                let open = move || Journal::open(fs, &dir, &quarantine, options);
                let journal = upkeep.blocking(open).await?;
                journal.keep(lock);
                Arc::new(journal)
            }
        };
        let lease = log.lease(Shards::All).await?;
        Ok(Opened { log, lease })
    }

    /// Whether there is anything; opens and creates nothing.
    fn exists(&self) -> Result<bool, StoreError> {
        if self.opened.get().is_some() {
            return Ok(true);
        }
        let Place::Journal { fs, dir, .. } = &self.place else { return Ok(false) };
        match fs.list(dir) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(StoreError::io("list", dir)(error)),
            Ok(_) => Ok(true),
        }
    }

    /// Reads the entries in these slots that are still there, in the order of the log.
    async fn visit(
        &self,
        slots: impl IntoIterator<Item = Slot> + Send,
        mut visit: impl FnMut(Entry) + Send,
    ) -> Result<(), StoreError> {
        let mut wanted: BTreeMap<TargetName, Vec<u64>> = BTreeMap::new();
        for slot in slots {
            wanted.entry(slot.target).or_default().extend(u64::try_from(slot.key).ok());
        }
        if wanted.is_empty() || !self.exists()? {
            return Ok(());
        }
        let opened = self.open().await?;
        for (target, mut keys) in wanted {
            keys.sort_unstable();
            keys.dedup();
            let mut rest = &keys[..];
            while let Some(&first) = rest.first() {
                let near = rest.windows(2).take_while(|pair| pair[1] - pair[0] <= STRIDE).count() + 1;
                let read = match opened.lease.read(&target, first - 1, near.min(PAGE), PAGE_BYTES).await {
                    // No record of this target was ever written.
                    Err(StoreError::UnknownQueue(_)) => break,
                    read => read?,
                };
                if read.entries.is_empty() {
                    break;
                }
                rest = &rest[rest.partition_point(|&key| key <= read.next)..];
                let asked = |entry: &Entry| keys.binary_search(&entry.place.uid.sequence).is_ok();
                read.entries.into_iter().filter(asked).for_each(&mut visit);
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Medium for Logged {
    async fn load(&self) -> Result<Loaded, StoreError> {
        let mut loaded = Loaded::default();
        if !self.exists()? {
            return Ok(loaded);
        }
        let opened = self.open().await?;
        for queue in opened.log.stats() {
            let mut after = 0;
            loop {
                let read = opened.lease.read(&queue.name, after, PAGE, PAGE_BYTES).await?;
                if read.entries.is_empty() {
                    break;
                }
                after = read.next;
                for entry in read.entries {
                    loaded.add(&queue.name, &entry, || file_of(&*opened.log, &entry));
                }
            }
        }
        Ok(loaded)
    }

    async fn put(&self, entries: Vec<FailedEntry>) -> Vec<Result<Record, AppendError>> {
        let failed = |count: usize, error: AppendError| vec![Err(error); count];
        let count = entries.len();
        let opened = match self.open().await {
            Ok(opened) => opened,
            Err(error) => return failed(count, AppendError::Store(error)),
        };
        let (mut batch, mut records) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for entry in entries {
            if let Err(error) = opened.log.attach(&entry.uid.queue, unbounded()) {
                return failed(count, AppendError::Store(error));
            }
            let mut admission = Admission::new(entry.event, [entry.uid.queue.clone()].into());
            admission.dedup_id = entry.dedup_id;
            let (sequence, failed_ms) = (entry.uid.sequence, entry.failure.failed_ms);
            let pid_hash = pid_hash(&admission.event);
            let note =
                Attachment::Record { sequence, admitted_ms: entry.admitted_ms, failure: entry.failure };
            admission.attachment = note.encode();
            records.push(Record { uid: entry.uid, key: 0, bytes: admission.size(), failed_ms, pid_hash });
            batch.push(admission);
        }
        if let Err(error) = opened.log.reserve(&mut batch) {
            return failed(count, error);
        }
        let results = opened.log.append(batch).await;
        let record = |(record, result): (Record, Result<crate::log::Receipt, AppendError>)| {
            result.map(|receipt| Record { key: receipt.sequence.into(), ..record })
        };
        records.into_iter().zip(results).map(record).collect()
    }

    async fn read(&self, records: &[Record]) -> Result<Vec<Option<FailedEntry>>, StoreError> {
        let mut found = BTreeMap::new();
        self.visit(records.iter().map(Record::slot).collect::<Vec<_>>(), |entry| {
            let uid = entry.place.uid.clone();
            let slot = Slot { target: uid.queue, key: uid.sequence.into() };
            found.extend(failed_entry(entry).map(|entry| (slot, entry)));
        })
        .await?;
        Ok(records.iter().map(|record| found.remove(&record.slot())).collect())
    }

    async fn change(&self, notes: Vec<Note>, gone: Vec<Slot>) -> Result<Vec<Slot>, StoreError> {
        let mut slots = Vec::with_capacity(notes.len());
        if !notes.is_empty() {
            let opened = self.open().await?;
            let mut batch = Vec::with_capacity(notes.len());
            for note in notes {
                opened.log.attach(&note.uid.queue, unbounded())?;
                let mut admission = Admission::new(note_event()?, [note.uid.queue.clone()].into());
                let note = Attachment::Note { requeue: note.uid.sequence, requeued_as: note.requeued_as };
                admission.attachment = note.encode();
                batch.push(admission);
            }
            let targets: Vec<_> = batch.iter().map(|admission| admission.targets[0].clone()).collect();
            for (target, result) in targets.into_iter().zip(opened.log.append(batch).await) {
                slots.push(Slot { target, key: result.map_err(into_store_error)?.sequence.into() });
            }
        }
        let mut settlements = Vec::with_capacity(gone.len());
        self.visit(gone, |entry| {
            settlements.push(Settlement { place: entry.place, outcome: Outcome::Discarded });
        })
        .await?;
        if !settlements.is_empty() {
            let opened = self.open().await?;
            opened.lease.settle(settlements).await?;
            opened.log.flush().await?;
        }
        Ok(slots)
    }

    async fn repair(&self) -> Result<Repaired, StoreError> {
        let mut repaired = Repaired::default();
        let Place::Journal { fs, quarantine, .. } = &self.place else { return Ok(repaired) };
        if !self.exists()? {
            return Ok(repaired);
        }
        let opened = self.open().await?;
        for queue in opened.log.stats() {
            let mut after = 0;
            loop {
                let batch = opened.lease.read(&queue.name, after, PAGE, PAGE_BYTES).await?;
                if batch.entries.is_empty() {
                    break;
                }
                after = batch.next;
                let mut gone = Vec::new();
                for entry in batch.entries.into_iter().filter(|entry| read(entry).is_err()) {
                    let uid = &entry.place.uid;
                    let name = format!("failed-{}-{}.bin", uid.queue, uid.sequence);
                    let content = match &entry.event {
                        Ok(event) => [&event.to_json()[..], b"\n", &entry.attachment[..], b"\n"].concat(),
                        Err(unreadable) => unreadable.bytes.to_vec(),
                    };
                    let path = quarantine.join(&name);
                    let keep = || {
                        fs.create_dir_all(quarantine)?;
                        write_atomically(&**fs, quarantine, &name, &content)
                    };
                    keep().map_err(StoreError::io("write", &path))?;
                    repaired.moved.push((format!("failed record {} of {}", uid.sequence, uid.queue), path));
                    gone.push(Settlement { place: entry.place, outcome: Outcome::Discarded });
                }
                opened.lease.settle(gone).await?;
            }
        }
        opened.log.flush().await?;
        let left = opened.log.mend().await?.into_iter();
        repaired.left.extend(left.map(|(file, why)| (format!("failed/{file}"), why)));
        Ok(repaired)
    }

    async fn there(&self, records: &[Record]) -> Vec<bool> {
        let mut found = BTreeSet::new();
        let slots: Vec<_> = records.iter().map(Record::slot).collect();
        let visited = self.visit(slots.clone(), |entry| {
            found.insert(Slot { target: entry.place.uid.queue, key: entry.place.uid.sequence.into() });
        });
        let told = visited.await.is_ok();
        slots.iter().map(|slot| !told || found.contains(slot)).collect()
    }

    fn report(&self) -> OpenReport {
        self.opened.get().map(|opened| opened.log.report()).unwrap_or_default()
    }

    async fn close(&self) -> Result<(), StoreError> {
        match self.opened.get() {
            Some(opened) => opened.log.close().await,
            None => Ok(()),
        }
    }
}

impl Loaded {
    fn add(&mut self, target: &TargetName, entry: &Entry, file: impl FnOnce() -> String) {
        let key = u128::from(entry.place.uid.sequence);
        let uid = |sequence| Uid { queue: target.clone(), sequence };
        let reason = match read(entry) {
            Ok((event, Attachment::Record { sequence, failure, .. })) => {
                // As at the put, not as stored.
                let bytes = size_of(event, &entry.attachment);
                let (failed_ms, pid_hash) = (failure.failed_ms, pid_hash(event));
                let record = Record { uid: uid(sequence), key, bytes, failed_ms, pid_hash };
                self.records.push(record);
                return;
            }
            Ok((_, Attachment::Note { requeue, requeued_as })) => {
                let slot = Slot { target: target.clone(), key };
                self.notes.push((Note { uid: uid(requeue), requeued_as }, slot));
                return;
            }
            Err(reason) => reason,
        };
        let (target, record, file) = (target.clone(), format!("failed record {key}"), file());
        self.unreadable.push(UnreadableRecord { target, record, file, reason });
    }
}

/// What stands beside the event, if both can be read.
fn read(entry: &Entry) -> Result<(&Event, Attachment), String> {
    let event = entry.event.as_ref().map_err(|unreadable| unreadable.reason.clone())?;
    let read = serde_json::from_slice(&entry.attachment);
    read.map(|read| (&**event, read))
        .map_err(|error| format!("what is noted with it makes no sense: {error}"))
}

fn file_of(log: &dyn Log, entry: &Entry) -> String {
    format!("failed/{}", log.file_of(&entry.place.uid).unwrap_or_default())
}

/// The bounds are the failed store's business.
fn unbounded() -> QueueSettings {
    QueueSettings {
        entries_max: u64::MAX,
        bytes_max: Some(u64::MAX),
        when_full: WhenFull::Refuse,
        label: String::new(),
    }
}

fn failed_entry(entry: Entry) -> Option<FailedEntry> {
    let event = entry.event.ok()?;
    let note = serde_json::from_slice(&entry.attachment).ok()?;
    let Attachment::Record { sequence, admitted_ms, failure } = note else { return None };
    let uid = Uid { queue: entry.place.uid.queue, sequence };
    Some(FailedEntry { uid, dedup_id: entry.dedup_id, event, admitted_ms, failure })
}

fn note_event() -> Result<Arc<Event>, StoreError> {
    let event = Event::builder("outhaul.requeued", "outhaul:store").build();
    event.map(Arc::new).map_err(|error| StoreError::Failed(error.to_string().into()))
}

fn into_store_error(error: AppendError) -> StoreError {
    match error {
        AppendError::Store(error) => error,
        AppendError::DiskFull(path) => {
            StoreError::io("write to", &path)(std::io::ErrorKind::StorageFull.into())
        }
        other => StoreError::Failed(other.to_string().into()),
    }
}
