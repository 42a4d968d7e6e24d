//! Admitting a chunk: the note first, then the events, in parts where a queue has no room for all of them.

use std::collections::VecDeque;
use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use outhaul::event::{Event, TargetName};
use outhaul::{AdmitError, Incoming, Pending};
use tokio::time::{Instant, timeout};

use super::{Chunk, Halt, Session};
use crate::error::{CliError, Exit};

/// How long a wait for room lasts at most before it is tried again, when no entry left a queue.
const TRY_AGAIN: Duration = Duration::from_millis(500);

/// Less than the writer hands to the log at a time.
const BATCH_BYTES_MAX: usize = 768 * 1024;
/// What an event counts there besides itself.
const EVENT_OVERHEAD_BYTES: usize = 64;

impl Session {
    /// Admits a chunk, and waits until it is durable.
    pub(super) async fn admit(&mut self, chunk: Chunk) -> Result<(), Halt> {
        if chunk.events.is_empty() {
            return Ok(());
        }
        if let Some(note) = chunk.note {
            let outhaul = self.watch.outhaul.clone();
            let set = outhaul.set_input(note.to_bytes());
            self.watch
                .until(set, None, false, &mut self.summary)
                .await?
                .map_err(|e| Halt::Error(e.into()))?;
        }
        let mut left: VecDeque<_> = chunk.events.into();
        let mut part = left.len();
        let mut stalled_since = None;
        while let Some((line, _)) = left.front() {
            let line = *line;
            part = part.clamp(1, fitting(&left));
            // A queue that is empty and refuses one event will never take it.
            let empty = if part == 1 { self.empty_queues() } else { Vec::new() };
            let outhaul = self.watch.outhaul.clone();
            // What leaves a queue between the refusal and the wait counts: it is waited for from here on.
            let mut progress = pin!(timeout(TRY_AGAIN, outhaul.progress()));
            let ready = poll_fn(|cx| Poll::Ready(progress.as_mut().poll(cx).is_ready())).await;
            match outhaul.admit(incoming(&left, part)) {
                Ok(pending) => {
                    let last = left.get(part - 1).map_or(line, |(line, _)| *line);
                    left.drain(..part);
                    part = part.saturating_mul(2);
                    (stalled_since, self.stall_told) = (None, None);
                    self.durable(pending, line, last).await?;
                }
                Err(error) if part > 1 && is_about_size(&error) => part /= 2,
                Err(AdmitError::QueueFull { target, limit }) if empty.contains(&target) => {
                    let place = format!("line {line}, target {target}");
                    return Err(never_fits(place, format!("the queue is empty, and its limit is {limit}")));
                }
                Err(AdmitError::QueueFull { .. } | AdmitError::Saturated) => {
                    let since = *stalled_since.get_or_insert_with(Instant::now);
                    let deadline = self.timeout.map(|timeout| since + timeout);
                    if !ready {
                        // Either way it is tried again.
                        self.watch
                            .until(progress, deadline, false, &mut self.summary)
                            .await?
                            .unwrap_or_default();
                    }
                    self.tell_of_stall(since);
                }
                Err(AdmitError::TooLarge { target, limit }) => {
                    let place = format!("line {line}, target {target}");
                    return Err(never_fits(place, format!("the limit of the queue is {limit}")));
                }
                Err(error) => return Err(refused(&error, line)),
            }
        }
        Ok(())
    }

    /// Waits until each of the events is durable; the first error counts.
    async fn durable(&mut self, pending: Vec<Pending>, first: u64, last: u64) -> Result<(), Halt> {
        let all = futures_util::future::join_all(pending);
        let results = self.watch.until(all, None, false, &mut self.summary).await?;
        let mut failure = None;
        for result in results {
            match result {
                Ok(receipt) => {
                    self.summary.durable += if receipt.durable { receipt.targets.len() as u64 } else { 0 };
                    for target in receipt.shed {
                        *self.shed.entry(target).or_default() += 1;
                    }
                }
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(()), |error| {
            let what =
                format!("the input is admitted in part: an event of the lines {first} to {last} was refused");
            Err(Halt::Error(
                CliError::new(Exit::Failed, what)
                    .because(error.to_string())
                    .help("run again with the same `--data`: it goes on with the lines that are not in"),
            ))
        })
    }

    fn empty_queues(&self) -> Vec<TargetName> {
        let targets = self.watch.outhaul.targets().into_iter();
        targets.filter(|target| target.waiting == 0).map(|target| target.name).collect()
    }

    fn tell_of_stall(&mut self, since: Instant) {
        let told = self.stall_told.get_or_insert(since);
        if told.elapsed() >= Duration::from_secs(30) {
            *told = Instant::now();
            let what = super::super::watch::describe(&self.watch.outhaul.targets());
            self.watch.console.say(format_args!("waiting for room: {what}"));
        }
    }
}

/// How many events make one batch of the log at most. A batch is written whole or not at all, so no event of a pid is
/// refused while a later one is taken.
fn fitting(events: &VecDeque<(u64, Event)>) -> usize {
    let mut bytes = 0;
    let fits = |(_, event): &&(u64, Event)| {
        bytes += event.size() + EVENT_OVERHEAD_BYTES;
        bytes <= BATCH_BYTES_MAX
    };
    events.iter().take_while(fits).count().max(1)
}

fn incoming(events: &VecDeque<(u64, Event)>, count: usize) -> Vec<Incoming> {
    let each = events.iter().take(count);
    each.map(|(line, event)| Incoming { event: event.clone(), position: Some(*line) }).collect()
}

fn refused(error: &AdmitError, line: u64) -> Halt {
    Halt::Error(
        CliError::new(Exit::Failed, "the input is admitted in part")
            .at(format!("line {line}"))
            .because(error.to_string())
            .help("the lines before it are safe; run again with the same `--data`: it goes on at this line"),
    )
}

/// Whether fewer events may be taken where so many are not.
fn is_about_size(error: &AdmitError) -> bool {
    matches!(error, AdmitError::QueueFull { .. } | AdmitError::TooLarge { .. } | AdmitError::Saturated)
}

fn never_fits(place: String, why: String) -> Halt {
    Halt::BadEvent(
        CliError::new(Exit::Wrong, "an event is larger than a queue")
            .at(place)
            .because(why)
            .help("set a larger `outhaul.queue_bytes`; then run again with the same `--data`"),
    )
}
