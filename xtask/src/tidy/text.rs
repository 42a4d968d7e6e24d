//! Rules about any text.

use super::{File, Problem};

const ARCHITECTURE: &str = "docs/architecture.md";
const ARCHITECTURE_LINES: usize = 250;

/// Files whose lines are kept clean.
const WRITTEN: &[&str] = &[".rs", ".md", ".toml"];

/// The one registry of `Cargo.lock`.
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Names of the place where somebody worked. They are put together here so that this file does not hold them.
const PLACES: &[&str] = &[concat!("/work", "/"), concat!(".", "library"), concat!("..", "/shared")];

/// Hosts that serve packages, and the settings that name another one: a clone takes what its user has set up.
const REGISTRIES: &[&str] = &[
    concat!("index.", "crates.io"),
    concat!("static.", "crates.io"),
    concat!("registry.", "npmjs.org"),
    concat!("pypi", ".org"),
    concat!("files.", "pythonhosted.org"),
    concat!("proxy.", "golang.org"),
    concat!("deb.", "debian.org"),
    concat!("replace", "-with"),
    concat!("[regis", "tries"),
    concat!("index", "-url"),
];

pub(super) fn no_trailing_whitespace(file: &File) -> Vec<Problem> {
    if !file.is_one_of(WRITTEN) {
        return Vec::new();
    }
    let lines = file.text.lines().enumerate().filter(|(_, line)| line.ends_with(char::is_whitespace));
    lines.map(|(index, _)| file.problem(index, "whitespace at the end of the line")).collect()
}

pub(super) fn last_line_ends(file: &File) -> Vec<Problem> {
    if !file.is_one_of(WRITTEN) || file.text.is_empty() || file.text.ends_with('\n') {
        return Vec::new();
    }
    vec![file.problem(file.text.lines().count() - 1, "the last line has no newline")]
}

pub(super) fn architecture_is_short(file: &File) -> Vec<Problem> {
    let lines = file.text.lines().count();
    if file.path != ARCHITECTURE || lines <= ARCHITECTURE_LINES {
        return Vec::new();
    }
    let message = format!(
        "{lines} lines, {ARCHITECTURE_LINES} are allowed: keep the bird's eye, move details to rustdoc"
    );
    vec![file.problem(ARCHITECTURE_LINES, message)]
}

/// Neither a place on somebody's machine nor a registry: the project has to make sense in any clone.
pub(super) fn makes_sense_alone(file: &File) -> Vec<Problem> {
    let mut found = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        if let Some(place) = PLACES.iter().find(|place| stands_free(line, place)) {
            found.push(file.problem(
                index,
                format!("`{place}` is a place outside the project; say it here or leave it out"),
            ));
        }
        if let Some(host) = REGISTRIES.iter().find(|host| line.contains(*host)) {
            found.push(
                file.problem(index, format!("`{host}` names a package registry; name the package only")),
            );
        }
    }
    found
}

/// Whether `place` stands in the line and is not the end of a longer path or a field behind a value.
fn stands_free(line: &str, place: &str) -> bool {
    let word = |c: char| c.is_alphanumeric() || "_-".contains(c);
    line.match_indices(place).any(|(at, _)| {
        let behind = &line[at + place.len()..];
        !line[..at].ends_with(|c| word(c) || ".)]".contains(c))
            && (place.ends_with('/') || !behind.starts_with(word))
    })
}

pub(super) fn lock_names_one_registry(file: &File) -> Vec<Problem> {
    if file.path != "Cargo.lock" {
        return Vec::new();
    }
    let source =
        |line: &str| line.strip_prefix("source = ").is_some_and(|s| s.trim_matches('"') != CRATES_IO);
    let lines = file.text.lines().enumerate().filter(|(_, line)| source(line));
    lines
        .map(|(index, line)| file.problem(index, format!("{line}: every package comes from crates.io")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File::new(path, text.to_owned())
    }

    #[test]
    fn whitespace_at_the_end_of_a_line_is_found() {
        for path in ["a.rs", "a.md", "a.toml"] {
            assert_eq!(no_trailing_whitespace(&file(path, "a \nb\n\t\n")).len(), 2, "{path}");
        }
        assert!(no_trailing_whitespace(&file("a.golden", "a \n")).is_empty());
    }

    #[test]
    fn a_last_line_without_newline_is_found() {
        assert_eq!(last_line_ends(&file("a.md", "a\nb"))[0].line, 2);
        assert!(last_line_ends(&file("a.md", "a\n")).is_empty());
        assert!(last_line_ends(&file("a.md", "")).is_empty());
    }

    #[test]
    fn a_long_architecture_is_found() {
        assert!(architecture_is_short(&file(ARCHITECTURE, &"a\n".repeat(250))).is_empty());
        assert_eq!(architecture_is_short(&file(ARCHITECTURE, &"a\n".repeat(251))).len(), 1);
    }

    #[test]
    fn every_place_and_registry_is_found() {
        for name in PLACES.iter().chain(REGISTRIES) {
            for text in [format!("see {name} there"), format!("`{name}`"), (*name).to_owned()] {
                assert_eq!(makes_sense_alone(&file("README.md", &text)).len(), 1, "{text}");
            }
        }
    }

    #[test]
    fn a_place_as_a_part_of_another_word_is_fine() {
        let path = PLACES[0];
        let field = PLACES[1];
        for text in [format!("https://example.com{path}x"), format!("self{field}"), format!("{field}_of")] {
            assert!(makes_sense_alone(&file("a.rs", &text)).is_empty(), "{text}");
        }
        assert!(makes_sense_alone(&file("README.md", "https://crates.io/crates/outhaul")).is_empty());
    }

    #[test]
    fn a_lock_file_with_another_registry_is_found() {
        let good = format!("[[package]]\nname = \"a\"\nsource = \"{CRATES_IO}\"\n");
        assert!(lock_names_one_registry(&file("Cargo.lock", &good)).is_empty());
        let other = good.replace(CRATES_IO, "registry+https://mirror.example/index");
        assert_eq!(lock_names_one_registry(&file("Cargo.lock", &other))[0].line, 3);
    }
}
