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
}

pub(super) const QUEUE: &str = ".queue";
pub(super) const SEQUENCES: &str = ".sequences";
pub(super) const STATE: &str = ".state";
pub(super) const FLIGHT: &str = ".flight";
/// How often the spool was opened.
pub(super) const OPENS: &str = "opens";
/// How far the input was read.
pub(super) const INPUT: &str = "input";

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
