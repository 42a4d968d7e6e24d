//! How many later events of its pid were delivered while an entry is in the failed store: whoever puts it back is told
//! by how much it comes too late.
//!
//! Counted in memory, and noted in the memo `passed`: at a close, and a minute after something changed. So after a crash
//! it is at least so many.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use outhaul_event::{TargetName, Uid};

use super::medium::Record;
use super::state::State;
use super::{FailedStore, Inner, lock};
use crate::error::StoreError;

const MEMO: &str = "passed";
/// Records that are noted; a line has 107 bytes at most, and a memo 1 MiB.
const LINES_MAX: usize = 9_000;
const NOTE_AFTER: Duration = Duration::from_secs(60);

/// Of one target.
#[derive(Debug, Default)]
pub(super) struct Passed {
    pids: HashMap<u64, Pid>,
    /// Per record, the count of its pid when it came here.
    bases: HashMap<u64, i64>,
}

#[derive(Debug, Default)]
struct Pid {
    records: u64,
    delivered: i64,
}

impl Passed {
    pub(super) fn add(&mut self, record: &Record) {
        if let Some(hash) = record.pid_hash {
            let pid = self.pids.entry(hash).or_default();
            pid.records += 1;
            self.bases.insert(record.uid.sequence, pid.delivered);
        }
    }

    pub(super) fn remove(&mut self, record: &Record) {
        if let Some(hash) = record.pid_hash
            && let Some(pid) = self.pids.get_mut(&hash)
        {
            self.bases.remove(&record.uid.sequence);
            pid.records -= 1;
            if pid.records == 0 {
                self.pids.remove(&hash);
            }
        }
    }

    /// False if nobody wants to know.
    fn delivered(&mut self, hash: u64) -> bool {
        let pid = self.pids.get_mut(&hash);
        pid.map(|pid| pid.delivered += 1).is_some()
    }

    fn of(&self, record: &Record) -> u64 {
        let pid = record.pid_hash.and_then(|hash| self.pids.get(&hash));
        let base = self.bases.get(&record.uid.sequence);
        pid.zip(base).map_or(0, |(pid, base)| pid.delivered.saturating_sub(*base).max(0) as u64)
    }

    fn recall(&mut self, sequence: u64, passed: i64) {
        if let Some(base) = self.bases.get_mut(&sequence) {
            *base = base.saturating_sub(passed);
        }
    }
}

impl State {
    fn delivered(&mut self, target: &TargetName, pid_hash: u64) -> bool {
        self.part_if_any(target).is_some_and(|part| part.passed.delivered(pid_hash))
    }

    /// How many later events of its pid were delivered.
    pub(super) fn passed(&self, record: &Record) -> u64 {
        self.part(&record.uid.queue).map_or(0, |part| part.passed.of(record))
    }

    /// One line for each record that others have passed.
    fn passed_lines(&self) -> String {
        let records = self.parts().flat_map(|(_, part)| part.records().values());
        let counted = records.map(|record| (&record.uid, self.passed(record)));
        let lines = counted.filter(|(_, passed)| *passed > 0).take(LINES_MAX);
        lines.map(|(uid, passed)| format!("{uid} {passed}\n")).collect()
    }

    fn recall_passed(&mut self, lines: &str) {
        for line in lines.lines() {
            let Some((uid, passed)) = line.split_once(' ') else { continue };
            let (uid, passed): (Result<Uid, _>, Result<i64, _>) = (uid.parse(), passed.parse());
            if let (Ok(uid), Ok(passed)) = (uid, passed)
                && self.record(&uid).is_some()
            {
                self.part_mut(&uid.queue).passed.recall(uid.sequence, passed.max(0));
            }
        }
    }
}

impl FailedStore {
    /// An entry of a pid was delivered: of those of the pid that are here it is a later one.
    pub fn delivered(&self, target: &TargetName, pid_hash: u64) {
        let counted = self.inner.state().delivered(target, pid_hash);
        if counted && !self.inner.passed_changed.swap(true, Ordering::AcqRel) {
            self.note_passed_later();
        }
    }

    fn note_passed_later(&self) {
        // Outside of a runtime it is noted at the close.
        if let Ok(runtime) = tokio::runtime::Handle::try_current()
            && !self.inner.read_only
        {
            let inner = Arc::clone(&self.inner);
            let note = async move {
                tokio::time::sleep(NOTE_AFTER).await;
                if let Err(error) = inner.note_passed().await {
                    tracing::debug!(%error, "it cannot be noted how many events passed those that failed");
                }
            };
            *lock(&self.noting) = Some(lock(&self.tasks).spawn_on(note, &runtime));
        }
    }
}

impl Inner {
    /// Writes down what has changed.
    pub(super) async fn note_passed(&self) -> Result<(), StoreError> {
        if self.read_only || !self.passed_changed.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let (memos, lines) = (self.memos.clone(), self.state().passed_lines());
        let set = move || memos.set(MEMO, lines.into_bytes());
        tokio::task::spawn_blocking(set).await.unwrap_or(Err(StoreError::Closed))
    }

    /// Reads what an earlier process wrote down.
    pub(super) async fn recall_passed(&self) -> Result<(), StoreError> {
        if self.state().parts().next().is_none() {
            return Ok(());
        }
        let memos = self.memos.clone();
        let read = tokio::task::spawn_blocking(move || memos.get(MEMO)).await;
        if let Some(lines) = read.unwrap_or(Err(StoreError::Closed))? {
            self.state().recall_passed(&String::from_utf8_lossy(&lines));
        }
        Ok(())
    }
}
