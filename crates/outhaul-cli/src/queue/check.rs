//! `verify`, which reads everything and changes nothing, and `repair`, which takes what is damaged out of the
//! files: a copy goes to the quarantine, an entry that cannot be read to the failed store.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use outhaul::event::TargetName;
use outhaul::store::{Damage, JournalOptions, Lease, OpenWatch, RepairReport, Shards, UnreadableRecord};
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
    /// The entry or record in it that cannot be read.
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

    /// What is wrong with an entry, and the file that it is in.
    fn entry(file: Option<String>, entry: String, reason: String) -> Self {
        Self { file, offset: None, length: None, entry: Some(entry), reason, quarantined: None }
    }

    fn told(&self) -> String {
        let place = match (&self.file, self.offset, self.length, &self.entry) {
            (Some(file), Some(offset), Some(length), _) => {
                format!("{file}, {} from byte {offset}", counted(length, "byte", "bytes"))
            }
            (Some(file), _, _, Some(entry)) => format!("{file}, {entry}"),
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
    let report = look(&args.data, console).await?;
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
            "what can be read is delivered as it is, and the rest goes to the failed store; to take what is damaged out \
             of the files now:\nouthaul queue repair --data {}",
            crate::console::quoted(&data.to_string())
        ));
    }
    Ok(if sound { Exit::Done } else { Exit::Attention })
}

/// What a repair did.
#[derive(Debug, Serialize)]
struct Repaired<'a> {
    /// What was damaged.
    #[serde(flatten)]
    found: &'a Report,
    /// Entries that cannot be read; they are in the failed store.
    failed: Vec<Finding>,
    /// What is damaged still, and why.
    left: Vec<Finding>,
}

pub(super) async fn repair(args: &DataArgs, console: &Console) -> Result<Exit, Failure> {
    let (found, done) = mend(&args.data, console).await?;
    // What was mended is as it was read just now; only a look at all of it tells that nothing else is wrong.
    let after = look(&args.data, console).await?;
    let nothing = found.damage.is_empty() && done.failed.is_empty() && after.damage.is_empty();
    let failed =
        done.failed.into_iter().map(|(uid, reason)| Finding::entry(None, format!("entry {uid}"), reason));
    let why = done.left.into_iter().map(|(what, why)| Finding::entry(None, what, why));
    let repaired = Repaired {
        failed: failed.collect(),
        left: after.damage.into_iter().chain(why).collect(),
        found: &found,
    };
    let mut out = Output::single(args.json);
    let data = args.data.display();
    out.value(&repaired, || {
        let mut lines: Vec<_> = found.damage.iter().map(Finding::told).collect();
        let failed = repaired.failed.iter();
        lines.extend(failed.map(|found| format!("{}; its bytes are in the failed store", found.told())));
        lines.extend(others(&found));
        if nothing {
            lines.push(format!("{data}: nothing to repair"));
            return lines.join("\n");
        }
        let moved = found.damage.iter().filter(|found| found.quarantined.is_some()).count() as u64;
        lines.push(format!(
            "{} moved to the quarantine, {} to the failed store",
            counted(moved, "damaged stretch is", "damaged stretches are"),
            counted(repaired.failed.len() as u64, "entry that cannot be read", "entries that cannot be read")
        ));
        if repaired.left.is_empty() {
            lines.push(format!("{data}: checked again, no damage is left"));
        } else {
            lines.extend(repaired.left.iter().map(|left| format!("still damaged: {}", left.told())));
            let places = counted(repaired.left.len() as u64, "place stays", "places stay");
            lines.push(format!("{data}: {places} damaged; nothing more can be done here for now"));
        }
        lines.join("\n")
    })?;
    out.end()?;
    Ok(if nothing { Exit::Done } else { Exit::Attention })
}

/// Opens it so that everything is read and what is damaged is copied to the quarantine, and takes that out of the files.
async fn mend(data: &Path, console: &Console) -> Result<(Report, RepairReport), CliError> {
    console.start_bar();
    let at = open(data, Access::Change, true, console).await?;
    let mut report = Report::new(&at);
    report.records(&at);
    let repaired = at.store.repair().await;
    let closed = at.store.close().await;
    console.end_bar();
    let repaired = repaired?;
    closed?;
    for (what, path) in &repaired.moved {
        let moved = |found: &&mut Finding| {
            [&found.file, &found.entry].into_iter().flatten().any(|name| name.starts_with(what.as_str()))
        };
        if let Some(found) = report.damage.iter_mut().find(moved) {
            found.quarantined = Some(path.display().to_string());
        }
    }
    Ok((report, repaired))
}

impl Report {
    fn new(at: &AtRest) -> Self {
        let opened = at.store.report();
        Self {
            entries: at.store.failed().count(None),
            torn_bytes: opened.torn_bytes,
            foreign: opened.foreign,
            damage: opened.damage.into_iter().map(Finding::damage).collect(),
        }
    }

    /// Adds the failed records that cannot be read.
    fn records(&mut self, at: &AtRest) {
        for UnreadableRecord { target, record, file, reason } in at.store.failed().unreadable() {
            self.entries += 1;
            let entry = format!("{record} of {target}");
            self.damage.push(Finding::entry(Some(file), entry, reason));
        }
    }
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
async fn look(data: &Path, console: &Console) -> Result<Report, CliError> {
    console.start_bar();
    let at = open(data, Access::Look, true, console).await?;
    let mut damage = at.store.report().damage;
    at.store.close().await?;
    drop(at);
    let at = open(data, Access::Look, false, console).await?;
    let opened = at.store.report();
    let known = |found: &Damage| {
        damage.iter().any(|other| (&other.file, other.offset) == (&found.file, found.offset))
    };
    let new: Vec<_> = opened.damage.into_iter().filter(|found| !known(found)).collect();
    damage.extend(new);
    let mut report = Report::new(&at);
    report.damage = damage.into_iter().map(Finding::damage).collect();
    let queues = at.queues(None);
    let total = queues.iter().map(|queue| queue.waiting).sum::<u64>() + report.entries;
    let lease = at.store.log().lease(Shards::All).await?;
    for queue in queues {
        let message = format!("checking the entries of {}", queue.name);
        let done = |done| console.progress(done, Some(total), message.clone());
        check_queue(&at, &*lease, &queue.name, &mut report, done).await?;
    }
    report.records(&at);
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
    at: &AtRest,
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
                let uid = entry.place.uid;
                let file = at.file_of(&uid);
                report.damage.push(Finding::entry(file, format!("entry {uid}"), unreadable.reason));
            }
        }
        done(report.entries);
    }
}
