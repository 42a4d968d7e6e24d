//! The criterion benchmarks of the crates: trends of one thing, without rivals or goals.

use std::path::Path;

use anyhow::Result;

use crate::cmd::{self, step};
use crate::metadata::{Metadata, Package};

/// The crates that have some.
pub(super) fn packages(metadata: &Metadata) -> impl Iterator<Item = &Package> {
    metadata.packages.iter().filter(|package| package.benches().next().is_some())
}

/// Only the benchmark binaries run, by name: `cargo bench` alone would also start every unit test binary.
pub(super) fn run<'a>(root: &Path, packages: impl Iterator<Item = &'a Package>) -> Result<()> {
    for package in packages {
        for bench in package.benches() {
            let args = ["bench", "-p", &package.name, "--all-features", "--locked", "--bench", bench];
            step(&format!("{} {bench}", package.name), || cmd::run(&mut cmd::cargo(root, &args)))?;
        }
    }
    Ok(())
}
