//! The servers, as tests of targets use them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod handle;
mod proxy;
