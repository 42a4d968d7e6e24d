//! What callers get instead of a result.

use std::fmt;

use thiserror::Error;

use crate::FailureKind;

/// Why new work was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum RefusedReason {
    /// The sink is behind: come back later (a server answers 503 with `Retry-After`).
    #[error("the writer is saturated")]
    Saturated,
    /// The pid is held behind a failure, and as much as may waits for that to be acknowledged: half of the capacity of its
    /// shard, or [`HeldPid::PIDS_MAX`](crate::HeldPid::PIDS_MAX) pids. [`held`](crate::Writer::held) names them. It says
    /// nothing about other pids, and sets no latch.
    #[error("as much as may waits behind pids that are held")]
    Held,
    /// The writer is closing or closed: do not come back.
    #[error("the writer is closed")]
    Closed,
}

/// An admission that was refused: nothing of it was taken, and here it is again.
#[derive(Error)]
#[error("{} operations were refused: {}", .ops.len(), .reason)]
pub struct Refused<Op> {
    /// Why.
    pub reason: RefusedReason,
    /// All the operations of the call, in their order; exactly one after `try_admit`.
    pub ops: Vec<Op>,
}

impl<Op> fmt::Debug for Refused<Op> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("reason", &self.reason).field("ops", &self.ops.len()).finish()
    }
}

/// The writer is closing or closed; the operation was not taken.
#[derive(Error)]
#[error("the writer is closed")]
pub struct Closed<Op> {
    /// The operation, again.
    pub op: Op,
}

impl<Op> fmt::Debug for Closed<Op> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Closed").finish_non_exhaustive()
    }
}

/// Why an accepted operation never reached the sink, or never came back after a transient failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NotWrittenReason {
    /// [`close`](crate::Writer::close) ran out of its time.
    CloseDeadline,
    /// The last handle, or the runtime, was dropped without a close.
    Dropped,
    /// It was held behind a failure that nobody acknowledged before the close.
    Held,
}

/// How an accepted operation failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum WriteError<E> {
    /// The sink refused this operation. A `Transient` kind was retried until `retry_max` was over.
    #[error("the sink failed: {error}")]
    Sink {
        /// What the sink says about it.
        kind: FailureKind,
        /// The sink's error.
        #[source]
        error: E,
    },
    /// The sink panicked over the batch: a defect of the sink. The outcome is unknown.
    #[error("the sink panicked")]
    SinkPanicked,
    /// The sink answered with a wrong number of results: a defect of the sink. The outcome is unknown.
    #[error("the sink answered {answered} results for {asked} operations")]
    WrongCount {
        /// Operations in the batch.
        asked: usize,
        /// Results that came back.
        answered: usize,
    },
    /// The sink did not answer within `apply_max`: it hangs, or the time is too short for it. The outcome is unknown.
    #[error("the sink did not answer in time")]
    TimedOut,
    /// The operation was in the sink when the writer was dropped, or gave up closing. The outcome is unknown.
    #[error("the writer ended while the operation was in the sink")]
    Abandoned,
    /// The operation was still waiting when the writer ended. It was not applied.
    #[error("the writer ended before the operation was written")]
    NotWritten {
        /// Why it ended.
        reason: NotWrittenReason,
    },
}

impl<E> WriteError<E> {
    /// What is known about the operation: whether it may be tried again (`Transient`: certainly not applied), is
    /// hopeless, or may have been applied.
    #[must_use]
    pub fn kind(&self) -> FailureKind {
        match self {
            Self::Sink { kind, .. } => *kind,
            Self::SinkPanicked | Self::WrongCount { .. } | Self::TimedOut | Self::Abandoned => {
                FailureKind::Unknown
            }
            Self::NotWritten { .. } => FailureKind::Transient,
        }
    }
}
