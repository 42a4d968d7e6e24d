//! Where lines go, and how: [`FileOptions`].

use std::path::{Path, PathBuf};
use std::time::Duration;

use outhaul_target::{ConfigError, Format, TargetOptions, TargetUri, percent_decode};

/// The most events that are written together.
pub(crate) const BATCH_MAX: usize = 1_000;

/// Where lines go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// A file, pipe or device of this path.
    Path(PathBuf),
    /// Standard output.
    Stdout,
}

/// How a target is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileOptions {
    /// Where lines go. A relative path is made absolute when the target is made.
    pub destination: Destination,
    /// What a line is.
    pub format: Format,
    /// The deadline of one batch (30 s).
    pub timeout: Duration,
    /// Events written together, 1 to 1,000.
    pub batch_max: usize,
}

impl Default for FileOptions {
    /// CloudEvents to standard output.
    fn default() -> Self {
        Self {
            destination: Destination::Stdout,
            format: Format::default(),
            timeout: TargetOptions::default().timeout,
            batch_max: BATCH_MAX,
        }
    }
}

impl FileOptions {
    /// Reads `file:PATH`, `file:///abs/path` or `stdout:`.
    ///
    /// # Errors
    /// Another scheme, a path that is missing or not local, an option that there is not.
    pub fn from_uri(uri: TargetUri) -> Result<Self, ConfigError> {
        let rest = &uri.url()[uri.scheme().len() + 1..];
        let destination = match uri.scheme() {
            "stdout" if rest.is_empty() => Destination::Stdout,
            "stdout" => {
                return Err(uri.invalid_url("`stdout:` takes no path", "write `stdout:`, or `file:PATH`"));
            }
            "file" => Destination::Path(path(&uri, rest)?),
            _ => return Err(uri.invalid_url("it is no file", "write `file:PATH` or `stdout:`")),
        };
        let options = uri.options();
        let batch_max = options.batch.map_or(BATCH_MAX, |batch| batch.get().min(BATCH_MAX));
        let (format, timeout) = (options.format, options.timeout);
        uri.finish()?;
        Ok(Self { destination, format, timeout, batch_max })
    }
}

fn path(uri: &TargetUri, rest: &str) -> Result<PathBuf, ConfigError> {
    let text = match rest.strip_prefix("//") {
        None if rest.contains('?') => {
            let help = "write the path as `file:///abs/path`, with `%3F` for each question mark";
            return Err(uri.invalid_url("a `?` begins the options", help));
        }
        None => rest.to_owned(),
        Some(after) => {
            let local = after.strip_prefix("localhost").unwrap_or(after);
            let decoded = Some(local).filter(|path| path.starts_with('/') && !path.contains('?'));
            decoded.and_then(percent_decode).ok_or_else(|| {
                let why = "behind `file://` an absolute path has to follow, percent-encoded, and no host";
                uri.invalid_url(why, "write `file:///abs/path`, or `file:PATH` for a path as it is")
            })?
        }
    };
    if text.is_empty() || text.ends_with('/') || text.contains('\0') {
        return Err(uri.invalid_url("it names no file", "write `file:PATH`, such as `file:delivered.ndjson`"));
    }
    std::path::absolute(Path::new(&text)).map_err(|e| {
        uri.invalid_url(format!("the working directory is unknown: {e}"), "write an absolute path")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<FileOptions, ConfigError> {
        FileOptions::from_uri(TargetUri::parse(text)?)
    }

    #[test]
    fn paths_are_literal_and_urls_are_decoded() {
        let here = std::env::current_dir().unwrap();
        let cases = [
            ("file:a%20b#c", here.join("a%20b#c")),
            ("file:./a", here.join("a")),
            ("file:/abs/x?outhaul.batch=7", "/abs/x".into()),
            ("file:///a%20b%3Fc", "/a b?c".into()),
            ("file://localhost/x", "/x".into()),
        ];
        for (text, path) in cases {
            assert_eq!(read(text).unwrap().destination, Destination::Path(path), "{text}");
        }
        assert_eq!(read("stdout:").unwrap().destination, Destination::Stdout);
    }

    #[test]
    fn what_names_no_local_file_is_refused() {
        for text in [
            "file:",
            "file:dir/",
            "file://host/x",
            "file:a?b",
            "file:///%00",
            "file:///%zz",
            "stdout:x",
            "http://h",
        ] {
            let error = read(text).unwrap_err();
            assert!(error.help().starts_with("write"), "{error}");
        }
        assert!(read("file:x?outhaul.nope=1").unwrap_err().what().contains("outhaul.nope"));
    }

    #[test]
    fn the_smaller_batch_counts() {
        assert_eq!(read("stdout:").unwrap().batch_max, 100);
        assert_eq!(read("stdout:?outhaul.batch=7").unwrap().batch_max, 7);
        assert_eq!(read("stdout:?outhaul.batch=5000").unwrap().batch_max, 1_000);
    }
}
