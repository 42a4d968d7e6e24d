//! Rows under ordered keys, for whoever keeps state beside the log: the ledger's processes, tasks and messages.
//!
//! A [`KvStore`] reads single keys and ranges, and writes [`Batch`]es: together or not at all, on conditions, durable
//! when the future resolves. Each key has a [`Revision`] that grows with each write of it.
//!
//! ```
//! use outhaul_store::kv::{Batch, KvError, KvStore, MemoryKv, Scan};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), KvError> {
//! let store = MemoryKv::default();
//! let mut batch = Batch::new();
//! batch.put("task/7", "open").put("task/8", "open").require("task/7", None);
//! let revision = store.apply(batch.clone()).await?;
//!
//! // A second time the condition does not hold: nothing is written.
//! assert!(matches!(store.apply(batch).await, Err(KvError::Conflict { found, .. }) if found == Some(revision)));
//!
//! let page = store.scan(Scan { limit: 1, ..Scan::prefix("task/") }).await?;
//! let next = store.scan(Scan { after: page.next, ..Scan::prefix("task/") }).await?;
//! assert_eq!((&page.rows[0].key[..], &next.rows[0].key[..]), (&b"task/7"[..], &b"task/8"[..]));
//! # Ok(())
//! # }
//! ```

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;

mod batch;
#[cfg(feature = "kv-fjall")]
mod commit;
mod error;
#[cfg(feature = "kv-fjall")]
mod fjall;
mod memory;
mod scan;

pub use batch::{Batch, Condition, Write};
pub use error::KvError;
#[cfg(feature = "kv-fjall")]
pub use fjall::{FjallKv, FjallOptions};
pub use memory::MemoryKv;
pub use scan::{Page, Scan};

/// Which write of a key it was. Later writes of a key have greater revisions, also across a delete and a restart; a
/// revision never comes back, so comparing it finds every change. All puts of a batch get the same one.
///
/// The numbers are to be compared and nothing else: they are not dense, and may be shared by several keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl Revision {
    /// For engines: the one after.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A value, and which write it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned {
    /// The value.
    pub value: Bytes,
    /// The revision of its key.
    pub revision: Revision,
}

/// A key and what is under it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The key.
    pub key: Bytes,
    /// The value.
    pub value: Bytes,
    /// The revision of the key.
    pub revision: Revision,
}

/// What a store takes and gives at once, in bytes and keys. None of them may be zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLimits {
    /// The longest key. It may be set up to 32,768.
    pub key_bytes_max: usize,
    /// The largest value.
    pub value_bytes_max: usize,
    /// The largest batch, as [`Batch::bytes`] counts it.
    pub batch_bytes_max: usize,
    /// The most keys of one [`get_many`](KvStore::get_many).
    pub get_keys_max: usize,
    /// A page of a scan ends before it passes this, counting 64 bytes for each row besides its key and value. One
    /// row is always given.
    pub page_bytes_max: usize,
}

impl Default for KvLimits {
    fn default() -> Self {
        Self {
            key_bytes_max: 1024,
            value_bytes_max: 1 << 20,
            batch_bytes_max: 16 << 20,
            get_keys_max: 4096,
            page_bytes_max: 4 << 20,
        }
    }
}

impl KvLimits {
    /// For engines: whether the limits make sense.
    ///
    /// # Errors
    /// [`KvError::Zero`], and [`KvError::KeyLength`] for a `key_bytes_max` above 32,768.
    pub fn check(&self) -> Result<(), KvError> {
        let limits = [
            ("key_bytes_max", self.key_bytes_max),
            ("value_bytes_max", self.value_bytes_max),
            ("batch_bytes_max", self.batch_bytes_max),
            ("get_keys_max", self.get_keys_max),
            ("page_bytes_max", self.page_bytes_max),
        ];
        if let Some((name, _)) = limits.iter().find(|(_, limit)| *limit == 0) {
            return Err(KvError::Zero(name));
        }
        let (length, max) = (self.key_bytes_max, 32 << 10);
        if length > max { Err(KvError::KeyLength { length, max }) } else { Ok(()) }
    }

    /// For engines: whether a key can be one.
    ///
    /// # Errors
    /// [`KvError::KeyLength`].
    pub fn check_key(&self, key: &[u8]) -> Result<(), KvError> {
        let (length, max) = (key.len(), self.key_bytes_max);
        if length == 0 || length > max { Err(KvError::KeyLength { length, max }) } else { Ok(()) }
    }

    /// For engines: whether so many keys can be read at once, and each can be one.
    ///
    /// # Errors
    /// [`KvError::TooManyKeys`], [`KvError::KeyLength`].
    pub fn check_keys(&self, keys: &[Bytes]) -> Result<(), KvError> {
        let (count, max) = (keys.len(), self.get_keys_max);
        if count > max {
            return Err(KvError::TooManyKeys { count, max });
        }
        keys.iter().try_for_each(|key| self.check_key(key))
    }
}

/// Ordered rows with atomic, conditional, durable batches. Engines: [`MemoryKv`], and behind a feature one on a disk.
#[async_trait]
pub trait KvStore: fmt::Debug + Send + Sync + 'static {
    /// What it takes at once.
    fn limits(&self) -> KvLimits;

    /// The value under a key. Dropping the future changes nothing.
    ///
    /// # Errors
    /// [`KvError::KeyLength`], [`KvError::Closed`], and what the disk says.
    async fn get(&self, key: &[u8]) -> Result<Option<Versioned>, KvError> {
        let found = self.get_many(&[Bytes::copy_from_slice(key)]).await?;
        Ok(found.into_iter().next().flatten())
    }

    /// The values under several keys, in their order, all as of one moment. Dropping the future changes nothing.
    ///
    /// # Errors
    /// Those of [`get`](Self::get), and [`KvError::TooManyKeys`].
    async fn get_many(&self, keys: &[Bytes]) -> Result<Vec<Option<Versioned>>, KvError>;

    /// Writes a batch, all of it or nothing; durable when the future resolves, unless the engine says otherwise.
    /// The answer is the revision that the keys of its puts have now. A batch without writes only looks at its
    /// conditions, syncs nothing, and is answered with the newest revision of the store.
    ///
    /// Dropping the future leaves the batch written as a whole or not at all; read to find out.
    ///
    /// # Errors
    /// [`KvError::Conflict`]; a limit; [`KvError::DiskFull`], [`KvError::Closed`], [`KvError::Failed`]: nothing was
    /// written. [`KvError::Unknown`]: it may have been.
    async fn apply(&self, batch: Batch) -> Result<Revision, KvError> {
        let answer = self.apply_many(vec![batch]).await.pop();
        answer.unwrap_or(Err(KvError::Closed))
    }

    /// Writes many batches in their order, with one sync where the engine can. Each is atomic alone and has its own
    /// answer, in the same order; a later one sees what an earlier one wrote, and is written also when an earlier
    /// one was refused.
    ///
    /// Dropping the future leaves each batch written as a whole or not at all.
    async fn apply_many(&self, batches: Vec<Batch>) -> Vec<Result<Revision, KvError>>;

    /// The keys within a range, in order, a page at a time. A page is of one moment; the next page is of a later
    /// one, and goes on behind the key at which this one ended, whatever was written or deleted meanwhile. Dropping
    /// the future changes nothing.
    ///
    /// # Errors
    /// [`KvError::Zero`], [`KvError::Closed`], and what the disk says.
    async fn scan(&self, scan: Scan) -> Result<Page, KvError>;

    /// Why nothing is written any more, if that is so.
    fn failure(&self) -> Option<KvError>;

    /// Waits until every batch handed over before this call is answered. Dropping the future changes nothing.
    ///
    /// # Errors
    /// [`KvError::Closed`], [`KvError::Failed`].
    async fn flush(&self) -> Result<(), KvError>;

    /// Finishes what was handed over, and gives the directory back. Later calls fail with [`KvError::Closed`]; to
    /// close twice is fine. Dropping the future does not stop the closing; call again to wait for it.
    ///
    /// # Errors
    /// What the engine fails with at its end. Batches that were answered are safe nevertheless.
    async fn close(&self) -> Result<(), KvError>;
}
