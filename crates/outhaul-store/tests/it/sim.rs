//! The journal on a simulated disk: power cuts behind every call, failing calls, a full disk.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use outhaul_store::{
    AppendError, Journal, Log, Outcome, RetryState, Settlement, SimDisk, SimFileSystem, StoreError,
};

use crate::support::{
    admission, attach, check_sums, event, ids, name, open, options, scale, seed, settle, sized, waiting,
};

const QUEUES: [&str; 3] = ["a", "b", "c"];

/// What a workload did, in the order it did it. Each step has a number; a snapshot is marked with the last step that
/// had returned when it was taken.
#[derive(Debug, Default, Clone)]
struct History {
    /// Per event: the step that submitted it, the one that acknowledged it, its targets.
    events: BTreeMap<u64, (u64, Option<u64>, Vec<&'static str>)>,
    /// Per event and target: the step that settled it, and the one that made that durable.
    settled: BTreeMap<(u64, &'static str), (u64, Option<u64>)>,
    next_event: u64,
    step: u64,
}

struct Workload {
    fs: SimFileSystem,
    log: Journal,
    history: History,
    random: fastrand::Rng,
}

impl Workload {
    fn open(disk: SimDisk, history: History, seed: u64) -> Result<Self, StoreError> {
        let fs = SimFileSystem::new(disk);
        let mut random = fastrand::Rng::with_seed(seed);
        let segment = random.u64(600..6000);
        fs.set_tag(history.step);
        fs.record();
        let log = open(Arc::new(fs.clone()), options(segment))?;
        attach(&log, &QUEUES);
        Ok(Self { fs, log, history, random })
    }

    fn step(&mut self) {
        match self.random.u8(0..12) {
            0..6 => self.append(),
            6..9 => self.settle(),
            9 => self.retry(),
            10 => self.flush(),
            _ => {
                let note = self.history.step.to_string();
                self.log.set_input_sync(note.into_bytes().into()).unwrap_or_default();
            }
        }
        self.history.step += 1;
        self.fs.set_tag(self.history.step);
    }

    fn append(&mut self) {
        let count = self.random.usize(1..4);
        let mut batch = Vec::new();
        let first = self.history.next_event;
        for id in first..first + count as u64 {
            let mut targets: Vec<_> = QUEUES.into_iter().filter(|_| self.random.bool()).collect();
            if targets.is_empty() {
                targets.push("a");
            }
            let body = if self.random.u8(0..8) == 0 { 1500 } else { self.random.usize(0..80) };
            let mut admission = sized(id, &targets, body);
            admission.position = self.random.bool().then_some(id);
            batch.push(admission);
            self.history.events.insert(id, (self.history.step, None, targets));
        }
        self.history.next_event += count as u64;
        for (id, result) in (first..).zip(self.log.append_sync(batch)) {
            if result.is_ok()
                && let Some(event) = self.history.events.get_mut(&id)
            {
                event.1 = Some(self.history.step);
            }
        }
    }

    fn pick(&mut self) -> Option<(outhaul_store::Entry, u64, &'static str)> {
        let queue = QUEUES[self.random.usize(0..3)];
        let read = self.log.read_sync(&name(queue), self.random.u64(0..20), 5, 4000).ok()?;
        let entry = read.entries.into_iter().next_back()?;
        let id = entry.event.as_ref().ok()?.id().parse().unwrap();
        Some((entry, id, queue))
    }

    fn settle(&mut self) {
        for _ in 0..self.random.usize(1..4) {
            if let Some((entry, id, queue)) = self.pick() {
                let settlement = Settlement { place: entry.place, outcome: Outcome::Delivered };
                if self.log.settle_sync(&[settlement]).is_ok() {
                    self.history.settled.insert((id, queue), (self.history.step, None));
                }
            }
        }
    }

    fn retry(&mut self) {
        if let Some((entry, ..)) = self.pick() {
            let state = RetryState { attempts: 1, not_before: std::time::UNIX_EPOCH };
            let settlement = Settlement { place: entry.place, outcome: Outcome::Retry(state) };
            self.log.settle_sync(&[settlement]).unwrap_or_default();
        }
    }

    fn flush(&mut self) {
        if self.log.flush_sync().is_ok() {
            for (_, durable) in self.history.settled.values_mut() {
                durable.get_or_insert(self.history.step);
            }
        }
    }
}

impl History {
    /// What was known when a snapshot with this mark was taken: later steps had not returned, but may have begun.
    fn at(&self, mark: u64) -> Self {
        let mut past = self.clone();
        past.step = mark;
        past.events.retain(|_, (submitted, ..)| *submitted <= mark);
        for (_, acknowledged, _) in past.events.values_mut() {
            *acknowledged = acknowledged.filter(|step| *step < mark);
        }
        past.settled.retain(|_, (settled, _)| *settled <= mark);
        for (_, durable) in past.settled.values_mut() {
            *durable = durable.filter(|step| *step < mark);
        }
        past
    }

    /// Checks a log that was opened on a disk left by this history; returns what is waiting.
    fn check(&self, log: &Journal, context: &str) {
        check_sums(log);
        for queue in QUEUES {
            let entries = waiting(log, queue);
            let stats = log.stats().into_iter().find(|stats| stats.name.as_str() == queue);
            assert_eq!(
                stats.map_or(0, |stats| stats.waiting),
                entries.len() as u64,
                "{context}: queue {queue}"
            );
            let mut last = 0;
            let mut found = Vec::new();
            for entry in &entries {
                assert!(entry.place.uid.sequence > last, "{context}: order in {queue}");
                last = entry.place.uid.sequence;
                let event = entry.event.as_ref().expect("no entry is unreadable after a power cut");
                let id: u64 = event.id().parse().unwrap();
                let (.., targets) =
                    self.events.get(&id).unwrap_or_else(|| panic!("{context}: {id} was never written"));
                assert!(targets.contains(&queue), "{context}: {id} is not for {queue}");
                assert!(event.body().iter().all(|byte| *byte == id as u8), "{context}: body of {id}");
                found.push(id);
            }
            assert!(found.windows(2).all(|pair| pair[0] < pair[1]), "{context}: order of {queue}: {found:?}");
            for (id, (_, acknowledged, targets)) in &self.events {
                let settled = self.settled.get(&(*id, queue));
                if acknowledged.is_some() && targets.contains(&queue) && settled.is_none() {
                    assert!(found.contains(id), "{context}: acknowledged event {id} is lost from {queue}");
                }
                if settled.is_some_and(|(_, durable)| durable.is_some()) {
                    assert!(!found.contains(id), "{context}: settled event {id} is back in {queue}");
                }
            }
        }
    }
}

/// One workload, then crashes behind its calls; on some of those a second workload and a second crash.
fn crash_round(seed: u64, images: usize) -> u64 {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut states = 0;
    let mut workload = Workload::open(SimDisk::default(), History::default(), random.u64(..)).unwrap();
    for _ in 0..25 {
        workload.step();
    }
    if random.bool() {
        workload.log.close_sync().unwrap();
    }
    let history = workload.history.clone();
    for (mark, disk) in workload.fs.recorded() {
        for _ in 0..images {
            states += 1;
            let past = history.at(mark);
            let image = disk.crash(&mut random);
            let context = format!("seed {seed}, state {states}");
            let mut second = match Workload::open(image.clone(), past.clone(), random.u64(..)) {
                Ok(second) => second,
                Err(error) => panic!("{context}: does not open: {error}"),
            };
            past.check(&second.log, &context);
            assert_eq!(second.log.report().damage, [], "{context}: a power cut is no damage");
            if random.u8(0..8) == 0 {
                // What came back is to be settled again.
                for queue in QUEUES {
                    for id in ids(&second.log, queue) {
                        second.history.settled.remove(&(id, queue));
                    }
                }
                for _ in 0..6 {
                    second.step();
                }
                let history = second.history.clone();
                for (mark, disk) in second.fs.recorded() {
                    states += 1;
                    let context = format!("{context}, second crash {states}");
                    let image = disk.crash(&mut random);
                    let past = history.at(mark);
                    let third = Workload::open(image, past.clone(), random.u64(..)).unwrap();
                    past.check(&third.log, &context);
                }
            }
        }
    }
    states
}

#[test]
fn sim_no_power_cut_loses_an_acknowledged_event() {
    let seed = seed("sim_no_power_cut_loses_an_acknowledged_event");
    let wanted = 20_000 * scale();
    let (mut states, mut round) = (0, 0);
    while states < wanted {
        states += crash_round(seed.wrapping_add(round), 4);
        round += 1;
    }
    println!("{states} states in {round} workloads");
}

#[test]
fn sim_a_failing_call_loses_nothing_acknowledged() {
    let seed = seed("sim_a_failing_call_loses_nothing_acknowledged");
    for round in 0..400 * scale() {
        let seed = seed.wrapping_add(round);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut workload = Workload::open(SimDisk::default(), History::default(), random.u64(..)).unwrap();
        let kind = if random.bool() { io::ErrorKind::StorageFull } else { io::ErrorKind::Other };
        let forever = random.bool();
        workload.fs.fail_at(random.u64(1..60), kind, forever);
        for _ in 0..25 {
            workload.step();
        }
        workload.fs.heal();
        let context = format!("seed {seed}, {kind:?}, forever {forever}");
        let image = workload.fs.disk().crash(&mut random);
        // The last step had returned.
        let past = workload.history.at(workload.history.step);
        let again = Workload::open(image, past.clone(), 1).unwrap();
        past.check(&again.log, &context);
    }
}

#[test]
fn sim_a_full_disk_refuses_and_goes_on_when_there_is_room() {
    let fs = SimFileSystem::default();
    let log = open(Arc::new(fs.clone()), options(2000)).unwrap();
    attach(&log, &["a"]);
    assert!(log.append_sync(vec![admission(0, &["a"])])[0].is_ok());
    for room in [0, 10, 100, 300] {
        fs.set_capacity(Some(fs.used() + room));
        let mut id = 1;
        let refused = loop {
            match log.append_sync(vec![sized(id, &["a"], 400)]).remove(0) {
                Ok(_) => id += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, AppendError::DiskFull(_)), "{refused}");
        // Settling is never refused, and is written down when there is room again.
        let first = waiting(&log, "a").remove(0);
        settle(&log, &first, Outcome::Delivered);
        fs.set_capacity(None);
        log.flush_sync().unwrap();
        assert!(log.append_sync(vec![admission(9, &["a"])])[0].is_ok());
        check_sums(&log);
    }
    let left = ids(&log, "a");
    log.close_sync().unwrap();
    let again = open(Arc::new(fs), options(2000)).unwrap();
    assert_eq!(ids(&again, "a"), left);
}

#[test]
fn sim_a_failed_sync_leaves_the_outcome_unknown_and_the_log_goes_on_in_a_new_segment() {
    for call in [1, 2] {
        let fs = SimFileSystem::default();
        let log = open(Arc::new(fs.clone()), options(1 << 20)).unwrap();
        attach(&log, &["a"]);
        assert!(log.append_sync(vec![admission(0, &["a"])])[0].is_ok());
        // The first call is the write, the second the sync.
        fs.fail_at(call, io::ErrorKind::Other, false);
        let result = log.append_sync(vec![admission(1, &["a"])]).remove(0);
        assert!(matches!(result, Err(AppendError::Unknown(_))), "{result:?}");
        assert!(log.failure().is_none());
        assert!(log.append_sync(vec![admission(2, &["a"])])[0].is_ok());
        assert_eq!(ids(&log, "a"), [0, 2], "what is unknown is not shown");
        check_sums(&log);
        let again = open(Arc::new(fs), options(1 << 20)).unwrap();
        assert_eq!((ids(&again, "a"), again.report().damage), (vec![0, 2], vec![]));
    }
}

#[test]
fn sim_a_disk_that_lost_what_it_confirmed_stops_the_log() {
    let fs = SimFileSystem::default();
    let log = open(Arc::new(fs.clone()), options(1 << 20)).unwrap();
    attach(&log, &["a"]);
    assert!(log.append_sync(vec![admission(5, &["a"])])[0].is_ok());
    let segment = std::path::Path::new(crate::support::DIR).join("00000000000000000001.seg");
    let at = fs.disk().content(&segment).unwrap().windows(20).position(|bytes| bytes == [5; 20]);
    fs.lose(&segment, at.unwrap());
    fs.fail_at(2, io::ErrorKind::Other, false);
    let result = log.append_sync(vec![admission(1, &["a"])]).remove(0);
    assert!(matches!(result, Err(AppendError::Unknown(_))), "{result:?}");
    let result = log.append_sync(vec![admission(2, &["a"])]).remove(0);
    let Err(AppendError::Store(error @ StoreError::Failed(_))) = result else { panic!("{result:?}") };
    assert!(error.to_string().contains("damaged on the device"), "{error}");
    assert!(log.failure().is_some());
    assert_eq!(ids(&log, "a"), [5], "the page cache still has it");
}

/// Every bit of every file of a closed log, one at a time: never a panic, never a wrong event; what was flipped is
/// reported, and everything that it does not touch is there.
#[test]
fn sim_a_flipped_bit_is_damage_and_takes_no_more_than_it_touches() {
    let fs = SimFileSystem::default();
    let log = open(Arc::new(fs.clone()), options(700)).unwrap();
    attach(&log, &["a"]);
    for id in 0..6 {
        assert!(log.append_sync(vec![admission(id, &["a"])])[0].is_ok());
    }
    log.close_sync().unwrap();
    let disk = fs.disk();
    for (path, length) in disk.files() {
        for bit in 0..length * 8 {
            let mut disk = disk.clone();
            disk.flip(&path, bit);
            let fs = SimFileSystem::new(disk);
            let log = open(Arc::new(fs), options(700)).unwrap();
            attach(&log, &["a"]);
            let entries = waiting(&log, "a");
            let intact = entries.iter().filter_map(|entry| entry.event.as_ref().ok());
            let intact: Vec<u64> = intact.map(|event| event.id().parse().unwrap()).collect();
            for entry in entries.iter().filter_map(|entry| entry.event.as_ref().ok()) {
                let id = entry.id().parse().unwrap();
                assert_eq!(**entry, *event(id, 20), "{} bit {bit}", path.display());
            }
            assert!(intact.len() >= 5, "{} bit {bit}: {intact:?}", path.display());
            let report = log.report();
            let seen = entries.len() > intact.len() || !report.damage.is_empty();
            assert!(seen || intact.len() == 6, "{} bit {bit}: lost without a word", path.display());
            // The closing mark itself is behind everything that it vouches for.
            assert!(report.torn_bytes <= 48, "{} bit {bit}: {report:?}", path.display());
        }
    }
}
