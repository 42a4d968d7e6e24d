//! [`Event`] and the builder that checks it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;

use crate::identity::DedupId;
use crate::validate::{self, InvalidEvent, Limits, Violation};

/// The value of a header: one of the CloudEvents types that differ in JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeaderValue {
    /// Also every URI, time and base64 text.
    Text(String),
    /// A 32-bit integer.
    Integer(i32),
    /// A truth value.
    Boolean(bool),
}

impl HeaderValue {
    /// The canonical text of the CloudEvents type system.
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Text(text) => Cow::Borrowed(text),
            other => Cow::Owned(other.to_string()),
        }
    }
}

impl fmt::Display for HeaderValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Integer(number) => number.fmt(f),
            Self::Boolean(truth) => truth.fmt(f),
        }
    }
}

impl From<&str> for HeaderValue {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for HeaderValue {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// One event, always valid: it was built or decoded under [`Limits`].
///
/// The body is a reference-counted slice, so a clone is cheap in the body and copies the attributes.
#[derive(Clone, PartialEq)]
pub struct Event {
    pub(crate) id: String,
    pub(crate) minted: bool,
    pub(crate) source: String,
    pub(crate) kind: String,
    pub(crate) pid: Option<String>,
    pub(crate) subject: Option<String>,
    pub(crate) time: Option<String>,
    pub(crate) content_type: Option<String>,
    pub(crate) schema: Option<String>,
    pub(crate) headers: BTreeMap<String, HeaderValue>,
    /// The producer sent `data_base64`: it goes out as such again.
    pub(crate) base64: bool,
    pub(crate) body: Bytes,
}

impl Event {
    /// Starts an event of a CloudEvents `type` from a `source`; its id is minted unless one is set.
    pub fn builder(kind: impl Into<String>, source: impl Into<String>) -> EventBuilder {
        EventBuilder { kind: Some(kind.into()), source: Some(source.into()), ..EventBuilder::default() }
    }

    /// `id`: unique within the source.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// `source`: a URI reference.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// `type`.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// `partitionkey`: the key within which order holds.
    pub fn pid(&self) -> Option<&str> {
        self.pid.as_deref()
    }

    /// `subject`.
    pub fn subject(&self) -> Option<&str> {
        self.subject.as_deref()
    }

    /// `time`, as the producer spelt it (RFC 3339).
    pub fn time(&self) -> Option<&str> {
        self.time.as_deref()
    }

    /// `datacontenttype`. None means JSON.
    pub fn content_type(&self) -> Option<&str> {
        self.content_type.as_deref()
    }

    /// The content type as it goes beside the body, in protocols that carry the two apart: the JSON that is implied
    /// where `datacontenttype` is missing is made explicit. None without a type and without a body.
    pub fn effective_content_type(&self) -> Option<&str> {
        // What came as base64 is bytes, whatever an absent type implies.
        let implied = (!self.body.is_empty() && !self.base64).then_some("application/json");
        self.content_type.as_deref().or(implied)
    }

    /// `dataschema`.
    pub fn schema(&self) -> Option<&str> {
        self.schema.as_deref()
    }

    /// Extension attributes, by name.
    pub fn headers(&self) -> &BTreeMap<String, HeaderValue> {
        &self.headers
    }

    /// Every attribute as CloudEvents spells it, with its value as text: `specversion`, `id`, `source`, `type`, those
    /// of `subject`, `time`, `dataschema` and `partitionkey` that it has, then the headers by name. What the media type
    /// is says [`effective_content_type`](Self::effective_content_type).
    pub fn attributes(&self) -> impl Iterator<Item = (&str, Cow<'_, str>)> {
        let required =
            [("specversion", "1.0"), ("id", &self.id), ("source", &self.source), ("type", &self.kind)];
        let optional = [
            ("subject", &self.subject),
            ("time", &self.time),
            ("dataschema", &self.schema),
            ("partitionkey", &self.pid),
        ];
        let optional = optional.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?)));
        let known = required.into_iter().chain(optional).map(|(name, value)| (name, Cow::Borrowed(value)));
        known.chain(self.headers.iter().map(|(name, value)| (name.as_str(), value.text())))
    }

    /// The attribute of this name, as text; `pid` stands for `partitionkey`.
    pub fn attribute(&self, name: &str) -> Option<Cow<'_, str>> {
        let name = if name == "pid" { "partitionkey" } else { name };
        self.attributes().find(|(of, _)| *of == name).map(|(_, value)| value)
    }

    /// The data; empty means that there is none.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Whether the content type says that the body is JSON. The body itself may still be anything.
    pub fn declares_json(&self) -> bool {
        self.content_type.as_deref().is_none_or(crate::is_json)
    }

    /// The identity that every target and attempt carries. Costs one SHA-256 unless the id was minted.
    pub fn dedup_id(&self) -> DedupId {
        if self.minted
            && let Ok(id) = self.id.parse()
        {
            return id;
        }
        DedupId::derive(&self.source, &self.id)
    }

    /// Whether the id was minted here, and so is the [`DedupId`] as it is. For whoever writes the attributes one by
    /// one; [`EventBuilder::minted`] is the way back.
    pub fn is_minted(&self) -> bool {
        self.minted
    }

    /// Whether the producer sent the data as base64; [`EventBuilder::base64`] is the way back.
    pub fn is_base64(&self) -> bool {
        self.base64
    }

    /// Sets the key within which order holds, and checks it.
    ///
    /// # Errors
    /// The key is empty, too long, or holds characters that no attribute may have.
    pub fn with_pid(mut self, pid: impl Into<String>, limits: &Limits) -> Result<Self, InvalidEvent> {
        let pid = pid.into();
        validate::string("partitionkey", &pid, limits.pid_bytes_max)?;
        self.pid = Some(pid);
        Ok(self)
    }

    /// About what the event takes in memory and on disk, in bytes: what limits count.
    pub fn size(&self) -> usize {
        let text = |o: &Option<String>| o.as_ref().map_or(0, String::len);
        let headers: usize = self.headers.iter().map(|(name, value)| name.len() + value.size()).sum();
        self.id.len()
            + self.source.len()
            + self.kind.len()
            + text(&self.pid)
            + text(&self.subject)
            + text(&self.time)
            + text(&self.content_type)
            + text(&self.schema)
            + headers
            + self.body.len()
    }
}

impl HeaderValue {
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Integer(_) => 4,
            Self::Boolean(_) => 1,
        }
    }
}

impl fmt::Debug for Event {
    /// Never the body: it is the producer's, and logs are read by others.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("id", &self.id)
            .field("source", &self.source)
            .field("type", &self.kind)
            .field("pid", &self.pid)
            .field("subject", &self.subject)
            .field("body_bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// Collects the attributes of an event; [`build`](Self::build) checks them all.
#[derive(Debug, Clone, Default)]
pub struct EventBuilder {
    pub(crate) id: Option<String>,
    pub(crate) source: Option<String>,
    pub(crate) kind: Option<String>,
    pub(crate) pid: Option<String>,
    pub(crate) subject: Option<String>,
    pub(crate) time: Option<String>,
    pub(crate) content_type: Option<String>,
    pub(crate) schema: Option<String>,
    pub(crate) headers: BTreeMap<String, HeaderValue>,
    pub(crate) base64: bool,
    pub(crate) minted: bool,
    pub(crate) body: Bytes,
}

impl EventBuilder {
    /// Says that the id which is set was minted here once: for reading back what [`Event::is_minted`] told.
    #[must_use]
    pub fn minted(mut self, minted: bool) -> Self {
        self.minted = minted;
        self
    }

    /// Says that the data came as base64: for reading back what [`Event::is_base64`] told.
    #[must_use]
    pub fn base64(mut self, base64: bool) -> Self {
        self.base64 = base64;
        self
    }

    /// Sets `datacontenttype` alone.
    #[must_use]
    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.content_type = Some(content_type.into());
        self
    }

    /// Sets the data alone; without a content type it is JSON.
    #[must_use]
    pub fn data(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Sets the producer's own id instead of a minted one.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Sets the key within which order holds.
    #[must_use]
    pub fn pid(mut self, pid: impl Into<String>) -> Self {
        self.pid = Some(pid.into());
        self
    }

    /// Sets `subject`.
    #[must_use]
    pub fn subject(mut self, subject: impl Into<String>) -> Self {
        self.subject = Some(subject.into());
        self
    }

    /// Sets `time`, an RFC 3339 text.
    #[must_use]
    pub fn time(mut self, time: impl Into<String>) -> Self {
        self.time = Some(time.into());
        self
    }

    /// Sets `dataschema`.
    #[must_use]
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = Some(schema.into());
        self
    }

    /// Sets an extension attribute; a name that was set before is replaced.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<HeaderValue>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// Sets the body and its content type.
    #[must_use]
    pub fn body(mut self, content_type: impl Into<String>, body: impl Into<Bytes>) -> Self {
        self.content_type = Some(content_type.into());
        self.body = body.into();
        self
    }

    /// Sets a JSON body, given as text.
    #[must_use]
    pub fn json(self, json: impl Into<Bytes>) -> Self {
        self.body("application/json", json)
    }

    /// Checks everything under the default [`Limits`].
    pub fn build(self) -> Result<Event, InvalidEvent> {
        self.build_within(&Limits::default())
    }

    /// Checks everything under these limits.
    pub fn build_within(self, limits: &Limits) -> Result<Event, InvalidEvent> {
        self.check(limits)?;
        let missing = |name| InvalidEvent::new(name, Violation::Missing);
        let minted = self.minted || self.id.is_none();
        Ok(Event {
            id: self.id.unwrap_or_else(|| DedupId::mint().to_string()),
            minted,
            source: self.source.ok_or_else(|| missing("source"))?,
            kind: self.kind.ok_or_else(|| missing("type"))?,
            pid: self.pid,
            subject: self.subject,
            time: self.time,
            content_type: self.content_type,
            schema: self.schema,
            headers: self.headers,
            base64: self.base64,
            body: self.body,
        })
    }

    fn check(&self, limits: &Limits) -> Result<(), InvalidEvent> {
        let max = limits.attribute_bytes_max;
        let each = |value: &Option<String>, rule: &dyn Fn(&str) -> Result<(), InvalidEvent>| {
            value.as_deref().map_or(Ok(()), rule)
        };
        each(&self.id, &|text| validate::string("id", text, max))?;
        each(&self.source, &|text| validate::uri("source", text, max))?;
        each(&self.kind, &|text| validate::string("type", text, max))?;
        each(&self.pid, &|text| validate::string("partitionkey", text, limits.pid_bytes_max))?;
        each(&self.subject, &|text| validate::string("subject", text, max))?;
        each(&self.time, &|text| validate::timestamp("time", text))?;
        each(&self.content_type, &|text| validate::media_type("datacontenttype", text, max))?;
        each(&self.schema, &|text| validate::uri("dataschema", text, max))?;
        self.check_headers(limits)?;
        if self.body.len() > limits.body_bytes_max {
            let violation = Violation::TooLong { length: self.body.len(), max: limits.body_bytes_max };
            return Err(InvalidEvent::new("data", violation));
        }
        Ok(())
    }

    fn check_headers(&self, limits: &Limits) -> Result<(), InvalidEvent> {
        let (count, max) = (self.headers.len(), limits.headers_max);
        if count > max {
            return Err(InvalidEvent::new("extensions", Violation::TooMany { count, max }));
        }
        let mut length = 0;
        for (name, value) in &self.headers {
            validate::extension_name(name)?;
            if let HeaderValue::Text(text) = value {
                validate::characters(name, text, limits.headers_bytes_max)?;
            }
            length += name.len() + value.size();
        }
        let max = limits.headers_bytes_max;
        if length > max {
            return Err(InvalidEvent::new("extensions", Violation::TooLong { length, max }));
        }
        Ok(())
    }
}
