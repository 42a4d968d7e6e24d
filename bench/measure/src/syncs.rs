//! Counts the syncs of a process, whoever makes them: the program's own `fsync` and `fdatasync` take the place of the
//! C library's, for Rust's standard library and for C code alike. Who makes system calls without the library is not
//! seen; the device's own counter ([`Meter`](crate::Meter)) sees all.
#![expect(unsafe_code, reason = "taking the place of a C function needs it, and so does calling the kernel")]

use std::ffi::c_int;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, ensure};

static SYNCS: AtomicU64 = AtomicU64::new(0);

/// Syncs of files and directories so far.
pub fn syncs() -> u64 {
    SYNCS.load(Ordering::Relaxed)
}

/// # Safety
/// As the C function of this name: nothing is asked of the caller but what the kernel checks.
#[unsafe(no_mangle)]
unsafe extern "C" fn fsync(file: c_int) -> c_int {
    SYNCS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the kernel checks the number; no memory is involved. Errors are in errno, as the callers expect.
    unsafe { libc::syscall(libc::SYS_fsync, file) as c_int }
}

/// # Safety
/// As the C function of this name: nothing is asked of the caller but what the kernel checks.
#[unsafe(no_mangle)]
unsafe extern "C" fn fdatasync(file: c_int) -> c_int {
    SYNCS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_fdatasync, file) as c_int }
}

/// Fails when the linker has not put the functions above in place.
pub(crate) fn self_test(dir: &Path) -> Result<()> {
    let before = syncs();
    let directory = File::open(dir)?;
    directory.sync_all()?;
    directory.sync_data()?;
    ensure!(syncs() == before + 2, "syncs are not counted in this build");
    Ok(())
}
