//! The cases of outhaul-runtime and what it is compared with. `cargo xtask bench runtime` calls this; docs/benchmarks.md
//! says what each row means.

mod filled;
mod idle;
mod live;
mod memory;
mod replay;
mod rig;
mod webhook;

use std::process::ExitCode;

use anyhow::{Result, bail};
use measure::{Outcome, Report, Setup};

/// The one of `outhaul run`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    measure::run(case)
}

fn case(setup: &Setup) -> Result<Outcome> {
    if let Some(layout) = setup.case.strip_prefix("fill-") {
        filled::fill(setup, layout)?;
        return Ok(Outcome::Measured(Report::default().with("events", setup.count as f64)));
    }
    let report = match setup.case.as_str() {
        "replay" => replay::batches(setup)?,
        "replay-singly" => replay::singly(setup)?,
        "replay-files" => replay::files(setup)?,
        "stuck" => replay::beside_stuck(setup)?,
        "stuck-none" => replay::without_stuck(setup)?,
        "stuck-mixed" => replay::among_stuck(setup)?,
        "latency" => idle::latency(setup)?,
        "idle" => idle::wakeups(setup)?,
        "webhook" => webhook::delivered(setup)?,
        "webhook-bare" => webhook::bare(setup)?,
        "behind" => memory::behind(setup)?,
        "waiting" => memory::waiting(setup)?,
        "waiting-pids" => memory::waiting_pids(setup)?,
        "live" => live::drain(setup)?,
        other => bail!("no case `{other}`"),
    };
    Ok(Outcome::Measured(report))
}
