//! Where the records of the failed store are kept: the contract between the store, which decides, and an engine,
//! which keeps.

use async_trait::async_trait;
use outhaul_event::{TargetName, Uid};

use super::FailedEntry;
use crate::error::{AppendError, StoreError};
use crate::log::OpenReport;

/// The keeper of records and notes. Nobody else writes to its place, and no two calls at the same time concern the
/// same record. Its files are created with the first record.
#[async_trait]
pub(crate) trait Medium: std::fmt::Debug + Send + Sync + 'static {
    /// Opens what an earlier process left, and tells what is there. Creates nothing where nothing is.
    async fn load(&self) -> Result<Loaded, StoreError>;

    /// Makes records durable. All of them or none, unless the disk fails in the middle; the result at index i is that
    /// of `entries[i]`.
    async fn put(&self, entries: Vec<FailedEntry>) -> Vec<Result<Record, AppendError>>;

    /// Reads records in the order asked. None: it is not there any more.
    async fn read(&self, records: &[Record]) -> Result<Vec<Option<FailedEntry>>, StoreError>;

    /// Makes notes durable, and then removes records and notes; that is durable as well when it resolves. What is
    /// not there any more is passed over.
    async fn change(&self, notes: Vec<Note>, gone: Vec<Slot>) -> Result<Vec<Slot>, StoreError>;

    /// Moves the records that cannot be read to the quarantine, and mends what they were in. Returns what was moved
    /// where, and what stays.
    async fn repair(&self) -> Result<Repaired, StoreError> {
        Ok(Repaired::default())
    }

    /// After a removal that failed: which of these records are still there. One of which that cannot be told is.
    async fn there(&self, records: &[Record]) -> Vec<bool>;

    /// What opening found, for a person.
    fn report(&self) -> OpenReport;

    /// Waits for what is written, and closes; later calls fail with `Closed`.
    async fn close(&self) -> Result<(), StoreError>;
}

/// What is in a medium at open, in the order in which it was put.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    pub(crate) records: Vec<Record>,
    pub(crate) notes: Vec<(Note, Slot)>,
    pub(crate) unreadable: Vec<UnreadableRecord>,
}

/// The place of a record or note in its medium: the target it belongs to, and a number that means something to the
/// medium alone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot {
    pub(crate) target: TargetName,
    pub(crate) key: u128,
}

/// What is held in memory of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) uid: Uid,
    /// The number of its [`Slot`].
    pub(crate) key: u128,
    /// What it counts against the bound.
    pub(crate) bytes: u64,
    /// When it was moved here, in milliseconds since 1970.
    pub(crate) failed_ms: u64,
    /// That of [`pid_hash`](crate::pid_hash).
    pub(crate) pid_hash: Option<u64>,
}

impl Record {
    pub(crate) fn slot(&self) -> Slot {
        Slot { target: self.uid.queue.clone(), key: self.key }
    }
}

/// What is remembered of a requeue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Note {
    /// The record that it is about.
    pub(crate) uid: Uid,
    /// The sequence of the new entry. None: it was begun; whether there is a new entry shows in the queue.
    pub(crate) requeued_as: Option<u64>,
}

/// What was moved, and where it is; what stays, and why.
#[derive(Debug, Default)]
pub(crate) struct Repaired {
    pub(crate) moved: Vec<(String, std::path::PathBuf)>,
    pub(crate) left: Vec<(String, String)>,
}

/// A record in the failed store that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadableRecord {
    /// The target it belongs to.
    pub target: TargetName,
    /// Which record or file it is.
    pub record: String,
    /// The file that it is in, from the data directory.
    pub file: String,
    /// What is wrong with it.
    pub reason: String,
}
