//! `--data DIR`: what is said before the store looks at it.

use std::io::ErrorKind;
use std::path::Path;

use crate::error::{CliError, Exit};

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
