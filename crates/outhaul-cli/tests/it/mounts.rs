//! Where tests may mount: as root, or as root of a namespace of their own. A test that may not says so.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// How much larger the slow suites are than in the ordinary run.
pub(crate) fn scale() -> u64 {
    number("OUTHAUL_TEST_SCALE").unwrap_or(1).max(1)
}

/// The seed of this run; printed, so that a failure can be repeated.
pub(crate) fn seed(suite: &str) -> u64 {
    let seed = number("OUTHAUL_TEST_SEED").unwrap_or_else(|| fastrand::u64(..1 << 40));
    println!("{suite}: OUTHAUL_TEST_SEED={seed}");
    seed
}

pub(crate) fn number(variable: &str) -> Option<u64> {
    Some(std::env::var_os(variable)?.to_str()?.parse().unwrap())
}

/// Whether this process mounts for the test of this name. It does not in the gate, and not where that is forbidden;
/// either is printed. Without root the test is run again as root of a new user and mount namespace.
pub(crate) fn may_mount(test: &str) -> bool {
    if scale() < 10 {
        println!("not run: {test} mounts a file system; `cargo xtask test all` does that");
        return false;
    }
    if rustix::process::geteuid().is_root() {
        return true;
    }
    let unshare = |program: &Path| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount"]).arg(program);
        command
    };
    if !unshare(Path::new("true")).output().is_ok_and(|output| output.status.success()) {
        println!("not run: mounting is not allowed here ({test}: no root, and no user namespaces)");
        return false;
    }
    let mut inside = unshare(&std::env::current_exe().unwrap());
    let status = inside.args(["--exact", test, "--nocapture"]).status().unwrap();
    assert!(status.success(), "{test} failed in its namespace");
    false
}

/// A directory to mount on, which is no mount any more when it is dropped.
pub(crate) struct MountPoint {
    path: PathBuf,
    _dir: tempfile::TempDir,
}

/// How the directories are called, so that a later run finds what a killed one left.
const PREFIX: &str = "outhaul-test-mount-";

impl MountPoint {
    pub(crate) fn new() -> Self {
        detach_stale();
        // The owner's process id is in the name: mounts of a process that is gone are stale.
        let dir =
            tempfile::Builder::new().prefix(&format!("{PREFIX}{}-", std::process::id())).tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        Self { path, _dir: dir }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Mounts memory of a size.
    pub(crate) fn tmpfs(&self, bytes: u64) {
        let options = std::ffi::CString::new(format!("size={bytes},mode=700")).unwrap();
        mount("outhaul-test", &self.path, "tmpfs", MountFlags::empty(), options.as_c_str()).unwrap();
    }
}

impl Drop for MountPoint {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}:", self.path.display());
            list(&self.path);
        }
        // Nothing is mounted after an orderly end; after a panic there may be.
        unmount(&self.path, UnmountFlags::DETACH).unwrap_or_default();
    }
}

/// Prints what is there.
fn list(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let Ok(found) = entry.metadata() else { continue };
        println!("  {} {}", entry.path().display(), found.len());
        if found.is_dir() {
            list(&entry.path());
        }
    }
}

fn detach_stale() {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    for path in mounts.lines().filter_map(|line| line.split(' ').nth(1)) {
        let Some((_, rest)) = path.split_once(PREFIX) else { continue };
        let owner = rest.split('-').next().unwrap_or_default();
        if !Path::new("/proc").join(owner).exists() {
            unmount(path, UnmountFlags::DETACH).unwrap_or_default();
            std::fs::remove_dir(path).unwrap_or_default();
        }
    }
}
