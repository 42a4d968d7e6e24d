//! The target against a real nats-server.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod access;
mod conformance;
mod streams;
mod support;
