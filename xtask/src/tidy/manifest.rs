//! Rules about the manifests of the members.

use super::{File, Problem};

/// What each member takes from the root manifest: a table, a key.
const INHERITED: &[(&str, &str)] =
    &[("package", "version"), ("package", "edition"), ("package", "license"), ("lints", "")];

pub(super) fn inherits_from_the_workspace(file: &File) -> Vec<Problem> {
    if folder(file).is_none() {
        return Vec::new();
    }
    let missing = INHERITED.iter().filter(|(table, key)| {
        let short = if key.is_empty() { "workspace".to_owned() } else { format!("{key}.workspace") };
        value(&file.text, table, &short) != Some("true")
    });
    missing
        .map(|(table, key)| {
            let dot = if key.is_empty() { "" } else { "." };
            file.problem(
                0,
                format!("[{table}] needs `{key}{dot}workspace = true`: the root manifest says it once"),
            )
        })
        .collect()
}

pub(super) fn folder_is_called_like_the_package(file: &File) -> Vec<Problem> {
    let Some(folder) = folder(file) else { return Vec::new() };
    let name = value(&file.text, "package", "name").unwrap_or_default().trim_matches('"');
    if name == folder {
        return Vec::new();
    }
    vec![file.problem(0, format!("the package `{name}` is in the folder `{folder}`; give both one name"))]
}

/// The member's folder, when the file is a member's manifest.
fn folder(file: &File) -> Option<&str> {
    let path = file.path.strip_suffix("/Cargo.toml")?;
    let name = path.strip_prefix("crates/").unwrap_or(path);
    (path == "xtask" || (name != path && !name.contains('/'))).then_some(name)
}

/// The text behind `key =` in the table `[table]`, without a comment behind it.
fn value<'a>(text: &'a str, table: &str, key: &str) -> Option<&'a str> {
    let mut current = "";
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            current = name;
        } else if let Some((left, right)) = line.split_once('=')
            && current == table
            && left.trim() == key
        {
            return Some(right.split(" #").next().unwrap_or(right).trim());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "[package]\nname = \"outhaul-event\"\nversion.workspace = true\nedition.workspace = true\n\
                        license.workspace = true\n\n[lints]\nworkspace = true\n";

    fn manifest(text: &str) -> File {
        File::new("crates/outhaul-event/Cargo.toml", text.to_owned())
    }

    #[test]
    fn a_member_that_inherits_is_fine() {
        assert!(inherits_from_the_workspace(&manifest(GOOD)).is_empty());
        assert!(folder_is_called_like_the_package(&manifest(GOOD)).is_empty());
    }

    #[test]
    fn each_line_that_is_not_inherited_is_found() {
        for (line, own) in [
            ("version.workspace = true", "version = \"1.0.0\""),
            ("edition.workspace = true", "edition = \"2021\""),
            ("license.workspace = true", "license = \"MIT\""),
            ("[lints]\nworkspace = true", ""),
        ] {
            let found = inherits_from_the_workspace(&manifest(&GOOD.replace(line, own)));
            assert_eq!(found.len(), 1, "{line}: {found:?}");
        }
    }

    #[test]
    fn a_folder_with_another_name_is_found() {
        let file = File::new("crates/event/Cargo.toml", GOOD.to_owned());
        assert_eq!(folder_is_called_like_the_package(&file).len(), 1);
    }

    #[test]
    fn the_root_and_the_workspaces_beside_it_are_no_members() {
        for path in ["Cargo.toml", "bench/Cargo.toml", "crates/a/tests/golden/Cargo.toml"] {
            assert!(inherits_from_the_workspace(&File::new(path, String::new())).is_empty(), "{path}");
        }
        assert_eq!(inherits_from_the_workspace(&File::new("xtask/Cargo.toml", String::new())).len(), 4);
    }
}
