//! Events that a receiver refuses, and `outhaul failed`.

use std::path::Path;

use serde_json::Value;

use crate::receiver::{Act, Receiver};
use crate::support::{Ended, Running, event, pipe, program, segment_with, temporary};

fn failed(dir: &Path, args: &[&str]) -> Ended {
    Running::start(program().arg("failed").args(args).current_dir(dir)).end()
}

fn refusing() -> Receiver {
    Receiver::new(|arrival| if arrival.id().starts_with("bad") { Act::Status(400) } else { Act::Status(200) })
}

#[test]
fn what_is_refused_is_kept_and_the_printed_command_shows_it() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = refusing();
    let uri = receiver.uri("");
    let ended =
        pipe(dir.path(), &["--to", &uri], event("bad1", "a") + &event("2", "a") + &event("bad3", "b"));
    ended.ended_with(3);
    assert_eq!((ended.summary().delivered, ended.summary().failed, ended.summary().waiting), (1, 2, 0));
    let data = temporary(dir.path()).pop().unwrap();
    let command = format!("outhaul failed ls --data {}", data.display());
    assert!(ended.stderr.lines().any(|line| line == command), "{}", ended.stderr);

    let mut shell = std::process::Command::new("sh");
    let path = Path::new(env!("CARGO_BIN_EXE_outhaul")).parent().unwrap();
    let path = format!("{}:/usr/bin:/bin", path.display());
    let listed = Running::start(shell.args(["-c", &command]).env("PATH", path)).end();
    assert_eq!(listed.code, Some(0), "{}", listed.stderr);
    let rows: Vec<_> = listed.stdout.lines().collect();
    assert_eq!(rows.len(), 3, "{}", listed.stdout);
    assert!(rows[1].starts_with("webhook:") && rows[1].contains("rejected") && rows[1].contains("400"));
}

#[test]
fn failed_entries_are_shown_as_json_and_by_uid() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = refusing();
    let (one, two) = (format!("one={}", receiver.uri("")), format!("two={}", receiver.uri("")));
    let args = ["--to", &one, "--to", &two, "--data", "data"];
    pipe(dir.path(), &args, event("bad1", "a")).ended_with(3).has("2 events are in the failed store");
    let json = |args: &[&str]| -> Value { serde_json::from_str(&failed(dir.path(), args).stdout).unwrap() };

    let all = json(&["ls", "--data", "data", "--json"]);
    let all = all.as_array().unwrap();
    assert_eq!(all.iter().map(|e| e["target"].as_str().unwrap()).collect::<Vec<_>>(), ["one", "two"]);
    assert_eq!((&all[0]["rule"], &all[0]["attempts"]), (&"rejected".into(), &1.into()));
    let one = json(&["ls", "--data", "data", "--json", "--target", "one"]);
    assert_eq!(one.as_array().unwrap().len(), 1);

    let uid = all[1]["uid"].as_str().unwrap();
    let shown = json(&["show", uid, "--data", "data", "--json"]);
    assert_eq!((&shown["event"]["id"], &shown["event"]["data"]["id"]), (&"bad1".into(), &"bad1".into()));
    let number = uid.split_once(':').unwrap().1;
    assert_eq!(json(&["show", number, "--target", "two", "--data", "data", "--json"]), shown);
    assert_eq!(json(&["show", "--data", "data", "--json"]).as_array().unwrap().len(), 2);
    let text = failed(dir.path(), &["show", uid, "--data", "data"]);
    assert!(text.ended_with(0).stdout.contains("\"id\":\"bad1\""), "{}", text.stdout);

    // What is not there is named, and the rest is done.
    let gone = failed(dir.path(), &["discard", "one:999", "--data", "data"]);
    gone.ended_with(1).has("there is no failed entry one:999").has("outhaul failed ls --data data");
    failed(dir.path(), &["requeue", "one:999", "--data", "data"]).ended_with(1).has("one:999");
    let some = failed(dir.path(), &["discard", uid, "one:999", "--data", "data", "--json"]);
    let report: Value = serde_json::from_str(&some.ended_with(1).stdout).unwrap();
    assert_eq!((&report["discarded"], &report["missing"][0]), (&1.into(), &"one:999".into()));
    failed(dir.path(), &["show", "one:999", "--data", "data"]).ended_with(1).has("no failed entry one:999");
    failed(dir.path(), &["show", "nonsense", "--data", "data"]).ended_with(2).has("no entry's uid");
    failed(dir.path(), &["ls", "--data", "data", "--target", "NO"]).ended_with(2).has("no target name");
}

#[test]
fn a_directory_without_failed_entries_says_so() {
    let dir = tempfile::tempdir().unwrap();
    pipe(dir.path(), &["--to", "file:x", "--data", "data"], "1\n").ended_with(0);
    let listed = failed(dir.path(), &["ls", "--data", "data"]);
    assert_eq!(listed.ended_with(0).has("no failed entries").stdout, "");
    assert_eq!(failed(dir.path(), &["ls", "--data", "data", "--json"]).ended_with(0).stdout, "[]\n");
    assert_eq!(failed(dir.path(), &["ls", "--data", "data", "--target", "file"]).ended_with(0).stdout, "");
    for verb in ["ls", "show"] {
        let typo = failed(dir.path(), &[verb, "--data", "data", "--target", "fiel"]);
        typo.ended_with(2).has("knows no target fiel").has("it knows file");
    }
    failed(dir.path(), &["ls", "--data", "nowhere"]).ended_with(2).has("no data directory");
    assert!(!dir.path().join("nowhere").exists());
}

/// Leaves three batches of 20 events in `data`, and returns the journal's one segment.
fn waiting_events(dir: &Path) -> std::path::PathBuf {
    for batch in 1..=3 {
        let input: String = (0..20 * batch).map(|n| event(&n.to_string(), "p")).collect();
        let args = ["--to", "h=http://127.0.0.1:1/", "--data", "data", "--timeout", "100ms"];
        pipe(dir, &args, input).ended_with(4);
    }
    segment_with(&dir.join("data"), b"{\"id\":\"45\"}").unwrap()
}

const MOVED: [&str; 6] = ["--to", "h=file:out", "--repoint", "h", "--data", "data"];

#[test]
fn an_event_whose_bytes_are_damaged_is_kept_for_a_person() {
    let dir = tempfile::tempdir().unwrap();
    let segment = waiting_events(dir.path());
    let mut bytes = std::fs::read(&segment).unwrap();
    let needle = b"{\"id\":\"45\"}";
    let at = bytes.windows(needle.len()).position(|window| window == needle).unwrap();
    bytes[at] ^= 0x55;
    std::fs::write(&segment, bytes).unwrap();
    let ended = pipe(dir.path(), &MOVED, "");
    ended.ended_with(3).has("outhaul failed ls --data data");
    assert_eq!((ended.summary().delivered, ended.summary().failed), (59, 1));
    let listed = failed(dir.path(), &["ls", "--data", "data"]);
    assert!(listed.stdout.contains("unreadable"), "{}", listed.stdout);
}

#[test]
fn damage_to_the_log_is_told_and_the_rest_is_delivered() {
    let dir = tempfile::tempdir().unwrap();
    let segment = waiting_events(dir.path());
    let mut bytes = std::fs::read(&segment).unwrap();
    let half = bytes.len() / 4..bytes.len() / 4 * 3;
    bytes[half].fill(0xAA);
    std::fs::write(&segment, bytes).unwrap();
    // Looking changes nothing, so it is told each time.
    for _ in 0..2 {
        failed(dir.path(), &["ls", "--data", "data"]).ended_with(3).has("damage: ").has("log/");
    }
    let ended = pipe(dir.path(), &MOVED, "");
    ended.ended_with(3).has("damage: ").has("a copy is in");
    let delivered = ended.summary().delivered;
    assert!((20..60).contains(&delivered), "{}", ended.stderr);
}
