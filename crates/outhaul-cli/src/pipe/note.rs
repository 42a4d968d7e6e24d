//! [`Note`]: what a data directory remembers of its input.

use bytes::Bytes;
use outhaul::store::Input;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::lines::Line;

/// Lines of the head, by which an input is recognised.
const HEAD_LINES_MAX: u64 = 1_000;
/// Bytes of the head: it is held in memory until the input is recognised.
const HEAD_BYTES_MAX: usize = 64 * 1024 * 1024;
const VERSION: u32 = 1;

/// How far an input was admitted. Made durable before the lines behind `start` are admitted, whose numbers are
/// remembered one by one: after a crash all lines up to `start` are in, and of the others those with their number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Note {
    version: u32,
    /// The digest of the first `head_lines` lines: of min(`lines`, 1,000), or fewer if those are very long.
    pub(crate) head: String,
    pub(crate) head_lines: u64,
    /// Lines before those that were about to be admitted.
    pub(crate) start: u64,
    /// Lines up to the last one that was about to be admitted.
    pub(crate) lines: u64,
    /// The digest of `lines` lines.
    pub(crate) digest: String,
}

impl Note {
    /// The same, for more lines than before.
    pub(crate) fn from(self, start: u64) -> Self {
        Self { start, ..self }
    }

    pub(crate) fn to_bytes(&self) -> Bytes {
        // Strings and numbers always serialise.
        serde_json::to_vec(self).unwrap_or_default().into()
    }
}

/// A note that was read back, and the lines that were admitted under it.
#[derive(Debug, Clone)]
pub(crate) struct Resume {
    pub(crate) note: Note,
    admitted: Vec<(u64, u64)>,
}

impl Resume {
    /// None if another version wrote the note.
    pub(crate) fn read(input: &Input) -> Option<Self> {
        let note: Note = serde_json::from_slice(&input.note).ok()?;
        (note.version == VERSION).then(|| Self { note, admitted: input.admitted.clone() })
    }

    /// Whether a line is in the log.
    pub(crate) fn has(&self, line: u64) -> bool {
        let run = self.admitted.partition_point(|&(_, last)| last < line);
        line <= self.note.start || self.admitted.get(run).is_some_and(|&(first, _)| first <= line)
    }
}

/// The digests of the lines read so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Digests {
    lines: u64,
    all: Sha256,
    head: Sha256,
    head_lines: u64,
    head_bytes: usize,
}

impl Digests {
    pub(crate) fn take(&mut self, line: &Line) {
        self.lines += 1;
        self.all.update(&line.bytes);
        self.all.update(b"\n");
        let bytes = self.head_bytes.saturating_add(line.bytes.len());
        let open = self.head_lines == self.lines - 1 && self.head_lines < HEAD_LINES_MAX;
        if open && (bytes <= HEAD_BYTES_MAX || self.head_lines == 0) {
            self.head.update(&line.bytes);
            self.head.update(b"\n");
            self.head_lines += 1;
            self.head_bytes = bytes;
        }
    }

    pub(crate) fn lines(&self) -> u64 {
        self.lines
    }

    pub(crate) fn head_lines(&self) -> u64 {
        self.head_lines
    }

    pub(crate) fn matches_head(&self, note: &Note) -> bool {
        self.head_lines == note.head_lines && hex(&self.head) == note.head
    }

    pub(crate) fn matches_all(&self, note: &Note) -> bool {
        self.lines == note.lines && hex(&self.all) == note.digest
    }

    /// The note for the lines behind `start`.
    pub(crate) fn note(&self, start: u64) -> Note {
        Note {
            version: VERSION,
            head: hex(&self.head),
            head_lines: self.head_lines,
            start,
            lines: self.lines,
            digest: hex(&self.all),
        }
    }
}

fn hex(digest: &Sha256) -> String {
    digest.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_in_if_it_stands_before_the_chunk_or_in_a_run() {
        let note = Digests::default().note(10);
        let input = Input { note: note.to_bytes(), admitted: vec![(12, 13), (20, 20)] };
        let resume = Resume::read(&input).unwrap();
        let inside: Vec<u64> = (1..25).filter(|&line| resume.has(line)).collect();
        assert_eq!(inside, (1..=10).chain([12, 13, 20]).collect::<Vec<_>>());
        assert!(Resume::read(&Input { note: "{}".into(), admitted: Vec::new() }).is_none());
    }

    #[test]
    fn the_head_ends_after_a_thousand_lines() {
        let mut digests = Digests::default();
        for number in 1..=1_500 {
            digests.take(&Line { number, bytes: number.to_string().into_bytes() });
        }
        assert_eq!((digests.lines(), digests.head_lines()), (1_500, 1_000));
    }
}
