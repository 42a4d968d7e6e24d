//! Events through the relay into a redis-server that is killed again and again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::thread;
use std::time::Duration;

use outhaul_services::{Kind, Server};

use crate::support::{Relay, event, until};

const OPTIONS: &str = "outhaul.stream=events&outhaul.backoff=20ms&outhaul.backoff_max=200ms\
                       &outhaul.trial_backoff=20ms&outhaul.trial_backoff_max=100ms\
                       &outhaul.timeout=5s&outhaul.connect_timeout=1s";

/// Events, pids, and how often the server is killed: all of it in `cargo xtask test all`.
fn size() -> (usize, usize, usize) {
    match std::env::var_os("OUTHAUL_TEST_SCALE") {
        Some(_) => (2_000, 40, 5),
        None => (300, 40, 1),
    }
}

#[test]
fn redis_gets_everything_in_order_though_it_is_killed() {
    let (events, pids, kills) = size();
    let mut random = fastrand::Rng::new();
    println!("seed {}", random.get_seed());
    let mut server = Server::builder(Kind::Redis).start().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let to = format!("redis=redis://{}/0?{OPTIONS}", server.address());
    let relay = Relay::start(dir.path(), &["--to", &to]);
    let is = |key: &str, value: &str| {
        until(value, || (relay.target("redis")[key] == value).then_some(()));
    };

    let mut posted = 0;
    let mut post = |until: usize| {
        while posted < until {
            let next = (posted + 20).min(until);
            let lines: String =
                (posted..next).map(|i| event(&i.to_string(), &format!("p{}", i % pids))).collect();
            assert_eq!(relay.post("application/x-ndjson", lines).status, 202);
            posted = next;
        }
    };
    for round in 1..=kills {
        let part = events * round / (kills + 1);
        post(part - 20);
        // bounded: so that the kill comes at any point of a batch.
        thread::sleep(Duration::from_millis(random.u64(0..40)));
        server.kill();
        post(part);
        is("state", "held");
        is("health", "offline");
        server.start().unwrap();
        is("health", "online");
    }
    post(events);
    until("the deliveries", || (relay.target("redis")["waiting"] == 0).then_some(()));
    let target = relay.target("redis");
    assert_eq!((&target["failed"], &target["health"]), (&0.into(), &"online".into()), "{target}");
    relay.stop().ended_with(0).has("nothing waits");
    judge(&stored(&server), events);
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

/// Nothing is lost, and the first arrivals of each pid are in order.
fn judge(stored: &[(usize, String)], events: usize) {
    let (mut seen, mut last) = (BTreeSet::new(), BTreeMap::new());
    for (id, pid) in stored {
        if seen.insert(*id) {
            let before = last.insert(pid, *id);
            assert!(before < Some(*id), "{pid}: {id} arrived behind {before:?}");
        }
    }
    println!("{} entries for {events} events", stored.len());
    assert!(seen.iter().copied().eq(0..events), "{} of {events} arrived", seen.len());
}
