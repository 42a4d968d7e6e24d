//! `cargo xtask test`: the gate, one crate, or everything.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::cmd::{self, step};
use crate::metadata::{Metadata, Package};
use crate::services;

/// The facade, whose features are each built alone.
const FACADE: &str = "outhaul";

/// By how much `test all` and `soak` multiply the slow suites: simulated disk states, crash rounds.
pub(crate) const SLOW_SCALE: &str = "10";

pub(crate) fn run(root: &Path, suite: Option<&str>, name: Option<&str>) -> Result<()> {
    if suite != Some(TARGETS) && name.is_some() {
        bail!("only `test {TARGETS}` takes a second name");
    }
    match suite {
        None => {
            servers()?;
            step("test", || cmd::run(&mut gate(root)))
        }
        Some("all") => all(root),
        Some(TARGETS) => {
            servers()?;
            targets(&Metadata::load(root)?, name)?.iter().try_for_each(|package| one(root, package))
        }
        Some(name) => one(root, &Metadata::load(root)?.package(name)?.name),
    }
}

/// The suite of all target crates.
const TARGETS: &str = "targets";

/// What a target crate's name begins with.
const TARGET: &str = "outhaul-target-";

/// The tests that need a server fail, with the reason, where it is not installed.
fn servers() -> Result<()> {
    step("servers", || services::install_all(&[]))
}

fn one(root: &Path, package: &str) -> Result<()> {
    step(package, || cmd::run(&mut cmd::cargo(root, &["test", "-p", package, "--all-features", "--locked"])))
}

/// The crates of all targets, or of the one with this name.
fn targets<'a>(metadata: &'a Metadata, name: Option<&str>) -> Result<Vec<&'a str>> {
    let all =
        metadata.packages.iter().map(|package| package.name.as_str()).filter(|of| of.starts_with(TARGET));
    let wanted = name.map(|name| format!("{TARGET}{}", name.trim_start_matches(TARGET)));
    let found: Vec<&str> = all.filter(|of| wanted.as_ref().is_none_or(|wanted| wanted == of)).collect();
    if found.is_empty() {
        bail!("there is no target `{}`", name.unwrap_or_default());
    }
    Ok(found)
}

/// The features are those of clippy and of the documentation, so that a dependency is compiled in one shape only.
fn gate(root: &Path) -> Command {
    cmd::cargo(root, &["test", "--workspace", "--all-features", "--locked"])
}

fn all(root: &Path) -> Result<()> {
    servers()?;
    let metadata = Metadata::load(root)?;
    for arguments in checks(metadata.package(FACADE)?, &metadata.packages) {
        step(&arguments.join(" "), || {
            let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
            cmd::run(&mut cmd::cargo(root, &words))
        })?;
    }
    for words in MODELS {
        step(&format!("model of {}", words[0]), || cmd::run(&mut model(root, &metadata, words)))?;
    }
    step("test all", || cmd::run(gate(root).env("OUTHAUL_TEST_SCALE", SLOW_SCALE)))
}

/// What runs under a model of threads: the store's commit round, the writer.
const MODELS: [&[&str]; 2] = [
    &["outhaul-store", "--features", "testkit", "--lib", "journal::model"],
    &["outhaul-writer", "--lib", "model"],
];

/// A model's flag changes every crate, so it has a directory of its own.
fn model(root: &Path, metadata: &Metadata, words: &[&str]) -> Command {
    let mut command = cmd::cargo(root, &[&["test", "--locked", "-p"], words].concat());
    command.env("RUSTFLAGS", "--cfg outhaul_model").env("OUTHAUL_TEST_SCALE", SLOW_SCALE);
    command.env("CARGO_TARGET_DIR", metadata.target_directory.join("model"));
    command
}

/// One cargo command line for each crate alone, for the facade with nothing, and for each of its features alone.
fn checks(facade: &Package, packages: &[Package]) -> Vec<Vec<String>> {
    let check = |package: &str, more: &[&str]| -> Vec<String> {
        let words = [&["check", "--locked", "-p", package], more].concat();
        words.into_iter().map(str::to_owned).collect()
    };
    let mut lines: Vec<Vec<String>> = packages.iter().map(|p| check(&p.name, &[])).collect();
    lines.push(check(&facade.name, &["--no-default-features"]));
    for feature in facade.features.keys().filter(|name| *name != "default") {
        lines.push(check(&facade.name, &["--no-default-features", "--features", feature]));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_targets_are_found_by_their_names() {
        let json = r#"{"target_directory": "/t", "packages": [
            {"name": "outhaul-target", "dependencies": [], "features": {}, "targets": []},
            {"name": "outhaul-target-nats", "dependencies": [], "features": {}, "targets": []},
            {"name": "outhaul-target-file", "dependencies": [], "features": {}, "targets": []}]}"#;
        let metadata: Metadata = serde_json::from_str(json).unwrap();
        assert_eq!(targets(&metadata, None).unwrap(), ["outhaul-target-nats", "outhaul-target-file"]);
        assert_eq!(targets(&metadata, Some("nats")).unwrap(), ["outhaul-target-nats"]);
        assert_eq!(targets(&metadata, Some("outhaul-target-file")).unwrap(), ["outhaul-target-file"]);
        assert!(targets(&metadata, Some("natz")).unwrap_err().to_string().contains("`natz`"));
    }

    #[test]
    fn each_crate_and_each_feature_of_the_facade_is_checked_alone() {
        let json = r#"{"target_directory": "/t", "packages": [
            {"name": "outhaul-event", "dependencies": [], "features": {"x": []}, "targets": []},
            {"name": "outhaul", "dependencies": [], "features": {"default": ["file"], "file": []}, "targets": []}]}"#;
        let metadata: Metadata = serde_json::from_str(json).unwrap();
        let lines = checks(metadata.package(FACADE).unwrap(), &metadata.packages);
        let lines: Vec<String> = lines.iter().map(|words| words.join(" ")).collect();
        assert_eq!(
            lines,
            [
                "check --locked -p outhaul-event",
                "check --locked -p outhaul",
                "check --locked -p outhaul --no-default-features",
                "check --locked -p outhaul --no-default-features --features file",
            ]
        );
    }
}
