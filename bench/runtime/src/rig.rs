//! A runtime on a data directory, with one target that does no work.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use outhaul_runtime::event::TargetName;
use outhaul_runtime::store::{JournalOptions, Log, QueueStats, Store};
use outhaul_runtime::target::{
    Attempt, BatchOrder, Capabilities, DeliveryError, ErrorKind, Target, TargetOptions, async_trait,
};
use outhaul_runtime::{Runtime, RuntimeOptions, TargetSpec};
use tokio::sync::watch;

use crate::filled::is_stuck;

/// How often it is looked whether something has come about.
const POLL: Duration = Duration::from_millis(1);
/// What takes longer is a defect.
const LONGEST: Duration = Duration::from_secs(180);

/// Takes everything, but for the events of stuck pids.
pub(crate) struct NoOp {
    batch_max: usize,
    /// It takes nothing at all.
    is_down: bool,
    delivered: watch::Sender<u64>,
    refused: AtomicU64,
    stuck: Mutex<Stuck>,
    /// Is told of each delivered event.
    observe: Option<Box<dyn Fn(&Attempt) + Send + Sync>>,
}

impl NoOp {
    pub(crate) fn new(batch_max: usize) -> Self {
        let (delivered, refused) = (watch::Sender::new(0), AtomicU64::new(0));
        Self { batch_max, is_down: false, delivered, refused, stuck: Mutex::default(), observe: None }
    }

    pub(crate) fn down() -> Self {
        Self { is_down: true, ..Self::new(1) }
    }

    pub(crate) fn observed(self, observe: impl Fn(&Attempt) + Send + Sync + 'static) -> Self {
        Self { observe: Some(Box::new(observe)), ..self }
    }

    pub(crate) fn delivered(&self) -> u64 {
        *self.delivered.borrow()
    }

    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// How many stuck pids wait because of what was answered.
    pub(crate) fn stuck(&self) -> u64 {
        self.stuck.lock().unwrap_or_else(PoisonError::into_inner).count
    }

    /// Resolves when so many were delivered.
    pub(crate) async fn has_delivered(&self, count: u64) -> Result<()> {
        let mut watch = self.delivered.subscribe();
        tokio::time::timeout(LONGEST, watch.wait_for(|delivered| *delivered >= count)).await??;
        Ok(())
    }
}

/// Which stuck pids were refused: a bit for each of them.
#[derive(Default)]
struct Stuck {
    bits: Vec<u64>,
    count: u64,
}

impl Stuck {
    fn add(&mut self, attempt: &Attempt) {
        let number = attempt.event.pid().and_then(|pid| pid.strip_prefix("stuck-")?.parse::<usize>().ok());
        let Some(number) = number else { return };
        if self.bits.len() <= number / 64 {
            self.bits.resize(number / 64 + 1, 0);
        }
        let bit = 1 << (number % 64);
        self.count += u64::from(self.bits[number / 64] & bit == 0);
        self.bits[number / 64] |= bit;
    }
}

#[async_trait]
impl Target for NoOp {
    fn kind(&self) -> &'static str {
        "no-op"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { batch_max: self.batch_max, batch_order: BatchOrder::Prefix, ..Capabilities::default() }
    }

    async fn deliver(&self, events: &[Attempt]) -> Vec<Result<(), DeliveryError>> {
        let verdict = |attempt: &Attempt| match (self.is_down, is_stuck(&attempt.event)) {
            (true, _) => Err(ErrorKind::ConnectionRefused.into()),
            (false, true) => Err(ErrorKind::ServerFault.into()),
            (false, false) => Ok(()),
        };
        let results: Vec<_> = events.iter().map(verdict).collect();
        let good = results.iter().filter(|result| result.is_ok()).count();
        self.refused.fetch_add((events.len() - good) as u64, Ordering::Relaxed);
        // A batch that fails as a whole accuses nobody.
        if good > 0 || events.len() == 1 {
            let mut stuck = self.stuck.lock().unwrap_or_else(PoisonError::into_inner);
            events
                .iter()
                .zip(&results)
                .filter(|(_, result)| result.is_err())
                .for_each(|(one, _)| stuck.add(one));
        }
        if let Some(observe) = &self.observe {
            events
                .iter()
                .zip(&results)
                .filter(|(_, result)| result.is_ok())
                .for_each(|(one, _)| observe(one));
        }
        self.delivered.send_modify(|delivered| *delivered += good as u64);
        results
    }

    async fn probe(&self) -> Result<(), DeliveryError> {
        if self.is_down { Err(ErrorKind::ConnectionRefused.into()) } else { Ok(()) }
    }
}

pub(crate) struct Rig {
    pub(crate) runtime: Runtime,
    log: Arc<dyn Log>,
}

impl Rig {
    /// Opens a data directory and starts delivering what waits in it.
    pub(crate) async fn start(dir: &Path, target: Arc<dyn Target>, options: TargetOptions) -> Result<Self> {
        let store = Store::open(dir, JournalOptions::default()).await?;
        let log = Arc::clone(store.log());
        let target = TargetSpec::new(TargetName::new("a")?, target, options, "bench");
        let runtime = Runtime::start(store, vec![target], RuntimeOptions::default()).await?;
        Ok(Self { runtime, log })
    }

    pub(crate) fn queue(&self) -> Result<QueueStats> {
        self.log.stats().pop().ok_or_else(|| anyhow::anyhow!("no queue"))
    }

    /// Resolves when so few wait, and that is durable.
    pub(crate) async fn has_settled(&self, waiting: u64) -> Result<()> {
        let begun = Instant::now();
        while self.queue()?.waiting > waiting {
            ensure!(begun.elapsed() < LONGEST, "it takes too long");
            tokio::time::sleep(POLL).await;
        }
        Ok(self.log.flush().await?)
    }

    pub(crate) async fn stop(self) -> Result<()> {
        self.runtime.shutdown(Duration::from_secs(5)).await?;
        Ok(())
    }
}

/// Resolves when something is the case.
pub(crate) async fn until(what: impl Fn() -> bool) -> Result<()> {
    let begun = Instant::now();
    while !what() {
        ensure!(begun.elapsed() < LONGEST, "it takes too long");
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

pub(crate) fn tokio() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}
