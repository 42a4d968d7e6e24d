//! Bringing in what waits in the queue directories of other products: RustFS and MinIO.
//!
//! A [`Source`] is one such directory. It is only ever read: its entries are listed once, in the order of the product
//! (RustFS: names; MinIO: modification time, then names), and read one after the other. What cannot be decoded is
//! reported, one by one, and left.
//!
//! [`import_into`] admits them to one queue, and puts what had failed into the failed store. Beside the log, `import/<target>.taken` in the data directory has a line
//! for each file that was taken, so that an import can be repeated: after a crash, or when more came. An event has the
//! same ids each time.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use outhaul_event::{DedupId, Event};

use crate::error::StoreError;
use crate::fs::FileSystem;
use crate::spool::batch;
use crate::spool::mapping::{self, Content};
use crate::spool::names::{self, EntryName};
use crate::spool::rqp1::{self, ENTRY_BYTES_MAX, InvalidEntry};

mod run;
mod taken;

pub use run::{ImportError, ImportFailure, ImportReport, Progress, import_into};

/// Whose directory it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Product {
    /// RustFS.
    Rustfs,
    /// MinIO.
    Minio,
}

impl Product {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rustfs => "rustfs",
            Self::Minio => "minio",
        }
    }

    fn extensions(self) -> &'static [&'static str] {
        match self {
            Self::Rustfs => &[".event", ".audit"],
            Self::Minio => &[".event", ".http.log", ".kafka.log"],
        }
    }
}

/// A queue directory of another product.
#[derive(Debug)]
pub struct Source {
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    product: Product,
    files: Vec<String>,
    next: usize,
    ignored: Vec<String>,
}

/// One file of a source.
#[derive(Debug)]
pub struct SourceFile {
    /// Its name within the directory.
    pub name: String,
    /// What is in it, in order, or why it cannot be decoded.
    pub entries: Result<Vec<SourceEntry>, String>,
    /// The bytes of a failed entry.
    pub(crate) failed: Option<Bytes>,
    /// Tells this content from another under the same name.
    pub(crate) fingerprint: u64,
}

/// One event of a source.
#[derive(Debug, Clone)]
pub struct SourceEntry {
    /// Which one of its file, from 0.
    pub index: usize,
    /// The event.
    pub event: Arc<Event>,
    /// The identity that receivers will see: the same at each reading.
    pub dedup_id: DedupId,
}

/// Looks at a queue directory of RustFS, `rustfs-<type>-<id>`. Its failed entries, in `failed/`, come last.
pub fn rustfs(fs: Arc<dyn FileSystem>, dir: &Path) -> Result<Source, StoreError> {
    let mut source = list(fs, dir, Product::Rustfs)?;
    source.files.sort_by(|a, b| (EntryName::parse(a).name, a).cmp(&(EntryName::parse(b).name, b)));
    let failed = dir.join("failed");
    let found = match source.fs.list(&failed) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        other => other.map_err(StoreError::io("list", &failed))?,
    };
    let unfinished = |name: &str| name.ends_with(names::UNFINISHED);
    let (mut failed, mut ignored) = (Vec::new(), Vec::new());
    for entry in found {
        let name = format!("{FAILED}{}", entry.name);
        match entry.is_file {
            true if unfinished(&name) => ignored.push(name),
            true => failed.push(name),
            false => ignored.push(format!("{name}{NO_FILE}")),
        }
    }
    failed.sort();
    ignored.sort();
    source.files.extend(failed);
    source.ignored.extend(ignored);
    source.check()
}

/// Looks at a queue directory of MinIO, `minio-<type>-<id>`.
pub fn minio(fs: Arc<dyn FileSystem>, dir: &Path) -> Result<Source, StoreError> {
    let mut source = list(fs, dir, Product::Minio)?;
    let mut timed = Vec::with_capacity(source.files.len());
    for name in source.files {
        let path = dir.join(&name);
        match source.fs.stat(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => timed.push((other.map_err(StoreError::io("look at", &path))?.modified, name)),
        }
    }
    timed.sort();
    source.files = timed.into_iter().map(|(_, name)| name).collect();
    source.check()
}

fn list(fs: Arc<dyn FileSystem>, dir: &Path, product: Product) -> Result<Source, StoreError> {
    let found = match fs.list(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(StoreError::Missing(dir.to_owned()));
        }
        other => other.map_err(StoreError::io("list", dir))?,
    };
    let (mut files, mut ignored) = (Vec::new(), Vec::new());
    for entry in found {
        if !entry.is_file {
            // Those of RustFS that failed are looked at; all else is none of an entry.
            if product != Product::Rustfs || entry.name != "failed" {
                ignored.push(format!("{}{NO_FILE}", entry.name));
            }
            continue;
        }
        let plain = entry.name.strip_suffix(names::COMPRESSED).unwrap_or(&entry.name);
        let is_entry = product.extensions().iter().any(|extension| plain.ends_with(extension));
        if is_entry { files.push(entry.name) } else { ignored.push(entry.name) }
    }
    ignored.sort();
    Ok(Source { fs, dir: dir.to_owned(), product, files, next: 0, ignored })
}

/// Where RustFS keeps what failed.
const FAILED: &str = "failed/";
/// What is said of a name that stands for no file.
const NO_FILE: &str = " (a directory, a link or something else that is no file)";
/// So many files tell whose directory it is.
const LOOKED_AT: usize = 32;

impl Source {
    /// Refuses a directory of which everything says that it is the other product's.
    fn check(self) -> Result<Self, StoreError> {
        let mut signs = (false, false);
        let dir = self.dir.file_name().unwrap_or_default().to_string_lossy();
        signs.0 |= dir.starts_with("rustfs-");
        signs.1 |= dir.starts_with("minio-");
        for name in self.files.iter().chain(&self.ignored).take(LOOKED_AT) {
            self.signs(name, &mut signs);
        }
        let found = match (self.product, signs) {
            (Product::Minio, (true, false)) => Product::Rustfs,
            (Product::Rustfs, (false, true)) => Product::Minio,
            _ => return Ok(self),
        };
        let (path, found, asked) = (self.dir, found.as_str(), self.product.as_str());
        Err(StoreError::OtherProduct { path, found, asked })
    }

    /// What the name and the first bytes of a file say: that it is RustFS's, that it is MinIO's.
    fn signs(&self, file: &str, (rustfs, minio): &mut (bool, bool)) {
        let plain = file.strip_suffix(names::COMPRESSED).unwrap_or(file);
        *rustfs |= plain.ends_with(".audit");
        *minio |= plain.ends_with(".http.log") || plain.ends_with(".kafka.log");
        let name = EntryName::parse(file);
        *rustfs |= name.separator == Some('_') && names::uuid(name.name).is_some();
        match names::uuid(name.name.strip_prefix(FAILED).unwrap_or(name.name)).map(|id| id[6] >> 4) {
            Some(7) => *rustfs = true,
            Some(4) => *minio = true,
            _ => {}
        }
        let mut head = [0; 4];
        let read = self.fs.open(&self.dir.join(file), false).and_then(|file| file.read_at(&mut head, 0));
        *rustfs |= read.is_ok_and(|read| head[..read] == rqp1::MAGIC);
    }

    /// Whose it is.
    pub fn made_by(&self) -> Product {
        self.product
    }

    /// How many files there are.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// What is no entry: files with other names, such as unfinished ones, and what is no file.
    pub fn ignored(&self) -> &[String] {
        &self.ignored
    }

    /// How many were read.
    fn done(&self) -> usize {
        self.next
    }

    fn file(&self, name: &str) -> SourceFile {
        let (mut fingerprint, mut failed) = (0, None);
        let entries = self.load(name, &mut fingerprint, &mut failed);
        SourceFile { name: name.to_owned(), entries, failed, fingerprint }
    }

    fn load(
        &self,
        name: &str,
        fingerprint: &mut u64,
        failed: &mut Option<Bytes>,
    ) -> Result<Vec<SourceEntry>, String> {
        let within = name.strip_prefix(FAILED).unwrap_or(name);
        names::file_name(within).map_err(|error| error.to_string())?;
        let raw = crate::fs::read_whole(&*self.fs, &self.dir.join(name), ENTRY_BYTES_MAX);
        let raw = raw.map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => InvalidEntry::TooLong(ENTRY_BYTES_MAX as u64 + 1).to_string(),
            _ => format!("it cannot be read: {error}"),
        })?;
        *fingerprint = u64::from(crc32c::crc32c(&raw)) << 32 | raw.len() as u64;
        if raw.is_empty() {
            return Err("it is empty".to_owned());
        }
        *failed = (within != name).then(|| raw.clone().into());
        let contents = match self.product {
            Product::Rustfs => decode_rustfs(name, raw),
            Product::Minio => decode_minio(name, raw),
        };
        let contents = contents.map_err(|error| error.to_string())?;
        let entry = |(index, content): (usize, Content)| SourceEntry {
            index,
            event: content.event,
            dedup_id: content.dedup_id,
        };
        Ok(contents.into_iter().enumerate().map(entry).collect())
    }
}

/// Each file, read when its turn comes.
impl Iterator for Source {
    type Item = SourceFile;

    fn next(&mut self) -> Option<SourceFile> {
        let name = self.files.get(self.next)?;
        self.next += 1;
        Some(self.file(name))
    }
}

/// What is in a file of RustFS of this name.
fn decode_rustfs(file: &str, raw: Vec<u8>) -> Result<Vec<Content>, InvalidEntry> {
    if let Some(id) = file.strip_prefix(FAILED) {
        return Ok(vec![mapping::decode(&raw.into(), id)?]);
    }
    let name = EntryName::parse(file);
    let bytes = if name.compressed { rqp1::decompress(&raw)? } else { raw };
    if name.count == 1 {
        return Ok(vec![mapping::decode(&bytes.into(), name.name)?]);
    }
    values(&bytes, name.count, name.name)
}

/// What is in a file of MinIO of this name.
fn decode_minio(file: &str, raw: Vec<u8>) -> Result<Vec<Content>, InvalidEntry> {
    let plain = file.strip_suffix(names::COMPRESSED);
    let bytes = if plain.is_some() { rqp1::decompress_s2(&raw)? } else { raw };
    let rest = plain.unwrap_or(file);
    let (count, rest) = match rest.split_once(':') {
        Some((count, rest)) if count.parse::<u64>().is_ok_and(|count| count > 0) => {
            (count.parse().unwrap_or(1), rest)
        }
        _ => (1, rest),
    };
    let extension = Product::Minio.extensions().iter().find_map(|extension| rest.strip_suffix(extension));
    values(&bytes, count, extension.unwrap_or(rest))
}

fn values(bytes: &[u8], count: u64, name: &str) -> Result<Vec<Content>, InvalidEntry> {
    let values = batch::split(bytes, count)?;
    let value = |(index, range): (u64, std::ops::Range<usize>)| {
        let id = mapping::item_name(name, count, index);
        mapping::value(&Bytes::copy_from_slice(&bytes[range]), &id)
    };
    (0..).zip(values).map(value).collect()
}
