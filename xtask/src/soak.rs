//! `cargo xtask soak`: the slow suites with ever new seeds, for as long as one likes.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::cmd;
use crate::test::SLOW_SCALE;

/// The slow suites: a package, and how the names of its tests begin.
const SUITES: &[(&str, &str)] =
    &[("outhaul-store", "sim_"), ("outhaul-runtime", "sim_"), ("outhaul-cli", "crash_")];

#[derive(Args)]
pub(crate) struct Options {
    /// How long to go on; a round that has begun is finished
    #[arg(long, value_name = "N", default_value_t = 10)]
    minutes: u64,
    /// The seed of the first round; the next round takes the next number [default: the time now]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    for (package, prefix) in SUITES {
        require_tests(root, package, prefix)?;
    }
    let start = Instant::now();
    let time = Duration::from_secs(options.minutes.saturating_mul(60));
    let mut seed = match options.seed {
        Some(seed) => seed,
        None => SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is before 1970")?.as_secs(),
    };
    let mut rounds = 0_u64;
    while rounds == 0 || start.elapsed() < time {
        println!(
            "--- round {} · seed {seed} · {} s of {} s",
            rounds + 1,
            start.elapsed().as_secs(),
            time.as_secs()
        );
        round(root, seed)?;
        rounds += 1;
        seed = seed.wrapping_add(1);
    }
    println!("soak: ok, rounds={rounds} seconds={}", start.elapsed().as_secs());
    Ok(())
}

fn round(root: &Path, seed: u64) -> Result<()> {
    for (package, prefix) in SUITES {
        let mut command = suite(root, package, prefix);
        command.env("OUTHAUL_TEST_SCALE", SLOW_SCALE).env("OUTHAUL_TEST_SEED", seed.to_string());
        if let Err(error) = cmd::run(&mut command) {
            bail!("{error:#}\nseed {seed} fails; to see it again:\n  {}", cmd::show(&command));
        }
    }
    Ok(())
}

fn suite(root: &Path, package: &str, prefix: &str) -> Command {
    cmd::cargo(root, &["test", "-p", package, "--all-features", "--locked", "--test", "it", prefix])
}

/// A filter that fits no test passes in no time: a renamed suite must not make the soak an empty one.
fn require_tests(root: &Path, package: &str, prefix: &str) -> Result<()> {
    let list = cmd::read(suite(root, package, prefix).args(["--", "--list"]))?;
    if count(&list) == 0 {
        bail!("no test of {package} fits `{prefix}`; the suites are named in SUITES in xtask/src/soak.rs");
    }
    Ok(())
}

fn count(list: &str) -> usize {
    list.lines().filter(|line| line.ends_with(": test")).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_list_of_tests_counts_as_none() {
        assert_eq!(count("sim_power_cut: test\nsim_torn: test\n\n2 tests, 0 benchmarks\n"), 2);
        assert_eq!(count("\n0 tests, 0 benchmarks\n"), 0);
    }

    #[test]
    fn the_command_to_see_a_failure_again_holds_its_seed() {
        let mut command = suite(Path::new("/"), "outhaul-store", "sim_");
        command.env("OUTHAUL_TEST_SEED", "7");
        let shown = cmd::show(&command);
        assert_eq!(
            shown,
            "OUTHAUL_TEST_SEED=7 cargo test -p outhaul-store --all-features --locked --test it sim_"
        );
    }
}
