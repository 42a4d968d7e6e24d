//! What `cargo metadata` says about the crates of the workspace.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::cmd;

/// The workspace's own packages; nothing of what they take from a registry.
#[derive(Debug, Deserialize)]
pub(crate) struct Metadata {
    pub(crate) packages: Vec<Package>,
    pub(crate) target_directory: PathBuf,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) dependencies: Vec<Dependency>,
    pub(crate) features: BTreeMap<String, Vec<String>>,
    pub(crate) targets: Vec<Target>,
}

/// One line of a manifest's dependency table, optional ones and those of one platform included.
#[derive(Debug, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// `None` is a normal dependency, else `build` or `dev`.
    pub(crate) kind: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) kind: Vec<String>,
}

impl Metadata {
    pub(crate) fn load(root: &Path) -> Result<Self> {
        let json = cmd::read(&mut cmd::cargo(root, &["metadata", "--format-version", "1", "--no-deps"]))?;
        serde_json::from_str(&json)
            .context("`cargo metadata` has a shape that xtask/src/metadata.rs does not know")
    }

    /// The package called `name` or `outhaul-NAME`.
    pub(crate) fn package(&self, name: &str) -> Result<&Package> {
        let long = format!("outhaul-{name}");
        let Some(package) = self.packages.iter().find(|p| p.is_called(name)) else {
            let names: Vec<&str> = self.packages.iter().map(|p| p.name.as_str()).collect();
            bail!("no crate `{name}` or `{long}` in the workspace; there are: {}", names.join(", "));
        };
        Ok(package)
    }
}

impl Package {
    /// By its name, with or without `outhaul-`.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        self.name == name || self.name.strip_prefix("outhaul-") == Some(name)
    }

    /// The names of the package's benchmark binaries.
    pub(crate) fn benches(&self) -> impl Iterator<Item = &str> {
        self.targets.iter().filter(|t| t.kind.iter().any(|k| k == "bench")).map(|t| t.name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_workspace_can_be_read() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let metadata = Metadata::load(root).unwrap();
        assert!(metadata.package("xtask").unwrap().dependencies.iter().any(|d| d.name == "anyhow"));
    }

    #[test]
    fn an_unknown_crate_is_an_error_that_lists_the_known_ones() {
        let json = r#"{"target_directory": "/t", "packages": [
            {"name": "outhaul-store", "dependencies": [], "features": {}, "targets": []}]}"#;
        let metadata: Metadata = serde_json::from_str(json).unwrap();
        assert_eq!(metadata.package("store").unwrap().name, "outhaul-store");
        let error = metadata.package("sore").unwrap_err().to_string();
        assert!(error.contains("outhaul-store"), "{error}");
    }
}
