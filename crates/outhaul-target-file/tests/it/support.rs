//! Attempts, and what a file holds.

use std::path::Path;
use std::time::Duration;

use outhaul_target::outhaul_event::{Event, Limits};
use outhaul_target::testkit::attempt;
use outhaul_target::{Attempt, ErrorKind, Target};
use outhaul_target_file::{Destination, FileOptions, FileTarget};

pub(crate) fn target(path: &Path) -> FileTarget {
    FileTarget::new(options(path))
}

pub(crate) fn options(path: &Path) -> FileOptions {
    FileOptions {
        destination: Destination::Path(path.to_owned()),
        timeout: Duration::from_secs(20),
        ..FileOptions::default()
    }
}

pub(crate) fn event(id: usize) -> Attempt {
    attempt(Event::builder("t", "/test").id(id.to_string()).pid("p").json("{\"a\": 1}").build().unwrap())
}

/// What became of each event of a batch.
pub(crate) async fn deliver(target: &FileTarget, events: &[Attempt]) -> Vec<Result<(), ErrorKind>> {
    target.deliver(events).await.into_iter().map(|result| result.map_err(|error| error.kind())).collect()
}

/// The ids of the lines of a text; every line has to be a whole event.
pub(crate) fn ids(text: &[u8]) -> Vec<usize> {
    assert!(text.is_empty() || text.ends_with(b"\n"), "the last line is whole");
    let lines = text.split(|&b| b == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| Event::from_json(line, &Limits::default()).unwrap().id().parse().unwrap()).collect()
}
