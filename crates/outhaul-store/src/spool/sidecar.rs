//! The small files beside the directories: what RustFS has no place for. Text in, text out; each is written whole.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};

use super::InputState;
use crate::queue::Runs;

/// `<directory>.queue`: whose queue it is.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct QueueFile {
    pub(super) name: String,
    #[serde(default)]
    pub(super) label: String,
    /// The directory from which its entries are being moved; one that is in both was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) moving_from: Option<String>,
}

pub(super) const QUEUE: &str = ".queue";
pub(super) const SEQUENCES: &str = ".sequences";
pub(super) const STATE: &str = ".state";
pub(super) const FLIGHT: &str = ".flight";
/// How often the spool was opened.
pub(super) const OPENS: &str = "opens";
/// How far the input was read.
pub(super) const INPUT: &str = "input";

/// What the last line of each of them starts with.
const SUM: &[u8] = b"sum=";
/// That line: a checksum of 8 hex digits and a line feed.
const SUM_LENGTH: usize = SUM.len() + 9;

/// Ends a file with the checksum of what stands before.
pub(super) fn seal(mut content: Vec<u8>) -> Vec<u8> {
    if content.last() != Some(&b'\n') {
        content.push(b'\n');
    }
    let sum = crc32c::crc32c(&content);
    content.extend_from_slice(SUM);
    content.extend_from_slice(format!("{sum:08x}\n").as_bytes());
    content
}

/// What stands before the checksum; None if it does not match. A file of version 0 has none: it is for its parser to
/// judge, and so is a last line that is damaged.
pub(super) fn unseal(content: &[u8]) -> Option<&[u8]> {
    let Some(at) = content.len().checked_sub(SUM_LENGTH) else { return Some(content) };
    let (body, line) = content.split_at(at);
    let Some(sum) = line.strip_prefix(SUM).and_then(|sum| sum.strip_suffix(b"\n")) else {
        return Some(content);
    };
    (sum == format!("{:08x}", crc32c::crc32c(body)).as_bytes()).then_some(body)
}

/// Whether something is what a file becomes that was not synced when the power went: its end, or blocks of it, are not
/// there.
pub(super) fn is_torn(content: &[u8]) -> bool {
    let cut = || serde_json::from_slice::<serde::de::IgnoredAny>(content).is_err_and(|error| error.is_eof());
    content.contains(&0) || cut()
}

/// `<directory>.state`: what is remembered of entries that wait.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StateFile {
    /// Whether the process ended as it should.
    #[serde(default)]
    pub(super) clean: bool,
    /// Sequence, attempts, and the time before which there is no next one.
    #[serde(default)]
    pub(super) retries: Vec<(u64, u32, u64)>,
    #[serde(default)]
    pub(super) in_flight: Vec<u64>,
    /// Sequence, and how often the process ended while it was being delivered.
    #[serde(default)]
    pub(super) crashes: Vec<(u64, u32)>,
    /// The first sequence of a batch, and which of its items are settled.
    #[serde(default)]
    pub(super) partly: Vec<(u64, Vec<u64>)>,
}

/// `<directory>.flight`: what is being delivered, written before it is, and so never synced.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FlightFile {
    pub(super) in_flight: Vec<u64>,
    #[serde(default)]
    pub(super) crashes: Vec<(u64, u32)>,
}

#[derive(Serialize, Deserialize)]
struct InputFile {
    /// In base64.
    note: String,
    admitted: Vec<(u64, u64)>,
    covers: u64,
}

pub(super) fn write_input(input: &InputState) -> Vec<u8> {
    let note = BASE64.encode(&input.note);
    let file = InputFile { note, admitted: input.admitted.iter().collect(), covers: input.covers };
    // Strings and numbers always serialise.
    serde_json::to_vec(&file).unwrap_or_default()
}

pub(super) fn read_input(bytes: &[u8]) -> Option<InputState> {
    let file: InputFile = serde_json::from_slice(bytes).ok()?;
    let mut admitted = Runs::default();
    for (first, last) in file.admitted.into_iter().filter(|(first, last)| first <= last) {
        admitted.insert(first, last);
    }
    Some(InputState { note: BASE64.decode(file.note).ok()?.into(), admitted, covers: file.covers })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_of_a_sealed_file_is_noticed() {
        let parse = |bytes: &[u8]| unseal(bytes).is_some_and(|body| read_input(body).is_some());
        let content = seal(write_input(&InputState { covers: 77, ..InputState::default() }));
        assert!(parse(&content));
        for bit in 0..content.len() * 8 {
            let mut bytes = content.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!parse(&bytes), "bit {bit}");
        }
        let old = write_input(&InputState::default());
        assert_eq!(unseal(&old), Some(&old[..]), "version 0 has no checksums");
    }

    #[test]
    fn how_far_the_input_was_read_is_read_back() {
        let mut admitted = Runs::default();
        admitted.insert(1, 3);
        admitted.insert(9, u64::MAX);
        let input = InputState { note: b"\0n".as_slice().into(), admitted, covers: 77 };
        assert_eq!(read_input(&write_input(&input)), Some(input));
        for bad in ["", "{}", r#"{"note":"!","admitted":[],"covers":0}"#] {
            assert_eq!(read_input(bad.as_bytes()), None);
        }
    }
}
