//! Reading a queue: the files in the order of the index, each once.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use outhaul_event::{DedupId, TargetName, Uid};

use super::index::{Found, share};
use super::mapping::{self, Content};
use super::names::{self, EntryName};
use super::rqp1::{self, ENTRY_BYTES_MAX, InvalidEntry};
use super::{Shared, batch, lock};
use crate::error::StoreError;
use crate::fs::FileSystem;
use crate::journal::from_millis;
use crate::log::{Entry, Outcome, Place, ReadBatch, Settlement, Unreadable};
use crate::queue::QueueId;

/// A batch that was read, for as long as its items are asked for.
#[derive(Debug, Clone)]
pub(super) struct Batch {
    first: u64,
    bytes: Bytes,
    values: Arc<Vec<Range<usize>>>,
}

/// What an item turned out to be.
enum Item {
    Content(Result<Content, Unreadable>),
    /// Its file is not there any more.
    Vanished,
    /// Its file is no batch that can be read: look again, it is one entry now.
    Changed,
}

impl Shared {
    pub(super) fn read(
        &self,
        queue: &TargetName,
        after: u64,
        entries_max: usize,
        bytes_max: usize,
    ) -> Result<ReadBatch, StoreError> {
        let id = self.queues.lock().find(queue)?;
        let mut out = ReadBatch { entries: Vec::new(), next: after };
        let mut bytes = 0;
        loop {
            let (found, path, cached) = {
                let mut dirs = lock(&self.dirs);
                let Some(dir) = dirs.get_mut(&id).filter(|dir| !dir.moving) else { return Ok(out) };
                let found = dir.index.next(out.next);
                // It is of no use once its end is passed.
                dir.cache.take_if(|cached| found.as_ref().is_none_or(|found| found.first != cached.first));
                let Some(found) = found else { return Ok(out) };
                (found, dir.path.clone(), dir.cache.clone())
            };
            let full = out.entries.len() >= entries_max || bytes + found.bytes() > bytes_max as u64;
            if full && !out.entries.is_empty() {
                return Ok(out);
            }
            let content = match self.item(id, &path, &found, cached) {
                Ok(Item::Content(content)) => content,
                Ok(Item::Vanished) => {
                    self.vanished(id, queue, &found, &path);
                    continue;
                }
                Ok(Item::Changed) => continue,
                // What was read before is not lost for what comes behind it.
                Err(_) if !out.entries.is_empty() => return Ok(out),
                Err(error) => return Err(error),
            };
            let size = content.as_ref().map_or_else(|bad| bad.bytes.len(), |content| content.event.size());
            bytes += found.bytes().max(size as u64);
            out.next = found.sequence;
            out.entries.push(self.entry(id, queue, &found, content));
        }
    }

    fn item(
        &self,
        id: QueueId,
        path: &Path,
        found: &Found,
        cached: Option<Batch>,
    ) -> Result<Item, StoreError> {
        if let Some(batch) = cached {
            return Ok(Item::Content(value(&batch, found).map_err(|error| unreadable(&batch.bytes, &error))));
        }
        let file = path.join(&found.file);
        let raw = match load(&*self.fs, &file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Item::Vanished),
            other => other.map_err(StoreError::io("read", &file))?,
        };
        if found.slot.count == 1 {
            let content = whole(&raw, found).and_then(|bytes| one(&bytes, &found.file));
            return Ok(Item::Content(content.map_err(|error| unreadable(&raw.bytes, &error))));
        }
        let count = u64::from(found.slot.count);
        let values = whole(&raw, found).and_then(|bytes| Ok((batch::split(&bytes, count)?, bytes)));
        match values {
            Ok((values, bytes)) => {
                let batch = Batch { first: found.first, bytes, values: Arc::new(values) };
                let content = value(&batch, found).map_err(|error| unreadable(&batch.bytes, &error));
                if let Some(dir) = lock(&self.dirs).get_mut(&id) {
                    dir.cache = Some(batch);
                }
                Ok(Item::Content(content))
            }
            Err(error) => {
                let mut dirs = lock(&self.dirs);
                let gone = dirs.get_mut(&id).map_or(0, |dir| dir.index.make_single(found.first));
                if gone == 0 {
                    // Some of its items were settled already: the others are what is left of it.
                    return Ok(Item::Content(Err(unreadable(&raw.bytes, &error))));
                }
                self.queues.lock().get_mut(id).miscounted(gone);
                Ok(Item::Changed)
            }
        }
    }

    fn entry(
        &self,
        id: QueueId,
        queue: &TargetName,
        found: &Found,
        content: Result<Content, Unreadable>,
    ) -> Entry {
        let (retry, crashes) = {
            let queues = self.queues.lock();
            let (queue, sequence) = (queues.get(id), &found.sequence);
            (queue.retries.get(sequence).copied(), queue.crashes.get(sequence).copied().unwrap_or(0))
        };
        let place = Place {
            uid: Uid { queue: queue.clone(), sequence: found.sequence },
            previous: found.previous,
            bytes: found.bytes(),
        };
        match content {
            Ok(Content { event, dedup_id, admitted_at, attachment, requeue_of, .. }) => {
                let untimed = admitted_at == SystemTime::UNIX_EPOCH;
                let admitted_at = if untimed { named_time(&found.file) } else { admitted_at };
                Entry {
                    place,
                    dedup_id,
                    event: Ok(event),
                    admitted_at,
                    retry,
                    attachment,
                    requeue_of,
                    crashes,
                }
            }
            Err(bad) => Entry {
                place,
                // The same at each reading, as its failed record is found again by its uid.
                dedup_id: DedupId::derive("outhaul:spool", &format!("{queue}/{}", found.file)),
                event: Err(bad),
                admitted_at: named_time(&found.file),
                retry,
                attachment: Bytes::new(),
                requeue_of: None,
                crashes,
            },
        }
    }

    /// Somebody else removed a file: what waited in it has left the queue.
    fn vanished(&self, id: QueueId, name: &TargetName, found: &Found, path: &Path) {
        let mut dirs = lock(&self.dirs);
        let mut queues = self.queues.lock();
        // One that moved is not gone.
        let Some(dir) = dirs.get_mut(&id).filter(|dir| !dir.moving && dir.path == path) else { return };
        // Whoever settled it meanwhile has taken it out already.
        let waited = dir.index.take(found.first);
        if waited.is_empty() {
            return;
        }
        tracing::warn!(target = %name, file = %path.join(&found.file).display(), "an entry's file is gone");
        dir.noted = true;
        for sequence in waited {
            let place = Place {
                uid: Uid { queue: name.clone(), sequence },
                previous: if sequence == found.sequence { found.previous } else { sequence - 1 },
                bytes: share(found.slot, sequence - found.first),
            };
            queues.settle(id, &Settlement { place, outcome: Outcome::Discarded });
            let queue = queues.get_mut(id);
            queue.vanished();
            queue.unwritten.settled = Default::default();
        }
    }
}

/// When a name was minted, if it tells.
fn named_time(file: &str) -> SystemTime {
    match names::uuid(EntryName::parse(file).name) {
        Some(id) if id[6] >> 4 == 7 => from_millis(names::prefix(id) >> 12),
        _ => SystemTime::now(),
    }
}

/// A file's bytes, or the first of them.
struct Raw {
    bytes: Bytes,
    /// Its whole length.
    length: u64,
}

fn load(fs: &dyn FileSystem, path: &Path) -> io::Result<Raw> {
    let file = fs.open(path, false)?;
    let length = file.len()?;
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX).min(ENTRY_BYTES_MAX)];
    let read = file.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(Raw { bytes: bytes.into(), length })
}

fn whole(raw: &Raw, found: &Found) -> Result<Bytes, InvalidEntry> {
    if raw.length > ENTRY_BYTES_MAX as u64 {
        return Err(InvalidEntry::TooLong(raw.length));
    }
    if found.slot.is_compressed() { Ok(rqp1::decompress(&raw.bytes)?.into()) } else { Ok(raw.bytes.clone()) }
}

fn one(bytes: &Bytes, file: &str) -> Result<Content, InvalidEntry> {
    let name = EntryName::parse(file);
    if name.count > 1 {
        // The name says more items than a file of its length can hold.
        return Err(InvalidEntry::Count {
            count: name.count,
            found: batch::split(bytes, name.count).map_or_else(
                |error| if let InvalidEntry::Count { found, .. } = error { found } else { 0 },
                |values| values.len() as u64,
            ),
        });
    }
    mapping::decode(bytes, name.name)
}

fn value(batch: &Batch, found: &Found) -> Result<Content, InvalidEntry> {
    let (count, index) = (u64::from(found.slot.count), found.index());
    let range = batch.values.get(index as usize).cloned();
    let range = range.ok_or(InvalidEntry::Count { count, found: batch.values.len() as u64 })?;
    let name = mapping::item_name(EntryName::parse(&found.file).name, count, index);
    mapping::value(&batch.bytes.slice(range), &name)
}

fn unreadable(bytes: &Bytes, error: &InvalidEntry) -> Unreadable {
    Unreadable { bytes: bytes.clone(), reason: error.to_string() }
}

/// What a file with a single entry holds, if it can be read.
pub(super) fn single(fs: &dyn FileSystem, path: &Path, found: &Found) -> Option<Content> {
    let raw = load(fs, &path.join(&found.file)).ok().filter(|_| found.slot.count == 1)?;
    one(&whole(&raw, found).ok()?, &found.file).ok()
}
