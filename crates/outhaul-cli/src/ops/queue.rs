//! Waiting entries: count, list, read in the order of the log.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::SystemTime;

use outhaul::event::{Event, TargetName, Uid};
use outhaul::store::{Entry, FailedStore, Lease, QueueStats, StoreError, unix_millis};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::text::time_of;

/// Entries read at a time.
const PAGE: usize = 500;
const PAGE_BYTES: usize = 4 << 20;
/// Bytes read ahead over all queues.
const AHEAD_BYTES: usize = 32 << 20;

/// One queue in numbers.
#[derive(Debug, Serialize)]
pub(crate) struct Stat {
    pub(crate) target: TargetName,
    pub(crate) destination: String,
    pub(crate) waiting: u64,
    pub(crate) bytes: u64,
    pub(crate) oldest: Option<String>,
    pub(crate) oldest_age_seconds: Option<u64>,
    #[serde(skip)]
    pub(crate) oldest_at: Option<SystemTime>,
    pub(crate) failed: u64,
    /// Entries whose file somebody else removed, as far as this look noticed.
    pub(crate) vanished: u64,
    /// Failed entries that were discarded since the open because there was no room, or because they became too old.
    pub(crate) failed_discarded_oldest: u64,
    pub(crate) failed_expired: u64,
}

/// Counts what waits, and what failed.
pub(crate) async fn stat(
    lease: &dyn Lease,
    queues: Vec<QueueStats>,
    failed: &FailedStore,
) -> Result<Vec<Stat>, StoreError> {
    let mut stats = Vec::with_capacity(queues.len());
    let discarded = failed.stats();
    for queue in queues {
        let first = match queue.waiting {
            0 => None,
            _ => lease.read(&queue.name, 0, 1, 1).await?.entries.pop(),
        };
        // What cannot be read does not say when it was admitted.
        let oldest_at = first.filter(|entry| entry.event.is_ok()).map(|entry| entry.admitted_at);
        let discarded = discarded.iter().find(|part| part.target == queue.name);
        stats.push(Stat {
            failed: failed.count(Some(&queue.name)),
            vanished: queue.vanished,
            failed_discarded_oldest: discarded.map_or(0, |part| part.discarded_oldest),
            failed_expired: discarded.map_or(0, |part| part.expired),
            target: queue.name,
            destination: queue.label,
            waiting: queue.waiting,
            bytes: queue.bytes,
            oldest: oldest_at.map(|at| time_of(unix_millis(at))),
            oldest_age_seconds: oldest_at.map(|at| at.elapsed().unwrap_or_default().as_secs()),
            oldest_at,
        });
    }
    Ok(stats)
}

/// A waiting entry as it is shown.
#[derive(Debug, Serialize)]
pub(crate) struct Shown {
    pub(crate) uid: Uid,
    target: TargetName,
    sequence: u64,
    pub(crate) dedup_id: Option<String>,
    pub(crate) id: Option<String>,
    source: Option<String>,
    pub(crate) r#type: Option<String>,
    pub(crate) pid: Option<String>,
    pub(crate) admitted: Option<String>,
    #[serde(skip)]
    pub(crate) admitted_at: Option<SystemTime>,
    pub(crate) attempts: u32,
    pub(crate) not_before: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) requeue_of: Option<Uid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unreadable: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<Box<RawValue>>,
}

impl Shown {
    pub(crate) fn new(entry: &Entry, with_event: bool) -> Self {
        let uid = entry.place.uid.clone();
        let event: Option<&Arc<Event>> = entry.event.as_ref().ok();
        let admitted_at = event.map(|_| entry.admitted_at);
        let raw = event.filter(|_| with_event).map(|event| event.to_json());
        Self {
            target: uid.queue.clone(),
            sequence: uid.sequence,
            dedup_id: event.map(|_| entry.dedup_id.to_string()),
            id: event.map(|event| event.id().to_owned()),
            source: event.map(|event| event.source().to_owned()),
            r#type: event.map(|event| event.kind().to_owned()),
            pid: event.and_then(|event| event.pid()).map(str::to_owned),
            admitted: admitted_at.map(|at| time_of(unix_millis(at))),
            admitted_at,
            attempts: entry.retry.map_or(0, |retry| retry.attempts),
            not_before: entry.retry.map(|retry| time_of(unix_millis(retry.not_before))),
            requeue_of: entry.requeue_of.map(|sequence| Uid { queue: uid.queue.clone(), sequence }),
            unreadable: entry.event.as_ref().err().map(|unreadable| unreadable.reason.clone()),
            event: raw.and_then(|raw| serde_json::from_slice(&raw).ok()),
            uid,
        }
    }
}

/// The entries of a queue behind a sequence, up to a number.
pub(crate) async fn list(
    lease: &dyn Lease,
    queue: &TargetName,
    mut after: u64,
    limit: usize,
) -> Result<Vec<Shown>, StoreError> {
    let mut shown = Vec::new();
    while shown.len() < limit {
        let read = lease.read(queue, after, (limit - shown.len()).min(PAGE), PAGE_BYTES).await?;
        if read.entries.is_empty() {
            break;
        }
        after = read.next;
        shown.extend(read.entries.iter().map(|entry| Shown::new(entry, false)));
    }
    Ok(shown)
}

/// One entry.
pub(crate) async fn get(lease: &dyn Lease, uid: &Uid) -> Result<Option<Entry>, StoreError> {
    match lease.read(&uid.queue, uid.sequence - 1, 1, 1).await {
        Err(StoreError::UnknownQueue(_)) => Ok(None),
        read => Ok(read?.entries.into_iter().find(|entry| entry.place.uid == *uid)),
    }
}

/// Goes through the entries of several queues in the order of their admission. An event that waits in several of them
/// comes once.
pub(crate) async fn each<E: From<StoreError>>(
    lease: &dyn Lease,
    queues: &[TargetName],
    mut each: impl FnMut(&Entry) -> Result<(), E>,
) -> Result<(), E> {
    let bytes_max = (AHEAD_BYTES / queues.len().max(1)).clamp(1, PAGE_BYTES);
    let mut next: BTreeMap<u64, Vec<Cursor<'_>>> = BTreeMap::new();
    let mut at: Vec<_> = queues.iter().map(Cursor::new).collect();
    loop {
        for mut cursor in at {
            if let Some(sequence) = cursor.look(lease, bytes_max).await? {
                next.entry(sequence).or_default().push(cursor);
            }
        }
        let Some((_, cursors)) = next.pop_first() else { return Ok(()) };
        at = cursors;
        for (i, cursor) in at.iter_mut().enumerate() {
            if let Some(entry) = cursor.ahead.pop_front().filter(|_| i == 0) {
                each(&entry)?;
            }
        }
    }
}

/// Where the reading of a queue is.
struct Cursor<'a> {
    queue: &'a TargetName,
    after: u64,
    ahead: VecDeque<Entry>,
}

impl<'a> Cursor<'a> {
    fn new(queue: &'a TargetName) -> Self {
        Self { queue, after: 0, ahead: VecDeque::new() }
    }

    /// The sequence of the next entry.
    async fn look(&mut self, lease: &dyn Lease, bytes_max: usize) -> Result<Option<u64>, StoreError> {
        if self.ahead.is_empty() {
            let read = lease.read(self.queue, self.after, PAGE, bytes_max).await?;
            self.after = read.next;
            self.ahead = read.entries.into();
        }
        Ok(self.ahead.front().map(|entry| entry.place.uid.sequence))
    }
}
