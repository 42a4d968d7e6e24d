//! The rows of the suite `writer`. docs/benchmarks.md says what each means.

use super::rows::{Case, Goal, Program, Row, Side, against, alone, labelled, of};
use Goal::{AtLeast, AtMost};

const RATE: &str = "events_per_s";
const CPU: &str = "cpu_us_per_event";
const ALLOCATIONS: &str = "allocations_per_event";

/// What the writer is compared with in the table of producers and shards.
struct Grid {
    base: &'static str,
    label: &'static str,
    goal: Goal,
    /// Producers, the rows with 1, 4 and 16 shards, and their names.
    rows: [(u64, [&'static str; 3]); 4],
    cases: [&'static str; 3],
}

const MEMORY: Grid = Grid {
    base: "queue-memory-1",
    label: "one global queue",
    goal: AtLeast(0.8),
    rows: [
        (1, ["memory/1x1", "memory/1x4", "memory/1x16"]),
        (8, ["memory/8x1", "memory/8x4", "memory/8x16"]),
        (64, ["memory/64x1", "memory/64x4", "memory/64x16"]),
        (512, ["memory/512x1", "memory/512x4", "memory/512x16"]),
    ],
    cases: ["writer-memory-1", "writer-memory-4", "writer-memory-16"],
};

const JOURNAL: Grid = Grid {
    base: "direct-journal-1",
    label: "the store's own append",
    goal: AtLeast(0.9),
    rows: [
        (1, ["journal/1x1", "journal/1x4", "journal/1x16"]),
        (8, ["journal/8x1", "journal/8x4", "journal/8x16"]),
        (64, ["journal/64x1", "journal/64x4", "journal/64x16"]),
        (512, ["journal/512x1", "journal/512x4", "journal/512x16"]),
    ],
    cases: ["writer-journal-1", "writer-journal-4", "writer-journal-16"],
};

pub(super) fn rows() -> Vec<Row> {
    let counted = Case { program: Program::WriterCounted, ..case("writer-memory-1-16-counted", 64) };
    let channel =
        |producers, field| labelled("a bare channel", of(case("channel-memory-1", producers), field));
    let one = |sink, producers| labelled("one at a time", of(case(sink, producers), RATE));
    let memory = |producers, field| of(case("writer-memory-1", producers), field);
    let journal = |producers| of(case("writer-journal-1", producers), RATE);
    let mut rows = vec![
        alone("rate", "ops/s", of(case("writer-memory-1-16", 64), RATE), AtLeast(1_000_000.0)),
        against("channel", "ops/s", memory(64, RATE), channel(64, RATE), AtLeast(0.8)),
        alone("allocations", "per op", of(counted, ALLOCATIONS), AtMost(1.0)),
        against("cpu/64", "µs/op", memory(64, CPU), channel(64, CPU), AtMost(1.25)),
        against("cpu/512", "µs/op", memory(512, CPU), channel(512, CPU), AtMost(1.25)),
        against("one/journal", "ops/s", journal(64), one("one-journal-1", 64), AtLeast(20.0)),
        against(
            "shards",
            "ops/s",
            of(case("writer-work-4", 64), RATE),
            labelled("1 shard", of(case("writer-work-1", 64), RATE)),
            AtLeast(1.7),
        ),
    ];
    rows.extend(grid(&MEMORY));
    rows.extend(grid(&JOURNAL));
    rows
}

fn grid(grid: &Grid) -> Vec<Row> {
    let mut rows = Vec::new();
    for (producers, names) in grid.rows {
        for (name, writer) in names.into_iter().zip(grid.cases) {
            let base: Side = labelled(grid.label, of(case(grid.base, producers), RATE));
            rows.push(against(name, "ops/s", of(case(writer, producers), RATE), base, grid.goal));
        }
    }
    rows
}

fn case(name: &'static str, count: u64) -> Case {
    Case { program: Program::Writer, name, count, busy: false }
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
    fn a_row_is_called_by_what_it_measures() {
        let rows = rows().into_iter().filter(|row| row.name.contains('x'));
        for (row, name) in rows.map(|row| (row.name, row.value.cases[0])) {
            let (sink, shards) = name.name.strip_prefix("writer-").unwrap().split_once('-').unwrap();
            assert_eq!(row, format!("{sink}/{}x{shards}", name.count));
        }
    }
}
