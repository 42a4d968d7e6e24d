//! The `memory` engine: the contract of a log without a disk, for tests and for those who want no durability.
//!
//! Receipts say `durable: false`. Everything is gone with the value.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;
use outhaul_event::{TargetName, Uid};
use tokio::sync::watch;

use crate::error::{AppendError, StoreError};
use crate::log::{
    Admission, Entry, Input, Lease, Log, OpenReport, Origin, Place, QueueSettings, QueueStats, ReadBatch,
    Receipt, Settlement, Shards,
};
use crate::queue::{QueueId, Runs, SharedQueues, Unwritten};

/// A log in memory.
#[derive(Debug, Default)]
pub struct MemoryLog {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    queues: SharedQueues,
    state: Mutex<State>,
    epoch: AtomicU64,
    closed: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    stored: BTreeMap<u64, Stored>,
    next_sequence: u64,
    input: Option<(Bytes, Runs)>,
}

#[derive(Debug)]
struct Stored {
    admission: Admission,
    admitted_at: SystemTime,
    /// Each queue that still wants it, with the sequence of the entry before it there.
    queues: Vec<(QueueId, u64)>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn alive(&self) -> Result<(), StoreError> {
        if self.closed.load(Ordering::Acquire) { Err(StoreError::Closed) } else { Ok(()) }
    }

    fn append(&self, mut admission: Admission) -> Result<Receipt, AppendError> {
        self.alive().map_err(AppendError::Store)?;
        self.queues.reserve(std::slice::from_mut(&mut admission))?;
        let Some(held) = admission.held.take() else { return Err(AppendError::Store(StoreError::Closed)) };
        let mut state = self.state();
        let mut queues = self.queues.lock();
        let mut receipt = Receipt {
            sequence: 0,
            dedup_id: admission.dedup_id,
            targets: queues.names(&held.granted).into(),
            shed: queues.names(&held.shed),
            durable: false,
        };
        if let (Some(position), Some((_, admitted))) = (admission.position, &mut state.input) {
            admitted.insert(position, position);
        }
        if !held.granted.is_empty() {
            state.next_sequence += 1;
            let (sequence, bytes, origin) = (state.next_sequence, admission.size(), admission.origin);
            receipt.sequence = sequence;
            let previous = held.granted.iter().map(|&id| (id, queues.get(id).last)).collect::<Vec<_>>();
            let stored = Stored { admission, admitted_at: SystemTime::now(), queues: previous };
            state.stored.insert(sequence, stored);
            for &id in &held.granted {
                queues.get_mut(id).admitted(sequence, bytes, origin);
                queues.announce(&[id], sequence);
            }
        }
        drop(queues);
        Ok(receipt)
    }
}

#[async_trait]
impl Log for MemoryLog {
    fn attach(&self, name: &TargetName, settings: QueueSettings) -> Result<(), StoreError> {
        self.shared.alive()?;
        let state = self.shared.state();
        self.shared.queues.lock().attach_behind(name, settings, u64::MAX, state.next_sequence);
        Ok(())
    }

    fn detach(&self, name: &TargetName) -> Result<(), StoreError> {
        self.shared.queues.lock().detach(name)
    }

    async fn rename(&self, name: &TargetName, new: &TargetName) -> Result<(), StoreError> {
        self.shared.alive()?;
        let mut queues = self.shared.queues.lock();
        queues.orphan_as(name, new)?;
        let id = queues.find(new)?;
        queues.get_mut(id).unwritten = Unwritten::default();
        Ok(())
    }

    async fn remove(&self, name: &TargetName) -> Result<u64, StoreError> {
        let (mut state, mut queues) = (self.shared.state(), self.shared.queues.lock());
        let (id, discarded) = queues.remove(name)?;
        queues.get_mut(id).unwritten = Unwritten::default();
        state.stored.retain(|_, stored| {
            stored.queues.retain(|(queue, _)| *queue != id);
            !stored.queues.is_empty()
        });
        Ok(discarded)
    }

    fn reserve(&self, admissions: &mut [Admission]) -> Result<(), AppendError> {
        self.shared.queues.reserve(admissions)
    }

    async fn append(&self, batch: Vec<Admission>) -> Vec<Result<Receipt, AppendError>> {
        batch.into_iter().map(|admission| self.shared.append(admission)).collect()
    }

    async fn lease(&self, _: Shards) -> Result<Arc<dyn Lease>, StoreError> {
        self.shared.alive()?;
        let epoch = self.shared.epoch.fetch_add(1, Ordering::AcqRel) + 1;
        Ok(Arc::new(MemoryLease { shared: Arc::clone(&self.shared), epoch }))
    }

    fn stats(&self) -> Vec<QueueStats> {
        self.shared.queues.lock().stats()
    }

    fn excess(&self, queue: &TargetName) -> u64 {
        let queues = self.shared.queues.lock();
        queues.find(queue).map_or(0, |id| queues.get(id).excess())
    }

    fn filled(&self, queue: &TargetName) -> u8 {
        self.shared.queues.lock().filled(queue)
    }

    fn input(&self) -> Option<Input> {
        let state = self.shared.state();
        let (note, admitted) = state.input.as_ref()?;
        Some(Input { note: note.clone(), admitted: admitted.iter().collect() })
    }

    async fn set_input(&self, note: Bytes) -> Result<(), StoreError> {
        self.shared.alive()?;
        self.shared.state().input = Some((note, Runs::default()));
        Ok(())
    }

    fn report(&self) -> OpenReport {
        OpenReport::default()
    }

    fn failure(&self) -> Option<StoreError> {
        None
    }

    async fn flush(&self) -> Result<(), StoreError> {
        self.shared.alive()
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.shared.closed.store(true, Ordering::Release);
        Ok(())
    }
}

#[derive(Debug)]
struct MemoryLease {
    shared: Arc<Shared>,
    epoch: u64,
}

impl MemoryLease {
    fn check(&self) -> Result<(), StoreError> {
        let current = self.shared.epoch.load(Ordering::Acquire) == self.epoch;
        if current { Ok(()) } else { Err(StoreError::Fenced(self.epoch)) }
    }
}

#[async_trait]
impl Lease for MemoryLease {
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
        let (state, queues) = (self.shared.state(), self.shared.queues.lock());
        let id = queues.find(queue)?;
        let (queue, name) = (queues.get(id), queue);
        let mut out = ReadBatch { entries: Vec::new(), next: after };
        let mut bytes = 0;
        let from = after.max(queue.settled.low_water().saturating_sub(1));
        for (&sequence, stored) in state.stored.range(from + 1..) {
            let Some(&(_, previous)) = stored.queues.iter().find(|(other, _)| *other == id) else { continue };
            if queue.settled.contains(sequence) {
                continue;
            }
            let size = stored.admission.size();
            let full = out.entries.len() >= entries_max || bytes + size > bytes_max as u64;
            if full && !out.entries.is_empty() {
                break;
            }
            bytes += size;
            out.next = sequence;
            out.entries.push(Entry {
                place: Place { uid: Uid { queue: name.clone(), sequence }, previous, bytes: size },
                dedup_id: stored.admission.dedup_id,
                event: Ok(Arc::clone(&stored.admission.event)),
                admitted_at: stored.admitted_at,
                retry: queue.retries.get(&sequence).copied(),
                attachment: stored.admission.attachment.clone(),
                requeue_of: match stored.admission.origin {
                    Origin::Requeue(sequence) => Some(sequence),
                    Origin::Producer | Origin::Import => None,
                },
                crashes: 0,
            });
        }
        Ok(out)
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<(), StoreError> {
        self.check()?;
        let (mut state, mut queues) = (self.shared.state(), self.shared.queues.lock());
        for settlement in &settlements {
            let sequence = settlement.place.uid.sequence;
            let id = queues.find(&settlement.place.uid.queue)?;
            let ended = queues.settle(id, settlement);
            queues.get_mut(id).unwritten = Default::default();
            if ended && let Some(stored) = state.stored.get_mut(&sequence) {
                stored.queues.retain(|(queue, _)| *queue != id);
                if stored.queues.is_empty() {
                    state.stored.remove(&sequence);
                }
            }
        }
        Ok(())
    }

    fn in_flight(&self, queue: &TargetName, _: &[u64]) -> Result<(), StoreError> {
        self.check()?;
        self.shared.queues.lock().find(queue).map(drop)
    }

    fn watch(&self, queue: &TargetName) -> Result<watch::Receiver<u64>, StoreError> {
        self.check()?;
        let queues = self.shared.queues.lock();
        Ok(queues.get(queues.find(queue)?).watch())
    }
}
