//! `cargo xtask services`: real servers to try a target against.
//!
//! What was started is noted below the target folder, so that `down`, from wherever it is called, ends just that.
//! Standard output has nothing but `NAME=value` lines and their `export`s, ready for a shell's `eval`; everything that
//! is meant for a person goes to standard error.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, Subcommand};
use outhaul_services::{Access, Identity, Kind, Server, end_all, install};
use serde::{Deserialize, Serialize};

use crate::metadata::Metadata;

#[derive(Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Installs what is missing, starts, waits until each answers, and prints `OUTHAUL_TEST_<NAME>_URL=…` lines
    Up {
        /// `nats`, `redis`, `mqtt`, `amqp`, `postgres`, `mysql`, `kafka`, `pulsar`, each with `:password`, `:tls` or
        /// `:mutual-tls` where it has that; all of them plain, if none is named
        names: Vec<Wanted>,
    },
    /// Ends everything that `up` started, and removes its data
    Down,
    /// Shows what `up` started, and whether it runs
    Status,
    /// Installs what is missing and starts nothing
    Install {
        /// As of `up`; all of them, if none is named
        names: Vec<Kind>,
    },
}

/// A kind and a variant, as `redis` or `redis:tls`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wanted {
    kind: Kind,
    access: Access,
}

impl std::str::FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, access) = text.split_once(':').unwrap_or((text, Access::Plain.name()));
        Ok(Self { kind: kind.parse()?, access: access.parse()? })
    }
}

/// A server that was left running.
#[derive(Debug, Serialize, Deserialize)]
struct Left {
    kind: Kind,
    access: Access,
    /// Names and values, as they are printed.
    variables: Vec<(String, String)>,
    directory: PathBuf,
    identities: Vec<Identity>,
}

impl Left {
    fn is_running(&self) -> bool {
        self.identities.iter().all(|identity| identity.is_running())
    }

    fn is(&self, wanted: Wanted) -> bool {
        (self.kind, self.access) == (wanted.kind, wanted.access)
    }

    fn end(&self) -> Result<()> {
        // Last started first: what a server needs ends behind it.
        self.identities.iter().rev().for_each(|identity| end_all(std::slice::from_ref(identity)));
        match fs::remove_dir_all(&self.directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", self.directory.display()))
            }
            _ => Ok(()),
        }
    }
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let state = State { path: Metadata::load(root)?.target_directory.join("services/state.json") };
    match &options.verb {
        Verb::Up { names } => state.up(names),
        Verb::Down => state.down(),
        Verb::Status => state.status(),
        Verb::Install { names } => install_all(names),
    }
}

/// Installs what is missing of these, of all if none is named.
pub(crate) fn install_all(names: &[Kind]) -> Result<()> {
    Ok(install(if names.is_empty() { &Kind::ALL } else { names })?)
}

/// The file in which the running servers are noted.
struct State {
    path: PathBuf,
}

impl State {
    fn load(&self) -> Result<Vec<Left>> {
        match fs::read(&self.path) {
            Ok(bytes) => serde_json::from_slice(&bytes).with_context(|| {
                format!(
                    "{} is not what `services up` writes; end its servers by hand and remove it",
                    self.path.display()
                )
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", self.path.display())),
        }
    }

    fn save(&self, all: &[Left]) -> Result<()> {
        let write = || {
            fs::create_dir_all(self.path.parent().context("it has a folder")?)?;
            Ok::<_, anyhow::Error>(fs::write(&self.path, serde_json::to_vec_pretty(all)?)?)
        };
        write().with_context(|| format!("cannot write {}", self.path.display()))
    }

    fn up(&self, names: &[Wanted]) -> Result<()> {
        let plain = |&kind: &Kind| Wanted { kind, access: Access::Plain };
        let all: Vec<Wanted> = Kind::ALL.iter().map(plain).collect();
        let wanted = if names.is_empty() { &all[..] } else { names };
        install_all(&wanted.iter().map(|wanted| wanted.kind).collect::<Vec<_>>())?;
        let (mut running, ended): (Vec<Left>, Vec<Left>) =
            self.load()?.into_iter().partition(Left::is_running);
        ended.iter().try_for_each(Left::end)?;
        let missing: Vec<Wanted> =
            wanted.iter().copied().filter(|&wanted| !running.iter().any(|left| left.is(wanted))).collect();
        let started: Vec<Result<Left>> = std::thread::scope(|scope| {
            let threads: Vec<_> = missing.iter().map(|&wanted| scope.spawn(move || start(wanted))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked"))))
                .collect()
        });
        let mut failed = Vec::new();
        for result in started {
            match result {
                Ok(left) => running.push(left),
                Err(error) => failed.push(format!("{error:#}")),
            }
        }
        self.save(&running)?;
        for left in running.iter().filter(|left| wanted.iter().any(|&wanted| left.is(wanted))) {
            for (name, value) in &left.variables {
                println!("{name}={value}\nexport {name}");
            }
        }
        if !failed.is_empty() {
            bail!("{}", failed.join("\n"));
        }
        Ok(())
    }

    fn down(&self) -> Result<()> {
        let all = self.load()?;
        for left in &all {
            left.end()?;
            eprintln!("{} {}: ended", left.kind, left.access);
        }
        if all.is_empty() {
            eprintln!("nothing was started by `services up`");
        }
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", self.path.display()))
            }
            _ => Ok(()),
        }
    }

    fn status(&self) -> Result<()> {
        let all = self.load()?;
        if all.is_empty() {
            eprintln!("nothing was started by `services up`");
        }
        for left in all {
            let word = if left.is_running() { "runs" } else { "has ended" };
            let url = left.variables.first().map_or("", |(_, url)| url);
            println!("{} {} {word} {url} {}", left.kind, left.access, left.directory.display());
        }
        Ok(())
    }
}

/// Starts one and leaves it running.
fn start(wanted: Wanted) -> Result<Left> {
    let Wanted { kind, access } = wanted;
    let server = Server::builder(kind).access(access).left_running().start()?;
    let variant = match access {
        Access::Plain => String::new(),
        other => format!("_{}", other.name().replace('-', "_").to_uppercase()),
    };
    let name = |what: &str| format!("OUTHAUL_TEST_{}{variant}_{what}", kind.name().to_uppercase());
    let mut variables = vec![(name("URL"), server.url())];
    if access.is_tls() {
        let client = server.client();
        let files = [("CA", server.authority().ca()), ("CERT", client.cert), ("KEY", client.key)];
        variables.extend(files.map(|(what, path)| (name(what), path.display().to_string())));
    }
    let identities = server.identities();
    Ok(Left { kind, access, variables, identities, directory: server.leave() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_have_a_variant() {
        let wanted = |text: &str| text.parse::<Wanted>();
        assert_eq!(wanted("redis"), Ok(Wanted { kind: Kind::Redis, access: Access::Plain }));
        assert_eq!(wanted("nats:mutual-tls"), Ok(Wanted { kind: Kind::Nats, access: Access::MutualTls }));
        assert!(wanted("reddis").unwrap_err().contains("there are nats, redis"));
        assert!(wanted("redis:ssl").unwrap_err().contains("there are plain, password"));
    }

    #[test]
    fn a_server_is_left_running_and_ended_by_its_own_processes() {
        let folder = std::env::temp_dir().join(format!("outhaul-xtask-services-{}", std::process::id()));
        let state = State { path: folder.join("state.json") };
        let wanted = Wanted { kind: Kind::Redis, access: Access::Plain };
        state.up(&[wanted]).unwrap();
        let first = state.load().unwrap();
        assert!(first.len() == 1 && first[0].is_running());
        // A second `up` finds it.
        state.up(&[wanted]).unwrap();
        assert_eq!(state.load().unwrap()[0].identities, first[0].identities);
        state.down().unwrap();
        assert!(!first[0].is_running() && !first[0].directory.exists());
        assert!(state.load().unwrap().is_empty());
        fs::remove_dir_all(folder).unwrap();
    }
}
