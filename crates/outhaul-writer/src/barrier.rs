//! What flushes wait for, and what they report.
//!
//! **Waiting.** Every accepted operation belongs to the epoch in which it was accepted; a flush begins a new one and
//! waits until all earlier ones are empty. Operations may end in any order (retries do), and a flush that is dropped
//! leaves an epoch boundary behind, which costs nothing. Empty epochs are removed, so there are never more of them than
//! operations outstanding, and one. A held operation belongs to none: nobody waits for what only a person can end.
//!
//! **Reporting.** `unreported` collects what no completed flush has told. A flush that begins copies it; from there on
//! every failure is noted in `unreported` and in each running flush. A flush that completes takes its own copy, which
//! holds all that is in `unreported` by then, and clears `unreported`; one that is dropped clears nothing. The flush of
//! one pid takes and clears what concerns that pid.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::FlushReport;
use crate::report::Failures;

/// The epoch of what is held.
pub(crate) const HELD: u64 = u64::MAX;

#[derive(Debug)]
pub(crate) struct Barriers {
    /// Epoch and how many of its operations are outstanding, ascending; the last is the current one.
    epochs: VecDeque<(u64, usize)>,
    unreported: Arc<Failures>,
    running: BTreeMap<u64, Arc<Failures>>,
    next_flush: u64,
}

impl Barriers {
    pub(crate) fn new() -> Self {
        Self {
            epochs: VecDeque::from([(0, 0)]),
            unreported: Arc::default(),
            running: BTreeMap::new(),
            next_flush: 0,
        }
    }

    /// Counts operations into the current epoch, which it returns.
    pub(crate) fn accepted(&mut self, ops: usize) -> u64 {
        match self.epochs.back_mut() {
            Some((epoch, outstanding)) => {
                *outstanding += ops;
                *epoch
            }
            None => unreachable!("there is always a current epoch"),
        }
    }

    /// Counts operations out of their epoch.
    pub(crate) fn ended(&mut self, epoch: u64, ops: usize) {
        let Ok(at) = self.epochs.binary_search_by_key(&epoch, |(epoch, _)| *epoch) else { return };
        self.epochs[at].1 -= ops;
        if self.epochs[at].1 == 0 && at + 1 < self.epochs.len() {
            self.epochs.remove(at);
        }
    }

    /// Nothing is outstanding any more, and nothing will be.
    pub(crate) fn end_all(&mut self) {
        let current = self.epochs.back().map_or(0, |(epoch, _)| *epoch);
        self.epochs = VecDeque::from([(current, 0)]);
    }

    /// All operations of the epochs before this one have ended. None when no flush runs.
    pub(crate) fn awaited_floor(&self) -> Option<u64> {
        (!self.running.is_empty()).then(|| self.epochs.front().map_or(u64::MAX, |(epoch, _)| *epoch))
    }

    /// A flush of everything begins: its id, and the floor at which everything before it has ended.
    pub(crate) fn begin(&mut self) -> (u64, u64) {
        let (mut current, outstanding) = self.epochs.back().copied().unwrap_or_default();
        if outstanding > 0 {
            current += 1;
            self.epochs.push_back((current, 0));
        }
        (self.begin_pid(), current)
    }

    /// A flush of one pid begins: its id.
    pub(crate) fn begin_pid(&mut self) -> u64 {
        let id = self.next_flush;
        self.next_flush += 1;
        self.running.insert(id, Arc::clone(&self.unreported));
        id
    }

    /// A flush completes, over everything or over one pid.
    pub(crate) fn complete(&mut self, id: u64, pid: Option<&str>, held: u64) -> FlushReport {
        let failures = self.running.remove(&id).unwrap_or_default();
        match pid {
            None => self.unreported = Arc::default(),
            Some(pid) if !self.unreported.is_empty() => Arc::make_mut(&mut self.unreported).remove(pid),
            Some(_) => {}
        }
        failures.report(pid, held)
    }

    /// A flush is dropped.
    pub(crate) fn cancel(&mut self, id: u64) {
        self.running.remove(&id);
    }

    /// What no completed flush has told; it is told now.
    pub(crate) fn take_unreported(&mut self) -> FlushReport {
        std::mem::take(&mut self.unreported).report(None, 0)
    }

    pub(crate) fn failed(&mut self, failures: &Failures) {
        if failures.is_empty() {
            return;
        }
        Arc::make_mut(&mut self.unreported).merge(failures);
        for running in self.running.values_mut() {
            Arc::make_mut(running).merge(failures);
        }
    }
}
