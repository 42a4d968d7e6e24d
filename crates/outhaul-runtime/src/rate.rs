//! A limit on events and bytes per second.

use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use tokio::time::Instant;

/// What was not used lately may be used at once: timers are not finer than a millisecond.
const CREDIT: Duration = Duration::from_millis(50);

/// Spaces attempts out. Each moves the instant before which there is no next one by what it takes.
#[derive(Debug)]
pub(crate) struct Rate {
    events: Option<NonZeroU32>,
    bytes: Option<NonZeroU64>,
    next: Option<Instant>,
}

impl Rate {
    pub(crate) fn new(events: Option<NonZeroU32>, bytes: Option<NonZeroU64>) -> Self {
        Self { events, bytes, next: None }
    }

    /// Events that may be sent together now, or when there are any.
    pub(crate) fn room(&self, now: Instant) -> Result<usize, Instant> {
        match self.next {
            Some(next) if next > now => Err(next),
            // A tenth of a second's worth together, or a large batch would be a burst.
            _ => Ok(self.events.map_or(usize::MAX, |events| (events.get() as usize / 10).max(1))),
        }
    }

    pub(crate) fn take(&mut self, now: Instant, events: usize, bytes: usize) {
        let of_events = self.events.map(|max| events as f64 / f64::from(max.get()));
        let of_bytes = self.bytes.map(|max| bytes as f64 / max.get() as f64);
        let Some(cost) = of_events.into_iter().chain(of_bytes).reduce(f64::max) else { return };
        let earliest = now.checked_sub(CREDIT).unwrap_or(now);
        let from = self.next.map_or(now, |next| next.max(earliest));
        // A large event on a slow line: a day at most.
        self.next = Some(from + Duration::from_secs_f64(cost.min(86_400.0)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn no_second_has_more_than_the_limit_and_the_limit_is_reached() {
        let mut rate = Rate::new(NonZeroU32::new(100), NonZeroU64::new(10_000));
        let (mut sent, begun) = (Vec::new(), Instant::now());
        while begun.elapsed() < Duration::from_secs(10) {
            match rate.room(Instant::now()) {
                Ok(room) => {
                    assert_eq!(room, 10);
                    rate.take(Instant::now(), 3, 30);
                    sent.push(begun.elapsed());
                }
                // bounded: the clock is paused.
                Err(until) => tokio::time::sleep_until(until).await,
            }
        }
        assert!((330..=340).contains(&sent.len()), "{} of 333", sent.len());
        for (index, at) in sent.iter().enumerate() {
            let within =
                sent[index..].iter().take_while(|other| **other < *at + Duration::from_secs(1)).count();
            assert!(within <= 35, "{within} batches of 3 in a second");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_count_as_well() {
        let mut rate = Rate::new(None, NonZeroU64::new(1_000));
        let now = Instant::now();
        rate.take(now, 1, 5_000);
        assert_eq!(rate.room(now), Err(now + Duration::from_secs(5)));
        assert_eq!(rate.room(now + Duration::from_secs(5)), Ok(usize::MAX));
    }
}
