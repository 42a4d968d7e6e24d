//! The failed store: where entries go that are not to be delivered, until a person decides.
//!
//! It is kept in the directory `failed`, created when the first entry fails: in the engine `journal` a second, small
//! journal, so that a burst of rejects is one write and one sync. A record is named by the uid that its entry had;
//! putting the same uid again changes nothing, so a move that was interrupted can be repeated.
//!
//! From here an entry goes back into its queue ([`FailedStore::requeue`]), or is discarded, by a person or by a policy
//! that was chosen. Whatever is done is done to its end, even if the future that asked for it is dropped; and it is
//! durable before it is confirmed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use outhaul_event::{DedupId, Event, Limits, TargetName, Uid};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, oneshot};
use tokio::task::{AbortHandle, JoinSet};

use crate::error::{AppendError, StoreError};
use crate::log::{Entry, Log, OpenReport, Unreadable};
use crate::memo::Memos;

mod logged;
mod medium;
mod options;
mod passed;
mod requeue;
mod state;
mod upkeep;

pub(crate) use logged::Logged;
pub use medium::UnreadableRecord;
pub(crate) use medium::{Loaded, Medium, Note, Record, Repaired, Slot};
pub use options::{Discard, FailedFull, FailedOptions, FailedPage, FailedQuery, FailedStats, ListOrder};
pub use requeue::{RequeueError, Requeued};
use state::{Known, State, Want};

/// What happens to a batch for which there is not enough room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    /// None of it is taken.
    ForAll,
    /// As much of it is taken as fits.
    ForSome,
}

/// Bytes of events that a page holds at most; one entry is there whatever its size.
const PAGE_BYTES_MAX: u64 = 32 << 20;
/// Entries that are removed with one sync.
const DISCARDED_TOGETHER: usize = 10_000;

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

/// The entries that failed, of all targets of a data directory.
#[derive(Debug)]
pub struct FailedStore {
    inner: Arc<Inner>,
    /// What was begun goes on when nobody waits for it any more.
    tasks: Mutex<JoinSet<()>>,
    timer: Mutex<Option<AbortHandle>>,
    noting: Mutex<Option<AbortHandle>>,
}

#[derive(Debug)]
struct Inner {
    medium: Arc<dyn Medium>,
    /// Where requeued entries go.
    log: Arc<dyn Log>,
    state: Mutex<State>,
    /// Something is not worked on any more.
    freed: Notify,
    /// Nothing on disk is changed.
    read_only: bool,
    upkeep: Mutex<Option<tokio::time::Instant>>,
    memos: Memos,
    /// More were passed than is written down.
    passed_changed: AtomicBool,
}

impl FailedEntry {
    /// The copy of an entry whose bytes cannot be read; None if they are more than an event holds.
    pub fn unreadable(entry: &Entry, unreadable: &Unreadable, failed_at: SystemTime) -> Option<Self> {
        let limits = Limits { body_bytes_max: usize::MAX, ..Limits::default() };
        let event = Event::builder("outhaul.unreadable", "outhaul:store")
            .body("application/octet-stream", unreadable.bytes.clone())
            .build_within(&limits)
            .ok()?;
        let failure = Failure {
            rule: Rule::Unreadable,
            class: Rule::Unreadable.as_str().to_owned(),
            detail: unreadable.reason.chars().take(200).collect(),
            attempts: 0,
            first_attempt_ms: None,
            last_attempt_ms: None,
            failed_ms: unix_millis(failed_at),
        };
        Some(Self {
            uid: entry.place.uid.clone(),
            dedup_id: entry.dedup_id,
            event: Arc::new(event),
            admitted_ms: unix_millis(entry.admitted_at),
            failure,
        })
    }
}

impl FailedStore {
    pub(crate) fn new(
        medium: Arc<dyn Medium>,
        log: Arc<dyn Log>,
        options: FailedOptions,
        memos: Memos,
        read_only: bool,
    ) -> Self {
        let state = Mutex::new(State::new(options));
        let upkeep = Mutex::default();
        let (freed, passed_changed) = (Notify::new(), AtomicBool::new(false));
        let inner = Inner { medium, log, state, freed, read_only, upkeep, memos, passed_changed };
        let (tasks, timer, noting) = Default::default();
        Self { inner: Arc::new(inner), tasks, timer, noting }
    }

    /// Opens what an earlier process left, if there is anything.
    pub(crate) async fn load(&self) -> Result<(), StoreError> {
        let loaded = self.inner.medium.load().await?;
        for unreadable in &loaded.unreadable {
            let (target, record, reason) = (&unreadable.target, &unreadable.record, &unreadable.reason);
            tracing::error!(%target, record, reason, "a failed entry cannot be read");
        }
        let gone = self.inner.state().load(loaded);
        if !gone.is_empty() && !self.inner.read_only {
            self.inner.medium.change(Vec::new(), gone).await?;
        }
        self.inner.recall_passed().await
    }

    /// Does something to its end, whoever waits for it.
    async fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        {
            let mut tasks = lock(&self.tasks);
            // Asked under the lock: what is begun before a close is done.
            if self.inner.state().closed {
                return None;
            }
            // Those that are done are taken out; a panic was reported by its hook.
            while tasks.try_join_next().is_some() {}
            tasks.spawn(async move { drop(reply.send(work.await)) });
        }
        answer.await.ok()
    }

    /// Sets the bounds of one target, in place of those given at open.
    pub fn configure(&self, target: &TargetName, options: FailedOptions) {
        self.inner.state().configure(target, options);
        self.arm();
    }

    /// The bounds of one target.
    pub fn options(&self, target: &TargetName) -> FailedOptions {
        self.inner.state().options(target).clone()
    }

    /// Makes failed entries durable. Those that are there already, or were requeued, are passed over. All of the
    /// others, or none, are there afterwards, unless the outcome is unknown.
    ///
    /// Dropping the future does not take them back.
    ///
    /// # Errors
    /// [`AppendError::FailedStoreFull`] at a bound, unless the policy is to discard the oldest.
    pub async fn put(&self, entries: Vec<FailedEntry>) -> Result<(), AppendError> {
        self.put_within(entries, Room::ForAll).await.into_iter().find(Result::is_err).unwrap_or(Ok(()))
    }

    /// As [`put`](Self::put), but takes of each target's entries as many as there is room for, from the first one on.
    /// The result at index i is that of `entries[i]`.
    pub async fn put_each(&self, entries: Vec<FailedEntry>) -> Vec<Result<(), AppendError>> {
        self.put_within(entries, Room::ForSome).await
    }

    async fn put_within(&self, entries: Vec<FailedEntry>, room: Room) -> Vec<Result<(), AppendError>> {
        let (inner, count) = (Arc::clone(&self.inner), entries.len());
        let put = self.run(async move { inner.put(entries, room).await }).await;
        self.arm();
        put.unwrap_or_else(|| vec![Err(AppendError::Store(StoreError::Closed)); count])
    }

    /// How many entries a target has here, or all targets together.
    pub fn count(&self, target: Option<&TargetName>) -> u64 {
        let state = self.inner.state();
        match target {
            None => state.parts().map(|(_, part)| part.records().len() as u64).sum(),
            Some(target) => state.part(target).map_or(0, |part| part.records().len() as u64),
        }
    }

    /// The targets that have entries here, each with their number.
    pub fn counts(&self) -> BTreeMap<TargetName, u64> {
        let state = self.inner.state();
        state.parts().map(|(target, part)| (target.clone(), part.records().len() as u64)).collect()
    }

    /// Every target that has, or had, entries here since open, in numbers; sorted by name.
    pub fn stats(&self) -> Vec<FailedStats> {
        self.inner.state().stats()
    }

    /// The uids of all entries, by target and sequence.
    pub fn uids(&self) -> Vec<Uid> {
        let state = self.inner.state();
        state.parts().flat_map(|(_, part)| part.records().values().map(|record| record.uid.clone())).collect()
    }

    /// The records that cannot be read. They are left as they are.
    pub fn unreadable(&self) -> Vec<UnreadableRecord> {
        self.inner.state().unreadable.clone()
    }

    /// Moves the records that cannot be read to the quarantine.
    pub(crate) async fn repair(&self) -> Result<Repaired, StoreError> {
        let repaired = self.inner.medium.repair().await?;
        self.inner.state().unreadable.clear();
        Ok(repaired)
    }

    /// One page of a target's entries, oldest first: those above a sequence. Empty only if there are none.
    pub async fn list(
        &self,
        target: &TargetName,
        after: u64,
        entries_max: usize,
    ) -> Result<Vec<FailedEntry>, StoreError> {
        let mut query = FailedQuery {
            target: Some(target.clone()),
            after: Some(Uid { queue: target.clone(), sequence: after }),
            ..FailedQuery::default()
        };
        loop {
            let page = self.page(&query, entries_max).await?;
            if !page.entries.is_empty() || page.next.is_none() {
                return Ok(page.entries);
            }
            query.after = page.next;
        }
    }

    /// One page of what is asked for, with what is needed to ask for the next. What is put meanwhile may be in a later
    /// page; what is gone is passed over.
    pub async fn page(&self, query: &FailedQuery, entries_max: usize) -> Result<FailedPage, StoreError> {
        let (records, next) = self.inner.state().page(query, entries_max.max(1));
        let entries = self.inner.medium.read(&records).await?;
        Ok(FailedPage { entries: entries.into_iter().flatten().collect(), next })
    }

    /// One entry.
    pub async fn get(&self, uid: &Uid) -> Result<Option<FailedEntry>, StoreError> {
        let Known::Here(record) = self.inner.state().shown(uid) else { return Ok(None) };
        Ok(self.inner.medium.read(&[record]).await?.pop().flatten())
    }

    /// As what an entry was requeued, as long as that is remembered: 10,000 requeues of a target.
    pub fn requeued_as(&self, uid: &Uid) -> Option<Uid> {
        match self.inner.state().known(uid) {
            Known::RequeuedAs(sequence) => Some(Uid { queue: uid.queue.clone(), sequence }),
            _ => None,
        }
    }

    /// Puts entries back at the end of their queues, under new uids, with their `dedup_id`; attempts and age begin
    /// anew. Each is durable there before it is removed here. Asking again, at once or after a restart, answers the
    /// same new uid. The answer at index i is that of `uids[i]`.
    ///
    /// The queues have to be attached. Their limits do not apply. Dropping the future does not take it back.
    pub async fn requeue(&self, uids: &[Uid]) -> Vec<Result<Requeued, RequeueError>> {
        let (inner, asked) = (Arc::clone(&self.inner), uids.to_vec());
        let done = self.run(async move { inner.requeue(&asked).await }).await;
        done.unwrap_or_else(|| uids.iter().map(|_| Err(RequeueError::Store(StoreError::Closed))).collect())
    }

    /// Removes entries for good; durable when it resolves. Returns how many there were.
    ///
    /// Dropping the future does not take it back.
    pub async fn discard(&self, which: Discard) -> Result<u64, StoreError> {
        let inner = Arc::clone(&self.inner);
        let done = self.run(async move { inner.discard(which).await }).await;
        done.unwrap_or(Err(StoreError::Closed))
    }

    /// What recovery found, if the store was ever used.
    pub(crate) fn report(&self) -> OpenReport {
        self.inner.medium.report()
    }

    /// Waits for what is written, and closes; later calls fail with `Closed`.
    pub async fn close(&self) -> Result<(), StoreError> {
        self.inner.state().closed = true;
        for timer in [lock(&self.timer).take(), lock(&self.noting).take()].into_iter().flatten() {
            timer.abort();
        }
        let mut tasks = std::mem::take(&mut *lock(&self.tasks));
        while tasks.join_next().await.is_some() {}
        let noted = self.inner.note_passed().await;
        self.inner.medium.close().await.and(noted)
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Waits until nobody else works on any of these, and takes them all.
    async fn claim(self: &Arc<Self>, uids: Vec<Uid>) -> Claim {
        loop {
            let freed = self.freed.notified();
            if self.state().claim(&uids) {
                return Claim { inner: Arc::clone(self), uids };
            }
            freed.await;
        }
    }

    /// Records that were claimed with the state, to be let go with the value.
    fn claimed(self: &Arc<Self>, records: &[Record]) -> Claim {
        Claim { inner: Arc::clone(self), uids: records.iter().map(|record| record.uid.clone()).collect() }
    }

    async fn put(self: &Arc<Self>, entries: Vec<FailedEntry>, room: Room) -> Vec<Result<(), AppendError>> {
        let uids: Vec<_> = entries.iter().map(|entry| entry.uid.clone()).collect();
        let mut seen = HashSet::new();
        let entries: Vec<_> = entries.into_iter().filter(|entry| seen.insert(entry.uid.clone())).collect();
        let claim = self.claim(entries.iter().map(|entry| entry.uid.clone()).collect()).await;
        let mut refused: HashMap<Uid, AppendError> = HashMap::new();
        let (entries, wants, dropped) = {
            let mut state = self.state();
            let new = entries.into_iter().filter(|entry| state.known(&entry.uid) == Known::Nothing).collect();
            let (mut entries, dropped) = newest(&state, new);
            if room == Room::ForSome {
                entries = state.fitting(entries, &mut refused);
            }
            let mut wants: BTreeMap<TargetName, Want> = BTreeMap::new();
            for entry in &entries {
                wants.entry(entry.uid.queue.clone()).or_default().add(entry);
            }
            if let Err(error) = state.reserve(&wants) {
                return uids.iter().map(|_| Err(error.clone())).collect();
            }
            (entries, wants, dropped)
        };
        let put: Vec<_> = entries.iter().map(|entry| entry.uid.clone()).collect();
        let results = if entries.is_empty() { Vec::new() } else { self.medium.put(entries).await };
        let victims: Vec<_> = {
            let mut state = self.state();
            state.give_back(&wants);
            if results.iter().all(Result::is_ok) {
                // Otherwise they are put once more.
                for (target, count) in dropped {
                    state.part_mut(&target).counters.discarded_oldest += count;
                }
            }
            for (uid, result) in put.into_iter().zip(results) {
                match result {
                    Ok(record) => state.insert(record),
                    Err(error) => drop(refused.insert(uid, error)),
                }
            }
            // The new ones may be the oldest, so they are free from here on.
            claim.end(&mut state);
            wants.keys().flat_map(|target| state.evict(target)).collect()
        };
        if !victims.is_empty() {
            let (count, target) = (victims.len(), &victims[0].uid.queue);
            tracing::warn!(%target, count, "the failed store is full: its oldest entries are discarded by policy");
        }
        let _victims = self.claimed(&victims);
        // The new ones are safe, so this is no failure of theirs.
        if let Err(error) = self.remove(victims, |counters| &mut counters.discarded_oldest).await {
            tracing::warn!(%error, "the oldest failed entries could not be removed");
        }
        uids.iter().map(|uid| refused.get(uid).map_or(Ok(()), |error| Err(error.clone()))).collect()
    }

    /// Removes claimed records that are out of the count already; where that fails, those that are still there are put
    /// back into it.
    async fn remove(
        &self,
        records: Vec<Record>,
        counter: impl Fn(&mut state::Counters) -> &mut u64 + Send,
    ) -> Result<u64, StoreError> {
        if records.is_empty() {
            return Ok(0);
        }
        let removed = self.medium.change(Vec::new(), records.iter().map(Record::slot).collect()).await;
        let there = match &removed {
            Ok(_) => Vec::new(),
            Err(_) => self.medium.there(&records).await,
        };
        let mut state = self.state();
        let mut count = 0;
        for (at, record) in records.into_iter().enumerate() {
            if there.get(at) == Some(&true) {
                state.insert(record);
            } else {
                *counter(&mut state.part_mut(&record.uid.queue).counters) += 1;
                count += 1;
            }
        }
        removed.map(|_| count)
    }

    async fn discard(self: &Arc<Self>, which: Discard) -> Result<u64, StoreError> {
        let mut uids = self.state().chosen(which);
        uids.sort_unstable();
        uids.dedup();
        let mut count = 0;
        for uids in uids.chunks(DISCARDED_TOGETHER) {
            let _claim = self.claim(uids.to_vec()).await;
            let records: Vec<_> = {
                let mut state = self.state();
                // What is being requeued with an unknown end is not taken away from under it.
                let here: Vec<_> =
                    uids.iter().filter(|uid| matches!(state.known(uid), Known::Here(_))).collect();
                here.into_iter().filter_map(|uid| state.remove(uid)).collect()
            };
            count += self.remove(records, |counters| &mut counters.discarded).await?;
        }
        Ok(count)
    }
}

/// Records that somebody works on; they are free again when this is dropped.
struct Claim {
    inner: Arc<Inner>,
    uids: Vec<Uid>,
}

impl Claim {
    /// Lets go under a lock that is held.
    fn end(mut self, state: &mut State) {
        state.release(&std::mem::take(&mut self.uids));
        self.inner.freed.notify_waiters();
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.uids.is_empty() {
            return;
        }
        self.inner.state().release(&self.uids);
        self.inner.freed.notify_waiters();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Of a batch that alone is more than the bounds allow, the part that is kept where the oldest are discarded, and how
/// many of each target are not.
fn newest(state: &State, mut entries: Vec<FailedEntry>) -> (Vec<FailedEntry>, BTreeMap<TargetName, u64>) {
    let mut room: BTreeMap<TargetName, (u64, u64)> = BTreeMap::new();
    let (mut kept, mut dropped) = (Vec::with_capacity(entries.len()), BTreeMap::new());
    while let Some(entry) = entries.pop() {
        let options = state.options(&entry.uid.queue);
        if options.when_full == FailedFull::HoldTarget {
            kept.push(entry);
            continue;
        }
        let bounds = (options.entries_max, options.bytes_max);
        let (left, bytes) = room.entry(entry.uid.queue.clone()).or_insert(bounds);
        if *left == 0 || *bytes < size(&entry) {
            tracing::warn!(uid = %entry.uid, "a failed entry does not fit into the bounds of the failed store: it is discarded by policy");
            // Nothing older takes the place of one that was newer.
            *left = 0;
            *dropped.entry(entry.uid.queue).or_default() += 1;
            continue;
        }
        (*left, *bytes) = (*left - 1, *bytes - size(&entry));
        kept.push(entry);
    }
    kept.reverse();
    (kept, dropped)
}

/// About what an entry will take.
fn size(entry: &FailedEntry) -> u64 {
    let failure = &entry.failure;
    (entry.event.size() + failure.class.len() + failure.detail.len() + 256) as u64
}

/// Milliseconds since 1970, for the fields of a failure.
pub fn unix_millis(time: SystemTime) -> u64 {
    crate::journal::to_millis(time)
}
