//! [`Lines`]: standard input, line by line, in bounded memory.

use std::collections::VecDeque;
use std::io::{self, BufRead as _, BufReader, Read};

/// The longest line. An event's body may have 1 MiB; escapes and base64 make more of it.
pub(crate) const LINE_BYTES_MAX: usize = 8 * 1024 * 1024;
const BUFFER_BYTES: usize = 1024 * 1024;

/// One line without its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    /// Counts from 1, with the blank ones.
    pub(crate) number: u64,
    pub(crate) bytes: Vec<u8>,
}

impl Line {
    pub(crate) fn is_blank(&self) -> bool {
        self.bytes.trim_ascii().is_empty()
    }
}

/// Why there is no next line.
#[derive(Debug)]
pub(crate) enum LineError {
    /// This line is longer than [`LINE_BYTES_MAX`].
    TooLong(u64),
    /// The input cannot be read.
    Io(io::Error),
}

/// Reads lines that end in LF or CRLF; the last one may end with the input. A byte order mark is left out.
pub(crate) struct Lines<R> {
    input: BufReader<R>,
    number: u64,
    replay: VecDeque<Line>,
}

impl<R: Read> Lines<R> {
    pub(crate) fn new(input: R) -> Self {
        Self { input: BufReader::with_capacity(BUFFER_BYTES, input), number: 0, replay: VecDeque::new() }
    }

    /// Puts lines back, so that they are read next.
    pub(crate) fn put_back(&mut self, lines: Vec<Line>) {
        self.replay.extend(lines);
    }

    /// Whether the next line is here already, so that reading it does not wait.
    pub(crate) fn is_ready(&self) -> bool {
        !self.replay.is_empty() || self.input.buffer().contains(&b'\n')
    }

    pub(crate) fn next(&mut self) -> Result<Option<Line>, LineError> {
        if let Some(line) = self.replay.pop_front() {
            return Ok(Some(line));
        }
        let number = self.number + 1;
        let mut bytes = Vec::new();
        // A line end of two bytes more than the longest line.
        let max = LINE_BYTES_MAX as u64 + 2;
        // Interrupted reads are repeated by it.
        self.input.by_ref().take(max).read_until(b'\n', &mut bytes).map_err(LineError::Io)?;
        if bytes.is_empty() {
            return Ok(None);
        }
        if bytes.pop_if(|b| *b == b'\n').is_some() {
            bytes.pop_if(|b| *b == b'\r');
        }
        if number == 1 {
            bytes.drain(..bytes.len() - crate::value::without_bom(&bytes).len());
        }
        if bytes.len() > LINE_BYTES_MAX {
            return Err(LineError::TooLong(number));
        }
        self.number = number;
        Ok(Some(Line { number, bytes }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(input: &[u8]) -> Vec<String> {
        let mut lines = Lines::new(input);
        let mut found = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            found.push(format!("{}:{}", line.number, String::from_utf8(line.bytes).unwrap()));
        }
        found
    }

    #[test]
    fn lines_end_in_lf_crlf_or_with_the_input() {
        assert_eq!(all(b"a\nb\r\n\nc"), ["1:a", "2:b", "3:", "4:c"]);
        assert_eq!(all(b"\xEF\xBB\xBFa\n\xEF\xBB\xBFb\n"), ["1:a", "2:\u{feff}b"]);
        assert_eq!(all(b""), [""; 0]);
        assert_eq!(all(b"\xEF\xBB\xBF"), ["1:"]);
        assert_eq!(all(b"a\n"), ["1:a"]);
        assert_eq!(all(b"a\r\r\n"), ["1:a\r"]);
    }

    #[test]
    fn a_line_of_any_length_takes_bounded_memory() {
        let mut lines = Lines::new(io::repeat(b'x'));
        assert!(matches!(lines.next(), Err(LineError::TooLong(1))));
        let mut longest = vec![b'x'; LINE_BYTES_MAX];
        longest.extend(b"\r\ny");
        let mut lines = Lines::new(&longest[..]);
        assert_eq!(lines.next().unwrap().unwrap().bytes.len(), LINE_BYTES_MAX);
        assert_eq!(lines.next().unwrap().unwrap().bytes, b"y");
    }
}
