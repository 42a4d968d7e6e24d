//! The replay worker: the task that delivers one queue.
//!
//! It sleeps until something is appended, an attempt ends, a lane or a trial is due, or it is told to stop. Awake, it
//! reads ahead into its [`lanes`], asks the [`policy`](crate::policy) what may be sent, sends that, and books what
//! came back. All state is the task's own; it shares a status for others to look at, and nothing waits under a lock.
//! Sending is in `send`, booking in `book`, the way to the failed store in `moves`.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use outhaul_store::event::TargetName;
use outhaul_store::{AppendError, Entry, FailedEntry, FailedStore, Lease, Log, Rule, Settlement, StoreError};
use outhaul_target::{Capabilities, DeliveryError, ErrorKind, OnReject, Target, TargetOptions, WhenFull};
use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::notice::Notice;
use crate::policy::{Cause, Permission, Policy, Tried};
use crate::status::{State, WorkerStatus};

mod book;
pub(crate) mod control;
pub(crate) mod lanes;
mod moves;
mod send;

use control::{Command, Control};
use lanes::{LANE_LOADED_MAX, LaneKey, Lanes};
use moves::{Move, Moves};

/// Bounds of the window.
const WINDOW_ENTRIES_MAX: usize = 4096;
const WINDOW_BYTES_MAX: usize = 32 << 20;
/// Entries whose pid waits, kept as a sequence.
const SKIPPED_MAX: usize = 1_000_000;
/// What one read brings.
const READ_ENTRIES_MAX: usize = 1024;
const READ_BYTES_MAX: usize = 4 << 20;
/// After a read that failed.
const READ_BACKOFF: Duration = Duration::from_secs(1);
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
        abandoned: bool,
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

struct Worker {
    setup: Setup,
    capabilities: Capabilities,
    policy: Policy,
    lanes: Lanes,
    moves: Moves,
    tasks: JoinSet<Done>,
    appended: watch::Receiver<u64>,
    /// Everything up to here was read.
    cursor: u64,
    /// Whether there may be more to read.
    more: bool,
    read_not_before: Option<Instant>,
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
    closed: HashSet<LaneKey>,
    retried: u64,
    abandoned: u64,
    last_error: Option<String>,
    last_reason: &'static str,
    last_good: bool,
    last_success: Option<SystemTime>,
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
        read_not_before: None,
        moves_not_before: None,
        running: 0,
        stale: 0,
        generation: 0,
        trial_running: false,
        probed: false,
        settlements: Vec::new(),
        control: Control::new(setup.paused),
        closed: HashSet::new(),
        retried: earlier.retried,
        abandoned: earlier.abandoned,
        last_error: None,
        last_reason: "not_loaded",
        last_good: false,
        last_success: earlier.last_success,
        reached: false,
        setup,
    };
    worker.closed = worker.closed_lanes().await?;
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
            // A lane that wakes may have to be read again, so this comes first.
            self.lanes.wake(now);
            self.read(now).await?;
            self.evict(now);
            if !self.control.paused {
                self.send(now);
            }
            self.show_state();
            // A pause does nothing about what is due already.
            let due = self.next_due(now).filter(|&due| due > now || !self.control.paused);
            tokio::select! {
                biased;
                Some(done) = self.tasks.join_next(), if !self.tasks.is_empty() => self.done(done).await?,
                _ = stop.changed() => {}
                Some(command) = self.setup.commands.recv() => self.command(command, now).await?,
                _ = self.appended.changed() => self.more = true,
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
        stop.mark_unchanged();
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
            let page = self.setup.failed.list(&self.setup.name, after, READ_ENTRIES_MAX).await?;
            let Some(last) = page.last() else { return Ok(closed) };
            after = last.uid.sequence;
            let rejected = page.iter().filter(|entry| entry.failure.rule == Rule::Rejected);
            closed.extend(rejected.filter_map(|entry| Some(LaneKey::Pid(entry.event.pid()?.into()))));
        }
    }

    /// Reads ahead as far as the window allows.
    async fn read(&mut self, now: Instant) -> Result<(), StoreError> {
        if self.read_not_before.is_some_and(|at| at > now) {
            return Ok(());
        }
        self.read_not_before = None;
        while self.has_room()
            && let Some(first) = self.lanes.to_fetch()
        {
            let Some(batch) = self.read_from(first - 1, LANE_LOADED_MAX, now).await? else { return Ok(()) };
            if batch.0.first().map(|entry| entry.place.uid.sequence) != Some(first) {
                self.lanes.vanished(first);
            }
            for entry in batch.0 {
                match entry.event.clone() {
                    Ok(event) => {
                        let (tried, _) = tried(&entry, now, self.setup.options.backoff_max);
                        let key = LaneKey::of(&event, entry.place.uid.sequence);
                        self.lanes.fetched(entry, event, tried);
                        if self.closed.contains(&key) {
                            self.lanes.close_idle(&key);
                        }
                    }
                    Err(unreadable) if entry.place.uid.sequence == first => {
                        self.lanes.vanished(first);
                        self.moves.add_unreadable(entry, &unreadable);
                    }
                    // It comes first in its lane some time.
                    Err(_) => {}
                }
            }
        }
        while self.more && self.has_room() && self.lanes.skipped() < SKIPPED_MAX {
            self.appended.borrow_and_update();
            let room = (WINDOW_ENTRIES_MAX - self.lanes.loaded()).min(READ_ENTRIES_MAX);
            let Some((entries, next)) = self.read_from(self.cursor, room, now).await? else { return Ok(()) };
            self.more = !entries.is_empty();
            self.cursor = next;
            for entry in entries {
                self.push(entry, now);
            }
        }
        Ok(())
    }

    fn has_room(&self) -> bool {
        self.lanes.loaded() < WINDOW_ENTRIES_MAX && self.lanes.bytes() < WINDOW_BYTES_MAX
    }

    /// None: the read failed, and is to be tried again later.
    async fn read_from(
        &mut self,
        after: u64,
        entries_max: usize,
        now: Instant,
    ) -> Result<Option<(Vec<Entry>, u64)>, StoreError> {
        let bytes_max = READ_BYTES_MAX.min(WINDOW_BYTES_MAX - self.lanes.bytes());
        match self.setup.lease.read(&self.setup.name, after, entries_max, bytes_max).await {
            Ok(read) => Ok(Some((read.entries, read.next))),
            Err(error @ (StoreError::Fenced(_) | StoreError::Closed | StoreError::UnknownQueue(_))) => {
                Err(error)
            }
            Err(error) => {
                tracing::error!(target = %self.setup.name, %error, "the queue cannot be read");
                self.last_error = Some(error.to_string());
                self.last_reason = "store_failed";
                self.last_good = false;
                self.read_not_before = Some(now + READ_BACKOFF);
                Ok(None)
            }
        }
    }

    fn push(&mut self, entry: Entry, now: Instant) {
        let (tried, not_before) = tried(&entry, now, self.setup.options.backoff_max);
        match entry.event.clone() {
            Ok(event) => {
                let key = LaneKey::of(&event, entry.place.uid.sequence);
                self.lanes.push(entry, event, tried, not_before);
                if self.closed.contains(&key) {
                    self.lanes.close_idle(&key);
                }
            }
            Err(unreadable) => self.moves.add_unreadable(entry, &unreadable),
        }
    }

    /// Moves out what is too much for the queue, or too old.
    fn evict(&mut self, now: Instant) {
        // A limit that was lowered under waiting entries refuses new ones, no more.
        let excess = match self.setup.options.when_full {
            WhenFull::Overflow => self.setup.log.excess(&self.setup.name),
            WhenFull::Refuse | WhenFull::Shed => 0,
        };
        let excess = excess.saturating_sub(self.moves.overflowing());
        let mut excess = usize::try_from(excess).unwrap_or(usize::MAX).min(READ_ENTRIES_MAX);
        while excess > 0 {
            let Some(first) = self.lanes.idle_fronts().next().map(lanes::Pending::sequence) else { break };
            let mut taken = self.lanes.take(first, excess, usize::MAX);
            if taken.is_empty() && self.lanes.take_any(first) {
                taken.push(first);
            }
            excess = excess.saturating_sub(taken.len()).min(if taken.is_empty() { 0 } else { usize::MAX });
            for sequence in taken {
                self.give_up(sequence, Rule::Overflow, None);
            }
        }
        if self.setup.options.age_max.is_some() {
            let old = self.lanes.idle_fronts().filter(|entry| self.policy.expires(age(entry.admitted_at)));
            let old: Vec<u64> = old.map(lanes::Pending::sequence).collect();
            for sequence in
                old.into_iter().filter(|&sequence| self.lanes.take_any(sequence)).collect::<Vec<_>>()
            {
                self.give_up(sequence, Rule::Expired, None);
            }
        }
        if self.moves_not_before.is_none_or(|at| at <= now) {
            self.moves_not_before = None;
            self.start_moves();
        }
    }

    /// Has a taken entry moved to the failed store.
    fn give_up(&mut self, sequence: u64, rule: Rule, error: Option<&DeliveryError>) {
        if let Some(pending) = self.lanes.get(sequence) {
            self.control.moving(sequence);
            self.moves.add(pending, rule, error);
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

    fn next_due(&self, now: Instant) -> Option<Instant> {
        let trial = match self.policy.permission(now) {
            Permission::Nothing(until) => Some(until),
            Permission::Trial | Permission::Attempts(_) => None,
        };
        let expiry = self.setup.options.age_max.and_then(|max| {
            let oldest = self.lanes.idle_fronts().map(|entry| entry.admitted_at).min()?;
            self.policy.expires(max).then(|| now + max.saturating_sub(age(oldest)))
        });
        [self.lanes.next_due(), trial, expiry, self.read_not_before, self.moves_not_before]
            .into_iter()
            .flatten()
            .min()
    }

    fn show_state(&self) {
        let state = match self.policy.hold().map(|hold| hold.cause) {
            _ if self.control.paused => State::Paused,
            Some(Cause::Throttled) => State::Throttled,
            Some(Cause::Held | Cause::Rejects | Cause::FailedStore) => State::Held,
            None if self.reached => State::Running,
            None => State::Starting,
        };
        self.show(state);
    }

    fn show(&self, state: State) {
        let hold = self.policy.hold();
        let status = WorkerStatus {
            kind: self.setup.target.kind(),
            state,
            reason: hold.map_or(self.last_reason, |hold| hold.reason),
            in_flight: self.lanes.busy(),
            stuck: self.lanes.stuck(),
            retried: self.retried,
            abandoned: self.abandoned,
            oldest: self.lanes.oldest(),
            next_trial: hold.map(|hold| hold.until),
            last_error: self.last_error.clone(),
            last_good: self.last_good,
            last_success: self.last_success,
        };
        *self.setup.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }
}

fn panicked() -> DeliveryError {
    DeliveryError::new(ErrorKind::Unavailable).with_detail("the target panicked: a defect of its code")
}

fn age(admitted_at: SystemTime) -> Duration {
    SystemTime::now().duration_since(admitted_at).unwrap_or_default()
}

/// What was remembered of an entry. A clock that jumped delays it by no more than the longest backoff.
fn tried(entry: &Entry, now: Instant, backoff_max: Duration) -> (Tried, Option<Instant>) {
    let Some(retry) = entry.retry else { return (Tried::default(), None) };
    let wait = retry.not_before.duration_since(SystemTime::now()).unwrap_or_default().min(backoff_max);
    (Tried::again(retry.attempts), (!wait.is_zero()).then(|| now + wait))
}
