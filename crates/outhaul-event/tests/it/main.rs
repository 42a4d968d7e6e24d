//! The event crate from outside.

mod encoding;
mod http;
mod json;
