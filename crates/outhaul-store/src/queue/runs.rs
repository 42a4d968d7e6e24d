//! A set of sequences as runs: what has been settled, in a few bytes whatever its size.

use std::collections::BTreeMap;

/// A set of `u64` kept as disjoint runs that do not touch. [`end`](Self::low_water) of the run that starts at 0 is
/// the low-water mark.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Runs(BTreeMap<u64, u64>);

/// How much of a range is in a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Overlap {
    None,
    Part,
    All,
}

impl Runs {
    /// Adds `first..=last`, joining what it touches.
    pub(crate) fn insert(&mut self, first: u64, last: u64) {
        let (mut first, mut last) = (first, last);
        if let Some((&start, &end)) = self.0.range(..=first).next_back()
            && end.saturating_add(1) >= first
        {
            first = start;
            last = last.max(end);
        }
        while let Some((&start, &end)) = self.0.range(first..=last.saturating_add(1)).next() {
            last = last.max(end);
            self.0.remove(&start);
        }
        self.0.insert(first, last);
    }

    pub(crate) fn contains(&self, sequence: u64) -> bool {
        self.0.range(..=sequence).next_back().is_some_and(|(_, &end)| end >= sequence)
    }

    /// How much of `first..=last` is in the set.
    pub(crate) fn overlap(&self, first: u64, last: u64) -> Overlap {
        match self.0.range(..=last).next_back() {
            Some((&start, &end)) if start <= first && end >= last => Overlap::All,
            Some((_, &end)) if end >= first => Overlap::Part,
            _ => Overlap::None,
        }
    }

    /// The smallest sequence that is not in the set.
    pub(crate) fn low_water(&self) -> u64 {
        self.0.get(&0).map_or(0, |&end| end.saturating_add(1))
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (u64, u64)> + '_ {
        self.0.iter().map(|(&first, &last)| (first, last))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn runs_are_a_set(inserts in proptest::collection::vec((0_u64..60, 0_u64..6), 0..40)) {
            let (mut runs, mut plain) = (Runs::default(), BTreeSet::new());
            for (first, more) in inserts {
                runs.insert(first, first + more);
                plain.extend(first..=first + more);
                for sequence in 0..70 {
                    prop_assert_eq!(runs.contains(sequence), plain.contains(&sequence));
                }
                prop_assert_eq!(runs.low_water(), (0..).find(|s| !plain.contains(s)).unwrap());
                for (first, last) in (0..66).flat_map(|first| (first..70).map(move |last| (first, last))) {
                    let inside = (first..=last).filter(|s| plain.contains(s)).count() as u64;
                    let expected = match inside {
                        0 => Overlap::None,
                        all if all == last - first + 1 => Overlap::All,
                        _ => Overlap::Part,
                    };
                    prop_assert_eq!(runs.overlap(first, last), expected);
                }
                // Runs never touch: neighbours have a gap of at least one.
                let all: Vec<_> = runs.iter().collect();
                prop_assert!(all.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0));
            }
        }
    }

    #[test]
    fn the_ends_of_the_range_are_safe() {
        let mut runs = Runs::default();
        runs.insert(u64::MAX - 1, u64::MAX);
        runs.insert(0, 3);
        runs.insert(u64::MAX, u64::MAX);
        assert_eq!(runs.iter().collect::<Vec<_>>(), [(0, 3), (u64::MAX - 1, u64::MAX)]);
    }
}
