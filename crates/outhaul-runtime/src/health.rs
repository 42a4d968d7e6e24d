//! Health: asking all targets whether they could be delivered to, within one deadline.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::{self, StreamExt};
use outhaul_store::event::TargetName;
use outhaul_target::Target;
use serde::Serialize;
use tokio::time::{Instant, timeout_at};

/// A collection takes at most so long, whatever the number of targets.
const COLLECTION_MAX: Duration = Duration::from_secs(5);
/// Probes at the same time.
const PROBES_MAX: usize = 10;

/// What a probe found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Probe {
    /// `reachable`, or a machine-readable word for why not.
    pub reason: &'static str,
    /// What was said about it, without credentials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

impl Probe {
    fn failed(reason: &'static str, detail: impl Into<String>) -> Self {
        Self { reason, detail: Some(detail.into()) }
    }
}

type Asked = Pin<Box<dyn Future<Output = (TargetName, Probe)> + Send>>;

/// Probes all of these, ten at a time, for five seconds in all. Whoever was not asked in time is told so.
///
/// Dropping the future drops the probes.
pub(crate) async fn collect(targets: Vec<(TargetName, Arc<dyn Target>)>) -> Vec<(TargetName, Probe)> {
    let deadline = Instant::now() + COLLECTION_MAX;
    let boxed = |(name, target)| -> Asked { Box::pin(ask(name, target, deadline)) };
    let probes: Vec<Asked> = targets.into_iter().map(boxed).collect();
    stream::iter(probes).buffer_unordered(PROBES_MAX).collect().await
}

async fn ask(name: TargetName, target: Arc<dyn Target>, deadline: Instant) -> (TargetName, Probe) {
    if Instant::now() >= deadline {
        let detail = "it was not asked: the time for all targets was over";
        return (name, Probe::failed("health_check_failed", detail));
    }
    let asked = AssertUnwindSafe(target.probe()).catch_unwind();
    let probe = match timeout_at(deadline, asked).await {
        Ok(Ok(Ok(()))) => Probe { reason: "reachable", detail: None },
        Ok(Ok(Err(error))) => Probe::failed(error.kind().reason(), error.detail()),
        Ok(Err(_)) => Probe::failed("health_check_failed", "the target panicked: a defect of its code"),
        Err(_) => Probe::failed("timed_out", "no answer in the time for all targets"),
    };
    (name, probe)
}
