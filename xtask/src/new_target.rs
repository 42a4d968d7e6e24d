//! `cargo xtask new-target NAME`: a crate that compiles and passes the conformance kit, and its places elsewhere.
//!
//! Nothing is written unless everything can be. The code is that of `docs/adding-a-target.md`, which the tests of
//! `outhaul-target` compile and run.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::cmd;

const TARGET: &str = include_str!("../templates/target/lib.rs");
const TEST: &str = include_str!("../templates/target/conformance.rs");

pub(crate) fn run(root: &Path, name: &str) -> Result<()> {
    let read = |path: &str| {
        fs::read_to_string(root.join(path))
            .with_context(|| format!("cannot read {}", root.join(path).display()))
    };
    let files = files(name, &read)?;
    if root.join(format!("crates/outhaul-target-{name}")).exists() {
        bail!("crates/outhaul-target-{name} is there already");
    }
    for (path, text) in &files {
        let path = root.join(path);
        let folder = path.parent().context("every file has a folder")?;
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        println!("    {}", path.display());
    }
    cmd::run(&mut cmd::cargo(root, &["fmt", "--all"]))?;
    println!("next: `cargo test -p outhaul-target-{name}` passes; then docs/adding-a-target.md");
    Ok(())
}

/// The paths and new texts of all files that a new target concerns.
fn files(name: &str, read: &dyn Fn(&str) -> Result<String>) -> Result<Vec<(String, String)>> {
    let valid = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    if !name.starts_with(|c: char| c.is_ascii_lowercase()) || !name.bytes().all(valid) {
        bail!("`{name}` is no name for a target: lower-case letters and digits, beginning with a letter");
    }
    let mut upper = name.to_owned();
    upper[..1].make_ascii_uppercase();
    let own = |text: &str| {
        let text = text.replace("outhaul_target_lines", &format!("outhaul_target_{name}"));
        let text =
            text.replace("lines://", &format!("{name}://")).replace("\"lines\"", &format!("\"{name}\""));
        text.replace("Lines", &upper)
    };
    let krate = format!("crates/outhaul-target-{name}");
    let mut files = vec![
        (format!("{krate}/Cargo.toml"), manifest(name)),
        (format!("{krate}/src/lib.rs"), format!("{}\n{}", header(name), own(TARGET))),
        (
            format!("{krate}/tests/it/main.rs"),
            "//! The target against its receiver.\n\n#![expect(clippy::unwrap_used, reason = \"a test that cannot go on \
             fails\")]\n\nmod conformance;\n"
                .to_owned(),
        ),
        (
            format!("{krate}/tests/it/conformance.rs"),
            format!("//! The conformance kit, against a receiver behind a proxy.\n\n{}", own(TEST)),
        ),
        (format!("docs/targets/{name}.md"), page(name)),
    ];
    let mut edit = |path: &str, edits: &[(&str, String)]| -> Result<()> {
        let mut text = read(path)?;
        for (mark, line) in edits {
            let at = text.find(mark).with_context(|| format!("{path} has no `{}` any more", mark.trim()))?;
            text.insert_str(at, line);
        }
        files.push((path.to_owned(), text));
        Ok(())
    };
    let dependency = format!("outhaul-target-{name}");
    edit(
        "Cargo.toml",
        &[("outhaul-target-webhook =", format!("{dependency} = {{ path = \"{krate}\" }}\n"))],
    )?;
    edit(
        "crates/outhaul/Cargo.toml",
        &[
            ("\"webhook\"]\n# Appends", format!("\"{name}\", ")),
            ("# Posts events", format!("# Delivers to {name}.\n{name} = [\"dep:{dependency}\"]\n")),
            ("outhaul-target-webhook =", format!("{dependency} = {{ workspace = true, optional = true }}\n")),
        ],
    )?;
    edit("crates/outhaul/src/kinds.rs", &[("    // `cargo xtask new-target` writes", kind(name, &upper))])?;
    edit(
        "crates/outhaul/src/lib.rs",
        &[
            ("//! | `webhook` (default)", format!("//! | `{name}` | `{name}://…` | `{name}` |\n")),
            (
                "#[cfg(feature = \"webhook\")]\npub use",
                format!("#[cfg(feature = \"{name}\")]\npub use outhaul_target_{name} as {name};\n"),
            ),
        ],
    )?;
    edit(
        "crates/outhaul-cli/Cargo.toml",
        &[("\n[dependencies]\n", format!("{name} = [\"outhaul/{name}\"]\n"))],
    )?;
    let (_, cli) = files.last_mut().context("the last edit is there")?;
    for list in ["default = [", "full = ["] {
        let at = cli
            .find(list)
            .with_context(|| format!("crates/outhaul-cli/Cargo.toml has no `{list}` any more"))?;
        cli.insert_str(at + list.len(), &format!("\"{name}\", "));
    }
    Ok(files)
}

fn manifest(name: &str) -> String {
    format!(
        r#"[package]
name = "outhaul-target-{name}"
description = "Delivers Outhaul's events to {name}"
version.workspace = true
edition.workspace = true
rust-version.workspace = true
license.workspace = true
publish.workspace = true

[dependencies]
outhaul-target = {{ workspace = true, features = ["net"] }}
tokio = {{ workspace = true, features = ["io-util", "net"] }}

[dev-dependencies]
outhaul-services.workspace = true
outhaul-target = {{ workspace = true, features = ["testkit"] }}

[lints]
workspace = true
"#
    )
}

fn header(name: &str) -> String {
    format!(
        "//! Delivers Outhaul's events to {name}: `{name}://HOST:PORT`.\n//!\n//! It begins as a sender of lines that are \
         answered with `ok`; see `docs/adding-a-target.md`.\n//!\n//! # Verdicts\n//!\n//! | answer or failure | kind | \
         verdict |\n//! |---|---|---|\n//! | `ok` | – | delivered |\n//! | connection refused | `ConnectionRefused` | \
         Hold |\n//! | connection broke | `ConnectionReset` | Hold |\n//! | deadline passed | `TimedOut` | Retry |\n//! | \
         anything else | `Unknown` | Retry |\n"
    )
}

fn kind(name: &str, upper: &str) -> String {
    format!(
        r#"    #[cfg(feature = "{name}")]
    Kind {{
        name: "{name}",
        schemes: &["{name}"],
        forms: &["{name}://…"],
        make: make!(outhaul_target_{name}::{upper}),
    }},
"#
    )
}

fn page(name: &str) -> String {
    format!(
        "# {name}\n\n`{name}://HOST:PORT` delivers each event as one line.\n\n```sh\nouthaul run --to {name}://127.0.0.1:7777\n\
         ```\n\n## Options\n\nThose of every target: see [tools.md](../tools.md).\n\n## Verdicts\n\nThe table is in the \
         documentation of the crate `outhaul-target-{name}`.\n\n## What the conformance kit leaves out\n\nWhat needs a server \
         process: the receiver is a thread of the test.\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On the files of this workspace, without writing any.
    fn made(name: &str) -> Result<Vec<(String, String)>> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        files(name, &|path| Ok(fs::read_to_string(root.join(path))?))
    }

    #[test]
    fn everything_that_a_target_needs_is_written() {
        let files = made("pigeon").unwrap();
        let text = |path: &str| &files.iter().find(|(of, _)| of == path).unwrap().1;
        assert!(
            text("Cargo.toml")
                .contains("outhaul-target-pigeon = { path = \"crates/outhaul-target-pigeon\" }")
        );
        let facade = text("crates/outhaul/Cargo.toml");
        assert!(
            facade.contains("pigeon = [\"dep:outhaul-target-pigeon\"]")
                && facade.contains("\"pigeon\", \"webhook\"]")
        );
        assert!(text("crates/outhaul/src/kinds.rs").contains("make!(outhaul_target_pigeon::Pigeon)"));
        assert!(text("crates/outhaul/src/lib.rs").contains("pub use outhaul_target_pigeon as pigeon;"));
        let cli = text("crates/outhaul-cli/Cargo.toml");
        assert!(cli.contains("default = [\"pigeon\", ") && cli.contains("pigeon = [\"outhaul/pigeon\"]"));
        let code = text("crates/outhaul-target-pigeon/src/lib.rs");
        assert!(
            code.contains("pub struct Pigeon") && code.contains("pigeon://HOST") && !code.contains("Lines")
        );
        assert!(text("crates/outhaul-target-pigeon/tests/it/conformance.rs").contains("LineReceiver::start"));
        assert!(text("docs/targets/pigeon.md").starts_with("# pigeon"));
    }

    #[test]
    fn a_name_that_is_none_is_refused() {
        for name in ["", "Pigeon", "2pigeons", "pi-geon", "pi geon"] {
            assert!(made(name).unwrap_err().to_string().contains("is no name for a target"), "{name}");
        }
    }
}
