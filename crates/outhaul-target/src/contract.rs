//! [`Target`], and what is handed to it.

use std::sync::Arc;

use async_trait::async_trait;
use outhaul_event::{DedupId, Event, Uid};

use crate::error::DeliveryError;

/// One try at handing one event over.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// What is delivered.
    pub event: Arc<Event>,
    /// The event's identity on the wire: the same at every target, attempt and requeue.
    pub dedup_id: DedupId,
    /// The entry in this target's queue.
    pub uid: Uid,
    /// The log's first sequence of the event. It grows over all queues of a log and stays through a requeue: the
    /// version that state-keeping targets compare, so that an old event never overwrites newer state.
    pub version: u64,
    /// Which attempt this is, from 1.
    pub number: u32,
}

/// One configured destination.
///
/// A target never retries, keeps no queue and knows no store: it makes one try within its own deadline and says how
/// that ended. Everything else (when to try again, whom to blame, what to give up) belongs to the runtime.
///
/// All methods may be called at the same time from several tasks.
#[async_trait]
pub trait Target: Send + Sync + 'static {
    /// The protocol, as it is shown to people: `webhook`, `file`, …
    fn kind(&self) -> &'static str;

    /// What the runtime may ask of this target. Does not change while the target lives.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// Hands over a batch, at most [`Capabilities::batch_max`] events; the result at index i is that of `events[i]`.
    ///
    /// `Ok` is the strongest acknowledgement that the protocol has. The target keeps its own deadline, and answers
    /// [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut) when it has passed.
    ///
    /// Dropping the future gives the attempt up: events may or may not have arrived, and the target stays usable.
    async fn deliver(&self, events: &[Attempt]) -> Vec<Result<(), DeliveryError>>;

    /// Asks whether the destination could be delivered to, without delivering anything. Feeds health only.
    ///
    /// Dropping the future gives the question up and leaves nothing behind.
    async fn probe(&self) -> Result<(), DeliveryError>;

    /// Looks at everything that a delivery needs (the connection, credentials, stream, topic, table), as
    /// [`probe`](Self::probe) does, and changes nothing. Returns what a person should know: what the first delivery
    /// would create, and what the protocol cannot promise, one sentence each.
    ///
    /// Dropping the future gives the question up and leaves nothing behind.
    async fn check(&self) -> Result<Vec<String>, DeliveryError> {
        self.probe().await?;
        Ok(Vec::new())
    }

    /// Releases connections and files; later deliveries fail with [`ErrorKind::Closed`](crate::ErrorKind::Closed).
    /// Closing twice is fine.
    ///
    /// Dropping the future leaves the target closed or usable; close again to be sure.
    async fn close(&self) -> Result<(), DeliveryError> {
        Ok(())
    }

    /// Opens again what an operator rotates (files); called on SIGHUP.
    ///
    /// Dropping the future leaves the target usable, on the old or on the new file.
    async fn reopen(&self) -> Result<(), DeliveryError> {
        Ok(())
    }
}

/// What the runtime may ask of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Events in one `deliver` at most, at least 1.
    pub batch_max: usize,
    /// Bytes of event bodies and attributes in one `deliver` at most. One event that is larger is sent alone.
    pub bytes_max: usize,
    /// What is promised about the order inside of a batch.
    pub batch_order: BatchOrder,
    /// One connection per identity: an old instance is closed before its successor opens.
    pub exclusive: bool,
    /// Whether a repeated event is recognised by its `dedup_id` and not stored twice.
    pub deduplicates: bool,
}

impl Default for Capabilities {
    /// One event at a time, 1 MiB, nothing promised.
    fn default() -> Self {
        Self {
            batch_max: 1,
            bytes_max: 1024 * 1024,
            batch_order: BatchOrder::None,
            exclusive: false,
            deduplicates: false,
        }
    }
}

/// What a target promises about the order inside of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BatchOrder {
    /// Nothing: at most one event of a pid is put into a `deliver`, and batches pipeline across pids.
    #[default]
    None,
    /// If one event of a pid is not delivered, no later event of that pid in the batch was or will be.
    Prefix,
}
