//! [`Runtime`]: a store, a writer in front of it, and a worker per target behind it.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use outhaul_store::event::{TargetName, Uid};
use outhaul_store::{Admission, FailedStore, Input, Log, OpenReport, Receipt, Shards, Store, StoreError};
use outhaul_target::{DeliveryError, Target, TargetOptions};
use outhaul_writer::{RefusedReason, Writer, WriterOptions, WriterStats};
use tokio::sync::{Semaphore, broadcast};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::admit::{AdmitError, Incoming, Op, Pending, QueueSink};
use crate::manager::{
    Change, ChangeError, EntryAnswer, EntryPage, EntryQuery, Leftover, Manager, ReloadReport, Removed,
    attach, far,
};
use crate::notice::Notice;
use crate::status::TargetStatus;

/// Makes a target again as it was configured: a closed one is not opened.
pub type Remake = dyn Fn() -> Result<Arc<dyn Target>, String> + Send + Sync;

/// What is to become of entries that wait when their target's destination changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repoint {
    /// They go to the new destination.
    Keep,
    /// They stay in a queue of their own, without a target.
    Orphan,
}

/// A target as it is configured.
#[derive(Clone)]
pub struct TargetSpec {
    /// Its name, and that of its queue.
    pub name: TargetName,
    /// The target.
    pub target: Arc<dyn Target>,
    /// The options that every target knows.
    pub options: TargetOptions,
    /// A canonical text of where it delivers to, without credentials: a change of it is a re-point.
    pub destination: String,
    /// What is to become of entries that wait for another destination; None: they keep it from starting.
    pub repoint: Option<Repoint>,
    /// Stands for the whole configuration, credentials included: a reload leaves a target alone whose fingerprint is
    /// the same. None: only the same value of `target` is the same. It is kept in memory alone.
    pub fingerprint: Option<u64>,
    /// Makes the target again, should a successor be refused when this one was closed for it already.
    pub remake: Option<Arc<Remake>>,
}

impl TargetSpec {
    /// A target that is in use, and whose entries belong to its destination.
    pub fn new(
        name: TargetName,
        target: Arc<dyn Target>,
        options: TargetOptions,
        destination: impl Into<String>,
    ) -> Self {
        Self {
            name,
            target,
            options,
            destination: destination.into(),
            repoint: None,
            fingerprint: None,
            remake: None,
        }
    }

    pub(crate) fn remake(&self) -> Option<Result<Arc<dyn Target>, String>> {
        self.remake.as_ref().map(|remake| remake())
    }
}

impl std::fmt::Debug for TargetSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TargetSpec").field("name", &self.name).finish_non_exhaustive()
    }
}

/// How a runtime is set up.
#[derive(Debug, Clone)]
pub struct RuntimeOptions {
    /// The writer in front of the log.
    pub writer: WriterOptions,
    /// So many rejects in a row, without a delivery between them, hold a target; None: they never do.
    pub reject_hold: Option<u32>,
    /// Calls of `deliver` that may run at the same time, over all targets. A target that is held or throttled takes one
    /// at most; whoever waits for one is served in turn.
    pub deliveries_max: NonZeroUsize,
    /// The seed of all jitter; None: a random one.
    pub seed: Option<u64>,
}

impl Default for RuntimeOptions {
    fn default() -> Self {
        const DELIVERIES: NonZeroUsize = NonZeroUsize::new(1024).expect("1,024 is not zero");
        Self {
            writer: WriterOptions::default(),
            reject_hold: Some(50),
            deliveries_max: DELIVERIES,
            seed: None,
        }
    }
}

/// Why a runtime does not start. Nothing was changed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Entries wait for a target whose destination is another one now.
    #[error(
        "target {name} used to deliver to {from} and now points to {to}, but what was admitted for the old \
         destination still waits ({waiting}). Allow it to send them to the new one (`--repoint {name}`), or give the \
         new destination another name"
    )]
    Repoint {
        /// The target.
        name: TargetName,
        /// Where it delivered to.
        from: String,
        /// Where it points to now.
        to: String,
        /// What waits.
        waiting: u64,
    },
    /// Two targets have one name.
    #[error("two targets are named {0}; a name is unique over all kinds")]
    Twice(TargetName),
    /// The store refuses.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What a shutdown left.
#[derive(Debug, Clone, Default)]
pub struct ShutdownReport {
    /// What still waits on disk, per queue that is not empty.
    pub waiting: Vec<(TargetName, u64)>,
}

/// Delivers what it admits. Cheap to clone; all clones are one runtime.
#[derive(Debug, Clone)]
pub struct Runtime {
    shared: Arc<Shared>,
}

struct Shared {
    manager: Arc<Manager>,
    ended: tokio::sync::OnceCell<Result<ShutdownReport, StoreError>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.manager.routed(Arc::clone);
        f.debug_struct("Runtime").field("targets", &names).finish_non_exhaustive()
    }
}

impl Runtime {
    /// Attaches the targets to their queues and starts a worker for each. Needs a tokio runtime.
    pub async fn start(
        store: Store,
        targets: Vec<TargetSpec>,
        options: RuntimeOptions,
    ) -> Result<Self, StartError> {
        check(&**store.log(), &targets)?;
        for spec in &targets {
            attach(&store, spec).await?;
        }
        let lease = store.log().lease(Shards::All).await?;
        let sink = Arc::new(QueueSink { log: Arc::clone(store.log()) });
        let random = options.seed.map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
        let permits = Arc::new(Semaphore::new(options.deliveries_max.get().min(Semaphore::MAX_PERMITS)));
        let writer = Writer::open(sink, options.writer);
        let manager =
            Manager::start(store, writer, lease, options.reject_hold, random, permits, targets).await?;
        let ended = tokio::sync::OnceCell::new();
        Ok(Self { shared: Arc::new(Shared { manager, ended }) })
    }

    fn manager(&self) -> &Arc<Manager> {
        &self.shared.manager
    }

    fn store(&self) -> &Store {
        &self.shared.manager.store
    }

    /// Admits events for all targets: all of them or none, without waiting. Each pending resolves by itself.
    ///
    /// Room in the writer and in every queue is taken first. After that only the disk can refuse a part.
    pub fn admit(&self, events: Vec<Incoming>) -> Result<Vec<Pending>, AdmitError> {
        if self.is_stopping() {
            return Err(AdmitError::Stopping);
        }
        if let Some(failure) = self.store().log().failure() {
            return Err(AdmitError::Store(failure));
        }
        // From reading the names until the writer has the events: who changes the names finds none between.
        self.manager().routed(|names| {
            if names.is_empty() {
                return Err(AdmitError::NoTarget);
            }
            let admission = |incoming: Incoming| {
                let mut admission = Admission::new(Arc::new(incoming.event), Arc::clone(names));
                admission.position = incoming.position;
                admission
            };
            let mut admissions: Vec<_> = events.into_iter().map(admission).collect();
            self.store().log().reserve(&mut admissions)?;
            let ops = admissions.into_iter().map(Op::new).collect();
            let tickets =
                self.manager().writer.try_admit_all(ops).map_err(|refused| match refused.reason {
                    RefusedReason::Saturated | RefusedReason::Held => AdmitError::Saturated,
                    RefusedReason::Closed => AdmitError::Stopping,
                })?;
            Ok(tickets.into_iter().map(Pending).collect())
        })
    }

    /// Admits one event and resolves when it is durable for every target.
    ///
    /// Dropping the future does not take the event back.
    pub async fn send(&self, event: outhaul_store::event::Event) -> Result<Receipt, AdmitError> {
        match self.admit(vec![event.into()])?.pop() {
            Some(pending) => pending.await,
            None => Err(AdmitError::Stopping),
        }
    }

    /// One picture of all targets and orphans, sorted by name.
    pub fn targets(&self) -> Vec<TargetStatus> {
        self.manager().targets()
    }

    /// As [`targets`](Self::targets), with a probe of each target that is in use: at most 5 seconds in all, ten at a
    /// time, whatever the number of targets. Whoever was not asked in time is told so in its
    /// [`probe`](TargetStatus::probe).
    ///
    /// Dropping the future drops the probes.
    pub async fn health(&self) -> Vec<TargetStatus> {
        self.manager().health().await
    }

    /// Makes the targets be these and no others, without touching those that are as they were: they keep their
    /// connection, counters, lanes and backoff. The others are prepared at the same time, and each is replaced as soon
    /// as what it has in flight is finished; no backlog is waited for. Targets that are left out leave orphans.
    ///
    /// A later call gives the preparations of an earlier one up. Dropping the future leaves it going on.
    ///
    /// # Errors
    /// Nothing was changed. What went wrong with one target is in the report.
    pub async fn reload(&self, targets: Vec<TargetSpec>) -> Result<ReloadReport, ChangeError> {
        self.manager().reload(targets).await
    }

    /// Adds a target, or puts it in the place of the one that has its name. Dropping the future leaves it going on.
    pub async fn replace(&self, target: TargetSpec) -> Result<Change, ChangeError> {
        self.manager().replace(target).await
    }

    /// Removes a target. With [`Leftover::Drain`] it goes later, when what waits is delivered. Dropping the future
    /// leaves it going on.
    ///
    /// With [`Leftover::Discard`] an orphan is removed too, with what waits under its name and what failed.
    pub async fn remove(&self, name: &TargetName, leftover: Leftover) -> Result<Removed, ChangeError> {
        self.manager().remove(name, leftover).await
    }

    /// Has a target send nothing until it is resumed, after a restart too; it goes on queueing.
    pub async fn pause(&self, name: &TargetName) -> Result<(), ChangeError> {
        self.manager().pause(name).await
    }

    /// Ends a pause; of a target that is not paused, a drain. Starts a worker anew that could not go on.
    pub async fn resume(&self, name: &TargetName) -> Result<(), ChangeError> {
        self.manager().resume(name).await
    }

    /// Sends a target no new events until it is resumed, and answers how many wait. They are delivered.
    pub async fn drain(&self, name: &TargetName) -> Result<u64, ChangeError> {
        self.manager().drain(name).await
    }

    /// Has a held or throttled target tried now; false if it is neither.
    pub async fn trial(&self, name: &TargetName) -> Result<bool, ChangeError> {
        self.manager().trial(name).await
    }

    /// Hands an event of the type `outhaul.test` straight to a target, past its queue; it is counted nowhere.
    ///
    /// Dropping the future gives the attempt up.
    pub async fn test(&self, name: &TargetName) -> Result<Result<(), DeliveryError>, ChangeError> {
        self.manager().test(name).await
    }

    /// One page of what waits for a target and of what failed.
    pub async fn entries(&self, name: &TargetName, query: &EntryQuery) -> Result<EntryPage, ChangeError> {
        self.manager().entries(name, query).await
    }

    /// Has an entry that waits tried as soon as its target takes something, whatever its schedule.
    pub async fn retry(&self, entry: &Uid) -> Result<EntryAnswer, ChangeError> {
        self.manager().retry(entry).await
    }

    /// Removes an entry for good, from its queue or from the failed store; durable when it resolves. One that is with
    /// its target goes when its verdict is there, unless that is a delivery; [`EntryAnswer::Pending`] is durable too: if
    /// the process ends before, the next start discards it. Dropping the future does not take it back.
    pub async fn discard(&self, entry: &Uid) -> Result<EntryAnswer, ChangeError> {
        self.manager().discard(entry).await
    }

    /// Puts an entry of the failed store back at the end of its queue, under a new uid. For one that waits it is
    /// [`retry`](Self::retry). Dropping the future does not take it back.
    pub async fn requeue(&self, entry: &Uid) -> Result<EntryAnswer, ChangeError> {
        self.manager().requeue(entry).await
    }

    /// The failed store. A lane that a rejected entry keeps closed (`on_reject=stop_pid`) goes on after
    /// [`requeue`](Self::requeue) and [`discard`](Self::discard) of this runtime, not after those of the store.
    pub fn failed(&self) -> &Arc<FailedStore> {
        self.store().failed()
    }

    /// What recovery found when the store was opened.
    pub fn report(&self) -> OpenReport {
        self.store().report()
    }

    /// Whether events are refused because the disk is full; over by itself when there is room. Looks at the disk.
    pub fn disk_full(&self) -> bool {
        self.store().log().disk_full()
    }

    /// Whether and why nothing is written any more.
    pub fn failure(&self) -> Option<StoreError> {
        self.store().log().failure()
    }

    /// What waits to be written, what was refused, and whether the store answers.
    pub fn writer_stats(&self) -> WriterStats {
        self.manager().writer.stats()
    }

    /// How far the log's one input was admitted.
    pub fn input(&self) -> Option<Input> {
        self.store().log().input()
    }

    /// Remembers a note about the input, durably, and forgets the positions admitted before it.
    pub async fn set_input(&self, note: Bytes) -> Result<(), StoreError> {
        self.store().log().set_input(note).await
    }

    /// Facts as they happen. A receiver that is slow misses some, and is told how many.
    pub fn notices(&self) -> broadcast::Receiver<Notice> {
        self.manager().notices.subscribe()
    }

    /// Resolves when nothing waits for any target that is not paused. Dropping the future changes nothing.
    pub async fn settled(&self) {
        let mut changes = self.manager().changes.subscribe();
        loop {
            changes.borrow_and_update();
            let paused = self.manager().paused();
            let queues = self.store().log().stats().into_iter();
            if queues.filter(|q| q.attached && !paused.contains(&q.name)).all(|q| q.waiting == 0) {
                return;
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Resolves when an entry has left its queue since the call. Dropping the future changes nothing.
    pub async fn progress(&self) {
        let mut changes = self.manager().changes.subscribe();
        // The sender lives as long as this runtime.
        changes.changed().await.unwrap_or_default();
    }

    /// Has all targets open again what an operator rotates.
    pub async fn reopen(&self) {
        for slot in self.manager().slots() {
            if let Err(error) = slot.spec.target.reopen().await {
                tracing::error!(target = %slot.spec.name, error = error.detail(), "the target could not be reopened");
            }
        }
    }

    /// The longest deadline of one attempt, over all targets.
    pub fn longest_deadline(&self) -> Duration {
        self.manager().slots().iter().map(|slot| slot.spec.options.timeout).max().unwrap_or_default()
    }

    /// Whether a shutdown has begun.
    pub fn is_stopping(&self) -> bool {
        self.manager().is_stopping()
    }

    /// Stops in order: refuses admissions, makes durable what was admitted, lets attempts in flight end for at most
    /// `drain`, books them, closes the targets, the writer and the store. Later calls get the same answer.
    ///
    /// Dropping the future may leave it half done; calling it again goes on.
    pub async fn shutdown(&self, drain: Duration) -> Result<ShutdownReport, StoreError> {
        self.manager().refuse_changes();
        self.shared.ended.get_or_init(|| self.stop(drain)).await.clone()
    }

    async fn stop(&self, drain: Duration) -> Result<ShutdownReport, StoreError> {
        let (manager, store) = (self.manager(), self.store());
        if let Err(report) = manager.writer.flush().await {
            // Each of these was told to whoever sent the event.
            tracing::warn!(%report, "some events were not admitted");
        }
        let deadline = far(Instant::now(), drain);
        manager.slots().iter().for_each(|slot| slot.signal(deadline));
        manager.join_changes().await;
        // A change that was at its end has started a worker.
        let slots = manager.slots();
        slots.iter().for_each(|slot| slot.signal(deadline));
        for slot in &slots {
            slot.join().await;
        }
        manager.join_discards().await;
        let flushed = store.log().flush().await;
        let mut closing = JoinSet::new();
        for slot in slots {
            closing.spawn(async move { slot.close().await });
        }
        closing.join_all().await;
        if let Err(report) = manager.writer.close().await {
            tracing::warn!(%report, "the writer did not close cleanly");
        }
        let queues = store.log().stats().into_iter().filter(|queue| queue.waiting > 0);
        let waiting = queues.map(|queue| (queue.name, queue.waiting)).collect();
        let closed = store.close().await;
        flushed.and(closed).map(|()| ShutdownReport { waiting })
    }
}

/// Refuses what would surprise, before anything is changed.
fn check(log: &dyn Log, targets: &[TargetSpec]) -> Result<(), StartError> {
    let queues = log.stats();
    for (index, spec) in targets.iter().enumerate() {
        if targets[..index].iter().any(|other| other.name == spec.name) {
            return Err(StartError::Twice(spec.name.clone()));
        }
        let Some(queue) = queues.iter().find(|queue| queue.name == spec.name) else { continue };
        let moved = !queue.label.is_empty() && queue.label != spec.destination;
        if moved && queue.waiting > 0 && spec.repoint.is_none() {
            return Err(StartError::Repoint {
                name: spec.name.clone(),
                from: queue.label.clone(),
                to: spec.destination.clone(),
                waiting: queue.waiting,
            });
        }
    }
    Ok(())
}
