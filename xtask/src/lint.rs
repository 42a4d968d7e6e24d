//! `cargo xtask lint`: everything that can be said about the workspace without running it.

use std::path::Path;

use anyhow::{Result, bail};

use crate::cmd::{self, step};
use crate::deny::Deny;
use crate::{edges, tidy};

/// The cheap steps all run, so that one look shows all they found; the slow ones stop at the first failure.
pub(crate) fn run(root: &Path) -> Result<()> {
    let cheap = [
        step("tidy", || tidy::check(root)),
        step("edges", || edges::check(root)),
        step("fmt", || cmd::run(&mut cmd::cargo(root, &["fmt", "--all", "--check"]))),
    ];
    let failures: Vec<String> = cheap.into_iter().filter_map(Result::err).map(|e| format!("{e:#}")).collect();
    if !failures.is_empty() {
        bail!("{}", failures.join("\n\nerror: "));
    }
    step("clippy", || cmd::run(&mut clippy(root)))?;
    step("doc", || cmd::run(&mut doc(root)))?;
    step("deny", || Deny::find(root)?.check(root))?;
    step("advisories", || Deny::find(root)?.advisories(root))?;
    println!("lint: ok");
    Ok(())
}

fn clippy(root: &Path) -> std::process::Command {
    let what = ["clippy", "--workspace", "--all-targets", "--all-features", "--locked"];
    cmd::cargo(root, &[&what[..], &["--", "-D", "warnings"]].concat())
}

fn doc(root: &Path) -> std::process::Command {
    let mut command = cmd::cargo(root, &["doc", "--workspace", "--no-deps", "--all-features", "--locked"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    command
}
