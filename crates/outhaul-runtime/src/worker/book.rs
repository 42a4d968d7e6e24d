//! Booking: what an attempt, a probe or a move came to.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use outhaul_store::{AppendError, Outcome, RetryState, Rule, Settlement, StoreError};
use outhaul_target::{DeliveryError, OnReject, Verdict};
use tokio::time::Instant;

use super::lanes::LaneKey;
use super::moves::Move;
use super::{Done, Ended, MOVE_BACKOFF, Worker};
use crate::notice::Notice;
use crate::policy::Step;

impl Worker {
    pub(super) async fn done(
        &mut self,
        done: Result<Done, tokio::task::JoinError>,
    ) -> Result<(), StoreError> {
        // Panics are caught inside of the tasks; a cancelled one was ours.
        let Ok(done) = done else { return Ok(()) };
        let now = Instant::now();
        match done {
            Done::Delivered { sequences, trial, generation, results, ended } => {
                self.stale -= usize::from(generation < self.generation);
                self.landed(&sequences, trial);
                match ended {
                    Ended::Answered => {}
                    Ended::Abandoned => {
                        tracing::warn!(target = %self.setup.name, "an attempt outlived twice its deadline and was dropped");
                        self.abandoned += sequences.len() as u64;
                    }
                    Ended::Panicked => {
                        tracing::error!(target = %self.setup.name, "the target panicked: a defect of its code");
                        self.panics += 1;
                    }
                }
                // Whatever came of it, the process is still there.
                self.suspects.retain(|sequence, _| !sequences.contains(sequence));
                self.reached = true;
                self.delivered(now, &sequences, trial, results);
                Ok(())
            }
            Done::Unsent { sequences, trial } => {
                self.landed(&sequences, trial);
                self.lanes.untake(sequences.len());
                Ok(())
            }
            Done::Probed { trial, result } => {
                self.trial_running &= !trial;
                self.probe_done(now, trial, result);
                Ok(())
            }
            Done::Moved { moves, results } => self.moved(now, moves, results).await,
        }
    }

    fn landed(&mut self, sequences: &[u64], trial: bool) {
        self.running -= 1;
        self.trial_running &= !trial;
        self.noted = false;
        for sequence in sequences {
            self.flying.remove(sequence);
        }
    }

    fn probe_done(&mut self, now: Instant, trial: bool, result: Result<(), DeliveryError>) {
        match result {
            Ok(()) => {
                self.reached = true;
                self.last_good |= trial || self.last_error.is_none();
                self.last_reason = "reachable";
                self.probed = trial;
                if trial {
                    self.policy.probe_succeeded(now);
                }
            }
            Err(error) => {
                self.note(&error);
                if trial {
                    self.policy.trial_failed(now);
                }
            }
        }
    }

    /// Books the results of one attempt.
    fn delivered(
        &mut self,
        now: Instant,
        sequences: &[u64],
        trial: bool,
        results: Vec<Result<(), DeliveryError>>,
    ) {
        let accusing = |result: &Result<(), DeliveryError>| {
            result.as_ref().is_err_and(|error| error.verdict() != Verdict::Reject)
        };
        let mixed = sequences.len() > 1 && results.iter().any(Result::is_ok);
        let whole = sequences.len() > 1 && results.iter().all(accusing);
        if whole {
            self.policy.batch_failed(sequences.len());
            for sequence in sequences {
                if let Some(entry) = self.lanes.get_mut(*sequence) {
                    entry.history.together = (sequences.len() as u32 / 2).max(1);
                }
            }
        } else if results.iter().all(Result::is_ok) {
            self.policy.batch_delivered();
        }
        // What becomes of each lane that was taken: None, it goes on.
        let mut lanes: BTreeMap<LaneKey, Option<Duration>> = BTreeMap::new();
        let mut blocked: HashSet<LaneKey> = HashSet::new();
        let mut moving: HashSet<LaneKey> = HashSet::new();
        for (&sequence, result) in sequences.iter().zip(results) {
            let Some(lane) = self.lanes.get(sequence).map(|entry| entry.lane) else { continue };
            let action = lanes.entry(lane).or_default();
            match result {
                Ok(()) => self.book_delivery(sequence),
                Err(error) => {
                    self.note(&error);
                    self.control.failed(sequence, &error);
                    if self.discard_after_verdict(sequence, trial, now) {
                        continue;
                    }
                    if whole || blocked.contains(&lane) {
                        self.retried += 1;
                        self.lanes.untake(1);
                        blocked.insert(lane);
                        continue;
                    }
                    match self.book_failure(now, sequence, &lane, (trial, mixed), &error) {
                        Some(wait) => {
                            *action = wait;
                            blocked.insert(lane);
                        }
                        None => {
                            moving.insert(lane);
                        }
                    }
                }
            }
        }
        for (lane, wait) in lanes {
            match wait {
                // Its move ends first.
                _ if moving.contains(&lane) => {}
                Some(wait) => self.lanes.wait(lane, now + wait),
                None => self.lanes.rest(lane),
            }
        }
    }

    fn book_delivery(&mut self, sequence: u64) {
        let (far, lane) =
            self.lanes.get(sequence).map_or((false, None), |entry| (entry.far, Some(entry.lane)));
        let proven = lane.is_some_and(|lane| self.lanes.is_proven(lane));
        if self.policy.delivered(far, proven) {
            (self.stale, self.generation) = (self.running, self.generation + 1);
            tracing::info!(target = %self.setup.name, "the target takes events again");
            self.tell(Notice::Resumed { target: self.setup.name.clone() });
        }
        self.last_good = true;
        self.last_success = Some(self.setup.log.now());
        self.last_reason = "reachable";
        let Some(entry) = self.lanes.end(sequence) else { return };
        self.lanes.proven(entry.lane);
        if let LaneKey::Pid(hash) = entry.lane {
            self.setup.failed.delivered(&self.setup.name, hash);
        }
        if self.setup.notices.receiver_count() > 0 {
            self.tell(Notice::Delivered { uid: entry.place.uid.clone(), dedup_id: entry.dedup_id });
        }
        self.settlements.push(Settlement { place: entry.place, outcome: Outcome::Delivered });
    }

    /// Returns how long the lane waits (None inside: not at all), or None if the entry is on its way to the failed
    /// store.
    fn book_failure(
        &mut self,
        now: Instant,
        sequence: u64,
        lane: &LaneKey,
        (trial, mixed): (bool, bool),
        error: &DeliveryError,
    ) -> Option<Option<Duration>> {
        let held = self.policy.hold().map(|hold| hold.cause);
        let age = self.age(self.lanes.get(sequence)?.admitted_at);
        let entry = self.lanes.get_mut(sequence)?;
        let step =
            self.policy.failed(now, (sequence, lane), &mut entry.history.tried, age, (trial, mixed), error);
        let (uid, place, attempts) =
            (entry.place.uid.clone(), entry.place.clone(), entry.history.tried.attempts);
        if held != self.policy.hold().map(|hold| hold.cause) {
            self.tell_hold();
        }
        let rule = match step {
            Step::Again => None,
            Step::Wait(_) | Step::WaitExhausted(_) => None,
            Step::Exhausted => Some(Rule::Exhausted),
            Step::Expired => Some(Rule::Expired),
            Step::Reject => Some(Rule::Rejected),
        };
        if let Some(rule) = rule {
            self.give_up(sequence, rule, Some(error));
            return None;
        }
        self.retried += 1;
        self.lanes.untake(1);
        let wait = match step {
            Step::Wait(wait) | Step::WaitExhausted(wait) => Some(wait),
            _ => None,
        };
        if let Some(wait) = wait {
            let not_before = self.setup.log.now() + wait;
            let outcome = Outcome::Retry(RetryState { attempts, not_before });
            self.settlements.push(Settlement { place, outcome });
        }
        if matches!(step, Step::WaitExhausted(_)) {
            self.tell(Notice::Exhausted { uid: uid.clone(), kept: true });
        }
        self.tell(Notice::Retried { uid, kind: error.kind(), detail: error.detail(), wait });
        Some(wait)
    }

    /// Books the end of a move: only now do the entries leave their queue.
    async fn moved(
        &mut self,
        now: Instant,
        moves: Vec<Move>,
        results: Vec<Result<(), AppendError>>,
    ) -> Result<(), StoreError> {
        let (mut done, mut rest, mut refused) = (Vec::new(), Vec::new(), None);
        for (one, result) in moves.into_iter().zip(results) {
            match result {
                Ok(()) => done.push(one),
                Err(error) => {
                    refused.get_or_insert(error);
                    rest.push(one);
                }
            }
        }
        if let Some(error) = refused {
            let reason = match &error {
                AppendError::FailedStoreFull { .. } => "failed_store_full",
                AppendError::DiskFull(_) => "disk_full",
                _ => "store_failed",
            };
            tracing::error!(target = %self.setup.name, %error, "entries cannot be moved to the failed store");
            self.last_error = Some(format!("the failed store: {error}"));
            let held = self.policy.hold().is_some();
            self.policy.failed_store_refused(now, reason);
            if !held {
                self.tell_hold();
            }
            self.moves_not_before = Some(now + MOVE_BACKOFF);
            self.moves.put_back(rest);
        } else {
            self.moves.ended();
            self.policy.failed_store_accepted();
        }
        if done.is_empty() {
            return Ok(());
        }
        let mut lanes = HashMap::new();
        for one in done {
            let uid = one.place.uid.clone();
            self.lanes.end(uid.sequence).map(|entry| lanes.insert(entry.lane, one.entry.failure.rule));
            self.settlements.push(Settlement { place: one.place, outcome: Outcome::Failed });
            let detail = one.entry.failure.detail;
            tracing::debug!(%uid, rule = one.entry.failure.rule.as_str(), detail, "an entry failed");
            self.tell(match one.entry.failure.rule {
                Rule::Rejected => Notice::Rejected { uid, detail },
                Rule::Exhausted | Rule::Expired => Notice::Exhausted { uid, kept: false },
                rule => Notice::Quarantined { uid, rule },
            });
        }
        for (lane, rule) in lanes {
            let stops = self.setup.options.on_reject == OnReject::StopPid && rule == Rule::Rejected;
            if stops && matches!(lane, LaneKey::Pid(_)) {
                self.lanes.close(lane);
                self.closed.insert(lane);
            } else {
                self.lanes.rest(lane);
                if self.closed.contains(&lane) {
                    self.lanes.close_idle(lane);
                }
            }
        }
        self.settle().await
    }
}
