//! Files and helper programs, with errors that name them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::error::Error;

/// Writes a file that only its owner reads.
pub(crate) fn write(path: &Path, text: impl AsRef<[u8]>) -> Result<(), Error> {
    let file = |source| Error::File { path: path.to_owned(), source };
    fs::write(path, text).map_err(file)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(file)
}

/// Makes a directory and those above it.
pub(crate) fn directory(path: &Path) -> Result<(), Error> {
    fs::create_dir_all(path).map_err(|source| Error::File { path: path.to_owned(), source })
}

/// Runs a program to its end; anything but success is an error with what it wrote.
pub(crate) fn run(command: &mut Command) -> Result<String, Error> {
    let shown = || {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    };
    let shown = shown();
    let fail = |output: String| Error::Command { command: shown.clone(), output };
    let output = command.stdin(Stdio::null()).output().map_err(|error| fail(error.to_string()))?;
    if !output.status.success() {
        let both = [output.stdout, output.stderr].concat();
        return Err(fail(format!("{}: {}", output.status, String::from_utf8_lossy(&both).trim())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The last lines of a log.
pub(crate) fn tail(path: &Path, lines: usize) -> String {
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
