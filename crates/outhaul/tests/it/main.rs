//! The facade as a program uses it.

#![expect(clippy::unwrap_used, reason = "a failed expectation ends a test")]

use std::path::Path;
use std::time::Duration;

use outhaul::{Event, OpenError, Outhaul};

async fn open(data: &Path, to: &[(&str, String)]) -> Result<Outhaul, OpenError> {
    let add = |builder: outhaul::OuthaulBuilder, (name, uri): &(&str, String)| match name.is_empty() {
        true => builder.to(uri),
        false => builder.named(name, uri),
    };
    to.iter().fold(Outhaul::builder(data), add).open().await
}

fn file(dir: &Path, name: &str) -> String {
    format!("file:{}", dir.join(name).display())
}

fn lines(dir: &Path, name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(dir.join(name)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn event(number: u32) -> Event {
    Event::builder("t", "/test").id(number.to_string()).pid("p").json("{}").build().unwrap()
}

async fn settled(outhaul: &Outhaul) {
    // bounded: a hang fails the test instead of stopping the suite.
    tokio::time::timeout(Duration::from_secs(30), outhaul.settled()).await.unwrap();
}

#[tokio::test]
async fn events_reach_both_files_in_order_and_only_once_over_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let to = [("a", file(dir.path(), "a.ndjson")), ("b", file(dir.path(), "b.ndjson"))];
    for round in 0..3 {
        let outhaul = open(&dir.path().join("data"), &to).await.unwrap();
        for number in 0..20 {
            let receipt = outhaul.send(event(round * 20 + number)).await.unwrap();
            assert!(receipt.durable);
            assert_eq!(receipt.targets.len(), 2);
        }
        settled(&outhaul).await;
        let report = outhaul.shutdown(Duration::from_secs(5)).await.unwrap();
        assert_eq!(report.waiting, []);
        assert!(outhaul.send(event(0)).await.is_err());
    }
    for name in ["a.ndjson", "b.ndjson"] {
        let expected: Vec<_> =
            (0..60).map(|number| String::from_utf8(event(number).to_json()).unwrap()).collect();
        assert_eq!(lines(dir.path(), name), expected);
    }
}

#[tokio::test]
async fn what_is_set_up_wrong_is_said_before_anything_is_touched() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let a = || file(dir.path(), "a");
    for (to, part) in [
        (vec![], "no target was given"),
        (vec![("", a()), ("", file(dir.path(), "b"))], "--to file-1=file:"),
        (vec![("x", a()), ("x", file(dir.path(), "b"))], "two targets are named x"),
        (vec![("x", a()), ("y", a())], "both write to"),
        (vec![("Bad", a())], "is no target name"),
        (vec![("", "gopher://x".to_owned())], "gopher"),
        (vec![("", format!("{}?outhaul.nonsense=1", a()))], "nonsense"),
    ] {
        let error = open(&data, &to).await.unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
        assert!(error.is_usage());
    }
    std::fs::write(dir.path().join("real"), "").unwrap();
    std::os::unix::fs::symlink(dir.path().join("real"), dir.path().join("link")).unwrap();
    for (first, second) in [("real", "link"), ("new", "./data/../new"), ("./new", "new")] {
        std::fs::create_dir_all(&data).unwrap();
        let to = [("x", file(dir.path(), first)), ("y", file(dir.path(), second))];
        let error = open(&data, &to).await.unwrap_err();
        assert!(error.to_string().contains("both write to"), "{first} {second}: {error}");
    }
    let nobody_locks = [("x", "file:/dev/null".to_owned()), ("y", "file:/dev/null".to_owned())];
    open(&dir.path().join("other"), &nobody_locks).await.unwrap();
    let error = Outhaul::builder(&data).named("a", &a()).repoint("b").open().await.unwrap_err();
    assert!(error.is_usage() && error.to_string().contains("\"b\""), "{error}");
    open(&data, &[("", a())]).await.unwrap();
}

#[tokio::test]
async fn a_destination_does_not_change_under_waiting_entries() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let missing = file(dir.path(), "nowhere/a");
    let outhaul = open(&data, &[("a", missing)]).await.unwrap();
    outhaul.send(event(1)).await.unwrap();
    outhaul.shutdown(Duration::from_secs(5)).await.unwrap();
    drop(outhaul);

    let moved = file(dir.path(), "elsewhere");
    let error = open(&data, &[("a", moved.clone())]).await.unwrap_err();
    assert!(error.is_usage() && error.to_string().contains("--repoint a"), "{error}");
    let builder = Outhaul::builder(&data).named("a", &moved).repoint("a");
    let outhaul = builder.open().await.unwrap();
    settled(&outhaul).await;
    assert_eq!(lines(dir.path(), "elsewhere").len(), 1);
    outhaul.shutdown(Duration::from_secs(5)).await.unwrap();
    drop(outhaul);
    // Nothing waits: it may point anywhere.
    open(&data, &[("a", file(dir.path(), "third"))]).await.unwrap();
}

#[tokio::test]
async fn a_target_that_is_not_given_any_more_leaves_an_orphan() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let (a, b) = (file(dir.path(), "nowhere/a"), file(dir.path(), "b"));
    let outhaul = open(&data, &[("a", a), ("b", b.clone())]).await.unwrap();
    outhaul.send(event(1)).await.unwrap();
    outhaul.shutdown(Duration::from_secs(5)).await.unwrap();
    drop(outhaul);
    let outhaul = open(&data, &[("b", b)]).await.unwrap();
    settled(&outhaul).await;
    let states: Vec<_> =
        outhaul.targets().into_iter().map(|t| (t.name.to_string(), t.state, t.waiting)).collect();
    assert_eq!(states[0], ("a".to_owned(), outhaul::State::Orphan, 1));
    assert_eq!((&states[1].0[..], states[1].2), ("b", 0));
}
