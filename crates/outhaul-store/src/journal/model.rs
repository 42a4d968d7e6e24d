//! The commit round under many orders of its threads: nobody waits for ever, nothing is acknowledged before its sync,
//! a caller's order stays, a close answers everybody.
//!
//! ```text
//! RUSTFLAGS="--cfg outhaul_model" cargo test -p outhaul-store --features testkit --lib journal::model
//! ```
//!
//! It is the production code: `sync.rs` alone is another. An order that fails is printed, to be replayed.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use outhaul_event::{Event, TargetName};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

use super::{Journal, JournalOptions, Upkeep, turn};
use crate::error::{AppendError, StoreError};
use crate::fs::sim::{Kept, SimFileSystem};
use crate::log::{Admission, Durability, Log, Outcome, QueueSettings, Receipt, Settlement};

const NEVER: Duration = Duration::from_secs(3600);

/// Tries this many orders, half of them with few switches at bad moments.
fn check(orders: usize, body: impl Fn() + Send + Sync + Copy + 'static) {
    let scale = std::env::var("OUTHAUL_TEST_SCALE").ok().and_then(|scale| scale.parse().ok()).unwrap_or(1);
    let orders = orders * scale;
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    Runner::new(RandomScheduler::new(orders), config.clone()).run(body);
    Runner::new(PctScheduler::new(4, orders), config).run(body);
}

fn name() -> TargetName {
    TargetName::new("a").unwrap()
}

/// Whoever waits for a settlement's round waits for ever: a call has to see to itself.
fn options() -> JournalOptions {
    JournalOptions {
        segment_bytes_max: 2000,
        segment_bytes_first: 2000,
        reserve_bytes: 0,
        settle_linger: NEVER,
        idle_mark: NEVER,
        upkeep: Upkeep::Inline,
        ..JournalOptions::default()
    }
}

fn open(fs: &SimFileSystem, options: JournalOptions) -> Arc<Journal> {
    let (dir, quarantine) = (Path::new("/data/log"), Path::new("/data/quarantine"));
    let log = Journal::open(Arc::new(fs.clone()), dir, quarantine, options).unwrap();
    log.attach(&name(), QueueSettings::default()).unwrap();
    Arc::new(log)
}

fn batch(id: u8, body_bytes: usize) -> Vec<Admission> {
    let event = Event::builder("t", "/m").id(id.to_string()).body("x/y", vec![id; body_bytes]);
    vec![Admission::new(Arc::new(event.build().unwrap()), [name()].into())]
}

/// Whether an event is on the disk whatever a power cut takes.
fn is_durable(fs: &SimFileSystem, id: u8) -> bool {
    let disk = fs.disk().crash_with(|_| Kept::Nothing);
    let files = disk.files();
    files.iter().any(|(path, _)| {
        let content = disk.content(path).unwrap_or_default();
        content.windows(16).any(|window| window == [id; 16])
    })
}

type Answer = Result<Receipt, AppendError>;

fn append(log: &Journal, fs: &SimFileSystem, id: u8) -> Answer {
    answered(fs, id, log.append_sync(batch(id, 40)))
}

fn append_task(log: &Journal, fs: &SimFileSystem, id: u8) -> Answer {
    answered(fs, id, shuttle::future::block_on(log.append(batch(id, 40))))
}

fn answered(fs: &SimFileSystem, id: u8, mut results: Vec<Answer>) -> Answer {
    assert_eq!(results.len(), 1);
    let result = results.remove(0);
    assert!(result.is_err() || is_durable(fs, id), "{id} was acknowledged before its sync");
    result
}

fn ids(log: &Journal) -> Vec<u8> {
    let read = log.read_sync(&name(), 0, 1000, 1 << 20).unwrap();
    read.entries.iter().map(|entry| entry.event.as_ref().unwrap().id().parse().unwrap()).collect()
}

/// Each caller's events are there once, in the order in which it sent them.
fn in_order(ids: &[u8], callers: u8, each: u8) {
    for caller in 1..=callers {
        let own: Vec<_> = ids.iter().filter(|id| **id / 10 == caller).map(|id| id % 10).collect();
        assert_eq!(own, (0..each).collect::<Vec<_>>(), "caller {caller}: {ids:?}");
    }
}

fn reopened(fs: &SimFileSystem) -> Vec<u8> {
    let log = open(&SimFileSystem::new(fs.disk()), options());
    assert_eq!(log.report().damage, []);
    ids(&log)
}

#[test]
fn direct_callers_lead_for_each_other() {
    check(400, || {
        let fs = SimFileSystem::default();
        let log = open(&fs, options());
        let callers = (1..=3).map(|caller| {
            let (log, fs) = (Arc::clone(&log), fs.clone());
            shuttle::thread::spawn(move || {
                for step in 0..3 {
                    append(&log, &fs, caller * 10 + step).unwrap();
                }
            })
        });
        callers.collect::<Vec<_>>().into_iter().for_each(|caller| caller.join().unwrap());
        in_order(&ids(&log), 3, 3);
        log.close_sync().unwrap();
        in_order(&reopened(&fs), 3, 3);
    });
}

#[test]
fn tasks_and_direct_callers_share_the_disk() {
    check(400, || {
        let fs = SimFileSystem::default();
        let log = open(&fs, options());
        let callers = (1..=4).map(|caller| {
            let (log, fs) = (Arc::clone(&log), fs.clone());
            shuttle::thread::spawn(move || {
                for step in 0..2 {
                    let id = caller * 10 + step;
                    let result =
                        if caller % 2 == 0 { append(&log, &fs, id) } else { append_task(&log, &fs, id) };
                    result.unwrap();
                }
            })
        });
        callers.collect::<Vec<_>>().into_iter().for_each(|caller| caller.join().unwrap());
        in_order(&ids(&log), 4, 2);
        log.close_sync().unwrap();
        in_order(&reopened(&fs), 4, 2);
    });
}

#[test]
fn calls_that_do_not_fit_into_one_batch_are_all_answered() {
    check(30, || {
        let fs = SimFileSystem::default();
        let log = open(&fs, options());
        let callers = (1..=3).map(|caller| {
            let log = Arc::clone(&log);
            shuttle::thread::spawn(move || {
                let large = batch(caller, turn::BATCH_BYTES_MAX as usize * 2 / 3);
                let results = match caller {
                    1 => shuttle::future::block_on(log.append(large)),
                    _ => log.append_sync(large),
                };
                assert!(results[0].is_ok());
            })
        });
        callers.collect::<Vec<_>>().into_iter().for_each(|caller| caller.join().unwrap());
        assert_eq!(log.stats()[0].waiting, 3);
        log.close_sync().unwrap();
    });
}

#[test]
fn settlements_and_flushes_ride_along() {
    check(300, || {
        let fs = SimFileSystem::default();
        let log = open(&fs, options());
        append(&log, &fs, 1).unwrap();
        let writer = {
            let (log, fs) = (Arc::clone(&log), fs.clone());
            shuttle::thread::spawn(move || {
                append(&log, &fs, 10).unwrap();
                append_task(&log, &fs, 11).unwrap();
            })
        };
        let settler = {
            let (log, fs) = (Arc::clone(&log), fs.clone());
            shuttle::thread::spawn(move || {
                let first = log.read_sync(&name(), 0, 1, 1).unwrap().entries.remove(0);
                log.settle_sync(&[Settlement { place: first.place, outcome: Outcome::Delivered }]).unwrap();
                log.flush_sync().unwrap();
                let image = fs.disk().crash_with(|_| Kept::Nothing);
                let found = ids(&open(&SimFileSystem::new(image), options()));
                assert!(!found.contains(&1), "flushed, and back: {found:?}");
            })
        };
        let noter = {
            let log = Arc::clone(&log);
            shuttle::thread::spawn(move || {
                log.set_input_sync("one".into()).unwrap();
                shuttle::future::block_on(log.flush()).unwrap();
            })
        };
        for thread in [writer, settler, noter] {
            thread.join().unwrap();
        }
        assert_eq!(ids(&log), [10, 11]);
        log.close_sync().unwrap();
        assert_eq!(reopened(&fs), [10, 11]);
    });
}

#[test]
fn a_close_answers_everybody() {
    check(400, || {
        let fs = SimFileSystem::default();
        let log = open(&fs, options());
        let callers = (1..=3_u8).map(|caller| {
            let (log, fs) = (Arc::clone(&log), fs.clone());
            shuttle::thread::spawn(move || {
                let mut written = Vec::new();
                for step in 0..2 {
                    let id = caller * 10 + step;
                    let result = if caller == 1 { append_task(&log, &fs, id) } else { append(&log, &fs, id) };
                    match result {
                        Ok(_) => written.push(id),
                        Err(AppendError::Store(StoreError::Closed)) => {}
                        Err(error) => panic!("{id}: {error}"),
                    }
                }
                written
            })
        });
        let callers: Vec<_> = callers.collect();
        let closer = {
            let log = Arc::clone(&log);
            shuttle::thread::spawn(move || log.close_sync().unwrap())
        };
        log.close_sync().unwrap();
        let mut written: Vec<u8> = callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect();
        closer.join().unwrap();
        let mut found = reopened(&fs);
        (written.sort_unstable(), found.sort_unstable());
        assert_eq!(found, written);
    });
}

#[test]
fn a_sync_that_fails_is_nobodys_acknowledgement() {
    check(300, || {
        use shuttle::rand::Rng as _;
        let fs = SimFileSystem::default();
        let log = open(&fs, options());
        fs.fail_at(shuttle::rand::thread_rng().gen_range(1..14), std::io::ErrorKind::Other, false);
        let callers = (1..=3_u8).map(|caller| {
            let (log, fs) = (Arc::clone(&log), fs.clone());
            shuttle::thread::spawn(move || {
                let ids = (0..2).map(|step| caller * 10 + step);
                let sent = ids.map(|id| {
                    (id, if caller == 1 { append_task(&log, &fs, id) } else { append(&log, &fs, id) })
                });
                sent.filter(|(_, result)| result.is_ok()).map(|(id, _)| id).collect::<Vec<_>>()
            })
        });
        let callers: Vec<_> = callers.collect();
        let written: Vec<u8> = callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect();
        fs.heal();
        log.close_sync().unwrap_or_default();
        let found = reopened(&fs);
        assert!(written.iter().all(|id| found.contains(id)), "{written:?} of {found:?}");
    });
}

#[test]
fn an_interval_syncs_what_it_acknowledged_when_it_is_flushed() {
    check(300, || {
        let fs = SimFileSystem::default();
        let log = open(&fs, JournalOptions { durability: Durability::Interval(NEVER), ..options() });
        let callers = (1..=2_u8).map(|caller| {
            let (log, fs) = (Arc::clone(&log), fs.clone());
            shuttle::thread::spawn(move || {
                let id = caller * 10;
                assert!(!log.append_sync(batch(id, 40)).remove(0).unwrap().durable);
                log.flush_sync().unwrap();
                assert!(is_durable(&fs, id));
            })
        });
        callers.collect::<Vec<_>>().into_iter().for_each(|caller| caller.join().unwrap());
        log.close_sync().unwrap();
    });
}
