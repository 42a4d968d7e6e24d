//! The window of a worker: one FIFO lane per pid, and which of them can send.
//!
//! A lane's first entries are loaded; behind one that waits, the others are only sequences (eight bytes each) and are
//! read again when their turn comes. When very many lanes wait, their first entries are unloaded as well. A lane knows
//! its pid by the hash that the store's footers have, so entries can also be taken up that nobody has read yet. So
//! neither ten thousand events of a stuck pid nor ten thousand stuck pids take the window from the others. Two pids of
//! one hash share a lane: they wait for each other, and nothing is sent out of order.
//!
//! ```text
//! loaded, loaded, | skipped, skipped, skipped, … | lost: known from its first sequence on, found again by a scan
//! ```

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::SystemTime;

use outhaul_store::event::{DedupId, Event};
use outhaul_store::{Entry, Place, ScanRow, pid_hash};
use tokio::time::Instant;

use super::fifo::Fifo;
use super::hash::Hashed;
use crate::policy::{Pick, Tried};

/// Loaded entries of one lane: a pid with a long backlog leaves the window to the others.
pub(crate) const LANE_LOADED_MAX: usize = 256;
/// Entries kept as a sequence. What comes behind is found again by a scan.
pub(crate) const SKIPPED_MAX: usize = 1_000_000;
/// Pids that are known at the same time; nothing is read ahead beyond them.
pub(crate) const LANES_MAX: usize = 1 << 17;

/// With more than this loaded, lanes that cannot send keep nothing loaded.
const CROWDED_ENTRIES: usize = 2048;
const CROWDED_BYTES: usize = 8 << 20;

/// What an entry queues behind: its pid, or nothing at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum LaneKey {
    Pid(u64),
    Alone(u64),
}

impl LaneKey {
    pub(crate) fn of(event: &Event, sequence: u64) -> Self {
        pid_hash(event).map_or(Self::Alone(sequence), Self::Pid)
    }

    pub(crate) fn of_row(row: &ScanRow) -> Self {
        row.pid_hash.map_or(Self::Alone(row.sequence), Self::Pid)
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
    /// Loaded ahead of its turn, from the far end.
    pub(crate) far: bool,
}

/// What became of an entry so far. It is kept when the entry is unloaded.
#[derive(Debug, Clone)]
pub(crate) struct History {
    pub(crate) tried: Tried,
    /// How often it was sent, whatever came of it.
    pub(crate) sent: u32,
    /// In how large a batch it may travel: smaller after one that failed as a whole.
    pub(crate) together: u32,
    pub(crate) first_attempt: Option<SystemTime>,
    pub(crate) last_attempt: Option<SystemTime>,
}

impl History {
    fn new(tried: Tried) -> Self {
        Self { tried, sent: 0, together: u32::MAX, first_attempt: None, last_attempt: None }
    }
}

impl Pending {
    pub(crate) fn sequence(&self) -> u64 {
        self.place.uid.sequence
    }
}

/// Which of the lanes that can send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// Its first entry never failed, but perhaps as a trial.
    Fresh,
    /// As `Fresh`, and the last one of this lane was delivered.
    Proven,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// In `ready`, under its first sequence.
    Ready(Class),
    /// In `again`, under its turn: its first entry failed before.
    Again(u64),
    /// In `waiting`, until this instant.
    Waiting(Instant),
    /// Some of its first entries are with the target or on their way to the failed store.
    Busy,
    /// Nothing goes on before a person decides.
    Closed,
    /// Its next entry has to be read (again); in `fetch`, or in `lost`.
    Fetch,
}

#[derive(Debug)]
struct Lane {
    entries: Fifo,
    /// So many of them, the first ones, are loaded.
    loaded: u32,
    /// The first entry that is not kept in `entries`, or 0.
    lost: u64,
    state: State,
    /// That of the first entry behind the loaded ones, which was loaded before.
    unloaded: Option<Box<History>>,
    proven: bool,
}

impl Lane {
    fn new() -> Self {
        let (entries, state) = (Fifo::default(), State::Busy);
        Self { entries, loaded: 0, lost: 0, state, unloaded: None, proven: false }
    }

    /// Where a loaded entry stands.
    fn position(&self, sequence: u64) -> Option<usize> {
        self.entries.iter().take(self.loaded()).position(|other| other == sequence)
    }

    fn first_loaded(&self) -> Option<u64> {
        self.entries.front().filter(|_| self.loaded > 0)
    }

    fn first_skipped(&self) -> Option<u64> {
        self.entries.get(self.loaded())
    }

    fn loaded(&self) -> usize {
        self.loaded as usize
    }

    fn first(&self) -> Option<u64> {
        self.entries.front()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Lanes {
    /// Boxed: a tree moves what is in it.
    entries: BTreeMap<u64, Box<Pending>>,
    lanes: HashMap<LaneKey, Lane, Hashed>,
    /// By class.
    ready: [BTreeMap<u64, LaneKey>; 2],
    /// Those whose first entry failed before take turns: by age, the two oldest bad ones would leave no room for others.
    again: BTreeMap<u64, LaneKey>,
    turns: u64,
    waiting: BTreeMap<(Instant, LaneKey), ()>,
    /// Lanes to be read, and those of them that were delivered to.
    fetch: [BTreeMap<u64, LaneKey>; 2],
    lost: BTreeMap<u64, LaneKey>,
    skipped: usize,
    bytes: usize,
    far: usize,
    far_bytes: usize,
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

    /// Loaded entries that came from the far end, and their bytes.
    pub(crate) fn far(&self) -> (usize, usize) {
        (self.far, self.far_bytes)
    }

    /// Whether another entry may be taken up that is not loaded.
    pub(crate) fn has_room_for_skipped(&self) -> bool {
        self.lanes.len() < LANES_MAX
    }

    pub(crate) fn get(&self, sequence: u64) -> Option<&Pending> {
        self.entries.get(&sequence).map(|entry| &**entry)
    }

    pub(crate) fn get_mut(&mut self, sequence: u64) -> Option<&mut Pending> {
        self.entries.get_mut(&sequence).map(|entry| &mut **entry)
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
        let lane = self.lanes.entry(key).or_insert_with(Lane::new);
        let first = lane.entries.is_empty() && lane.lost == 0;
        let waits = lane.entries.len() > lane.loaded() || lane.lost > 0;
        let waits = waits || matches!(lane.state, State::Waiting(_) | State::Closed);
        if !first && (waits || lane.loaded() >= LANE_LOADED_MAX) {
            return self.skip(key, sequence);
        }
        lane.entries.push_back(sequence);
        lane.loaded += 1;
        self.load(key, entry, event, History::new(tried), false);
        if first {
            match not_before {
                Some(at) => self.wait(key, at),
                None => self.rest(key),
            }
        }
    }

    /// Puts an entry that was not read behind the others of its lane.
    pub(crate) fn skip(&mut self, key: LaneKey, sequence: u64) {
        let full = self.skipped >= SKIPPED_MAX;
        let new = !self.lanes.contains_key(&key);
        let lane = self.lanes.entry(key).or_insert_with(Lane::new);
        if lane.lost > 0 {
            return;
        }
        if full && !new {
            lane.lost = sequence;
            return;
        }
        lane.entries.push_back(sequence);
        self.skipped += 1;
        if new {
            self.rest(key);
        }
    }

    fn load(&mut self, lane: LaneKey, entry: Entry, event: Arc<Event>, history: History, far: bool) {
        self.bytes += entry.place.bytes() as usize;
        if far {
            self.far += 1;
            self.far_bytes += entry.place.bytes() as usize;
        }
        let Entry { place, dedup_id, admitted_at, .. } = entry;
        let sequence = place.uid.sequence;
        let pending = Pending { place, dedup_id, event, admitted_at, lane, history, far };
        self.entries.insert(sequence, Box::new(pending));
    }

    fn drop_entry(&mut self, sequence: u64) -> Option<Box<Pending>> {
        let pending = self.entries.remove(&sequence)?;
        self.bytes -= pending.place.bytes() as usize;
        if pending.far {
            self.far -= 1;
            self.far_bytes -= pending.place.bytes() as usize;
        }
        Some(pending)
    }

    /// The first sequence that has to be read (again), if any.
    pub(crate) fn to_fetch(&self) -> Option<u64> {
        self.fetch.iter().filter_map(|lanes| lanes.keys().next().copied()).min()
    }

    /// As `to_fetch`, of the lanes that were delivered to.
    pub(crate) fn proven_to_fetch(&self) -> Option<u64> {
        self.fetch[1].keys().next().copied()
    }

    fn no_fetch(&mut self, sequence: u64) -> Option<LaneKey> {
        let [others, proven] = &mut self.fetch;
        others.remove(&sequence).or_else(|| proven.remove(&sequence))
    }

    /// The last but some of the sequences that have to be read: where to read from, to have the far end.
    pub(crate) fn far_end(&self, count: usize) -> Option<u64> {
        self.fetch[0].keys().rev().take(count).next_back().copied()
    }

    pub(crate) fn last_to_fetch(&self) -> Option<u64> {
        self.fetch[0].keys().next_back().copied()
    }

    /// A lane whose next entries have to be found by a scan, and the first of them.
    pub(crate) fn to_find(&self) -> Option<(LaneKey, u64)> {
        self.lost.first_key_value().map(|(&sequence, &key)| (key, sequence))
    }

    /// What a scan found of a lane; `lost`: the first one behind these, or 0.
    pub(crate) fn found(&mut self, key: LaneKey, sequences: &[u64], lost: u64) {
        let Some(lane) = self.lanes.get_mut(&key) else { return };
        self.lost.remove(&lane.lost);
        sequences.iter().for_each(|sequence| lane.entries.push_back(*sequence));
        lane.lost = lost;
        self.skipped += sequences.len();
        if lane.state == State::Fetch {
            self.rest(key);
        }
    }

    /// Takes an entry that was read again, if its lane wants it now; `anyway`: also if the lane waits. Returns whether
    /// it was wanted.
    pub(crate) fn fetched(
        &mut self,
        entry: Entry,
        event: Arc<Event>,
        (tried, not_before): (Tried, Option<Instant>),
        (far, anyway): (bool, bool),
    ) -> bool {
        let sequence = entry.place.uid.sequence;
        let key = LaneKey::of(&event, sequence);
        let Some(lane) = self.lanes.get_mut(&key) else { return false };
        let waits = matches!(lane.state, State::Waiting(_) | State::Closed) && !anyway;
        if lane.loaded() >= LANE_LOADED_MAX || lane.first_skipped() != Some(sequence) || waits {
            return false;
        }
        lane.loaded += 1;
        self.skipped -= 1;
        let start = lane.state == State::Fetch;
        // What is remembered in the store counts for an entry that nobody has seen in this life.
        let not_before = not_before.filter(|_| lane.unloaded.is_none());
        let history = lane.unloaded.take().map_or_else(|| History::new(tried), |history| *history);
        self.load(key, entry, event, history, far);
        if start {
            self.no_fetch(sequence);
            match not_before {
                Some(at) => self.wait(key, at),
                None => self.rest(key),
            }
        }
        true
    }

    /// An entry that was to be read again is not there any more.
    pub(crate) fn vanished(&mut self, sequence: u64) {
        let Some(key) = self.no_fetch(sequence) else { return };
        if let Some(lane) = self.lanes.get_mut(&key) {
            lane.entries.remove(0);
            lane.unloaded = None;
            self.skipped -= 1;
            self.rest(key);
        }
    }

    /// How many entries could be sent now, counted up to a bound.
    pub(crate) fn ready_entries(&self, max: usize) -> usize {
        let lanes = self.ready.iter().flat_map(BTreeMap::values).chain(self.again.values()).take(max);
        lanes.filter_map(|key| self.lanes.get(key)).map(Lane::loaded).sum()
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.again.is_empty() || self.ready.iter().any(|class| !class.is_empty())
    }

    /// The first entries of some lanes that can send, in the order in which they are to be taken.
    pub(crate) fn pick(&self, pick: Pick, max: usize) -> Vec<u64> {
        let [fresh, proven] = &self.ready;
        let (fresh, proven) = (fresh.keys().copied(), proven.keys().copied());
        let again = self.again.values().filter_map(|key| self.lanes.get(key)?.first_loaded());
        match pick {
            Pick::Oldest => merge(fresh, proven).chain(again).take(max).collect(),
            Pick::Proven => proven.chain(fresh).chain(again).take(max).collect(),
            Pick::Far => proven.chain(fresh.rev()).chain(again).take(max).collect(),
            Pick::Since(time) => {
                let is_since = |first: &u64| self.get(*first).is_some_and(|entry| entry.admitted_at > time);
                let [a, b] = self.ready.each_ref().map(|class| class.keys().rev().copied());
                let mut since: Vec<u64> = a.take_while(is_since).chain(b.take_while(is_since)).collect();
                since.sort_unstable_by(|a, b| b.cmp(a));
                let older = merge(fresh, proven).filter(move |first| !is_since(first));
                since.into_iter().chain(older).chain(again).take(max).collect()
            }
            Pick::Again => again.chain(merge(fresh, proven)).take(max).collect(),
        }
    }

    /// Takes entries off the front of a lane, whatever it waits for; it is busy until each of them is ended or back: one,
    /// and more up to both bounds.
    pub(crate) fn take(&mut self, first: u64, entries_max: usize, bytes_max: usize) -> Vec<u64> {
        let Some(key) = self.entries.get(&first).map(|entry| entry.lane) else { return Vec::new() };
        let is_first = self.lanes.get(&key).is_some_and(|lane| lane.first_loaded() == Some(first));
        if !is_first || !self.make_busy(key) {
            return Vec::new();
        }
        let Some(lane) = self.lanes.get(&key) else { return Vec::new() };
        let (mut taken, mut bytes) = (Vec::new(), 0);
        for sequence in lane.entries.iter().take(lane.loaded()) {
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
        !self.take(sequence, 1, usize::MAX).is_empty()
    }

    /// Takes a lane out of whatever it waits in; false if it is busy, or has to be read first.
    fn make_busy(&mut self, key: LaneKey) -> bool {
        let Some(lane) = self.lanes.get_mut(&key) else { return false };
        match lane.state {
            State::Ready(class) => {
                lane.first().and_then(|first| self.ready[class as usize].remove(&first));
            }
            State::Again(turn) => {
                self.again.remove(&turn);
            }
            State::Waiting(at) => {
                self.waiting.remove(&(at, key));
            }
            State::Closed => self.closed -= 1,
            State::Busy | State::Fetch => return false,
        }
        lane.state = State::Busy;
        true
    }

    /// Entries of busy lanes that were taken.
    pub(crate) fn busy(&self) -> usize {
        self.busy
    }

    /// An entry that was taken has left the queue.
    pub(crate) fn end(&mut self, sequence: u64) -> Option<Box<Pending>> {
        let pending = self.drop_entry(sequence)?;
        self.busy -= 1;
        if let Some(lane) = self.lanes.get_mut(&pending.lane)
            && let Some(at) = lane.position(sequence)
        {
            lane.entries.remove(at);
            lane.loaded -= 1;
        }
        Some(pending)
    }

    /// The target took an entry of this lane.
    pub(crate) fn proven(&mut self, key: LaneKey) {
        if let Some(lane) = self.lanes.get_mut(&key) {
            lane.proven = true;
        }
    }

    /// Whether what was sent last of this lane was delivered.
    pub(crate) fn is_proven(&self, key: LaneKey) -> bool {
        self.lanes.get(&key).is_some_and(|lane| lane.proven)
    }

    /// Entries that were taken stay; what becomes of their lane is told by [`rest`](Self::rest) or another.
    pub(crate) fn untake(&mut self, count: usize) {
        self.busy -= count;
    }

    /// A busy lane can send again, or is over.
    pub(crate) fn rest(&mut self, key: LaneKey) {
        let Some(lane) = self.lanes.get_mut(&key) else { return };
        if let Some(first) = lane.first_loaded() {
            let failed = self.entries.get(&first).is_some_and(|entry| entry.history.tried.is_doubtful());
            lane.proven &= !failed;
            if failed {
                self.turns += 1;
                lane.state = State::Again(self.turns);
                self.again.insert(self.turns, key);
            } else {
                let class = if lane.proven { Class::Proven } else { Class::Fresh };
                lane.state = State::Ready(class);
                self.ready[class as usize].insert(first, key);
            }
        } else if let Some(first) = lane.first_skipped() {
            lane.state = State::Fetch;
            self.fetch[usize::from(lane.proven)].insert(first, key);
        } else if lane.lost > 0 {
            lane.state = State::Fetch;
            self.lost.insert(lane.lost, key);
        } else {
            self.lanes.remove(&key);
        }
    }

    /// A busy lane waits. All but its first entry are forgotten but for their place.
    pub(crate) fn wait(&mut self, key: LaneKey, until: Instant) {
        let Some(lane) = self.lanes.get_mut(&key) else { return };
        if lane.loaded == 0 {
            return self.rest(key);
        }
        lane.state = State::Waiting(until);
        self.waiting.insert((until, key), ());
        self.unload(key, usize::from(!self.is_crowded()));
    }

    /// A busy lane sends nothing more.
    pub(crate) fn close(&mut self, key: LaneKey) {
        let Some(lane) = self.lanes.get_mut(&key) else { return };
        if lane.entries.is_empty() && lane.lost == 0 {
            self.lanes.remove(&key);
            return;
        }
        lane.state = State::Closed;
        self.closed += 1;
        self.unload(key, usize::from(!self.is_crowded()));
    }

    /// A lane that nothing was taken from sends nothing more.
    pub(crate) fn close_idle(&mut self, key: LaneKey) {
        let Some(lane) = self.lanes.get_mut(&key) else { return };
        match lane.state {
            State::Busy | State::Closed => return,
            State::Fetch => {
                let first = lane.first().unwrap_or(lane.lost);
                lane.state = State::Busy;
                self.no_fetch(first);
                self.lost.remove(&first);
            }
            State::Ready(_) | State::Again(_) | State::Waiting(_) => drop(self.make_busy(key)),
        }
        self.close(key);
    }

    pub(crate) fn is_closed(&self, key: LaneKey) -> bool {
        self.lanes.get(&key).is_some_and(|lane| lane.state == State::Closed)
    }

    fn is_crowded(&self) -> bool {
        self.entries.len() > CROWDED_ENTRIES || self.bytes > CROWDED_BYTES
    }

    /// Forgets all but the first entries of a lane that is not busy, but for their places.
    fn unload(&mut self, key: LaneKey, keep: usize) {
        let Some(lane) = self.lanes.get_mut(&key) else { return };
        let (from, to) = (keep.min(lane.loaded()), lane.loaded());
        lane.loaded = from as u32;
        let gone: Vec<u64> = lane.entries.iter().take(to).skip(from).collect();
        self.skipped += gone.len();
        let mut first = None;
        for sequence in gone.into_iter().rev() {
            first = self.drop_entry(sequence);
        }
        if let Some(lane) = self.lanes.get_mut(&key)
            && to > from
        {
            lane.unloaded = first.filter(|_| keep == 0).map(|pending| Box::new(pending.history));
        }
    }

    /// Makes ready what has waited long enough.
    pub(crate) fn wake(&mut self, now: Instant) {
        while let Some((&(at, key), ())) = self.waiting.first_key_value()
            && at <= now
        {
            self.waiting.remove(&(at, key));
            self.rest(key);
        }
    }

    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.waiting.keys().next().map(|&(at, _)| at)
    }

    /// How many lanes wait for their next attempt, or for a person.
    pub(crate) fn stuck(&self) -> usize {
        self.waiting.len() + self.closed
    }

    /// The first entry of a lane that is not busy, loaded or not.
    pub(crate) fn front(&self, key: LaneKey) -> Option<u64> {
        self.lanes.get(&key).filter(|lane| lane.state != State::Busy).and_then(Lane::first)
    }

    /// Whether a lane is known.
    pub(crate) fn has(&self, key: LaneKey) -> bool {
        self.lanes.contains_key(&key)
    }

    pub(crate) fn is_waiting(&self, key: LaneKey) -> bool {
        self.lanes.get(&key).is_some_and(|lane| matches!(lane.state, State::Waiting(_)))
    }

    /// The first entries, loaded or not, of all lanes that are not busy, oldest first.
    pub(crate) fn all_fronts(&self) -> Vec<u64> {
        let idle = self.lanes.values().filter(|lane| lane.state != State::Busy);
        let mut fronts: Vec<u64> = idle.filter_map(Lane::first).collect();
        fronts.sort_unstable();
        fronts
    }

    /// How many entries from the first of an idle lane on come before a sequence.
    pub(crate) fn count_before(&self, first: u64, until: u64) -> usize {
        let lane = self.entries.get(&first).and_then(|entry| self.lanes.get(&entry.lane));
        lane.map_or(0, |lane| lane.entries.count_before(until))
    }

    /// Loaded entries that are first in their lane and not taken, oldest first.
    pub(crate) fn idle_fronts(&self) -> impl Iterator<Item = &Pending> {
        self.entries.values().map(|entry| &**entry).filter(|entry| {
            self.lanes.get(&entry.lane).is_some_and(|lane| {
                lane.state != State::Busy && lane.first_loaded() == Some(entry.sequence())
            })
        })
    }

    /// The oldest loaded entry that is first in its lane, not taken, in a lane that is not closed, and of use.
    pub(crate) fn idle(&self, usable: impl Fn(&Pending) -> bool) -> Option<u64> {
        let mut fronts = self.idle_fronts().filter(|entry| !self.is_closed(entry.lane) && usable(entry));
        fronts.next().map(Pending::sequence)
    }

    /// The oldest loaded entry that never failed, can be sent, and is of use; or the youngest, best of a lane that was
    /// delivered to.
    pub(crate) fn fresh(&self, youngest: bool, usable: impl Fn(u64) -> bool) -> Option<u64> {
        let [fresh, proven] = &self.ready;
        if youngest {
            let youngest = |class: &BTreeMap<u64, LaneKey>| class.keys().rev().copied().find(|s| usable(*s));
            return youngest(proven).or_else(|| youngest(fresh));
        }
        let each = [fresh, proven].map(|class| class.keys().copied().find(|s| usable(*s)));
        each.into_iter().flatten().min()
    }

    /// When the youngest loaded entry was admitted that can be sent and never failed.
    pub(crate) fn youngest(&self) -> Option<SystemTime> {
        let last = self.ready.iter().filter_map(|class| class.keys().next_back()).max()?;
        self.get(*last).map(|entry| entry.admitted_at)
    }

    /// When the oldest loaded entry was admitted.
    pub(crate) fn oldest(&self) -> Option<SystemTime> {
        self.entries.values().next().map(|entry| entry.admitted_at)
    }

    /// The first entry of a lane, loaded or not.
    pub(crate) fn first(&self, key: LaneKey) -> Option<u64> {
        self.lanes.get(&key)?.first()
    }

    /// Until when an entry that is first in its lane waits.
    pub(crate) fn waits_until(&self, key: LaneKey, sequence: u64) -> Option<Instant> {
        match self.lanes.get(&key)?.state {
            State::Waiting(until) if self.first(key) == Some(sequence) => Some(until),
            _ => None,
        }
    }

    /// Takes a loaded entry out that nobody works on, wherever in its lane it stands. None: somebody does.
    pub(crate) fn remove(&mut self, sequence: u64) -> Option<Box<Pending>> {
        let key = self.entries.get(&sequence)?.lane;
        let lane = self.lanes.get_mut(&key)?;
        if lane.first_loaded() == Some(sequence) {
            if !self.take_any(sequence) {
                return None;
            }
            let removed = self.end(sequence);
            self.rest(key);
            return removed;
        }
        let at = lane.position(sequence)?;
        lane.entries.remove(at);
        lane.loaded -= 1;
        self.drop_entry(sequence)
    }

    /// A lane that waits for its next attempt waits no longer.
    pub(crate) fn hurry(&mut self, key: LaneKey) {
        if let Some(State::Waiting(at)) = self.lanes.get(&key).map(|lane| lane.state) {
            self.waiting.remove(&(at, key));
            self.rest(key);
        }
    }

    /// A lane that waited for a person goes on.
    pub(crate) fn open(&mut self, key: LaneKey) {
        if self.is_closed(key) {
            self.closed -= 1;
            self.rest(key);
        }
    }
}

/// Joins two ascending rows.
fn merge(a: impl Iterator<Item = u64>, b: impl Iterator<Item = u64>) -> impl Iterator<Item = u64> {
    let (mut a, mut b) = (a.peekable(), b.peekable());
    std::iter::from_fn(move || match (a.peek(), b.peek()) {
        (Some(first), Some(second)) if second < first => b.next(),
        (Some(_), _) => a.next(),
        (None, _) => b.next(),
    })
}
