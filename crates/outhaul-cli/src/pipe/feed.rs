//! [`Feed`]: from the bytes of standard input to chunks of events that are to be admitted. It runs in a thread of its
//! own, since reading standard input blocks.

use std::io::{self, Read};

use outhaul::event::Event;

use super::lines::{LINE_BYTES_MAX, Line, LineError, Lines};
use super::note::{Digests, Note, Resume};
use crate::value::Reader;

const CHUNK_LINES_MAX: u64 = 1_000;
const CHUNK_BYTES_MAX: usize = 4 * 1024 * 1024;

/// What the thread hands over.
#[derive(Debug)]
pub(crate) enum Fed {
    /// The input is not the one that the directory remembers.
    OtherInput,
    /// The input is known; its first lines are in.
    SameInput {
        /// Lines that an earlier run set out to admit.
        lines: u64,
    },
    /// Some lines.
    Chunk(Chunk),
    /// There is no more.
    End(End),
}

/// Lines of the input, in their order.
#[derive(Debug, Default)]
pub(crate) struct Chunk {
    /// What is to be remembered before any of these events is admitted. None: what is remembered already holds.
    pub(crate) note: Option<Note>,
    /// Events, each with the number of its line.
    pub(crate) events: Vec<(u64, Event)>,
    /// Lines read.
    pub(crate) read: u64,
    /// Lines that were blank, or in already.
    pub(crate) skipped: u64,
}

/// Why there is no more.
#[derive(Debug)]
pub(crate) enum End {
    /// The input ended.
    Done,
    /// A line is no event.
    Bad {
        /// From 1.
        line: u64,
        /// The byte in the line, from 1.
        column: u64,
        /// What is wrong.
        message: String,
    },
    /// The input begins like the one that is remembered, and is another one before or at this line.
    Differs {
        /// Lines that were set out to be admitted.
        lines: u64,
        /// Whether the input ended before them.
        short: bool,
    },
    /// The input cannot be read.
    Io(io::Error),
    /// Nobody wants more.
    Unwanted,
}

type Ended<T> = Result<T, End>;

/// Reads an input.
pub(crate) struct Feed<R, S> {
    lines: Lines<R>,
    reader: Reader,
    digests: Digests,
    send: S,
}

impl<R: Read, S: FnMut(Fed) -> bool> Feed<R, S> {
    /// `send` says whether more is wanted.
    pub(crate) fn new(input: R, reader: Reader, send: S) -> Self {
        Self { lines: Lines::new(input), reader, digests: Digests::default(), send }
    }

    /// Reads to the end. With `resume`, an input that is known goes on behind the lines that are in.
    pub(crate) fn run(mut self, resume: Option<&Resume>) {
        let end = match self.read(resume) {
            Ok(()) => End::Done,
            Err(end) => end,
        };
        (self.send)(Fed::End(end));
    }

    fn read(&mut self, resume: Option<&Resume>) -> Ended<()> {
        if let Some(resume) = resume
            && self.is_same(&resume.note)?
        {
            self.hand(Fed::SameInput { lines: resume.note.lines })?;
            self.catch_up(resume)?;
        }
        loop {
            let start = self.digests.lines();
            let mut chunk = Chunk::default();
            let end = self.fill(&mut chunk);
            if !chunk.events.is_empty() {
                chunk.note = Some(self.digests.note(start));
            }
            self.hand(Fed::Chunk(chunk))?;
            if let Some(end) = end {
                return end;
            }
        }
    }

    fn hand(&mut self, fed: Fed) -> Ended<()> {
        if (self.send)(fed) { Ok(()) } else { Err(End::Unwanted) }
    }

    /// Reads the head and decides whether it is that of the input that is remembered. The lines are read again.
    fn is_same(&mut self, note: &Note) -> Ended<bool> {
        let mut digests = Digests::default();
        let mut held = Vec::new();
        while digests.head_lines() < note.head_lines {
            let Some(line) = self.next()? else { break };
            digests.take(&line);
            held.push(line);
            // The head is shorter than it was: these lines are longer.
            if digests.head_lines() < held.len() as u64 {
                break;
            }
        }
        let same = digests.matches_head(note);
        let empty = held.is_empty();
        self.lines.put_back(held);
        if !same && !empty {
            self.hand(Fed::OtherInput)?;
        }
        Ok(same)
    }

    /// Reads the lines that are remembered. Those of the last chunk that are not in are held until the digest of all
    /// of them is right.
    fn catch_up(&mut self, resume: &Resume) -> Ended<()> {
        let note = &resume.note;
        let differs = |short| End::Differs { lines: note.lines, short };
        let mut missing = Vec::new();
        let mut chunk = Chunk::default();
        while self.digests.lines() < note.lines {
            let line = self.next()?.ok_or_else(|| differs(true))?;
            self.digests.take(&line);
            chunk.read += 1;
            if line.is_blank() || resume.has(line.number) {
                chunk.skipped += 1;
            } else {
                missing.push(line);
            }
            if chunk.read == CHUNK_LINES_MAX {
                self.hand(Fed::Chunk(std::mem::take(&mut chunk)))?;
            }
        }
        if !self.digests.matches_all(note) {
            return Err(differs(false));
        }
        let mut end = Ok(());
        for line in missing {
            match self.event(&line) {
                Ok(event) => chunk.events.push((line.number, event)),
                Err(bad) => {
                    end = Err(bad);
                    break;
                }
            }
        }
        self.hand(Fed::Chunk(chunk))?;
        end
    }

    /// Fills a chunk with what is there, and waits only for its first line. The result, if there is one, is how the
    /// input ended behind these lines.
    fn fill(&mut self, chunk: &mut Chunk) -> Option<Ended<()>> {
        let mut bytes = 0;
        while chunk.read < CHUNK_LINES_MAX && bytes < CHUNK_BYTES_MAX {
            if chunk.read > 0 && !self.lines.is_ready() {
                break;
            }
            let line = match self.next() {
                Ok(Some(line)) => line,
                Ok(None) => return Some(Ok(())),
                Err(end) => return Some(Err(end)),
            };
            chunk.read += 1;
            bytes += line.bytes.len();
            if line.is_blank() {
                chunk.skipped += 1;
            } else {
                match self.event(&line) {
                    Ok(event) => chunk.events.push((line.number, event)),
                    // The line is not part of what is remembered: corrected, it is read by the next run.
                    Err(end) => return Some(Err(end)),
                }
            }
            self.digests.take(&line);
        }
        None
    }

    fn next(&mut self) -> Ended<Option<Line>> {
        self.lines.next().map_err(|error| match error {
            LineError::Io(error) => End::Io(error),
            LineError::TooLong(line) => End::Bad {
                line,
                column: LINE_BYTES_MAX as u64 + 1,
                message: format!("the line is longer than {} MiB", LINE_BYTES_MAX >> 20),
            },
        })
    }

    fn event(&self, line: &Line) -> Ended<Event> {
        self.reader.value(&line.bytes).map_err(|error| End::Bad {
            line: line.number,
            column: error.column as u64,
            message: error.message,
        })
    }
}

#[cfg(test)]
mod tests;
