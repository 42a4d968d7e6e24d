//! The delivery engine of Outhaul: it admits events into a store and delivers each to its targets.
//!
//! A [`Runtime`] puts a writer in front of a store and a replay worker behind each of its queues. A worker keeps one
//! FIFO lane per pid and a window of attempts in flight; it decides when to try again and whom a failure accuses, and
//! moves what will never be delivered to the failed store. It knows no protocol: targets come from outside.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use outhaul_runtime::event::{Event, TargetName};
//! use outhaul_runtime::store::Store;
//! use outhaul_runtime::target::{Attempt, DeliveryError, Target, TargetOptions, async_trait};
//! use outhaul_runtime::{Runtime, RuntimeOptions, TargetSpec};
//!
//! struct Void;
//!
//! #[async_trait]
//! impl Target for Void {
//!     fn kind(&self) -> &'static str {
//!         "void"
//!     }
//!     async fn deliver(&self, events: &[Attempt]) -> Vec<Result<(), DeliveryError>> {
//!         events.iter().map(|_| Ok(())).collect()
//!     }
//!     async fn probe(&self) -> Result<(), DeliveryError> {
//!         Ok(())
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let name = TargetName::new("void")?;
//! let void = TargetSpec::new(name, Arc::new(Void), TargetOptions::default(), "void");
//! let runtime = Runtime::start(Store::memory(), vec![void], RuntimeOptions::default()).await?;
//! runtime.send(Event::builder("t", "/example").pid("p").build()?).await?;
//! runtime.settled().await;
//! assert_eq!(runtime.targets()[0].delivered, 1);
//! runtime.shutdown(Duration::from_secs(5)).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # The life of a target
//!
//! ```text
//! starting ──first answer──▸ running ◂──an entry is delivered──┐
//!                             │  │                             │
//!            accuses the target  10 retries in a row,          │
//!                             │  of two or more pids           │
//!                             ▾  ▾                             │
//!                          held  throttled ── one trial after each backoff
//! ```
//!
//! `paused` and `draining` are asked for by a person, `stopped` is where a drain and a shutdown end, `failed` comes when
//! a worker cannot go on; a queue without a target is an `orphan`. Targets are added, replaced and removed while the
//! others go on: [`Runtime::reload`]. The whole table, and the verbs on entries, are in `docs/runtime.md`.

mod admit;
mod filling;
mod health;
mod manager;
mod notice;
mod policy;
mod rate;
mod runtime;
mod status;
mod worker;

pub use admit::{AdmitError, Incoming, Pending};
pub use health::Probe;
pub use manager::{
    Change, ChangeError, EntryAnswer, EntryCursor, EntryInfo, EntryPage, EntryQuery, EntryState, Leftover,
    ReloadReport, Removed,
};
pub use notice::Notice;
pub use outhaul_store as store;
pub use outhaul_store::event;
pub use outhaul_target as target;
pub use outhaul_writer as writer;
pub use runtime::{Remake, Repoint, Runtime, RuntimeOptions, ShutdownReport, StartError, TargetSpec};
pub use status::{Health, State, TargetStatus};
