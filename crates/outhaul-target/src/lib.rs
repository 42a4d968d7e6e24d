//! The contract between Outhaul and whatever events are delivered to.
//!
//! A target implements [`Target`]: one try at handing events over, within its own deadline, and a typed answer to how
//! that ended. It keeps no queue, never retries, and knows no store. What an answer leads to is not its business: the
//! [`ErrorKind`] of a [`DeliveryError`] alone gives the [`Verdict`], in one match, and the runtime acts on it.
//!
//! ```
//! use std::sync::Mutex;
//!
//! use outhaul_target::outhaul_event::Event;
//! use outhaul_target::{Attempt, DeliveryError, ErrorKind, Target, Verdict, async_trait};
//!
//! /// Keeps what is delivered, as long as there is room.
//! struct Shelf(Mutex<Vec<String>>);
//!
//! #[async_trait]
//! impl Target for Shelf {
//!     fn kind(&self) -> &'static str {
//!         "shelf"
//!     }
//!
//!     async fn deliver(&self, events: &[Attempt]) -> Vec<Result<(), DeliveryError>> {
//!         let mut shelf = self.0.lock().unwrap();
//!         let mut put = |attempt: &Attempt| {
//!             if shelf.len() == 1 {
//!                 return Err(ErrorKind::DiskFull.into());
//!             }
//!             shelf.push(attempt.event.id().to_owned());
//!             Ok(())
//!         };
//!         events.iter().map(&mut put).collect()
//!     }
//!
//!     async fn probe(&self) -> Result<(), DeliveryError> {
//!         Ok(())
//!     }
//! }
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
//! # runtime.block_on(async {
//! let event = Event::builder("com.example.order.paid", "/shop").json("{}").build()?;
//! let attempt = Attempt {
//!     dedup_id: event.dedup_id(),
//!     event: event.into(),
//!     uid: "shelf:1".parse()?,
//!     version: 1,
//!     number: 1,
//! };
//! let shelf = Shelf(Mutex::default());
//! let results = shelf.deliver(&[attempt.clone(), attempt]).await;
//! assert!(results[0].is_ok());
//! assert_eq!(results[1].as_ref().unwrap_err().verdict(), Verdict::Hold);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is shared
//! - [`TargetUri`] takes a target's URI apart: the URL untouched, the [`TargetOptions`] that every target knows, and
//!   the options of its kind. Errors list what is valid and show no credential.
//! - [`encode`] writes the body formats; [`Secret`] holds credentials; [`redact`] keeps them out of texts.
//! - [`Address`] takes a URL like `scheme://user:password@host:port/path` apart; a [`Template`] makes a subject, topic
//!   or key out of an event's attributes; `net` (feature of that name) has deadlines, cached connections and TLS.
//! - `testkit` (feature of that name) is the conformance kit: named tests that every target passes.
//!
//! # Rules for targets
//! - *Delivered* is the strongest acknowledgement that the protocol has.
//! - An unknown error is `Retry`, never `Reject`.
//! - No secret in `Debug` or in an error, its sources included; [`DeliveryError::detail`] cleans URLs, nothing else.
//! - A dropped future leaves the target usable.

mod address;
mod config_error;
mod contract;
pub mod encode;
mod error;
#[cfg(feature = "net")]
pub mod net;
mod options;
mod redact;
mod secret;
mod template;
#[cfg(feature = "testkit")]
pub mod testkit;
mod uri;

pub use async_trait::async_trait;
pub use outhaul_event;

pub use address::Address;
pub use config_error::ConfigError;
pub use contract::{Attempt, BatchOrder, Capabilities, Target};
pub use error::{DETAIL_BYTES_MAX, DeliveryError, ErrorKind, Verdict};
pub use options::{
    FailedCompat, FailedFull, Format, Mode, OPTION_KEYS, OnExhausted, OnReject, TargetOptions, WhenFull,
    duration, one_of, size,
};
pub use redact::redact;
pub use secret::{Secret, SecretError};
pub use template::{Template, TemplateError};
pub use uri::{TargetUri, percent_decode};
