//! The delivery engine.
mod admit;
mod notice;
mod policy;
mod runtime;
mod status;
mod worker;

pub use admit::{AdmitError, Incoming, Pending};
pub use notice::Notice;
pub use outhaul_store as store;
pub use outhaul_store::event;
pub use outhaul_target as target;
pub use outhaul_writer as writer;
pub use runtime::{Runtime, RuntimeOptions, ShutdownReport, StartError, TargetSpec};
pub use status::{Health, State, TargetStatus};
