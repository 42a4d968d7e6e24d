//! Rules about Rust files.

use super::code::find_word;
use super::{File, Problem};

const LIB_LINES: usize = 150;
const FILE_LINES: usize = 900;

/// Where `unsafe` may stand: paths that begin like this.
const UNSAFE: &[&str] = &["crates/outhaul-store/src/fs/", "bench/measure/src/syncs.rs"];

/// What a sleep in a test needs in a comment on its line or the one before.
const BOUNDED: &str = "// bounded:";

pub(super) fn lib_is_a_page(file: &File) -> Vec<Problem> {
    let lib = file.path.starts_with("crates/") && file.path.ends_with("/src/lib.rs");
    longer_than(
        file,
        lib,
        LIB_LINES,
        "a lib.rs is a page: its docs, private modules and one grouped `pub use`",
    )
}

pub(super) fn file_holds_one_noun(file: &File) -> Vec<Problem> {
    longer_than(
        file,
        file.code.is_some(),
        FILE_LINES,
        "look for the second noun in the file and give it its own",
    )
}

fn longer_than(file: &File, concerned: bool, most: usize, advice: &str) -> Vec<Problem> {
    let lines = file.text.lines().count();
    if !concerned || lines <= most {
        return Vec::new();
    }
    vec![file.problem(most, format!("{lines} lines, {most} are allowed: {advice}"))]
}

pub(super) fn no_bare_allow(file: &File) -> Vec<Problem> {
    in_attributes(
        file,
        "allow",
        "use `#[expect(…, reason = \"…\")]`, which says why and ends when it is no longer needed",
    )
}

pub(super) fn no_ignored_test(file: &File) -> Vec<Problem> {
    in_attributes(file, "ignore", "an ignored test tests nothing: let it run, or fail with what it misses")
}

/// `#[word`, `#![word` and the same behind `cfg_attr(…,`.
fn in_attributes(file: &File, word: &str, message: &str) -> Vec<Problem> {
    let hit = |line: &str| {
        let Some(at) = find_word(line, word) else { return false };
        let before = line[..at].trim_end();
        before.ends_with("#[")
            || before.ends_with("#![")
            || (before.ends_with(',') && before.contains("cfg_attr("))
    };
    let lines = file.code_lines().filter(|(_, line)| hit(line));
    lines.map(|(index, _)| file.problem(index, format!("`{word}` attribute: {message}"))).collect()
}

pub(super) fn no_stub(file: &File) -> Vec<Problem> {
    let mut found = Vec::new();
    for (index, line) in file.code_lines() {
        for name in ["todo", "unimplemented", "dbg"] {
            if find_word(line, name).is_some_and(|at| line[at + name.len()..].starts_with('!')) {
                found.push(file.problem(
                    index,
                    format!("`{name}!` is for a work in progress: finish it or leave it out"),
                ));
            }
        }
    }
    found
}

pub(super) fn unsafe_only_where_listed(file: &File) -> Vec<Problem> {
    if UNSAFE.iter().any(|prefix| file.path.starts_with(prefix)) {
        return Vec::new();
    }
    let lines = file.code_lines().filter(|(_, line)| find_word(line, "unsafe").is_some());
    let message =
        "`unsafe` outside the list UNSAFE in xtask/src/tidy/rust.rs: use what the listed modules offer";
    lines.map(|(index, _)| file.problem(index, message)).collect()
}

pub(super) fn sleep_in_a_test_is_bounded(file: &File) -> Vec<Problem> {
    let Some(first) = first_test_line(file) else { return Vec::new() };
    let text: Vec<&str> = file.text.lines().collect();
    let said = |index: usize| text.get(index).is_some_and(|line| line.contains(BOUNDED));
    let sleeps = file.code_lines().filter(|(index, line)| *index >= first && calls_sleep(line));
    let unsaid = sleeps.filter(|(index, _)| !said(*index) && !index.checked_sub(1).is_some_and(said));
    let message = "a sleep in a test: wait for what has to happen, within a bound; where time itself is tested, say \
                   `// bounded: why` here or on the line before";
    unsaid.map(|(index, _)| file.problem(index, message)).collect()
}

/// `sleep(…)` with or without a path; a method and a declaration of that name are something else.
fn calls_sleep(line: &str) -> bool {
    find_word(line, "sleep").is_some_and(|at| {
        let before = line[..at].trim_end();
        line[at + "sleep".len()..].starts_with('(') && !before.ends_with('.') && !before.ends_with("fn")
    })
}

/// Where the tests of a file begin: at the top of one below `tests/` or called `tests.rs`, else at its inline module.
fn first_test_line(file: &File) -> Option<usize> {
    if file.path.contains("/tests/") || file.path.ends_with("/tests.rs") {
        return Some(0);
    }
    let lines: Vec<&str> = file.code_lines().map(|(_, line)| line.trim()).collect();
    lines.windows(2).position(|pair| {
        pair[0].starts_with("#[cfg(") && find_word(pair[0], "test").is_some() && pair[1].contains("mod ")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rust(text: &str) -> File {
        File::new("crates/outhaul-event/src/id.rs", text.to_owned())
    }

    #[test]
    fn a_long_lib_is_found_and_a_page_is_not() {
        let lib = |lines| File::new("crates/outhaul-event/src/lib.rs", "//\n".repeat(lines));
        assert!(lib_is_a_page(&lib(150)).is_empty());
        assert_eq!(lib_is_a_page(&lib(151)).len(), 1);
        assert!(lib_is_a_page(&rust(&"//\n".repeat(151))).is_empty());
    }

    #[test]
    fn a_long_file_is_found() {
        assert!(file_holds_one_noun(&rust(&"//\n".repeat(900))).is_empty());
        assert_eq!(file_holds_one_noun(&rust(&"//\n".repeat(901))).len(), 1);
        assert!(file_holds_one_noun(&File::new("CHANGELOG.md", "a\n".repeat(901))).is_empty());
    }

    #[test]
    fn a_bare_allow_is_found_in_every_form() {
        for text in ["#[allow(dead_code)]", "#![allow(dead_code)]", "#[cfg_attr(test, allow(dead_code))]"] {
            assert_eq!(no_bare_allow(&rust(text)).len(), 1, "{text}");
        }
        for text in
            ["#[expect(dead_code, reason = \"x\")]", "// #[allow(dead_code)]", "allow(1);", "f(a, allow)"]
        {
            assert!(no_bare_allow(&rust(text)).is_empty(), "{text}");
        }
    }

    #[test]
    fn an_ignored_test_is_found() {
        for text in ["#[ignore]", "#[ignore = \"slow\"]", "#[cfg_attr(not(feature = \"x\"), ignore)]"] {
            assert_eq!(no_ignored_test(&rust(text)).len(), 1, "{text}");
        }
        assert!(no_ignored_test(&rust("let ignore = a[ignore];")).is_empty());
    }

    #[test]
    fn a_stub_is_found() {
        for text in ["todo!()", "unimplemented!(\"x\")", "let a = dbg!(b);"] {
            assert_eq!(no_stub(&rust(text)).len(), 1, "{text}");
        }
        assert!(no_stub(&rust("// todo!()\nlet todo = !x; my_dbg!(a);")).is_empty());
    }

    #[test]
    fn unsafe_is_found_outside_the_list() {
        assert_eq!(unsafe_only_where_listed(&rust("let a = unsafe { b() };")).len(), 1);
        assert!(unsafe_only_where_listed(&rust("#![forbid(unsafe_code)] // unsafe")).is_empty());
        let listed = File::new("crates/outhaul-store/src/fs/linux.rs", "unsafe { b() }".to_owned());
        assert!(unsafe_only_where_listed(&listed).is_empty());
    }

    #[test]
    fn a_sleep_in_a_test_is_found_unless_it_is_said_to_be_bounded() {
        let it = |text: &str| {
            sleep_in_a_test_is_bounded(&File::new("crates/a/tests/it/x.rs", text.to_owned())).len()
        };
        for text in ["thread::sleep(d);", "tokio::time::sleep(d).await;", "    sleep(d).await;"] {
            assert_eq!(it(text), 1, "{text}");
            assert_eq!(it(&format!("{text} // bounded: 50 polls")), 0, "{text}");
            assert_eq!(it(&format!("// bounded: the clock is paused\n{text}")), 0, "{text}");
            assert_eq!(it(&format!("// bounded: too far away\n\n{text}")), 1, "{text}");
        }
        assert_eq!(it("use tokio::time::sleep;\nclock.sleep(d);\nfn sleep() {}\n\"sleep(d)\";"), 0);
    }

    #[test]
    fn a_sleep_counts_from_where_the_tests_of_a_file_begin() {
        let source =
            "fn a() { thread::sleep(d); }\n#[cfg(test)]\nmod tests {\n    fn b() { thread::sleep(d); }\n}\n";
        let found = sleep_in_a_test_is_bounded(&rust(source));
        assert_eq!(found.iter().map(|p| p.line).collect::<Vec<_>>(), [4]);
        assert!(sleep_in_a_test_is_bounded(&rust("fn a() { thread::sleep(d); }")).is_empty());
    }
}
