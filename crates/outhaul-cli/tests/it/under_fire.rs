//! A relay whose target's server is killed and started again while events come in.

use std::collections::{BTreeMap, HashSet};
use std::thread;
use std::time::Duration;

use outhaul_services::Server;

use crate::support::{Relay, event, request, until};

const PIDS: usize = 40;

/// The options with which a target is back soon.
pub(crate) const OPTIONS: &str = "outhaul.backoff=20ms&outhaul.backoff_max=200ms&outhaul.trial_backoff=20ms\
                                  &outhaul.trial_backoff_max=200ms&outhaul.timeout=2s&outhaul.connect_timeout=1s";

/// What goes on at once: little in the gate, all that is promised in `test all`.
#[derive(Clone, Copy)]
pub(crate) struct Fire {
    pub(crate) events: usize,
    restarts: u32,
}

impl Fire {
    pub(crate) fn of_the_tier() -> Self {
        match std::env::var_os("OUTHAUL_TEST_SCALE") {
            None => Self { events: 300, restarts: 1 },
            Some(_) => Self { events: 2_000, restarts: 5 },
        }
    }
}

/// Posts events while the server is killed and started again, and returns when nothing waits: nothing failed, and
/// health told the truth while the server was away and after it came back.
pub(crate) fn survive(relay: &Relay, target: &str, server: &mut Server, fire: Fire) {
    let address = relay.address;
    thread::scope(|scope| {
        let posting = scope.spawn(move || {
            for i in 0..fire.events {
                let body = event(&i.to_string(), &format!("p{}", i % PIDS));
                let headers = [("content-type", "application/cloudevents+json")];
                let reply = request(address, "POST", "/events", &headers, body.as_bytes()).unwrap();
                assert_eq!(reply.status, 202, "{}", String::from_utf8_lossy(&reply.body));
            }
        });
        let health = |wanted: &str| {
            until(&format!("health {wanted}"), || (relay.target(target)["health"] == wanted).then_some(()));
        };
        for _ in 0..fire.restarts {
            // bounded: five times at most.
            thread::sleep(Duration::from_millis(fastrand::u64(50..400)));
            server.kill();
            health("offline");
            server.start().unwrap();
            health("online");
        }
        posting.join().unwrap();
    });
    until("the deliveries", || (relay.target(target)["waiting"] == 0).then_some(()));
    assert_eq!(relay.target(target)["failed"], 0);
}

/// Everything arrived, and first arrivals of each pid are in the order in which they were posted.
pub(crate) fn judge(arrived: &[(String, String)], fire: Fire) {
    let (mut seen, mut last) = (HashSet::new(), BTreeMap::new());
    for (pid, id) in arrived {
        let number: usize = id.parse().unwrap();
        if seen.insert(number) {
            let before = last.insert(pid, number);
            assert!(before < Some(number), "{pid}: {number} arrived behind {before:?}");
        }
    }
    let missing: Vec<usize> = (0..fire.events).filter(|number| !seen.contains(number)).collect();
    assert!(missing.is_empty(), "lost: {missing:?}");
}
