//! Events through the relay into a broker that is killed again and again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::support::{Relay, event, until};

/// So that the relay notices and tries again at once.
pub(crate) const OPTIONS: &str = "outhaul.backoff=20ms&outhaul.backoff_max=200ms&outhaul.trial_backoff=20ms\
                                  &outhaul.trial_backoff_max=100ms&outhaul.timeout=5s&outhaul.connect_timeout=1s";

/// Events in one request.
const POST: usize = 20;

pub(crate) struct Storm {
    pub(crate) events: usize,
    pub(crate) kills: usize,
}

impl Storm {
    const PIDS: usize = 40;

    /// All of it in `cargo xtask test all`.
    pub(crate) fn new() -> Self {
        match std::env::var_os("OUTHAUL_TEST_SCALE") {
            Some(_) => Self { events: 2_000, kills: 5 },
            None => Self { events: 200, kills: 1 },
        }
    }

    /// Posts everything for the target `broker`, while `kill` and `start` do so to its server, and waits until all is
    /// delivered and health has told the truth.
    pub(crate) fn blow(&self, dir: &Path, to: &str, mut kill: impl FnMut(), mut start: impl FnMut()) {
        let mut random = fastrand::Rng::new();
        println!("seed {}", random.get_seed());
        let relay = Relay::start(dir, &["--to", &format!("broker={to}")]);
        let is = |key: &str, value: &str| {
            until(value, || (relay.target("broker")[key] == value).then_some(()));
        };
        let mut posted = 0;
        let mut post = |until: usize| {
            while posted < until {
                let next = (posted + POST).min(until);
                let lines: String =
                    (posted..next).map(|i| event(&i.to_string(), &format!("p{}", i % Self::PIDS))).collect();
                assert_eq!(relay.post("application/x-ndjson", lines).status, 202);
                posted = next;
            }
        };
        for round in 1..=self.kills {
            let part = self.events * round / (self.kills + 1);
            post(part - POST);
            // bounded: so that the kill comes at any point of a batch.
            thread::sleep(Duration::from_millis(random.u64(0..40)));
            kill();
            post(part);
            is("state", "held");
            is("health", "offline");
            start();
            is("health", "online");
        }
        post(self.events);
        until("the deliveries", || (relay.target("broker")["waiting"] == 0).then_some(()));
        let target = relay.target("broker");
        assert_eq!((&target["failed"], &target["health"]), (&0.into(), &"online".into()), "{target}");
        relay.stop().ended_with(0).has("nothing waits");
    }

    /// Nothing is lost, and the first arrivals of each pid are in order.
    pub(crate) fn judge(&self, arrived: &[(usize, String)]) {
        let (mut seen, mut last) = (BTreeSet::new(), BTreeMap::new());
        for (id, pid) in arrived {
            if seen.insert(*id) {
                let before = last.insert(pid, *id);
                assert!(before < Some(*id), "{pid}: {id} arrived behind {before:?}");
            }
        }
        println!("{} arrivals of {} events", arrived.len(), self.events);
        assert!(seen.iter().copied().eq(0..self.events), "{} of {} arrived", seen.len(), self.events);
    }
}
