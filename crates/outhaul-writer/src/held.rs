//! Pids that are held behind a failure.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::ShardFailure;
use crate::queue::Load;

/// A pid that is held behind a failure ([`OnFailure::StopPid`](crate::OnFailure::StopPid)) until it is
/// [acknowledged](crate::Writer::acknowledge).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HeldPid {
    /// Which; empty if [`Operation::pid`](crate::Operation::pid) panicked.
    pub pid: String,
    /// How many of its operations wait. It is held with none, too: its next one would land on top of what is missing.
    pub ops: usize,
    /// Their bytes.
    pub bytes: usize,
    /// What failed.
    pub failure: ShardFailure,
    /// For how long.
    pub held_for: Duration,
}

impl HeldPid {
    /// So many pids are held in a shard at most: from there on new work is refused there, and bookkeeping waits. What the
    /// shard had accepted before may fail as well, and add as many more as its capacity is.
    pub const PIDS_MAX: usize = 16_384;
}

/// Why a pid is held.
#[derive(Debug)]
pub(crate) struct Why {
    pub(crate) pid: String,
    pub(crate) failure: ShardFailure,
    pub(crate) since: Instant,
}

/// A pid that is to be held, and what the shard's task has of it.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) key: u64,
    pub(crate) why: Arc<Why>,
    pub(crate) load: Load,
    pub(crate) epochs: Vec<u64>,
}

#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) why: Arc<Why>,
    pub(crate) load: Load,
}

impl Held {
    pub(crate) fn at(&self, now: Instant) -> HeldPid {
        let Why { pid, failure, since } = &*self.why;
        HeldPid {
            pid: pid.clone(),
            ops: self.load.ops,
            bytes: usize::try_from(self.load.bytes).unwrap_or(usize::MAX),
            failure: failure.clone(),
            held_for: now.saturating_duration_since(*since),
        }
    }
}

/// Those of one shard.
#[derive(Debug, Default)]
pub(crate) struct HeldPids {
    by_key: HashMap<u64, Held>,
    load: Load,
}

impl HeldPids {
    pub(crate) fn load(&self) -> Load {
        self.load
    }

    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.by_key.len() >= HeldPid::PIDS_MAX
    }

    pub(crate) fn has(&self, key: u64) -> bool {
        !self.by_key.is_empty() && self.by_key.contains_key(&key)
    }

    pub(crate) fn of(&self, key: u64) -> Load {
        self.by_key.get(&key).map(|held| held.load).unwrap_or_default()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Held> {
        self.by_key.values()
    }

    /// Holds a pid, or more of it.
    pub(crate) fn hold(&mut self, key: u64, why: &Arc<Why>, load: Load) {
        let fresh = || Held { why: Arc::clone(why), load: Load::default() };
        self.by_key.entry(key).or_insert_with(fresh).load += load;
        self.load += load;
    }

    /// Counts more of a pid that is held.
    pub(crate) fn add(&mut self, key: u64, load: Load) {
        if let Some(held) = self.by_key.get_mut(&key) {
            held.load += load;
            self.load += load;
        }
    }

    pub(crate) fn release(&mut self, key: u64) {
        if let Some(held) = self.by_key.remove(&key) {
            self.load -= held.load;
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
