//! What makes an event valid: the type system of CloudEvents 1.0 (section 3) and the limits of Outhaul.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::content::is_media_type;

/// Bounds on one event, in bytes of UTF-8 unless said otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// The pid.
    pub pid_bytes_max: usize,
    /// `id`, `type`, `source`, `subject`, `dataschema` and the content type, each.
    pub attribute_bytes_max: usize,
    /// How many headers (extension attributes).
    pub headers_max: usize,
    /// Names and values of all headers together.
    pub headers_bytes_max: usize,
    /// The body.
    pub body_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            pid_bytes_max: 256,
            attribute_bytes_max: 1024,
            headers_max: 64,
            headers_bytes_max: 16 * 1024,
            body_bytes_max: 1024 * 1024,
        }
    }
}

/// Why an event was refused, and which attribute is the cause. It is always the producer's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{attribute}` {violation}")]
pub struct InvalidEvent {
    /// The attribute's name as CloudEvents spells it, or `data`.
    pub attribute: String,
    /// What is wrong with it.
    pub violation: Violation,
}

impl InvalidEvent {
    pub(crate) fn new(attribute: &str, violation: Violation) -> Self {
        let mut attribute = attribute.to_owned();
        if attribute.len() > 64 {
            let end = (0..=64).rev().find(|&at| attribute.is_char_boundary(at)).unwrap_or(0);
            attribute.truncate(end);
            attribute.push('…');
        }
        Self { attribute, violation }
    }

    /// Whether a limit was passed, as opposed to a rule of CloudEvents broken.
    pub fn is_too_large(&self) -> bool {
        matches!(self.violation, Violation::TooLong { .. } | Violation::TooMany { .. })
    }
}

/// The rule that an attribute breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A required attribute is not there.
    #[error("is missing; CloudEvents 1.0 requires it")]
    Missing,
    /// It is there and empty.
    #[error("is empty; leave it out or give it a value")]
    Empty,
    /// It is longer than the limit.
    #[error("is {length} bytes long; at most {max} are allowed")]
    TooLong {
        /// What was given.
        length: usize,
        /// What is allowed.
        max: usize,
    },
    /// There are more of them than the limit.
    #[error("are {count}; at most {max} are allowed")]
    TooMany {
        /// What was given.
        count: usize,
        /// What is allowed.
        max: usize,
    },
    /// A control character or a non-character of Unicode.
    #[error("has the character U+{0:04X}, which CloudEvents forbids in a string")]
    ForbiddenCharacter(u32),
    /// It is not a URI or URI reference.
    #[error("is not a URI reference (RFC 3986): {0:?} must be percent-encoded")]
    NotAUri(char),
    /// It is not a time.
    #[error("is not an RFC 3339 time such as 2026-11-30T12:00:00Z")]
    NotATime,
    /// It is not a media type.
    #[error("is not a media type such as application/json")]
    NotAMediaType,
    /// The name of an extension attribute.
    #[error("is not a valid name: only lower-case letters a-z and digits are allowed")]
    BadName,
    /// A name that stands for something else.
    #[error("may not be set as an extension")]
    Reserved,
    /// The value has a type that attributes cannot have.
    #[error("must be {0}")]
    BadType(&'static str),
    /// An integer outside of 32 bits.
    #[error("is outside of the CloudEvents integer range (-2147483648 to 2147483647); send it as a string")]
    IntegerRange,
    /// Another specification version than 1.0.
    #[error("is {0:?}; only \"1.0\" is known")]
    SpecVersion(String),
    /// The same member twice.
    #[error("is given twice")]
    Repeated,
    /// `data` beside `data_base64`.
    #[error("is given beside data_base64; only one of them may be")]
    TwoBodies,
    /// Not base64.
    #[error("is not standard base64")]
    NotBase64,
}

/// A string of CloudEvents: not empty, bounded, no control characters, no non-characters.
pub(crate) fn string(attribute: &str, text: &str, max: usize) -> Result<(), InvalidEvent> {
    if text.is_empty() {
        return Err(InvalidEvent::new(attribute, Violation::Empty));
    }
    characters(attribute, text, max)
}

/// As [`string`], but may be empty: the value of an extension.
pub(crate) fn characters(attribute: &str, text: &str, max: usize) -> Result<(), InvalidEvent> {
    if text.len() > max {
        return Err(InvalidEvent::new(attribute, Violation::TooLong { length: text.len(), max }));
    }
    match text.chars().find(|&c| is_forbidden(c)) {
        Some(c) => Err(InvalidEvent::new(attribute, Violation::ForbiddenCharacter(c.into()))),
        None => Ok(()),
    }
}

fn is_forbidden(c: char) -> bool {
    let code = u32::from(c);
    c.is_control() || (0xFDD0..=0xFDEF).contains(&code) || code & 0xFFFE == 0xFFFE
}

/// A URI reference. Letters above ASCII pass, since producers send them; what breaks a header or a log does not.
pub(crate) fn uri(attribute: &str, text: &str, max: usize) -> Result<(), InvalidEvent> {
    string(attribute, text, max)?;
    match text.chars().find(|c| c.is_whitespace() || "<>\"{}|\\^`".contains(*c)) {
        Some(c) => Err(InvalidEvent::new(attribute, Violation::NotAUri(c))),
        None => Ok(()),
    }
}

pub(crate) fn timestamp(attribute: &str, text: &str) -> Result<(), InvalidEvent> {
    match OffsetDateTime::parse(text, &Rfc3339) {
        Ok(_) => Ok(()),
        Err(_) => Err(InvalidEvent::new(attribute, Violation::NotATime)),
    }
}

pub(crate) fn media_type(attribute: &str, text: &str, max: usize) -> Result<(), InvalidEvent> {
    string(attribute, text, max)?;
    if !is_media_type(text) {
        return Err(InvalidEvent::new(attribute, Violation::NotAMediaType));
    }
    Ok(())
}

/// The name of an extension attribute (section 3.1); context attributes have setters of their own.
pub(crate) fn extension_name(name: &str) -> Result<(), InvalidEvent> {
    const RESERVED: [&str; 11] = [
        "specversion",
        "id",
        "source",
        "type",
        "subject",
        "time",
        "datacontenttype",
        "dataschema",
        "partitionkey",
        "data",
        "data_base64",
    ];
    if RESERVED.contains(&name) {
        return Err(InvalidEvent::new(name, Violation::Reserved));
    }
    if name.is_empty() || !name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()) {
        return Err(InvalidEvent::new(name, Violation::BadName));
    }
    Ok(())
}
