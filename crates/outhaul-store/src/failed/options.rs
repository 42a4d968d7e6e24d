//! What may be in the failed store, and what can be asked of it.

use std::time::{Duration, SystemTime};

use outhaul_event::{TargetName, Uid};

use super::FailedEntry;

/// The bounds of one target's part of the failed store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedOptions {
    /// Entries at most (100,000).
    pub entries_max: u64,
    /// Bytes at most (1 GiB).
    pub bytes_max: u64,
    /// What happens at a bound.
    pub when_full: FailedFull,
    /// How long an entry is kept, counted from its failure; None, the default, is until a person decides. What
    /// becomes older is discarded, within about a minute.
    pub expire_after: Option<Duration>,
}

impl Default for FailedOptions {
    fn default() -> Self {
        Self {
            entries_max: 100_000,
            bytes_max: 1 << 30,
            when_full: FailedFull::HoldTarget,
            expire_after: None,
        }
    }
}

impl FailedOptions {
    /// The bounds of RustFS: 10,000 entries of a target, kept for 72 hours, the oldest discarded at the bound.
    pub fn rustfs() -> Self {
        Self {
            entries_max: 10_000,
            when_full: FailedFull::DiscardOldest,
            expire_after: Some(Duration::from_secs(72 * 3600)),
            ..Self::default()
        }
    }
}

/// What happens when a target's part of the failed store is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FailedFull {
    /// Nothing more is taken: what fails stays in its queue, and the target is held until a person decides.
    #[default]
    HoldTarget,
    /// Those that failed first are discarded, and counted.
    DiscardOldest,
}

/// The direction of a listing: by target, and by the sequence of the entry there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ListOrder {
    /// From the entry admitted first.
    #[default]
    OldestFirst,
    /// From the entry admitted last.
    NewestFirst,
}

/// What [`FailedStore::page`](super::FailedStore::page) lists.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FailedQuery {
    /// Only the entries of this target.
    pub target: Option<TargetName>,
    /// The direction.
    pub order: ListOrder,
    /// The [`next`](FailedPage::next) of the page before. The entry itself need not be there any more.
    pub after: Option<Uid>,
    /// Only those that failed before this time.
    pub failed_before: Option<SystemTime>,
}

/// A part of a listing.
#[derive(Debug, Clone, Default)]
pub struct FailedPage {
    /// The entries. There may be fewer than asked for, or none, although more follow: some vanished meanwhile, or
    /// those that are there are large.
    pub entries: Vec<FailedEntry>,
    /// Where to go on. None: this was the last page.
    pub next: Option<Uid>,
}

/// Which entries are to be discarded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Discard {
    /// These. What is not there is passed over.
    Uids(Vec<Uid>),
    /// Those that failed before a time.
    Before {
        /// The time.
        failed_before: SystemTime,
        /// Only those of this target.
        target: Option<TargetName>,
    },
    /// All.
    All {
        /// Only those of this target.
        target: Option<TargetName>,
    },
}

/// One target's part of the failed store in numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedStats {
    /// The target.
    pub target: TargetName,
    /// Entries in it.
    pub entries: u64,
    /// Their bytes.
    pub bytes: u64,
    /// When the oldest of them failed, in milliseconds since 1970.
    pub oldest_ms: Option<u64>,
    /// Put back into the queue since open.
    pub requeued: u64,
    /// Discarded by a person since open.
    pub discarded: u64,
    /// Discarded since open because there was no room for new ones.
    pub discarded_oldest: u64,
    /// Discarded since open because they became too old.
    pub expired: u64,
    /// The bounds.
    pub options: FailedOptions,
}
