//! What a flush and a close tell.

use std::collections::BTreeMap;
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

/// Operations that failed and that no earlier completed flush has told about, and operations that are held.
#[derive(Clone, Debug, Default, ThisError)]
#[error("{failed} operations failed, {held} are held")]
pub struct FlushReport {
    /// How many failed.
    pub failed: u64,
    /// How many wait for [`acknowledge`](crate::Writer::acknowledge) now. They are not written, and each report tells
    /// them until they are.
    pub held: u64,
    /// Which pids failed, each once, at most [`PIDS_MAX`](Self::PIDS_MAX) of them, in the order of their first failure.
    pub pids: Vec<String>,
    /// Whether further pids were left off: that many had failed before anybody flushed.
    pub pids_left_off: bool,
    /// The first failure of each shard that has one, by shard.
    pub first: Vec<ShardFailure>,
}

impl FlushReport {
    /// The most pids that a report lists.
    pub const PIDS_MAX: usize = 1_024;

    /// Whether there is nothing to tell.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.failed == 0 && self.held == 0 && !self.pids_left_off
    }
}

/// Failures that somebody is still to be told, by pid.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failures {
    pids: BTreeMap<Option<Arc<str>>, OfPid>,
    /// Those of pids that there was no room for.
    left_off: u64,
    left_off_first: Vec<(u64, ShardFailure)>,
    next: u64,
}

#[derive(Clone, Debug)]
struct OfPid {
    failed: u64,
    /// The order of the first failures.
    at: u64,
    first: ShardFailure,
}

impl Failures {
    pub(crate) fn is_empty(&self) -> bool {
        self.pids.is_empty() && self.left_off == 0
    }

    pub(crate) fn count(&self) -> u64 {
        self.left_off + self.pids.values().map(|of_pid| of_pid.failed).sum::<u64>()
    }

    /// Notes one failed operation.
    pub(crate) fn note(
        &mut self,
        shard: u64,
        pid: Option<&str>,
        kind: FailureKind,
        error: &Arc<dyn Error + Send + Sync>,
    ) {
        let pid = pid.map(Arc::<str>::from);
        if let Some(known) = self.pids.get_mut(&pid) {
            known.failed += 1;
            return;
        }
        let first = ShardFailure { shard, kind, error: Arc::clone(error) };
        self.add(pid, 1, &first);
    }

    /// Adds what happened after all that is here.
    pub(crate) fn merge(&mut self, later: &Self) {
        let mut pids: Vec<_> = later.pids.iter().collect();
        pids.sort_unstable_by_key(|(_, of_pid)| of_pid.at);
        for (pid, of_pid) in pids {
            match self.pids.get_mut(pid) {
                Some(known) => known.failed += of_pid.failed,
                None => self.add(pid.clone(), of_pid.failed, &of_pid.first),
            }
        }
        self.left_off += later.left_off;
        for (_, first) in &later.left_off_first {
            self.leave_off(first);
        }
    }

    fn add(&mut self, pid: Option<Arc<str>>, failed: u64, first: &ShardFailure) {
        if self.pids.len() >= FlushReport::PIDS_MAX {
            self.left_off += failed;
            self.leave_off(first);
            return;
        }
        let at = self.tick();
        self.pids.insert(pid, OfPid { failed, at, first: first.clone() });
    }

    fn leave_off(&mut self, first: &ShardFailure) {
        if self.left_off_first.iter().all(|(_, known)| known.shard != first.shard) {
            let at = self.tick();
            self.left_off_first.push((at, first.clone()));
        }
    }

    fn tick(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Forgets one pid.
    pub(crate) fn remove(&mut self, pid: &str) {
        self.pids.remove(&Some(Arc::from(pid)));
    }

    /// All of it, or what concerns one pid.
    pub(crate) fn report(&self, only: Option<&str>, held: u64) -> FlushReport {
        let wanted = |pid: &Option<Arc<str>>| only.is_none_or(|only| pid.as_deref() == Some(only));
        let mut pids: Vec<_> = self.pids.iter().filter(|(pid, _)| wanted(pid)).collect();
        pids.sort_unstable_by_key(|(_, of_pid)| of_pid.at);
        let mut failed: u64 = pids.iter().map(|(_, of_pid)| of_pid.failed).sum();
        let mut firsts: Vec<_> = pids.iter().map(|(_, of_pid)| (of_pid.at, of_pid.first.clone())).collect();
        if only.is_none() {
            failed += self.left_off;
            firsts.extend(self.left_off_first.iter().cloned());
        }
        firsts.sort_unstable_by_key(|(at, first)| (first.shard, *at));
        firsts.dedup_by_key(|(_, first)| first.shard);
        FlushReport {
            failed,
            held,
            pids: pids.iter().filter_map(|(pid, _)| pid.as_deref().map(str::to_owned)).collect(),
            pids_left_off: self.left_off > 0,
            first: firsts.into_iter().map(|(_, first)| first).collect(),
        }
    }
}

/// How a close ended when not everything was written and told.
#[derive(Clone, Debug, Default, ThisError)]
#[error("closed with {} failed operations, {not_written} of them not written and {abandoned} abandoned in the sink", .failures.failed)]
pub struct CloseReport {
    /// The failures that no flush has told about, those below included.
    pub failures: FlushReport,
    /// Operations that were not applied: those that waited when the time of the close was over, and those that were
    /// held.
    pub not_written: u64,
    /// Operations that were in the sink at that time; nobody knows about them.
    pub abandoned: u64,
}
