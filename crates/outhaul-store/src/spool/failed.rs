//! The failed entries of a spool: `failed/<uuid>` in each target's directory, in the format of RustFS.
//!
//! A record is an entry, never compressed, with the key `failure`; what else is remembered of it is under `outhaul`.
//! Those that RustFS left are read too; their uid is made of their name, and is none that an entry of a queue has.
//! What is remembered of requeues lies beside the directory, in `<directory>.requeued`.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;
use outhaul_event::{TargetName, Uid};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::mapping::{self, Content};
use super::names::{self, UNFINISHED};
use super::open::{control_damage, quarantine};
use super::rqp1::{self, ENTRY_BYTES_MAX, FailureNote};
use super::sidecar::{self, QUEUE, QueueFile};
use super::{FAILED, lock};
use crate::error::{AppendError, StoreError, is_full};
use crate::failed::{
    FailedEntry, Failure, Loaded, Medium, Note, Record, Repaired, Rule, Slot, UnreadableRecord,
};
use crate::fs::{FileSystem, move_aside, read_whole, write_atomically};
use crate::journal::{from_millis, to_millis};
use crate::log::{OpenReport, pid_hash};

const REQUEUED: &str = ".requeued";
/// The numbers below are those of notes; no UUID is one of them.
const FIRST_RECORD: u128 = 1 << 64;
/// The uids of what RustFS left start here: no entry of a queue has one.
pub(crate) const FIRST_FOREIGN: u64 = 1 << 63;

/// The failed entries of all targets of a spool.
#[derive(Debug)]
pub(crate) struct SpoolFailed {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    fs: Arc<dyn FileSystem>,
    spool: PathBuf,
    read_only: bool,
    state: Mutex<State>,
    report: Mutex<OpenReport>,
    closed: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// The directories that are there under another name than ours.
    stems: BTreeMap<TargetName, String>,
    /// What is noted of requeues, by number.
    notes: BTreeMap<TargetName, BTreeMap<u64, (u64, Option<u64>)>>,
    last_note: u64,
}

/// What is remembered beyond what RustFS has a key for.
#[derive(Serialize, Deserialize)]
struct Kept {
    sequence: u64,
    #[serde(flatten)]
    failure: Failure,
}

#[derive(Serialize, Deserialize)]
struct NoteFile {
    /// Number, the record's sequence, and the new one.
    requeues: Vec<(u64, u64, Option<u64>)>,
}

impl SpoolFailed {
    /// Those of the spool in a directory.
    pub(crate) fn new(fs: Arc<dyn FileSystem>, spool: &Path, read_only: bool) -> Self {
        let (spool, closed) = (spool.to_owned(), AtomicBool::new(false));
        let (state, report) = Default::default();
        Self { inner: Arc::new(Inner { fs, spool, read_only, state, report, closed }) }
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        if self.inner.closed.load(Ordering::Acquire) {
            return Err(StoreError::Closed);
        }
        let inner = Arc::clone(&self.inner);
        tokio::task::spawn_blocking(move || work(&inner)).await.unwrap_or(Err(StoreError::Closed))
    }
}

#[async_trait]
impl Medium for SpoolFailed {
    async fn load(&self) -> Result<Loaded, StoreError> {
        self.run(Inner::load).await
    }

    async fn put(&self, entries: Vec<FailedEntry>) -> Vec<Result<Record, AppendError>> {
        let count = entries.len();
        let put = self.run(move |inner| Ok(inner.put(entries))).await;
        put.unwrap_or_else(|error| (0..count).map(|_| Err(AppendError::Store(error.clone()))).collect())
    }

    async fn read(&self, records: &[Record]) -> Result<Vec<Option<FailedEntry>>, StoreError> {
        let records = records.to_vec();
        self.run(move |inner| records.iter().map(|record| inner.read(record)).collect()).await
    }

    async fn change(&self, notes: Vec<Note>, gone: Vec<Slot>) -> Result<Vec<Slot>, StoreError> {
        self.run(move |inner| inner.change(&notes, gone)).await
    }

    async fn repair(&self) -> Result<Repaired, StoreError> {
        self.run(Inner::repair).await
    }

    async fn there(&self, records: &[Record]) -> Vec<bool> {
        let records = records.to_vec();
        let count = records.len();
        let gone = |inner: &Inner, record: &Record| {
            let stat = inner.fs.stat(&inner.path(&record.slot()));
            stat.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        let told = self.run(move |inner| Ok(records.iter().map(|record| !gone(inner, record)).collect()));
        told.await.unwrap_or_else(|_| vec![true; count])
    }

    fn report(&self) -> OpenReport {
        lock(&self.inner.report).clone()
    }

    async fn close(&self) -> Result<(), StoreError> {
        // Every call is durable when it resolves.
        self.inner.closed.store(true, Ordering::Release);
        Ok(())
    }
}

impl Inner {
    fn stem(&self, target: &TargetName) -> String {
        let known = lock(&self.state).stems.get(target).cloned();
        known.unwrap_or_else(|| names::directory(target))
    }

    fn dir(&self, target: &TargetName) -> PathBuf {
        self.spool.join(self.stem(target)).join(FAILED)
    }

    fn path(&self, slot: &Slot) -> PathBuf {
        self.dir(&slot.target).join(names::uuid_text(slot.key.to_be_bytes()))
    }

    fn load(&self) -> Result<Loaded, StoreError> {
        let mut found = match self.fs.list(&self.spool) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Loaded::default()),
            other => other.map_err(StoreError::io("list", &self.spool))?,
        };
        found.sort_by(|a, b| a.name.cmp(&b.name));
        let mut loaded = Loaded::default();
        for entry in found.into_iter().filter(|entry| !entry.is_file) {
            let Some(target) = self.owner(&entry.name) else { continue };
            if lock(&self.state).stems.contains_key(&target) {
                continue;
            }
            lock(&self.state).stems.insert(target.clone(), entry.name.clone());
            self.load_notes(&target, &entry.name, &mut loaded)?;
            self.load_records(&target, &mut loaded)?;
        }
        loaded.records.sort_by_key(|record| (record.failed_ms, record.key));
        Ok(loaded)
    }

    /// As the queues are found; see the opening of the spool.
    fn owner(&self, stem: &str) -> Option<TargetName> {
        names::target_of(stem).or_else(|| {
            let path = self.spool.join(format!("{stem}{QUEUE}"));
            let content = read_whole(&*self.fs, &path, 1 << 20).ok()?;
            let file: QueueFile = serde_json::from_slice(sidecar::unseal(&content)?).ok()?;
            TargetName::new(&file.name).ok().filter(|name| names::directory(name) == stem)
        })
    }

    fn load_notes(&self, target: &TargetName, stem: &str, loaded: &mut Loaded) -> Result<(), StoreError> {
        let path = self.spool.join(format!("{stem}{REQUEUED}"));
        let content = match read_whole(&*self.fs, &path, ENTRY_BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other.map_err(StoreError::io("read", &path))?,
        };
        let file = sidecar::unseal(&content).and_then(|content| serde_json::from_slice(content).ok());
        let Some(file): Option<NoteFile> = file else {
            let file = format!("{stem}{REQUEUED}");
            let lost = "what became of failed entries that were put back is forgotten";
            let damage = control_damage(&*self.fs, &self.spool, &file, content.len(), lost, self.read_only);
            lock(&self.report).damage.push(damage);
            return Ok(());
        };
        let mut state = lock(&self.state);
        for (number, sequence, requeued_as) in file.requeues {
            state.last_note = state.last_note.max(number);
            state.notes.entry(target.clone()).or_default().insert(number, (sequence, requeued_as));
            let uid = Uid { queue: target.clone(), sequence };
            let slot = Slot { target: target.clone(), key: number.into() };
            loaded.notes.push((Note { uid, requeued_as }, slot));
        }
        Ok(())
    }

    fn load_records(&self, target: &TargetName, loaded: &mut Loaded) -> Result<(), StoreError> {
        let dir = self.dir(target);
        let mut found = match self.fs.list(&dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other.map_err(StoreError::io("list", &dir))?,
        };
        found.sort_by(|a, b| a.name.cmp(&b.name));
        for entry in found.into_iter().filter(|entry| entry.is_file) {
            let path = dir.join(&entry.name);
            if entry.name.ends_with(UNFINISHED) {
                if !self.read_only {
                    remove(&*self.fs, &path)?;
                }
                continue;
            }
            match self.load_record(target, &path, &entry.name)? {
                None => {}
                Some(Ok(record)) => loaded.records.push(record),
                Some(Err(reason)) => {
                    let record = format!("{}/{FAILED}/{}", self.stem(target), entry.name);
                    let (target, file) = (target.clone(), format!("spool/{record}"));
                    loaded.unreadable.push(UnreadableRecord { target, record, file, reason });
                }
            }
        }
        Ok(())
    }

    /// None: it is not there any more.
    fn load_record(
        &self,
        target: &TargetName,
        path: &Path,
        name: &str,
    ) -> Result<Option<Result<Record, String>>, StoreError> {
        let content = match read_whole(&*self.fs, path, ENTRY_BYTES_MAX) {
            // It was removed between the listing and now.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Vec::new(),
            other => other.map_err(StoreError::io("read", path))?,
        };
        let bytes = content.len() as u64;
        let Some(key) = record_key(name) else { return Ok(Some(Err("its name is no UUID".to_owned()))) };
        let record = |entry: FailedEntry| {
            let (failed_ms, pid_hash) = (entry.failure.failed_ms, pid_hash(&entry.event));
            Record { uid: entry.uid, key, bytes, failed_ms, pid_hash }
        };
        Ok(Some(decode(&content.into(), target, key).map(record)))
    }

    fn repair(&self) -> Result<Repaired, StoreError> {
        let mut repaired = Repaired::default();
        let stems = lock(&self.state).stems.clone();
        for (target, stem) in stems {
            let dir = self.dir(&target);
            let found = match self.fs.list(&dir) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other.map_err(StoreError::io("list", &dir))?,
            };
            for entry in found.into_iter().filter(|entry| entry.is_file) {
                let path = dir.join(&entry.name);
                if let Some(Err(_)) = self.load_record(&target, &path, &entry.name)? {
                    let name = format!("{stem}-{FAILED}-{}", entry.name);
                    let to = move_aside(&*self.fs, &path, &quarantine(&self.spool), &name);
                    let to = to.map_err(StoreError::io("move", &path))?;
                    repaired.moved.push((format!("spool/{stem}/{FAILED}/{}", entry.name), to));
                }
            }
        }
        Ok(repaired)
    }

    /// One file each, and one sync for each directory.
    fn put(&self, entries: Vec<FailedEntry>) -> Vec<Result<Record, AppendError>> {
        let mut results = Vec::with_capacity(entries.len());
        let mut touched: BTreeMap<TargetName, Result<(), AppendError>> = BTreeMap::new();
        for entry in entries {
            let target = entry.uid.queue.clone();
            touched.entry(target.clone()).or_insert(Ok(()));
            results.push((target, self.write(entry)));
        }
        for (target, synced) in &mut touched {
            let dir = self.dir(target);
            if let Err(error) = self.fs.sync_dir(&dir).map_err(StoreError::io("sync", &dir)) {
                *synced = Err(AppendError::Unknown(error.to_string().into()));
            }
        }
        let each = results.into_iter().map(|(target, result)| match &touched[&target] {
            Ok(()) => result,
            Err(error) => result.and(Err(error.clone())),
        });
        each.collect()
    }

    fn write(&self, entry: FailedEntry) -> Result<Record, AppendError> {
        let (uid, failed_ms) = (entry.uid.clone(), entry.failure.failed_ms);
        let pid_hash = pid_hash(&entry.event);
        let id = if uid.sequence <= names::SEQUENCE_MAX {
            names::id(uid.sequence)
        } else {
            *Uuid::new_v4().as_bytes()
        };
        let bytes = encode(entry);
        let dir = self.dir(&uid.queue);
        let name = names::uuid_text(id);
        let temporary = dir.join(format!("{name}.{}{UNFINISHED}", Uuid::new_v4()));
        let write = || {
            self.fs.create_dir_all(&dir)?;
            let file = self.fs.create(&temporary)?;
            file.write_at(&bytes, 0)?;
            file.sync()?;
            self.fs.rename(&temporary, &dir.join(&name))
        };
        let written: io::Result<()> = write();
        if let Err(error) = written {
            // What is left of it goes at the next open.
            self.fs.remove(&temporary).unwrap_or_default();
            if is_full(&error) {
                return Err(AppendError::DiskFull(dir));
            }
            return Err(AppendError::Store(StoreError::io("write a failed entry into", &dir)(error)));
        }
        Ok(Record { uid, key: u128::from_be_bytes(id), bytes: bytes.len() as u64, failed_ms, pid_hash })
    }

    fn read(&self, record: &Record) -> Result<Option<FailedEntry>, StoreError> {
        let path = self.path(&record.slot());
        let content = match read_whole(&*self.fs, &path, ENTRY_BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(StoreError::io("read", &path))?,
        };
        match decode(&content.into(), &record.uid.queue, record.key) {
            // The uid is what it was when it was loaded: two of RustFS's may have come to the same one.
            Ok(entry) => Ok(Some(FailedEntry { uid: record.uid.clone(), ..entry })),
            Err(reason) => {
                tracing::error!(file = %path.display(), reason, "a failed entry cannot be read");
                Ok(None)
            }
        }
    }

    fn change(&self, notes: &[Note], gone: Vec<Slot>) -> Result<Vec<Slot>, StoreError> {
        let slots = {
            let mut state = lock(&self.state);
            let one = |note: &Note| {
                state.last_note += 1;
                let (number, target) = (state.last_note, note.uid.queue.clone());
                let own = state.notes.entry(target.clone()).or_default();
                own.insert(number, (note.uid.sequence, note.requeued_as));
                Slot { target, key: number.into() }
            };
            notes.iter().map(one).collect::<Vec<_>>()
        };
        self.write_notes(&slots.iter().map(|slot| slot.target.clone()).collect())?;
        let (records, old): (Vec<_>, Vec<_>) = gone.into_iter().partition(|slot| slot.key >= FIRST_RECORD);
        let mut touched = BTreeSet::new();
        for slot in records {
            remove(&*self.fs, &self.path(&slot))?;
            touched.insert(slot.target);
        }
        for target in touched {
            let dir = self.dir(&target);
            match self.fs.sync_dir(&dir) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(StoreError::io("sync", &dir)(error));
                }
                _ => {}
            }
        }
        let mut changed = BTreeSet::new();
        for slot in old {
            let mut state = lock(&self.state);
            let number = u64::try_from(slot.key).unwrap_or(0);
            let removed = state.notes.get_mut(&slot.target).and_then(|own| own.remove(&number));
            if removed.is_some() {
                changed.insert(slot.target);
            }
        }
        self.write_notes(&changed)?;
        Ok(slots)
    }

    fn write_notes(&self, targets: &BTreeSet<TargetName>) -> Result<(), StoreError> {
        for target in targets {
            let name = format!("{}{REQUEUED}", self.stem(target));
            let requeues = {
                let state = lock(&self.state);
                let own = state.notes.get(target).into_iter().flatten();
                own.map(|(number, (sequence, requeued_as))| (*number, *sequence, *requeued_as)).collect()
            };
            // Numbers always serialise.
            let content = sidecar::seal(serde_json::to_vec(&NoteFile { requeues }).unwrap_or_default());
            self.fs.create_dir_all(&self.spool).map_err(StoreError::io("create", &self.spool))?;
            let written = write_atomically(&*self.fs, &self.spool, &name, &content);
            written.map_err(StoreError::io("write", &self.spool.join(name)))?;
        }
        Ok(())
    }
}

fn remove(fs: &dyn FileSystem, path: &Path) -> Result<(), StoreError> {
    match fs.remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StoreError::io("remove", path)(error)),
        _ => Ok(()),
    }
}

fn encode(entry: FailedEntry) -> Vec<u8> {
    let FailedEntry { uid, dedup_id, event, admitted_ms, failure } = entry;
    let content = Content {
        event: Arc::clone(&event),
        dedup_id,
        admitted_at: from_millis(admitted_ms),
        attachment: Bytes::new(),
        requeue_of: None,
        position: None,
        fan_out: 1,
    };
    let mut metadata = mapping::metadata(&content);
    metadata.failure = Some(FailureNote {
        error_class: "Terminal".to_owned(),
        error_detail: shortened(&failure.detail).to_owned(),
        nats_msg_id: metadata.dedup_id.clone(),
        failed_at_unix_ms: failure.failed_ms,
        retry_count: failure.attempts.into(),
    });
    if let Some(own) = &mut metadata.outhaul {
        own.failed = serde_json::to_value(Kept { sequence: uid.sequence, failure }).ok();
    }
    mapping::sealed(metadata, event.body())
}

/// RustFS keeps at most 256 bytes.
fn shortened(detail: &str) -> &str {
    let end = (0..=detail.len().min(256)).rev().find(|&at| detail.is_char_boundary(at)).unwrap_or(0);
    &detail[..end]
}

/// The number of a record, by the name of its file.
pub(crate) fn record_key(name: &str) -> Option<u128> {
    names::uuid(name).map(u128::from_be_bytes).filter(|key| *key >= FIRST_RECORD)
}

/// A record.
pub(crate) fn decode(bytes: &Bytes, target: &TargetName, key: u128) -> Result<FailedEntry, String> {
    let (metadata, body) = rqp1::decode(bytes).map_err(|error| error.to_string())?;
    let note = metadata.failure.clone().unwrap_or_default();
    let kept = metadata.outhaul.as_ref().and_then(|own| own.failed.clone());
    let kept: Option<Kept> =
        kept.map(serde_json::from_value).transpose().map_err(|error| error.to_string())?;
    let name = names::uuid_text(key.to_be_bytes());
    let content = mapping::content(metadata, body, &name).map_err(|error| error.to_string())?;
    let Kept { sequence, failure } = kept.unwrap_or_else(|| Kept {
        // The middle of the name, where the names of one millisecond differ.
        sequence: FIRST_FOREIGN | (key ^ (key >> 65)) as u64 & (FIRST_FOREIGN - 1),
        failure: foreign(&note),
    });
    Ok(FailedEntry {
        uid: Uid { queue: target.clone(), sequence },
        dedup_id: content.dedup_id,
        event: content.event,
        admitted_ms: if content.admitted_at == SystemTime::UNIX_EPOCH {
            0
        } else {
            to_millis(content.admitted_at)
        },
        failure,
    })
}

/// What RustFS notes of a failure: it moves only what its receiver refused for good.
fn foreign(note: &FailureNote) -> Failure {
    Failure {
        rule: Rule::Rejected,
        class: note.error_class.to_ascii_lowercase(),
        detail: note.error_detail.clone(),
        attempts: u32::try_from(note.retry_count).unwrap_or(u32::MAX),
        first_attempt_ms: None,
        last_attempt_ms: None,
        failed_ms: note.failed_at_unix_ms,
    }
}
