//! What the writer allocates, counted: a binary of its own, since the counts are those of the whole process.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::{alloc::System, convert::Infallible};

use futures_util::FutureExt;
use outhaul_writer::{Answer, Operation, Sink, TicketOf, Writer, WriterOptions};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tokio::sync::Semaphore;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const BYTES: usize = 1_000;
const OPS_MAX: usize = 1_024;

struct Op(&'static str, [u8; BYTES]);

impl Operation for Op {
    fn pid(&self) -> Option<&str> {
        Some(self.0)
    }

    fn bytes(&self) -> usize {
        self.1.len()
    }
}

/// Lets calls pass while it has permits.
struct Nothing(Semaphore);

impl Sink for Nothing {
    type Op = Op;
    type Output = ();
    type Error = Infallible;

    async fn apply(&self, _: u64, _: &[Op]) -> Answer<(), Infallible> {
        let _pass = self.0.acquire().await;
        Answer::Applied(())
    }
}

fn op(number: usize) -> Op {
    Op(["a", "b", "c", "d", "e", "f", "g", "h"][number % 8], [7; BYTES])
}

/// Bytes that are allocated now.
fn live() -> usize {
    let stats = INSTRUMENTED_SYSTEM.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

/// One test, since no other thread may allocate meanwhile.
#[tokio::test]
async fn memory_is_bounded_by_the_options_and_an_operation_is_one_allocation() {
    let sink = Arc::new(Nothing(Semaphore::new(0)));
    let before = live();
    let ops_max = NonZeroUsize::new(OPS_MAX).unwrap();
    let batch_ops_max = NonZeroUsize::new(256).unwrap();
    let options = WriterOptions { ops_max, batch_ops_max, ..WriterOptions::default() };
    let writer = Writer::open(Arc::clone(&sink), options);
    // The queue and one batch, with something for the books of each operation.
    let bound = (OPS_MAX + 256) * (BYTES + 400) + (64 << 10);
    let mut full = Vec::new();
    for round in 0..20 {
        let mut accepted = 0;
        while let Ok(ticket) = writer.try_admit(op(accepted)) {
            drop(ticket);
            accepted += 1;
            // The first of them are taken, and stay in the sink.
            tokio::task::yield_now().await;
        }
        assert!(accepted > OPS_MAX, "{accepted}");
        for number in 0..1_000 {
            drop(writer.try_admit(op(number)).unwrap_err());
        }
        let used = live() - before;
        assert!(used < bound, "{used} bytes in round {round}, {bound} are the bound");
        assert!(used > OPS_MAX * BYTES, "it is counted: {used}");
        full.push(used);
        sink.0.add_permits(1);
        writer.flush().await.unwrap();
        sink.0.acquire().await.unwrap().forget();
    }
    assert!(full[19] <= full[1] + full[1] / 50, "it grows: {full:?}");

    // What it has grown to, it keeps: from here on an operation is one allocation.
    sink.0.add_permits(1);
    let mut tickets: Vec<TicketOf<Nothing>> = Vec::with_capacity(512);
    let allocations = || INSTRUMENTED_SYSTEM.stats().allocations + INSTRUMENTED_SYSTEM.stats().reallocations;
    let mut counted = 0;
    for round in 0..100 {
        let before = allocations();
        for number in 0..512 {
            tickets.push(writer.try_admit(op(number)).unwrap());
        }
        for ticket in tickets.drain(..) {
            ticket.await.unwrap();
        }
        counted += if round < 10 { 0 } else { allocations() - before };
    }
    assert_eq!(counted, 90 * 512, "one for each");

    // Flushes of one pid that are given up while the sink hangs leave nothing that grows.
    sink.0.acquire().await.unwrap().forget();
    let ticket = writer.try_admit(op(0)).unwrap();
    while writer.stats().in_flight == 0 {
        tokio::task::yield_now().await;
    }
    let before = live();
    for _ in 0..10_000 {
        assert!(writer.flush_pid("a").now_or_never().is_none());
    }
    assert!(live() - before < 32 << 10, "{} bytes", live() - before);
    sink.0.add_permits(1);
    ticket.await.unwrap();
}
