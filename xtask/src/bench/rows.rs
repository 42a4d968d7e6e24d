//! What a row of a benchmark is: a value, what it is compared with, and a goal.

use std::collections::BTreeMap;
use std::fmt;

/// The programs in `bench/` that measure a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Program {
    Store,
    Writer,
    /// With an allocator that counts.
    WriterCounted,
    Runtime,
    Rivals,
}

impl Program {
    /// The package that it is built from.
    pub(super) fn package(self) -> &'static str {
        match self {
            Self::Store => "bench-store",
            Self::Writer | Self::WriterCounted => "bench-writer",
            Self::Runtime => "bench-runtime",
            Self::Rivals => "bench-rivals",
        }
    }
}

/// One thing that is measured once in a run, for whichever rows need it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Case {
    pub(super) program: Program,
    pub(super) name: &'static str,
    /// Producers, or whatever else it counts.
    pub(super) count: u64,
    /// Beside a busy loop on every core.
    pub(super) busy: bool,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let busy = if self.busy { " busy" } else { "" };
        write!(f, "{} {}{busy}", self.name, self.count)
    }
}

/// What a case reported: numbers by name, or why there are none.
pub(super) type Measured = Result<BTreeMap<String, f64>, String>;

/// All cases of one run.
pub(super) type Run = BTreeMap<Case, Measured>;

/// A number of one case; of several, the one with the most events per second is taken.
#[derive(Debug, Clone)]
pub(super) struct Side {
    pub(super) label: &'static str,
    pub(super) field: &'static str,
    pub(super) cases: Vec<Case>,
}

const RATE: &str = "events_per_s";

impl Side {
    /// The number in one run, and which case it is from.
    pub(super) fn of(&self, run: &Run) -> Result<(f64, Case), String> {
        let mut reasons = Vec::new();
        let mut best: Option<(f64, Case, &BTreeMap<String, f64>)> = None;
        for case in &self.cases {
            match run.get(case) {
                Some(Ok(numbers)) => {
                    let rate = numbers.get(RATE).copied().unwrap_or(0.0);
                    if best.is_none_or(|(most, ..)| rate > most) {
                        best = Some((rate, *case, numbers));
                    }
                }
                Some(Err(reason)) => reasons.push(reason.clone()),
                None => reasons.push(format!("{case} did not run")),
            }
        }
        let Some((_, case, numbers)) = best else { return Err(reasons.join("; ")) };
        let number = numbers.get(self.field);
        number
            .map(|number| (*number, case))
            .ok_or_else(|| format!("this system does not tell {}", self.field))
    }
}

/// A bound on the ratio, or on the value when there is nothing to compare with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

impl Goal {
    pub(super) fn met_by(self, number: f64) -> bool {
        match self {
            Self::AtLeast(bound) => number >= bound,
            Self::AtMost(bound) => number <= bound,
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(bound) => write!(f, ">= {bound}"),
            Self::AtMost(bound) => write!(f, "<= {bound}"),
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Row {
    /// `group/name`, or a name alone.
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    pub(super) value: Side,
    pub(super) base: Option<Side>,
    pub(super) goal: Goal,
}

impl Row {
    pub(super) fn is_called(&self, name: &str) -> bool {
        self.name == name || self.name.split_once('/').is_some_and(|(group, _)| group == name)
    }

    pub(super) fn cases(&self) -> impl Iterator<Item = Case> {
        self.value.cases.iter().chain(self.base.iter().flat_map(|base| &base.cases)).copied()
    }

    /// The size of its largest case.
    pub(super) fn entries(&self) -> u64 {
        self.cases().map(|case| case.count).max().unwrap_or(0)
    }
}

/// A number of one case.
pub(super) fn of(case: Case, field: &'static str) -> Side {
    Side { label: "", field, cases: vec![case] }
}

pub(super) fn labelled(label: &'static str, side: Side) -> Side {
    Side { label, ..side }
}

/// A row whose value is judged.
pub(super) fn alone(name: &'static str, unit: &'static str, value: Side, goal: Goal) -> Row {
    Row { name, unit, value, base: None, goal }
}

/// A row whose ratio is judged.
pub(super) fn against(name: &'static str, unit: &'static str, value: Side, base: Side, goal: Goal) -> Row {
    Row { name, unit, value, base: Some(base), goal }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Case = Case { program: Program::Rivals, name: "a", count: 8, busy: false };
    const B: Case = Case { program: Program::Rivals, name: "b", count: 8, busy: false };

    fn numbers(rate: f64, p50: f64) -> Measured {
        Ok(BTreeMap::from([(RATE.to_owned(), rate), ("p50_us".to_owned(), p50)]))
    }

    fn side(field: &'static str) -> Side {
        Side { label: "best rival", field, cases: vec![A, B] }
    }

    #[test]
    fn of_several_cases_the_one_with_the_highest_rate_counts() {
        let run = Run::from([(A, numbers(10.0, 7.0)), (B, numbers(20.0, 9.0))]);
        assert_eq!(side(RATE).of(&run), Ok((20.0, B)));
        assert_eq!(side("p50_us").of(&run), Ok((9.0, B)));
    }

    #[test]
    fn a_case_that_failed_is_passed_over_while_another_one_is_there() {
        let run = Run::from([(A, numbers(10.0, 7.0)), (B, Err("broken".to_owned()))]);
        assert_eq!(side(RATE).of(&run), Ok((10.0, A)));
        let run = Run::from([(A, Err("missing".to_owned())), (B, Err("broken".to_owned()))]);
        assert_eq!(side(RATE).of(&run), Err("missing; broken".to_owned()));
    }

    #[test]
    fn a_number_that_was_not_reported_is_not_a_zero() {
        let run = Run::from([(A, numbers(10.0, 7.0))]);
        assert_eq!(side("flushes").of(&run), Err("this system does not tell flushes".to_owned()));
    }

    #[test]
    fn a_goal_includes_its_bound() {
        assert!(Goal::AtLeast(0.95).met_by(0.95) && !Goal::AtLeast(0.95).met_by(0.949));
        assert!(Goal::AtMost(5.0).met_by(5.0) && !Goal::AtMost(5.0).met_by(5.001));
        assert!(!Goal::AtLeast(1.0).met_by(f64::NAN) && !Goal::AtMost(1.0).met_by(f64::NAN));
    }
}
