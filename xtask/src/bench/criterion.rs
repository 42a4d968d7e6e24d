//! The criterion benchmarks of the crates: trends of one thing, without rivals or goals.

use std::path::Path;

use anyhow::{Result, bail};

use crate::cmd::{self, step};
use crate::metadata::Metadata;

/// Only the benchmark binaries run, by name: `cargo bench` alone would also start every unit test binary.
pub(super) fn run(root: &Path, metadata: &Metadata, suite: Option<&str>) -> Result<()> {
    let packages: Vec<_> = match suite {
        Some(name) => vec![metadata.package(name)?],
        None => metadata.packages.iter().collect(),
    };
    let all = packages.iter().flat_map(|p| p.benches().map(|bench| (p.name.as_str(), bench)));
    let benches: Vec<(&str, &str)> = all.collect();
    if benches.is_empty() {
        let of = suite.unwrap_or("the workspace");
        bail!(
            "{of} has no benchmarks; they are files in a crate's `benches/` with a [[bench]] in its manifest"
        );
    }
    for (package, bench) in benches {
        let args = ["bench", "-p", package, "--all-features", "--locked", "--bench", bench];
        step(&format!("{package} {bench}"), || cmd::run(&mut cmd::cargo(root, &args)))?;
    }
    Ok(())
}
