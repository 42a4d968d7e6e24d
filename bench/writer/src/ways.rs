//! The ways of an operation to its sink: the writer, and what it is compared with.

use std::collections::VecDeque;
use std::future::Future;
use std::num::{NonZeroU64, NonZeroUsize};
use std::pin::Pin;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use measure::{Phase, Report, Samples, Setup, window};
use outhaul_writer::{Answer, Operation, Sink, Writer, WriterOptions};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

/// The most that a queue of a rival holds, and that it hands on at once: as the writer's defaults.
const OPS_MAX: usize = 8_192;
const BATCH_OPS_MAX: usize = 4_096;

pub(crate) struct Plan<'a> {
    pub(crate) way: &'a str,
    pub(crate) shards: u64,
    /// Operations of each producer that wait for their end.
    pub(crate) outstanding: usize,
    pub(crate) counted: bool,
}

/// Offers an operation and returns what resolves when it is applied.
pub(crate) trait Door<Op>: Clone + Send + 'static {
    type Applied: Future<Output = Result<()>> + Send;
    fn offer(&self, op: Op) -> impl Future<Output = Result<Self::Applied>> + Send;
}

/// Measures one way over a sink. `ops` makes the operations of a producer.
pub(crate) fn run<S, M, F>(setup: &Setup, plan: &Plan<'_>, sink: Arc<S>, ops: F) -> Result<Report>
where
    S: Sink,
    M: FnMut() -> S::Op + Send + 'static,
    F: Fn(u64) -> Result<M>,
{
    let built = tokio::runtime::Builder::new_multi_thread().enable_time().build();
    let runtime = built.context("no runtime starts")?;
    let _entered = runtime.enter();
    match plan.way {
        "writer" => {
            let shards = NonZeroU64::new(plan.shards).context("no shard")?;
            let ops_max = NonZeroUsize::new(OPS_MAX).context("no room")?;
            let writer = Writer::open(sink, WriterOptions { shards, ops_max, ..WriterOptions::default() });
            let report = measured(&runtime, setup, plan, &Through(writer.clone()), ops)?;
            runtime.block_on(writer.close())?;
            Ok(report)
        }
        "queue" => measured(&runtime, setup, plan, &Queue::open(&runtime, sink, BATCH_OPS_MAX), ops),
        "one" => measured(&runtime, setup, plan, &Queue::open(&runtime, sink, 1), ops),
        "channel" => measured(&runtime, setup, plan, &Channel::open(&runtime), ops),
        "direct" => measured(&runtime, setup, plan, &Direct(sink), ops),
        other => bail!("no way `{other}`"),
    }
}

fn measured<Op, D, M, F>(
    runtime: &Runtime,
    setup: &Setup,
    plan: &Plan<'_>,
    door: &D,
    ops: F,
) -> Result<Report>
where
    Op: Send + 'static,
    D: Door<Op>,
    M: FnMut() -> Op + Send + 'static,
    F: Fn(u64) -> Result<M>,
{
    let phase = Arc::new(Phase::default());
    let mut producers = JoinSet::new();
    for number in 0..setup.count {
        let (door, phase, ops) = (door.clone(), Arc::clone(&phase), ops(number)?);
        producers.spawn_on(produce(door, phase, ops, plan.outstanding), runtime.handle());
    }
    let allocations = || stats_alloc::INSTRUMENTED_SYSTEM.stats().allocations;
    let mut before = 0;
    let meter = window(setup, &phase, || before = allocations());
    let mut samples = Vec::with_capacity(producers.len());
    runtime.block_on(async {
        while let Some(ended) = producers.join_next().await {
            samples.push(ended?);
        }
        Ok::<_, tokio::task::JoinError>(())
    })?;
    let allocated = (allocations() - before) as f64;
    let samples = samples.into_iter().collect::<Result<_>>()?;
    let report = meter.report(samples, 1);
    let events = report.get("events").unwrap_or(0.0).max(1.0);
    // What is offered while the measured time begins is counted or not by chance: a few operations of a million.
    let per_event = (allocated / events * 1e4).round() / 1e4;
    Ok(if plan.counted { report.with("allocations_per_event", per_event) } else { report })
}

async fn produce<Op, D: Door<Op>>(
    door: D,
    phase: Arc<Phase>,
    mut op: impl FnMut() -> Op + Send,
    outstanding: usize,
) -> Result<Samples> {
    let mut samples = Samples::default();
    let mut waiting = VecDeque::with_capacity(outstanding);
    while let Some(begun) = samples.begin(&phase) {
        waiting.push_back((begun, door.offer(op()).await?));
        if waiting.len() >= outstanding
            && let Some((begun, applied)) = waiting.pop_front()
        {
            applied.await?;
            samples.end(&begun);
        }
    }
    for (begun, applied) in waiting {
        applied.await?;
        samples.end(&begun);
    }
    Ok(samples)
}

struct Through<S: Sink>(Writer<S>);

impl<S: Sink> Clone for Through<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// The end of an operation, with the errors of all ways made one.
pub(crate) struct Applied<F>(F);

impl<T, E: Into<anyhow::Error>, F: Future<Output = Result<T, E>> + Unpin> Future for Applied<F> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> std::task::Poll<Result<()>> {
        Pin::new(&mut self.0).poll(cx).map(|ended| ended.map(drop).map_err(Into::into))
    }
}

impl<S: Sink> Door<S::Op> for Through<S> {
    type Applied = Applied<outhaul_writer::TicketOf<S>>;

    async fn offer(&self, op: S::Op) -> Result<Self::Applied> {
        self.0.try_admit(op).map(Applied).map_err(|refused| anyhow!("{refused}"))
    }
}

/// One queue for all, without lanes, and batches of what waits: or, with batches of one, one operation at a time.
struct Queue<Op>(mpsc::Sender<(Op, oneshot::Sender<()>)>);

impl<Op> Clone for Queue<Op> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<Op: Operation> Queue<Op> {
    fn open<S: Sink<Op = Op>>(runtime: &Runtime, sink: Arc<S>, batch_ops_max: usize) -> Self {
        let (sender, mut receiver) = mpsc::channel(OPS_MAX);
        runtime.spawn(async move {
            let (mut waiting, mut ops) = (Vec::new(), Vec::new());
            let mut ends: Vec<oneshot::Sender<()>> = Vec::new();
            while receiver.recv_many(&mut waiting, batch_ops_max).await > 0 {
                for (op, end) in waiting.drain(..) {
                    ops.push(op);
                    ends.push(end);
                }
                let answer = sink.apply(0, &ops).await;
                ops.clear();
                // A producer that is gone needs no answer, one of a failure gets none, which it notices.
                match answer {
                    Answer::Each(results) => {
                        for (end, result) in ends.drain(..).zip(results) {
                            let _gone = result.is_ok().then(|| end.send(()));
                        }
                    }
                    Answer::Applied(_) => {
                        for end in ends.drain(..) {
                            let _gone = end.send(());
                        }
                    }
                    Answer::Failed(_) => return,
                }
            }
        });
        Self(sender)
    }
}

impl<Op: Operation> Door<Op> for Queue<Op> {
    type Applied = Applied<oneshot::Receiver<()>>;

    async fn offer(&self, op: Op) -> Result<Self::Applied> {
        let (end, ended) = oneshot::channel();
        self.0.send((op, end)).await.map_err(|_| anyhow!("the consumer is gone"))?;
        Ok(Applied(ended))
    }
}

/// Operations go to a task that does nothing but wake the producer of each.
struct Channel<Op>(mpsc::Sender<(Op, oneshot::Sender<()>)>);

impl<Op> Clone for Channel<Op> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<Op: Send + 'static> Channel<Op> {
    fn open(runtime: &Runtime) -> Self {
        let (sender, mut receiver) = mpsc::channel::<(Op, oneshot::Sender<()>)>(OPS_MAX);
        runtime.spawn(async move {
            while let Some((op, end)) = receiver.recv().await {
                drop(op);
                let _gone = end.send(());
            }
        });
        Self(sender)
    }
}

impl<Op: Send + 'static> Door<Op> for Channel<Op> {
    type Applied = Applied<oneshot::Receiver<()>>;

    async fn offer(&self, op: Op) -> Result<Self::Applied> {
        let (end, ended) = oneshot::channel();
        self.0.send((op, end)).await.map_err(|_| anyhow!("the consumer is gone"))?;
        Ok(Applied(ended))
    }
}

/// Each producer calls the sink itself, with one operation: the sink has its own commit round.
struct Direct<S>(Arc<S>);

impl<S> Clone for Direct<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: Sink> Door<S::Op> for Direct<S> {
    type Applied = std::future::Ready<Result<()>>;

    async fn offer(&self, op: S::Op) -> Result<Self::Applied> {
        let answer = self.0.apply(0, &[op]).await;
        let applied = match answer {
            Answer::Each(results) => results.into_iter().try_for_each(|result| Ok(result.map(drop)?)),
            Answer::Applied(_) => Ok(()),
            Answer::Failed(_) => bail!("it failed"),
        };
        Ok(std::future::ready(applied))
    }
}
