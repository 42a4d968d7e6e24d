//! [`ConfigError`]: why a target cannot be made from what was written.

use std::error::Error;
use std::fmt;

use crate::redact::redact;

/// A target's configuration is wrong. It is the operator's to correct; no text in it holds a credential.
#[derive(Clone, PartialEq, Eq)]
pub struct ConfigError {
    what: String,
    place: String,
    why: String,
    help: String,
}

impl ConfigError {
    /// What is wrong, where, why, and what to do, each in a few words. URLs in them are stripped of credentials.
    pub fn new(
        what: impl AsRef<str>,
        place: impl AsRef<str>,
        why: impl AsRef<str>,
        help: impl AsRef<str>,
    ) -> Self {
        Self {
            what: redact(what.as_ref()),
            place: redact(place.as_ref()),
            why: redact(why.as_ref()),
            help: redact(help.as_ref()),
        }
    }

    /// What is wrong: `the option outhaul.timeout is not valid`.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// Where it stands: the URI without its credentials, or a file.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Why it cannot be accepted.
    pub fn why(&self) -> &str {
        &self.why
    }

    /// What to do about it.
    pub fn help(&self) -> &str {
        &self.help
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in `{}`: {}; {}", self.what, self.place, self.why, self.help)
    }
}

impl fmt::Debug for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConfigError({self})")
    }
}

impl Error for ConfigError {}
