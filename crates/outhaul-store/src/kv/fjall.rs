//! The embedded engine: a log-structured merge tree, from the crate `fjall`.
//!
//! # Why this one
//!
//! It was measured against redb with the ledger's rows; the table and the command are in `docs/kv.md`. A commit of
//! 512 groups of seven rows takes 40 % of redb's time, and a load a third. Of a damaged file it gives an error, where
//! redb gives wrong rows or fewer. It pays with slower reads, and with an open and a close that may take seconds.
//!
//! # How it is used
//!
//! `format` names the engine, `lock` keeps others out, `rows/` is the engine's. A key is stored behind a byte
//! [`ROW`], its value behind its revision (8 bytes, big endian). Under [`NEWEST`] is the newest revision; it is part
//! of each commit. A new tree is made in `rows.new/` and renamed, so that a kill at that moment leaves nothing
//! half made.
//!
//! The engine cuts its journal silently where it cannot read it. A clean close therefore notes the newest
//! revision in `format`, and an open that finds less than that says so instead of going on.

use std::fs::{self, Permissions};
use std::io;
use std::ops::Bound;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable};
use serde::{Deserialize, Serialize};

use super::commit::{Change, Committer, Engine, Uncommitted};
use super::{Batch, KvError, KvLimits, KvStore, Page, Revision, Row, Scan, Versioned};
use crate::fs::{FileSystem, Lock, OsFileSystem, read_whole, write_atomically};

const ENGINE: &str = "kv-fjall";
const FORMAT: u32 = 0;
const FORMAT_FILE: &str = "format";
const ROWS_DIR: &str = "rows";
const NEW_ROWS_DIR: &str = "rows.new";
/// What precedes each key.
const ROW: u8 = 1;
/// The key of the newest revision.
const NEWEST: &[u8] = &[0];
const REVISION_BYTES: usize = 8;

/// How a [`FjallKv`] is kept. None of the numbers but `reserve_bytes` may be zero.
#[derive(Debug, Clone)]
pub struct FjallOptions {
    /// What it takes at once.
    pub limits: KvLimits,
    /// Memory for what was read from disk.
    pub cache_bytes: u64,
    /// What is written goes to a tree in memory up to this size, then to a table on disk. The journal of as much is
    /// read at open.
    pub write_buffer_bytes: u64,
    /// How much may wait to be written. Whoever comes after that waits for room.
    pub waiting_bytes_max: u32,
    /// Batches are refused when the disk has less free space than this: the engine does not survive a full one.
    pub reserve_bytes: u64,
}

impl Default for FjallOptions {
    fn default() -> Self {
        Self {
            limits: KvLimits::default(),
            cache_bytes: 64 << 20,
            write_buffer_bytes: 16 << 20,
            waiting_bytes_max: 64 << 20,
            reserve_bytes: 128 << 20,
        }
    }
}

impl FjallOptions {
    fn check(&self) -> Result<(), KvError> {
        self.limits.check()?;
        let numbers = [
            ("cache_bytes", self.cache_bytes),
            ("write_buffer_bytes", self.write_buffer_bytes),
            ("waiting_bytes_max", u64::from(self.waiting_bytes_max)),
        ];
        numbers.iter().find(|(_, number)| *number == 0).map_or(Ok(()), |(name, _)| Err(KvError::Zero(name)))
    }
}

/// A key-value store in a directory of its own, which one value at a time may have. Batches are written by one
/// thread; those that wait share a sync.
///
/// The engine below is the crate `fjall`: with the ledger's rows it commits groups more than twice as fast as redb,
/// and says so when its files are damaged; its reads, its open and its close are slower. The measurement is in
/// `docs/kv.md`.
///
/// Without [`close`](KvStore::close), dropping it writes and syncs what was handed over, and blocks for that.
#[derive(Debug)]
pub struct FjallKv {
    committer: Committer<Tree>,
    limits: KvLimits,
}

impl FjallKv {
    /// Opens the store in a directory, or makes a new one there. The directory gets mode 0700, and its files 0600.
    ///
    /// Dropping the future leaves the opening to end in the background: the directory is in use a while longer.
    ///
    /// # Errors
    /// [`KvError::InUse`], [`KvError::NotAKvStore`], [`KvError::UnknownFormat`], [`KvError::Damaged`],
    /// [`KvError::Io`]; an option that is no good.
    pub async fn open(dir: impl Into<PathBuf>, options: FjallOptions) -> Result<Self, KvError> {
        options.check()?;
        let (dir, limits) = (dir.into(), options.limits);
        let own = dir.clone();
        let open = move || {
            let tree = Tree::open(&dir, &options)?;
            Committer::start(tree, options.waiting_bytes_max).map_err(KvError::io("start a thread for", &dir))
        };
        let committer = match tokio::task::spawn_blocking(open).await {
            Ok(opened) => opened?,
            Err(error) if error.is_panic() => return Err(damaged(&own, "the engine panicked at open")),
            Err(_) => return Err(KvError::Closed),
        };
        Ok(Self { committer, limits })
    }
}

#[async_trait]
impl KvStore for FjallKv {
    fn limits(&self) -> KvLimits {
        self.limits
    }

    async fn get_many(&self, keys: &[Bytes]) -> Result<Vec<Option<Versioned>>, KvError> {
        self.limits.check_keys(keys)?;
        let keys = keys.to_vec();
        self.committer.read(move |tree| tree.get_many(&keys)).await
    }

    async fn apply_many(&self, batches: Vec<Batch>) -> Vec<Result<Revision, KvError>> {
        self.committer.apply_many(batches, &self.limits).await
    }

    async fn scan(&self, scan: Scan) -> Result<Page, KvError> {
        let limits = self.limits;
        self.committer.read(move |tree| tree.scan(&scan, &limits)).await
    }

    fn failure(&self) -> Option<KvError> {
        self.committer.failure()
    }

    async fn flush(&self) -> Result<(), KvError> {
        self.committer.flush().await
    }

    async fn close(&self) -> Result<(), KvError> {
        self.committer.close().await
    }
}

/// The content of the file `format`.
#[derive(Debug, Serialize, Deserialize)]
struct Format {
    engine: String,
    format: u32,
    written_by: String,
    /// The newest revision at the last clean close.
    #[serde(default)]
    closed_at: u64,
}

struct Tree {
    dir: PathBuf,
    reserve_bytes: u64,
    newest: AtomicU64,
    /// Written since the last look at the modes of the files.
    unswept_bytes: AtomicU64,
    sweep_bytes: u64,
    rows: Keyspace,
    db: Database,
    /// Given back last.
    _lock: Box<dyn Lock>,
}

impl std::fmt::Debug for Tree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tree").field("dir", &self.dir).field("newest", &self.newest).finish_non_exhaustive()
    }
}

impl Tree {
    fn open(dir: &Path, options: &FjallOptions) -> Result<Self, KvError> {
        OsFileSystem.create_dir_all(dir).map_err(KvError::io("create", dir))?;
        // Before the lock, which would leave a file in a foreign directory; and again when nobody else is at it.
        read_format(dir)?;
        let path = dir.join("lock");
        let lock = OsFileSystem.lock(&path).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => KvError::InUse(dir.to_owned()),
            _ => KvError::io("lock", &path)(error),
        })?;
        let closed_at = match read_format(dir)? {
            Some(format) => format.closed_at,
            None => {
                write_format(dir, 0)?;
                0
            }
        };
        let path = dir.join(ROWS_DIR);
        if !path.is_dir() {
            if closed_at > 0 {
                return Err(damaged(dir, "the directory `rows` is gone"));
            }
            make_rows(dir, options)?;
        }
        let (db, rows) = open_rows(dir, &path, options)?;
        let found = rows.get(NEWEST).map_err(fault("read", dir))?;
        let newest = found.map_or(Ok(0), |found| revision_of(dir, &found).map(|revision| revision.0))?;
        if newest < closed_at {
            let detail = format!("it was closed at revision {closed_at}, and its rows end at {newest}");
            return Err(damaged(dir, &detail));
        }
        let tree = Self {
            dir: dir.to_owned(),
            reserve_bytes: options.reserve_bytes,
            newest: AtomicU64::new(newest),
            unswept_bytes: AtomicU64::new(0),
            sweep_bytes: options.write_buffer_bytes,
            rows,
            db,
            _lock: lock,
        };
        restrict(&tree.dir).map_err(KvError::io("set the mode of", dir))?;
        Ok(tree)
    }

    fn get_many(&self, keys: &[Bytes]) -> Result<Vec<Option<Versioned>>, KvError> {
        let snapshot = self.db.snapshot();
        let get = |key: &Bytes| match snapshot.get(&self.rows, row_key(key)) {
            Ok(Some(found)) => Ok(Some(self.versioned(&found)?)),
            Ok(None) => Ok(None),
            Err(error) => Err(fault("read", &self.dir)(error)),
        };
        keys.iter().map(get).collect()
    }

    fn scan(&self, scan: &Scan, limits: &KvLimits) -> Result<Page, KvError> {
        let Some((start, end)) = scan.bounds() else { return scan.page(limits, []) };
        let start = match start {
            Bound::Unbounded => Bound::Included(vec![ROW]),
            start => start.map(|key| row_key(&key)),
        };
        let end = match end {
            Bound::Unbounded => Bound::Excluded(vec![ROW + 1]),
            end => end.map(|key| row_key(&key)),
        };
        let found = self.db.snapshot().range(&self.rows, (start, end));
        let row = |found: fjall::Guard| {
            let (key, value) = found.into_inner().map_err(fault("read", &self.dir))?;
            let Versioned { value, revision } = self.versioned(&value)?;
            Ok(Row { key: Bytes::copy_from_slice(&key[1..]), value, revision })
        };
        if scan.reverse { scan.page(limits, found.rev().map(row)) } else { scan.page(limits, found.map(row)) }
    }

    /// A copy: a slice of what the engine read would keep the whole block in memory.
    fn versioned(&self, found: &[u8]) -> Result<Versioned, KvError> {
        let revision = revision_of(&self.dir, found)?;
        Ok(Versioned { value: Bytes::copy_from_slice(&found[REVISION_BYTES..]), revision })
    }

    fn check_space(&self, bytes: u64) -> Result<(), KvError> {
        let space = OsFileSystem.space(&self.dir).map_err(KvError::io("look at the disk of", &self.dir))?;
        let enough = self.reserve_bytes == 0 || space.available >= self.reserve_bytes.saturating_add(bytes);
        if enough { Ok(()) } else { Err(KvError::DiskFull(self.dir.clone())) }
    }
}

impl Engine for Tree {
    fn revision(&self, key: &Bytes) -> Result<Option<Revision>, KvError> {
        let found = self.rows.get(row_key(key)).map_err(fault("read", &self.dir))?;
        found.map(|found| revision_of(&self.dir, &found)).transpose()
    }

    fn newest(&self) -> Revision {
        Revision(self.newest.load(Ordering::Acquire))
    }

    fn commit(&self, changes: Vec<Change>, newest: Revision) -> Result<(), Uncommitted> {
        let size = |(key, change): &Change| key.len() + change.as_ref().map_or(0, |(_, value)| value.len());
        let bytes = changes.iter().map(size).sum::<usize>() as u64;
        self.check_space(bytes).map_err(Uncommitted::Refused)?;
        let mut batch = self.db.batch().durability(Some(PersistMode::SyncData));
        batch.insert(&self.rows, NEWEST, newest.0.to_be_bytes());
        for (key, change) in changes {
            match change {
                Some((revision, value)) => {
                    batch.insert(&self.rows, row_key(&key), [&revision.0.to_be_bytes(), &value[..]].concat());
                }
                None => batch.remove(&self.rows, row_key(&key)),
            }
        }
        batch.commit().map_err(|error| Uncommitted::Unknown(error.to_string()))?;
        self.newest.store(newest.0, Ordering::Release);
        // Tables come from the engine's own threads, with whatever mode the process gives; it was a while ago.
        if self.unswept_bytes.fetch_add(bytes, Ordering::Relaxed) >= self.sweep_bytes {
            self.unswept_bytes.store(0, Ordering::Relaxed);
            if let Err(error) = restrict(&self.dir) {
                tracing::warn!(dir = %self.dir.display(), %error, "cannot set the mode of the files");
            }
        }
        Ok(())
    }

    fn close(self) -> Result<(), KvError> {
        let Self { dir, newest, rows, db, _lock, .. } = self;
        let synced = db.persist(PersistMode::SyncAll).map_err(fault("sync", &dir));
        drop(rows);
        drop(db);
        synced?;
        restrict(&dir).map_err(KvError::io("set the mode of", &dir))?;
        write_format(&dir, newest.into_inner())
    }
}

fn open_rows(dir: &Path, path: &Path, options: &FjallOptions) -> Result<(Database, Keyspace), KvError> {
    let db = Database::builder(path).cache_size(options.cache_bytes).open().map_err(fault("open", dir))?;
    let settings = || KeyspaceCreateOptions::default().max_memtable_size(options.write_buffer_bytes);
    let rows = db.keyspace("rows", settings).map_err(fault("open", dir))?;
    Ok((db, rows))
}

fn make_rows(dir: &Path, options: &FjallOptions) -> Result<(), KvError> {
    let new = dir.join(NEW_ROWS_DIR);
    match fs::remove_dir_all(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(KvError::io("remove", &new)(error));
        }
        _ => {}
    }
    let (db, rows) = open_rows(dir, &new, options)?;
    db.persist(PersistMode::SyncAll).map_err(fault("sync", &new))?;
    drop(rows);
    drop(db);
    let renamed = OsFileSystem.rename(&new, &dir.join(ROWS_DIR)).and_then(|()| OsFileSystem.sync_dir(dir));
    renamed.map_err(KvError::io("rename", &new))
}

fn read_format(dir: &Path) -> Result<Option<Format>, KvError> {
    let path = dir.join(FORMAT_FILE);
    let content = match read_whole(&OsFileSystem, &path, 4096) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // What a process leaves that ended before it wrote the file, and what a new file system has.
            let harmless = ["lock", "format.tmp", "lost+found"];
            let found = OsFileSystem.list(dir).map_err(KvError::io("list", dir))?;
            let empty = found.iter().all(|entry| harmless.contains(&entry.name.as_str()));
            return if empty { Ok(None) } else { Err(KvError::NotAKvStore(dir.to_owned())) };
        }
        other => other.map_err(KvError::io("read", &path))?,
    };
    let format: Format =
        serde_json::from_slice(&content).map_err(|_| KvError::NotAKvStore(dir.to_owned()))?;
    if (format.engine.as_str(), format.format) != (ENGINE, FORMAT) {
        let found = format!("{} {}, written by outhaul {}", format.engine, format.format, format.written_by);
        return Err(KvError::UnknownFormat {
            path: dir.to_owned(),
            found,
            known: format!("{ENGINE} {FORMAT}"),
        });
    }
    Ok(Some(format))
}

fn write_format(dir: &Path, closed_at: u64) -> Result<(), KvError> {
    let written_by = env!("CARGO_PKG_VERSION").to_owned();
    let format = Format { engine: ENGINE.to_owned(), format: FORMAT, written_by, closed_at };
    let mut content = serde_json::to_vec(&format).unwrap_or_default();
    content.push(b'\n');
    let written = write_atomically(&OsFileSystem, dir, FORMAT_FILE, &content);
    written.map_err(KvError::io("write", &dir.join(FORMAT_FILE)))
}

/// Directories 0700, files 0600. What vanishes meanwhile is no concern.
fn restrict(path: &Path) -> io::Result<()> {
    let vanished = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    };
    let about = match fs::symlink_metadata(path) {
        Ok(about) => about,
        Err(error) => return vanished(error),
    };
    let mode = if about.is_dir() { 0o700 } else { 0o600 };
    if about.permissions().mode() & 0o777 != mode && !about.is_symlink() {
        fs::set_permissions(path, Permissions::from_mode(mode)).or_else(vanished)?;
    }
    if about.is_dir() {
        for entry in fs::read_dir(path)? {
            restrict(&entry?.path())?;
        }
    }
    Ok(())
}

fn row_key(key: &[u8]) -> Vec<u8> {
    [&[ROW], key].concat()
}

fn revision_of(dir: &Path, stored: &[u8]) -> Result<Revision, KvError> {
    let revision = stored.first_chunk::<REVISION_BYTES>();
    revision
        .map(|bytes| Revision(u64::from_be_bytes(*bytes)))
        .ok_or_else(|| damaged(dir, "a row is too short"))
}

fn damaged(dir: &Path, detail: &str) -> KvError {
    KvError::Damaged { path: dir.to_owned(), detail: detail.into() }
}

/// What the engine's error means: the disk's own answer, or damage.
fn fault(what: &'static str, dir: &Path) -> impl Fn(fjall::Error) -> KvError {
    move |error| {
        if matches!(error, fjall::Error::Locked) {
            return KvError::InUse(dir.to_owned());
        }
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
        let answer = loop {
            match cause {
                Some(link) => match link.downcast_ref::<io::Error>() {
                    Some(answer) => break Some(answer.kind()),
                    None => cause = link.source(),
                },
                None => break None,
            }
        };
        use io::ErrorKind::{InvalidData, NotFound, UnexpectedEof};
        match answer {
            None | Some(InvalidData | NotFound | UnexpectedEof) => damaged(dir, &error.to_string()),
            Some(kind) => KvError::io(what, dir)(io::Error::new(kind, error.to_string())),
        }
    }
}
