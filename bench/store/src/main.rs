//! The cases of outhaul-store, and the bare disk below it. `cargo xtask bench store` calls this; docs/benchmarks.md says
//! what each row means.

mod backlog;
mod bare;
mod hooks;
mod journal;
mod open;
mod producers;

use std::process::ExitCode;

use anyhow::{Result, bail};
use measure::{Outcome, Setup};

fn main() -> ExitCode {
    measure::run(case)
}

fn case(setup: &Setup) -> Result<Outcome> {
    let report = match setup.case.as_str() {
        "bare" => bare::run(setup)?,
        "threads" => producers::threads(setup)?,
        "tasks" => producers::tasks(setup, journal::open(&setup.dir)?, &["a"])?,
        "fan-out" => producers::tasks(setup, journal::open(&setup.dir)?, &["a", "b", "c"])?,
        "drain" => producers::beside_a_consumer(setup)?,
        "spool" => match hooks::spool(&setup.dir) {
            Some(log) => producers::tasks(setup, log?, &["a"])?,
            None => return Ok(Outcome::NotMeasured("the spool engine is not in this build".to_owned())),
        },
        "backlog" => backlog::run(setup)?,
        "fill" => open::fill(setup)?,
        "open" => open::open(setup)?,
        "open-scan" => match hooks::without_footers() {
            Some(options) => open::open_scan(setup, options)?,
            None => {
                return Ok(Outcome::NotMeasured(
                    "the store has no option to open without footers".to_owned(),
                ));
            }
        },
        "read-files" => open::read_files(setup)?,
        other => bail!("no case `{other}`"),
    };
    Ok(Outcome::Measured(report))
}
