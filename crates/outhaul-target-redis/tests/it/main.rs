//! The target against a real redis-server.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod conformance;
mod order;
mod refusals;
mod repeats;
mod replicas;
mod support;
