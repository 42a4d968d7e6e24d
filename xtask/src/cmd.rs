//! Child processes and steps: what runs is printed, what fails is named.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

/// Runs `work` as a step with a name, and prints how long it took.
pub(crate) fn step(name: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    println!("--- {name}");
    let start = Instant::now();
    let result = work();
    let word = if result.is_ok() { "ok" } else { "FAILED" };
    println!("--- {name}: {word} ({:.1} s)", start.elapsed().as_secs_f64());
    result.with_context(|| format!("{name} failed"))
}

/// A cargo command in the workspace root.
pub(crate) fn cargo(root: &Path, args: &[&str]) -> Command {
    tool(root, Path::new("cargo"), args)
}

/// A command in the workspace root, without the variables by which `cargo run` describes xtask itself: build scripts
/// track some of them and would run again whenever cargo was started from here.
pub(crate) fn tool(root: &Path, program: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).current_dir(root).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// Runs to the end with the terminal's output; anything but success is an error that shows the command.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    println!("    {}", show(command));
    let status = command.status().with_context(|| format!("cannot start `{}`", show(command)))?;
    if !status.success() {
        bail!("`{}` ended with {status}; its own message is above", show(command));
    }
    Ok(())
}

/// Runs to the end and returns what it wrote to standard output; its standard error is shown.
pub(crate) fn read(command: &mut Command) -> Result<String> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start `{}`", show(command)))?;
    if !output.status.success() {
        bail!("`{}` ended with {}; its own message is above", show(command), output.status);
    }
    String::from_utf8(output.stdout)
        .with_context(|| format!("`{}` wrote something else than UTF-8", show(command)))
}

/// The command as a person would type it, with the variables that were set for it.
pub(crate) fn show(command: &Command) -> String {
    let set = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
    let mut words: Vec<String> = set
        .map(|(name, value)| format!("{}={}", name.to_string_lossy(), quoted(&value.to_string_lossy())))
        .collect();
    words.push(quoted(&command.get_program().to_string_lossy()));
    words.extend(command.get_args().map(|arg| quoted(&arg.to_string_lossy())));
    words.join(" ")
}

fn quoted(word: &str) -> String {
    if word.contains(|c: char| c.is_whitespace() || "\"'$&|;<>*()".contains(c)) {
        format!("'{}'", word.replace('\'', r"'\''"))
    } else {
        word.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_ready_to_copy() {
        let mut command = cargo(Path::new("/"), &["doc", "--no-deps"]);
        command.env("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(show(&command), "RUSTDOCFLAGS='-D warnings' cargo doc --no-deps");
    }

    #[test]
    fn a_failing_command_is_an_error_that_names_it() {
        let error = run(&mut tool(Path::new("/"), Path::new("false"), &["--quite"])).unwrap_err();
        assert!(error.to_string().contains("`false --quite` ended with exit status: 1"), "{error}");
    }

    #[test]
    fn a_failing_step_is_an_error_that_names_it() {
        let error = step("weather", || bail!("rain")).unwrap_err();
        assert_eq!(format!("{error:#}"), "weather failed: rain");
    }
}
