//! Opening: each directory is listed once, unfinished and empty files go, every name gets its sequence.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, OnceLock};

use outhaul_event::TargetName;

use super::commit::Core;
use super::index::{self, Assigned, Seen};
use super::names::{self, UNFINISHED};
use super::sidecar::{self, FLIGHT, FlightFile, INPUT, OPENS, QUEUE, QueueFile, SEQUENCES, STATE, StateFile};
use super::{Dir, Inner, InputState, Shared, SpoolOptions, read};
use crate::error::StoreError;
use crate::fs::{FileSystem, move_aside, read_whole, write_atomically};
use crate::journal::from_millis;
use crate::log::{Damage, OpenReport, RetryState};
use crate::queue::{Queue, QueueId, Queues, SharedQueues};

/// No file beside the directories is longer.
pub(super) const SIDECAR_BYTES_MAX: usize = 1 << 30;

struct Opening<'a> {
    fs: &'a dyn FileSystem,
    dir: &'a Path,
    read_only: bool,
    queues: Queues,
    dirs: HashMap<QueueId, Dir>,
    report: OpenReport,
    /// The greatest sequence that any name stands for.
    high: u64,
}

pub(super) fn open(fs: Arc<dyn FileSystem>, dir: &Path, options: SpoolOptions) -> Result<Shared, StoreError> {
    if !options.read_only {
        fs.create_dir_all(dir).map_err(StoreError::io("create", dir))?;
    }
    let mut opening = Opening {
        fs: &*fs,
        dir,
        read_only: options.read_only,
        queues: Queues::default(),
        dirs: HashMap::new(),
        report: OpenReport::default(),
        high: 0,
    };
    opening.directories()?;
    let input = opening.input()?;
    let opens = opening.count_open()?;
    let Opening { queues, dirs, report, high, .. } = opening;
    for Damage { file, reason, .. } in &report.damage {
        tracing::error!(file, reason, dir = %dir.display(), "the spool is damaged");
    }
    for file in &report.foreign {
        tracing::warn!(file, dir = %dir.display(), "a file in the spool is not ours and is left alone");
    }
    let total = match fs.space(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && options.read_only => u64::MAX,
        other => other.map_err(StoreError::io("look at the file system of", dir))?.total,
    };
    let covers = input.as_ref().map_or(0, |input| input.covers);
    Ok(Shared {
        core: Mutex::new(Core::above(high.max(covers))),
        inner: Mutex::new(Inner { input, ..Inner::default() }),
        wake: Condvar::new(),
        dirs: Mutex::new(dirs),
        queues: SharedQueues::new(queues),
        // An open has room for a million leases.
        epoch: AtomicU64::new(opens << 20),
        bytes_default: (total / 4).clamp(1, 10 << 30),
        report,
        lock: OnceLock::new(),
        fs,
        dir: dir.to_owned(),
        options,
    })
}

impl Opening<'_> {
    fn directories(&mut self) -> Result<(), StoreError> {
        let mut found = match self.fs.list(self.dir) {
            // Nothing was written yet, and nothing is created to be looked at.
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.read_only => return Ok(()),
            other => other.map_err(StoreError::io("list", self.dir))?,
        };
        found.sort_by(|a, b| a.name.cmp(&b.name));
        for entry in found {
            if entry.is_file {
                self.leftover(&entry.name)?;
                continue;
            }
            let lost = "whose queue the directory is, where its name does not tell, and the destination are forgotten";
            let declared: Option<QueueFile> = self.sidecar(&format!("{}{QUEUE}", entry.name), lost)?;
            let named = declared.as_ref().and_then(|file| TargetName::new(&file.name).ok());
            // What is written there counts only for the directory of that very name.
            let named = named.filter(|name| names::directory(name) == entry.name);
            let name = names::target_of(&entry.name).or(named);
            let Some(name) = name.filter(|name| self.queues.find(name).is_err()) else {
                self.report.foreign.push(entry.name);
                continue;
            };
            self.directory(&entry.name, &name, declared)?;
        }
        Ok(())
    }

    /// An unfinished file beside the directories.
    fn leftover(&self, name: &str) -> Result<(), StoreError> {
        if name.ends_with(UNFINISHED) { self.remove(&self.dir.join(name)) } else { Ok(()) }
    }

    fn directory(
        &mut self,
        stem: &str,
        name: &TargetName,
        declared: Option<QueueFile>,
    ) -> Result<(), StoreError> {
        let mut dir = Dir::new(self.dir, stem.to_owned());
        dir.created = true;
        if let Some(from) = declared.as_ref().and_then(|file| file.moving_from.as_deref()) {
            self.finish_move(from, &dir)?;
        }
        let seen = self.list(&dir)?;
        if seen.is_empty() && declared.is_none() && stem == names::directory(name) {
            // What is left of a queue that was removed.
            return Ok(());
        }
        let file = format!("{stem}{SEQUENCES}");
        let path = self.dir.join(&file);
        let lost = "entries that others named get their uids anew";
        let mut assigned = self.control(&file, lost, Assigned::read)?.unwrap_or_default();
        let before = assigned.format();
        let (index, high) = index::build(seen, &mut assigned);
        let after = assigned.format();
        if after != before && !self.read_only {
            let content = sidecar::seal(after.into_bytes());
            let written = write_atomically(self.fs, self.dir, &file, &content);
            written.map_err(StoreError::io("write", &path))?;
        }
        self.high = self.high.max(high);
        dir.index = index;
        let id = self.queues.add(name.clone());
        let queue = self.queues.get_mut(id);
        queue.unwritten.declaration = declared.is_none();
        queue.label = declared.map(|file| file.label).unwrap_or_default();
        let lost = "attempts, and which items of batches are settled, are forgotten";
        let state = self.sidecar(&format!("{stem}{STATE}"), lost)?;
        let flight = self.sidecar(&format!("{stem}{FLIGHT}"), "what was being delivered is forgotten")?;
        recover(&mut dir, self.queues.get_mut(id), state.unwrap_or_default(), flight);
        self.dirs.insert(id, dir);
        Ok(())
    }

    /// Entries that were to move here and have their old name still are left there alone.
    fn finish_move(&self, from: &str, dir: &Dir) -> Result<(), StoreError> {
        let from = self.dir.join(from);
        let old = match self.fs.list(&from) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other.map_err(StoreError::io("list", &from))?,
        };
        for entry in old.into_iter().filter(|entry| entry.is_file) {
            self.remove(&dir.path.join(entry.name))?;
        }
        Ok(())
    }

    /// The entries of a directory. Of the failed ones the names are seen, so that no name is used again.
    fn list(&mut self, dir: &Dir) -> Result<Vec<Seen>, StoreError> {
        let found = self.fs.list(&dir.path).map_err(StoreError::io("list", &dir.path))?;
        let mut seen = Vec::with_capacity(found.len());
        for entry in found {
            let path = dir.path.join(&entry.name);
            if !entry.is_file {
                if entry.name == super::FAILED {
                    self.failed_names(&path)?;
                }
                continue;
            }
            if entry.name.ends_with(UNFINISHED) {
                self.remove(&path)?;
                continue;
            }
            let bytes = match self.fs.stat(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other.map_err(StoreError::io("look at", &path))?.bytes,
            };
            match Seen::new(&entry.name, bytes) {
                // RustFS leaves empty files behind; what was written here never was one.
                Some(_) if bytes == 0 && !names::is_minted(&entry.name) => self.remove(&path)?,
                Some(entry) => seen.push(entry),
                None => self.report.foreign.push(format!("{}/{}", dir.stem, entry.name)),
            }
        }
        Ok(seen)
    }

    fn failed_names(&mut self, path: &Path) -> Result<(), StoreError> {
        let found = self.fs.list(path).map_err(StoreError::io("list", path))?;
        for entry in found {
            let id = names::uuid(entry.name.get(..36).unwrap_or_default());
            self.high = self.high.max(id.map_or(0, names::prefix));
        }
        Ok(())
    }

    fn remove(&self, path: &Path) -> Result<(), StoreError> {
        if self.read_only {
            return Ok(());
        }
        match self.fs.remove(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(StoreError::io("remove", path)(error))
            }
            _ => Ok(()),
        }
    }

    fn read(&self, path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
        match read_whole(self.fs, path, SIDECAR_BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            other => other.map(Some).map_err(StoreError::io("read", path)),
        }
    }

    fn sidecar<T: serde::de::DeserializeOwned>(
        &mut self,
        file: &str,
        lost: &str,
    ) -> Result<Option<T>, StoreError> {
        self.control(file, lost, |content| serde_json::from_slice(content).ok())
    }

    /// A file beside the directories. One that is damaged is moved aside, and is as one that is missing: nothing in it
    /// is worth more than the entries. `lost`: what that means.
    fn control<T>(
        &mut self,
        file: &str,
        lost: &str,
        read: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<Option<T>, StoreError> {
        let path = self.dir.join(file);
        let Some(content) = self.read(&path)? else { return Ok(None) };
        if let Some(found) = sidecar::unseal(&content).and_then(read) {
            return Ok(Some(found));
        }
        // The only one that is not synced.
        if file.ends_with(FLIGHT) && sidecar::is_torn(&content) {
            return Ok(None);
        }
        self.report.damage.push(control_damage(self.fs, self.dir, file, content.len(), lost, self.read_only));
        Ok(None)
    }

    /// How far the input was read; entries that are newer than what was written of it tell the rest.
    fn input(&mut self) -> Result<Option<InputState>, StoreError> {
        let lost = "an input is read from its first line again, and its events keep their ids";
        let Some(mut input) = self.control(INPUT, lost, sidecar::read_input)? else {
            return Ok(None);
        };
        // An event that is not in all of the directories it was for was not admitted: it is to come again.
        let mut seen: HashMap<u64, (u64, u32)> = HashMap::new();
        for dir in self.dirs.values() {
            let mut after = input.covers;
            while let Some(found) = dir.index.next(after) {
                after = found.sequence;
                let Some(content) = read::single(self.fs, &dir.path, &found) else { continue };
                if let Some(position) = content.position {
                    let missing = &mut seen.entry(found.sequence).or_insert((position, content.fan_out)).1;
                    *missing = missing.saturating_sub(1);
                }
            }
        }
        for (position, _) in seen.into_values().filter(|(_, missing)| *missing == 0) {
            input.admitted.insert(position, position);
        }
        Ok(Some(input))
    }

    fn count_open(&mut self) -> Result<u64, StoreError> {
        let path = self.dir.join(OPENS);
        let number = |content: &[u8]| std::str::from_utf8(content).ok()?.trim_end().parse::<u64>().ok();
        let opens = self.control(OPENS, "the opens are counted anew", number)?.unwrap_or(0).saturating_add(1);
        if !self.read_only {
            let content = sidecar::seal(opens.to_string().into_bytes());
            let written = write_atomically(self.fs, self.dir, OPENS, &content);
            written.map_err(StoreError::io("write", &path))?;
        }
        Ok(opens & u64::MAX >> 20)
    }
}

/// Moves a file beside the directories aside, unless nothing is to be changed, and says so.
pub(super) fn control_damage(
    fs: &dyn FileSystem,
    spool: &Path,
    file: &str,
    length: usize,
    lost: &str,
    read_only: bool,
) -> Damage {
    let moved = || move_aside(fs, &spool.join(file), &quarantine(spool), file);
    let quarantined = match read_only {
        true => None,
        false => moved()
            .inspect_err(|error| tracing::error!(file, %error, "a damaged file could not be moved aside"))
            .ok(),
    };
    let reason = format!("the file is damaged: {lost}");
    Damage { file: file.to_owned(), offset: 0, length: length as u64, reason, quarantined }
}

/// Where damaged files go, from the spool's directory.
pub(super) fn quarantine(spool: &Path) -> PathBuf {
    spool.parent().unwrap_or(spool).join("quarantine")
}

fn recover(dir: &mut Dir, queue: &mut Queue, mut state: StateFile, flight: Option<FlightFile>) {
    if let Some(flight) = flight {
        // It is newer, and goes with a clean end.
        (state.clean, state.in_flight) = (false, flight.in_flight);
        state.crashes.extend(flight.crashes);
    }
    for (first, items) in state.partly {
        for index in items {
            // All of a batch are never noted: its file is gone then.
            dir.index.settle_item(first, index);
        }
    }
    let (mut after, mut entries, mut bytes) = (0, 0, 0);
    while let Some(found) = dir.index.next(after) {
        (after, entries, bytes) = (found.sequence, entries + 1, bytes + found.bytes());
    }
    queue.recovered(after, entries, bytes);
    for (sequence, attempts, not_before) in state.retries {
        if dir.index.contains(sequence) {
            let not_before = from_millis(not_before);
            queue.retries.insert(sequence, RetryState { attempts, not_before });
        }
    }
    for (sequence, crashes) in state.crashes {
        if dir.index.contains(sequence) {
            let known = queue.crashes.entry(sequence).or_default();
            *known = crashes.max(*known);
        }
    }
    let suspects = if state.clean { Vec::new() } else { state.in_flight };
    for sequence in suspects.into_iter().filter(|&sequence| dir.index.contains(sequence)) {
        *queue.crashes.entry(sequence).or_insert(0) += 1;
    }
}
