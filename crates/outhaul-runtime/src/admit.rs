//! Admission: events on their way through the writer into the log.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use outhaul_store::event::{Event, TargetName};
use outhaul_store::{Admission, AppendError, Log, Receipt, StoreError};
use outhaul_writer::{Answer, FailureKind, Operation, Sink, SinkError, TicketOf, WriteError};

/// An event to be admitted.
#[derive(Debug, Clone)]
pub struct Incoming {
    /// The event.
    pub event: Event,
    /// Where in the input it stood, if that is to be remembered with it.
    pub position: Option<u64>,
}

impl From<Event> for Incoming {
    fn from(event: Event) -> Self {
        Self { event, position: None }
    }
}

/// One admission as the writer carries it.
#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) admission: Admission,
    /// What an event without a pid is routed by.
    dedup_id: Option<Box<str>>,
}

impl Op {
    pub(crate) fn new(admission: Admission) -> Self {
        let dedup_id = match admission.event.pid() {
            Some(_) => None,
            None => Some(admission.dedup_id.to_string().into()),
        };
        Self { admission, dedup_id }
    }
}

impl Operation for Op {
    fn pid(&self) -> Option<&str> {
        self.dedup_id.as_deref().or_else(|| self.admission.event.pid())
    }

    fn bytes(&self) -> usize {
        self.admission.size() as usize
    }
}

/// The writer's way into the log.
pub(crate) struct QueueSink {
    pub(crate) log: Arc<dyn Log>,
}

impl Sink for QueueSink {
    type Op = Op;
    type Output = Receipt;
    type Error = AppendError;

    async fn apply(&self, _: u64, ops: &[Op]) -> Answer<Receipt, AppendError> {
        let batch = ops.iter().map(|op| op.admission.clone()).collect();
        let sink_error = |error| match error {
            error @ AppendError::Unknown(_) => SinkError::unknown(error),
            // Whoever sent the event is told at once, and knows best when to try again.
            error => SinkError::permanent(error),
        };
        let results = self.log.append(batch).await.into_iter();
        Answer::Each(results.map(|result| result.map_err(sink_error)).collect())
    }
}

/// Why an event was not admitted. Unless the outcome is unknown, nothing of it will be delivered.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum AdmitError {
    /// More is being admitted than the disk takes. Try again in a moment.
    #[error("the store is behind: too many events wait to be written; try again in a moment")]
    Saturated,
    /// The queue of a target has no room.
    #[error("the queue of target {target} is full ({limit}); try again when it has delivered some")]
    QueueFull {
        /// The target.
        target: TargetName,
        /// The limit that was reached.
        limit: String,
    },
    /// What was to be admitted together is more than the queue of a target ever holds.
    #[error(
        "it is more than the queue of target {target} ever holds ({limit}); send less at a time, or raise the limit"
    )]
    TooLarge {
        /// The target.
        target: TargetName,
        /// The limit that it passes.
        limit: String,
    },
    /// The disk is full. Free some space.
    #[error("the disk that holds {} is full; free some space", .0.display())]
    DiskFull(PathBuf),
    /// The event may be on disk or not, and may be delivered. Send it again with the same id.
    #[error(
        "it is not known whether the event is on disk ({0}): it may be delivered; send it again with the same id"
    )]
    Unknown(String),
    /// The store takes nothing.
    #[error("the store failed: {0}")]
    Store(StoreError),
    /// No target takes new events, so there is nobody to keep it for. Add or resume a target.
    #[error("no target takes new events; add or resume one")]
    NoTarget,
    /// The program is shutting down.
    #[error("shutting down: no more events are taken")]
    Stopping,
}

impl AdmitError {
    /// A machine-readable word.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Saturated => "saturated",
            Self::QueueFull { .. } => "queue_full",
            Self::TooLarge { .. } => "too_large",
            Self::DiskFull(_) => "disk_full",
            Self::Unknown(_) => "unknown_outcome",
            Self::Store(_) => "store_failed",
            Self::NoTarget => "no_target",
            Self::Stopping => "stopping",
        }
    }

    /// When another try makes sense.
    pub fn retry_after(&self) -> Duration {
        match self {
            Self::Saturated | Self::Unknown(_) => Duration::from_secs(1),
            Self::QueueFull { .. } | Self::TooLarge { .. } | Self::NoTarget | Self::Stopping => {
                Duration::from_secs(5)
            }
            Self::DiskFull(_) | Self::Store(_) => Duration::from_secs(30),
        }
    }
}

impl From<AppendError> for AdmitError {
    fn from(error: AppendError) -> Self {
        match error {
            AppendError::QueueFull { target, limit } => Self::QueueFull { target, limit },
            AppendError::TooLarge { target, limit } => Self::TooLarge { target, limit },
            AppendError::DiskFull(path) => Self::DiskFull(path),
            AppendError::Unknown(reason) => Self::Unknown(reason.to_string()),
            AppendError::Store(StoreError::Closed) => Self::Stopping,
            AppendError::Store(error) => Self::Store(error),
            AppendError::UnknownQueue(name) => Self::Store(StoreError::UnknownQueue(name)),
            other => Self::Unknown(other.to_string()),
        }
    }
}

impl From<WriteError<AppendError>> for AdmitError {
    fn from(error: WriteError<AppendError>) -> Self {
        match error {
            WriteError::Sink { error, .. } => error.into(),
            other if other.kind() == FailureKind::Unknown => Self::Unknown(other.to_string()),
            _ => Self::Stopping,
        }
    }
}

/// Resolves when one admitted event is durable, or with its own error. Dropping it takes nothing back.
#[derive(Debug)]
#[must_use = "only its result says that the event is safe"]
pub struct Pending(pub(crate) TicketOf<QueueSink>);

impl Future for Pending {
    type Output = Result<Receipt, AdmitError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = ready!(Pin::new(&mut self.0).poll(context));
        Poll::Ready(outcome.map_err(AdmitError::from))
    }
}
