//! `outhaul pipe`: one run over an input.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::receiver::{Act, Receiver};
use crate::support::{Summary, event, ids, orders, pipe, start_pipe, temporary, until, values};

#[test]
fn the_example_arrives_once_and_in_order_per_pid() {
    let dir = tempfile::tempdir().unwrap();
    let input = std::fs::read(orders()).unwrap();
    let ended = pipe(dir.path(), &["--to", "file:out.ndjson"], input);
    ended.ended_with(0);
    let all = Summary { read: 1000, durable: 1000, delivered: 1000, ..Summary::default() };
    assert_eq!(ended.summary(), all);
    assert_eq!(ended.stdout, "");
    assert_eq!(temporary(dir.path()), [""; 0].map(Into::<std::path::PathBuf>::into));

    let (sent, got) = (values(&orders()), values(&dir.path().join("out.ndjson")));
    let by_pid = |events: &[Value]| {
        let mut pids: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for event in events {
            pids.entry(event["partitionkey"].to_string()).or_default().push(event.clone());
        }
        pids
    };
    assert_eq!(by_pid(&sent), by_pid(&got));
}

#[test]
fn each_target_gets_everything_and_standard_output_holds_events_only() {
    let dir = tempfile::tempdir().unwrap();
    let targets = ["--to", "a=file:a", "--to", "b=file:b", "--to", "stdout:?outhaul.format=body"];
    let ended = pipe(dir.path(), &targets, "{\"n\":1.50}\n[2]\r\n\n\"drei\"");
    ended.ended_with(0);
    assert_eq!(
        ended.summary(),
        Summary { read: 4, skipped: 1, durable: 9, delivered: 9, ..Summary::default() }
    );
    // Events without a pid have no order between them.
    let mut lines: Vec<&str> = ended.stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["\"drei\"", "[2]", "{\"n\":1.50}"]);
    let (a, b) = (values(&dir.path().join("a")), values(&dir.path().join("b")));
    let sorted = |values: &[Value]| {
        let mut ids: Vec<String> = values.iter().map(|value| value["id"].to_string()).collect();
        ids.sort_unstable();
        ids
    };
    assert_eq!(sorted(&a), sorted(&b));
    assert_eq!((&a[0]["source"], &a[0]["type"]), (&"outhaul:pipe".into(), &"outhaul.json".into()));
    assert!(a[0]["time"].is_string() && a[0]["id"] != a[1]["id"]);
}

#[test]
fn the_summary_can_be_json() {
    let dir = tempfile::tempdir().unwrap();
    let ended = pipe(dir.path(), &["--to", "file:x", "--summary", "json"], "\u{feff}1\n2\n");
    ended.ended_with(0);
    let summary: Value = serde_json::from_str(ended.stderr.lines().last().unwrap()).unwrap();
    let keys: Vec<_> = summary.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, ["delivered", "durable", "failed", "read", "retried", "seconds", "skipped", "waiting"]);
    assert_eq!((&summary["read"], &summary["delivered"]), (&2.into(), &2.into()));
}

#[test]
fn a_bad_line_is_named_and_the_lines_before_it_are_delivered() {
    let dir = tempfile::tempdir().unwrap();
    let given = |rest: &str| format!("{{\"specversion\":\"1.0\",\"id\":\"1\",\"source\":\"/s\"{rest}}}");
    let large = format!("\"{}\"", "x".repeat(1024 * 1024));
    let endless = "x".repeat(9 * 1024 * 1024);
    for (i, (line, column, what)) in [
        (b"{\"a\":x}".to_vec(), 6, "it is not JSON: expected a value"),
        (b"\"\xC3\x28\"".to_vec(), 2, "0xC3 is not valid UTF-8"),
        ("{\"ä\":1,}".into(), 9, "a comma stands before"),
        (b"1 2".to_vec(), 3, "something follows behind the value"),
        (b"{".to_vec(), 1, "it ends inside of an object"),
        (given("").into_bytes(), 44, "`type` is missing"),
        (given(",\"type\":\"\"").into_bytes(), 54, "`type` is empty"),
        (given(",\"type\":\"t\",\"time\":\"yesterday\"").into_bytes(), 74, "`time` is not an RFC 3339 time"),
        (given(",\"type\":\"t\",\"type\":\"t\"").into_bytes(), 61, "twice"),
        (given(",\"type\":\"t\",\"partitionkey\":\"\"").into_bytes(), 73, "`partitionkey` is empty"),
        (large.into_bytes(), 1, "at most 1048576 are allowed"),
        (endless.into_bytes(), 8 * 1024 * 1024 + 1, "longer than 8 MiB"),
        (b"{\"o\":null}".to_vec(), 6, "is null"),
        (b"{\"o\":1.5}".to_vec(), 6, "no integer"),
        (b"{\"o\":\"\"}".to_vec(), 6, "`partitionkey` is empty"),
        (b"{\"o\":1,\"o\":2}".to_vec(), 10, "`o` is given twice"),
    ]
    .into_iter()
    .enumerate()
    {
        let out = format!("out{i}");
        let input = [b"1\n\n2\r\n".to_vec(), line, b"\n4\n".to_vec()].concat();
        let to = format!("file:{out}");
        let ended = pipe(dir.path(), &["--to", &to, "--pid-field", "o"], input);
        ended.ended_with(2).has(&format!("line 4, column {column}\n")).has(what);
        assert_eq!(values(&dir.path().join(out)).len(), 2);
        assert_eq!((ended.summary().delivered, ended.summary().waiting), (2, 0), "{}", ended.stderr);
    }
}

#[test]
fn the_pid_is_taken_from_a_field_and_a_partitionkey_wins() {
    let dir = tempfile::tempdir().unwrap();
    let input = [
        "{\"order\":{\"id\":\"x\"}}\n{\"order\":{\"id\":7}}\n{\"order\":{}}\n[1]\n".to_owned(),
        event("1", "own"),
        "{\"specversion\":\"1.0\",\"id\":\"2\",\"source\":\"/s\",\"type\":\"t\",\"order\":\"-\"}\n"
            .to_owned(),
    ]
    .concat();
    pipe(dir.path(), &["--to", "file:x", "--pid-field", "/order/id"], input).ended_with(0);
    let pids: Vec<_> = values(&dir.path().join("x"))
        .iter()
        .map(|event| event["partitionkey"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(pids, [Some("x"), Some("7"), None, None, Some("own"), None].map(|pid| pid.map(str::to_owned)));
}

#[test]
fn the_pid_of_a_cloudevent_is_taken_from_its_data_too() {
    let given = |rest: &str| {
        format!("{{\"specversion\":\"1.0\",\"id\":\"1\",\"source\":\"/s\",\"type\":\"t\",\"data\":{rest}}}\n")
    };
    for (field, data) in [("order", "{\"order\":7}"), ("/order/id", "{\"order\":{\"id\":\"7\"}}")] {
        let dir = tempfile::tempdir().unwrap();
        pipe(dir.path(), &["--to", "file:x", "--pid-field", field], given(data)).ended_with(0);
        assert_eq!(values(&dir.path().join("x"))[0]["partitionkey"], "7");
    }
    let dir = tempfile::tempdir().unwrap();
    let ended = pipe(dir.path(), &["--to", "file:x", "--pid-field", "order"], given("{\"order\":[7]}"));
    ended.ended_with(2).has("line 1, column 72").has("is an array");
}

#[test]
fn equal_ids_of_two_sources_are_two_events() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::new(|_| Act::Status(200));
    let of =
        |source| format!("{{\"specversion\":\"1.0\",\"id\":\"1\",\"source\":\"{source}\",\"type\":\"t\"}}\n");
    let uri = receiver.uri("");
    let ended = pipe(dir.path(), &["--to", "file:x", "--to", &uri], of("/a") + &of("/b"));
    ended.ended_with(0);
    assert_eq!(values(&dir.path().join("x")).len(), 2);
    let arrivals = receiver.arrivals();
    assert_eq!(arrivals.len(), 2);
    assert_ne!(arrivals[0].header("webhook-id"), arrivals[1].header("webhook-id"));
}

#[test]
fn lines_are_delivered_as_they_come() {
    let dir = tempfile::tempdir().unwrap();
    let mut running = start_pipe(dir.path(), &["--to", "file:x"]);
    let mut stdin = running.child.stdin.take().unwrap();
    for n in 1..=3 {
        std::io::Write::write_all(&mut stdin, format!("{n}\n").as_bytes()).unwrap();
        until("a delivery", || (values(&dir.path().join("x")).len() == n).then_some(()));
    }
    drop(stdin);
    running.end().ended_with(0);
}

#[test]
fn a_small_queue_makes_the_input_wait() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::new(|_| Act::Status(200));
    let input: String = (0..500).map(|n| event(&n.to_string(), &(n % 7).to_string())).collect();
    let uri = receiver.uri("outhaul.queue_entries=10");
    let ended = pipe(dir.path(), &["--to", &uri], input);
    ended.ended_with(0);
    assert_eq!(ended.summary().delivered, 500);
    assert_eq!(receiver.arrivals().len(), 500);
}

#[test]
fn large_events_go_through_a_queue_with_room_for_two() {
    let dir = tempfile::tempdir().unwrap();
    let input: String = (0..30).map(|n| format!("\"{n}{}\"\n", "x".repeat(1_000_000))).collect();
    let ended = pipe(dir.path(), &["--to", "file:x?outhaul.queue_bytes=2100000"], input);
    assert_eq!(ended.ended_with(0).summary().delivered, 30);
    assert_eq!(values(&dir.path().join("x")).len(), 30);
}

#[test]
fn an_event_that_fits_no_queue_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let input = format!("1\n\"{}\"\n", "x".repeat(2000));
    let ended = pipe(dir.path(), &["--to", "file:x?outhaul.queue_bytes=1KiB"], input);
    ended.ended_with(2).has("line 2, target file");
    assert_eq!(ended.summary().delivered, 1);
}

#[test]
fn an_input_that_cannot_be_read_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = crate::support::program();
    let input = std::fs::File::open(dir.path()).unwrap();
    command.args(["pipe", "--to", "file:x", "--data", "data"]).current_dir(dir.path()).stdin(input);
    let ended = crate::support::Running::start(&mut command).end();
    ended.ended_with(1).has("standard input cannot be read");
    assert_eq!(ended.summary(), Summary::default());
}

#[test]
fn an_empty_input_is_done_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let ended = pipe(dir.path(), &["--to", "file:x"], "");
    ended.ended_with(0);
    assert_eq!(ended.summary(), Summary::default());
    assert!(ids(&values(&dir.path().join("x"))).is_empty());
}
