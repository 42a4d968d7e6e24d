//! The contract of a log, over the spool: async callers wait, the thread or a blocking thread works.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use bytes::Bytes;
use outhaul_event::{TargetName, Uid};
use tokio::sync::{oneshot, watch};

use super::{Inner, Reply, Shared, Spool, lock};
use crate::error::{AppendError, StoreError};
use crate::log::{
    Admission, Input, Lease, Log, OpenReport, QueueSettings, QueueStats, ReadBatch, Receipt, Settlement,
    Shards,
};

impl Spool {
    /// Hands something to the thread, and waits for what it says.
    async fn ask<T: Send>(&self, put: impl FnOnce(&mut Inner, Reply<T>) + Send) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        {
            let mut inner = lock(&self.shared().inner);
            if inner.closing || self.shared().options.read_only {
                return Err(StoreError::Closed);
            }
            put(&mut inner, reply);
        }
        self.shared().wake.notify_all();
        answer.await.unwrap_or(Err(StoreError::Closed))
    }
}

#[async_trait]
impl Log for Spool {
    fn attach(&self, name: &TargetName, settings: QueueSettings) -> Result<(), StoreError> {
        self.attach_sync(name, settings)
    }

    fn detach(&self, name: &TargetName) -> Result<(), StoreError> {
        self.shared().queues.lock().detach(name)
    }

    async fn remove(&self, name: &TargetName) -> Result<u64, StoreError> {
        let name = name.clone();
        self.ask(move |inner, reply| inner.remove_calls.push((name, reply))).await
    }

    async fn rename(&self, name: &TargetName, new: &TargetName) -> Result<(), StoreError> {
        let (name, new) = (name.clone(), new.clone());
        self.ask(move |inner, reply| inner.rename_calls.push((name, new, reply))).await
    }

    fn reserve(&self, admissions: &mut [Admission]) -> Result<(), AppendError> {
        self.shared().queues.reserve(admissions)
    }

    /// As the trait says. An empty batch is answered by one error, [`AppendError::Empty`].
    async fn append(&self, batch: Vec<Admission>) -> Vec<Result<Receipt, AppendError>> {
        let length = batch.len();
        let (reply, answer) = oneshot::channel();
        let Some(call) = self.shared().call(batch, reply) else { return vec![Err(AppendError::Empty)] };
        let refused = {
            let mut inner = lock(&self.shared().inner);
            let closed = inner.closing || self.shared().options.read_only;
            if closed {
                Some(call)
            } else {
                inner.calls.push(call);
                None
            }
        };
        // What is refused gives its room back, which takes the lock of the queues.
        drop(refused);
        self.shared().wake.notify_all();
        let closed = || Err(AppendError::Store(StoreError::Closed));
        answer.await.unwrap_or_else(|_| (0..length).map(|_| closed()).collect())
    }

    async fn lease(&self, _: Shards) -> Result<Arc<dyn Lease>, StoreError> {
        if lock(&self.shared().inner).closing {
            return Err(StoreError::Closed);
        }
        let epoch = self.shared().epoch.fetch_add(1, Ordering::AcqRel) + 1;
        Ok(Arc::new(SpoolLease { shared: Arc::clone(self.shared()), epoch }))
    }

    fn stats(&self) -> Vec<QueueStats> {
        self.shared().stats()
    }

    fn excess(&self, queue: &TargetName) -> u64 {
        let queues = self.shared().queues.lock();
        queues.find(queue).map_or(0, |id| queues.get(id).excess())
    }

    fn filled(&self, queue: &TargetName) -> u8 {
        self.shared().queues.lock().filled(queue)
    }

    fn input(&self) -> Option<Input> {
        self.shared().input()
    }

    async fn set_input(&self, note: Bytes) -> Result<(), StoreError> {
        self.ask(move |inner, reply| inner.input_calls.push((note, reply))).await
    }

    fn report(&self) -> OpenReport {
        self.shared().report.clone()
    }

    fn file_of(&self, uid: &Uid) -> Option<String> {
        let dirs = lock(&self.shared().dirs);
        let id = self.shared().queues.lock().find(&uid.queue).ok()?;
        let dir = dirs.get(&id)?;
        Some(format!("{}/{}", dir.stem, dir.index.file_of(uid.sequence)?))
    }

    fn disk_full(&self) -> bool {
        let shared = self.shared();
        shared.fs.space(&shared.dir).is_ok_and(|space| space.available <= shared.options.reserve_bytes)
    }

    fn failure(&self) -> Option<StoreError> {
        let inner = lock(&self.shared().inner);
        inner.failure.clone().filter(|_| !self.shared().options.read_only)
    }

    async fn flush(&self) -> Result<(), StoreError> {
        self.ask(|inner, reply| inner.flushes.push(reply)).await
    }

    async fn close(&self) -> Result<(), StoreError> {
        // The thread is joined and the last files are removed: neither belongs on an async thread.
        let handle = self.handle.clone();
        tokio::task::spawn_blocking(move || handle.close()).await.unwrap_or(Err(StoreError::Closed))
    }
}

#[derive(Debug)]
struct SpoolLease {
    shared: Arc<Shared>,
    epoch: u64,
}

#[async_trait]
impl Lease for SpoolLease {
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
        self.shared.check_epoch(self.epoch)?;
        let (shared, queue) = (Arc::clone(&self.shared), queue.clone());
        let read = move || shared.read(&queue, after, entries_max, bytes_max);
        tokio::task::spawn_blocking(read).await.unwrap_or(Err(StoreError::Closed))
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<(), StoreError> {
        self.shared.check_epoch(self.epoch)?;
        self.shared.settle(&settlements)
    }

    fn in_flight(&self, queue: &TargetName, sequences: &[u64]) -> Result<(), StoreError> {
        self.shared.check_epoch(self.epoch)?;
        self.shared.note_in_flight(queue, sequences)
    }

    fn crashed(&self, queue: &TargetName) -> Result<Vec<u64>, StoreError> {
        self.shared.check_epoch(self.epoch)?;
        self.shared.crashed(queue)
    }

    fn watch(&self, queue: &TargetName) -> Result<watch::Receiver<u64>, StoreError> {
        self.shared.check_epoch(self.epoch)?;
        self.shared.watch(queue)
    }
}
