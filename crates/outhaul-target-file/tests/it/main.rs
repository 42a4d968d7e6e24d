//! The target against real files and pipes.

mod conformance;
mod files;
mod streams;
mod support;
