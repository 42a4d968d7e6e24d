//! What a process holds while very much waits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use measure::{Report, Setup, resident_bytes};
use outhaul_runtime::target::TargetOptions;

use crate::filled::{BEHIND, PIDS, filled};
use crate::rig::{self, NoOp, Rig};

/// Long enough that what waits once waits until the end.
const NEVER: Duration = Duration::from_secs(3600);
const MIB: f64 = (1 << 20) as f64;

/// 10,000 stuck pids, `setup.count` entries of them, and some behind these that can be delivered. With default options:
/// what is stuck is tried again and again meanwhile.
pub(crate) fn behind(setup: &Setup) -> Result<Report> {
    let dir = filled(setup, "behind", setup.count)?;
    rig::tokio()?.block_on(async {
        let target = Arc::new(NoOp::new(1024));
        let begun = Instant::now();
        let rig = Rig::start(&dir, target.clone(), TargetOptions::default()).await?;
        let mut most = 0;
        let mut found = None;
        // For a while after that as well: the window is full of what waits then.
        while found.is_none_or(|at: Duration| begun.elapsed() < at + Duration::from_secs(3)) {
            tokio::time::sleep(Duration::from_millis(20)).await;
            most = most.max(resident_bytes());
            if target.delivered() >= BEHIND {
                found.get_or_insert_with(|| begun.elapsed());
            }
            if begun.elapsed() > Duration::from_secs(60) {
                break;
            }
        }
        let report = Report::default()
            .with("resident_mib", most as f64 / MIB)
            .with("found", target.delivered() as f64)
            .with("found_s", found.map_or(f64::INFINITY, |at| at.as_secs_f64()).min(3600.0))
            .with("refused", target.refused() as f64);
        rig.stop().await?;
        Ok(report)
    })
}

/// `setup.count` entries wait for a target that is down.
pub(crate) fn waiting(setup: &Setup) -> Result<Report> {
    let dir = filled(setup, "even", setup.count)?;
    rig::tokio()?.block_on(async {
        let rig = Rig::start(&dir, Arc::new(NoOp::down()), TargetOptions::default()).await?;
        let (begun, mut most) = (Instant::now(), 0);
        while begun.elapsed() < setup.time.max(Duration::from_secs(4)) {
            tokio::time::sleep(Duration::from_millis(20)).await;
            most = most.max(resident_bytes());
        }
        ensure!(rig.queue()?.waiting == setup.count, "not all wait");
        rig.stop().await?;
        Ok(Report::default().with("resident_mib", most as f64 / MIB))
    })
}

/// `setup.count` pids wait for their next attempt, with one entry each, and as many entries of others are delivered
/// between them. What the first of them take is the window.
pub(crate) fn waiting_pids(setup: &Setup) -> Result<Report> {
    ensure!(setup.count > 2 * PIDS, "too few to tell");
    let dir = filled(setup, "half", 2 * setup.count)?;
    rig::tokio()?.block_on(async {
        let target = Arc::new(NoOp::new(1024));
        let options = TargetOptions { backoff: NEVER, backoff_max: NEVER, ..TargetOptions::default() };
        let rig = Rig::start(&dir, target.clone(), options).await?;
        rig::until(|| target.stuck() >= PIDS).await?;
        let (some, at) = (resident_bytes(), target.stuck());
        target.has_delivered(setup.count).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (all, pids) = (resident_bytes(), target.stuck() - at);
        ensure!(pids > setup.count / 2, "only {pids} more wait");
        rig.stop().await?;
        Ok(Report::default()
            .with("resident_mib", all as f64 / MIB)
            .with("pids", pids as f64)
            .with("bytes_per_pid", all.saturating_sub(some) as f64 / pids as f64))
    })
}
