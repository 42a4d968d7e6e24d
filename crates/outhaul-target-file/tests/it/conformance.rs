//! The conformance kit over a file in a directory that can be taken away.

use std::time::Duration;

use outhaul_target::async_trait;
use outhaul_target::outhaul_event::{Event, Limits};
use outhaul_target::testkit::{Arrival, Condition, Fixture, Unsupported};
use outhaul_target_file::{FileOptions, FileTarget};

use crate::support;

struct Directory(tempfile::TempDir);

#[async_trait]
impl Fixture for Directory {
    type Target = FileTarget;

    async fn start() -> Self {
        let directory = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(directory.0.path().join("d")).unwrap();
        directory
    }

    async fn target(&self, timeout: Duration) -> FileTarget {
        FileTarget::new(FileOptions { timeout, ..support::options(&self.0.path().join("d/events.ndjson")) })
    }

    async fn arrived(&self) -> Vec<Arrival> {
        let text = std::fs::read(self.0.path().join("d/events.ndjson")).unwrap_or_default();
        let lines = text.split(|&b| b == b'\n').filter(|line| !line.is_empty());
        let event =
            |line| Event::from_json(line, &Limits { body_bytes_max: 1 << 21, ..Limits::default() }).unwrap();
        lines.map(|line| Arrival::from_event(&event(line), None)).collect()
    }

    async fn set(&self, condition: Condition) -> Result<(), Unsupported> {
        let (here, away) = (self.0.path().join("d"), self.0.path().join("away"));
        match condition {
            Condition::Refusing => rustix::fs::rename(here, away).unwrap(),
            Condition::Healthy => rustix::fs::rename(away, here).unwrap_or_default(),
            Condition::Hanging => {
                return Err(Unsupported("a file does not hang; a pipe does, see `streams`"));
            }
            Condition::Flaky => return Err(Unsupported("a file does not fail by chance; see `files`")),
            _ => return Err(Unsupported("a file is no server")),
        }
        Ok(())
    }

    fn unsupported(case: &str) -> Option<Unsupported> {
        match case {
            "no_secret_is_shown" => Some(Unsupported("a file has no credentials")),
            "every_attempt_carries_the_same_dedup_id" => {
                Some(Unsupported("a line holds id and source, out of which the dedup_id is derived"))
            }
            _ => None,
        }
    }
}

outhaul_target::conformance!(Directory);
