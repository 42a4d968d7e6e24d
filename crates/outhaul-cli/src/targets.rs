//! `--to [NAME=]URI`: the targets of a command.

use std::io::Read as _;
use std::path::Path;

use outhaul::event::TargetName;
use outhaul::store::{Engine, Store, StoreOptions};
use outhaul::target::{TargetUri, redact};
use outhaul::{OpenError, OuthaulBuilder};

use crate::args::{StoreArgs, TargetArgs};
use crate::error::{CliError, Exit};

/// A file that holds a URI is no longer than this.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// One `--to`.
pub(crate) struct To {
    name: Option<TargetName>,
    uri: String,
    /// What was written, without credentials.
    shown: String,
    /// Whether it had credentials, so that what is shown is no command.
    hidden: bool,
}

impl To {
    /// The URI, with its credentials.
    pub(crate) fn uri(&self) -> &str {
        &self.uri
    }

    /// What was written, without credentials.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }
}

/// Reads all of them. `example` is the shortest command that works.
pub(crate) fn read(args: &TargetArgs, example: &str) -> Result<Vec<To>, CliError> {
    if args.to.is_empty() {
        return Err(CliError::new(Exit::Wrong, "no target is given")
            .because("events have to go somewhere: `--to URI` names a file, standard output or a URL")
            .help(format!("the shortest command that works:\n  {example}")));
    }
    for name in &args.repoint {
        TargetName::new(name).map_err(|e| CliError::new(Exit::Wrong, e.to_string()).at("--repoint"))?;
    }
    args.to.iter().map(|text| read_one(text)).collect()
}

/// Puts them, and how events are kept, into a builder.
pub(crate) fn configure(
    builder: OuthaulBuilder,
    to: &[To],
    args: &TargetArgs,
    store: &StoreArgs,
    data: &Path,
) -> OuthaulBuilder {
    // What cannot be looked at is told by whoever opens it.
    let there = || Store::engine_of(data).ok().flatten().filter(|&engine| engine != Engine::Memory);
    let (engine, durability) = (store.asked.or_else(there).unwrap_or_default(), store.durability);
    let mut builder = builder.store(StoreOptions { engine, durability, ..StoreOptions::default() });
    for target in to {
        builder = match &target.name {
            Some(name) => builder.named(name.as_str(), &target.uri),
            None => builder.to(&target.uri),
        };
    }
    for name in &args.repoint {
        builder = builder.repoint(name);
    }
    builder
}

/// Says why the targets were not opened. A URI that came from a file is named by its file.
pub(crate) fn explain(error: OpenError, to: &[To]) -> CliError {
    let OpenError::Unnamed { kind, uris } = error else { return error.into() };
    let line = |(number, uri): (usize, &String)| {
        let same = |target: &&To| TargetUri::parse(&target.uri).is_ok_and(|parsed| parsed.redacted() == *uri);
        let name = format!("{kind}-{}", number + 1);
        match to.iter().filter(|target| target.name.is_none()).find(same) {
            Some(target) if target.hidden => {
                format!("  --to {name}=@FILE (a file that holds {})", target.shown)
            }
            Some(target) => format!("  --to {name}={}", target.shown),
            None => format!("  --to {name}={uri}"),
        }
    };
    let lines = uris.iter().enumerate().map(line).collect::<Vec<_>>().join("\n");
    CliError::new(Exit::Wrong, format!("several targets of the kind {kind} have no name of their own"))
        .because("a queue belongs to the name of its target")
        .help(format!("write:\n{lines}"))
}

/// The `--to` arguments of a command that is to be copied. A URI with credentials is left to a file.
pub(crate) fn arguments(to: &[To]) -> String {
    let each = to.iter().map(|target| match (target.hidden, &target.name) {
        (false, _) => format!("--to {}", crate::console::quoted(&target.shown)),
        (true, Some(name)) => format!("--to {name}=@FILE"),
        (true, None) => "--to @FILE".to_owned(),
    });
    each.collect::<Vec<_>>().join(" ")
}

/// What has to be said beside [`arguments`].
pub(crate) fn note(to: &[To]) -> &'static str {
    match to.iter().any(|target| target.hidden) {
        true => "\n(FILE is a file that holds the URI, on one line: credentials are not shown)",
        false => "",
    }
}

pub(crate) fn read_one(text: &str) -> Result<To, CliError> {
    let (name, uri) = split(text)?;
    let (shown, hidden) = match uri.strip_prefix('@') {
        Some(_) => (text.to_owned(), false),
        None => shown(text),
    };
    let uri = match uri.strip_prefix('@') {
        Some(path) => from_file(Path::new(path), text)?,
        None => uri.to_owned(),
    };
    Ok(To { name, uri, shown, hidden })
}

/// A URI without its credentials, and whether it had some. The options are none, and stay.
fn shown(text: &str) -> (String, bool) {
    let Some((before, query)) = text.split_once('?') else {
        let shown = redact(text);
        let hidden = shown != text;
        return (shown, hidden);
    };
    let (options, kept): (Vec<_>, Vec<_>) = query.split('&').partition(|pair| pair.starts_with("outhaul."));
    let url = if kept.is_empty() { before.to_owned() } else { format!("{before}?{}", kept.join("&")) };
    let mut shown = redact(&url);
    let hidden = shown != url;
    for (i, option) in options.into_iter().enumerate() {
        shown.push(if i == 0 && kept.is_empty() { '?' } else { '&' });
        shown.push_str(option);
    }
    (shown, hidden)
}

/// A name ends at the first `=`; a URI has a colon, and a path may have a slash, before any.
fn split(text: &str) -> Result<(Option<TargetName>, &str), CliError> {
    let Some((before, after)) = text.split_once('=') else { return Ok((None, text)) };
    if before.contains([':', '/', '@', '?']) {
        return Ok((None, text));
    }
    match TargetName::new(before) {
        Ok(name) => Ok((Some(name), after)),
        Err(error) => Err(CliError::new(Exit::Wrong, error.to_string())
            .at(format!("--to {}", redact(text)))
            .help("write `--to NAME=URI`, such as `--to billing=https://example.com/hook`")),
    }
}

fn from_file(path: &Path, text: &str) -> Result<String, CliError> {
    let wrong = |what: String, why: String| {
        CliError::new(Exit::Wrong, what)
            .at(format!("--to {text}"))
            .because(why)
            .help("write the URI into the file, on one line")
    };
    let mut content = String::new();
    let file = std::fs::File::open(path);
    file.and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut content))
        .map_err(|e| wrong(format!("cannot read the file {}", path.display()), e.to_string()))?;
    let uri = content.trim();
    let what = || format!("the file {} holds no URI", path.display());
    if uri.is_empty() {
        return Err(wrong(what(), "it is empty".to_owned()));
    }
    if uri.contains(['\n', '\r']) {
        return Err(wrong(what(), "it has several lines".to_owned()));
    }
    if content.len() as u64 > FILE_BYTES_MAX {
        return Err(wrong(what(), format!("it is longer than {FILE_BYTES_MAX} bytes")));
    }
    Ok(uri.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_before_the_first_equals_sign() {
        let cases = [
            ("billing=https://h/x", Some("billing"), "https://h/x"),
            ("a.b-c_1=@file", Some("a.b-c_1"), "@file"),
            ("a=file:b=c", Some("a"), "file:b=c"),
            ("http://h/?a=b", None, "http://h/?a=b"),
            ("file:a=b", None, "file:a=b"),
            ("stdout:?outhaul.batch=7", None, "stdout:?outhaul.batch=7"),
            ("@a=b", None, "@a=b"),
            ("stdout:", None, "stdout:"),
        ];
        for (text, name, uri) in cases {
            let (found, rest) = split(text).unwrap();
            assert_eq!((found.as_ref().map(TargetName::as_str), rest), (name, uri), "{text}");
        }
        for text in ["Billing=stdout:", "=stdout:", "a b=stdout:", "é=file:x"] {
            assert!(split(text).unwrap_err().to_string().contains("is no target name"), "{text}");
        }
    }

    #[test]
    fn credentials_are_not_shown() {
        let to = read_one("a=https://me:secret@h/x").unwrap();
        assert_eq!(to.shown, "a=https://***@h/x");
        assert_eq!((arguments(&[to]).as_str(), note(&[]).is_empty()), ("--to a=@FILE", true));
        let to = read_one("https://h/x?key=secret&outhaul.batch=7&b").unwrap();
        assert_eq!(to.shown, "https://h/x?key=***&b&outhaul.batch=7");
        assert!(note(std::slice::from_ref(&to)).contains("FILE"));
        assert_eq!(arguments(&[to]), "--to @FILE");
        for open in ["https://h/x?outhaul.batch=7&b&c", "a=https://h/", "file:x"] {
            assert!(!read_one(open).unwrap().hidden, "{open}");
        }
        assert_eq!(
            arguments(&[read_one("file:x?outhaul.batch=7").unwrap()]),
            "--to 'file:x?outhaul.batch=7'"
        );
    }
}
