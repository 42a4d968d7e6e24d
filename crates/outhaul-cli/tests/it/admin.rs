//! The admin API of a running relay, over real HTTP.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::receiver::{Act, Receiver};
use crate::support::{Relay, Reply, Running, event, program, request, until, values};

/// A relay and the way to its admin API.
pub(crate) struct Admin {
    pub(crate) relay: Relay,
    pub(crate) address: SocketAddr,
    token: String,
}

impl Admin {
    pub(crate) fn start(dir: &Path, args: &[&str]) -> Self {
        let relay = Relay::start(dir, &[&["--admin", "127.0.0.1:0"], args].concat());
        let told = relay.running.stderr();
        let line = told.lines().find_map(|line| line.strip_prefix("admin API on http://")).unwrap();
        let address = line.split(' ').next().unwrap().parse().unwrap();
        let token = std::fs::read_to_string(dir.join("data/admin.token")).unwrap().trim().to_owned();
        Self { relay, address, token }
    }

    pub(crate) fn ask_with(&self, method: &str, path: &str, body: &str) -> Reply {
        let bearer = format!("Bearer {}", self.token);
        let path = format!("/api/v1{path}");
        request(self.address, method, &path, &[("authorization", &bearer)], body.as_bytes()).unwrap()
    }

    pub(crate) fn ask(&self, method: &str, path: &str) -> Reply {
        self.ask_with(method, path, "")
    }

    /// The body of an answer that is a success.
    pub(crate) fn good(&self, method: &str, path: &str) -> Value {
        let reply = self.ask(method, path);
        assert!((200..300).contains(&reply.status), "{path}: {reply:?}");
        reply.json()
    }

    pub(crate) fn target(&self, name: &str) -> Value {
        self.good("GET", &format!("/targets/{name}"))
    }

    pub(crate) fn put(&self, name: &str, to: &str, repoint: Option<&str>) -> Reply {
        let body = json!({ "to": to, "repoint": repoint }).to_string();
        self.ask_with("PUT", &format!("/targets/{name}"), &body)
    }

    pub(crate) fn post(&self, id: &str, pid: &str) {
        assert_eq!(self.relay.post("application/json", event(id, pid)).status, 202);
    }

    pub(crate) fn until_waiting(&self, name: &str, waiting: u64) {
        until("the queue", || (self.target(name)["waiting"] == waiting).then_some(()));
    }
}

#[test]
fn nothing_is_told_without_the_token_which_is_its_owners_alone() {
    let dir = tempfile::tempdir().unwrap();
    let admin = Admin::start(dir.path(), &["--to", "file:out"]);
    let mode = std::fs::metadata(dir.path().join("data/admin.token")).unwrap().permissions().mode();
    assert_eq!((mode & 0o777, admin.token.len()), (0o600, 64));
    for path in ["/api/v1/targets", "/api/v1/nowhere", "/"] {
        for headers in [&[][..], &[("authorization", "Bearer wrong")], &[("authorization", "Basic x")]] {
            let reply = request(admin.address, "GET", path, headers, b"").unwrap();
            reply.problem(401, "unauthorised");
            assert!(reply.header("www-authenticate").is_some());
        }
    }
    admin.ask("GET", "/nowhere").problem(404, "not_found");
    admin.ask("DELETE", "/targets").problem(405, "method_not_allowed");
    admin.ask("POST", "/targets/file/frobnicate").problem(404, "not_found");
    admin.ask("POST", "/entries/file:1/frobnicate").problem(404, "not_found");
    admin.ask("GET", "/targets/other").problem(404, "not_found");
    admin.ask("GET", "/targets/BIG").problem(404, "not_found");
    admin.ask("GET", "/targets?frobnicate=1").problem(400, "bad_request");
    // The other listener knows nothing of it.
    admin.relay.get("/api/v1/targets").problem(404, "not_found");
    let token = admin.token.clone();
    admin.relay.stop().ended_with(0);
    // It stays the same.
    let admin = Admin::start(dir.path(), &["--to", "file:out"]);
    assert_eq!(admin.token, token);
    let ended = admin.relay.stop();
    assert!(!ended.ended_with(0).stderr.contains(&token));
}

#[test]
fn it_can_be_turned_off_and_a_port_in_use_names_the_option() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(dir.path(), &["--to", "file:out", "--admin", "off"]);
    assert!(!relay.running.stderr().contains("admin API"));
    relay.stop().ended_with(0);
    assert!(!dir.path().join("data/admin.token").exists());
    let holds = TcpListener::bind("127.0.0.1:0").unwrap();
    let held = holds.local_addr().unwrap().to_string();
    let mut command = program();
    command.args(["run", "--data", "d", "--to", "file:out", "--listen", "127.0.0.1:0", "--admin", &held]);
    let ended = Running::start(command.current_dir(dir.path()).stdin(Stdio::null())).end();
    ended.ended_with(1).has(&format!("the admin API cannot listen on {held}")).has("--admin off");
}

#[test]
fn a_target_is_paused_across_a_restart_resumed_tested_and_shown() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::new(|_| Act::Status(200));
    let to = format!("hook={}", receiver.uri("token=s3cret"));
    let admin = Admin::start(dir.path(), &["--to", &to]);
    let paused = admin.good("POST", "/targets/hook/pause");
    assert_eq!((&paused["state"], &paused["health"]), (&"paused".into(), &"disabled".into()));
    admin.post("1", "p");
    admin.relay.stop().ended_with(0);

    let admin = Admin::start(dir.path(), &["--to", &to]);
    assert_eq!(
        (&admin.target("hook")["state"], &admin.target("hook")["waiting"]),
        (&"paused".into(), &1.into())
    );
    admin.ask("POST", "/targets/hook/trial").problem(409, "paused");
    // A test event passes the queue.
    assert_eq!(admin.good("POST", "/targets/hook/test"), json!({ "delivered": true }));
    assert_eq!(receiver.arrivals().len(), 1);
    assert_eq!(receiver.arrivals()[0].header("ce-type"), "outhaul.test");
    assert_eq!(admin.target("hook")["delivered"], 0);
    admin.good("POST", "/targets/hook/resume");
    admin.until_waiting("hook", 0);
    assert_eq!(admin.good("POST", "/targets/hook/trial"), json!({ "trial": false }));
    receiver.rule(|_| Act::Status(401));
    let problem = admin.ask("POST", "/targets/hook/test").problem(502, "authentication_failed");
    assert!(!problem.to_string().contains("s3cret"));
    let all = admin.ask("GET", "/targets?probe=true");
    let shown = all.json()["targets"][0].clone();
    assert!(shown["probe"]["reason"].is_string(), "{shown}");
    for key in [
        "waiting",
        "bytes",
        "oldest_age_seconds",
        "last_success_seconds",
        "last_error",
        "next_trial_seconds",
        "failed_stored",
        "reason",
        "health",
        "state",
        "generation",
    ] {
        assert!(shown.get(key).is_some(), "{key} is not in {shown}");
    }
    assert!(!String::from_utf8_lossy(&all.body).contains("s3cret"));
    admin.relay.stop().ended_with(0);
}

#[test]
fn targets_are_added_replaced_repointed_drained_and_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let (up, down) = (Receiver::new(|_| Act::Status(200)), AtomicBool::new(true));
    let down = Arc::new(down);
    let is_down = Arc::clone(&down);
    let moody = Receiver::new(move |_| Act::Status(if is_down.load(Ordering::SeqCst) { 503 } else { 200 }));
    let admin = Admin::start(dir.path(), &["--to", "file:out"]);
    let added = admin.put("hook", &moody.uri("key=s3cret"), None);
    assert_eq!((added.status, &added.json()["change"]), (201, &"added".into()));
    assert_eq!(added.json()["until"], "restart");
    assert!(!String::from_utf8_lossy(&added.body).contains("s3cret"));
    let again = admin.put("hook", &moody.uri("key=s3cret"), None);
    assert_eq!((again.status, &again.json()["change"]), (200, &"unchanged".into()));
    admin.post("1", "p");
    admin.post("2", "p");
    admin.until_waiting("hook", 2);
    admin.until_waiting("file", 0);
    let problem = admin.put("hook", &up.uri(""), None).problem(409, "repoint");
    assert!(problem["detail"].as_str().unwrap().contains("2 would go"), "{problem}");
    let kept = admin.put("hook", &up.uri(""), Some("orphan"));
    assert_eq!((kept.status, &kept.json()["change"]), (200, &"replaced".into()));
    assert_eq!(admin.target("hook.orphan-1")["waiting"], 2);
    admin.post("3", "p");
    admin.until_waiting("hook", 0);
    let got: Vec<_> = up.arrivals().iter().map(|arrival| arrival.id().to_owned()).collect();
    assert_eq!(got, ["3"]);
    // The orphan, attached again at its own destination.
    down.store(false, Ordering::SeqCst);
    assert_eq!(admin.put("hook.orphan-1", &moody.uri("key=s3cret"), None).status, 201);
    admin.until_waiting("hook.orphan-1", 0);
    assert_eq!(admin.ask("DELETE", "/targets/hook.orphan-1?queue=drain").status, 202);
    until("the removal", || (admin.ask("GET", "/targets/hook.orphan-1").status == 404).then_some(()));
    let removed = admin.good("DELETE", "/targets/hook?queue=discard");
    assert_eq!(removed, json!({ "queue": "discarded", "discarded": 0 }));
    admin.ask("DELETE", "/targets/hook").problem(404, "not_found");
    admin.ask("DELETE", "/targets/file?queue=burn").problem(400, "bad_request");
    for (body, status, reason) in [
        ("{\"to\":\"ftp://me:s3cret@h/\"}", 400, "configuration_invalid"),
        ("{\"to\":\"file:out\"}", 400, "configuration_invalid"),
        ("{\"to\":7}", 400, "bad_request"),
        ("{\"to\":\"file:x\",\"repoint\":\"burn\"}", 400, "bad_request"),
        ("{\"to\":\"file:x\",\"more\":1}", 400, "bad_request"),
        (&"x".repeat(70_000), 413, "too_large"),
    ] {
        let reply = admin.ask_with("PUT", "/targets/other", body);
        assert!(!reply.problem(status, reason).to_string().contains("s3cret"));
    }
    assert_eq!(admin.good("POST", "/targets/file/drain"), json!({ "waiting": 0 }));
    admin.good("POST", "/targets/file/pause");
    let shown = admin.target("file");
    assert_eq!((&shown["state"], &shown["draining"]), (&"paused".into(), &true.into()));
    // Once to end the pause, once to take it back.
    assert_eq!(admin.good("POST", "/targets/file/resume")["draining"], true);
    admin.relay.post("application/json", event("4", "p")).problem(503, "no_target");
    admin.good("POST", "/targets/file/resume");
    admin.post("4", "p");
    admin.until_waiting("file", 0);
    assert_eq!(values(&dir.path().join("out")).len(), 4);
    let ended = admin.relay.stop();
    assert!(!ended.ended_with(0).stderr.contains("s3cret"));
}

#[test]
fn an_orphan_says_what_can_be_done_with_it_and_is_discarded() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::new(|_| Act::Status(503));
    let to = format!("hook={}", receiver.uri(""));
    let admin = Admin::start(dir.path(), &["--to", &to, "--to", "file:out"]);
    admin.post("1", "p");
    assert_eq!(admin.good("DELETE", "/targets/hook"), json!({ "queue": "kept", "waiting": 1 }));
    assert_eq!(admin.good("DELETE", "/targets/hook?queue=keep"), json!({ "queue": "kept", "waiting": 1 }));
    admin.ask("DELETE", "/targets/hook?queue=drain").problem(409, "orphan");
    for verb in ["pause", "resume", "drain", "trial", "test"] {
        let problem = admin.ask("POST", &format!("/targets/hook/{verb}")).problem(409, "orphan");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains("PUT /api/v1/targets/hook") && detail.contains("?queue=discard"), "{detail}");
    }
    assert_eq!(admin.target("hook")["state"], "orphan");
    let discarded = admin.good("DELETE", "/targets/hook?queue=discard");
    assert_eq!(discarded, json!({ "queue": "discarded", "discarded": 1 }));
    admin.ask("GET", "/targets/hook").problem(404, "not_found");
    admin.ask("DELETE", "/targets/hook?queue=discard").problem(404, "not_found");
    admin.relay.stop().ended_with(0);
}

#[test]
fn a_restart_goes_back_to_the_command_line_and_sends_nothing_to_the_wrong_place() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (Receiver::new(|_| Act::Status(503)), Receiver::new(|_| Act::Status(503)));
    let to = format!("hook={}", first.uri(""));
    let admin = Admin::start(dir.path(), &["--to", &to]);
    assert_eq!(admin.put("hook", &second.uri(""), None).status, 200);
    admin.post("1", "p");
    admin.relay.stop().ended_with(0);
    let before = first.arrivals().len();
    let mut command = program();
    command.args(["run", "--data", "data", "--listen", "127.0.0.1:0", "--admin", "off", "--to", &to]);
    let ended = Running::start(command.current_dir(dir.path()).stdin(Stdio::null())).end();
    ended.ended_with(2).has("1 entry was admitted").has("--repoint hook");
    assert_eq!(first.arrivals().len(), before);
}

#[test]
fn entries_are_listed_retried_discarded_and_requeued() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::new(|arrival| match arrival.id() {
        "stuck" => Act::Status(500),
        "bad" => Act::Status(422),
        _ => Act::Status(200),
    });
    let to = format!("hook={}", receiver.uri("outhaul.backoff=10m&outhaul.backoff_max=10m"));
    let admin = Admin::start(dir.path(), &["--to", &to]);
    for (id, pid) in [("stuck", "p"), ("bad", "q"), ("good", "r")] {
        admin.post(id, pid);
    }
    until("the attempts", || {
        let hook = admin.target("hook");
        (hook["delivered"] == 1 && hook["failed"] == 1 && hook["retried"] == 1).then_some(())
    });
    admin.post("behind", "p");
    let list = |query: &str| admin.good("GET", &format!("/targets/hook/entries{query}"));
    let page = list("");
    let entries = page["entries"].as_array().unwrap();
    assert_eq!(
        (entries.len(), &entries[0]["state"], &entries[1]["state"]),
        (2, &"retrying".into(), &"waiting".into())
    );
    for key in ["uid", "dedup_id", "pid", "state", "attempts", "next_attempt_at", "last_error", "suspect"] {
        assert!(entries[0].get(key).is_some_and(|value| !value.is_null()), "{key}: {page}");
    }
    assert_eq!((&entries[0]["attempts"], &entries[1]["last_error"]), (&1.into(), &Value::Null));
    // The cursor leads to what failed.
    let next = page["next"].as_str().unwrap().to_owned();
    let failed = list(&format!("?cursor={next}"));
    assert_eq!(failed["entries"][0]["state"], "failed");
    assert_eq!(list("?state=failed"), failed);
    assert_eq!(list("?pid=p&state=retrying")["entries"].as_array().unwrap().len(), 1);
    assert_eq!(list("?limit=1")["entries"].as_array().unwrap().len(), 1);
    for wrong in ["?limit=0", "?limit=1001", "?state=odd", "?cursor=z", "?more=1"] {
        admin.ask("GET", &format!("/targets/hook/entries{wrong}")).problem(400, "bad_request");
    }
    let uid = |entry: &Value| entry["uid"].as_str().unwrap().to_owned();
    let (stuck, behind, bad) = (uid(&entries[0]), uid(&entries[1]), uid(&failed["entries"][0]));
    admin.ask("POST", &format!("/entries/{bad}/retry")).problem(409, "entry_failed");
    admin.ask("POST", "/entries/hook:999/retry").problem(404, "not_found");
    admin.ask("POST", "/entries/nonsense/retry").problem(404, "not_found");
    assert_eq!(admin.good("POST", &format!("/entries/{behind}/discard")), json!({ "outcome": "discarded" }));
    receiver.rule(|_| Act::Status(200));
    assert_eq!(admin.good("POST", &format!("/entries/{stuck}/retry")), json!({ "outcome": "cleared" }));
    admin.until_waiting("hook", 0);
    let requeued = admin.good("POST", &format!("/entries/{bad}/requeue"));
    assert_eq!((&requeued["outcome"], &requeued["again"]), (&"requeued".into(), &false.into()));
    let again = admin.good("POST", &format!("/entries/{bad}/requeue"));
    assert_eq!((&again["requeued_as"], &again["again"]), (&requeued["requeued_as"], &true.into()));
    admin.until_waiting("hook", 0);
    let hook = admin.target("hook");
    assert_eq!(
        (&hook["delivered"], &hook["discarded"], &hook["requeued"]),
        (&3.into(), &1.into(), &1.into())
    );
    admin.relay.stop().ended_with(0);
}

#[test]
fn two_hundred_reloads_under_load_repeat_nothing_lose_nothing_and_keep_the_order() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::new(|_| Act::Status(200));
    let uri = |reload: u64| receiver.uri(&format!("outhaul.backoff={}s", reload + 1));
    let admin = Admin::start(dir.path(), &["--to", &format!("hook={}", uri(0))]);
    let stop = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let mut sent: u64 = 0;
            while !stop.load(Ordering::SeqCst) {
                let lines: String = (0..10)
                    .map(|i| event(&(sent + i).to_string(), &format!("p{}", (sent + i) % 7)))
                    .collect();
                assert_eq!(admin.relay.post("application/x-ndjson", lines).status, 202);
                sent += 10;
            }
            sent
        });
        for reload in 1..=200 {
            let reply = admin.put("hook", &uri(reload), None);
            assert_eq!((reply.status, &reply.json()["change"]), (200, &"replaced".into()), "{reply:?}");
        }
        stop.store(true, Ordering::SeqCst);
        sending.join().unwrap()
    });
    admin.until_waiting("hook", 0);
    let mut last: HashMap<String, u64> = HashMap::new();
    let arrivals = receiver.arrivals();
    for arrival in &arrivals {
        let number: u64 = arrival.id().parse().unwrap();
        let before = last.insert(arrival.header("ce-partitionkey").to_owned(), number);
        assert!(before.is_none_or(|before| before < number), "{before:?} before {number}");
    }
    // Each once: in order within its pid, none twice, and as many as were sent.
    assert_eq!(arrivals.len() as u64, sent);
    assert_eq!(admin.target("hook")["delivered"], sent);
    admin.relay.running.signal(Signal::TERM);
    admin.relay.running.end().ended_with(0);
}
