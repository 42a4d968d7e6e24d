//! How a writer is set up.

use std::num::{NonZeroU64, NonZeroUsize};
use std::time::Duration;

/// What a refusal, or a wait for room, closes to new work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LatchScope {
    /// The whole writer, idle shards included: the store is behind, and half an admission helps nobody.
    #[default]
    Whole,
    /// The full shard alone.
    Shard,
}

/// What becomes of the rest of a pid when one of its operations fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnFailure {
    /// It goes on: the failed operation's ticket and the next flush tell.
    #[default]
    Continue,
    /// It is held – neither tried nor failed, and counted as waiting – until somebody who has seen the failure calls
    /// [`acknowledge`](crate::Writer::acknowledge): a later operation never lands on top of one that is missing.
    StopPid,
}

/// The bounds of a [`Writer`](crate::Writer).
///
/// A count of zero cannot be written down. A zero duration is no "unlimited": it means no time at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriterOptions {
    /// Lanes that commit independently: 1 (default) for a sink with a single writer (a journal, an embedded key-value
    /// engine), `min(cores, 8)` for one that commits in parallel. At most 65,536.
    pub shards: NonZeroU64,
    /// Operations waiting over all shards; a shard's capacity is `max(1, ops_max / shards)`. Default 8,192.
    pub ops_max: NonZeroUsize,
    /// Bytes waiting over all shards, divided in the same way. Default 64 MiB.
    pub bytes_max: NonZeroUsize,
    /// Operations in one call of the sink. Default 4,096. What waits and what is in the sink together never exceed the
    /// capacity and one batch per shard.
    pub batch_ops_max: NonZeroUsize,
    /// Bytes in one call of the sink; an operation that is larger goes alone. Default 1 MiB.
    pub batch_bytes_max: NonZeroUsize,
    /// How long an operation that fails transiently is retried, from its first failure. Default 30 s. The last try is
    /// made when the time is up; zero: the first failure is final.
    pub retry_max: Duration,
    /// The pause before the second try of an operation; it doubles with each further one. Default 10 ms; shorter than
    /// 1 ms counts as 1 ms.
    pub backoff_min: Duration,
    /// The longest pause between two tries. Default 1 s.
    pub backoff_max: Duration,
    /// How long one call of the sink may take before it counts as hung: its future is dropped and the outcome of its
    /// operations is unknown. Default 60 s.
    pub apply_max: Duration,
    /// What becomes of the rest of a pid when one of its operations fails. Default: it goes on.
    pub on_failure: OnFailure,
    /// What a refusal closes. Default the whole writer.
    pub latch: LatchScope,
    /// Whether a shard that has just woken N producers waits a moment for them to come back, at most half the running
    /// mean of a commit. Default yes; no for a sink that gathers by itself, since a path should wait only once.
    pub gather: bool,
    /// How long [`close`](crate::Writer::close) waits for the backlog. Default 90 s, which leaves room for
    /// `retry_max` and `apply_max`. What is not written by then is given up and reported.
    pub close_max: Duration,
}

impl Default for WriterOptions {
    fn default() -> Self {
        Self {
            shards: NonZeroU64::MIN,
            ops_max: const { NonZeroUsize::new(8_192).expect("not zero") },
            bytes_max: const { NonZeroUsize::new(64 << 20).expect("not zero") },
            batch_ops_max: const { NonZeroUsize::new(4_096).expect("not zero") },
            batch_bytes_max: const { NonZeroUsize::new(1 << 20).expect("not zero") },
            retry_max: Duration::from_secs(30),
            backoff_min: Duration::from_millis(10),
            backoff_max: Duration::from_secs(1),
            apply_max: Duration::from_secs(60),
            on_failure: OnFailure::default(),
            latch: LatchScope::default(),
            gather: true,
            close_max: Duration::from_secs(90),
        }
    }
}

impl WriterOptions {
    /// The pause after the try with this number (from 1).
    pub(crate) fn backoff(&self, attempts: u32) -> Duration {
        let doublings = attempts.saturating_sub(1).min(31);
        let first = self.backoff_min.max(Duration::from_millis(1));
        first.saturating_mul(1 << doublings).min(self.backoff_max.max(first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backoff_doubles_up_to_its_bound() {
        let options = WriterOptions::default();
        let pauses: Vec<u128> = [1, 2, 3, 7, 8, 9, u32::MAX].map(|n| options.backoff(n).as_millis()).to_vec();
        assert_eq!(pauses, [10, 20, 40, 640, 1_000, 1_000, 1_000]);
    }
}
