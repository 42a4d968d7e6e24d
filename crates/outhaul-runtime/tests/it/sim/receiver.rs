//! A simulated receiver: it lives on when the process ends, remembers everything that ever reached it, and notes
//! whatever must not happen.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use outhaul_runtime::target::{Attempt, BatchOrder, Capabilities, DeliveryError, ErrorKind, Target};
use tokio::time::Instant;

/// What one event does to whoever takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Poison {
    Fails(ErrorKind),
    /// The attempt never ends.
    Hangs,
    /// It ends the process.
    Crashes,
}

/// How a receiver is disposed to everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mood {
    Good,
    /// So many of a hundred attempts fail somehow.
    Moody(u8),
    /// It fails with one of these; with several, one attempt in ten gets through.
    Down(&'static [ErrorKind]),
    /// No attempt ends.
    Hangs,
}

pub(crate) const ANY: [ErrorKind; 9] = [
    ErrorKind::ServerFault,
    ErrorKind::ConnectionRefused,
    ErrorKind::ConnectionReset,
    ErrorKind::TimedOut,
    ErrorKind::Throttled,
    ErrorKind::Overloaded,
    ErrorKind::Authentication,
    ErrorKind::ContentRefused,
    ErrorKind::Unknown,
];

/// One entry as its receiver knows it.
#[derive(Debug, Default)]
struct Known {
    id: u64,
    dedup_id: String,
    /// The lives of the process in which it was tried, and in which it was acknowledged.
    tried: BTreeSet<u32>,
    acknowledged: BTreeSet<u32>,
    /// Why it must never come again.
    over: Option<&'static str>,
}

#[derive(Debug)]
struct State {
    random: fastrand::Rng,
    life: u32,
    start: Option<Instant>,
    mood: Mood,
    poisons: BTreeMap<u64, Poison>,
    known: BTreeMap<u64, Known>,
    /// The events that were acknowledged, and when that was first.
    acknowledged: BTreeMap<u64, Instant>,
    /// Entries, and their pids, of attempts that run.
    here: BTreeMap<u64, Option<String>>,
    /// Per pid, the entry that arrived last for the first time.
    arrived: BTreeMap<String, u64>,
    crash: bool,
    broken: Vec<String>,
    /// A digest of all that happened, and when.
    trace: u64,
    attempts: u64,
}

/// Clones are one receiver.
#[derive(Debug, Clone)]
pub(crate) struct Receiver {
    name: &'static str,
    capabilities: Capabilities,
    state: Arc<Mutex<State>>,
}

impl Receiver {
    pub(crate) fn new(name: &'static str, seed: u64, capabilities: Capabilities) -> Self {
        let state = State {
            random: fastrand::Rng::with_seed(seed),
            life: 0,
            start: None,
            mood: Mood::Good,
            poisons: BTreeMap::new(),
            known: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            here: BTreeMap::new(),
            arrived: BTreeMap::new(),
            crash: false,
            broken: Vec::new(),
            trace: 0,
            attempts: 0,
        };
        Self { name, capabilities, state: Arc::new(Mutex::new(state)) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) fn mood(&self, mood: Mood) {
        self.state().mood = mood;
    }

    pub(crate) fn poison(&self, id: u64, poison: Poison) {
        self.state().poisons.insert(id, poison);
    }

    /// Nothing is bad any more.
    pub(crate) fn heal(&self) {
        let mut state = self.state();
        state.mood = Mood::Good;
        state.poisons.clear();
    }

    /// Another process begins.
    pub(crate) fn next_life(&self) {
        let mut state = self.state();
        state.life += 1;
        state.start = Some(Instant::now());
        state.crash = false;
        if !state.here.is_empty() {
            let left = format!("{}: still here after the end: {:?}", self.name, state.here);
            state.broken.push(left);
        }
    }

    pub(crate) fn wants_crash(&self) -> bool {
        self.state().crash
    }

    /// What must not have happened.
    pub(crate) fn broken(&self) -> Vec<String> {
        self.state().broken.clone()
    }

    pub(crate) fn trace(&self) -> u64 {
        self.state().trace
    }

    pub(crate) fn attempts(&self) -> u64 {
        self.state().attempts
    }

    pub(crate) fn has(&self, id: u64) -> bool {
        self.state().acknowledged.contains_key(&id)
    }

    /// When an event was acknowledged first.
    pub(crate) fn acknowledged_at(&self, id: u64) -> Option<Instant> {
        self.state().acknowledged.get(&id).copied()
    }

    /// When anything was acknowledged first after an instant.
    pub(crate) fn first_after(&self, after: Instant) -> Option<Instant> {
        self.state().acknowledged.values().copied().filter(|at| *at >= after).min()
    }

    /// An entry must not come again.
    pub(crate) fn over(&self, sequence: u64, why: &'static str) {
        self.state().known.entry(sequence).or_default().over.get_or_insert(why);
    }

    pub(crate) fn is_over(&self, sequence: u64) -> Option<&'static str> {
        self.state().known.get(&sequence)?.over
    }

    /// Nothing that was acknowledged in this life must come again.
    pub(crate) fn acknowledged_is_over(&self, why: &'static str) {
        let mut state = self.state();
        let life = state.life;
        for known in state.known.values_mut().filter(|known| known.acknowledged.contains(&life)) {
            known.over.get_or_insert(why);
        }
    }

    /// In how many lives of the process an entry was tried.
    pub(crate) fn lives(&self, sequence: u64) -> usize {
        self.state().known.get(&sequence).map_or(0, |known| known.tried.len())
    }
}

impl State {
    fn note(&mut self, word: u64) {
        self.trace = (self.trace ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(7);
    }

    fn begin(&mut self, name: &str, events: &[Attempt], capabilities: &Capabilities) {
        self.attempts += 1;
        let mut pids = BTreeSet::new();
        for attempt in events {
            let (sequence, life) = (attempt.uid.sequence, self.life);
            let (id, pid) = (number(attempt), attempt.event.pid().map(str::to_owned));
            let mut wrong = Vec::new();
            if let Some(pid) = &pid {
                if !pids.insert(pid.clone()) && capabilities.batch_order == BatchOrder::None {
                    wrong.push("two of its pid in one call".to_owned());
                }
                if self.here.values().any(|other| other.as_ref() == Some(pid)) {
                    wrong.push(format!("its pid is here already: {:?}", self.here));
                }
            }
            let known = self.known.entry(sequence).or_default();
            if known.tried.is_empty() {
                (known.id, known.dedup_id) = (id, attempt.dedup_id.to_string());
            }
            if known.id != id || known.dedup_id != attempt.dedup_id.to_string() {
                wrong.push(format!("it was another event before: {known:?}"));
            }
            if let Some(why) = known.over {
                wrong.push(format!("it is over: {why}"));
            }
            if known.acknowledged.contains(&life) {
                wrong.push("it was acknowledged in this life".to_owned());
            }
            known.tried.insert(life);
            let what = format!("{name}: entry {sequence}, event {id} of {pid:?}");
            self.broken.extend(wrong.into_iter().map(|wrong| format!("{what}: {wrong}")));
        }
        for attempt in events {
            self.here.insert(attempt.uid.sequence, attempt.event.pid().map(str::to_owned));
        }
    }

    /// What becomes of an event, and whether it arrived.
    fn answer(&mut self, id: u64) -> (Result<(), ErrorKind>, bool) {
        if let Some(Poison::Fails(kind)) = self.poisons.get(&id) {
            return (Err(*kind), false);
        }
        let failed = match self.mood {
            Mood::Good | Mood::Hangs => None,
            Mood::Moody(percent) => {
                (self.random.u8(0..100) < percent).then(|| ANY[self.random.usize(0..ANY.len())])
            }
            Mood::Down(kinds) => {
                let flaps = kinds.len() > 1 && self.random.u8(0..10) == 0;
                (!flaps).then(|| kinds[self.random.usize(0..kinds.len())])
            }
        };
        // An answer that is lost on its way is a failure, and the event has arrived.
        let lost =
            matches!(failed, Some(ErrorKind::TimedOut | ErrorKind::ConnectionReset)) && self.random.bool();
        (failed.map_or(Ok(()), Err), failed.is_none() || lost)
    }

    fn arrive(&mut self, name: &str, attempt: &Attempt, acknowledged: bool) {
        let (sequence, id, life) = (attempt.uid.sequence, number(attempt), self.life);
        let first = self.known.get(&sequence).is_none_or(|known| known.acknowledged.is_empty());
        if let Some(pid) = attempt.event.pid().filter(|_| first) {
            let before = self.arrived.entry(pid.to_owned()).or_default();
            // One that arrived without an answer comes again.
            if *before > sequence {
                self.broken.push(format!("{name}: {pid}: entry {sequence} arrives behind {before}"));
            }
            *before = sequence;
        }
        if acknowledged {
            self.acknowledged.entry(id).or_insert_with(Instant::now);
            self.known.entry(sequence).or_default().acknowledged.insert(life);
        }
    }
}

fn number(attempt: &Attempt) -> u64 {
    // A test event is of no number.
    attempt.event.id().parse().unwrap_or(u64::MAX)
}

/// Attempts that run are here until they end, however they end.
struct Here<'a>(&'a Receiver, Vec<u64>);

impl Drop for Here<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        for sequence in &self.1 {
            state.here.remove(sequence);
        }
    }
}

#[async_trait]
impl Target for Receiver {
    fn kind(&self) -> &'static str {
        "simulated"
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    async fn deliver(&self, events: &[Attempt]) -> Vec<Result<(), DeliveryError>> {
        let (latency, hangs) = {
            let mut state = self.state();
            state.begin(self.name, events, &self.capabilities);
            let planted: Vec<_> =
                events.iter().filter_map(|attempt| state.poisons.get(&number(attempt)).copied()).collect();
            state.crash |= planted.contains(&Poison::Crashes);
            let crash = state.crash;
            let hangs = crash || planted.contains(&Poison::Hangs) || state.mood == Mood::Hangs;
            (Duration::from_millis(state.random.u64(1..40)), hangs)
        };
        let _here = Here(self, events.iter().map(|attempt| attempt.uid.sequence).collect());
        if hangs {
            return std::future::pending().await;
        }
        // bounded: the clock is paused.
        tokio::time::sleep(latency).await;
        let (mut state, mut failed) = (self.state(), BTreeSet::new());
        let prefix = self.capabilities.batch_order == BatchOrder::Prefix;
        let mut results = Vec::new();
        for attempt in events {
            let pid = attempt.event.pid();
            if prefix && pid.is_some_and(|pid| failed.contains(pid)) {
                results.push(Err(ErrorKind::Skipped.into()));
                continue;
            }
            let (result, arrived) = state.answer(number(attempt));
            if arrived {
                state.arrive(self.name, attempt, result.is_ok());
            }
            if let (Err(_), Some(pid)) = (result, pid) {
                failed.insert(pid.to_owned());
            }
            let at = state.start.map_or(0, |start| start.elapsed().as_millis() as u64);
            state.note(attempt.uid.sequence ^ (u64::from(result.is_ok()) << 20) ^ (at << 21));
            results.push(result.map_err(DeliveryError::from));
        }
        results
    }

    async fn probe(&self) -> Result<(), DeliveryError> {
        let mood = self.state().mood;
        match mood {
            Mood::Down(kinds) => Err(kinds[0].into()),
            Mood::Hangs => std::future::pending().await,
            Mood::Good | Mood::Moody(_) => Ok(()),
        }
    }
}
