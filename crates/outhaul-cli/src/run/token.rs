//! [`Token`]: who may send events, or look after targets.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;

use http::{HeaderMap, header};
use outhaul::target::Secret;
use sha2::{Digest as _, Sha256};

use crate::error::{CliError, Exit};

/// A bearer token in a file, which is read again when it changes.
pub(crate) struct Token(Secret);

impl Token {
    /// The token that `--token-file` names.
    pub(crate) fn of_ingest(path: &Path) -> Result<Self, CliError> {
        Self::open(path).map_err(|error| error.at(format!("--token-file {}", path.display())))
    }

    /// Reads the file once, so that a mistake shows at the start.
    fn open(path: &Path) -> Result<Self, CliError> {
        let wrong = |why: String| {
            CliError::new(Exit::Wrong, "the token cannot be read")
                .at(path.display().to_string())
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

    /// The token of the admin API, which is made at the first start. Only its owner can read it.
    pub(crate) fn of_admin(path: &Path) -> Result<Self, CliError> {
        let wrong = |error: std::io::Error| {
            CliError::new(Exit::Failed, format!("cannot make the token of the admin API, {}", path.display()))
                .because(error.to_string())
                .help("mend that, or run without the admin API: `--admin off`")
        };
        match make(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let mode = std::fs::metadata(path).map_err(wrong)?.permissions().mode();
                if mode & 0o077 != 0 {
                    tracing::warn!(path = %path.display(), "others can read the token of the admin API");
                }
            }
            made => made.map_err(wrong)?,
        }
        Self::open(path)
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

/// Writes a new random token, unless there is a file.
fn make(path: &Path) -> std::io::Result<()> {
    let mut random = [0_u8; 32];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    let text: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let written = file.write_all(format!("{text}\n").as_bytes()).and_then(|()| file.sync_all());
    if written.is_err() {
        // Half a token would be taken for one at the next start.
        std::fs::remove_file(path)?;
    }
    written
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
    fn the_token_of_the_admin_api_is_made_once_and_its_owners_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin.token");
        Token::of_admin(&path).unwrap();
        let made = std::fs::read_to_string(&path).unwrap();
        assert_eq!(
            (made.trim().len(), std::fs::metadata(&path).unwrap().permissions().mode() & 0o777),
            (64, 0o600)
        );
        Token::of_admin(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), made);
        assert!(Token::of_admin(&dir.path().join("nowhere/admin.token")).is_err());
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
