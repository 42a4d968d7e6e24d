//! Outhaul takes events from a program, makes them safe on disk, and delivers each of them, at least once and in
//! order per key, to webhooks, files, brokers and databases.
//!
//! ```no_run
//! use outhaul::{Event, Outhaul};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let builder = Outhaul::builder("./data").named("archive", "file:events.ndjson");
//!     let outhaul = builder.named("billing", "http://127.0.0.1:8080/events").open().await?;
//!     for step in ["placed", "paid", "shipped"] {
//!         let event = Event::builder(format!("com.example.order.{step}"), "/shop").pid("order-1001").build()?;
//!         // Resolves when the event is safe on disk for both targets; delivery goes on behind it.
//!         outhaul.send(event).await?;
//!     }
//!     outhaul.shutdown(std::time::Duration::from_secs(30)).await?;
//!     Ok(())
//! }
//! ```
//!
//! This crate wires the layers below it, each of which is a crate of its own and re-exported here: [`event`],
//! [`store`], [`writer`], [`target`], [`runtime`]. What is promised, and how each promise is tested, is in
//! `docs/architecture.md`.
//!
//! # Targets and features
//!
//! A target is given as a URI, or as a value of any type that implements [`target::Target`].
//!
//! | feature | URIs | kind |
//! |---|---|---|
//! | `file` (default) | `file:PATH`, `stdout:` | `file`, `stdout` |
//! | `nats` | `nats://…`, `nats+tls://…` | `nats` |
//! | `redis` | `redis://…`, `rediss://…` | `redis` |
//! | `amqp` | `amqp://…`, `amqps://…` | `amqp` |
//! | `mqtt` | `mqtt://…`, `mqtts://…` | `mqtt` |
//! | `webhook` (default) | `http://…`, `https://…` | `webhook` |
//!
//! Options that every target knows are query parameters with the prefix `outhaul.`; see
//! [`target::TargetOptions`].

use std::ops::Deref;
use std::path::PathBuf;

use outhaul_runtime::event::TargetName;

mod builder;
mod error;
mod kinds;

pub use builder::OuthaulBuilder;
pub use error::{OpenError, PutError};
pub use kinds::target as target_of;
pub use outhaul_runtime as runtime;
pub use outhaul_runtime::event::Event;
pub use outhaul_runtime::store::{Input, OpenReport, Receipt, StoreError};
pub use outhaul_runtime::{
    AdmitError, Change, ChangeError, EntryAnswer, EntryCursor, EntryInfo, EntryPage, EntryQuery, EntryState,
    Health, Incoming, Leftover, Notice, Pending, Removed, Repoint, Runtime, ShutdownReport, State,
    TargetStatus,
};
pub use outhaul_runtime::{event, store, target, writer};
#[cfg(feature = "amqp")]
pub use outhaul_target_amqp as amqp;
#[cfg(feature = "file")]
pub use outhaul_target_file as file;
#[cfg(feature = "mqtt")]
pub use outhaul_target_mqtt as mqtt;
#[cfg(feature = "nats")]
pub use outhaul_target_nats as nats;
#[cfg(feature = "redis")]
pub use outhaul_target_redis as redis;
#[cfg(feature = "webhook")]
pub use outhaul_target_webhook as webhook;

/// An open data directory that delivers what it admits. Cheap to clone; all clones are one.
///
/// It is a [`Runtime`] and has all of its methods.
#[derive(Debug, Clone)]
pub struct Outhaul(Runtime);

impl Outhaul {
    /// Starts with a data directory, which is created if there is none.
    pub fn builder(data: impl Into<PathBuf>) -> OuthaulBuilder {
        OuthaulBuilder::new(data.into())
    }

    /// Adds the target of a URI, or puts it in the place of the one that has its name, without touching the others.
    /// Entries that wait for another destination keep it from that, unless `repoint` says what is to become of them.
    ///
    /// It lasts as long as this process: whoever opens the data directory says again which targets there are.
    pub async fn put(
        &self,
        name: &TargetName,
        uri: &str,
        repoint: Option<Repoint>,
    ) -> Result<Change, PutError> {
        let mut spec = kinds::spec(name.clone(), uri).map_err(PutError::Config)?;
        spec.repoint = repoint;
        let mut targets = self.targets();
        targets.retain(|target| target.kind == "file" && target.name != *name);
        let mut files: Vec<_> = targets.iter().map(|file| (&file.name, file.destination.as_str())).collect();
        if spec.target.kind() == "file" {
            files.push((name, &spec.destination));
        }
        builder::one_writer_of(files.into_iter()).map_err(PutError::Open)?;
        self.replace(spec).await.map_err(PutError::Change)
    }
}

impl Deref for Outhaul {
    type Target = Runtime;

    fn deref(&self) -> &Runtime {
        &self.0
    }
}
