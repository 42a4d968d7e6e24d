//! The built program from outside: standard input and output, real HTTP, signals and crashes.

#![expect(clippy::unwrap_used, reason = "a failed expectation ends a test")]

mod crash;
mod failed;
mod faults;
mod ingest;
mod pipe;
mod receiver;
mod relay;
mod resume;
mod support;
mod usage;
