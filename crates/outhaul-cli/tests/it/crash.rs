//! The promise as a whole: a relay that is killed again and again, in front of a receiver that fails a third of its
//! requests, loses nothing, keeps the order of each pid, and repeats under the same id.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::receiver::{Act, Arrival, Receiver};
use crate::support::{Relay, event, pipe, program, request, start_pipe, until};

const CLIENTS: usize = 8;
const PIDS_PER_CLIENT: usize = 3;
const ROUNDS: u64 = 20;
const OPTIONS: &str = "outhaul.backoff=10ms&outhaul.backoff_max=100ms&outhaul.trial_backoff=10ms\
                       &outhaul.trial_backoff_max=50ms&outhaul.timeout=200ms&outhaul.connect_timeout=200ms";

/// What the clients share. There is no address while the relay is down.
#[derive(Default)]
struct World {
    address: Mutex<Option<SocketAddr>>,
    answered: Mutex<BTreeSet<String>>,
    over: AtomicBool,
}

#[test]
fn crash_every_answered_event_arrives_in_order_and_repeats_keep_their_id() {
    let seed = variable("OUTHAUL_TEST_SEED")
        .unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64);
    let rounds = ROUNDS * variable("OUTHAUL_TEST_SCALE").unwrap_or(1).max(1);
    println!("OUTHAUL_TEST_SEED={seed} rounds={rounds}");
    let mut random = fastrand::Rng::with_seed(seed);

    let dir = tempfile::tempdir().unwrap();
    let receiver = failing_receiver(random.fork());
    let to = format!("hook={}", receiver.uri(OPTIONS));
    let world = Arc::new(World::default());
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let (world, random) = (Arc::clone(&world), random.fork());
            thread::spawn(move || post(&world, client, random))
        })
        .collect();

    for _ in 0..rounds {
        let relay = start(dir.path(), &to, &world);
        // bounded: a second and a half
        thread::sleep(Duration::from_millis(random.u64(20..1500)));
        *world.address.lock().unwrap() = None;
        relay.running.kill();
    }
    let relay = start(dir.path(), &to, &world);
    world.over.store(true, Ordering::SeqCst);
    let sent: usize = clients.into_iter().map(|client| client.join().unwrap()).sum();
    receiver.rule(|_| Act::Status(200));
    until("the deliveries", || (relay.target("hook")["waiting"] == 0).then_some(()));
    relay.stop().has("nothing waits");
    // What was with its receiver at three of the kills is taken for what kills the process, and shown to a person.
    let mut failed = program();
    failed.args(["failed", "ls", "--json", "--data", "data"]).current_dir(dir.path());
    let failed: serde_json::Value = serde_json::from_slice(&failed.output().unwrap().stdout).unwrap();
    let failed = failed.as_array().unwrap();
    assert!(failed.iter().all(|entry| entry["class"] == "crash_suspect"), "{failed:?}");
    assert!(failed.len() as u64 <= rounds / 3, "{failed:?}");

    let answered = world.answered.lock().unwrap().clone();
    println!("sent={sent} answered={} arrivals={}", answered.len(), receiver.arrivals().len());
    assert!(answered.len() as u64 >= rounds * 5, "only {} events were answered", answered.len());
    judge(&receiver.arrivals(), &answered);
}

#[test]
fn crash_every_line_of_a_piped_input_arrives_in_order() {
    let seed = variable("OUTHAUL_TEST_SEED")
        .unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64);
    let rounds = ROUNDS / 4 * variable("OUTHAUL_TEST_SCALE").unwrap_or(1).max(1);
    println!("OUTHAUL_TEST_SEED={seed} rounds={rounds}");
    let mut random = fastrand::Rng::with_seed(seed);
    let dir = tempfile::tempdir().unwrap();
    let receiver = failing_receiver(random.fork());
    let uri = receiver.uri(OPTIONS);
    let args = ["--to", &uri, "--data", "data"];
    let mut next = [0_u64; 20];
    let ids: Vec<String> = (0..rounds * 100)
        .map(|_| {
            let pid = random.usize(0..next.len());
            next[pid] += 1;
            format!("{pid}-{}", next[pid] - 1)
        })
        .collect();
    let line = |id: &String| event(id, id.split('-').next().unwrap());
    for round in 1..=rounds {
        let mut running = start_pipe(dir.path(), &args);
        let mut stdin = running.child.stdin.take().unwrap();
        // The input grows, so that there is something to admit in each round; its end stays open.
        let part: String = ids.iter().take(round as usize * 100).map(line).collect();
        let writer = thread::spawn(move || stdin.write_all(part.as_bytes()).map(|()| stdin));
        // bounded: less than a second
        thread::sleep(Duration::from_millis(random.u64(5..900)));
        assert!(running.child.try_wait().unwrap().is_none(), "{}", running.stderr());
        running.kill();
        writer.join().unwrap().map(drop).unwrap_or_default();
    }
    receiver.rule(|_| Act::Status(200));
    let input: String = ids.iter().map(line).collect();
    assert_eq!(pipe(dir.path(), &args, input).ended_with(0).summary().waiting, 0);
    println!("lines={} arrivals={}", ids.len(), receiver.arrivals().len());
    judge(&receiver.arrivals(), &ids.into_iter().collect());
}

fn variable(name: &str) -> Option<u64> {
    std::env::vars().find(|(key, _)| key == name).map(|(_, value)| value.parse().unwrap())
}

fn start(dir: &Path, to: &str, world: &World) -> Relay {
    let relay = Relay::start(dir, &["--to", to, "--drain-timeout", "2s"]);
    *world.address.lock().unwrap() = Some(relay.address);
    relay
}

fn failing_receiver(random: fastrand::Rng) -> Receiver {
    let random = Mutex::new(random);
    Receiver::new(move |_| match random.lock().unwrap().u8(0..9) {
        0 => Act::Status(503),
        1 => Act::Hang,
        2 => Act::Reset,
        _ => Act::Status(200),
    })
}

/// Posts events of its own pids, each until it is answered with 202: only then comes the next of that pid.
fn post(world: &World, client: usize, mut random: fastrand::Rng) -> usize {
    let mut next = [0_u64; PIDS_PER_CLIENT];
    let mut sent = 0;
    while !world.over.load(Ordering::SeqCst) {
        let pid = random.usize(0..PIDS_PER_CLIENT);
        let (name, id) = (format!("{client}-{pid}"), format!("{client}-{pid}-{}", next[pid]));
        let body = event(&id, &name);
        loop {
            let address = *world.address.lock().unwrap();
            let headers = [("content-type", "application/cloudevents+json")];
            let reply = address
                .map(|address| request(address, "POST", "/events", &headers, body.trim_end().as_bytes()));
            sent += 1;
            if let Some(Ok(reply)) = reply {
                assert!(matches!(reply.status, 202 | 503), "{reply:?}");
                if reply.status == 202 {
                    world.answered.lock().unwrap().insert(id);
                    break;
                }
            }
            // bounded: the relay is started again, or the test is over
            thread::sleep(Duration::from_millis(10));
        }
        next[pid] += 1;
        // bounded: it paces the client
        thread::sleep(Duration::from_millis(random.u64(5..40)));
    }
    sent
}

fn judge(arrivals: &[Arrival], answered: &BTreeSet<String>) {
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    let mut ids: BTreeMap<&str, &str> = BTreeMap::new();
    let (mut last_seen, mut last_taken) = (BTreeMap::new(), BTreeMap::new());
    let (mut seen, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for arrival in arrivals {
        let (id, webhook_id) = (arrival.id(), arrival.header("webhook-id"));
        assert_eq!(webhook_id.len(), 36, "{webhook_id}");
        assert_eq!(*names.entry(id).or_insert(webhook_id), webhook_id, "{id} came under two ids");
        assert_eq!(*ids.entry(webhook_id).or_insert(id), id, "two events came as {webhook_id}");
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
    assert!(lost.is_empty(), "answered with 202 and lost: {lost:?}");
}

/// The first arrival of an event comes right behind that of its predecessor.
fn follows(pid: &str, number: u64, before: Option<u64>) {
    let expected = before.map_or(0, |before| before + 1);
    assert_eq!(number, expected, "the order of {pid} is broken");
}
