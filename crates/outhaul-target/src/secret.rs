//! [`Secret`]: a credential that shows itself only to who uses it.

use std::fmt;
use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

const FILE_BYTES_MAX: u64 = 64 * 1024;

/// A password, token or key: a value, or a file that is read again whenever it has changed. Cheap to clone.
///
/// It is never in a `Debug` or `Display` text.
#[derive(Clone)]
pub struct Secret(Arc<Inner>);

enum Inner {
    Value(Arc<str>),
    File { path: PathBuf, cache: Mutex<Option<(Stamp, Arc<str>)>> },
}

/// What tells that a file has changed.
#[derive(PartialEq, Eq)]
pub(crate) struct Stamp {
    modified: Option<SystemTime>,
    length: u64,
    inode: u64,
}

/// A secret's file cannot be used. The text names the file, never what is in it.
#[derive(Debug, thiserror::Error)]
#[error("the secret file {path:?} cannot be used")]
pub struct SecretError {
    /// The file.
    pub path: PathBuf,
    /// Why: it cannot be read, is empty, larger than 64 KiB, or no UTF-8.
    #[source]
    pub source: io::Error,
}

impl Secret {
    /// A secret that is known.
    pub fn value(value: impl Into<String>) -> Self {
        Self(Arc::new(Inner::Value(value.into().into())))
    }

    /// A secret in a file. The file is not looked at before the first [`read`](Self::read).
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self(Arc::new(Inner::File { path: path.into(), cache: Mutex::new(None) }))
    }

    /// The file, if it is one.
    pub fn path(&self) -> Option<&Path> {
        match &*self.0 {
            Inner::Value(_) => None,
            Inner::File { path, .. } => Some(path),
        }
    }

    /// The secret; one line feed (or CR LF) at the end of its file is left out. Looks at the file (time, length,
    /// inode) on every call and reads it when it has changed, so call it where blocking is allowed.
    ///
    /// # Errors
    /// The file cannot be read, is empty, larger than 64 KiB, or no UTF-8.
    pub fn read(&self) -> Result<Arc<str>, SecretError> {
        match &*self.0 {
            Inner::Value(value) => Ok(Arc::clone(value)),
            Inner::File { path, cache } => {
                let mut cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
                read_changed(path, &mut cache).map_err(|source| SecretError { path: path.clone(), source })
            }
        }
    }
}

fn read_changed(path: &Path, cache: &mut Option<(Stamp, Arc<str>)>) -> io::Result<Arc<str>> {
    if let Some((stamp, value)) = cache
        && *stamp == Stamp::of(&fs::metadata(path)?)
    {
        return Ok(Arc::clone(value));
    }
    let file = File::open(path)?;
    // Taken before reading: a change meanwhile is seen at the next call.
    let stamp = Stamp::of(&file.metadata()?);
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    let invalid = |why| Err(io::Error::new(io::ErrorKind::InvalidData, why));
    if text.len() as u64 > FILE_BYTES_MAX {
        return invalid("it is larger than 64 KiB");
    }
    let value = text.strip_suffix('\n').unwrap_or(&text);
    let value = value.strip_suffix('\r').unwrap_or(value);
    if value.is_empty() {
        return invalid("it is empty");
    }
    let value: Arc<str> = value.into();
    *cache = Some((stamp, Arc::clone(&value)));
    Ok(value)
}

impl Stamp {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        #[cfg(unix)]
        let inode = std::os::unix::fs::MetadataExt::ino(metadata);
        #[cfg(not(unix))]
        let inode = 0;
        Self { modified: metadata.modified().ok(), length: metadata.len(), inode }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path() {
            Some(path) => f.debug_tuple("Secret").field(&path).finish(),
            None => f.write_str("Secret(***)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_again_when_it_changed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let secret = Secret::file(&path);
        assert!(secret.read().is_err());
        fs::write(&path, "one\n").unwrap();
        assert_eq!(&*secret.read().unwrap(), "one");
        // Of the same length and perhaps within the clock's step: another inode.
        fs::write(dir.path().join("new"), "two\r\n").unwrap();
        fs::remove_file(&path).unwrap();
        fs::hard_link(dir.path().join("new"), &path).unwrap();
        assert_eq!(&*secret.read().unwrap(), "two");
        fs::write(&path, "three\n\n").unwrap();
        assert_eq!(&*secret.read().unwrap(), "three\n");
        fs::write(&path, "\n").unwrap();
        assert_eq!(secret.read().unwrap_err().source.to_string(), "it is empty");
    }

    #[test]
    fn a_secret_never_shows_itself() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        fs::write(&path, b"hunter2\xFF").unwrap();
        let secret = Secret::file(&path);
        let error = secret.read().unwrap_err();
        for text in
            [format!("{secret:?}"), format!("{error:?} {error}"), format!("{:?}", Secret::value("hunter2"))]
        {
            assert!(!text.contains("hunter2"), "{text}");
        }
    }
}
