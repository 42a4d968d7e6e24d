//! Waiting for the producers that were just woken.
//!
//! A shard that resolves N tickets wakes N producers, and each is likely to come back with its next operation. Taking
//! the first of them alone would cost a whole commit for one operation while N − 1 wait for the one after. So the shard
//! waits until N operations wait again, at most half the running mean of a commit, counted from when the tickets were
//! resolved. It does so once per batch and only when something waits already: an idle shard has no timer, and a lone
//! producer is never delayed.
//!
//! A wait shorter than a timer can be is a step back behind the tasks that are ready, again and again while that brings
//! operations. In the runtime's queue those are the producers.

use std::time::Duration;

use tokio::time::Instant;

/// The wheel behind tokio's timers has this resolution, and rounds up.
const TIMER_RESOLUTION: Duration = Duration::from_millis(1);

/// A commit so short that nothing is won by full batches: while the shard makes the next batch of the producers that are
/// back, the others come back on other threads.
const SHORT: Duration = Duration::from_micros(50);

/// Turns at the scheduler that may bring nothing before a wait too short for a timer ends.
const IDLE_YIELDS_MAX: u32 = 32;

#[derive(Debug, Default)]
pub(crate) struct Gather {
    mean: Option<Duration>,
    next: Option<(usize, Instant)>,
    idle_yields: u32,
    seen: usize,
}

/// What to do until the producers are back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// They are, or the time is up.
    Over,
    /// Sleep until this many more wait, or until then.
    Sleep { more: usize, until: Instant },
    /// Too short for a timer: let the others run, and look again.
    Yield,
}

impl Gather {
    /// A commit took that long and woke that many.
    pub(crate) fn committed(&mut self, took: Duration, woken: usize, now: Instant) {
        let mean = self.mean.map_or(took, |mean| mean - mean / 8 + took / 8);
        self.mean = Some(mean);
        self.next = (woken > 1 && mean >= SHORT).then(|| (woken, now + mean / 2));
        self.idle_yields = 0;
        self.seen = 0;
    }

    /// Whether somebody is waited for.
    pub(crate) fn wants(&self) -> bool {
        self.next.is_some()
    }

    /// What to do while that many wait.
    pub(crate) fn pause(&mut self, waiting: usize, now: Instant) -> Pause {
        let Some((want, until)) = self.next else { return Pause::Over };
        if waiting >= want || now >= until {
            self.next = None;
            return Pause::Over;
        }
        if until - now >= 2 * TIMER_RESOLUTION {
            return Pause::Sleep { more: want - waiting, until: until - TIMER_RESOLUTION };
        }
        if waiting > self.seen {
            self.seen = waiting;
            self.idle_yields = 0;
        }
        self.idle_yields += 1;
        if self.idle_yields > IDLE_YIELDS_MAX {
            self.next = None;
            return Pause::Over;
        }
        Pause::Yield
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_waits_at_most_half_the_running_mean_and_only_once() {
        let mut gather = Gather::default();
        let now = Instant::now();
        assert_eq!(gather.pause(1, now), Pause::Over, "nothing was woken");
        gather.committed(Duration::from_millis(80), 4, now);
        let until = now + Duration::from_millis(39);
        assert_eq!(gather.pause(1, now), Pause::Sleep { more: 3, until });
        assert_eq!(gather.pause(4, now), Pause::Over, "all are back");
        assert_eq!(gather.pause(1, now), Pause::Over, "one-shot");
        gather.committed(Duration::from_millis(160), 4, now);
        assert_eq!(gather.mean, Some(Duration::from_millis(90)));
        assert_eq!(gather.pause(1, now + Duration::from_millis(45)), Pause::Over, "too late");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lone_producer_is_never_delayed() {
        let mut gather = Gather::default();
        gather.committed(Duration::from_millis(80), 1, Instant::now());
        assert_eq!(gather.pause(1, Instant::now()), Pause::Over);
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_commit_is_not_worth_a_wait() {
        let mut gather = Gather::default();
        gather.committed(Duration::from_micros(49), 8, Instant::now());
        assert!(!gather.wants());
        gather.committed(Duration::from_micros(80), 8, Instant::now());
        assert!(gather.wants());
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_too_short_for_a_timer_ends_when_nobody_comes() {
        let mut gather = Gather::default();
        let now = Instant::now();
        gather.committed(Duration::from_millis(1), 8, now);
        let mut yields = 0;
        while gather.pause(if yields < 10 { 1 } else { 2 }, now) == Pause::Yield {
            yields += 1;
        }
        assert_eq!(yields, 10 + IDLE_YIELDS_MAX);
    }
}
