//! A disk that is really full: a small file system in memory.

use std::io::Write as _;
use std::thread;

use serde_json::Value;

use crate::mounts::{MountPoint, may_mount};
use crate::receiver::{Act, Receiver};
use crate::support::{Relay, Reply, event, pipe, start_pipe, until};

const DISK_BYTES: u64 = 6 << 20;
/// What other files take of it.
const BALLAST_BYTES: usize = 3 << 20;
/// The limit of a queue is a quarter of its disk, so that a disk is not filled by one; here it shall be.
const OPTIONS: &str = "outhaul.queue_bytes=1GiB&outhaul.backoff=20ms&outhaul.backoff_max=100ms\
                       &outhaul.trial_backoff=20ms&outhaul.trial_backoff_max=100ms&outhaul.timeout=5s";

/// An event of 8 KiB.
fn large(number: u64) -> String {
    let pad = "x".repeat(8 * 1024);
    event(&number.to_string(), &(number % 5).to_string())
        .replace("\"data\":{", &format!("\"data\":{{\"pad\":\"{pad}\","))
}

fn post(relay: &Relay, number: u64) -> Reply {
    relay.post("application/cloudevents+json", large(number).trim_end())
}

/// Posts until the disk is full, and returns the first number that was refused.
fn fill(relay: &Relay, from: u64) -> u64 {
    for number in from.. {
        let reply = post(relay, number);
        if reply.status != 202 {
            assert!(matches!(reply.status, 503 | 507), "{reply:?}");
            reply.problem(reply.status, "disk_full");
            assert!(reply.header("retry-after").is_some(), "{reply:?}");
            return number;
        }
        assert!(number < from + DISK_BYTES / 8192, "the disk is full by now");
    }
    unreachable!("the numbers do not end")
}

fn ready_again(relay: &Relay, number: u64) {
    let mut told = String::new();
    until("room", || {
        let reply = post(relay, number);
        let body = String::from_utf8_lossy(&reply.body).into_owned();
        if body != told && reply.status != 202 {
            println!("no room for {number}: {body}");
            told = body;
        }
        (reply.status == 202).then_some(())
    });
}

#[test]
fn a_relay_refuses_while_the_disk_is_full_and_goes_on_by_itself() {
    if !may_mount("full::a_relay_refuses_while_the_disk_is_full_and_goes_on_by_itself") {
        return;
    }
    let disk = MountPoint::new();
    disk.tmpfs(DISK_BYTES);
    let ballast = disk.path().join("ballast");
    std::fs::write(&ballast, vec![1; BALLAST_BYTES]).unwrap();
    let receiver = Receiver::new(|_| Act::Status(503));
    let to = format!("hook={}", receiver.uri(OPTIONS));
    let relay = Relay::start(disk.path(), &["--to", &to]);
    let first = fill(&relay, 1);
    assert!(first > 100, "{first} events fill the disk");
    println!("full after {} events", first - 1);

    relay.get("/readyz").problem(503, "disk_full");
    let live = relay.get("/healthz");
    assert_eq!((live.status, &live.json()["reason"]), (200, &"disk_full".into()));

    // Somebody else makes room, which is told before anybody sends something.
    std::fs::remove_file(ballast).unwrap();
    assert_eq!((relay.get("/readyz").status, relay.get("/healthz").json().get("reason")), (200, None));
    ready_again(&relay, first);
    let second = fill(&relay, first + 1);
    assert!(second > first + 100, "{second}");
    println!("full again after {} events", second - 1);

    // Killed and started on a disk that is full, it is up.
    relay.running.kill();
    let relay = Relay::start(disk.path(), &["--to", &to]);
    let waiting = relay.target("hook")["waiting"].as_u64().unwrap();
    assert!(waiting >= second - 1, "{waiting} of {} wait", second - 1);

    // What is delivered makes room.
    receiver.rule(|_| Act::Status(200));
    ready_again(&relay, second);
    for number in second + 1..second + 50 {
        ready_again(&relay, number);
    }
    until("the deliveries", || (relay.target("hook")["waiting"] == 0).then_some(()));
    relay.stop().ended_with(0);
    arrived(&receiver, second + 49);
}

/// All of them, and the first arrivals of each pid in order.
fn arrived(receiver: &Receiver, count: u64) {
    let arrivals = receiver.arrivals();
    let mut taken = std::collections::BTreeSet::new();
    let mut last = [0; 5];
    for arrival in arrivals.iter().filter(|arrival| arrival.act == Act::Status(200)) {
        let number: u64 = arrival.id().parse().unwrap();
        let data: Value = serde_json::from_slice(&arrival.body).unwrap();
        assert_eq!(data["id"], number.to_string());
        if taken.insert(number) {
            let last = &mut last[(number % 5) as usize];
            assert!(*last < number, "{number} came after {last}");
            *last = number;
        }
    }
    let lost: Vec<_> = (1..=count).filter(|number| !taken.contains(number)).collect();
    assert!(lost.is_empty(), "lost: {lost:?}");
}

#[test]
fn a_pipe_that_meets_a_full_disk_loses_no_line() {
    if !may_mount("full::a_pipe_that_meets_a_full_disk_loses_no_line") {
        return;
    }
    let disk = MountPoint::new();
    disk.tmpfs(DISK_BYTES);
    let (ballast, data) = (disk.path().join("ballast"), disk.path().join("data"));
    std::fs::write(&ballast, vec![1; BALLAST_BYTES]).unwrap();
    let cwd = tempfile::tempdir().unwrap();
    let receiver = Receiver::new(|_| Act::Status(503));
    let uri = receiver.uri(OPTIONS);
    let args = ["--to", &uri, "--data", data.to_str().unwrap()];
    // More than there is room for now, and less than there will be.
    let input: String = (1..=500).map(large).collect();
    let mut running = start_pipe(cwd.path(), &args);
    let (mut stdin, feed) = (running.child.stdin.take().unwrap(), input.clone());
    let feeder = thread::spawn(move || stdin.write_all(feed.as_bytes()).unwrap_or_default());
    // It may end, and say so, or wait.
    let ended = until("a full disk", || {
        let ended = running.child.try_wait().unwrap().is_some();
        (ended || running.stderr().contains("waiting for room")).then_some(ended)
    });
    std::fs::remove_file(ballast).unwrap();
    receiver.rule(|_| Act::Status(200));
    let ended = match ended {
        true => {
            let ended = running.end();
            println!("{}", ended.stderr);
            ended.ended_with(1).has("is full; free some space").has("run again");
            pipe(cwd.path(), &args, input)
        }
        false => running.end(),
    };
    feeder.join().unwrap();
    ended.ended_with(0);
    assert_eq!(ended.summary().waiting, 0);
    arrived(&receiver, 500);
}
