//! The public face of the crate.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[cfg(all(feature = "net", feature = "testkit"))]
mod adding;
#[cfg(feature = "testkit")]
mod kit;
mod uri;
