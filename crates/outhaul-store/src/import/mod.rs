//! Bringing in what waits in the queue directories of other products: RustFS and MinIO.
//!
//! A [`Source`] is one such directory. It is only ever read: its entries are listed once, in the order of the product
//! (RustFS: names; MinIO: modification time, then names), and read one after the other. What cannot be decoded is
//! reported, one by one, and left.
//!
//! [`import_into`] admits them to one queue. Beside the log, `import/<target>.taken` in the data directory has a line
//! for each file that was taken, so that an import can be repeated: after a crash, or when more came. An event has the
//! same ids each time.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
    let entries = found.into_iter().filter(|entry| entry.is_file && !unfinished(&entry.name));
    let mut failed: Vec<_> = entries.map(|entry| format!("failed/{}", entry.name)).collect();
    failed.sort();
    source.files.extend(failed);
    Ok(source)
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
    Ok(source)
}

fn list(fs: Arc<dyn FileSystem>, dir: &Path, product: Product) -> Result<Source, StoreError> {
    let found = match fs.list(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(StoreError::Missing(dir.to_owned()));
        }
        other => other.map_err(StoreError::io("list", dir))?,
    };
    let (mut files, mut ignored) = (Vec::new(), Vec::new());
    for entry in found.into_iter().filter(|entry| entry.is_file) {
        let plain = entry.name.strip_suffix(names::COMPRESSED).unwrap_or(&entry.name);
        let is_entry = product.extensions().iter().any(|extension| plain.ends_with(extension));
        if is_entry { files.push(entry.name) } else { ignored.push(entry.name) }
    }
    ignored.sort();
    Ok(Source { fs, dir: dir.to_owned(), product, files, next: 0, ignored })
}

impl Source {
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

    /// Files whose names are none of an entry, such as unfinished ones.
    pub fn ignored(&self) -> &[String] {
        &self.ignored
    }

    /// How many were read.
    fn done(&self) -> usize {
        self.next
    }

    fn file(&self, name: &str) -> SourceFile {
        let mut fingerprint = 0;
        let entries = self.load(name, &mut fingerprint);
        SourceFile { name: name.to_owned(), entries, fingerprint }
    }

    fn load(&self, name: &str, fingerprint: &mut u64) -> Result<Vec<SourceEntry>, String> {
        let within = name.strip_prefix("failed/").unwrap_or(name);
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
    if let Some(id) = file.strip_prefix("failed/") {
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
        mapping::value(&bytes::Bytes::copy_from_slice(&bytes[range]), &id)
    };
    (0..).zip(values).map(value).collect()
}
