//! A deterministic simulation: random histories of admissions, failures of every kind, changes of targets, verbs, faults
//! of the disk, crashes and restarts, over the simulated disk, against simulated receivers, on a paused clock. After
//! every step whatever DESIGN.md promises (section 4) is asserted.
//!
//! `OUTHAUL_TEST_SEED` sets the first seed, `OUTHAUL_TEST_SCALE` multiplies the histories; a failure prints its seed.

pub(crate) mod receiver;
pub(crate) mod world;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use outhaul_runtime::event::Uid;
use outhaul_runtime::store::{AppendError, Log, Receipt, RequeueError, SimDisk, SimFileSystem};
use outhaul_runtime::target::ErrorKind;
use outhaul_runtime::{
    AdmitError, ChangeError, EntryAnswer, EntryInfo, EntryQuery, EntryState, Leftover, Notice, TargetSpec,
};
use tokio::sync::broadcast;
use tokio::task::JoinSet;

use self::receiver::{Mood, Poison};
use self::world::{NAMES, World};
use crate::support::{Checked, name, pass, scale, seed};

/// Histories of one ordinary run.
const HISTORIES: u64 = 60;
/// What is to happen in as many of them.
const HAPPENS: [&str; 24] = [
    "admitted",
    "clean stop",
    "crashed by an event",
    "delivered",
    "discard",
    "discarded",
    "drain",
    "held",
    "pause",
    "power cut",
    "refused by the disk",
    "rejected",
    "reload",
    "remove",
    "replace",
    "requeue",
    "resume",
    "resumed",
    "retried",
    "retry",
    "start that failed",
    "suspected of a crash",
    "throttled",
    "trial",
];

/// How a process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Clean,
    /// The power is cut; sometimes the disk went first.
    Crash,
}

/// What has come of something that was begun.
enum Came {
    Admitted(u64, Result<Receipt, AdmitError>),
    Removed(Uid, Result<EntryAnswer, ChangeError>),
    Changed(&'static str, Result<(), ChangeError>),
}

/// One process.
struct Process {
    runtime: Checked,
    log: Arc<dyn Log>,
    fs: SimFileSystem,
    notices: broadcast::Receiver<Notice>,
    begun: JoinSet<Came>,
    /// The targets as they were configured last.
    specs: Vec<TargetSpec>,
    /// The disk has failed, or was made to: refusals are to be expected.
    faulty: bool,
}

impl World {
    /// Lives one process through, and leaves the disk as its end left it.
    fn live(&mut self, steps: u64, end: End) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.unwrap();
        let disk = runtime.block_on(self.process(steps, end));
        // Whatever was under way is dropped where it stands.
        drop(runtime);
        self.disk = disk;
    }

    async fn process(&mut self, steps: u64, end: End) -> SimDisk {
        self.next_life();
        let mut process = self.begin().await;
        for _ in 0..steps {
            self.steps += 1;
            self.step(&mut process).await;
            self.came(&mut process);
            self.listen(&mut process.notices);
            self.check_receivers();
            if !process.faulty {
                self.check(&process.runtime).await;
            }
            if self.receivers.iter().any(|receiver| receiver.wants_crash()) {
                self.count("crashed by an event");
                return self.crash(&process);
            }
        }
        if end == End::Crash || process.faulty {
            if self.random.bool() {
                process.fs.fail_at(self.random.u64(1..20), io::ErrorKind::Other, true);
                process.faulty = true;
                self.step(&mut process).await;
                self.came(&mut process);
            }
            return self.crash(&process);
        }
        self.stop(process).await
    }

    /// Starts a process; its disk may fail meanwhile, as many times as it likes.
    async fn begin(&mut self) -> Process {
        let fs = SimFileSystem::new(self.disk.clone());
        if self.random.u8(0..6) == 0 {
            fs.fail_at(self.random.u64(1..60), io::ErrorKind::Other, false);
        }
        let (fs, started) = match self.start(&fs).await {
            Ok(started) => (fs, started),
            Err(_) => {
                self.count("start that failed");
                // The start was given up, and is made again on what it left.
                let fs = SimFileSystem::new(fs.disk().crash(&mut self.random));
                let started = self.start(&fs).await.unwrap_or_else(|error| panic!("{self}: {error}"));
                (fs, started)
            }
        };
        fs.heal();
        let (runtime, log, specs) = started;
        let notices = runtime.notices();
        Process { runtime, log, fs, notices, begun: JoinSet::new(), specs, faulty: false }
    }

    /// The power is cut: what was not synced may be gone.
    fn crash(&mut self, process: &Process) -> SimDisk {
        self.count("power cut");
        self.wall.stop();
        process.fs.disk().crash(&mut self.random)
    }

    /// The process stops in order.
    async fn stop(&mut self, mut process: Process) -> SimDisk {
        let report = process.runtime.shutdown(Duration::from_secs(30)).await;
        report.unwrap_or_else(|error| panic!("{self}: {error}"));
        self.count("clean stop");
        // Whoever waited for something is told.
        while let Some(came) = process.begun.join_next().await {
            self.note(came.unwrap(), true);
        }
        self.listen(&mut process.notices);
        self.is_durable();
        for receiver in &self.receivers {
            receiver.acknowledged_is_over("the process stopped in order behind it");
        }
        self.check_receivers();
        self.wall.stop();
        // A power cut takes nothing of what was closed.
        process.fs.disk().crash(&mut self.random)
    }

    async fn step(&mut self, process: &mut Process) {
        match self.random.u8(0..40) {
            0..12 => self.admit(process),
            12..16 => self.moods(),
            16..21 => self.verb(process).await,
            21..26 => self.change(process),
            26..28 => self.jump(),
            28..31 => {
                let flushed = process.log.flush().await;
                self.listen(&mut process.notices);
                if flushed.is_ok() {
                    self.is_durable();
                }
            }
            31 => {
                process.fs.fail_at(self.random.u64(1..12), io::ErrorKind::Other, false);
                process.faulty = true;
            }
            32 => {
                // What is free is gone.
                process.fs.set_capacity(Some(process.fs.used() + self.random.u64(0..4000)));
                process.faulty = true;
            }
            33 => {
                process.fs.heal();
                process.fs.set_capacity(None);
                process.faulty = process.log.failure().is_some();
            }
            _ => {}
        }
        let longest = [30, 300, 5000][self.random.usize(0..3)];
        pass(Duration::from_millis(self.random.u64(0..longest))).await;
    }

    fn admit(&mut self, process: &mut Process) {
        let count = self.random.usize(1..6);
        let events: Vec<_> = (0..count).map(|_| self.new_event()).collect();
        let first = self.next_event + 1 - count as u64;
        for id in first..=self.next_event {
            let poison = match self.random.u8(0..60) {
                0 => Poison::Fails(ErrorKind::ConnectionReset),
                1 => Poison::Fails(ErrorKind::DestinationMissing),
                2 => Poison::Fails(ErrorKind::ContentRefused),
                3 => Poison::Hangs,
                4 => Poison::Crashes,
                _ => continue,
            };
            self.receivers[self.random.usize(0..3)].poison(id, poison);
        }
        match process.runtime.admit(events.into_iter().map(Into::into).collect()) {
            Ok(pending) => {
                for (id, pending) in (first..).zip(pending) {
                    process.begun.spawn(async move { Came::Admitted(id, pending.await) });
                }
            }
            Err(AdmitError::NoTarget) => {}
            Err(error) => assert!(process.faulty, "{self}: {error}"),
        }
    }

    fn moods(&mut self) {
        const KINDS: [&[ErrorKind]; 5] = [
            &[ErrorKind::ConnectionRefused],
            &[ErrorKind::Overloaded],
            &[ErrorKind::Authentication],
            &[ErrorKind::ServerFault],
            &[ErrorKind::ConnectionRefused, ErrorKind::Overloaded, ErrorKind::TimedOut, ErrorKind::Throttled],
        ];
        let mood = match self.random.u8(0..10) {
            0..4 => Mood::Good,
            4..7 => Mood::Moody(self.random.u8(1..60)),
            7..9 => Mood::Down(KINDS[self.random.usize(0..KINDS.len())]),
            _ => Mood::Hangs,
        };
        self.receivers[self.random.usize(0..3)].mood(mood);
    }

    /// A person does something to one entry.
    async fn verb(&mut self, process: &mut Process) {
        let target = NAMES[self.random.usize(0..3)];
        let Some(entry) = self.some_entry(process, target).await else { return };
        let (runtime, uid) = (process.runtime.clone(), entry.uid.clone());
        match self.random.u8(0..3) {
            0 => {
                if let Some(id) = self.id_of(&entry.dedup_id.to_string()) {
                    self.excuse(&name(target), id);
                }
                process.begun.spawn(async move { Came::Removed(uid.clone(), runtime.discard(&uid).await) });
            }
            1 => drop(
                process
                    .begun
                    .spawn(async move { Came::Changed("retry", runtime.retry(&uid).await.map(drop)) }),
            ),
            _ => drop(
                process
                    .begun
                    .spawn(async move { Came::Changed("requeue", runtime.requeue(&uid).await.map(drop)) }),
            ),
        }
    }

    async fn some_entry(&mut self, process: &Process, target: &str) -> Option<EntryInfo> {
        let state = [None, Some(EntryState::Failed), Some(EntryState::InFlight)][self.random.usize(0..3)];
        let query = EntryQuery { state, ..EntryQuery::default() };
        let entries = process.runtime.entries(&name(target), &query).await.ok()?.entries;
        self.random.choice(entries)
    }

    /// A person does something to one target, or to all.
    fn change(&mut self, process: &mut Process) {
        let target = NAMES[self.random.usize(0..3)];
        let (runtime, of) = (process.runtime.clone(), name(target));
        let begun = &mut process.begun;
        let task = match self.random.u8(0..12) {
            0 | 1 => begun.spawn(async move { Came::Changed("pause", runtime.pause(&of).await) }),
            2..5 => begun.spawn(async move { Came::Changed("resume", runtime.resume(&of).await) }),
            5 => begun.spawn(async move { Came::Changed("drain", runtime.drain(&of).await.map(drop)) }),
            6 | 7 => begun.spawn(async move { Came::Changed("trial", runtime.trial(&of).await.map(drop)) }),
            8 | 9 => {
                self.configured.insert(target);
                let spec = self.spec(target);
                process.specs.retain(|other| other.name != spec.name);
                process.specs.push(spec.clone());
                begun.spawn(async move { Came::Changed("replace", runtime.replace(spec).await.map(drop)) })
            }
            10 => {
                // What is not configured again is an orphan from the next start on.
                let leftover = [Leftover::Keep, Leftover::Discard, Leftover::Drain][self.random.usize(0..3)];
                let of = name("c");
                if leftover == Leftover::Discard {
                    self.excuse_all("c");
                }
                self.configured.remove("c");
                process.specs.retain(|spec| spec.name != of);
                begun.spawn(
                    async move { Came::Changed("remove", runtime.remove(&of, leftover).await.map(drop)) },
                )
            }
            _ => {
                let specs = process.specs.clone();
                begun.spawn(async move { Came::Changed("reload", runtime.reload(specs).await.map(drop)) })
            }
        };
        drop(task);
    }

    /// The clock on the wall is set.
    fn jump(&mut self) {
        let by = [1, 60, 3600, 86_400][self.random.usize(0..4)];
        self.wall.set(self.random.bool(), Duration::from_secs(by));
    }

    /// Takes up what has come of what was begun.
    fn came(&mut self, process: &mut Process) {
        while let Some(came) = process.begun.try_join_next() {
            self.note(came.unwrap(), process.faulty);
        }
    }

    fn note(&mut self, came: Came, faulty: bool) {
        match came {
            Came::Admitted(id, Ok(receipt)) => {
                self.count("admitted");
                self.promise(id, &receipt);
            }
            Came::Admitted(_, Err(error)) => {
                self.count("refused by the disk");
                assert!(faulty, "{self}: {error}");
            }
            Came::Removed(uid, Ok(EntryAnswer::Discarded)) => {
                self.count("discard");
                self.receiver(uid.queue.as_str()).over(uid.sequence, "it was discarded");
            }
            Came::Removed(_, Ok(_)) => self.count("discard of what was gone"),
            Came::Changed(what, Ok(())) => self.count(what),
            // Its target was removed, and its queue with it.
            Came::Changed(
                _,
                Err(ChangeError::Requeue(RequeueError::Append(AppendError::UnknownQueue(_)))),
            ) => {}
            Came::Removed(_, Err(error)) | Came::Changed(_, Err(error)) => {
                let known = ["not_found", "entry_failed", "paused", "not_running", "superseded", "repoint"];
                assert!(faulty || known.contains(&error.reason()), "{self}: {error:?}");
            }
        }
    }

    /// Everything is well from here on: all that was promised arrives, and nothing comes twice.
    fn end_well(&mut self) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        self.configured = NAMES.into();
        self.receivers.iter().for_each(receiver::Receiver::heal);
        let disk = runtime.unwrap().block_on(async {
            self.next_life();
            let process = self.begin().await;
            for target in NAMES {
                process.runtime.resume(&name(target)).await.unwrap();
            }
            // bounded: the clock is paused.
            let settled = tokio::time::timeout(Duration::from_secs(600), process.runtime.settled()).await;
            assert!(settled.is_ok(), "{self}: {:#?}", process.runtime.targets());
            self.check(&process.runtime).await;
            self.stop(process).await
        });
        self.disk = disk;
        let attempts: Vec<_> = self.receivers.iter().map(receiver::Receiver::attempts).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(async {
            self.next_life();
            let process = self.begin().await;
            pass(Duration::from_secs(100)).await;
            self.check(&process.runtime).await;
            drop(self.stop(process).await);
        });
        let after: Vec<_> = self.receivers.iter().map(receiver::Receiver::attempts).collect();
        assert_eq!(attempts, after, "{self}: something came again behind a clean stop");
    }
}

fn history(seed: u64) -> World {
    let mut world = World::new(seed);
    for _ in 0..world.random.u8(2..7) {
        let (steps, clean) = (world.random.u64(5..40), world.random.u8(0..3) == 0);
        world.live(steps, if clean { End::Clean } else { End::Crash });
    }
    world.end_well();
    world
}

#[test]
fn sim_any_history_keeps_every_promise() {
    let first = seed("sim_any_history");
    let mut happened = BTreeMap::<_, u64>::new();
    for seed in first..first + HISTORIES * scale() {
        for (what, count) in history(seed).happened {
            *happened.entry(what).or_default() += count;
        }
    }
    println!("{happened:#?}");
    // What never happens proves nothing.
    let missing: Vec<_> = HAPPENS.iter().filter(|what| !happened.contains_key(**what)).collect();
    assert!(missing.is_empty(), "these never happened: {missing:?}");
}

#[test]
fn sim_the_same_seed_is_the_same_history() {
    let first = seed("sim_the_same_seed");
    for seed in first..first + 3 * scale() {
        assert_eq!(history(seed).trace(), history(seed).trace(), "seed {seed}");
    }
}
