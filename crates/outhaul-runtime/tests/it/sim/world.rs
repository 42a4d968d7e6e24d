//! What outlives a process: the disk, the receivers, the clock on the wall, and what is known to have been promised.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use outhaul_runtime::event::{TargetName, Uid};
use outhaul_runtime::store::{
    JournalOptions, Log, Receipt, Rule, SimDisk, SimFileSystem, Store, StoreError, Upkeep, WallClock,
};
use outhaul_runtime::target::{BatchOrder, Capabilities, TargetOptions};
use outhaul_runtime::{EntryQuery, EntryState, Notice, Runtime, RuntimeOptions, TargetSpec};
use tokio::sync::broadcast;
use tokio::time::Instant;

use super::receiver::Receiver;
use crate::support::{Checked, check_sums, event, name, options};

pub(crate) const NAMES: [&str; 3] = ["a", "b", "c"];

/// The clock on the wall: it goes with the simulated one, and may be set.
#[derive(Clone)]
pub(crate) struct Wall(Arc<Mutex<(SystemTime, Option<Instant>)>>);

impl Wall {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new((UNIX_EPOCH + Duration::from_secs(1_700_000_000), None))))
    }

    /// The clock of a process begins to go.
    pub(crate) fn start(&self) {
        self.0.lock().unwrap().1 = Some(Instant::now());
    }

    pub(crate) fn stop(&self) {
        let now = self.now();
        *self.0.lock().unwrap() = (now, None);
    }

    pub(crate) fn now(&self) -> SystemTime {
        let (time, start) = *self.0.lock().unwrap();
        time + start.map_or(Duration::ZERO, |start| start.elapsed())
    }

    pub(crate) fn set(&self, forward: bool, by: Duration) {
        let mut wall = self.0.lock().unwrap();
        wall.0 = if forward { wall.0 + by } else { wall.0 - by };
    }
}

/// The store on a simulated disk, all of it in the thread of whoever asks.
pub(crate) async fn open(fs: &SimFileSystem, wall: &Wall) -> Result<Store, StoreError> {
    let wall = wall.clone();
    let options = JournalOptions {
        segment_bytes_max: 6000,
        segment_bytes_first: 2000,
        reserve_bytes: 1024,
        upkeep: Upkeep::Caller,
        clock: WallClock::new(move || wall.now()),
        ..JournalOptions::default()
    };
    Store::open_on(Arc::new(fs.clone()), Path::new("/data"), options).await
}

/// A process, its log, and the targets that it began with.
pub(crate) type Started = (Checked, Arc<dyn Log>, Vec<TargetSpec>);

pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) random: fastrand::Rng,
    pub(crate) disk: SimDisk,
    pub(crate) wall: Wall,
    pub(crate) receivers: Vec<Receiver>,
    /// The targets of the configuration.
    pub(crate) configured: BTreeSet<&'static str>,
    /// Events that were acknowledged to their producer, and for whom.
    promised: BTreeMap<(TargetName, u64), Uid>,
    /// Of these, those that a person had removed, or may have.
    excused: BTreeSet<(TargetName, u64)>,
    ids: BTreeMap<String, u64>,
    pub(crate) next_event: u64,
    pub(crate) steps: u64,
    /// What was delivered in this life, and is not known to be durable yet.
    unsure: Vec<Uid>,
    /// What has ended in this life, and how.
    ended: BTreeMap<Uid, &'static str>,
    /// How often each kind of thing has happened.
    pub(crate) happened: BTreeMap<&'static str, u64>,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let batch =
            |batch_max, batch_order| Capabilities { batch_max, batch_order, ..Capabilities::default() };
        let capabilities =
            [batch(1, BatchOrder::None), batch(6, BatchOrder::Prefix), batch(4, BatchOrder::None)];
        let receivers = NAMES.into_iter().zip(capabilities);
        let receivers = receivers.map(|(name, kind)| Receiver::new(name, random.u64(..), kind)).collect();
        Self {
            seed,
            random,
            disk: SimDisk::default(),
            wall: Wall::new(),
            receivers,
            configured: ["a", "b"].into(),
            promised: BTreeMap::new(),
            excused: BTreeSet::new(),
            ids: BTreeMap::new(),
            next_event: 0,
            steps: 0,
            unsure: Vec::new(),
            ended: BTreeMap::new(),
            happened: BTreeMap::new(),
        }
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        *self.happened.entry(what).or_default() += 1;
    }

    pub(crate) fn receiver(&self, name: &str) -> &Receiver {
        self.receivers.iter().find(|receiver| receiver.name() == name).unwrap()
    }

    /// A target as it may be configured just now.
    pub(crate) fn spec(&mut self, text: &'static str) -> TargetSpec {
        let options = TargetOptions {
            timeout: Duration::from_secs(2),
            trial_backoff_max: Duration::from_secs(4),
            in_flight: std::num::NonZeroUsize::new(self.random.usize(1..6)).unwrap(),
            ..options()
        };
        let target = Arc::new(self.receiver(text).clone());
        TargetSpec::new(name(text), target, options, format!("test:{text}"))
    }

    /// A process begins on the disk as it is.
    pub(crate) async fn start(&mut self, fs: &SimFileSystem) -> Result<Started, StoreError> {
        let store = open(fs, &self.wall).await?;
        assert!(store.report().damage.is_empty(), "{self}: {:?}", store.report());
        let log = Arc::clone(store.log());
        let specs: Vec<_> = self.configured.clone().into_iter().map(|name| self.spec(name)).collect();
        let options = RuntimeOptions { seed: Some(self.random.u64(..)), ..RuntimeOptions::default() };
        match Checked::start(store, specs.clone(), options).await {
            Ok(runtime) => Ok((runtime, log, specs)),
            Err(outhaul_runtime::StartError::Store(error)) => Err(error),
            Err(error) => panic!("{self}: {error}"),
        }
    }

    pub(crate) fn new_event(&mut self) -> outhaul_runtime::event::Event {
        self.next_event += 1;
        let pid = ["p", "q", "r", "s", "t", "u"].get(self.random.usize(0..8)).copied();
        let event = event(self.next_event, pid);
        self.ids.insert(event.dedup_id().to_string(), self.next_event);
        event
    }

    /// A producer was told that its event is safe.
    pub(crate) fn promise(&mut self, id: u64, receipt: &Receipt) {
        assert!(receipt.durable && receipt.shed.is_empty(), "{self}: {receipt:?}");
        for target in receipt.targets.iter() {
            let uid = Uid { queue: target.clone(), sequence: receipt.sequence };
            self.promised.insert((target.clone(), id), uid);
        }
    }

    /// A person may remove this event of a target.
    pub(crate) fn excuse(&mut self, target: &TargetName, id: u64) {
        self.excused.insert((target.clone(), id));
    }

    /// A person may remove everything of a target.
    pub(crate) fn excuse_all(&mut self, target: &str) {
        self.excused.extend((0..=self.next_event).map(|id| (name(target), id)));
    }

    /// Whatever was delivered so far is durably so.
    pub(crate) fn is_durable(&mut self) {
        for uid in std::mem::take(&mut self.unsure) {
            self.receiver(uid.queue.as_str()).over(uid.sequence, "its end is durable");
        }
    }

    pub(crate) fn next_life(&mut self) {
        self.unsure.clear();
        self.ended.clear();
        self.receivers.iter().for_each(Receiver::next_life);
        self.wall.start();
    }

    /// Facts are told once each.
    pub(crate) fn listen(&mut self, notices: &mut broadcast::Receiver<Notice>) {
        loop {
            let (uid, over, what) = match notices.try_recv() {
                Ok(Notice::Delivered { uid, .. }) => (uid, false, "delivered"),
                // It is durable when whoever asked is answered.
                Ok(Notice::Discarded { uid }) => (uid, false, "discarded"),
                Ok(Notice::Rejected { uid, .. }) => (uid, true, "rejected"),
                Ok(Notice::Quarantined { uid, .. }) => (uid, true, "suspected of a crash"),
                Ok(Notice::Exhausted { .. }) => panic!("{self}: with these options nothing is exhausted"),
                Ok(notice) => {
                    self.count(match notice {
                        Notice::Held { .. } => "held",
                        Notice::Throttled { .. } => "throttled",
                        Notice::Resumed { .. } => "resumed",
                        _ => "retried",
                    });
                    continue;
                }
                Err(broadcast::error::TryRecvError::Lagged(_)) => continue,
                Err(_) => return,
            };
            self.count(what);
            let before = self.ended.insert(uid.clone(), what);
            assert!(before.is_none(), "{self}: {uid} has ended twice: {before:?}, then {what}");
            if over {
                self.receiver(uid.queue.as_str()).over(uid.sequence, "it has failed");
            } else {
                self.unsure.push(uid);
            }
        }
    }

    /// Every invariant that can be seen from outside.
    pub(crate) async fn check(&mut self, runtime: &Runtime) {
        check_sums(runtime);
        self.check_receivers();
        for target in NAMES {
            // What moves between the two while it is looked at is seen at the second look.
            let mut lost = Vec::new();
            for _ in 0..3 {
                lost = self.check_target(runtime, target).await;
                if lost.is_empty() {
                    break;
                }
            }
            assert!(
                lost.is_empty(),
                "{self}: of {target} these are nowhere: {lost:?}\n{:?}",
                runtime.targets()
            );
        }
    }

    pub(crate) fn check_receivers(&self) {
        for receiver in &self.receivers {
            let broken = receiver.broken();
            assert!(broken.is_empty(), "{self}: {broken:#?}");
        }
    }

    /// Returns the promised events of a target that are nowhere.
    async fn check_target(&mut self, runtime: &Runtime, target: &'static str) -> Vec<u64> {
        let mut there = BTreeSet::new();
        let mut query = EntryQuery::default();
        // An unknown target has nothing.
        while let Ok(page) = runtime.entries(&name(target), &query).await {
            for entry in page.entries {
                let sequence = entry.uid.sequence;
                if entry.state == EntryState::Failed {
                    self.check_failed(target, sequence, entry.last_error.as_deref().unwrap_or_default());
                } else {
                    let over = self.receiver(target).is_over(sequence);
                    assert!(over.is_none(), "{self}: {} waits though {over:?}", entry.uid);
                }
                there.extend(self.id_of(&entry.dedup_id.to_string()));
            }
            let Some(next) = page.next else { break };
            query.after = Some(next);
        }
        let of_target = self.promised.keys().filter(|(of, _)| of.as_str() == target);
        let nowhere = of_target.filter(|key| {
            !self.receiver(target).has(key.1) && !self.excused.contains(*key) && !there.contains(&key.1)
        });
        nowhere.map(|(_, id)| *id).collect()
    }

    /// What failed did so for one of the reasons that default settings know.
    fn check_failed(&self, target: &'static str, sequence: u64, error: &str) {
        let receiver = self.receiver(target);
        if error.starts_with(Rule::CrashSuspect.as_str()) {
            let lives = receiver.lives(sequence);
            assert!(lives >= 3, "{self}: {target} {sequence}: suspected after {lives} lives");
        } else {
            assert!(error.starts_with(Rule::Rejected.as_str()), "{self}: {target} {sequence}: {error}");
        }
        receiver.over(sequence, "it is in the failed store");
    }

    pub(crate) fn trace(&self) -> u64 {
        self.receivers.iter().fold(0, |all, receiver| all.rotate_left(13) ^ receiver.trace())
    }

    /// Which event an entry is of, by what its listing says.
    pub(crate) fn id_of(&self, dedup_id: &str) -> Option<u64> {
        self.ids.get(dedup_id).copied()
    }
}

impl std::fmt::Display for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OUTHAUL_TEST_SEED={} step {}", self.seed, self.steps)
    }
}
