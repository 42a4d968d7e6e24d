//! Events to lines, and the question whose an unfinished last line is. No I/O.

use std::collections::HashSet;

use outhaul_target::{Attempt, DeliveryError, ErrorKind, Format, encode};
use serde_json::value::RawValue;

/// A batch as lines.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    /// All lines, each with its line feed.
    pub(crate) bytes: Vec<u8>,
    /// Where each line ends.
    pub(crate) ends: Vec<usize>,
    /// Per event: None if it is one of the lines, in order.
    pub(crate) failed: Vec<Option<DeliveryError>>,
}

/// Writes a batch. An event that cannot be written ends its pid's part of the batch.
pub(crate) fn lines(events: &[Attempt], format: Format) -> Lines {
    let mut lines = Lines::default();
    let mut ended: HashSet<&str> = HashSet::new();
    for attempt in events {
        let pid = attempt.event.pid();
        if pid.is_some_and(|pid| ended.contains(pid)) {
            lines.failed.push(Some(ErrorKind::Skipped.into()));
            continue;
        }
        let failed = encode::line(&attempt.event, format, &mut lines.bytes).err();
        if failed.is_some() {
            ended.extend(pid);
        } else {
            lines.bytes.push(b'\n');
            lines.ends.push(lines.bytes.len());
        }
        lines.failed.push(failed);
    }
    lines
}

/// What to do about a last line that has no line feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tail {
    /// It is whole, or somebody else's: end it.
    End,
    /// It is our half line, never acknowledged: cut it off.
    Cut,
}

/// Judges a last line that has no line feed. Half of one of ours begins like JSON and is not; where a crash lost
/// blocks, it is zeros.
pub(crate) fn judge(last: &[u8]) -> Tail {
    if serde_json::from_slice::<&RawValue>(last).is_ok() {
        return Tail::End;
    }
    let literal = [&b"true"[..], b"false", b"null"].iter().any(|word| word.starts_with(last));
    if literal || matches!(last, [b'{' | b'[' | b'"' | b'-' | 0, ..]) { Tail::Cut } else { Tail::End }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_a_line_of_ours_is_told_from_what_another_program_wrote() {
        for half in ["{", r#"{"specversion":"1.0","id":"#, "[1,", "\"tex", "-", "nul", "\0\0", "{}{"] {
            assert_eq!(judge(half.as_bytes()), Tail::Cut, "{half}");
        }
        for whole in ["{}", " [1] ", "12", "\"text\"", "null", "a log line", "# comment", "\u{e9}"] {
            assert_eq!(judge(whole.as_bytes()), Tail::End, "{whole}");
        }
        assert_eq!(judge(b"{\"a\":\"\xC3"), Tail::Cut);
    }
}
