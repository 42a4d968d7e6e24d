//! Giving a queue another name: its entries move into a directory of that name. What failed stays with the old one.
//!
//! Each entry gets a second name in the new directory; when those are durable the old names go. A crash in between leaves
//! every entry in one of the two queues: an open takes the new names of those that have their old ones, as the file
//! `.queue` of the new directory says from where they come until all is done.

use std::io;
use std::path::Path;

use outhaul_event::TargetName;

use super::open::SIDECAR_BYTES_MAX;
use super::sidecar::{QueueFile, SEQUENCES};
use super::{Dir, Shared, lock, names};
use crate::error::StoreError;
use crate::fs::{read_whole, write_atomically};

/// Copied at a time.
const COPY_BYTES: usize = 256 << 10;

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
            let (name, label) = (new.to_string(), queues.get(id).label.clone());
            let file = QueueFile { name, label, moving_from: None };
            (id, old, files, file)
        };
        let moved = if old.created { self.move_entries(&old, &stem, &file, &files) } else { Ok(()) };
        let failed = lock(&self.inner).failure.is_some();
        let mut dirs = lock(&self.dirs);
        let mut queues = self.queues.lock();
        let Some(dir) = dirs.get_mut(&id) else { return moved };
        // Where nothing is known of its files, none of them is looked for: the next open finds them.
        dir.moving = failed;
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
        let (from, to) = (&old.path, &self.dir.join(stem));
        self.fs.create_dir_all(to).map_err(StoreError::io("create", to))?;
        let moving_from = Some(old.stem.clone());
        self.declare(stem, &QueueFile { name: file.name.clone(), label: file.label.clone(), moving_from })?;
        self.copy_sequences(&old.stem, stem)?;
        self.fs.sync_dir(&self.dir).map_err(StoreError::io("sync", &self.dir))?;
        for (index, name) in files.iter().enumerate() {
            let Err(error) = self.second_name(&from.join(name), &to.join(name)) else { continue };
            for name in &files[..=index] {
                // What is left of it goes at the next open.
                self.fs.remove(&to.join(name)).unwrap_or_default();
            }
            return Err(StoreError::io("move", &from.join(name))(error));
        }
        // From here on there is no way back. A sync that failed is the last one.
        let sync = |dir: &Path| self.fs.sync_dir(dir).map_err(StoreError::io("sync", dir));
        let remove = |name: &String| self.remove_file(&from.join(name));
        let done = sync(to).and_then(|()| files.iter().try_for_each(remove)).and_then(|()| sync(from));
        done.inspect_err(|error| {
            tracing::error!(%error, "the spool writes nothing any more");
            lock(&self.inner).failure = Some(StoreError::Failed(error.to_string().into()));
        })?;
        if let Err(error) = self.declare(stem, file) {
            // Nothing is in both any more, so it says nothing that is wrong.
            tracing::debug!(%error, "it cannot be noted that a queue has moved");
        }
        Ok(())
    }

    /// Gives a file a second name, or makes a copy where the disk has no such thing.
    fn second_name(&self, from: &Path, to: &Path) -> io::Result<()> {
        match self.fs.link(from, to) {
            // Somebody else removed it, which shows when it is read; or it was done before.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists) => {
                Ok(())
            }
            Err(error)
                if matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied) =>
            {
                self.copy_file(from, to)
            }
            linked => linked,
        }
    }

    fn copy_file(&self, from: &Path, to: &Path) -> io::Result<()> {
        let source = match self.fs.open(from, false) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        let copy = self.fs.create(to)?;
        let (mut buffer, mut at) = (vec![0; COPY_BYTES], 0);
        loop {
            let read = source.read_at(&mut buffer, at)?;
            if read == 0 {
                return copy.sync();
            }
            copy.write_at(&buffer[..read], at)?;
            at += read as u64;
        }
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
}
