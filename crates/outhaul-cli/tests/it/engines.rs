//! `--engine` and `--durability`.

use std::path::Path;

use crate::support::{Ended, Running, event, pipe, program, request, temporary, values};

#[test]
fn the_engine_memory_delivers_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let ended =
        pipe(dir.path(), &["--to", "file:out", "--engine", "memory"], event("1", "a") + &event("2", "a"));
    ended.ended_with(0).has("the engine memory keeps nothing");
    assert_eq!((ended.summary().durable, ended.summary().delivered), (0, 2), "nothing was durable");
    assert_eq!(values(&dir.path().join("out")).len(), 2);
    let args = ["--to", "http://127.0.0.1:1/", "--engine", "memory", "--timeout", "100ms"];
    let ended = pipe(dir.path(), &args, event("1", "a"));
    ended.ended_with(4).has("gone with the memory: webhook: 1 entry");
    assert!(!ended.stderr.contains("--data"), "there is nothing to go on with: {}", ended.stderr);
    assert_eq!(temporary(dir.path()), Vec::<std::path::PathBuf>::new());
    assert!(!dir.path().join("memory").exists());
}

#[test]
fn a_relay_in_memory_says_that_nothing_is_durable() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = program();
    command.args(["run", "--engine", "memory", "--to", "file:out", "--listen", "127.0.0.1:0"]);
    let running = Running::start(command.current_dir(dir.path()).stdin(std::process::Stdio::null()));
    let address = crate::support::until("the relay's start", || {
        let told = running.stderr();
        told.lines().find_map(|line| line.strip_prefix("listening on http://"))?.parse().ok()
    });
    let reply = request(address, "POST", "/events", &[("content-type", "application/json")], b"{}").unwrap();
    assert_eq!((reply.status, &reply.json()["durable"]), (202, &false.into()));
    running.signal(rustix::process::Signal::TERM);
    running.end().ended_with(0).has("the engine memory keeps nothing");
    assert!(!dir.path().join("memory").exists());
}

#[test]
fn a_weaker_promise_is_told() {
    let dir = tempfile::tempdir().unwrap();
    for (mode, told) in [("interval:50ms", "in the last 50ms"), ("buffered", "many seconds")] {
        let args = ["--to", "file:out", "--data", mode, "--durability", mode];
        let ended = pipe(dir.path(), &args, event("1", "a"));
        ended.ended_with(0).has("a loss of power").has(told);
    }
    let ended = pipe(dir.path(), &["--to", "file:out", "--durability", "synced"], event("1", "a"));
    assert!(!ended.ended_with(0).stderr.contains("loss of power"), "{}", ended.stderr);
}

#[test]
fn a_directory_of_another_engine_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("data")).unwrap();
    let format = r#"{"engine":"memory","format":0,"written_by":"0.1.0"}"#;
    std::fs::write(dir.path().join("data/format"), format).unwrap();
    let run = |args: &[&str]| -> Ended { outhaul(dir.path(), args) };
    for verb in ["pipe", "run"] {
        let ended = run(&[verb, "--to", "file:out", "--data", "data"]);
        ended.ended_with(2).has("belongs to the engine `memory`, and the engine `journal` is asked for");
    }
}

fn outhaul(dir: &Path, args: &[&str]) -> Ended {
    Running::start(program().args(args).current_dir(dir).stdin(std::process::Stdio::null())).end()
}

#[test]
fn the_spool_delivers_and_its_directory_is_refused_by_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let to = "h=http://127.0.0.1:1/";
    let args = ["--to", to, "--engine", "spool", "--data", "data", "--timeout", "100ms"];
    pipe(dir.path(), &args, event("1", "a") + &event("2", "b")).ended_with(4);
    let stat = outhaul(dir.path(), &["queue", "stat", "--data", "data", "--json"]);
    let stat: serde_json::Value = serde_json::from_str(&stat.ended_with(0).stdout).unwrap();
    assert_eq!((&stat["engine"], &stat["queues"][0]["waiting"]), (&"spool".into(), &2.into()));
    outhaul(dir.path(), &["queue", "verify", "--data", "data"]).ended_with(0);
    let refused = pipe(dir.path(), &["--to", "h=file:out", "--engine", "journal", "--data", "data"], "");
    refused.ended_with(2).has("belongs to the engine `spool`, and the engine `journal` is asked for");
    // Without the option the engine is that of the directory.
    let args = ["--to", "h=file:out", "--repoint", "h", "--data", "data"];
    pipe(dir.path(), &args, "").ended_with(0);
    assert_eq!(values(&dir.path().join("out")).len(), 2);
}
