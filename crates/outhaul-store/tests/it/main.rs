//! The store from outside.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a failed expectation ends a test")]

mod closing;
mod counting;
mod exhaustive;
mod failed;
mod failed_counters;
mod faults;
#[cfg(target_os = "linux")]
mod flushes;
mod fuzz;
mod golden;
mod import;
mod journal;
mod kv;
mod merging;
mod model;
mod modes;
mod reads;
mod repair;
mod segments;
mod sim;
mod spool;
mod spool_failed;
mod spool_rename;
mod spool_sim;
mod store;
mod support;
