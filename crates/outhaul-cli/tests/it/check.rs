//! `outhaul check`.

use std::process::Output;

use outhaul_services::{Kind, Server};

use crate::support::program;

fn check(args: &[&str]) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = program().arg("check").args(args).output().unwrap();
    let text = String::from_utf8(stdout).unwrap() + &String::from_utf8(stderr).unwrap();
    (status.code(), text)
}

#[test]
fn a_uri_is_checked_without_connecting() {
    let (code, text) = check(&["--to", "https://example.com/hook", "--to", "a=file:x.ndjson"]);
    assert_eq!(
        (code, text.as_str()),
        (Some(0), "https://example.com/hook: ok (webhook)\na=file:x.ndjson: ok (file)\n")
    );
    let (code, text) = check(&["--to", "nats://me:s3cret@h/a..b", "--to", "file:x.ndjson"]);
    assert_eq!(code, Some(2));
    assert!(
        text.contains("no subject") && text.contains("help:") && text.contains("file:x.ndjson: ok"),
        "{text}"
    );
    assert!(!text.contains("s3cret"), "{text}");
    let (code, text) = check(&["--to", "gopher://h"]);
    assert!(code == Some(2) && text.contains("nats://"), "{text}");
}

#[test]
fn connecting_finds_what_is_missing_and_changes_nothing() {
    let server = Server::builder(Kind::Nats).start().unwrap();
    let core = format!("{}/orders", server.url());
    let (code, text) = check(&["--connect", "--to", &core]);
    assert!(
        code == Some(0) && text.contains("note: core NATS does not tell whether anybody listens"),
        "{text}"
    );
    let stream = format!("{core}?outhaul.stream=ORDERS");
    let (code, text) = check(&["--connect", "--json", "--to", &stream]);
    assert_eq!(code, Some(3), "{text}");
    let found: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&found["ok"], &found["kind"]), (&false.into(), &"nats".into()));
    assert!(
        found["error"].as_str().unwrap().starts_with("destination_missing: the stream `ORDERS`"),
        "{text}"
    );
    drop(server);
    let (code, text) = check(&["--connect", "--to", &core]);
    assert!(code == Some(3) && text.contains("connection_refused"), "{text}");
}
