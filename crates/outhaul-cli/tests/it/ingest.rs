//! `POST /events`: every form, every refusal.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{LONG, Relay, event, ids, program, read_reply, request, until, values};

const CE: &str = r#"{"specversion":"1.0","id":"e1","source":"/s","type":"t","data":{"n":1.50}}"#;

fn relay(dir: &std::path::Path) -> Relay {
    Relay::start(dir, &["--to", "file:out"])
}

#[test]
fn every_form_is_taken_and_answered_when_it_is_durable() {
    let dir = tempfile::tempdir().unwrap();
    let relay = relay(dir.path());
    let batch = format!("[{CE},\n{}]", CE.replace("e1", "e2"));
    for (content_type, body, expected) in [
        ("application/json", "{\"a\":1}", &[""][..]),
        ("application/json", "[1,2]", &[""]),
        ("application/json; charset=utf-8", CE, &["e1"]),
        ("application/cloudevents+json", CE, &["e1"]),
        ("application/cloudevents-batch+json", &batch, &["e1", "e2"]),
        ("application/cloudevents-batch+json", "[]", &[]),
        ("application/x-ndjson", &format!("\u{feff}{CE}\r\n\n7"), &["e1", ""]),
    ] {
        let reply = relay.post(content_type, body);
        assert_eq!((reply.status, reply.header("content-type")), (202, Some("application/json")), "{body}");
        let answer = reply.json();
        assert_eq!(answer["durable"], true);
        let accepted = answer["accepted"].as_array().unwrap();
        assert_eq!(accepted.len(), expected.len(), "{answer}");
        for (one, id) in accepted.iter().zip(expected) {
            assert!(id.is_empty() || one["id"] == **id, "{answer}");
            assert_eq!((one["dedup_id"].as_str().unwrap().len(), &one["targets"]), (36, &json!(["file"])));
        }
    }
    let out = dir.path().join("out");
    until("the deliveries", || (values(&out).len() == 8).then_some(()));
    let got = values(&out);
    assert_eq!(got.iter().filter(|event| event["source"] == "outhaul:http").count(), 3);
    assert!(std::fs::read_to_string(&out).unwrap().contains("\"data\":{\"n\":1.50}"));
    assert_eq!(ids(&got).iter().filter(|id| **id == "e1").count(), 4);
    relay.stop().ended_with(0);
}

#[test]
fn binary_mode_is_any_type_with_attributes_as_headers() {
    let dir = tempfile::tempdir().unwrap();
    let relay = relay(dir.path());
    let send = |headers: &[(&str, &str)], body: &[u8]| {
        request(relay.address, "POST", "/events", headers, body).unwrap()
    };
    let base = [("ce-specversion", "1.0"), ("ce-id", "b%C3%A4"), ("ce-source", "/s"), ("ce-type", "t")];
    let with = |more: &[(&'static str, &'static str)]| [&base[..], more].concat();
    let reply =
        send(&with(&[("content-type", "image/png"), ("ce-partitionkey", "p"), ("ce-x", "1")]), b"\x89PNG");
    assert_eq!((reply.status, &reply.json()["accepted"][0]["id"]), (202, &"bä".into()));
    assert_eq!(send(&with(&[("content-type", "text/plain")]), b"hi").status, 202);
    assert_eq!(send(&base, b"").status, 202);
    let out = dir.path().join("out");
    until("the deliveries", || (values(&out).len() == 3).then_some(()));
    let first = &values(&out)[0];
    assert_eq!(
        (&first["data_base64"], &first["partitionkey"], &first["x"]),
        (&"iVBORw==".into(), &"p".into(), &"1".into())
    );

    for (headers, what) in [
        (with(&[("ce-subject", "%zz")]), "ce-subject"),
        (with(&[("ce-id", "2")]), "given twice"),
        (with(&[("ce-time", "now")]), "time"),
        (base[..3].to_vec(), "`type` is missing"),
        (vec![("ce-specversion", "0.3")], "ce-specversion"),
    ] {
        let problem = send(&headers, b"").problem(400, "invalid_event");
        let fault = &problem["errors"][0];
        assert!(fault["message"].as_str().unwrap().contains(what), "{problem}");
        assert_eq!(
            (&fault["index"], &fault["line"], &fault["column"]),
            (&0.into(), &Value::Null, &Value::Null)
        );
    }
    let long = "x".repeat(2000);
    let headers = [&base[..], &[("ce-subject", long.as_str())]].concat();
    send(&headers, b"").problem(413, "too_large");
    // The most and longest headers that an event may have arrive.
    let long = "%20".repeat(240);
    let many: Vec<_> = (0..64).map(|n| (format!("ce-x{n}"), long.as_str())).collect();
    let many: Vec<_> = base.iter().copied().chain(many.iter().map(|(n, v)| (n.as_str(), *v))).collect();
    assert_eq!(send(&many, b"").status, 202);
    let mut more = many.clone();
    more.push(("ce-y", "1"));
    send(&more, b"").problem(413, "too_large");
    relay.stop().ended_with(0);
}

#[test]
fn a_body_that_is_bad_in_any_part_admits_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let relay = relay(dir.path());
    let bad = CE.replace("\"e1\"", "\"\"");
    for (content_type, body, places) in [
        ("application/json", "{\n \"a\": }".to_owned(), &[(0, 2, 7)][..]),
        ("application/json", String::new(), &[(0, 1, 1)]),
        ("application/json", "{\"specversion\":\"1.0\"}".to_owned(), &[(0, 1, 21)]),
        ("application/cloudevents+json", "{}".to_owned(), &[(0, 1, 2)]),
        ("application/x-ndjson", format!("{CE}\n\n{{x}}\n{bad}"), &[(1, 3, 2), (2, 4, 28)]),
        ("application/cloudevents-batch+json", format!("[{CE},\n {bad}]"), &[(1, 2, 29)]),
        ("application/cloudevents-batch+json", CE.to_owned(), &[(0, 1, 1)]),
    ] {
        let problem = relay.post(content_type, &body).problem(400, "invalid_event");
        let number = |fault: &Value, key: &str| fault[key].as_u64().unwrap();
        let found: Vec<_> = problem["errors"]
            .as_array()
            .unwrap()
            .iter()
            .map(|fault| (number(fault, "index"), number(fault, "line"), number(fault, "column")))
            .collect();
        assert_eq!(found.len(), places.len(), "{problem}");
        for (found, place) in found.iter().zip(places) {
            assert_eq!((found.0, found.1), (place.0, place.1), "{body}: {problem}");
            assert!(found.2.abs_diff(place.2) <= 1, "{body}: {problem}");
        }
    }
    let mut latin = b"{\"a\":\"".to_vec();
    latin.extend(b"\xE4\"}");
    relay.post("application/json", latin).problem(400, "invalid_event");
    assert_eq!(relay.target("file")["admitted"], 0);
    relay.stop().ended_with(0);
}

#[test]
fn limits_are_told_with_413() {
    let dir = tempfile::tempdir().unwrap();
    let relay = relay(dir.path());
    let most = "1\n".repeat(10_000);
    assert_eq!(relay.post("application/x-ndjson", &most).status, 202);
    relay.post("application/x-ndjson", most + "1\n").problem(413, "too_large");
    let large = format!("\"{}\"", "x".repeat(1024 * 1024));
    let problem = relay.post("application/json", large).problem(413, "too_large");
    assert_eq!(problem["errors"][0]["index"], 0);
    relay.post("application/json", " ".repeat(17 * 1024 * 1024)).problem(413, "too_large");

    // Without a length, and without an end.
    let mut stream = TcpStream::connect(relay.address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let head = "POST /events HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n\
                transfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let chunk = [b"100000\r\n".to_vec(), vec![b' '; 0x10_0000], b"\r\n".to_vec()].concat();
    let mut sender = stream.try_clone().unwrap();
    let sending = std::thread::spawn(move || (0..200).all(|_| sender.write_all(&chunk).is_ok()));
    let mut status = [0; 12];
    stream.read_exact(&mut status).unwrap();
    assert_eq!(&status, b"HTTP/1.1 413");
    drop(stream);
    sending.join().unwrap();

    // With a length that is too long it is told at once, and may still send.
    let mut stream = TcpStream::connect(relay.address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let length = 17 * 1024 * 1024;
    let head = format!(
        "POST /events HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let start = std::time::Instant::now();
    let mut status = [0; 12];
    stream.read_exact(&mut status).unwrap();
    assert_eq!(&status, b"HTTP/1.1 413");
    assert!(start.elapsed() < Duration::from_secs(10), "the body is not waited for");
    stream.write_all(&vec![b' '; length]).unwrap();
    let next = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    stream.write_all(next).unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("too_large") && rest.contains("HTTP/1.1 200"), "{rest}");

    // One that asks first is told before it sends.
    let mut stream = TcpStream::connect(relay.address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let head = "POST /events HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n\
                content-length: 99999999999\r\nexpect: 100-continue\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    read_reply(&mut stream).unwrap().problem(413, "too_large");
    assert_eq!(relay.target("file")["admitted"], 10_000);
    relay.stop().ended_with(0);
}

#[test]
fn other_media_types_paths_and_methods_are_problems() {
    let dir = tempfile::tempdir().unwrap();
    let relay = relay(dir.path());
    for content_type in ["application/x-www-form-urlencoded", "text/plain", "application/xml", ""] {
        let problem = relay.post(content_type, "{}").problem(415, "unsupported_media_type");
        let command = format!(
            "curl -H 'content-type: application/json' --data-binary @event.json http://{}",
            relay.address
        );
        assert!(problem["detail"].as_str().unwrap().contains(&command), "{problem}");
    }
    relay.get("/").problem(404, "not_found");
    relay.get("/events").problem(405, "method_not_allowed");
    assert_eq!(relay.get("/events").header("allow"), Some("POST"));
    request(relay.address, "DELETE", "/targets", &[], b"").unwrap().problem(405, "method_not_allowed");
    relay.stop().ended_with(0);
}

#[test]
fn a_full_queue_is_told_with_its_target() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(
        dir.path(),
        &["--to", "down=http://127.0.0.1:1/?outhaul.queue_entries=2", "--to", "file:out"],
    );
    assert_eq!(relay.post("application/x-ndjson", "1\n2\n").status, 202);
    let reply = relay.post("application/json", "3");
    let problem = reply.problem(503, "queue_full");
    assert_eq!(problem["target"], "down");
    assert!(reply.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    // What would not fit into an empty queue either is told apart.
    let reply = relay.post("application/x-ndjson", "1\n2\n3\n");
    assert_eq!(reply.problem(413, "too_large")["target"], "down");
    assert!(reply.header("retry-after").is_none());
    assert_eq!(relay.target("file")["admitted"], 2);
    relay.stop().ended_with(0);
}

#[test]
fn a_full_queue_that_sheds_is_named_in_the_receipt() {
    let dir = tempfile::tempdir().unwrap();
    let down = "down=http://127.0.0.1:1/?outhaul.queue_entries=1&outhaul.when_full=shed";
    let relay = Relay::start(dir.path(), &["--to", down, "--to", "file:out"]);
    relay.post("application/json", "1");
    let answer = relay.post("application/json", "2").json();
    assert_eq!(answer["accepted"][0]["targets"], json!(["file"]));
    assert_eq!(answer["accepted"][0]["shed"], json!(["down"]));
    relay.stop().ended_with(0);
}

#[test]
fn a_token_is_asked_for_when_there_is_one() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("token"), "s3cret\n").unwrap();
    let relay = Relay::start(dir.path(), &["--to", "file:out", "--token-file", "token"]);
    for authorization in ["", "Bearer wrong", "Basic s3cret"] {
        let headers = [("content-type", "application/json"), ("authorization", authorization)];
        let reply = request(relay.address, "POST", "/events", &headers, b"1").unwrap();
        reply.problem(401, "unauthorised");
        assert!(reply.header("www-authenticate").unwrap().starts_with("Bearer"));
    }
    relay.get("/targets").problem(401, "unauthorised");
    assert_eq!((relay.get("/healthz").status, relay.get("/readyz").status), (200, 200));
    let headers = [("content-type", "application/json"), ("authorization", "Bearer s3cret")];
    assert_eq!(request(relay.address, "POST", "/events", &headers, b"1").unwrap().status, 202);
    assert_eq!(request(relay.address, "GET", "/targets", &headers, b"").unwrap().status, 200);
    // The file is read again when it changes.
    std::fs::write(dir.path().join("token"), "another-one\n").unwrap();
    until("the new token", || {
        (request(relay.address, "GET", "/targets", &headers, b"").unwrap().status == 401).then_some(())
    });
    relay.stop().ended_with(0);
}

#[test]
fn a_client_that_goes_before_its_answer_is_admitted_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let relay = relay(dir.path());
    for n in 0..50 {
        let body = event(&format!("gone{n}"), "p");
        let mut stream = TcpStream::connect(relay.address).unwrap();
        let head = format!(
            "POST /events HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
    }
    let out = dir.path().join("out");
    until("all of them", || (values(&out).len() == 50).then_some(()));
    relay.stop().ended_with(0);
}

#[test]
fn a_connection_serves_many_requests_and_a_half_closed_one_its_last() {
    let dir = tempfile::tempdir().unwrap();
    let relay = relay(dir.path());
    let mut stream = TcpStream::connect(relay.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let one =
        "POST /events HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 1\r\n\r\n7";
    stream.write_all(one.repeat(3).as_bytes()).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut all = String::new();
    stream.read_to_string(&mut all).unwrap();
    assert_eq!(all.matches("HTTP/1.1 202").count(), 3, "{all}");
    relay.stop().ended_with(0);
}

#[test]
fn a_store_that_is_behind_refuses_with_a_time_and_what_was_taken_is_delivered() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let relay = Relay::start(dir.path(), &["--to", "file:out", "--shards", "4", "--writer-ops", "4"]);
    let refused = std::sync::atomic::AtomicBool::new(false);
    let accepted: usize = std::thread::scope(|scope| {
        let clients = (0..8).map(|client| {
            let (relay, refused) = (&relay, &refused);
            scope.spawn(move || {
                let mut accepted = 0;
                // bounded: until one of the clients was refused, which a shard with room for one event brings about.
                for n in 0..5_000 {
                    let reply = relay.post("application/json", event(&format!("{client}-{n}"), "p"));
                    if reply.status == 202 {
                        accepted += 1;
                    } else {
                        reply.problem(503, "saturated");
                        assert!(reply.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
                        refused.store(true, std::sync::atomic::Ordering::Relaxed);
                    }
                    if refused.load(std::sync::atomic::Ordering::Relaxed) {
                        break;
                    }
                }
                accepted
            })
        });
        clients.collect::<Vec<_>>().into_iter().map(|client| client.join().unwrap()).sum()
    });
    assert!(refused.into_inner(), "nobody was refused");
    until("what was taken", || (values(&out).len() >= accepted).then_some(()));
    assert_eq!(
        relay.post("application/json", event("last", "p")).status,
        202,
        "it is over when it has drained"
    );
    until("the last", || (values(&out).len() == accepted + 1).then_some(()));
    relay.stop().ended_with(0);
}

#[test]
fn a_writer_without_room_or_shards_is_no_writer() {
    let dir = tempfile::tempdir().unwrap();
    for wrong in [["--shards", "0"], ["--shards", "257"], ["--writer-ops", "0"]] {
        let mut command = program();
        command.current_dir(dir.path()).args(["run", "--data", "data", "--to", "file:out"]).args(wrong);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
}
