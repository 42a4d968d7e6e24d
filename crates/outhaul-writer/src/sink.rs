//! The contract of what is written, and of what it is written to.

use async_trait::async_trait;
use thiserror::Error;

/// What a [`Writer`](crate::Writer) carries to its sink.
///
/// Both methods are asked once at acceptance (`pid` again when the operation fails), outside every lock, and must be
/// pure: the same answer each time, and no panic. Operations wait inline, in memory that the writer reuses: box what
/// is large.
pub trait Operation: Send + Sync + 'static {
    /// The key within which order holds; `None` only for queue-wide operations, which all go to shard 0 and keep their
    /// order among themselves.
    fn pid(&self) -> Option<&str>;

    /// What it counts against the byte budgets.
    fn bytes(&self) -> usize;
}

/// What operations are written to.
#[async_trait]
pub trait Sink: Send + Sync + 'static {
    /// What is written.
    type Op: Operation;
    /// What an applied operation yields: a receipt, a revision, `()`.
    type Output: Send + 'static;
    /// What went wrong.
    type Error: std::error::Error + Clone + Send + Sync + 'static;

    /// Applies a batch of one shard; result i is that of `ops[i]`.
    ///
    /// A shard has one call running at a time, different shards call concurrently. When it returns `Ok` for an
    /// operation, that operation is as durable as the sink makes it. A wrong number of results fails them all, a panic
    /// too; for both the outcome is unknown.
    ///
    /// An operation that fails with [`FailureKind::Transient`] comes again, in its place. To keep the order of its pid
    /// the sink must not apply a later operation of the same pid in the same call: it answers `Transient` for those as
    /// well. (A sink that commits a batch as a whole or not at all does so by itself.)
    ///
    /// The future is dropped, at any await, when it outlives [`apply_max`](crate::WriterOptions::apply_max), when the
    /// writer is dropped, or when it does not get closed within [`close_max`](crate::WriterOptions::close_max); the
    /// outcome of its operations is unknown then. What it leaves running must not land behind a later call.
    async fn apply(&self, shard: u64, ops: &[Self::Op]) -> Vec<Result<Self::Output, SinkError<Self::Error>>>;

    /// Whether a call is applied as a whole or not at all (a transaction), and answers the same for all its operations.
    ///
    /// A writer then does not believe a permanent failure of several operations: it tries them again in ever smaller
    /// batches until the one that spoils the others fails alone.
    fn is_atomic(&self) -> bool {
        false
    }
}

/// What a failure says about the operation, and so what becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// Not applied, and may succeed later: the writer retries it in order, up to
    /// [`retry_max`](crate::WriterOptions::retry_max).
    Transient,
    /// Not applied, and never will be: it fails at once and alone.
    Permanent,
    /// Nobody knows whether it was applied (a failed sync, a lost connection): it fails at once and is not retried,
    /// since that might apply it twice.
    Unknown,
}

/// Why a sink did not apply an operation.
#[derive(Clone, Debug, Error)]
#[error("{error}")]
pub struct SinkError<E> {
    /// What the failure says, to branch on.
    pub kind: FailureKind,
    /// The sink's own error.
    pub error: E,
}

impl<E> SinkError<E> {
    /// Not applied; worth another try.
    pub fn transient(error: E) -> Self {
        Self { kind: FailureKind::Transient, error }
    }

    /// Not applied; another try would end the same.
    pub fn permanent(error: E) -> Self {
        Self { kind: FailureKind::Permanent, error }
    }

    /// Applied or not, nobody knows.
    pub fn unknown(error: E) -> Self {
        Self { kind: FailureKind::Unknown, error }
    }
}
