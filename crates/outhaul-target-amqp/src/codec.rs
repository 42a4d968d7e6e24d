//! Events to messages. No I/O.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use outhaul_target::outhaul_event::Bytes;
use outhaul_target::{Attempt, DeliveryError, ErrorKind, Format, Mode, encode};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::config::AmqpOptions;

/// What the AMQP binding of CloudEvents puts before the name of an attribute.
const PREFIX: &str = "cloudEvents_";
/// Survives a restart of the server.
const PERSISTENT: u8 = 2;
/// What the properties take in a frame beside their texts, and each header beside its.
const OVERHEAD_BYTES: usize = 256;
const HEADER_OVERHEAD_BYTES: usize = 6;

/// A message, and what it is recognised by when it comes back.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) id: ShortString,
    pub(crate) routing_key: ShortString,
    pub(crate) properties: BasicProperties,
    pub(crate) body: Bytes,
}

/// What would change the words of a routing key.
fn is_unsafe(c: char) -> bool {
    c.is_whitespace() || ".*#".contains(c)
}

/// `frame_bytes_max` bounds the properties, which cannot be split.
pub(crate) fn message(
    attempt: &Attempt,
    options: &AmqpOptions,
    frame_bytes_max: usize,
) -> Result<Message, DeliveryError> {
    let event = &attempt.event;
    let routing_key = short(&options.routing_key.render(event, is_unsafe)?, "routing key")?;
    let id = short(&attempt.dedup_id.to_string(), "message id")?;
    let mut headers = FieldTable::default();
    let mut header_bytes = OVERHEAD_BYTES;
    let (content_type, body) = if options.format == Format::CloudEvents && options.mode == Mode::Binary {
        for (name, value) in event.attributes() {
            header_bytes += PREFIX.len() + name.len() + value.len() + HEADER_OVERHEAD_BYTES;
            let value = AMQPValue::LongString(LongString::from(value.as_bytes()));
            headers.insert(short(&format!("{PREFIX}{name}"), "name of an attribute")?, value);
        }
        (event.effective_content_type().map(str::to_owned), event.body().clone())
    } else {
        let message = encode::message(event, options.format)?;
        (message.content_type.map(|of| of.into_owned()), message.body)
    };
    let mut properties = BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_message_id(id.clone())
        .with_headers(headers);
    if let Some(content_type) = content_type {
        header_bytes += content_type.len();
        properties = properties.with_content_type(short(&content_type, "content type")?);
    }
    if let Some(seconds) = event.time().and_then(seconds) {
        properties = properties.with_timestamp(seconds);
    }
    if frame_bytes_max > 0 && header_bytes + id.as_str().len() > frame_bytes_max {
        let detail = format!("the attributes do not fit into a frame of {frame_bytes_max} bytes");
        return Err(DeliveryError::new(ErrorKind::TooLarge).with_detail(detail));
    }
    Ok(Message { id, routing_key, properties, body })
}

/// A time of RFC 3339 in whole seconds since 1970; None before that.
fn seconds(text: &str) -> Option<u64> {
    u64::try_from(OffsetDateTime::parse(text, &Rfc3339).ok()?.unix_timestamp()).ok()
}

fn short(text: &str, what: &str) -> Result<ShortString, DeliveryError> {
    ShortString::try_new(text).map_err(|error| {
        DeliveryError::new(ErrorKind::Malformed)
            .with_detail(format!("the {what} is longer than AMQP takes"))
            .with_source(error)
    })
}

#[cfg(test)]
mod tests {
    use outhaul_target::TargetUri;
    use outhaul_target::outhaul_event::{Event, Limits};
    use outhaul_target::testkit::attempt;

    use super::*;

    const FRAME: usize = 131_072;

    fn of(event: Event, uri: &str) -> Result<Message, DeliveryError> {
        message(&attempt(event), &AmqpOptions::from_uri(TargetUri::parse(uri).unwrap()).unwrap(), FRAME)
    }

    fn event() -> Event {
        let event = Event::builder("com.x.paid", "/shop").id("1").pid("a b#\u{e4}");
        event.time("2026-01-02T03:04:05.9+01:00").body("text/plain", "hello").build().unwrap()
    }

    fn header(message: &Message, name: &str) -> Option<String> {
        let headers = message.properties.headers().as_ref()?;
        match headers.inner().get(name)? {
            AMQPValue::LongString(text) => Some(text.to_string()),
            other => panic!("{name} is {other:?}"),
        }
    }

    #[test]
    fn unsafe_characters_stay_within_their_word() {
        let message = of(event(), "amqp://h?outhaul.routing_key=orders.{type}.{pid}").unwrap();
        assert_eq!(message.routing_key.as_str(), "orders.com%2Ex%2Epaid.a%20b%23\u{e4}");
        let without = Event::builder("t", "/s").build().unwrap();
        let error = of(without, "amqp://h?outhaul.routing_key=orders.{pid}").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Malformed);
    }

    #[test]
    fn binary_mode_has_headers_and_structured_mode_an_object() {
        let binary = of(event(), "amqp://h?outhaul.routing_key=q").unwrap();
        assert_eq!(header(&binary, "cloudEvents_partitionkey").as_deref(), Some("a b#\u{e4}"));
        assert_eq!(header(&binary, "cloudEvents_specversion").as_deref(), Some("1.0"));
        let properties = &binary.properties;
        assert_eq!(properties.content_type().as_ref().unwrap().as_str(), "text/plain");
        assert_eq!(properties.message_id().as_ref().unwrap().as_str(), event().dedup_id().to_string());
        assert_eq!((*properties.delivery_mode(), *properties.timestamp()), (Some(2), Some(1_767_319_445)));
        assert_eq!(binary.body, "hello");
        let structured = of(event(), "amqp://h?outhaul.routing_key=q&outhaul.mode=structured").unwrap();
        let content_type = structured.properties.content_type().as_ref().unwrap().as_str();
        assert_eq!(content_type, "application/cloudevents+json");
        assert_eq!(header(&structured, "cloudEvents_id"), None);
        assert!(structured.body.starts_with(b"{\"specversion\""));
        let body = of(event(), "amqp://h?outhaul.routing_key=q&outhaul.format=body").unwrap();
        assert_eq!((&*body.body, header(&body, "cloudEvents_id")), (&b"hello"[..], None));
    }

    #[test]
    fn what_does_not_fit_is_rejected() {
        let long = |text: &str| Event::builder("t", "/s").subject(text).json("{}").build().unwrap();
        let error = of(long(&"s".repeat(300)), "amqp://h?outhaul.routing_key={subject}").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Malformed);
        let limits = Limits { attribute_bytes_max: FRAME * 2, ..Limits::default() };
        let large = Event::builder("t", "/s").subject("s".repeat(FRAME)).json("{}").build_within(&limits);
        let error = of(large.unwrap(), "amqp://h?outhaul.routing_key=q").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge);
        let typed = Event::builder("t", "/s").body(format!("text/plain; a={}", "x".repeat(300)), "a");
        let error = of(typed.build().unwrap(), "amqp://h?outhaul.routing_key=q").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Malformed);
    }
}
