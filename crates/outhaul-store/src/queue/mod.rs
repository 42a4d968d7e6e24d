//! The queues of a log in memory: what each still wants, its limits and its counters. Engines share this.
//!
//! A queue's settled entries are runs of sequences. An entry knows the sequence of the one before it in the same
//! queue, so settling it covers the gap between the two as well: what lies there belongs to other queues. Thus a
//! queue that gets every thousandth event still needs one run, and a waiting entry needs none.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outhaul_event::TargetName;
use smallvec::SmallVec;
use tokio::sync::watch;

use crate::error::{AppendError, StoreError};
use crate::log::{
    Admission, Origin, Outcome, Place, QueueSettings, QueueStats, RetryState, Settlement, WhenFull,
};

mod runs;

pub(crate) use runs::{Overlap, Runs};

/// A queue's number within its log: what records name.
pub(crate) type QueueId = u32;

#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) name: TargetName,
    pub(crate) label: String,
    pub(crate) settled: Runs,
    /// The sequence of the newest entry that was ever in it.
    pub(crate) last: u64,
    pub(crate) retries: BTreeMap<u64, RetryState>,
    entries_max: u64,
    bytes_max: u64,
    when_full: WhenFull,
    attached: bool,
    /// Its name is forgotten and nothing waits in it; its number is not used again.
    pub(crate) removed: bool,
    /// What is being delivered, as noted last.
    pub(crate) in_flight: Vec<u64>,
    /// Entries that were being delivered when the process ended, and how often.
    pub(crate) crashes: BTreeMap<u64, u32>,
    held_entries: u64,
    held_bytes: u64,
    counters: Counters,
    waiting: u64,
    bytes: u64,
    durable: watch::Sender<u64>,
    /// What is in there.
    announced: u64,
    /// Not written to the log yet.
    pub(crate) unwritten: Unwritten,
}

/// Changes of one queue that the next commit writes down.
#[derive(Debug, Default)]
pub(crate) struct Unwritten {
    pub(crate) declaration: bool,
    pub(crate) removal: bool,
    pub(crate) in_flight: bool,
    pub(crate) settled: Runs,
    pub(crate) retries: BTreeMap<u64, RetryState>,
}

impl Unwritten {
    /// Whether there is anything that can ride with a commit.
    pub(crate) fn any(&self) -> bool {
        self.declaration
            || self.removal
            || self.in_flight
            || !self.settled.is_empty()
            || !self.retries.is_empty()
    }

    /// Takes changes back that could not be written.
    fn put_back(&mut self, earlier: Self) {
        self.declaration |= earlier.declaration;
        self.removal |= earlier.removal;
        self.in_flight |= earlier.in_flight;
        for (first, last) in earlier.settled.iter() {
            self.settled.insert(first, last);
        }
        for (sequence, state) in earlier.retries {
            self.retries.entry(sequence).or_insert(state);
        }
    }
}

#[derive(Debug, Default)]
struct Counters {
    recovered: u64,
    admitted: u64,
    requeued: u64,
    imported: u64,
    delivered: u64,
    failed: u64,
    discarded: u64,
    shed: u64,
    vanished: u64,
}

/// All queues of a log.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    by_name: HashMap<TargetName, QueueId>,
    /// No dense list: a number that a damaged log makes up costs one queue, whatever it is.
    list: BTreeMap<QueueId, Queue>,
}

/// The queues behind their lock. Nothing that waits is done under it.
#[derive(Debug, Default, Clone)]
pub(crate) struct SharedQueues(Arc<Mutex<Queues>>);

impl SharedQueues {
    pub(crate) fn new(queues: Queues) -> Self {
        Self(Arc::new(Mutex::new(queues)))
    }

    /// A panic under the lock leaves counters at worst; the data is in the log.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Queues> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves for all admissions that hold nothing yet, or for none.
    pub(crate) fn reserve(&self, admissions: &mut [Admission]) -> Result<(), AppendError> {
        let mut queues = self.lock();
        let mut grants: SmallVec<[(usize, Held); 1]> = SmallVec::new();
        for (index, admission) in admissions.iter().enumerate() {
            if admission.held.is_some() {
                continue;
            }
            match queues.grant(admission) {
                Ok((granted, shed)) => {
                    let bytes = admission.size();
                    grants.push((
                        index,
                        Held { queues: self.clone(), granted, shed, bytes, counted: AtomicBool::new(false) },
                    ));
                }
                Err(error) => {
                    let error = queues.never_fits(admissions, error);
                    // `Held` gives back what it holds when it is dropped, which takes the lock.
                    drop(queues);
                    return Err(error);
                }
            }
        }
        for (_, held) in &grants {
            queues.count_shed(&held.shed);
        }
        for (index, held) in grants {
            admissions[index].held = Some(Arc::new(held));
        }
        Ok(())
    }
}

impl Admission {
    /// The queues that will get it.
    pub(crate) fn granted(&self) -> &[QueueId] {
        self.held.as_deref().map_or(&[], |held| &held.granted)
    }

    /// The names of the targets that will get it, and of those that miss it.
    pub(crate) fn outcome(&self, queues: &SharedQueues) -> (Arc<[TargetName]>, Vec<TargetName>) {
        match self.held.as_deref() {
            Some(held) if held.granted.len() == self.targets.len() => (Arc::clone(&self.targets), Vec::new()),
            Some(held) => {
                let queues = queues.lock();
                (queues.names(&held.granted).into(), queues.names(&held.shed))
            }
            None => (Arc::default(), Vec::new()),
        }
    }
}

/// Room taken in the queues of one admission. Dropping it gives the room back.
#[derive(Debug)]
pub(crate) struct Held {
    queues: SharedQueues,
    pub(crate) granted: QueueIds,
    pub(crate) shed: QueueIds,
    bytes: u64,
    /// The entry counts itself.
    counted: AtomicBool,
}

type QueueIds = SmallVec<[QueueId; 2]>;

impl Drop for Held {
    fn drop(&mut self) {
        if *self.counted.get_mut() {
            return;
        }
        self.queues.lock().release(&self.granted, self.bytes);
    }
}

impl Queues {
    pub(crate) fn find(&self, name: &TargetName) -> Result<QueueId, StoreError> {
        self.by_name.get(name).copied().ok_or_else(|| StoreError::UnknownQueue(name.clone()))
    }

    pub(crate) fn get(&self, id: QueueId) -> &Queue {
        &self.list[&id]
    }

    pub(crate) fn get_mut(&mut self, id: QueueId) -> &mut Queue {
        self.list.get_mut(&id).expect("a queue's number")
    }

    /// Whether a queue wants an entry; of one that nobody declared it is not known, so it does.
    pub(crate) fn wants(&self, id: QueueId, sequence: u64) -> bool {
        self.list.get(&id).is_none_or(|queue| queue.wants(sequence))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (QueueId, &Queue)> {
        self.list.iter().map(|(&id, queue)| (id, queue))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (QueueId, &mut Queue)> {
        self.list.iter_mut().map(|(&id, queue)| (id, queue))
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Adds a queue under the next number.
    pub(crate) fn add(&mut self, name: TargetName) -> QueueId {
        let next = self.list.last_key_value().map_or(Some(0), |(&last, _)| last.checked_add(1));
        // A damaged log may have used up the last number.
        let id = next.or_else(|| (0..).find(|id| !self.list.contains_key(id))).unwrap_or_default();
        self.declare(id, name);
        id
    }

    pub(crate) fn contains(&self, id: QueueId) -> bool {
        self.list.contains_key(&id)
    }

    /// Adds a queue under its number, as recovery does.
    pub(crate) fn declare(&mut self, id: QueueId, name: TargetName) {
        self.by_name.insert(name.clone(), id);
        let settings = QueueSettings::default();
        let queue = Queue {
            name,
            label: String::new(),
            settled: Runs::default(),
            last: 0,
            retries: BTreeMap::new(),
            entries_max: settings.entries_max,
            bytes_max: u64::MAX,
            when_full: settings.when_full,
            attached: false,
            removed: false,
            in_flight: Vec::new(),
            crashes: BTreeMap::new(),
            held_entries: 0,
            held_bytes: 0,
            counters: Counters::default(),
            waiting: 0,
            bytes: 0,
            durable: watch::Sender::new(0),
            announced: 0,
            unwritten: Unwritten::default(),
        };
        self.list.insert(id, queue);
    }

    /// Takes a removed queue's name away.
    pub(crate) fn forget(&mut self, id: QueueId) {
        let queue = self.get_mut(id);
        queue.end();
        let name = queue.name.clone();
        self.by_name.remove(&name);
    }

    /// Nothing is being delivered at an open. If the end was not in order, what was has one crash more.
    pub(crate) fn landed(&mut self, clean: bool) {
        for queue in self.list.values_mut() {
            for sequence in std::mem::take(&mut queue.in_flight) {
                if !clean && sequence <= queue.last && !queue.settled.contains(sequence) {
                    *queue.crashes.entry(sequence).or_default() += 1;
                }
            }
        }
    }

    pub(crate) fn rename(&mut self, id: QueueId, name: TargetName) {
        if self.get(id).name != name {
            let old = std::mem::replace(&mut self.get_mut(id).name, name.clone());
            self.by_name.remove(&old);
            self.by_name.insert(name, id);
        }
    }

    pub(crate) fn attach(&mut self, name: &TargetName, settings: QueueSettings, bytes_default: u64) {
        let id = match self.find(name) {
            Ok(id) => id,
            Err(_) => {
                let id = self.add(name.clone());
                self.get_mut(id).unwritten.declaration = true;
                id
            }
        };
        let queue = self.get_mut(id);
        queue.attached = true;
        queue.entries_max = settings.entries_max;
        queue.bytes_max = settings.bytes_max.unwrap_or(bytes_default);
        queue.when_full = settings.when_full;
        if queue.label != settings.label {
            queue.label = settings.label;
            queue.unwritten.declaration = true;
        }
    }

    /// As [`attach`](Self::attach), where a queue of this name may have been before: what was read from that one, up to
    /// this sequence, settles nothing in a new one.
    pub(crate) fn attach_behind(
        &mut self,
        name: &TargetName,
        settings: QueueSettings,
        bytes_default: u64,
        last: u64,
    ) {
        let new = self.find(name).is_err();
        self.attach(name, settings, bytes_default);
        if let Ok(id) = self.find(name)
            && new
        {
            self.get_mut(id).settled.insert(0, last);
        }
    }

    pub(crate) fn detach(&mut self, name: &TargetName) -> Result<(), StoreError> {
        let id = self.find(name)?;
        self.get_mut(id).attached = false;
        Ok(())
    }

    /// How full a queue is, in percent of the limit that it is nearest to.
    pub(crate) fn filled(&self, name: &TargetName) -> u8 {
        let Ok(id) = self.find(name) else { return 0 };
        let queue = self.get(id);
        let percent = |is: u64, max: u64| u128::from(is) * 100 / u128::from(max.max(1));
        let nearest = percent(queue.waiting, queue.entries_max).max(percent(queue.bytes, queue.bytes_max));
        nearest.min(100) as u8
    }

    /// Gives a queue a name that no other has, and leaves it without a target.
    pub(crate) fn orphan_as(&mut self, name: &TargetName, new: &TargetName) -> Result<(), StoreError> {
        let id = self.find(name)?;
        if self.find(new).is_ok() {
            return Err(StoreError::Attached(new.clone()));
        }
        self.rename(id, new.clone());
        let queue = self.get_mut(id);
        queue.attached = false;
        queue.unwritten.declaration = true;
        Ok(())
    }

    /// Discards what waits in a queue without a target, and forgets its name.
    pub(crate) fn remove(&mut self, name: &TargetName) -> Result<(QueueId, u64), StoreError> {
        let id = self.find(name)?;
        let queue = self.get_mut(id);
        if queue.attached {
            return Err(StoreError::Attached(name.clone()));
        }
        let discarded = std::mem::take(&mut queue.waiting);
        queue.bytes = 0;
        queue.counters.discarded += discarded;
        queue.end();
        queue.unwritten = Unwritten { removal: true, ..Unwritten::default() };
        self.by_name.remove(name);
        Ok((id, discarded))
    }

    /// Takes room for one admission, or says which queue has none.
    fn grant(&mut self, admission: &Admission) -> Result<(QueueIds, QueueIds), AppendError> {
        let bytes = admission.size();
        let (mut granted, mut shed) = (QueueIds::new(), QueueIds::new());
        for target in admission.targets.iter() {
            let id = match self.by_name.get(target) {
                Some(&id) if self.get(id).attached => id,
                _ => {
                    self.release(&granted, bytes);
                    return Err(AppendError::UnknownQueue(target.clone()));
                }
            };
            if granted.contains(&id) || shed.contains(&id) {
                continue;
            }
            let queue = self.get_mut(id);
            let full = queue.full(bytes).filter(|_| !matches!(admission.origin, Origin::Requeue(_)));
            match (full, queue.when_full) {
                (Some(limit), WhenFull::Refuse) => {
                    self.release(&granted, bytes);
                    return Err(AppendError::QueueFull { target: target.clone(), limit });
                }
                (Some(_), WhenFull::Shed) => shed.push(id),
                (Some(_), WhenFull::Overflow) | (None, _) => {
                    queue.held_entries += 1;
                    queue.held_bytes += bytes;
                    granted.push(id);
                }
            }
        }
        Ok((granted, shed))
    }

    /// A refusal for want of room, unless no amount of waiting would make enough of it.
    fn never_fits(&self, admissions: &[Admission], refused: AppendError) -> AppendError {
        let AppendError::QueueFull { target, limit } = refused else { return refused };
        let Ok(queue) = self.find(&target).map(|id| self.get(id)) else {
            return AppendError::QueueFull { target, limit };
        };
        let own = admissions.iter().filter(|admission| admission.targets.contains(&target));
        let (entries, bytes) = own.fold((0, 0), |(n, bytes), admission| (n + 1, bytes + admission.size()));
        if entries > queue.entries_max || bytes > queue.bytes_max {
            return AppendError::TooLarge { target, limit };
        }
        AppendError::QueueFull { target, limit }
    }

    fn release(&mut self, granted: &[QueueId], bytes: u64) {
        for &id in granted {
            let queue = self.get_mut(id);
            queue.held_entries -= 1;
            queue.held_bytes -= bytes;
        }
    }

    fn count_shed(&mut self, shed: &[QueueId]) {
        for &id in shed {
            self.get_mut(id).counters.shed += 1;
        }
    }

    /// Names of queues, for a receipt.
    pub(crate) fn names(&self, ids: &[QueueId]) -> Vec<TargetName> {
        ids.iter().map(|&id| self.get(id).name.clone()).collect()
    }

    /// Counts a written admission in its queues, instead of the room that it held.
    pub(crate) fn admit(&mut self, admission: &Admission, sequence: u64, bytes: u64) {
        let Some(held) = &admission.held else { return };
        if !held.counted.swap(true, Ordering::Relaxed) {
            self.release(&held.granted, held.bytes);
        }
        for &id in &held.granted {
            self.get_mut(id).admitted(sequence, bytes, admission.origin);
        }
    }

    /// Wakes whoever watches these queues, if it does not know of this sequence yet.
    pub(crate) fn announce(&mut self, queues: &[QueueId], sequence: u64) {
        for &id in queues {
            let queue = self.get_mut(id);
            if queue.announced < sequence {
                queue.announced = sequence;
                queue.durable.send_replace(sequence);
            }
        }
    }

    /// Ends an entry or notes its retry; false if it was settled before.
    pub(crate) fn settle(&mut self, id: QueueId, settlement: &Settlement) -> bool {
        let Settlement { place, outcome } = settlement;
        let sequence = place.uid.sequence;
        let queue = self.get_mut(id);
        if queue.settled.contains(sequence) {
            return false;
        }
        if let Outcome::Retry(state) = *outcome {
            queue.retries.insert(sequence, state);
            queue.unwritten.retries.insert(sequence, state);
            return false;
        }
        queue.cover(place);
        queue.unwritten.settled.insert(place.previous + 1, sequence);
        queue.unwritten.retries.remove(&sequence);
        queue.waiting -= 1;
        queue.bytes -= place.bytes;
        match outcome {
            Outcome::Delivered => queue.counters.delivered += 1,
            Outcome::Failed => queue.counters.failed += 1,
            Outcome::Discarded | Outcome::Retry(_) => queue.counters.discarded += 1,
        }
        true
    }

    pub(crate) fn stats(&self) -> Vec<QueueStats> {
        let mut all: Vec<_> = self.list.values().filter(|queue| !queue.removed).map(Queue::stats).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }
}

fn forget<T>(map: &mut BTreeMap<u64, T>, first: u64, last: u64) {
    let over: Vec<u64> = map.range(first..=last).map(|(&sequence, _)| sequence).collect();
    for sequence in over {
        map.remove(&sequence);
    }
}

impl Queue {
    /// Takes changes back that could not be written; what was settled meanwhile is tried no more.
    pub(crate) fn put_back(&mut self, earlier: Unwritten) {
        self.unwritten.put_back(earlier);
        self.unwritten.retries.retain(|&sequence, _| !self.settled.contains(sequence));
    }

    /// Nothing that was ever in it waits any more, and it takes nothing new.
    pub(crate) fn end(&mut self) {
        self.settled.insert(0, self.last);
        self.retries.clear();
        self.crashes.clear();
        self.in_flight.clear();
        self.removed = true;
    }

    fn cover(&mut self, place: &Place) {
        // Sequence 0 is nobody's: covering it makes the first run start at 0.
        let first = if place.previous == 0 { 0 } else { place.previous + 1 };
        self.settled.insert(first, place.uid.sequence);
        self.retries.remove(&place.uid.sequence);
        self.crashes.remove(&place.uid.sequence);
    }

    /// The limit that one more entry would pass.
    fn full(&self, bytes: u64) -> Option<String> {
        if self.waiting + self.held_entries >= self.entries_max {
            return Some(format!("{} entries", self.entries_max));
        }
        (self.bytes + self.held_bytes + bytes > self.bytes_max).then(|| format!("{} bytes", self.bytes_max))
    }

    /// About how many entries are too many.
    pub(crate) fn excess(&self) -> u64 {
        let entries = self.waiting.saturating_sub(self.entries_max);
        let bytes = self.bytes.saturating_sub(self.bytes_max);
        let mean = (self.bytes / self.waiting.max(1)).max(1);
        entries.max(bytes.div_ceil(mean)).min(self.waiting.saturating_sub(1))
    }

    /// Counts an entry that came.
    pub(crate) fn admitted(&mut self, sequence: u64, bytes: u64, origin: Origin) {
        if self.removed {
            return;
        }
        self.last = sequence;
        match origin {
            Origin::Producer => self.counters.admitted += 1,
            Origin::Requeue(_) => self.counters.requeued += 1,
            Origin::Import => self.counters.imported += 1,
        }
        self.waiting += 1;
        self.bytes += bytes;
    }

    /// Counts an entry, discarded just now, as one that somebody else removed.
    pub(crate) fn vanished(&mut self) {
        self.counters.vanished += 1;
    }

    /// Takes back entries that recovery counted and that were never there.
    pub(crate) fn miscounted(&mut self, entries: u64) {
        self.counters.recovered -= entries;
        self.waiting -= entries;
    }

    /// Whether an entry still waits.
    pub(crate) fn wants(&self, sequence: u64) -> bool {
        !self.settled.contains(sequence)
    }

    /// Counts entries that were found at open; `last` is the newest of them, waiting or not.
    pub(crate) fn recovered(&mut self, last: u64, entries: u64, bytes: u64) {
        if self.removed {
            return;
        }
        self.last = self.last.max(last);
        self.counters.recovered += entries;
        self.waiting += entries;
        self.bytes += bytes;
        self.announced = self.last;
        self.durable.send_replace(self.last);
    }

    /// Takes a run of settled entries from the log.
    pub(crate) fn settle_run(&mut self, first: u64, last: u64) {
        self.settled.insert(first, last);
        forget(&mut self.retries, first, last);
        forget(&mut self.crashes, first, last);
    }

    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.durable.subscribe()
    }

    pub(crate) fn waiting(&self) -> u64 {
        self.waiting
    }

    fn stats(&self) -> QueueStats {
        QueueStats {
            name: self.name.clone(),
            attached: self.attached,
            label: self.label.clone(),
            recovered: self.counters.recovered,
            admitted: self.counters.admitted,
            requeued: self.counters.requeued,
            imported: self.counters.imported,
            delivered: self.counters.delivered,
            failed: self.counters.failed,
            discarded: self.counters.discarded,
            shed: self.counters.shed,
            vanished: self.counters.vanished,
            waiting: self.waiting,
            bytes: self.bytes,
            entries_max: self.entries_max,
            bytes_max: self.bytes_max,
        }
    }
}
