//! The target against a real RabbitMQ.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod conformance;
mod declare;
mod support;
mod verdicts;
mod wire;
