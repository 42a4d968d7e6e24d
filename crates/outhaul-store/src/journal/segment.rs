//! A segment in memory: where it is, what it spans, and how much in it still waits.

use std::path::{Path, PathBuf};

/// Distance between two entries of the index in bytes.
const INDEX_STEP: u64 = 64 * 1024;

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
    /// Entries, over all queues, that are not settled.
    pub(crate) unsettled: u64,
    /// Where to start looking for a sequence: ascending, sparse.
    pub(super) index: Vec<(u64, u64)>,
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

    /// Notes that a batch with this first sequence starts at an offset.
    pub(crate) fn index(&mut self, sequence: u64, offset: u64) {
        if self.index.last().is_none_or(|&(_, last)| offset >= last + INDEX_STEP) {
            self.index.push((sequence, offset));
        }
    }

    /// The offset of a batch at or before the one that holds a sequence.
    pub(crate) fn offset_before(&self, sequence: u64, start: u64) -> u64 {
        let after = self.index.partition_point(|&(first, _)| first <= sequence);
        after.checked_sub(1).map_or(start, |at| self.index[at].1)
    }

    pub(crate) fn holds(&self, sequence: u64) -> bool {
        (self.first_sequence..self.end_sequence).contains(&sequence)
    }
}
