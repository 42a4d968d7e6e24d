//! What an engine says when one byte of its files was changed: `-- --damage TRIALS`.
//!
//! A small store is written and its process killed; in each trial one byte of a copy is changed, and everything is
//! read. Only an error, or all the rows as they were, is a right answer.

use std::fs;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::engine::Kind;

#[derive(Debug, Default)]
pub struct Outcomes {
    pub harmless: usize,
    pub noticed: usize,
    pub panicked: usize,
    pub rows_lost: usize,
    pub rows_wrong: usize,
}

type Rows = Vec<(Vec<u8>, Vec<u8>)>;

pub fn trials(kind: Kind, written: &Path, scratch: &Path, count: usize) -> Result<Outcomes> {
    let expected = everything(kind, &fresh(written, scratch)?)?;
    ensure!(!expected.is_empty(), "nothing to lose");
    let mut random = fastrand::Rng::with_seed(7);
    let mut outcomes = Outcomes::default();
    for _ in 0..count {
        let dir = fresh(written, scratch)?;
        change_a_byte(&dir, &mut random)?;
        match catch_unwind(AssertUnwindSafe(|| everything(kind, &dir))) {
            Err(_) => outcomes.panicked += 1,
            Ok(Err(_)) => outcomes.noticed += 1,
            Ok(Ok(rows)) if rows == expected => outcomes.harmless += 1,
            Ok(Ok(rows)) if rows.len() < expected.len() => outcomes.rows_lost += 1,
            Ok(Ok(_)) => outcomes.rows_wrong += 1,
        }
    }
    fs::remove_dir_all(scratch)?;
    Ok(outcomes)
}

fn everything(kind: Kind, dir: &Path) -> Result<Rows> {
    let engine = kind.open(dir)?;
    let rows = engine.scan(b"", usize::MAX)?;
    engine.close()?;
    Ok(rows)
}

fn fresh(written: &Path, scratch: &Path) -> Result<PathBuf> {
    if scratch.exists() {
        fs::remove_dir_all(scratch)?;
    }
    copy(written, scratch)?;
    Ok(scratch.to_owned())
}

/// Somewhere in what is not zero: the rest of a file was never written.
fn change_a_byte(dir: &Path, random: &mut fastrand::Rng) -> Result<()> {
    let mut found = Vec::new();
    files(dir, &mut found)?;
    let total: u64 = found.iter().map(|(_, length)| length).sum();
    loop {
        let mut at = random.u64(..total);
        for (path, length) in &found {
            if at < *length {
                let file = fs::OpenOptions::new().read(true).write(true).open(path)?;
                let mut byte = [0];
                file.read_exact_at(&mut byte, at)?;
                if byte[0] == 0 {
                    break;
                }
                file.write_all_at(&[byte[0] ^ random.u8(1..)], at)?;
                return Ok(());
            }
            at -= length;
        }
    }
}

fn files(dir: &Path, found: &mut Vec<(PathBuf, u64)>) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            files(&entry.path(), found)?;
        } else {
            found.push((entry.path(), entry.metadata()?.len()));
        }
    }
    found.sort();
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &to.join(entry.file_name()))?;
        } else {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}
