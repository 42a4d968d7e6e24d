//! How often the device is asked to flush: a journaled ext4 on a loop device counts it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use outhaul_store::{Admission, Journal, JournalOptions, OsFileSystem};

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
        let syncs = Arc::new(AtomicU64::new(0));
        let fs = Arc::new(counting::Counting { os: OsFileSystem, syncs: Arc::clone(&syncs) });
        // Prepared files are what is measured, not their preparation.
        let options = JournalOptions { segment_bytes_first: 32 << 20, ..JournalOptions::default() };
        let (log, quarantine) = (dir.join("log"), dir.join("quarantine"));
        let journal = Journal::open(fs, &log, &quarantine, options).unwrap();
        attach(&journal, &["a"]);
        produce(&journal, producers, &syncs, 20);
        let (flushes_before, syncs_before) = (self.flushes(), syncs.load(Ordering::SeqCst));
        let appended = produce(&journal, producers, &syncs, batches);
        let flushes = self.flushes() - flushes_before;
        let synced = syncs.load(Ordering::SeqCst) - syncs_before;
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

fn produce(journal: &Journal, producers: u64, syncs: &AtomicU64, batches: u64) -> u64 {
    let end = syncs.load(Ordering::SeqCst) + batches;
    let appended = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..producers {
            scope.spawn(|| {
                while syncs.load(Ordering::SeqCst) < end {
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

/// The real file system, whose syncs of files are counted: one is one batch.
mod counting {
    use std::io;
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use outhaul_store::{DirEntry, File, FileSystem, Lock, OsFileSystem, Space, Stat};

    #[derive(Debug)]
    pub(super) struct Counting {
        pub(super) os: OsFileSystem,
        pub(super) syncs: Arc<AtomicU64>,
    }

    #[derive(Debug)]
    struct Counted {
        file: Arc<dyn File>,
        syncs: Arc<AtomicU64>,
    }

    impl Counting {
        fn counted(&self, file: Arc<dyn File>) -> Arc<dyn File> {
            Arc::new(Counted { file, syncs: Arc::clone(&self.syncs) })
        }
    }

    impl FileSystem for Counting {
        fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
            self.os.create_dir_all(dir)
        }
        fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
            self.os.create(path).map(|file| self.counted(file))
        }
        fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn File>> {
            self.os.open(path, write).map(|file| self.counted(file))
        }
        fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
            self.os.list(dir)
        }
        fn stat(&self, path: &Path) -> io::Result<Stat> {
            self.os.stat(path)
        }
        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            self.os.rename(from, to)
        }
        fn remove(&self, path: &Path) -> io::Result<()> {
            self.os.remove(path)
        }
        fn sync_dir(&self, dir: &Path) -> io::Result<()> {
            self.os.sync_dir(dir)
        }
        fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>> {
            self.os.lock(path)
        }
        fn space(&self, path: &Path) -> io::Result<Space> {
            self.os.space(path)
        }
    }

    impl File for Counted {
        fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
            self.file.read_at(buffer, offset)
        }
        fn write_at(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
            self.file.write_at(buffer, offset)
        }
        fn sync(&self) -> io::Result<()> {
            self.syncs.fetch_add(1, Ordering::SeqCst);
            self.file.sync()
        }
        fn set_len(&self, length: u64) -> io::Result<()> {
            self.file.set_len(length)
        }
        fn len(&self) -> io::Result<u64> {
            self.file.len()
        }
    }
}
