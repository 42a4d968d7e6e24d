//! Sinks that keep next to nothing: what is measured is the way there.

use std::convert::Infallible;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use measure::{Report, Setup};
use outhaul_writer::{Answer, Operation, Sink};

use crate::ways::{self, Plan};

/// Pids of each producer.
const PIDS: usize = 16;
/// How much a sink works that is bound by the processor: some 15 µs for an operation.
const ROUNDS: u64 = 20_000;

struct Memory {
    sum: AtomicU64,
    rounds: u64,
}

struct Op {
    pid: Arc<str>,
    value: u64,
}

impl Operation for Op {
    fn pid(&self) -> Option<&str> {
        Some(&self.pid)
    }

    fn bytes(&self) -> usize {
        size_of_val(&self.value)
    }
}

impl Sink for Memory {
    type Op = Op;
    type Output = ();
    type Error = Infallible;

    async fn apply(&self, _: u64, ops: &[Op]) -> Answer<(), Infallible> {
        let mut sum = 0_u64;
        for op in ops {
            sum = sum.wrapping_add(op.value);
            for round in 0..self.rounds {
                sum = black_box(sum.rotate_left(5) ^ round.wrapping_mul(0x9E37_79B9_7F4A_7C15));
            }
        }
        self.sum.fetch_add(sum, Ordering::Relaxed);
        Answer::Applied(())
    }
}

pub(crate) fn run(setup: &Setup, plan: &Plan<'_>) -> Result<Report> {
    over(setup, plan, 0)
}

/// The sink is bound by the processor.
pub(crate) fn run_working(setup: &Setup, plan: &Plan<'_>) -> Result<Report> {
    over(setup, plan, ROUNDS)
}

fn over(setup: &Setup, plan: &Plan<'_>, rounds: u64) -> Result<Report> {
    ways::run(setup, plan, Arc::new(Memory { sum: AtomicU64::new(0), rounds }), |producer| {
        let pids: Vec<Arc<str>> =
            (0..PIDS).map(|n| format!("pid-{:08}", producer * PIDS as u64 + n as u64).into()).collect();
        let mut value = 0;
        Ok(move || {
            value += 1;
            Op { pid: Arc::clone(&pids[value as usize % PIDS]), value }
        })
    })
}
