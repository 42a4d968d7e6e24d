//! Data directories in which events wait. A process of its own fills them: what that takes is not in the memory of the
//! one that is measured.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use measure::Setup;
use outhaul_runtime::event::{Event, TargetName};
use outhaul_runtime::store::{Admission, Journal, JournalOptions, OsFileSystem, QueueSettings, Store};

/// What an event counts: attributes and body.
const EVENT_BYTES: usize = 1024;
/// The pids of a layout, and as many that are stuck.
pub(crate) const PIDS: u64 = 10_000;
/// Entries that can be delivered behind all those that cannot.
pub(crate) const BEHIND: u64 = 1000;
/// The pids of a backlog that leaves the window room.
const FEW_PIDS: u64 = 8;
/// Events that are written together, as a request of so many would have them.
const BATCH: u64 = 100;

/// The pid of the entry at an index.
fn pid(layout: &str, index: u64, count: u64) -> Result<String> {
    let good = |number: u64| format!("pid-{number:07}");
    let stuck = |number: u64| format!("stuck-{number:07}");
    Ok(match layout {
        "even" => good(index % PIDS),
        "few" => good(index % FEW_PIDS),
        // One of each stuck pid, then the others.
        "first" if index < PIDS => stuck(index),
        "first" => good(index % PIDS),
        "mixed" if index % 2 == 0 => stuck(index / 2 % PIDS),
        "mixed" => good(index / 2 % PIDS),
        "behind" if index < count - BEHIND => stuck(index % PIDS),
        "behind" => good(index),
        "half" if index % 2 == 0 => stuck(index / 2),
        "half" => good(index / 2 % PIDS),
        other => bail!("no layout `{other}`"),
    })
}

pub(crate) fn is_stuck(event: &Event) -> bool {
    event.pid().is_some_and(|pid| pid.starts_with("stuck-"))
}

/// An event of 1 KiB.
pub(crate) fn event(pid: &str, number: u64) -> Result<Event> {
    let build = |body: Vec<u8>| {
        Event::builder("com.example.object.created", "/bench").pid(pid).body("application/json", body).build()
    };
    let body = EVENT_BYTES - build(Vec::new())?.size();
    let event = build(measure::json(body, number))?;
    ensure!(event.size() == EVENT_BYTES, "an event of {} bytes", event.size());
    Ok(event)
}

/// Puts `setup.count` entries into a directory that another process opens.
#[expect(clippy::disallowed_methods, reason = "it is lost with the run: nothing has to be durable")]
pub(crate) fn fill(setup: &Setup, layout: &str) -> Result<()> {
    let unfinished = setup.dir.join("filled");
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    // Writes what makes it a data directory.
    let store = runtime.block_on(Store::open(&unfinished, JournalOptions::default()))?;
    runtime.block_on(store.close())?;
    drop(store);
    let (log, quarantine) = (unfinished.join("log"), unfinished.join("quarantine"));
    let journal = Journal::open(Arc::new(OsFileSystem), &log, &quarantine, JournalOptions::default())?;
    let queue = TargetName::new("a")?;
    let room = QueueSettings { entries_max: 1 << 32, bytes_max: Some(1 << 42), ..QueueSettings::default() };
    outhaul_runtime::store::Log::attach(&journal, &queue, room)?;
    let targets: Arc<[TargetName]> = [queue].into();
    let mut next = 0;
    while next < setup.count {
        let until = (next + BATCH).min(setup.count);
        let admission = |index| -> Result<Admission> {
            let event = event(&pid(layout, index, setup.count)?, index)?;
            Ok(Admission::new(Arc::new(event), Arc::clone(&targets)))
        };
        for receipt in journal.append_sync((next..until).map(admission).collect::<Result<_>>()?) {
            receipt?;
        }
        next = until;
    }
    journal.close_sync()?;
    std::fs::rename(unfinished, place(setup, layout))?;
    Ok(())
}

fn place(setup: &Setup, layout: &str) -> PathBuf {
    setup.shared.join(format!("{layout}-{}", setup.count))
}

/// A directory in which `count` entries wait, in the case's own one.
#[expect(clippy::disallowed_methods, reason = "it is lost with the run: nothing has to be durable")]
pub(crate) fn filled(setup: &Setup, layout: &str, count: u64) -> Result<PathBuf> {
    let setup =
        &Setup { case: String::new(), dir: setup.dir.clone(), shared: setup.dir.clone(), count, ..*setup };
    let mut fill = Command::new(std::env::current_exe()?);
    fill.arg(format!("fill-{layout}")).arg(count.to_string());
    fill.arg("--dir").arg(&setup.shared).stdout(Stdio::null());
    let status = fill.status().context("cannot start the filling")?;
    ensure!(status.success(), "the filling ended with {status}");
    let data = setup.dir.join("data");
    std::fs::rename(place(setup, layout), &data)?;
    sync(&data)?;
    Ok(data)
}

/// What the filling left in the cache is written before anything is measured.
fn sync(dir: &Path) -> Result<()> {
    let status = Command::new("sync").arg("-f").arg(dir).status().context("cannot start `sync`")?;
    ensure!(status.success(), "`sync` ended with {status}");
    Ok(())
}
