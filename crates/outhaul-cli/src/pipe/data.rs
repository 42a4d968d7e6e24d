//! [`DataDir`]: the directory of a `pipe`.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use outhaul::store::Engine;

use crate::args::StoreArgs;
use crate::console::Console;
use crate::data_dir;
use crate::error::{CliError, Exit};

/// The data directory: one that was given, or a new one in the directory for temporary files.
pub(crate) struct DataDir {
    path: PathBuf,
    new: bool,
    in_memory: bool,
}

impl DataDir {
    pub(crate) fn new(given: Option<&Path>, store: &StoreArgs) -> Result<Self, CliError> {
        data_dir::refuse_with_memory(store, given)?;
        if store.asked == Some(Engine::Memory) {
            return Ok(Self { path: PathBuf::from("memory"), new: false, in_memory: true });
        }
        if let Some(path) = given {
            data_dir::check(path)?;
            return Ok(Self { path: path.to_owned(), new: false, in_memory: false });
        }
        // Readable by its owner alone. It is kept until everything in it is delivered, also when this ends by a fault.
        let mode = Permissions::from_mode(0o700);
        let made = tempfile::Builder::new().prefix("outhaul-pipe-").permissions(mode).tempdir();
        let path = made.map(tempfile::TempDir::keep).map_err(|e| {
            CliError::new(Exit::Failed, "cannot make a temporary data directory")
                .at(std::env::temp_dir().display().to_string())
                .because(e.to_string())
                .help("name a directory with `--data DIR`, or set TMPDIR")
        })?;
        Ok(Self { path, new: true, in_memory: false })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether there is no directory: everything is gone with the process.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.in_memory
    }

    pub(crate) fn is_new(&self) -> bool {
        self.new
    }

    /// Removes it if it is a new one: nothing in it is needed any more.
    pub(crate) fn remove_if_new(&self, console: &Console) {
        if self.new
            && let Err(error) = std::fs::remove_dir_all(&self.path)
        {
            console.say(format_args!("the temporary directory {} stays: {error}", self.path.display()));
        }
    }
}
