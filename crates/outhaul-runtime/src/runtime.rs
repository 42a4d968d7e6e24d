//! [`Runtime`]: a store, a writer in front of it, and a worker per target behind it.

use std::collections::BTreeMap;
use std::num::{NonZeroU64, NonZeroUsize};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use outhaul_store::event::TargetName;
use outhaul_store::{
    Admission, FailedFull, FailedOptions, FailedStore, Input, Log, OpenReport, QueueSettings, Receipt,
    Shards, Store, StoreError, WhenFull,
};
use outhaul_target::{Target, TargetOptions};
use outhaul_writer::{RefusedReason, Writer, WriterOptions};
use tokio::sync::{Semaphore, broadcast, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::admit::{AdmitError, Incoming, Op, Pending, QueueSink};
use crate::notice::Notice;
use crate::status::{State, TargetStatus, WorkerStatus, status};
use crate::worker;

/// A target as it is configured.
pub struct TargetSpec {
    /// Its name, and that of its queue.
    pub name: TargetName,
    /// The target.
    pub target: Arc<dyn Target>,
    /// The options that every target knows.
    pub options: TargetOptions,
    /// A canonical text of where it delivers to, without credentials: a change of it is a re-point.
    pub destination: String,
    /// Whether entries that wait may go to a new destination.
    pub repoint: bool,
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
    store: Store,
    writer: Writer<QueueSink>,
    names: Arc<[TargetName]>,
    targets: BTreeMap<TargetName, Attached>,
    workers: tokio::sync::Mutex<JoinSet<(TargetName, Result<(), StoreError>)>>,
    stop: watch::Sender<Option<Instant>>,
    notices: broadcast::Sender<Notice>,
    changes: watch::Sender<u64>,
    stopping: AtomicBool,
    ended: tokio::sync::OnceCell<Result<ShutdownReport, StoreError>>,
}

struct Attached {
    target: Arc<dyn Target>,
    status: Arc<Mutex<WorkerStatus>>,
    timeout: Duration,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime").field("targets", &self.names).finish_non_exhaustive()
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
            store.log().attach(&spec.name, settings(spec))?;
            store.failed().configure(&spec.name, failed_options(spec, &store.failed().options(&spec.name)));
        }
        let lease = store.log().lease(Shards::All).await?;
        let sink = Arc::new(QueueSink { log: Arc::clone(store.log()) });
        let (notices, changes) = (broadcast::Sender::new(1024), watch::Sender::new(0));
        let (stop, stopped) = watch::channel(None);
        let mut random = options.seed.map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
        let permits = Arc::new(Semaphore::new(options.deliveries_max.get().min(Semaphore::MAX_PERMITS)));
        let (mut workers, mut attached) = (JoinSet::new(), BTreeMap::new());
        let names = targets.iter().map(|spec| spec.name.clone()).collect();
        for spec in targets {
            let status = Arc::new(Mutex::new(WorkerStatus::new(spec.target.kind())));
            let (name, target, timeout) = (spec.name.clone(), Arc::clone(&spec.target), spec.options.timeout);
            attached.insert(name.clone(), Attached { target, status: Arc::clone(&status), timeout });
            let setup = worker::Setup {
                name: spec.name,
                target: spec.target,
                options: spec.options,
                reject_hold: options.reject_hold,
                random: random.fork(),
                log: Arc::clone(store.log()),
                lease: Arc::clone(&lease),
                failed: Arc::clone(store.failed()),
                notices: notices.clone(),
                changes: changes.clone(),
                status,
                permits: Arc::clone(&permits),
                stop: stopped.clone(),
            };
            workers.spawn(async move { (name, watched(setup).await) });
        }
        let shared = Shared {
            writer: Writer::open(sink, options.writer),
            store,
            names,
            targets: attached,
            workers: tokio::sync::Mutex::new(workers),
            stop,
            notices,
            changes,
            stopping: AtomicBool::new(false),
            ended: tokio::sync::OnceCell::new(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Admits events for all targets: all of them or none, without waiting. Each pending resolves by itself.
    ///
    /// Room in the writer and in every queue is taken first. After that only the disk can refuse a part.
    pub fn admit(&self, events: Vec<Incoming>) -> Result<Vec<Pending>, AdmitError> {
        if self.shared.stopping.load(Ordering::Acquire) {
            return Err(AdmitError::Stopping);
        }
        if let Some(failure) = self.shared.store.log().failure() {
            return Err(AdmitError::Store(failure));
        }
        let admission = |incoming: Incoming| {
            let mut admission = Admission::new(Arc::new(incoming.event), Arc::clone(&self.shared.names));
            admission.position = incoming.position;
            admission
        };
        let mut admissions: Vec<_> = events.into_iter().map(admission).collect();
        self.shared.store.log().reserve(&mut admissions)?;
        let tickets = self.shared.writer.try_admit_all(admissions.into_iter().map(Op::new).collect());
        let tickets = tickets.map_err(|refused| match refused.reason {
            RefusedReason::Saturated => AdmitError::Saturated,
            RefusedReason::Closed => AdmitError::Stopping,
        })?;
        Ok(tickets.into_iter().map(Pending).collect())
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
        let queues = self.shared.store.log().stats();
        let shown = queues.into_iter().filter(|queue| queue.attached || queue.waiting > 0);
        let joined = shown.map(|queue| {
            let worker = self
                .shared
                .targets
                .get(&queue.name)
                .map(|attached| attached.status.lock().unwrap_or_else(PoisonError::into_inner).clone());
            status(queue, worker)
        });
        joined.collect()
    }

    /// The failed store.
    pub fn failed(&self) -> &Arc<FailedStore> {
        self.shared.store.failed()
    }

    /// What recovery found when the store was opened.
    pub fn report(&self) -> OpenReport {
        self.shared.store.report()
    }

    /// Whether and why nothing is written any more.
    pub fn failure(&self) -> Option<StoreError> {
        self.shared.store.log().failure()
    }

    /// How far the log's one input was admitted.
    pub fn input(&self) -> Option<Input> {
        self.shared.store.log().input()
    }

    /// Remembers a note about the input, durably, and forgets the positions admitted before it.
    pub async fn set_input(&self, note: Bytes) -> Result<(), StoreError> {
        self.shared.store.log().set_input(note).await
    }

    /// Facts as they happen. A receiver that is slow misses some, and is told how many.
    pub fn notices(&self) -> broadcast::Receiver<Notice> {
        self.shared.notices.subscribe()
    }

    /// Resolves when nothing waits for any attached target. Dropping the future changes nothing.
    pub async fn settled(&self) {
        let mut changes = self.shared.changes.subscribe();
        loop {
            changes.borrow_and_update();
            let queues = self.shared.store.log().stats();
            if queues.iter().filter(|queue| queue.attached).all(|queue| queue.waiting == 0) {
                return;
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Resolves when an entry has left its queue since the call. Dropping the future changes nothing.
    pub async fn progress(&self) {
        let mut changes = self.shared.changes.subscribe();
        // The sender lives as long as this runtime.
        changes.changed().await.unwrap_or_default();
    }

    /// Has all targets open again what an operator rotates.
    pub async fn reopen(&self) {
        for (name, attached) in &self.shared.targets {
            if let Err(error) = attached.target.reopen().await {
                tracing::error!(target = %name, error = error.detail(), "the target could not be reopened");
            }
        }
    }

    /// The longest deadline of one attempt, over all targets.
    pub fn longest_deadline(&self) -> Duration {
        self.shared.targets.values().map(|attached| attached.timeout).max().unwrap_or_default()
    }

    /// Whether a shutdown has begun.
    pub fn is_stopping(&self) -> bool {
        self.shared.stopping.load(Ordering::Acquire)
    }

    /// Stops in order: refuses admissions, makes durable what was admitted, lets attempts in flight end for at most
    /// `drain`, books them, closes the targets, the writer and the store. Later calls get the same answer.
    ///
    /// Dropping the future may leave it half done; calling it again goes on.
    pub async fn shutdown(&self, drain: Duration) -> Result<ShutdownReport, StoreError> {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.ended.get_or_init(|| self.stop(drain)).await.clone()
    }

    async fn stop(&self, drain: Duration) -> Result<ShutdownReport, StoreError> {
        let shared = &self.shared;
        if let Err(report) = shared.writer.flush().await {
            // Each of these was told to whoever sent the event.
            tracing::warn!(%report, "some events were not admitted");
        }
        shared.stop.send_replace(Some(far(Instant::now(), drain)));
        let mut workers = shared.workers.lock().await;
        while let Some(ended) = workers.join_next().await {
            match ended {
                // An error was told when it happened.
                Ok(_) => {}
                Err(error) => tracing::error!(%error, "a worker was lost"),
            }
        }
        drop(workers);
        let flushed = shared.store.log().flush().await;
        let mut closing = JoinSet::new();
        for (name, attached) in &shared.targets {
            let (name, target) = (name.clone(), Arc::clone(&attached.target));
            let max = attached.timeout;
            closing.spawn(async move { (name, tokio::time::timeout(max, target.close()).await) });
        }
        while let Some(closed) = closing.join_next().await {
            if let Ok((target, Ok(Err(error)))) = closed {
                tracing::warn!(%target, error = error.detail(), "a target did not close cleanly");
            }
        }
        if let Err(report) = shared.writer.close().await {
            tracing::warn!(%report, "the writer did not close cleanly");
        }
        let queues = shared.store.log().stats().into_iter().filter(|queue| queue.waiting > 0);
        let waiting = queues.map(|queue| (queue.name, queue.waiting)).collect();
        let closed = shared.store.close().await;
        flushed.and(closed).map(|()| ShutdownReport { waiting })
    }
}

/// Runs a worker, and shows it if it cannot go on.
async fn watched(setup: worker::Setup) -> Result<(), StoreError> {
    let (name, status) = (setup.name.clone(), Arc::clone(&setup.status));
    let ended = AssertUnwindSafe(worker::run(setup)).catch_unwind().await;
    let ended = ended.unwrap_or_else(|_| Err(StoreError::Failed("its worker panicked: a defect".into())));
    if let Err(error) = &ended {
        tracing::error!(target = %name, %error, "the target's worker cannot go on");
        let mut status = status.lock().unwrap_or_else(PoisonError::into_inner);
        (status.state, status.reason) = (State::Failed, "store_failed");
        status.last_error = Some(error.to_string());
    }
    ended
}

/// An instant that is as far away, or as far as a clock can tell.
fn far(now: Instant, wait: Duration) -> Instant {
    now.checked_add(wait).unwrap_or_else(|| now + Duration::from_secs(86_400 * 365 * 30))
}

fn settings(spec: &TargetSpec) -> QueueSettings {
    QueueSettings {
        entries_max: spec.options.queue_entries.get(),
        bytes_max: spec.options.queue_bytes.map(NonZeroU64::get),
        when_full: match spec.options.when_full {
            outhaul_target::WhenFull::Refuse => WhenFull::Refuse,
            outhaul_target::WhenFull::Shed => WhenFull::Shed,
            outhaul_target::WhenFull::Overflow => WhenFull::Overflow,
        },
        label: spec.destination.clone(),
    }
}

/// The bounds of a target's failed entries: its own, and for the rest those of the store.
fn failed_options(spec: &TargetSpec, of_store: &FailedOptions) -> FailedOptions {
    let options = &spec.options;
    FailedOptions {
        entries_max: options.failed_entries.map_or(of_store.entries_max, NonZeroU64::get),
        bytes_max: options.failed_bytes.map_or(of_store.bytes_max, NonZeroU64::get),
        when_full: match options.failed_full {
            None => of_store.when_full,
            Some(outhaul_target::FailedFull::HoldTarget) => FailedFull::HoldTarget,
            Some(outhaul_target::FailedFull::DiscardOldest) => FailedFull::DiscardOldest,
        },
        expire_after: options.failed_expire_after.or(of_store.expire_after),
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
        if moved && queue.waiting > 0 && !spec.repoint {
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
