//! The durable event log of Outhaul: an event is written once, safe after one sync, and seen through one queue per
//! target.
//!
//! A [`Store`] is a data directory. It has a [`Log`], into which events go with the names of their targets, and a
//! [`FailedStore`], where entries go that are not to be delivered. Whoever delivers holds a [`Lease`]: it reads
//! entries in order and settles them. This crate knows no network and decides nothing about retries.
//!
//! ```
//! use std::sync::Arc;
//!
//! use outhaul_store::event::{Event, TargetName};
//! use outhaul_store::{Admission, JournalOptions, Outcome, QueueSettings, Settlement, Shards, Store};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! let store = Store::open(&dir.path().join("data"), JournalOptions::default()).await?;
//! let billing = TargetName::new("billing")?;
//! store.log().attach(&billing, QueueSettings::default())?;
//!
//! let event = Event::builder("com.example.order.paid", "/shop").pid("order-1").json("{}").build()?;
//! let receipt = store.log().append(vec![Admission::new(Arc::new(event), [billing.clone()].into())]).await;
//! assert!(receipt[0].as_ref().is_ok_and(|receipt| receipt.durable));
//!
//! let lease = store.log().lease(Shards::All).await?;
//! for entry in lease.read(&billing, 0, 100, 1 << 20).await?.entries {
//!     // … deliver it …
//!     lease.settle(vec![Settlement { place: entry.place, outcome: Outcome::Delivered }]).await?;
//! }
//! store.close().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Engines
//!
//! - `journal`, the default: one log per data directory; its design is in the module docs, its bytes are in
//!   `docs/journal-format.md`. [`Journal`] can also be used without an async runtime.
//! - `spool`: a directory per target, a file per event, as RustFS reads and writes them; see [`spool`].
//! - `memory`, for tests: [`Store::memory`].
//!
//! A directory belongs to one engine ([`Engine`], [`StoreOptions`]); another one is refused by name.
//!
//! # Features
//!
//! `kv-fjall`: the engine on a disk for [`kv`], rows under ordered keys.
//!
//! `testkit`: the simulated disk on which this crate's own tests cut the power.

mod error;
mod failed;
mod fs;
pub mod import;
mod journal;
pub mod kv;
mod log;
mod memo;
mod memory;
mod queue;
pub mod spool;
mod store;

pub use error::{AppendError, StoreError};
pub use failed::{
    Discard, FailedEntry, FailedFull, FailedOptions, FailedPage, FailedQuery, FailedStats, FailedStore,
    Failure, ListOrder, RequeueError, Requeued, Rule, UnreadableRecord, unix_millis,
};
#[cfg(feature = "testkit")]
pub use fs::sim::{Kept, SimDisk, SimFileSystem};
pub use fs::{DirEntry, File, FileSystem, FsKind, Lock, OsFileSystem, Space, Stat};
#[cfg(feature = "testkit")]
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::journal::fuzzing::*;
    pub use crate::spool::fuzzing::*;
}
pub use journal::{Journal, JournalOptions, OpenWatch, Upkeep};
pub use log::{
    Admission, Damage, Durability, Entry, Input, Lease, Log, OpenReport, Origin, Outcome, Place,
    QueueSettings, QueueStats, ReadBatch, Receipt, RetryState, Scan, ScanRow, Settlement, Shards, Unreadable,
    WallClock, WhenFull, pid_hash,
};
pub use memory::MemoryLog;
pub use outhaul_event as event;
pub use spool::{Spool, SpoolOptions};
pub use store::{Engine, RepairReport, Store, StoreOptions};
