//! The runtime against targets that behave as told, on a paused clock.

#![expect(clippy::unwrap_used, reason = "a failed expectation ends a test")]

mod alone;
mod asked;
mod blame;
mod clocks;
mod delivery;
mod far;
mod gate;
mod hanging;
mod health;
mod histories;
mod kept;
mod lifecycle;
mod moves;
mod poisons;
mod promises;
mod random;
mod sim;
mod support;
mod surface;
mod throttle;
mod traps;
mod verbs;
