//! A directory of every format version that was ever written is kept in `tests/golden`, and is read by every later
//! version. `OUTHAUL_GOLDEN_WRITE=DIR cargo test -p outhaul-store --test it golden_` writes the current one to DIR.

use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use outhaul_store::event::{Event, TargetName};
use outhaul_store::{
    Admission, FailedEntry, Failure, JournalOptions, Outcome, QueueSettings, RetryState, Rule, Settlement,
    Shards, Store,
};

use crate::support::{check_sums, name};

fn event(number: u64) -> Event {
    let builder = Event::builder("com.example.order.paid", "/shop")
        .id(number.to_string())
        .pid(format!("order-{}", number % 2))
        .subject("Größe")
        .time("2026-11-30T12:00:00Z")
        .header("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
        .json(format!("{{\"total\":19.90,\"number\":{number}}}"));
    builder.build().unwrap()
}

/// Four segments; queue `a` has 3, 4, 5 waiting, 3 after a retry; queue `b` has 4; one entry failed.
async fn write(dir: &Path) {
    let options = JournalOptions { segment_bytes_max: 700, ..JournalOptions::default() };
    let store = Store::open(dir, options).await.unwrap();
    let (log, a, b) = (store.log(), name("a"), name("b"));
    let settings = |label: &str| QueueSettings { label: label.to_owned(), ..QueueSettings::default() };
    log.attach(&a, settings("file:/a")).unwrap();
    log.attach(&b, settings("webhook:http://b/")).unwrap();
    log.set_input("a note".into()).await.unwrap();
    for number in 1..=5 {
        let targets: &[TargetName] =
            if number % 2 == 0 { &[a.clone(), b.clone()] } else { std::slice::from_ref(&a) };
        let mut admission = Admission::new(event(number).into(), targets.into());
        admission.position = Some(number);
        log.append(vec![admission]).await.remove(0).unwrap();
    }
    let lease = log.lease(Shards::All).await.unwrap();
    let entries = lease.read(&a, 0, 10, 1 << 20).await.unwrap().entries;
    let failure = Failure {
        rule: Rule::Rejected,
        class: "ContentRefused".to_owned(),
        detail: "HTTP 400".to_owned(),
        attempts: 1,
        first_attempt_ms: Some(1),
        last_attempt_ms: Some(1),
        failed_ms: 2,
    };
    let failed = FailedEntry {
        uid: entries[1].place.uid.clone(),
        dedup_id: entries[1].dedup_id,
        event: event(2).into(),
        admitted_ms: 3,
        failure,
    };
    store.failed().put(vec![failed]).await.unwrap();
    let retry = RetryState { attempts: 4, not_before: UNIX_EPOCH + Duration::from_secs(9) };
    let outcomes = [Outcome::Delivered, Outcome::Failed, Outcome::Retry(retry)];
    let settlements = entries.into_iter().zip(outcomes);
    let mut settlements: Vec<_> =
        settlements.map(|(e, outcome)| Settlement { place: e.place, outcome }).collect();
    let first = lease.read(&b, 0, 1, 1).await.unwrap().entries.remove(0);
    settlements.push(Settlement { place: first.place, outcome: Outcome::Delivered });
    lease.settle(settlements).await.unwrap();
    store.close().await.unwrap();
}

async fn check(dir: &Path) {
    let store = Store::open(dir, JournalOptions::default()).await.unwrap();
    let log = store.log();
    assert_eq!(log.report(), Default::default());
    check_sums(&**log);
    let stats: Vec<_> = log.stats().into_iter().map(|s| (s.name.to_string(), s.label, s.waiting)).collect();
    assert_eq!(stats, [("a".into(), "file:/a".into(), 3), ("b".into(), "webhook:http://b/".into(), 1)]);
    let input = log.input().unwrap();
    assert_eq!((&input.note[..], &input.admitted[..]), (&b"a note"[..], &[(1, 5)][..]));
    let lease = log.lease(Shards::All).await.unwrap();
    let waiting = lease.read(&name("a"), 0, 10, 1 << 20).await.unwrap().entries;
    for (entry, number) in waiting.iter().zip(3..) {
        assert_eq!((entry.place.uid.sequence, &**entry.event.as_ref().unwrap()), (number, &event(number)));
        let attempts = entry.retry.map(|retry| retry.attempts);
        assert_eq!(attempts, (number == 3).then_some(4));
    }
    let failed = store.failed().list(&name("a"), 0, 10).await.unwrap();
    assert_eq!((failed.len(), failed[0].uid.sequence, &*failed[0].event), (1, 2, &event(2)));
    store.close().await.unwrap();
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[tokio::test]
async fn golden_directories_of_every_version_are_read() {
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    // Those of other products are read by the tests of the import.
    let ours = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with('v');
    let versions: Vec<_> =
        std::fs::read_dir(golden).unwrap().map(|version| version.unwrap().path()).filter(ours).collect();
    assert!(!versions.is_empty());
    for version in versions {
        let dir = tempfile::tempdir().unwrap();
        copy(&version, dir.path());
        check(dir.path()).await;
    }
}

#[tokio::test]
async fn golden_what_is_written_now_is_read_now() {
    let dir = tempfile::tempdir().unwrap();
    let path = std::env::var_os("OUTHAUL_GOLDEN_WRITE").map_or(dir.path().join("data"), PathBuf::from);
    write(&path).await;
    let again = tempfile::tempdir().unwrap();
    copy(&path, again.path());
    check(again.path()).await;
}
