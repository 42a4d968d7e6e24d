//! Standard output of the verbs that look at a data directory.

use std::io::{self, BufWriter, Write};

use serde::Serialize;

use crate::console::Console;
use crate::error::{CliError, Exit};

/// Why such a verb ends.
pub(crate) enum Failure {
    Told(CliError),
    Output(io::Error),
}

impl<E: Into<CliError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Told(error.into())
    }
}

/// The exit code of such a verb.
pub(crate) fn conclude(done: Result<Exit, Failure>, console: &Console) -> Exit {
    console.end_bar();
    match done {
        Ok(exit) => exit,
        Err(Failure::Told(error)) => console.fail(&error),
        // Whoever reads standard output has seen enough.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Done,
        Err(Failure::Output(error)) => console
            .fail(&CliError::new(Exit::Failed, "cannot write to standard output").because(error.to_string())),
    }
}

/// How JSON values are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Text,
    /// One array of all values.
    Array,
    /// One value.
    Single,
    /// A value a line.
    Lines,
}

/// Standard output: text, or JSON values.
pub(crate) struct Output {
    out: BufWriter<io::Stdout>,
    form: Form,
    first: bool,
}

impl Output {
    /// An array of values with `json`, else text.
    pub(crate) fn new(json: bool) -> Self {
        Self::of(if json { Form::Array } else { Form::Text })
    }

    /// One value with `json`, else text.
    pub(crate) fn single(json: bool) -> Self {
        Self::of(if json { Form::Single } else { Form::Text })
    }

    /// One value a line.
    pub(crate) fn lines() -> Self {
        Self::of(Form::Lines)
    }

    fn of(form: Form) -> Self {
        Self { out: BufWriter::new(io::stdout()), form, first: true }
    }

    /// Writes a value, or the text that stands for it.
    pub(crate) fn value(
        &mut self,
        value: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        match self.form {
            Form::Text => return self.text(&text()),
            Form::Array => self.bytes(if self.first { b"[\n" } else { b",\n" })?,
            Form::Single | Form::Lines => {}
        }
        self.first = false;
        serde_json::to_writer(&mut self.out, value).map_err(|error| Failure::Output(error.into()))?;
        if self.form == Form::Lines { self.bytes(b"\n") } else { Ok(()) }
    }

    /// Writes a value, unless it is for a person.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        if self.form == Form::Text { Ok(()) } else { self.value(value, String::new) }
    }

    /// Writes a line, if it is for a person.
    pub(crate) fn text(&mut self, text: &str) -> Result<(), Failure> {
        match self.form {
            Form::Text => writeln!(self.out, "{text}").map_err(Failure::Output),
            _ => Ok(()),
        }
    }

    /// Writes a line as it is.
    pub(crate) fn raw_line(&mut self, line: &[u8]) -> Result<(), Failure> {
        self.bytes(line)?;
        self.bytes(b"\n")
    }

    fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.out.write_all(bytes).map_err(Failure::Output)
    }

    pub(crate) fn end(&mut self) -> Result<(), Failure> {
        match (self.form, self.first) {
            (Form::Text | Form::Lines, _) => {}
            (Form::Array, true) => self.bytes(b"[]\n")?,
            (Form::Array, false) => self.bytes(b"\n]\n")?,
            (Form::Single, _) => self.bytes(b"\n")?,
        }
        self.out.flush().map_err(Failure::Output)
    }
}
