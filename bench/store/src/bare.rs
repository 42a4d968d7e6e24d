//! The disk alone: one thread, one write of a whole batch into a file that has been written before, one sync.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};
use measure::{Report, Setup};

const FILE_BYTES: u64 = 64 << 20;

/// `setup.count` events of 1 KiB in each batch.
pub(crate) fn run(setup: &Setup) -> Result<Report> {
    let path = setup.dir.join("bare");
    let mut file = File::create(&path)?;
    let zeros = vec![0; 1 << 20];
    for _ in 0..FILE_BYTES >> 20 {
        file.write_all(&zeros)?;
    }
    file.sync_all()?;
    let file = &OpenOptions::new().write(true).open(&path)?;
    let batch: &Vec<u8> = &(0..setup.count).flat_map(|number| measure::json(1024, number)).collect();
    let alone = Setup {
        count: 1,
        dir: setup.dir.clone(),
        shared: setup.shared.clone(),
        case: String::new(),
        ..*setup
    };
    measure::threads(&alone, setup.count, |_| {
        let mut at = 0;
        move || {
            file.write_all_at(batch, at)?;
            file.sync_data().context("the disk fails")?;
            at += batch.len() as u64;
            if at + batch.len() as u64 > FILE_BYTES {
                at = 0;
            }
            Ok(())
        }
    })
}
