//! `outhaul queue`: what waits in a data directory at rest, its checks and its repair.

mod check;

use std::path::Path;
use std::sync::Arc;

use outhaul::event::TargetName;
use outhaul::store::{Engine, Lease, Shards};
use serde::Serialize;

use crate::args::{Filter, Place, QueueArgs, QueueVerb};
use crate::at_rest::{Access, AtRest, read_uid};
use crate::console::{Console, counted};
use crate::error::{CliError, Exit};
use crate::ops::queue::{self, Shown, Stat};
use crate::output::{Failure, Output, conclude};
use crate::text::{Side, age_of, bytes_of, printable, table};

pub(crate) async fn run(args: &QueueArgs, console: &Console) -> Exit {
    let done = match &args.verb {
        QueueVerb::Stat(filter) => stat(filter, console).await,
        QueueVerb::Ls { filter, limit, after } => {
            list(filter, (*limit).into(), after.as_deref(), console).await
        }
        QueueVerb::Show { uid, filter } => show(uid, filter, console).await,
        QueueVerb::Verify(args) => check::verify(args, console).await,
        QueueVerb::Repair(args) => check::repair(args, console).await,
        QueueVerb::Export { place } => export(place, console).await,
    };
    conclude(done, console)
}

/// An open directory, the right to read it, and the target that was named.
struct Look {
    at: AtRest,
    lease: Arc<dyn Lease>,
    target: Option<TargetName>,
}

async fn open(place: &Place) -> Result<Look, CliError> {
    let at = AtRest::open(&place.data, Access::Look).await?;
    let looked = async {
        let target = at.target(place.target.as_deref())?;
        Ok::<_, CliError>((at.store.log().lease(Shards::All).await?, target))
    };
    match looked.await {
        Ok((lease, target)) => Ok(Look { at, lease, target }),
        Err(error) => {
            at.store.close().await?;
            Err(error)
        }
    }
}

/// A data directory in numbers.
#[derive(Serialize)]
struct Directory {
    engine: Option<&'static str>,
    queues: Vec<Stat>,
    files: u64,
    disk_bytes: u64,
    dead_share: Option<f64>,
    unreadable_failed: u64,
}

async fn stat(filter: &Filter, console: &Console) -> Result<Exit, Failure> {
    let Look { at, lease, target } = open(&filter.place).await?;
    let queues = at.queues(target.as_ref());
    let stats = queue::stat(&*lease, queues, at.store.failed()).await?;
    let engine = at.engine();
    let dir = engine.map(|engine| at.path().join(engine.dir()));
    let (files, disk_bytes) = dir.map_or(Ok((0, 0)), |dir| files(&dir))?;
    // Of what was written: space that is kept ready is not dead, it is empty.
    let dead = at.store.log().stored_bytes().map(|(stored, waiting)| match stored {
        0 => 0.0,
        stored => 1.0 - waiting.min(stored) as f64 / stored as f64,
    });
    let directory = Directory {
        engine: engine.map(Engine::as_str),
        queues: stats,
        files,
        disk_bytes,
        // To a thousandth: what is finer means nothing.
        dead_share: dead.map(|dead| (dead * 1000.0).round() / 1000.0),
        unreadable_failed: at.store.failed().unreadable().len() as u64,
    };
    let mut out = Output::single(filter.json);
    match engine {
        None => out.json(&directory)?,
        Some(engine) => out.value(&directory, || told(&directory, engine))?,
    }
    out.end()?;
    if directory.queues.is_empty() && !filter.json {
        console.say(format_args!("no queues in {}", at.shown()));
    }
    Ok(at.close(console).await?)
}

fn told(directory: &Directory, engine: Engine) -> String {
    let columns = [
        ("TARGET", Side::Left),
        ("WAITING", Side::Right),
        ("BYTES", Side::Right),
        ("OLDEST", Side::Right),
        ("FAILED", Side::Right),
        ("VANISHED", Side::Right),
        ("DISCARDED", Side::Right),
        ("DESTINATION", Side::Left),
    ];
    let row = |stat: &Stat| {
        [
            stat.target.to_string(),
            stat.waiting.to_string(),
            bytes_of(stat.bytes),
            stat.oldest_at.map_or_else(|| "-".to_owned(), age_of),
            stat.failed.to_string(),
            stat.vanished.to_string(),
            (stat.failed_discarded_oldest + stat.failed_expired).to_string(),
            stat.destination.clone(),
        ]
    };
    let rows: Vec<_> = directory.queues.iter().map(row).collect();
    let mut text = if rows.is_empty() { String::new() } else { table(columns, &rows) + "\n" };
    text.push_str(&format!(
        "{engine}: {} on disk in {}",
        bytes_of(directory.disk_bytes),
        counted(directory.files, "file", "files")
    ));
    if let Some(dead) = directory.dead_share {
        text.push_str(&format!("; of the events in them {:.1}% are dead (delivered)", dead * 100.0));
    }
    text
}

/// How many files hold the events, and how much of the disk they take.
fn files(dir: &Path) -> Result<(u64, u64), CliError> {
    let unreadable = |error: std::io::Error| {
        CliError::new(Exit::Failed, "the directory of the events cannot be read")
            .at(dir.display().to_string())
            .because(error.to_string())
    };
    let found = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok((0, 0)),
        found => found.map_err(unreadable)?,
    };
    let (mut count, mut bytes) = (0, 0);
    for entry in found {
        let entry = entry.map_err(unreadable)?;
        if entry.file_type().map_err(unreadable)?.is_dir() {
            let (inside, their_bytes) = files(&entry.path())?;
            (count, bytes) = (count + inside, bytes + their_bytes);
        } else {
            count += 1;
            bytes += entry.metadata().map_err(unreadable)?.len();
        }
    }
    Ok((count, bytes))
}

async fn list(
    filter: &Filter,
    limit: usize,
    after: Option<&str>,
    console: &Console,
) -> Result<Exit, Failure> {
    let after = after.map(|uid| read_uid(uid, filter.place.target.as_deref())).transpose()?;
    let Look { at, lease, target } = open(&filter.place).await?;
    let mut shown = Vec::new();
    let queues = at.queues(target.as_ref());
    let waiting: u64 = queues.iter().map(|queue| queue.waiting).sum();
    for queue in queues {
        let from = match &after {
            Some(after) if after.queue > queue.name => continue,
            Some(after) if after.queue == queue.name => after.sequence,
            _ => 0,
        };
        let left = limit - shown.len();
        if left == 0 {
            break;
        }
        shown.extend(queue::list(&*lease, &queue.name, from, left).await?);
    }
    let mut out = Output::new(filter.json);
    if !shown.is_empty() {
        out.text(&rows(&shown))?;
    }
    shown.iter().try_for_each(|entry| out.json(entry))?;
    out.end()?;
    if !filter.json {
        match shown.last() {
            None if waiting == 0 => console.say(format_args!("nothing waits in {}", at.shown())),
            None => console.say(format_args!("nothing waits behind that entry in {}", at.shown())),
            Some(last) if shown.len() == limit && (shown.len() as u64) < waiting => {
                console.say(format_args!(
                    "{} of {waiting} shown; to see those that follow, add: --after {}",
                    shown.len(),
                    last.uid
                ))
            }
            Some(_) => {}
        }
    }
    Ok(at.close(console).await?)
}

fn rows(shown: &[Shown]) -> String {
    let columns = [
        ("UID", Side::Left),
        ("AGE", Side::Right),
        ("ATTEMPTS", Side::Right),
        ("TYPE", Side::Left),
        ("PID", Side::Left),
        ("ID", Side::Left),
    ];
    let row = |entry: &Shown| {
        let none = || "-".to_owned();
        let kind = match &entry.unreadable {
            Some(reason) => format!("unreadable: {reason}"),
            None => entry.r#type.clone().unwrap_or_default(),
        };
        [
            entry.uid.to_string(),
            entry.admitted_at.map_or_else(none, age_of),
            entry.attempts.to_string(),
            kind,
            entry.pid.clone().unwrap_or_else(none),
            entry.id.clone().unwrap_or_else(none),
        ]
    };
    table(columns, &shown.iter().map(row).collect::<Vec<_>>())
}

async fn show(uid: &str, filter: &Filter, console: &Console) -> Result<Exit, Failure> {
    let uid = read_uid(uid, filter.place.target.as_deref())?;
    let Look { at, lease, .. } = open(&filter.place).await?;
    let Some(entry) = queue::get(&*lease, &uid).await? else {
        let help = match at.store.failed().get(&uid).await?.is_some() {
            true => format!("it failed: outhaul failed show --data {} {uid}", at.quoted()),
            false => format!("list what waits: outhaul queue ls --data {}", at.quoted()),
        };
        let error = CliError::new(Exit::Failed, format!("no entry {uid} waits")).at(at.shown()).help(help);
        at.store.close().await?;
        return Err(error.into());
    };
    let shown = Shown::new(&entry, true);
    let event = entry.event.as_ref().map(|event| String::from_utf8_lossy(&event.to_json()).into_owned());
    let mut out = Output::single(filter.json);
    out.value(&shown, || {
        let none = || "-".to_owned();
        let mut lines = vec![
            format!("{}", shown.uid),
            format!("  admitted  {}", shown.admitted.clone().unwrap_or_else(none)),
            format!("  attempts  {}", shown.attempts),
        ];
        lines.extend(shown.not_before.as_ref().map(|time| format!("  next try  not before {time}")));
        lines.extend(
            shown.requeue_of.as_ref().map(|uid| format!("  requeued  it was {uid} before it failed")),
        );
        lines.push(format!("  dedup id  {}", shown.dedup_id.clone().unwrap_or_else(none)));
        lines.push(match event {
            Ok(event) => format!("  event     {event}"),
            Err(unreadable) => format!("  event     unreadable: {}", printable(&unreadable.reason)),
        });
        lines.join("\n")
    })?;
    out.end()?;
    Ok(at.close(console).await?)
}

async fn export(place: &Place, console: &Console) -> Result<Exit, Failure> {
    let Look { at, lease, target } = open(place).await?;
    let names: Vec<_> = at.queues(target.as_ref()).into_iter().map(|queue| queue.name).collect();
    let mut out = Output::lines();
    let (mut count, mut unreadable) = (0, 0);
    queue::each(&*lease, &names, |entry| match &entry.event {
        Ok(event) => {
            count += 1;
            out.raw_line(&event.to_json())
        }
        Err(why) => {
            unreadable += 1;
            let file = at.file_of(&entry.place.uid).unwrap_or_default();
            console.say(format_args!("{} is left out: {} (in {file})", entry.place.uid, why.reason));
            Ok(())
        }
    })
    .await?;
    out.end()?;
    console.say(format_args!("{} written", counted(count, "event is", "events are")));
    let exit = if unreadable > 0 { Exit::Attention } else { Exit::Done };
    Ok(exit.and(at.close(console).await?))
}
