//! [`AtRest`]: a data directory that no `run` or `pipe` uses, for the verbs that look at it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use outhaul::event::{InvalidUid, TargetName, Uid};
use outhaul::store::{Engine, JournalOptions, QueueSettings, QueueStats, Store, StoreOptions};

use crate::console::{Console, quoted};
use crate::data_dir;
use crate::error::{CliError, Exit};

/// What is done with the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Look,
    Change,
}

pub(crate) struct AtRest {
    pub(crate) store: Store,
    data: PathBuf,
}

impl AtRest {
    /// Opens it with the engine it belongs to. Nothing is made where nothing is.
    pub(crate) async fn open(data: &Path, access: Access) -> Result<Self, CliError> {
        Self::open_journal(data, access, JournalOptions::default()).await
    }

    /// As [`open`](Self::open); a journal is opened in this way.
    pub(crate) async fn open_journal(
        data: &Path,
        access: Access,
        journal: JournalOptions,
    ) -> Result<Self, CliError> {
        data_dir::check(data)?;
        let found = Store::engine_of(data)?;
        // Where nothing was written yet, nothing is opened, and nothing made.
        let engine = found.unwrap_or(Engine::Memory);
        let read_only = access == Access::Look;
        let options = StoreOptions { engine, read_only, journal, ..StoreOptions::default() };
        Ok(Self { store: Store::open(data, options).await?, data: data.to_owned() })
    }

    /// Its engine, if anything was ever written to it.
    pub(crate) fn engine(&self) -> Option<Engine> {
        Some(self.store.engine()).filter(|&engine| engine != Engine::Memory)
    }

    /// The directory, as it is shown.
    pub(crate) fn shown(&self) -> String {
        self.data.display().to_string()
    }

    /// The directory, as a shell takes it.
    pub(crate) fn quoted(&self) -> String {
        quoted(&self.shown())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.data
    }

    /// The file that an entry is in, from the data directory.
    pub(crate) fn file_of(&self, uid: &Uid) -> Option<String> {
        let file = self.store.log().file_of(uid)?;
        Some(format!("{}/{file}", self.store.engine().dir()))
    }

    /// The queues that are asked for.
    pub(crate) fn queues(&self, target: Option<&TargetName>) -> Vec<QueueStats> {
        let all = self.store.log().stats().into_iter();
        all.filter(|queue| target.is_none_or(|target| *target == queue.name)).collect()
    }

    /// The target that was named. The directory has to know it.
    pub(crate) fn target(&self, name: Option<&str>) -> Result<Option<TargetName>, CliError> {
        let Some(name) = name else { return Ok(None) };
        let name = TargetName::new(name);
        let name = name.map_err(|error| CliError::new(Exit::Wrong, error.to_string()).at("--target"))?;
        let failed = self.store.failed();
        let unreadable = failed.unreadable().into_iter().map(|record| record.target);
        let queues = self.store.log().stats().into_iter().map(|queue| queue.name);
        let known: BTreeSet<TargetName> =
            failed.counts().into_keys().chain(unreadable).chain(queues).collect();
        if known.contains(&name) {
            return Ok(Some(name));
        }
        let known = known.iter().map(TargetName::as_str).collect::<Vec<_>>().join(", ");
        let why = match known.as_str() {
            "" => "it knows no target yet".to_owned(),
            known => format!("it knows {known}"),
        };
        Err(CliError::new(Exit::Wrong, format!("the data directory knows no target {name}"))
            .at(self.shown())
            .because(why)
            .help("correct `--target`, or leave it out to see all"))
    }

    /// Attaches the queues of these entries, which takes none of their notes away. What is none of the directory's
    /// queues is left out.
    pub(crate) fn attach(&self, uids: &[Uid]) -> Result<(), CliError> {
        let wanted: BTreeSet<&TargetName> = uids.iter().map(|uid| &uid.queue).collect();
        for queue in self.store.log().stats() {
            if wanted.contains(&queue.name) {
                let settings = QueueSettings { label: queue.label, ..QueueSettings::default() };
                self.store.log().attach(&queue.name, settings)?;
            }
        }
        Ok(())
    }

    /// Ends with code 3 where a person should look at more than what was asked for.
    pub(crate) async fn close(self, console: &Console) -> Result<Exit, CliError> {
        let mut damaged = console.tell_damage(&self.store.report(), &self.shown());
        for record in self.store.failed().unreadable() {
            damaged = true;
            console.say(format_args!(
                "damage: {} of target {} in {}/{} cannot be read: {}; it is left as it is",
                record.record,
                record.target,
                self.shown(),
                record.file,
                record.reason
            ));
        }
        self.store.close().await?;
        Ok(if damaged { Exit::Attention } else { Exit::Done })
    }
}

/// A uid, or its number beside `--target`.
pub(crate) fn read_uid(text: &str, target: Option<&str>) -> Result<Uid, CliError> {
    let whole = match target {
        Some(target) if !text.contains(':') => format!("{target}:{text}"),
        _ => text.to_owned(),
    };
    let uid: Uid = whole.parse().map_err(|e: InvalidUid| CliError::new(Exit::Wrong, e.to_string()))?;
    match target {
        Some(target) if *target != *uid.queue.as_str() => {
            Err(CliError::new(Exit::Wrong, format!("{uid} is no entry of {target}"))
                .help("leave out `--target`"))
        }
        _ => Ok(uid),
    }
}
