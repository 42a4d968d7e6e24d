//! The failed store in memory: which records there are, which are being worked on, and how much room there is.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use outhaul_event::{TargetName, Uid};

use super::medium::{Loaded, Note, Record, Slot, UnreadableRecord};
use super::options::{Discard, FailedFull, FailedOptions, FailedQuery, FailedStats, ListOrder};
use super::passed::Passed;
use super::{FailedEntry, PAGE_BYTES_MAX, size, unix_millis};
use crate::error::AppendError;

/// Finished requeues that are remembered for each target.
const NOTES_MAX: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct State {
    defaults: FailedOptions,
    parts: BTreeMap<TargetName, Part>,
    /// What somebody works on; nobody else touches it.
    busy: HashSet<Uid>,
    pub(super) unreadable: Vec<UnreadableRecord>,
    pub(super) closed: bool,
}

/// One target's records.
#[derive(Debug, Default)]
pub(super) struct Part {
    options: Option<FailedOptions>,
    records: BTreeMap<u64, Record>,
    by_age: BTreeSet<(u64, u64)>,
    bytes: u64,
    held_entries: u64,
    held_bytes: u64,
    /// Per requeued record the new sequence, and where that is noted.
    requeued: BTreeMap<u64, (Option<u64>, Option<Slot>)>,
    pub(super) passed: Passed,
    pub(super) counters: Counters,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) requeued: u64,
    pub(super) discarded: u64,
    pub(super) discarded_oldest: u64,
    pub(super) expired: u64,
}

/// What is known of a uid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Known {
    Nothing,
    Here(Record),
    /// Its requeue was begun, and nobody knows how it ended.
    Unfinished,
    RequeuedAs(u64),
}

/// Room that was taken for one target's part of a batch.
#[derive(Debug, Clone, Default)]
pub(super) struct Want {
    pub(super) entries: u64,
    pub(super) bytes: u64,
}

impl Want {
    pub(super) fn add(&mut self, entry: &FailedEntry) {
        self.entries += 1;
        self.bytes += size(entry);
    }
}

impl State {
    pub(super) fn new(defaults: FailedOptions) -> Self {
        Self { defaults, ..Self::default() }
    }

    /// What must not wait in its queue any more, by target and sequence: it is here, or was requeued.
    pub(super) fn left_queue(&self) -> Vec<Uid> {
        let all = self.parts.iter().flat_map(|(target, part)| {
            let requeued = part.requeued.iter().filter(|(_, (requeued_as, _))| requeued_as.is_some());
            let sequences: BTreeSet<u64> =
                part.records.keys().chain(requeued.map(|(key, _)| key)).copied().collect();
            sequences.into_iter().map(|sequence| Uid { queue: target.clone(), sequence })
        });
        all.collect()
    }

    pub(super) fn part(&self, target: &TargetName) -> Option<&Part> {
        self.parts.get(target)
    }

    pub(super) fn part_if_any(&mut self, target: &TargetName) -> Option<&mut Part> {
        self.parts.get_mut(target)
    }

    pub(super) fn part_mut(&mut self, target: &TargetName) -> &mut Part {
        self.parts.entry(target.clone()).or_default()
    }

    pub(super) fn parts(&self) -> impl DoubleEndedIterator<Item = (&TargetName, &Part)> {
        self.parts.iter().filter(|(_, part)| !part.records.is_empty())
    }

    pub(super) fn options(&self, target: &TargetName) -> &FailedOptions {
        self.part(target).and_then(|part| part.options.as_ref()).unwrap_or(&self.defaults)
    }

    /// Takes up what is on disk. Returns what is there twice, or was requeued already: it is to be removed.
    pub(super) fn load(&mut self, loaded: Loaded) -> Vec<Slot> {
        let mut gone = Vec::new();
        self.unreadable = loaded.unreadable;
        for (Note { uid, requeued_as }, slot) in loaded.notes {
            let part = self.part_mut(&uid.queue);
            // A finished requeue has two notes until the first is removed.
            match part.requeued.get(&uid.sequence) {
                Some((Some(_), _)) => gone.push(slot),
                Some((None, begun)) if requeued_as.is_some() => {
                    gone.extend(begun.clone());
                    part.requeued.insert(uid.sequence, (requeued_as, Some(slot)));
                }
                Some(_) => gone.push(slot),
                None => {
                    part.requeued.insert(uid.sequence, (requeued_as, Some(slot)));
                }
            }
        }
        for record in loaded.records {
            match self.known(&record.uid) {
                Known::Here(_) | Known::RequeuedAs(_) => gone.push(record.slot()),
                Known::Nothing => self.insert(record),
                Known::Unfinished => match self.part_mut(&record.uid.queue).records.get(&record.uid.sequence)
                {
                    Some(_) => gone.push(record.slot()),
                    None => self.insert(record),
                },
            }
        }
        gone
    }

    pub(super) fn known(&self, uid: &Uid) -> Known {
        let Some(part) = self.part(&uid.queue) else { return Known::Nothing };
        match part.requeued.get(&uid.sequence) {
            Some((Some(sequence), _)) => return Known::RequeuedAs(*sequence),
            Some((None, _)) => return Known::Unfinished,
            None => {}
        }
        part.records.get(&uid.sequence).map_or(Known::Nothing, |record| Known::Here(record.clone()))
    }

    /// The record, whatever is noted about it.
    pub(super) fn record(&self, uid: &Uid) -> Option<&Record> {
        self.part(&uid.queue)?.records.get(&uid.sequence)
    }

    pub(super) fn insert(&mut self, record: Record) {
        self.remove(&record.uid);
        let part = self.part_mut(&record.uid.queue);
        part.bytes += record.bytes;
        part.by_age.insert((record.failed_ms, record.uid.sequence));
        part.passed.add(&record);
        part.records.insert(record.uid.sequence, record);
    }

    pub(super) fn remove(&mut self, uid: &Uid) -> Option<Record> {
        let part = self.parts.get_mut(&uid.queue)?;
        let record = part.records.remove(&uid.sequence)?;
        part.forget(&record);
        Some(record)
    }

    /// Notes a requeue; None forgets the note. Returns where the note before it is, if there was one.
    pub(super) fn note(&mut self, uid: &Uid, note: Option<(Option<u64>, Option<Slot>)>) -> Option<Slot> {
        let part = self.part_mut(&uid.queue);
        let old = match note {
            Some(note) => part.requeued.insert(uid.sequence, note),
            None => part.requeued.remove(&uid.sequence),
        };
        old.and_then(|(_, slot)| slot)
    }

    /// The requeues that were begun, and nobody knows how they ended.
    pub(super) fn unfinished(&self) -> Vec<Uid> {
        let all = self.parts.iter().flat_map(|(target, part)| {
            let begun = part.requeued.iter().filter(|(_, (requeued_as, _))| requeued_as.is_none());
            begun.map(|(&sequence, _)| Uid { queue: target.clone(), sequence })
        });
        all.collect()
    }

    /// Forgets the oldest notes beyond those that are kept; returns where they are.
    pub(super) fn trim_notes(&mut self, target: &TargetName) -> Vec<Slot> {
        let part = self.part_mut(target);
        let mut gone = Vec::new();
        while part.requeued.len() > NOTES_MAX
            && let Some((&sequence, _)) = part.requeued.iter().find(|(_, (done, _))| done.is_some())
        {
            gone.extend(part.requeued.remove(&sequence).and_then(|(_, slot)| slot));
        }
        gone
    }

    /// Takes all of these for one worker, or none.
    pub(super) fn claim(&mut self, uids: &[Uid]) -> bool {
        let free = uids.iter().all(|uid| !self.busy.contains(uid));
        if free {
            self.busy.extend(uids.iter().cloned());
        }
        free
    }

    pub(super) fn release(&mut self, uids: &[Uid]) {
        for uid in uids {
            self.busy.remove(uid);
        }
    }

    /// The entries for which there is room: of each target those up to the first one that does not fit.
    pub(super) fn fitting(
        &self,
        entries: Vec<FailedEntry>,
        refused: &mut HashMap<Uid, AppendError>,
    ) -> Vec<FailedEntry> {
        let mut wants: BTreeMap<TargetName, Want> = BTreeMap::new();
        let mut full: BTreeMap<TargetName, AppendError> = BTreeMap::new();
        let fits = |entry: &FailedEntry| {
            let target = &entry.uid.queue;
            let options = self.options(target);
            let mut want = wants.get(target).cloned().unwrap_or_default();
            want.add(entry);
            let limit = match options.when_full {
                FailedFull::HoldTarget => self.part(target).unwrap_or(&Part::default()).full(&want, options),
                FailedFull::DiscardOldest => None,
            };
            if let Some(limit) = limit {
                let error = AppendError::FailedStoreFull { target: target.clone(), limit };
                full.entry(target.clone()).or_insert(error);
            }
            if let Some(error) = full.get(target) {
                refused.insert(entry.uid.clone(), error.clone());
                return false;
            }
            wants.insert(target.clone(), want);
            true
        };
        entries.into_iter().filter(fits).collect()
    }

    /// Takes room for all of these, or for none. Where the oldest are discarded there always is room.
    pub(super) fn reserve(&mut self, wants: &BTreeMap<TargetName, Want>) -> Result<(), AppendError> {
        for (target, want) in wants {
            let options = self.options(target);
            if options.when_full == FailedFull::HoldTarget
                && let Some(limit) = self.part(target).unwrap_or(&Part::default()).full(want, options)
            {
                return Err(AppendError::FailedStoreFull { target: target.clone(), limit });
            }
        }
        for (target, want) in wants {
            let part = self.part_mut(target);
            part.held_entries += want.entries;
            part.held_bytes += want.bytes;
        }
        Ok(())
    }

    pub(super) fn give_back(&mut self, wants: &BTreeMap<TargetName, Want>) {
        for (target, want) in wants {
            let part = self.part_mut(target);
            part.held_entries -= want.entries;
            part.held_bytes -= want.bytes;
        }
    }

    /// Claims the records that failed first until the rest is within the bounds, where that is the policy.
    pub(super) fn evict(&mut self, target: &TargetName) -> Vec<Record> {
        let mut victims: Vec<Record> = Vec::new();
        let options = self.options(target);
        let Some(part) = self.part(target).filter(|_| options.when_full == FailedFull::DiscardOldest) else {
            return victims;
        };
        let (mut entries, mut bytes) = (part.records.len() as u64, part.bytes);
        for (_, sequence) in &part.by_age {
            if entries <= options.entries_max && bytes <= options.bytes_max {
                break;
            }
            let Some(record) = part.records.get(sequence) else { continue };
            if self.busy.contains(&record.uid) {
                continue;
            }
            entries -= 1;
            bytes = bytes.saturating_sub(record.bytes);
            victims.push(record.clone());
        }
        self.take(&victims);
        victims
    }

    /// Claims what failed at or before a time.
    pub(super) fn expire(&mut self, target: &TargetName, until_ms: u64) -> Vec<Record> {
        let Some(part) = self.parts.get(target) else { return Vec::new() };
        let old = part.by_age.range(..=(until_ms, u64::MAX));
        let old = old.filter_map(|(_, sequence)| part.records.get(sequence));
        let victims: Vec<_> = old.filter(|record| !self.busy.contains(&record.uid)).cloned().collect();
        self.take(&victims);
        victims
    }

    /// Claims records and takes them out of the count.
    fn take(&mut self, records: &[Record]) {
        for record in records {
            self.busy.insert(record.uid.clone());
            self.remove(&record.uid);
        }
    }

    pub(super) fn configure(&mut self, target: &TargetName, options: FailedOptions) {
        self.part_mut(target).options = Some(options);
    }

    pub(super) fn targets(&self) -> Vec<TargetName> {
        self.parts().map(|(target, _)| target.clone()).collect()
    }

    /// When the next record becomes too old, in milliseconds since 1970.
    pub(super) fn next_expiry_ms(&self) -> Option<u64> {
        let due = |(target, part): (&TargetName, &Part)| {
            let after = self.options(target).expire_after?;
            let (oldest, _) = part.by_age.first()?;
            Some(oldest.saturating_add(u64::try_from(after.as_millis()).unwrap_or(u64::MAX)))
        };
        self.parts().filter_map(due).min()
    }

    pub(super) fn stats(&self) -> Vec<FailedStats> {
        let each = |(target, part): (&TargetName, &Part)| FailedStats {
            target: target.clone(),
            entries: part.records.len() as u64,
            bytes: part.bytes,
            oldest_ms: part.by_age.first().map(|(failed_ms, _)| *failed_ms),
            requeued: part.counters.requeued,
            discarded: part.counters.discarded,
            discarded_oldest: part.counters.discarded_oldest,
            expired: part.counters.expired,
            options: self.options(target).clone(),
        };
        self.parts.iter().map(each).collect()
    }
}

impl Part {
    pub(super) fn records(&self) -> &BTreeMap<u64, Record> {
        &self.records
    }

    fn forget(&mut self, record: &Record) {
        self.bytes = self.bytes.saturating_sub(record.bytes);
        self.by_age.remove(&(record.failed_ms, record.uid.sequence));
        self.passed.remove(record);
    }

    /// The bound that so much more would pass.
    fn full(&self, want: &Want, options: &FailedOptions) -> Option<String> {
        if self.records.len() as u64 + self.held_entries + want.entries > options.entries_max {
            return Some(format!("{} entries", options.entries_max));
        }
        let bytes = self.bytes + self.held_bytes + want.bytes;
        (bytes > options.bytes_max).then(|| format!("{} bytes", options.bytes_max))
    }
}

/// Listing.
impl State {
    /// As [`known`](Self::known), but a record whose requeue was cut short is shown.
    pub(super) fn shown(&self, uid: &Uid) -> Known {
        match (self.known(uid), self.record(uid)) {
            (Known::Unfinished, Some(record)) => Known::Here(record.clone()),
            (known, _) => known,
        }
    }

    /// The uids that are to be discarded.
    pub(super) fn chosen(&self, which: Discard) -> Vec<Uid> {
        let (target, before) = match which {
            Discard::Uids(uids) => return uids,
            Discard::Before { failed_before, target } => (target, Some(failed_before)),
            Discard::All { target } => (target, None),
        };
        let query = FailedQuery { target, failed_before: before, ..FailedQuery::default() };
        let all = self.parts().filter(|(target, _)| query.target.as_ref().is_none_or(|only| only == *target));
        let records = all.flat_map(|(_, part)| part.records.values());
        records.filter(|record| query.takes(record)).map(|record| record.uid.clone()).collect()
    }

    /// The records of one page, and where the next one begins.
    pub(super) fn page(&self, query: &FailedQuery, entries_max: usize) -> (Vec<Record>, Option<Uid>) {
        let (mut page, mut bytes) = (Vec::new(), 0);
        let parts =
            self.parts().filter(|(target, _)| query.target.as_ref().is_none_or(|only| only == *target));
        let mut collect = |record: &Record| {
            bytes += record.bytes;
            if page.len() >= entries_max || !page.is_empty() && bytes > PAGE_BYTES_MAX {
                return false;
            }
            page.push(record.clone());
            true
        };
        let full = match query.order {
            ListOrder::OldestFirst => {
                let from = |target: &TargetName| match &query.after {
                    Some(after) if after.queue == *target => after.sequence.saturating_add(1),
                    Some(after) if after.queue > *target => u64::MAX,
                    _ => 0,
                };
                let mut all = parts.flat_map(|(target, part)| part.records.range(from(target)..));
                !all.by_ref().filter(|(_, record)| query.takes(record)).all(|(_, record)| collect(record))
            }
            ListOrder::NewestFirst => {
                let to = |target: &TargetName| match &query.after {
                    Some(after) if after.queue == *target => after.sequence,
                    Some(after) if after.queue < *target => 0,
                    _ => u64::MAX,
                };
                let mut all = parts.rev().flat_map(|(target, part)| part.records.range(..to(target)).rev());
                !all.by_ref().filter(|(_, record)| query.takes(record)).all(|(_, record)| collect(record))
            }
        };
        let next = page.last().filter(|_| full).map(|record| record.uid.clone());
        (page, next)
    }
}

impl FailedQuery {
    fn takes(&self, record: &Record) -> bool {
        self.failed_before.is_none_or(|before| record.failed_ms < unix_millis(before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_requeues_are_remembered_as_are_promised() {
        let mut state = State::default();
        let target = TargetName::new("a").unwrap();
        let uid = |sequence| Uid { queue: target.clone(), sequence };
        let slot = |sequence: u64| Some(Slot { target: target.clone(), key: sequence.into() });
        // One that is not finished is never forgotten.
        state.note(&uid(1), Some((None, slot(1))));
        for sequence in 2..=NOTES_MAX as u64 + 2 {
            state.note(&uid(sequence), Some((Some(sequence + 50_000), slot(sequence))));
        }
        assert_eq!(state.trim_notes(&target), [slot(2).unwrap(), slot(3).unwrap()]);
        assert_eq!(state.known(&uid(1)), Known::Unfinished);
        assert_eq!((state.known(&uid(2)), state.known(&uid(4))), (Known::Nothing, Known::RequeuedAs(50_004)));
        assert_eq!(state.trim_notes(&target), []);
    }
}
