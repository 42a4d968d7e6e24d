//! Failed entries: list, requeue, discard.

use std::collections::HashSet;

use outhaul::event::{TargetName, Uid};
use outhaul::store::{Discard, FailedEntry, FailedQuery, FailedStore, RequeueError, StoreError};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::text::time_of;

/// Entries read at a time.
const PAGE: usize = 500;

/// A failed entry as it is shown.
#[derive(Serialize)]
pub(crate) struct Shown<'a> {
    pub(crate) uid: &'a Uid,
    target: &'a TargetName,
    sequence: u64,
    pub(crate) dedup_id: String,
    id: &'a str,
    source: &'a str,
    r#type: &'a str,
    pid: Option<&'a str>,
    pub(crate) rule: &'a str,
    pub(crate) class: &'a str,
    pub(crate) detail: &'a str,
    pub(crate) attempts: u32,
    pub(crate) admitted: String,
    pub(crate) first_attempt: Option<String>,
    pub(crate) last_attempt: Option<String>,
    pub(crate) failed: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<Box<RawValue>>,
}

impl<'a> Shown<'a> {
    pub(crate) fn new(entry: &'a FailedEntry, with_event: bool) -> Self {
        let failure = &entry.failure;
        let event = with_event.then(|| entry.event.to_json());
        Self {
            uid: &entry.uid,
            target: &entry.uid.queue,
            sequence: entry.uid.sequence,
            dedup_id: entry.dedup_id.to_string(),
            id: entry.event.id(),
            source: entry.event.source(),
            r#type: entry.event.kind(),
            pid: entry.event.pid(),
            rule: failure.rule.as_str(),
            class: &failure.class,
            detail: &failure.detail,
            attempts: failure.attempts,
            admitted: time_of(entry.admitted_ms),
            first_attempt: failure.first_attempt_ms.map(time_of),
            last_attempt: failure.last_attempt_ms.map(time_of),
            failed: time_of(failure.failed_ms),
            event: event.and_then(|event| serde_json::from_slice(&event).ok()),
        }
    }
}

/// Goes through what is asked for, a page at a time, up to a number. Returns how many there were, and whether more
/// follow.
pub(crate) async fn each<E: From<StoreError>>(
    failed: &FailedStore,
    mut query: FailedQuery,
    limit: Option<usize>,
    mut each: impl FnMut(&FailedEntry) -> Result<(), E>,
) -> Result<(u64, Option<Uid>), E> {
    let mut count = 0;
    loop {
        let left = limit.map_or(PAGE, |limit| (limit - count as usize).min(PAGE));
        let page = failed.page(&query, left).await?;
        count += page.entries.len() as u64;
        page.entries.iter().try_for_each(&mut each)?;
        query.after = page.next;
        if query.after.is_none() || limit.is_some_and(|limit| count as usize >= limit) {
            return Ok((count, query.after));
        }
    }
}

/// What became of one entry that was to be requeued.
#[derive(Debug, Serialize)]
pub(crate) struct Requeued {
    pub(crate) uid: Uid,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) requeued_as: Option<Uid>,
    /// Whether that had been done before.
    pub(crate) again: bool,
    /// How many later events of its pid were delivered since it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) delivered_later: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// Whether the entry itself is the reason, so that trying again does not help.
    #[serde(skip)]
    pub(crate) refused: bool,
}

/// Puts entries back into their queues; the answer at index i is that of `uids[i]`.
pub(crate) async fn requeue(failed: &FailedStore, uids: &[Uid]) -> Vec<Requeued> {
    let answers = failed.requeue(uids).await;
    let each = |(uid, answer): (&Uid, Result<outhaul::store::Requeued, RequeueError>)| match answer {
        Ok(done) => Requeued {
            uid: done.uid,
            requeued_as: Some(done.requeued_as),
            again: done.again,
            delivered_later: done.delivered_later,
            error: None,
            refused: false,
        },
        Err(error) => Requeued {
            uid: uid.clone(),
            requeued_as: None,
            again: false,
            delivered_later: None,
            refused: matches!(error, RequeueError::Unreadable(_)),
            error: Some(error.to_string()),
        },
    };
    uids.iter().zip(answers).map(each).collect()
}

/// How many entries were discarded.
#[derive(Debug, Serialize)]
pub(crate) struct Discarded {
    pub(crate) discarded: u64,
    /// What was named and is not there.
    pub(crate) missing: Vec<Uid>,
}

/// Removes entries for good.
pub(crate) async fn discard(failed: &FailedStore, which: Discard) -> Result<Discarded, StoreError> {
    let missing = match &which {
        Discard::Uids(uids) => {
            let here: HashSet<Uid> = failed.uids().into_iter().collect();
            let mut missing: Vec<_> = uids.iter().filter(|uid| !here.contains(uid)).cloned().collect();
            missing.sort_unstable();
            missing.dedup();
            missing
        }
        Discard::Before { .. } | Discard::All { .. } => Vec::new(),
    };
    Ok(Discarded { discarded: failed.discard(which).await?, missing })
}
