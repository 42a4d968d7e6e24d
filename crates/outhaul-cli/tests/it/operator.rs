//! What an operator sees, is told and can rely on, with the real program.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::admin::Admin;
use crate::receiver::{Act, Receiver};
use crate::support::{Ended, Relay, Reply, Running, event, pipe, program, request, until, values};

/// Runs `outhaul failed` on the data directory.
fn failed(dir: &Path, args: &[&str]) -> Ended {
    Running::start(program().arg("failed").args(args).args(["--data", "data"]).current_dir(dir)).end()
}

fn ids(receiver: &Receiver, from: usize) -> Vec<String> {
    receiver.arrivals().iter().skip(from).map(|arrival| arrival.id().to_owned()).collect()
}

#[test]
fn an_entry_that_ends_the_process_again_and_again_is_sent_alone_and_given_up() {
    for engine in ["journal", "spool"] {
        let dir = tempfile::tempdir().unwrap();
        // It kills whoever delivers it: while it hangs, the relay is killed.
        let receiver = Receiver::new(|arrival| match arrival.id() {
            "poison" => Act::Hang,
            _ => Act::Status(200),
        });
        let to = format!("hook={}", receiver.uri("outhaul.timeout=50s"));
        let args = ["--to", &to, "--engine", engine];
        let relay = Relay::start(dir.path(), &args);
        let post = |relay: &Relay, id: &str, pid: &str| {
            assert_eq!(relay.post("application/json", event(id, pid)).status, 202);
        };
        post(&relay, "poison", "p");
        until("the poison", || ids(&receiver, 0).contains(&"poison".to_owned()).then_some(()));
        // The commit of these takes the note of what is in flight along.
        post(&relay, "behind", "p");
        post(&relay, "other", "q");
        relay.running.kill();
        for life in 2..=3 {
            let before = receiver.arrivals().len();
            let relay = Relay::start(dir.path(), &args);
            post(&relay, &format!("new-{life}"), "r");
            until("the suspect", || (receiver.arrivals().len() > before).then_some(()));
            // Nothing else is sent while it may end the process again.
            // bounded: a third of a second, for whatever should not come
            std::thread::sleep(Duration::from_millis(300));
            assert_eq!(ids(&receiver, before), ["poison"], "{engine}, life {life}");
            relay.running.kill();
        }
        let before = receiver.arrivals().len();
        let relay = Relay::start(dir.path(), &args);
        until("the others", || (relay.target("hook")["waiting"] == 0).then_some(()));
        let hook = relay.target("hook");
        assert_eq!((&hook["failed"], &hook["failed_stored"]), (&1.into(), &1.into()), "{hook}");
        let last: BTreeSet<_> = ids(&receiver, before).into_iter().collect();
        assert!(!last.contains("poison"), "{engine}: {last:?}");
        for id in ["behind", "new-2", "new-3"] {
            assert!(last.contains(id), "{engine}: {id} of {last:?}");
        }
        assert!(ids(&receiver, 0).contains(&"other".to_owned()));
        relay.stop().ended_with(0).has("nothing waits");
        let listed = failed(dir.path(), &["ls", "--json"]);
        let listed: Value = serde_json::from_str(&listed.ended_with(0).stdout).unwrap();
        assert_eq!((&listed[0]["rule"], &listed[0]["id"]), (&"crash_suspect".into(), &"poison".into()));
    }
}

#[test]
fn a_discard_that_is_pending_is_carried_out_whatever_ends_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::new(|_| Act::Hang);
    let to = format!("hook={}", receiver.uri("outhaul.timeout=50s"));
    let admin = Admin::start(dir.path(), &["--to", &to]);
    admin.post("unwanted", "p");
    until("the attempt", || (!receiver.arrivals().is_empty()).then_some(()));
    admin.post("wanted", "p");
    let listed = admin.good("GET", "/targets/hook/entries?state=in_flight");
    let uid = listed["entries"][0]["uid"].as_str().unwrap().to_owned();
    let reply = admin.ask("POST", &format!("/entries/{uid}/discard"));
    assert_eq!((reply.status, reply.json()), (202, json!({ "outcome": "pending" })));
    admin.relay.running.kill();
    receiver.rule(|_| Act::Status(200));
    let before = receiver.arrivals().len();
    let admin = Admin::start(dir.path(), &["--to", &to]);
    admin.until_waiting("hook", 0);
    assert_eq!(ids(&receiver, before), ["wanted"]);
    assert_eq!(admin.target("hook")["discarded"], 1);
    admin.relay.stop().ended_with(0).has("the entry is discarded, as was asked for before");
}

#[test]
fn a_requeue_says_how_many_later_events_of_its_pid_were_delivered() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::new(|arrival| match arrival.id().starts_with("bad") {
        true => Act::Status(422),
        false => Act::Status(200),
    });
    let to = format!("hook={}", receiver.uri(""));
    let admin = Admin::start(dir.path(), &["--to", &to]);
    for (id, pid) in [("bad-1", "p"), ("bad-2", "p"), ("2", "p"), ("3", "q"), ("4", "p"), ("bad-3", "r")] {
        admin.post(id, pid);
    }
    until("the deliveries", || {
        let hook = admin.target("hook");
        (hook["waiting"] == 0 && hook["failed"] == 3).then_some(())
    });
    let listed = admin.good("GET", "/targets/hook/entries?state=failed");
    let uid = |index: usize| listed["entries"][index]["uid"].as_str().unwrap().to_owned();
    receiver.rule(|_| Act::Status(200));
    let requeued = admin.good("POST", &format!("/entries/{}/requeue", uid(0)));
    assert_eq!((&requeued["delivered_later"], &requeued["again"]), (&2.into(), &false.into()), "{requeued}");
    let again = admin.good("POST", &format!("/entries/{}/requeue", uid(0)));
    assert_eq!((again.get("delivered_later"), &again["again"]), (None, &true.into()));
    admin.until_waiting("hook", 0);
    admin.relay.stop().ended_with(0);
    // At rest it is still known; the one that was requeued came later as well.
    let done = failed(dir.path(), &["requeue", &uid(1), &uid(2)]);
    let told = &done.ended_with(0).stdout;
    assert!(told.contains("3 later events of its pid came before it"), "{told}");
    assert_eq!(told.matches("of its pid").count(), 1, "{told}");
    let answer = failed(dir.path(), &["requeue", &uid(1), "--json"]);
    let answer: Value = serde_json::from_str(&answer.stdout).unwrap();
    assert_eq!((&answer[0]["again"], answer[0].get("delivered_later")), (&true.into(), None));
}

#[test]
fn a_queue_that_fills_up_is_warned_of_in_the_log_and_shown() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::new(|_| Act::Status(503));
    let options = "outhaul.queue_entries=10&outhaul.trial_backoff=20ms&outhaul.trial_backoff_max=50ms";
    let relay = Relay::start(dir.path(), &["--to", &format!("hook={}", receiver.uri(options))]);
    for id in 0..10 {
        assert_eq!(relay.post("application/json", event(&id.to_string(), "p")).status, 202);
    }
    relay.post("application/json", event("more", "p")).problem(503, "queue_full");
    until("the warning", || (relay.target("hook")["filled_warning"] == 95).then_some(()));
    assert_eq!(relay.target("hook")["filled_percent"], 100);
    receiver.rule(|_| Act::Status(200));
    until("the room", || (relay.target("hook")["filled_warning"] == 0).then_some(()));
    let ended = relay.stop();
    let stderr = &ended.ended_with(0).stderr;
    // Which levels are passed at once is a matter of speed; none is told twice.
    assert!((1..=3).contains(&stderr.matches("the queue fills up").count()), "{stderr}");
    ended.has("the queue fills up").has("the queue has room again").has("level=95");
}

#[test]
fn a_target_that_is_not_enabled_keeps_what_it_gets_and_holds_nobody_up() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::new(|_| Act::Status(200));
    let off = format!("hook={}", receiver.uri("outhaul.enabled=false"));
    let args = ["--to", off.as_str(), "--to", "file:out", "--data", "data"];
    let ended = pipe(dir.path(), &args, event("1", "p") + &event("2", "p"));
    ended.ended_with(4).has("left in data: hook: 2 entries");
    assert_eq!((values(&dir.path().join("out")).len(), receiver.arrivals().len()), (2, 0));
    let relay = Relay::start(dir.path(), &["--to", &off]);
    let hook = relay.target("hook");
    assert_eq!((&hook["state"], &hook["health"]), (&"paused".into(), &"disabled".into()));
    assert_eq!(relay.post("application/json", event("3", "p")).status, 202);
    relay.stop().ended_with(0).has("hook: 3 entries stay");
    assert!(receiver.arrivals().is_empty());
    let on = format!("hook={}", receiver.uri(""));
    pipe(dir.path(), &["--to", &on, "--data", "data"], "").ended_with(0);
    assert_eq!(ids(&receiver, 0), ["1", "2", "3"]);
    let wrong = format!("hook={}", receiver.uri("outhaul.enabled=no"));
    pipe(dir.path(), &["--to", &wrong], "").ended_with(2).has("outhaul.enabled").has("true, false");
}

#[test]
fn with_the_spool_too_entries_can_be_left_behind_as_an_orphan() {
    let dir = tempfile::tempdir().unwrap();
    let (up, down) = (Receiver::new(|_| Act::Status(200)), Receiver::new(|_| Act::Status(503)));
    let to = format!("hook={}", down.uri(""));
    let admin = Admin::start(dir.path(), &["--to", &to, "--engine", "spool"]);
    for id in ["1", "2", "3"] {
        admin.post(id, "p");
    }
    admin.put("hook", &up.uri(""), None).problem(409, "repoint");
    assert_eq!(admin.put("hook", &up.uri(""), Some("orphan")).status, 200);
    admin.post("4", "p");
    admin.until_waiting("hook", 0);
    assert_eq!(ids(&up, 0), ["4"]);
    assert_eq!(admin.target("hook.orphan-1")["waiting"], 3);
    admin.relay.stop().ended_with(0);
    // It is there after a restart, in a directory of its own, and is delivered in order.
    let moved = format!("hook={}", up.uri(""));
    let admin = Admin::start(dir.path(), &["--to", &moved, "--engine", "spool"]);
    assert_eq!(admin.target("hook.orphan-1")["waiting"], 3);
    down.rule(|_| Act::Status(200));
    let before = down.arrivals().len();
    assert_eq!(admin.put("hook.orphan-1", &down.uri(""), None).status, 201);
    admin.until_waiting("hook.orphan-1", 0);
    assert_eq!(ids(&down, before), ["1", "2", "3"]);
    admin.relay.stop().ended_with(0);
}

/// A problem says where it is and what can be done.
fn told(reply: &Reply, status: u16, reason: &str, words: &[&str]) {
    let problem = reply.problem(status, reason);
    let detail = problem["detail"].as_str().unwrap();
    for word in words {
        assert!(detail.contains(word), "{word:?} is not in {detail:?}");
    }
    assert!(!detail.contains("s3cret"), "{detail}");
}

#[test]
fn every_mistake_is_answered_with_what_is_wrong_and_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::new(|_| Act::Status(401));
    let to = format!("hook={}", receiver.uri(""));
    let admin = Admin::start(dir.path(), &["--to", &to]);
    let wrong = request(admin.address, "GET", "/api/v1/targets", &[("authorization", "Bearer no")], b"");
    told(&wrong.unwrap(), 401, "unauthorised", &["authorization: Bearer TOKEN", "admin.token"]);
    let cases: &[(&str, &str, u16, &str, &[&str])] = &[
        ("GET", "/nowhere", 404, "not_found", &["/api/v1/nowhere", "/api/v1/targets/NAME/entries"]),
        ("GET", "/targets/%ff", 400, "bad_request", &["UTF-8"]),
        ("GET", "/entries/%ff/retry", 400, "bad_request", &["UTF-8"]),
        ("GET", "/targets/nobody", 404, "not_found", &["nobody", "GET /api/v1/targets"]),
        ("GET", "/targets/BIG", 404, "not_found", &["BIG"]),
        ("GET", "/targets?probes=true", 400, "bad_request", &["probes", "`probe=true`"]),
        ("GET", "/targets?probe=maybe", 400, "bad_request", &["probe", "`probe=true`"]),
        ("POST", "/targets", 405, "method_not_allowed", &["POST", "takes GET"]),
        ("PATCH", "/targets/hook", 405, "method_not_allowed", &["GET, PUT and DELETE"]),
        ("GET", "/targets/hook/pause", 405, "method_not_allowed", &["takes POST"]),
        ("DELETE", "/targets/hook/entries", 405, "method_not_allowed", &["takes GET"]),
        ("POST", "/targets/hook/stop", 404, "not_found", &["stop", "pause, resume, drain, trial, test"]),
        ("POST", "/targets/nobody/pause", 404, "not_found", &["nobody", "GET /api/v1/targets"]),
        ("POST", "/targets/hook/pause?for=1h", 400, "bad_request", &["no query", "/targets/hook/pause"]),
        ("POST", "/targets/hook/test", 502, "authentication_failed", &["hook", "test event", "401"]),
        ("DELETE", "/targets/hook?queue=burn", 400, "bad_request", &["burn", "queue=discard"]),
        ("DELETE", "/targets/hook?queues=keep", 400, "bad_request", &["queues", "queue=keep"]),
        ("DELETE", "/targets/nobody", 404, "not_found", &["nobody"]),
        ("GET", "/targets/nobody/entries", 404, "not_found", &["nobody"]),
        ("GET", "/targets/hook/entries?limit=0", 400, "bad_request", &["limit", "1 to 1000"]),
        ("GET", "/targets/hook/entries?limit=x", 400, "bad_request", &["limit"]),
        ("GET", "/targets/hook/entries?state=odd", 400, "bad_request", &["state", "waiting, retrying"]),
        ("GET", "/targets/hook/entries?cursor=z", 400, "bad_request", &["cursor", "`next`"]),
        ("GET", "/targets/hook/entries?pids=p", 400, "bad_request", &["pids", "`pid`"]),
        ("GET", "/targets/hook/entries?pid=a&pid=b", 400, "bad_request", &["pid", "each once"]),
        ("POST", "/entries/hook:1/burn", 404, "not_found", &["burn", "retry, discard, requeue"]),
        ("POST", "/entries/nonsense/retry", 404, "not_found", &["nonsense"]),
        ("POST", "/entries/hook:999/retry", 404, "not_found", &["hook:999"]),
        ("POST", "/entries/hook:999/requeue?now", 400, "bad_request", &["no query"]),
        ("POST", "/entries/nobody:1/discard", 404, "not_found", &["nobody:1"]),
    ];
    for (method, path, status, reason, words) in cases {
        told(&admin.ask(method, path), *status, reason, words);
    }
    let bodies: &[(&str, u16, &str, &[&str])] = &[
        ("", 400, "bad_request", &["no body", "\"to\""]),
        ("{", 400, "bad_request", &["line 1", "ends too early"]),
        ("to=file:out", 400, "bad_request", &["line 1, column", "no JSON"]),
        ("[]", 400, "bad_request", &["is an object"]),
        ("{\"to\":7}", 400, "bad_request", &["is an object", "\"to\": URI"]),
        ("{\"uri\":\"http://me:s3cret@h/\"}", 400, "bad_request", &["\"to\": URI"]),
        (
            "{\"to\":\"http://me:s3cret@h/\",\"repoint\":\"x\"}",
            400,
            "bad_request",
            &["\"keep\" or \"orphan\""],
        ),
        ("{\"to\":\"ftp://me:s3cret@h/\"}", 400, "configuration_invalid", &["ftp", "use one of"]),
        ("{\"to\":\"http://h/?outhaul.speed=1\"}", 400, "configuration_invalid", &["outhaul.speed"]),
        (&"x".repeat(70_000), 413, "too_large", &["65536 bytes"]),
    ];
    for (body, status, reason, words) in bodies {
        told(&admin.ask_with("PUT", "/targets/new", body), *status, reason, words);
    }
    told(&admin.ask_with("PUT", "/targets/new?dry=1", "{}"), 400, "bad_request", &["no query"]);
    told(&admin.ask_with("PUT", "/targets/New", "{\"to\":\"file:x\"}"), 404, "not_found", &["New"]);
    admin.relay.stop().ended_with(0);
}
