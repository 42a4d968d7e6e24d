//! What is written beside the directories while the spool is open: how far the input was read, retries and what is in
//! flight; and the removal of a queue with all of it.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use outhaul_event::TargetName;

use super::commit::{Core, Job};
use super::names::UNFINISHED;
use super::sidecar::{self, FLIGHT, FlightFile, INPUT, QUEUE, SEQUENCES, STATE, StateFile};
use super::{InputState, Shared, lock};
use crate::error::StoreError;
use crate::fs::write_atomically;
use crate::journal::to_millis;

/// What is noted beside a directory is written at most this often.
const NOTE_EVERY: Duration = Duration::from_secs(1);

impl Shared {
    /// Notes how far the input is admitted, before anybody can remove an entry that tells.
    pub(super) fn remember_positions(&self, core: &mut Core, jobs: &[Job]) {
        let admitted = jobs.iter().filter(|job| job.queues.iter().all(|(_, outcome)| outcome.is_ok()));
        let positions: Vec<_> = admitted.filter_map(|job| job.admission.position).collect();
        self.admit_positions(&positions, core.minter.last());
    }

    pub(super) fn admit_positions(&self, positions: &[u64], covers: u64) {
        if positions.is_empty() {
            return;
        }
        let content = {
            let mut inner = lock(&self.inner);
            let Some(input) = &mut inner.input else { return };
            for &position in positions {
                input.admitted.insert(position, position);
            }
            input.covers = covers;
            sidecar::seal(sidecar::write_input(input))
        };
        if let Err(error) = write_atomically(&*self.fs, &self.dir, INPUT, &content) {
            // Lines may be admitted again then, under the same ids.
            tracing::warn!(%error, "it cannot be noted how far the input was read");
        }
    }

    pub(super) fn set_input(&self, core: &Core, note: bytes::Bytes) -> Result<(), StoreError> {
        let input = InputState { note, covers: core.minter.last(), ..InputState::default() };
        let content = sidecar::seal(sidecar::write_input(&input));
        let written = write_atomically(&*self.fs, &self.dir, INPUT, &content);
        written.map_err(StoreError::io("write", &self.dir.join(INPUT)))?;
        lock(&self.inner).input = Some(input);
        Ok(())
    }

    /// Discards a queue and all of its files. The directory itself stays, empty, and is nobody's.
    pub(super) fn remove_queue(&self, name: &TargetName) -> Result<u64, StoreError> {
        let (dir, discarded) = {
            let mut dirs = lock(&self.dirs);
            let mut queues = self.queues.lock();
            let (id, discarded) = queues.remove(name)?;
            queues.get_mut(id).unwritten = Default::default();
            (dirs.remove(&id), discarded)
        };
        let Some(dir) = dir.filter(|dir| dir.created) else { return Ok(discarded) };
        let settled = dir.removals.iter().map(|removal| removal.file.clone());
        for file in dir.index.files().map(|(file, _)| file).chain(settled) {
            self.remove_file(&dir.path.join(file))?;
        }
        self.fs.sync_dir(&dir.path).map_err(StoreError::io("sync", &dir.path))?;
        for suffix in [FLIGHT, STATE, SEQUENCES, QUEUE] {
            self.remove_file(&self.dir.join(format!("{}{suffix}", dir.stem)))?;
        }
        self.fs.sync_dir(&self.dir).map_err(StoreError::io("sync", &self.dir))?;
        Ok(discarded)
    }

    pub(super) fn remove_file(&self, path: &Path) -> Result<(), StoreError> {
        match self.fs.remove(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(StoreError::io("remove", path)(error))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn note_when_due(&self, core: &mut Core) {
        let next = core.noted_at.map(|at| at + NOTE_EVERY).filter(|&next| next > Instant::now());
        match next {
            None => self.note(core, false),
            Some(next) if lock(&self.dirs).values().any(|dir| dir.noted) => {
                lock(&self.inner).unwritten_since.get_or_insert(next);
            }
            Some(_) => {}
        }
    }

    /// Writes down retries and what is in flight, durably.
    pub(super) fn note(&self, core: &mut Core, clean: bool) {
        core.noted_at = Some(Instant::now());
        let files: Vec<_> = {
            let mut dirs = lock(&self.dirs);
            let queues = self.queues.lock();
            let noted = dirs.iter_mut().filter(|(_, dir)| (dir.noted || clean) && dir.created);
            noted
                .map(|(&id, dir)| {
                    dir.noted = false;
                    let queue = queues.get(id);
                    let retries = queue.retries.iter();
                    let state = StateFile {
                        clean,
                        retries: retries.map(|(s, r)| (*s, r.attempts, to_millis(r.not_before))).collect(),
                        in_flight: if clean { Vec::new() } else { queue.in_flight.clone() },
                        crashes: queue.crashes.iter().map(|(s, n)| (*s, *n)).collect(),
                        partly: dir.index.partly().collect(),
                    };
                    dir.flight &= !clean;
                    (dir.stem.clone(), state)
                })
                .collect()
        };
        if files.is_empty() {
            return;
        }
        let mut failed = false;
        for (stem, state) in files {
            // Numbers always serialise.
            let content = sidecar::seal(serde_json::to_vec(&state).unwrap_or_default());
            if clean && let Err(error) = self.remove_file(&self.dir.join(format!("{stem}{FLIGHT}"))) {
                tracing::debug!(stem, %error, "it cannot be noted that nothing is in flight");
            }
            if let Err(error) = self.write_note(&format!("{stem}{STATE}"), &content, true) {
                tracing::debug!(stem, %error, "retries cannot be noted");
                self.note_again(&stem);
                failed = true;
            }
        }
        if let Err(error) = self.fs.sync_dir(&self.dir) {
            tracing::debug!(%error, "a loss of power may forget retries");
            failed = true;
        }
        if failed {
            lock(&self.inner).unwritten_since.get_or_insert(Instant::now() + NOTE_EVERY);
        }
    }

    fn note_again(&self, stem: &str) {
        let mut dirs = lock(&self.dirs);
        dirs.values_mut().filter(|dir| dir.stem == stem).for_each(|dir| dir.noted = true);
    }

    /// Writes down what is in flight, before the next attempt: it is of use after a crash of the process.
    pub(super) fn note_flight(&self) {
        let files: Vec<_> = {
            let mut dirs = lock(&self.dirs);
            let queues = self.queues.lock();
            let changed = dirs.iter_mut().filter(|(_, dir)| dir.created && dir.flight);
            let each = changed.map(|(&id, dir)| {
                dir.flight = false;
                let queue = queues.get(id);
                let crashes = queue.crashes.iter().map(|(s, n)| (*s, *n)).collect();
                (format!("{}{FLIGHT}", dir.stem), FlightFile { in_flight: queue.in_flight.clone(), crashes })
            });
            each.collect()
        };
        for (name, flight) in files {
            let content = sidecar::seal(serde_json::to_vec(&flight).unwrap_or_default());
            if let Err(error) = self.write_note(&name, &content, false) {
                tracing::debug!(name, %error, "what is in flight cannot be noted");
            }
        }
    }

    fn write_note(&self, name: &str, content: &[u8], sync: bool) -> io::Result<()> {
        let temporary = self.dir.join(format!("{name}{UNFINISHED}"));
        match self.fs.remove(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = self.fs.create(&temporary)?;
        file.write_at(content, 0)?;
        if sync {
            file.sync()?;
        }
        self.fs.rename(&temporary, &self.dir.join(name))
    }
}
