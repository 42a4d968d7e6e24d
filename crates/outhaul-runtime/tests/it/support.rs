//! A target that does what a test tells it, and a runtime around it.

use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use outhaul_runtime::event::{Event, TargetName};
use outhaul_runtime::store::Store;
use outhaul_runtime::target::{
    Attempt, BatchOrder, Capabilities, DeliveryError, ErrorKind, Target, TargetOptions,
};
use outhaul_runtime::{Runtime, RuntimeOptions, StartError, TargetSpec, TargetStatus};
use tokio::time::Instant;

/// What happened at a target: when, which event, what was answered.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) at: Duration,
    pub(crate) id: String,
    pub(crate) pid: Option<String>,
    pub(crate) ok: bool,
    /// Events in the same batch.
    pub(crate) batch: usize,
}

type Answer = dyn Fn(&Attempt) -> Result<(), DeliveryError> + Send + Sync;

/// A target whose answers are a function of the attempt.
#[derive(Clone)]
pub(crate) struct Scripted(Arc<Inner>);

struct Inner {
    start: Instant,
    seen: Mutex<Vec<Seen>>,
    answer: Mutex<Arc<Answer>>,
    capabilities: Mutex<Capabilities>,
    transactional: Mutex<bool>,
    latency: Mutex<Duration>,
    probe: Mutex<bool>,
    closed: Mutex<u32>,
}

impl Scripted {
    pub(crate) fn new(
        answer: impl Fn(&Attempt) -> Result<(), DeliveryError> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(Inner {
            start: Instant::now(),
            seen: Mutex::default(),
            answer: Mutex::new(Arc::new(answer)),
            capabilities: Mutex::default(),
            transactional: Mutex::default(),
            latency: Mutex::new(Duration::from_millis(1)),
            probe: Mutex::new(true),
            closed: Mutex::default(),
        }))
    }

    pub(crate) fn good() -> Self {
        Self::new(|_| Ok(()))
    }

    pub(crate) fn answer(
        &self,
        answer: impl Fn(&Attempt) -> Result<(), DeliveryError> + Send + Sync + 'static,
    ) {
        *self.0.answer.lock().unwrap() = Arc::new(answer);
    }

    pub(crate) fn batches(self, batch_max: usize, batch_order: BatchOrder) -> Self {
        *self.0.capabilities.lock().unwrap() =
            Capabilities { batch_max, batch_order, ..Capabilities::default() };
        self
    }

    /// One bad event fails all of its batch.
    pub(crate) fn transactional(self) -> Self {
        *self.0.transactional.lock().unwrap() = true;
        self
    }

    pub(crate) fn latency(self, latency: Duration) -> Self {
        *self.0.latency.lock().unwrap() = latency;
        self
    }

    pub(crate) fn unreachable(self) -> Self {
        *self.0.probe.lock().unwrap() = false;
        self
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.0.seen.lock().unwrap().clone()
    }

    pub(crate) fn delivered(&self) -> Vec<String> {
        self.seen().into_iter().filter(|seen| seen.ok).map(|seen| seen.id).collect()
    }

    pub(crate) fn attempts(&self, id: &str) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| seen.id == id).collect()
    }

    pub(crate) fn closed(&self) -> u32 {
        *self.0.closed.lock().unwrap()
    }

    /// No event was delivered twice, and those of each pid in their order.
    pub(crate) fn check_order(&self) {
        let mut last = std::collections::HashMap::new();
        for seen in self.seen().into_iter().filter(|seen| seen.ok) {
            if let Some(pid) = seen.pid {
                let number: u64 = seen.id.parse().unwrap();
                let before = last.insert(pid.clone(), number);
                assert!(before.is_none_or(|before| before < number), "pid {pid}: {before:?} before {number}");
            }
        }
    }
}

#[async_trait]
impl Target for Scripted {
    fn kind(&self) -> &'static str {
        "scripted"
    }

    fn capabilities(&self) -> Capabilities {
        *self.0.capabilities.lock().unwrap()
    }

    async fn deliver(&self, events: &[Attempt]) -> Vec<Result<(), DeliveryError>> {
        let latency = *self.0.latency.lock().unwrap();
        // bounded: the clock is paused.
        tokio::time::sleep(latency).await;
        let answer = Arc::clone(&self.0.answer.lock().unwrap());
        let ordered = self.capabilities().batch_order == BatchOrder::Prefix;
        let transactional = *self.0.transactional.lock().unwrap();
        let bad = events.iter().filter(|_| transactional).find(|attempt| answer(attempt).is_err());
        let mut failed = std::collections::HashSet::new();
        let mut results = Vec::new();
        for attempt in events {
            let pid = attempt.event.pid().map(str::to_owned);
            let result = match &pid {
                Some(pid) if ordered && failed.contains(pid) => Err(ErrorKind::Skipped.into()),
                _ => answer(bad.unwrap_or(attempt)),
            };
            if let (Err(_), Some(pid)) = (&result, &pid) {
                failed.insert(pid.clone());
            }
            let (at, id) = (self.0.start.elapsed(), attempt.event.id().to_owned());
            self.0.seen.lock().unwrap().push(Seen { at, id, pid, ok: result.is_ok(), batch: events.len() });
            results.push(result);
        }
        results
    }

    async fn probe(&self) -> Result<(), DeliveryError> {
        if *self.0.probe.lock().unwrap() { Ok(()) } else { Err(ErrorKind::ConnectionRefused.into()) }
    }

    async fn close(&self) -> Result<(), DeliveryError> {
        *self.0.closed.lock().unwrap() += 1;
        Ok(())
    }
}

pub(crate) fn name(text: &str) -> TargetName {
    TargetName::new(text).unwrap()
}

pub(crate) fn options() -> TargetOptions {
    TargetOptions {
        backoff: Duration::from_millis(100),
        backoff_max: Duration::from_secs(2),
        trial_backoff: Duration::from_millis(500),
        trial_backoff_max: Duration::from_secs(10),
        timeout: Duration::from_secs(30),
        in_flight: NonZeroUsize::new(4).unwrap(),
        ..TargetOptions::default()
    }
}

pub(crate) fn spec(text: &str, target: &Scripted, options: TargetOptions) -> TargetSpec {
    TargetSpec::new(name(text), Arc::new(target.clone()), options, format!("test:{text}"))
}

/// A runtime whose sums are right when a test is done with it, whatever the test is about.
pub(crate) struct Checked(Runtime);

impl Checked {
    pub(crate) async fn start(
        store: Store,
        targets: Vec<TargetSpec>,
        options: RuntimeOptions,
    ) -> Result<Self, StartError> {
        Runtime::start(store, targets, options).await.map(Self)
    }
}

impl std::ops::Deref for Checked {
    type Target = Runtime;

    fn deref(&self) -> &Runtime {
        &self.0
    }
}

impl Drop for Checked {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            check_sums(&self.0);
        }
    }
}

pub(crate) async fn start_on(store: Store, targets: Vec<TargetSpec>) -> Result<Checked, StartError> {
    Checked::start(store, targets, RuntimeOptions { seed: Some(7), ..RuntimeOptions::default() }).await
}

/// A runtime in memory with one target named `a`.
pub(crate) async fn start(target: &Scripted, options: TargetOptions) -> Checked {
    start_on(Store::memory(), vec![spec("a", target, options)]).await.unwrap()
}

pub(crate) fn event(number: u64, pid: Option<&str>) -> Event {
    let builder = Event::builder("t", "/test").id(number.to_string()).json("{}");
    pid.into_iter().fold(builder, |builder, pid| builder.pid(pid)).build().unwrap()
}

pub(crate) async fn send(runtime: &Runtime, events: impl IntoIterator<Item = (u64, &'static str)>) {
    admit(runtime, events.into_iter().map(|(number, pid)| event(number, Some(pid)))).await;
}

/// Has all of them admitted together.
pub(crate) async fn admit(runtime: &Runtime, events: impl IntoIterator<Item = Event>) {
    let events = events.into_iter().map(Into::into).collect();
    for pending in runtime.admit(events).unwrap() {
        pending.await.unwrap();
    }
}

pub(crate) async fn settled(runtime: &Runtime) {
    // bounded: the clock is paused nearly everywhere, so a hang is over at once.
    tokio::time::timeout(Duration::from_secs(7200), runtime.settled()).await.unwrap();
}

/// Lets the clock run.
pub(crate) async fn pass(time: Duration) {
    // bounded: the clock is paused, or the time is short.
    tokio::time::sleep(time).await;
}

/// Invariant 4, for every target, whatever was done to it.
pub(crate) fn check_sums(runtime: &Runtime) {
    for status in runtime.targets() {
        let came = status.recovered + status.admitted + status.requeued + status.imported;
        assert_eq!(came, status.delivered + status.failed + status.discarded + status.waiting, "{status:?}");
        assert!(status.in_flight <= status.waiting, "{status:?}");
    }
}

pub(crate) fn only(runtime: &Runtime) -> TargetStatus {
    check_sums(runtime);
    runtime.targets().remove(0)
}

pub(crate) fn entries(entries: u64) -> NonZeroU64 {
    NonZeroU64::new(entries).unwrap()
}

/// How much larger the slow tests are than in the ordinary run.
pub(crate) fn scale() -> u64 {
    number("OUTHAUL_TEST_SCALE").unwrap_or(1)
}

/// The first seed of a slow test; printed, so that a failure can be repeated. The gate always tries the same: a new
/// finding belongs to those who search for one (`test all`, `soak`).
#[expect(clippy::print_stdout, reason = "whoever runs it reads it")]
pub(crate) fn seed(suite: &str) -> u64 {
    let new = || if scale() > 1 { fastrand::u64(..1 << 40) } else { 1 };
    let seed = number("OUTHAUL_TEST_SEED").unwrap_or_else(new);
    println!("{suite}: OUTHAUL_TEST_SEED={seed}");
    seed
}

#[expect(clippy::disallowed_methods, reason = "how much is tried is the caller's choice")]
fn number(variable: &str) -> Option<u64> {
    Some(std::env::var(variable).ok()?.parse().unwrap())
}
