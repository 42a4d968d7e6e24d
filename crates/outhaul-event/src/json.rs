//! The JSON event format of CloudEvents 1.0: one object (structured) and an array of them (batch).
//!
//! Attributes are read and checked one by one, so that an error names its line and column. `data` is kept as the
//! producer spelt it: a number never loses digits. On the way out a line feed inside of it is left out, so that one
//! event is always one line (in valid JSON it can only stand between tokens).

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;
use serde_json::value::RawValue;

use crate::event::{Event, EventBuilder, HeaderValue};
use crate::validate::{self, InvalidEvent, Limits, Violation};

/// The media type of one event in structured mode.
pub const STRUCTURED_TYPE: &str = "application/cloudevents+json";
/// The media type of a batch.
pub const BATCH_TYPE: &str = "application/cloudevents-batch+json";

/// Why a text holds no valid event, and where. It is always the producer's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct JsonError {
    /// The line, from 1.
    pub line: usize,
    /// The byte in the line, from 1.
    pub column: usize,
    /// What is wrong, without the position.
    pub message: String,
    /// Whether a limit was passed.
    pub too_large: bool,
}

impl JsonError {
    /// Takes over the position of a parser's error.
    pub fn from_parser(error: &serde_json::Error) -> Self {
        let text = error.to_string();
        let message = text.rfind(" at line ").map_or(text.as_str(), |end| &text[..end]);
        let message = match error.classify() {
            Category::Syntax | Category::Eof => syntax(message),
            Category::Data | Category::Io => message.to_owned(),
        };
        Self { line: error.line().max(1), column: error.column().max(1), message, too_large: false }
    }
}

/// What a parser means by its terse words about text that is no JSON.
fn syntax(terse: &str) -> String {
    let meant = match terse {
        "expected ident" => "expected `true`, `false` or `null`",
        "expected value" => "expected a value",
        "EOF while parsing a value" => "it ends where a value is expected",
        "EOF while parsing a string" => "it ends inside of a string",
        "EOF while parsing a list" => "it ends inside of an array",
        "EOF while parsing an object" => "it ends inside of an object",
        "key must be a string" => "expected a name in double quotes",
        "trailing comma" => "a comma stands before a closing bracket",
        "trailing characters" => "something follows behind the value",
        "control character (\\u0000-\\u001F) found while parsing a string" => {
            "a control character in a string is not escaped"
        }
        // These are valid JSON, and more than is taken.
        "recursion limit exceeded" => return "it nests too deeply".to_owned(),
        "number out of range" => return "a number is out of range".to_owned(),
        other => other,
    };
    format!("it is not JSON: {meant}")
}

impl Event {
    /// Reads one event in structured mode. Nothing may follow it but white space.
    pub fn from_json(text: &[u8], limits: &Limits) -> Result<Self, JsonError> {
        let large = &Cell::new(false);
        read(text, EventSeed { limits, large }, large)
    }

    /// Reads a batch: an array of events, all valid or none.
    pub fn batch_from_json(text: &[u8], limits: &Limits) -> Result<Vec<Self>, JsonError> {
        let large = &Cell::new(false);
        read(text, BatchSeed(EventSeed { limits, large }), large)
    }

    /// Writes the event in structured mode, on one line, without a line feed.
    pub fn to_json(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.size() + 160);
        self.write_json(&mut out);
        out
    }

    /// Appends what [`to_json`](Self::to_json) returns to a buffer.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"specversion\":\"1.0\"");
        member(out, "id", &self.id);
        member(out, "source", &self.source);
        member(out, "type", &self.kind);
        let optional = [
            ("subject", &self.subject),
            ("time", &self.time),
            ("datacontenttype", &self.content_type),
            ("dataschema", &self.schema),
            ("partitionkey", &self.pid),
        ];
        for (name, value) in optional {
            if let Some(value) = value {
                member(out, name, value);
            }
        }
        for (name, value) in &self.headers {
            match value {
                HeaderValue::Text(text) => member(out, name, text),
                HeaderValue::Integer(_) | HeaderValue::Boolean(_) => {
                    out.extend_from_slice(format!(",\"{name}\":{value}").as_bytes());
                }
            }
        }
        self.write_data(out);
        out.push(b'}');
    }

    fn write_data(&self, out: &mut Vec<u8>) {
        if self.body.is_empty() {
            return;
        }
        if !self.base64 {
            if self.declares_json() {
                if serde_json::from_slice::<IgnoredAny>(&self.body).is_ok() {
                    out.extend_from_slice(b",\"data\":");
                    out.extend(self.body.trim_ascii().iter().filter(|b| !matches!(b, b'\n' | b'\r')));
                    return;
                }
            } else if let Ok(text) = std::str::from_utf8(&self.body) {
                member(out, "data", text);
                return;
            }
        }
        member(out, "data_base64", &BASE64.encode(&self.body));
    }
}

fn member(out: &mut Vec<u8>, name: &str, value: &str) {
    out.extend_from_slice(format!(",\"{name}\":").as_bytes());
    // Strings always serialise, and a Vec takes every write.
    serde_json::to_writer(&mut *out, value).unwrap_or_default();
}

/// Runs a seed over a whole text. `large` is set by the rule that failed, because a parser's error is only text.
fn read<'de, S: DeserializeSeed<'de>>(
    text: &'de [u8],
    seed: S,
    large: &Cell<bool>,
) -> Result<S::Value, JsonError> {
    let mut parser = serde_json::Deserializer::from_slice(text);
    let value = seed.deserialize(&mut parser);
    let value = value.and_then(|value| parser.end().map(|()| value));
    value.map_err(|error| JsonError { too_large: large.get(), ..JsonError::from_parser(&error) })
}

struct BatchSeed<'a>(EventSeed<'a>);

impl<'de> DeserializeSeed<'de> for BatchSeed<'_> {
    type Value = Vec<Event>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for BatchSeed<'_> {
    type Value = Vec<Event>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of CloudEvents")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut events = Vec::new();
        while let Some(event) = seq.next_element_seed(self.0)? {
            events.push(event);
        }
        Ok(events)
    }
}

#[derive(Clone, Copy)]
struct EventSeed<'a> {
    limits: &'a Limits,
    large: &'a Cell<bool>,
}

impl EventSeed<'_> {
    fn check<T, E: de::Error>(self, result: Result<T, InvalidEvent>) -> Result<T, E> {
        result.map_err(|invalid| {
            self.large.set(invalid.is_too_large());
            E::custom(invalid)
        })
    }
}

impl<'de> DeserializeSeed<'de> for EventSeed<'_> {
    type Value = Event;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for EventSeed<'_> {
    type Value = Event;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a CloudEvent, which is a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut draft = Draft::default();
        while let Some(name) = map.next_key::<String>()? {
            if draft.seen.contains(&name) {
                return self.check(Err(InvalidEvent::new(&name, Violation::Repeated)));
            }
            match name.as_str() {
                "data" => draft.data = map.next_value::<Option<&RawValue>>()?,
                "data_base64" => {
                    let text = map.next_value::<Attribute>()?.into_text(&name);
                    draft.base64 = self.check(text)?;
                }
                _ => {
                    let value = map.next_value::<Attribute>()?;
                    self.check(draft.set(&name, value, self.limits))?;
                }
            }
            draft.seen.insert(name);
        }
        self.check(draft.build(self.limits))
    }
}

#[derive(Default)]
struct Draft<'de> {
    seen: BTreeSet<String>,
    version: bool,
    builder: EventBuilder,
    data: Option<&'de RawValue>,
    base64: Option<String>,
}

impl Draft<'_> {
    /// Takes one attribute and checks it at once, while the parser still stands there.
    fn set(&mut self, name: &str, value: Attribute, limits: &Limits) -> Result<(), InvalidEvent> {
        let max = limits.attribute_bytes_max;
        let builder = &mut self.builder;
        let (slot, rule): (_, &dyn Fn(&str) -> _) = match name {
            "specversion" => return self.set_version(value),
            "id" => (&mut builder.id, &|text| validate::string(name, text, max)),
            "source" => (&mut builder.source, &|text| validate::uri(name, text, max)),
            "type" => (&mut builder.kind, &|text| validate::string(name, text, max)),
            "subject" => (&mut builder.subject, &|text| validate::string(name, text, max)),
            "time" => (&mut builder.time, &|text| validate::timestamp(name, text)),
            "datacontenttype" => (&mut builder.content_type, &|text| validate::media_type(name, text, max)),
            "dataschema" => (&mut builder.schema, &|text| validate::uri(name, text, max)),
            "partitionkey" => (&mut builder.pid, &|text| validate::string(name, text, limits.pid_bytes_max)),
            _ => return self.set_header(name, value, limits),
        };
        let text = value.into_text(name)?;
        text.as_deref().map_or(Ok(()), rule)?;
        *slot = text;
        Ok(())
    }

    fn set_version(&mut self, value: Attribute) -> Result<(), InvalidEvent> {
        let Some(text) = value.into_text("specversion")? else { return Ok(()) };
        if text != "1.0" {
            let violation = Violation::SpecVersion(text.chars().take(20).collect());
            return Err(InvalidEvent::new("specversion", violation));
        }
        self.version = true;
        Ok(())
    }

    fn set_header(&mut self, name: &str, value: Attribute, limits: &Limits) -> Result<(), InvalidEvent> {
        validate::extension_name(name)?;
        let value = match value {
            Attribute::Null => return Ok(()),
            Attribute::Text(text) => {
                validate::characters(name, &text, limits.headers_bytes_max)?;
                HeaderValue::Text(text)
            }
            Attribute::Boolean(truth) => HeaderValue::Boolean(truth),
            Attribute::Integer(number) => HeaderValue::Integer(number),
            Attribute::WideInteger => return Err(InvalidEvent::new(name, Violation::IntegerRange)),
            Attribute::Other => {
                let violation = Violation::BadType("a string, a boolean or an integer");
                return Err(InvalidEvent::new(name, violation));
            }
        };
        self.builder.headers.insert(name.to_owned(), value);
        if self.builder.headers.len() > limits.headers_max {
            let violation = Violation::TooMany { count: self.builder.headers.len(), max: limits.headers_max };
            return Err(InvalidEvent::new("extensions", violation));
        }
        Ok(())
    }

    fn build(mut self, limits: &Limits) -> Result<Event, InvalidEvent> {
        for (name, there) in [("specversion", self.version), ("id", self.builder.id.is_some())] {
            if !there {
                return Err(InvalidEvent::new(name, Violation::Missing));
            }
        }
        match (self.data, self.base64) {
            (Some(_), Some(_)) => return Err(InvalidEvent::new("data", Violation::TwoBodies)),
            (Some(raw), None) => {
                let json = self.builder.content_type.as_deref().is_none_or(crate::is_json);
                // With another type than JSON a string stands for its own characters.
                let text = if json { None } else { serde_json::from_str::<String>(raw.get()).ok() };
                self.builder.body = text.unwrap_or_else(|| raw.get().to_owned()).into();
            }
            (None, Some(text)) => {
                let body = BASE64.decode(text.as_bytes());
                let invalid = |_| InvalidEvent::new("data_base64", Violation::NotBase64);
                self.builder.body = Bytes::from(body.map_err(invalid)?);
                self.builder.base64 = true;
            }
            (None, None) => {}
        }
        self.builder.build_within(limits)
    }
}

/// Whatever stands behind an attribute's name.
enum Attribute {
    Null,
    Text(String),
    Boolean(bool),
    Integer(i32),
    WideInteger,
    Other,
}

impl Attribute {
    fn into_text(self, name: &str) -> Result<Option<String>, InvalidEvent> {
        match self {
            Self::Null => Ok(None),
            Self::Text(text) => Ok(Some(text)),
            _ => Err(InvalidEvent::new(name, Violation::BadType("a string"))),
        }
    }
}

impl<'de> de::Deserialize<'de> for Attribute {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AttributeVisitor)
    }
}

struct AttributeVisitor;

impl<'de> Visitor<'de> for AttributeVisitor {
    type Value = Attribute;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the value of an attribute")
    }

    fn visit_unit<E>(self) -> Result<Attribute, E> {
        Ok(Attribute::Null)
    }

    fn visit_bool<E>(self, truth: bool) -> Result<Attribute, E> {
        Ok(Attribute::Boolean(truth))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Attribute, E> {
        Ok(i32::try_from(number).map_or(Attribute::WideInteger, Attribute::Integer))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Attribute, E> {
        Ok(i32::try_from(number).map_or(Attribute::WideInteger, Attribute::Integer))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Attribute, E> {
        Ok(Attribute::Other)
    }

    fn visit_str<E>(self, text: &str) -> Result<Attribute, E> {
        Ok(Attribute::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Attribute, E> {
        Ok(Attribute::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Attribute, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Attribute::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Attribute, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Attribute::Other)
    }
}
