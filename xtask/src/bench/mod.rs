//! `cargo xtask bench`: a suite that is measured against the disk and its rivals in the same run, or the criterion
//! benchmarks of the crates.

mod criterion;
mod load;
mod programs;
mod rows;
mod runtime;
mod store;
mod table;
mod writer;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::cmd;
use crate::metadata::{Metadata, Package};
use programs::{Bench, Results};
use rows::Row;
use table::Table;

/// What `--gate` ends with when a goal is missed.
const MISSED: u8 = 3;

/// The suites with goals.
const SUITES: &[Suite] = &[
    Suite { name: "store", rows: store::rows },
    Suite { name: "writer", rows: writer::rows },
    Suite { name: "runtime", rows: runtime::rows },
];

struct Suite {
    name: &'static str,
    rows: fn() -> Vec<Row>,
}

#[derive(Args)]
pub(crate) struct Options {
    /// `store`, `writer`, `runtime`: rows with goals, rivals in the same run. A crate, with or without `outhaul-`: its criterion
    /// benchmarks. Nothing: the criterion benchmarks of all crates
    suite: Option<String>,
    /// Only this row, or the rows of this group: `64/rate`, `64`; can be given again
    #[arg(long = "row", value_name = "NAME")]
    rows: Vec<String>,
    /// How often each case runs, all cases one after the other each time; medians are shown [default: 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    runs: Option<u32>,
    /// For how many seconds a case is measured [default: 2]
    #[arg(long, value_name = "S")]
    secs: Option<f64>,
    /// One run of half a second, without the rows that need a million entries: shows that it works, measures little
    #[arg(long)]
    quick: bool,
    /// Also the rows that need ten million entries: 12 GB of disk and some minutes
    #[arg(long)]
    large: bool,
    /// Writes the table with every run to a file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Ends with 3 when a goal is missed
    #[arg(long)]
    gate: bool,
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<ExitCode> {
    let metadata = Metadata::load(root)?;
    let Some(suite) = find(options.suite.as_deref(), &metadata)? else {
        ensure!(!options.wants_rows(), "only a suite with rows takes these options; there are: {}", names());
        let name = options.suite.as_deref();
        let wanted = |package: &&Package| name.is_none_or(|name| package.is_called(name));
        criterion::run(root, criterion::packages(&metadata).filter(wanted))?;
        return Ok(ExitCode::SUCCESS);
    };
    let rows = options.chosen((suite.rows)())?;
    let commit = commit(root)?;
    let bench = Bench::prepare(root, &metadata.target_directory, options.secs(), &rows)?;
    let results = bench.run(&rows, options.runs())?;
    let table = Table::new(suite.name, &commit, &bench.machine(), &rows, &results);
    println!("\n{table}");
    if let Some(file) = &options.json {
        std::fs::write(file, table.to_json()?).with_context(|| format!("cannot write {}", file.display()))?;
        println!("{} is written", file.display());
    }
    Ok(if options.gate && table.missed() > 0 { ExitCode::from(MISSED) } else { ExitCode::SUCCESS })
}

/// The suite of that name, or none when it is one of criterion's, or all of those.
fn find(name: Option<&str>, metadata: &Metadata) -> Result<Option<&'static Suite>> {
    let Some(name) = name else { return Ok(None) };
    let suite = SUITES.iter().find(|suite| suite.name == name);
    if suite.is_none() && !criterion::packages(metadata).any(|package| package.is_called(name)) {
        let crates: Vec<&str> = criterion::packages(metadata).map(|package| package.name.as_str()).collect();
        bail!("no suite `{name}`; with rows: {}; criterion benchmarks of: {}", names(), crates.join(", "));
    }
    Ok(suite)
}

fn names() -> String {
    SUITES.iter().map(|suite| suite.name).collect::<Vec<_>>().join(", ")
}

impl Options {
    fn wants_rows(&self) -> bool {
        let timed = self.runs.is_some() || self.secs.is_some() || self.quick || self.large;
        timed || !self.rows.is_empty() || self.json.is_some() || self.gate
    }

    fn runs(&self) -> u32 {
        self.runs.unwrap_or(if self.quick { 1 } else { 5 })
    }

    fn secs(&self) -> f64 {
        self.secs.unwrap_or(if self.quick { 0.5 } else { 2.0 })
    }

    /// The rows that were named, whatever their size, or all that are not too large.
    fn chosen(&self, all: Vec<Row>) -> Result<Vec<Row>> {
        if self.rows.is_empty() {
            let most = if self.large {
                u64::MAX
            } else if self.quick {
                1_000
            } else {
                1_000_000
            };
            return Ok(all.into_iter().filter(|row| row.entries() <= most).collect());
        }
        for name in &self.rows {
            if !all.iter().any(|row| row.is_called(name)) {
                let known: Vec<&str> = all.iter().map(|row| row.name).collect();
                bail!("no row `{name}`; there are: {}", known.join(", "));
            }
        }
        Ok(all.into_iter().filter(|row| self.rows.iter().any(|name| row.is_called(name))).collect())
    }
}

/// The commit, and whether the tree is as it was committed.
fn commit(root: &Path) -> Result<String> {
    let git = |words: &[&str]| cmd::read(&mut cmd::tool(root, Path::new("git"), words));
    let hash = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Ok(format!("{}{}", hash.trim(), if changed { "-changed" } else { "" }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn chosen(words: &[&str]) -> Result<Vec<&'static str>> {
        let line = Line::parse_from([&["bench", "store"], words].concat());
        Ok(line.options.chosen(store::rows())?.iter().map(|row| row.name).collect())
    }

    #[test]
    fn a_row_is_chosen_by_its_name_or_its_group() {
        assert_eq!(chosen(&["--row", "64/rate"]).unwrap(), ["64/rate"]);
        assert_eq!(chosen(&["--row", "1"]).unwrap(), ["1/rate", "1/p50"]);
        assert_eq!(chosen(&["--row", "fan-out", "--row", "1/p50"]).unwrap(), ["1/p50", "fan-out"]);
    }

    #[test]
    fn an_unknown_row_is_an_error_that_lists_the_known_ones() {
        let error = chosen(&["--row", "6"]).unwrap_err().to_string();
        assert!(error.starts_with("no row `6`; there are: 1/rate, 1/p50, "), "{error}");
    }

    #[test]
    fn an_unknown_suite_is_an_error_that_lists_the_known_ones() {
        let json = r#"{"target_directory": "/t", "packages": [
            {"name": "outhaul-target", "dependencies": [], "features": {},
             "targets": [{"name": "ring", "kind": ["bench"]}]},
            {"name": "outhaul-event", "dependencies": [], "features": {}, "targets": []}]}"#;
        let metadata: Metadata = serde_json::from_str(json).unwrap();
        for name in ["store", "writer", "runtime"] {
            assert_eq!(find(Some(name), &metadata).unwrap().map(|suite| suite.name), Some(name));
        }
        assert!(find(Some("target"), &metadata).unwrap().is_none());
        for name in ["event", "nothing"] {
            let error = find(Some(name), &metadata).err().unwrap().to_string();
            let known = "with rows: store, writer, runtime; criterion benchmarks of: outhaul-target";
            assert_eq!(error, format!("no suite `{name}`; {known}"));
        }
    }

    #[test]
    fn large_rows_are_measured_only_when_they_are_asked_for() {
        let large = "memory/10m";
        assert!(!chosen(&[]).unwrap().contains(&large));
        assert!(chosen(&["--large"]).unwrap().contains(&large));
        assert_eq!(chosen(&["--row", large]).unwrap(), [large]);
        let quick = chosen(&["--quick"]).unwrap();
        assert!(quick.contains(&"8/rate") && !quick.contains(&"open/sealed"), "{quick:?}");
    }
}
