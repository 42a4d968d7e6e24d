//! Discarding one entry. What is with its target goes when its verdict is there; whoever asked is told that it is
//! pending only when that is on disk, so that neither a stop nor a crash takes it back.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outhaul_store::event::Uid;
use outhaul_store::{Discard, Entry, Outcome, Settlement, Store, StoreError};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::error::ChangeError;
use super::verbs::EntryAnswer;
use super::{Manager, lock};
use crate::notice::Notice;
use crate::worker::control::{Command, Gone, find};

/// How long a discard waits for the verdict of an attempt before it is remembered on disk.
const VERDICT_MAX: Duration = Duration::from_secs(5);
/// What is to be discarded when its verdict is there: one uid a line.
const DISCARDS_MEMO: &str = "discards";

type Answer = Result<EntryAnswer, ChangeError>;

/// What is being discarded.
#[derive(Default)]
pub(super) struct Discards {
    /// Each is worked on once, whoever asks, and to its end.
    running: Mutex<HashMap<Uid, watch::Receiver<Option<Answer>>>>,
    tasks: Mutex<JoinSet<()>>,
    /// As it is on disk.
    remembered: tokio::sync::Mutex<BTreeSet<Uid>>,
}

impl Discards {
    /// What was told to be pending when the process ended.
    pub(super) async fn load(store: &Store) -> Result<Self, StoreError> {
        let memo = store.memo(DISCARDS_MEMO).await?.unwrap_or_default();
        let remembered = String::from_utf8_lossy(&memo).lines().filter_map(|uid| uid.parse().ok()).collect();
        Ok(Self { remembered: tokio::sync::Mutex::new(remembered), ..Self::default() })
    }

    /// Waits for those that were begun. The workers have ended.
    pub(super) async fn join(&self) {
        let mut tasks = std::mem::take(&mut *lock(&self.tasks));
        while tasks.join_next().await.is_some() {}
    }
}

impl Manager {
    /// Discards what an earlier process was asked to discard and could not. Nothing is with a target yet.
    pub(super) async fn finish_discards(&self) -> Result<(), StoreError> {
        let mut remembered = self.discards.remembered.lock().await;
        if remembered.is_empty() {
            return Ok(());
        }
        for uid in &*remembered {
            let failed = self.store.failed().discard(Discard::Uids(vec![uid.clone()])).await?;
            let waited = self.discard_waiting(uid).await?;
            if failed > 0 || waited {
                tracing::info!(%uid, "the entry is discarded, as was asked for before the last end");
            }
        }
        self.store.log().flush().await?;
        self.store.set_memo(DISCARDS_MEMO, Vec::new()).await?;
        remembered.clear();
        Ok(())
    }

    /// Durable when it resolves: that the entry is gone, or that it will be.
    pub(crate) async fn discard(self: &Arc<Self>, uid: &Uid) -> Answer {
        let mut answer = self.discard_begun(uid)?;
        if let Ok(Ok(done)) = tokio::time::timeout(VERDICT_MAX, answer.wait_for(Option::is_some)).await {
            return done.clone().unwrap_or(Ok(EntryAnswer::Pending));
        }
        let mut remembered = self.discards.remembered.lock().await;
        // It may have come meanwhile; from here on it cannot.
        if let Some(done) = answer.borrow().clone() {
            return done;
        }
        if remembered.insert(uid.clone())
            && let Err(error) = self.remember_discards(&remembered).await
        {
            remembered.remove(uid);
            return Err(error.into());
        }
        Ok(EntryAnswer::Pending)
    }

    fn discard_begun(self: &Arc<Self>, uid: &Uid) -> Result<watch::Receiver<Option<Answer>>, ChangeError> {
        let mut running = lock(&self.discards.running);
        if let Some(answer) = running.get(uid) {
            return Ok(answer.clone());
        }
        let mut tasks = lock(&self.discards.tasks);
        // Asked under the lock: what is begun before a stop is joined by it.
        if self.is_stopping() {
            return Err(ChangeError::Stopping);
        }
        // Those that are done are taken out; a panic was reported by its hook.
        while tasks.try_join_next().is_some() {}
        let (told, answer) = watch::channel(None);
        let (manager, asked) = (Arc::clone(self), uid.clone());
        tasks.spawn(async move {
            let done = manager.discard_now(&asked).await;
            let mut remembered = manager.discards.remembered.lock().await;
            let ended = matches!(done, Ok(_) | Err(ChangeError::UnknownEntry(_)));
            if ended
                && remembered.remove(&asked)
                && let Err(error) = manager.remember_discards(&remembered).await
            {
                // It names an entry that is gone: the next start finds nothing to do.
                tracing::warn!(%error, "a discard that is done could not be forgotten");
            }
            lock(&manager.discards.running).remove(&asked);
            told.send_replace(Some(done));
        });
        running.insert(uid.clone(), answer.clone());
        Ok(answer)
    }

    async fn remember_discards(&self, uids: &BTreeSet<Uid>) -> Result<(), StoreError> {
        let lines: Vec<_> = uids.iter().map(Uid::to_string).collect();
        self.store.set_memo(DISCARDS_MEMO, lines.join("\n").into_bytes()).await
    }

    /// Waits for the verdict, if there is to be one.
    async fn discard_now(&self, uid: &Uid) -> Answer {
        if self.discard_failed(uid).await? {
            return Ok(EntryAnswer::Discarded);
        }
        let gone = loop {
            let Some(slot) = self.slot(&uid.queue).filter(|slot| !slot.is_failed()) else {
                if let Some(found) = self.discard_unattended(uid).await? {
                    break if found { Gone::Discarded } else { Gone::NotFound };
                }
                continue;
            };
            match self.ask(&uid.queue, |reply| Command::Discard(uid.sequence, reply)).await {
                // Its worker ended before there was a verdict. Whether it will run again shows when it has.
                Err(ChangeError::NotRunning(name)) => {
                    slot.join().await;
                    if !slot.is_failed() {
                        return Err(ChangeError::NotRunning(name));
                    }
                }
                Err(ChangeError::UnknownTarget(_) | ChangeError::Orphan { .. }) => {}
                asked => break asked??,
            }
        };
        match gone {
            Gone::Discarded => {
                self.store.log().flush().await?;
                Ok(EntryAnswer::Discarded)
            }
            Gone::Delivered => Ok(EntryAnswer::Delivered),
            // It failed while it was asked for.
            Gone::Failed | Gone::NotFound if self.discard_failed(uid).await? => Ok(EntryAnswer::Discarded),
            Gone::Failed | Gone::NotFound => Err(ChangeError::UnknownEntry(uid.clone())),
        }
    }

    /// As [`discard_waiting`](Self::discard_waiting); None if there is a worker after all.
    async fn discard_unattended(&self, uid: &Uid) -> Result<Option<bool>, StoreError> {
        let place = self.place(&uid.queue);
        let turn = place.turn.lock().await;
        // Nobody works on it, and nobody begins to.
        let found = match self.slot(&uid.queue).is_none_or(|slot| slot.is_failed()) {
            true => Some(self.discard_waiting(uid).await?),
            false => None,
        };
        drop(turn);
        if self.slot(&uid.queue).is_none() {
            self.forget_place(&uid.queue);
        }
        Ok(found)
    }

    /// Removes an entry on which no worker works; false if it does not wait.
    async fn discard_waiting(&self, uid: &Uid) -> Result<bool, StoreError> {
        let Some(entry) = self.stored(uid).await? else { return Ok(false) };
        self.lease.settle(vec![Settlement { place: entry.place, outcome: Outcome::Discarded }]).await?;
        self.changes.send_modify(|changes| *changes += 1);
        // An error says that nobody listens: fine.
        drop(self.notices.send(Notice::Discarded { uid: uid.clone() }));
        Ok(true)
    }

    /// An entry that waits, as it is on disk.
    pub(super) async fn stored(&self, uid: &Uid) -> Result<Option<Entry>, StoreError> {
        match find(&*self.lease, &uid.queue, uid.sequence).await {
            Err(StoreError::UnknownQueue(_)) => Ok(None),
            found => found,
        }
    }

    async fn discard_failed(&self, uid: &Uid) -> Result<bool, ChangeError> {
        let lane = self.closed_by(uid).await?;
        if self.store.failed().discard(Discard::Uids(vec![uid.clone()])).await? == 0 {
            return Ok(false);
        }
        self.reopen(&uid.queue, lane).await?;
        Ok(true)
    }
}
