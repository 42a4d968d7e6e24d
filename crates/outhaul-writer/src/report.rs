//! What a flush and a close tell.

use std::error::Error;
use std::sync::Arc;

use thiserror::Error as ThisError;

use crate::FailureKind;

/// The first failure of a shard in a [`FlushReport`].
#[derive(Clone, Debug)]
pub struct ShardFailure {
    /// The shard.
    pub shard: u64,
    /// What the failure says.
    pub kind: FailureKind,
    /// The error: a [`WriteError`](crate::WriteError) over the sink's error, to downcast to.
    pub error: Arc<dyn Error + Send + Sync>,
}

/// Operations that failed and that no earlier completed flush has told about.
#[derive(Clone, Debug, Default, ThisError)]
#[error("{failed} operations failed")]
pub struct FlushReport {
    /// How many.
    pub failed: u64,
    /// Which pids, each once, at most [`PIDS_MAX`](Self::PIDS_MAX) of them, in the order of their first failure.
    pub pids: Vec<String>,
    /// Whether further pids were left off.
    pub pids_left_off: bool,
    /// The first failure of each shard that has one, by shard.
    pub first: Vec<ShardFailure>,
}

impl FlushReport {
    /// The most pids that a report lists.
    pub const PIDS_MAX: usize = 64;

    /// Whether there is nothing to tell.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.failed == 0
    }

    /// Notes one failed operation.
    pub(crate) fn note<E>(&mut self, shard: u64, pid: Option<&str>, kind: FailureKind, error: &E)
    where
        E: Error + Clone + Send + Sync + 'static,
    {
        self.failed += 1;
        if let Some(pid) = pid {
            self.note_pid(pid);
        }
        if let Err(at) = self.first.binary_search_by_key(&shard, |first| first.shard) {
            self.first.insert(at, ShardFailure { shard, kind, error: Arc::new(error.clone()) });
        }
    }

    /// Adds what `later` tells.
    pub(crate) fn merge(&mut self, later: &Self) {
        self.failed += later.failed;
        self.pids_left_off |= later.pids_left_off;
        for pid in &later.pids {
            self.note_pid(pid);
        }
        for failure in &later.first {
            if let Err(at) = self.first.binary_search_by_key(&failure.shard, |first| first.shard) {
                self.first.insert(at, failure.clone());
            }
        }
    }

    fn note_pid(&mut self, pid: &str) {
        if self.pids.iter().any(|known| known == pid) {
            return;
        }
        if self.pids.len() < Self::PIDS_MAX {
            self.pids.push(pid.to_owned());
        } else {
            self.pids_left_off = true;
        }
    }
}

/// How a close ended when not everything was written and told.
#[derive(Clone, Debug, Default, ThisError)]
#[error("closed with {} failed operations, {not_written} of them not written and {abandoned} abandoned in the sink", .failures.failed)]
pub struct CloseReport {
    /// The failures that no flush has told about, those below included.
    pub failures: FlushReport,
    /// Operations that waited when the time of the close was over; they were not applied.
    pub not_written: u64,
    /// Operations that were in the sink at that time; nobody knows about them.
    pub abandoned: u64,
}
