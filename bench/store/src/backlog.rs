//! The store with many entries waiting: how fast its head is taken, and how fast it grows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use measure::{Report, Setup};
use outhaul_store::event::TargetName;
use outhaul_store::{Journal, Log, Shards};

use crate::journal::{self, Events, durable};
use crate::open::append_many;
use crate::producers;

/// Entries that are put in, then taken, in a round.
const ROUND: usize = 1000;
const PRODUCERS: u64 = 64;

/// With `setup.count` entries waiting.
pub(crate) fn run(setup: &Setup) -> Result<Report> {
    let journal = journal::open(&setup.dir)?;
    append_many(&journal, setup.count)?;
    let runtime = producers::runtime()?;
    let taken_per_s = runtime.block_on(take(&journal, setup.time))?;
    let log: Arc<dyn Log> = journal;
    let producing = Setup {
        count: PRODUCERS,
        dir: setup.dir.clone(),
        shared: setup.shared.clone(),
        case: String::new(),
        ..*setup
    };
    let report = producers::appending(&runtime, &producing, &log, &["a"])?.0;
    runtime.block_on(log.close())?;
    Ok(report.with("taken_per_s", taken_per_s))
}

/// Entries per second, read and settled durably. As many come as go, so the number that waits stays.
async fn take(journal: &Arc<Journal>, time: Duration) -> Result<f64> {
    let queue = TargetName::new("a")?;
    let lease = journal.lease(Shards::All).await?;
    let mut events = Events::new(0, &["a"])?;
    let (mut after, mut taken, mut took) = (0, 0, Duration::ZERO);
    while took < time {
        durable(&journal.append(events.batch(ROUND)).await)?;
        let begun = Instant::now();
        let mut left = ROUND;
        while left > 0 {
            let read = lease.read(&queue, after, left, 4 << 20).await?;
            ensure!(!read.entries.is_empty(), "nothing waits");
            after = read.next;
            left -= read.entries.len();
            taken += read.entries.len();
            lease.settle(producers::delivered(read.entries)).await?;
        }
        journal.flush().await?;
        took += begun.elapsed();
    }
    Ok(taken as f64 / took.as_secs_f64())
}
