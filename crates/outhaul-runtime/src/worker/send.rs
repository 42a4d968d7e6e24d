//! Sending: what the policy permits, as batches, trials and probes.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::SystemTime;

use futures_util::FutureExt;
use outhaul_target::{Attempt, BatchOrder, DeliveryError, ErrorKind};
use tokio::time::Instant;

use super::{Done, Worker, lanes, panicked};
use crate::policy::Permission;

impl Worker {
    /// Sends whatever may be sent.
    pub(super) fn send(&mut self, now: Instant) {
        loop {
            match self.policy.permission(now) {
                Permission::Nothing(_) => return self.early_trial(),
                Permission::Trial => return self.trial(),
                Permission::Attempts(max) => {
                    let max = (max + self.stale).min(self.setup.options.in_flight.get());
                    if self.running >= max || !self.lanes.has_ready() {
                        return;
                    }
                    let batch = self.batch();
                    self.attempt(batch, false);
                }
            }
        }
    }

    /// Takes a batch off the ready lanes, those with the oldest entry first.
    fn batch(&mut self) -> Vec<u64> {
        let several = self.capabilities.batch_order == BatchOrder::Prefix;
        let (max, bytes_max) = (self.policy.batch(), self.capabilities.bytes_max);
        let fronts: Vec<u64> = self.lanes.ready().take(max).collect();
        let (mut batch, mut bytes, mut max) = (Vec::new(), 0_usize, max);
        for first in fronts {
            let Some(entry) = self.lanes.get(first) else { continue };
            let (size, suspect) = (entry.place.bytes() as usize, entry.history.tried.suspect);
            if !batch.is_empty()
                && (suspect || bytes + size > bytes_max || batch.len() >= max.min(entry.history.together))
            {
                continue;
            }
            max = max.min(entry.history.together);
            let room = if several { max - batch.len() } else { 1 };
            let taken = self.lanes.take(first, room, bytes_max - bytes.min(bytes_max));
            bytes += taken
                .iter()
                .filter_map(|s| self.lanes.get(*s))
                .map(|e| e.place.bytes() as usize)
                .sum::<usize>();
            batch.extend(taken);
            if suspect || batch.len() >= max {
                break;
            }
        }
        batch.sort_unstable();
        batch
    }

    /// One attempt, alone, of an entry that is not accused, best one that never failed; without any entry, a probe.
    fn trial(&mut self) {
        if self.trial_running {
            return;
        }
        let youngest = self.policy.trial_takes_youngest();
        let accused = |entry: &lanes::Pending| self.policy.is_accused(entry.sequence());
        let first = |usable: &dyn Fn(&lanes::Pending) -> bool| self.lanes.idle(usable, false);
        let chosen = self.lanes.idle(|entry| entry.history.tried.is_fresh() && !accused(entry), youngest);
        let chosen = chosen.or_else(|| first(&|entry| !accused(entry) && !entry.history.tried.suspect));
        // All were accused: all are forgiven.
        let again = chosen
            .is_none()
            .then(|| first(&|entry| !entry.history.tried.suspect).or_else(|| first(&|_| true)));
        if again.is_some() {
            self.policy.forget_accused();
        }
        match chosen.or(again.flatten()) {
            Some(sequence) if self.lanes.take_any(sequence) => self.attempt(vec![sequence], true),
            _ if self.lanes.busy() == 0 && !self.probed && self.moves.is_empty() => self.probe(true),
            _ => {}
        }
    }

    /// A trial before its time, where only entries that had failed before are to blame for the hold.
    fn early_trial(&mut self) {
        if self.trial_running || !self.policy.allows_early_trial() {
            return;
        }
        if let Some(fresh) = self.lanes.idle(|entry| entry.history.tried.is_fresh(), true)
            && self.lanes.take_any(fresh)
        {
            self.attempt(vec![fresh], true);
        }
    }

    pub(super) fn probe(&mut self, trial: bool) {
        self.trial_running |= trial;
        let target = Arc::clone(&self.setup.target);
        let max = self.setup.options.timeout.saturating_mul(2);
        self.tasks.spawn(async move {
            let probe = AssertUnwindSafe(target.probe()).catch_unwind();
            let result = match tokio::time::timeout(max, probe).await {
                Ok(Ok(result)) => result,
                Ok(Err(_)) => Err(panicked()),
                Err(_) => Err(ErrorKind::TimedOut.into()),
            };
            Done::Probed { trial, result }
        });
    }

    fn attempt(&mut self, sequences: Vec<u64>, trial: bool) {
        self.running += 1;
        self.trial_running |= trial;
        self.probed = false;
        self.control.sent(&sequences);
        let at = SystemTime::now();
        let mut attempts = Vec::with_capacity(sequences.len());
        for &sequence in &sequences {
            let Some(entry) = self.lanes.get_mut(sequence) else { continue };
            entry.history.sent = entry.history.sent.saturating_add(1);
            entry.history.first_attempt.get_or_insert(at);
            entry.history.last_attempt = Some(at);
            attempts.push(Attempt {
                event: Arc::clone(&entry.event),
                dedup_id: entry.dedup_id,
                uid: entry.place.uid.clone(),
                version: sequence,
                number: entry.history.tried.attempts.max(entry.history.sent - 1).saturating_add(1),
            });
        }
        let target = Arc::clone(&self.setup.target);
        let max = self.setup.options.timeout.saturating_mul(2);
        let generation = self.generation;
        self.tasks.spawn(async move {
            let length = attempts.len();
            let deliver = AssertUnwindSafe(target.deliver(&attempts)).catch_unwind();
            let all = |error: fn() -> DeliveryError| (0..length).map(|_| Err(error())).collect::<Vec<_>>();
            let (mut results, abandoned) = match tokio::time::timeout(max, deliver).await {
                Ok(Ok(results)) => (results, false),
                Ok(Err(_)) => (all(panicked), false),
                Err(_) => (all(|| ErrorKind::TimedOut.into()), true),
            };
            // A target that answers for fewer events than it was given has not answered for the others.
            results.resize_with(length, || Err(ErrorKind::Unknown.into()));
            Done::Delivered { sequences, trial, generation, results, abandoned }
        });
    }
}
