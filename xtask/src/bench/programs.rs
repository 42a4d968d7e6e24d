//! Builds the measured programs and runs their cases, those of all rows in turn, run after run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use super::load::Load;
use super::rows::{Case, Measured, Program, Row, Run};
use crate::cmd;

/// Every run, in order.
pub(super) type Results = Vec<Run>;

/// Where the data goes instead of the target directory.
const DIR_VARIABLE: &str = "BENCH_DIR";

/// The programs, ready to run, and a directory for their data that goes with the value.
pub(super) struct Bench {
    root: PathBuf,
    binaries: PathBuf,
    dir: PathBuf,
    secs: f64,
}

impl Bench {
    /// Builds what the rows need.
    pub(super) fn prepare(root: &Path, target: &Path, secs: f64, rows: &[Row]) -> Result<Self> {
        ensure!(secs.is_finite() && secs > 0.0, "--secs is a time above 0");
        let target = target.join("bench");
        // Not `--locked`: a crate that takes a new dependency need not know this workspace.
        let words = ["build", "--release", "--manifest-path", "bench/Cargo.toml", "--target-dir"];
        let packages: BTreeSet<_> =
            rows.iter().flat_map(Row::cases).map(|case| case.program.package()).collect();
        let packages = packages.into_iter().flat_map(|package| ["-p", package]);
        cmd::step("build", || cmd::run(cmd::cargo(root, &words).arg(&target).args(packages)))?;
        let parent = std::env::var_os(DIR_VARIABLE).map_or_else(|| target.join("data"), PathBuf::from);
        remove_stale(&parent)?;
        let dir = parent.join(format!("run-{}", std::process::id()));
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let dir = fs::canonicalize(dir)?;
        let bench = Self { root: root.to_owned(), binaries: target.join("release"), dir, secs };
        let kind = bench.file_system();
        ensure!(
            kind != "tmpfs",
            "{} is in memory: name a place on a disk in {DIR_VARIABLE}",
            parent.display()
        );
        Ok(bench)
    }

    /// Runs all cases that the rows need, `runs` times.
    pub(super) fn run(&self, rows: &[Row], runs: u32) -> Result<Results> {
        let cases = cases(rows);
        println!(
            "--- {} cases, {runs} runs, {} s each, data in {}",
            cases.len(),
            self.secs,
            self.dir.display()
        );
        let load = Load::start();
        let mut results = Vec::new();
        for number in 1..=runs {
            let mut run = Run::new();
            for (done, case) in cases.iter().enumerate() {
                let begun = Instant::now();
                let measured = self.measure(case)?;
                let shown = shown(&measured);
                let secs = begun.elapsed().as_secs_f64();
                println!(
                    "run {number}/{runs} [{:>2}/{}] {case}: {shown} ({secs:.1} s)",
                    done + 1,
                    cases.len()
                );
                run.insert(*case, measured);
            }
            results.push(run);
        }
        println!("--- others used {:.0} % of the processors meanwhile", load.of_others() * 100.0);
        Ok(results)
    }

    /// A rival that fails is a gap; one of ours that fails is the end.
    fn measure(&self, case: &Case) -> Result<Measured> {
        let program = match case.program {
            Program::Store => "bench-store",
            Program::Writer => "bench-writer",
            Program::WriterCounted => "bench-writer-counted",
            Program::Runtime => "bench-runtime",
            Program::Rivals => "bench-rivals",
        };
        let mut command = cmd::tool(&self.root, &self.binaries.join(program), &[case.name]);
        command.arg(case.count.to_string()).args(["--secs", &self.secs.to_string()]);
        command.arg("--dir").arg(&self.dir).stderr(Stdio::inherit());
        if case.busy {
            command.arg("--busy");
        }
        let read = cmd::read(&mut command).and_then(|line| parse(&line));
        match (read, case.program) {
            (Ok(measured), _) => Ok(measured),
            (Err(error), Program::Rivals) => Ok(Err(format!("{case} failed: {error:#}"))),
            (Err(error), Program::Store | Program::Writer | Program::WriterCounted | Program::Runtime) => {
                Err(error.context(format!("{case} failed")))
            }
        }
    }

    /// What the numbers are from, for whoever compares them with others.
    pub(super) fn machine(&self) -> String {
        let word = |file: &str| fs::read_to_string(file).unwrap_or_default();
        let cpuinfo = word("/proc/cpuinfo");
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let model = model.map_or("unknown processor", |(_, name)| name);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let kernel = word("/proc/sys/kernel/osrelease");
        format!("{cores} cores of {model}, Linux {}, {}", kernel.trim(), self.file_system())
    }

    /// The kind of the file system below the data: of the longest mount point that the path begins with.
    fn file_system(&self) -> String {
        let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
        let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let below = fields.filter(|mount| mount.len() > 2 && self.dir.starts_with(mount[1]));
        below.max_by_key(|mount| mount[1].len()).map_or_else(String::new, |mount| mount[2].to_owned())
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.dir) {
            eprintln!("{} is left: {error}", self.dir.display());
        }
    }
}

/// Data of a benchmark that was killed.
fn remove_stale(parent: &Path) -> Result<()> {
    for entry in fs::read_dir(parent).into_iter().flatten() {
        let path = entry?.path();
        let process =
            path.file_name().and_then(|name| name.to_str()?.strip_prefix("run-")?.parse::<u32>().ok());
        if process.is_some_and(|process| !Path::new("/proc").join(process.to_string()).exists()) {
            fs::remove_dir_all(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}

/// What the rows need, each once, in the order of the rows.
fn cases(rows: &[Row]) -> Vec<Case> {
    let mut cases = Vec::new();
    for case in rows.iter().flat_map(Row::cases) {
        if !cases.contains(&case) {
            cases.push(case);
        }
    }
    cases
}

/// The line of one case.
fn parse(line: &str) -> Result<Measured> {
    let report: BTreeMap<String, serde_json::Value> =
        serde_json::from_str(line).with_context(|| format!("not a line of JSON: {line}"))?;
    if let Some(reason) = report.get("not_measured") {
        return Ok(Err(reason.as_str().unwrap_or_default().to_owned()));
    }
    let numbers: BTreeMap<_, _> =
        report.into_iter().filter_map(|(name, value)| Some((name, value.as_f64()?))).collect();
    if numbers.is_empty() {
        bail!("a case without numbers: {line}");
    }
    Ok(Ok(numbers))
}

/// A case in a few words, while the rest still runs.
fn shown(measured: &Measured) -> String {
    match measured {
        Err(reason) => format!("not measured: {reason}"),
        Ok(numbers) => match (numbers.get("events_per_s"), numbers.get("open_ms")) {
            (Some(rate), _) => format!("{rate:.0} events/s"),
            (None, Some(millis)) => format!("{millis:.1} ms"),
            (None, None) => String::new(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::store;

    #[test]
    fn each_case_runs_once_in_a_run_however_many_rows_need_it() {
        let rows: Vec<Row> = store::rows().into_iter().filter(|row| row.is_called("1")).collect();
        let shown: Vec<String> = cases(&rows).iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["threads 1", "bare 1"]);
    }

    #[test]
    fn a_line_gives_its_numbers_or_its_reason() {
        let numbers = parse(r#"{"case": "a", "busy": false, "events_per_s": 12.5}"#).unwrap().unwrap();
        assert_eq!(numbers, BTreeMap::from([("events_per_s".to_owned(), 12.5)]));
        let line = r#"{"case": "a", "count": 1, "not_measured": "no engine"}"#;
        assert_eq!(parse(line).unwrap(), Err("no engine".to_owned()));
        assert!(parse("{}").is_err());
        assert!(parse("killed").is_err());
    }

    #[test]
    fn data_of_a_process_that_is_gone_is_removed_and_nothing_else() {
        let parent = std::env::temp_dir().join(format!("xtask-bench-{}", std::process::id()));
        let (gone, mine, other) = (
            parent.join(format!("run-{}", u32::MAX)),
            parent.join(format!("run-{}", std::process::id())),
            parent.join("photos"),
        );
        for dir in [&gone, &mine, &other] {
            fs::create_dir_all(dir).unwrap();
        }
        remove_stale(&parent).unwrap();
        assert!(!gone.exists() && mine.exists() && other.exists());
        fs::remove_dir_all(&parent).unwrap();
        remove_stale(&parent).unwrap();
    }
}
