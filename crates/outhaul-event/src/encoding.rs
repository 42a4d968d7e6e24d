//! The compact encoding of an event on disk, version 1.
//!
//! ```text
//! u8       version = 1
//! u8       flags: 1 minted, 2 base64, 4 pid, 8 subject, 16 time, 32 content type, 64 schema; 128 must be 0
//! string   id, source, type            string = varint length, UTF-8
//! string   for each flag 4 … 64 that is set, in this order
//! varint   number of headers; for each: string name, u8 kind (0 text, 1 integer, 2 false, 3 true), value
//!          (text: string; integer: 4 bytes little-endian; else nothing)
//! bytes    the body, to the end
//! ```
//!
//! Checksums are the business of whatever frames the bytes.

use bytes::{BufMut, Bytes};

use crate::event::{Event, HeaderValue};
use crate::wire::{Reader, put_bytes, put_varint};

/// The version that [`Event::encode`] writes.
pub const ENCODING_VERSION: u8 = 1;

const MINTED: u8 = 1;
const BASE64: u8 = 2;
const OPTIONAL: [u8; 5] = [4, 8, 16, 32, 64];
const UNKNOWN: u8 = 128;

/// Bytes that are no event. They were damaged, or written by a newer version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// Written by a version that this one does not know.
    #[error("the event is in encoding version {0}; this build reads version {ENCODING_VERSION}")]
    Version(u8),
    /// The bytes end too early.
    #[error("the event is cut short at byte {0}")]
    Truncated(usize),
    /// A flag, kind or length that cannot be.
    #[error("the event has an impossible value at byte {0}")]
    Impossible(usize),
    /// Text that is not UTF-8.
    #[error("the event has text that is not UTF-8 at byte {0}")]
    NotUtf8(usize),
}

impl Event {
    /// Appends the encoding to a buffer.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.encode_attributes(out);
        out.put_slice(&self.body);
    }

    /// Appends the encoding without the body, which is its end: for whoever writes the two from where they are.
    pub fn encode_attributes(&self, out: &mut Vec<u8>) {
        let optional = [&self.pid, &self.subject, &self.time, &self.content_type, &self.schema];
        let mut flags = (u8::from(self.minted) * MINTED) | (u8::from(self.base64) * BASE64);
        for (text, flag) in optional.iter().zip(OPTIONAL) {
            flags |= u8::from(text.is_some()) * flag;
        }
        out.put_u8(ENCODING_VERSION);
        out.put_u8(flags);
        put_bytes(out, self.id.as_bytes());
        put_bytes(out, self.source.as_bytes());
        put_bytes(out, self.kind.as_bytes());
        for text in optional.into_iter().flatten() {
            put_bytes(out, text.as_bytes());
        }
        put_varint(out, self.headers.len() as u64);
        for (name, value) in &self.headers {
            put_bytes(out, name.as_bytes());
            match value {
                HeaderValue::Text(text) => {
                    out.put_u8(0);
                    put_bytes(out, text.as_bytes());
                }
                HeaderValue::Integer(number) => {
                    out.put_u8(1);
                    out.put_i32_le(*number);
                }
                HeaderValue::Boolean(truth) => out.put_u8(2 + u8::from(*truth)),
            }
        }
    }

    /// The pid of an encoding, without reading the rest.
    pub fn peek_pid(bytes: &[u8]) -> Result<Option<&str>, DecodeError> {
        let mut reader = Reader::new(bytes);
        let version = reader.u8()?;
        if version != ENCODING_VERSION {
            return Err(DecodeError::Version(version));
        }
        let flags = reader.u8()?;
        if flags & OPTIONAL[0] == 0 {
            return Ok(None);
        }
        for _ in ["id", "source", "type"] {
            reader.bytes()?;
        }
        reader.string().map(Some)
    }

    /// Reads an encoding; the body stays a slice of it.
    pub fn decode(bytes: &Bytes) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let version = reader.u8()?;
        if version != ENCODING_VERSION {
            return Err(DecodeError::Version(version));
        }
        let flags = reader.u8()?;
        if flags & UNKNOWN != 0 {
            return Err(DecodeError::Impossible(1));
        }
        let mut text = || reader.string().map(str::to_owned);
        let (id, source, kind) = (text()?, text()?, text()?);
        let mut optional = [const { None }; OPTIONAL.len()];
        for (text, flag) in optional.iter_mut().zip(OPTIONAL) {
            if flags & flag != 0 {
                *text = Some(reader.string()?.to_owned());
            }
        }
        let [pid, subject, time, content_type, schema] = optional;
        let mut event = Self {
            id,
            minted: flags & MINTED != 0,
            source,
            kind,
            pid,
            subject,
            time,
            content_type,
            schema,
            headers: Default::default(),
            base64: flags & BASE64 != 0,
            body: Bytes::new(),
        };
        for _ in 0..reader.varint()? {
            let name = reader.string()?.to_owned();
            event.headers.insert(name, header(&mut reader)?);
        }
        event.body = bytes.slice(reader.position()..);
        Ok(event)
    }
}

fn header(reader: &mut Reader<'_>) -> Result<HeaderValue, DecodeError> {
    let start = reader.position();
    match reader.u8()? {
        0 => Ok(HeaderValue::Text(reader.string()?.to_owned())),
        1 => Ok(HeaderValue::Integer(i32::from_le_bytes(reader.array()?))),
        kind @ (2 | 3) => Ok(HeaderValue::Boolean(kind == 3)),
        _ => Err(DecodeError::Impossible(start)),
    }
}
