//! The allocator of `outhaul run`, and how often it is asked.
#![expect(unsafe_code, reason = "an allocator is unsafe")]

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use mimalloc::MiMalloc;

static COUNTS: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicU64 = AtomicU64::new(0);

pub(crate) struct Counting;

/// Counts from now on.
pub(crate) fn count() {
    COUNTS.store(true, Ordering::Relaxed);
}

/// How many there were.
pub(crate) fn counted() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

// SAFETY: everything is done by an allocator that keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if COUNTS.load(Ordering::Relaxed) {
            COUNT.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: as the caller promised.
        unsafe { MiMalloc.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller promised.
        unsafe { MiMalloc.dealloc(memory, layout) }
    }
}
