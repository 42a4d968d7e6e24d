//! t
pub mod batch;
pub mod mapping;
pub mod names;
pub mod notification;
pub mod rqp1;
pub use names::safe_id;
