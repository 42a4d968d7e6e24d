//! [`Form`]: what a request's body is, and the events in it.

use bytes::Bytes;
use http::{HeaderMap, header};
use outhaul::event::{Event, HeaderError, JsonError};

use super::body::EVENTS_MAX;
use super::problem::{FAULTS_MAX, Fault, Problem};
use crate::value::scan::{elements, in_whole};
use crate::value::{Reader, utf8, without_bom};

/// How events stand in a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// `application/json`: one event, or a value that becomes the data of one.
    Value,
    /// `application/cloudevents+json`.
    Structured,
    /// `application/cloudevents-batch+json`.
    Batch,
    /// Any type, with attributes as `ce-` headers.
    Binary,
    /// `application/x-ndjson`: one value a line.
    Lines,
}

impl Form {
    /// None: the type is not one of those.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let plain = |value: &http::HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
        if headers.get_all(header::CONTENT_ENCODING).iter().any(|value| !plain(value)) {
            return None;
        }
        let content_type =
            headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let mut parts = content_type.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default().to_ascii_lowercase();
        let utf8 = parts.all(|parameter| match parameter.split_once('=') {
            Some((name, value)) if name.trim().eq_ignore_ascii_case("charset") => {
                let value = value.trim().trim_matches('"');
                value.eq_ignore_ascii_case("utf-8") || value.eq_ignore_ascii_case("us-ascii")
            }
            _ => true,
        });
        // A body that is whole events is not taken for the data of one, whatever else the headers say (CloudEvents
        // HTTP binding, section 3).
        match media.as_str() {
            "application/cloudevents+json" if utf8 => Some(Self::Structured),
            "application/cloudevents-batch+json" if utf8 => Some(Self::Batch),
            other if other.starts_with("application/cloudevents") => None,
            _ if headers.contains_key("ce-specversion") => Some(Self::Binary),
            "application/json" if utf8 => Some(Self::Value),
            "application/x-ndjson" if utf8 => Some(Self::Lines),
            _ => None,
        }
    }

    /// Reads all events of a body, or says what is wrong with it.
    pub(crate) fn read(
        self,
        headers: &HeaderMap,
        body: &Bytes,
        reader: &Reader,
    ) -> Result<Vec<Event>, Problem> {
        let text = without_bom(body);
        match self {
            Self::Value => one(reader.value(text)),
            Self::Structured => one(reader.cloudevent(text)),
            Self::Binary => binary(headers, body, reader),
            Self::Lines => lines(text, reader),
            Self::Batch => batch(text, reader),
        }
    }
}

fn one(event: Result<Event, JsonError>) -> Result<Vec<Event>, Problem> {
    let mut events = Events::default();
    events.take(event)?;
    events.end()
}

fn binary(headers: &HeaderMap, body: &Bytes, reader: &Reader) -> Result<Vec<Event>, Problem> {
    let pairs = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let refused = |message: String, large: bool| {
        let fault = Fault::header(0, message);
        let detail = format!("nothing was admitted: {}", fault.message);
        match large {
            true => Problem::too_large(detail).with_errors(vec![fault]),
            false => Problem::invalid(vec![fault]),
        }
    };
    let event = Event::from_headers(pairs, body.clone(), reader.limits()).map_err(|error| {
        let large = matches!(&error, HeaderError::Invalid(invalid) if invalid.is_too_large());
        refused(error.to_string(), large)
    })?;
    let event = reader.keyed(event).map_err(|error| refused(error.message, error.too_large))?;
    Ok(vec![event])
}

fn lines(text: &[u8], reader: &Reader) -> Result<Vec<Event>, Problem> {
    let mut events = Events::default();
    for (number, line) in text.split(|&b| b == b'\n').enumerate() {
        if !line.trim_ascii().is_empty() {
            let event = reader.value(line.strip_suffix(b"\r").unwrap_or(line));
            events.take(event.map_err(|error| JsonError { line: number + 1, ..error }))?;
        }
    }
    events.end()
}

fn batch(text: &[u8], reader: &Reader) -> Result<Vec<Event>, Problem> {
    let mut events = Events::default();
    let text = utf8(text).map_err(|error| Problem::invalid(vec![Fault::json(0, error)]))?;
    let parts = elements(text, EVENTS_MAX + 1, None);
    let parts = parts.map_err(|error| Problem::invalid(vec![Fault::json(0, error)]))?;
    for part in parts {
        let event = reader.cloudevent(part.get().as_bytes());
        events.take(event.map_err(|error| in_whole(text, part.get(), error)))?;
    }
    events.end()
}

/// The events of one body, and what is wrong with them.
#[derive(Default)]
struct Events {
    good: Vec<Event>,
    count: usize,
    faults: Vec<Fault>,
    large: bool,
}

impl Events {
    fn take(&mut self, event: Result<Event, JsonError>) -> Result<(), Problem> {
        let index = self.count;
        self.count += 1;
        if self.count > EVENTS_MAX {
            let detail = format!(
                "nothing was admitted: more than {EVENTS_MAX} events in one body; send them in parts"
            );
            return Err(Problem::too_large(detail));
        }
        match event {
            Ok(event) if self.faults.is_empty() => self.good.push(event),
            Ok(_) => {}
            Err(error) => {
                self.large |= error.too_large;
                if self.faults.len() < FAULTS_MAX {
                    self.faults.push(Fault::json(index, error));
                }
            }
        }
        Ok(())
    }

    fn end(self) -> Result<Vec<Event>, Problem> {
        match (self.faults.first(), self.large) {
            (None, _) => Ok(self.good),
            (Some(_), false) => Err(Problem::invalid(self.faults)),
            (Some(first), true) => {
                let detail = format!("nothing was admitted: {}", first.message);
                Err(Problem::too_large(detail).with_errors(self.faults))
            }
        }
    }
}

#[cfg(test)]
mod tests;
