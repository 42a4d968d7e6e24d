//! A data directory: its lock, its format, its log and its failed store.
//!
//! ```text
//! DIR/lock            held (flock) by the process that has the directory
//! DIR/format          which engine and format, and which version wrote it
//! DIR/log/            the journal's segments
//! DIR/failed/         the failed store's segments, once there are any
//! DIR/quarantine/     copies of damaged stretches, once there are any
//! ```

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::StoreError;
use crate::failed::FailedStore;
use crate::fs::{FileSystem, Lock, OsFileSystem, read_whole, write_atomically};
use crate::journal::{FORMAT, Journal, JournalOptions};
use crate::log::{Damage, Log, OpenReport, Outcome, Settlement, Shards};
use crate::memory::MemoryLog;

const ENGINE: &str = "journal";
const FORMAT_FILE: &str = "format";

/// An open data directory. The lock is held until this is dropped.
#[derive(Debug)]
pub struct Store {
    log: Arc<dyn Log>,
    failed: Arc<FailedStore>,
    _lock: Option<Arc<dyn Lock>>,
}

impl std::fmt::Debug for dyn Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Log")
    }
}

#[derive(Serialize, Deserialize)]
struct Format {
    engine: String,
    format: u32,
    written_by: String,
}

impl Store {
    /// Opens a data directory on the real disk, creating it if there is none, and recovers what an earlier process
    /// left. Blocking work is done on the runtime's blocking threads.
    pub async fn open(dir: &Path, options: JournalOptions) -> Result<Self, StoreError> {
        Self::open_on(Arc::new(OsFileSystem), dir, options).await
    }

    /// As [`open`](Self::open), on any file system.
    pub async fn open_on(
        fs: Arc<dyn FileSystem>,
        dir: &Path,
        options: JournalOptions,
    ) -> Result<Self, StoreError> {
        let (own, opened) = (dir.to_owned(), options.clone());
        let disk = Arc::clone(&fs);
        let open = move || open_log(&disk, &own, opened);
        let (lock, log) = tokio::task::spawn_blocking(open).await.unwrap_or(Err(StoreError::Closed))?;
        let failed =
            FailedStore::journal(fs, dir.join("failed"), dir.join("quarantine"), options, Arc::clone(&lock));
        failed.load().await?;
        let store = Self { log, failed: Arc::new(failed), _lock: Some(lock) };
        store.finish_moves().await?;
        Ok(store)
    }

    /// A store without a disk: for tests.
    pub fn memory() -> Self {
        let failed = Arc::new(FailedStore::memory());
        Self { log: Arc::new(MemoryLog::default()), failed, _lock: None }
    }

    /// The log.
    pub fn log(&self) -> &Arc<dyn Log> {
        &self.log
    }

    /// The failed store.
    pub fn failed(&self) -> &Arc<FailedStore> {
        &self.failed
    }

    /// What recovery found in both logs, for a person. Files are named from the data directory.
    pub fn report(&self) -> OpenReport {
        let mut all = OpenReport::default();
        for (dir, found) in [("log", self.log.report()), ("failed", self.failed.report())] {
            all.torn_bytes += found.torn_bytes;
            let named = |damage: Damage| Damage { file: format!("{dir}/{}", damage.file), ..damage };
            all.damage.extend(found.damage.into_iter().map(named));
            all.foreign.extend(found.foreign.into_iter().map(|name| format!("{dir}/{name}")));
        }
        all
    }

    /// A crash between the two halves of a move leaves the copy and the entry: the entry goes now.
    async fn finish_moves(&self) -> Result<(), StoreError> {
        let uids = self.failed.uids();
        if uids.is_empty() {
            return Ok(());
        }
        let lease = self.log.lease(Shards::All).await?;
        let waiting: Vec<_> = self.log.stats().into_iter().filter(|queue| queue.waiting > 0).collect();
        for uid in uids.iter().filter(|uid| waiting.iter().any(|queue| queue.name == uid.queue)) {
            let read = lease.read(&uid.queue, uid.sequence - 1, 1, 1).await?;
            let twin = read.entries.into_iter().find(|entry| entry.place.uid == *uid);
            if let Some(twin) = twin {
                lease.settle(vec![Settlement { place: twin.place, outcome: Outcome::Failed }]).await?;
            }
        }
        Ok(())
    }

    /// Closes both logs in order. The lock goes with the value.
    pub async fn close(&self) -> Result<(), StoreError> {
        let log = self.log.close().await;
        self.failed.close().await.and(log)
    }
}

type Locked = (Arc<dyn Lock>, Arc<dyn Log>);

fn open_log(fs: &Arc<dyn FileSystem>, dir: &Path, options: JournalOptions) -> Result<Locked, StoreError> {
    if !options.read_only {
        fs.create_dir_all(dir).map_err(StoreError::io("create", dir))?;
    }
    check_format(&**fs, dir)?;
    let path = dir.join("lock");
    let lock = fs.lock(&path).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => StoreError::InUse(dir.to_owned()),
        _ => StoreError::io("lock", &path)(error),
    })?;
    if !options.read_only {
        write_format(&**fs, dir)?;
    }
    let journal = Journal::open(Arc::clone(fs), &dir.join("log"), &dir.join("quarantine"), options)?;
    let lock: Arc<dyn Lock> = lock.into();
    journal.keep(Arc::clone(&lock));
    Ok((lock, Arc::new(journal)))
}

fn check_format(fs: &dyn FileSystem, dir: &Path) -> Result<(), StoreError> {
    let found = match fs.list(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(StoreError::Missing(dir.to_owned()));
        }
        other => other.map_err(StoreError::io("list", dir))?,
    };
    if !found.iter().any(|entry| entry.name == FORMAT_FILE) {
        // What a process leaves that ended before it wrote the file, and what a new file system has.
        let harmless = ["lock", "format.tmp", "lost+found"];
        let empty = found.iter().all(|entry| harmless.contains(&entry.name.as_str()));
        return if empty { Ok(()) } else { Err(StoreError::NotADataDirectory(dir.to_owned())) };
    }
    let path = dir.join(FORMAT_FILE);
    let content = read_whole(fs, &path, 4096).map_err(StoreError::io("read", &path))?;
    let format: Format =
        serde_json::from_slice(&content).map_err(|_| StoreError::NotADataDirectory(dir.to_owned()))?;
    if (format.engine.as_str(), format.format) != (ENGINE, FORMAT) {
        return Err(StoreError::UnknownFormat {
            path: dir.to_owned(),
            found: format!("{} {}", format.engine, format.format),
            written_by: format.written_by,
            known: format!("{ENGINE} {FORMAT}"),
        });
    }
    Ok(())
}

fn write_format(fs: &dyn FileSystem, dir: &Path) -> Result<(), StoreError> {
    let written_by = env!("CARGO_PKG_VERSION").to_owned();
    let format = Format { engine: ENGINE.to_owned(), format: FORMAT, written_by };
    let path: PathBuf = dir.join(FORMAT_FILE);
    let mut content = serde_json::to_vec(&format).unwrap_or_default();
    content.push(b'\n');
    if read_whole(fs, &path, 4096).is_ok_and(|there| there == content) {
        return Ok(());
    }
    write_atomically(fs, dir, FORMAT_FILE, &content).map_err(StoreError::io("write", &path))
}
