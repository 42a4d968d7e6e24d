//! Events through the relay into a redis-server that is killed again and again.

use std::cell::RefCell;
use std::collections::HashMap;

use outhaul_services::{Kind, Server};

use crate::brokers::{OPTIONS, Storm};

#[test]
fn redis_gets_everything_in_order_though_it_is_killed() {
    let storm = Storm::new();
    let server = RefCell::new(Server::builder(Kind::Redis).start().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let to = format!("{}/0?outhaul.stream=events&{OPTIONS}", server.borrow().url());
    storm.blow(dir.path(), &to, || server.borrow_mut().kill(), || server.borrow_mut().start().unwrap());
    storm.judge(&stored(&server.borrow()));
}

/// The ids and pids of the stream's entries.
fn stored(server: &Server) -> Vec<(usize, String)> {
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    let all = redis::cmd("XRANGE").arg("events").arg("-").arg("+").query(&mut connection);
    let all: Vec<(String, HashMap<String, String>)> = all.unwrap();
    all.into_iter()
        .map(|(_, fields)| (fields["id"].parse().unwrap(), fields["partitionkey"].clone()))
        .collect()
}
