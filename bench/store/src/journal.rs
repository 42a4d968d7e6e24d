//! Journals and events of 1 KiB to measure with.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, ensure};
use outhaul_store::event::{Event, TargetName};
use outhaul_store::{
    Admission, AppendError, Journal, JournalOptions, Log, OsFileSystem, QueueSettings, Receipt, Spool,
    SpoolOptions,
};

/// What an event counts: attributes and body.
const EVENT_BYTES: usize = 1024;

/// A journal in a directory, with the queues that the cases use and room for any number of events.
pub(crate) fn open(dir: &Path) -> Result<Arc<Journal>> {
    open_with(dir, JournalOptions::default())
}

/// A journal that has been in use: it has delivered enough to write into finished segments for a measurement with so
/// many producers.
pub(crate) fn open_used(dir: &Path, producers: u64) -> Result<Arc<Journal>> {
    let segments = if producers <= 8 { 2 } else { 12 };
    let options = JournalOptions { spares_max: segments, ..JournalOptions::default() };
    let journal = open_with(dir, options.clone())?;
    let mut events = Events::new(0, &["a"])?;
    let bytes = (segments as u64 + 1) * options.segment_bytes_max;
    for _ in 0..bytes / (1000 * EVENT_BYTES as u64) {
        durable(&journal.append_sync(events.batch(1000)))?;
    }
    let (queue, mut after) = (TargetName::new("a")?, 0);
    loop {
        let read = journal.read_sync(&queue, after, 4096, 8 << 20)?;
        if read.entries.is_empty() {
            break;
        }
        after = read.next;
        journal.settle_sync(&crate::producers::delivered(read.entries))?;
    }
    journal.flush_sync()?;
    // Finished segments are put aside beside the commits.
    let log = dir.join("log");
    let spares = || -> Result<usize> {
        let names = std::fs::read_dir(&log)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        Ok(names.filter(|name| name.ends_with(".spare")).count())
    };
    for _ in 0..100 {
        if spares()? + 1 >= segments {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    // What the device does with all that is not to be measured.
    std::thread::sleep(std::time::Duration::from_millis(500));
    Ok(journal)
}

pub(crate) fn open_with(dir: &Path, options: JournalOptions) -> Result<Arc<Journal>> {
    let journal = Journal::open(Arc::new(OsFileSystem), &dir.join("log"), &dir.join("quarantine"), options)?;
    for name in ["a", "b", "c"] {
        journal.attach(&TargetName::new(name)?, room())?;
    }
    Ok(Arc::new(journal))
}

/// The events of one producer, of several pids, again and again: making an event is not what is measured.
pub(crate) struct Events {
    events: Vec<Arc<Event>>,
    targets: Arc<[TargetName]>,
    next: usize,
}

impl Events {
    pub(crate) fn new(producer: u64, targets: &[&str]) -> Result<Self> {
        let events = (0..16).map(|number| event(producer * 16 + number).map(Arc::new));
        let targets: Vec<_> = targets.iter().map(|name| TargetName::new(name)).collect::<Result<_, _>>()?;
        Ok(Self { events: events.collect::<Result<_>>()?, targets: targets.into(), next: 0 })
    }

    pub(crate) fn next(&mut self) -> Admission {
        self.next = (self.next + 1) % self.events.len();
        Admission::new(Arc::clone(&self.events[self.next]), Arc::clone(&self.targets))
    }

    pub(crate) fn batch(&mut self, length: usize) -> Vec<Admission> {
        (0..length).map(|_| self.next()).collect()
    }
}

fn event(number: u64) -> Result<Event> {
    let build = |body: Vec<u8>| {
        let builder = Event::builder("com.example.object.created", "/bench").pid(format!("pid-{number:08}"));
        builder.body("application/json", body).build()
    };
    let attributes = build(Vec::new())?.size();
    let event = build(measure::json(EVENT_BYTES - attributes, number))?;
    ensure!(event.size() == EVENT_BYTES, "an event of {} bytes", event.size());
    Ok(event)
}

/// Fails unless every event of a batch is safe.
pub(crate) fn durable(receipts: &[Result<Receipt, AppendError>]) -> Result<()> {
    for receipt in receipts {
        match receipt {
            Ok(receipt) => ensure!(receipt.durable, "a receipt that promises nothing"),
            Err(error) => return Err(error.clone().into()),
        }
    }
    Ok(())
}

/// The spool engine in an empty directory, with the queue `a`.
pub(crate) fn open_spool(dir: &Path) -> Result<Arc<Spool>> {
    let spool = Spool::open(Arc::new(OsFileSystem), &dir.join("spool"), SpoolOptions::default())?;
    spool.attach(&TargetName::new("a")?, room())?;
    Ok(Arc::new(spool))
}

fn room() -> QueueSettings {
    QueueSettings { entries_max: 1 << 32, bytes_max: Some(1 << 42), ..QueueSettings::default() }
}
