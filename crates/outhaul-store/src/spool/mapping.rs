//! From an event to an entry and back.
//!
//! # Event to entry
//!
//! The body is the event's body, byte for byte: it is what RustFS sends on. The metadata of RustFS:
//!
//! | key | a notification of an object store | any other event |
//! |---|---|---|
//! | `event_name` | the event's type | its type if RustFS knows it, else `s3:ObjectCreated:*` |
//! | `bucket_name` | the bucket | the source |
//! | `object_name` | the key, encoded | the subject or, without one, the id, encoded |
//! | `content_type` | the content type; without one `application/json` | the same; bytes are `application/octet-stream` |
//! | `queued_at_unix_ms` | when it was admitted | the same |
//! | `dedup_id` | the identity that receivers see | the same |
//!
//! RustFS has a closed list of event names and deletes an entry with any other, hence the stand-in. What is lost in
//! this is kept under `outhaul`, a key that RustFS passes over: all attributes of the event, and what the log needs.
//!
//! # Entry to event
//!
//! With the key `outhaul`, the event is what it was. Without it the entry is one of RustFS: see
//! [`Notification`]; the id is the entry's name, with `-<index>` if it is one of a
//! batch, so that it is the same at each reading, and `dedup_id` is kept if there is one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use outhaul_event::{DedupId, Event, HeaderValue};
use serde::{Deserialize, Serialize};

use super::names;
use super::notification::{LIMITS, Notification, form_decode, form_encode};
use super::rqp1::{self, InvalidEntry, Metadata};
use crate::journal::{from_millis, to_millis};

/// What Outhaul writes beside the keys of RustFS.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Own {
    /// The producer's id.
    pub id: String,
    /// Whether that was minted here.
    #[serde(default, skip_serializing_if = "is_false")]
    pub minted: bool,
    /// `source`.
    pub source: String,
    /// `type`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The pid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<String>,
    /// `subject`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// `time`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// `datacontenttype`, if it was there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// `dataschema`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<String>,
    /// Extension attributes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, Header>,
    /// Whether the data came as base64.
    #[serde(default, skip_serializing_if = "is_false")]
    pub base64: bool,
    /// The bytes given with the admission, in base64.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub attachment: String,
    /// The sequence before it was requeued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requeue_of: Option<u64>,
    /// Where in the input it stood.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// For how many targets it was stored at once; left out for one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub fan_out: u32,
    /// CRC-32C over the metadata, with 0 in this place, and the body: the format itself has none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub sum: u32,
    /// In the failed store: what is remembered of its failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<serde_json::Value>,
}

/// The value of an extension attribute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Header {
    /// A truth value.
    Boolean(bool),
    /// A 32-bit integer.
    Integer(i32),
    /// Anything else.
    Text(String),
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
fn is_zero(value: &u32) -> bool {
    *value == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

/// What an entry holds beside its bytes' place.
#[derive(Debug, Clone)]
pub(crate) struct Content {
    pub(crate) event: Arc<Event>,
    pub(crate) dedup_id: DedupId,
    pub(crate) admitted_at: SystemTime,
    pub(crate) attachment: Bytes,
    pub(crate) requeue_of: Option<u64>,
    pub(crate) position: Option<u64>,
    /// For how many targets it was stored at once.
    pub(crate) fan_out: u32,
}

/// What RustFS stands in for a name that it does not know: nothing that happens is called that.
const STAND_IN: &str = "s3:ObjectCreated:*";

/// The metadata under which RustFS finds an event.
pub(crate) fn metadata(content: &Content) -> Metadata {
    let event = &content.event;
    let known = rustfs_knows(event.kind());
    let notification = if known { Notification::from_envelope(event.body()) } else { None };
    let (bucket_name, object_name) = match notification {
        Some(found) if !found.bucket.is_empty() => (found.bucket, form_encode(&found.key)),
        _ => (event.source().to_owned(), form_encode(event.subject().unwrap_or(event.id()))),
    };
    let implied = if event.is_base64() { "application/octet-stream" } else { "application/json" };
    Metadata {
        event_name: if known { event.kind() } else { STAND_IN }.to_owned(),
        bucket_name,
        object_name,
        content_type: event.content_type().unwrap_or(implied).to_owned(),
        queued_at_unix_ms: to_millis(content.admitted_at),
        payload_len: event.body().len() as u64,
        dedup_id: content.dedup_id.to_string(),
        failure: None,
        outhaul: Some(own(content)),
    }
}

fn own(content: &Content) -> Own {
    let event = &content.event;
    let text = |text: Option<&str>| text.map(str::to_owned);
    let header = |(name, value): (&String, &HeaderValue)| {
        let value = match value {
            HeaderValue::Text(text) => Header::Text(text.clone()),
            HeaderValue::Integer(number) => Header::Integer(*number),
            HeaderValue::Boolean(truth) => Header::Boolean(*truth),
        };
        (name.clone(), value)
    };
    Own {
        id: event.id().to_owned(),
        minted: event.is_minted(),
        source: event.source().to_owned(),
        kind: event.kind().to_owned(),
        pid: text(event.pid()),
        subject: text(event.subject()),
        time: text(event.time()),
        content_type: text(event.content_type()),
        schema: text(event.schema()),
        headers: event.headers().iter().map(header).collect(),
        base64: event.is_base64(),
        attachment: BASE64.encode(&content.attachment),
        requeue_of: content.requeue_of,
        position: content.position,
        fan_out: if content.fan_out > 1 { content.fan_out } else { 0 },
        sum: 0,
        failed: None,
    }
}

/// The bytes of a single entry, uncompressed.
pub(crate) fn encode(content: &Content) -> Vec<u8> {
    sealed(metadata(content), content.event.body())
}

/// The bytes of an entry with its checksum.
pub(crate) fn sealed(mut metadata: Metadata, body: &[u8]) -> Vec<u8> {
    let sum = checksum(&metadata, body);
    if let Some(own) = &mut metadata.outhaul {
        own.sum = sum;
    }
    rqp1::encode(&metadata, body)
}

/// Never 0, which stands for none.
fn checksum(metadata: &Metadata, body: &[u8]) -> u32 {
    // Strings and numbers always serialise, and always in the same way.
    let json = serde_json::to_vec(metadata).unwrap_or_default();
    crc32c::crc32c_append(crc32c::crc32c(&json), body).max(1)
}

/// Reads a single entry that is not compressed.
pub(crate) fn decode(bytes: &Bytes, name: &str) -> Result<Content, InvalidEntry> {
    if bytes.first() == Some(&b'{') {
        // Before there was a header, an entry was the item alone.
        return value(bytes, name);
    }
    let (metadata, body) = rqp1::decode(bytes)?;
    content(metadata, body, name)
}

/// What an entry's parts are.
pub(crate) fn content(mut metadata: Metadata, body: Bytes, name: &str) -> Result<Content, InvalidEntry> {
    let sum = metadata.outhaul.as_mut().map(|own| std::mem::take(&mut own.sum));
    // A name that was minted here is on an entry that was written here.
    let ours = names::uuid(name).and_then(names::minted).is_some();
    match sum {
        Some(sum) if sum != checksum(&metadata, &body) => return Err(InvalidEntry::Checksum),
        None if ours => return Err(InvalidEntry::Checksum),
        _ => {}
    }
    let admitted_at = from_millis(metadata.queued_at_unix_ms);
    let kept: Option<DedupId> = metadata.dedup_id.parse().ok();
    let Some(own) = metadata.outhaul else {
        let mut found = Notification::from_envelope(&body).unwrap_or_default();
        found.event_name = metadata.event_name;
        // The metadata is what RustFS itself goes by.
        if !metadata.bucket_name.is_empty() {
            found.bucket = metadata.bucket_name;
            found.key = form_decode(&metadata.object_name);
        }
        found.body = body;
        let event = found.into_event(name, &metadata.content_type)?;
        return Ok(Content { admitted_at, ..foreign(event, kept) });
    };
    let invalid = |what: &str| InvalidEntry::Event(what.to_owned());
    let attachment = BASE64.decode(&own.attachment).map_err(|_| invalid("its attachment is no base64"))?;
    let (requeue_of, position, fan_out) = (own.requeue_of, own.position, own.fan_out.max(1));
    let event = own.event(body)?;
    let dedup_id = kept.unwrap_or_else(|| event.dedup_id());
    let attachment = attachment.into();
    Ok(Content { event: Arc::new(event), dedup_id, admitted_at, attachment, requeue_of, position, fan_out })
}

/// What one JSON value of a batch is.
pub(crate) fn value(bytes: &Bytes, name: &str) -> Result<Content, InvalidEntry> {
    let event = Notification::from_value(bytes)?.into_event(name, "")?;
    Ok(foreign(event, None))
}

fn foreign(event: Event, kept: Option<DedupId>) -> Content {
    let dedup_id = kept.unwrap_or_else(|| event.dedup_id());
    Content {
        event: Arc::new(event),
        dedup_id,
        admitted_at: SystemTime::UNIX_EPOCH,
        attachment: Bytes::new(),
        requeue_of: None,
        position: None,
        fan_out: 1,
    }
}

/// The name that stands for one item of an entry: the producer's id of what has none.
pub(crate) fn item_name(name: &str, count: u64, index: u64) -> String {
    if count > 1 { format!("{name}-{index}") } else { name.to_owned() }
}

impl Own {
    fn event(self, body: Bytes) -> Result<Event, InvalidEntry> {
        let mut builder = Event::builder(self.kind, self.source)
            .id(self.id)
            .minted(self.minted)
            .base64(self.base64)
            .data(body);
        builder = optional(builder, self.pid, |b, text| b.pid(text));
        builder = optional(builder, self.subject, |b, text| b.subject(text));
        builder = optional(builder, self.time, |b, text| b.time(text));
        builder = optional(builder, self.content_type, |b, text| b.content_type(text));
        builder = optional(builder, self.schema, |b, text| b.schema(text));
        for (name, value) in self.headers {
            builder = builder.header(
                name,
                match value {
                    Header::Text(text) => HeaderValue::Text(text),
                    Header::Integer(number) => HeaderValue::Integer(number),
                    Header::Boolean(truth) => HeaderValue::Boolean(truth),
                },
            );
        }
        builder.build_within(&LIMITS).map_err(|error| InvalidEntry::Event(error.to_string()))
    }
}

type Builder = outhaul_event::EventBuilder;

fn optional(builder: Builder, text: Option<String>, set: fn(Builder, String) -> Builder) -> Builder {
    match text {
        Some(text) => set(builder, text),
        None => builder,
    }
}

/// Whether RustFS takes this for the name of an event.
fn rustfs_knows(name: &str) -> bool {
    const NAMES: [(&str, &[&str]); 10] = [
        ("BucketCreated", &["*"]),
        ("BucketRemoved", &["*"]),
        ("ObjectAccessed", &["*", "Get", "GetRetention", "GetLegalHold", "Head", "Attributes"]),
        (
            "ObjectCreated",
            &[
                "*",
                "CompleteMultipartUpload",
                "Copy",
                "Post",
                "Put",
                "PutRetention",
                "PutLegalHold",
                "PutTagging",
                "DeleteTagging",
            ],
        ),
        ("ObjectRemoved", &["*", "Delete", "DeleteMarkerCreated", "NoOP", "DeleteAllVersions"]),
        ("LifecycleDelMarkerExpiration", &["Delete"]),
        (
            "Replication",
            &[
                "*",
                "OperationFailedReplication",
                "OperationCompletedReplication",
                "OperationMissedThreshold",
                "OperationReplicatedAfterThreshold",
                "OperationNotTracked",
            ],
        ),
        ("ObjectRestore", &["*", "Post", "Completed"]),
        ("ObjectTransition", &["*", "Failed", "Complete"]),
        ("Scanner", &["ManyVersions", "LargeVersions", "BigPrefix"]),
    ];
    let mut parts = name.split(':');
    let (Some("s3"), Some(group), Some(what), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    NAMES.iter().any(|(known, names)| *known == group && names.contains(&what))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn stored(event: Event) -> Content {
        Content {
            dedup_id: event.dedup_id(),
            event: Arc::new(event),
            admitted_at: UNIX_EPOCH + Duration::from_millis(1_700_000_000_000),
            attachment: Bytes::from_static(b"\0\xff note"),
            requeue_of: Some(7),
            position: Some(u64::MAX),
            fan_out: 3,
        }
    }

    fn same(a: &Content, b: &Content) {
        assert_eq!(a.event, b.event);
        assert_eq!((a.dedup_id, a.admitted_at, &a.attachment), (b.dedup_id, b.admitted_at, &b.attachment));
        assert_eq!((a.requeue_of, a.position, a.fan_out), (b.requeue_of, b.position, b.fan_out));
    }

    #[test]
    fn any_event_is_read_back_as_it_was() {
        let full = Event::builder("com.example.order.paid", "/shop")
            .id("1")
            .pid("order 1")
            .subject("Größe/ü")
            .time("2026-11-30T12:00:00Z")
            .header("traceparent", "00-1")
            .header("n", HeaderValue::Integer(-3))
            .header("b", HeaderValue::Boolean(true))
            .header("looks", "12")
            .body("application/octet-stream", vec![0, 255, 10])
            .build()
            .unwrap();
        let bare = Event::builder("t", "/s").build().unwrap();
        let coded = Event::builder("t", "/s").base64(true).data("bytes").build().unwrap();
        assert!(bare.is_minted());
        for event in [full, bare, coded] {
            let content = stored(event);
            let bytes = Bytes::from(encode(&content));
            same(&decode(&bytes, "n").unwrap(), &content);
        }
    }

    #[test]
    fn a_name_that_rustfs_does_not_know_is_stood_in_for() {
        let event = Event::builder("com.example.order.paid", "/shop").id("a b").json("{}").build().unwrap();
        let found = metadata(&stored(event));
        assert_eq!(found.event_name, "s3:ObjectCreated:*");
        assert_eq!((&found.bucket_name[..], &found.object_name[..]), ("/shop", "a+b"));
        assert_eq!(found.outhaul.unwrap().kind, "com.example.order.paid");
        for known in ["s3:ObjectCreated:Put", "s3:Replication:OperationNotTracked", "s3:BucketCreated:*"] {
            assert!(rustfs_knows(known));
        }
        for unknown in
            ["", "s3", "s3:ObjectCreated", "s3:Scanner:*", "s3:ObjectCreated:Put:x", "x:ObjectCreated:Put"]
        {
            assert!(!rustfs_knows(unknown), "{unknown}");
        }
    }

    #[test]
    fn a_notification_is_written_as_rustfs_writes_it() {
        let body = r#"{"EventName":"s3:ObjectCreated:Put","Key":"b/a k/ü","Records":[]}"#;
        let event =
            Event::builder("s3:ObjectCreated:Put", "arn:aws:s3:::b").id("1").json(body).build().unwrap();
        let content = stored(event);
        let found = metadata(&content);
        assert_eq!((&found.event_name[..], &found.bucket_name[..]), ("s3:ObjectCreated:Put", "b"));
        assert_eq!(found.object_name, "a+k%2F%C3%BC");
        assert_eq!((&found.content_type[..], found.payload_len), ("application/json", body.len() as u64));
        assert_eq!(found.dedup_id, content.dedup_id.to_string());
    }

    #[test]
    fn an_entry_of_rustfs_becomes_the_same_event_at_each_reading() {
        let json = r#"{"event_name":"s3:ObjectCreated:Put","bucket_name":"b","object_name":"a+k","content_type":"application/json","queued_at_unix_ms":1700000000000,"payload_len":61}"#;
        let body = r#"{"EventName":"s3:ObjectCreated:Put","Key":"b/k","Records":[]}"#;
        let read = |json: &str| {
            let metadata = serde_json::from_str(json).unwrap();
            decode(&rqp1::encode(&metadata, body.as_bytes()).into(), "name").unwrap()
        };
        let (once, again) = (read(json), read(json));
        same(&once, &again);
        assert_eq!((once.event.kind(), once.event.source()), ("s3:ObjectCreated:Put", "arn:aws:s3:::b"));
        assert_eq!((once.event.pid(), once.event.subject()), (Some("b/a k"), Some("a k")));
        assert_eq!((once.event.id(), once.dedup_id), ("name", DedupId::derive("arn:aws:s3:::b", "name")));
        assert_eq!(to_millis(once.admitted_at), 1_700_000_000_000);
        let id = "01890a5d-ac96-774b-bcce-b302099a8057";
        let kept = read(&json.replace('}', &format!(r#","dedup_id":"{id}"}}"#)));
        assert_eq!(kept.dedup_id.to_string(), id);
    }
}
