//! Plain numbers about a writer.

use std::time::Duration;

use crate::Histogram;

/// A consistent snapshot, taken under the writer's lock: `accepted = applied + failed + depth + in_flight`, always.
///
/// The counters run over the life of the writer, not over that of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriterStats {
    /// Operations accepted and not taken by the sink: waiting for their first try or for the next.
    pub depth: usize,
    /// Their bytes.
    pub depth_bytes: usize,
    /// Operations inside the sink.
    pub in_flight: usize,
    /// The greatest `depth` so far.
    pub high_water: usize,
    /// Calls of `send` that wait for room now.
    pub waiting: usize,
    /// Whether new work is refused now (on some shard at least).
    pub latched: bool,
    /// How often that began.
    pub latches: u64,
    /// Operations taken in.
    pub accepted: u64,
    /// Operations refused for want of room.
    pub refused: u64,
    /// Calls of `send` that had to wait.
    pub stalled: u64,
    /// Operations that were put back, after a transient failure or to be tried in a smaller batch; each time counts.
    pub retried: u64,
    /// Operations that the sink has applied; one that another replaced counts as applied with it.
    pub applied: u64,
    /// Those of them that a later one of their batch replaced.
    pub coalesced: u64,
    /// Operations that ended with an error.
    pub failed: u64,
    /// Calls of the sink.
    pub batches: u64,
    /// Calls of the sink that panicked.
    pub panicked: u64,
    /// Calls of the sink that did not end within `apply_max`.
    pub timed_out: u64,
    /// How long the longest call of the sink that is running has been running: a sink that hangs shows here.
    pub applying_for: Option<Duration>,
    /// Shards whose last call did not end within `apply_max`, and that have seen none end since.
    pub hung_shards: usize,
    /// Operations that wait for [`acknowledge`](crate::Writer::acknowledge); they are part of `depth`.
    pub held: usize,
    /// Pids that do, also those without an operation: [`held`](crate::Writer::held) names them.
    pub held_pids: usize,
    /// Operations in each call of the sink.
    pub batch_ops: Histogram,
    /// How long each call of the sink took, in microseconds.
    pub commit_us: Histogram,
    /// How long operations waited until their first try, in microseconds: of those accepted one in 16 is timed, so its
    /// count is a sixteenth of theirs.
    pub queue_us: Histogram,
}
