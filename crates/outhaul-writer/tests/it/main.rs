//! The contract of the writer, a test per rule.

#![expect(clippy::unwrap_used, reason = "the helpers of tests fail like tests")]

mod admission;
mod bookkeeping;
mod close;
mod failure;
mod flush;
mod gather;
mod latch;
mod logged;
mod model;
mod order;
mod soak;
mod support;
