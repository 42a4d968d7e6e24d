//! How fast a backlog is delivered to a target that does no work, and beside pids that are stuck.

use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Instant;

use anyhow::{Result, ensure};
use measure::{Report, Setup, cpu};
use outhaul_runtime::target::TargetOptions;

use crate::filled::{PIDS, filled};
use crate::rig::{self, NoOp, Rig};

/// More than the default of `batch` asks for.
const BATCH_MAX: usize = 1024;

/// With default options, a target that takes batches.
pub(crate) fn batches(setup: &Setup) -> Result<Report> {
    drain(setup, "even", setup.count, setup.count, BATCH_MAX)
}

/// As [`batches`], for a target that takes one event at a time.
pub(crate) fn singly(setup: &Setup) -> Result<Report> {
    drain(setup, "even", setup.count, setup.count, 1)
}

/// With one entry of each stuck pid in front.
pub(crate) fn beside_stuck(setup: &Setup) -> Result<Report> {
    drain(setup, "first", setup.count + PIDS, setup.count, BATCH_MAX)
}

/// What [`beside_stuck`] is compared with.
pub(crate) fn without_stuck(setup: &Setup) -> Result<Report> {
    batches(setup)
}

/// Every other entry is of a stuck pid.
pub(crate) fn among_stuck(setup: &Setup) -> Result<Report> {
    drain(setup, "mixed", 2 * setup.count, setup.count, BATCH_MAX)
}

/// Delivers `good` of `count` entries.
fn drain(setup: &Setup, layout: &str, count: u64, good: u64, batch_max: usize) -> Result<Report> {
    let dir = filled(setup, layout, count)?;
    rig::tokio()?.block_on(async {
        let target = Arc::new(NoOp::new(batch_max));
        let (started, mut begun, mut before) = (Instant::now(), Instant::now(), cpu());
        let rig = Rig::start(&dir, target.clone(), TargetOptions::default()).await?;
        let mut already = 0;
        if good < count {
            // It begins when all of them are stuck, or most of them with half of the others delivered meanwhile.
            rig::until(|| target.stuck() >= PIDS || target.delivered() >= good / 2).await?;
            (already, begun, before) = (target.delivered(), Instant::now(), cpu());
        }
        let stuck = target.stuck();
        target.has_delivered(good).await?;
        rig.has_settled(count - good).await?;
        let (secs, used) = (begun.elapsed().as_secs_f64(), cpu() - before);
        let whole_secs = started.elapsed().as_secs_f64();
        ensure!(target.delivered() == good, "{} of {good} were delivered", target.delivered());
        let refused = target.refused() as f64;
        rig.stop().await?;
        let measured = (good - already) as f64;
        Ok(Report::default()
            .with("events_per_s", measured / secs)
            .with("events_per_s_from_start", good as f64 / whole_secs)
            .with("cpu_us_per_event", used.as_secs_f64() * 1e6 / measured)
            .with("stuck", stuck as f64)
            .with("refused", refused))
    })
}

/// One file per event, as RustFS and MinIO replay their queues: one thread lists the directory, another one reads each
/// file, hands it on and removes it. The directory is not synced, so what it removes may be there again after a crash.
#[expect(clippy::disallowed_methods, reason = "this is what is measured")]
pub(crate) fn files(setup: &Setup) -> Result<Report> {
    let event = measure::json(1024, 3);
    for number in 0..setup.count {
        std::fs::write(setup.dir.join(format!("{number:020}.event")), &event)?;
    }
    std::process::Command::new("sync").arg("-f").arg(&setup.dir).status()?;
    let begun = Instant::now();
    let (sender, names) = mpsc::sync_channel::<PathBuf>(1024);
    let worker = std::thread::spawn(move || -> Result<u64> {
        let mut delivered = 0;
        for name in names {
            std::hint::black_box(std::fs::read(&name)?);
            std::fs::remove_file(&name)?;
            delivered += 1;
        }
        Ok(delivered)
    });
    let mut names =
        std::fs::read_dir(&setup.dir)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    names.sort_unstable();
    for name in names {
        sender.send(name)?;
    }
    drop(sender);
    let delivered = worker.join().expect("it does not panic")?;
    std::fs::File::open(&setup.dir)?.sync_all()?;
    ensure!(delivered == setup.count, "{delivered} of {} were delivered", setup.count);
    Ok(Report::default().with("events_per_s", delivered as f64 / begun.elapsed().as_secs_f64()))
}
