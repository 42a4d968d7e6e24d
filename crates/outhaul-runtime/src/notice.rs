//! What observers are told: each fact once. A slow observer loses details, never the totals, which are in the
//! targets' status.

use std::time::Duration;

use outhaul_store::Rule;
use outhaul_store::event::{DedupId, TargetName, Uid};
use outhaul_target::ErrorKind;

/// A fact about an entry or a target.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Notice {
    /// A target acknowledged an entry.
    Delivered {
        /// The entry.
        uid: Uid,
        /// The event's identity.
        dedup_id: DedupId,
    },
    /// An attempt failed, and there will be another.
    Retried {
        /// The entry.
        uid: Uid,
        /// What went wrong.
        kind: ErrorKind,
        /// What was said about it, without credentials.
        detail: String,
        /// When the next attempt comes; None: as soon as the target takes something.
        wait: Option<Duration>,
    },
    /// A target takes nothing; one trial at a time finds out when that ends.
    Held {
        /// The target.
        target: TargetName,
        /// A machine-readable word.
        reason: &'static str,
    },
    /// A target fails everything for now, or asked for a pause.
    Throttled {
        /// The target.
        target: TargetName,
    },
    /// A held or throttled target took an entry.
    Resumed {
        /// The target.
        target: TargetName,
    },
    /// An entry went to the failed store because its receiver will never take it.
    Rejected {
        /// The entry.
        uid: Uid,
        /// What was said about it.
        detail: String,
    },
    /// An entry has used up its attempts or its time. With `kept` it is tried further.
    Exhausted {
        /// The entry.
        uid: Uid,
        /// Whether it stays in its queue.
        kept: bool,
    },
    /// An entry went to the failed store by another rule.
    Quarantined {
        /// The entry.
        uid: Uid,
        /// The rule.
        rule: Rule,
    },
    /// A person or a policy removed an entry.
    Discarded {
        /// The entry.
        uid: Uid,
    },
}
