//! Entries on their way to the failed store. The copy is durable before an entry leaves its queue; a move that fails
//! is tried again as it is, so nothing is delivered or told twice because of it.

use std::sync::Arc;
use std::time::SystemTime;

use outhaul_store::event::{Bytes, Event, Limits};
use outhaul_store::{Entry, FailedEntry, Failure, Place, Rule, Unreadable, unix_millis};
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

    pub(crate) fn add(&mut self, pending: &Pending, rule: Rule, error: Option<&DeliveryError>) {
        self.overflowing += u64::from(rule == Rule::Overflow);
        let history = &pending.history;
        let failure = Failure {
            rule,
            class: error.map_or(rule.as_str().to_owned(), |error| snake_case(&format!("{:?}", error.kind()))),
            detail: error.map_or_else(String::new, DeliveryError::detail),
            attempts: history.tried.attempts.max(history.sent),
            first_attempt_ms: millis(history.first_attempt),
            last_attempt_ms: millis(history.last_attempt),
            failed_ms: unix_millis(SystemTime::now()),
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
    pub(crate) fn add_unsent(&mut self, entry: Entry) {
        let crashes = entry.crashes;
        let (rule, detail, event) = match &entry.event {
            Ok(event) => {
                let detail = format!("the process ended {crashes} times while it was being delivered");
                (Rule::CrashSuspect, detail, Some(Arc::clone(event)))
            }
            Err(Unreadable { bytes, reason }) => {
                (Rule::Unreadable, reason.chars().take(200).collect(), unreadable_event(bytes))
            }
        };
        let Some(event) = event else { return };
        let failure = Failure {
            rule,
            class: rule.as_str().to_owned(),
            detail,
            attempts: entry.retry.map_or(0, |retry| retry.attempts).max(crashes),
            first_attempt_ms: None,
            last_attempt_ms: None,
            failed_ms: unix_millis(SystemTime::now()),
        };
        let uid = entry.place.uid.clone();
        let (dedup_id, admitted_ms) = (entry.dedup_id, unix_millis(entry.admitted_at));
        let copy = FailedEntry { uid, dedup_id, event, admitted_ms, failure };
        self.pending.push(Move { place: entry.place, entry: copy });
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
        self.overflowing =
            self.pending.iter().filter(|one| one.entry.failure.rule == Rule::Overflow).count() as u64;
    }

    pub(crate) fn put_back(&mut self, mut moves: Vec<Move>) {
        self.under_way = false;
        moves.append(&mut self.pending);
        self.pending = moves;
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

/// An event that stands for bytes that are none.
fn unreadable_event(bytes: &Bytes) -> Option<Arc<Event>> {
    let limits = Limits { body_bytes_max: usize::MAX, ..Default::default() };
    let event = Event::builder("outhaul.unreadable", "outhaul:store")
        .body("application/octet-stream", bytes.clone())
        .build_within(&limits);
    event.ok().map(Arc::new)
}

fn millis(time: Option<SystemTime>) -> Option<u64> {
    time.map(unix_millis)
}
