//! `outhaul pipe --data`: a second run over what the first one left.

use std::collections::BTreeSet;
use std::io::Write as _;

use rustix::process::Signal;

use crate::receiver::{Act, Receiver};
use crate::support::{
    Relay, Summary, event, pipe, program, segment_with, start_pipe, temporary, until, values,
};

fn lines(from: u32, to: u32) -> String {
    (from..=to).map(|n| event(&n.to_string(), &(n % 5).to_string())).collect()
}

const TO: [&str; 4] = ["--to", "file:out", "--data", "data"];

fn delivered(dir: &std::path::Path) -> Vec<u64> {
    values(&dir.join("out")).iter().map(|event| event["id"].as_str().unwrap().parse().unwrap()).collect()
}

#[test]
fn the_same_input_goes_on_behind_its_known_lines() {
    let dir = tempfile::tempdir().unwrap();
    pipe(dir.path(), &TO, lines(1, 10)).ended_with(0);
    let again = pipe(dir.path(), &TO, lines(1, 10));
    again.ended_with(0).has("this input is known");
    assert_eq!(again.summary(), Summary { read: 10, skipped: 10, ..Summary::default() });
    let longer = pipe(dir.path(), &TO, lines(1, 15));
    assert_eq!(longer.ended_with(0).summary().durable, 5);
    assert_eq!(delivered(dir.path()).into_iter().collect::<BTreeSet<_>>(), (1..=15).collect());
    assert_eq!(delivered(dir.path()).len(), 15);
}

#[test]
fn another_input_is_a_new_one() {
    let dir = tempfile::tempdir().unwrap();
    pipe(dir.path(), &TO, lines(1, 5)).ended_with(0);
    let other = pipe(dir.path(), &TO, lines(3, 8));
    other.ended_with(0).has("not the one that the data directory remembers");
    assert_eq!(other.summary().durable, 6);
    let again = pipe(dir.path(), &[&TO[..], &["--from-start"]].concat(), lines(3, 8));
    assert_eq!(again.ended_with(0).summary().durable, 6);
}

#[test]
fn a_difference_behind_the_first_thousand_lines_admits_nothing() {
    let dir = tempfile::tempdir().unwrap();
    pipe(dir.path(), &TO, lines(1, 1500)).ended_with(0);
    for input in [lines(1, 1200) + &lines(9000, 9400), lines(1, 1200)] {
        let ended = pipe(dir.path(), &TO, input);
        ended.ended_with(2).has("is another one").has("--from-start");
        assert_eq!(ended.summary().durable, 0);
    }
    assert_eq!(delivered(dir.path()).len(), 1500);
}

#[test]
fn a_corrected_line_is_where_the_next_run_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    pipe(dir.path(), &TO, lines(1, 3) + "{oops}\n" + &lines(5, 6)).ended_with(2).has("line 4, column 2");
    let ended = pipe(dir.path(), &TO, lines(1, 6));
    assert_eq!(ended.ended_with(0).summary().durable, 3);
    assert_eq!(delivered(dir.path()).into_iter().collect::<BTreeSet<_>>(), (1..=6).collect());
    assert_eq!(delivered(dir.path()).len(), 6);
}

#[test]
fn a_run_that_is_killed_at_any_moment_loses_and_doubles_no_line() {
    let dir = tempfile::tempdir().unwrap();
    // No target is up, so each line that was admitted is in the directory, once.
    let args = ["--to", "hook=http://127.0.0.1:1/", "--data", "data"];
    let input = lines(1, 20_000);
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..8 {
        let mut running = start_pipe(dir.path(), &args);
        let mut stdin = running.child.stdin.take().unwrap();
        let until_line = random.usize(1..20_000);
        let part: String = input.split_inclusive('\n').take(until_line).collect();
        let writer = std::thread::spawn(move || stdin.write_all(part.as_bytes()).unwrap_or_default());
        // bounded: less than 60 ms
        std::thread::sleep(std::time::Duration::from_millis(random.u64(10..60)));
        running.kill();
        writer.join().unwrap();
    }
    let args = [&args[..], &["--timeout", "1s"]].concat();
    let ended = pipe(dir.path(), &args, input.as_str());
    assert_eq!(ended.ended_with(4).summary().waiting, 20_000);
    assert_eq!(ended.summary().read, 20_000);
    // What waits is delivered to another place now.
    let args = ["--to", "hook=file:out", "--repoint", "hook", "--data", "data"];
    pipe(dir.path(), &args, input.as_str()).ended_with(0);
    let mut all = delivered(dir.path());
    for pid in 0..5 {
        assert!(all.iter().filter(|n| **n % 5 == pid).is_sorted(), "the order of {pid} is that of the input");
    }
    all.sort_unstable();
    assert_eq!(all, (1..=20_000).collect::<Vec<_>>());
}

#[test]
fn an_interrupted_run_ends_with_130_and_the_next_one_delivers_the_rest() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let dir = tempfile::tempdir().unwrap();
        let receiver = Receiver::new(|_| Act::Hang);
        let options = "outhaul.timeout=300ms&outhaul.trial_backoff=20ms&outhaul.trial_backoff_max=50ms";
        let uri = receiver.uri(options);
        let args = ["--to", &uri, "--data", "data"];
        let mut running = start_pipe(dir.path(), &args);
        running.child.stdin.take().unwrap().write_all(lines(1, 20).as_bytes()).unwrap();
        until("an attempt", || (!receiver.arrivals().is_empty()).then_some(()));
        running.signal(signal);
        let ended = running.end();
        ended.ended_with(130).has("left in data: webhook: 20 entries");
        assert_eq!(ended.summary().waiting, 20);
        receiver.rule(|_| Act::Status(204));
        assert_eq!(pipe(dir.path(), &args, lines(1, 20)).ended_with(0).summary().delivered, 20);
    }
}

#[test]
fn a_second_signal_ends_it_at_once_and_the_summary_is_still_last() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::new(|_| Act::Hang);
    let uri = receiver.uri("outhaul.timeout=50s");
    let args = ["--to", &uri, "--data", "data"];
    let mut running = start_pipe(dir.path(), &args);
    running.child.stdin.take().unwrap().write_all(b"1\n").unwrap();
    until("an attempt", || (!receiver.arrivals().is_empty()).then_some(()));
    running.signal(Signal::INT);
    until("the interruption", || running.stderr().contains("interrupted").then_some(()));
    let start = std::time::Instant::now();
    running.signal(Signal::INT);
    let ended = running.end();
    assert!(start.elapsed().as_millis() < 4500);
    assert_eq!(ended.ended_with(130).summary().waiting, 1);
    assert!(!ended.stderr.contains("ERROR"), "{}", ended.stderr);
    receiver.rule(|_| Act::Status(200));
    assert_eq!(pipe(dir.path(), &args, "1\n").ended_with(0).summary().delivered, 1);
}

#[test]
fn a_reader_of_standard_output_that_goes_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut shell = std::process::Command::new("sh");
    let outhaul = env!("CARGO_BIN_EXE_outhaul");
    let script = format!("(seq 1 20000 | {outhaul} pipe --to stdout: --data data; echo $? > code) | head -1");
    let ended = crate::support::Running::start(shell.args(["-c", &script]).current_dir(dir.path())).end();
    ended.has("nobody reads standard output any more");
    assert!(ended.summary().waiting > 0);
    assert_eq!(std::fs::read_to_string(dir.path().join("code")).unwrap(), "4\n");
}

#[test]
fn an_interrupted_input_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut running = start_pipe(dir.path(), &TO);
    let mut stdin = running.child.stdin.take().unwrap();
    stdin.write_all(lines(1, 4).as_bytes()).unwrap();
    until("deliveries", || (delivered(dir.path()).len() == 4).then_some(()));
    running.signal(Signal::INT);
    running.end().ended_with(130).has("was not read to its end");
    assert_eq!(pipe(dir.path(), &TO, lines(1, 9)).ended_with(0).summary().durable, 5);
    assert_eq!(delivered(dir.path()).len(), 9);
}

#[test]
fn a_timeout_leaves_what_waits_on_disk_and_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let ended = pipe(dir.path(), &["--to", "http://127.0.0.1:1/", "--timeout", "300ms"], lines(1, 3));
    ended.ended_with(4);
    assert_eq!(ended.summary().waiting, 3);
    let left = temporary(dir.path());
    assert_eq!(left.len(), 1, "{left:?}");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&left[0]).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o700);
    let data = left[0].to_str().unwrap();
    ended.has(&format!("left in {data}: webhook: 3 entries")).has("connection_refused");
    // The command that is shown delivers it, to where the target is now.
    ended.has(&format!("outhaul pipe --data {data} --to http://127.0.0.1:1/ < /dev/null"));
    let args = ["--data", data, "--to", "webhook=file:out", "--repoint", "webhook"];
    assert_eq!(pipe(dir.path(), &args, "").ended_with(0).summary().delivered, 3);
}

#[test]
fn a_target_that_is_not_given_this_time_leaves_orphans() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--to", "down=http://127.0.0.1:1/", "--to", "file:out", "--data", "data"];
    pipe(dir.path(), &[&args[..], &["--timeout", "200ms"]].concat(), lines(1, 3)).ended_with(4);
    let ended = pipe(dir.path(), &TO, lines(1, 4));
    ended.ended_with(4).has("down: 3 entries (an orphan");
    assert_eq!(ended.summary().delivered, 1);
    assert_eq!(ended.summary().waiting, 3);
}

#[test]
fn a_target_that_moved_is_refused_while_entries_wait() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--to", "http://127.0.0.1:1/", "--data", "data", "--timeout", "200ms"];
    pipe(dir.path(), &args, lines(1, 3)).ended_with(4);
    let moved = ["--to", "webhook=file:out", "--data", "data"];
    pipe(dir.path(), &moved, "").ended_with(2).has("--repoint webhook").has("3 entries");
    assert_eq!(delivered(dir.path()).len(), 0);
    pipe(dir.path(), &[&moved[..], &["--repoint", "webhook"]].concat(), "").ended_with(0);
    assert_eq!(delivered(dir.path()).len(), 3);
}

#[test]
fn a_directory_in_use_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = start_pipe(dir.path(), &TO);
    let mut stdin = first.child.stdin.take().unwrap();
    stdin.write_all(b"1\n").unwrap();
    until("a delivery", || (values(&dir.path().join("out")).len() == 1).then_some(()));
    pipe(dir.path(), &TO, "2\n").ended_with(1).has("in use by another process");
    let mut failed = program();
    failed.args(["failed", "ls", "--data", "data"]).current_dir(dir.path());
    crate::support::Running::start(&mut failed).end().ended_with(1).has("in use by another process");
    drop(stdin);
    first.end().ended_with(0);
}

#[test]
fn a_directory_that_is_something_else_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("data")).unwrap();
    std::fs::write(dir.path().join("data/letters.txt"), "dear").unwrap();
    pipe(dir.path(), &TO, "1\n").ended_with(2).has("is no data directory");
    std::fs::write(dir.path().join("file"), "").unwrap();
    pipe(dir.path(), &["--to", "file:out", "--data", "file/data"], "1\n").ended_with(1).has("file/data");
    assert!(!dir.path().join("out").exists());
}

#[test]
fn a_hangup_that_is_to_be_ignored_is_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let mut shell = std::process::Command::new("sh");
    let outhaul = env!("CARGO_BIN_EXE_outhaul");
    let script = format!("trap '' HUP; exec {outhaul} pipe --to file:out --data data");
    shell.args(["-c", &script]).current_dir(dir.path()).stdin(std::process::Stdio::piped());
    let mut running = crate::support::Running::start(&mut shell);
    let mut stdin = running.child.stdin.take().unwrap();
    stdin.write_all(lines(1, 1).as_bytes()).unwrap();
    until("a delivery", || (delivered(dir.path()).len() == 1).then_some(()));
    running.signal(Signal::HUP);
    stdin.write_all(lines(2, 2).as_bytes()).unwrap();
    drop(stdin);
    assert_eq!(running.end().ended_with(0).summary().delivered, 2);
}

#[test]
fn a_timeout_counts_only_if_something_waits_when_attempts_under_way_have_ended() {
    let dir = tempfile::tempdir().unwrap();
    // The answer comes when the time is over.
    let (open, gate) = std::sync::mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    let receiver = Receiver::new(move |arrival| {
        // What has no id is a probe.
        if !arrival.id().is_empty() {
            gate.lock().unwrap().recv_timeout(crate::support::LONG).unwrap();
        }
        Act::Status(200)
    });
    let mut running =
        start_pipe(dir.path(), &["--to", &receiver.uri("outhaul.timeout=50s"), "--timeout", "2s"]);
    running.child.stdin.take().unwrap().write_all(b"1\n").unwrap();
    until("the end of the time", || running.stderr().contains("is over").then_some(()));
    open.send(()).unwrap();
    let ended = running.end();
    ended.ended_with(0);
    assert_eq!((ended.summary().delivered, ended.summary().waiting), (1, 0));
    assert!(temporary(dir.path()).is_empty());

    for _ in 0..20 {
        let ended = pipe(dir.path(), &["--to", "file:out", "--timeout", "1ms"], lines(1, 3));
        let waiting = ended.summary().waiting;
        ended.ended_with(if waiting == 0 { 0 } else { 4 });
    }
}

#[test]
fn an_unfinished_write_is_told_and_nothing_else_comes_of_it() {
    for relay in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let down = ["--to", "h=http://127.0.0.1:1/", "--data", "data"];
        let mut running = start_pipe(dir.path(), &down);
        let mut stdin = running.child.stdin.take().unwrap();
        stdin.write_all(lines(1, 3).as_bytes()).unwrap();
        let segment = until("the write", || segment_with(&dir.path().join("data"), b"{\"id\":\"3\"}"));
        running.kill();
        // As if the power had gone while the last batch was written.
        let bytes = std::fs::read(&segment).unwrap();
        let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
        std::fs::write(&segment, &bytes[..end - 4]).unwrap();
        let told = "an unfinished write of ";
        let stderr = if relay {
            let relay = Relay::start(dir.path(), &["--to", "h=http://127.0.0.1:1/"]);
            relay.stop().ended_with(0).has(told).stderr.clone()
        } else {
            let args = ["--to", "h=file:out", "--repoint", "h", "--data", "data"];
            pipe(dir.path(), &args, "").ended_with(0).has(told).stderr.clone()
        };
        assert_eq!(stderr.matches("note: an unfinished write").count(), 1, "{stderr}");
    }
}
