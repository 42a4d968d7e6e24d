//! Times, sizes and tables, as a person reads them.

use std::time::{Duration, SystemTime};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// A column is no wider than this, unless it is the last one; what is longer is cut.
const COLUMN_MAX: usize = 48;

/// What a receiver or producer wrote, without what a terminal would obey.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

pub(crate) fn time_of(millis: u64) -> String {
    let nanos = i128::from(millis) * 1_000_000;
    let time = OffsetDateTime::from_unix_timestamp_nanos(nanos).ok();
    time.and_then(|time| time.format(&Rfc3339).ok()).unwrap_or_else(|| format!("{millis} ms after 1970"))
}

/// How long ago something was, in its two largest units.
pub(crate) fn age_of(time: SystemTime) -> String {
    // A clock that was set back makes no entry older than now.
    duration_of(time.elapsed().unwrap_or_default())
}

fn duration_of(age: Duration) -> String {
    let seconds = age.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {}s", seconds % 60),
        (0, ..) => format!("{hours}h {}m", minutes % 60),
        _ => format!("{days}d {}h", hours % 24),
    }
}

/// Bytes in the largest unit that leaves a whole number before the point.
pub(crate) fn bytes_of(bytes: u64) -> String {
    let units = [("TiB", 1_u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match units.into_iter().find(|(_, size)| bytes >= *size) {
        Some((unit, size)) => format!("{:.1} {unit}", bytes as f64 / size as f64),
        None => format!("{bytes} B"),
    }
}

/// Where the text of a column stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
}

/// Lines of a table whose columns are as wide as what is in them. The last column is as it is.
pub(crate) fn table<const N: usize>(columns: [(&str, Side); N], rows: &[[String; N]]) -> String {
    let headings = columns.map(|(name, _)| name.to_owned());
    let width = |column: usize| {
        let all = std::iter::once(&headings).chain(rows).map(|row| row[column].chars().count());
        all.max().unwrap_or(0).min(COLUMN_MAX)
    };
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |row: &[String; N]| {
        let mut line = String::new();
        for (column, text) in row.iter().enumerate() {
            let last = column + 1 == N;
            let text = printable(text);
            match (columns[column].1, last) {
                (Side::Left, true) => line.push_str(&text),
                (Side::Left, false) => line.push_str(&format!("{:<1$}  ", cut(text), widths[column])),
                (Side::Right, true) => line.push_str(&format!("{:>1$}", text, widths[column])),
                (Side::Right, false) => line.push_str(&format!("{:>1$}  ", cut(text), widths[column])),
            }
        }
        line.truncate(line.trim_end().len());
        line
    };
    std::iter::once(&headings).chain(rows).map(line).collect::<Vec<_>>().join("\n")
}

fn cut(text: String) -> String {
    match text.chars().count() > COLUMN_MAX {
        true => text.chars().take(COLUMN_MAX - 1).chain(['…']).collect(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_and_sizes_are_short() {
        let ages = [0, 59, 60, 3_599, 3_600, 86_399, 86_400, 864_000 + 3_600];
        let told = ages.map(|seconds| duration_of(Duration::from_secs(seconds)));
        assert_eq!(told, ["0s", "59s", "1m 0s", "59m 59s", "1h 0m", "23h 59m", "1d 0h", "10d 1h"]);
        let sizes = [0, 1023, 1024, 1536, 1 << 20, 5 << 30, 3 << 40].map(bytes_of);
        assert_eq!(sizes, ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1.0 MiB", "5.0 GiB", "3.0 TiB"]);
    }

    #[test]
    fn columns_are_as_wide_as_what_is_in_them_up_to_a_bound() {
        let columns = [("UID", Side::Left), ("N", Side::Right), ("WHY", Side::Left)];
        let long = "x".repeat(60);
        let rows = [
            ["a:1".to_owned(), "7".to_owned(), "short".to_owned()],
            [long.clone(), "1234".to_owned(), format!("{long}\u{1b}[2J")],
        ];
        let lines: Vec<_> = table(columns, &rows).lines().map(str::to_owned).collect();
        assert_eq!(lines[0], format!("UID{}     N  WHY", " ".repeat(45)));
        assert_eq!(lines[1], format!("a:1{}     7  short", " ".repeat(45)));
        assert_eq!(lines[2], format!("{}…  1234  {long} [2J", "x".repeat(47)));
        assert_eq!(table(columns, &[]), "UID  N  WHY");
    }
}
