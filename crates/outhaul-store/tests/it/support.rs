//! What the tests share: small events, small logs, and reading a queue to its end.

use std::path::Path;
use std::sync::Arc;

use outhaul_store::event::{Event, TargetName, Uid};
use outhaul_store::{
    Admission, Entry, FailedEntry, Failure, FileSystem, Journal, JournalOptions, Log, Outcome, QueueSettings,
    Rule, Settlement, StoreError, Upkeep,
};

pub(crate) fn name(text: &str) -> TargetName {
    TargetName::new(text).unwrap()
}

pub(crate) fn event(id: u64, body_bytes: usize) -> Arc<Event> {
    let body = vec![id as u8; body_bytes];
    let event = Event::builder("t", "/test").id(id.to_string()).body("application/octet-stream", body);
    Arc::new(event.build().unwrap())
}

pub(crate) fn admission(id: u64, targets: &[&str]) -> Admission {
    sized(id, targets, 20)
}

pub(crate) fn sized(id: u64, targets: &[&str], body_bytes: usize) -> Admission {
    Admission::new(event(id, body_bytes), targets.iter().map(|target| name(target)).collect())
}

/// An entry that its receiver rejected.
pub(crate) fn failed(target: &str, sequence: u64) -> FailedEntry {
    let event = event(sequence, 10);
    FailedEntry {
        uid: Uid { queue: name(target), sequence },
        dedup_id: event.dedup_id(),
        event,
        admitted_ms: 5,
        failure: Failure {
            rule: Rule::Rejected,
            class: "malformed".to_owned(),
            detail: "HTTP 400".to_owned(),
            attempts: 1,
            first_attempt_ms: Some(6),
            last_attempt_ms: Some(6),
            failed_ms: 7,
        },
    }
}

pub(crate) const DIR: &str = "/data/log";

pub(crate) fn options(segment_bytes_max: u64) -> JournalOptions {
    JournalOptions {
        segment_bytes_max,
        segment_bytes_first: segment_bytes_max.min(4096),
        reserve_bytes: 1024,
        upkeep: Upkeep::Inline,
        ..JournalOptions::default()
    }
}

pub(crate) fn open(fs: Arc<dyn FileSystem>, options: JournalOptions) -> Result<Journal, StoreError> {
    Journal::open(fs, Path::new(DIR), Path::new("/data/quarantine"), options)
}

pub(crate) fn attach(log: &dyn Log, queues: &[&str]) {
    for queue in queues {
        log.attach(&name(queue), QueueSettings::default()).unwrap();
    }
}

/// All that waits in a queue.
pub(crate) fn waiting(log: &Journal, queue: &str) -> Vec<Entry> {
    let (mut all, mut after) = (Vec::new(), 0);
    loop {
        let read = log.read_sync(&name(queue), after, 3, 500).unwrap();
        if read.entries.is_empty() {
            return all;
        }
        after = read.next;
        all.extend(read.entries);
    }
}

/// The numbers given to [`event`], of all that waits.
pub(crate) fn ids(log: &Journal, queue: &str) -> Vec<u64> {
    waiting(log, queue).iter().map(|entry| entry.event.as_ref().unwrap().id().parse().unwrap()).collect()
}

pub(crate) fn settle(log: &Journal, entry: &Entry, outcome: Outcome) {
    log.settle_sync(&[Settlement { place: entry.place.clone(), outcome }]).unwrap();
}

/// Invariant 4, for every queue.
pub(crate) fn check_sums(log: &dyn Log) {
    for s in log.stats() {
        let came = s.recovered + s.admitted + s.requeued + s.imported;
        assert_eq!(came, s.delivered + s.failed + s.discarded + s.vanished + s.waiting, "{s:?}");
        assert_eq!(s.waiting == 0, s.bytes == 0, "{s:?}");
    }
}

/// How much larger the slow suites are than in the ordinary run.
pub(crate) fn scale() -> u64 {
    number("OUTHAUL_TEST_SCALE").unwrap_or(1)
}

/// The seed of this run; printed, so that a failure can be repeated.
pub(crate) fn seed(suite: &str) -> u64 {
    let seed = number("OUTHAUL_TEST_SEED").unwrap_or_else(|| fastrand::u64(..1 << 40));
    println!("{suite}: OUTHAUL_TEST_SEED={seed}");
    seed
}

fn number(variable: &str) -> Option<u64> {
    Some(std::env::var_os(variable)?.to_str()?.parse().unwrap())
}
