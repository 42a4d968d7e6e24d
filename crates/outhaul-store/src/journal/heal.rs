//! After a sync that failed.
//!
//! What the operating system kept of the failed write may be gone, and asking again may answer that all is well. So
//! the file is never written to again. What was acknowledged is read back from the device, past the page cache; if
//! all of it is there, the log goes on in a new segment, which says that the old one ends before the failed batch. If
//! it is not, or cannot be read that way, the log stays refused and says so.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::commit::Core;
use super::survey::survey;
use super::{Shared, lock};
use crate::fs::{File, FileSystem};
use crate::log::Durability;

/// A file as it is on the device.
#[derive(Debug)]
struct Uncached {
    fs: Arc<dyn FileSystem>,
    path: PathBuf,
}

impl File for Uncached {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let read = self.fs.read_uncached(&self.path, offset, buffer.len())?;
        buffer[..read.len()].copy_from_slice(&read);
        Ok(read.len())
    }

    fn write_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sync(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }
}

impl Shared {
    pub(super) fn heal(&self, core: &mut Core, reason: &str) {
        let Err(why) = self.try_heal(core, reason) else { return };
        core.active = None;
        self.fail(&format!("{reason}; {why}"));
    }

    fn try_heal(&self, core: &mut Core, reason: &str) -> Result<(), String> {
        let segment = lock(&self.inner).segments.last().cloned();
        let (Some(active), Some(segment)) = (core.active.as_mut(), segment) else {
            return Err("there is no segment to go on from".to_owned());
        };
        if self.options.durability != Durability::Synced {
            return Err(
                "what was acknowledged without a sync may be lost, so nothing more is written".to_owned()
            );
        }
        let path = segment.path(&self.dir);
        self.read_back(&path, &segment)?;
        // Its bytes end where the last confirmed batch ends, whatever the failed one left behind that.
        (active.offset, active.synced) = (segment.end, segment.end);
        active.footer = None;
        self.forget_given(core);
        let first_sequence = core.next_sequence;
        self.start_segment(core, first_sequence)
            .map_err(|error| format!("a new segment could not be started ({error})"))?;
        let bytes = segment.end;
        tracing::error!(
            reason, path = %path.display(), bytes,
            "the disk failed a write: its events are unknown; everything acknowledged was read back from the device, \
             and the journal goes on in a new segment"
        );
        Ok(())
    }

    /// Whether all that was acknowledged from a segment is on the device.
    fn read_back(&self, path: &Path, segment: &super::segment::Segment) -> Result<(), String> {
        let file = Uncached { fs: Arc::clone(&self.fs), path: path.to_owned() };
        let read = survey(&file, segment, Some(segment.end), segment.end, |_| true).map_err(|error| {
            format!("what was acknowledged cannot be read back past the page cache here ({error})")
        })?;
        match read {
            Some(survey) if survey.is_sound() => Ok(()),
            _ => Err(format!("what was acknowledged is damaged on the device: {}", path.display())),
        }
    }
}
