//! Opening a journal in which many entries wait. It is filled once, in a process of its own, and kept for all cases of
//! a run.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use measure::{Report, Setup, drop_cached, resident_bytes};
use outhaul_store::{Journal, JournalOptions, Log};

use crate::journal::{self, Events, durable};

/// Entries of a journal that is opened for comparison.
const FEW: u64 = 1000;

/// Puts `setup.count` entries into the directory that the other cases open.
#[expect(clippy::disallowed_methods, reason = "it is lost with the run: nothing has to be durable")]
pub(crate) fn fill(setup: &Setup) -> Result<Report> {
    let unfinished = setup.dir.join("filled");
    let journal = journal::open(&unfinished)?;
    append_many(&journal, setup.count)?;
    journal.close_sync()?;
    std::fs::rename(unfinished, filled_dir(setup, setup.count))?;
    Ok(Report::default())
}

pub(crate) fn append_many(journal: &Journal, entries: u64) -> Result<()> {
    let mut events = Events::new(0, &["a"])?;
    let mut left = entries;
    while left > 0 {
        let length = left.min(1000);
        durable(&journal.append_sync(events.batch(length as usize)))?;
        left -= length;
    }
    Ok(())
}

/// As a process does that starts again: the files are still in the cache.
pub(crate) fn open(setup: &Setup) -> Result<Report> {
    let dir = filled(setup, setup.count)?;
    read_all(&dir.join("log"))?;
    timed(setup, &dir, JournalOptions::default())
}

/// As after a start of the machine, every record looked at.
pub(crate) fn open_scan(setup: &Setup) -> Result<Report> {
    let options = JournalOptions { verify: true, ..JournalOptions::default() };
    let dir = filled(setup, setup.count)?;
    drop_cached(&dir.join("log"))?;
    timed(setup, &dir, options)
}

/// What is the least that [`open_scan`] can take: reading the same files from the same disk.
pub(crate) fn read_files(setup: &Setup) -> Result<Report> {
    let log = filled(setup, setup.count)?.join("log");
    drop_cached(&log)?;
    let begun = Instant::now();
    let bytes = read_all(&log)?;
    Ok(Report::default().with("open_ms", millis(begun)).with("bytes", bytes as f64))
}

fn timed(setup: &Setup, dir: &Path, options: JournalOptions) -> Result<Report> {
    // What any journal costs this process is paid before: the growth is then that of the entries.
    let small = filled(setup, FEW)?;
    journal::open(&small)?.close_sync()?;
    let before = resident_bytes();
    let begun = Instant::now();
    let journal = journal::open_with(dir, options)?;
    let open_ms = millis(begun);
    let after = resident_bytes();
    let waiting: u64 = journal.stats().iter().map(|queue| queue.waiting).sum();
    ensure!(waiting == setup.count, "{waiting} of {} entries wait", setup.count);
    journal.close_sync()?;
    Ok(Report::default()
        .with("open_ms", open_ms)
        .with("resident_mib", after as f64 / f64::from(1 << 20))
        .with("resident_bytes_per_entry", after.saturating_sub(before) as f64 / setup.count as f64))
}

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

fn filled_dir(setup: &Setup, entries: u64) -> PathBuf {
    setup.shared.join(format!("filled-{entries}"))
}

/// Fills it the first time. Another process does, so that this one's memory tells of the open alone.
fn filled(setup: &Setup, entries: u64) -> Result<PathBuf> {
    let dir = filled_dir(setup, entries);
    if !dir.exists() {
        let mut fill = Command::new(std::env::current_exe()?);
        fill.arg("fill").arg(entries.to_string()).arg("--dir").arg(&setup.shared).stdout(Stdio::null());
        let status = fill.status().context("cannot start the filling")?;
        ensure!(status.success(), "the filling ended with {status}");
    }
    Ok(dir)
}

fn read_all(dir: &Path) -> Result<u64> {
    let mut buffer = vec![0; 1 << 20];
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir)? {
        let mut file = File::open(entry?.path())?;
        loop {
            match file.read(&mut buffer)? {
                0 => break,
                read => bytes += read as u64,
            }
        }
    }
    Ok(bytes)
}
