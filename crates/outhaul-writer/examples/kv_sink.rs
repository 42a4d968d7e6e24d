//! A sink over an embedded key-value engine: a batch is one transaction and one sync.
//!
//! `cargo run -p outhaul-writer --example kv_sink`

use std::path::Path;
use std::sync::Arc;

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use outhaul_writer::{Answer, Operation, Sink, SinkError, Writer, WriterOptions};

/// Sets a key; the key is the pid, so the last write of a key wins.
struct Set(String, u64);

impl Operation for Set {
    fn pid(&self) -> Option<&str> {
        Some(&self.0)
    }

    fn bytes(&self) -> usize {
        self.0.len() + 8
    }
}

struct KvSink(Database, Keyspace);

impl Sink for KvSink {
    type Op = Set;
    type Output = ();
    type Error = Arc<fjall::Error>;

    async fn apply(&self, _shard: u64, ops: &[Set]) -> Answer<(), Self::Error> {
        let mut batch = self.0.batch().durability(Some(PersistMode::SyncAll));
        ops.iter().for_each(|op| batch.insert(&self.1, op.0.as_str(), op.1.to_be_bytes()));
        match batch.commit() {
            Ok(()) => Answer::Applied(()),
            Err(error) => Answer::Failed(SinkError::unknown(Arc::new(error))),
        }
    }
}

pub(crate) async fn run(dir: &Path, writes: u64) -> Result<String, Box<dyn std::error::Error>> {
    let engine = Database::builder(dir).open()?;
    let keys = engine.keyspace("keys", KeyspaceCreateOptions::default)?;
    let writer = Writer::open(Arc::new(KvSink(engine, keys)), WriterOptions::default());
    for value in 0..writes {
        drop(writer.send(Set(format!("key-{}", value % 10), value)).await?);
    }
    writer.close().await?;
    let stats = writer.stats();
    Ok(format!("applied={} failed={} waiting={}", stats.applied, stats.failed, stats.depth))
}

#[tokio::main(flavor = "current_thread")]
#[expect(clippy::print_stdout, reason = "an example shows its result")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("{}", run(tempfile::tempdir()?.path(), 10_000).await?);
    Ok(())
}
