//! What can go wrong, by whose fault, and what to do.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use outhaul_event::TargetName;

/// Why the store could not be opened, read or written. Cheap to clone.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Another process has the data directory. Stop that one, or use another directory.
    #[error(
        "the data directory {} is in use by another process{}; stop that one or give this one a directory of its own",
        .path.display(), .pid.map_or_else(String::new, |pid| format!(" (process {pid})"))
    )]
    InUse {
        /// The data directory.
        path: PathBuf,
        /// The process that has it, where that is known.
        pid: Option<u32>,
    },
    /// The directory was written in a format that this build does not know. Use the version that wrote it.
    #[error(
        "the data directory {} has format {found}, written by outhaul {written_by}; this is outhaul {}, which reads \
         format {known}. Deliver what is left with outhaul {written_by} (`outhaul pipe` or `outhaul run` on this \
         directory), or list it with its `outhaul failed ls`, and then start with an empty directory",
        .path.display(), env!("CARGO_PKG_VERSION")
    )]
    UnknownFormat {
        /// The data directory.
        path: PathBuf,
        /// Its engine and format number.
        found: String,
        /// The version of Outhaul that wrote it.
        written_by: String,
        /// What this build reads.
        known: String,
    },
    /// The directory belongs to another engine. Ask for that one, or use another directory.
    #[error(
        "the data directory {} belongs to the engine `{found}`, and the engine `{asked}` is asked for; use `{found}` \
         for it, or give `{asked}` a directory of its own",
        .path.display()
    )]
    OtherEngine {
        /// The data directory.
        path: PathBuf,
        /// The engine that wrote it.
        found: String,
        /// The engine that was asked for.
        asked: &'static str,
    },
    /// The directory holds something, and it is no data directory. The path is probably a mistake.
    #[error(
        "{} is not empty and is no data directory of outhaul (it has no readable file `format`); give the path of \
         an empty or new directory",
        .0.display()
    )]
    NotADataDirectory(PathBuf),
    /// The directory holds data of Outhaul, and its file `format`, which says how to read them, is missing or damaged.
    /// Put that file back. Nothing was changed.
    #[error(
        "the file `format` of the data directory {} {reason}; the directory holds {found}. Nothing was changed; put the \
         file back from a copy, or write this line into it: {line}",
        .path.display()
    )]
    FormatLost {
        /// The data directory.
        path: PathBuf,
        /// What is wrong with the file.
        reason: &'static str,
        /// What else is there.
        found: String,
        /// What the file has to hold, as far as the rest tells.
        line: String,
    },
    /// What is to be imported was written by another product than the one that was named.
    #[error("the queue directory {} was written by {found}, not by {asked}", .path.display())]
    OtherProduct {
        /// The directory.
        path: PathBuf,
        /// Whose it is.
        found: &'static str,
        /// Whose it was said to be.
        asked: &'static str,
    },
    /// There is no data directory. The path is probably a mistake.
    #[error("there is no data directory at {}", .0.display())]
    Missing(PathBuf),
    /// The operating system refused.
    #[error("cannot {what} {}: {source}{}", .path.display(), hint(.source))]
    Io {
        /// What was tried, as a verb.
        what: &'static str,
        /// On which path.
        path: PathBuf,
        /// The answer.
        source: Arc<io::Error>,
    },
    /// A sync failed earlier in the life of this process, so nothing more is written. Look at the disk and the
    /// kernel's log, then restart.
    #[error("the store stopped writing after a failure: {0}; look at the disk, then restart")]
    Failed(Arc<str>),
    /// The lease was lost to a later one: whoever held it must stop.
    #[error("the lease of epoch {0} is over; a later one was granted")]
    Fenced(u64),
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
    /// The open was cancelled. What is on disk is as it was.
    #[error("opening the store was cancelled")]
    Cancelled,
    /// No queue has this name. The caller did not attach it.
    #[error("there is no queue named {0}")]
    UnknownQueue(TargetName),
    /// A target is attached to the queue, so it is not removed. Remove the target first.
    #[error("queue {0} belongs to a target; remove the target before its queue")]
    Attached(TargetName),
}

impl StoreError {
    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, path: path.to_owned(), source: Arc::new(source) }
    }

    /// Whether the cause is a full disk, so that freeing space mends it.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, Self::Io { source, .. } if is_full(source))
    }
}

pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "; free some space, or use another disk",
        io::ErrorKind::ReadOnlyFilesystem => "; the file system is mounted read-only",
        io::ErrorKind::PermissionDenied => "; the directory must belong to the user that runs outhaul",
        _ => "",
    }
}

/// Why an event was not admitted. Unless the kind is [`Unknown`](Self::Unknown), nothing of it is in the log.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// The queue of a target that refuses when full has no room. The whole event is refused; try again when the
    /// target has caught up, or change its `when_full`.
    #[error(
        "the queue of target {target} is full ({limit}); the event was refused for all its targets. It takes events \
         again when deliveries make room; `outhaul.when_full=shed|overflow` or a larger `outhaul.queue_entries` / \
         `outhaul.queue_bytes` changes that"
    )]
    QueueFull {
        /// The target.
        target: TargetName,
        /// The limit that was reached.
        limit: String,
    },
    /// A target's part of the failed store is full, and is not to discard anything by itself. The entry stays in its
    /// queue. Requeue or discard what is there, raise the bound, or let it discard the oldest.
    #[error(
        "the failed store of target {target} is full ({limit}), so what fails stays in its queue; requeue or discard \
         entries (`outhaul failed ls`), raise `outhaul.failed_entries` / `outhaul.failed_bytes`, or set \
         `outhaul.failed_full=discard_oldest`"
    )]
    FailedStoreFull {
        /// The target.
        target: TargetName,
        /// The bound that was reached.
        limit: String,
    },
    /// What was to be admitted together is more than the queue of a target holds even when it is empty. Admit less
    /// at a time, or change the limit.
    #[error(
        "it is more than the queue of target {target} ever holds ({limit}); send less at a time, or raise the limit"
    )]
    TooLarge {
        /// The target.
        target: TargetName,
        /// The limit that it passes.
        limit: String,
    },
    /// An event names a queue that was not attached. A fault of the caller.
    #[error("there is no queue named {0}")]
    UnknownQueue(TargetName),
    /// The disk is full. Free some space; nothing has to be restarted.
    #[error("the disk that holds {} is full; free some space", .0.display())]
    DiskFull(PathBuf),
    /// The sync of the batch failed: the event may be on disk or not, and may be delivered. Send it again with the
    /// same id.
    #[error(
        "it is not known whether the event is on disk ({0}): it may be delivered; send it again with the same id"
    )]
    Unknown(Arc<str>),
    /// Some of the event's queues have it and some do not (engine `spool`, whose queues are directories of their own).
    /// It will be delivered to the first. Send it again with the same id.
    #[error(
        "the event is stored for {} and not for {} ({reason}); send it again with the same id",
        list(durable),
        list(failed)
    )]
    Partial {
        /// The targets that will get it.
        durable: Vec<TargetName>,
        /// The targets for which it could not be stored.
        failed: Vec<TargetName>,
        /// What went wrong with the first of them.
        reason: Arc<str>,
    },
    /// There was nothing to admit. A fault of the caller (engine `spool`).
    #[error("there is nothing to append")]
    Empty,
    /// The store writes nothing any more.
    #[error(transparent)]
    Store(StoreError),
}

fn list(names: &[TargetName]) -> String {
    names.iter().map(TargetName::as_str).collect::<Vec<_>>().join(", ")
}
