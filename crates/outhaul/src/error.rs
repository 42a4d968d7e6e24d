//! Why Outhaul does not open.

use outhaul_runtime::event::{InvalidTargetName, TargetName};
use outhaul_runtime::target::ConfigError;
use outhaul_runtime::{ChangeError, StartError};

/// Why nothing was opened. Nothing was changed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A target's URI or options are wrong.
    #[error("{0}")]
    Config(ConfigError),
    /// A name that no target can have.
    #[error(transparent)]
    Name(#[from] InvalidTargetName),
    /// Several targets of one kind were given without names.
    #[error(
        "{} targets of the kind {kind} have no name of their own, and a queue belongs to a name; write\n{}",
        .uris.len(), lines(.kind, .uris)
    )]
    Unnamed {
        /// The kind.
        kind: String,
        /// Their URIs, without credentials, in the order given.
        uris: Vec<String>,
    },
    /// A re-point was allowed for a target that was not given.
    #[error("a re-point is allowed for {0:?}, but no target of that name was given")]
    UnknownRepoint(String),
    /// Two targets would write to one file.
    #[error(
        "the targets {first} and {second} both write to {file}; one of them is enough, or give each its own file"
    )]
    SameFile {
        /// The one given first.
        first: TargetName,
        /// The other.
        second: TargetName,
        /// The file.
        file: String,
    },
    /// No target was given.
    #[error("no target was given; events need somewhere to go, for example `file:delivered.ndjson`")]
    NoTarget,
    /// The store or a queue does not allow it.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Why a target was not put. Everything is as it was.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PutError {
    /// Its URI or options are wrong.
    #[error("{0}")]
    Config(ConfigError),
    /// It does not go together with another target.
    #[error(transparent)]
    Open(OpenError),
    /// The runtime does not do it.
    #[error(transparent)]
    Change(ChangeError),
}

impl OpenError {
    /// Whether what was asked for is wrong, as opposed to something that failed.
    pub fn is_usage(&self) -> bool {
        !matches!(self, Self::Start(StartError::Store(_)))
    }
}

fn lines(kind: &str, uris: &[String]) -> String {
    let line = |(number, uri): (usize, &String)| format!("  --to {kind}-{}={uri}", number + 1);
    uris.iter().enumerate().map(line).collect::<Vec<_>>().join("\n")
}
