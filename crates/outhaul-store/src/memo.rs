//! Small notes of the program, each a file `NAME.memo` of the data directory that is replaced as a whole. They stand
//! beside the log because they have to be durable with an empty log too, in every engine.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::StoreError;
use crate::fs::{FileSystem, read_whole, write_atomically};

/// The longest memo.
pub(crate) const MEMO_BYTES_MAX: usize = 1 << 20;

/// The memos of one data directory, or of none.
#[derive(Debug, Clone)]
pub(crate) enum Memos {
    Disk { fs: Arc<dyn FileSystem>, dir: PathBuf, read_only: bool },
    Memory(Arc<Mutex<BTreeMap<String, Vec<u8>>>>),
}

impl Memos {
    pub(crate) fn memory() -> Self {
        Self::Memory(Arc::default())
    }

    pub(crate) fn get(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        match self {
            Self::Memory(memos) => {
                Ok(memos.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned())
            }
            Self::Disk { fs, dir, .. } => {
                let path = dir.join(file(name));
                match read_whole(&**fs, &path, MEMO_BYTES_MAX) {
                    Ok(content) => Ok(Some(content)),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                    Err(error) => Err(StoreError::io("read", &path)(error)),
                }
            }
        }
    }

    pub(crate) fn set(&self, name: &str, content: Vec<u8>) -> Result<(), StoreError> {
        let too_long = || io::Error::new(io::ErrorKind::InvalidInput, "a memo is at most 1 MiB");
        match self {
            Self::Memory(memos) => {
                memos.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), content);
                Ok(())
            }
            Self::Disk { fs, dir, read_only } => {
                let path = dir.join(file(name));
                if *read_only {
                    return Err(StoreError::io("write", &path)(io::ErrorKind::ReadOnlyFilesystem.into()));
                }
                if content.len() > MEMO_BYTES_MAX {
                    return Err(StoreError::io("write", &path)(too_long()));
                }
                write_atomically(&**fs, dir, &file(name), &content).map_err(StoreError::io("write", &path))
            }
        }
    }
}

fn file(name: &str) -> String {
    format!("{name}.memo")
}
