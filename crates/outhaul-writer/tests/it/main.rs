//! The contract of the writer, a test per rule.

#![expect(clippy::unwrap_used, reason = "the helpers of tests fail like tests")]

mod admission;
mod bookkeeping;
mod close;
mod coalesce;
mod example;
mod failure;
mod flush;
mod foreign;
mod fresh;
mod gather;
mod hold;
mod latch;
mod logged;
mod model;
mod observe;
mod order;
mod soak;
mod support;
