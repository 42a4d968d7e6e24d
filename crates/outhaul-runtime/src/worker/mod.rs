//! The replay worker: the task that delivers one queue.
//!
//! It sleeps until something is appended, an attempt ends, a lane or a trial is due, or it is told to stop. Awake, it
//! reads ahead into its [`lanes`], asks the [`policy`](crate::policy) what may be sent, sends that, and books what
//! came back. All state is the task's own; it shares a status for others to look at, and nothing waits under a lock.
//! Reading is in `window`, sending in `send`, booking in `book`, the way to the failed store in `moves`, and what comes
//! first after a crash in `suspects`.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use outhaul_store::event::TargetName;
use outhaul_store::{
    AppendError, Entry, FailedEntry, FailedStore, Lease, Log, Rule, Settlement, StoreError, pid_hash,
};
use outhaul_target::{Capabilities, DeliveryError, ErrorKind, OnReject, Target, TargetOptions};
use tokio::sync::{Semaphore, broadcast, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::filling::Filling;
use crate::notice::Notice;
use crate::policy::{Cause, Permission, Policy, Tried};
use crate::status::{State, WorkerStatus};

mod book;
pub(crate) mod control;
mod fifo;
mod hash;
pub(crate) mod lanes;
mod moves;
mod send;
mod suspects;
mod window;

use control::{Command, Control};
use lanes::{LaneKey, Lanes};
use moves::{Move, Moves};

/// A page of the failed store, and what is evicted at once.
const PAGE: usize = 1024;
/// After a move that failed.
const MOVE_BACKOFF: Duration = Duration::from_secs(1);

/// Everything that a worker is given.
pub(crate) struct Setup {
    pub(crate) name: TargetName,
    pub(crate) target: Arc<dyn Target>,
    pub(crate) options: TargetOptions,
    pub(crate) reject_hold: Option<u32>,
    pub(crate) random: fastrand::Rng,
    pub(crate) log: Arc<dyn Log>,
    pub(crate) lease: Arc<dyn Lease>,
    pub(crate) failed: Arc<FailedStore>,
    pub(crate) notices: broadcast::Sender<Notice>,
    /// Grows whenever an entry leaves a queue.
    pub(crate) changes: watch::Sender<u64>,
    pub(crate) status: Arc<Mutex<WorkerStatus>>,
    /// What all targets share: a permit for each `deliver`.
    pub(crate) permits: Arc<Semaphore>,
    /// Set once to the time by which attempts in flight are to be ended.
    pub(crate) stop: watch::Receiver<Option<Instant>>,
    /// What a person asks for.
    pub(crate) commands: mpsc::Receiver<Command>,
    /// Sends nothing before it is told to.
    pub(crate) paused: bool,
}

/// What ends in a worker's set of tasks.
enum Done {
    Delivered {
        sequences: Vec<u64>,
        trial: bool,
        generation: u64,
        results: Vec<Result<(), DeliveryError>>,
        ended: Ended,
    },
    /// The stop came while it waited for a permit.
    Unsent {
        sequences: Vec<u64>,
        trial: bool,
    },
    Probed {
        trial: bool,
        result: Result<(), DeliveryError>,
    },
    Moved {
        moves: Vec<Move>,
        results: Vec<Result<(), AppendError>>,
    },
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Answered,
    /// It outlived twice its deadline and was dropped.
    Abandoned,
    Panicked,
}

struct Worker {
    setup: Setup,
    capabilities: Capabilities,
    policy: Policy,
    lanes: Lanes,
    moves: Moves,
    tasks: JoinSet<Done>,
    appended: watch::Receiver<u64>,
    /// Everything up to here is known.
    cursor: u64,
    /// Whether there may be more to read.
    more: bool,
    /// There is more to be looked at than one round may.
    unfinished: bool,
    reading: window::Reading,
    read_not_before: Option<Instant>,
    /// A batch that is not full waits, or the rate lets nothing out, until then.
    send_not_before: Option<Instant>,
    /// The failed store refused: not again before.
    moves_not_before: Option<Instant>,
    /// Attempts that run, a trial included.
    running: usize,
    /// Of these, those that began before the target resumed: the ramp is about what is sent now.
    stale: usize,
    generation: u64,
    trial_running: bool,
    /// A probe was good while nothing waited: the next trial waits for an entry.
    probed: bool,
    settlements: Vec<Settlement>,
    control: Control,
    /// The log had failed before: what an earlier worker delivered since is not known, and not sent again.
    blind: bool,
    closed: HashSet<LaneKey>,
    /// What is with the target; `noted`: the store knows.
    flying: BTreeSet<u64>,
    noted: bool,
    /// Entries that were with the target when the process ended; they are sent first, alone.
    suspects: BTreeMap<u64, LaneKey>,
    /// So many attempts more wait until the store has them noted.
    careful: u32,
    retried: u64,
    abandoned: u64,
    panics: u64,
    last_error: Option<String>,
    last_reason: &'static str,
    last_good: bool,
    last_success: Option<SystemTime>,
    filling: Filling,
    reached: bool,
}

/// Delivers a queue until it is told to stop; then attempts in flight end, and everything is booked.
pub(crate) async fn run(setup: Setup) -> Result<(), StoreError> {
    let appended = setup.lease.watch(&setup.name)?;
    let capabilities = setup.target.capabilities();
    let batch =
        setup.options.batch.map_or(capabilities.batch_max, |max| max.get().min(capabilities.batch_max));
    let policy = Policy::new(setup.options.clone(), setup.reject_hold, batch.max(1), setup.random.clone());
    // What an earlier worker of this target counted.
    let earlier = setup.status.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let mut worker = Worker {
        capabilities,
        policy,
        lanes: Lanes::default(),
        moves: Moves::default(),
        tasks: JoinSet::new(),
        appended,
        cursor: 0,
        more: true,
        unfinished: false,
        reading: window::Reading::default(),
        send_not_before: None,
        flying: BTreeSet::new(),
        noted: true,
        suspects: BTreeMap::new(),
        careful: 0,
        panics: 0,
        read_not_before: None,
        moves_not_before: None,
        running: 0,
        stale: 0,
        generation: 0,
        trial_running: false,
        probed: false,
        settlements: Vec::new(),
        control: Control::new(setup.paused),
        blind: setup.log.failure().is_some(),
        closed: HashSet::new(),
        retried: earlier.retried,
        abandoned: earlier.abandoned,
        last_error: None,
        last_reason: "not_loaded",
        last_good: false,
        last_success: earlier.last_success,
        filling: earlier.filling,
        reached: false,
        setup,
    };
    worker.closed = worker.closed_lanes().await?;
    worker.find_suspects().await?;
    if !worker.control.paused {
        worker.probe(false);
    }
    let ended = worker.work().await;
    worker.show(if ended.is_ok() { State::Stopped } else { State::Failed });
    ended
}

impl Worker {
    async fn work(&mut self) -> Result<(), StoreError> {
        let mut stop = self.setup.stop.clone();
        loop {
            let now = Instant::now();
            let stopped = *stop.borrow_and_update();
            if let Some(deadline) = stopped {
                return self.drain(deadline).await;
            }
            self.show_work(now);
            // A lane that wakes may have to be read again, so this comes first.
            self.lanes.wake(now);
            self.read(now).await?;
            self.evict(now).await?;
            if !self.is_quiet() {
                self.send(now);
            }
            self.note_flying()?;
            self.warn_of_filling();
            self.show_state(now);
            // A pause does nothing about what is due already.
            let due = self.next_due(now).filter(|&due| due > now || !self.is_quiet());
            tokio::select! {
                biased;
                Some(done) = self.tasks.join_next(), if !self.tasks.is_empty() => self.done(done).await?,
                _ = stop.changed() => {}
                Some(read) = self.reading.ended(), if self.reading.is_under_way() => self.was_read(read, now)?,
                Some(command) = self.setup.commands.recv() => {
                    self.catch_up(now).await?;
                    self.command(command, now).await?;
                }
                _ = self.appended.changed() => self.look_again(),
                () = tokio::task::yield_now(), if self.unfinished => {}
                () = tokio::time::sleep_until(due.unwrap_or(now)), if due.is_some() => {}
            }
            // Whatever else has ended meanwhile is booked in one go.
            while let Some(done) = self.tasks.try_join_next() {
                self.done(done).await?;
            }
            self.settle().await?;
        }
    }

    /// Takes up nothing new, and waits for what is under way.
    async fn drain(&mut self, mut deadline: Instant) -> Result<(), StoreError> {
        self.show(State::Draining);
        let mut stop = self.setup.stop.clone();
        // One that was sent meanwhile is not to be missed.
        deadline = stop.borrow_and_update().unwrap_or(deadline);
        loop {
            // What was given up is moved before the end, unless the failed store takes nothing.
            if self.moves_not_before.is_none() {
                self.start_moves();
            }
            tokio::select! {
                biased;
                done = self.tasks.join_next() => match done {
                    Some(done) => self.done(done).await?,
                    None => break,
                },
                Ok(()) = stop.changed() => deadline = stop.borrow_and_update().unwrap_or(deadline),
                () = tokio::time::sleep_until(deadline) => {
                    while let Some(done) = self.tasks.try_join_next() {
                        self.done(done).await?;
                    }
                    self.tasks.shutdown().await;
                    break;
                }
            }
            self.settle().await?;
        }
        self.settle().await
    }

    /// Pids that wait for a person: those of rejected entries, where that closes their lane.
    async fn closed_lanes(&self) -> Result<HashSet<LaneKey>, StoreError> {
        let mut closed = HashSet::new();
        if self.setup.options.on_reject != OnReject::StopPid {
            return Ok(closed);
        }
        let mut after = 0;
        loop {
            let page = self.setup.failed.list(&self.setup.name, after, PAGE).await?;
            let Some(last) = page.last() else { return Ok(closed) };
            after = last.uid.sequence;
            let rejected = page.iter().filter(|entry| entry.failure.rule == Rule::Rejected);
            closed.extend(rejected.filter_map(|entry| pid_hash(&entry.event).map(LaneKey::Pid)));
        }
    }

    /// Has a taken entry moved to the failed store.
    fn give_up(&mut self, sequence: u64, rule: Rule, error: Option<&DeliveryError>) {
        if let Some(pending) = self.lanes.get(sequence) {
            self.control.moving(sequence);
            self.moves.add(pending, rule, error, self.setup.log.now());
        }
    }

    fn start_moves(&mut self) {
        if let Some(moves) = self.moves.start() {
            let failed = Arc::clone(&self.setup.failed);
            self.tasks.spawn(async move {
                let entries: Vec<FailedEntry> = moves.iter().map(|one| one.entry.clone()).collect();
                let results = failed.put_each(entries).await;
                Done::Moved { moves, results }
            });
        }
    }

    async fn settle(&mut self) -> Result<(), StoreError> {
        if self.settlements.is_empty() {
            return Ok(());
        }
        let settlements = std::mem::take(&mut self.settlements);
        let answers = self.control.left(&settlements);
        match self.setup.lease.settle(settlements).await {
            // The log stopped writing: what was delivered may be repeated after a restart. The health says why.
            Err(StoreError::Failed(reason)) => {
                self.last_error = Some(reason.to_string());
                self.last_reason = "store_failed";
                self.last_good = false;
            }
            other => other?,
        }
        answers.into_iter().for_each(control::Answer::tell);
        self.setup.changes.send_modify(|changes| *changes += 1);
        Ok(())
    }

    fn note(&mut self, error: &DeliveryError) {
        self.last_good = false;
        self.last_reason = error.kind().reason();
        self.last_error = Some(error.detail());
    }

    fn tell(&self, notice: Notice) {
        // An error says that nobody listens: fine.
        drop(self.setup.notices.send(notice));
    }

    /// Tells that a hold began, if one did.
    fn tell_hold(&self) {
        let Some(hold) = self.policy.hold() else { return };
        let (target, reason) = (self.setup.name.clone(), hold.reason);
        let error = self.last_error.as_deref().unwrap_or_default();
        match hold.cause {
            Cause::Throttled => {
                tracing::warn!(%target, error, "the target is throttled: one trial at a time until it takes an event");
                self.tell(Notice::Throttled { target });
            }
            Cause::Held | Cause::Rejects | Cause::FailedStore => {
                tracing::warn!(%target, reason, error, "the target is held: one trial at a time until it takes an event");
                self.tell(Notice::Held { target, reason });
            }
        }
    }

    fn is_quiet(&self) -> bool {
        self.control.paused || self.blind
    }

    fn age(&self, admitted_at: SystemTime) -> Duration {
        self.setup.log.now().duration_since(admitted_at).unwrap_or_default()
    }

    /// What was remembered of an entry. A clock that jumped delays it by no more than the longest backoff.
    fn tried(&self, entry: &Entry, now: Instant) -> (Tried, Option<Instant>) {
        let Some(retry) = entry.retry else { return (Tried::default(), None) };
        let wait = retry.not_before.duration_since(self.setup.log.now()).unwrap_or_default();
        let wait = wait.min(self.setup.options.backoff_max);
        (Tried::again(retry.attempts), (!wait.is_zero()).then(|| now + wait))
    }

    fn next_due(&self, now: Instant) -> Option<Instant> {
        let trial = match self.policy.permission(now) {
            Permission::Nothing(until) => Some(until),
            Permission::Trial | Permission::Attempts(_) => None,
        };
        let expiry = self.setup.options.age_max.and_then(|max| {
            let oldest = self.lanes.idle_fronts().map(|entry| entry.admitted_at).min()?;
            self.policy.expires(max).then(|| now + max.saturating_sub(self.age(oldest)))
        });
        // Nothing is sent before the trial, whatever else is due.
        let lanes = self.lanes.next_due().filter(|_| trial.is_none());
        [lanes, trial, expiry, self.read_not_before, self.send_not_before, self.moves_not_before]
            .into_iter()
            .flatten()
            .min()
    }

    /// Tells when the queue passes a level, up or down.
    fn warn_of_filling(&mut self) {
        let (before, percent) = (self.filling.level(), self.setup.log.filled(&self.setup.name));
        if self.filling.moved(percent) {
            let (target, level) = (&self.setup.name, self.filling.level());
            match level > before {
                true => tracing::warn!(%target, percent, level, "the queue fills up"),
                false => tracing::info!(%target, percent, level, "the queue has room again"),
            }
        }
    }

    fn show_state(&self, now: Instant) {
        let state = match self.policy.hold().map(|hold| hold.cause) {
            _ if self.control.paused => State::Paused,
            Some(Cause::Throttled) => State::Throttled,
            Some(Cause::Held | Cause::Rejects | Cause::FailedStore) => State::Held,
            None if self.reached => State::Running,
            None => State::Starting,
        };
        self.show_due(state, self.expected(now));
    }

    /// By when something is to happen here, if anything is to.
    fn expected(&self, now: Instant) -> Option<Instant> {
        if self.running > 0 {
            // What outlives twice its deadline is dropped.
            return Some(now + self.setup.options.timeout.saturating_mul(2));
        }
        self.next_due(now).or_else(|| (self.lanes.has_ready() || self.unfinished).then_some(now))
    }

    /// There is something to do from now on: a disk that does not answer shows by that.
    fn show_work(&self, now: Instant) {
        let mut status = self.setup.status.lock().unwrap_or_else(PoisonError::into_inner);
        status.due = Some(status.due.map_or(now, |due| due.min(now)));
    }

    fn show(&self, state: State) {
        self.show_due(state, None);
    }

    fn show_due(&self, state: State, due: Option<Instant>) {
        let hold = self.policy.hold();
        let status = WorkerStatus {
            kind: self.setup.target.kind(),
            state,
            reason: hold.map_or(self.last_reason, |hold| hold.reason),
            in_flight: self.lanes.busy(),
            stuck: self.lanes.stuck(),
            retried: self.retried,
            abandoned: self.abandoned,
            panics: self.panics,
            due,
            oldest: self.lanes.oldest(),
            next_trial: hold.map(|hold| hold.until),
            last_error: self.last_error.clone(),
            last_good: self.last_good,
            last_success: self.last_success,
            filling: self.filling,
        };
        *self.setup.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }
}

fn panicked() -> DeliveryError {
    DeliveryError::new(ErrorKind::Unavailable).with_detail("the target panicked: a defect of its code")
}
