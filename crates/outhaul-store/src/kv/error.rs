//! What can go wrong with a key-value store.

use std::io;
#[cfg(feature = "kv-fjall")]
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use super::Revision;

/// Why a call had no effect, or why its effect is not known. Cheap to clone.
///
/// Unless the kind is [`Unknown`](Self::Unknown), nothing of the batch was written.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum KvError {
    /// A condition of the batch does not hold: somebody else wrote the key. Nobody's fault; read again, decide
    /// again.
    #[error("the key \"{}\" {}; expected was {}", .key.escape_ascii(), is(.found), wanted(.expected))]
    Conflict {
        /// The first key of the batch whose condition does not hold.
        key: Bytes,
        /// Its revision, `None` if it is absent.
        found: Option<Revision>,
        /// The revision that the batch asked for, `None` for absent.
        expected: Option<Revision>,
    },
    /// A key is empty or too long. A fault of the caller.
    #[error("a key has {length} bytes; it must have 1 to {max}")]
    KeyLength {
        /// Its length in bytes.
        length: usize,
        /// The longest that is taken, [`KvLimits::key_bytes_max`](super::KvLimits::key_bytes_max).
        max: usize,
    },
    /// A value is too large. A fault of the caller: keep large things elsewhere, and their names here.
    #[error("the value of the key \"{}\" has {length} bytes; at most {max} are taken", .key.escape_ascii())]
    ValueTooLarge {
        /// Its key.
        key: Bytes,
        /// Its length in bytes.
        length: usize,
        /// The largest that is taken, [`KvLimits::value_bytes_max`](super::KvLimits::value_bytes_max).
        max: usize,
    },
    /// A batch is too large to be written at once. A fault of the caller: split it.
    #[error("the batch has {bytes} bytes; at most {max} are written at once")]
    BatchTooLarge {
        /// Its size, as [`Batch::bytes`](super::Batch::bytes) counts it.
        bytes: usize,
        /// The largest that is taken, [`KvLimits::batch_bytes_max`](super::KvLimits::batch_bytes_max).
        max: usize,
    },
    /// Too many keys were asked for at once. A fault of the caller: ask in parts.
    #[error("{count} keys were asked for at once; at most {max} are answered")]
    TooManyKeys {
        /// How many.
        count: usize,
        /// The most that are answered, [`KvLimits::get_keys_max`](super::KvLimits::get_keys_max).
        max: usize,
    },
    /// An option is zero where that means nothing: the limit of a scan, a limit of the store. A fault of the caller.
    #[error("{0} must not be zero")]
    Zero(&'static str),
    /// Another process, or another value in this one, has the directory. Stop that one, or use another directory.
    #[error("the key-value store {} is in use; stop whoever has it, or use another directory", .0.display())]
    InUse(PathBuf),
    /// The directory holds something else. The path is probably a mistake.
    #[error("{} is not empty and is no key-value store of outhaul; give an empty or new directory", .0.display())]
    NotAKvStore(PathBuf),
    /// Another engine or another version wrote the directory. Use that one.
    #[error("the key-value store {} is {found}; this build reads {known}", .path.display())]
    UnknownFormat {
        /// The directory.
        path: PathBuf,
        /// Its engine and format number.
        found: String,
        /// What this build reads.
        known: String,
    },
    /// The disk is full, or nearly: space is held back so that the engine never runs into the end. Free some;
    /// nothing has to be restarted.
    #[error("the disk that holds {} is full; free some space", .0.display())]
    DiskFull(PathBuf),
    /// The operating system refused.
    #[error("cannot {what} {}: {source}", .path.display())]
    Io {
        /// What was tried, as a verb.
        what: &'static str,
        /// On which path.
        path: PathBuf,
        /// The answer.
        source: Arc<io::Error>,
    },
    /// What is on disk is not what was written. Look at the disk, then restore a copy.
    #[error("the key-value store {} is damaged: {detail}", .path.display())]
    Damaged {
        /// The directory.
        path: PathBuf,
        /// What the engine found.
        detail: Arc<str>,
    },
    /// The sync of the batch failed: it is on disk as a whole, or not at all. The store writes nothing any more;
    /// look at the disk, open again, read, decide.
    #[error("it is not known whether the batch is on disk: {0}")]
    Unknown(Arc<str>),
    /// An earlier commit failed, so nothing more is written; reads go on. Look at the disk and the kernel's log,
    /// then open again.
    #[error("the key-value store stopped writing after a failure: {0}; look at the disk, then open it again")]
    Failed(Arc<str>),
    /// The store was closed.
    #[error("the key-value store is closed")]
    Closed,
}

#[cfg(feature = "kv-fjall")]
impl KvError {
    pub(super) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, path: path.to_owned(), source: Arc::new(source) }
    }
}

fn is(found: &Option<Revision>) -> String {
    found.map_or("is absent".to_owned(), |revision| format!("has revision {revision}"))
}

fn wanted(expected: &Option<Revision>) -> String {
    expected.map_or("that it is absent".to_owned(), |revision| format!("revision {revision}"))
}
