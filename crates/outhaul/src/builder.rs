//! [`OuthaulBuilder`]: a data directory and its targets.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use outhaul_runtime::event::TargetName;
use outhaul_runtime::store::{Store, StoreOptions};
use outhaul_runtime::target::{Target, TargetOptions, TargetUri};
use outhaul_runtime::{Repoint, Runtime, RuntimeOptions, StartError, TargetSpec};

use crate::Outhaul;
use crate::error::OpenError;
use crate::kinds;

/// Collects what [`open`](Self::open) opens. Nothing is checked or touched before that.
#[derive(Default)]
#[must_use = "nothing happens before it is opened"]
pub struct OuthaulBuilder {
    data: PathBuf,
    given: Vec<Given>,
    repoint: Vec<String>,
    store: StoreOptions,
    runtime: RuntimeOptions,
}

enum Given {
    Uri { name: Option<String>, uri: String },
    Value { name: String, target: Arc<dyn Target>, options: Box<TargetOptions>, destination: String },
}

impl OuthaulBuilder {
    pub(crate) fn new(data: PathBuf) -> Self {
        Self { data, ..Self::default() }
    }

    /// Adds the target of a URI under the name of its kind.
    pub fn to(mut self, uri: &str) -> Self {
        self.given.push(Given::Uri { name: None, uri: uri.to_owned() });
        self
    }

    /// Adds the target of a URI under a name of its own.
    pub fn named(mut self, name: &str, uri: &str) -> Self {
        self.given.push(Given::Uri { name: Some(name.to_owned()), uri: uri.to_owned() });
        self
    }

    /// Adds a target of any type. `destination` says where it delivers to, without credentials: a later change of it
    /// is refused while entries wait, unless [`repoint`](Self::repoint) allows it.
    pub fn target(
        mut self,
        name: &str,
        target: impl Target,
        options: TargetOptions,
        destination: impl Into<String>,
    ) -> Self {
        let (name, destination) = (name.to_owned(), destination.into());
        self.given.push(Given::Value {
            name,
            target: Arc::new(target),
            options: Box::new(options),
            destination,
        });
        self
    }

    /// Allows entries that wait for a target to go to a new destination.
    pub fn repoint(mut self, name: &str) -> Self {
        self.repoint.push(name.to_owned());
        self
    }

    /// Sets the engine, what a receipt promises, and how events and failed entries are kept.
    pub fn store(mut self, options: impl Into<StoreOptions>) -> Self {
        self.store = options.into();
        self
    }

    /// Sets the writer and the policy.
    pub fn runtime(mut self, options: RuntimeOptions) -> Self {
        self.runtime = options;
        self
    }

    /// Checks everything, opens the data directory, recovers what is in it, and starts to deliver. Needs a tokio
    /// runtime with time and I/O.
    pub async fn open(self) -> Result<Outhaul, OpenError> {
        let targets = self.targets()?;
        let store = Store::open(&self.data, self.store).await.map_err(StartError::Store)?;
        Ok(Outhaul(Runtime::start(store, targets, self.runtime).await?))
    }

    fn targets(&self) -> Result<Vec<TargetSpec>, OpenError> {
        let mut specs = Vec::with_capacity(self.given.len());
        let mut unnamed: BTreeMap<TargetName, Vec<String>> = BTreeMap::new();
        for given in &self.given {
            let mut spec = match given {
                Given::Uri { name, uri } => {
                    let parsed = TargetUri::parse(uri).map_err(OpenError::Config)?;
                    let kind = TargetName::new(kinds::kind(&parsed).map_err(OpenError::Config)?)?;
                    let name = match name {
                        Some(name) => TargetName::new(name)?,
                        None => {
                            unnamed.entry(kind.clone()).or_default().push(parsed.redacted());
                            kind
                        }
                    };
                    kinds::spec(name, uri).map_err(OpenError::Config)?
                }
                Given::Value { name, target, options, destination } => TargetSpec::new(
                    TargetName::new(name)?,
                    Arc::clone(target),
                    TargetOptions::clone(options),
                    destination,
                ),
            };
            let keep = self.repoint.iter().any(|name| name == spec.name.as_str());
            spec.repoint = keep.then_some(Repoint::Keep);
            specs.push(spec);
        }
        if let Some((kind, uris)) = unnamed.iter().find(|(_, uris)| uris.len() > 1) {
            return Err(OpenError::Unnamed { kind: kind.to_string(), uris: uris.clone() });
        }
        one_writer_each(&specs)?;
        if specs.is_empty() {
            return Err(OpenError::NoTarget);
        }
        if let Some(name) =
            self.repoint.iter().find(|name| specs.iter().all(|spec| spec.name.as_str() != **name))
        {
            return Err(OpenError::UnknownRepoint(name.clone()));
        }
        Ok(specs)
    }
}

/// A file is locked by the target that writes to it, so a second one would wait for ever.
fn one_writer_each(specs: &[TargetSpec]) -> Result<(), OpenError> {
    let files = specs.iter().filter(|spec| spec.target.kind() == "file");
    one_writer_of(files.map(|spec| (&spec.name, spec.destination.as_str())))
}

/// As [`one_writer_each`], of the names and destinations of file targets.
pub(crate) fn one_writer_of<'a>(
    files: impl Iterator<Item = (&'a TargetName, &'a str)>,
) -> Result<(), OpenError> {
    let mut writers: Vec<(FileIdentity, &TargetName)> = Vec::new();
    for (name, destination) in files {
        let Some(file) = FileIdentity::of(Path::new(destination)) else { continue };
        if let Some((_, first)) = writers.iter().find(|(other, _)| *other == file) {
            let (first, second) = (TargetName::clone(first), name.clone());
            return Err(OpenError::SameFile { first, second, file: destination.to_owned() });
        }
        writers.push((file, name));
    }
    Ok(())
}

/// What tells files apart whatever they are called.
#[derive(PartialEq)]
enum FileIdentity {
    There {
        device: u64,
        inode: u64,
    },
    /// In a directory that is there, or under a name alone.
    NotYet(PathBuf),
}

impl FileIdentity {
    /// None for devices and pipes, which nobody locks.
    fn of(path: &Path) -> Option<Self> {
        match std::fs::metadata(path) {
            Ok(file) => file.is_file().then(|| Self::There { device: file.dev(), inode: file.ino() }),
            Err(_) => {
                let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
                let named = parent.zip(path.file_name()).map(|(parent, name)| parent.join(name));
                Some(Self::NotYet(named.unwrap_or_else(|| path.to_owned())))
            }
        }
    }
}
