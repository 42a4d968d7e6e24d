//! `outhaul failed`: what could not be delivered, in a data directory at rest.

use std::collections::BTreeSet;
use std::io::{self, BufWriter, Write};

use outhaul::event::{TargetName, Uid};
use outhaul::store::{FailedEntry, JournalOptions, Store};
use serde::Serialize;
use serde_json::value::RawValue;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::args::{FailedArgs, FailedFilter, FailedVerb};
use crate::console::{Console, quoted};
use crate::data_dir;
use crate::error::{CliError, Exit};

/// Entries read at a time.
const PAGE: usize = 500;

pub(crate) async fn run(args: &FailedArgs, console: &Console) -> Exit {
    let done = match &args.verb {
        FailedVerb::Ls(filter) => list(filter, console).await,
        FailedVerb::Show { uids, filter } => show(uids, filter, console).await,
    };
    match done {
        Ok(exit) => exit,
        Err(Failure::Told(error)) => console.fail(&error),
        // Whoever reads standard output has seen enough.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Done,
        Err(Failure::Output(error)) => console
            .fail(&CliError::new(Exit::Failed, "cannot write to standard output").because(error.to_string())),
    }
}

enum Failure {
    Told(CliError),
    Output(io::Error),
}

impl<E: Into<CliError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Told(error.into())
    }
}

async fn list(filter: &FailedFilter, console: &Console) -> Result<Exit, Failure> {
    let (store, targets) = open(filter).await?;
    let mut out = Output::new(filter.json);
    let mut count = 0;
    for target in targets {
        let each = |entry: &FailedEntry| {
            if count == 0 && !filter.json {
                out.line(&heading())?;
            }
            count += 1;
            out.entry(entry, &row(entry), false)
        };
        for_each(&store, &target, each).await?;
    }
    out.end().map_err(Failure::Output)?;
    if !filter.json {
        let data = filter.data.display();
        match count {
            0 => console.say(format_args!("no failed entries in {data}")),
            _ => console.say(format_args!(
                "{count} failed; to see one with its event:\nouthaul failed show --data {} UID",
                quoted(&data.to_string())
            )),
        }
    }
    close(&store, filter, console).await
}

async fn show(uids: &[String], filter: &FailedFilter, console: &Console) -> Result<Exit, Failure> {
    let asked = uids.iter().map(|uid| read_uid(uid, filter)).collect::<Result<Vec<_>, _>>()?;
    let (store, targets) = open(filter).await?;
    // One entry that is asked for is one object; any other number is an array.
    let mut out = if asked.len() == 1 { Output::single(filter.json) } else { Output::new(filter.json) };
    for uid in &asked {
        let entry = store.failed().get(uid).await?.ok_or_else(|| {
            CliError::new(Exit::Failed, format!("there is no failed entry {uid}"))
                .at(filter.data.display().to_string())
                .help(format!(
                    "list them: outhaul failed ls --data {}",
                    quoted(&filter.data.display().to_string())
                ))
        })?;
        out.entry(&entry, &block(&entry), true).map_err(Failure::Output)?;
    }
    for target in targets.into_iter().filter(|_| asked.is_empty()) {
        for_each(&store, &target, |entry| out.entry(entry, &block(entry), true)).await?;
    }
    out.end().map_err(Failure::Output)?;
    close(&store, filter, console).await
}

/// Goes through all failed entries of a target, a page at a time.
async fn for_each(
    store: &Store,
    target: &TargetName,
    mut each: impl FnMut(&FailedEntry) -> io::Result<()>,
) -> Result<(), Failure> {
    let mut after = 0;
    loop {
        let page = store.failed().list(target, after, PAGE).await?;
        let Some(last) = page.last() else { return Ok(()) };
        after = last.uid.sequence;
        page.iter().try_for_each(&mut each).map_err(Failure::Output)?;
    }
}

/// A uid, or its number beside `--target`.
fn read_uid(text: &str, filter: &FailedFilter) -> Result<Uid, CliError> {
    let whole = match &filter.target {
        Some(target) if !text.contains(':') => format!("{target}:{text}"),
        _ => text.to_owned(),
    };
    let uid: Uid =
        whole.parse().map_err(|e: outhaul::event::InvalidUid| CliError::new(Exit::Wrong, e.to_string()))?;
    match &filter.target {
        Some(target) if *target != *uid.queue.as_str() => {
            Err(CliError::new(Exit::Wrong, format!("{uid} is no entry of {target}"))
                .help("leave out `--target`"))
        }
        _ => Ok(uid),
    }
}

/// Ends with code 3 where a person should look at more than the entries.
async fn close(store: &Store, filter: &FailedFilter, console: &Console) -> Result<Exit, Failure> {
    let damaged = console.tell_damage(&store.report(), &filter.data.display().to_string());
    store.close().await?;
    Ok(if damaged { Exit::Attention } else { Exit::Done })
}

/// Opens the directory without changing it; the targets that have failed entries and are asked for.
async fn open(filter: &FailedFilter) -> Result<(Store, BTreeSet<TargetName>), CliError> {
    let only = filter.target.as_deref().map(TargetName::new).transpose();
    let only = only.map_err(|e| CliError::new(Exit::Wrong, e.to_string()).at("--target"))?;
    let options = JournalOptions { read_only: true, ..JournalOptions::default() };
    data_dir::check(&filter.data)?;
    let store = Store::open(&filter.data, options).await?;
    let mut targets: BTreeSet<TargetName> = store.failed().counts().into_keys().collect();
    if let Some(only) = only {
        let known = targets.iter().cloned().chain(store.log().stats().into_iter().map(|queue| queue.name));
        let known: BTreeSet<TargetName> = known.collect();
        if !known.contains(&only) {
            store.close().await?;
            return Err(unknown(&only, &known, filter));
        }
        targets.retain(|name| *name == only);
    }
    Ok((store, targets))
}

/// The directory has never heard of a target.
fn unknown(name: &TargetName, known: &BTreeSet<TargetName>, filter: &FailedFilter) -> CliError {
    let known = known.iter().map(TargetName::as_str).collect::<Vec<_>>().join(", ");
    let why = match known.as_str() {
        "" => "it knows no target yet".to_owned(),
        known => format!("it knows {known}"),
    };
    CliError::new(Exit::Wrong, format!("the data directory knows no target {name}"))
        .at(filter.data.display().to_string())
        .because(why)
        .help("correct `--target`, or leave it out to see all")
}

/// Standard output: an array, one object, or lines of text.
struct Output {
    out: BufWriter<io::Stdout>,
    json: bool,
    array: bool,
    first: bool,
}

impl Output {
    fn new(json: bool) -> Self {
        Self { out: BufWriter::new(io::stdout()), json, array: true, first: true }
    }

    fn single(json: bool) -> Self {
        Self { array: false, ..Self::new(json) }
    }

    fn line(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.out, "{text}")
    }

    fn entry(&mut self, entry: &FailedEntry, text: &str, with_event: bool) -> io::Result<()> {
        if !self.json {
            return self.line(text);
        }
        if self.array {
            self.out.write_all(if self.first { b"[\n" } else { b",\n" })?;
        }
        self.first = false;
        let event = entry.event.to_json();
        let event = serde_json::from_slice::<Box<RawValue>>(&event).ok().filter(|_| with_event);
        serde_json::to_writer(&mut self.out, &shown(entry, event.as_deref()))?;
        Ok(())
    }

    fn end(&mut self) -> io::Result<()> {
        match (self.json, self.array, self.first) {
            (false, ..) => {}
            (true, true, true) => self.out.write_all(b"[]\n")?,
            (true, true, false) => self.out.write_all(b"\n]\n")?,
            (true, false, _) => self.out.write_all(b"\n")?,
        }
        self.out.flush()
    }
}

#[derive(Serialize)]
struct Shown<'a> {
    uid: &'a Uid,
    target: &'a TargetName,
    sequence: u64,
    dedup_id: String,
    id: &'a str,
    source: &'a str,
    r#type: &'a str,
    pid: Option<&'a str>,
    rule: &'a str,
    class: &'a str,
    detail: &'a str,
    attempts: u32,
    admitted: String,
    first_attempt: Option<String>,
    last_attempt: Option<String>,
    failed: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<&'a RawValue>,
}

fn shown<'a>(entry: &'a FailedEntry, event: Option<&'a RawValue>) -> Shown<'a> {
    let failure = &entry.failure;
    Shown {
        uid: &entry.uid,
        target: &entry.uid.queue,
        sequence: entry.uid.sequence,
        dedup_id: entry.dedup_id.to_string(),
        id: entry.event.id(),
        source: entry.event.source(),
        r#type: entry.event.kind(),
        pid: entry.event.pid(),
        rule: failure.rule.as_str(),
        class: &failure.class,
        detail: &failure.detail,
        attempts: failure.attempts,
        admitted: time_of(entry.admitted_ms),
        first_attempt: failure.first_attempt_ms.map(time_of),
        last_attempt: failure.last_attempt_ms.map(time_of),
        failed: time_of(failure.failed_ms),
        event,
    }
}

fn heading() -> String {
    format!("{:<16} {:<24} {:<12} {:<20} {:>8}  WHY", "UID", "FAILED", "RULE", "CLASS", "ATTEMPTS")
}

fn row(entry: &FailedEntry) -> String {
    let failure = &entry.failure;
    format!(
        "{:<16} {:<24} {:<12} {:<20} {:>8}  {}",
        entry.uid.to_string(),
        time_of(failure.failed_ms),
        failure.rule.as_str(),
        failure.class,
        failure.attempts,
        printable(&failure.detail)
    )
}

fn block(entry: &FailedEntry) -> String {
    let s = shown(entry, None);
    let event = String::from_utf8_lossy(&entry.event.to_json()).into_owned();
    let none = || "-".to_owned();
    [
        format!("{}", s.uid),
        format!("  why       {} ({}): {}", s.rule, s.class, printable(s.detail)),
        format!("  attempts  {}", s.attempts),
        format!("  admitted  {}", s.admitted),
        format!("  first try {}", s.first_attempt.unwrap_or_else(none)),
        format!("  last try  {}", s.last_attempt.unwrap_or_else(none)),
        format!("  failed    {}", s.failed),
        format!("  dedup id  {}", s.dedup_id),
        format!("  event     {event}"),
    ]
    .join("\n")
}

/// What a receiver said, without what a terminal would obey.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn time_of(millis: u64) -> String {
    let nanos = i128::from(millis) * 1_000_000;
    let time = OffsetDateTime::from_unix_timestamp_nanos(nanos).ok();
    time.and_then(|time| time.format(&Rfc3339).ok()).unwrap_or_else(|| format!("{millis} ms after 1970"))
}
