//! A stream of JetStream as the target.

use std::cell::RefCell;

use outhaul_services::{Kind, Server};

use crate::brokers::{OPTIONS, Storm};

/// The ids and pids of what is in the stream.
async fn stored(server: &Server) -> Vec<(usize, String)> {
    let client = async_nats::connect(server.address().to_string()).await.unwrap();
    let context = async_nats::jetstream::new(client);
    let mut stream = context.get_stream("ORDERS").await.unwrap();
    let state = stream.info().await.unwrap().state.clone();
    let mut all = Vec::new();
    for sequence in state.first_sequence..=state.last_sequence {
        let message = stream.get_raw_message(sequence).await.unwrap();
        let header = |name: &str| message.headers.get(name).unwrap().as_str().to_owned();
        all.push((header("ce-id").parse().unwrap(), header("ce-partitionkey")));
    }
    all
}

#[test]
fn nats_gets_everything_in_order_though_it_is_killed() {
    let storm = Storm::new();
    let server = RefCell::new(Server::builder(Kind::Nats).start().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let address = server.borrow().address().to_string();
    runtime.block_on(async {
        let client = async_nats::connect(address).await.unwrap();
        let config = async_nats::jetstream::stream::Config {
            name: "ORDERS".to_owned(),
            subjects: vec!["orders.>".to_owned()],
            ..Default::default()
        };
        async_nats::jetstream::new(client).create_stream(config).await.unwrap();
    });
    let dir = tempfile::tempdir().unwrap();
    let to = format!("{}/orders.{{pid}}?outhaul.stream=ORDERS&{OPTIONS}", server.borrow().url());
    storm.blow(dir.path(), &to, || server.borrow_mut().kill(), || server.borrow_mut().start().unwrap());
    storm.judge(&runtime.block_on(stored(&server.borrow())));
}
