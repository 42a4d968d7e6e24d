//! cargo-deny: found, or installed once; licences, bans and sources always, advisories where they can be had.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::cmd;
use crate::metadata::Metadata;

/// The version whose configuration format `deny.toml` is written in.
const VERSION: &str = "0.20.2";

/// A cargo-deny that can be started.
pub(crate) struct Deny {
    program: PathBuf,
}

impl Deny {
    /// The one on the search path, else the one that was installed below the target directory, else installs it there.
    pub(crate) fn find(root: &Path) -> Result<Self> {
        let home = Metadata::load(root)?.target_directory.join("xtask-tools");
        for program in [PathBuf::from("cargo-deny"), home.join("bin/cargo-deny")] {
            if answers(&program) {
                return Ok(Self { program });
            }
        }
        println!(
            "    cargo-deny is missing: installing {VERSION} into {}; this takes minutes",
            home.display()
        );
        let build = home.join("build");
        let (home_text, build_text) = (home.to_string_lossy(), build.to_string_lossy());
        let place = ["--root", &home_text, "--target-dir", &build_text];
        let install = ["install", "cargo-deny", "--locked", "--version", VERSION];
        cmd::run(&mut cmd::cargo(root, &[&install[..], &place[..]].concat()))?;
        std::fs::remove_dir_all(&build).with_context(|| format!("cannot remove {}", build.display()))?;
        Ok(Self { program: home.join("bin/cargo-deny") })
    }

    /// Everything that needs no database.
    pub(crate) fn check(&self, root: &Path) -> Result<()> {
        // A wrapper in deny.toml may be a crate that only a later target brings in.
        let quiet = ["--allow", "unused-wrapper"];
        let check = ["--all-features", "--locked", "check"];
        let args = [&check[..], &quiet, &["bans", "licenses", "sources"]].concat();
        cmd::run(&mut cmd::tool(root, &self.program, &args))
    }

    /// Known vulnerabilities. A database that cannot be fetched is said in one line and is no failure; an advisory is.
    pub(crate) fn advisories(&self, root: &Path) -> Result<()> {
        let mut fetch = cmd::tool(root, &self.program, &["fetch", "db"]);
        // Nobody is asked for a password, and a line that stalls is given up.
        fetch.env("GIT_TERMINAL_PROMPT", "0");
        fetch.env("GIT_HTTP_LOW_SPEED_LIMIT", "1000").env("GIT_HTTP_LOW_SPEED_TIME", "30");
        let output = fetch.output().with_context(|| format!("cannot start `{}`", cmd::show(&fetch)))?;
        if !output.status.success() {
            println!("advisories: not run ({})", reason(&String::from_utf8_lossy(&output.stderr)));
            return Ok(());
        }
        // Offline from here on: what was fetched is what is checked.
        let args = ["--all-features", "--frozen", "check", "advisories"];
        cmd::run(&mut cmd::tool(root, &self.program, &args))
    }
}

fn answers(program: &Path) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// The one line of cargo-deny's complaint that says why: git's own word where there is one.
fn reason(complaint: &str) -> &str {
    let of = |mark: &str| complaint.lines().find_map(|line| Some(line.split_once(mark)?.1.trim()));
    of("fatal:").or_else(|| of("[ERROR]")).unwrap_or("its database cannot be fetched")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_one_line_and_gits_own_word_goes_first() {
        let complaint = "2026 [WARN] no config\n2026 [ERROR] failed to fetch: [\"clone\"]\nCloning…\nfatal: no such host\n";
        assert_eq!(reason(complaint), "no such host");
        assert_eq!(reason("2026 [ERROR] failed to fetch\n"), "failed to fetch");
        assert_eq!(reason(""), "its database cannot be fetched");
    }

    #[test]
    fn a_program_that_is_not_there_does_not_answer() {
        assert!(!answers(Path::new("/nonexistent/cargo-deny")));
    }
}
