//! The file `end`: which segment is the newest, and, behind a clean end, where it ends.
//!
//! It tells a missing or damaged end of the log from a write that was not finished. A crash may leave it older than the
//! log, never newer.

use std::io;
use std::path::Path;

use bytes::BufMut;
use outhaul_event::wire::Reader;

use crate::fs::{FileSystem, read_whole};

pub(super) const END: &str = "end";
const MAGIC: [u8; 4] = *b"OHE1";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EndMark {
    pub(super) number: u64,
    /// Where its bytes end, if the log was closed in order; else 0.
    pub(super) end: u64,
}

impl EndMark {
    pub(super) fn write(self, fs: &dyn FileSystem, dir: &Path) -> io::Result<()> {
        let mut out = Vec::with_capacity(24);
        out.put_slice(&MAGIC);
        out.put_u32_le(0);
        out.put_u64_le(self.number);
        out.put_u64_le(self.end);
        let crc = crc32c::crc32c(&out[8..]);
        out[4..8].copy_from_slice(&crc.to_le_bytes());
        let path = dir.join(END);
        let file = match fs.open(&path, true) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => fs.create(&path)?,
            other => other?,
        };
        // In place: one that is torn does not verify, and is none.
        file.write_at(&out, 0)?;
        file.sync()
    }

    /// None if there is none that verifies.
    pub(super) fn read(fs: &dyn FileSystem, dir: &Path) -> Option<Self> {
        let bytes = read_whole(fs, &dir.join(END), 24).ok()?;
        let mut reader = Reader::new(&bytes);
        let magic = reader.array::<4>().ok()?;
        let (crc, number, end) = (reader.u32().ok()?, reader.u64().ok()?, reader.u64().ok()?);
        (magic == MAGIC && crc32c::crc32c(&bytes[8..]) == crc).then_some(Self { number, end })
    }
}
