//! Producers that each wait for the receipt of one event before they append the next.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use measure::{Meter, Phase, Report, Samples, Setup, window};
use outhaul_store::event::TargetName;
use outhaul_store::{Entry, Log, Outcome, Settlement, Shards};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::journal::{self, Events, durable};

/// Through the synchronous API.
pub(crate) fn threads(setup: &Setup) -> Result<Report> {
    let journal = &journal::open_used(&setup.dir, setup.count)?;
    let report = measure::threads(setup, 1, |number| {
        let mut events = Events::new(number, &["a"]);
        move || {
            let events = events.as_mut().map_err(|error| anyhow::anyhow!("{error:#}"))?;
            durable(&journal.append_sync(events.batch(1)))
        }
    })?;
    journal.close_sync()?;
    Ok(report)
}

/// Through the asynchronous API, for a set of targets.
pub(crate) fn tasks(setup: &Setup, log: Arc<dyn Log>, targets: &[&str]) -> Result<Report> {
    let runtime = runtime()?;
    let report = appending(&runtime, setup, &log, targets)?.0;
    runtime.block_on(log.close())?;
    Ok(report)
}

/// As [`tasks`], while a consumer takes everything out again.
pub(crate) fn beside_a_consumer(setup: &Setup) -> Result<Report> {
    let runtime = runtime()?;
    let log: Arc<dyn Log> = journal::open_used(&setup.dir, setup.count)?;
    let over = Arc::new(Phase::default());
    let consumer = runtime.spawn(consume(Arc::clone(&log), Arc::clone(&over)));
    let (report, settled) = appending(&runtime, setup, &log, &["a"])?;
    over.end();
    runtime.block_on(consumer)??;
    runtime.block_on(log.close())?;
    let appended = report.get("events").unwrap_or(0.0);
    Ok(report.with("settled_part", settled as f64 / appended.max(1.0)))
}

/// Also says how many entries were delivered in the measured time.
pub(crate) fn appending(
    runtime: &Runtime,
    setup: &Setup,
    log: &Arc<dyn Log>,
    targets: &[&str],
) -> Result<(Report, u64)> {
    let phase = Arc::new(Phase::default());
    let mut producers = JoinSet::new();
    for number in 0..setup.count {
        let events = Events::new(number, targets)?;
        producers.spawn_on(produce(Arc::clone(log), Arc::clone(&phase), events), runtime.handle());
    }
    let delivered = || log.stats().iter().map(|queue| queue.delivered).sum::<u64>();
    let mut before = 0;
    let meter: Meter = window(setup, &phase, || before = delivered());
    let samples = runtime.block_on(producers.join_all()).into_iter().collect::<Result<_>>()?;
    let settled = delivered() - before;
    Ok((meter.report(samples, 1), settled))
}

async fn produce(log: Arc<dyn Log>, phase: Arc<Phase>, mut events: Events) -> Result<Samples> {
    let mut samples = Samples::default();
    while let Some(begun) = samples.begin(&phase) {
        durable(&log.append(events.batch(1)).await)?;
        samples.end(&begun);
    }
    Ok(samples)
}

async fn consume(log: Arc<dyn Log>, phase: Arc<Phase>) -> Result<()> {
    let queue = TargetName::new("a")?;
    let lease = log.lease(Shards::All).await?;
    let mut watch = lease.watch(&queue)?;
    let mut after = 0;
    while !phase.is_over() {
        watch.borrow_and_update();
        let read = lease.read(&queue, after, 1024, 4 << 20).await?;
        after = read.next;
        if !read.entries.is_empty() {
            lease.settle(delivered(read.entries)).await?;
            continue;
        }
        // Nobody may append any more when the phase ends, so the wait has an end of its own.
        tokio::select! {
            changed = watch.changed() => changed?,
            () = tokio::time::sleep(Duration::from_millis(50)) => {}
        }
    }
    Ok(())
}

pub(crate) fn delivered(entries: Vec<Entry>) -> Vec<Settlement> {
    let each = |entry: Entry| Settlement { place: entry.place, outcome: Outcome::Delivered };
    entries.into_iter().map(each).collect()
}

/// One worker for each core.
pub(crate) fn runtime() -> Result<Runtime> {
    let built = tokio::runtime::Builder::new_multi_thread().enable_time().build();
    built.context("no runtime starts")
}
