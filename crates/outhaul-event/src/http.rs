//! The binary mode of the CloudEvents HTTP binding: attributes as `ce-` headers, the data as the body.
//!
//! Works on names and bytes, so that it fits any HTTP library. Values are percent-encoded as section 3.1.3.2 of the
//! binding says: space, `"`, `%` and everything outside of printable ASCII.

use std::borrow::Cow;
use std::fmt::Write as _;

use bytes::Bytes;

use crate::event::{Event, EventBuilder, HeaderValue};
use crate::validate::{InvalidEvent, Limits, Violation};

/// Why a request in binary mode holds no valid event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The value cannot be decoded.
    #[error("the header `{0}` is not percent-encoded UTF-8")]
    NotUtf8(String),
    /// The same attribute twice.
    #[error("the header `{0}` is given twice")]
    Repeated(String),
    /// The decoded attributes make no valid event.
    #[error(transparent)]
    Invalid(#[from] InvalidEvent),
}

impl Event {
    /// The headers of binary mode: `ce-…` names with encoded values, then `content-type`, which
    /// is explicit wherever there is a body.
    pub fn to_headers(&self) -> Vec<(Cow<'static, str>, String)> {
        let named =
            self.attributes().map(|(name, value)| (format!("ce-{name}").into(), to_header_value(&value)));
        let mut headers: Vec<(Cow<'static, str>, String)> = named.collect();
        if let Some(content_type) = self.effective_content_type() {
            headers.push(("content-type".into(), content_type.to_owned()));
        }
        headers
    }

    /// Reads binary mode. Headers that are neither `ce-…` nor `content-type` are passed over; names are compared
    /// without case.
    pub fn from_headers<'a>(
        headers: impl IntoIterator<Item = (&'a str, &'a [u8])>,
        body: Bytes,
        limits: &Limits,
    ) -> Result<Self, HeaderError> {
        let mut builder = EventBuilder { body, ..EventBuilder::default() };
        let mut version = None;
        for (name, value) in headers {
            let name = name.to_ascii_lowercase();
            if name == "content-type" {
                let value = std::str::from_utf8(value).map_err(|_| HeaderError::NotUtf8(name.clone()))?;
                set(&mut builder.content_type, &name, value.trim().to_owned())?;
                continue;
            }
            let Some(attribute) = name.strip_prefix("ce-") else { continue };
            let value = from_header_value(value).ok_or_else(|| HeaderError::NotUtf8(name.clone()))?;
            let slot = match attribute {
                "specversion" => &mut version,
                "id" => &mut builder.id,
                "source" => &mut builder.source,
                "type" => &mut builder.kind,
                "subject" => &mut builder.subject,
                "time" => &mut builder.time,
                "dataschema" => &mut builder.schema,
                "partitionkey" => &mut builder.pid,
                other => {
                    if builder.headers.insert(other.to_owned(), HeaderValue::Text(value)).is_some() {
                        return Err(HeaderError::Repeated(name));
                    }
                    continue;
                }
            };
            set(slot, &name, value)?;
        }
        match version.as_deref() {
            Some("1.0") => {}
            Some(other) => {
                let violation = Violation::SpecVersion(other.chars().take(20).collect());
                return Err(InvalidEvent::new("ce-specversion", violation).into());
            }
            None => return Err(InvalidEvent::new("ce-specversion", Violation::Missing).into()),
        }
        if builder.id.is_none() {
            return Err(InvalidEvent::new("id", Violation::Missing).into());
        }
        Ok(builder.build_within(limits)?)
    }
}

fn set(slot: &mut Option<String>, name: &str, value: String) -> Result<(), HeaderError> {
    if slot.replace(value).is_some() {
        return Err(HeaderError::Repeated(name.to_owned()));
    }
    Ok(())
}

/// Encodes one value for an HTTP header.
///
/// ```
/// # use outhaul_event::to_header_value;
/// assert_eq!(to_header_value("Euro € 100%"), "Euro%20%E2%82%AC%20100%25");
/// ```
pub fn to_header_value(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if (0x21..=0x7E).contains(&byte) && byte != b'"' && byte != b'%' {
            out.push(char::from(byte));
        } else {
            // Writing into a String cannot fail.
            write!(out, "%{byte:02X}").unwrap_or_default();
        }
    }
    out
}

/// Decodes one value: an optional pair of quotes with backslash escapes, then percent-encoding. None if the result
/// is not UTF-8 or an escape is broken.
fn from_header_value(value: &[u8]) -> Option<String> {
    let value = value.trim_ascii();
    let unquoted: Cow<'_, [u8]> = match value {
        [b'"', inner @ .., b'"'] => {
            let mut plain = Vec::with_capacity(inner.len());
            let mut bytes = inner.iter();
            while let Some(&byte) = bytes.next() {
                plain.push(if byte == b'\\' { *bytes.next()? } else { byte });
            }
            plain.into()
        }
        plain => plain.into(),
    };
    percent_decode(&unquoted)
}

/// Decodes `%XX`; None if an escape is broken or the result is not UTF-8.
pub fn percent_decode(text: &[u8]) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        if byte == b'%' {
            let digit = |i: usize| char::from(*text.get(at + i)?).to_digit(16);
            out.push((digit(1)? * 16 + digit(2)?) as u8);
            at += 3;
        } else {
            out.push(byte);
            at += 1;
        }
    }
    String::from_utf8(out).ok()
}
