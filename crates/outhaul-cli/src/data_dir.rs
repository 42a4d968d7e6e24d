//! `--data DIR`, `--engine` and `--durability`: what is said before the store looks at the directory.

use std::io::ErrorKind;
use std::path::Path;

use outhaul::store::{Durability, Engine};

use crate::args::StoreArgs;
use crate::error::{CliError, Exit};

/// What a person has to know who chose less than the default promises; None under the default.
pub(crate) fn promise(store: &StoreArgs) -> Option<String> {
    let lost = match (store.asked, store.durability) {
        (Some(Engine::Memory), _) => {
            "the engine memory keeps nothing: whatever ends this process loses what waits"
        }
        (_, Durability::Synced) => return None,
        (_, Durability::Interval(interval)) => {
            return Some(format!(
                "note: a loss of power may lose the events acknowledged in the last {interval:?}; answers say \
                 `durable: false`"
            ));
        }
        (_, Durability::Buffered) => "a loss of power may lose many seconds of acknowledged events",
    };
    Some(format!("note: {lost}; answers say `durable: false`"))
}

/// The engine `memory` has no directory.
pub(crate) fn refuse_with_memory(store: &StoreArgs, data: Option<&Path>) -> Result<(), CliError> {
    match data.filter(|_| store.asked == Some(Engine::Memory)) {
        None => Ok(()),
        Some(data) => Err(CliError::new(Exit::Wrong, "the engine memory has no data directory")
            .at(format!("--engine memory --data {}", data.display()))
            .because("it keeps events in memory alone, and they are gone with the process")
            .help("leave out `--data`, or `--engine memory`")),
    }
}

/// Refuses a path that is there and cannot be a directory. All else is the store's to judge.
pub(crate) fn check(path: &Path) -> Result<(), CliError> {
    let why = match std::fs::metadata(path) {
        Ok(found) if !found.is_dir() => "it is a file or something else that is no directory",
        Err(error) if error.kind() == ErrorKind::NotFound && path.is_symlink() => {
            "it is a symbolic link to something that does not exist"
        }
        _ => return Ok(()),
    };
    Err(CliError::new(Exit::Wrong, format!("{} is not a directory", path.display()))
        .at(format!("--data {}", path.display()))
        .because(why)
        .help("give the path of a data directory, or of a new one, which is made"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_directory_is_refused_and_what_is_missing_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("file"), "").unwrap();
        std::os::unix::fs::symlink("nowhere", path("dangling")).unwrap();
        std::os::unix::fs::symlink(".", path("link")).unwrap();
        for (name, fine) in
            [("file", false), ("dangling", false), ("link", true), ("new", true), ("new/er", true)]
        {
            let checked = check(&path(name));
            assert_eq!(checked.is_ok(), fine, "{name}");
            assert!(checked.err().is_none_or(|error| error.to_string().contains("is not a directory")));
        }
    }
}
