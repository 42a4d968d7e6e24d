//! A backlog is drained while new events arrive.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use measure::{Report, Setup, resident_bytes};
use outhaul_runtime::AdmitError;
use outhaul_runtime::target::TargetOptions;

use crate::filled::{event, filled};
use crate::rig::{self, NoOp, Rig};

/// New events, of pids that nothing waits for.
const PER_S: u64 = 1000;
/// So many of them are made before: making them is not what is measured.
const KINDS: u64 = 4096;

/// `setup.count` entries of eight pids wait. Ends when they are delivered.
pub(crate) fn drain(setup: &Setup) -> Result<Report> {
    let dir = filled(setup, "few", setup.count)?;
    let new: Vec<_> =
        (0..KINDS).map(|number| event(&format!("new-{number:07}"), number)).collect::<Result<_>>()?;
    rig::tokio()?.block_on(async {
        let sent: Arc<Mutex<HashMap<String, Instant>>> = Arc::default();
        let late: Arc<Mutex<Vec<Duration>>> = Arc::default();
        let (known, book) = (Arc::clone(&sent), Arc::clone(&late));
        let target = NoOp::new(1024).observed(move |one| {
            let Some(pid) = one.event.pid().filter(|pid| pid.starts_with("new-")) else { return };
            let sent = known.lock().unwrap_or_else(PoisonError::into_inner).remove(pid);
            book.lock().unwrap_or_else(PoisonError::into_inner).extend(sent.map(|at| at.elapsed()));
        });
        let target = Arc::new(target);
        let begun = Instant::now();
        let rig = Rig::start(&dir, target.clone(), TargetOptions::default()).await?;
        let (mut number, mut memory) = (0, Vec::new());
        let mut tick = tokio::time::interval(Duration::from_millis(10));
        while rig.queue()?.delivered < setup.count {
            tick.tick().await;
            memory.push(resident_bytes());
            // As many as are due, at once: a tick may come late.
            let due = begun.elapsed().as_millis() as u64 * PER_S / 1000;
            while number < due {
                let one = &new[(number % KINDS) as usize];
                let pid = one.pid().unwrap_or_default().to_owned();
                sent.lock().unwrap_or_else(PoisonError::into_inner).entry(pid).or_insert_with(Instant::now);
                match rig.runtime.admit(vec![one.clone().into()]) {
                    // What is durable is told to nobody here.
                    Ok(pending) => pending.into_iter().for_each(drop),
                    // It is tried again, and has waited meanwhile.
                    Err(AdmitError::Saturated) => break,
                    Err(error) => return Err(error.into()),
                }
                number += 1;
            }
        }
        let secs = begun.elapsed().as_secs_f64();
        rig.has_settled(0).await?;
        rig.stop().await?;
        let mut late = std::mem::take(&mut *late.lock().unwrap_or_else(PoisonError::into_inner));
        late.sort_unstable();
        let at = |part: f64| late.get(((late.len().max(1) - 1) as f64 * part).round() as usize);
        let millis = |part| at(part).map_or(0.0, |late: &Duration| late.as_secs_f64() * 1e3);
        let (early, most) =
            (memory.iter().take(memory.len() / 4).max(), memory.iter().max().copied().unwrap_or(0));
        Ok(Report::default()
            .with("events_per_s", setup.count as f64 / secs)
            .with("new", late.len() as f64)
            .with("new_p50_ms", millis(0.5))
            .with("new_max_ms", millis(1.0))
            .with("resident_mib", most as f64 / f64::from(1 << 20))
            .with("growth", most as f64 / early.copied().unwrap_or(1).max(1) as f64))
    })
}
