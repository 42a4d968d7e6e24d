//! What the failed store does by itself: keeping to its bounds, and discarding what became too old where that was
//! asked for. Right after open, and then at most once a minute.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::{FailedStore, Inner, lock, unix_millis};
use crate::error::StoreError;

/// The shortest time between two rounds.
const EVERY: Duration = Duration::from_secs(60);
/// The longest wait, since the wall clock may be set.
const WAIT_MAX: Duration = Duration::from_secs(3600);

impl FailedStore {
    /// The round right after open.
    pub(crate) async fn first_upkeep(&self) -> Result<(), StoreError> {
        if !self.inner.read_only {
            self.inner.upkeep(SystemTime::now()).await?;
            self.arm();
        }
        Ok(())
    }

    /// Discards what became too old by a time, and what is beyond the bounds of targets that discard the oldest.
    /// Returns how many went. This happens by itself as well, at most once a minute.
    pub async fn maintain(&self, now: SystemTime) -> Result<u64, StoreError> {
        let inner = Arc::clone(&self.inner);
        let done = self.run(async move { inner.upkeep(now).await }).await;
        done.unwrap_or(Err(StoreError::Closed))
    }

    /// Starts the timer if something is going to be too old. It ends when nothing is.
    pub(super) fn arm(&self) {
        let due = {
            let state = self.inner.state();
            !state.closed && !self.inner.read_only && state.next_expiry_ms().is_some()
        };
        let mut timer = lock(&self.timer);
        // Outside of a runtime nothing was put either; the next put starts it.
        if due
            && timer.as_ref().is_none_or(|timer| timer.is_finished())
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let inner = Arc::clone(&self.inner);
            *timer = Some(lock(&self.tasks).spawn_on(async move { inner.timer().await }, &runtime));
        }
    }
}

impl Inner {
    async fn timer(self: Arc<Self>) {
        while let Some(due_ms) = self.next_expiry_ms() {
            let wait =
                Duration::from_millis(due_ms.saturating_sub(unix_millis(SystemTime::now()))).min(WAIT_MAX);
            let last = *lock(&self.upkeep);
            let now = tokio::time::Instant::now();
            let soonest = last.map_or(now, |last| last + EVERY);
            tokio::time::sleep_until((now + wait).max(soonest)).await;
            if let Err(error) = self.upkeep(SystemTime::now()).await {
                tracing::warn!(%error, "the upkeep of the failed store failed; it is tried again");
            }
        }
    }

    fn next_expiry_ms(&self) -> Option<u64> {
        self.state().next_expiry_ms()
    }

    pub(super) async fn upkeep(self: &Arc<Self>, now: SystemTime) -> Result<u64, StoreError> {
        // At the start, so that one that fails is not repeated at once.
        *lock(&self.upkeep) = Some(tokio::time::Instant::now());
        let targets = self.state().targets();
        let (mut count, mut failure) = (0, None);
        for target in targets {
            let (expired, excess) = {
                let mut state = self.state();
                let expire_after = state.options(&target).expire_after;
                let expired = match expire_after.and_then(|after| now.checked_sub(after)) {
                    Some(until) => state.expire(&target, unix_millis(until)),
                    None => Vec::new(),
                };
                (expired, state.evict(&target))
            };
            let _claims = (self.claimed(&expired), self.claimed(&excess));
            if !expired.is_empty() || !excess.is_empty() {
                let (expired, excess) = (expired.len(), excess.len());
                tracing::info!(%target, expired, excess, "failed entries are discarded by policy");
            }
            // Both, whatever comes of the first: what is not removed goes back into the count.
            let removed = [
                self.remove(expired, |counters| &mut counters.expired).await,
                self.remove(excess, |counters| &mut counters.discarded_oldest).await,
            ];
            for removed in removed {
                match removed {
                    Ok(removed) => count += removed,
                    Err(error) => failure = Some(error),
                }
            }
        }
        failure.map_or(Ok(count), Err)
    }
}
