//! How much of the processors others used while something was measured.

use std::fs;
use std::time::Instant;

/// What the kernel counts in: a hundredth of a second on every Linux that Rust runs on.
const TICKS_PER_S: f64 = 100.0;

/// The counters at the start.
pub(super) struct Load {
    at: Instant,
    busy: u64,
    own: u64,
}

impl Load {
    pub(super) fn start() -> Self {
        let (busy, own) = ticks();
        Self { at: Instant::now(), busy, own }
    }

    /// The part of all processors that neither rested nor worked for this process and its ended children.
    pub(super) fn of_others(&self) -> f64 {
        let (busy, own) = ticks();
        let others = (busy - self.busy).saturating_sub(own - self.own) as f64;
        let cores = std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64);
        others / TICKS_PER_S / cores / self.at.elapsed().as_secs_f64()
    }
}

/// Of the machine, and of this process with the children it has waited for.
fn ticks() -> (u64, u64) {
    let text = |file| fs::read_to_string(file).unwrap_or_default();
    (busy_ticks(&text("/proc/stat")), own_ticks(&text("/proc/self/stat")))
}

/// All but idle and waiting for a disk; time of guests is in that of users.
fn busy_ticks(stat: &str) -> u64 {
    let numbers = stat.lines().next().unwrap_or_default().split_whitespace().skip(1).take(8);
    numbers
        .enumerate()
        .filter(|(at, _)| *at != 3 && *at != 4)
        .filter_map(|(_, n)| n.parse::<u64>().ok())
        .sum()
}

/// The 14th to the 17th field; the second may have spaces and ends with a bracket.
fn own_ticks(stat: &str) -> u64 {
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    rest.split_whitespace().skip(11).take(4).filter_map(|number| number.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_waiting_time_is_not_busy() {
        assert_eq!(busy_ticks("cpu  1 2 4 1000 2000 8 16 32 64 0\ncpu0 5 5 5 5 5 5 5 5 5 5\n"), 63);
    }

    #[test]
    fn own_time_is_that_of_the_process_and_of_its_children() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 200 0 0 10 20 30 40 20 0 1 0 99 1000";
        assert_eq!(own_ticks(stat), 100);
    }

    #[test]
    fn this_system_tells_both() {
        let spun = Instant::now();
        while ticks().1 == 0 && spun.elapsed().as_secs() < 60 {}
        let (busy, own) = ticks();
        assert!(busy >= own && own > 0, "{busy} {own}");
    }
}
