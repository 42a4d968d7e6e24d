//! Failed events that go back, go for good, or go elsewhere.

use std::path::Path;

use serde_json::Value;

use crate::receiver::{Act, Receiver};
use crate::support::{Ended, Running, event, ids, pipe, program, values};

fn failed(dir: &Path, args: &[&str]) -> Ended {
    Running::start(program().arg("failed").args(args).args(["--data", "data"]).current_dir(dir)).end()
}

fn json(ended: &Ended) -> Value {
    serde_json::from_str(&ended.stdout).unwrap()
}

/// Three events of which a receiver refuses two, `bad1` and `bad2`; returns their uids.
fn two_failed(dir: &Path) -> Vec<String> {
    let receiver = Receiver::new(|arrival| match arrival.id().starts_with("bad") {
        true => Act::Status(400),
        false => Act::Status(200),
    });
    let to = format!("hook={}", receiver.uri(""));
    let input = event("bad1", "a") + &event("fine", "a") + &event("bad2", "b");
    pipe(dir, &["--to", &to, "--data", "data"], input).ended_with(3);
    let listed = json(&failed(dir, &["ls", "--json"]));
    listed.as_array().unwrap().iter().map(|entry| entry["uid"].as_str().unwrap().to_owned()).collect()
}

/// Delivers what waits for `hook` into a file.
fn deliver(dir: &Path) -> Vec<Value> {
    let args = ["--to", "hook=file:out", "--repoint", "hook", "--data", "data"];
    let ended = pipe(dir, &args, "");
    assert!(matches!(ended.code, Some(0 | 3)), "{}", ended.stderr);
    values(&dir.join("out"))
}

#[test]
fn a_requeued_event_is_delivered_once_however_often_it_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let uids = two_failed(dir.path());
    let done = failed(dir.path(), &["requeue", &uids[0]]);
    done.ended_with(0).has("1 entry is put back");
    assert!(done.stdout.starts_with(&format!("{} is requeued as hook:", uids[0])), "{}", done.stdout);
    let again = failed(dir.path(), &["requeue", &uids[0]]);
    again.ended_with(0).has("0 entries are put back");
    assert!(
        again.stdout.starts_with(&format!("{} was requeued before, as hook:", uids[0])),
        "{}",
        again.stdout
    );
    let number = uids[0].split_once(':').unwrap().1;
    let answer = json(&failed(dir.path(), &["requeue", number, "--target", "hook", "--json"]));
    assert_eq!((&answer[0]["again"], &answer[0]["uid"]), (&true.into(), &uids[0].as_str().into()));
    failed(dir.path(), &["show", &uids[0]]).ended_with(1).has("it was requeued, as hook:");
    assert_eq!(ids(&deliver(dir.path())), ["bad1"]);
    failed(dir.path(), &["requeue", &uids[0]]).ended_with(0);
    assert_eq!(ids(&deliver(dir.path())), ["bad1"], "what was delivered is not put back again");

    let all = failed(dir.path(), &["requeue", "--all", "--target", "hook"]);
    all.ended_with(0).has("1 entry is put back");
    failed(dir.path(), &["requeue", "--all"]).ended_with(0).has("no failed entries in data");
    assert_eq!(ids(&deliver(dir.path())), ["bad1", "bad2"]);
}

#[test]
fn what_cannot_be_requeued_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let uids = two_failed(dir.path());
    let mixed = failed(dir.path(), &["requeue", "hook:999", &uids[1]]);
    mixed.ended_with(1).has("1 entry is not put back").has("there is no failed entry hook:999");
    assert!(mixed.stdout.contains(&format!("{} is requeued as", uids[1])), "{}", mixed.stdout);
    failed(dir.path(), &["requeue", "nonsense"]).ended_with(2).has("no entry's uid");
    failed(dir.path(), &["requeue", "--all", "--target", "hoop"]).ended_with(2).has("it knows hook");
    assert_eq!(json(&failed(dir.path(), &["ls", "--json"])).as_array().unwrap().len(), 1);
}

#[test]
fn failed_entries_are_listed_in_pages_from_both_ends() {
    let dir = tempfile::tempdir().unwrap();
    let uids = two_failed(dir.path());
    let first = failed(dir.path(), &["ls", "--limit", "1"]);
    first.ended_with(0).has(&format!("more follow; to see them, add: --after {}", uids[0]));
    let of = |args: &[&str]| json(&failed(dir.path(), args))[0]["uid"].as_str().unwrap().to_owned();
    assert_eq!(of(&["ls", "--json", "--limit", "1"]), uids[0]);
    assert_eq!(of(&["ls", "--json", "--after", &uids[0]]), uids[1]);
    assert_eq!(of(&["ls", "--json", "--newest-first"]), uids[1]);
    assert_eq!(of(&["ls", "--json", "--newest-first", "--after", &uids[1]]), uids[0]);
}

#[test]
fn failed_entries_are_exported_and_discarded() {
    let dir = tempfile::tempdir().unwrap();
    let uids = two_failed(dir.path());
    let exported = failed(dir.path(), &["export"]);
    exported.ended_with(0).has("2 failed entries written");
    let lines: Vec<Value> = exported.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&lines[0]["uid"], &lines[1]["event"]["id"]), (&uids[0].as_str().into(), &"bad2".into()));
    assert_eq!((&lines[0]["rule"], &lines[0]["attempts"]), (&"rejected".into(), &1.into()));

    let young = failed(dir.path(), &["discard", "--older-than", "1h"]);
    assert_eq!(young.ended_with(0).stdout, "0 failed entries are discarded\n");
    let one = failed(dir.path(), &["discard", &uids[0], "hook:999"]);
    assert_eq!(one.ended_with(1).stdout, "1 failed entry is discarded\n");
    one.has("there is no failed entry hook:999");
    let rest = failed(dir.path(), &["discard", "--all", "--target", "hook", "--json"]);
    assert_eq!(rest.ended_with(0).stdout, "{\"discarded\":1,\"missing\":[]}\n");
    let none = failed(dir.path(), &["ls"]);
    none.ended_with(0).has("no failed entries in data");
    assert!(deliver(dir.path()).is_empty());
}

#[test]
fn a_failed_entry_that_cannot_be_read_is_told_and_left() {
    let dir = tempfile::tempdir().unwrap();
    two_failed(dir.path());
    let needle = b"{\"id\":\"bad1\"}";
    let found = std::fs::read_dir(dir.path().join("data/failed")).unwrap().find_map(|entry| {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        let at = bytes.windows(needle.len()).position(|window| window == needle)?;
        Some((path, bytes, at))
    });
    let (path, mut bytes, at) = found.unwrap();
    bytes[at + 3] ^= 0x10;
    std::fs::write(&path, bytes).unwrap();
    for _ in 0..2 {
        let listed = failed(dir.path(), &["ls", "--json"]);
        listed.ended_with(3).has("of target hook in data/failed/").has(" cannot be read");
        assert_eq!(json(&listed).as_array().unwrap().len(), 1);
    }
    let mut verify = program();
    let verified =
        Running::start(verify.args(["queue", "verify", "--data", "data"]).current_dir(dir.path())).end();
    assert!(
        verified.ended_with(3).stdout.contains("damage: failed/") && verified.stdout.contains("of hook: "),
        "{}",
        verified.stdout
    );
    failed(dir.path(), &["discard", "--all"]).ended_with(3);
    failed(dir.path(), &["ls"]).ended_with(3).has("cannot be read");
}

#[test]
fn a_target_s_bounds_of_failed_entries_are_options() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::new(|_| Act::Status(400));
    let uri = |option: &str| format!("hook={}", receiver.uri(&format!("outhaul.failed_entries=2&{option}")));
    let input: String = (0..5).map(|n| event(&n.to_string(), &n.to_string())).collect();
    let oldest = uri("outhaul.failed_full=discard_oldest");
    pipe(dir.path(), &["--to", &oldest, "--data", "data"], input).ended_with(3);
    assert_eq!(json(&failed(dir.path(), &["ls", "--json"])).as_array().unwrap().len(), 2);
    let hold = uri("outhaul.failed_full=hold_target");
    let ended = pipe(
        dir.path(),
        &["--to", &hold, "--data", "data", "--timeout", "2s", "--from-start"],
        event("9", "x"),
    );
    ended.ended_with(4).has("failed_store_full").has("the failed store of target hook is full (2 entries)");
    assert_eq!(json(&failed(dir.path(), &["ls", "--json"])).as_array().unwrap().len(), 2);
}
