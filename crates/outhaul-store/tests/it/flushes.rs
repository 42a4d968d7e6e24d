//! How often the device is asked to flush: a journaled ext4 on a loop device counts it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use outhaul_store::{Admission, Journal, JournalOptions, OsFileSystem};

use crate::counting::Counting;
use crate::support::{attach, scale, sized};

/// Flushes that a batch may cost.
const FLUSHES_PER_BATCH_MAX: f64 = 1.1;
const IMAGE_BYTES: u64 = 512 << 20;
/// How the directory to mount on is called, so that a later run finds what a killed one left.
const PREFIX: &str = "outhaul-test-loop-";

#[test]
fn a_batch_costs_few_flushes_of_the_device() {
    if scale() < 10 {
        println!("not run: this test mounts a file system; `cargo xtask test all` does that");
        return;
    }
    let device = match LoopDevice::new() {
        Ok(device) => device,
        Err(why) => {
            println!("not run: mounting is not allowed here ({why})");
            return;
        }
    };
    for producers in [1, 64] {
        let batches = if producers == 1 { 1_000 } else { 100 };
        let flushes = device.flushes_per_batch(producers, batches);
        println!("{producers} synchronous producers: {flushes:.2} flushes per batch");
        assert!(flushes >= 0.99, "a batch that is not flushed is not durable");
        assert!(flushes < FLUSHES_PER_BATCH_MAX, "{producers} producers: {flushes} flushes per batch");
    }
}

/// A file as a block device, with a file system on it, mounted.
struct LoopDevice {
    /// `loop0`.
    name: String,
    at: PathBuf,
    dir: tempfile::TempDir,
}

impl LoopDevice {
    fn new() -> Result<Self, String> {
        detach_stale();
        // The owner's process id is in the name: what a process left that is gone is stale.
        let prefix = format!("{PREFIX}{}-", std::process::id());
        let dir = tempfile::Builder::new().prefix(&prefix).tempdir().map_err(|error| error.to_string())?;
        let (image, at) = (dir.path().join("image"), dir.path().join("mount"));
        std::fs::File::create(&image).and_then(|file| file.set_len(IMAGE_BYTES)).unwrap();
        std::fs::create_dir(&at).unwrap();
        let device = run("losetup", &["--find", "--show", image.to_str().unwrap()])?;
        let name = device.trim_end().trim_start_matches("/dev/").to_owned();
        let loop_device = Self { name, at, dir };
        let (device, at) = (loop_device.device(), loop_device.at.to_str().unwrap());
        // Nothing is left to be initialised by the kernel while the test counts.
        run("mkfs.ext4", &["-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", &device])?;
        run("mount", &["-t", "ext4", &device, at])?;
        Ok(loop_device)
    }

    fn device(&self) -> String {
        format!("/dev/{}", self.name)
    }

    /// Flushes that the device has done (the 16th field, see the kernel's `block/stat` document).
    fn flushes(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/sys/block/{}/stat", self.name)).unwrap();
        stat.split_whitespace().nth(15).unwrap().parse().unwrap()
    }

    /// Appends from threads that wait for each receipt, until so many batches were synced.
    fn flushes_per_batch(&self, producers: u64, batches: u64) -> f64 {
        let dir = self.at.join(producers.to_string());
        // A sync of a file is a batch.
        let fs = Counting::over(OsFileSystem);
        // Prepared files are what is measured, not their preparation.
        let options = JournalOptions { segment_bytes_first: 32 << 20, ..JournalOptions::default() };
        let (log, quarantine) = (dir.join("log"), dir.join("quarantine"));
        let journal = Journal::open(Arc::new(fs.clone()), &log, &quarantine, options).unwrap();
        attach(&journal, &["a"]);
        produce(&journal, producers, &fs, 20);
        let (flushes_before, syncs_before) = (self.flushes(), fs.file_syncs());
        let appended = produce(&journal, producers, &fs, batches);
        let flushes = self.flushes() - flushes_before;
        let synced = fs.file_syncs() - syncs_before;
        println!("{producers} producers: {appended} events, {synced} syncs, {flushes} flushes");
        journal.close_sync().unwrap();
        flushes as f64 / synced as f64
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // What fails here was never there, or is found stale by the next run.
        run("umount", &["--lazy", self.at.to_str().unwrap()]).map(drop).unwrap_or_default();
        run("losetup", &["--detach", &self.device()]).map(drop).unwrap_or_default();
        assert!(self.dir.path().exists());
    }
}

fn produce(journal: &Journal, producers: u64, fs: &Counting, batches: u64) -> u64 {
    let end = fs.file_syncs() + batches;
    let appended = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..producers {
            scope.spawn(|| {
                while fs.file_syncs() < end {
                    let admission: Admission = sized(appended.fetch_add(1, Ordering::SeqCst), &["a"], 900);
                    assert!(journal.append_sync(vec![admission])[0].is_ok());
                }
            });
        }
    });
    appended.into_inner()
}

/// Standard output, or what is wrong.
fn run(program: &str, args: &[&str]) -> Result<String, String> {
    // A user's PATH may lack the directories of the tools for the superuser.
    let path = format!("{}:/usr/sbin:/sbin", std::env::var_os("PATH").unwrap_or_default().display());
    let output = Command::new(program).args(args).env("PATH", path).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout).unwrap()),
        false => Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim_end())),
    }
}

/// Unmounts and detaches what a killed run has left.
fn detach_stale() {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    for mount in mounts.lines() {
        let mut words = mount.split(' ');
        let (Some(device), Some(at)) = (words.next(), words.next()) else { continue };
        let Some((_, rest)) = at.split_once(PREFIX) else { continue };
        let owner = rest.split('-').next().unwrap_or_default();
        if !Path::new("/proc").join(owner).exists() {
            run("umount", &["--lazy", at]).map(drop).unwrap_or_default();
            run("losetup", &["--detach", device]).map(drop).unwrap_or_default();
            std::fs::remove_dir_all(Path::new(at).parent().unwrap()).unwrap_or_default();
        }
    }
}
