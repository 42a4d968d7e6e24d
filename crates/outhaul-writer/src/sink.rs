//! The contract of what is written, and of what it is written to.

use std::future::Future;

use thiserror::Error;

/// What a [`Writer`](crate::Writer) carries to its sink.
///
/// Both methods are asked once at acceptance (`pid` again when the operation fails), outside every lock, and must be
/// pure: the same answer each time, and no panic. While it waits, an operation lies in the memory that it shares with
/// its ticket; it is moved into a slice when its batch is made.
pub trait Operation: Send + Sync + 'static {
    /// The key within which order holds; `None` only for queue-wide operations, which all go to shard 0 and keep their
    /// order among themselves.
    fn pid(&self) -> Option<&str>;

    /// What it counts against the byte budgets.
    fn bytes(&self) -> usize;
}

/// What operations are written to.
pub trait Sink: Sized + Send + Sync + 'static {
    /// What is written.
    type Op: Operation;
    /// What an applied operation yields: a receipt, a revision, `()`. It is cloned only for operations that another one
    /// replaced, and of [`Answer::Applied`].
    type Output: Clone + Send + 'static;
    /// What went wrong.
    type Error: std::error::Error + Clone + Send + Sync + 'static;

    /// Applies a batch of one shard.
    ///
    /// A shard has one call running at a time, different shards call concurrently. When an operation is answered `Ok`
    /// it is as durable as the sink makes it. A wrong number of results fails them all, a panic too, also one
    /// of [`coalesce_key`](Self::coalesce_key); for all of these the outcome counts as unknown.
    ///
    /// An operation that fails with [`FailureKind::Transient`] comes again, in its place. To keep the order of its pid
    /// the sink must not apply a later operation of the same pid in the same call: it answers `Transient` for those as
    /// well. (A sink that commits a batch as a whole or not at all does so by itself.) The time for
    /// retries of those begins when they are the first of their pid.
    ///
    /// The future is dropped, at any await, when it outlives [`apply_max`](crate::WriterOptions::apply_max), when the
    /// writer is dropped, or when it does not get closed within [`close_max`](crate::WriterOptions::close_max); the
    /// outcome of its operations is unknown then. What it leaves running must not land behind a later call.
    ///
    /// Write it as an `async fn`.
    fn apply(
        &self,
        shard: u64,
        ops: &[Self::Op],
    ) -> impl Future<Output = Answer<Self::Output, Self::Error>> + Send;

    /// The key under which a later operation of the same pid replaces this one when both are in one batch; `None`
    /// (default): nothing does. Only the last of them is applied, and all their tickets get its output.
    ///
    /// An operation without a key keeps apart those of its pid before and behind it; one of another key does not. When
    /// the one that replaced others fails, they come again – permanently: each for itself – except those behind which
    /// another operation of their pid was applied meanwhile: they would land out of order, so they keep to the one that
    /// replaced them, fail with it or are applied with it, and no call ever has them.
    fn coalesce_key<'a>(&self, op: &'a Self::Op) -> Option<&'a [u8]> {
        let _ = op;
        None
    }

    /// Whether a call applies no operation of a pid behind one of the same pid that failed, in whatever way, and
    /// answers `Transient` for those. A transaction that answers [`Answer::Failed`] does.
    ///
    /// Only asked for under [`OnFailure::StopPid`](crate::OnFailure::StopPid): for a sink that does not (default) a call
    /// then has at most one operation of each pid.
    fn stops_at_failure(&self) -> bool {
        false
    }
}

/// What a sink says about a batch.
#[derive(Clone, Debug)]
pub enum Answer<T, E> {
    /// Result i is that of operation i.
    Each(Vec<Result<T, SinkError<E>>>),
    /// All were applied, with the same output: what a transaction answers, without a list.
    Applied(T),
    /// The call failed as a whole: none of its operations was applied, or with an unknown outcome any of them may be.
    ///
    /// After a permanent failure of several operations they are tried again in ever smaller batches, until the one that
    /// spoils the others fails alone. A transient failure retries them all in order.
    Failed(SinkError<E>),
}

impl<T, E> From<Vec<Result<T, SinkError<E>>>> for Answer<T, E> {
    fn from(results: Vec<Result<T, SinkError<E>>>) -> Self {
        Self::Each(results)
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
