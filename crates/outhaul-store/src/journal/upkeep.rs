//! What is done beside the commits, in a thread of its own: footers of sealed segments, files kept ready, removal of
//! finished segments, and the merging of those in which hardly anything waits.

use std::sync::Arc;
use std::sync::PoisonError;

use super::commit::Core;
use super::files::PREPARE_BYTES;
use super::footer::FooterBuilder;
use super::segment::Segment;
use super::survey::{Survey, survey};
use super::{Shared, Upkeep, lock, sync};
use crate::log::Damage;

/// Batches of this length on average are written to a file that grows: the metadata that a commit changes then costs
/// less than preparing the file.
const GROWING_BATCH_BYTES: u64 = 128 << 10;

#[derive(Debug)]
pub(super) enum Chore {
    /// Write the footer of the segment with this number: this one, or what the segment says.
    Seal {
        number: u64,
        footer: Option<Box<FooterBuilder>>,
    },
    /// Have a file that is to be so long ready so far.
    Prepare {
        length: u64,
        until: u64,
    },
    Remove(Vec<Segment>),
    Merge,
}

/// What the thread has to do.
#[derive(Debug, Default)]
pub(super) struct Chores {
    list: std::collections::VecDeque<Chore>,
    stop: bool,
    /// Without a thread: somebody works it off.
    busy: bool,
}

impl Shared {
    /// After a round: what it leaves to be done.
    pub(super) fn upkeep(&self, core: &mut Core, dead: Vec<Segment>) {
        if let Some((length, until)) = self.to_prepare(core) {
            self.chore(Chore::Prepare { length, until });
        }
        if !dead.is_empty() {
            self.chore(Chore::Remove(dead));
            self.chore(Chore::Merge);
        }
    }

    /// How long the next file is to become, and how far it is to be prepared by now: a little ahead of the use of the
    /// active one, so that the work is spread over it.
    fn to_prepare(&self, core: &mut Core) -> Option<(u64, u64)> {
        let active = core.active.as_mut()?;
        let length = active.capacity.saturating_mul(2).min(self.options.segment_bytes_max);
        // Not at once in the first: most logs never need a second one.
        let first = active.capacity <= self.options.segment_bytes_first;
        let from = if first { active.capacity / 4 } else { 0 };
        let used = active.offset.checked_sub(from)?;
        let mean = (active.offset - active.start) / active.batches.max(1);
        if active.asked >= length || mean >= GROWING_BATCH_BYTES {
            return None;
        }
        let part = used as f64 / (active.capacity - from).max(1) as f64;
        let until = (length as f64 * part * 1.25) as u64 + PREPARE_BYTES;
        let until = until.next_multiple_of(PREPARE_BYTES).min(length);
        if until <= active.asked || !lock(&self.inner).spares.is_empty() {
            return None;
        }
        active.asked = until;
        Some((length, until))
    }

    pub(super) fn chore(&self, chore: Chore) {
        lock(&self.chores).list.push_back(chore);
        if self.options.upkeep == Upkeep::Thread {
            self.keeper();
            self.chores_wake.notify_all();
        }
    }

    /// Without a thread, the work is done by whoever made it, once the disk is free.
    pub(super) fn work_off(&self) {
        // A chore may lead a round, which ends here as well: what that leaves is for the loop that is at work.
        if self.options.upkeep != Upkeep::Thread && !std::mem::replace(&mut lock(&self.chores).busy, true) {
            while let Some(chore) = self.next_chore() {
                self.do_chore(chore);
            }
        }
    }

    /// Does what there is to do now, in this thread.
    pub(super) fn work_all_off(&self) {
        loop {
            let chore = lock(&self.chores).list.pop_front();
            let Some(chore) = chore else { return };
            self.do_chore(chore);
        }
    }

    fn next_chore(&self) -> Option<Chore> {
        let mut chores = lock(&self.chores);
        let next = chores.list.pop_front();
        chores.busy = next.is_some();
        next
    }

    /// Starts the thread at the first chore.
    fn keeper(&self) {
        let mut keeper = lock(&self.keeper);
        let Some(shared) = self.me.upgrade().filter(|_| keeper.is_none()) else { return };
        if lock(&self.chores).stop {
            return;
        }
        let thread = sync::Builder::new().name("outhaul-upkeep".to_owned());
        match thread.spawn(move || shared.upkeep_loop()) {
            Ok(handle) => *keeper = Some(handle),
            // Nothing depends on it but speed and space.
            Err(error) => tracing::warn!(%error, "no thread for the upkeep of the log could be started"),
        }
    }

    fn upkeep_loop(self: Arc<Self>) {
        loop {
            let chore = {
                let mut chores = lock(&self.chores);
                loop {
                    if chores.stop {
                        return;
                    }
                    if let Some(chore) = chores.list.pop_front() {
                        break chore;
                    }
                    chores = self.chores_wake.wait(chores).unwrap_or_else(PoisonError::into_inner);
                }
            };
            self.do_chore(chore);
        }
    }

    /// Lets the thread end behind what it is doing.
    pub(super) fn stop_upkeep(&self) {
        lock(&self.chores).stop = true;
        self.chores_wake.notify_all();
        // Not under the lock: the thread may be about to look whether it is there.
        let thread = lock(&self.keeper).take();
        if let Some(thread) = thread {
            // A panic in the thread was reported by the panic hook; nothing depends on what it left.
            thread.join().unwrap_or_default();
        }
    }

    fn do_chore(&self, chore: Chore) {
        match chore {
            Chore::Seal { number, footer } => {
                self.write_footer(number, 0, footer.map(|footer| *footer));
                self.merge();
            }
            Chore::Prepare { length, until } => self.prepare(length, until),
            Chore::Remove(dead) => self.remove_segments(&dead),
            Chore::Merge => self.merge(),
        }
    }

    /// Gives the last segment of a log that is being closed its footer, and those that the thread did not come to.
    pub(super) fn seal(&self, core: &mut Core, checkpoint: u64) {
        let Some(active) = &mut core.active else { return };
        let footer = active.footer.take();
        let unsealed = |segment: &&Segment| !segment.footer && !segment.going;
        let mut numbers: Vec<u64> =
            lock(&self.inner).segments.iter().filter(unsealed).map(|segment| segment.number).collect();
        let last = numbers.pop();
        numbers.into_iter().for_each(|number| self.write_footer(number, 0, None));
        if let Some(last) = last {
            self.write_footer(last, checkpoint, footer);
        }
    }

    /// Writes the footer of a sealed segment, which is read back if nobody noted what was written. It is a convenience:
    /// without it the next open reads the segment.
    fn write_footer(&self, number: u64, checkpoint: u64, noted: Option<FooterBuilder>) {
        let find = |segment: &&Segment| segment.number == number && !segment.footer && !segment.going;
        let Some(segment) = lock(&self.inner).segments.iter().find(find).cloned() else { return };
        let path = segment.path(&self.dir);
        let write = || {
            let file = self.fs.open(&path, true)?;
            let length = file.len()?;
            let read = match noted {
                Some(noted) => {
                    let (footer, rows) = noted.finish(segment.first_sequence, segment.end);
                    Some(Survey { footer, rows, ..Survey::default() })
                }
                None => survey(&*file, &segment, Some(segment.end), length, |_| true)?,
            };
            let Some(mut survey) = read else { return Ok(None) };
            survey.footer.checkpoint = checkpoint;
            if survey.bad.is_empty() && !survey.unreadable {
                // What was prepared and is not needed goes back to the disk.
                if segment.end < length / 2 {
                    file.set_len(segment.end)?;
                }
                survey.footer.write(&survey.rows, segment.salt, &*file)?;
                file.sync()?;
            }
            Ok(Some(survey))
        };
        match write() {
            // It was removed, and its file used again, while it was read.
            Ok(Some(survey)) if !survey.bad.is_empty() && !self.still_there(number) => {}
            Ok(Some(survey)) => {
                for bad in &survey.bad {
                    self.found_damage(Damage {
                        file: Segment::file_name(number),
                        offset: bad.offset,
                        length: bad.end - bad.offset,
                        reason: bad.reason.to_owned(),
                        quarantined: None,
                    });
                }
                let mut inner = lock(&self.inner);
                if let Some(segment) = inner.segments.iter_mut().find(|each| each.number == number) {
                    segment.footer = survey.bad.is_empty() && !survey.unreadable;
                    segment.set_index(survey.footer.index);
                }
            }
            Ok(None) => {}
            Err(error) => {
                let error: std::io::Error = error;
                tracing::debug!(path = %path.display(), %error, "a footer could not be written");
            }
        }
    }

    /// Damage that shows while the log is open.
    pub(super) fn found_damage(&self, damage: Damage) {
        let mut report = lock(&self.report);
        if report.damage.iter().any(|known| (&known.file, known.offset) == (&damage.file, damage.offset)) {
            return;
        }
        let Damage { file, offset, length, reason, .. } = &damage;
        tracing::error!(file, offset, bytes = length, reason, "the journal is damaged");
        report.damage.push(damage);
    }

    /// Whether a segment that was read is what it was: its file may have been used again meanwhile.
    pub(super) fn still_there(&self, number: u64) -> bool {
        lock(&self.inner).segments.iter().any(|segment| segment.number == number && !segment.going)
    }
}
