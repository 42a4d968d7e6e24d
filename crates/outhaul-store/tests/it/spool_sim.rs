//! The spool on a simulated disk: power cuts behind every call, failing calls, a full disk, flipped bits.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use outhaul_store::{
    AppendError, Entry, Log, Outcome, QueueSettings, RetryState, Settlement, SimDisk, SimFileSystem, Spool,
    SpoolOptions, StoreError,
};

use crate::spool::{ids, settle, waiting};
use crate::support::{check_sums, event, name, scale, seed, sized};

const QUEUES: [&str; 3] = ["a", "b", "c"];

fn open(fs: &SimFileSystem) -> Result<Spool, StoreError> {
    // One writer and no timer: the order of the calls is that of the workload.
    let options =
        SpoolOptions { writers: 1, settle_linger: Duration::from_secs(3600), ..SpoolOptions::default() };
    let spool = Spool::open(Arc::new(fs.clone()), Path::new("/data/spool"), options)?;
    for queue in QUEUES {
        spool.attach(&name(queue), QueueSettings::default())?;
    }
    Ok(spool)
}

/// What a workload did. A snapshot is marked with the last step that had returned when it was taken.
#[derive(Debug, Default, Clone)]
struct History {
    /// Per event and target: the step that submitted it, and the one in which that target's copy was acknowledged.
    events: BTreeMap<(u64, &'static str), (u64, Option<u64>)>,
    /// Per event and target: the step that settled it, and the one that made that durable.
    settled: BTreeMap<(u64, &'static str), (u64, Option<u64>)>,
    next_event: u64,
    step: u64,
}

impl History {
    /// What was known at a mark; a settlement of the step that was going on may have happened or not.
    fn at(&self, mark: u64) -> Self {
        let mut past = self.clone();
        past.events.retain(|_, (submitted, _)| *submitted <= mark);
        for (_, acknowledged) in past.events.values_mut() {
            acknowledged.take_if(|step| *step >= mark);
        }
        past.settled.retain(|_, (step, _)| *step <= mark);
        for (_, durable) in past.settled.values_mut() {
            durable.take_if(|step| *step >= mark);
        }
        past
    }

    fn check(&self, spool: &Spool, context: &str) {
        check_sums(spool);
        for queue in QUEUES {
            let found: Vec<u64> = numbers(spool, queue, context);
            assert!(found.windows(2).all(|pair| pair[0] < pair[1]), "{context}: order of {queue}: {found:?}");
            let found: BTreeSet<u64> = found.into_iter().collect();
            for id in &found {
                assert!(self.events.contains_key(&(*id, queue)), "{context}: {id} was not for {queue}");
            }
            for ((id, of), (_, acknowledged)) in self.events.iter().filter(|((_, of), _)| *of == queue) {
                let settled = self.settled.get(&(*id, of));
                if acknowledged.is_some() && settled.is_none() {
                    assert!(found.contains(id), "{context}: acknowledged event {id} is lost from {queue}");
                }
                if settled.is_some_and(|(_, durable)| durable.is_some()) {
                    assert!(!found.contains(id), "{context}: settled event {id} is back in {queue}");
                }
            }
        }
    }
}

/// The events of a queue, each checked to be what was written: never half, never another's.
fn numbers(spool: &Spool, queue: &str, context: &str) -> Vec<u64> {
    let number = |entry: &Entry| {
        let event = entry.event.as_ref().unwrap_or_else(|bad| panic!("{context}: {}", bad.reason));
        let id: u64 = event.id().parse().unwrap();
        assert!(event.body().iter().all(|byte| *byte == id as u8), "{context}: body of {id}");
        assert_eq!(event.body().len(), body_bytes(id), "{context}: length of {id}");
        id
    };
    waiting(spool, queue).iter().map(number).collect()
}

fn body_bytes(id: u64) -> usize {
    [0, 30, 700, 1500][(id % 4) as usize]
}

struct Workload {
    fs: SimFileSystem,
    spool: Spool,
    history: History,
    random: fastrand::Rng,
}

impl Workload {
    fn open(disk: SimDisk, history: History, seed: u64) -> Result<Self, StoreError> {
        let fs = SimFileSystem::new(disk);
        fs.set_tag(history.step);
        fs.record();
        let spool = open(&fs)?;
        Ok(Self { fs, spool, history, random: fastrand::Rng::with_seed(seed) })
    }

    fn step(&mut self) {
        match self.random.u8(0..10) {
            0..6 => self.append(),
            6..9 => self.settle(),
            _ => {
                if self.spool.flush_sync().is_ok() {
                    for (_, durable) in self.history.settled.values_mut() {
                        durable.get_or_insert(self.history.step);
                    }
                }
            }
        }
        self.history.step += 1;
        self.fs.set_tag(self.history.step);
    }

    fn append(&mut self) {
        let mut batch = Vec::new();
        let first = self.history.next_event;
        let mut all = Vec::new();
        for id in first..first + self.random.u64(1..4) {
            let mut targets: Vec<_> = QUEUES.into_iter().filter(|_| self.random.bool()).collect();
            if targets.is_empty() {
                targets.push("a");
            }
            batch.push(sized(id, &targets, body_bytes(id)));
            for &target in &targets {
                self.history.events.insert((id, target), (self.history.step, None));
            }
            all.push((id, targets));
        }
        self.history.next_event += all.len() as u64;
        for ((id, targets), result) in all.into_iter().zip(self.spool.append_sync(batch)) {
            let durable = match result {
                Ok(_) => targets,
                Err(AppendError::Partial { durable, .. }) => {
                    targets.into_iter().filter(|target| durable.contains(&name(target))).collect()
                }
                Err(_) => Vec::new(),
            };
            for target in durable {
                self.history.events.entry((id, target)).and_modify(|event| event.1 = Some(self.history.step));
            }
        }
    }

    fn settle(&mut self) {
        let queue = QUEUES[self.random.usize(0..3)];
        let Ok(read) = self.spool.read_sync(&name(queue), 0, 5, 1 << 20) else { return };
        for entry in read.entries.into_iter().filter(|_| self.random.bool()) {
            let id = entry.event.as_ref().unwrap().id().parse().unwrap();
            settle(&self.spool, &entry, Outcome::Delivered);
            self.history.settled.insert((id, queue), (self.history.step, None));
        }
    }
}

fn crash_round(seed: u64, images: usize) -> u64 {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut states = 0;
    let mut workload = Workload::open(SimDisk::default(), History::default(), random.u64(..)).unwrap();
    for _ in 0..12 {
        workload.step();
    }
    if random.bool() {
        workload.spool.close_sync().unwrap();
    }
    let history = workload.history.clone();
    for (mark, disk) in workload.fs.recorded() {
        for _ in 0..images {
            states += 1;
            let past = history.at(mark);
            let image = disk.crash(&mut random);
            let context = format!("seed {seed}, state {states}");
            let mut second = match Workload::open(image, past.clone(), random.u64(..)) {
                Ok(second) => second,
                Err(error) => panic!("{context}: does not open: {error}"),
            };
            past.check(&second.spool, &context);
            if random.u8(0..8) == 0 {
                // What came back is to be settled again.
                for queue in QUEUES {
                    for id in numbers(&second.spool, queue, &context) {
                        second.history.settled.remove(&(id, queue));
                    }
                }
                for _ in 0..4 {
                    second.step();
                }
                let history = second.history.clone();
                for (mark, disk) in second.fs.recorded() {
                    states += 1;
                    let context = format!("{context}, second crash {states}");
                    let past = history.at(mark);
                    let third = Workload::open(disk.crash(&mut random), past.clone(), 1).unwrap();
                    past.check(&third.spool, &context);
                }
            }
        }
    }
    states
}

#[test]
fn spool_sim_no_power_cut_loses_an_acknowledged_event() {
    let seed = seed("spool_sim_no_power_cut_loses_an_acknowledged_event");
    let wanted = 10_000 * scale();
    let (mut states, mut round) = (0, 0);
    while states < wanted {
        states += crash_round(seed.wrapping_add(round), 3);
        round += 1;
    }
    println!("{states} states in {round} workloads");
}

#[test]
fn spool_sim_a_failing_call_loses_nothing_acknowledged() {
    let seed = seed("spool_sim_a_failing_call_loses_nothing_acknowledged");
    for round in 0..400 * scale() {
        let seed = seed.wrapping_add(round);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut workload = Workload::open(SimDisk::default(), History::default(), random.u64(..)).unwrap();
        let kind = if random.bool() { io::ErrorKind::StorageFull } else { io::ErrorKind::Other };
        let forever = random.bool();
        workload.fs.fail_at(random.u64(1..150), kind, forever);
        for _ in 0..15 {
            workload.step();
        }
        workload.fs.heal();
        let context = format!("seed {seed}, {kind:?}, forever {forever}");
        check_sums(&workload.spool);
        let past = workload.history.at(workload.history.step);
        let again = Workload::open(workload.fs.disk().crash(&mut random), past.clone(), 1).unwrap();
        past.check(&again.spool, &context);
    }
}

#[test]
fn spool_sim_a_directory_sync_that_fails_leaves_the_outcome_unknown_and_stops_the_spool() {
    let fs = SimFileSystem::default();
    let spool = open(&fs).unwrap();
    assert!(spool.append_sync(vec![sized(0, &["a"], 0)])[0].is_ok());
    // Space, create, write, sync, rename, then the directory. The space is no call that can fail.
    fs.fail_at(5, io::ErrorKind::Other, false);
    let result = spool.append_sync(vec![sized(1, &["a"], 30)]).remove(0);
    assert!(matches!(result, Err(AppendError::Unknown(_))), "{result:?}");
    let result = spool.append_sync(vec![sized(2, &["a"], 700)]).remove(0);
    assert!(matches!(result, Err(AppendError::Store(StoreError::Failed(_)))), "{result:?}");
    assert!(spool.failure().is_some());
    assert_eq!(ids(&spool, "a"), ["0"], "what is unknown is not shown");
    let again = open(&fs).unwrap();
    assert_eq!(ids(&again, "a"), ["0", "1"]);
}

#[test]
fn spool_sim_a_file_that_cannot_be_synced_is_one_event_refused() {
    let fs = SimFileSystem::default();
    let spool = open(&fs).unwrap();
    assert!(spool.append_sync(vec![sized(0, &["a"], 0)])[0].is_ok());
    // Create and write of both, then their syncs, at the same time.
    fs.fail_at(5, io::ErrorKind::Other, false);
    let results = spool.append_sync(vec![sized(1, &["a"], 30), sized(2, &["a"], 700)]);
    let safe = match results[..] {
        [Err(AppendError::Store(StoreError::Io { .. })), Ok(_)] => "2",
        [Ok(_), Err(AppendError::Store(StoreError::Io { .. }))] => "1",
        _ => panic!("{results:?}"),
    };
    assert_eq!(ids(&spool, "a"), ["0", safe]);
    assert_eq!(ids(&open(&fs).unwrap(), "a"), ["0", safe]);
}

#[test]
fn spool_sim_puts_that_come_together_share_one_directory_sync() {
    let fs = SimFileSystem::default();
    let spool = open(&fs).unwrap();
    assert!(spool.append_sync(vec![sized(0, &["a"], 0)])[0].is_ok());
    let before = fs.calls();
    let batch: Vec<_> = (1..11).map(|id| sized(id, &["a"], 30)).collect();
    assert!(spool.append_sync(batch).iter().all(Result::is_ok));
    // Four calls a file, and one for the directory.
    assert_eq!(fs.calls() - before, 41);
}

#[test]
fn spool_sim_a_full_disk_refuses_and_goes_on_when_there_is_room() {
    let fs = SimFileSystem::default();
    let spool = open(&fs).unwrap();
    assert!(spool.append_sync(vec![sized(0, &["a"], 0)])[0].is_ok());
    for room in [0, 10, 300, (1 << 20) + 100] {
        fs.set_capacity(Some(fs.used() + room));
        let refused =
            (1..200).find_map(|id| spool.append_sync(vec![sized(id * 4 + 3, &["a"], 1500)]).remove(0).err());
        assert!(matches!(refused, Some(AppendError::DiskFull(_))), "{refused:?}");
        settle(&spool, &waiting(&spool, "a")[0], Outcome::Delivered);
        spool.flush_sync().unwrap();
        fs.set_capacity(None);
        assert!(spool.append_sync(vec![sized(4000, &["a"], 0)])[0].is_ok());
        check_sums(&spool);
    }
    let left = ids(&spool, "a");
    spool.close_sync().unwrap();
    assert_eq!(ids(&open(&fs).unwrap(), "a"), left);
}

#[test]
fn spool_sim_a_removal_that_fails_is_tried_again_and_told() {
    let fs = SimFileSystem::default();
    let spool = open(&fs).unwrap();
    assert!(spool.append_sync(vec![sized(0, &["a"], 0)])[0].is_ok());
    settle(&spool, &waiting(&spool, "a")[0], Outcome::Delivered);
    fs.fail_at(1, io::ErrorKind::Other, false);
    assert!(spool.flush_sync().is_err());
    assert!(ids(&spool, "a").is_empty(), "it was delivered");
    spool.flush_sync().unwrap();
    assert!(ids(&open(&fs).unwrap(), "a").is_empty());
}

/// Every bit of every entry, one at a time: never a panic, and nothing is gone without a word.
#[test]
fn spool_sim_a_flipped_bit_takes_no_more_than_its_entry() {
    let fs = SimFileSystem::default();
    let spool = open(&fs).unwrap();
    for id in 0..3 {
        assert!(spool.append_sync(vec![sized(id, &["a"], body_bytes(id))])[0].is_ok());
    }
    spool.close_sync().unwrap();
    let disk = fs.disk();
    for (path, length) in disk.files() {
        let is_entry = path.extension().is_some_and(|extension| extension == "snappy");
        for bit in 0..length * 8 {
            let mut disk = disk.clone();
            disk.flip(&path, bit);
            let spool = open(&SimFileSystem::new(disk)).unwrap();
            let entries = waiting(&spool, "a");
            assert_eq!(entries.len(), 3, "{} bit {bit}", path.display());
            let right = |entry: &&Entry| {
                let event = entry.event.as_ref().ok();
                event.is_some_and(|found| (0..3).any(|id| **found == *event_of(id)))
            };
            let intact = entries.iter().filter(right).count();
            assert!(intact >= if is_entry { 2 } else { 3 }, "{} bit {bit}", path.display());
        }
    }
}

fn event_of(id: u64) -> Arc<outhaul_store::event::Event> {
    event(id, body_bytes(id))
}

/// The process is killed behind each call: of one round the first events are there, never a later one without an
/// earlier one, however many files are written at the same time.
#[test]
fn spool_sim_a_kill_leaves_no_event_without_the_one_before() {
    for writers in [1, 8, 64] {
        let fs = SimFileSystem::default();
        let options =
            SpoolOptions { writers, settle_linger: Duration::from_secs(3600), ..SpoolOptions::default() };
        let spool = Spool::open(Arc::new(fs.clone()), Path::new("/data/spool"), options).unwrap();
        spool.attach(&name("a"), QueueSettings::default()).unwrap();
        assert!(spool.append_sync(vec![sized(0, &["a"], 0)])[0].is_ok());
        fs.record();
        let batch: Vec<_> = (1..9).map(|id| sized(id, &["a"], body_bytes(id))).collect();
        assert!(spool.append_sync(batch).iter().all(Result::is_ok));
        let mut seen = BTreeSet::new();
        for (_, disk) in fs.recorded() {
            let found = numbers(&open(&SimFileSystem::new(disk)).unwrap(), "a", "a kill");
            assert_eq!(found, (0..found.len() as u64).collect::<Vec<_>>(), "{writers} writers");
            seen.insert(found.len());
        }
        assert_eq!(seen, (1..10).collect(), "each event has a call of its own that makes it");
    }
}

/// Whatever lies beside the directories is lost, torn, or what another program wrote: the entries are there.
#[test]
fn spool_sim_entries_need_no_file_beside_them() {
    let fs = SimFileSystem::default();
    let spool = open(&fs).unwrap();
    spool.set_input_sync("note".into()).unwrap();
    for id in 0..4 {
        assert!(spool.append_sync(vec![sized(id, &["a"], body_bytes(id))])[0].is_ok());
    }
    settle(&spool, &waiting(&spool, "a")[0], Outcome::Delivered);
    spool.flush_sync().unwrap();
    let killed = fs.disk();
    spool.close_sync().unwrap();
    let mut lost = 0;
    for disk in [killed, fs.disk()] {
        for (path, length) in disk.files() {
            if path.parent() != Some(Path::new("/data/spool")) {
                continue;
            }
            lost += 1;
            let whole = disk.content(&path).unwrap().to_vec();
            for content in [None, Some(Vec::new()), Some(whole[..length / 2].to_vec()), Some(b"[1]".to_vec())]
            {
                let mut disk = disk.clone();
                match content {
                    Some(content) => disk.put(&path, content),
                    None => disk.delete(&path),
                }
                let again = open(&SimFileSystem::new(disk)).unwrap();
                let context = path.display().to_string();
                assert_eq!(numbers(&again, "a", &context), [1, 2, 3], "{context}");
                let receipt = again.append_sync(vec![sized(5, &["a"], body_bytes(5))]).remove(0).unwrap();
                assert!(receipt.sequence > 0);
                assert_eq!(
                    numbers(&again, "a", &context),
                    [1, 2, 3, 5],
                    "{context}: a new one is behind all others"
                );
            }
        }
    }
    assert!(lost >= 5, "{lost} files beside the directory");
}

/// Attempts survive a loss of power, a second after they were noted at the latest.
#[test]
fn spool_sim_retries_survive_a_power_cut() {
    for seed in 0..60 {
        let fs = SimFileSystem::default();
        let options = SpoolOptions { settle_linger: Duration::ZERO, ..SpoolOptions::default() };
        let spool = Spool::open(Arc::new(fs.clone()), Path::new("/data/spool"), options).unwrap();
        spool.attach(&name("a"), QueueSettings::default()).unwrap();
        assert!(spool.append_sync(vec![sized(0, &["a"], 0), sized(1, &["a"], 30)]).iter().all(Result::is_ok));
        let not_before = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(9);
        let retry = |entry: Entry| {
            let outcome = Outcome::Retry(RetryState { attempts: 3, not_before });
            Settlement { place: entry.place, outcome }
        };
        let both: Vec<_> = waiting(&spool, "a").into_iter().map(retry).collect();
        spool.settle_sync(&both).unwrap();
        let state = Path::new("/data/spool/outhaul-a.state");
        let noted = |fs: &SimFileSystem| {
            let content = fs.disk().content(state).map(<[u8]>::to_vec);
            content.is_some_and(|content| content.windows(4).any(|four| four == b",3,9"))
        };
        for _ in 0..2000 {
            if noted(&fs) {
                break;
            }
            // bounded: until the thread has noted it.
            std::thread::sleep(Duration::from_millis(1));
        }
        // A flush that comes now waits for the round that noted it.
        spool.flush_sync().unwrap();
        let image = fs.disk().crash(&mut fastrand::Rng::with_seed(seed));
        let again = open(&SimFileSystem::new(image)).unwrap();
        let attempts: Vec<_> =
            waiting(&again, "a").iter().map(|entry| entry.retry.map(|retry| retry.attempts)).collect();
        assert_eq!(attempts, [Some(3), Some(3)], "seed {seed}");
    }
}
