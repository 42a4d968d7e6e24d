//! Events to messages. No I/O.

use outhaul_target::outhaul_event::Bytes;
use outhaul_target::{Attempt, DeliveryError, ErrorKind, Format, Mode, encode};

use crate::config::{MqttOptions, Version};

/// The user property with our identity of the event. No CloudEvents attribute can have this name.
pub(crate) const DEDUP_ID: &str = "outhaul-dedup-id";
/// The longest text of MQTT, in bytes.
const TEXT_BYTES_MAX: usize = 65_535;

/// A message without its packet.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) topic: String,
    pub(crate) payload: Bytes,
    /// None with 3.1.1.
    pub(crate) content_type: Option<String>,
    /// Empty with 3.1.1.
    pub(crate) properties: Vec<(String, String)>,
}

/// What would change the levels of a topic, or make it one of the server's own.
fn is_unsafe(c: char) -> bool {
    "/+#$".contains(c)
}

/// `packet_bytes_max` is what the server takes.
pub(crate) fn message(
    attempt: &Attempt,
    options: &MqttOptions,
    packet_bytes_max: usize,
) -> Result<Message, DeliveryError> {
    let event = &attempt.event;
    let topic = options.topic.render(event, is_unsafe)?;
    let mut properties = Vec::new();
    let (content_type, payload) = match (options.format, options.mode) {
        (Format::CloudEvents, Mode::Binary) => {
            properties.extend(event.attributes().map(|(name, value)| (name.to_owned(), value.into_owned())));
            (event.effective_content_type().map(str::to_owned), event.body().clone())
        }
        _ => {
            let message = encode::message(event, options.format)?;
            (message.content_type.map(|of| of.into_owned()), message.body)
        }
    };
    let content_type = content_type.filter(|_| options.version == Version::V5);
    if options.version == Version::V5 {
        properties.push((DEDUP_ID.to_owned(), attempt.dedup_id.to_string()));
    }
    let message = Message { topic, payload, content_type, properties };
    let texts = message.properties.iter().flat_map(|(name, value)| [name, value]);
    if texts.chain(&message.content_type).chain([&message.topic]).any(|text| text.len() > TEXT_BYTES_MAX) {
        let detail = "its topic or an attribute is longer than MQTT takes";
        return Err(DeliveryError::new(ErrorKind::Malformed).with_detail(detail));
    }
    let packet_bytes = message.packet_bytes(options.version);
    if packet_bytes > packet_bytes_max {
        let detail = format!("a packet of {packet_bytes} bytes, and {packet_bytes_max} may be sent");
        return Err(DeliveryError::new(ErrorKind::TooLarge).with_detail(detail));
    }
    Ok(message)
}

impl Message {
    /// How long its packet will be.
    fn packet_bytes(&self, version: Version) -> usize {
        // Lengths of texts take two bytes each, the packet's identifier two, a property's name one.
        let mut length = 2 + self.topic.len() + 2 + self.payload.len();
        if version == Version::V5 {
            let pairs: usize =
                self.properties.iter().map(|(name, value)| 1 + 2 + name.len() + 2 + value.len()).sum();
            let properties = pairs + self.content_type.as_ref().map_or(0, |text| 1 + 2 + text.len());
            length += variable_bytes(properties) + properties;
        }
        1 + variable_bytes(length) + length
    }
}

/// How long a length itself is: seven bits of it to a byte.
fn variable_bytes(length: usize) -> usize {
    match length {
        0..=127 => 1,
        128..=16_383 => 2,
        16_384..=2_097_151 => 3,
        _ => 4,
    }
}

#[cfg(test)]
mod tests {
    use outhaul_target::TargetUri;
    use outhaul_target::outhaul_event::{Event, Limits};
    use outhaul_target::testkit::attempt;

    use super::*;
    use crate::config::PACKET_BYTES_MAX;

    fn within(event: Event, uri: &str, max: usize) -> Result<Message, DeliveryError> {
        message(&attempt(event), &MqttOptions::from_uri(TargetUri::parse(uri).unwrap()).unwrap(), max)
    }

    fn of(event: Event, uri: &str) -> Result<Message, DeliveryError> {
        within(event, uri, PACKET_BYTES_MAX)
    }

    fn event() -> Event {
        Event::builder("com.x/paid", "/shop")
            .id("1")
            .pid("a+b#\u{e4}")
            .body("text/plain", "hello")
            .build()
            .unwrap()
    }

    #[test]
    fn unsafe_characters_stay_within_their_level() {
        let message = of(event(), "mqtt://h/orders/{type}/{pid}").unwrap();
        assert_eq!(message.topic, "orders/com.x%2Fpaid/a%2Bb%23\u{e4}");
        let own = Event::builder("$SYS", "/s").build().unwrap();
        assert_eq!(of(own, "mqtt://h/{type}").unwrap().topic, "%24SYS");
        let without = Event::builder("t", "/s").build().unwrap();
        assert_eq!(of(without, "mqtt://h/o/{pid}").unwrap_err().kind(), ErrorKind::Malformed);
    }

    #[test]
    fn binary_mode_has_properties_and_structured_mode_an_object() {
        let property = |message: &Message, name: &str| {
            message.properties.iter().find(|(of, _)| of == name).map(|(_, value)| value.clone())
        };
        let binary = of(event(), "mqtt://h/t").unwrap();
        assert_eq!(property(&binary, "partitionkey").as_deref(), Some("a+b#\u{e4}"));
        assert_eq!(property(&binary, "specversion").as_deref(), Some("1.0"));
        assert_eq!(property(&binary, DEDUP_ID), Some(event().dedup_id().to_string()));
        assert_eq!((binary.content_type.as_deref(), &*binary.payload), (Some("text/plain"), &b"hello"[..]));
        let structured = of(event(), "mqtt://h/t?outhaul.mode=structured").unwrap();
        assert_eq!(structured.content_type.as_deref(), Some("application/cloudevents+json"));
        assert_eq!((property(&structured, "id"), structured.properties.len()), (None, 1));
        assert!(structured.payload.starts_with(b"{\"specversion\""));
        let old = of(event(), "mqtt://h/t?outhaul.version=3.1.1").unwrap();
        assert!(old.payload.starts_with(b"{\"specversion\""));
        assert_eq!((old.content_type, old.properties.len()), (None, 0));
        let body = of(event(), "mqtt://h/t?outhaul.version=3.1.1&outhaul.format=body").unwrap();
        assert_eq!(body.payload, "hello");
    }

    #[test]
    fn what_does_not_fit_is_rejected() {
        for version in ["5", "3.1.1"] {
            let uri = format!("mqtt://h/t?outhaul.version={version}");
            let parsed = MqttOptions::from_uri(TargetUri::parse(&uri).unwrap()).unwrap();
            let bytes = of(event(), &uri).unwrap().packet_bytes(parsed.version);
            assert!(within(event(), &uri, bytes).is_ok());
            assert_eq!(within(event(), &uri, bytes - 1).unwrap_err().kind(), ErrorKind::TooLarge);
        }
        let limits = Limits { attribute_bytes_max: 1 << 20, ..Limits::default() };
        let long = Event::builder("t", "/s").subject("s".repeat(70_000)).build_within(&limits).unwrap();
        assert_eq!(of(long, "mqtt://h/{subject}").unwrap_err().kind(), ErrorKind::Malformed);
    }
}
