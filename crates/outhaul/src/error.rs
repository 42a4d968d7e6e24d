//! Why Outhaul does not open.

use outhaul_runtime::StartError;
use outhaul_runtime::event::{InvalidTargetName, TargetName};
use outhaul_runtime::target::ConfigError;

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
        "two targets of the kind {kind} have no name of their own, and a queue belongs to a name; write\n{lines}"
    )]
    Unnamed {
        /// The kind.
        kind: String,
        /// What to write instead, a line each.
        lines: String,
    },
    /// No target was given.
    #[error("no target was given; events need somewhere to go, for example `file:delivered.ndjson`")]
    NoTarget,
    /// The store or a queue does not allow it.
    #[error(transparent)]
    Start(#[from] StartError),
}

impl OpenError {
    /// Whether what was asked for is wrong, as opposed to something that failed.
    pub fn is_usage(&self) -> bool {
        !matches!(self, Self::Start(StartError::Store(_)))
    }

    pub(crate) fn unnamed(kind: &TargetName, uris: &[String]) -> Self {
        let line = |(number, uri): (usize, &String)| format!("  --to {kind}-{}={uri}", number + 1);
        let lines: Vec<String> = uris.iter().enumerate().map(line).collect();
        Self::Unnamed { kind: kind.to_string(), lines: lines.join("\n") }
    }
}
