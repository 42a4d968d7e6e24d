//! What a failure of the file system means.

use std::io;
use std::sync::Arc;

use outhaul_target::{DeliveryError, ErrorKind};
use rustix::io::Errno;

/// One failure that ends several events of a batch.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    kind: ErrorKind,
    detail: &'static str,
    source: Option<Arc<io::Error>>,
}

impl Failure {
    pub(crate) fn new(kind: ErrorKind, detail: &'static str) -> Self {
        Self { kind, detail, source: None }
    }

    /// What the system answered while we did something.
    pub(crate) fn io(doing: &'static str, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        Self { kind: kind(&source), detail: doing, source: Some(Arc::new(source)) }
    }

    pub(crate) fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl From<Failure> for DeliveryError {
    fn from(failure: Failure) -> Self {
        let error = DeliveryError::new(failure.kind).with_detail(failure.detail);
        match failure.source {
            Some(source) => error.with_source(source),
            None => error,
        }
    }
}

/// The table in the crate's documentation.
fn kind(error: &io::Error) -> ErrorKind {
    match Errno::from_io_error(error) {
        Some(Errno::NOENT | Errno::NOTDIR) => ErrorKind::DestinationMissing,
        Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => ErrorKind::Permission,
        Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => ErrorKind::DiskFull,
        Some(Errno::ISDIR) => ErrorKind::Configuration,
        Some(Errno::AGAIN) => ErrorKind::Locked,
        Some(Errno::NXIO) => ErrorKind::Unreachable,
        Some(Errno::PIPE) => ErrorKind::ConnectionReset,
        _ => ErrorKind::Io,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Walks through the table in the crate's documentation.
    #[test]
    fn the_documented_verdicts_hold() {
        let names = [
            ("ENOENT", Errno::NOENT),
            ("ENOTDIR", Errno::NOTDIR),
            ("EACCES", Errno::ACCESS),
            ("EPERM", Errno::PERM),
            ("EROFS", Errno::ROFS),
            ("ENOSPC", Errno::NOSPC),
            ("EDQUOT", Errno::DQUOT),
            ("EFBIG", Errno::FBIG),
            ("EISDIR", Errno::ISDIR),
            ("EAGAIN", Errno::AGAIN),
            ("ENXIO", Errno::NXIO),
            ("EPIPE", Errno::PIPE),
        ];
        let docs = include_str!("lib.rs");
        for (name, errno) in names {
            let kind = kind(&errno.into());
            let row = docs.lines().find(|line| line.starts_with("//! |") && line.contains(name));
            let row = row.unwrap_or_else(|| panic!("{name} is not documented"));
            assert!(row.ends_with(&format!("| `{kind:?}` | {:?} |", kind.verdict())), "{row}");
        }
        assert_eq!(kind(&Errno::IO.into()), ErrorKind::Io);
        for kind in [ErrorKind::Io, ErrorKind::TimedOut, ErrorKind::Malformed] {
            assert!(docs.contains(&format!("| `{kind:?}` | {:?} |", kind.verdict())), "{kind:?}");
        }
    }
}
