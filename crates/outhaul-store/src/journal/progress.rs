//! Looking at, and stopping, an open that takes long.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How far an open is. Another thread may read it, and may cancel.
#[derive(Debug, Default)]
pub struct OpenWatch {
    total: AtomicU64,
    done: AtomicU64,
    cancelled: AtomicBool,
}

impl OpenWatch {
    /// Bytes in the files that are looked at; 0 before that is known.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Bytes read so far. What needs no reading is passed over, so it may end below the total.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Lets the open end with [`StoreError::Cancelled`](crate::StoreError::Cancelled), within a batch. What is on disk
    /// stays as it is; the next open goes on from there.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    pub(super) fn begin(&self, total: u64) {
        self.total.fetch_add(total, Ordering::Relaxed);
    }

    /// Notes a position; false if the open is to end.
    pub(super) fn reached(&self, done: u64) -> bool {
        self.done.store(done, Ordering::Relaxed);
        !self.cancelled.load(Ordering::Relaxed)
    }
}
