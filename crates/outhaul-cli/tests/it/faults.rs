//! Receivers that fail: who waits, who does not, and what is lost (nothing).

use std::path::Path;
use std::time::{Duration, Instant};

use crate::receiver::{Act, Receiver};
use crate::support::{Relay, event, until, values};

const FAST: &str = "outhaul.backoff=50ms&outhaul.backoff_max=200ms&outhaul.trial_backoff=50ms\
                    &outhaul.trial_backoff_max=200ms&outhaul.timeout=2s";

fn events(from: u32, to: u32) -> String {
    (from..=to).map(|n| event(&n.to_string(), &(n % 5).to_string())).collect()
}

#[test]
fn a_receiver_that_is_down_loses_nothing_and_is_resumed_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::new(|_| Act::Status(200));
    let (address, uri) = (receiver.address, receiver.uri(FAST));
    drop(receiver);
    let to = format!("hook={uri}");
    let relay = Relay::start(dir.path(), &["--to", &to]);
    assert_eq!(relay.post("application/x-ndjson", events(1, 100)).status, 202);
    until("the hold", || (relay.target("hook")["state"] == "held").then_some(()));
    let target = relay.target("hook");
    assert_eq!((&target["waiting"], &target["failed"]), (&100.into(), &0.into()));

    let receiver = Receiver::at(address, |_| Act::Status(200));
    let start = Instant::now();
    until("the first arrival", || (!receiver.arrivals().is_empty()).then_some(()));
    assert!(start.elapsed() < Duration::from_secs(5), "the trial backoff is 200 ms at most");
    until("deliveries", || (relay.target("hook")["delivered"] == 100).then_some(()));
    assert_eq!(relay.target("hook")["failed"], 0);
    in_order(&receiver);
    relay.stop().ended_with(0);
    assert!(!dir.path().join("data/failed").exists());
}

fn in_order(receiver: &Receiver) {
    let mut last = std::collections::BTreeMap::new();
    for arrival in receiver.arrivals() {
        let n: u32 = arrival.id().parse().unwrap();
        assert_eq!(arrival.body, format!("{{\"id\":\"{n}\"}}").into_bytes());
        let before = last.insert(arrival.header("ce-partitionkey").to_owned(), n);
        assert!(before.is_none_or(|before| before < n), "{n} came after {before:?}");
    }
}

#[test]
fn a_pid_that_is_refused_for_now_delays_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::new(|arrival| match arrival.header("ce-partitionkey") {
        "0" => Act::Status(503),
        _ => Act::Status(200),
    });
    let to = format!("hook={}", receiver.uri(FAST));
    let relay = Relay::start(dir.path(), &["--to", &to]);
    let start = Instant::now();
    relay.post("application/x-ndjson", events(1, 200));
    until("the others", || (relay.target("hook")["delivered"] == 160).then_some(()));
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert_eq!(relay.target("hook")["waiting"], 40);
    let stuck: std::collections::BTreeSet<_> = receiver
        .arrivals()
        .iter()
        .filter(|arrival| arrival.header("ce-partitionkey") == "0")
        .map(|arrival| arrival.id().to_owned())
        .collect();
    assert_eq!(stuck.len(), 1, "only the first of the pid was tried: {stuck:?}");
    receiver.rule(|_| Act::Status(200));
    until("the rest", || (relay.target("hook")["delivered"] == 200).then_some(()));
    relay.stop().ended_with(0);
}

#[test]
fn one_target_that_is_down_does_not_slow_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(dir.path(), &["--to", "down=http://127.0.0.1:1/", "--to", "up=file:out"]);
    relay.post("application/x-ndjson", events(1, 5_000));
    let start = Instant::now();
    until("the other target", || (relay.target("up")["delivered"] == 5_000).then_some(()));
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert_eq!(relay.target("down")["waiting"], 5_000);
    assert_eq!(values(&dir.path().join("out")).len(), 5_000);
    relay.stop().ended_with(0);
}

#[test]
fn an_event_that_is_refused_for_good_is_in_the_failed_store_with_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    let receiver =
        Receiver::new(|arrival| if arrival.id() == "3" { Act::Status(400) } else { Act::Status(200) });
    let to = format!("hook={}", receiver.uri(FAST));
    let relay = Relay::start(dir.path(), &["--to", &to]);
    relay.post("application/x-ndjson", events(1, 20));
    until("the end", || (relay.target("hook")["waiting"] == 0).then_some(()));
    assert_eq!(relay.target("hook")["failed"], 1);
    relay.stop().ended_with(0);
    let mut command = crate::support::program();
    command.args(["failed", "ls", "--data", "data", "--json"]).current_dir(dir.path());
    let listed: serde_json::Value =
        serde_json::from_str(&crate::support::Running::start(&mut command).end().stdout).unwrap();
    assert_eq!((&listed[0]["id"], &listed[0]["rule"]), (&"3".into(), &"rejected".into()));
    assert!(listed[0]["detail"].as_str().unwrap().contains("400"), "{listed}");
}

/// A file system of its own, as a test can have it: a directory that cannot be written.
fn read_only(dir: &Path) -> bool {
    let path = dir.join("ro");
    std::fs::create_dir(&path).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o500)).unwrap();
    // Root writes everywhere.
    std::fs::write(path.join("probe"), "").is_err()
}

#[test]
fn a_directory_that_cannot_be_written_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = if read_only(dir.path()) { "ro/data" } else { "/proc/data" };
    let ended = crate::support::pipe(dir.path(), &["--to", "file:out", "--data", path], "1\n");
    ended.ended_with(1).has(path);
    // /dev/full takes no byte, whoever writes; a full disk is in the store's own tests.
    let ended = crate::support::pipe(dir.path(), &["--to", "file:/dev/full", "--timeout", "300ms"], "1\n");
    ended.ended_with(4);
    assert_eq!(ended.summary().waiting, 1);
}
