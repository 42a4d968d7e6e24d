//! A data directory: its lock, its format, its log and its failed store.
//!
//! ```text
//! DIR/lock            held (flock) by the process that has the directory
//! DIR/format          which engine and format, and which version wrote it
//! DIR/log/            the journal's segments
//! DIR/failed/         the failed store's segments, once there are any
//! DIR/quarantine/     copies of damaged stretches, once there are any
//! DIR/spool/          in the engine `spool`, instead of these: the targets' directories
//! DIR/import/         what was brought in from other products, if anything was
//! DIR/NAME.memo       small notes of the program, such as which targets are paused
//! ```

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use outhaul_event::{TargetName, Uid};
use serde::{Deserialize, Serialize};

use crate::error::StoreError;
use crate::failed::{FailedEntry, FailedOptions, FailedStore, Logged, Medium, Repaired};
use crate::fs::{FileSystem, Lock, OsFileSystem, read_whole, write_atomically};
use crate::journal::{FORMAT, Journal, JournalOptions, OpenWatch, Upkeep};
use crate::log::{Damage, Durability, Lease, Log, OpenReport, Outcome, Settlement, Shards};
use crate::memo::Memos;
use crate::memory::MemoryLog;
use crate::spool::{FIRST_FOREIGN, Spool, SpoolFailed, SpoolOptions};

const FORMAT_FILE: &str = "format";

/// How the events of a data directory are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Engine {
    /// One log, shared by all queues.
    #[default]
    Journal,
    /// One directory for each target, one file for each event: what RustFS reads and writes.
    Spool,
    /// Nowhere: everything is gone with the process. For tests, and for events that are not worth a disk.
    Memory,
}

impl Engine {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Journal, Self::Spool, Self::Memory];

    /// The word for it, in the file `format` and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Journal => "journal",
            Self::Spool => "spool",
            Self::Memory => "memory",
        }
    }

    /// Where in the data directory its events are. The engine `memory` has none.
    pub fn dir(self) -> &'static str {
        match self {
            Self::Journal => "log",
            Self::Spool => "spool",
            Self::Memory => "",
        }
    }

    /// The newest format of its files; all older ones are read.
    fn format(self) -> u32 {
        match self {
            Self::Journal => FORMAT,
            Self::Spool => 1,
            Self::Memory => 0,
        }
    }
}

impl std::fmt::Display for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// How a store is opened.
#[derive(Debug, Clone, Default)]
pub struct StoreOptions {
    /// The engine. A directory of another one is refused.
    pub engine: Engine,
    /// What a receipt promises. The failed store and removals are synced whatever this says.
    pub durability: Durability,
    /// Nothing on disk is changed, and nothing can be written: for looking at a directory at rest.
    pub read_only: bool,
    /// How the journal is kept. Its `durability` and `read_only` are set from those above.
    pub journal: JournalOptions,
    /// How the spool is kept. Its `durability` and `read_only` are set from those above.
    pub spool: SpoolOptions,
    /// The bounds of the failed store, for targets that have none of their own.
    pub failed: FailedOptions,
}

impl From<JournalOptions> for StoreOptions {
    fn from(journal: JournalOptions) -> Self {
        let (durability, read_only) = (journal.durability, journal.read_only);
        Self { durability, read_only, journal, ..Self::default() }
    }
}

/// What a repair did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// Entries that cannot be read, and why. They are in the failed store.
    pub failed: Vec<(Uid, String)>,
    /// What was moved to the quarantine besides the stretches that the open found, and where it is.
    pub moved: Vec<(String, PathBuf)>,
    /// What stays as it was, and why.
    pub left: Vec<(String, String)>,
}

/// An open data directory. The lock is held until this is dropped.
#[derive(Debug)]
pub struct Store {
    engine: Engine,
    log: Arc<dyn Log>,
    failed: Arc<FailedStore>,
    memos: Memos,
    upkeep: Upkeep,
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
    /// left. Blocking work is done on the runtime's blocking threads. The engine `memory` leaves the path alone.
    pub async fn open(dir: &Path, options: impl Into<StoreOptions>) -> Result<Self, StoreError> {
        Self::open_on(Arc::new(OsFileSystem), dir, options).await
    }

    /// As [`open`](Self::open), on any file system.
    pub async fn open_on(
        fs: Arc<dyn FileSystem>,
        dir: &Path,
        options: impl Into<StoreOptions>,
    ) -> Result<Self, StoreError> {
        let mut options = options.into();
        options.journal.durability = options.durability;
        options.journal.read_only = options.read_only;
        options.spool.durability = options.durability;
        options.spool.read_only = options.read_only;
        if options.engine == Engine::Memory {
            return Ok(Self::in_memory(options.failed));
        }
        let mut guard = CancelOnDrop(Some(Arc::clone(&options.journal.watch)));
        let (own, opened, disk) = (dir.to_owned(), options.clone(), Arc::clone(&fs));
        let open = move || open_engine(disk, &own, &opened);
        let memos = Memos::Disk { fs: Arc::clone(&fs), dir: dir.to_owned(), read_only: options.read_only };
        let upkeep = options.journal.upkeep;
        let (lock, log, medium) = upkeep.blocking(open).await?;
        guard.0 = None;
        let failed =
            FailedStore::new(medium, Arc::clone(&log), options.failed, memos.clone(), options.read_only);
        let engine = options.engine;
        let store = Self { engine, log, failed: Arc::new(failed), memos, upkeep, _lock: Some(lock) };
        store.failed.load().await?;
        // What RustFS left never was in a queue of ours.
        let left = store.failed.left_queue().into_iter().map(|uid| uid.sequence);
        if let Some(last) = left.filter(|&sequence| sequence < FIRST_FOREIGN).max() {
            store.log.pass_over(last);
        }
        store.finish_moves().await?;
        store.failed.first_upkeep().await?;
        Ok(store)
    }

    /// A store without a disk: for tests.
    pub fn memory() -> Self {
        Self::in_memory(FailedOptions::default())
    }

    fn in_memory(options: FailedOptions) -> Self {
        let log: Arc<dyn Log> = Arc::new(MemoryLog::default());
        let (memos, medium, upkeep) = (Memos::memory(), Arc::new(Logged::memory()), Upkeep::default());
        let failed = FailedStore::new(medium, Arc::clone(&log), options, memos.clone(), false);
        Self { engine: Engine::Memory, log, failed: Arc::new(failed), memos, upkeep, _lock: None }
    }

    /// Which engine a data directory belongs to. None: nothing was written there yet.
    ///
    /// # Errors
    /// It is missing, no data directory, or of a format that this build does not know.
    pub fn engine_of(dir: &Path) -> Result<Option<Engine>, StoreError> {
        look(&OsFileSystem, dir).map(|found| found.map(|(engine, _)| engine))
    }

    /// The engine.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// The log.
    pub fn log(&self) -> &Arc<dyn Log> {
        &self.log
    }

    /// The failed store.
    pub fn failed(&self) -> &Arc<FailedStore> {
        &self.failed
    }

    /// A small note of the program, as it was set last; None if it never was. `name` is a plain word.
    pub async fn memo(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let (memos, name) = (self.memos.clone(), name.to_owned());
        self.upkeep.blocking(move || memos.get(&name)).await
    }

    /// Replaces a small note of at most 1 MiB as a whole; durable when it resolves.
    ///
    /// Dropping the future does not take it back.
    pub async fn set_memo(&self, name: &str, content: Vec<u8>) -> Result<(), StoreError> {
        let (memos, name) = (self.memos.clone(), name.to_owned());
        self.upkeep.blocking(move || memos.set(&name, content)).await
    }

    /// What recovery found in both logs, for a person. Files are named from the data directory.
    pub fn report(&self) -> OpenReport {
        let mut all = OpenReport::default();
        let failed = if self.engine == Engine::Spool { Engine::Spool.dir() } else { "failed" };
        for (dir, found) in [(self.engine.dir(), self.log.report()), (failed, self.failed.report())] {
            all.torn_bytes += found.torn_bytes;
            let named = |damage: Damage| Damage { file: format!("{dir}/{}", damage.file), ..damage };
            all.damage.extend(found.damage.into_iter().map(named));
            all.foreign.extend(found.foreign.into_iter().map(|name| format!("{dir}/{name}")));
        }
        all
    }

    /// A crash between the two halves of a move leaves the copy and the entry: the entry goes now. One between those of
    /// a requeue is finished as well.
    async fn finish_moves(&self) -> Result<(), StoreError> {
        if self.failed.left_queue().is_empty() && !self.failed.has_unfinished() {
            return Ok(());
        }
        let lease = self.log.lease(Shards::All).await?;
        self.failed.finish_requeues(&*lease).await?;
        let uids = self.failed.left_queue();
        let waiting: Vec<_> = self.log.stats().into_iter().filter(|queue| queue.waiting > 0).collect();
        for uids in uids.chunk_by(|a, b| a.queue == b.queue) {
            if waiting.iter().any(|queue| queue.name == uids[0].queue) {
                finish_queue(&*lease, uids).await?;
            }
        }
        Ok(())
    }

    /// Takes what cannot be read out of the files: entries go to the failed store (rule `unreadable`), failed records and
    /// damaged stretches to the quarantine, and a damaged file of the journal is replaced by a sound one that holds what
    /// waits in it. Of a journal it sees only what an open with [`JournalOptions::verify`] found.
    ///
    /// Dropping the future leaves it half done; it can be done again.
    pub async fn repair(&self) -> Result<RepairReport, StoreError> {
        let mut report = RepairReport::default();
        let lease = self.log.lease(Shards::All).await?;
        for queue in self.log.stats().into_iter().filter(|queue| queue.waiting > 0) {
            self.repair_queue(&*lease, &queue.name, &mut report).await?;
        }
        let Repaired { moved, left } = self.failed.repair().await?;
        report.moved = moved;
        report.left.extend(left);
        self.log.flush().await?;
        let dir = self.engine.dir();
        let left = self.log.mend().await?.into_iter();
        report.left.extend(left.map(|(file, why)| (format!("{dir}/{file}"), why)));
        Ok(report)
    }

    async fn repair_queue(
        &self,
        lease: &dyn Lease,
        queue: &TargetName,
        report: &mut RepairReport,
    ) -> Result<(), StoreError> {
        let mut after = 0;
        loop {
            let read = lease.read(queue, after, 1000, 8 << 20).await?;
            if read.entries.is_empty() {
                return Ok(());
            }
            after = read.next;
            let now = SystemTime::now();
            let (mut places, mut copies) = (Vec::new(), Vec::new());
            for entry in read.entries {
                let Err(unreadable) = &entry.event else { continue };
                match FailedEntry::unreadable(&entry, unreadable, now) {
                    Some(copy) => {
                        places.push((entry.place, unreadable.reason.clone()));
                        copies.push(copy);
                    }
                    None => report.left.push((entry.place.uid.to_string(), unreadable.reason.clone())),
                }
            }
            let mut settled = Vec::new();
            for ((place, reason), result) in places.into_iter().zip(self.failed.put_each(copies).await) {
                let uid = place.uid.clone();
                match result {
                    Ok(()) => {
                        report.failed.push((uid, reason));
                        settled.push(Settlement { place, outcome: Outcome::Failed });
                    }
                    Err(error) => report.left.push((uid.to_string(), format!("{reason}; {error}"))),
                }
            }
            lease.settle(settled).await?;
        }
    }

    /// Closes both logs in order. The lock goes with the value.
    pub async fn close(&self) -> Result<(), StoreError> {
        let log = self.log.close().await;
        self.failed.close().await.and(log)
    }
}

/// Settles those of some failed entries that still wait in their queue. Between two of them that wait nothing is read
/// but the entry that comes first.
async fn finish_queue(lease: &dyn Lease, uids: &[Uid]) -> Result<(), StoreError> {
    let mut rest = uids;
    while let Some(first) = rest.first() {
        let read = lease.read(&first.queue, first.sequence - 1, 1, 1).await?;
        let Some(found) = read.entries.into_iter().next() else { return Ok(()) };
        let sequence = found.place.uid.sequence;
        rest = &rest[rest.partition_point(|uid| uid.sequence < sequence)..];
        if rest.first().is_some_and(|uid| uid.sequence == sequence) {
            lease.settle(vec![Settlement { place: found.place, outcome: Outcome::Failed }]).await?;
            rest = &rest[1..];
        }
    }
    Ok(())
}

/// An open that nobody waits for any more ends within a batch.
struct CancelOnDrop(Option<Arc<OpenWatch>>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let Some(watch) = &self.0 {
            watch.cancel();
        }
    }
}

type Opened = (Arc<dyn Lock>, Arc<dyn Log>, Arc<dyn Medium>);

fn open_engine(fs: Arc<dyn FileSystem>, dir: &Path, options: &StoreOptions) -> Result<Opened, StoreError> {
    if !options.read_only {
        fs.create_dir_all(dir).map_err(StoreError::io("create", dir))?;
    }
    if let Some((found, format)) = look(&*fs, dir)?
        && found != options.engine
    {
        let (path, asked) = (dir.to_owned(), options.engine.as_str());
        return Err(StoreError::OtherEngine { path, found: format.engine, asked });
    }
    let path = dir.join("lock");
    let lock = fs.lock(&path).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => StoreError::InUse { path: dir.to_owned(), pid: fs.lock_holder(&path) },
        _ => StoreError::io("lock", &path)(error),
    })?;
    let lock: Arc<dyn Lock> = lock.into();
    if !options.read_only {
        write_format(&*fs, dir, options.engine)?;
    }
    let (log_dir, quarantine) = (dir.join(options.engine.dir()), dir.join("quarantine"));
    match options.engine {
        Engine::Journal => {
            let journal = Journal::open(Arc::clone(&fs), &log_dir, &quarantine, options.journal.clone())?;
            journal.keep(Arc::clone(&lock));
            // A record is in its queue no more once it is here: it is not worth less than a sync.
            let failed = JournalOptions { durability: Durability::Synced, ..options.journal.clone() };
            let medium = Logged::journal(fs, dir.join("failed"), quarantine, failed, Arc::clone(&lock));
            Ok((lock, Arc::new(journal), Arc::new(medium)))
        }
        Engine::Spool => {
            let spool = Spool::open(Arc::clone(&fs), &log_dir, options.spool.clone())?;
            spool.keep(Arc::clone(&lock));
            let medium = SpoolFailed::new(fs, &log_dir, options.read_only);
            Ok((lock, Arc::new(spool), Arc::new(medium)))
        }
        Engine::Memory => Ok((lock, Arc::new(MemoryLog::default()), Arc::new(Logged::memory()))),
    }
}

/// What the file `format` says, if this build can read what it is about. None: nothing was written yet.
fn look(fs: &dyn FileSystem, dir: &Path) -> Result<Option<(Engine, Format)>, StoreError> {
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
        return if empty { Ok(None) } else { Err(no_format(fs, dir, "is missing")) };
    }
    let path = dir.join(FORMAT_FILE);
    let content = read_whole(fs, &path, 4096).map_err(StoreError::io("read", &path))?;
    let damaged = || no_format(fs, dir, "is damaged");
    let format: Format = serde_json::from_slice(&content).map_err(|_| damaged())?;
    let engine = Engine::ALL.into_iter().find(|engine| engine.as_str() == format.engine);
    let readable = engine.is_some_and(|engine| format.format <= engine.format());
    if !readable && format.written_by == env!("CARGO_PKG_VERSION") {
        // This very version writes no such thing.
        return Err(damaged());
    }
    match engine.filter(|engine| format.format <= engine.format()) {
        Some(engine) => Ok(Some((engine, format))),
        None => Err(StoreError::UnknownFormat {
            path: dir.to_owned(),
            found: format!("{} {}", format.engine, format.format),
            written_by: format.written_by,
            known: known(),
        }),
    }
}

/// What is said of a directory without a file `format` that can be read.
fn no_format(fs: &dyn FileSystem, dir: &Path, reason: &'static str) -> StoreError {
    let inside = |name: &str| fs.list(&dir.join(name)).unwrap_or_default();
    let segments = |name| inside(name).iter().filter(|entry| entry.name.ends_with(".seg")).count();
    let (log, failed) = (segments("log"), segments("failed"));
    let queues: Vec<_> = inside("spool").into_iter().filter(|entry| !entry.is_file).collect();
    let names = queues.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>().join(", ");
    let (engine, found) = match (log + failed, queues.len()) {
        (0, 0) => return StoreError::NotADataDirectory(dir.to_owned()),
        (_, 0) => (Engine::Journal, format!("a journal: segments in log: {log}, in failed: {failed}")),
        (0, _) => (Engine::Spool, format!("a spool with the directories {names}")),
        (_, _) => {
            let found =
                format!("a journal (segments in log: {log}, in failed: {failed}) and a spool ({names})");
            (Engine::Journal, found)
        }
    };
    let line = String::from_utf8(format_line(engine)).unwrap_or_default();
    StoreError::FormatLost { path: dir.to_owned(), reason, found, line: line.trim_end().to_owned() }
}

/// The formats that this build reads.
fn known() -> String {
    let on_disk = Engine::ALL.into_iter().filter(|&engine| engine != Engine::Memory);
    let each = on_disk.map(|engine| match engine.format() {
        0 => format!("{engine} 0"),
        newest => format!("{engine} 0 to {newest}"),
    });
    each.collect::<Vec<_>>().join(", ")
}

/// The content of the file.
fn format_line(engine: Engine) -> Vec<u8> {
    let written_by = env!("CARGO_PKG_VERSION").to_owned();
    let format = Format { engine: engine.as_str().to_owned(), format: engine.format(), written_by };
    // Strings and numbers always serialise.
    let mut content = serde_json::to_vec(&format).unwrap_or_default();
    content.push(b'\n');
    content
}

fn write_format(fs: &dyn FileSystem, dir: &Path, engine: Engine) -> Result<(), StoreError> {
    let path: PathBuf = dir.join(FORMAT_FILE);
    let content = format_line(engine);
    if read_whole(fs, &path, 4096).is_ok_and(|there| there == content) {
        return Ok(());
    }
    write_atomically(fs, dir, FORMAT_FILE, &content).map_err(StoreError::io("write", &path))
}
