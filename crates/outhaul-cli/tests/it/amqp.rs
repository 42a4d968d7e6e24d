//! Events through the relay into a RabbitMQ that is killed again and again.

use std::cell::RefCell;

use lapin::options::{BasicGetOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Connection, ConnectionProperties};
use outhaul_services::{Kind, Server};

use crate::brokers::{OPTIONS, Storm};

#[test]
fn amqp_gets_everything_in_order_though_it_is_killed() {
    let storm = Storm::new();
    let server = RefCell::new(Server::builder(Kind::Amqp).start().unwrap());
    let url = server.borrow().url();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    // RabbitMQ writes down later that there is a queue: one that is killed soon after may have forgotten it, with all that it
    // held. A stop in order writes it.
    runtime.block_on(declare(&url));
    server.borrow_mut().restart().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let to = format!("{url}/%2F?outhaul.routing_key=events&outhaul.declare=queue&{OPTIONS}");
    storm.blow(dir.path(), &to, || server.borrow_mut().kill(), || server.borrow_mut().start().unwrap());
    storm.judge(&runtime.block_on(stored(&url)));
}

async fn declare(url: &str) {
    let connection =
        Connection::connect(&format!("{url}/%2F"), ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare("events".into(), options, FieldTable::default()).await.unwrap();
}

/// The ids and pids of what is in the queue.
async fn stored(url: &str) -> Vec<(usize, String)> {
    let connection =
        Connection::connect(&format!("{url}/%2F"), ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let mut all = Vec::new();
    while let Some(message) =
        channel.basic_get("events".into(), BasicGetOptions { no_ack: true }).await.unwrap()
    {
        let properties = &message.delivery.properties;
        all.push((text(properties, "id").parse().unwrap(), text(properties, "partitionkey")));
    }
    all
}

fn text(properties: &BasicProperties, name: &str) -> String {
    match properties.headers().as_ref().unwrap().inner().get(&*format!("cloudEvents_{name}")) {
        Some(AMQPValue::LongString(text)) => text.to_string(),
        other => panic!("{name} is {other:?}"),
    }
}
