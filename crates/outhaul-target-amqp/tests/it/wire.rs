//! What is in a message.

use std::collections::BTreeMap;

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, ExchangeKind};
use outhaul_services::Access;
use outhaul_target::Target;
use outhaul_target::outhaul_event::{Bytes, Event};
use outhaul_target::testkit::attempt;

use crate::support::{Broker, fresh, header};

async fn sent(options: &str) -> (BasicProperties, Bytes, Event) {
    let broker = Broker::shared(Access::Password);
    let queue = fresh("wire");
    broker.make_queue(&queue, &[]).await;
    let event = Event::builder("com.example.paid", "/shop")
        .id("1 \u{e9}%")
        .pid("order 7")
        .subject("about")
        .time("2026-01-02T03:04:05Z")
        .header("traceid", "00-ab")
        .json("{\"total\": 1.50}")
        .build()
        .unwrap();
    let target = broker.amqp(&format!("outhaul.routing_key={queue}{options}"));
    target.deliver(&[attempt(event.clone())]).await.remove(0).unwrap();
    let (properties, body) = broker.take(&queue).await.remove(0);
    (properties, body, event)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_in_binary_mode_has_everything() {
    let (properties, body, event) = sent("").await;
    assert_eq!(body, "{\"total\": 1.50}");
    let headers = properties.headers().as_ref().unwrap().inner();
    let found: BTreeMap<&str, String> =
        headers.keys().map(|name| (name.as_str(), header(&properties, name.as_str()).unwrap())).collect();
    let expected: BTreeMap<&str, String> = [
        ("cloudEvents_specversion", "1.0"),
        ("cloudEvents_id", "1 \u{e9}%"),
        ("cloudEvents_source", "/shop"),
        ("cloudEvents_type", "com.example.paid"),
        ("cloudEvents_subject", "about"),
        ("cloudEvents_time", "2026-01-02T03:04:05Z"),
        ("cloudEvents_partitionkey", "order 7"),
        ("cloudEvents_traceid", "00-ab"),
    ]
    .map(|(name, value)| (name, value.to_owned()))
    .into();
    assert_eq!(found, expected);
    assert_eq!(properties.content_type().as_ref().unwrap().as_str(), "application/json");
    assert_eq!(properties.message_id().as_ref().unwrap().as_str(), event.dedup_id().to_string());
    assert_eq!((*properties.delivery_mode(), *properties.timestamp()), (Some(2), Some(1_767_323_045)));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_other_formats_are_bodies_alone() {
    let (properties, body, event) = sent("&outhaul.mode=structured").await;
    assert_eq!(properties.content_type().as_ref().unwrap().as_str(), "application/cloudevents+json");
    assert_eq!(body, event.to_json());
    assert_eq!(header(&properties, "cloudEvents_id"), None);
    let (properties, body, _) = sent("&outhaul.format=body").await;
    assert_eq!(properties.content_type().as_ref().unwrap().as_str(), "application/json");
    assert_eq!(body, "{\"total\": 1.50}");
    let (_, body, _) = sent("&outhaul.format=s3").await;
    assert!(body.starts_with(b"{\"EventName\":\"com.example.paid\",\"Key\":\"order 7\""), "{body:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_routes_by_the_rendered_key_and_by_headers() {
    let broker = Broker::shared(Access::Password);
    let (topic, headers) = (fresh("topic"), fresh("headers"));
    let (by_key, by_header) = (fresh("by-key"), fresh("by-header"));
    let (_client, channel) = broker.channel().await;
    for (exchange, kind, queue, key) in [
        (&topic, ExchangeKind::Topic, &by_key, "orders.*.p%2E1"),
        (&headers, ExchangeKind::Headers, &by_header, ""),
    ] {
        broker.make_queue(queue, &[]).await;
        let (options, table) = (ExchangeDeclareOptions::default(), FieldTable::default());
        channel.exchange_declare(exchange.as_str().into(), kind, options, table).await.unwrap();
        let mut table = FieldTable::default();
        table.insert("cloudEvents_type".into(), AMQPValue::LongString("paid".into()));
        let (queue, exchange) = (queue.as_str().into(), exchange.as_str().into());
        channel.queue_bind(queue, exchange, key.into(), QueueBindOptions::default(), table).await.unwrap();
    }
    let event = Event::builder("paid", "/shop").id("1").pid("p.1").json("{}").build().unwrap();
    for options in [
        format!("outhaul.exchange={topic}&outhaul.routing_key=orders.{{type}}.{{pid}}"),
        format!("outhaul.exchange={headers}"),
    ] {
        let target = broker.amqp(&options);
        target.probe().await.unwrap();
        target.deliver(&[attempt(event.clone())]).await.remove(0).unwrap();
    }
    assert_eq!((broker.take(&by_key).await.len(), broker.take(&by_header).await.len()), (1, 1));
}
