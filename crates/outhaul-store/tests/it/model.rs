//! Every engine against a plain model of what a log and a failed store are, driven by the same actions.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use outhaul_store::event::{Event, Uid};
use outhaul_store::{
    AppendError, Discard, Engine, Entry, FailedEntry, Failure, JournalOptions, Lease, Outcome, QueueSettings,
    RequeueError, RetryState, Rule, Settlement, Shards, SimFileSystem, Store, StoreError, StoreOptions,
    WhenFull,
};
use proptest::prelude::*;

use crate::support::{check_sums, name, options, scale, sized};

const QUEUES: [&str; 3] = ["a", "b", "c"];

#[derive(Debug, Clone)]
enum Action {
    /// Events to the queues whose bits are set.
    Append {
        targets: Vec<u8>,
        body_bytes: usize,
    },
    Settle {
        queue: usize,
        nth: usize,
        outcome: Outcome,
    },
    Retry {
        queue: usize,
        nth: usize,
        attempts: u32,
    },
    /// Into the failed store, then out of the queue.
    Fail {
        queue: usize,
        nth: usize,
    },
    Requeue {
        nth: usize,
    },
    Discard {
        nth: usize,
    },
    Attach {
        queue: usize,
        entries_max: u64,
        when_full: WhenFull,
    },
    Detach {
        queue: usize,
    },
    Remove {
        queue: usize,
    },
    Flush,
    Reopen {
        close: bool,
    },
}

fn action() -> impl Strategy<Value = Action> {
    let (queue, nth) = (0..QUEUES.len(), 0_usize..6);
    let when_full = prop_oneof![Just(WhenFull::Refuse), Just(WhenFull::Shed), Just(WhenFull::Overflow)];
    let outcome = prop_oneof![3 => Just(Outcome::Delivered), 1 => Just(Outcome::Discarded)];
    let attach = (queue.clone(), prop_oneof![2 => 0_u64..6, 1 => Just(1000)], when_full);
    prop_oneof![
        8 => (proptest::collection::vec(0_u8..8, 1..4), prop_oneof![4 => 0_usize..80, 1 => Just(900)])
            .prop_map(|(targets, body_bytes)| Action::Append { targets, body_bytes }),
        6 => (queue.clone(), nth.clone(), outcome)
            .prop_map(|(queue, nth, outcome)| Action::Settle { queue, nth, outcome }),
        2 => (queue.clone(), nth.clone(), 1_u32..9)
            .prop_map(|(queue, nth, attempts)| Action::Retry { queue, nth, attempts }),
        3 => (queue.clone(), nth.clone()).prop_map(|(queue, nth)| Action::Fail { queue, nth }),
        2 => nth.clone().prop_map(|nth| Action::Requeue { nth }),
        1 => nth.prop_map(|nth| Action::Discard { nth }),
        2 => attach.prop_map(|(queue, entries_max, when_full)| Action::Attach { queue, entries_max, when_full }),
        1 => queue.clone().prop_map(|queue| Action::Detach { queue }),
        1 => queue.prop_map(|queue| Action::Remove { queue }),
        1 => Just(Action::Flush),
        2 => any::<bool>().prop_map(|close| Action::Reopen { close }),
    ]
}

#[derive(Debug, Clone, Copy)]
struct Waits {
    sequence: u64,
    id: u64,
    attempts: u32,
    requeue_of: Option<u64>,
}

#[derive(Debug, Default)]
struct ModelQueue {
    attached: Option<(u64, WhenFull)>,
    waits: Vec<Waits>,
    /// Something was in it: its name is durable.
    used: bool,
}

/// What a log and a failed store are, without a disk.
#[derive(Debug, Default)]
struct Model {
    queues: BTreeMap<&'static str, ModelQueue>,
    failed: BTreeMap<(&'static str, u64), u64>,
    requeued: BTreeMap<(&'static str, u64), u64>,
    last: u64,
    next_id: u64,
}

/// What is to come of an append.
enum Expected {
    Refused(&'static str),
    Unknown,
    Taken { granted: Vec<&'static str>, shed: Vec<&'static str> },
}

impl Model {
    fn expect(&self, targets: &[&'static str]) -> Expected {
        let (mut granted, mut shed) = (Vec::new(), Vec::new());
        for &target in targets {
            let Some((queue, (entries_max, when_full))) =
                self.queues.get(target).and_then(|queue| Some((queue, queue.attached?)))
            else {
                return Expected::Unknown;
            };
            match (queue.waits.len() as u64 >= entries_max, when_full) {
                (true, WhenFull::Refuse) => return Expected::Refused(target),
                (true, WhenFull::Shed) => shed.push(target),
                _ => granted.push(target),
            }
        }
        Expected::Taken { granted, shed }
    }

    fn waits(&self, queue: usize, nth: usize) -> Option<(&'static str, usize)> {
        let name = QUEUES[queue];
        let length = self.queues.get(name)?.waits.len();
        (length > 0).then(|| (name, nth % length))
    }

    fn push(&mut self, queue: &str, waits: Waits) {
        let queue = self.queues.get_mut(queue).unwrap();
        queue.waits.push(waits);
        queue.used = true;
    }

    fn failed(&self, nth: usize) -> Option<Uid> {
        let (queue, sequence) = self.failed.keys().nth(nth % self.failed.len().max(1))?;
        Some(Uid { queue: name(queue), sequence: *sequence })
    }
}

/// A store, opened again and again, beside its model.
struct Pair {
    engine: Engine,
    fs: SimFileSystem,
    journal: JournalOptions,
    store: Store,
    lease: Arc<dyn Lease>,
    model: Model,
}

fn is_known(queue: &str) -> &'static str {
    QUEUES.into_iter().find(|name| *name == queue).unwrap()
}

impl Pair {
    async fn new(engine: Engine, journal: JournalOptions) -> Self {
        let fs = SimFileSystem::default();
        let store = Self::open(engine, &fs, &journal).await;
        let lease = store.log().lease(Shards::All).await.unwrap();
        Self { engine, fs, journal, store, lease, model: Model::default() }
    }

    async fn open(engine: Engine, fs: &SimFileSystem, journal: &JournalOptions) -> Store {
        let options = StoreOptions { engine, journal: journal.clone(), ..StoreOptions::default() };
        Store::open_on(Arc::new(fs.clone()), Path::new("/data"), options).await.unwrap()
    }

    async fn act(&mut self, action: &Action) {
        match action {
            Action::Append { targets, body_bytes } => self.append(targets, *body_bytes).await,
            &Action::Settle { queue, nth, outcome } => self.settle(queue, nth, outcome).await,
            &Action::Retry { queue, nth, attempts } => {
                let state = RetryState { attempts, not_before: std::time::UNIX_EPOCH };
                self.settle(queue, nth, Outcome::Retry(state)).await;
            }
            &Action::Fail { queue, nth } => self.fail(queue, nth).await,
            &Action::Requeue { nth } => self.requeue(nth).await,
            &Action::Discard { nth } => {
                let Some(uid) = self.model.failed(nth) else { return };
                let discarded = self.store.failed().discard(Discard::Uids(vec![uid.clone()])).await.unwrap();
                assert_eq!(discarded, 1);
                self.model.failed.remove(&(is_known(uid.queue.as_str()), uid.sequence));
            }
            &Action::Attach { queue, entries_max, when_full } => {
                let settings = QueueSettings { entries_max, when_full, ..QueueSettings::default() };
                self.store.log().attach(&name(QUEUES[queue]), settings).unwrap();
                self.model.queues.entry(QUEUES[queue]).or_default().attached = Some((entries_max, when_full));
            }
            &Action::Detach { queue } => {
                let result = self.store.log().detach(&name(QUEUES[queue]));
                match self.model.queues.get_mut(QUEUES[queue]) {
                    Some(queue) => {
                        result.unwrap();
                        queue.attached = None;
                    }
                    None => assert!(matches!(result, Err(StoreError::UnknownQueue(_)))),
                }
            }
            &Action::Remove { queue } => {
                let result = self.store.log().remove(&name(QUEUES[queue])).await;
                match self.model.queues.get(QUEUES[queue]) {
                    None => assert!(matches!(result, Err(StoreError::UnknownQueue(_)))),
                    Some(queue) if queue.attached.is_some() => {
                        assert!(matches!(result, Err(StoreError::Attached(_))));
                    }
                    Some(queue) => assert_eq!(result.unwrap(), queue.waits.len() as u64),
                }
                if self.model.queues.get(QUEUES[queue]).is_some_and(|queue| queue.attached.is_none()) {
                    self.model.queues.remove(QUEUES[queue]);
                }
            }
            Action::Flush => self.store.log().flush().await.unwrap(),
            &Action::Reopen { close } => self.reopen(close).await,
        }
    }

    async fn append(&mut self, targets: &[u8], body_bytes: usize) {
        let names: Vec<Vec<&'static str>> = targets
            .iter()
            .map(|mask| (0..QUEUES.len()).filter(|bit| mask >> bit & 1 == 1).map(|bit| QUEUES[bit]).collect())
            .collect();
        let first = self.model.next_id;
        let batch = (first..).zip(&names).map(|(id, names)| sized(id, names, body_bytes)).collect();
        let results = self.store.log().append(batch).await;
        assert_eq!(results.len(), names.len());
        for (id, (names, result)) in (first..).zip(names.iter().zip(results)) {
            self.model.next_id += 1;
            match (self.model.expect(names), result) {
                (Expected::Unknown, Err(AppendError::UnknownQueue(_))) => {}
                (
                    Expected::Refused(target),
                    Err(
                        AppendError::QueueFull { target: found, .. }
                        | AppendError::TooLarge { target: found, .. },
                    ),
                ) => {
                    assert_eq!(found, name(target));
                }
                (Expected::Taken { granted, shed }, Ok(receipt)) => {
                    let same = |found: &[_], wanted: &[&str]| {
                        assert_eq!(found, wanted.iter().map(|wanted| name(wanted)).collect::<Vec<_>>());
                    };
                    same(&receipt.targets, &granted);
                    same(&receipt.shed, &shed);
                    if granted.is_empty() {
                        assert_eq!(receipt.sequence, 0, "nobody gets it");
                        continue;
                    }
                    assert!(receipt.sequence > self.model.last, "sequences grow");
                    self.model.last = receipt.sequence;
                    let waits = Waits { sequence: receipt.sequence, id, attempts: 0, requeue_of: None };
                    for queue in granted {
                        self.model.push(queue, waits);
                    }
                }
                (_, result) => panic!("{names:?}: {result:?}"),
            }
        }
    }

    async fn entry(&self, queue: &str, nth: usize) -> Entry {
        let before = nth.checked_sub(1).map_or(0, |before| self.model.queues[queue].waits[before].sequence);
        let read = self.lease.read(&name(queue), before, 1, 1).await.unwrap();
        read.entries.into_iter().next().unwrap()
    }

    async fn settle(&mut self, queue: usize, nth: usize, outcome: Outcome) {
        let Some((queue, nth)) = self.model.waits(queue, nth) else { return };
        let place = self.entry(queue, nth).await.place;
        // Whoever asks twice is answered twice, and it counts once.
        for _ in 0..2 {
            self.lease.settle(vec![Settlement { place: place.clone(), outcome }]).await.unwrap();
        }
        let waits = &mut self.model.queues.get_mut(queue).unwrap().waits;
        match outcome {
            Outcome::Retry(state) => waits[nth].attempts = state.attempts,
            _ => drop(waits.remove(nth)),
        }
    }

    async fn fail(&mut self, queue: usize, nth: usize) {
        let Some((queue, nth)) = self.model.waits(queue, nth) else { return };
        let entry = self.entry(queue, nth).await;
        let failure = Failure {
            rule: Rule::Rejected,
            class: "malformed".to_owned(),
            detail: String::new(),
            attempts: 1,
            first_attempt_ms: Some(1),
            last_attempt_ms: Some(1),
            failed_ms: 2,
        };
        let event = entry.event.clone().unwrap();
        let failed = FailedEntry {
            uid: entry.place.uid.clone(),
            dedup_id: entry.dedup_id,
            event,
            admitted_ms: 1,
            failure,
        };
        self.store.failed().put(vec![failed.clone(), failed]).await.unwrap();
        let settlement = Settlement { place: entry.place, outcome: Outcome::Failed };
        self.lease.settle(vec![settlement]).await.unwrap();
        let waits = self.model.queues.get_mut(queue).unwrap().waits.remove(nth);
        self.model.failed.insert((queue, waits.sequence), waits.id);
    }

    async fn requeue(&mut self, nth: usize) {
        let Some(uid) = self.model.failed(nth) else { return };
        let queue = is_known(uid.queue.as_str());
        let result = self.store.failed().requeue(std::slice::from_ref(&uid)).await.remove(0);
        let attached = self.model.queues.get(queue).is_some_and(|queue| queue.attached.is_some());
        if !attached {
            assert!(matches!(result, Err(RequeueError::Append(AppendError::UnknownQueue(_)))), "{result:?}");
            return;
        }
        let done = result.unwrap();
        assert!(!done.again && done.uid == uid && done.requeued_as.sequence > self.model.last, "{done:?}");
        let sequence = done.requeued_as.sequence;
        self.model.last = sequence;
        let id = self.model.failed.remove(&(queue, uid.sequence)).unwrap();
        let waits = Waits { sequence, id, attempts: 0, requeue_of: Some(uid.sequence) };
        self.model.push(queue, waits);
        self.model.requeued.insert((queue, uid.sequence), sequence);
    }

    async fn reopen(&mut self, close: bool) {
        // What is in memory ends with its value.
        if self.engine == Engine::Memory {
            return;
        }
        if close {
            self.store.close().await.unwrap();
        } else {
            self.store.log().flush().await.unwrap();
        }
        // On a real disk the lock keeps a second life away until the first has ended; this disk has none.
        let before = std::mem::replace(&mut self.store, Store::memory());
        self.lease = self.store.log().lease(Shards::All).await.unwrap();
        drop(before);
        self.store = Self::open(self.engine, &self.fs, &self.journal).await;
        self.lease = self.store.log().lease(Shards::All).await.unwrap();
        for (queue, model) in &self.model.queues {
            if let Some((entries_max, when_full)) = model.attached {
                let settings = QueueSettings { entries_max, when_full, ..QueueSettings::default() };
                self.store.log().attach(&name(queue), settings).unwrap();
            }
        }
        assert_eq!(self.store.log().report().damage, []);
        // The name of a queue in which nothing ever was may be gone.
        let known: Vec<_> = self.store.log().stats().into_iter().map(|stats| stats.name).collect();
        self.model.queues.retain(|queue, model| model.used || known.contains(&name(queue)));
        if self.engine == Engine::Spool {
            self.take_attempts().await;
        }
    }

    /// A file of a spool has no place for attempts: they are noted beside it, and the note may be old.
    async fn take_attempts(&mut self) {
        let queues: Vec<_> =
            self.model.queues.iter().map(|(queue, model)| (*queue, model.waits.len())).collect();
        for (queue, nth) in queues.into_iter().flat_map(|(queue, all)| (0..all).map(move |nth| (queue, nth)))
        {
            let found = self.entry(queue, nth).await.retry.map_or(0, |retry| retry.attempts);
            let waits = &mut self.model.queues.get_mut(queue).unwrap().waits[nth];
            assert!(found <= 9, "{found} attempts");
            waits.attempts = found;
        }
    }

    async fn check(&self) {
        let log = self.store.log();
        check_sums(&**log);
        let stats = log.stats();
        let found: Vec<_> =
            stats.iter().map(|stats| (stats.name.as_str(), stats.attached, stats.waiting)).collect();
        let expected: Vec<_> = self
            .model
            .queues
            .iter()
            .map(|(name, queue)| (*name, queue.attached.is_some(), queue.waits.len() as u64))
            .collect();
        assert_eq!(found, expected);
        for (queue, model) in &self.model.queues {
            let mut found = Vec::new();
            let mut after = 0;
            loop {
                let read = self.lease.read(&name(queue), after, 4, 700).await.unwrap();
                if read.entries.is_empty() {
                    break;
                }
                after = read.next;
                found.extend(read.entries);
            }
            let seen: Vec<_> = found.iter().map(seen).collect();
            let wanted: Vec<_> = model
                .waits
                .iter()
                .map(|waits| (waits.sequence, waits.id, waits.attempts, waits.requeue_of))
                .collect();
            assert_eq!(seen, wanted, "{queue}");
            let over = |(entries_max, _): (u64, WhenFull)| (wanted.len() as u64).saturating_sub(entries_max);
            let over = model.attached.map_or(0, over).min((wanted.len() as u64).saturating_sub(1));
            assert!(model.attached.is_none() || log.excess(&name(queue)) == over, "{queue}");
        }
        let uids = self.store.failed().uids();
        let found: Vec<_> = uids.iter().map(|uid| (uid.queue.as_str(), uid.sequence)).collect();
        assert_eq!(found, self.model.failed.keys().copied().collect::<Vec<_>>());
        for (uid, id) in uids.iter().zip(self.model.failed.values()) {
            let entry = self.store.failed().get(uid).await.unwrap().unwrap();
            assert_eq!(number(&entry.event), *id);
        }
        for ((queue, sequence), requeued_as) in &self.model.requeued {
            let known = self.store.failed().requeued_as(&Uid { queue: name(queue), sequence: *sequence });
            assert_eq!(known.map(|uid| uid.sequence), Some(*requeued_as));
        }
    }
}

fn number(event: &Event) -> u64 {
    event.id().parse().unwrap()
}

fn seen(entry: &Entry) -> (u64, u64, u32, Option<u64>) {
    let event = entry.event.as_ref().unwrap();
    let id = number(event);
    assert!(event.body().iter().all(|byte| *byte == id as u8));
    (entry.place.uid.sequence, id, entry.retry.map_or(0, |retry| retry.attempts), entry.requeue_of)
}

fn run(engine: Engine, journal: JournalOptions, actions: &[Action]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut pair = Pair::new(engine, journal).await;
        for queue in 0..2 {
            pair.act(&Action::Attach { queue, entries_max: 1000, when_full: WhenFull::Refuse }).await;
        }
        for action in actions {
            pair.act(action).await;
            pair.check().await;
        }
        pair.reopen(true).await;
        pair.check().await;
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60 * scale() as u32, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    /// An engine that is new in `Engine::ALL` is in the suite.
    #[test]
    fn every_engine_does_what_the_model_does(
        actions in proptest::collection::vec(action(), 1..40),
        segment in prop_oneof![Just(700_u64), Just(2000), Just(1 << 16)],
        compress in any::<bool>(),
    ) {
        for engine in Engine::ALL {
            run(engine, JournalOptions { compress, ..options(segment) }, &actions);
        }
    }
}
