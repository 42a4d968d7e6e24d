//! Events to messages. No I/O.

use async_nats::header::{HeaderMap, HeaderName, HeaderValue};
use outhaul_target::outhaul_event::Bytes;
use outhaul_target::{Attempt, DeliveryError, ErrorKind, Format, Mode, encode};

use crate::config::NatsOptions;

/// By which JetStream recognises a repeat.
const MESSAGE_ID: &str = "Nats-Msg-Id";

/// A message without its reply.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) subject: String,
    pub(crate) headers: HeaderMap,
    pub(crate) payload: Bytes,
}

/// What would change the tokens of a subject.
fn is_unsafe(c: char) -> bool {
    c.is_whitespace() || ".*>".contains(c)
}

pub(crate) fn message(attempt: &Attempt, options: &NatsOptions) -> Result<Message, DeliveryError> {
    let event = &attempt.event;
    let subject = options.subject.render(event, is_unsafe)?;
    let mut headers = HeaderMap::new();
    let mut put = |name: &str, value: &str| -> Result<(), DeliveryError> {
        let name: HeaderName = name.parse().map_err(unfit)?;
        let value: HeaderValue = value.parse().map_err(unfit)?;
        headers.insert(name, value);
        Ok(())
    };
    let payload = if options.format == Format::CloudEvents && options.mode == Mode::Binary {
        for (name, value) in event.to_headers() {
            let name = if name == "content-type" { "Content-Type" } else { &name };
            put(name, &value)?;
        }
        event.body().clone()
    } else {
        let message = encode::message(event, options.format)?;
        if let Some(content_type) = &message.content_type {
            put("Content-Type", content_type)?;
        }
        message.body
    };
    put(MESSAGE_ID, &attempt.dedup_id.to_string())?;
    Ok(Message { subject, headers, payload })
}

/// Events are checked when they are admitted, so this is rare.
fn unfit(error: impl std::error::Error + Send + Sync + 'static) -> DeliveryError {
    DeliveryError::new(ErrorKind::Malformed)
        .with_detail("an attribute of the event cannot be a header")
        .with_source(error)
}

#[cfg(test)]
mod tests {
    use outhaul_target::TargetUri;
    use outhaul_target::outhaul_event::Event;
    use outhaul_target::testkit::attempt;

    use super::*;

    fn of(event: Event, uri: &str) -> Result<Message, DeliveryError> {
        message(&attempt(event), &NatsOptions::from_uri(TargetUri::parse(uri).unwrap()).unwrap())
    }

    fn event() -> Event {
        Event::builder("com.x.paid", "/shop")
            .id("1")
            .pid("a b>c")
            .body("text/plain", "hello")
            .build()
            .unwrap()
    }

    #[test]
    fn unsafe_characters_stay_within_their_token() {
        let message = of(event(), "nats://h/orders.{type}.{pid}").unwrap();
        assert_eq!(message.subject, "orders.com%2Ex%2Epaid.a%20b%3Ec");
        let without = Event::builder("t", "/s").build().unwrap();
        assert_eq!(of(without, "nats://h/orders.{pid}").unwrap_err().kind(), ErrorKind::Malformed);
    }

    #[test]
    fn binary_mode_has_headers_and_structured_mode_an_object() {
        let text =
            |message: &Message, name: &str| message.headers.get(name).map(|value| value.as_str().to_owned());
        let binary = of(event(), "nats://h/s").unwrap();
        assert_eq!(text(&binary, "ce-partitionkey").as_deref(), Some("a%20b>c"));
        assert_eq!(text(&binary, "Content-Type").as_deref(), Some("text/plain"));
        assert_eq!(text(&binary, MESSAGE_ID), Some(event().dedup_id().to_string()));
        assert_eq!(binary.payload, "hello");
        let structured = of(event(), "nats://h/s?outhaul.mode=structured").unwrap();
        assert_eq!(text(&structured, "Content-Type").as_deref(), Some("application/cloudevents+json"));
        assert_eq!(text(&structured, "ce-id"), None);
        assert!(structured.payload.starts_with(b"{\"specversion\""));
        let body = of(event(), "nats://h/s?outhaul.format=body").unwrap();
        assert_eq!((body.payload, body.headers.len()), (Bytes::from("hello"), 2));
    }
}
