//! The target against a real mosquitto.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod conformance;
mod sessions;
mod support;
mod verdicts;
mod wire;
