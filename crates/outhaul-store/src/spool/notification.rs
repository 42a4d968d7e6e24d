//! The notifications of object stores: what RustFS and MinIO send, and the event that it is.
//!
//! `{"EventName", "Key": "<bucket>/<key>", "Records": [record]}` is what receivers get. A bare record, as MinIO keeps
//! it, is wrapped into that. To CloudEvents: `type` = event name, `source` = ARN of the bucket, `subject` = decoded
//! key, `time` = event time, pid = `<bucket>/<decoded key>`.

use std::borrow::Cow;
use std::fmt::Write as _;

use bytes::Bytes;
use outhaul_event::{Event, Limits};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::rqp1::InvalidEntry;

/// The type of what names none.
const UNNAMED: &str = "outhaul.imported";

/// What is known of one notification.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Notification {
    /// What happened.
    pub event_name: String,
    /// The bucket.
    pub bucket: String,
    /// The object's key, decoded.
    pub key: String,
    /// The bucket's ARN.
    pub arn: Option<String>,
    /// When, in RFC 3339.
    pub time: Option<String>,
    /// What the receiver gets.
    pub body: Bytes,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(rename = "EventName", borrow)]
    event_name: Option<Cow<'a, str>>,
    #[serde(rename = "Key", borrow)]
    key: Option<Cow<'a, str>>,
    #[serde(rename = "Records", borrow)]
    records: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct Record<'a> {
    #[serde(rename = "eventName", borrow)]
    event_name: Option<Cow<'a, str>>,
    #[serde(rename = "eventTime", borrow)]
    time: Option<Cow<'a, str>>,
    #[serde(borrow)]
    s3: S3<'a>,
}

#[derive(Deserialize)]
struct S3<'a> {
    #[serde(borrow)]
    bucket: Bucket<'a>,
    #[serde(borrow)]
    object: Object<'a>,
}

#[derive(Deserialize)]
struct Bucket<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    arn: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Object<'a> {
    #[serde(borrow)]
    key: Cow<'a, str>,
}

/// What older versions of RustFS keep in a batch: the record beside what names it.
#[derive(Deserialize)]
struct Entity<'a> {
    #[serde(borrow)]
    object_name: Cow<'a, str>,
    #[serde(borrow)]
    bucket_name: Cow<'a, str>,
    #[serde(borrow)]
    event_name: Cow<'a, str>,
    #[serde(borrow)]
    data: &'a RawValue,
}

impl Notification {
    /// Reads what receivers get. None if it is not that.
    pub fn from_envelope(body: &Bytes) -> Option<Self> {
        let envelope: Envelope<'_> = serde_json::from_slice(body).ok()?;
        let first = envelope.records.first().and_then(|record| serde_json::from_str(record.get()).ok());
        let mut this = first.map(|record| Self::of(&record)).unwrap_or_default();
        if let Some(name) = envelope.event_name {
            this.event_name = name.into_owned();
        }
        if this.bucket.is_empty()
            && let Some(key) = envelope.key
        {
            let (bucket, key) = key.split_once('/').unwrap_or((&key, ""));
            (this.bucket, this.key) = (bucket.to_owned(), key.to_owned());
        }
        this.body = body.clone();
        Some(this)
    }

    /// Reads one JSON value in any of the shapes in which these products keep an item.
    pub fn from_value(value: &Bytes) -> Result<Self, InvalidEntry> {
        if let Some(this) = Self::from_envelope(value) {
            return Ok(this);
        }
        if let Ok(record) = serde_json::from_slice::<Record<'_>>(value) {
            return Ok(Self::of(&record).wrapped(value));
        }
        if let Ok(entity) = serde_json::from_slice::<Entity<'_>>(value) {
            let data = Bytes::copy_from_slice(entity.data.get().as_bytes());
            let mut this = Self::from_value(&data)?;
            if this.bucket.is_empty() {
                this.bucket = entity.bucket_name.into_owned();
                this.key = form_decode(&entity.object_name);
            }
            if this.event_name.is_empty() {
                this.event_name = entity.event_name.into_owned();
            }
            return Ok(this);
        }
        // Something else that was queued, such as an audit record: it is delivered as it is.
        match serde_json::from_slice::<&RawValue>(value) {
            Ok(raw) if raw.get().starts_with('{') => Ok(Self { body: value.clone(), ..Self::default() }),
            Ok(_) => Err(InvalidEntry::Json("a JSON object is expected".to_owned())),
            Err(error) => Err(InvalidEntry::Json(error.to_string())),
        }
    }

    fn of(record: &Record<'_>) -> Self {
        Self {
            event_name: record.event_name.as_deref().unwrap_or_default().to_owned(),
            bucket: record.s3.bucket.name.clone().into_owned(),
            key: form_decode(&record.s3.object.key),
            arn: record.s3.bucket.arn.clone().map(Cow::into_owned),
            time: record.time.clone().map(Cow::into_owned),
            body: Bytes::new(),
        }
    }

    fn wrapped(mut self, record: &[u8]) -> Self {
        let text = |text: &str| serde_json::to_vec(text).unwrap_or_default();
        let key = text(&format!("{}/{}", self.bucket, self.key));
        let parts: [&[u8]; 7] = [
            b"{\"EventName\":",
            &text(&self.event_name),
            b",\"Key\":",
            &key,
            b",\"Records\":[",
            record.trim_ascii(),
            b"]}",
        ];
        self.body = parts.concat().into();
        self
    }

    /// The event, under an id that stands for the place where it was found.
    pub fn into_event(self, id: &str, content_type: &str) -> Result<Event, InvalidEntry> {
        let kind = if self.event_name.is_empty() { UNNAMED } else { &self.event_name };
        let source = match self.arn.filter(|arn| !arn.is_empty()) {
            Some(arn) => arn,
            None => format!("arn:aws:s3:::{}", self.bucket),
        };
        let mut builder = Event::builder(escape(kind, plain), escape(&source, in_uri)).id(id).data(self.body);
        if !self.bucket.is_empty() {
            builder = builder.pid(escape(&format!("{}/{}", self.bucket, self.key), plain));
        }
        if !self.key.is_empty() {
            builder = builder.subject(escape(&self.key, plain));
        }
        let untimed = if content_type.is_empty() { builder } else { builder.content_type(content_type) };
        // A time or content type that is none does not make the rest undeliverable.
        let attempts = [
            self.time.map(|time| untimed.clone().time(time)),
            Some(untimed.clone()),
            Some(untimed.content_type("application/json")),
        ];
        let mut reason = String::new();
        for builder in attempts.into_iter().flatten() {
            match builder.build_within(&LIMITS) {
                Ok(event) => return Ok(event),
                Err(error) => reason = error.to_string(),
            }
        }
        Err(InvalidEntry::Event(reason))
    }
}

/// What another product has taken is not refused for its size: keys have up to 1 KiB.
pub(super) const LIMITS: Limits = Limits {
    pid_bytes_max: usize::MAX,
    attribute_bytes_max: usize::MAX,
    headers_max: usize::MAX,
    headers_bytes_max: usize::MAX,
    body_bytes_max: usize::MAX,
};

/// Keys may have characters that no attribute may: they become `%XX`.
fn escape(text: &str, allowed: fn(char) -> bool) -> Cow<'_, str> {
    if text.chars().all(allowed) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if allowed(c) {
            out.push(c);
        } else {
            for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                // Writing to a string cannot fail.
                write!(out, "%{byte:02X}").unwrap_or_default();
            }
        }
    }
    out.into()
}

fn plain(c: char) -> bool {
    let code = u32::from(c);
    !c.is_control() && !(0xFDD0..=0xFDEF).contains(&code) && code & 0xFFFE != 0xFFFE
}

fn in_uri(c: char) -> bool {
    plain(c) && !c.is_whitespace() && !"<>\"{}|\\^`".contains(c)
}

/// `application/x-www-form-urlencoded`, one value.
pub(crate) fn form_encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'*' | b'-' | b'.' | b'_' => out.push(char::from(byte)),
            b' ' => out.push('+'),
            // Writing to a string cannot fail.
            _ => write!(out, "%{byte:02X}").unwrap_or_default(),
        }
    }
    out
}

/// The inverse. What is not encoded well stays as it is.
pub(crate) fn form_decode(text: &str) -> String {
    let spaces: Vec<u8> = text.bytes().map(|byte| if byte == b'+' { b' ' } else { byte }).collect();
    outhaul_event::percent_decode(&spaces).unwrap_or_else(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RECORD: &str = r#"{"eventVersion":"2.0","eventSource":"minio:s3","awsRegion":"","eventTime":"2026-02-11T10:00:00.123Z","eventName":"s3:ObjectCreated:Put","s3":{"s3SchemaVersion":"1.0","configurationId":"Config","bucket":{"name":"photos","ownerIdentity":{"principalId":"x"},"arn":"arn:aws:s3:::photos"},"object":{"key":"2026%2FGr%C3%B6%C3%9Fe+1.jpg","size":7,"sequencer":"1"}}}"#;

    #[test]
    fn a_record_is_wrapped_and_becomes_the_event_that_the_design_says() {
        let value = Bytes::from_static(RECORD.as_bytes());
        let event = Notification::from_value(&value).unwrap().into_event("n-0", "").unwrap();
        assert_eq!((event.kind(), event.source()), ("s3:ObjectCreated:Put", "arn:aws:s3:::photos"));
        assert_eq!(event.subject(), Some("2026/Größe 1.jpg"));
        assert_eq!(event.pid(), Some("photos/2026/Größe 1.jpg"));
        assert_eq!((event.time(), event.id()), (Some("2026-02-11T10:00:00.123Z"), "n-0"));
        let body = format!(
            r#"{{"EventName":"s3:ObjectCreated:Put","Key":"photos/2026/Größe 1.jpg","Records":[{RECORD}]}}"#
        );
        assert_eq!(event.body(), body.as_bytes());
        // What is wrapped is read as what it was.
        let again = Notification::from_value(event.body()).unwrap();
        assert_eq!(again.clone().into_event("n-0", "").unwrap(), event);
        assert_eq!(again.body, event.body());
    }

    #[test]
    fn an_entity_of_an_older_version_is_its_record() {
        let entity = format!(
            r#"{{"object_name":"o","bucket_name":"b","event_name":"s3:ObjectRemoved:Delete","data":{RECORD}}}"#
        );
        let found = Notification::from_value(&entity.into()).unwrap();
        assert_eq!((&found.bucket[..], &found.key[..]), ("photos", "2026/Größe 1.jpg"));
        let entity =
            r#"{"object_name":"o+1","bucket_name":"b","event_name":"s3:ObjectRemoved:Delete","data":{}}"#;
        let found = Notification::from_value(&entity.into()).unwrap();
        assert_eq!(
            (&found.event_name[..], &found.bucket[..], &found.key[..]),
            ("s3:ObjectRemoved:Delete", "b", "o 1")
        );
    }

    #[test]
    fn keys_with_forbidden_characters_and_bad_times_are_still_delivered() {
        let one = Notification {
            bucket: "b".into(),
            key: "a\u{1}\nb\u{FFFF}".into(),
            arn: Some("arn of b".into()),
            time: Some("yesterday".into()),
            body: "{}".into(),
            ..Notification::default()
        };
        let event = one.into_event("i", "no media type").unwrap();
        assert_eq!(event.subject(), Some("a%01%0Ab%EF%BF%BF"));
        assert_eq!((event.source(), event.time(), event.kind()), ("arn%20of%20b", None, UNNAMED));
        let long = Notification { bucket: "b".into(), key: "k".repeat(1024), ..Notification::default() };
        assert_eq!(long.into_event("i", "").unwrap().pid().map(str::len), Some(1026));
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for bad in ["", "x", "[1]", "3", "{", "{}{}", "null"] {
            assert!(Notification::from_value(&bad.into()).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn keys_are_read_back(key in "\\PC{0,20}") {
            prop_assert_eq!(form_decode(&form_encode(&key)), key);
        }

        #[test]
        fn no_value_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), text in "\\PC{0,40}") {
            for value in [bytes::Bytes::from(bytes), text.into()] {
                let event = Notification::from_value(&value).and_then(|found| found.into_event("i", ""));
                let object = value.contains(&0x7b);
                prop_assert!(object || event.is_err());
            }
        }
    }
}
