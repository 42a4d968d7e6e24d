//! The rows of the suite `store`. docs/benchmarks.md says what each means.

use super::rows::{Case, Goal, Program, Row, Side, against, alone, labelled, of};
use Goal::{AtLeast, AtMost};

const RIVALS: &[&str] = &["okaywal", "raft-engine", "fjall", "redb", "sqlite", "files"];
const RATE: &str = "events_per_s";
const MILLION: u64 = 1_000_000;

pub(super) fn rows() -> Vec<Row> {
    let rate = |side: fn(&'static str) -> Side| side(RATE);
    let mut rows = vec![
        against("1/rate", "events/s", of(ours("threads", 1), RATE), bare(1, RATE), AtLeast(0.95)),
        against("1/p50", "µs", of(ours("threads", 1), "p50_us"), bare(1, "p50_us"), AtMost(1.1)),
        against("8/rate", "events/s", of(ours("threads", 8), RATE), bare(1, RATE), AtLeast(5.0)),
        alone("8/per-sync", "events", of(ours("threads", 8), "events_per_sync"), AtLeast(7.5)),
        against("8/rival", "events/s", of(ours("threads", 8), RATE), best_rival(8, false), AtLeast(1.5)),
        against("64/rate", "events/s", rate(best_64), bare(64, RATE), AtLeast(0.7)),
        alone("64/per-sync", "events", best_64("events_per_sync"), AtLeast(60.0)),
        against("64/rival", "events/s", rate(best_64), best_rival(64, false), AtLeast(3.5)),
        against("64/files", "events/s", rate(best_64), files(64), AtLeast(22.0)),
        against(
            "64/p99",
            "µs",
            best_64("p99_us"),
            Side { label: "its p50", ..best_64("p50_us") },
            AtMost(5.0),
        ),
        against("512/rate", "events/s", of(ours("tasks", 512), RATE), bare(512, RATE), AtLeast(0.55)),
        against("512/rival", "events/s", of(ours("tasks", 512), RATE), best_rival(512, false), AtLeast(6.0)),
        against("512/files", "events/s", of(ours("tasks", 512), RATE), files(512), AtLeast(40.0)),
        against(
            "fan-out",
            "events/s",
            of(ours("fan-out", 64), RATE),
            labelled("one target", of(ours("tasks", 64), RATE)),
            AtLeast(0.9),
        ),
        against("busy/8", "events/s", of(busy(ours("threads", 8)), RATE), best_rival(8, true), AtLeast(1.0)),
        against("busy/64", "events/s", best_64_busy(), best_rival(64, true), AtLeast(2.0)),
        alone("cpu/64", "µs/event", best_64("cpu_us_per_event"), AtMost(6.0)),
        alone("cpu/512", "µs/event", of(ours("tasks", 512), "cpu_us_per_event"), AtMost(3.0)),
        // Others use the disk too; what they flush is in both numbers.
        against(
            "flushes",
            "per batch",
            of(ours("threads", 1), "flushes_per_call"),
            bare(1, "flushes_per_call"),
            AtMost(1.1),
        ),
        alone("written", "bytes/event", of(ours("drain", 64), "written_bytes_per_event"), AtMost(1126.0)),
        against(
            "drain",
            "events/s",
            of(ours("drain", 64), RATE),
            labelled("no consumer", of(ours("tasks", 64), RATE)),
            AtLeast(0.9),
        ),
        against(
            "first-lap",
            "events/s",
            of(ours("first-lap", 64), RATE),
            labelled("a log that has been in use", of(ours("tasks", 64), RATE)),
            AtLeast(0.5),
        ),
        against("spool", "events/s", of(ours("spool", 64), RATE), files(64), AtLeast(2.0)),
    ];
    rows.extend(backlog());
    rows
}

/// The rows that need many entries.
fn backlog() -> Vec<Row> {
    let waiting = |field| of(ours("backlog", MILLION), field);
    let few = |field| labelled("1,000 waiting", of(ours("backlog", 1000), field));
    let read = labelled("reading the files", of(ours("read-files", MILLION), "open_ms"));
    vec![
        against("backlog/append", "events/s", waiting(RATE), few(RATE), AtLeast(0.9)),
        against("backlog/take", "events/s", waiting("taken_per_s"), few("taken_per_s"), AtLeast(0.9)),
        alone("open/sealed", "ms", of(ours("open", MILLION), "open_ms"), AtMost(50.0)),
        against("open/scan", "ms", of(ours("open-scan", MILLION), "open_ms"), read, AtMost(1.5)),
        alone("memory/1m", "MiB", of(ours("open", MILLION), "resident_mib"), AtMost(60.0)),
        // None, but for buffers that do not grow with the entries; the smallest index would be 4 bytes.
        alone("memory/entry", "bytes", of(ours("open", MILLION), "resident_bytes_per_entry"), AtMost(2.0)),
        alone("memory/10m", "MiB", of(ours("open", 10 * MILLION), "resident_mib"), AtMost(60.0)),
    ]
}

fn ours(name: &'static str, count: u64) -> Case {
    Case { program: Program::Store, name, count, busy: false }
}

fn busy(case: Case) -> Case {
    Case { busy: true, ..case }
}

fn best_64(field: &'static str) -> Side {
    Side { label: "", field, cases: vec![ours("threads", 64), ours("tasks", 64)] }
}

fn best_64_busy() -> Side {
    let side = best_64(RATE);
    Side { cases: side.cases.into_iter().map(busy).collect(), ..side }
}

fn bare(kib: u64, field: &'static str) -> Side {
    let label = match kib {
        1 => "bare 1 KiB",
        64 => "bare 64 KiB",
        _ => "bare 512 KiB",
    };
    labelled(label, of(ours("bare", kib), field))
}

fn best_rival(count: u64, busy: bool) -> Side {
    let rival = |name: &&'static str| Case { program: Program::Rivals, name, count, busy };
    Side { label: "best rival", field: RATE, cases: RIVALS.iter().map(rival).collect() }
}

fn files(count: u64) -> Side {
    let case = Case { program: Program::Rivals, name: "files", count, busy: false };
    labelled("one file per event", of(case, RATE))
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
    fn rivals_run_at_the_same_count_and_under_the_same_load_as_ours() {
        for row in rows() {
            let Some(base) = row.base.filter(|base| base.label == "best rival") else { continue };
            assert_eq!(base.cases.len(), RIVALS.len());
            let load = |case: &Case| (case.count, case.busy);
            assert!(base.cases.iter().all(|case| load(case) == load(&row.value.cases[0])), "{}", row.name);
        }
    }
}
