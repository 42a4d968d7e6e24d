//! The store from outside.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a failed expectation ends a test")]

mod exhaustive;
mod faults;
#[cfg(target_os = "linux")]
mod flushes;
mod fuzz;
mod golden;
mod journal;
mod kv;
mod merging;
mod model;
mod modes;
mod segments;
mod sim;
mod store;
mod support;
