//! Sending: what the policy permits, as batches, trials and probes.

use std::num::NonZeroU64;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use outhaul_target::{Attempt, BatchOrder, DeliveryError, ErrorKind};
use tokio::time::Instant;

use super::{Done, Ended, Worker, panicked};
use crate::policy::Permission;

impl Worker {
    /// Sends whatever may be sent.
    pub(super) fn send(&mut self, now: Instant) {
        self.send_not_before = None;
        loop {
            match self.policy.permission(now) {
                Permission::Nothing(_) => return self.early_trial(now),
                Permission::Trial => return self.trial(now),
                Permission::Attempts(max) => {
                    let max = (max + self.stale).min(self.setup.options.in_flight.get());
                    if self.running >= max || !self.send_one(now) {
                        return;
                    }
                }
            }
        }
    }

    /// Begins one attempt; false if there is none to begin now.
    fn send_one(&mut self, now: Instant) -> bool {
        let room = match self.policy.batch(now) {
            Ok(room) => room,
            Err(until) => {
                self.send_not_before = Some(until);
                return false;
            }
        };
        if let Some(suspect) = self.next_suspect() {
            let taken = suspect.is_some_and(|sequence| self.lanes.take_any(sequence));
            if let Some(sequence) = suspect.filter(|_| taken) {
                self.attempt(now, vec![sequence], false);
            }
            return taken;
        }
        if !self.lanes.has_ready() {
            return false;
        }
        let full = self.setup.options.linger.is_none() || self.lanes.ready_entries(room) >= room;
        if let Some(until) = self.policy.linger(now, full) {
            self.send_not_before = Some(until);
            return false;
        }
        let batch = self.batch(room);
        let any = !batch.is_empty();
        if any {
            self.attempt(now, batch, false);
        }
        any
    }

    /// Takes a batch off the ready lanes.
    fn batch(&mut self, max: usize) -> Vec<u64> {
        let several = self.capabilities.batch_order == BatchOrder::Prefix;
        let of_options = self.setup.options.batch_bytes.map_or(u64::MAX, NonZeroU64::get);
        let bytes_max = self.capabilities.bytes_max.min(usize::try_from(of_options).unwrap_or(usize::MAX));
        let pick = self.policy.pick(self.lanes.stuck() > 0, self.setup.log.now(), self.lanes.youngest());
        let fronts = self.lanes.pick(pick, max);
        let (mut batch, mut bytes, mut max) = (Vec::new(), 0_usize, max);
        for first in fronts {
            let Some(entry) = self.lanes.get(first) else { continue };
            let (size, suspect) = (entry.place.bytes() as usize, entry.history.tried.suspect);
            let together = entry.history.together as usize;
            if !batch.is_empty() && (suspect || bytes + size > bytes_max || batch.len() >= max.min(together))
            {
                continue;
            }
            max = max.min(together);
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
    fn trial(&mut self, now: Instant) {
        if self.trial_running {
            return;
        }
        if let Some(suspect) = self.next_suspect() {
            if let Some(sequence) = suspect
                && self.lanes.take_any(sequence)
            {
                self.attempt(now, vec![sequence], true);
            }
            return;
        }
        let youngest = self.policy.trial_takes_youngest();
        let chosen = self.lanes.fresh(youngest, |sequence| !self.policy.is_accused(sequence));
        // Each of them in turn, suspects last: one that failed while the target flapped may be good.
        let idle = |suspects: bool, forgiven: bool| {
            self.lanes.idle(|entry| {
                let (sequence, suspect) = (entry.sequence(), entry.history.tried.suspect);
                let accused = !forgiven && self.policy.is_accused(sequence);
                suspect == suspects && !accused && !self.is_barred(sequence)
            })
        };
        let chosen = chosen.or_else(|| idle(false, false)).or_else(|| idle(true, false));
        // All were accused: all are forgiven.
        let again = chosen.is_none().then(|| idle(false, true).or_else(|| idle(true, true)));
        if again.is_some() {
            self.policy.forget_accused();
        }
        match chosen.or(again.flatten()) {
            Some(sequence) if self.lanes.take_any(sequence) => self.attempt(now, vec![sequence], true),
            _ if self.lanes.busy() == 0 && !self.probed && self.moves.is_empty() => self.probe(true),
            _ => {}
        }
    }

    /// A trial before its time, where only entries that had failed before are to blame for the hold.
    fn early_trial(&mut self, now: Instant) {
        if self.trial_running || !self.policy.allows_early_trial() || self.next_suspect().is_some() {
            return;
        }
        if let Some(fresh) = self.lanes.fresh(true, |_| true)
            && self.lanes.take_any(fresh)
        {
            self.attempt(now, vec![fresh], true);
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

    fn attempt(&mut self, now: Instant, sequences: Vec<u64>, trial: bool) {
        self.running += 1;
        self.trial_running |= trial;
        self.probed = false;
        self.flying.extend(&sequences);
        self.noted = false;
        let (at, mut bytes) = (self.setup.log.now(), 0);
        let mut attempts = Vec::with_capacity(sequences.len());
        for &sequence in &sequences {
            let Some(entry) = self.lanes.get_mut(sequence) else { continue };
            bytes += entry.place.bytes() as usize;
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
        self.policy.sent(now, sequences.len(), bytes);
        let careful = self.careful > 0;
        self.careful = self.careful.saturating_sub(1);
        let log = careful.then(|| Arc::clone(&self.setup.log));
        let (permits, mut stop) = (Arc::clone(&self.setup.permits), self.setup.stop.clone());
        let target = Arc::clone(&self.setup.target);
        let max = self.setup.options.timeout.saturating_mul(2);
        let generation = self.generation;
        self.tasks.spawn(async move {
            if let Some(log) = log {
                // Where it fails, the store says so to whoever reads or settles.
                drop(log.flush().await);
            }
            // It covers this one call: whoever waits out a backoff, or for a stop, has none.
            let permit = tokio::select! {
                biased;
                Ok(permit) = permits.acquire() => permit,
                _ = stop.wait_for(Option::is_some) => return Done::Unsent { sequences, trial },
            };
            let length = attempts.len();
            let deliver = AssertUnwindSafe(target.deliver(&attempts)).catch_unwind();
            let all = |error: fn() -> DeliveryError| (0..length).map(|_| Err(error())).collect::<Vec<_>>();
            let (mut results, ended) = match tokio::time::timeout(max, deliver).await {
                Ok(Ok(results)) => (results, Ended::Answered),
                Ok(Err(_)) => (all(panicked), Ended::Panicked),
                Err(_) => (all(|| ErrorKind::TimedOut.into()), Ended::Abandoned),
            };
            drop(permit);
            // A target that answers for fewer events than it was given has not answered for the others.
            results.resize_with(length, || Err(ErrorKind::Unknown.into()));
            Done::Delivered { sequences, trial, generation, results, ended }
        });
    }
}
