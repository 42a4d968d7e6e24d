//! What recovery does about damage: a copy goes to the quarantine, the place becomes a hole, so that it is reported
//! once and everything around it stays.

use std::io;
use std::path::PathBuf;

use super::format::{BATCH_HEADER, BatchHeader, SEGMENT_HEADER, SegmentHeader};
use super::recover::{Found, Recovery};
use super::segment::Segment;
use super::survey::Bad;
use crate::error::StoreError;
use crate::fs::File;
use crate::log::{Damage, OpenReport};

impl Recovery<'_> {
    pub(super) fn damaged(
        &self,
        found: &Found,
        bad: &Bad,
        report: &mut OpenReport,
    ) -> Result<(), StoreError> {
        let name = Segment::file_name(found.segment.number);
        let quarantined = match bad.unreadable {
            true => None,
            false => self.quarantine(&name, &*found.file, bad)?,
        };
        if quarantined.is_some()
            && bad.end <= found.length
            && let Ok(length) = u32::try_from(bad.end - bad.offset)
            && length as usize >= BATCH_HEADER
        {
            let hole = BatchHeader::hole(found.segment.salt, 0, length);
            self.write(found, &hole, bad.offset)?;
        }
        let (offset, length) = (bad.offset, bad.end - bad.offset);
        report.damage.push(Damage { file: name, offset, length, reason: bad.reason.to_owned(), quarantined });
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

    /// Moves a file that holds batches but does not say of which segment.
    pub(super) fn set_aside(
        &self,
        number: u64,
        file: &dyn File,
        length: u64,
        report: &mut OpenReport,
    ) -> Result<(), StoreError> {
        let reason = "a file that holds batches of another segment, or of none";
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
