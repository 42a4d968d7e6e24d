//! The target against real files and pipes.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod conformance;
mod files;
mod streams;
mod support;
