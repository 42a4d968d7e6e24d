//! `outhaul import`: what waits in the queue directory of another product.

use std::sync::Arc;

use outhaul::event::TargetName;
use outhaul::store::import::{self, ImportError, ImportReport, Progress, Source};
use outhaul::store::{FileSystem, OsFileSystem, QueueSettings, Store, StoreError, StoreOptions};
use serde::Serialize;

use crate::args::{ImportArgs, ImportProduct};
use crate::console::{Console, counted, quoted};
use crate::data_dir;
use crate::error::{CliError, Exit};
use crate::output::{Failure, Output, conclude};

/// What was done, as it is shown.
#[derive(Serialize)]
struct Shown {
    imported: u64,
    /// Failed entries that are in the failed store now.
    failed: u64,
    skipped_already: u64,
    undecodable: Vec<Undecodable>,
    ignored: Vec<String>,
}

#[derive(Serialize)]
struct Undecodable {
    file: String,
    reason: String,
}

pub(crate) async fn run(args: &ImportArgs, console: &Console) -> Exit {
    conclude(import(args, console).await, console)
}

async fn import(args: &ImportArgs, console: &Console) -> Result<Exit, Failure> {
    let target = TargetName::new(&args.target)
        .map_err(|error| CliError::new(Exit::Wrong, error.to_string()).at("--target"))?;
    let fs: Arc<dyn FileSystem> = Arc::new(OsFileSystem);
    // The source first: a mistake in it makes no data directory.
    let source = source(args, Arc::clone(&fs))?;
    data_dir::check(&args.data)?;
    let engine = match Store::engine_of(&args.data) {
        Err(StoreError::Missing(_)) => None,
        found => found?,
    };
    let engine = engine.unwrap_or_default();
    let store = Store::open(&args.data, StoreOptions { engine, ..StoreOptions::default() }).await?;
    let label = store.log().stats().into_iter().find(|queue| queue.name == target).map(|queue| queue.label);
    let settings = QueueSettings { label: label.unwrap_or_default(), ..QueueSettings::default() };
    store.log().attach(&target, settings)?;
    console.start_bar();
    let progress = |at: Progress| {
        let events = counted(at.imported, "event", "events");
        console.progress(at.files_done as u64, Some(at.files as u64), format!("{events} taken over"));
    };
    let done = {
        let failed = Some(&**store.failed());
        import::import_into(&**store.log(), failed, fs, &args.data, &target, source, progress).await
    };
    console.end_bar();
    let closed = store.close().await;
    let (report, failure) = match done {
        Ok(report) => (report, None),
        Err(ImportError { report, source }) => (report, Some(source)),
    };
    let exit = tell(args, report)?;
    if let Some(failure) = failure {
        return Err(CliError::new(Exit::Failed, "the import stopped before its end")
            .at(args.source.display().to_string())
            .because(failure.to_string())
            .help("what was taken over is safe, and remembered: run the same command again")
            .into());
    }
    closed?;
    console.say(format_args!(
        "to deliver what waits: outhaul run --data {} --to {target}=URI",
        quoted(&args.data.display().to_string())
    ));
    Ok(exit)
}

fn source(args: &ImportArgs, fs: Arc<dyn FileSystem>) -> Result<Source, CliError> {
    let open = match args.product {
        ImportProduct::Rustfs => import::rustfs,
        ImportProduct::Minio => import::minio,
    };
    open(fs, &args.source).map_err(|error| {
        if let StoreError::OtherProduct { path, found, asked } = error {
            return CliError::new(Exit::Wrong, format!("the queue directory is not one of {asked}"))
                .at(path.display().to_string())
                .because(format!("the names and the files in it are those of {found}"))
                .help(format!(
                    "outhaul import {found} {} --data {} --target {}",
                    quoted(&path.display().to_string()),
                    quoted(&args.data.display().to_string()),
                    args.target
                ));
        }
        let why = match error {
            StoreError::Missing(_) => "it does not exist".to_owned(),
            error => error.to_string(),
        };
        CliError::new(Exit::Wrong, "the queue directory to import cannot be read")
            .at(args.source.display().to_string())
            .because(why)
            .help("give the directory of one target, such as …/rustfs-webhook-primary")
    })
}

fn tell(args: &ImportArgs, report: ImportReport) -> Result<Exit, Failure> {
    let undecodable = report.undecodable.into_iter().map(|(file, reason)| Undecodable { file, reason });
    let shown = Shown {
        imported: report.imported,
        failed: report.failed,
        skipped_already: report.skipped_already,
        undecodable: undecodable.collect(),
        ignored: report.ignored,
    };
    let mut out = Output::single(args.json);
    out.value(&shown, || {
        let bad = shown.undecodable.iter();
        let mut lines: Vec<_> = bad
            .map(|bad| {
                format!(
                    "cannot be decoded, and is left: {}: {}",
                    bad.file.escape_debug(),
                    bad.reason.escape_debug()
                )
            })
            .collect();
        lines.extend(shown.ignored.iter().map(|name| format!("no entry, and is left: {name}")));
        lines.push(format!(
            "{} taken over, {} before",
            counted(shown.imported, "event is", "events are"),
            counted(shown.skipped_already, "was", "were")
        ));
        if shown.failed > 0 {
            lines.push(format!(
                "{} in the failed store of {}, as they had failed there; to see them: outhaul failed ls --data {}",
                counted(shown.failed, "entry is", "entries are"),
                args.target,
                quoted(&args.data.display().to_string())
            ));
        }
        lines.join("\n")
    })?;
    out.end()?;
    Ok(if shown.undecodable.is_empty() { Exit::Done } else { Exit::Attention })
}
