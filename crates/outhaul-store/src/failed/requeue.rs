//! From the failed store back into the queue.
//!
//! 1. It is noted that the requeue begins. 2. The entry is appended to its queue, with the sequence that it had.
//! 3. It is noted as what it was requeued, and the record goes. A crash between the first two leaves the record alone;
//!    one between the last two leaves a twin in the queue, which open finds by the note: so only after such a crash is
//!    a queue searched.

use std::collections::HashMap;
use std::sync::Arc;

use outhaul_event::Uid;

use super::medium::{Note, Record, Slot};
use super::state::Known;
use super::{FailedEntry, FailedStore, Inner, Rule};
use crate::error::{AppendError, StoreError};
use crate::log::{Admission, Lease, Origin};

/// Entries that are requeued with one batch.
const TOGETHER: usize = 1_000;
const TOGETHER_BYTES: u64 = 16 << 20;

/// What became of a failed entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requeued {
    /// The uid that it had.
    pub uid: Uid,
    /// The entry that waits in the queue in its place, or did.
    pub requeued_as: Uid,
    /// Whether that had been done before.
    pub again: bool,
    /// How many later events of its pid were delivered since it failed: it comes behind those. After a crash it is at
    /// least so many, as it is noted once a minute. None if that had been done before.
    pub delivered_later: Option<u64>,
}

/// Why an entry was not requeued. It is still in the failed store.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RequeueError {
    /// There is no such entry: it was discarded, or the uid is a mistake.
    #[error("there is no failed entry {0}")]
    NotFound(Uid),
    /// Its event was damaged, so there is nothing to deliver. Export it, then discard it.
    #[error(
        "{0} holds what is left of a damaged event, which cannot be delivered; look at it, then discard it"
    )]
    Unreadable(Uid),
    /// The disk failed during an earlier requeue, and it is not known whether the entry is in its queue. The next open
    /// of the data directory finds out.
    #[error(
        "it is not known whether {0} is in its queue already, because the disk failed; it is found out when the data \
         directory is opened again"
    )]
    Unfinished(Uid),
    /// The queue did not take it.
    #[error(transparent)]
    Append(AppendError),
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
}

type Answer = Result<Requeued, RequeueError>;

impl Inner {
    pub(super) async fn requeue(self: &Arc<Self>, uids: &[Uid]) -> Vec<Answer> {
        let mut answers: HashMap<Uid, Answer> = HashMap::new();
        let mut rest: Vec<Uid> = uids.to_vec();
        rest.sort_unstable();
        rest.dedup();
        for part in rest.chunks(TOGETHER) {
            let _claim = self.claim(part.to_vec()).await;
            let mut here = Vec::new();
            for uid in part {
                match self.state().known(uid) {
                    Known::Here(record) => here.push(record),
                    Known::Nothing => {
                        drop(answers.insert(uid.clone(), Err(RequeueError::NotFound(uid.clone()))))
                    }
                    Known::Unfinished => {
                        answers.insert(uid.clone(), Err(RequeueError::Unfinished(uid.clone())));
                    }
                    Known::RequeuedAs(sequence) => {
                        answers.insert(uid.clone(), Ok(answer(uid, sequence, None)));
                    }
                }
            }
            while !here.is_empty() {
                let mut bytes = 0;
                let fits = here.iter().take_while(|record| {
                    let fits = bytes < TOGETHER_BYTES;
                    bytes += record.bytes;
                    fits
                });
                let left = here.split_off(fits.count());
                self.requeue_together(std::mem::replace(&mut here, left), &mut answers).await;
            }
        }
        let lost = |uid: &Uid| Err(RequeueError::NotFound(uid.clone()));
        uids.iter().map(|uid| answers.get(uid).cloned().unwrap_or_else(|| lost(uid))).collect()
    }

    async fn requeue_together(&self, records: Vec<Record>, answers: &mut HashMap<Uid, Answer>) {
        let entries = match self.medium.read(&records).await {
            Ok(entries) => entries,
            Err(error) => {
                let failed = |record: Record| (record.uid, Err(RequeueError::Store(error.clone())));
                return answers.extend(records.into_iter().map(failed));
            }
        };
        let mut batch: Vec<(Record, FailedEntry)> = Vec::with_capacity(records.len());
        for (record, entry) in records.into_iter().zip(entries) {
            let uid = record.uid.clone();
            match entry {
                Some(entry) if entry.failure.rule == Rule::Unreadable => {
                    answers.insert(uid.clone(), Err(RequeueError::Unreadable(uid)));
                }
                Some(entry) => batch.push((record, entry)),
                None => {
                    answers.insert(uid.clone(), Err(RequeueError::NotFound(uid)));
                }
            }
        }
        if batch.is_empty() {
            return;
        }
        let begun: Vec<_> =
            batch.iter().map(|(record, _)| Note { uid: record.uid.clone(), requeued_as: None }).collect();
        match self.medium.change(begun, Vec::new()).await {
            Ok(slots) => {
                let mut state = self.state();
                for ((record, _), slot) in batch.iter().zip(slots) {
                    state.note(&record.uid, Some((None, Some(slot))));
                }
            }
            Err(error) => {
                let failed = batch.into_iter();
                let failed = failed.map(|(record, _)| (record.uid, Err(RequeueError::Store(error.clone()))));
                return answers.extend(failed);
            }
        }
        let (records, admissions): (Vec<_>, Vec<_>) =
            batch.into_iter().map(|(record, entry)| (record, admission(entry))).unzip();
        // Asked before: what is delivered from here on may be the entry itself.
        let passed: Vec<u64> = {
            let state = self.state();
            records.iter().map(|record| state.passed(record)).collect()
        };
        let results = self.log.append(admissions).await;
        let ended = results.into_iter().zip(passed).map(|(r, passed)| r.map(|r| (r.sequence, passed)));
        self.conclude(records.into_iter().zip(ended), answers).await;
    }

    /// Notes how it ended, and removes what is in its queue now.
    async fn conclude(
        &self,
        ended: impl Iterator<Item = (Record, Result<(u64, u64), AppendError>)>,
        answers: &mut HashMap<Uid, Answer>,
    ) {
        let (mut done, mut gone) = (Vec::new(), Vec::new());
        for (record, result) in ended {
            let uid = record.uid.clone();
            match result {
                Ok((sequence, passed)) => {
                    answers.insert(uid.clone(), Ok(answer(&uid, sequence, Some(passed))));
                    gone.push(record.slot());
                    done.push(Note { uid, requeued_as: Some(sequence) });
                }
                // Whether it is there shows at the next open.
                Err(AppendError::Unknown(_)) => {
                    answers.insert(uid.clone(), Err(RequeueError::Unfinished(uid)));
                }
                Err(error) => {
                    gone.extend(self.state().note(&uid, None));
                    answers.insert(uid, Err(RequeueError::Append(error)));
                }
            }
        }
        {
            let mut state = self.state();
            for note in &done {
                state.remove(&note.uid);
                gone.extend(state.note(&note.uid, Some((note.requeued_as, None))));
                state.part_mut(&note.uid.queue).counters.requeued += 1;
            }
            let mut targets: Vec<_> = done.iter().map(|note| &note.uid.queue).collect();
            targets.dedup();
            for target in targets {
                gone.extend(state.trim_notes(target));
            }
        }
        match self.medium.change(done.clone(), gone).await {
            Ok(slots) => {
                let mut state = self.state();
                for (note, slot) in done.iter().zip(slots) {
                    // Unless the bound on notes took it away already.
                    if state.known(&note.uid) != Known::Nothing {
                        state.note(&note.uid, Some((note.requeued_as, Some(slot))));
                    }
                }
            }
            // The entries are in their queues. What is left of them here goes at the next open.
            Err(error) => {
                tracing::warn!(%error, "requeued entries could not be removed from the failed store")
            }
        }
    }
}

impl FailedStore {
    /// What must not wait in its queue any more.
    pub(crate) fn left_queue(&self) -> Vec<Uid> {
        self.inner.state().left_queue()
    }

    pub(crate) fn has_unfinished(&self) -> bool {
        !self.inner.state().unfinished().is_empty()
    }

    /// Finds out how the requeues ended that a crash cut short.
    pub(crate) async fn finish_requeues(&self, lease: &dyn Lease) -> Result<(), StoreError> {
        let unfinished = self.inner.state().unfinished();
        let (mut notes, mut gone) = (Vec::new(), Vec::new());
        for queue in unfinished.chunk_by(|a, b| a.queue == b.queue) {
            let Some(first) = queue.first() else { continue };
            // An entry comes after the one it was requeued from.
            let twins = twins(lease, first, queue).await?;
            for uid in queue {
                let mut state = self.inner.state();
                let twin = twins.get(&uid.sequence).copied();
                gone.extend(state.note(uid, twin.map(|sequence| (Some(sequence), None))));
                if let Some(sequence) = twin {
                    gone.extend(state.remove(uid).map(|record| record.slot()));
                    notes.push(Note { uid: uid.clone(), requeued_as: Some(sequence) });
                }
            }
        }
        if self.inner.read_only || gone.is_empty() && notes.is_empty() {
            return Ok(());
        }
        let slots: Vec<Slot> = self.inner.medium.change(notes.clone(), gone).await?;
        let mut state = self.inner.state();
        for (note, slot) in notes.into_iter().zip(slots) {
            state.note(&note.uid, Some((note.requeued_as, Some(slot))));
        }
        Ok(())
    }
}

/// Of some entries of a queue, those that wait in it again, and as what.
async fn twins(lease: &dyn Lease, first: &Uid, uids: &[Uid]) -> Result<HashMap<u64, u64>, StoreError> {
    let mut found = HashMap::new();
    let mut after = first.sequence;
    loop {
        let read = match lease.read(&first.queue, after, 512, 4 << 20).await {
            Err(StoreError::UnknownQueue(_)) => return Ok(found),
            read => read?,
        };
        if read.entries.is_empty() {
            return Ok(found);
        }
        after = read.next;
        for entry in read.entries {
            let was =
                entry.requeue_of.filter(|was| uids.binary_search_by_key(was, |uid| uid.sequence).is_ok());
            found.extend(was.map(|was| (was, entry.place.uid.sequence)));
        }
    }
}

fn admission(entry: FailedEntry) -> Admission {
    let mut admission = Admission::new(entry.event, [entry.uid.queue.clone()].into());
    admission.dedup_id = entry.dedup_id;
    admission.origin = Origin::Requeue(entry.uid.sequence);
    admission
}

/// Without a number it was done before.
fn answer(uid: &Uid, sequence: u64, delivered_later: Option<u64>) -> Requeued {
    let (requeued_as, again) = (Uid { queue: uid.queue.clone(), sequence }, delivered_later.is_none());
    Requeued { uid: uid.clone(), requeued_as, again, delivered_later }
}
