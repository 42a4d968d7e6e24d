//! All automation of the workspace, run as `cargo xtask VERB`.
//!
//! It is compiled before everything else, so it depends on little; of the workspace only on the servers of the tests. CI calls its
//! verbs and holds no logic of its own.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool speaks to a person")]

mod bench;
mod cmd;
mod deny;
mod edges;
mod lint;
mod metadata;
mod new_target;
mod services;
mod soak;
mod test;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "All automation of the Outhaul workspace")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Tidy rules, dependency edges, rustfmt, clippy, docs, cargo-deny; warnings are errors
    Lint,
    /// The gate: every test of the workspace
    Test {
        /// `all` adds the slow suites and builds each feature and crate alone; `targets` is every target crate
        /// against its servers; any other name is one crate,
        /// with or without `outhaul-`
        suite: Option<String>,
        /// Behind `targets`: one of them, with or without `outhaul-target-`
        name: Option<String>,
    },
    /// Real servers to try a target against: installs what is missing, starts, ends
    Services(services::Options),
    /// Repeats the slow suites with new seeds until the time is over or one fails
    Soak(soak::Options),
    /// Begins a target: its crate with a passing conformance kit, docs page, facade feature and scheme
    NewTarget {
        /// Lower-case letters and digits: crate, feature, scheme and docs page are called so
        name: String,
    },
    /// Measures a suite against its goals and its rivals, or runs the criterion benchmarks of the crates
    Bench(bench::Options),
}

fn main() -> ExitCode {
    match run(Cli::parse().verb) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("\nerror: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(verb: Verb) -> Result<ExitCode> {
    let root = workspace_root()?;
    match verb {
        Verb::Lint => lint::run(&root)?,
        Verb::Test { suite, name } => test::run(&root, suite.as_deref(), name.as_deref())?,
        Verb::Services(options) => services::run(&root, &options)?,
        Verb::NewTarget { name } => new_target::run(&root, &name)?,
        Verb::Soak(options) => soak::run(&root, &options)?,
        Verb::Bench(options) => return bench::run(&root, &options),
    }
    Ok(ExitCode::SUCCESS)
}

/// The folder above this package. It is asked for at run time: a binary that was built in another clone, with the
/// same target directory, must not look there.
fn workspace_root() -> Result<PathBuf> {
    let package = std::env::var_os("CARGO_MANIFEST_DIR")
        .context("CARGO_MANIFEST_DIR is not set; start this as `cargo xtask …`, not by its path")?;
    let mut root = PathBuf::from(package);
    root.pop();
    Ok(root)
}
