//! `outhaul run`: start, health, signals, stop.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::Value;

use crate::receiver::{Act, Receiver};
use crate::support::{Relay, Running, event, ids, pipe, program, read_reply, request, until, values};

#[test]
fn targets_are_shown_in_one_consistent_picture() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(dir.path(), &["--to", "b=file:out", "--to", "a=http://127.0.0.1:1/"]);
    for n in 0..20 {
        assert_eq!(relay.post("application/json", n.to_string()).status, 202);
        let targets = relay.get("/targets").json();
        let targets = targets["targets"].as_array().unwrap();
        assert_eq!(targets.iter().map(|t| t["name"].as_str().unwrap()).collect::<Vec<_>>(), ["a", "b"]);
        for target in targets {
            let n = |key: &str| target[key].as_u64().unwrap();
            let came = n("recovered") + n("admitted") + n("requeued") + n("imported");
            assert_eq!(came, n("delivered") + n("failed") + n("discarded") + n("waiting"), "{target}");
            assert!(n("in_flight") <= n("waiting"), "{target}");
        }
    }
    let keys = [
        "admitted",
        "bytes",
        "delivered",
        "discarded",
        "draining",
        "failed",
        "failed_discarded_oldest",
        "failed_expired",
        "failed_stored",
        "filled_percent",
        "filled_warning",
        "generation",
        "health",
        "imported",
        "in_flight",
        "kind",
        "last_error",
        "last_success_seconds",
        "name",
        "next_trial_seconds",
        "oldest_age_seconds",
        "reason",
        "recovered",
        "requeued",
        "retried",
        "state",
        "vanished",
        "waiting",
    ];
    let mut found: Vec<_> = relay.target("a").as_object().unwrap().keys().cloned().collect();
    found.sort_unstable();
    assert_eq!(found, keys);
    let a = until("the hold", || Some(relay.target("a")).filter(|target| target["state"] == "held"));
    assert_eq!((&a["kind"], &a["health"], &a["waiting"]), (&"webhook".into(), &"offline".into(), &20.into()));
    let b = until("deliveries", || Some(relay.target("b")).filter(|target| target["delivered"] == 20));
    assert_eq!(
        (&b["kind"], &b["state"], &b["health"]),
        (&"file".into(), &"running".into(), &"online".into())
    );
    assert_eq!(relay.get("/healthz").json()["status"], "live");
    assert_eq!(relay.get("/readyz").json()["status"], "ready");
    relay.stop().ended_with(0).has("a: 20 entries stay in data");
}

#[test]
fn a_stop_says_what_stays_and_the_next_start_delivers_it() {
    for signal in [Signal::INT, Signal::TERM] {
        let dir = tempfile::tempdir().unwrap();
        let receiver = Receiver::new(|_| Act::Status(503));
        let to = format!("hook={}", receiver.uri("outhaul.trial_backoff=20ms&outhaul.backoff=20ms"));
        let relay = Relay::start(dir.path(), &["--to", &to]);
        relay.post("application/x-ndjson", "1\n2\n3\n");
        relay.running.signal(signal);
        relay.running.end().ended_with(0).has("hook: 3 entries stay in data");
        receiver.rule(|_| Act::Status(200));
        let relay = Relay::start(dir.path(), &["--to", &to]);
        until("deliveries", || (relay.target("hook")["delivered"] == 3).then_some(()));
        assert_eq!(relay.target("hook")["recovered"], 3);
        relay.stop().ended_with(0).has("nothing waits");
    }
}

#[test]
fn the_drain_is_bounded_and_a_second_signal_ends_it_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::new(|_| Act::Hang);
    let to = receiver.uri("outhaul.timeout=50s");
    let relay = Relay::start(dir.path(), &["--to", &to, "--drain-timeout", "300ms"]);
    relay.post("application/json", "1");
    until("the attempt", || (!receiver.arrivals().is_empty()).then_some(()));
    let start = std::time::Instant::now();
    relay.stop().ended_with(0).has("1 entry stays");
    assert!(start.elapsed().as_secs() < 10);

    let relay = Relay::start(dir.path(), &["--to", &to]);
    until("the attempt", || (receiver.arrivals().len() >= 2).then_some(()));
    relay.running.signal(Signal::TERM);
    until("the stop", || relay.running.stderr().contains("stopping").then_some(()));
    relay.running.signal(Signal::TERM);
    let start = std::time::Instant::now();
    let ended = relay.running.end();
    ended.ended_with(130).has("ended at once");
    assert!(!ended.stderr.contains("ERROR"), "{}", ended.stderr);
    assert!(start.elapsed().as_secs() < 10);
    receiver.rule(|_| Act::Status(200));
    assert_eq!(pipe(dir.path(), &["--to", &to, "--data", "data"], "").ended_with(0).summary().delivered, 1);
}

#[test]
fn a_request_that_comes_while_it_stops_is_refused_and_one_that_was_admitted_is_answered() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::new(|_| Act::Hang);
    let relay =
        Relay::start(dir.path(), &["--to", &receiver.uri("outhaul.timeout=50s"), "--drain-timeout", "5s"]);
    relay.post("application/json", "1");
    until("the attempt", || (!receiver.arrivals().is_empty()).then_some(()));
    let mut late = TcpStream::connect(relay.address).unwrap();
    let head =
        "POST /events HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n1";
    late.write_all(head.as_bytes()).unwrap();
    // Its head has been read when a later connection is answered.
    assert_eq!(relay.get("/healthz").status, 200);
    relay.running.signal(Signal::TERM);
    until("the stop", || relay.running.stderr().contains("stopping").then_some(()));
    late.write_all(b"2").unwrap();
    let reply = read_reply(&mut late).unwrap();
    reply.problem(503, "stopping");
    assert!(reply.header("retry-after").is_some());
    relay.running.end().ended_with(0).has("1 entry stays");
}

#[test]
fn a_stop_under_load_loses_nothing_that_was_answered_and_repeats_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(dir.path(), &["--to", "file:out"]);
    let address = relay.address;
    let clients: Vec<_> = (0..4)
        .map(|client| {
            std::thread::spawn(move || {
                let mut answered = Vec::new();
                for n in 0.. {
                    let id = format!("{client}-{n}");
                    let body = event(&id, &client.to_string());
                    let headers = [("content-type", "application/json")];
                    match request(address, "POST", "/events", &headers, body.as_bytes()) {
                        Ok(reply) if reply.status == 202 => answered.push(id),
                        _ => break,
                    }
                }
                answered
            })
        })
        .collect();
    until("some deliveries", || (values(&dir.path().join("out")).len() >= 50).then_some(()));
    relay.stop().ended_with(0);
    let answered: Vec<String> = clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
    pipe(dir.path(), &["--to", "file:out", "--data", "data"], "").ended_with(0);
    let out = values(&dir.path().join("out"));
    let mut got = ids(&out);
    got.sort_unstable();
    assert!(got.windows(2).all(|pair| pair[0] != pair[1]), "a clean stop repeats nothing");
    let lost: Vec<_> = answered.iter().filter(|id| got.binary_search(&id.as_str()).is_err()).collect();
    assert!(lost.is_empty(), "{lost:?}");
}

#[test]
fn a_hangup_opens_files_anew_and_ends_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(dir.path(), &["--to", "file:out"]);
    let (out, old) = (dir.path().join("out"), dir.path().join("out.1"));
    relay.post("application/json", "1");
    until("a delivery", || (values(&out).len() == 1).then_some(()));
    std::process::Command::new("mv").args([&out, &old]).status().unwrap();
    relay.running.signal(Signal::HUP);
    until("the reload", || relay.running.stderr().contains("reloaded").then_some(()));
    relay.post("application/json", "2");
    until("a delivery", || (values(&out).len() == 1).then_some(()));
    assert_eq!(values(&old).len(), 1);
    relay.stop().ended_with(0);
}

#[test]
fn a_second_relay_on_the_same_data_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(dir.path(), &["--to", "file:out"]);
    let address = relay.address.to_string();
    let run = |args: &[&str]| {
        let mut command = program();
        Running::start(command.arg("run").args(args).current_dir(dir.path()).stdin(Stdio::null())).end()
    };
    // The directory is what is told, although the address is taken too.
    run(&["--to", "file:out", "--data", "data", "--listen", &address])
        .ended_with(1)
        .has("in use by another process");
    run(&["--to", "file:out", "--data", "other", "--listen", &address]).ended_with(1).has("cannot listen on");
    assert_eq!(relay.post("application/json", "1").status, 202);
    relay.stop().ended_with(0);
    // What was refused left its own directory usable.
    pipe(dir.path(), &["--to", "file:out", "--data", "other"], "1\n").ended_with(0);
}

#[test]
fn an_address_that_others_reach_is_opened_on_a_word() {
    let dir = tempfile::tempdir().unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut command = program();
    let listen = format!("0.0.0.0:{free}");
    command.args([
        "run",
        "--data",
        "d",
        "--to",
        "file:out",
        "--listen",
        &listen,
        "--no-token",
        "--admin",
        "off",
    ]);
    let running = Running::start(command.current_dir(dir.path()).stdin(Stdio::null()));
    until("the start", || running.stderr().contains(&format!("listening on http://{listen}")).then_some(()));
    running.signal(Signal::TERM);
    running.end().ended_with(0);
}

#[test]
fn orphans_are_shown_and_wait() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(dir.path(), &["--to", "old=http://127.0.0.1:1/"]);
    relay.post("application/json", event("1", "p"));
    relay.stop().ended_with(0);
    let relay = Relay::start(dir.path(), &["--to", "file:out"]);
    let orphan: Value = relay.target("old");
    assert_eq!((&orphan["state"], &orphan["waiting"]), (&"orphan".into(), &1.into()));
    relay.stop().ended_with(0).has("old: 1 entry stays");
    let relay = Relay::start(dir.path(), &["--to", "old=file:out", "--repoint", "old"]);
    until("the delivery", || (values(&dir.path().join("out")).len() == 1).then_some(()));
    relay.stop().ended_with(0);
}
