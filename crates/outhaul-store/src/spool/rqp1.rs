//! The bytes of one entry as RustFS writes them ("RQP1"), and their compression. Bytes in, bytes out.
//!
//! ```text
//! "RQP1"   u32 little-endian: length of the metadata   metadata: one JSON object   body: `payload_len` bytes
//! ```
//!
//! Compressed, that is one raw Snappy block. Nothing is allocated for a length that is only claimed.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The first bytes of an entry.
pub const MAGIC: [u8; 4] = *b"RQP1";
/// No entry is longer than this, compressed or not.
pub const ENTRY_BYTES_MAX: usize = 64 << 20;

/// Bytes that are no entry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidEntry {
    /// It does not start as an entry does.
    #[error("it does not start with RQP1")]
    Magic,
    /// It ends before its metadata does.
    #[error("its metadata is cut short: {claimed} bytes are claimed and {there} are there")]
    Metadata {
        /// What the header says.
        claimed: u64,
        /// What follows it.
        there: u64,
    },
    /// The metadata is no JSON object with the keys that an entry has.
    #[error("its metadata is no JSON object of an entry: {0}")]
    Json(String),
    /// The body has another length than the metadata says.
    #[error("its body has {there} bytes and not {claimed}")]
    Body {
        /// What the metadata says.
        claimed: u64,
        /// What is there.
        there: u64,
    },
    /// It is too long, or claims to be.
    #[error("it has {0} bytes; at most {ENTRY_BYTES_MAX} are read")]
    TooLong(u64),
    /// The compressed block is damaged.
    #[error("it cannot be decompressed: {0}")]
    Compression(String),
    /// A batch has another number of values than its name says.
    #[error("it has {found} values and not {count}")]
    Count {
        /// What the name says.
        count: u64,
        /// What was found before the end or the first value too many.
        found: u64,
    },
    /// A value of a batch is no JSON.
    #[error("value {index} is no JSON: {reason}")]
    Value {
        /// Which, from 0.
        index: u64,
        /// What the parser says.
        reason: String,
    },
    /// Its bytes are not those that were written.
    #[error("its bytes do not match their checksum")]
    Checksum,
    /// It makes no valid event.
    #[error("it makes no valid event: {0}")]
    Event(String),
}

/// What stands before the body. RustFS reads all keys but `outhaul`, which it passes over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metadata {
    /// What happened: one of the event names of RustFS.
    pub event_name: String,
    /// The bucket.
    pub bucket_name: String,
    /// The object's key, form-urlencoded.
    pub object_name: String,
    /// The content type of the body.
    #[serde(default)]
    pub content_type: String,
    /// When it was put into the queue.
    #[serde(default)]
    pub queued_at_unix_ms: u64,
    /// The length of the body.
    pub payload_len: u64,
    /// The id by which receivers recognise a repetition.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub dedup_id: String,
    /// Why it failed, in the failed store only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureNote>,
    /// What Outhaul needs beyond that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outhaul: Option<super::mapping::Own>,
}

/// Why an entry failed, as RustFS notes it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureNote {
    /// `Terminal`.
    #[serde(default)]
    pub error_class: String,
    /// At most 256 bytes.
    #[serde(default)]
    pub error_detail: String,
    /// The id that was sent to NATS.
    #[serde(default)]
    pub nats_msg_id: String,
    /// When it failed.
    #[serde(default)]
    pub failed_at_unix_ms: u64,
    /// How often it was tried again.
    #[serde(default)]
    pub retry_count: u64,
}

/// Writes an entry, uncompressed.
pub fn encode(metadata: &Metadata, body: &[u8]) -> Vec<u8> {
    // Strings and numbers always serialise.
    let json = serde_json::to_vec(metadata).unwrap_or_default();
    let mut out = Vec::with_capacity(8 + json.len() + body.len());
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&(json.len() as u32).to_le_bytes());
    out.extend_from_slice(&json);
    out.extend_from_slice(body);
    out
}

/// Reads an entry that is not compressed; the body stays a slice of it.
pub fn decode(bytes: &Bytes) -> Result<(Metadata, Bytes), InvalidEntry> {
    let header = bytes.get(..8).filter(|header| header[..4] == MAGIC).ok_or(InvalidEntry::Magic)?;
    let claimed = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
    let rest = bytes.slice(8..);
    if claimed as usize > rest.len() {
        return Err(InvalidEntry::Metadata { claimed: claimed.into(), there: rest.len() as u64 });
    }
    let (json, body) = (&rest[..claimed as usize], rest.slice(claimed as usize..));
    let metadata: Metadata =
        serde_json::from_slice(json).map_err(|error| InvalidEntry::Json(error.to_string()))?;
    let there = body.len() as u64;
    if there != metadata.payload_len {
        return Err(InvalidEntry::Body { claimed: metadata.payload_len, there });
    }
    Ok((metadata, body))
}

/// Compresses an entry: one raw Snappy block.
pub fn compress(bytes: &[u8]) -> Result<Vec<u8>, InvalidEntry> {
    let compressed = snap::raw::Encoder::new().compress_vec(bytes);
    compressed.map_err(|error| InvalidEntry::Compression(error.to_string()))
}

/// Takes a raw Snappy block apart.
pub fn decompress(bytes: &[u8]) -> Result<Vec<u8>, InvalidEntry> {
    let broken = |error: snap::Error| InvalidEntry::Compression(error.to_string());
    let mut out = vec![0; bounded(snap::raw::decompress_len(bytes).map_err(broken)?, bytes)?];
    let length = snap::raw::Decoder::new().decompress(bytes, &mut out).map_err(broken)?;
    out.truncate(length);
    Ok(out)
}

/// Takes an S2 block apart; each Snappy block is one.
pub fn decompress_s2(bytes: &[u8]) -> Result<Vec<u8>, InvalidEntry> {
    let broken = |error: minlz::Error| InvalidEntry::Compression(error.to_string());
    let (length, _) = minlz::s2::decode_len(bytes).map_err(broken)?;
    if length > ENTRY_BYTES_MAX {
        return Err(InvalidEntry::TooLong(length as u64));
    }
    let mut out = vec![0; length];
    let length = minlz::s2::decode_into(&mut out, bytes).map_err(broken)?;
    out.truncate(length);
    Ok(out)
}

/// A length that is claimed, if it is one that so many compressed bytes can have.
fn bounded(length: usize, compressed: &[u8]) -> Result<usize, InvalidEntry> {
    // An element of a Snappy block is at least two bytes and makes at most 64.
    let possible = compressed.len().saturating_mul(64);
    if length > ENTRY_BYTES_MAX {
        return Err(InvalidEntry::TooLong(length as u64));
    }
    if length > possible {
        return Err(InvalidEntry::Compression(format!("{length} bytes are claimed")));
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BODY: &[u8] = br#"{"EventName":"s3:ObjectCreated:Put","Key":"b/k","Records":[]}"#;

    fn example() -> Metadata {
        Metadata {
            event_name: "s3:ObjectCreated:Put".into(),
            bucket_name: "b".into(),
            object_name: "k".into(),
            content_type: "application/json".into(),
            queued_at_unix_ms: 1_700_000_000_000,
            payload_len: 61,
            dedup_id: String::new(),
            failure: None,
            outhaul: None,
        }
    }

    #[test]
    fn the_example_has_the_bytes_that_rustfs_writes() {
        let bytes = encode(&example(), BODY);
        let json = r#"{"event_name":"s3:ObjectCreated:Put","bucket_name":"b","object_name":"k","content_type":"application/json","queued_at_unix_ms":1700000000000,"payload_len":61}"#;
        let plain = [b"RQP1\x9e\0\0\0", json.as_bytes(), BODY].concat();
        assert_eq!((bytes.len(), &bytes), (227, &plain));
        let compressed = compress(&bytes).unwrap();
        assert_eq!(compressed[..2], [0xe3, 0x01]);
        assert_eq!(decompress(&compressed).unwrap(), bytes);
        assert_eq!(decompress_s2(&compressed).unwrap(), bytes, "an S2 decoder reads Snappy");
        let (metadata, body) = decode(&bytes.into()).unwrap();
        assert_eq!((metadata, &body[..]), (example(), BODY));
    }

    #[test]
    fn keys_are_in_the_order_of_rustfs_and_unknown_ones_are_passed_over() {
        let failure = FailureNote { error_class: "Terminal".into(), ..FailureNote::default() };
        let metadata = Metadata { dedup_id: "d".into(), failure: Some(failure), ..example() };
        let text = serde_json::to_string(&metadata).unwrap();
        assert!(text.contains(r#""payload_len":61,"dedup_id":"d","failure":{"error_class":"Terminal","error_detail":"","nats_msg_id":"","failed_at_unix_ms":0,"retry_count":0}"#));
        let more = text.replacen('{', r#"{"new":[1],"#, 1);
        assert_eq!(serde_json::from_str::<Metadata>(&more).unwrap(), metadata);
    }

    #[test]
    fn what_is_cut_or_too_long_is_refused_with_what_is_wrong() {
        let bytes = encode(&example(), BODY);
        for end in 0..bytes.len() {
            assert!(decode(&Bytes::copy_from_slice(&bytes[..end])).is_err(), "cut at {end}");
        }
        let longer = [&bytes[..], b"x"].concat();
        assert_eq!(decode(&longer.into()), Err(InvalidEntry::Body { claimed: 61, there: 62 }));
        let hostile = [&MAGIC[..], &[0xff; 4], b"{}"].concat();
        let error = InvalidEntry::Metadata { claimed: 0xffff_ffff, there: 2 };
        assert_eq!(decode(&hostile.into()), Err(error));
    }

    #[test]
    fn a_claimed_length_allocates_nothing() {
        // 4 GiB - 1, as a varint.
        let hostile = [0xff, 0xff, 0xff, 0xff, 0x0f, 0, b'a'];
        assert!(matches!(decompress(&hostile), Err(InvalidEntry::TooLong(_))));
        assert!(matches!(decompress_s2(&hostile), Err(InvalidEntry::TooLong(_))));
        // 60 MiB are within the limit, and cannot come from so few bytes.
        let hostile = [0x80, 0x80, 0x80, 0x1e, 0, b'a'];
        assert!(matches!(decompress(&hostile), Err(InvalidEntry::Compression(_))));
        assert!(decompress(&[]).is_err() && decompress_s2(&[]).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let bytes = Bytes::from(bytes);
            prop_assert!(decode(&bytes).is_err() || bytes.starts_with(&MAGIC));
            for out in [decompress(&bytes), decompress_s2(&bytes)].into_iter().flatten() {
                prop_assert!(out.len() <= ENTRY_BYTES_MAX);
            }
        }

        #[test]
        fn no_change_of_a_byte_makes_a_parser_panic(at in 0..227_usize, byte in any::<u8>()) {
            let mut bytes = encode(&example(), BODY);
            bytes[at] = byte;
            if let Ok((metadata, body)) = decode(&bytes.into()) {
                prop_assert_eq!(metadata.payload_len, body.len() as u64);
            }
            let mut bytes = compress(&encode(&example(), BODY)).unwrap();
            let at = at % bytes.len();
            bytes[at] = byte;
            for out in [decompress(&bytes), decompress_s2(&bytes)].into_iter().flatten() {
                prop_assert!(out.len() <= ENTRY_BYTES_MAX);
            }
        }
    }
}
