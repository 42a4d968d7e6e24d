//! `outhaul failed`: what could not be delivered, in a data directory at rest.

use std::time::SystemTime;

use outhaul::event::{TargetName, Uid};
use outhaul::store::{Discard, FailedEntry, FailedQuery, ListOrder};

use crate::args::{FailedArgs, FailedVerb, Filter, Place};
use crate::at_rest::{Access, AtRest, read_uid};
use crate::console::{Console, counted};
use crate::error::{CliError, Exit};
use crate::ops::failed::{self, Shown};
use crate::output::{Failure, Output, conclude};
use crate::text::{printable, time_of};

pub(crate) async fn run(args: &FailedArgs, console: &Console) -> Exit {
    let done = match &args.verb {
        FailedVerb::Ls { filter, newest_first, limit, after } => {
            let order = if *newest_first { ListOrder::NewestFirst } else { ListOrder::OldestFirst };
            list(filter, order, limit.map(Into::into), after.as_deref(), console).await
        }
        FailedVerb::Show { uids, filter } => show(uids, filter, console).await,
        FailedVerb::Requeue { uids, filter, .. } => requeue(uids, filter, console).await,
        FailedVerb::Discard { uids, older_than, filter, .. } => {
            let before =
                older_than.map(|age| SystemTime::now().checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH));
            discard(uids, before, filter, console).await
        }
        FailedVerb::Export { place } => export(place, console).await,
    };
    conclude(done, console)
}

async fn list(
    filter: &Filter,
    order: ListOrder,
    limit: Option<usize>,
    after: Option<&str>,
    console: &Console,
) -> Result<Exit, Failure> {
    let after = after.map(|uid| read_uid(uid, filter.place.target.as_deref())).transpose()?;
    let (at, target) = open(&filter.place, Access::Look).await?;
    let width = width(&at, target.as_ref());
    let query = FailedQuery { target: target.clone(), order, after, ..FailedQuery::default() };
    let mut out = Output::new(filter.json);
    let mut first = true;
    let each = |entry: &FailedEntry| {
        if std::mem::take(&mut first) {
            out.text(&heading(width))?;
        }
        out.value(&Shown::new(entry, false), || row(entry, width))
    };
    let (count, next) = failed::each(at.store.failed(), query, limit, each).await?;
    out.end()?;
    if !filter.json {
        let data = at.quoted();
        match (count, &next) {
            (0, _) => console.say(none(&at, target.as_ref())),
            (_, Some(next)) => console.say(format_args!("more follow; to see them, add: --after {next}")),
            (_, None) => console.say(format_args!(
                "{count} failed; to see one with its event:\nouthaul failed show --data {data} UID"
            )),
        }
    }
    Ok(at.close(console).await?)
}

async fn show(uids: &[String], filter: &Filter, console: &Console) -> Result<Exit, Failure> {
    let asked = read_uids(uids, &filter.place)?;
    let (at, target) = open(&filter.place, Access::Look).await?;
    // One entry that is asked for is one object; any other number is an array.
    let mut out = if asked.len() == 1 { Output::single(filter.json) } else { Output::new(filter.json) };
    let mut one = |entry: &FailedEntry| out.value(&Shown::new(entry, true), || block(entry));
    for uid in &asked {
        let entry = at.store.failed().get(uid).await?.ok_or_else(|| missing(uid, &at))?;
        one(&entry)?;
    }
    if asked.is_empty() {
        let query = FailedQuery { target: target.clone(), ..FailedQuery::default() };
        let (count, _) = failed::each(at.store.failed(), query, None, one).await?;
        if count == 0 && !filter.json {
            console.say(none(&at, target.as_ref()));
        }
    }
    out.end()?;
    Ok(at.close(console).await?)
}

async fn requeue(uids: &[String], filter: &Filter, console: &Console) -> Result<Exit, Failure> {
    let asked = read_uids(uids, &filter.place)?;
    let (at, target) = open(&filter.place, Access::Change).await?;
    let all = asked.is_empty();
    let uids = if all { chosen(&at, target.as_ref()) } else { asked };
    at.attach(&uids)?;
    let mut out = Output::new(filter.json);
    let (mut done, mut refused, mut failures) = (0_u64, 0_u64, Vec::new());
    for answer in failed::requeue(at.store.failed(), &uids).await {
        out.value(&answer, || match (&answer.requeued_as, &answer.error) {
            (Some(new), _) if answer.again => format!("{} was requeued before, as {new}", answer.uid),
            (Some(new), _) => match answer.delivered_later.unwrap_or(0) {
                0 => format!("{} is requeued as {new}", answer.uid),
                later => format!(
                    "{} is requeued as {new}; {} of its pid came before it",
                    answer.uid,
                    counted(later, "later event", "later events"),
                ),
            },
            (None, error) => {
                format!("{} stays: {}", answer.uid, error.as_deref().unwrap_or("no reason is known"))
            }
        })?;
        match (&answer.requeued_as, answer.refused) {
            (Some(_), _) => done += u64::from(!answer.again),
            (None, true) => refused += 1,
            (None, false) => failures.push(answer),
        }
    }
    out.end()?;
    if !filter.json {
        match all && uids.is_empty() {
            true => console.say(none(&at, target.as_ref())),
            false => console.say(format_args!(
                "{} put back; `outhaul run` or `outhaul pipe` on {} delivers what waits",
                counted(done, "entry is", "entries are"),
                at.quoted()
            )),
        }
    }
    let mut exit = if refused > 0 { Exit::Attention } else { Exit::Done };
    if let Some(first) = failures.first() {
        let why = first.error.clone().unwrap_or_default();
        let what = format!("{} not put back", counted(failures.len() as u64, "entry is", "entries are"));
        let help = format!("list them: outhaul failed ls --data {}", at.quoted());
        exit =
            exit.and(console.fail(&CliError::new(Exit::Failed, what).at(at.shown()).because(why).help(help)));
    }
    Ok(exit.and(at.close(console).await?))
}

async fn discard(
    uids: &[String],
    before: Option<SystemTime>,
    filter: &Filter,
    console: &Console,
) -> Result<Exit, Failure> {
    let asked = read_uids(uids, &filter.place)?;
    let (at, target) = open(&filter.place, Access::Change).await?;
    let which = match before {
        _ if !asked.is_empty() => Discard::Uids(asked),
        Some(failed_before) => Discard::Before { failed_before, target },
        None => Discard::All { target },
    };
    let done = failed::discard(at.store.failed(), which).await?;
    let mut out = Output::single(filter.json);
    out.value(&done, || {
        format!("{} discarded", counted(done.discarded, "failed entry is", "failed entries are"))
    })?;
    out.end()?;
    let mut exit = Exit::Done;
    for uid in &done.missing {
        exit = exit.and(console.fail(&missing(uid, &at)));
    }
    Ok(exit.and(at.close(console).await?))
}

async fn export(place: &Place, console: &Console) -> Result<Exit, Failure> {
    let (at, target) = open(place, Access::Look).await?;
    let mut out = Output::lines();
    let query = FailedQuery { target, ..FailedQuery::default() };
    let each = |entry: &FailedEntry| out.json(&Shown::new(entry, true));
    let (count, _) = failed::each(at.store.failed(), query, None, each).await?;
    out.end()?;
    console.say(format_args!("{} written", counted(count, "failed entry", "failed entries")));
    Ok(at.close(console).await?)
}

async fn open(place: &Place, access: Access) -> Result<(AtRest, Option<TargetName>), CliError> {
    let at = AtRest::open(&place.data, access).await?;
    match at.target(place.target.as_deref()) {
        Ok(target) => Ok((at, target)),
        Err(error) => {
            at.store.close().await?;
            Err(error)
        }
    }
}

fn read_uids(uids: &[String], place: &Place) -> Result<Vec<Uid>, CliError> {
    uids.iter().map(|uid| read_uid(uid, place.target.as_deref())).collect()
}

fn chosen(at: &AtRest, target: Option<&TargetName>) -> Vec<Uid> {
    let all = at.store.failed().uids().into_iter();
    all.filter(|uid| target.is_none_or(|target| *target == uid.queue)).collect()
}

fn none(at: &AtRest, target: Option<&TargetName>) -> String {
    match target {
        None => format!("no failed entries in {}", at.shown()),
        Some(target) => format!("no failed entries of {target} in {}", at.shown()),
    }
}

fn missing(uid: &Uid, at: &AtRest) -> CliError {
    let error = CliError::new(Exit::Failed, format!("there is no failed entry {uid}")).at(at.shown());
    let list = format!("list them: outhaul failed ls --data {}", at.quoted());
    match at.store.failed().requeued_as(uid) {
        Some(new) => error.because(format!("it was requeued, as {new}")).help(list),
        None => error.help(list),
    }
}

/// How wide the column of uids is.
fn width(at: &AtRest, target: Option<&TargetName>) -> usize {
    chosen(at, target).iter().map(|uid| uid.to_string().len()).max().unwrap_or(0).max(3)
}

fn heading(width: usize) -> String {
    format!("{:<width$}  {:<24}  {:<13}  {:<20}  {:>8}  WHY", "UID", "FAILED", "RULE", "CLASS", "ATTEMPTS")
}

fn row(entry: &FailedEntry, width: usize) -> String {
    let failure = &entry.failure;
    format!(
        "{:<width$}  {:<24}  {:<13}  {:<20}  {:>8}  {}",
        entry.uid.to_string(),
        time_of(failure.failed_ms),
        failure.rule.as_str(),
        failure.class,
        failure.attempts,
        printable(&failure.detail)
    )
    .trim_end()
    .to_owned()
}

fn block(entry: &FailedEntry) -> String {
    let s = Shown::new(entry, false);
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
