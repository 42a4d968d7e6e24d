//! The manager: which targets there are, and their workers.
//!
//! Admission reads one pointer, the names that get new events; everything else here happens beside it. A change of a
//! target takes the target's *turn*, so two changes of one target never overlap, and those of different targets never
//! wait for each other. Each change is an *intent* with a number; while it prepares it gives way to a newer one of the
//! same target. Once it has begun to replace something it ends, whoever waits for it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::num::NonZeroU64;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use futures_util::FutureExt;
use outhaul_store::event::TargetName;
use outhaul_store::{FailedFull, FailedOptions, Lease, QueueSettings, Store, StoreError, WhenFull};
use outhaul_target::{FailedCompat, Target};
use outhaul_writer::Writer;
use tokio::sync::{Semaphore, broadcast, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::admit::QueueSink;
use crate::notice::Notice;
use crate::runtime::TargetSpec;
use crate::status::{State, TargetStatus, WorkerStatus, status};
use crate::worker::control::Command;
use crate::{health, worker};

mod change;
mod discard;
mod entries;
mod error;
mod verbs;

pub(crate) use change::attach;
pub use change::{Change, Leftover, ReloadReport, Removed};
pub use entries::{EntryCursor, EntryInfo, EntryPage, EntryQuery, EntryState};
pub use error::ChangeError;
pub use verbs::EntryAnswer;

/// Commands that wait for one worker; more wait outside.
const COMMANDS_MAX: usize = 16;
/// Which targets a person has paused: one name a line.
const PAUSED_MEMO: &str = "paused";

pub(crate) struct Manager {
    pub(crate) store: Store,
    pub(crate) writer: Writer<QueueSink>,
    pub(crate) notices: broadcast::Sender<Notice>,
    /// Grows whenever an entry leaves a queue.
    pub(crate) changes: watch::Sender<u64>,
    pub(crate) lease: Arc<dyn Lease>,
    reject_hold: Option<u32>,
    random: Mutex<fastrand::Rng>,
    /// Shared by all targets: one for each `deliver` call.
    permits: Arc<Semaphore>,
    /// Who gets new events. It is replaced as a whole. An admission reads it until its events are with the writer, so
    /// that after a change none is under way with the names of before; nobody waits for anything under it.
    routes: RwLock<Arc<[TargetName]>>,
    slots: Mutex<BTreeMap<TargetName, Arc<Slot>>>,
    places: Mutex<HashMap<TargetName, Arc<Place>>>,
    generation: AtomicU64,
    /// Changes that were begun go on when nobody waits for them any more.
    tasks: Mutex<JoinSet<()>>,
    paused: tokio::sync::Mutex<BTreeSet<TargetName>>,
    discards: discard::Discards,
    stopping: AtomicBool,
}

/// A target and its worker.
pub(crate) struct Slot {
    pub(crate) spec: TargetSpec,
    generation: u64,
    status: Arc<Mutex<WorkerStatus>>,
    /// Whether it gets new events.
    routed: AtomicBool,
    /// It was paused while its worker ended: whoever follows starts paused.
    pause_next: AtomicBool,
    commands: mpsc::Sender<Command>,
    stop: watch::Sender<Option<Instant>>,
    worker: tokio::sync::Mutex<JoinSet<Result<(), StoreError>>>,
}

/// What the changes of one name share.
struct Place {
    turn: tokio::sync::Mutex<()>,
    /// The newest intent.
    intent: watch::Sender<u64>,
}

/// One change of one target.
struct Intent {
    place: Arc<Place>,
    generation: u64,
}

impl Intent {
    /// Resolves when there is a newer one.
    async fn superseded(&self) -> u64 {
        let mut intent = self.place.intent.subscribe();
        let newer = intent.wait_for(|newest| *newest > self.generation).await.map(|newest| *newest);
        // The place lives as long as this.
        newer.unwrap_or(u64::MAX)
    }

    fn newer(&self) -> Option<u64> {
        Some(*self.place.intent.borrow()).filter(|newest| *newest > self.generation)
    }
}

impl Slot {
    fn is_routed(&self) -> bool {
        self.routed.load(Ordering::Acquire)
    }

    fn shown(&self) -> WorkerStatus {
        lock(&self.status).clone()
    }

    /// As others are to see it: one that was paused on its way out sends nothing more.
    fn told(&self) -> WorkerStatus {
        let mut shown = self.shown();
        if self.pause_next.load(Ordering::Acquire) && shown.state != State::Failed {
            shown.state = State::Paused;
        }
        shown
    }

    fn is_failed(&self) -> bool {
        lock(&self.status).state == State::Failed
    }

    /// Whether its worker takes up nothing new any more.
    fn is_ending(&self) -> bool {
        self.stop.borrow().is_some()
    }

    /// Resolves when its worker is to end.
    async fn ending(&self) {
        // The sender lives as long as this.
        drop(self.stop.subscribe().wait_for(Option::is_some).await);
    }

    /// Has the worker finish what is in flight, at the latest at the deadline.
    pub(crate) fn signal(&self, deadline: Instant) {
        let sooner = |at: &mut Option<Instant>| {
            let changes = at.is_none_or(|at| deadline < at);
            if changes {
                *at = Some(deadline);
            }
            changes
        };
        self.stop.send_if_modified(sooner);
    }

    /// Waits for the worker's end.
    pub(crate) async fn join(&self) {
        let mut worker = self.worker.lock().await;
        while let Some(ended) = worker.join_next().await {
            // An error of its own was told when it happened.
            if let Err(error) = ended {
                tracing::error!(target = %self.spec.name, %error, "a worker was lost");
            }
        }
    }

    pub(crate) async fn close(&self) {
        close(&self.spec.name, &self.spec.target, self.spec.options.timeout).await;
    }
}

async fn close(name: &TargetName, target: &Arc<dyn Target>, max: Duration) {
    let closing = AssertUnwindSafe(target.close()).catch_unwind();
    match tokio::time::timeout(max, closing).await {
        Ok(Ok(Ok(()))) => {}
        Ok(Ok(Err(error))) => {
            tracing::warn!(target = %name, error = error.detail(), "a target did not close cleanly");
        }
        Ok(Err(_)) => tracing::error!(target = %name, "a target panicked while it closed"),
        Err(_) => tracing::warn!(target = %name, "a target did not close in time"),
    }
}

impl Manager {
    /// Starts a worker for each target. Their queues are attached already.
    pub(crate) async fn start(
        store: Store,
        writer: Writer<QueueSink>,
        lease: Arc<dyn Lease>,
        reject_hold: Option<u32>,
        random: fastrand::Rng,
        permits: Arc<Semaphore>,
        targets: Vec<TargetSpec>,
    ) -> Result<Arc<Self>, StoreError> {
        let paused = store.memo(PAUSED_MEMO).await?.unwrap_or_default();
        let paused = String::from_utf8_lossy(&paused);
        let paused: BTreeSet<_> = paused.lines().filter_map(|name| TargetName::new(name).ok()).collect();
        let discards = discard::Discards::load(&store).await?;
        let manager = Self {
            store,
            writer,
            notices: broadcast::Sender::new(1024),
            changes: watch::Sender::new(0),
            lease,
            reject_hold,
            random: Mutex::new(random),
            permits,
            routes: RwLock::new(Arc::new([])),
            slots: Mutex::default(),
            places: Mutex::default(),
            generation: AtomicU64::new(0),
            tasks: Mutex::default(),
            paused: tokio::sync::Mutex::new(paused.clone()),
            discards,
            stopping: AtomicBool::new(false),
        };
        manager.finish_discards().await?;
        for spec in targets {
            let paused = !spec.options.enabled || paused.contains(&spec.name);
            let generation = manager.next_generation();
            manager.launch(spec, generation, paused, None);
        }
        manager.publish();
        Ok(Arc::new(manager))
    }

    /// Calls with the names that get new events; no change of them happens meanwhile. Nothing in it may wait.
    pub(crate) fn routed<T>(&self, work: impl FnOnce(&Arc<[TargetName]>) -> T) -> T {
        work(&self.routes.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// From here on, admissions go to the targets that are to get new events now.
    fn publish(&self) {
        let slots = lock(&self.slots);
        let names = slots.values().filter(|slot| slot.is_routed()).map(|slot| slot.spec.name.clone());
        let names = names.collect();
        *self.routes.write().unwrap_or_else(PoisonError::into_inner) = names;
    }

    fn next_generation(&self) -> u64 {
        self.generation.fetch_add(1, Ordering::AcqRel) + 1
    }

    fn place(&self, name: &TargetName) -> Arc<Place> {
        let mut places = lock(&self.places);
        let new = || Arc::new(Place { turn: tokio::sync::Mutex::default(), intent: watch::Sender::new(0) });
        Arc::clone(places.entry(name.clone()).or_insert_with(new))
    }

    /// Announces a change: those of the same target that only prepare give way.
    fn intend(&self, name: &TargetName) -> Intent {
        let place = self.place(name);
        let mut generation = 0;
        // The number is taken with the intent, so that the newest is the greatest.
        place.intent.send_modify(|newest| {
            generation = self.next_generation();
            *newest = generation;
        });
        Intent { place, generation }
    }

    /// Forgets a name that has no target, unless somebody is about to change it.
    fn forget_place(&self, name: &TargetName) {
        let mut places = lock(&self.places);
        // One in the table, one with whoever asks.
        if places.get(name).is_some_and(|place| Arc::strong_count(place) <= 2) {
            places.remove(name);
        }
    }

    pub(crate) fn slot(&self, name: &TargetName) -> Option<Arc<Slot>> {
        lock(&self.slots).get(name).cloned()
    }

    pub(crate) fn slots(&self) -> Vec<Arc<Slot>> {
        lock(&self.slots).values().cloned().collect()
    }

    fn known(&self, name: &TargetName) -> Result<Arc<Slot>, ChangeError> {
        self.slot(name).ok_or_else(|| match self.orphaned(name) {
            Some(waiting) => ChangeError::Orphan { name: name.clone(), waiting },
            None => ChangeError::UnknownTarget(name.clone()),
        })
    }

    /// What waits under a name that has no target; None if that is nothing.
    fn orphaned(&self, name: &TargetName) -> Option<u64> {
        let queues = self.store.log().stats().into_iter();
        let mut orphans = queues.filter(|queue| !queue.attached && queue.waiting > 0);
        orphans.find(|queue| queue.name == *name).map(|queue| queue.waiting)
    }

    /// The targets that send nothing until a person lets them.
    pub(crate) fn paused(&self) -> BTreeSet<TargetName> {
        let paused = self.slots().into_iter().filter(|slot| slot.told().state == State::Paused);
        paused.map(|slot| slot.spec.name.clone()).collect()
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// No change is begun any more; those under way end early if they can.
    pub(crate) fn refuse_changes(&self) {
        self.stopping.store(true, Ordering::Release);
        for place in lock(&self.places).values() {
            place.intent.send_replace(u64::MAX);
        }
    }

    /// Waits for the changes that were begun.
    pub(crate) async fn join_changes(&self) {
        let mut tasks = std::mem::take(&mut *lock(&self.tasks));
        while tasks.join_next().await.is_some() {}
    }

    /// Waits for the discards that were begun. The workers have ended.
    pub(crate) async fn join_discards(&self) {
        self.discards.join().await;
    }

    /// Does something to its end, whoever waits for it.
    async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, ChangeError>> + Send + 'static,
    ) -> Result<T, ChangeError> {
        let (reply, answer) = oneshot::channel();
        self.spawn(async move { drop(reply.send(work.await)) })?;
        answer.await.unwrap_or(Err(ChangeError::Stopping))
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> Result<(), ChangeError> {
        let mut tasks = lock(&self.tasks);
        // Asked under the lock: what is begun before a stop is joined by it.
        if self.is_stopping() {
            return Err(ChangeError::Stopping);
        }
        // Those that are done are taken out; a panic was reported by its hook.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(work);
        Ok(())
    }

    /// Starts the worker of a target in its turn, paused if that is what a person or its configuration wants.
    async fn start_next(&self, spec: TargetSpec, generation: u64, before: Option<&Slot>) {
        // Under the lock: a pause before is heeded here, and one behind finds this worker.
        let paused = self.paused.lock().await;
        let pause = paused.contains(&spec.name) || !spec.options.enabled;
        self.launch(spec, generation, pause, before);
        drop(paused);
        self.publish();
    }

    /// Starts the worker of a target whose queue is attached, in place of whatever was there.
    fn launch(&self, spec: TargetSpec, generation: u64, paused: bool, before: Option<&Slot>) -> Arc<Slot> {
        let kind = std::panic::catch_unwind(AssertUnwindSafe(|| spec.target.kind())).unwrap_or("");
        let mut shown = WorkerStatus::new(kind);
        if paused {
            shown.state = State::Paused;
        }
        if let Some(before) = before.map(Slot::shown) {
            (shown.retried, shown.abandoned) = (before.retried, before.abandoned);
            (shown.last_success, shown.filling) = (before.last_success, before.filling);
        }
        let status = Arc::new(Mutex::new(shown));
        let (commands, asked) = mpsc::channel(COMMANDS_MAX);
        let (stop, stopped) = watch::channel(None);
        let setup = worker::Setup {
            name: spec.name.clone(),
            target: Arc::clone(&spec.target),
            options: spec.options.clone(),
            reject_hold: self.reject_hold,
            random: lock(&self.random).fork(),
            permits: Arc::clone(&self.permits),
            log: Arc::clone(self.store.log()),
            lease: Arc::clone(&self.lease),
            failed: Arc::clone(self.store.failed()),
            notices: self.notices.clone(),
            changes: self.changes.clone(),
            status: Arc::clone(&status),
            stop: stopped,
            commands: asked,
            paused,
        };
        let mut worker = JoinSet::new();
        worker.spawn(watched(setup));
        let slot = Arc::new(Slot {
            spec,
            generation,
            status,
            routed: AtomicBool::new(true),
            pause_next: AtomicBool::new(false),
            commands,
            stop,
            worker: tokio::sync::Mutex::new(worker),
        });
        lock(&self.slots).insert(slot.spec.name.clone(), Arc::clone(&slot));
        slot
    }

    /// One picture of all targets and orphans, sorted by name.
    pub(crate) fn targets(&self) -> Vec<TargetStatus> {
        let failure = self.store.log().failure();
        let (slots, now) = (lock(&self.slots).clone(), self.store.log().now());
        let (failed, disk_full) = (self.store.failed().stats(), self.store.log().disk_full());
        let queues = self.store.log().stats().into_iter();
        let shown = queues.filter(|queue| queue.attached || queue.waiting > 0);
        let joined = shown.map(|queue| {
            let slot = slots.get(&queue.name);
            let failed = failed.iter().find(|failed| failed.target == queue.name);
            let mut status = status(queue, slot.map(|slot| slot.told()), failed, now);
            // What is wrong with the target itself is told first.
            if disk_full && status.health == crate::Health::Online {
                (status.health, status.reason) = (crate::Health::Degraded, "disk_full");
            }
            if let Some(slot) = slot {
                status.generation = slot.generation;
                status.leaving(slot.is_routed());
                if let Some(failure) = &failure {
                    status.store_failed(failure);
                }
            }
            status
        });
        joined.collect()
    }

    /// As [`targets`](Self::targets), with a probe of each that is in use.
    pub(crate) async fn health(&self) -> Vec<TargetStatus> {
        let used = |status: &&TargetStatus| status.health != crate::Health::Disabled;
        let names: BTreeSet<_> =
            self.targets().iter().filter(used).map(|status| status.name.clone()).collect();
        let slots = self.slots().into_iter().filter(|slot| names.contains(&slot.spec.name));
        let asked = slots.map(|slot| (slot.spec.name.clone(), Arc::clone(&slot.spec.target)));
        let mut probes: HashMap<_, _> = health::collect(asked.collect()).await.into_iter().collect();
        let mut statuses = self.targets();
        for status in &mut statuses {
            if let Some(probe) = probes.remove(&status.name) {
                status.probed(probe);
            }
        }
        statuses
    }
}

/// Runs a worker, and shows it if it cannot go on.
async fn watched(setup: worker::Setup) -> Result<(), StoreError> {
    let (name, status) = (setup.name.clone(), Arc::clone(&setup.status));
    let ended = AssertUnwindSafe(worker::run(setup)).catch_unwind().await;
    let (ended, reason) = match ended {
        Ok(ended) => (ended, "store_failed"),
        Err(_) => (Err(StoreError::Failed("its worker panicked: a defect".into())), "no_progress"),
    };
    if let Err(error) = &ended {
        tracing::error!(target = %name, %error, "the target's worker cannot go on");
        let mut status = lock(&status);
        (status.state, status.reason) = (State::Failed, reason);
        status.last_error = Some(error.to_string());
        (status.in_flight, status.next_trial) = (0, None);
    }
    ended
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An instant that is as far away, or as far as a clock can tell.
pub(crate) fn far(now: Instant, wait: Duration) -> Instant {
    now.checked_add(wait).unwrap_or_else(|| now + Duration::from_secs(86_400 * 365 * 30))
}

pub(crate) fn settings(spec: &TargetSpec) -> QueueSettings {
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
pub(crate) fn failed_options(spec: &TargetSpec, of_store: &FailedOptions) -> FailedOptions {
    let options = &spec.options;
    let of_store = match options.failed_compat {
        None => of_store,
        Some(FailedCompat::Rustfs) => &FailedOptions::rustfs(),
    };
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
