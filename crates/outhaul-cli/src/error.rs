//! [`Exit`], what the shell is told, and [`CliError`], what a person is told.

use std::fmt;
use std::process::ExitCode;

use outhaul::OpenError;
use outhaul::runtime::StartError;
use outhaul::store::StoreError;

use crate::console::{counted, quoted};

/// The exit code. Where several apply, the first of `Interrupted`, `Wrong`, `Failed`, `Left`, `Attention` counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done.
    Done,
    /// Could not: I/O, a lock that is held, nobody answers.
    Failed,
    /// Wrong input: usage, configuration, an event.
    Wrong,
    /// Done, but a person is needed.
    Attention,
    /// Stopped with entries left.
    Left,
    /// Interrupted.
    Interrupted,
}

impl Exit {
    /// The one that counts.
    pub(crate) fn and(self, other: Self) -> Self {
        let rank = |exit| match exit {
            Self::Done => 0,
            Self::Attention => 1,
            Self::Left => 2,
            Self::Failed => 3,
            Self::Wrong => 4,
            Self::Interrupted => 5,
        };
        if rank(other) > rank(self) { other } else { self }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        let code = match exit {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Wrong => 2,
            Exit::Attention => 3,
            Exit::Left => 4,
            Exit::Interrupted => 130,
        };
        Self::from(code)
    }
}

/// What went wrong, in one block: what, where, why, and what to do.
#[derive(Debug)]
pub(crate) struct CliError {
    /// What the shell is told.
    pub(crate) exit: Exit,
    what: String,
    place: Option<String>,
    why: Option<String>,
    help: Option<String>,
}

impl CliError {
    pub(crate) fn new(exit: Exit, what: impl Into<String>) -> Self {
        Self { exit, what: what.into(), place: None, why: None, help: None }
    }

    pub(crate) fn at(mut self, place: impl Into<String>) -> Self {
        self.place = Some(place.into());
        self
    }

    pub(crate) fn because(mut self, why: impl Into<String>) -> Self {
        self.why = Some(why.into());
        self
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.what)?;
        for (name, text) in [("where", &self.place), ("why", &self.why), ("help", &self.help)] {
            let Some(text) = text else { continue };
            let label = format!("{name}:");
            for (i, line) in text.lines().enumerate() {
                write!(f, "\n  {:<7}{line}", if i == 0 { label.as_str() } else { "" })?;
            }
        }
        Ok(())
    }
}

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> Self {
        // A path that names no data directory is a mistake in the command; all else is the machine's.
        let exit = match error {
            StoreError::Missing(_) | StoreError::NotADataDirectory(_) | StoreError::OtherEngine { .. } => {
                Exit::Wrong
            }
            StoreError::InUse { path, pid } => {
                let who = match pid {
                    Some(pid) => format!("process {pid} has it locked"),
                    None => "another process has it locked".to_owned(),
                };
                return Self::new(Exit::Failed, "the data directory is in use by another process")
                    .at(path.display().to_string())
                    .because(who)
                    .help("stop that process, or give this one a directory of its own");
            }
            StoreError::FormatLost { path, reason, found, line } => {
                let what = format!("the file `format` of the data directory {reason}");
                let file = quoted(&path.join("format").display().to_string());
                let help = format!(
                    "put the file back from a copy, or write it again and check the directory; nothing was changed:\n\
                     printf '%s\\n' {} > {file}\nouthaul queue verify --data {}",
                    quoted(&line),
                    quoted(&path.display().to_string())
                );
                return Self::new(Exit::Failed, what)
                    .at(path.display().to_string())
                    .because(format!("the directory holds {found}; that file says how they are read"))
                    .help(help);
            }
            _ => Exit::Failed,
        };
        Self::new(exit, error.to_string())
    }
}

impl From<OpenError> for CliError {
    fn from(error: OpenError) -> Self {
        let exit = if error.is_usage() { Exit::Wrong } else { Exit::Failed };
        match error {
            OpenError::Config(error) => {
                Self::new(exit, error.what()).at(error.place()).because(error.why()).help(error.help())
            }
            OpenError::Start(StartError::Store(error)) => error.into(),
            OpenError::Start(StartError::Repoint { name, from, to, waiting }) => {
                let what = format!("target {name} points to another destination, and entries wait");
                // A digest stands where a value of the query was.
                let digest = from.contains("=~") || to.contains("=~");
                let note = match digest {
                    true => {
                        "\n`=~…` is the digest of a value; if only a token changed, it is the same receiver"
                    }
                    false => "",
                };
                Self::new(exit, what)
                    .at(format!("it delivered to {from}, and now points to {to}"))
                    .because(format!(
                        "{} admitted for the old destination",
                        counted(waiting, "entry was", "entries were")
                    ))
                    .help(format!(
                        "send them to the new one with `--repoint {name}`, or give it another name{note}"
                    ))
            }
            OpenError::Start(StartError::Twice(name)) => {
                Self::new(exit, format!("two targets are named {name}"))
                    .because("the queue belongs to the name, so a name is unique over all kinds")
                    .help("give one of them another name: `--to NAME=URI`")
            }
            other => Self::new(exit, other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heavier_exit_counts() {
        let order = [Exit::Done, Exit::Attention, Exit::Left, Exit::Failed, Exit::Wrong, Exit::Interrupted];
        for (i, low) in order.iter().enumerate() {
            for high in &order[i..] {
                assert_eq!(low.and(*high), *high);
                assert_eq!(high.and(*low), *high);
            }
        }
    }

    #[test]
    fn an_error_is_one_block() {
        let error = CliError::new(Exit::Wrong, "no target").at("--to").help("write\n  a\nor b");
        assert_eq!(
            error.to_string(),
            "error: no target\n  where: --to\n  help:  write\n           a\n         or b"
        );
    }
}
