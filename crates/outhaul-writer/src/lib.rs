//! One ordered door to any store: a sharded, pid-ordered, batching, bounded write path over a [`Sink`].
//!
//! It is **not** a queue that survives a crash, and knows nothing of what it writes: durability is the sink's. It adds
//! what a sink alone does not have:
//!
//! - **Order**: operations of one pid are applied in the order of acceptance, across batches and retries; others never
//!   wait for them, and take turns with them.
//! - **Batches**: everything that waits in a shard is one call of the sink; a shard that has just woken producers waits
//!   a moment for them to come back.
//! - **Bounds**: *admission* ([`Writer::try_admit`], [`Writer::try_admit_all`]) is refused when the store is behind and
//!   stays refused until the backlog has halved; *bookkeeping* ([`Writer::send`]), the record of work that was accepted
//!   before, waits for room and is never refused.
//! - **Truth**: each operation has a [`Ticket`] that resolves when that operation is applied, or with its error; one
//!   bad operation fails alone, a panic of the sink fails one batch, and [`Writer::flush`] and [`Writer::close`] tell
//!   every failure that no flush has told before.
//!
//! ```
//! use std::sync::{Arc, Mutex};
//! use outhaul_writer::{Answer, Operation, Sink, Writer, WriterOptions};
//!
//! struct Line(&'static str, &'static str);
//!
//! impl Operation for Line {
//!     fn pid(&self) -> Option<&str> { Some(self.0) }
//!     fn bytes(&self) -> usize { self.1.len() }
//! }
//!
//! #[derive(Default)]
//! struct Memory(Mutex<Vec<&'static str>>);
//!
//! impl Sink for Memory {
//!     type Op = Line;
//!     type Output = usize;
//!     type Error = std::fmt::Error;
//!
//!     async fn apply(&self, _shard: u64, ops: &[Line]) -> Answer<usize, Self::Error> {
//!         let mut lines = self.0.lock().unwrap();
//!         ops.iter().map(|op| { lines.push(op.1); Ok(lines.len()) }).collect::<Vec<_>>().into()
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let memory = Arc::new(Memory::default());
//! let writer = Writer::open(Arc::clone(&memory), WriterOptions::default());
//! let first = writer.try_admit(Line("order-1001", "created"))?;
//! let second = writer.send(Line("order-1001", "paid")).await?;
//! assert_eq!((first.await?, second.await?), (1, 2));
//! writer.close().await?;
//! assert_eq!(*memory.0.lock().unwrap(), ["created", "paid"]);
//! # Ok(())
//! # }
//! ```
//!
//! What it promises in detail is in [`contract`]. Inside, callers meet one short lock (`gate`), in which room, counts and latch change together; each shard has one
//! task (`shard`) that keeps its backlog by pid (`lanes`) and calls the sink.

#[doc = include_str!("contract.md")]
pub mod contract {}

mod barrier;
mod batch;
mod error;
mod flush;
mod foreign;
mod gate;
mod gather;
mod held;
mod histogram;
mod lanes;
#[cfg(all(test, outhaul_model))]
mod model;
mod options;
mod pruned;
mod queue;
mod report;
mod route;
mod send;
mod shard;
mod sink;
mod stats;
mod sync;
mod ticket;
mod writer;

pub use error::{Closed, NotWrittenReason, Refused, RefusedReason, WriteError};
pub use held::HeldPid;
pub use histogram::Histogram;
pub use options::{LatchScope, OnFailure, WriterOptions};
pub use report::{CloseReport, FlushReport, ShardFailure};
pub use route::shard_of;
pub use sink::{Answer, FailureKind, Operation, Sink, SinkError};
pub use stats::WriterStats;
pub use ticket::{Ticket, TicketOf};
pub use writer::Writer;
