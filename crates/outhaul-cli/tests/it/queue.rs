//! `outhaul queue`, and what all verbs on a directory at rest have in common.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::support::{Ended, Relay, Running, event, ids, pipe, program, segment_with, values};

fn outhaul(dir: &Path, args: &[&str]) -> Ended {
    Running::start(program().args(args).current_dir(dir)).end()
}

fn queue(dir: &Path, args: &[&str]) -> Ended {
    outhaul(dir, &[&["queue"], args].concat())
}

fn json(ended: &Ended) -> Value {
    serde_json::from_str(&ended.stdout).unwrap()
}

/// Nobody listens there.
const NOWHERE: &str = "http://127.0.0.1:1/";

/// Leaves events waiting: 1 and 2 for `a` and `billing-of-the-north`, 3 for `a` alone.
fn waiting(dir: &Path) {
    let (a, b) = (format!("a={NOWHERE}"), format!("billing-of-the-north={NOWHERE}"));
    let both = ["--to", &a, "--to", &b, "--data", "data", "--timeout", "100ms"];
    pipe(dir, &both, event("1", "p") + &event("2", "q")).ended_with(4);
    let one = ["--to", &a, "--data", "data", "--timeout", "100ms", "--from-start"];
    pipe(dir, &one, event("3", "p")).ended_with(4);
}

/// All files below a directory but the lock.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => drop(found.insert(path.display().to_string(), std::fs::read(&path).unwrap())),
        }
    }
    found.retain(|name, _| !name.ends_with("/lock"));
    found
}

#[test]
fn what_waits_is_counted_listed_and_shown() {
    let dir = tempfile::tempdir().unwrap();
    waiting(dir.path());
    let before = files(&dir.path().join("data"));
    let told = queue(dir.path(), &["stat", "--data", "data"]);
    let lines: Vec<_> = told.ended_with(0).stdout.lines().collect();
    assert!(lines[0].starts_with("TARGET                WAITING  "), "{}", told.stdout);
    assert!(lines[1].starts_with("a                           3  "), "{}", told.stdout);
    assert!(
        lines[2].starts_with("billing-of-the-north        2  ") && lines[2].ends_with(NOWHERE),
        "{lines:?}"
    );
    assert!(
        lines[3].starts_with("journal: ") && lines[3].contains("; of the events in them 0.0% are dead"),
        "{}",
        told.stdout
    );

    let stat = json(&queue(dir.path(), &["stat", "--data", "data", "--json"]));
    assert_eq!((&stat["engine"], &stat["queues"][1]["waiting"]), (&"journal".into(), &2.into()));
    assert!(stat["queues"][0]["oldest_age_seconds"].as_u64().unwrap() < 600);
    assert!(stat["queues"][0]["bytes"].as_u64().unwrap() > 0 && stat["disk_bytes"].as_u64().unwrap() > 0);
    assert!(lines[0].contains("VANISHED") && lines[0].contains("DISCARDED"), "{lines:?}");
    assert_eq!(stat["dead_share"], 0.0, "space that is kept ready is not dead: nothing was delivered");
    assert_eq!(
        (&stat["queues"][0]["vanished"], &stat["queues"][0]["failed_discarded_oldest"]),
        (&0.into(), &0.into())
    );
    let one = json(&queue(dir.path(), &["stat", "--data", "data", "--json", "--target", "a"]));
    assert_eq!(one["queues"].as_array().unwrap().len(), 1);

    let listed = queue(dir.path(), &["ls", "--data", "data"]);
    let lines: Vec<_> = listed.ended_with(0).stdout.lines().collect();
    assert_eq!(lines.len(), 6, "{}", listed.stdout);
    assert!(lines[0].starts_with("UID ") && lines[4].starts_with("billing-of-the-north:"));
    let all = json(&queue(dir.path(), &["ls", "--data", "data", "--json"]));
    let all = all.as_array().unwrap();
    assert_eq!((&all[0]["pid"], &all[0]["type"], &all[2]["id"]), (&"p".into(), &"t".into(), &"3".into()));
    let first = queue(dir.path(), &["ls", "--data", "data", "--limit", "2"]);
    let uid = |n: usize| all[n]["uid"].as_str().unwrap();
    first.ended_with(0).has(&format!("2 of 5 shown; to see those that follow, add: --after {}", uid(1)));
    let rest = json(&queue(dir.path(), &["ls", "--data", "data", "--json", "--after", uid(1)]));
    let rest: Vec<_> = rest.as_array().unwrap().iter().map(|entry| entry["uid"].clone()).collect();
    assert_eq!(rest, [uid(2), uid(3), uid(4)]);

    let shown = json(&queue(dir.path(), &["show", "--data", "data", uid(1), "--json"]));
    assert_eq!((&shown["event"]["id"], &shown["uid"]), (&"2".into(), &uid(1).into()));
    let number = uid(1).split_once(':').unwrap().1;
    let text = queue(dir.path(), &["show", "--data", "data", "--target", "a", number]);
    assert!(text.ended_with(0).stdout.contains("\"id\":\"2\""), "{}", text.stdout);
    queue(dir.path(), &["show", "--data", "data", "a:999"]).ended_with(1).has("no entry a:999 waits");
    queue(dir.path(), &["ls", "--data", "data", "--target", "bb"]).ended_with(2).has("it knows a, billing");
    assert!(before == files(&dir.path().join("data")), "looking changes nothing");
}

#[test]
fn what_is_exported_goes_in_again_each_event_once_and_in_order() {
    let dir = tempfile::tempdir().unwrap();
    waiting(dir.path());
    let all = queue(dir.path(), &["export", "--data", "data"]);
    all.ended_with(0).has("3 events are written");
    std::fs::write(dir.path().join("all"), &all.stdout).unwrap();
    assert_eq!(ids(&values(&dir.path().join("all"))), ["1", "2", "3"]);
    let some = queue(dir.path(), &["export", "--data", "data", "--target", "billing-of-the-north"]);
    some.ended_with(0).has("2 events are written");
    pipe(dir.path(), &["--to", "file:out"], all.stdout).ended_with(0);
    let out = values(&dir.path().join("out"));
    assert_eq!(ids(&out), ["1", "2", "3"]);
    assert_eq!((&out[0]["partitionkey"], &out[0]["data"]["id"]), (&"p".into(), &"1".into()));
}

#[test]
fn a_sound_directory_is_verified_and_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    waiting(dir.path());
    let before = files(&dir.path().join("data"));
    let sound = queue(dir.path(), &["verify", "--data", "data"]);
    assert_eq!(sound.ended_with(0).stdout, "data: 5 entries checked, no damage\n");
    assert_eq!(sound.stderr, "", "no bar where there is no terminal");
    let report = json(&queue(dir.path(), &["verify", "--data", "data", "--json"]));
    assert_eq!((&report["entries"], &report["damage"]), (&5.into(), &Value::Array(Vec::new())));
    assert!(before == files(&dir.path().join("data")), "checking changes nothing");
    let repaired = queue(dir.path(), &["repair", "--data", "data"]);
    assert_eq!(repaired.ended_with(0).stdout, "data: nothing to repair\n");
    assert!(!dir.path().join("data/quarantine").exists());
}

#[test]
fn damage_is_found_with_its_place_and_moved_aside() {
    let dir = tempfile::tempdir().unwrap();
    for batch in 1..=3 {
        let input: String = (0..20 * batch).map(|n| event(&n.to_string(), "p")).collect();
        let to = format!("h={NOWHERE}");
        pipe(dir.path(), &["--to", &to, "--data", "data", "--timeout", "100ms"], input).ended_with(4);
    }
    let segment = segment_with(&dir.path().join("data"), b"{\"id\":\"45\"}").unwrap();
    let name = format!("log/{}", segment.file_name().unwrap().to_str().unwrap());
    let sound = std::fs::read(&segment).unwrap();
    let needle = b"{\"id\":\"45\"}";
    let at = sound.windows(needle.len()).position(|window| window == needle).unwrap();

    let mut bytes = sound.clone();
    bytes[at] ^= 0x55;
    std::fs::write(&segment, &bytes).unwrap();
    let found = queue(dir.path(), &["verify", "--data", "data"]);
    let told = format!("damage: {name}, ");
    assert!(found.ended_with(3).stdout.starts_with(&told), "{}", found.stdout);
    assert!(found.stdout.contains("checksum"), "{}", found.stdout);
    found.has("outhaul queue repair --data data");
    queue(dir.path(), &["export", "--data", "data"]).ended_with(3).has("is left out: ").has("59 events");
    let listed = queue(dir.path(), &["ls", "--data", "data"]);
    assert_eq!(listed.ended_with(0).stdout.matches("unreadable: ").count(), 1, "{}", listed.stdout);

    // Up to the end it would be a write that was not finished.
    let mut bytes = sound;
    let middle = bytes.len() / 4..bytes.len() / 4 * 3;
    bytes[middle.clone()].fill(0xAA);
    std::fs::write(&segment, &bytes).unwrap();
    let before = files(&dir.path().join("data"));
    let found = json(&queue(dir.path(), &["verify", "--data", "data", "--json"]));
    let damage = &found["damage"][0];
    assert!(damage["file"] == name.as_str() && damage["length"].as_u64().unwrap() > 0, "{found}");
    assert!(damage["offset"].as_u64().unwrap() <= middle.start as u64, "{found}");
    let text = queue(dir.path(), &["verify", "--data", "data"]);
    assert!(text.ended_with(3).stdout.contains(&format!("damage: {name}, ")), "{}", text.stdout);
    assert!(before == files(&dir.path().join("data")), "checking changes nothing");

    let repaired = queue(dir.path(), &["repair", "--data", "data"]);
    assert!(repaired.stdout.ends_with("data: checked again, no damage is left\n"), "{}", repaired.stdout);
    assert!(repaired.ended_with(3).stdout.contains("moved to the quarantine"), "{}", repaired.stdout);
    assert!(std::fs::read_dir(dir.path().join("data/quarantine")).unwrap().count() > 0);
    queue(dir.path(), &["repair", "--data", "data"]).ended_with(0);
    queue(dir.path(), &["verify", "--data", "data"]).ended_with(0);
}

#[test]
fn an_entry_that_cannot_be_read_is_taken_out_by_a_repair() {
    for engine in ["journal", "spool"] {
        let dir = tempfile::tempdir().unwrap();
        let to = format!("h={NOWHERE}");
        let args = ["--to", &to, "--engine", engine, "--data", "data", "--timeout", "100ms"];
        pipe(dir.path(), &args, event("1", "p") + &event("2", "q")).ended_with(4);
        let data = dir.path().join("data");
        let (path, at) = match engine {
            "journal" => {
                let path = segment_with(&data, b"{\"id\":\"2\"}").unwrap();
                let bytes = std::fs::read(&path).unwrap();
                let at = bytes.windows(10).position(|window| window == b"{\"id\":\"2\"}").unwrap();
                (path, at)
            }
            _ => {
                let files = std::fs::read_dir(data.join("spool/outhaul-h")).unwrap();
                let path = files.map(|entry| entry.unwrap().path()).max().unwrap();
                let last = std::fs::metadata(&path).unwrap().len() as usize - 1;
                (path, last)
            }
        };
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[at] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let file = path.strip_prefix(&data).unwrap().display().to_string();
        let found = queue(dir.path(), &["verify", "--data", "data"]);
        assert!(found.ended_with(3).stdout.contains(&format!("damage: {file}, ")), "{}", found.stdout);
        let repaired = queue(dir.path(), &["repair", "--data", "data", "--json"]);
        repaired.ended_with(3);
        let report = json(&repaired);
        assert_eq!(report["failed"].as_array().unwrap().len(), 1, "{report}");
        assert_eq!(report["left"].as_array().unwrap().len(), 0, "{report}");
        queue(dir.path(), &["verify", "--data", "data"]).ended_with(0);
        queue(dir.path(), &["repair", "--data", "data"]).ended_with(0);
        let listed = outhaul(dir.path(), &["failed", "ls", "--data", "data"]);
        assert!(listed.ended_with(0).stdout.contains("unreadable"), "{}", listed.stdout);
        queue(dir.path(), &["export", "--data", "data"]).ended_with(0).has("1 event is written");
    }
}

#[test]
fn a_directory_without_its_format_is_told_what_is_there_and_is_not_changed() {
    for (engine, holds) in
        [("journal", "a journal: segments in log: "), ("spool", "a spool with the directories outhaul-h")]
    {
        let dir = tempfile::tempdir().unwrap();
        let to = format!("h={NOWHERE}");
        let args = ["--to", &to, "--engine", engine, "--data", "data", "--timeout", "100ms"];
        pipe(dir.path(), &args, event("1", "p")).ended_with(4);
        let format = dir.path().join("data/format");
        let good = std::fs::read(&format).unwrap();
        for (content, told) in [
            (None, "is missing"),
            (Some("{\"engine\":"), "is damaged"),
            (Some("{\"engine\":\"jourmal\",\"format\":1,\"written_by\":\"0.1.0\"}"), "is damaged"),
        ] {
            match content {
                None => std::fs::remove_file(&format).unwrap(),
                Some(content) => std::fs::write(&format, content).unwrap(),
            }
            let before = files(&dir.path().join("data"));
            for (verb, _) in VERBS {
                let ended = outhaul(dir.path(), &[verb, &["--data", "data"]].concat());
                ended.ended_with(1).has(told).has(holds).has("outhaul queue verify --data data");
            }
            pipe(dir.path(), &args, "").ended_with(1).has(told).has(holds);
            assert!(before == files(&dir.path().join("data")), "nothing is changed");
        }
        // What is told to be written makes it good again.
        let ended = queue(dir.path(), &["verify", "--data", "data"]);
        let line = ended.stderr.lines().find(|line| line.contains("printf")).unwrap().trim().to_owned();
        let command = line.split_once("printf").map(|(_, rest)| format!("printf{rest}")).unwrap();
        let mut shell = std::process::Command::new("sh");
        Running::start(shell.args(["-c", &command]).current_dir(dir.path())).end().ended_with(0);
        assert_eq!(std::fs::read(&format).unwrap(), good);
        queue(dir.path(), &["verify", "--data", "data"]).ended_with(0);
    }
}

/// Whether this system tells who holds a lock.
fn tells_locks() -> bool {
    let dir = tempfile::tempdir().unwrap();
    let file = std::fs::File::create(dir.path().join("lock")).unwrap();
    file.lock().unwrap();
    let meta = file.metadata().unwrap();
    let (device, inode) = {
        use std::os::unix::fs::MetadataExt as _;
        (meta.dev(), meta.ino())
    };
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let own = format!(" {} {major:02x}:{minor:02x}:{inode} ", std::process::id());
    std::fs::read_to_string("/proc/locks").is_ok_and(|locks| locks.contains(&own))
}

/// Each verb on a directory at rest, with what is left for it to say about an empty one.
const VERBS: [(&[&str], i32); 11] = [
    (&["queue", "stat"], 0),
    (&["queue", "ls"], 0),
    (&["queue", "show", "a:1"], 1),
    (&["queue", "verify"], 0),
    (&["queue", "repair"], 0),
    (&["queue", "export"], 0),
    (&["failed", "ls"], 0),
    (&["failed", "show", "a:1"], 1),
    (&["failed", "requeue", "a:1"], 1),
    (&["failed", "discard", "--all"], 0),
    (&["failed", "export"], 0),
];

#[test]
fn a_directory_that_is_none_is_refused_by_every_verb() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), "").unwrap();
    std::fs::create_dir(dir.path().join("photos")).unwrap();
    std::fs::write(dir.path().join("photos/holiday.jpg"), "x").unwrap();
    std::fs::create_dir(dir.path().join("other")).unwrap();
    let newer = r#"{"engine":"paper","format":7,"written_by":"9.8.7"}"#;
    std::fs::write(dir.path().join("other/format"), newer).unwrap();
    for (verb, _) in VERBS {
        for (data, code, told) in [
            ("nowhere", 2, "there is no data directory at nowhere"),
            ("file", 2, "file is not a directory"),
            ("photos", 2, "photos is not empty and is no data directory of outhaul"),
            ("other", 1, "written by outhaul 9.8.7"),
        ] {
            let ended = outhaul(dir.path(), &[verb, &["--data", data]].concat());
            ended.ended_with(code).has(told);
            assert_eq!(ended.stdout, "", "{verb:?} {data}");
        }
    }
    assert!(!dir.path().join("nowhere").exists());
    assert_eq!(std::fs::read_dir(dir.path().join("photos")).unwrap().count(), 1);
}

#[test]
fn an_empty_directory_stays_empty() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("empty")).unwrap();
    for (verb, code) in VERBS {
        outhaul(dir.path(), &[verb, &["--data", "empty"]].concat()).ended_with(code);
        assert!(files(&dir.path().join("empty")).is_empty(), "{verb:?}");
    }
    queue(dir.path(), &["stat", "--data", "empty"]).ended_with(0).has("no queues in empty");
    queue(dir.path(), &["ls", "--data", "empty"]).ended_with(0).has("nothing waits in empty");
    let listed = queue(dir.path(), &["ls", "--data", "empty", "--json"]);
    assert_eq!(listed.ended_with(0).stdout, "[]\n");
    let told = queue(dir.path(), &["ls", "--data", "empty", "--target", "a"]);
    told.ended_with(2).has("it knows no target yet");
}

#[test]
fn a_directory_in_use_is_refused_by_every_verb() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(dir.path(), &["--to", "file:out"]);
    for (verb, _) in VERBS {
        let ended = outhaul(dir.path(), &[verb, &["--data", "data"]].concat());
        let pid = relay.running.child.id();
        ended
            .ended_with(1)
            .has("error: the data directory is in use by another process\n  where: data\n  why:   ");
        // Some systems do not tell.
        assert!(
            ended.stderr.contains(&format!("process {pid} has it locked")) || !tells_locks(),
            "{}",
            ended.stderr
        );
        ended.has("  help:  stop that process");
        assert_eq!(ended.stdout, "", "{verb:?}");
    }
    relay.running.signal(rustix::process::Signal::TERM);
    relay.running.end().ended_with(0);
    for verb in ["stat", "verify"] {
        queue(dir.path(), &[verb, "--data", "data"]).ended_with(0);
    }
}
