//! A stream of JetStream as the target.

use outhaul_services::{Kind, Server};

use crate::support::Relay;
use crate::under_fire::{Fire, OPTIONS, judge, survive};

async fn arrived(server: &Server) -> Vec<(String, String)> {
    let client = async_nats::connect(server.address().to_string()).await.unwrap();
    let context = async_nats::jetstream::new(client);
    let mut stream = context.get_stream("ORDERS").await.unwrap();
    let state = stream.info().await.unwrap().state.clone();
    let mut all = Vec::new();
    for sequence in state.first_sequence..=state.last_sequence {
        let message = stream.get_raw_message(sequence).await.unwrap();
        let header = |name: &str| message.headers.get(name).unwrap().as_str().to_owned();
        all.push((header("ce-partitionkey"), header("ce-id")));
    }
    all
}

#[test]
fn events_reach_a_stream_in_order_while_the_server_is_killed() {
    let fire = Fire::of_the_tier();
    let mut server = Server::builder(Kind::Nats).start().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = async_nats::connect(server.address().to_string()).await.unwrap();
        let config = async_nats::jetstream::stream::Config {
            name: "ORDERS".to_owned(),
            subjects: vec!["orders.>".to_owned()],
            ..Default::default()
        };
        async_nats::jetstream::new(client).create_stream(config).await.unwrap();
    });
    let dir = tempfile::tempdir().unwrap();
    let to = format!("t={}/orders.{{pid}}?outhaul.stream=ORDERS&{OPTIONS}", server.url());
    let relay = Relay::start(dir.path(), &["--to", &to]);
    survive(&relay, "t", &mut server, fire);
    relay.stop().ended_with(0);
    judge(&runtime.block_on(arrived(&server)), fire);
}
