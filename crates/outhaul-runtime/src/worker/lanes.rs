//! The window of a worker: one FIFO lane per pid, and which of them can send.
//!
//! A lane's first entry is loaded; behind one that waits, the others are only sequences (eight bytes each) and are
//! read again when their turn comes. When very many lanes wait, their first entries are unloaded as well. So neither
//! ten thousand events of a stuck pid nor ten thousand stuck pids take the window from the others.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::SystemTime;

use outhaul_store::event::{DedupId, Event};
use outhaul_store::{Entry, Place};
use tokio::time::Instant;

use crate::policy::Tried;

/// Loaded entries of one lane: a pid with a long backlog leaves the window to the others.
pub(crate) const LANE_LOADED_MAX: usize = 256;

/// With more than this loaded, lanes that cannot send keep nothing loaded.
const CROWDED_ENTRIES: usize = 2048;
const CROWDED_BYTES: usize = 8 << 20;

/// What an entry queues behind: its pid, or nothing at all.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum LaneKey {
    Pid(Arc<str>),
    Alone(u64),
}

impl LaneKey {
    pub(crate) fn of(event: &Event, sequence: u64) -> Self {
        event.pid().map_or(Self::Alone(sequence), |pid| Self::Pid(pid.into()))
    }
}

/// A loaded entry.
#[derive(Debug, Clone)]
pub(crate) struct Pending {
    pub(crate) place: Place,
    pub(crate) dedup_id: DedupId,
    pub(crate) event: Arc<Event>,
    pub(crate) admitted_at: SystemTime,
    pub(crate) lane: LaneKey,
    pub(crate) history: History,
}

/// What became of an entry so far. It is kept when the entry is unloaded.
#[derive(Debug, Clone)]
pub(crate) struct History {
    pub(crate) tried: Tried,
    /// How often it was sent, whatever came of it.
    pub(crate) sent: u32,
    /// In how large a batch it may travel: smaller after one that failed as a whole.
    pub(crate) together: usize,
    pub(crate) first_attempt: Option<SystemTime>,
    pub(crate) last_attempt: Option<SystemTime>,
}

impl History {
    fn new(tried: Tried) -> Self {
        Self { tried, sent: 0, together: usize::MAX, first_attempt: None, last_attempt: None }
    }
}

impl Pending {
    pub(crate) fn sequence(&self) -> u64 {
        self.place.uid.sequence
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// In `ready`, under its first sequence.
    Ready,
    /// In `waiting`, under this instant.
    Waiting(Instant),
    /// Some of its first entries are with the target or on their way to the failed store.
    Busy,
    /// Nothing goes on before a person decides.
    Closed,
    /// Its next entry has to be read again.
    Fetch,
}

#[derive(Debug)]
struct Lane {
    loaded: VecDeque<u64>,
    skipped: VecDeque<u64>,
    state: State,
    /// That of the first skipped entry, which was loaded before.
    unloaded: Option<Box<History>>,
}

#[derive(Debug, Default)]
pub(crate) struct Lanes {
    entries: BTreeMap<u64, Pending>,
    lanes: HashMap<LaneKey, Lane>,
    ready: BTreeMap<u64, LaneKey>,
    waiting: BTreeMap<(Instant, u64), LaneKey>,
    fetch: BTreeMap<u64, LaneKey>,
    skipped: usize,
    bytes: usize,
    busy: usize,
    /// Lanes that are closed.
    closed: usize,
}

impl Lanes {
    pub(crate) fn loaded(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn skipped(&self) -> usize {
        self.skipped
    }

    pub(crate) fn get(&self, sequence: u64) -> Option<&Pending> {
        self.entries.get(&sequence)
    }

    pub(crate) fn get_mut(&mut self, sequence: u64) -> Option<&mut Pending> {
        self.entries.get_mut(&sequence)
    }

    /// Puts an entry behind the others of its lane.
    pub(crate) fn push(
        &mut self,
        entry: Entry,
        event: Arc<Event>,
        tried: Tried,
        not_before: Option<Instant>,
    ) {
        let sequence = entry.place.uid.sequence;
        let key = LaneKey::of(&event, sequence);
        let lane = self.lanes.entry(key.clone()).or_insert_with(|| Lane {
            loaded: VecDeque::new(),
            skipped: VecDeque::new(),
            state: State::Busy,
            unloaded: None,
        });
        let first = lane.loaded.is_empty() && lane.skipped.is_empty();
        let waits = !lane.skipped.is_empty() || matches!(lane.state, State::Waiting(_) | State::Closed);
        if !first && (waits || lane.loaded.len() >= LANE_LOADED_MAX) {
            lane.skipped.push_back(sequence);
            self.skipped += 1;
            return;
        }
        lane.loaded.push_back(sequence);
        self.load(key.clone(), entry, event, History::new(tried));
        if first {
            match not_before {
                Some(at) => self.wait(&key, at),
                None => self.rest(&key),
            }
        }
    }

    fn load(&mut self, lane: LaneKey, entry: Entry, event: Arc<Event>, history: History) {
        self.bytes += entry.place.bytes() as usize;
        let Entry { place, dedup_id, admitted_at, .. } = entry;
        let sequence = place.uid.sequence;
        self.entries.insert(sequence, Pending { place, dedup_id, event, admitted_at, lane, history });
    }

    /// The first sequence that has to be read again, if any.
    pub(crate) fn to_fetch(&self) -> Option<u64> {
        self.fetch.keys().next().copied()
    }

    /// Takes an entry that was read again, if its lane wants it now.
    pub(crate) fn fetched(&mut self, entry: Entry, event: Arc<Event>, tried: Tried) {
        let sequence = entry.place.uid.sequence;
        let key = LaneKey::of(&event, sequence);
        let Some(lane) = self.lanes.get_mut(&key) else { return };
        let full = lane.loaded.len() >= LANE_LOADED_MAX;
        if full
            || lane.skipped.front() != Some(&sequence)
            || matches!(lane.state, State::Waiting(_) | State::Closed)
        {
            return;
        }
        lane.skipped.pop_front();
        lane.loaded.push_back(sequence);
        self.skipped -= 1;
        let start = lane.state == State::Fetch;
        let history = lane.unloaded.take().map_or_else(|| History::new(tried), |history| *history);
        self.load(key.clone(), entry, event, history);
        if start {
            self.fetch.remove(&sequence);
            self.rest(&key);
        }
    }

    /// An entry that was to be read again is not there any more.
    pub(crate) fn vanished(&mut self, sequence: u64) {
        let Some(key) = self.fetch.remove(&sequence) else { return };
        if let Some(lane) = self.lanes.get_mut(&key) {
            lane.skipped.pop_front();
            lane.unloaded = None;
            self.skipped -= 1;
            self.rest(&key);
        }
    }

    /// The first entries of the lanes that can send, oldest first.
    pub(crate) fn ready(&self) -> impl Iterator<Item = u64> {
        self.ready.keys().copied()
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Takes entries off the front of a ready lane, which is busy until each of them is ended or back: one, and more
    /// up to both bounds.
    pub(crate) fn take(&mut self, first: u64, entries_max: usize, bytes_max: usize) -> Vec<u64> {
        let Some(key) = self.ready.remove(&first) else { return Vec::new() };
        let Some(lane) = self.lanes.get_mut(&key) else { return Vec::new() };
        lane.state = State::Busy;
        let (mut taken, mut bytes) = (Vec::new(), 0);
        for &sequence in &lane.loaded {
            let Some(entry) = self.entries.get(&sequence) else { break };
            bytes += entry.place.bytes() as usize;
            // A suspect travels alone.
            let fits = taken.len() < entries_max && bytes <= bytes_max && !entry.history.tried.suspect;
            if !taken.is_empty() && !fits {
                break;
            }
            taken.push(sequence);
            if entry.history.tried.suspect {
                break;
            }
        }
        self.busy += taken.len();
        taken
    }

    /// Takes a lane's first entry, whatever the lane is waiting for.
    pub(crate) fn take_any(&mut self, sequence: u64) -> bool {
        let Some(key) = self.entries.get(&sequence).map(|entry| entry.lane.clone()) else { return false };
        let Some(lane) = self.lanes.get_mut(&key) else { return false };
        if lane.loaded.front() != Some(&sequence) {
            return false;
        }
        match lane.state {
            State::Ready => self.ready.remove(&sequence),
            State::Waiting(at) => self.waiting.remove(&(at, sequence)),
            State::Closed => {
                self.closed -= 1;
                None
            }
            State::Busy | State::Fetch => return false,
        };
        lane.state = State::Busy;
        self.busy += 1;
        true
    }

    /// Entries of busy lanes that were taken.
    pub(crate) fn busy(&self) -> usize {
        self.busy
    }

    /// An entry that was taken has left the queue.
    pub(crate) fn end(&mut self, sequence: u64) -> Option<Pending> {
        let pending = self.entries.remove(&sequence)?;
        self.bytes -= pending.place.bytes() as usize;
        self.busy -= 1;
        if let Some(lane) = self.lanes.get_mut(&pending.lane) {
            lane.loaded.retain(|other| *other != sequence);
        }
        Some(pending)
    }

    /// Entries that were taken stay; what becomes of their lane is told by [`rest`](Self::rest) or another.
    pub(crate) fn untake(&mut self, count: usize) {
        self.busy -= count;
    }

    /// A busy lane can send again, or is over.
    pub(crate) fn rest(&mut self, key: &LaneKey) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        if let Some(&first) = lane.loaded.front() {
            lane.state = State::Ready;
            self.ready.insert(first, key.clone());
        } else if let Some(&first) = lane.skipped.front() {
            lane.state = State::Fetch;
            self.fetch.insert(first, key.clone());
        } else {
            self.lanes.remove(key);
        }
    }

    /// A busy lane waits. All but its first entry are forgotten but for their place.
    pub(crate) fn wait(&mut self, key: &LaneKey, until: Instant) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        let Some(&first) = lane.loaded.front() else { return self.rest(key) };
        lane.state = State::Waiting(until);
        self.waiting.insert((until, first), key.clone());
        self.unload(key, usize::from(!self.is_crowded()));
    }

    /// A busy lane sends nothing more.
    pub(crate) fn close(&mut self, key: &LaneKey) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        lane.state = State::Closed;
        self.closed += 1;
        self.unload(key, usize::from(!self.is_crowded()));
    }

    /// A lane that nothing was taken from sends nothing more.
    pub(crate) fn close_idle(&mut self, key: &LaneKey) {
        let Some(lane) = self.lanes.get(key) else { return };
        let Some(&first) = lane.loaded.front() else { return };
        match lane.state {
            State::Ready => self.ready.remove(&first),
            State::Waiting(at) => self.waiting.remove(&(at, first)),
            State::Busy | State::Closed | State::Fetch => return,
        };
        self.close(key);
    }

    pub(crate) fn is_closed(&self, key: &LaneKey) -> bool {
        self.lanes.get(key).is_some_and(|lane| lane.state == State::Closed)
    }

    fn is_crowded(&self) -> bool {
        self.entries.len() > CROWDED_ENTRIES || self.bytes > CROWDED_BYTES
    }

    /// Forgets all but the first entries of a lane that is not busy, but for their places.
    fn unload(&mut self, key: &LaneKey, keep: usize) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        while lane.loaded.len() > keep {
            let Some(last) = lane.loaded.pop_back() else { return };
            lane.skipped.push_front(last);
            self.skipped += 1;
            if let Some(entry) = self.entries.remove(&last) {
                self.bytes -= entry.place.bytes() as usize;
                lane.unloaded = Some(Box::new(entry.history));
            }
        }
        if keep > 0 {
            lane.unloaded = None;
        }
    }

    /// Makes ready what has waited long enough.
    pub(crate) fn wake(&mut self, now: Instant) {
        while let Some((&(at, first), _)) = self.waiting.first_key_value()
            && at <= now
        {
            if let Some(key) = self.waiting.remove(&(at, first)) {
                self.rest(&key);
            }
        }
    }

    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.waiting.keys().next().map(|&(at, _)| at)
    }

    /// How many lanes wait for their next attempt, or for a person.
    pub(crate) fn stuck(&self) -> usize {
        self.waiting.len() + self.closed
    }

    /// Loaded entries that are first in their lane and not taken, oldest first.
    pub(crate) fn idle_fronts(&self) -> impl DoubleEndedIterator<Item = &Pending> {
        self.entries.values().filter(|entry| {
            self.lanes.get(&entry.lane).is_some_and(|lane| {
                lane.state != State::Busy && lane.loaded.front() == Some(&entry.sequence())
            })
        })
    }

    /// The oldest, or the youngest, loaded entry that is first in its lane, not taken, in a lane that is not closed,
    /// and of use.
    pub(crate) fn idle(&self, usable: impl Fn(&Pending) -> bool, youngest: bool) -> Option<u64> {
        let mut fronts = self.idle_fronts().filter(|entry| !self.is_closed(&entry.lane) && usable(entry));
        let found = if youngest { fronts.next_back() } else { fronts.next() };
        found.map(Pending::sequence)
    }

    /// When the oldest loaded entry was admitted.
    pub(crate) fn oldest(&self) -> Option<SystemTime> {
        self.entries.values().next().map(|entry| entry.admitted_at)
    }

    /// The first entry of a lane, loaded or not.
    pub(crate) fn first(&self, key: &LaneKey) -> Option<u64> {
        let lane = self.lanes.get(key)?;
        lane.loaded.front().or(lane.skipped.front()).copied()
    }

    /// Until when an entry that is first in its lane waits.
    pub(crate) fn waits_until(&self, key: &LaneKey, sequence: u64) -> Option<Instant> {
        match self.lanes.get(key)?.state {
            State::Waiting(until) if self.first(key) == Some(sequence) => Some(until),
            _ => None,
        }
    }

    /// Takes an entry out that nobody works on, wherever in its lane it stands. None: somebody does.
    pub(crate) fn remove(&mut self, sequence: u64) -> Option<Pending> {
        let key = self.entries.get(&sequence)?.lane.clone();
        let lane = self.lanes.get_mut(&key)?;
        if lane.loaded.front() == Some(&sequence) {
            if !self.take_any(sequence) {
                return None;
            }
            let removed = self.end(sequence);
            self.rest(&key);
            return removed;
        }
        lane.loaded.retain(|other| *other != sequence);
        let removed = self.entries.remove(&sequence)?;
        self.bytes -= removed.place.bytes() as usize;
        Some(removed)
    }

    /// A lane that waits for its next attempt waits no longer.
    pub(crate) fn hurry(&mut self, key: &LaneKey) {
        let (Some(first), Some(lane)) = (self.first(key), self.lanes.get(key)) else { return };
        if let State::Waiting(at) = lane.state {
            self.waiting.remove(&(at, first));
            self.rest(key);
        }
    }

    /// A lane that waited for a person goes on.
    pub(crate) fn open(&mut self, key: &LaneKey) {
        if self.is_closed(key) {
            self.closed -= 1;
            self.rest(key);
        }
    }
}
