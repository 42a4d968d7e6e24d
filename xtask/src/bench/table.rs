//! The table: medians over the runs, ratios of each run, goals.

use std::collections::BTreeSet;
use std::fmt;

use anyhow::Result;
use serde::Serialize;

use super::Results;
use super::rows::{Row, Run};

#[derive(Serialize)]
pub(super) struct Table {
    suite: String,
    commit: String,
    machine: String,
    rows: Vec<Line>,
}

/// A row with its numbers; they are null when it was not measured.
#[derive(Serialize)]
struct Line {
    row: &'static str,
    unit: &'static str,
    value: Option<f64>,
    /// What it is compared with; which rival it was stands in brackets.
    base: Option<String>,
    base_value: Option<f64>,
    /// The median of the runs' ratios, which is not the ratio of the medians.
    ratio: Option<f64>,
    goal: String,
    met: Option<bool>,
    runs: Vec<Sample>,
    /// Why it was not measured.
    #[serde(skip)]
    reason: Option<String>,
}

/// A row in one run.
#[derive(Serialize)]
struct Sample {
    value: f64,
    base_value: Option<f64>,
    ratio: Option<f64>,
    #[serde(skip)]
    base_case: Option<&'static str>,
}

impl Table {
    pub(super) fn new(suite: &str, commit: &str, machine: &str, rows: &[Row], results: &Results) -> Self {
        let rows = rows.iter().map(|row| Line::new(row, results)).collect();
        Self { suite: suite.to_owned(), commit: commit.to_owned(), machine: machine.to_owned(), rows }
    }

    /// How many goals were measured and not reached.
    pub(super) fn missed(&self) -> usize {
        self.rows.iter().filter(|line| line.met == Some(false)).count()
    }

    pub(super) fn to_json(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}

impl Line {
    fn new(row: &Row, results: &Results) -> Self {
        let (mut runs, mut reasons) = (Vec::new(), BTreeSet::new());
        for run in results {
            match Sample::new(row, run) {
                Ok(sample) => runs.push(sample),
                Err(reason) => _ = reasons.insert(reason),
            }
        }
        let over = |number: fn(&Sample) -> Option<f64>| median(runs.iter().filter_map(number).collect());
        let (value, base_value, ratio) =
            (over(|run| Some(run.value)), over(|run| run.base_value), over(|run| run.ratio));
        let judged = if row.base.is_some() { ratio } else { value };
        Self {
            row: row.name,
            unit: row.unit,
            value,
            base: base_label(row, &runs),
            base_value,
            ratio,
            goal: row.goal.to_string(),
            met: judged.map(|number| row.goal.met_by(number)),
            reason: runs.is_empty().then(|| reasons.into_iter().collect::<Vec<_>>().join("; ")),
            runs,
        }
    }
}

impl Sample {
    fn new(row: &Row, run: &Run) -> Result<Self, String> {
        let (value, _) = row.value.of(run)?;
        let Some(base) = &row.base else {
            return Ok(Self { value, base_value: None, ratio: None, base_case: None });
        };
        let (base_value, case) = base.of(run)?;
        if base_value <= 0.0 {
            return Err(format!("{} is {base_value}", base.label));
        }
        let base_case = (base.cases.len() > 1 && base.cases != row.value.cases).then_some(case.name);
        Ok(Self { value, base_value: Some(base_value), ratio: Some(value / base_value), base_case })
    }
}

/// With the names of those that were the best in some run.
fn base_label(row: &Row, runs: &[Sample]) -> Option<String> {
    let label = row.base.as_ref()?.label;
    let best: BTreeSet<&str> = runs.iter().filter_map(|run| run.base_case).collect();
    if best.is_empty() {
        return Some(label.to_owned());
    }
    Some(format!("{label} ({})", best.into_iter().collect::<Vec<_>>().join(", ")))
}

/// The middle one, or the mean of the two in the middle.
fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_by(f64::total_cmp);
    let upper = *numbers.get(numbers.len() / 2)?;
    match numbers.len() % 2 {
        1 => Some(upper),
        _ => Some((numbers[numbers.len() / 2 - 1] + upper) / 2.0),
    }
}

/// Markdown whose columns also stand in line.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Commit {} on {}.\n", self.commit, self.machine)?;
        let head = ["row", "value", "compared with", "ratio", "goal", "met"].map(str::to_owned);
        let lines: Vec<[String; 6]> =
            std::iter::once(head).chain(self.rows.iter().map(Line::cells)).collect();
        let width =
            |column: usize| lines.iter().map(|cells| cells[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..6).map(width).collect();
        for (number, cells) in lines.iter().enumerate() {
            let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            writeln!(f, "| {} |", padded.collect::<Vec<_>>().join(" | "))?;
            if number == 0 {
                let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
                writeln!(f, "| {} |", rule.join(" | "))?;
            }
        }
        let met = self.rows.iter().filter(|line| line.met == Some(true)).count();
        let measured = met + self.missed();
        writeln!(f, "\n{met} of {measured} goals met, {} missed.", self.missed())?;
        for line in self.rows.iter().filter(|line| line.met == Some(false)) {
            writeln!(f, "missed: {} is {}, the goal is {}", line.row, line.judged(), line.goal)?;
        }
        for (line, reason) in self.rows.iter().filter_map(|line| Some((line, line.reason.as_ref()?))) {
            writeln!(f, "not measured: {}: {reason}", line.row)?;
        }
        Ok(())
    }
}

impl Line {
    fn cells(&self) -> [String; 6] {
        let with_unit =
            |number: Option<f64>| number.map(|number| format!("{} {}", grouped(number), self.unit));
        let compared = match (&self.base, self.base_value) {
            (Some(base), Some(number)) => format!("{base}: {}", grouped(number)),
            (Some(base), None) => base.clone(),
            (None, _) => String::new(),
        };
        let met = match self.met {
            Some(true) => "yes",
            Some(false) => "no",
            None => "not measured",
        };
        [
            self.row.to_owned(),
            with_unit(self.value).unwrap_or_default(),
            compared,
            self.ratio.map(grouped).unwrap_or_default(),
            self.goal.clone(),
            met.to_owned(),
        ]
    }

    fn judged(&self) -> String {
        match self.ratio {
            Some(ratio) => format!("{} × {}", grouped(ratio), self.base.as_deref().unwrap_or_default()),
            None => self.value.map(|value| format!("{} {}", grouped(value), self.unit)).unwrap_or_default(),
        }
    }
}

/// Two decimals below 100, none above; thousands apart.
fn grouped(number: f64) -> String {
    if number < 100.0 {
        return format!("{number:.2}");
    }
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::rows::{Case, Goal, Measured, Program, Side};
    use super::*;

    const OURS: Case = Case { program: Program::Store, name: "threads", count: 8, busy: false };
    const A: Case = Case { program: Program::Rivals, name: "a", count: 8, busy: false };
    const B: Case = Case { program: Program::Rivals, name: "b", count: 8, busy: false };

    fn rate(rate: f64) -> Measured {
        Ok(BTreeMap::from([("events_per_s".to_owned(), rate)]))
    }

    fn row(goal: Goal, rivals: bool) -> Row {
        let side = |label, cases| Side { label, field: "events_per_s", cases };
        let base = rivals.then(|| side("best rival", vec![A, B]));
        Row { name: "8/rival", unit: "events/s", value: side("", vec![OURS]), base, goal }
    }

    fn runs(rates: &[(f64, f64, f64)]) -> Results {
        let run =
            |(ours, a, b): &(f64, f64, f64)| Run::from([(OURS, rate(*ours)), (A, rate(*a)), (B, rate(*b))]);
        rates.iter().map(run).collect()
    }

    fn table(row: &Row, results: &Results) -> Table {
        Table::new("store", "abc", "a machine", std::slice::from_ref(row), results)
    }

    #[test]
    fn the_median_of_an_even_number_is_the_mean_of_the_middle_two() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 3.0, 2.0]), Some(2.5));
    }

    #[test]
    fn the_ratio_is_the_median_of_the_runs_ratios_each_with_its_own_best_rival() {
        // The ratios are 2, 3 and 1.5; that of the medians would be 300 / 150.
        let line = &table(
            &row(Goal::AtLeast(2.0), true),
            &runs(&[(200.0, 100.0, 1.0), (450.0, 1.0, 150.0), (300.0, 200.0, 1.0)]),
        )
        .rows[0];
        assert_eq!(line.runs.iter().map(|run| run.ratio.unwrap()).collect::<Vec<_>>(), [2.0, 3.0, 1.5]);
        assert_eq!((line.value, line.base_value, line.ratio), (Some(300.0), Some(150.0), Some(2.0)));
        assert_eq!(line.base.as_deref(), Some("best rival (a, b)"));
        assert_eq!(line.met, Some(true));
    }

    #[test]
    fn a_missed_goal_is_counted_and_named() {
        let table = table(&row(Goal::AtLeast(1.5), true), &runs(&[(140.0, 100.0, 50.0)]));
        assert_eq!(table.missed(), 1);
        let shown = table.to_string();
        assert!(shown.contains("0 of 1 goals met, 1 missed."), "{shown}");
        assert!(shown.contains("missed: 8/rival is 1.40 × best rival (a), the goal is >= 1.5"), "{shown}");
    }

    #[test]
    fn without_a_base_the_value_itself_is_judged() {
        let results = runs(&[(7.0, 1.0, 1.0)]);
        assert_eq!(table(&row(Goal::AtLeast(7.5), false), &results).missed(), 1);
        assert_eq!(table(&row(Goal::AtMost(7.5), false), &results).missed(), 0);
    }

    #[test]
    fn what_was_not_measured_is_neither_met_nor_missed() {
        let run = Run::from([(OURS, Err("no engine".to_owned())), (A, rate(1.0)), (B, rate(1.0))]);
        let table = table(&row(Goal::AtLeast(1.0), true), &vec![run]);
        assert_eq!((table.missed(), table.rows[0].met), (0, None));
        assert!(table.to_string().contains("not measured: 8/rival: no engine"), "{table}");
    }

    #[test]
    fn a_base_of_zero_is_no_ratio() {
        let table = table(&row(Goal::AtLeast(1.0), true), &runs(&[(5.0, 0.0, 0.0)]));
        assert_eq!((table.rows[0].ratio, table.rows[0].met), (None, None));
    }

    #[test]
    fn the_json_has_the_published_shape() {
        let table = table(&row(Goal::AtLeast(2.0), true), &runs(&[(200.0, 100.0, 50.0)]));
        let json: serde_json::Value = serde_json::from_str(&table.to_json().unwrap()).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "suite": "store", "commit": "abc", "machine": "a machine",
                "rows": [{
                    "row": "8/rival", "unit": "events/s", "value": 200.0,
                    "base": "best rival (a)", "base_value": 100.0, "ratio": 2.0,
                    "goal": ">= 2", "met": true,
                    "runs": [{ "value": 200.0, "base_value": 100.0, "ratio": 2.0 }],
                }],
            })
        );
    }

    #[test]
    fn numbers_are_shown_with_as_many_digits_as_mean_something() {
        assert_eq!(grouped(0.946), "0.95");
        assert_eq!(grouped(99.0), "99.00");
        assert_eq!(grouped(1234.5), "1,234");
        assert_eq!(grouped(1_234_567.0), "1,234,567");
    }
}
