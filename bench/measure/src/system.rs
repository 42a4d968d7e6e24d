//! The system's counters: syncs, device flushes, processor time, bytes written, memory.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Map, Value};

use crate::producers::Samples;
use crate::syncs::syncs;

/// One case in numbers: each has a name that ends with its unit.
#[derive(Default)]
pub struct Report(Map<String, Value>);

impl Report {
    #[must_use]
    pub fn with(mut self, name: &str, value: f64) -> Self {
        self.0.insert(name.to_owned(), value.into());
        self
    }

    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name)?.as_f64()
    }

    pub(crate) fn into_json(self) -> Value {
        Value::Object(self.0)
    }
}

/// The counters at the start of the measured time.
pub struct Meter {
    at: Instant,
    syncs: u64,
    /// The counter of the device below, and where it is read; None where there is none.
    flushes: Option<(PathBuf, u64)>,
    cpu: Duration,
    written_bytes: u64,
}

impl Meter {
    pub fn start(dir: &Path) -> Self {
        let flushes = device_stat(dir).and_then(|stat| flushes(&stat).map(|count| (stat, count)));
        Self { syncs: syncs(), flushes, cpu: cpu(), written_bytes: written_bytes(), at: Instant::now() }
    }

    /// What happened since, with the producers' calls.
    pub fn report(self, samples: Vec<Samples>, events_per_call: u64) -> Report {
        let secs = self.at.elapsed().as_secs_f64();
        let cpu = cpu().saturating_sub(self.cpu);
        let synced = syncs() - self.syncs;
        let calls = Samples::merged(samples);
        let events = (calls.len() as u64 * events_per_call) as f64;
        let written = (written_bytes() - self.written_bytes) as f64;
        let report = Report::default()
            .with("events", events)
            .with("secs", secs)
            .with("events_per_s", events / secs)
            .with("p50_us", percentile(&calls, 0.5))
            .with("p99_us", percentile(&calls, 0.99))
            .with("syncs", synced as f64)
            .with("events_per_sync", events / synced.max(1) as f64)
            .with("cpu_us_per_event", cpu.as_secs_f64() * 1e6 / events.max(1.0))
            .with("written_bytes", written)
            .with("written_bytes_per_event", written / events.max(1.0))
            .with("resident_mib", resident_bytes() as f64 / f64::from(1 << 20));
        let Some((stat, before)) = self.flushes else { return report };
        let flushed = flushes(&stat).unwrap_or(before).saturating_sub(before) as f64;
        report.with("flushes", flushed).with("flushes_per_call", flushed / calls.len().max(1) as f64)
    }
}

/// In microseconds, of tenths of them in order.
fn percentile(sorted: &[u32], part: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * part).round() as usize).map_or(0.0, |tenths| f64::from(*tenths) / 10.0)
}

/// The processor time of this process, its ended threads included.
pub fn cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// The bytes that this process has given to write calls.
fn written_bytes() -> u64 {
    number_in("/proc/self/io", "wchar:")
}

/// The memory of this process that is in use now.
pub fn resident_bytes() -> u64 {
    number_in("/proc/self/status", "VmRSS:") * 1024
}

/// The number behind `name` in a file of the kernel's.
fn number_in(file: &str, name: &str) -> u64 {
    let text = fs::read_to_string(file).expect("/proc can be read");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(name));
    let number = lines.next().and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    number.expect("the kernel tells it")
}

/// The counters of the whole device that holds a directory: partitions have no count of flushes.
fn device_stat(dir: &Path) -> Option<PathBuf> {
    let device = fs::metadata(dir).ok()?.dev();
    let name = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let entry = fs::canonicalize(Path::new("/sys/dev/block").join(name)).ok()?;
    let whole = if entry.join("partition").exists() { entry.parent()?.to_owned() } else { entry };
    Some(whole.join("stat"))
}

/// Flushes that the device has completed: the 16th number.
fn flushes(stat: &Path) -> Option<u64> {
    fs::read_to_string(stat).ok()?.split_whitespace().nth(15)?.parse().ok()
}

/// Waits until the whole file system is on the disk.
pub(crate) fn sync_file_system(dir: &Path) -> Result<()> {
    rustix::fs::syncfs(fs::File::open(dir)?).context("cannot sync the file system")
}

/// Takes the files of a directory out of the cache.
pub fn drop_cached(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let file = fs::File::open(entry?.path())?;
        if file.metadata()?.is_file() {
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        }
    }
    Ok(())
}
