//! The built program from outside: standard input and output, real HTTP, signals and crashes.

#![expect(clippy::unwrap_used, reason = "a failed expectation ends a test")]

mod crash;
mod engines;
mod failed;
mod faults;
mod import;
mod ingest;
mod pipe;
mod queue;
mod receiver;
mod relay;
mod requeue;
mod resume;
mod support;
mod usage;
