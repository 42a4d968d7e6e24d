//! How often the device is asked to flush: a journaled ext4 on a loop device counts it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use outhaul_store::{Admission, Journal, JournalOptions, OsFileSystem, QueueSettings};

use crate::support::{attach, scale, sized};

/// Flushes that a batch may cost.
const FLUSHES_PER_BATCH_MAX: f64 = 2.5;
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
        let batches = if producers == 1 { 1_000 } else { 200 };
        let flushes = device.flushes_per_batch(producers, batches);
        println!("{producers} synchronous producers: {flushes:.2} flushes per batch");
        assert!(flushes >= 0.99, "a batch that is not flushed is not durable");
        assert!(flushes < FLUSHES_PER_BATCH_MAX, "{producers} producers: {flushes} flushes per batch");
    }
}
