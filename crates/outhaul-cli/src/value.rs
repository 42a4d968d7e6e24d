//! From JSON text to an [`Event`]: a `CloudEvent`, or any other value, which becomes the data of one.

mod pid;
pub(crate) mod scan;

use bytes::Bytes;
use outhaul::event::{Event, JsonError, Limits};
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
        let [version, key] = members(text, ["specversion", "partitionkey"])?;
        match version {
            Some(_) => self.parsed(text, key.is_some()),
            None => self.data(text),
        }
    }

    /// Reads one value that has to be a `CloudEvent`.
    pub(crate) fn cloudevent(&self, bytes: &[u8]) -> Result<Event, JsonError> {
        let text = utf8(bytes)?;
        // What is no object at all is refused by the event's own parser, which says what it expects.
        let key = match text.trim_ascii_start().starts_with('{') {
            true => members(text, ["partitionkey"])?[0].is_some(),
            false => true,
        };
        self.parsed(text, key)
    }

    fn parsed(&self, text: &str, has_key: bool) -> Result<Event, JsonError> {
        let event = Event::from_json(text.as_bytes(), &self.limits)?;
        let Some(field) = self.pid_field.as_ref().filter(|_| !has_key) else { return Ok(event) };
        let Some(pid) = field.find(text)? else { return Ok(event) };
        // An object that is valid begins with a brace and is not empty.
        let Some((_, rest)) = text.split_once('{') else { return Ok(event) };
        let key = serde_json::to_string(&pid.text).unwrap_or_default();
        let keyed = format!("{{\"partitionkey\":{key},{rest}");
        Event::from_json(keyed.as_bytes(), &self.limits).map_err(|error| at(text, pid.offset, error))
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
            let too_large = invalid.is_too_large();
            let error = JsonError { line: 1, column: 1, message: invalid.to_string(), too_large };
            at(text, offset, error)
        })
    }
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
