//! What is shown of a target: its state, its health, and its numbers.

use std::time::{Duration, SystemTime};

use outhaul_store::event::TargetName;
use outhaul_store::{FailedStats, QueueStats, StoreError};
use serde::Serialize;
use tokio::time::Instant;

use crate::filling::Filling;
use crate::health::Probe;

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
    /// It queues, and sends nothing until a person lets it go on.
    Paused,
    /// It gets no new events; what waits is delivered, or what is in flight ends.
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
    /// Whether it gets no new events until it is resumed or put again, whatever its state.
    pub draining: bool,
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
    /// Of the discarded ones, those whose file somebody else removed (engine `spool`).
    pub vanished: u64,
    /// Entries that wait.
    pub waiting: u64,
    /// Failed entries that were discarded since because there was no room for new ones.
    pub failed_discarded_oldest: u64,
    /// Failed entries that were discarded since because they became too old.
    pub failed_expired: u64,
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
    /// How long ago an entry was delivered last in this life of the process.
    pub last_success_seconds: Option<f64>,
    /// What went wrong last, without credentials.
    pub last_error: Option<String>,
    /// Entries of it in the failed store, those of earlier processes too.
    pub failed_stored: u64,
    /// Where it delivers to, without credentials; for an orphan, where it did. Not serialised: a path may be a secret
    /// too.
    #[serde(skip)]
    pub destination: String,
    /// Grows with every change of the target; 0 for an orphan.
    pub generation: u64,
    /// How full its queue is, in percent of the limit that it is nearest to.
    pub filled_percent: u8,
    /// 50, 80 or 95, from when its queue was so full until it is 5 percent below; 0 before.
    pub filled_warning: u8,
    /// What a probe found, if one was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe: Option<Probe>,
}

impl TargetStatus {
    /// A target without new events delivers what waits, and is done then.
    pub(crate) fn leaving(&mut self, routed: bool) {
        self.draining = !routed;
        if routed || matches!(self.state, State::Failed | State::Paused) {
            return;
        }
        if self.waiting == 0 {
            (self.state, self.health, self.reason) = (State::Stopped, Health::Disabled, "disabled");
        } else if matches!(self.state, State::Running | State::Starting) {
            self.state = State::Draining;
        }
    }

    /// Nothing of it can be written any more.
    pub(crate) fn store_failed(&mut self, failure: &StoreError) {
        (self.health, self.reason) = (Health::Error, "store_failed");
        self.last_error = Some(failure.to_string());
    }

    /// What a probe found is worth less than what attempts found.
    pub(crate) fn probed(&mut self, probe: Probe) {
        let good = matches!(self.health, Health::Online | Health::Degraded);
        if probe.reason != "reachable" && good && matches!(self.state, State::Running | State::Starting) {
            (self.health, self.reason) = (Health::Degraded, probe.reason);
        }
        self.probe = Some(probe);
    }
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
    pub(crate) last_success: Option<SystemTime>,
    pub(crate) filling: Filling,
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
            last_success: None,
            filling: Filling::default(),
        }
    }

    /// Whether what was to happen is long overdue.
    fn is_stalled(&self, waiting: u64) -> bool {
        let works = !matches!(self.state, State::Paused | State::Stopped | State::Failed | State::Orphan);
        works && waiting > 0 && self.due.is_some_and(|due| due.elapsed() > NO_PROGRESS_AFTER)
    }

    fn health(&self, waiting: u64) -> Health {
        match self.state {
            _ if self.is_stalled(waiting) => Health::Error,
            State::Held => Health::Offline,
            State::Failed => Health::Error,
            State::Paused | State::Stopped | State::Orphan => Health::Disabled,
            State::Running if self.last_good && self.stuck == 0 => Health::Online,
            State::Running | State::Throttled | State::Starting | State::Draining => Health::Degraded,
        }
    }
}

/// Joins a queue's numbers with what its worker tells; without a worker it is an orphan.
pub(crate) fn status(
    queue: QueueStats,
    worker: Option<WorkerStatus>,
    failed: Option<&FailedStats>,
    now: SystemTime,
) -> TargetStatus {
    let worker = worker.unwrap_or_else(|| WorkerStatus { state: State::Orphan, ..WorkerStatus::new("") });
    let ago = |time: SystemTime| now.duration_since(time).unwrap_or_default().as_secs_f64();
    let oldest = worker.oldest.filter(|_| queue.waiting > 0);
    let until = worker.next_trial.map(|at| at.saturating_duration_since(Instant::now()));
    let percent = |is: u64, max: u64| (u128::from(is) * 100 / u128::from(max.max(1))).min(100) as u8;
    let filled_percent = percent(queue.waiting, queue.entries_max).max(percent(queue.bytes, queue.bytes_max));
    let full = queue.waiting >= queue.entries_max || queue.bytes >= queue.bytes_max;
    let (health, reason) = match (worker.state, worker.health(queue.waiting)) {
        (_, health) if worker.is_stalled(queue.waiting) => (health, "no_progress"),
        (State::Paused | State::Stopped, health) => (health, "disabled"),
        (_, Health::Online) if full => (Health::Degraded, "queue_full"),
        (_, health) => (health, worker.reason),
    };
    TargetStatus {
        kind: worker.kind,
        state: worker.state,
        draining: false,
        health,
        reason,
        recovered: queue.recovered,
        admitted: queue.admitted,
        requeued: queue.requeued,
        imported: queue.imported,
        delivered: queue.delivered,
        failed: queue.failed,
        discarded: queue.discarded,
        vanished: queue.vanished,
        failed_discarded_oldest: failed.map_or(0, |failed| failed.discarded_oldest),
        failed_expired: failed.map_or(0, |failed| failed.expired),
        waiting: queue.waiting,
        in_flight: (worker.in_flight as u64).min(queue.waiting),
        retried: worker.retried,
        abandoned: worker.abandoned,
        panics: worker.panics,
        bytes: queue.bytes,
        oldest_age_seconds: oldest.map(ago),
        next_trial_seconds: until.map(|until| until.as_secs_f64()),
        last_success_seconds: worker.last_success.map(ago),
        last_error: worker.last_error,
        failed_stored: failed.map_or(0, |failed| failed.entries),
        destination: queue.label,
        generation: 0,
        filled_percent,
        filled_warning: worker.filling.level(),
        probe: None,
        name: queue.name,
    }
}
