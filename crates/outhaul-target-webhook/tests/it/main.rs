//! The target against real HTTP servers.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod conformance;
mod http;
mod sockets;
mod support;
mod tls;
