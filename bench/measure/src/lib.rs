//! What all measured programs share: one case per call, for a given time, and one line of JSON about it.
//!
//! A program gives [`run`] a function that knows its cases. The case gets a [`Setup`] with a directory of its own, which
//! is removed when the program ends, and returns a [`Report`] or the reason why it cannot be measured.

mod busy;
mod payload;
mod producers;
mod syncs;
mod system;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;

pub use payload::json;
pub use producers::{Phase, Samples, threads, window};
pub use syncs::syncs;
pub use system::{Meter, Report, cpu, drop_cached, resident_bytes};

/// One call measures one case.
#[derive(Parser)]
struct Arguments {
    /// The case
    case: String,
    /// Producers, or whatever else the case counts
    #[arg(default_value_t = 1)]
    count: u64,
    /// For how long to measure
    #[arg(long, default_value_t = 2.0)]
    secs: f64,
    /// Where data goes; it should be on a real disk
    #[arg(long)]
    dir: PathBuf,
    /// Beside a busy loop on every core
    #[arg(long)]
    busy: bool,
}

/// What a case gets.
pub struct Setup {
    pub case: String,
    pub count: u64,
    /// Measured time.
    pub time: Duration,
    /// Empty, and removed at the end.
    pub dir: PathBuf,
    /// Shared by all cases of one run of the benchmark, which removes it.
    pub shared: PathBuf,
}

/// What a case found.
pub enum Outcome {
    Measured(Report),
    /// With the reason, for a person.
    NotMeasured(String),
}

/// The `main` of a program: `cases` measures one of its cases.
pub fn run(cases: fn(&Setup) -> Result<Outcome>) -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(busy::COMMAND) {
        busy::spin();
        return ExitCode::SUCCESS;
    }
    match measure(&Arguments::parse(), cases) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(arguments: &Arguments, cases: fn(&Setup) -> Result<Outcome>) -> Result<serde_json::Value> {
    let own = OwnDir::new(&arguments.dir, &arguments.case)?;
    syncs::self_test(&own.0)?;
    let setup = Setup {
        case: arguments.case.clone(),
        count: arguments.count,
        time: Duration::try_from_secs_f64(arguments.secs).context("--secs is no time")?,
        dir: own.0.clone(),
        shared: arguments.dir.clone(),
    };
    // What the case before left in the cache is written now and not while this one is measured.
    system::sync_file_system(&own.0)?;
    let _busy = if arguments.busy { busy::on_every_core()? } else { Vec::new() };
    let outcome = cases(&setup).with_context(|| format!("{} {}", setup.case, setup.count))?;
    let mut line = match outcome {
        Outcome::Measured(report) => report.into_json(),
        Outcome::NotMeasured(reason) => serde_json::json!({ "not_measured": reason }),
    };
    line["case"] = setup.case.into();
    line["count"] = setup.count.into();
    line["busy"] = arguments.busy.into();
    Ok(line)
}

/// A directory that goes with the value.
struct OwnDir(PathBuf);

impl OwnDir {
    fn new(parent: &Path, case: &str) -> Result<Self> {
        let dir = parent.join(format!("{case}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        Ok(Self(dir))
    }
}

impl Drop for OwnDir {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("{} is left: {error}", self.0.display());
        }
    }
}
