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
//! A varint is LEB128 of at most 5 bytes. Checksums are the business of whatever frames the bytes. Decoding trusts
//! no length: nothing is allocated beyond the bytes that are there.

use bytes::{BufMut, Bytes};

use crate::event::{Event, HeaderValue};

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
        let optional = [&self.pid, &self.subject, &self.time, &self.content_type, &self.schema];
        let mut flags = u8::from(self.minted) * MINTED | u8::from(self.base64) * BASE64;
        for (text, flag) in optional.iter().zip(OPTIONAL) {
            flags |= u8::from(text.is_some()) * flag;
        }
        out.put_u8(ENCODING_VERSION);
        out.put_u8(flags);
        put_string(out, &self.id);
        put_string(out, &self.source);
        put_string(out, &self.kind);
        for text in optional.into_iter().flatten() {
            put_string(out, text);
        }
        put_length(out, self.headers.len());
        for (name, value) in &self.headers {
            put_string(out, name);
            match value {
                HeaderValue::Text(text) => {
                    out.put_u8(0);
                    put_string(out, text);
                }
                HeaderValue::Integer(number) => {
                    out.put_u8(1);
                    out.put_i32_le(*number);
                }
                HeaderValue::Boolean(truth) => out.put_u8(2 + u8::from(*truth)),
            }
        }
        out.put_slice(&self.body);
    }

    /// Reads an encoding; the body stays a slice of it.
    pub fn decode(bytes: &Bytes) -> Result<Self, DecodeError> {
        let mut reader = Reader { bytes, at: 0 };
        let version = reader.u8()?;
        if version != ENCODING_VERSION {
            return Err(DecodeError::Version(version));
        }
        let flags = reader.u8()?;
        if flags & UNKNOWN != 0 {
            return Err(DecodeError::Impossible(1));
        }
        let (id, source, kind) = (reader.string()?, reader.string()?, reader.string()?);
        let mut optional = [const { None }; OPTIONAL.len()];
        for (text, flag) in optional.iter_mut().zip(OPTIONAL) {
            if flags & flag != 0 {
                *text = Some(reader.string()?);
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
        for _ in 0..reader.length()? {
            let name = reader.string()?;
            event.headers.insert(name, reader.header()?);
        }
        event.body = bytes.slice(reader.at..);
        Ok(event)
    }
}

fn put_length(out: &mut Vec<u8>, length: usize) {
    let mut rest = length;
    while rest >= 0x80 {
        out.put_u8(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.put_u8(rest as u8);
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    put_length(out, text.len());
    out.put_slice(text.as_bytes());
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let end = self.at.checked_add(length).filter(|&end| end <= self.bytes.len());
        let end = end.ok_or(DecodeError::Truncated(self.at))?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.take(1)?[0])
    }

    fn length(&mut self) -> Result<usize, DecodeError> {
        let start = self.at;
        let mut value = 0_u64;
        for shift in (0..35).step_by(7) {
            let byte = self.u8()?;
            value |= u64::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                return usize::try_from(value).map_err(|_| DecodeError::Impossible(start));
            }
        }
        Err(DecodeError::Impossible(start))
    }

    fn string(&mut self) -> Result<String, DecodeError> {
        let length = self.length()?;
        let start = self.at;
        let text = std::str::from_utf8(self.take(length)?).map_err(|_| DecodeError::NotUtf8(start))?;
        Ok(text.to_owned())
    }

    fn header(&mut self) -> Result<HeaderValue, DecodeError> {
        let start = self.at;
        match self.u8()? {
            0 => Ok(HeaderValue::Text(self.string()?)),
            1 => {
                let mut number = [0; 4];
                number.copy_from_slice(self.take(4)?);
                Ok(HeaderValue::Integer(i32::from_le_bytes(number)))
            }
            kind @ (2 | 3) => Ok(HeaderValue::Boolean(kind == 3)),
            _ => Err(DecodeError::Impossible(start)),
        }
    }
}
