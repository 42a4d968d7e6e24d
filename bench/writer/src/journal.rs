//! The store's journal as a sink, as the runtime has it: events of 1 KiB.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, ensure};
use measure::{Report, Setup};
use outhaul_store::event::{Event, TargetName};
use outhaul_store::{
    Admission, AppendError, Entry, Journal, JournalOptions, Log, OsFileSystem, Outcome, QueueSettings,
    Receipt, Settlement,
};
use outhaul_writer::{Answer, Operation, Sink, SinkError};

use crate::ways::{self, Plan};

const EVENT_BYTES: usize = 1024;
/// Segments that are in use before: a journal that has been in use overwrites finished ones.
const SEGMENTS: usize = 4;

struct Append(Arc<Journal>);

struct Op(Admission);

impl Operation for Op {
    fn pid(&self) -> Option<&str> {
        self.0.event.pid()
    }

    fn bytes(&self) -> usize {
        self.0.size() as usize
    }
}

impl Sink for Append {
    type Op = Op;
    type Output = Receipt;
    type Error = AppendError;

    async fn apply(&self, _: u64, ops: &[Op]) -> Answer<Receipt, AppendError> {
        let batch = ops.iter().map(|op| op.0.clone()).collect();
        let results = self.0.append(batch).await.into_iter();
        Answer::Each(results.map(|result| result.map_err(SinkError::permanent)).collect())
    }
}

pub(crate) fn run(setup: &Setup, plan: &Plan<'_>) -> Result<Report> {
    let journal = open(&setup.dir)?;
    let report = ways::run(setup, plan, Arc::new(Append(Arc::clone(&journal))), |producer| {
        let (events, targets) = events(producer)?;
        let mut next = 0;
        Ok(move || {
            next = (next + 1) % events.len();
            Op(Admission::new(Arc::clone(&events[next]), Arc::clone(&targets)))
        })
    })?;
    journal.close_sync()?;
    Ok(report)
}

/// A journal with finished segments to write into.
fn open(dir: &Path) -> Result<Arc<Journal>> {
    let options = JournalOptions { spares_max: SEGMENTS, ..JournalOptions::default() };
    let bytes = (SEGMENTS as u64 + 1) * options.segment_bytes_max;
    let journal = Journal::open(Arc::new(OsFileSystem), &dir.join("log"), &dir.join("quarantine"), options)?;
    let queue = TargetName::new("a")?;
    let room = QueueSettings { entries_max: 1 << 32, bytes_max: Some(1 << 42), ..QueueSettings::default() };
    journal.attach(&queue, room)?;
    let (events, targets) = events(0)?;
    for _ in 0..bytes / (1000 * EVENT_BYTES as u64) {
        let batch =
            (0..1000).map(|n| Admission::new(Arc::clone(&events[n % events.len()]), Arc::clone(&targets)));
        for receipt in journal.append_sync(batch.collect()) {
            receipt?;
        }
    }
    let mut after = 0;
    loop {
        let read = journal.read_sync(&queue, after, 4096, 8 << 20)?;
        if read.entries.is_empty() {
            break;
        }
        after = read.next;
        let settle = |entry: Entry| Settlement { place: entry.place, outcome: Outcome::Delivered };
        journal.settle_sync(&read.entries.into_iter().map(settle).collect::<Vec<_>>())?;
    }
    journal.flush_sync()?;
    // Finished segments are put aside beside the commits, and what the device does with all that is not to be measured.
    std::thread::sleep(std::time::Duration::from_secs(1));
    Ok(Arc::new(journal))
}

type Events = (Vec<Arc<Event>>, Arc<[TargetName]>);

/// The events of one producer, of several pids, again and again: making an event is not what is measured.
fn events(producer: u64) -> Result<Events> {
    let event = |number: u64| -> Result<Arc<Event>> {
        let build = |body: Vec<u8>| {
            let builder =
                Event::builder("com.example.object.created", "/bench").pid(format!("pid-{number:08}"));
            builder.body("application/json", body).build()
        };
        let event = build(measure::json(EVENT_BYTES - build(Vec::new())?.size(), number))?;
        ensure!(event.size() == EVENT_BYTES, "an event of {} bytes", event.size());
        Ok(Arc::new(event))
    };
    let events = (0..16).map(|number| event(producer * 16 + number)).collect::<Result<_>>()?;
    Ok((events, [TargetName::new("a")?].into()))
}
