//! Producers that wait for one event before they give the next, and the window in which they are measured.

use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::{Meter, Report, Setup};

// 0 is the warm-up.
const MEASURED: u8 = 1;
const OVER: u8 = 2;

/// Where a measurement is: warming up, measured, over.
#[derive(Default)]
pub struct Phase(AtomicU8);

impl Phase {
    pub fn is_over(&self) -> bool {
        self.0.load(Ordering::Relaxed) == OVER
    }

    pub fn end(&self) {
        self.0.store(OVER, Ordering::Relaxed);
    }
}

/// One producer's latencies, in tenths of a microsecond.
pub struct Samples(Vec<u32>);

impl Default for Samples {
    /// With room for more than a run has, so that what is measured is not this list; the system gives pages as they fill.
    fn default() -> Self {
        Self(Vec::with_capacity(1 << 18))
    }
}

impl Samples {
    /// Begins one call; None when the time is over.
    pub fn begin(&self, phase: &Phase) -> Option<Begun> {
        match phase.0.load(Ordering::Relaxed) {
            OVER => None,
            now => Some(Begun { at: Instant::now(), counts: now == MEASURED }),
        }
    }

    /// Ends it. A call counts when it began in the measured time; the last ones end after it, and the clock waits.
    pub fn end(&mut self, begun: &Begun) {
        if begun.counts {
            self.0.push(u32::try_from(begun.at.elapsed().as_nanos() / 100).unwrap_or(u32::MAX));
        }
    }

    /// All calls of all producers, sorted.
    pub(crate) fn merged(all: Vec<Self>) -> Vec<u32> {
        let mut merged: Vec<u32> = all.into_iter().flat_map(|samples| samples.0).collect();
        merged.sort_unstable();
        merged
    }
}

pub struct Begun {
    at: Instant,
    counts: bool,
}

/// Runs `setup.count` producers as threads. Each calls what `make` gave it; a call is `events_per_call` events, durable
/// when it returns.
pub fn threads<P, M>(setup: &Setup, events_per_call: u64, make: M) -> Result<Report>
where
    P: FnMut() -> Result<()>,
    M: Fn(u64) -> P + Sync,
{
    let phase = &Phase::default();
    let produce = |number| -> Result<Samples> {
        let (mut call, mut samples) = (make(number), Samples::default());
        while let Some(begun) = samples.begin(phase) {
            call()?;
            samples.end(&begun);
        }
        Ok(samples)
    };
    thread::scope(|scope| {
        let start = |number| {
            let produce = &produce;
            let thread = thread::Builder::new().stack_size(512 << 10);
            thread.spawn_scoped(scope, move || produce(number)).context("cannot start a producer")
        };
        let producers = (0..setup.count).map(start).collect::<Result<Vec<_>>>()?;
        let meter = window(setup, phase, || {});
        let joined = producers.into_iter().map(|thread| thread.join().expect("no producer panics"));
        Ok(meter.report(joined.collect::<Result<_>>()?, events_per_call))
    })
}

/// Lets producers warm up, measures them for the time that was asked for, and tells them that it is over. The meter
/// stands still when its report is taken, which is when they have ended. `begin` is called where the measured time does.
pub fn window(setup: &Setup, phase: &Phase, begin: impl FnOnce()) -> Meter {
    thread::sleep((setup.time / 2).min(Duration::from_secs(1)));
    let meter = Meter::start(&setup.dir);
    // Last: what the meter reads at its start is not counted.
    begin();
    phase.0.store(MEASURED, Ordering::Relaxed);
    thread::sleep(setup.time);
    phase.end();
    meter
}
