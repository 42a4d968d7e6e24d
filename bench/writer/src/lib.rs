//! The cases of outhaul-writer and what it is compared with. `cargo xtask bench writer` calls this; docs/benchmarks.md
//! says what each row means.
//!
//! A case is called `WAY-SINK-SHARDS`, with `-16` behind it when each producer has 16 operations outstanding, and
//! `-counted` when allocations are counted, which the program of that name can.

mod journal;
mod memory;
mod ways;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use measure::{Outcome, Setup};

/// The `main` of both programs.
pub fn run() -> ExitCode {
    measure::run(case)
}

fn case(setup: &Setup) -> Result<Outcome> {
    let mut words = setup.case.split('-');
    let mut word = || words.next().context("a case is called WAY-SINK-SHARDS");
    let (way, sink) = (word()?, word()?);
    let shards = word()?.parse().context("the number of shards")?;
    let rest: Vec<&str> = words.collect();
    let outstanding = if rest.contains(&"16") { 16 } else { 1 };
    let plan = ways::Plan { way, shards, outstanding, counted: rest.contains(&"counted") };
    let report = match sink {
        "memory" => memory::run(setup, &plan)?,
        "work" => memory::run_working(setup, &plan)?,
        "journal" => journal::run(setup, &plan)?,
        other => bail!("no sink `{other}`"),
    };
    Ok(Outcome::Measured(report))
}
