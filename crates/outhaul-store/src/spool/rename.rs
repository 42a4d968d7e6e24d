//! Giving a queue another name: its entries move into a directory of that name. What failed stays with the old one.
//!
//! Each file moves by itself, so a crash in between leaves every entry in one of the two queues, and the old one still
//! says where its entries belong.

use std::io;
use std::path::Path;

use outhaul_event::TargetName;

use super::open::SIDECAR_BYTES_MAX;
use super::sidecar::{QueueFile, SEQUENCES};
use super::{Dir, Shared, lock, names};
use crate::error::StoreError;
use crate::fs::{read_whole, write_atomically};

impl Shared {
    /// Leaves what waits in a queue to one of another name, without a target. What is settled was removed.
    pub(super) fn rename_queue(&self, name: &TargetName, new: &TargetName) -> Result<(), StoreError> {
        let stem = names::directory(new);
        let path = self.dir.join(&stem);
        let (id, old, files, file) = {
            let mut dirs = lock(&self.dirs);
            let queues = self.queues.lock();
            let id = queues.find(name)?;
            if queues.find(new).is_ok() {
                return Err(StoreError::Attached(new.clone()));
            }
            let dir = dirs.get_mut(&id).ok_or_else(|| StoreError::UnknownQueue(name.clone()))?;
            dir.moving = true;
            let mut old = Dir::new(&self.dir, dir.stem.clone());
            old.created = dir.created;
            let removals = dir.removals.iter().map(|removal| removal.file.clone());
            let files: Vec<_> = dir.index.files().map(|(file, _)| file).chain(removals).collect();
            let file = QueueFile { name: new.to_string(), label: queues.get(id).label.clone() };
            (id, old, files, file)
        };
        let moved = if old.created { self.move_entries(&old, &stem, &file, &files) } else { Ok(()) };
        let mut dirs = lock(&self.dirs);
        let mut queues = self.queues.lock();
        let Some(dir) = dirs.get_mut(&id) else { return moved };
        dir.moving = false;
        moved?;
        queues.orphan_as(name, new)?;
        queues.get_mut(id).unwritten = Default::default();
        (dir.stem, dir.path, dir.noted, dir.flight) = (stem, path, true, true);
        // The directory that it leaves has the failed entries, and goes on being that of the name.
        let again = queues.add(name.clone());
        queues.get_mut(again).unwritten.declaration = true;
        dirs.insert(again, old);
        Ok(())
    }

    fn move_entries(
        &self,
        old: &Dir,
        stem: &str,
        file: &QueueFile,
        files: &[String],
    ) -> Result<(), StoreError> {
        let new = self.dir.join(stem);
        self.fs.create_dir_all(&new).map_err(StoreError::io("create", &new))?;
        self.declare(stem, file)?;
        self.copy_sequences(&old.stem, stem)?;
        self.fs.sync_dir(&self.dir).map_err(StoreError::io("sync", &self.dir))?;
        let moved = self.move_files(&old.path, &new, files);
        // Where they are now is to be durable before anybody is told.
        let synced = [&new, &old.path].map(|dir| self.fs.sync_dir(dir).map_err(StoreError::io("sync", dir)));
        moved.and(synced.into_iter().collect::<Result<Vec<_>, _>>()).map(drop)
    }

    /// The uids of entries that others named are written there.
    fn copy_sequences(&self, from: &str, to: &str) -> Result<(), StoreError> {
        let path = self.dir.join(format!("{from}{SEQUENCES}"));
        let content = match read_whole(&*self.fs, &path, SIDECAR_BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other.map_err(StoreError::io("read", &path))?,
        };
        let name = format!("{to}{SEQUENCES}");
        let written = write_atomically(&*self.fs, &self.dir, &name, &content);
        written.map_err(StoreError::io("write", &self.dir.join(name)))
    }

    /// Moves all of them or none. Where that cannot be had, nothing more is written: the next open finds each of them
    /// where it is.
    fn move_files(&self, from: &Path, to: &Path, files: &[String]) -> Result<(), StoreError> {
        let each =
            |from: &Path, to: &Path, file: &String| match self.fs.rename(&from.join(file), &to.join(file)) {
                // Somebody else removed it, which shows when it is read.
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(StoreError::io("move", &from.join(file))(error))
                }
                _ => Ok(()),
            };
        for (index, file) in files.iter().enumerate() {
            let Err(error) = each(from, to, file) else { continue };
            for file in &files[..index] {
                if let Err(stuck) = each(to, from, file) {
                    tracing::error!(error = %stuck, "the spool writes nothing any more");
                    lock(&self.inner).failure = Some(StoreError::Failed(stuck.to_string().into()));
                    break;
                }
            }
            return Err(error);
        }
        Ok(())
    }
}
