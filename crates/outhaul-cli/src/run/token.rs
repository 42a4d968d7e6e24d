//! [`Token`]: who may send events.

use std::path::Path;
use std::sync::Arc;

use http::{HeaderMap, header};
use outhaul::target::Secret;
use sha2::{Digest as _, Sha256};

use crate::error::{CliError, Exit};

/// A bearer token in a file, which is read again when it changes.
pub(crate) struct Token(Secret);

impl Token {
    /// Reads the file once, so that a mistake shows at the start.
    pub(crate) fn open(path: &Path) -> Result<Self, CliError> {
        let wrong = |why: String| {
            CliError::new(Exit::Wrong, "the token cannot be read")
                .at(format!("--token-file {}", path.display()))
                .because(why)
                .help("write the token into the file, on one line; only its owner should be able to read it")
        };
        let secret = Secret::file(path);
        let token = secret.read().map_err(|e| wrong(e.source.to_string()))?;
        // What a header cannot carry would never match.
        if token.is_empty() || !token.bytes().all(|b| (0x21..=0x7E).contains(&b)) {
            let why =
                if token.is_empty() { "it is empty" } else { "a token is printable ASCII without spaces" };
            return Err(wrong(why.to_owned()));
        }
        Ok(Self(secret))
    }

    /// Whether a request carries it. Takes the same time wherever two tokens differ.
    pub(crate) fn admits(&self, headers: &HeaderMap) -> bool {
        let expected: Arc<str> = match self.0.read() {
            Ok(token) if !token.is_empty() => token,
            Ok(_) => return false,
            Err(error) => {
                tracing::error!(%error, "the token cannot be read, so no request is let in");
                return false;
            }
        };
        let mut given = headers.get_all(header::AUTHORIZATION).into_iter();
        let (Some(value), None) = (given.next(), given.next()) else { return false };
        let Some((scheme, token)) = value.as_bytes().split_at_checked(7) else { return false };
        scheme.eq_ignore_ascii_case(b"bearer ") && same(token.trim_ascii(), expected.as_bytes())
    }
}

/// Compares digests byte by byte, all of them: nothing is learnt from how long it takes.
fn same(one: &[u8], other: &[u8]) -> bool {
    let (one, other) = (Sha256::digest(one), Sha256::digest(other));
    one.iter().zip(other.iter()).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_token_is_let_in() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, "s3cret\n").unwrap();
        let token = Token::open(&path).unwrap();
        let ask = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            token.admits(&headers)
        };
        assert!(ask("Bearer s3cret") && ask("bearer  s3cret"));
        for wrong in ["", "Bearer", "Bearer ", "Bearer s3cre", "Bearer s3cret2", "Basic s3cret", "s3cret"] {
            assert!(!ask(wrong), "{wrong}");
        }
        assert!(!token.admits(&HeaderMap::new()));
    }

    #[test]
    fn a_file_without_a_token_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        assert!(Token::open(&path).is_err());
        for bad in ["", "\n", "a b", "é"] {
            std::fs::write(&path, bad).unwrap();
            assert!(Token::open(&path).is_err(), "{bad}");
        }
    }
}
