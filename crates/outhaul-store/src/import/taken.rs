//! The list of files that were taken: one line each, appended and synced behind the log.
//!
//! ```text
//! begin
//! <fingerprint, 16 hex digits> <product> <file name>
//! end
//! ```
//!
//! `end` closes an import that came to its end. Without it, what the log admitted last may be missing here.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Product;
use crate::error::StoreError;
use crate::fs::{File, FileSystem};

const BEGIN: &str = "begin";
const END: &str = "end";

#[derive(Debug)]
pub(super) struct Taken {
    path: PathBuf,
    file: Arc<dyn File>,
    length: u64,
    /// Two hashes of each line: a name is long, and there may be millions.
    lines: HashSet<(u64, u64)>,
    hashers: (RandomState, RandomState),
    /// Whether the import before this one came to its end.
    pub(super) ended: bool,
}

impl Taken {
    pub(super) fn open(fs: &dyn FileSystem, dir: &Path, name: &str) -> Result<Self, StoreError> {
        fs.create_dir_all(dir).map_err(StoreError::io("create", dir))?;
        let path = dir.join(name);
        let file = match fs.open(&path, true) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let file = fs.create(&path).map_err(StoreError::io("create", &path))?;
                fs.sync_dir(dir).map_err(StoreError::io("sync", dir))?;
                file
            }
            other => other.map_err(StoreError::io("open", &path))?,
        };
        let mut this =
            Self { path, file, length: 0, lines: HashSet::new(), hashers: Default::default(), ended: true };
        this.load()?;
        Ok(this)
    }

    /// Reads the lines; one that is cut at the end is no line.
    fn load(&mut self) -> Result<(), StoreError> {
        let mut buffer = vec![0; 64 << 10];
        let (mut rest, mut at): (Vec<u8>, u64) = (Vec::new(), 0);
        loop {
            let read = self.file.read_at(&mut buffer, at).map_err(StoreError::io("read", &self.path))?;
            if read == 0 {
                break;
            }
            at += read as u64;
            rest.extend_from_slice(&buffer[..read]);
            let Some(last) = rest.iter().rposition(|&byte| byte == b'\n') else { continue };
            for line in rest[..last].split(|&byte| byte == b'\n') {
                let line = String::from_utf8_lossy(line);
                self.ended = line == END;
                self.insert(&line);
            }
            rest.drain(..=last);
        }
        self.length = at - rest.len() as u64;
        if rest.is_empty() {
            return Ok(());
        }
        self.ended = false;
        self.file.set_len(self.length).map_err(StoreError::io("cut", &self.path))
    }

    fn hash(&self, line: &str) -> (u64, u64) {
        (self.hashers.0.hash_one(line), self.hashers.1.hash_one(line))
    }

    fn insert(&mut self, line: &str) {
        let hash = self.hash(line);
        self.lines.insert(hash);
    }

    pub(super) fn contains(&self, product: Product, file: &str, fingerprint: u64) -> bool {
        self.lines.contains(&self.hash(&line(product, file, fingerprint)))
    }

    /// Makes some files taken, durably.
    pub(super) fn append(&mut self, product: Product, files: &[(String, u64)]) -> Result<(), StoreError> {
        let lines: Vec<_> = files.iter().map(|(file, sum)| line(product, file, *sum)).collect();
        self.write(&lines)
    }

    /// To be done before anything is admitted.
    pub(super) fn begin(&mut self) -> Result<(), StoreError> {
        self.write(&[BEGIN.to_owned()])
    }

    pub(super) fn end(&mut self) -> Result<(), StoreError> {
        self.write(&[END.to_owned()])
    }

    fn write(&mut self, lines: &[String]) -> Result<(), StoreError> {
        let mut text = lines.join("\n");
        text.push('\n');
        self.file.write_at(text.as_bytes(), self.length).map_err(StoreError::io("write", &self.path))?;
        self.file.sync().map_err(StoreError::io("sync", &self.path))?;
        self.length += text.len() as u64;
        for line in lines {
            self.insert(line);
        }
        Ok(())
    }
}

fn line(product: Product, file: &str, fingerprint: u64) -> String {
    // A name can have anything in it but a slash.
    format!("{fingerprint:016x} {} {}", product.as_str(), file.escape_debug())
}
