//! From JSON text to an [`Event`]: a `CloudEvent`, or any other value, which becomes the data of one.

mod pid;
pub(crate) mod scan;

use bytes::Bytes;
use outhaul::event::{Event, InvalidEvent, JsonError, Limits};
use serde::de::IgnoredAny;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

pub(crate) use pid::PidField;
use scan::members;

/// The type of an event that was made of a JSON value.
const KIND: &str = "outhaul.json";

/// How values are read.
#[derive(Debug, Clone)]
pub(crate) struct Reader {
    /// The `source` of events that are made of a JSON value.
    source: &'static str,
    pid_field: Option<PidField>,
    limits: Limits,
}

impl Reader {
    pub(crate) fn new(source: &'static str, pid_field: Option<PidField>) -> Self {
        Self { source, pid_field, limits: Limits::default() }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Reads one value. An object with `specversion` has to be a valid `CloudEvent`.
    pub(crate) fn value(&self, bytes: &[u8]) -> Result<Event, JsonError> {
        let text = utf8(bytes)?;
        if !text.trim_ascii_start().starts_with('{') {
            let mut parser = serde_json::Deserializer::from_str(text);
            let whole = serde::Deserialize::deserialize(&mut parser).and_then(|IgnoredAny| parser.end());
            whole.map_err(|e| JsonError::from_parser(&e))?;
            return self.data(text);
        }
        match members(text, ["specversion"])? {
            [Some(_)] => self.parsed(text),
            [None] => self.data(text),
        }
    }

    /// Reads one value that has to be a `CloudEvent`.
    pub(crate) fn cloudevent(&self, bytes: &[u8]) -> Result<Event, JsonError> {
        self.parsed(utf8(bytes)?)
    }

    /// Gives an event that came in another form than JSON its pid. The place of an error is one in its JSON form.
    pub(crate) fn keyed(&self, event: Event) -> Result<Event, JsonError> {
        if self.pid_field.is_none() || event.pid().is_some() {
            return Ok(event);
        }
        let json = event.to_json();
        self.with_pid(event, utf8(&json)?)
    }

    fn parsed(&self, text: &str) -> Result<Event, JsonError> {
        self.with_pid(Event::from_json(text.as_bytes(), &self.limits)?, text)
    }

    /// A `partitionkey` wins. Without one the field is looked up in the whole object, then in its `data`.
    fn with_pid(&self, event: Event, text: &str) -> Result<Event, JsonError> {
        let Some(field) = self.pid_field.as_ref().filter(|_| event.pid().is_none()) else { return Ok(event) };
        let found = match field.find(text)? {
            Some(pid) => Some(pid),
            None => match members(text, ["data"])? {
                [Some(data)] => field.find_in(text, data.get())?,
                [None] => None,
            },
        };
        let Some(pid) = found else { return Ok(event) };
        event.with_pid(pid.text, &self.limits).map_err(|invalid| at(text, pid.offset, told(&invalid)))
    }

    fn data(&self, text: &str) -> Result<Event, JsonError> {
        let now = OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default();
        let body = Bytes::copy_from_slice(text.trim_ascii().as_bytes());
        let mut event = Event::builder(KIND, self.source).time(now).json(body);
        let mut offset = text.len() - text.trim_ascii_start().len();
        if let Some(field) = &self.pid_field
            && let Some(pid) = field.find(text)?
        {
            offset = pid.offset;
            event = event.pid(pid.text);
        }
        event.build_within(&self.limits).map_err(|invalid| {
            let pid = invalid.attribute == "partitionkey";
            let offset = if pid { offset } else { 0 };
            at(text, offset, told(&invalid))
        })
    }
}

/// An error whose place is not known yet.
fn told(invalid: &InvalidEvent) -> JsonError {
    JsonError { line: 1, column: 1, message: invalid.to_string(), too_large: invalid.is_too_large() }
}

/// Checks that a text is UTF-8.
pub(crate) fn utf8(bytes: &[u8]) -> Result<&str, JsonError> {
    std::str::from_utf8(bytes).map_err(|error| {
        let good = error.valid_up_to();
        // What comes before the bad byte is valid.
        let before = std::str::from_utf8(&bytes[..good]).unwrap_or_default();
        let byte = bytes.get(good).copied().unwrap_or_default();
        let message = format!("the byte 0x{byte:02X} is not valid UTF-8");
        at(before, good, JsonError { line: 1, column: 1, message, too_large: false })
    })
}

/// Moves an error to a byte of a text.
pub(crate) fn at(text: &str, offset: usize, error: JsonError) -> JsonError {
    let before = &text.as_bytes()[..offset.min(text.len())];
    let line = 1 + before.iter().filter(|&&b| b == b'\n').count();
    let column = 1 + before.iter().rev().take_while(|&&b| b != b'\n').count();
    JsonError { line, column, ..error }
}

/// A text without the byte order mark that some editors put before it.
pub(crate) fn without_bom(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes)
}

#[cfg(test)]
mod tests;
