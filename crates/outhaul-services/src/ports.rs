//! Free loopback ports.

use std::net::{Ipv4Addr, TcpListener};

/// Ports below the range from which the kernel takes those of clients, so that nobody has it when a server that was
/// stopped comes back to its own.
const RANGE: std::ops::Range<u16> = 10_000..32_000;

/// A port that nobody listens on.
///
/// # Panics
/// There is none.
pub(crate) fn free() -> u16 {
    let port = std::iter::repeat_with(|| fastrand::u16(RANGE)).take(10_000);
    let mut free = port.filter(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok());
    free.next().expect("one of thousands of ports is free")
}
