//! What is in a queue's directory, in memory: one small record per file, ordered by sequence, which is the order of
//! the names.
//!
//! A file that was minted here tells its sequence. The files of others get theirs when they are first seen, in the
//! order of their names, and keep it: [`Assigned`] is written down beside the directory, so that a uid never stands
//! for two entries.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::ops::Bound;

use super::names::{self, EVENT, EntryName};
use super::rqp1::ENTRY_BYTES_MAX;

/// More items than this are in no entry.
pub(super) const ITEMS_MAX: u64 = 1 << 20;

/// What is known of a file without reading it. Small: a million of them are 48 MiB.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    id: [u8; 16],
    /// Of the file; what is longer than this is not read anyway.
    pub(super) bytes: u32,
    pub(super) count: u32,
    flags: u8,
}

const IS_COMPRESSED: u8 = 1;
const HAS_COLON: u8 = 2;
/// The name is no UUID, or is spelt in another way than it would be here: it is in `odd`.
const IS_ODD: u8 = 4;

/// One item of a file, as it is to be read.
#[derive(Debug, Clone)]
pub(super) struct Found {
    /// The sequence of the file's first item.
    pub(super) first: u64,
    pub(super) sequence: u64,
    /// The item before it that waits, or 0.
    pub(super) previous: u64,
    pub(super) slot: Slot,
    pub(super) file: String,
}

impl Found {
    pub(super) fn index(&self) -> u64 {
        self.sequence - self.first
    }

    /// What the item counts: its share of the file.
    pub(super) fn bytes(&self) -> u64 {
        share(self.slot, self.index())
    }
}

pub(super) fn share(slot: Slot, index: u64) -> u64 {
    let (bytes, count) = (u64::from(slot.bytes), u64::from(slot.count));
    bytes / count + if index == 0 { bytes % count } else { 0 }
}

#[derive(Debug, Default)]
pub(super) struct Index {
    files: BTreeMap<u64, Slot>,
    odd: HashMap<u64, Box<str>>,
    /// Which items of a batch are settled, where some are and some are not.
    partly: HashMap<u64, Settled>,
}

#[derive(Debug, Clone)]
struct Settled {
    bits: Vec<u64>,
    left: u32,
}

/// What settling an item did.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Gone {
    /// It was not there.
    Unknown,
    /// Others of its file are still there.
    Item,
    /// It was the last of this file.
    File(String),
    /// As that, and the file is longer than what is read: nobody has a copy of it.
    Oversized(String),
}

impl Index {
    pub(super) fn insert(&mut self, first: u64, slot: Slot, odd: Option<Box<str>>) {
        if let Some(name) = odd {
            self.odd.insert(first, name);
        }
        self.files.insert(first, slot);
    }

    /// The next item above a sequence that waits.
    pub(super) fn next(&self, after: u64) -> Option<Found> {
        let from = after.checked_add(1)?;
        let inside = self.containing(from).map(|(first, _)| first);
        let starts = (Bound::Included(inside.unwrap_or(from)), Bound::Unbounded);
        for (&first, &slot) in self.files.range(starts) {
            let open = (first.max(from)..first + u64::from(slot.count))
                .find(|&sequence| !self.is_settled(first, sequence - first));
            if let Some(sequence) = open {
                let file = self.file(first, slot);
                return Some(Found { first, sequence, previous: self.before(first, sequence), slot, file });
            }
        }
        None
    }

    fn before(&self, first: u64, sequence: u64) -> u64 {
        let inside = (first..sequence).rev().find(|&s| !self.is_settled(first, s - first));
        let earlier = || {
            let (&first, slot) = self.files.range(..first).next_back()?;
            (first..first + u64::from(slot.count)).rev().find(|&s| !self.is_settled(first, s - first))
        };
        inside.or_else(earlier).unwrap_or(0)
    }

    fn containing(&self, sequence: u64) -> Option<(u64, Slot)> {
        let (&first, &slot) = self.files.range(..=sequence).next_back()?;
        (sequence - first < u64::from(slot.count)).then_some((first, slot))
    }

    fn is_settled(&self, first: u64, index: u64) -> bool {
        let word = |settled: &Settled| settled.bits[(index / 64) as usize] >> (index % 64) & 1 == 1;
        self.partly.get(&first).is_some_and(word)
    }

    pub(super) fn contains(&self, sequence: u64) -> bool {
        self.containing(sequence).is_some_and(|(first, _)| !self.is_settled(first, sequence - first))
    }

    /// Takes an item out.
    pub(super) fn settle(&mut self, sequence: u64) -> Gone {
        let Some((first, slot)) = self.containing(sequence) else { return Gone::Unknown };
        let index = sequence - first;
        if self.is_settled(first, index) {
            return Gone::Unknown;
        }
        if slot.count > 1 {
            let words = (slot.count as usize).div_ceil(64);
            let settled = self
                .partly
                .entry(first)
                .or_insert_with(|| Settled { bits: vec![0; words], left: slot.count });
            settled.bits[(index / 64) as usize] |= 1 << (index % 64);
            settled.left -= 1;
            if settled.left > 0 {
                return Gone::Item;
            }
        }
        let file = self.file(first, slot);
        self.drop_file(first);
        if u64::from(slot.bytes) > ENTRY_BYTES_MAX as u64 { Gone::Oversized(file) } else { Gone::File(file) }
    }

    /// As [`settle`](Self::settle), for an item that was settled by an earlier process; never the last one.
    pub(super) fn settle_item(&mut self, first: u64, index: u64) {
        let slot = self.files.get(&first).filter(|slot| slot.count > 1 && index < u64::from(slot.count));
        let left = self.partly.get(&first).map_or(slot.map_or(0, |slot| slot.count), |settled| settled.left);
        if slot.is_some() && left > 1 {
            self.settle(first + index);
        }
    }

    /// Takes a whole file out; returns which of its items waited.
    pub(super) fn take(&mut self, first: u64) -> Vec<u64> {
        let Some(slot) = self.files.get(&first).copied() else { return Vec::new() };
        let items = first..first + u64::from(slot.count);
        let waited = items.filter(|&sequence| !self.is_settled(first, sequence - first)).collect();
        self.drop_file(first);
        waited
    }

    /// Makes one item of a batch that cannot be read: nothing tells where its items would be. Returns how many items
    /// there are no more.
    pub(super) fn make_single(&mut self, first: u64) -> u64 {
        // Once an item was read and settled, the file could be read.
        let Some(slot) = self.files.get_mut(&first).filter(|_| !self.partly.contains_key(&first)) else {
            return 0;
        };
        let count = u64::from(std::mem::replace(&mut slot.count, 1));
        if count > 1 && !self.odd.contains_key(&first) {
            let name = EntryName {
                count,
                separator: Some(if slot.flags & HAS_COLON == 0 { '_' } else { ':' }),
                name: &names::uuid_text(slot.id),
                extension: EVENT,
                compressed: slot.is_compressed(),
            };
            self.odd.insert(first, name.to_string().into());
            slot.flags |= IS_ODD;
        }
        count - 1
    }

    fn drop_file(&mut self, first: u64) {
        self.files.remove(&first);
        self.odd.remove(&first);
        self.partly.remove(&first);
    }

    fn file(&self, first: u64, slot: Slot) -> String {
        if let Some(name) = self.odd.get(&first) {
            return name.to_string();
        }
        slot.file()
    }

    /// The file that an item is in.
    pub(super) fn file_of(&self, sequence: u64) -> Option<String> {
        self.containing(sequence).map(|(first, slot)| self.file(first, slot))
    }

    /// The names of all files, and their first sequences.
    pub(super) fn files(&self) -> impl Iterator<Item = (String, u64)> {
        self.files.iter().map(|(&first, &slot)| (self.file(first, slot), first))
    }

    /// Which items of which batches are settled, for writing down.
    pub(super) fn partly(&self) -> impl Iterator<Item = (u64, Vec<u64>)> {
        self.partly.iter().map(|(&first, settled)| {
            let items = settled.bits.len() as u64 * 64;
            (first, (0..items).filter(|&index| self.is_settled(first, index)).collect())
        })
    }
}

impl Slot {
    /// A file that is minted here.
    pub(super) fn minted(id: [u8; 16], bytes: u64, compressed: bool) -> Self {
        let flags = if compressed { IS_COMPRESSED } else { 0 };
        Self { id, bytes: u32::try_from(bytes).unwrap_or(u32::MAX), count: 1, flags }
    }

    pub(super) fn is_compressed(self) -> bool {
        self.flags & IS_COMPRESSED != 0
    }

    pub(super) fn file(self) -> String {
        let name = EntryName {
            count: self.count.into(),
            separator: (self.count > 1).then_some(if self.flags & HAS_COLON == 0 { '_' } else { ':' }),
            name: &names::uuid_text(self.id),
            extension: EVENT,
            compressed: self.is_compressed(),
        };
        name.to_string()
    }
}

/// A file that was found at open.
#[derive(Debug)]
pub(super) struct Seen {
    /// Its name, where the slot does not tell it: there may be millions.
    odd: Option<Box<str>>,
    slot: Slot,
    sequence: Option<u64>,
}

impl Seen {
    /// None if the name is none of an entry.
    pub(super) fn new(file: &str, bytes: u64) -> Option<Self> {
        let name = EntryName::parse(file);
        if name.extension != EVENT || names::file_name(file).is_err() {
            return None;
        }
        // No value is shorter than two bytes, and nothing compresses better: more are not in it.
        let values_max = if name.compressed { bytes.saturating_mul(32) } else { bytes / 2 };
        let count = if name.count > values_max.min(ITEMS_MAX) { 1 } else { name.count };
        let mut flags = if name.compressed { IS_COMPRESSED } else { 0 };
        if name.separator == Some(':') {
            flags |= HAS_COLON;
        }
        let id = names::uuid(name.name);
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let mut slot = Slot { id: id.unwrap_or_default(), bytes, count: count as u32, flags };
        if id.is_none() || slot.file() != file {
            slot.flags |= IS_ODD;
        }
        let sequence = id.filter(|_| name.count == 1).and_then(names::minted);
        let odd = (slot.flags & IS_ODD != 0).then(|| file.into());
        Some(Self { odd, slot, sequence })
    }

    fn file(&self) -> String {
        self.odd.as_deref().map_or_else(|| self.slot.file(), str::to_owned)
    }

    /// By the name proper, then by the whole.
    fn order(&self, other: &Self) -> Ordering {
        if self.odd.is_none() && other.odd.is_none() && self.slot.id != other.slot.id {
            // As their texts are.
            return self.slot.id.cmp(&other.slot.id);
        }
        let (own, other) = (self.file(), other.file());
        (EntryName::parse(&own).name, &own).cmp(&(EntryName::parse(&other).name, &other))
    }

    fn end(&self, first: u64) -> u64 {
        first.saturating_add(u64::from(self.slot.count) - 1)
    }
}

/// The sequences of files that others named.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Assigned {
    /// The greatest that was ever assigned.
    pub(super) high: u64,
    pub(super) files: HashMap<String, u64>,
}

impl Assigned {
    /// As [`parse`](Self::parse), if the last line is one of them.
    pub(super) fn read(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let number = |(first, rest): (&str, &str)| first.parse().or(rest.parse::<u64>()).ok();
        let whole = text.lines().last().is_none_or(|line| line.split_once(' ').and_then(number).is_some());
        whole.then(|| Self::parse(text))
    }

    /// One line `high <sequence>`, then one `<sequence> <file>` for each.
    fn parse(text: &str) -> Self {
        let mut this = Self::default();
        for (first, rest) in text.lines().filter_map(|line| line.split_once(' ')) {
            match (first, first.parse(), rest.parse()) {
                ("high", _, Ok(high)) => this.high = high,
                (_, Ok(first), _) => {
                    this.files.insert(rest.to_owned(), first);
                }
                _ => {}
            }
        }
        this
    }

    pub(super) fn format(&self) -> String {
        let mut files: Vec<_> = self.files.iter().collect();
        files.sort_unstable_by_key(|(_, first)| **first);
        let mut text = format!("high {}\n", self.high);
        for (file, first) in files {
            // Writing to a string cannot fail.
            writeln!(text, "{first} {file}").unwrap_or_default();
        }
        text
    }
}

/// Gives each file its sequence. `assigned` becomes what is to be written down; the greatest sequence is returned.
pub(super) fn build(mut seen: Vec<Seen>, assigned: &mut Assigned) -> (Index, u64) {
    seen.sort_unstable_by(Seen::order);
    let mut last = 0;
    for file in &mut seen {
        // Two files under one id are possible with and without compression: the second is as a stranger's.
        let own = file.sequence.filter(|&sequence| sequence > last);
        let known = if assigned.files.is_empty() { None } else { assigned.files.get(&file.file()).copied() };
        file.sequence = known.or(own);
        if let Some(first) = file.sequence {
            last = last.max(file.end(first));
        }
    }
    let mut high = last.max(assigned.high);
    // From the back: where the next file that has a sequence begins.
    let mut room = u64::MAX;
    let ends: Vec<u64> = seen
        .iter()
        .rev()
        .map(|file| {
            let before = room;
            room = file.sequence.unwrap_or(room);
            before
        })
        .collect();
    let mut kept = Assigned { high: assigned.high, files: HashMap::new() };
    let mut index = Index::default();
    last = 0;
    for (file, end) in seen.into_iter().zip(ends.into_iter().rev()) {
        let own = file.sequence.filter(|_| file.slot.flags & IS_ODD == 0 && file.slot.count == 1);
        let natural = own.is_some_and(|sequence| names::minted(file.slot.id) == Some(sequence));
        let first = file.sequence.unwrap_or_else(|| {
            let wanted = names::prefix(file.slot.id).max(last + 1);
            // There is no room between two that are known already: it comes behind all of them.
            let fits = file.end(wanted) < end && wanted > assigned.high;
            if fits { wanted } else { high.saturating_add(1) }
        });
        last = last.max(file.end(first));
        high = high.max(last);
        if !natural {
            kept.high = kept.high.max(file.end(first));
            kept.files.insert(file.file(), first);
        }
        index.insert(first, file.slot, file.odd);
    }
    *assigned = kept;
    (index, high)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(files: &[&str]) -> Vec<Seen> {
        files.iter().map(|file| Seen::new(file, 1000).unwrap()).collect()
    }

    fn order(index: &Index) -> Vec<(u64, String)> {
        let (mut all, mut after) = (Vec::new(), 0);
        while let Some(found) = index.next(after) {
            after = found.sequence;
            all.push((found.sequence, found.file));
        }
        all
    }

    #[test]
    fn a_record_is_small() {
        assert!(size_of::<Slot>() + size_of::<u64>() <= 40);
    }

    #[test]
    fn files_are_in_the_order_of_their_names_and_keep_their_sequence() {
        let files = [
            "01890a5d-ac96-774b-bcce-b302099a8057.event",
            "3_01890a5d-ac96-774b-bcce-b302099a8058.event.snappy",
            "2:01890a5d-ac96-774b-bcce-b302099a8059.event",
            "01890a5d-ac96-774b-bcce-b302099a805a.event.snappy",
            "1_x.event",
        ];
        let mut assigned = Assigned::default();
        let (mut index, high) =
            build(seen(&[files[3], files[1], files[4], files[0], files[2]]), &mut assigned);
        let all = order(&index);
        let names: Vec<_> = all.iter().map(|(_, file)| file.as_str()).collect();
        // `1_x` is a name, and stands behind what starts with 0.
        let expected = [files[0], files[1], files[1], files[1], files[2], files[2], files[3], files[4]];
        assert_eq!(names, expected);
        assert!(all.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert_eq!(high, all[7].0);
        // Without the first ones, and read back from what was written, the others are who they were.
        assert_eq!(index.settle(all[0].0), Gone::File(files[0].to_owned()));
        let mut again = Assigned::parse(&assigned.format());
        assert_eq!(again, assigned);
        let newer = "01890a5d-ac96-774b-bcce-b302099a8050.event";
        let (index, high) = build(seen(&[files[2], files[3], newer]), &mut again);
        let later = order(&index);
        assert_eq!(later[..2], all[4..6]);
        assert_eq!(later[2], all[6]);
        // One that comes between them later gets no sequence that was another's.
        assert_eq!(later[3], (high, newer.to_owned()));
        assert!(high > all[7].0);
    }

    #[test]
    fn a_batch_is_settled_item_by_item() {
        let file = "3_01890a5d-ac96-774b-bcce-b302099a8058.event";
        let (mut index, last) = build(seen(&[file]), &mut Assigned::default());
        let first = last - 2;
        assert_eq!(index.settle(first + 3), Gone::Unknown);
        assert_eq!(index.settle(first + 1), Gone::Item);
        assert_eq!(index.settle(first + 1), Gone::Unknown);
        let found = index.next(first).unwrap();
        assert_eq!((found.sequence, found.previous, found.index()), (first + 2, first, 2));
        assert_eq!(index.next(first - 1).unwrap().bytes(), 334);
        assert_eq!(index.settle(first), Gone::Item);
        assert_eq!(index.settle(first + 2), Gone::File(file.to_owned()));
        assert!(index.next(0).is_none());
        assert_eq!(index.settle(first), Gone::Unknown);
    }

    #[test]
    fn a_hostile_count_is_no_count() {
        for file in
            ["4000000000_x.event", "18446744073709551615_x.event", "501_x.event", "1048577_x.event.snappy"]
        {
            let (index, _) = build(seen(&[file]), &mut Assigned::default());
            assert_eq!(order(&index), [(1, file.to_owned())]);
        }
        let (index, _) = build(seen(&["500_x.event"]), &mut Assigned::default());
        assert_eq!(order(&index).len(), 500);
    }

    #[test]
    fn a_batch_that_cannot_be_read_is_one_entry_under_its_name() {
        for file in ["3:01890a5d-ac96-774b-bcce-b302099a8058.event", "3_x.event.snappy"] {
            let (mut index, last) = build(seen(&[file]), &mut Assigned::default());
            assert_eq!(index.make_single(last - 2), 2);
            assert_eq!(order(&index), [(last - 2, file.to_owned())]);
            assert_eq!(index.settle(last - 2), Gone::File(file.to_owned()));
        }
    }

    #[test]
    fn names_of_others_are_left() {
        for file in ["a.audit", "a.event.tmp", "a", "a.snappy", "a.event.gz", ".eventx"] {
            assert!(Seen::new(file, 10).is_none(), "{file}");
        }
    }
}
