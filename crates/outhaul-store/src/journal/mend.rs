//! What recovery does about damage: a copy goes to the quarantine, the place becomes a hole, so that it is reported
//! once and everything around it stays.
//!
//! Where the footer tells what is in the place, it stays as it is: entries in it can be read that are whole. A repair
//! takes them out ([`Shared::mend`](super::Shared::mend)).

use std::io;
use std::path::PathBuf;

use super::footer::Footer;
use super::format::{BATCH_HEADER, BatchHeader, SEGMENT_HEADER, SegmentHeader};
use super::recover::{Found, Recovery};
use super::segment::Segment;
use super::survey::{Bad, Survey};
use crate::error::StoreError;
use crate::fs::File;
use crate::log::{Damage, OpenReport};

impl Recovery<'_> {
    /// `keep`: the footer tells what is in the stretch.
    pub(super) fn damaged(
        &self,
        found: &Found,
        bad: &Bad,
        keep: bool,
        report: &mut OpenReport,
    ) -> Result<(), StoreError> {
        let name = Segment::file_name(found.segment.number);
        let Bad { offset, end, reason, unreadable } = *bad;
        // What is behind the end of the file cannot be moved anywhere, nor what the disk cannot read.
        let there = Bad { offset, end: end.min(found.length).max(offset), reason, unreadable };
        let nothing = there.end == offset;
        let quarantined =
            if nothing || unreadable { None } else { self.quarantine(&name, &*found.file, &there)? };
        if (quarantined.is_some() || nothing)
            && !(keep || self.read_only || unreadable)
            && let Ok(length) = u32::try_from(end - offset)
            && length as usize >= BATCH_HEADER
        {
            let path = found.segment.path(self.dir);
            if end > found.length {
                found.file.set_len(end).map_err(StoreError::io("extend", &path))?;
            }
            self.write(found, &BatchHeader::hole(found.segment.salt, 0, length), offset)?;
        }
        if !nothing {
            let (file, reason) = (name.clone(), bad.reason.to_owned());
            report.damage.push(Damage { file, offset, length: there.end - offset, reason, quarantined });
        }
        if end > there.end {
            let reason = "the file ends here; what was behind is lost".to_owned();
            let (offset, length) = (there.end, end - there.end);
            report.damage.push(Damage { file: name, offset, length, reason, quarantined: None });
        }
        Ok(())
    }

    /// Records that are damaged by themselves. Entries are shown to a person by whoever reads them, so an open leaves
    /// them out.
    pub(super) fn tell_broken(
        &self,
        each: &Found,
        survey: &Survey,
        report: &mut OpenReport,
    ) -> Result<(), StoreError> {
        let file = Segment::file_name(each.segment.number);
        for broken in survey.broken.iter().filter(|broken| self.verify || !broken.kind.is_entry()) {
            let what = match broken.kind.is_entry() {
                true => format!("event {}", broken.sequence),
                false => format!("a record of kind {:?}", broken.kind).to_lowercase(),
            };
            // What is behind the end of the file cannot be copied.
            let (offset, there) = (broken.offset, each.length.saturating_sub(broken.offset));
            let length = broken.length.min(there);
            let quarantined = match self.verify && length > 0 {
                true => {
                    let bad = Bad { offset, end: offset + length, reason: "", unreadable: false };
                    self.quarantine(&file, &*each.file, &bad)?
                }
                false => None,
            };
            let reason = format!("{what} does not match its checksum");
            report.damage.push(Damage { file: file.clone(), offset, length, reason, quarantined });
        }
        // A footer from before the damage knows more than can be derived.
        let Segment { salt, .. } = each.segment;
        if self.verify
            && survey.is_sound()
            && let Some((offset, length)) = Footer::damaged(&*each.file, salt, each.length, &survey.footer)
        {
            let reason =
                "the footer is damaged; nothing is lost, as a repair or the next open derives it again";
            let reason = reason.to_owned();
            report.damage.push(Damage { file, offset, length, reason, quarantined: None });
        }
        Ok(())
    }

    pub(super) fn mend_header(&self, found: &Found, report: &mut OpenReport) -> Result<(), StoreError> {
        let Segment { number, salt, base, first_sequence, merged, .. } = found.segment;
        let reason = "a segment header that was overwritten";
        let bad = Bad { offset: 0, end: SEGMENT_HEADER, reason, unreadable: false };
        let file = Segment::file_name(number);
        let quarantined = self.quarantine(&file, &*found.file, &bad)?;
        if quarantined.is_some() {
            let header = SegmentHeader { format: found.format, merged, number, salt, base, first_sequence };
            self.write(found, &header.encode(), 0)?;
        }
        let reason = bad.reason.to_owned();
        report.damage.push(Damage { file, offset: 0, length: SEGMENT_HEADER, reason, quarantined });
        Ok(())
    }

    /// Makes a batch that was never acknowledged unreadable.
    pub(super) fn erase(&self, found: &Found, offset: u64) -> Result<(), StoreError> {
        self.write(found, &[0; BATCH_HEADER], offset)
    }

    fn write(&self, found: &Found, bytes: &[u8], offset: u64) -> Result<(), StoreError> {
        let path = found.segment.path(self.dir);
        found.file.write_at(bytes, offset).map_err(StoreError::io("write", &path))?;
        found.file.sync().map_err(StoreError::io("sync", &path))
    }

    /// Moves a file that is no segment of this log.
    pub(super) fn set_aside(
        &self,
        number: u64,
        file: &dyn File,
        length: u64,
        reason: &'static str,
        report: &mut OpenReport,
    ) -> Result<(), StoreError> {
        let bad = Bad { offset: 0, end: length, reason, unreadable: false };
        let name = Segment::file_name(number);
        let quarantined = self.quarantine(&name, file, &bad)?;
        if quarantined.is_some() {
            let path = self.dir.join(&name);
            self.fs.remove(&path).map_err(StoreError::io("remove", &path))?;
        }
        report.damage.push(Damage { file: name, offset: 0, length, reason: reason.to_owned(), quarantined });
        Ok(())
    }

    fn quarantine(&self, name: &str, file: &dyn File, bad: &Bad) -> Result<Option<PathBuf>, StoreError> {
        if self.read_only {
            return Ok(None);
        }
        match self.copy(name, file, bad) {
            Ok(path) => Ok(Some(path)),
            Err(error) => {
                let dir = self.quarantine.display();
                tracing::error!(%dir, %error, "damage could not be copied to the quarantine");
                Ok(None)
            }
        }
    }

    /// Copies a stretch, durably.
    fn copy(&self, name: &str, file: &dyn File, bad: &Bad) -> io::Result<PathBuf> {
        let dir = self.quarantine;
        let path = dir.join(format!("{name}-{}-{}.bin", bad.offset, bad.end));
        self.fs.create_dir_all(dir)?;
        let to = match self.fs.create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.fs.open(&path, true)?,
            other => other?,
        };
        let mut chunk = vec![0; 1 << 20];
        let mut at = bad.offset;
        while at < bad.end {
            let want = usize::try_from(bad.end - at).unwrap_or(usize::MAX).min(chunk.len());
            let read = file.read_at(&mut chunk[..want], at)?;
            if read == 0 {
                break;
            }
            to.write_at(&chunk[..read], at - bad.offset)?;
            at += read as u64;
        }
        to.sync()?;
        self.fs.sync_dir(dir)?;
        Ok(path)
    }
}
