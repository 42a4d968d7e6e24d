//! The public face of the crate.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[cfg(feature = "testkit")]
mod kit;
mod uri;
