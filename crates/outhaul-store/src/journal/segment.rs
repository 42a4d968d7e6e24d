//! A segment in memory: where it is, what it spans, and how much in it still waits.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::queue::QueueId;

/// Distance between two entries of the index in bytes.
pub(super) const INDEX_STEP: u64 = 64 * 1024;

/// What waits in a segment for one queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) queue: QueueId,
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Segment {
    pub(crate) number: u64,
    pub(crate) salt: u64,
    pub(crate) base: u64,
    pub(crate) first_sequence: u64,
    /// One above the last sequence in it.
    pub(crate) end_sequence: u64,
    /// Where the valid bytes end.
    pub(crate) end: u64,
    /// Made of the waiting entries of others: every entry in it keeps its old sequence.
    pub(crate) merged: bool,
    /// The segments that it stands for, as long as the newest checkpoint may list them.
    pub(crate) replaces: Vec<u64>,
    /// It has a footer.
    pub(crate) footer: bool,
    /// Where its index is: in the footer, until somebody reads.
    pub(super) index: Index,
    /// Bytes of all that was in it at open, counted once for every queue.
    pub(crate) stored_bytes: u64,
    /// The disk could not read all of it: what is missing may still be there.
    pub(crate) pinned: bool,
    /// Its removal is under way.
    pub(crate) going: bool,
    pub(super) waiting: Vec<Tally>,
}

/// Where to start looking for a sequence: ascending, sparse.
#[derive(Debug, Clone, Default)]
pub(super) enum Index {
    /// It was not looked at yet.
    #[default]
    Footer,
    Growing(Vec<(u64, u64)>),
    Loaded(Arc<[(u64, u64)]>),
}

impl Segment {
    pub(crate) fn file_name(number: u64) -> String {
        format!("{number:020}.seg")
    }

    pub(crate) fn path(&self, dir: &Path) -> PathBuf {
        dir.join(Self::file_name(self.number))
    }

    /// The number in a name that [`file_name`](Self::file_name) made.
    pub(crate) fn parse_name(name: &str) -> Option<u64> {
        let digits = name.strip_suffix(".seg")?;
        let number = digits.parse().ok()?;
        (Self::file_name(number) == name).then_some(number)
    }

    /// Notes that a batch with this first sequence starts at an offset of the segment that is written to.
    pub(crate) fn index(&mut self, sequence: u64, offset: u64) {
        if let Index::Growing(index) = &mut self.index
            && index.last().is_none_or(|&(_, last)| offset >= last + INDEX_STEP)
        {
            index.push((sequence, offset));
        }
    }

    /// The offset of a batch at or before the one that holds a sequence; None if the footer has to be asked.
    pub(crate) fn offset_before(&self, sequence: u64, start: u64) -> Option<u64> {
        let index: &[(u64, u64)] = match &self.index {
            Index::Footer => return None,
            Index::Growing(index) => index,
            Index::Loaded(index) => index,
        };
        let after = index.partition_point(|&(first, _)| first <= sequence);
        Some(after.checked_sub(1).map_or(start, |at| index[at].1))
    }

    pub(crate) fn set_index(&mut self, index: Vec<(u64, u64)>) {
        self.index = Index::Loaded(index.into());
    }

    pub(crate) fn holds(&self, sequence: u64) -> bool {
        (self.first_sequence..self.end_sequence).contains(&sequence)
    }

    /// Entries, over all queues, that are not settled.
    pub(crate) fn unsettled(&self) -> u64 {
        self.waiting.iter().map(|tally| tally.entries).sum()
    }

    /// Whether nothing in it is of use to anybody.
    pub(crate) fn is_finished(&self) -> bool {
        self.unsettled() == 0 && !self.pinned
    }

    /// Bytes of what waits, counted once for every queue.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        self.waiting.iter().map(|tally| tally.bytes).sum()
    }

    pub(crate) fn waits_for(&self, queue: QueueId) -> bool {
        self.find(queue).is_ok_and(|at| self.waiting[at].entries > 0)
    }

    pub(crate) fn tallies(&self) -> &[Tally] {
        &self.waiting
    }

    pub(crate) fn add(&mut self, queue: QueueId, entries: u64, bytes: u64) {
        match self.find(queue) {
            Ok(at) => {
                self.waiting[at].entries += entries;
                self.waiting[at].bytes += bytes;
            }
            Err(at) => self.waiting.insert(at, Tally { queue, entries, bytes }),
        }
    }

    pub(crate) fn settle(&mut self, queue: QueueId, bytes: u64) {
        if let Ok(at) = self.find(queue) {
            let tally = &mut self.waiting[at];
            tally.entries = tally.entries.saturating_sub(1);
            tally.bytes = tally.bytes.saturating_sub(bytes);
        }
    }

    /// Nothing waits for a queue any more.
    pub(crate) fn forget(&mut self, queue: QueueId) {
        self.waiting.retain(|tally| tally.queue != queue);
    }

    fn find(&self, queue: QueueId) -> Result<usize, usize> {
        self.waiting.binary_search_by_key(&queue, |tally| tally.queue)
    }
}
