//! Listing the entries of a target: what waits, with what its worker knows, and what failed.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::time::SystemTime;

use outhaul_store::event::{DedupId, TargetName, Uid};
use outhaul_store::{Entry, FailedQuery};
use serde::Serialize;
use tokio::time::Instant;

use super::Manager;
use super::error::ChangeError;
use crate::status::State;
use crate::worker::control::{Command, Known};

/// Entries in one page at most.
const PAGE_MAX: usize = 1_000;
/// Entries that are looked at for one page: where a filter matches few, pages are short and more follow.
const LOOKED_AT_MAX: usize = 10_000;
/// What one read brings.
const READ_ENTRIES: usize = 256;
const READ_BYTES: usize = 4 << 20;

/// Where an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryState {
    /// In its queue, not tried yet, or tried while its target was held.
    Waiting,
    /// In its queue, after attempts that failed.
    Retrying,
    /// With its target.
    InFlight,
    /// In the failed store.
    Failed,
}

/// What is listed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EntryQuery {
    /// Only those of this pid.
    pub pid: Option<String>,
    /// Only those in this state.
    pub state: Option<EntryState>,
    /// So many at most, 1,000 at most; 0 is 1,000.
    pub limit: usize,
    /// The [`next`](EntryPage::next) of the page before.
    pub after: Option<EntryCursor>,
}

/// Where the next page begins. Written `w42` in the queue, `f42` in the failed store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryCursor {
    /// Behind this sequence of the queue.
    Waiting(u64),
    /// Behind this sequence of the failed store.
    Failed(u64),
}

/// One entry in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryInfo {
    /// The entry.
    pub uid: Uid,
    /// The identity that its receivers see.
    pub dedup_id: DedupId,
    /// Its pid, if it has one.
    pub pid: Option<String>,
    /// Where it is.
    pub state: EntryState,
    /// Attempts that counted.
    pub attempts: u32,
    /// When it is tried next, if it waits for a time of its own.
    pub next_attempt_at: Option<SystemTime>,
    /// What was said about it last in this life of the process, or why it failed; without credentials.
    pub last_error: Option<String>,
    /// It fails although others are delivered.
    pub suspect: bool,
}

/// A part of a listing.
#[derive(Debug, Clone, Default)]
pub struct EntryPage {
    /// The entries, oldest first; those that failed come behind those that wait.
    pub entries: Vec<EntryInfo>,
    /// Where to go on; there may be more although this page is short. None: this was the last page.
    pub next: Option<EntryCursor>,
}

impl Manager {
    pub(crate) async fn entries(
        &self,
        name: &TargetName,
        query: &EntryQuery,
    ) -> Result<EntryPage, ChangeError> {
        let exists = self.slot(name).is_some()
            || self.store.failed().count(Some(name)) > 0
            || self.store.log().stats().iter().any(|queue| queue.name == *name && queue.waiting > 0);
        if !exists {
            return Err(ChangeError::UnknownTarget(name.clone()));
        }
        let limit = if query.limit == 0 { PAGE_MAX } else { query.limit.min(PAGE_MAX) };
        let after = match query.after {
            Some(EntryCursor::Failed(after)) => return self.failed_entries(name, query, limit, after).await,
            _ if query.state == Some(EntryState::Failed) => {
                return self.failed_entries(name, query, limit, 0).await;
            }
            Some(EntryCursor::Waiting(after)) => after,
            None => 0,
        };
        self.waiting_entries(name, query, limit, after).await
    }

    async fn waiting_entries(
        &self,
        name: &TargetName,
        query: &EntryQuery,
        limit: usize,
        mut after: u64,
    ) -> Result<EntryPage, ChangeError> {
        let mut page = EntryPage::default();
        let mut looked_at = 0;
        while looked_at < LOOKED_AT_MAX {
            let read = match self.lease.read(name, after, READ_ENTRIES, READ_BYTES).await {
                Err(outhaul_store::StoreError::UnknownQueue(_)) => Default::default(),
                read => read?,
            };
            if read.entries.is_empty() {
                // Those that failed follow.
                page.next = query.state.is_none().then_some(EntryCursor::Failed(0));
                return Ok(page);
            }
            looked_at += read.entries.len();
            let wanted = |entry: &Entry| query.pid.as_deref().is_none_or(|pid| pid_of(entry) == Some(pid));
            let entries = read.entries;
            let sequences = entries.iter().filter(|entry| wanted(entry)).map(sequence).collect();
            let known = self.know(name, sequences).await;
            for entry in entries {
                after = sequence(&entry);
                if !wanted(&entry) {
                    continue;
                }
                let info = info(&entry, known.get(&after), self.store.log().now());
                if query.state.is_none_or(|state| state == info.state) {
                    page.entries.push(info);
                }
                if page.entries.len() == limit {
                    page.next = Some(EntryCursor::Waiting(after));
                    return Ok(page);
                }
            }
        }
        page.next = Some(EntryCursor::Waiting(after));
        Ok(page)
    }

    /// What the worker knows; nothing if there is none.
    async fn know(&self, name: &TargetName, sequences: Vec<u64>) -> HashMap<u64, Known> {
        match self.slot(name) {
            // One that is being replaced answers only when what it has in flight is finished.
            Some(slot) if slot.serves() && slot.shown().state != State::Draining => {
                let asked = self.ask(name, |reply| Command::Know(sequences.clone(), reply));
                asked.await.unwrap_or_default()
            }
            _ => HashMap::new(),
        }
    }

    async fn failed_entries(
        &self,
        name: &TargetName,
        query: &EntryQuery,
        limit: usize,
        after: u64,
    ) -> Result<EntryPage, ChangeError> {
        let mut page = EntryPage::default();
        let mut asked = FailedQuery {
            target: Some(name.clone()),
            after: Some(Uid { queue: name.clone(), sequence: after }),
            ..FailedQuery::default()
        };
        let mut looked_at = 0;
        while looked_at < LOOKED_AT_MAX {
            let found = self.store.failed().page(&asked, READ_ENTRIES).await?;
            looked_at += found.entries.len().max(1);
            for entry in found.entries {
                let pid = entry.event.pid().map(str::to_owned);
                if query.pid.is_some() && query.pid != pid {
                    continue;
                }
                let at = entry.uid.sequence;
                page.entries.push(EntryInfo {
                    uid: entry.uid,
                    dedup_id: entry.dedup_id,
                    pid,
                    state: EntryState::Failed,
                    attempts: entry.failure.attempts,
                    next_attempt_at: None,
                    last_error: Some(format!("{}: {}", entry.failure.rule.as_str(), entry.failure.detail)),
                    suspect: false,
                });
                if page.entries.len() == limit {
                    page.next = Some(EntryCursor::Failed(at));
                    return Ok(page);
                }
            }
            let Some(next) = found.next else { return Ok(page) };
            page.next = Some(EntryCursor::Failed(next.sequence));
            asked.after = Some(next);
        }
        Ok(page)
    }
}

fn sequence(entry: &Entry) -> u64 {
    entry.place.uid.sequence
}

fn pid_of(entry: &Entry) -> Option<&str> {
    entry.event.as_ref().ok()?.pid()
}

fn info(entry: &Entry, known: Option<&Known>, now: SystemTime) -> EntryInfo {
    let stored = entry.retry.map_or(0, |retry| retry.attempts);
    let known = known.cloned().unwrap_or_default();
    let attempts = known.attempts.unwrap_or(stored);
    let waits = known.next_attempt.map(|at| now + at.saturating_duration_since(Instant::now()));
    let noted = entry.retry.map(|retry| retry.not_before).filter(|at| *at > now);
    let state = match (known.in_flight, attempts) {
        (true, _) => EntryState::InFlight,
        (false, 0) => EntryState::Waiting,
        (false, _) => EntryState::Retrying,
    };
    EntryInfo {
        uid: entry.place.uid.clone(),
        dedup_id: entry.dedup_id,
        pid: pid_of(entry).map(str::to_owned),
        state,
        attempts,
        next_attempt_at: waits.or(noted).filter(|_| state != EntryState::InFlight),
        last_error: known.last_error.or_else(|| entry.event.as_ref().err().map(|error| error.reason.clone())),
        suspect: known.suspect,
    }
}

impl fmt::Display for EntryCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Waiting(sequence) => write!(f, "w{sequence}"),
            Self::Failed(sequence) => write!(f, "f{sequence}"),
        }
    }
}

impl FromStr for EntryCursor {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = "it is no cursor: pass the `next` of the page before";
        let (kind, sequence) = text.split_at_checked(1).ok_or(wrong)?;
        let sequence = sequence.parse().map_err(|_| wrong)?;
        match kind {
            "w" => Ok(Self::Waiting(sequence)),
            "f" => Ok(Self::Failed(sequence)),
            _ => Err(wrong),
        }
    }
}

impl FromStr for EntryState {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "waiting" => Ok(Self::Waiting),
            "retrying" => Ok(Self::Retrying),
            "in_flight" => Ok(Self::InFlight),
            "failed" => Ok(Self::Failed),
            _ => Err("write one of waiting, retrying, in_flight, failed"),
        }
    }
}
