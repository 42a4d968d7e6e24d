//! What happens while little or nothing happens.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use measure::{Report, Setup};
use outhaul_runtime::event::TargetName;
use outhaul_runtime::store::{Admission, Journal, JournalOptions, Log, OsFileSystem, QueueSettings};
use outhaul_runtime::target::TargetOptions;
use tokio::sync::mpsc;

use crate::filled::event;
use crate::rig::{self, NoOp, Rig};

/// Between two events; everything has come to rest then.
const PAUSE: Duration = Duration::from_millis(3);
/// For so long is counted what an idle process does, whatever the measured time: its log has noted its end by then.
const REST: Duration = Duration::from_secs(3);
const IDLE: Duration = Duration::from_secs(5);

/// From the call that sends an event to its delivery, and in turn an append to a log of its own beside it.
pub(crate) fn latency(setup: &Setup) -> Result<Report> {
    rig::tokio()?.block_on(async {
        let (sender, mut delivered) = mpsc::unbounded_channel();
        let target = NoOp::new(1).observed(move |_| sender.send(Instant::now()).unwrap_or_default());
        let rig = Rig::start(&setup.dir.join("data"), Arc::new(target), TargetOptions::default()).await?;
        let (log, targets) = log_beside(setup)?;
        let (mut deliveries, mut appends) = (Vec::new(), Vec::new());
        let begun = Instant::now();
        let mut number = 0;
        while begun.elapsed() < setup.time.max(Duration::from_secs(2)) {
            number += 1;
            let one = event("pid", number)?;
            let admission = Admission::new(Arc::new(one.clone()), Arc::clone(&targets));
            tokio::time::sleep(PAUSE).await;
            let at = Instant::now();
            for receipt in log.append(vec![admission]).await {
                ensure!(receipt?.durable, "a receipt that promises nothing");
            }
            appends.push(at.elapsed());
            tokio::time::sleep(PAUSE).await;
            let at = Instant::now();
            rig.runtime.send(one).await?;
            let ended = delivered.recv().await.context("nothing is delivered")?;
            deliveries.push(ended - at);
        }
        log.close().await?;
        rig.stop().await?;
        deliveries.sort_unstable();
        appends.sort_unstable();
        let at = |times: &[Duration], part: f64| {
            times[((times.len() - 1) as f64 * part).round() as usize].as_secs_f64() * 1e6
        };
        let report = Report::default().with("events", deliveries.len() as f64);
        Ok(["p50", "p99"].into_iter().zip([0.5, 0.99]).fold(report, |report, (name, part)| {
            let (delivered, appended) = (at(&deliveries, part), at(&appends, part));
            report
                .with(&format!("{name}_us"), delivered)
                .with(&format!("append_{name}_us"), appended)
                .with(&format!("beyond_{name}_us"), delivered - appended)
        }))
    })
}

/// A log that nobody reads.
fn log_beside(setup: &Setup) -> Result<(Journal, Arc<[TargetName]>)> {
    let (dir, quarantine) = (setup.dir.join("beside"), setup.dir.join("quarantine"));
    let log = Journal::open(Arc::new(OsFileSystem), &dir, &quarantine, JournalOptions::default())?;
    let queue = TargetName::new("a")?;
    log.attach(&queue, QueueSettings::default())?;
    Ok((log, [queue].into()))
}

/// How often any thread of an idle process goes to sleep, which it does after it was woken.
pub(crate) fn wakeups(setup: &Setup) -> Result<Report> {
    let tokio = rig::tokio()?;
    let rig = tokio.block_on(async {
        let target = Arc::new(NoOp::new(1));
        let rig = Rig::start(&setup.dir.join("data"), target.clone(), TargetOptions::default()).await?;
        rig.runtime.send(event("pid", 1)?).await?;
        target.has_delivered(1).await?;
        anyhow::Ok(rig)
    })?;
    std::thread::sleep(REST);
    let before = switches()?;
    std::thread::sleep(IDLE);
    let woken = switches()?.saturating_sub(before);
    tokio.block_on(rig.stop())?;
    Ok(Report::default().with("wakeups", woken as f64))
}

/// Voluntary context switches of all threads but this one.
fn switches() -> Result<u64> {
    let mut count = 0;
    for thread in std::fs::read_dir("/proc/self/task")? {
        let thread = thread?;
        // The thread that asks is the first one.
        if thread.file_name().to_str() == Some(&std::process::id().to_string()) {
            continue;
        }
        // It may have ended meanwhile.
        let status = std::fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        let number = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count += number.and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(count)
}
