//! The built program from outside: standard input and output, real HTTP, signals and crashes.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a failed expectation ends a test")]

mod admin;
mod amqp;
mod brokers;
mod check;
mod crash;
mod engines;
mod failed;
mod faults;
#[cfg(target_os = "linux")]
mod full;
mod import;
mod ingest;
#[cfg(target_os = "linux")]
mod lossy;
#[cfg(target_os = "linux")]
mod mounts;
mod mqtt;
mod nats;
mod operator;
mod pipe;
mod queue;
mod receiver;
mod redis;
mod relay;
mod requeue;
mod resume;
mod support;
mod usage;
