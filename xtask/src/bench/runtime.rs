//! The rows of the suite `runtime`. docs/benchmarks.md says what each means.

use super::rows::{Case, Goal, Program, Row, Side, against, alone, labelled, of};
use Goal::{AtLeast, AtMost};

const RATE: &str = "events_per_s";
const MILLION: u64 = 1_000_000;
/// Entries of a backlog that is replayed.
const BACKLOG: u64 = 400_000;
const GOOD: u64 = 200_000;

pub(super) fn rows() -> Vec<Row> {
    let files = || labelled("one file per event", of(case("replay-files", 4000), RATE));
    let none = || labelled("none stuck", of(case("stuck-none", GOOD), RATE));
    let latency = |field| of(case("latency", 1), field);
    let behind = |field| of(case("behind", MILLION), field);
    let live = |field| of(case("live", MILLION), field);
    vec![
        alone("replay/rate", "events/s", replay(BACKLOG), AtLeast(200_000.0)),
        against("replay/files", "events/s", replay(BACKLOG), files(), AtLeast(60.0)),
        alone("replay/singly", "events/s", of(case("replay-singly", GOOD), RATE), AtLeast(200_000.0)),
        alone("latency/p50", "µs", latency("beyond_p50_us"), AtMost(200.0)),
        alone("latency/p99", "µs", latency("beyond_p99_us"), AtMost(1000.0)),
        alone("idle", "wake-ups", of(case("idle", 1), "wakeups"), AtMost(0.0)),
        against(
            "webhook",
            "events/s",
            of(case("webhook", 64), RATE),
            labelled("the client in a bare loop", of(case("webhook-bare", 64), RATE)),
            AtLeast(0.85),
        ),
        against("stuck/front", "events/s", of(case("stuck", GOOD), RATE), none(), AtLeast(0.9)),
        against("stuck/mixed", "events/s", of(case("stuck-mixed", GOOD), RATE), none(), AtLeast(0.9)),
        alone("behind/memory", "MiB", behind("resident_mib"), AtMost(90.0)),
        alone("behind/found", "events", behind("found"), AtLeast(1000.0)),
        alone("live/new", "ms", live("new_max_ms"), AtMost(1000.0)),
        alone("live/growth", "times", live("growth"), AtMost(1.1)),
        alone("memory/1m", "MiB", of(case("waiting", MILLION), "resident_mib"), AtMost(60.0)),
        alone("memory/pid", "bytes", of(case("waiting-pids", 100_000), "bytes_per_pid"), AtMost(256.0)),
        alone("memory/10m", "MiB", of(case("waiting", 10 * MILLION), "resident_mib"), AtMost(60.0)),
    ]
}

fn replay(count: u64) -> Side {
    of(case("replay", count), RATE)
}

fn case(name: &'static str, count: u64) -> Case {
    Case { program: Program::Runtime, name, count, busy: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_row_has_a_name_of_its_own() {
        let rows = rows();
        let names: BTreeSet<&str> = rows.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), rows.len());
    }

    #[test]
    fn what_is_compared_has_the_same_events_to_deliver() {
        for row in rows().into_iter().filter(|row| row.name.starts_with("stuck/")) {
            let base = row.base.map(|base| base.cases[0].count);
            assert_eq!(base, Some(row.value.cases[0].count), "{}", row.name);
        }
    }
}
