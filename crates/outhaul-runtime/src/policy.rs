//! When to try again, and whom a failure accuses. Nothing else decides that.
//!
//! What a failure *is* was decided by the target: its kind gives the verdict. Here the verdict meets the history:
//!
//! - `Hold` accuses the target. It is held: nothing is sent until the backoff has passed, then one trial, alone, of an
//!   entry that is not accused. A delivery resumes it, at first one attempt at a time, then two, four, …
//! - An entry that fails again although others were delivered since it failed last is a *suspect*: the fault is its
//!   own. It waits like after a `Retry`, is sent alone, and can neither hold nor throttle.
//! - Trials prefer entries that have never failed, the oldest and the youngest of them in turn, so that a few bad ones
//!   cannot keep a target down. If only entries that had failed before brought the hold about, one that never failed
//!   is tried as soon as it is there, once.
//! - `Retry` accuses the entry: its lane waits, exponentially, with full jitter above a tenth of the step. Ten in a
//!   row, of two or more pids, without a delivery between them, throttle the target: the same trials.
//! - `Reject` accuses the event. Fifty in a row, of two or more pids, without a delivery, hold the target: a receiver
//!   that refuses everything is set up wrong.
//! - A batch that fails as a whole accuses nobody: its entries are sent again in smaller batches first.
//!
//! - While some lanes are stuck, one attempt in five goes to a lane that was delivered to (or to the youngest entry that
//!   never failed, if the last good lane was found there), and at most one in ten to an entry that failed before: a heap
//!   of bad old entries neither throttles a target that takes the others, nor takes its places.
//!
//! What is tried while a target is held or throttled never counts as an attempt.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, SystemTime};

use outhaul_target::{DeliveryError, ErrorKind, OnExhausted, TargetOptions, Verdict};
use tokio::time::Instant;

use crate::rate::Rate;
use crate::worker::lanes::LaneKey;

/// So many retries in a row throttle a target.
const THROTTLE_AFTER: usize = 10;
/// One attempt in so many is of an entry that failed before, where there are others.
const AGAIN_EVERY: u64 = 10;
/// While some lanes are stuck, one attempt in so many is of a lane that is likely to be good: two in each row that would
/// throttle, and not so many that the good ones are used up before the others are tried.
const LIKELY_EVERY: u64 = 5;

/// What the policy remembers of an entry.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tried {
    /// Attempts that ended in `Retry` while the target was neither held nor throttled.
    pub(crate) attempts: u32,
    /// Deliveries to the target when the entry failed last.
    failed_at: Option<u64>,
    pub(crate) suspect: bool,
    /// The one notice that it is exhausted was given.
    noticed: bool,
}

impl Tried {
    /// An entry that was tried in an earlier life of the process.
    pub(crate) fn again(attempts: u32) -> Self {
        Self { attempts, ..Self::default() }
    }

    /// Whether it never failed.
    pub(crate) fn is_fresh(&self) -> bool {
        self.attempts == 0 && self.failed_at.is_none()
    }

    /// Whether it failed while others did not. What failed as the trial of an outage says nothing about the entry:
    /// after a long one everything has.
    pub(crate) fn is_doubtful(&self) -> bool {
        self.attempts > 0 || self.suspect
    }
}

/// What becomes of an entry after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// It stays first in its lane and is sent when the target takes something.
    Again,
    /// Its lane waits this long; the attempt counted.
    Wait(Duration),
    /// As `Wait`, and it has used up its attempts or age: worth one notice.
    WaitExhausted(Duration),
    /// It goes to the failed store: its attempts are used up.
    Exhausted,
    /// It goes to the failed store: it is too old.
    Expired,
    /// It goes to the failed store: the receiver will never take it.
    Reject,
}

/// Why nothing is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The target is accused.
    Held,
    /// It fails everything for now, or asked for a pause.
    Throttled,
    /// It refuses everything.
    Rejects,
    /// The failed store takes nothing.
    FailedStore,
}

#[derive(Debug, Clone)]
pub(crate) struct Hold {
    pub(crate) cause: Cause,
    /// A machine-readable word for health.
    pub(crate) reason: &'static str,
    pub(crate) until: Instant,
    step: u32,
    /// An entry that had never failed before failed in this hold, or a pause was asked for.
    fresh_failed: bool,
}

/// Which of the lanes that can send come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pick {
    /// Those with the oldest entries that never failed.
    Oldest,
    /// Those that were delivered to, then as `Oldest`.
    Proven,
    /// Those that were delivered to, then the youngest entries that never failed.
    Far,
    /// The youngest entries that never failed and were admitted after this, then as `Oldest`.
    Since(SystemTime),
    /// One whose first entry failed before, in turn.
    Again,
}

/// What may be sent now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Permission {
    /// Up to so many attempts at the same time.
    Attempts(usize),
    /// One, alone, of an entry that is not accused.
    Trial,
    /// Nothing before the instant.
    Nothing(Instant),
}

#[derive(Debug)]
pub(crate) struct Policy {
    options: TargetOptions,
    reject_hold: Option<u32>,
    batch_max: usize,
    random: fastrand::Rng,
    hold: Option<Hold>,
    /// Entries that were accused since the last delivery.
    accused: HashSet<u64>,
    deliveries: u64,
    /// Attempts allowed while ramping up.
    ramp: usize,
    /// Events in a batch, smaller while a failing batch is taken apart.
    batch: usize,
    retries: VecDeque<LaneKey>,
    /// When they began.
    row_since: SystemTime,
    rejects: VecDeque<LaneKey>,
    picks: u64,
    /// The last lane that was found to be good came from the far end of the queue.
    far_is_good: bool,
    rate: Rate,
    /// Since when a batch that is not full waits for more.
    lingering: Option<Instant>,
}

impl Policy {
    pub(crate) fn new(
        options: TargetOptions,
        reject_hold: Option<u32>,
        batch_max: usize,
        random: fastrand::Rng,
    ) -> Self {
        let ramp = options.in_flight.get();
        let rate = Rate::new(options.rate, options.rate_bytes);
        Self {
            options,
            reject_hold,
            batch_max,
            random,
            hold: None,
            accused: HashSet::new(),
            deliveries: 0,
            ramp,
            batch: batch_max,
            retries: VecDeque::new(),
            row_since: SystemTime::UNIX_EPOCH,
            rejects: VecDeque::new(),
            picks: 0,
            far_is_good: false,
            rate,
            lingering: None,
        }
    }

    pub(crate) fn permission(&self, now: Instant) -> Permission {
        match &self.hold {
            None => Permission::Attempts(self.ramp),
            Some(hold) if hold.until <= now => Permission::Trial,
            Some(hold) => Permission::Nothing(hold.until),
        }
    }

    pub(crate) fn hold(&self) -> Option<&Hold> {
        self.hold.as_ref()
    }

    /// Events that one attempt may have now; none before the instant, because of the rate.
    pub(crate) fn batch(&self, now: Instant) -> Result<usize, Instant> {
        self.rate.room(now).map(|room| self.batch.min(room))
    }

    /// An attempt of so many events and bytes begins.
    pub(crate) fn sent(&mut self, now: Instant, events: usize, bytes: usize) {
        self.rate.take(now, events, bytes);
        self.lingering = None;
    }

    /// Whether a batch that is not full waits for more; if so, until when.
    pub(crate) fn linger(&mut self, now: Instant, full: bool) -> Option<Instant> {
        let linger = self.options.linger.filter(|_| !full)?;
        let until = *self.lingering.get_or_insert(now) + linger;
        (until > now).then_some(until)
    }

    /// Which lanes the next attempt takes; `youngest` is when the youngest entry was admitted that can be sent and never
    /// failed. Every other one of a row that fails is of what came since it began, which may be good: else a heap of bad
    /// ones throttles a target that takes the others.
    pub(crate) fn pick(&mut self, stuck: bool, now: SystemTime, youngest: Option<SystemTime>) -> Pick {
        self.picks += 1;
        if self.retries.is_empty() {
            self.row_since = now;
        }
        if self.picks % AGAIN_EVERY == AGAIN_EVERY - 1 {
            Pick::Again
        } else if self.is_uneven(stuck) && self.picks.is_multiple_of(LIKELY_EVERY) {
            if self.far_is_good { Pick::Far } else { Pick::Proven }
        } else if self.picks % 2 == 1
            && !self.retries.is_empty()
            && youngest.is_some_and(|at| at > self.row_since)
        {
            Pick::Since(self.row_since)
        } else {
            Pick::Oldest
        }
    }

    /// Whether some entries fail while others do not.
    fn is_uneven(&self, stuck: bool) -> bool {
        self.hold.is_none() && (stuck || !self.retries.is_empty())
    }

    /// Whether the far end of the queue is worth looking at.
    pub(crate) fn looks_far(&self, stuck: bool) -> bool {
        self.far_is_good && self.is_uneven(stuck)
    }

    /// How far a trial looks ahead for an entry that never failed: further each time.
    pub(crate) fn look_ahead(&self) -> usize {
        match self.hold.as_ref().map_or(0, |hold| hold.step) {
            0 | 1 => 1 << 16,
            _ => usize::MAX,
        }
    }

    /// Every other trial takes the youngest: among many bad old entries the good ones are found soon.
    pub(crate) fn trial_takes_youngest(&self) -> bool {
        self.hold.as_ref().is_some_and(|hold| hold.step % 2 == 1)
    }

    /// Whether an entry that never failed may be tried before the backoff has passed.
    pub(crate) fn allows_early_trial(&self) -> bool {
        let early = |hold: &Hold| !hold.fresh_failed && matches!(hold.cause, Cause::Held | Cause::Throttled);
        self.hold.as_ref().is_some_and(early)
    }

    pub(crate) fn is_accused(&self, sequence: u64) -> bool {
        self.accused.contains(&sequence)
    }

    /// All that wait were accused: the next trial may take any of them.
    pub(crate) fn forget_accused(&mut self) {
        self.accused.clear();
    }

    /// An entry was delivered, from the `far` end of the queue or not; true when that ends a hold. `proven`: so was the
    /// one before it in its lane, which says nothing about where others are good.
    pub(crate) fn delivered(&mut self, far: bool, proven: bool) -> bool {
        if far || !proven {
            self.far_is_good = far;
        }
        self.deliveries += 1;
        self.retries.clear();
        self.rejects.clear();
        self.accused.clear();
        if self.hold.take().is_some() {
            self.ramp = 1;
            return true;
        }
        self.ramp = (self.ramp * 2).min(self.options.in_flight.get());
        false
    }

    /// A whole batch was delivered.
    pub(crate) fn batch_delivered(&mut self) {
        self.batch = (self.batch * 2).min(self.batch_max);
    }

    /// A batch of several failed as a whole: smaller ones find out who is to blame.
    pub(crate) fn batch_failed(&mut self, length: usize) {
        self.batch = self.batch.min(length / 2).max(1);
    }

    /// One entry failed. `age` counts from its admission; `mixed`: others of its batch were delivered.
    pub(crate) fn failed(
        &mut self,
        now: Instant,
        (sequence, lane): (u64, &LaneKey),
        tried: &mut Tried,
        age: Duration,
        (trial, mixed): (bool, bool),
        error: &DeliveryError,
    ) -> Step {
        if error.verdict() == Verdict::Reject {
            return self.reject(now, (sequence, lane), trial);
        }
        if error.kind() == ErrorKind::Skipped {
            return Step::Again;
        }
        let fresh = tried.is_fresh();
        let others = tried.failed_at.replace(self.deliveries).is_some_and(|at| self.deliveries > at);
        tried.suspect = others;
        let step = match (error.verdict(), others && !trial) {
            (_, true) => self.wait(tried),
            (Verdict::Hold, _) => self.accuse(now, sequence, fresh, trial, error),
            (Verdict::Retry | Verdict::Reject, _) => {
                self.retry(now, (sequence, lane), (tried, fresh), (trial, mixed), error)
            }
        };
        match step {
            Step::Wait(_) => self.exhausted(step, tried, age),
            other => other,
        }
    }

    /// The worker could not put entries into the failed store.
    pub(crate) fn failed_store_refused(&mut self, now: Instant, reason: &'static str) {
        match self.hold.as_ref().map(|hold| hold.cause) {
            None => self.begin(now, Cause::FailedStore, reason, true, None),
            Some(Cause::FailedStore) => self.trial_failed(now),
            // It says nothing about the target, whose trials go on.
            Some(Cause::Held | Cause::Throttled | Cause::Rejects) => {}
        }
    }

    /// The failed store takes entries again.
    pub(crate) fn failed_store_accepted(&mut self) {
        if self.hold.as_ref().is_some_and(|hold| hold.cause == Cause::FailedStore) {
            self.hold = None;
        }
    }

    /// A trial ended without a delivery: the next backoff.
    pub(crate) fn trial_failed(&mut self, now: Instant) {
        let Some(hold) = &mut self.hold else { return };
        hold.step = hold.step.saturating_add(1);
        let wait = trial_wait(&self.options, hold.step, &mut self.random);
        hold.until = now + wait;
    }

    /// Nothing waits, and a probe was good: the next entry is a trial at once. Only its delivery ends the hold.
    pub(crate) fn probe_succeeded(&mut self, now: Instant) {
        if let Some(hold) = &mut self.hold {
            hold.until = now;
        }
    }

    /// An old entry that waits in front of its lane, though nothing failed just now.
    pub(crate) fn expires(&self, age: Duration) -> bool {
        self.options.on_exhausted == OnExhausted::Fail && self.options.age_max.is_some_and(|max| age >= max)
    }

    fn accuse(
        &mut self,
        now: Instant,
        sequence: u64,
        fresh: bool,
        trial: bool,
        error: &DeliveryError,
    ) -> Step {
        self.accused.insert(sequence);
        if trial {
            self.fresh_failed(fresh);
            self.trial_failed(now);
        } else if self.hold.is_none() {
            self.begin(now, Cause::Held, error.kind().reason(), fresh, None);
        }
        Step::Again
    }

    fn retry(
        &mut self,
        now: Instant,
        (sequence, lane): (u64, &LaneKey),
        (tried, fresh): (&mut Tried, bool),
        (trial, mixed): (bool, bool),
        error: &DeliveryError,
    ) -> Step {
        let pauses = matches!(error.kind(), ErrorKind::Throttled | ErrorKind::Overloaded);
        let most = self.options.retry_after_max;
        let pause = error.retry_after().filter(|_| pauses).map(|after| after.min(most));
        if trial {
            self.accused.insert(sequence);
            self.fresh_failed(fresh || pause.is_some());
            self.trial_failed(now);
            if let (Some(hold), Some(pause)) = (&mut self.hold, pause) {
                hold.until = hold.until.max(now + pause);
            }
            return Step::Again;
        }
        if self.hold.is_some() {
            return Step::Again;
        }
        if pause.is_some() {
            self.accused.insert(sequence);
            self.begin(now, Cause::Throttled, "throttled", fresh, pause);
            return Step::Again;
        }
        // With a delivery in the same batch it is no row.
        if mixed {
            return self.wait(tried);
        }
        remember(&mut self.retries, lane, THROTTLE_AFTER);
        if self.retries.len() == THROTTLE_AFTER && several(&self.retries) {
            self.begin(now, Cause::Throttled, "throttled", fresh, None);
        }
        self.wait(tried)
    }

    fn fresh_failed(&mut self, fresh: bool) {
        if let Some(hold) = &mut self.hold {
            hold.fresh_failed |= fresh;
        }
    }

    fn reject(&mut self, now: Instant, (sequence, lane): (u64, &LaneKey), trial: bool) -> Step {
        if trial && let Some(hold) = &mut self.hold {
            if hold.cause == Cause::Rejects {
                // The next trial is of another one: this one may be bad by itself.
                self.accused.insert(sequence);
                self.trial_failed(now);
                return Step::Again;
            }
            // The receiver answers: the next entry is tried at once.
            hold.until = now;
        }
        if let Some(max) = self.reject_hold {
            remember(&mut self.rejects, lane, max as usize);
            if (self.hold.is_none() || trial) && self.rejects.len() == max as usize && several(&self.rejects)
            {
                self.begin(now, Cause::Rejects, "request_failed", true, None);
            }
        }
        Step::Reject
    }

    fn begin(
        &mut self,
        now: Instant,
        cause: Cause,
        reason: &'static str,
        fresh: bool,
        pause: Option<Duration>,
    ) {
        let wait = trial_wait(&self.options, 0, &mut self.random);
        let until = now + pause.map_or(wait, |pause| pause.max(wait));
        let fresh_failed = fresh || pause.is_some();
        self.hold = Some(Hold { cause, reason, until, step: 0, fresh_failed });
        self.retries.clear();
        self.rejects.clear();
    }

    /// Counts the attempt and says how long its lane waits.
    fn wait(&mut self, tried: &mut Tried) -> Step {
        tried.attempts = tried.attempts.saturating_add(1);
        let step = doubled(self.options.backoff, tried.attempts - 1, self.options.backoff_max);
        Step::Wait(jitter(step, 0.1, &mut self.random))
    }

    fn exhausted(&mut self, step: Step, tried: &mut Tried, age: Duration) -> Step {
        let attempts = self.options.attempts_max.is_some_and(|max| tried.attempts >= max.get());
        let old = self.options.age_max.is_some_and(|max| age >= max);
        match (attempts || old, self.options.on_exhausted) {
            (false, _) => step,
            (true, OnExhausted::Fail) if attempts => Step::Exhausted,
            (true, OnExhausted::Fail) => Step::Expired,
            (true, OnExhausted::Keep) => {
                let wait = jitter(self.options.backoff_max, 0.5, &mut self.random);
                match std::mem::replace(&mut tried.noticed, true) {
                    false => Step::WaitExhausted(wait),
                    true => Step::Wait(wait),
                }
            }
        }
    }
}

fn trial_wait(options: &TargetOptions, step: u32, random: &mut fastrand::Rng) -> Duration {
    jitter(doubled(options.trial_backoff, step, options.trial_backoff_max), 0.5, random)
}

fn doubled(first: Duration, times: u32, max: Duration) -> Duration {
    first.saturating_mul(1_u32.checked_shl(times).unwrap_or(u32::MAX)).min(max)
}

/// Anything between a part of the step and the whole.
fn jitter(step: Duration, floor: f64, random: &mut fastrand::Rng) -> Duration {
    step.mul_f64(floor + (1.0 - floor) * random.f64())
}

fn remember(row: &mut VecDeque<LaneKey>, lane: &LaneKey, max: usize) {
    if row.len() == max {
        row.pop_front();
    }
    row.push_back(*lane);
}

fn several(row: &VecDeque<LaneKey>) -> bool {
    row.iter().any(|lane| *lane != row[0])
}
