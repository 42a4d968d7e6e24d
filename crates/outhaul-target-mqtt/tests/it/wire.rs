//! What is in a message.

use std::collections::BTreeMap;

use outhaul_target::Target;
use outhaul_target::outhaul_event::Event;
use outhaul_target::testkit::attempt;
use rumqttc_v5::{Publish, QoS};

use crate::support::{Broker, Subscriber, property};

async fn sent(rest: &str) -> (Publish, Event) {
    let broker = Broker::plain();
    let subscriber = Subscriber::start(&broker, &["orders/#"]).await;
    let event = Event::builder("com.example/paid", "/shop")
        .id("1 \u{e9}%")
        .pid("order 7")
        .subject("about")
        .time("2026-01-02T03:04:05Z")
        .header("traceid", "00-ab")
        .json("{\"total\": 1.50}")
        .build()
        .unwrap();
    let target = broker.mqtt(&format!("/orders/{{type}}{rest}"));
    target.deliver(&[attempt(event.clone())]).await.remove(0).unwrap();
    // With QoS 0 it may come behind the mark that `heard` waits for; bounded: by the attempts.
    for _ in 0..100 {
        if let Some(message) = subscriber.heard().await.pop() {
            return (message, event);
        }
    }
    panic!("nothing arrived");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_in_binary_mode_has_everything() {
    let (message, event) = sent("").await;
    assert_eq!((&*message.topic, message.qos), (&b"orders/com.example%2Fpaid"[..], QoS::AtLeastOnce));
    assert_eq!((&*message.payload, message.retain), (&b"{\"total\": 1.50}"[..], false));
    let properties = message.properties.as_ref().unwrap();
    let found: BTreeMap<&str, &str> =
        properties.user_properties.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let dedup_id = event.dedup_id().to_string();
    let expected: BTreeMap<&str, &str> = [
        ("specversion", "1.0"),
        ("id", "1 \u{e9}%"),
        ("source", "/shop"),
        ("type", "com.example/paid"),
        ("subject", "about"),
        ("time", "2026-01-02T03:04:05Z"),
        ("partitionkey", "order 7"),
        ("traceid", "00-ab"),
        ("outhaul-dedup-id", &dedup_id),
    ]
    .into();
    assert_eq!(found, expected);
    assert_eq!(properties.content_type.as_deref(), Some("application/json"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_other_formats_and_the_other_version_are_payloads_alone() {
    for version in ["?outhaul.mode=structured", "?outhaul.version=3.1.1"] {
        let (message, event) = sent(version).await;
        assert_eq!(message.payload, event.to_json());
        assert_eq!(property(&message, "id"), None);
    }
    for version in ["5", "3.1.1"] {
        let (message, _) = sent(&format!("?outhaul.version={version}&outhaul.format=body")).await;
        assert_eq!(message.payload, "{\"total\": 1.50}");
        let (message, _) = sent(&format!("?outhaul.version={version}&outhaul.format=s3")).await;
        let text = String::from_utf8(message.payload.to_vec()).unwrap();
        assert!(text.starts_with("{\"EventName\":\"com.example/paid\",\"Key\":\"order 7\""), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_quality_of_service_is_the_one_that_was_asked_for() {
    for version in ["5", "3.1.1"] {
        for (name, expected) in
            [("1", QoS::AtLeastOnce), ("2", QoS::ExactlyOnce), ("at_most_once", QoS::AtMostOnce)]
        {
            let (message, _) = sent(&format!("?outhaul.version={version}&outhaul.qos={name}")).await;
            assert_eq!(message.qos, expected, "{version} {name}");
        }
    }
}
