//! Which embedded engine should hold the ledger's rows? One command prints the table of `docs/kv.md`:
//!
//! ```text
//! cargo run --release --manifest-path bench/kv/Cargo.toml -- [--runs N] [--groups N] [--dir DIR]
//! cargo run --release --manifest-path bench/kv/Cargo.toml -- --damage 150
//! ```
//!
//! The engines take turns, run by run; every figure is the median over the runs.

mod damage;
mod engine;
mod ledger;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use engine::Kind;
use ledger::{KEYS_PER_GROUP, Ledger};

/// The hidden word with which this program starts itself.
const VICTIM: &str = "victim";
const GROUP: usize = 512;
/// Per commit, in the small store that is damaged.
const DAMAGE_GROUPS: usize = 64;
const SINGLES: usize = 300;
const BIG_COMMITS: usize = 20;
const GETS: usize = 20_000;
const SCANS: usize = 2_000;
const SCAN_KEYS: usize = 100;

const ROWS: [(&str, &str); 13] = [
    ("load, per key", "µs"),
    ("one 7-key group, one commit", "ms"),
    ("the same, 99th percentile", "ms"),
    ("the same, written to disk", "KiB"),
    ("512 groups, one commit", "ms"),
    ("the same, slowest", "ms"),
    ("point get", "µs"),
    ("range scan of 100", "µs"),
    ("close", "ms"),
    ("open, after a clean close", "ms"),
    ("open, after a kill", "ms"),
    ("size on disk after the load", "MiB"),
    ("size on disk at the end", "MiB"),
];

fn main() -> Result<()> {
    let words = std::env::args().skip(1).collect::<Vec<_>>();
    if let [word, engine, dir] = words.as_slice()
        && word == VICTIM
    {
        return victim(Kind::named(engine)?, Path::new(dir));
    }
    let options = Options::parse(&words)?;
    fs::create_dir_all(&options.dir)?;
    if let Some(trials) = options.damage {
        return damage(&options.dir, trials);
    }
    let mut table = vec![vec![Vec::new(); ROWS.len()]; Kind::ALL.len()];
    let mut syncs = Vec::new();
    for run in 0..options.runs {
        syncs.push(sync_ms(&options.dir)?);
        for turn in 0..Kind::ALL.len() {
            let column = (run + turn) % Kind::ALL.len();
            let kind = Kind::ALL[column];
            let dir = options.dir.join(format!("{run}-{column}"));
            fs::create_dir(&dir)?;
            let values = measure(kind, &dir, options.groups, run as u64)
                .with_context(|| format!("{} in run {run}", kind.name()))?;
            eprintln!("run {run} {}: {values:.2?}", kind.name());
            for (cell, value) in table[column].iter_mut().zip(values) {
                cell.push(value);
            }
            fs::remove_dir_all(&dir)?;
        }
    }
    print(&table, &mut syncs, &options);
    Ok(())
}

fn damage(dir: &Path, trials: usize) -> Result<()> {
    println!(
        "| {trials} changed bytes | harmless | an error | a panic | rows silently lost | rows silently wrong |"
    );
    println!("|---|---:|---:|---:|---:|---:|");
    for (column, kind) in Kind::ALL.into_iter().enumerate() {
        let written = dir.join(format!("damage-{column}"));
        kill_in_use(kind, &written, DAMAGE_GROUPS)?;
        let found = damage::trials(kind, &written, &dir.join("damage"), trials)?;
        let damage::Outcomes { harmless, noticed, panicked, rows_lost, rows_wrong } = found;
        println!("| {} | {harmless} | {noticed} | {panicked} | {rows_lost} | {rows_wrong} |", kind.name());
        fs::remove_dir_all(written)?;
    }
    Ok(())
}

struct Options {
    runs: usize,
    groups: usize,
    damage: Option<usize>,
    dir: PathBuf,
}

impl Options {
    fn parse(words: &[String]) -> Result<Self> {
        let temporary = std::env::temp_dir().join(format!("bench-kv-{}", std::process::id()));
        let mut options = Self { runs: 5, groups: 143_000, damage: None, dir: temporary };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let value = words.next().with_context(|| format!("{word} needs a value"))?;
            match word.as_str() {
                "--runs" => options.runs = value.parse()?,
                "--groups" => options.groups = value.parse()?,
                "--damage" => options.damage = Some(value.parse()?),
                "--dir" => options.dir = value.into(),
                _ => bail!("unknown option {word}"),
            }
        }
        ensure!(options.runs > 0 && options.groups > 0, "zero is no number of runs or groups");
        Ok(options)
    }
}

fn measure(kind: Kind, dir: &Path, groups: usize, seed: u64) -> Result<[f64; ROWS.len()]> {
    let mut ledger = Ledger::new(seed);
    let live = dir.join("live");
    let engine = kind.open(&live)?;

    let started = Instant::now();
    for first in (0..groups).step_by(GROUP) {
        let batch = (first..groups.min(first + GROUP)).map(|_| ledger.new_process()).collect::<Vec<_>>();
        engine.commit(&batch)?;
    }
    let load = micros(started.elapsed()) / (groups * KEYS_PER_GROUP) as f64;
    let size_loaded = mib(disk_bytes(&live)?);

    let written = written_bytes()?;
    let mut singles = Vec::new();
    for _ in 0..SINGLES {
        let batch = [ledger.next_step()];
        let started = Instant::now();
        engine.commit(&batch)?;
        singles.push(millis(started.elapsed()));
    }
    let written = (written_bytes()? - written) as f64 / 1024.0 / SINGLES as f64;

    let mut big = Vec::new();
    for _ in 0..BIG_COMMITS {
        let batch = (0..GROUP).map(|_| ledger.next_step()).collect::<Vec<_>>();
        let started = Instant::now();
        engine.commit(&batch)?;
        big.push(millis(started.elapsed()));
    }

    let keys = (0..GETS).map(|_| ledger.known_key()).collect::<Vec<_>>();
    let started = Instant::now();
    for key in &keys {
        ensure!(engine.get(key)?.is_some(), "a key that was written is not there");
    }
    let get = micros(started.elapsed()) / GETS as f64;

    let starts = (0..SCANS).map(|_| ledger.scan_start()).collect::<Vec<_>>();
    let started = Instant::now();
    for start in &starts {
        ensure!(!engine.scan(start, SCAN_KEYS)?.is_empty(), "a scan found nothing");
    }
    let scan = micros(started.elapsed()) / SCANS as f64;

    let size_end = mib(disk_bytes(&live)?);
    let started = Instant::now();
    engine.close()?;
    let close = millis(started.elapsed());

    let last = &keys[0];
    let open_clean = open_ms(kind, &live, last)?;
    kill_in_use(kind, &live, GROUP)?;
    let open_killed = open_ms(kind, &live, last)?;
    Ok([
        load,
        median(&mut singles),
        singles[singles.len() * 99 / 100],
        written,
        median(&mut big),
        big[big.len() - 1],
        get,
        scan,
        close,
        open_clean,
        open_killed,
        size_loaded,
        size_end,
    ])
}

fn open_ms(kind: Kind, dir: &Path, key: &[u8]) -> Result<f64> {
    let started = Instant::now();
    let engine = kind.open(dir)?;
    ensure!(engine.get(key)?.is_some(), "a key is gone after opening again");
    let elapsed = millis(started.elapsed());
    engine.close()?;
    Ok(elapsed)
}

/// Opens the directory in a process of its own, which writes and is then killed.
fn kill_in_use(kind: Kind, dir: &Path, groups: usize) -> Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    let mut child =
        command.args([VICTIM, kind.name(), &groups.to_string()]).arg(dir).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("no pipe")?).read_line(&mut line)?;
    child.kill()?;
    child.wait()?;
    ensure!(line == "written\n", "the process that was to be killed failed");
    Ok(())
}

fn victim(kind: Kind, groups: usize, dir: &Path) -> Result<()> {
    let engine = kind.open(dir)?;
    let mut ledger = Ledger::new(1 << 40);
    for _ in 0..BIG_COMMITS {
        engine.commit(&(0..groups).map(|_| ledger.new_process()).collect::<Vec<_>>())?;
    }
    println!("written");
    loop {
        std::thread::park();
    }
}

/// The floor of any synced commit on this disk: append the bytes of one group to a file, and `fdatasync`.
fn sync_ms(dir: &Path) -> Result<f64> {
    let path = dir.join("floor");
    let mut file = fs::File::create(&path)?;
    let mut times = Vec::new();
    for _ in 0..SINGLES {
        let started = Instant::now();
        file.write_all(&[7; 2048])?;
        file.sync_data()?;
        times.push(millis(started.elapsed()));
    }
    fs::remove_file(path)?;
    Ok(median(&mut times))
}

/// Bytes that this process caused to be sent to the disk.
fn written_bytes() -> Result<u64> {
    let io = fs::read_to_string("/proc/self/io")?;
    let line = io.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    Ok(line.context("no write_bytes in /proc/self/io")?.parse()?)
}

fn disk_bytes(path: &Path) -> Result<u64> {
    let about = fs::symlink_metadata(path)?;
    let mut bytes = about.blocks() * 512;
    if about.is_dir() {
        for entry in fs::read_dir(path)? {
            bytes += disk_bytes(&entry?.path())?;
        }
    }
    Ok(bytes)
}

fn print(table: &[Vec<Vec<f64>>], syncs: &mut [f64], options: &Options) {
    let keys = options.groups * KEYS_PER_GROUP;
    println!(
        "{} runs, {keys} keys loaded; write of 2 KiB and fdatasync: {:.2} ms\n",
        options.runs,
        median(syncs)
    );
    let names = Kind::ALL.map(|kind| kind.name()).join(" | ");
    println!("| | unit | {names} |\n|---|---|{}", "---:|".repeat(table.len()));
    for (row, (name, unit)) in ROWS.iter().enumerate() {
        let cells = table.iter().map(|column| format!("{:.2}", median(&mut column[row].clone())));
        println!("| {name} | {unit} | {} |", cells.collect::<Vec<_>>().join(" | "));
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
