//! Rules about the tracked files that no other tool checks.

mod code;
mod manifest;
mod rust;
mod text;

use std::fmt;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::cmd;

/// Each rule looks at one file and returns what it has to say about it.
const RULES: &[fn(&File) -> Vec<Problem>] = &[
    manifest::inherits_from_the_workspace,
    manifest::folder_is_called_like_the_package,
    rust::lib_is_a_page,
    rust::file_holds_one_noun,
    rust::no_bare_allow,
    rust::no_ignored_test,
    rust::no_stub,
    rust::unsafe_only_where_listed,
    rust::sleep_in_a_test_is_bounded,
    text::no_trailing_whitespace,
    text::last_line_ends,
    text::architecture_is_short,
    text::makes_sense_alone,
    text::lock_names_one_registry,
];

/// A tracked file. `code` is its text with comments and literals blanked out, for Rust files.
struct File {
    path: String,
    text: String,
    code: Option<String>,
}

impl File {
    fn new(path: &str, text: String) -> Self {
        let code = path.ends_with(".rs").then(|| code::blanked(&text));
        Self { path: path.to_owned(), text, code }
    }

    /// The problem `message` at the line `index`, which counts from 0.
    fn problem(&self, index: usize, message: impl Into<String>) -> Problem {
        Problem { path: self.path.clone(), line: index + 1, message: message.into() }
    }

    /// The indices and texts of the lines of Rust code; none for other files.
    fn code_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code.as_deref().unwrap_or_default().lines().enumerate()
    }

    fn is_one_of(&self, endings: &[&str]) -> bool {
        endings.iter().any(|ending| self.path.ends_with(ending))
    }
}

/// One finding. Lines count from 1.
#[derive(Debug)]
struct Problem {
    path: String,
    line: usize,
    message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// Applies every rule to every tracked file.
pub(crate) fn check(root: &Path) -> Result<()> {
    let files = tracked(root)?;
    let problems: Vec<String> = files.iter().flat_map(problems).map(|problem| problem.to_string()).collect();
    println!("    {} rules, {} tracked files", RULES.len(), files.len());
    if problems.is_empty() {
        return Ok(());
    }
    bail!("{} findings in tracked files:\n  {}", problems.len(), problems.join("\n  "));
}

fn problems(file: &File) -> Vec<Problem> {
    RULES.iter().flat_map(|rule| rule(file)).collect()
}

/// What git tracks and the work tree has. Bytes that are not UTF-8 are replaced; a rule looks for ASCII only.
fn tracked(root: &Path) -> Result<Vec<File>> {
    let list = cmd::read(&mut cmd::tool(root, Path::new("git"), &["ls-files", "-z"]))?;
    let mut files = Vec::new();
    for path in list.split_terminator('\0') {
        let full = root.join(path);
        if full.is_file() {
            let bytes = std::fs::read(&full).with_context(|| format!("cannot read {}", full.display()))?;
            files.push(File::new(path, String::from_utf8_lossy(&bytes).into_owned()));
        }
    }
    if files.is_empty() {
        bail!("git tracks no file in {}; the tidy rules need a clone", root.display());
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_shown_with_its_place() {
        let file = File::new("crates/a/src/x.rs", "fn a() {}\nfn b() { todo!() }\n".to_owned());
        let shown: Vec<String> = problems(&file).iter().map(ToString::to_string).collect();
        assert_eq!(shown.len(), 1, "{shown:?}");
        assert!(shown[0].starts_with("crates/a/src/x.rs:2: "), "{shown:?}");
    }

    #[test]
    fn a_clean_file_has_no_problem() {
        let text =
            "//! A module.\n\nfn a() -> &'static str {\n    \"todo!() and unsafe are words here\"\n}\n";
        assert!(problems(&File::new("crates/a/src/x.rs", text.to_owned())).is_empty());
    }
}
