//! What is shown of a target: its state, its health, and its numbers.

use std::time::{Duration, SystemTime};

use outhaul_store::QueueStats;
use outhaul_store::event::TargetName;
use serde::Serialize;
use tokio::time::Instant;

/// A worker that does not what it was to do for so long makes no progress.
const NO_PROGRESS_AFTER: Duration = Duration::from_secs(30);

/// Where a target is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum State {
    /// Opened, and not reached yet.
    Starting,
    /// Delivering, or ready to.
    Running,
    /// Accused: nothing is sent but a trial now and then.
    Held,
    /// It fails everything for now, or asked for a pause: trials as when held.
    Throttled,
    /// Finishing what is in flight, taking up nothing new.
    Draining,
    /// Its worker has ended.
    Stopped,
    /// Its worker cannot go on.
    Failed,
    /// Entries wait, and no target of this name is configured.
    Orphan,
}

/// How a target does, for a person or a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Health {
    /// Running, and the last attempt was good.
    Online,
    /// Running with stuck pids, throttled, or not reached yet.
    Degraded,
    /// Held.
    Offline,
    /// Failed, or its store is.
    Error,
    /// Not in use.
    Disabled,
}

/// One target in one picture. `recovered + admitted + requeued + imported` equals
/// `delivered + failed + discarded + waiting`, and `waiting` includes `in_flight`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TargetStatus {
    /// The name.
    pub name: TargetName,
    /// The protocol; empty for an orphan.
    pub kind: &'static str,
    /// Where it is in its life.
    pub state: State,
    /// How it does.
    pub health: Health,
    /// A machine-readable word for why.
    pub reason: &'static str,
    /// Entries that waited when the store was opened.
    pub recovered: u64,
    /// Entries admitted since.
    pub admitted: u64,
    /// Entries put back from the failed store since.
    pub requeued: u64,
    /// Entries brought in from other products' directories since.
    pub imported: u64,
    /// Entries delivered since.
    pub delivered: u64,
    /// Entries moved to the failed store since.
    pub failed: u64,
    /// Entries removed since.
    pub discarded: u64,
    /// Entries that wait.
    pub waiting: u64,
    /// Entries that are with the target.
    pub in_flight: u64,
    /// Attempts that failed and were, or will be, repeated.
    pub retried: u64,
    /// Entries whose attempt outlived twice its deadline and was dropped.
    #[serde(skip)]
    pub abandoned: u64,
    /// Attempts that ended in a panic of the target.
    #[serde(skip)]
    pub panics: u64,
    /// Bytes of the entries that wait.
    pub bytes: u64,
    /// Age of the oldest entry that waits, from its admission.
    pub oldest_age_seconds: Option<f64>,
    /// When a held or throttled target is tried next.
    pub next_trial_seconds: Option<f64>,
    /// What went wrong last, without credentials.
    pub last_error: Option<String>,
}

/// What a worker tells about itself.
#[derive(Debug, Clone)]
pub(crate) struct WorkerStatus {
    pub(crate) kind: &'static str,
    pub(crate) state: State,
    /// The reason of a hold, of the last failure, or `reachable`.
    pub(crate) reason: &'static str,
    pub(crate) in_flight: usize,
    pub(crate) stuck: usize,
    pub(crate) retried: u64,
    pub(crate) abandoned: u64,
    pub(crate) panics: u64,
    /// By when something is to happen, if anything is to.
    pub(crate) due: Option<Instant>,
    pub(crate) oldest: Option<SystemTime>,
    pub(crate) next_trial: Option<Instant>,
    pub(crate) last_error: Option<String>,
    pub(crate) last_good: bool,
}

impl WorkerStatus {
    pub(crate) fn new(kind: &'static str) -> Self {
        Self {
            kind,
            state: State::Starting,
            reason: "not_loaded",
            in_flight: 0,
            stuck: 0,
            retried: 0,
            abandoned: 0,
            panics: 0,
            due: None,
            oldest: None,
            next_trial: None,
            last_error: None,
            last_good: false,
        }
    }

    /// Whether what was to happen is long overdue.
    fn is_stalled(&self, waiting: u64) -> bool {
        waiting > 0 && self.due.is_some_and(|due| due.elapsed() > NO_PROGRESS_AFTER)
    }

    fn health(&self, waiting: u64) -> Health {
        match self.state {
            _ if self.is_stalled(waiting) => Health::Error,
            State::Held => Health::Offline,
            State::Failed => Health::Error,
            State::Stopped | State::Orphan => Health::Disabled,
            State::Running if self.last_good && self.stuck == 0 => Health::Online,
            State::Running | State::Throttled | State::Starting | State::Draining => Health::Degraded,
        }
    }
}

/// Joins a queue's numbers with what its worker tells; without a worker it is an orphan.
pub(crate) fn status(queue: QueueStats, worker: Option<WorkerStatus>) -> TargetStatus {
    let worker = worker.unwrap_or_else(|| WorkerStatus { state: State::Orphan, ..WorkerStatus::new("") });
    let oldest = worker.oldest.filter(|_| queue.waiting > 0);
    let age = oldest.map(|oldest| SystemTime::now().duration_since(oldest).unwrap_or_default());
    let until = worker.next_trial.map(|at| at.saturating_duration_since(Instant::now()));
    TargetStatus {
        kind: worker.kind,
        state: worker.state,
        health: worker.health(queue.waiting),
        reason: if worker.is_stalled(queue.waiting) { "no_progress" } else { worker.reason },
        recovered: queue.recovered,
        admitted: queue.admitted,
        requeued: queue.requeued,
        imported: queue.imported,
        delivered: queue.delivered,
        failed: queue.failed,
        discarded: queue.discarded,
        waiting: queue.waiting,
        in_flight: (worker.in_flight as u64).min(queue.waiting),
        retried: worker.retried,
        abandoned: worker.abandoned,
        panics: worker.panics,
        bytes: queue.bytes,
        oldest_age_seconds: age.map(|age| age.as_secs_f64()),
        next_trial_seconds: until.map(|until| until.as_secs_f64()),
        last_error: worker.last_error,
        name: queue.name,
    }
}
