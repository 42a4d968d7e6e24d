//! The public face of the crate.

#[cfg(feature = "testkit")]
mod kit;
mod uri;
