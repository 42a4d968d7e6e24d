//! The dependency edges that may exist between the crates of the workspace.

use std::fmt;
use std::path::Path;

use anyhow::{Result, bail};

use crate::metadata::{Metadata, Package};

/// The table: each crate (or family, `outhaul-target-*`) and what its normal and build dependencies may name. The
/// first row that fits counts; a crate without a row is an error, so a new layer is a decision that is seen here.
const EDGES: &[(&str, &[&str])] = &[
    ("outhaul-event", &[]),
    ("outhaul-store", &["outhaul-event"]),
    ("outhaul-store-*", &["outhaul-store"]),
    ("outhaul-writer", &[]),
    ("outhaul-target", &["outhaul-event"]),
    ("outhaul-target-*", &["outhaul-target"]),
    ("outhaul-runtime", &["outhaul-writer", "outhaul-store", "outhaul-target"]),
    ("outhaul-ledger", &["outhaul-writer", "outhaul-store"]),
    ("outhaul", &["outhaul-runtime", "outhaul-target-*", "outhaul-store-*"]),
    ("outhaul-cli", &["outhaul", "outhaul-ledger"]),
    ("outhaul-services", &[]),
    ("xtask", &["outhaul-services"]),
];

/// What dev-dependencies may name on top of the table. Every crate may also name itself, to switch on its own
/// `testkit` feature in its tests.
const DEV_EDGES: &[(&str, &[&str])] = &[
    ("outhaul-cli", &["outhaul-*"]),
    ("outhaul-target", &["outhaul-services"]),
    ("outhaul-target-*", &["outhaul-services"]),
];

/// Fails when a crate of the workspace depends on another one that the table does not allow.
pub(crate) fn check(root: &Path) -> Result<()> {
    let wrong = wrong_edges(&Metadata::load(root)?.packages);
    if wrong.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> = wrong.iter().map(ToString::to_string).collect();
    bail!("the workspace has dependency edges that its table does not allow:\n  {}", lines.join("\n  "));
}

/// A finding: an edge outside the table, or a crate that has no row in it.
#[derive(Debug, PartialEq, Eq)]
enum Wrong {
    Edge { from: String, to: String, kind: String },
    NoRow { name: String },
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Edge { from, to, kind } => write!(
                f,
                "{from} → {to} ({kind} dependency): {from} may depend on {}; the table is EDGES and DEV_EDGES in \
                 xtask/src/edges.rs, depend on the layer that re-exports {to} or change the design first",
                allowed(from, kind)
            ),
            Self::NoRow { name } => {
                write!(
                    f,
                    "{name} has no row in the table EDGES in xtask/src/edges.rs: add it with its layer's edges"
                )
            }
        }
    }
}

fn wrong_edges(packages: &[Package]) -> Vec<Wrong> {
    let ours = |name: &str| packages.iter().any(|p| p.name == name);
    let mut wrong = Vec::new();
    for package in packages {
        if row(EDGES, &package.name).is_none() {
            wrong.push(Wrong::NoRow { name: package.name.clone() });
            continue;
        }
        for dependency in package.dependencies.iter().filter(|d| ours(&d.name)) {
            let kind = dependency.kind.as_deref().unwrap_or("normal");
            if !may_depend(&package.name, &dependency.name, kind) {
                let (from, to) = (package.name.clone(), dependency.name.clone());
                wrong.push(Wrong::Edge { from, to, kind: kind.to_owned() });
            }
        }
    }
    wrong
}

fn may_depend(from: &str, to: &str, kind: &str) -> bool {
    let named = |table| row(table, from).is_some_and(|to_any| to_any.iter().any(|pattern| fits(pattern, to)));
    named(EDGES) || (kind == "dev" && (from == to || named(DEV_EDGES)))
}

fn row(table: &'static [(&str, &[&str])], name: &str) -> Option<&'static [&'static str]> {
    table.iter().find(|(pattern, _)| fits(pattern, name)).map(|(_, to)| *to)
}

fn fits(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => pattern == name,
    }
}

fn allowed(from: &str, kind: &str) -> String {
    let mut names: Vec<&str> = row(EDGES, from).unwrap_or_default().to_vec();
    if kind == "dev" {
        names.push(from);
        names.extend(row(DEV_EDGES, from).unwrap_or_default());
    }
    if names.is_empty() { "no crate of the workspace".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Dependency;

    fn package(name: &str, dependencies: &[(&str, Option<&str>)]) -> Package {
        let dependency = |&(name, kind): &(&str, Option<&str>)| Dependency {
            name: name.to_owned(),
            kind: kind.map(str::to_owned),
        };
        Package {
            name: name.to_owned(),
            dependencies: dependencies.iter().map(dependency).collect(),
            features: [].into(),
            targets: Vec::new(),
        }
    }

    #[test]
    fn the_workspace_has_only_edges_of_the_table() {
        check(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()).unwrap();
    }

    #[test]
    fn an_edge_outside_the_table_is_named_with_the_table() {
        let wrong = wrong_edges(&[
            package("outhaul-store", &[("outhaul-target", None), ("outhaul-event", None), ("serde", None)]),
            package("outhaul-target", &[]),
            package("outhaul-event", &[]),
        ]);
        assert_eq!(wrong.len(), 1, "{wrong:?}");
        let text = wrong[0].to_string();
        assert!(text.contains("outhaul-store → outhaul-target (normal dependency)"), "{text}");
        assert!(text.contains("may depend on outhaul-event;"), "{text}");
        assert!(text.contains("xtask/src/edges.rs"), "{text}");
    }

    #[test]
    fn a_build_dependency_counts_like_a_normal_one() {
        let writer = package("outhaul-writer", &[("outhaul-event", Some("build"))]);
        assert_eq!(wrong_edges(&[writer, package("outhaul-event", &[])]).len(), 1);
    }

    #[test]
    fn a_crate_without_a_row_is_found() {
        let wrong = wrong_edges(&[package("outhaul-clock", &[])]);
        assert_eq!(wrong, [Wrong::NoRow { name: "outhaul-clock".to_owned() }]);
    }

    #[test]
    fn a_family_has_one_row_and_its_members_do_not_know_each_other() {
        assert!(may_depend("outhaul-target-file", "outhaul-target", "normal"));
        assert!(!may_depend("outhaul-target-file", "outhaul-target-webhook", "normal"));
        assert!(may_depend("outhaul", "outhaul-target-webhook", "normal"));
        assert!(!may_depend("outhaul", "outhaul-store", "normal"));
    }

    #[test]
    fn tests_may_see_the_crate_itself_and_those_of_the_cli_everything_below() {
        assert!(may_depend("outhaul-store", "outhaul-store", "dev"));
        assert!(!may_depend("outhaul-store", "outhaul-store", "normal"));
        assert!(may_depend("outhaul-cli", "outhaul-store", "dev"));
        assert!(!may_depend("outhaul-cli", "outhaul-store", "normal"));
        assert!(!may_depend("outhaul-runtime", "outhaul-target-file", "dev"));
    }
}
