//! Entries on their way to the failed store. The copy is durable before an entry leaves its queue; a move that fails
//! is tried again as it is, so nothing is delivered or told twice because of it.

use std::sync::Arc;
use std::time::SystemTime;

use outhaul_store::{Entry, FailedEntry, Failure, Place, Rule, unix_millis};
use outhaul_target::DeliveryError;

use super::lanes::Pending;

/// One entry and its copy.
pub(crate) struct Move {
    pub(crate) place: Place,
    pub(crate) entry: FailedEntry,
}

/// What is to be moved; one batch is under way at a time.
#[derive(Default)]
pub(crate) struct Moves {
    pending: Vec<Move>,
    under_way: bool,
    overflowing: u64,
}

impl Moves {
    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty() && !self.under_way
    }

    /// Entries that are being moved because the queue was full: they still count in it.
    pub(crate) fn overflowing(&self) -> u64 {
        self.overflowing
    }

    pub(crate) fn add(
        &mut self,
        pending: &Pending,
        rule: Rule,
        error: Option<&DeliveryError>,
        now: SystemTime,
    ) {
        self.overflowing += u64::from(rule == Rule::Overflow);
        let history = &pending.history;
        let failure = Failure {
            rule,
            class: error.map_or(rule.as_str().to_owned(), |error| snake_case(&format!("{:?}", error.kind()))),
            detail: error.map_or_else(String::new, DeliveryError::detail),
            attempts: history.tried.attempts.max(history.sent),
            first_attempt_ms: millis(history.first_attempt),
            last_attempt_ms: millis(history.last_attempt),
            failed_ms: unix_millis(now),
        };
        self.pending.push(Move {
            place: pending.place.clone(),
            entry: FailedEntry {
                uid: pending.place.uid.clone(),
                dedup_id: pending.dedup_id,
                event: Arc::clone(&pending.event),
                admitted_ms: unix_millis(pending.admitted_at),
                failure,
            },
        });
    }

    /// Of an entry that is not to be sent: it is unreadable, or suspected of having crashed the process.
    /// False: it cannot be, and stays where it is.
    pub(crate) fn add_unsent(&mut self, entry: Entry, now: SystemTime) -> bool {
        let crashes = entry.crashes;
        let copy = match &entry.event {
            Err(unreadable) => FailedEntry::unreadable(&entry, unreadable, now),
            Ok(event) => {
                let rule = Rule::CrashSuspect;
                let failure = Failure {
                    rule,
                    class: rule.as_str().to_owned(),
                    detail: format!("the process ended {crashes} times while it was being delivered"),
                    attempts: entry.retry.map_or(0, |retry| retry.attempts).max(crashes),
                    first_attempt_ms: None,
                    last_attempt_ms: None,
                    failed_ms: unix_millis(now),
                };
                let (uid, admitted_ms) = (entry.place.uid.clone(), unix_millis(entry.admitted_at));
                let (dedup_id, event) = (entry.dedup_id, Arc::clone(event));
                Some(FailedEntry { uid, dedup_id, event, admitted_ms, failure })
            }
        };
        let Some(copy) = copy else { return false };
        self.pending.push(Move { place: entry.place, entry: copy });
        true
    }

    /// What is to be moved now, if nothing is under way.
    pub(crate) fn start(&mut self) -> Option<Vec<Move>> {
        if self.under_way || self.pending.is_empty() {
            return None;
        }
        self.under_way = true;
        Some(std::mem::take(&mut self.pending))
    }

    pub(crate) fn ended(&mut self) {
        self.under_way = false;
        let overflowing = self.pending.iter().filter(|one| one.entry.failure.rule == Rule::Overflow);
        self.overflowing = overflowing.count() as u64;
    }

    pub(crate) fn put_back(&mut self, mut moves: Vec<Move>) {
        moves.append(&mut self.pending);
        self.pending = moves;
        self.ended();
    }
}

/// The word of an error kind, as configuration and health spell words.
fn snake_case(name: &str) -> String {
    let mut out = String::with_capacity(name.len() + 4);
    for c in name.chars() {
        if c.is_ascii_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

fn millis(time: Option<SystemTime>) -> Option<u64> {
    time.map(unix_millis)
}
