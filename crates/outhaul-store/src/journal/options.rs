//! How a journal is kept, and who does its work.

use std::sync::Arc;
use std::time::Duration;

use super::OpenWatch;
use crate::error::StoreError;
use crate::log::{Durability, WallClock};

/// How a journal is kept.
#[derive(Debug, Clone)]
pub struct JournalOptions {
    /// A segment is sealed when it has this many bytes.
    pub segment_bytes_max: u64,
    /// The first segment after an open is prepared with this many bytes; each further one with twice as many, up to the
    /// maximum.
    pub segment_bytes_first: u64,
    /// As many files are kept ready to become segments: prepared ones, and finished segments to be used again.
    pub spares_max: usize,
    /// What a receipt promises.
    pub durability: Durability,
    /// Compresses the events of a batch together (Snappy) where that saves an eighth or more. It costs about 1 µs of
    /// processor per KiB; worth it on a slow disk.
    pub compress: bool,
    /// How long settlements may wait for a batch to ride with.
    pub settle_linger: Duration,
    /// After this long without anything to write, the log notes that all of it is durable.
    pub idle_mark: Duration,
    /// Space held back for settlements and checkpoints when the disk is full: a file of this size.
    pub reserve_bytes: u64,
    /// Nothing on disk is changed, and nothing can be appended: for looking at a directory at rest.
    pub read_only: bool,
    /// Every record is read at open and its checksum verified, whatever the footers say. What is damaged is copied to
    /// the quarantine, unless this is `read_only` as well.
    pub verify: bool,
    /// Who does what is done beside the commits.
    pub upkeep: Upkeep,
    /// The wall clock: when an event was admitted.
    pub clock: WallClock,
    /// How far an open is, and a way to stop it.
    pub watch: Arc<OpenWatch>,
}

/// Who prepares files, writes footers, removes and merges segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Upkeep {
    /// A thread of its own, started when there is something to do.
    #[default]
    Thread,
    /// Whoever commits, behind the commit: for those who want no threads, or the same order of calls every time.
    Inline,
    /// As `Inline`; and async callers commit and read in their own thread, so that a simulation on a clock of its own is
    /// the same every time. Nothing is written that nobody waits for, however long it lies there.
    #[cfg(feature = "testkit")]
    Caller,
}

impl Upkeep {
    /// There are no threads, not even for async callers.
    pub(crate) fn in_caller(self) -> bool {
        #[cfg(feature = "testkit")]
        let in_caller = self == Self::Caller;
        #[cfg(not(feature = "testkit"))]
        let in_caller = false;
        in_caller
    }

    /// Does something that may wait for the disk.
    pub(crate) async fn blocking<T: Send + 'static>(
        self,
        work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        if self.in_caller() {
            return work();
        }
        tokio::task::spawn_blocking(work).await.unwrap_or(Err(StoreError::Closed))
    }
}

impl Default for JournalOptions {
    fn default() -> Self {
        Self {
            segment_bytes_max: 64 << 20,
            segment_bytes_first: 1 << 20,
            spares_max: 2,
            durability: Durability::Synced,
            compress: false,
            settle_linger: Duration::from_millis(50),
            idle_mark: Duration::from_secs(1),
            reserve_bytes: 256 << 10,
            read_only: false,
            verify: false,
            upkeep: Upkeep::Thread,
            clock: WallClock::default(),
            watch: Arc::default(),
        }
    }
}
