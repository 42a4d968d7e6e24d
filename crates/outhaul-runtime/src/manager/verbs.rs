//! What a person does to a target or to one entry.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::FutureExt;
use outhaul_store::event::{Event, TargetName, Uid};
use outhaul_store::{RequeueError, Rule};
use outhaul_target::{Attempt, DeliveryError, ErrorKind};
use serde::Serialize;
use tokio::sync::oneshot;

use super::error::ChangeError;
use super::{Manager, PAUSED_MEMO};
use crate::status::State;
use crate::worker::control::{Command, Retried};
use crate::worker::lanes::LaneKey;

/// The type of a test event.
const TEST_TYPE: &str = "outhaul.test";

/// What came of a verb.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
#[non_exhaustive]
pub enum EntryAnswer {
    /// Its schedule is cleared: it is tried as soon as its target takes something.
    Cleared,
    /// It is with its target now, so there was nothing to clear.
    InFlight,
    /// It is gone.
    Discarded,
    /// It was with its target, and its delivery stands.
    Delivered,
    /// It is with its target, and goes when its verdict is there, unless that is a delivery. That is on disk.
    Pending,
    /// It waits again, or did, under a new uid.
    Requeued {
        /// The new uid.
        requeued_as: Uid,
        /// Whether that had been done before.
        again: bool,
        /// How many later events of its pid were delivered since it failed; after a crash, at least so many. None if it
        /// was requeued before.
        #[serde(skip_serializing_if = "Option::is_none")]
        delivered_later: Option<u64>,
    },
}

impl Manager {
    pub(crate) async fn pause(&self, name: &TargetName) -> Result<(), ChangeError> {
        self.known(name)?;
        self.remember_pause(name, true).await?;
        // Whoever is started from here on starts paused.
        let slot = self.known(name)?;
        if slot.serves() {
            tokio::select! {
                biased;
                // It takes up nothing new; how long its last attempts take is not waited for.
                () = slot.ending() => {}
                asked = self.ask(name, Command::Pause) => asked?,
            }
        }
        if slot.is_ending() {
            slot.pause_next.store(true, Ordering::Release);
        }
        // Nobody waits for it any more.
        self.changes.send_modify(|changes| *changes += 1);
        Ok(())
    }

    /// Sends again; one that was not paused gets new events again. A worker that could not go on is started anew.
    pub(crate) async fn resume(self: &Arc<Self>, name: &TargetName) -> Result<(), ChangeError> {
        let slot = self.known(name)?;
        let was_paused = slot.shown().state == State::Paused;
        let was_paused = self.remember_pause(name, false).await? || was_paused;
        slot.pause_next.store(false, Ordering::Release);
        if was_paused && !slot.is_routed() && !slot.is_failed() {
            // As it was before the pause: it delivers what waits, and goes then if it is to be removed.
            return self.ask(name, Command::Resume).await;
        }
        let (manager, intent, name) = (Arc::clone(self), self.intend(name), name.clone());
        if slot.is_failed() {
            return self.run(async move { manager.restart(&name, &intent.place).await }).await;
        }
        {
            // One that is on its way out gets no new events any more.
            let _turn = intent.place.turn.lock().await;
            self.known(&name)?.routed.store(true, Ordering::Release);
            self.publish();
        }
        self.ask(&name, Command::Resume).await
    }

    async fn restart(&self, name: &TargetName, place: &super::Place) -> Result<(), ChangeError> {
        let _turn = place.turn.lock().await;
        let slot = self.known(name)?;
        if slot.is_failed() {
            slot.join().await;
            let paused = self.paused.lock().await;
            self.launch(slot.spec.clone(), self.next_generation(), paused.contains(name), Some(&slot));
            drop(paused);
            self.publish();
        }
        Ok(())
    }

    /// The next trial is due now; false if the target did not wait for one.
    pub(crate) async fn trial(&self, name: &TargetName) -> Result<bool, ChangeError> {
        let slot = self.known(name)?;
        if slot.shown().state == State::Paused {
            return Err(ChangeError::Paused(name.clone()));
        }
        self.ask(name, Command::Trial).await
    }

    /// Hands a test event straight to a target. It is never queued, and counted nowhere.
    pub(crate) async fn test(&self, name: &TargetName) -> Result<Result<(), DeliveryError>, ChangeError> {
        let slot = self.known(name)?;
        let event = Event::builder(TEST_TYPE, "outhaul:admin").json(r#"{"test":true}"#).build();
        let event =
            event.map_err(|error| ChangeError::Refused { name: name.clone(), detail: error.to_string() })?;
        let dedup_id = event.dedup_id();
        let uid = Uid { queue: name.clone(), sequence: 0 };
        let attempt = Attempt { event: Arc::new(event), dedup_id, uid, version: 0, number: 1 };
        let max = slot.spec.options.timeout.saturating_mul(2);
        let attempts = [attempt];
        let delivery = AssertUnwindSafe(slot.spec.target.deliver(&attempts)).catch_unwind();
        Ok(match tokio::time::timeout(max, delivery).await {
            Ok(Ok(results)) => results.into_iter().next().unwrap_or_else(|| Err(ErrorKind::Unknown.into())),
            Ok(Err(_)) => Err(DeliveryError::new(ErrorKind::Unavailable).with_detail("the target panicked")),
            Err(_) => Err(ErrorKind::TimedOut.into()),
        })
    }

    /// Answers whether anything is changed by it.
    async fn remember_pause(&self, name: &TargetName, pause: bool) -> Result<bool, ChangeError> {
        let mut paused = self.paused.lock().await;
        let mut changed = paused.clone();
        let differs = if pause { changed.insert(name.clone()) } else { changed.remove(name) };
        if differs {
            let names: Vec<_> = changed.iter().map(TargetName::as_str).collect();
            self.store.set_memo(PAUSED_MEMO, names.join("\n").into_bytes()).await?;
            *paused = changed;
        }
        Ok(differs)
    }

    pub(super) async fn forget_pause(&self, name: &TargetName) -> Result<(), ChangeError> {
        self.remember_pause(name, false).await.map(drop)
    }

    /// Has the worker of a target do something. While the target is being replaced, that of its successor does it.
    pub(super) async fn ask<T>(
        &self,
        name: &TargetName,
        command: impl Fn(oneshot::Sender<T>) -> Command,
    ) -> Result<T, ChangeError> {
        loop {
            let slot = self.known(name)?;
            let (reply, answer) = oneshot::channel();
            if slot.tell(command(reply)).await
                && let Ok(answer) = answer.await
            {
                return Ok(answer);
            }
            if self.is_stopping() {
                return Err(ChangeError::Stopping);
            }
            // Its successor is there when its turn is over.
            drop(self.place(name).turn.lock().await);
            if self.slot(name).is_some_and(|now| Arc::ptr_eq(&now, &slot)) {
                return Err(ChangeError::NotRunning(name.clone()));
            }
        }
    }

    pub(crate) async fn retry(&self, uid: &Uid) -> Result<EntryAnswer, ChangeError> {
        if self.store.failed().get(uid).await?.is_some() {
            return Err(ChangeError::EntryFailed(uid.clone()));
        }
        if self.slot(&uid.queue).is_none() {
            // An orphan has no schedule.
            return match self.stored(uid).await? {
                Some(_) => Err(self.known(&uid.queue).err().unwrap_or_else(|| {
                    // It was attached meanwhile.
                    ChangeError::NotRunning(uid.queue.clone())
                })),
                None => Err(ChangeError::UnknownEntry(uid.clone())),
            };
        }
        match self.ask(&uid.queue, |reply| Command::Retry(uid.sequence, reply)).await?? {
            Retried::Cleared => Ok(EntryAnswer::Cleared),
            Retried::InFlight => Ok(EntryAnswer::InFlight),
            Retried::NotFound => Err(ChangeError::UnknownEntry(uid.clone())),
        }
    }

    /// Puts a failed entry back; one that waits is tried now.
    pub(crate) async fn requeue(&self, uid: &Uid) -> Result<EntryAnswer, ChangeError> {
        let lane = self.closed_by(uid).await?;
        let asked = self.store.failed().requeue(std::slice::from_ref(uid)).await.pop();
        match asked {
            Some(Ok(requeued)) => {
                self.reopen(&uid.queue, lane).await?;
                let outhaul_store::Requeued { requeued_as, again, delivered_later, .. } = requeued;
                Ok(EntryAnswer::Requeued { requeued_as, again, delivered_later })
            }
            Some(Err(RequeueError::NotFound(_))) | None => self.retry(uid).await,
            Some(Err(error)) => Err(ChangeError::Requeue(error)),
        }
    }

    /// The lane that a failed entry may keep closed.
    pub(super) async fn closed_by(&self, uid: &Uid) -> Result<Option<LaneKey>, ChangeError> {
        let entry = self.store.failed().get(uid).await?;
        let rejected = entry.filter(|entry| entry.failure.rule == Rule::Rejected);
        Ok(rejected.and_then(|entry| outhaul_store::pid_hash(&entry.event)).map(LaneKey::Pid))
    }

    pub(super) async fn reopen(&self, name: &TargetName, lane: Option<LaneKey>) -> Result<(), ChangeError> {
        let Some(lane) = lane else { return Ok(()) };
        if !self.slot(name).is_some_and(|slot| slot.serves()) {
            // Whoever starts looks for itself.
            return Ok(());
        }
        Ok(self.ask(name, |reply| Command::Reopen(lane, reply)).await??)
    }
}
