//! Counts by size.

use std::time::Duration;

/// How many powers of two are told apart; all above are one.
const BUCKETS: usize = 40;

/// How often values of each size occurred. Bucket 0 counts zeros, bucket n those from 2^(n−1) up to 2^n − 1.
///
/// Durations are counted in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Histogram {
    buckets: [u64; BUCKETS],
    sum: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: [0; BUCKETS], sum: 0 }
    }
}

impl Histogram {
    /// The largest value of each bucket and how often it occurred, smallest first; the last has no bound but `u64`'s.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        self.buckets.iter().enumerate().map(|(at, times)| (largest(at), *times))
    }

    /// How many values there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Of all values.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// The value that this part (0 to 1) of all values does not exceed, rounded up to the largest of its bucket; None
    /// without values.
    #[must_use]
    pub fn quantile(&self, part: f64) -> Option<u64> {
        let count = self.count();
        let rank = ((count as f64 * part.clamp(0.0, 1.0)).ceil() as u64).max(1);
        let mut seen = 0;
        let at = self.buckets.iter().position(|times| {
            seen += times;
            seen >= rank
        })?;
        Some(largest(at))
    }

    pub(crate) fn note(&mut self, value: u64) {
        let at = (u64::BITS - value.leading_zeros()) as usize;
        self.buckets[at.min(BUCKETS - 1)] += 1;
        self.sum = self.sum.saturating_add(value);
    }

    pub(crate) fn note_duration(&mut self, duration: Duration) {
        self.note(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX));
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.buckets.iter_mut().zip(other.buckets) {
            *mine += theirs;
        }
        self.sum = self.sum.saturating_add(other.sum);
    }
}

fn largest(bucket: usize) -> u64 {
    if bucket == BUCKETS - 1 { u64::MAX } else { (1 << bucket) - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_by_powers_of_two() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.5), None);
        for value in [0, 1, 2, 3, 4, 7, 8, 1 << 50] {
            histogram.note(value);
        }
        let counted: Vec<_> = histogram.buckets().filter(|(_, times)| *times > 0).collect();
        assert_eq!(counted, [(0, 1), (1, 1), (3, 2), (7, 2), (15, 1), (u64::MAX, 1)]);
        assert_eq!((histogram.count(), histogram.sum()), (8, 25 + (1 << 50)));
        let quantiles = [0.0, 0.25, 0.5, 0.75, 1.0].map(|part| histogram.quantile(part).unwrap());
        assert_eq!(quantiles, [0, 1, 3, 7, u64::MAX]);
    }

    #[test]
    fn two_make_one() {
        let (mut left, mut right) = (Histogram::default(), Histogram::default());
        left.note_duration(Duration::from_millis(1));
        right.note_duration(Duration::from_micros(999));
        left.merge(&right);
        assert_eq!((left.count(), left.sum(), left.quantile(0.5)), (2, 1_999, Some(1_023)));
    }
}
