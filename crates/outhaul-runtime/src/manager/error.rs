//! Why a target was not changed, or an entry not touched.

use outhaul_store::event::{TargetName, Uid};
use outhaul_store::{RequeueError, StoreError};

/// Why a change did not take place. What it was about is as it was before.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// There is no such target: the name is a mistake.
    #[error("there is no target named {0}")]
    UnknownTarget(TargetName),
    /// Entries wait under this name, and there is no target that could do that.
    #[error(
        "{name} is an orphan: its waiting entries ({waiting}) have no target. Put a target under this name to have them \
         delivered, or remove it to discard them"
    )]
    Orphan {
        /// The name.
        name: TargetName,
        /// What waits.
        waiting: u64,
    },
    /// Two targets have one name.
    #[error("two targets are named {0}; a name is unique over all kinds")]
    Twice(TargetName),
    /// Entries wait for a target whose destination would be another one. Say what is to become of them.
    #[error(
        "target {name} delivers to {from} and would deliver to {to}, but what was admitted for the old destination \
         still waits: {waiting} would go to the new one. Say `repoint = \"keep\"` to send them there, or \
         `repoint = \"orphan\"` to leave them in a queue of their own"
    )]
    Repoint {
        /// The target.
        name: TargetName,
        /// Where it delivers to.
        from: String,
        /// Where it would deliver to.
        to: String,
        /// What waits.
        waiting: u64,
    },
    /// A newer change of the same target came first.
    #[error("change {generation} of target {name} was given up for the newer one {by}")]
    Superseded {
        /// The target.
        name: TargetName,
        /// The change that was given up.
        generation: u64,
        /// The newer one.
        by: u64,
    },
    /// The new target says that it is configured wrong. The old one, if there was one, goes on.
    #[error("target {name} is refused: {detail}")]
    Refused {
        /// The target.
        name: TargetName,
        /// What was said about it, without credentials.
        detail: String,
    },
    /// The worker of the target is not running, so it cannot do that.
    #[error("the worker of target {0} is not running; resume or replace the target first")]
    NotRunning(TargetName),
    /// Something of a paused target is asked for. Resume it first.
    #[error("target {0} is paused; resume it first")]
    Paused(TargetName),
    /// No entry has this uid: it was delivered or discarded, or the uid is a mistake.
    #[error("there is no entry {0}: it was delivered or discarded, or the uid is a mistake")]
    UnknownEntry(Uid),
    /// The entry has failed: there is no schedule to clear. Requeue it.
    #[error("entry {0} is in the failed store, where nothing is retried; requeue it")]
    EntryFailed(Uid),
    /// The failed store does not give the entry back.
    #[error(transparent)]
    Requeue(RequeueError),
    /// The store refuses.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The program is shutting down.
    #[error("shutting down: nothing is changed any more")]
    Stopping,
}

impl ChangeError {
    /// A machine-readable word.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::UnknownTarget(_) | Self::UnknownEntry(_) => "not_found",
            Self::Orphan { .. } => "orphan",
            Self::Twice(_) => "name_twice",
            Self::Repoint { .. } => "repoint",
            Self::Superseded { .. } => "superseded",
            Self::Refused { .. } => "configuration_invalid",
            Self::NotRunning(_) => "not_running",
            Self::Paused(_) => "paused",
            Self::EntryFailed(_) => "entry_failed",
            Self::Requeue(RequeueError::NotFound(_)) => "not_found",
            Self::Requeue(RequeueError::Unreadable(_)) => "unreadable",
            Self::Requeue(RequeueError::Unfinished(_)) => "unknown_outcome",
            Self::Requeue(_) | Self::Store(_) => "store_failed",
            Self::Stopping => "stopping",
        }
    }
}
