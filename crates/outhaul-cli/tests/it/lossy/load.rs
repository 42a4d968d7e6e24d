//! What is sent to a relay whose disk fails, and whether the right things arrived.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fastrand::Rng;
use serde_json::Value;

use crate::receiver::{Act, Arrival, Receiver};
use crate::support::request;

const CLIENTS: usize = 6;
const PIDS_PER_CLIENT: usize = 3;
pub(super) const OPTIONS: &str = "outhaul.backoff=10ms&outhaul.backoff_max=50ms&outhaul.trial_backoff=10ms\
                                  &outhaul.trial_backoff_max=50ms&outhaul.timeout=2s&outhaul.connect_timeout=2s";

/// The data of an event, which its id determines.
fn payload(id: &str) -> String {
    /// Letters to cut from: making them one by one takes longer than all else here.
    static LETTERS: LazyLock<String> = LazyLock::new(|| {
        let mut random = Rng::with_seed(1);
        (0..200_000).map(|_| random.alphanumeric()).collect()
    });
    let seed = id.bytes().fold(17, |sum: u64, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    let random = &mut Rng::with_seed(seed);
    let length = match random.u8(0..40) {
        0 => random.usize(20_000..100_000),
        _ => random.usize(1..3_000),
    };
    let from = random.usize(0..100_000);
    format!("{{\"id\":\"{id}\",\"pad\":\"{}\"}}", &LETTERS[from..from + length])
}

/// An event, as a line. Its pid is what stands before the last dash of its id.
pub(super) fn line(id: &str) -> String {
    let (pid, _) = id.rsplit_once('-').unwrap();
    let data = payload(id);
    format!(
        "{{\"specversion\":\"1.0\",\"id\":\"{id}\",\"source\":\"/test\",\"type\":\"t\",\"partitionkey\":\"{pid}\",\
         \"data\":{data}}}\n"
    )
}

/// A receiver that fails now and then.
pub(super) fn receiver(random: Rng) -> Receiver {
    let random = Mutex::new(random);
    Receiver::new(move |_| match random.lock().unwrap().u8(0..60) {
        0 => Act::Status(503),
        1 => Act::Reset,
        _ => Act::Status(200),
    })
}

/// Clients that post until they are stopped, each event until it is answered with 202, and its successors then.
pub(super) struct Load {
    shared: Arc<World>,
    clients: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct World {
    /// None while the relay is down.
    address: Mutex<Option<SocketAddr>>,
    answered: Mutex<BTreeSet<String>>,
    /// Refusals by status and reason.
    refused: Mutex<BTreeMap<(u16, String), u64>>,
    over: AtomicBool,
}

impl Load {
    pub(super) fn start(random: &mut Rng) -> Self {
        let shared = Arc::new(World::default());
        let client = |client| {
            let (world, random) = (Arc::clone(&shared), random.fork());
            thread::spawn(move || post(&world, client, random))
        };
        let clients = (0..CLIENTS).map(client).collect();
        Self { shared, clients }
    }

    pub(super) fn at(&self, address: Option<SocketAddr>) {
        *self.shared.address.lock().unwrap() = address;
    }

    pub(super) fn answered(&self) -> usize {
        self.shared.answered.lock().unwrap().len()
    }

    pub(super) fn refused(&self) -> BTreeMap<(u16, String), u64> {
        self.shared.refused.lock().unwrap().clone()
    }

    /// Stops the clients and returns what was answered with 202.
    pub(super) fn stop(mut self) -> BTreeSet<String> {
        self.shared.over.store(true, Ordering::SeqCst);
        for client in std::mem::take(&mut self.clients) {
            client.join().unwrap();
        }
        self.shared.answered.lock().unwrap().clone()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
    }
}

fn post(world: &World, client: usize, mut random: Rng) {
    let mut next = [0_u64; PIDS_PER_CLIENT];
    while !world.over.load(Ordering::SeqCst) {
        let ids: Vec<String> = (0..random.usize(1..12))
            .map(|_| {
                let pid = random.usize(0..PIDS_PER_CLIENT);
                next[pid] += 1;
                format!("{client}.{pid}-{}", next[pid])
            })
            .collect();
        let body: String = ids.iter().map(|id| line(id)).collect();
        loop {
            let address = *world.address.lock().unwrap();
            let headers = [("content-type", "application/x-ndjson")];
            let reply = address
                .and_then(|address| request(address, "POST", "/events", &headers, body.as_bytes()).ok());
            match reply {
                Some(reply) if reply.status == 202 => {
                    world.answered.lock().unwrap().extend(ids);
                    break;
                }
                Some(reply) => {
                    let problem = reply.json();
                    let reason = problem["reason"].as_str().unwrap_or_default().to_owned();
                    assert!(matches!(reply.status, 500 | 503 | 507) && !reason.is_empty(), "{problem}");
                    let accepted = problem["accepted"].as_array().into_iter().flatten();
                    let accepted = accepted.map(|event| event["id"].as_str().unwrap().to_owned());
                    world.answered.lock().unwrap().extend(accepted);
                    *world.refused.lock().unwrap().entry((reply.status, reason)).or_default() += 1;
                }
                None => {}
            }
            if world.over.load(Ordering::SeqCst) {
                return;
            }
            // bounded: the relay is started again, or the test is over
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Whether each answered event arrived, nothing else than what was sent did, and each pid kept its order.
pub(super) fn judge(arrivals: &[Arrival], answered: &BTreeSet<String>) {
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    let (mut last_seen, mut last_taken) = (BTreeMap::new(), BTreeMap::new());
    let (mut seen, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for arrival in arrivals {
        let (id, webhook_id) = (arrival.id(), arrival.header("webhook-id"));
        assert_eq!(*names.entry(id).or_insert(webhook_id), webhook_id, "{id} came under two ids");
        assert!(arrival.body == payload(id).into_bytes(), "{id} came with other data");
        let (pid, number) = id.rsplit_once('-').unwrap();
        let number: u64 = number.parse().unwrap();
        assert_eq!(arrival.header("ce-partitionkey"), pid);
        if seen.insert(id) {
            follows(pid, number, last_seen.insert(pid, number));
        }
        if arrival.act == Act::Status(200) && taken.insert(id) {
            follows(pid, number, last_taken.insert(pid, number));
        }
    }
    let lost: Vec<_> = answered.iter().filter(|id| !taken.contains(id.as_str())).collect();
    assert!(lost.is_empty(), "{} answered with 202 and lost: {lost:?}", lost.len());
}

/// The first arrival of an event comes right behind that of its predecessor.
fn follows(pid: &str, number: u64, before: Option<u64>) {
    assert_eq!(number, before.unwrap_or(0) + 1, "the order of {pid} is broken");
}

/// The word in an answer of `/targets`.
pub(super) fn waiting(targets: &Value) -> Option<u64> {
    targets["targets"][0]["waiting"].as_u64()
}
