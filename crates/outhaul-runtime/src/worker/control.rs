//! What a person asks of a worker: [`Command`]s, and what the worker keeps to answer them.
//!
//! A command is served between two steps of the worker, so it never meets an entry half way. An entry that is with the
//! target, or on its way to the failed store, is not taken away from under it: whoever wants it gone is told when its
//! verdict is there.

use std::collections::{BTreeMap, HashMap, HashSet};

use outhaul_store::event::TargetName;
use outhaul_store::{Entry, Outcome, Place, RetryState, Settlement, StoreError};
use outhaul_target::DeliveryError;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Worker;
use super::lanes::LaneKey;
use crate::notice::Notice;

/// Entries whose last error is remembered for a listing.
const ERRORS_MAX: usize = 4096;

/// Something that a person asks for. Whoever asked may be gone when it is answered.
#[derive(Debug)]
pub(crate) enum Command {
    /// Sends nothing more; what is in flight ends.
    Pause(oneshot::Sender<()>),
    /// Sends again.
    Resume(oneshot::Sender<()>),
    /// The next trial is due now. Answers whether the target waited for one.
    Trial(oneshot::Sender<bool>),
    /// The entry's schedule is forgotten.
    Retry(u64, oneshot::Sender<Result<Retried, StoreError>>),
    /// The entry leaves its queue, if it is not delivered first.
    Discard(u64, oneshot::Sender<Result<Gone, StoreError>>),
    /// Failed entries were requeued or discarded: a lane that waited for a person may go on.
    Reopen(LaneKey, oneshot::Sender<Result<(), StoreError>>),
    /// What is known of these entries beside what is on disk.
    Know(Vec<u64>, oneshot::Sender<HashMap<u64, Known>>),
}

/// What came of [`Command::Retry`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retried {
    /// It is tried as soon as its target takes something.
    Cleared,
    /// It is with its target now, so nothing was to be done.
    InFlight,
    /// It is not in the queue.
    NotFound,
}

/// How an entry that was to be discarded left its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gone {
    /// It was removed.
    Discarded,
    /// Its attempt was successful after all.
    Delivered,
    /// It went to the failed store.
    Failed,
    /// It is not in the queue.
    NotFound,
}

/// What a worker knows of an entry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) in_flight: bool,
    /// None: what is on disk is all there is to know.
    pub(crate) attempts: Option<u32>,
    pub(crate) suspect: bool,
    pub(crate) next_attempt: Option<Instant>,
    pub(crate) last_error: Option<String>,
}

/// What a worker keeps for its commands.
#[derive(Debug, Default)]
pub(super) struct Control {
    pub(super) paused: bool,
    /// On their way to the failed store.
    moving: HashSet<u64>,
    /// To be removed when their verdict is there, and who waits for that.
    discards: HashMap<u64, Vec<oneshot::Sender<Result<Gone, StoreError>>>>,
    errors: BTreeMap<u64, String>,
}

impl Control {
    pub(super) fn new(paused: bool) -> Self {
        Self { paused, ..Self::default() }
    }

    /// An entry is on its way to the failed store.
    pub(super) fn moving(&mut self, sequence: u64) {
        self.moving.insert(sequence);
    }

    /// Remembers what was said about an entry last.
    pub(super) fn failed(&mut self, sequence: u64, error: &DeliveryError) {
        if self.errors.len() >= ERRORS_MAX && !self.errors.contains_key(&sequence) {
            // The newest go: the oldest entries are those that people ask about.
            self.errors.pop_last();
        }
        self.errors.insert(sequence, error.detail());
    }

    /// Takes the answers for those who waited for the end of these entries.
    pub(super) fn left(&mut self, settlements: &[Settlement]) -> Vec<Answer> {
        let mut answers = Vec::new();
        for settlement in settlements {
            let gone = match settlement.outcome {
                Outcome::Delivered => Gone::Delivered,
                Outcome::Failed => Gone::Failed,
                Outcome::Discarded => Gone::Discarded,
                Outcome::Retry(_) => continue,
            };
            let sequence = settlement.place.uid.sequence;
            self.errors.remove(&sequence);
            self.moving.remove(&sequence);
            let asked = self.discards.remove(&sequence).unwrap_or_default();
            answers.extend(asked.into_iter().map(|reply| Answer { reply, gone }));
        }
        answers
    }
}

/// Somebody who is told when the settlement has counted.
pub(super) struct Answer {
    reply: oneshot::Sender<Result<Gone, StoreError>>,
    gone: Gone,
}

impl Answer {
    pub(super) fn tell(self) {
        reply(self.reply, Ok(self.gone));
    }
}

impl Worker {
    pub(super) async fn command(&mut self, command: Command, now: Instant) -> Result<(), StoreError> {
        self.show_work(now);
        match command {
            Command::Pause(asked) => {
                self.control.paused = true;
                // Whoever asked may look at once.
                self.show_state(now);
                reply(asked, ());
            }
            Command::Resume(asked) => {
                self.control.paused = false;
                if !self.reached && self.running == 0 {
                    self.probe(false);
                }
                self.show_state(now);
                reply(asked, ());
            }
            Command::Trial(asked) => {
                let waits = self.policy.hold().is_some();
                self.policy.probe_succeeded(now);
                self.probed = false;
                reply(asked, waits);
            }
            Command::Retry(sequence, asked) => {
                let done = self.retry_now(sequence).await;
                self.settle().await?;
                reply(asked, done);
            }
            Command::Discard(sequence, asked) => self.discard(sequence, asked).await?,
            Command::Reopen(lane, asked) => {
                let done = self.reopen_lane(lane).await;
                reply(asked, done);
            }
            Command::Know(sequences, asked) => {
                let known =
                    sequences.into_iter().filter_map(|sequence| Some((sequence, self.known(sequence)?)));
                reply(asked, known.collect());
            }
        }
        Ok(())
    }

    async fn retry_now(&mut self, sequence: u64) -> Result<Retried, StoreError> {
        if self.flying.contains(&sequence) {
            return Ok(Retried::InFlight);
        }
        let (place, lane, attempts) = match self.lanes.get(sequence) {
            Some(entry) => (entry.place.clone(), entry.lane, entry.history.tried.attempts),
            None => {
                let Some(entry) = self.find(sequence).await? else { return Ok(Retried::NotFound) };
                let lane = lane(&entry);
                (entry.place, lane, entry.retry.map_or(0, |retry| retry.attempts))
            }
        };
        if attempts > 0 {
            let outcome = Outcome::Retry(RetryState { attempts, not_before: self.setup.log.now() });
            self.settlements.push(Settlement { place, outcome });
        }
        if self.lanes.first(lane) == Some(sequence) {
            self.lanes.hurry(lane);
        }
        Ok(Retried::Cleared)
    }

    async fn discard(
        &mut self,
        sequence: u64,
        asked: oneshot::Sender<Result<Gone, StoreError>>,
    ) -> Result<(), StoreError> {
        if let Some(failure) = self.setup.log.failure() {
            // What was delivered still stands there, and nothing can be removed.
            reply(asked, Err(failure));
            return Ok(());
        }
        if self.flying.contains(&sequence) || self.control.moving.contains(&sequence) {
            self.control.discards.entry(sequence).or_default().push(asked);
            return Ok(());
        }
        let place = match self.lanes.get(sequence) {
            Some(entry) => {
                let lane = entry.lane;
                let Some(entry) = self.lanes.remove(sequence) else {
                    self.control.discards.entry(sequence).or_default().push(asked);
                    return Ok(());
                };
                if self.closed.contains(&lane) {
                    self.lanes.close_idle(lane);
                }
                entry.place
            }
            None => match self.find(sequence).await {
                Ok(Some(entry)) => {
                    let lane = lane(&entry);
                    if self.lanes.first(lane) == Some(sequence) {
                        // It is looked for, and found to be gone.
                        self.lanes.hurry(lane);
                    }
                    entry.place
                }
                Ok(None) => {
                    reply(asked, Ok(Gone::NotFound));
                    return Ok(());
                }
                Err(error) => {
                    reply(asked, Err(error));
                    return Ok(());
                }
            },
        };
        self.control.discards.entry(sequence).or_default().push(asked);
        self.drop_entry(place);
        self.settle().await
    }

    fn drop_entry(&mut self, place: Place) {
        self.tell(Notice::Discarded { uid: place.uid.clone() });
        self.settlements.push(Settlement { place, outcome: Outcome::Discarded });
    }

    /// An attempt failed at an entry that somebody wants to be gone: true, and it is.
    pub(super) fn discard_after_verdict(&mut self, sequence: u64, trial: bool, now: Instant) -> bool {
        if !self.control.discards.contains_key(&sequence) {
            return false;
        }
        let Some(entry) = self.lanes.end(sequence) else { return false };
        if trial {
            self.policy.trial_failed(now);
        }
        self.drop_entry(entry.place);
        true
    }

    /// A person decided about a rejected entry: its lane goes on, unless another one of its pid is there.
    async fn reopen_lane(&mut self, lane: LaneKey) -> Result<(), StoreError> {
        if !self.closed.contains(&lane) {
            return Ok(());
        }
        self.closed = self.closed_lanes().await?;
        if !self.closed.contains(&lane) {
            self.lanes.open(lane);
        }
        Ok(())
    }

    /// Reads one entry that waits.
    async fn find(&self, sequence: u64) -> Result<Option<Entry>, StoreError> {
        find(&*self.setup.lease, &self.setup.name, sequence).await
    }

    fn known(&self, sequence: u64) -> Option<Known> {
        let entry = self.lanes.get(sequence);
        let last_error = self.control.errors.get(&sequence).cloned();
        if entry.is_none() && last_error.is_none() {
            return None;
        }
        let history = entry.map(|entry| &entry.history);
        Some(Known {
            in_flight: self.flying.contains(&sequence),
            attempts: history.map(|history| history.tried.attempts),
            suspect: history.is_some_and(|history| history.tried.suspect),
            next_attempt: entry.and_then(|entry| self.lanes.waits_until(entry.lane, sequence)),
            last_error,
        })
    }
}

/// Reads one entry that waits.
pub(crate) async fn find(
    lease: &dyn outhaul_store::Lease,
    queue: &TargetName,
    sequence: u64,
) -> Result<Option<Entry>, StoreError> {
    let read = lease.read(queue, sequence.saturating_sub(1), 1, 1).await?;
    Ok(read.entries.into_iter().next().filter(|entry| entry.place.uid.sequence == sequence))
}

fn lane(entry: &Entry) -> LaneKey {
    let sequence = entry.place.uid.sequence;
    entry.event.as_ref().map_or(LaneKey::Alone(sequence), |event| LaneKey::of(event, sequence))
}

/// Whoever asked may not wait for the answer any more: fine.
fn reply<T>(asked: oneshot::Sender<T>, answer: T) {
    drop(asked.send(answer));
}
