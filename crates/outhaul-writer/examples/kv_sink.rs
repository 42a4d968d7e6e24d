//! A sink over an embedded key-value engine: here a `BTreeMap` whose lock is the transaction.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use outhaul_writer::{Operation, Sink, SinkError, Writer, WriterOptions, async_trait};

/// Sets a key; the key is the pid, so that the last write of a key wins.
struct Set {
    key: String,
    value: u64,
}

impl Operation for Set {
    fn pid(&self) -> Option<&str> {
        Some(&self.key)
    }

    fn bytes(&self) -> usize {
        self.key.len() + size_of_val(&self.value)
    }
}

#[derive(Default)]
struct KvSink(Mutex<BTreeMap<String, u64>>);

#[async_trait]
impl Sink for KvSink {
    type Op = Set;
    /// The value that was replaced.
    type Output = Option<u64>;
    type Error = Infallible;

    async fn apply(&self, _shard: u64, ops: &[Set]) -> Vec<Result<Option<u64>, SinkError<Infallible>>> {
        let mut engine = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ops.iter().map(|op| Ok(engine.insert(op.key.clone(), op.value))).collect()
    }
}

#[tokio::main(flavor = "current_thread")]
#[expect(clippy::print_stdout, reason = "an example shows its result")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sink = Arc::new(KvSink::default());
    let writer = Writer::open(Arc::clone(&sink), WriterOptions::default());
    let mut last = None;
    for value in 0..1_000 {
        last = Some(writer.send(Set { key: format!("key-{}", value % 10), value }).await?);
    }
    let replaced = match last {
        Some(ticket) => ticket.await?,
        None => None,
    };
    writer.close().await?;
    let stats = writer.stats();
    println!("the last write of key-9 replaced {replaced:?}");
    println!("applied={} failed={} waiting={}", stats.applied, stats.failed, stats.depth);
    Ok(())
}
