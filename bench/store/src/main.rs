//! The cases of outhaul-store, and the bare disk below it. `cargo xtask bench store` calls this; docs/benchmarks.md says
//! what each row means.

mod backlog;
mod bare;
mod journal;
mod open;
mod producers;

use std::process::ExitCode;

use anyhow::{Result, bail};
use measure::{Outcome, Setup};

/// The one of `outhaul run`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    measure::run(case)
}

fn case(setup: &Setup) -> Result<Outcome> {
    let report = match setup.case.as_str() {
        "bare" => bare::run(setup)?,
        "threads" => producers::threads(setup)?,
        "tasks" => producers::tasks(setup, journal::open_used(&setup.dir, setup.count)?, &["a"])?,
        "first-lap" => producers::tasks(setup, journal::open(&setup.dir)?, &["a"])?,
        "fan-out" => producers::tasks(setup, journal::open_used(&setup.dir, setup.count)?, &["a", "b", "c"])?,
        "drain" => producers::beside_a_consumer(setup)?,
        "spool" => producers::tasks(setup, journal::open_spool(&setup.dir)?, &["a"])?,
        "backlog" => backlog::run(setup)?,
        "fill" => open::fill(setup)?,
        "open" => open::open(setup)?,
        "open-scan" => open::open_scan(setup)?,
        "read-files" => open::read_files(setup)?,
        other => bail!("no case `{other}`"),
    };
    Ok(Outcome::Measured(report))
}
