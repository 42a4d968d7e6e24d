//! The event crate from outside.

#![expect(clippy::unwrap_used, reason = "a failed expectation ends a test")]

mod encoding;
mod http;
mod json;
