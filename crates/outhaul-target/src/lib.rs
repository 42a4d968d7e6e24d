//! The contract between Outhaul and whatever events are delivered to.

mod config_error;
mod contract;
pub mod encode;
mod error;
mod options;
mod redact;
mod secret;
#[cfg(feature = "testkit")]
pub mod testkit;
mod uri;

pub use async_trait::async_trait;
pub use outhaul_event;

pub use config_error::ConfigError;
pub use contract::{Attempt, BatchOrder, Capabilities, Target};
pub use error::{DETAIL_BYTES_MAX, DeliveryError, ErrorKind, Verdict};
pub use options::{
    Format, OPTION_KEYS, OnExhausted, OnReject, TargetOptions, WhenFull, duration, one_of, size,
};
pub use redact::redact;
pub use secret::{Secret, SecretError};
pub use uri::{TargetUri, percent_decode};
