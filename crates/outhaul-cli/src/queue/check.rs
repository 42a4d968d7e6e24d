//! `verify`, which reads everything and changes nothing, and `repair`, which moves what is damaged to the quarantine.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use outhaul::event::TargetName;
use outhaul::store::{Damage, JournalOptions, Lease, OpenWatch, Shards};
use serde::Serialize;

use crate::args::DataArgs;
use crate::at_rest::{Access, AtRest};
use crate::console::{Console, counted};
use crate::error::{CliError, Exit};
use crate::output::{Failure, Output};
use crate::text::bytes_of;

/// Something that is stored and cannot be read.
#[derive(Debug, Serialize)]
struct Finding {
    /// The file, from the data directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    length: Option<u64>,
    /// The entry, if its file is sound but for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<String>,
    reason: String,
    /// Where its bytes were moved to.
    #[serde(skip_serializing_if = "Option::is_none")]
    quarantined: Option<String>,
}

impl Finding {
    fn damage(damage: Damage) -> Self {
        Self {
            file: Some(damage.file),
            offset: Some(damage.offset),
            length: Some(damage.length),
            entry: None,
            reason: damage.reason,
            quarantined: damage.quarantined.map(|path| path.display().to_string()),
        }
    }

    fn entry(entry: String, reason: String) -> Self {
        Self { file: None, offset: None, length: None, entry: Some(entry), reason, quarantined: None }
    }

    fn told(&self) -> String {
        let place = match (&self.file, self.offset, self.length, &self.entry) {
            (Some(file), Some(offset), Some(length), _) => {
                format!("{file}, {} from byte {offset}", counted(length, "byte", "bytes"))
            }
            (_, _, _, Some(entry)) => entry.clone(),
            _ => "somewhere".to_owned(),
        };
        match &self.quarantined {
            Some(path) => format!("{place}: {}; moved to {path}", self.reason),
            None => format!("{place}: {}", self.reason),
        }
    }
}

/// What was looked at, and what was found.
#[derive(Debug, Serialize)]
struct Report {
    /// Entries whose bytes were read, of all queues and of the failed store.
    entries: u64,
    /// Bytes of a last write that was not finished: normal after a crash.
    torn_bytes: u64,
    /// Files that are not ours.
    foreign: Vec<String>,
    damage: Vec<Finding>,
}

pub(super) async fn verify(args: &DataArgs, console: &Console) -> Result<Exit, Failure> {
    let report = look(&args.data, Access::Look, console).await?;
    let sound = report.damage.is_empty();
    let mut out = Output::single(args.json);
    let data = args.data.display();
    out.value(&report, || {
        let mut lines: Vec<_> =
            report.damage.iter().map(|found| format!("damage: {}", found.told())).collect();
        lines.extend(others(&report));
        let entries = counted(report.entries, "entry", "entries");
        lines.push(match sound {
            true => format!("{data}: {entries} checked, no damage"),
            false => {
                let damage = counted(report.damage.len() as u64, "damaged place", "damaged places");
                format!("{data}: {entries} checked, {damage}")
            }
        });
        lines.join("\n")
    })?;
    out.end()?;
    if !sound && !args.json {
        console.say(format_args!(
            "what can be read is delivered as it is, and the rest goes to the failed store; to move damaged stretches \
             of files aside:\nouthaul queue repair --data {}",
            crate::console::quoted(&data.to_string())
        ));
    }
    Ok(if sound { Exit::Done } else { Exit::Attention })
}

pub(super) async fn repair(args: &DataArgs, console: &Console) -> Result<Exit, Failure> {
    let report = look(&args.data, Access::Change, console).await?;
    let moved = report.damage.iter().filter(|found| found.quarantined.is_some()).count() as u64;
    let left = report.damage.len() as u64 - moved;
    let mut out = Output::single(args.json);
    out.value(&report, || {
        let mut lines: Vec<_> = report.damage.iter().map(Finding::told).collect();
        lines.extend(others(&report));
        lines.push(match report.damage.is_empty() {
            true => format!("{}: nothing to repair", args.data.display()),
            false => format!("{} moved to the quarantine", counted(moved, "damaged stretch is", "damaged stretches are")),
        });
        if left > 0 {
            lines.push(format!(
                "{} left in place: an entry that cannot be read goes to the failed store when its queue is delivered",
                counted(left, "place is", "places are")
            ));
        }
        lines.join("\n")
    })?;
    out.end()?;
    Ok(if report.damage.is_empty() { Exit::Done } else { Exit::Attention })
}

fn others(report: &Report) -> Vec<String> {
    let mut lines: Vec<_> = report
        .foreign
        .iter()
        .map(|name| format!("note: {name} is no file of outhaul; it is left alone"))
        .collect();
    if report.torn_bytes > 0 {
        let bytes = counted(report.torn_bytes, "byte", "bytes");
        lines.push(format!(
            "note: {bytes} of a write that was not finished: normal after a crash, nothing is lost"
        ));
    }
    lines
}

/// Reads everything that is stored, and checks it: the files of a journal record by record, whatever is settled in
/// them, and then each entry as a delivery reads it.
async fn look(data: &Path, access: Access, console: &Console) -> Result<Report, CliError> {
    console.start_bar();
    let mut damage = Vec::new();
    if access == Access::Look {
        let at = open(data, access, true, console).await?;
        damage = at.store.report().damage;
        at.store.close().await?;
    }
    let at = open(data, access, false, console).await?;
    let opened = at.store.report();
    let known = |found: &Damage| {
        damage.iter().any(|other| (&other.file, other.offset) == (&found.file, found.offset))
    };
    let new: Vec<_> = opened.damage.into_iter().filter(|found| !known(found)).collect();
    damage.extend(new);
    let mut report = Report {
        entries: at.store.failed().count(None),
        torn_bytes: opened.torn_bytes,
        foreign: opened.foreign,
        damage: damage.into_iter().map(Finding::damage).collect(),
    };
    let queues = at.queues(None);
    let total = queues.iter().map(|queue| queue.waiting).sum::<u64>() + report.entries;
    let lease = at.store.log().lease(Shards::All).await?;
    for queue in queues {
        let message = format!("checking the entries of {}", queue.name);
        let done = |done| console.progress(done, Some(total), message.clone());
        check_queue(&*lease, &queue.name, &mut report, done).await?;
    }
    for record in at.store.failed().unreadable() {
        report.entries += 1;
        let entry = format!("{} of target {} in failed/", record.record, record.target);
        report.damage.push(Finding::entry(entry, record.reason));
    }
    at.store.close().await?;
    console.end_bar();
    Ok(report)
}

/// Opens it, with a bar over the bytes. `verify`: every checksum of a journal's files is verified.
async fn open(data: &Path, access: Access, verify: bool, console: &Console) -> Result<AtRest, CliError> {
    let watch = Arc::new(OpenWatch::default());
    let journal = JournalOptions { verify, watch: Arc::clone(&watch), ..JournalOptions::default() };
    let mut opened = std::pin::pin!(AtRest::open_journal(data, access, journal));
    let mut tick = tokio::time::interval(Duration::from_millis(100));
    loop {
        tokio::select! {
            opened = &mut opened => return opened,
            _ = tick.tick() => {
                let total = Some(watch.total()).filter(|&total| total > 0);
                let message = format!("{} of {} checked", bytes_of(watch.done()), bytes_of(watch.total()));
                console.progress(watch.done(), total, message);
            }
        }
    }
}

async fn check_queue(
    lease: &dyn Lease,
    queue: &TargetName,
    report: &mut Report,
    done: impl Fn(u64),
) -> Result<(), CliError> {
    let mut after = 0;
    loop {
        let read = lease.read(queue, after, 1000, 8 << 20).await?;
        if read.entries.is_empty() {
            return Ok(());
        }
        after = read.next;
        for entry in read.entries {
            report.entries += 1;
            if let Err(unreadable) = entry.event {
                report.damage.push(Finding::entry(format!("entry {}", entry.place.uid), unreadable.reason));
            }
        }
        done(report.entries);
    }
}
