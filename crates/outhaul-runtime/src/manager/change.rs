//! Adding, replacing and removing targets, one at a time or as a reload.
//!
//! Replacing: prepare, stop the old worker, start the new one, close the old target. A target of which there may be
//! only one (`exclusive`) is closed before its successor is asked anything. Where the successor turns out to be
//! configured wrong, the old one stays, or is opened again.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use outhaul_store::event::TargetName;
use outhaul_store::{Discard, Log, QueueStats, Store, StoreError};
use outhaul_target::{Capabilities, ErrorKind, Target};
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::error::ChangeError;
use super::{Intent, Manager, Slot, close, failed_options, far, lock, settings};
use crate::runtime::{Repoint, TargetSpec};
use crate::status::State;
use crate::worker::control::Command;

/// Targets that are prepared and replaced at the same time by one reload.
const CHANGES_MAX: usize = 8;
/// How long a new target may take to say whether it is configured right.
const PREPARE_MAX: Duration = Duration::from_secs(5);
/// What an old worker is given beyond twice the deadline of its last attempts.
const STOP_MARGIN: Duration = Duration::from_secs(1);

/// What a change came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// There was no such target before.
    Added,
    /// It took the place of the one before.
    Replaced,
    /// It is as it was: its connection, counters, lanes and backoff were left alone.
    Unchanged,
    /// It is gone; what waits for it is an orphan.
    Removed,
}

/// What a reload came to.
#[derive(Debug, Clone)]
pub struct ReloadReport {
    /// What became of each target, sorted by name. One that failed does not keep the others from changing.
    pub targets: Vec<(TargetName, Result<Change, ChangeError>)>,
}

impl ReloadReport {
    /// Whether everything is as it was asked for.
    pub fn is_complete(&self) -> bool {
        self.targets.iter().all(|(_, change)| change.is_ok())
    }
}

/// What becomes of the entries of a target that is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leftover {
    /// They are delivered first; the target gets no new events meanwhile.
    Drain,
    /// They stay, without a target, and can be attached again under the same name.
    Keep,
    /// They are discarded.
    Discard,
}

/// What a removal came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "queue")]
pub enum Removed {
    /// The target goes when its last entry is delivered.
    Draining {
        /// What waits.
        waiting: u64,
    },
    /// The target is gone, or was; these entries stay as an orphan.
    Kept {
        /// What waits.
        waiting: u64,
    },
    /// The target is gone, and so are these entries.
    Discarded {
        /// What waited; of an orphan, what had failed too.
        discarded: u64,
    },
}

impl Manager {
    /// Makes the targets be these and no others. Nothing is changed if any of it would surprise.
    pub(crate) async fn reload(
        self: &Arc<Self>,
        specs: Vec<TargetSpec>,
    ) -> Result<ReloadReport, ChangeError> {
        for (index, spec) in specs.iter().enumerate() {
            if specs[..index].iter().any(|other| other.name == spec.name) {
                return Err(ChangeError::Twice(spec.name.clone()));
            }
            self.check_repoint(spec)?;
        }
        let manager = Arc::clone(self);
        self.run(async move {
            let permits = Arc::new(Semaphore::new(CHANGES_MAX));
            let mut changes = JoinSet::new();
            let removed = manager.slots().into_iter().map(|slot| slot.spec.name.clone());
            let removed: Vec<_> =
                removed.filter(|name| specs.iter().all(|spec| spec.name != *name)).collect();
            // All intents are announced before any is worked on: a newer reload meets none of them half way.
            for spec in specs {
                let (intent, manager, permits) =
                    (manager.intend(&spec.name), Arc::clone(&manager), Arc::clone(&permits));
                changes.spawn(async move {
                    let name = spec.name.clone();
                    let _permit = tokio::select! {
                        permit = permits.acquire() => permit,
                        by = intent.superseded() => {
                            let change = manager.check(&name, &intent);
                            return (name.clone(), change.and(Err(superseded(&name, &intent, by))));
                        }
                    };
                    let change = manager.put(spec, &intent).await;
                    (name, change)
                });
            }
            for name in removed {
                let (intent, manager) = (manager.intend(&name), Arc::clone(&manager));
                changes.spawn(async move {
                    let removed = manager.take_out(&name, &intent, Leftover::Keep).await;
                    (name, removed.map(|_| Change::Removed))
                });
            }
            let mut targets = changes.join_all().await;
            targets.sort_by(|(a, _), (b, _)| a.cmp(b));
            Ok(ReloadReport { targets })
        })
        .await
    }

    /// Adds a target, or puts it in the place of the one that has its name.
    pub(crate) async fn replace(self: &Arc<Self>, spec: TargetSpec) -> Result<Change, ChangeError> {
        self.check_repoint(&spec)?;
        let (manager, intent) = (Arc::clone(self), self.intend(&spec.name));
        self.run(async move { manager.put(spec, &intent).await }).await
    }

    pub(crate) async fn remove(
        self: &Arc<Self>,
        name: &TargetName,
        leftover: Leftover,
    ) -> Result<Removed, ChangeError> {
        match self.known(name) {
            Err(ChangeError::Orphan { .. }) if leftover != Leftover::Drain => {}
            known => drop(known?),
        }
        let (manager, intent, name) = (Arc::clone(self), self.intend(name), name.clone());
        if leftover == Leftover::Drain {
            return self.begin_drain(name, intent, true).await.map(|waiting| Removed::Draining { waiting });
        }
        self.run(async move { manager.take_out(&name, &intent, leftover).await }).await
    }

    /// Sends no new events to a target, and answers how many still wait.
    pub(crate) async fn drain(self: &Arc<Self>, name: &TargetName) -> Result<u64, ChangeError> {
        self.known(name)?;
        self.begin_drain(name.clone(), self.intend(name), false).await
    }

    async fn begin_drain(
        self: &Arc<Self>,
        name: TargetName,
        intent: Intent,
        remove: bool,
    ) -> Result<u64, ChangeError> {
        let manager = Arc::clone(self);
        let waiting = {
            let _turn = intent.place.turn.lock().await;
            self.check(&name, &intent)?;
            self.unroute(&*self.known(&name)?).await;
            self.queue(&name).map_or(0, |queue| queue.waiting)
        };
        if remove {
            self.spawn(async move {
                tokio::select! {
                    () = manager.emptied(&name) => {}
                    // Somebody wants something else of it now.
                    _ = intent.superseded() => return,
                }
                if let Err(error) = manager.take_out(&name, &intent, Leftover::Keep).await {
                    tracing::info!(target = %name, %error, "a drained target was not removed");
                }
            })?;
        }
        Ok(waiting)
    }

    /// Resolves when nothing waits in a queue.
    async fn emptied(&self, name: &TargetName) {
        let mut changes = self.changes.subscribe();
        loop {
            changes.borrow_and_update();
            if self.queue(name).is_none_or(|queue| queue.waiting == 0) {
                return;
            }
            // The sender lives as long as this.
            changes.changed().await.unwrap_or_default();
        }
    }

    /// A target gets no new events from here on; those that were on their way to it are in its queue.
    async fn unroute(&self, slot: &Slot) {
        slot.routed.store(false, Ordering::Release);
        self.publish();
        if let Err(report) = self.writer.flush().await {
            // Each of these was told to whoever sent the event.
            tracing::warn!(%report, "some events were not admitted");
        }
    }

    /// Gives way to a newer change, and to a shutdown.
    fn check(&self, name: &TargetName, intent: &Intent) -> Result<(), ChangeError> {
        if self.is_stopping() {
            return Err(ChangeError::Stopping);
        }
        match intent.newer() {
            None => Ok(()),
            Some(by) => Err(superseded(name, intent, by)),
        }
    }

    fn queue(&self, name: &TargetName) -> Option<QueueStats> {
        self.store.log().stats().into_iter().find(|queue| queue.name == *name)
    }

    fn check_repoint(&self, spec: &TargetSpec) -> Result<(), ChangeError> {
        let Some(queue) = self.queue(&spec.name) else { return Ok(()) };
        if spec.repoint.is_none() && queue.waiting > 0 && moves(&queue, spec) {
            return Err(ChangeError::Repoint {
                name: spec.name.clone(),
                from: queue.label,
                to: spec.destination.clone(),
                waiting: queue.waiting,
            });
        }
        Ok(())
    }

    async fn put(&self, spec: TargetSpec, intent: &Intent) -> Result<Change, ChangeError> {
        let name = spec.name.clone();
        let unchanged = |old: &Arc<Slot>| same(&old.spec, &spec) && !old.is_failed();
        // What is known to be as it was is not asked anything.
        let before = self.slot(&name);
        if !before.as_ref().is_some_and(unchanged) {
            tokio::select! {
                prepared = prepare(&spec, before.as_deref()) => prepared?,
                by = intent.superseded() => {
                    self.check(&name, intent)?;
                    return Err(superseded(&name, intent, by));
                }
            }
        }
        let _turn = intent.place.turn.lock().await;
        self.check(&name, intent)?;
        let old = self.slot(&name);
        if let Some(old) = old.as_ref().filter(|old| unchanged(old)) {
            old.routed.store(true, Ordering::Release);
            self.publish();
            return Ok(Change::Unchanged);
        }
        self.check_repoint(&spec)?;
        match old {
            Some(old) => self.swap(&old, spec, intent.generation).await?,
            None => {
                self.attach(&spec).await?;
                self.start_next(spec, intent.generation, None).await;
                return Ok(Change::Added);
            }
        }
        Ok(Change::Replaced)
    }

    /// Puts a target in the place of another one.
    async fn swap(&self, old: &Slot, spec: TargetSpec, generation: u64) -> Result<(), ChangeError> {
        let (name, target) = (spec.name.clone(), Arc::clone(&spec.target));
        let alone = is_exclusive(&old.spec.target) || is_exclusive(&target);
        old.stop().await;
        // A caller may have given the same value with other options.
        let same_target = Arc::ptr_eq(&old.spec.target, &target);
        let mut opened = Ok(());
        if alone && !same_target {
            old.close().await;
            opened = ask(&spec).await;
        }
        let started = match opened {
            Ok(()) => self.attach(&spec).await,
            Err(error) => Err(error),
        };
        if let Err(error) = started {
            let mut back = old.spec.clone();
            if alone && !same_target {
                close(&name, &target, spec.options.timeout).await;
                match back.remake() {
                    Some(Ok(target)) => back.target = target,
                    Some(Err(detail)) => {
                        tracing::error!(target = %name, detail, "the old target is not opened again")
                    }
                    None => {
                        tracing::error!(target = %name, "the old target cannot be opened again: it was given as a value")
                    }
                }
            }
            if let Err(error) = self.attach(&back).await {
                tracing::error!(target = %name, %error, "the old target's queue is not as it was");
            }
            self.start_next(back, generation, Some(old)).await;
            return Err(error);
        }
        self.start_next(spec, generation, Some(old)).await;
        if !alone && !same_target {
            old.close().await;
        }
        Ok(())
    }

    async fn attach(&self, spec: &TargetSpec) -> Result<(), ChangeError> {
        Ok(attach(&self.store, spec).await?)
    }

    /// Takes a target out, with what waits for it or without.
    async fn take_out(
        &self,
        name: &TargetName,
        intent: &Intent,
        leftover: Leftover,
    ) -> Result<Removed, ChangeError> {
        let _turn = intent.place.turn.lock().await;
        self.check(name, intent)?;
        let slot = match self.known(name) {
            Err(ChangeError::Orphan { waiting, .. }) => {
                let removed = self.take_orphan(name, leftover, waiting).await;
                self.forget_place(name);
                return removed;
            }
            known => known?,
        };
        self.unroute(&slot).await;
        slot.stop().await;
        let log = self.store.log();
        log.detach(name)?;
        let removed = match leftover {
            Leftover::Discard => log.remove(name).await.map(|discarded| Removed::Discarded { discarded }),
            Leftover::Keep | Leftover::Drain => {
                let waiting = self.queue(name).map_or(0, |queue| queue.waiting);
                Ok(Removed::Kept { waiting })
            }
        };
        lock(&self.slots).remove(name);
        self.publish();
        slot.close().await;
        self.forget_pause(name).await?;
        self.forget_place(name);
        self.changes.send_modify(|changes| *changes += 1);
        Ok(removed?)
    }

    /// Takes an orphan out, whose turn it is: no target is there, and none comes meanwhile.
    async fn take_orphan(
        &self,
        name: &TargetName,
        leftover: Leftover,
        waiting: u64,
    ) -> Result<Removed, ChangeError> {
        if leftover != Leftover::Discard {
            return Ok(Removed::Kept { waiting });
        }
        // The queue goes last: if this breaks off, the orphan is still there to be asked for again.
        let failed = self.store.failed().discard(Discard::All { target: Some(name.clone()) }).await?;
        let waited = self.store.log().remove(name).await?;
        self.forget_pause(name).await?;
        self.changes.send_modify(|changes| *changes += 1);
        Ok(Removed::Discarded { discarded: waited + failed })
    }
}

impl Slot {
    /// Ends the worker: what awaits its acknowledgement is finished, however long its own deadline.
    async fn stop(&self) {
        let max = self.spec.options.timeout.saturating_mul(2).saturating_add(STOP_MARGIN);
        self.signal(far(Instant::now(), max));
        self.join().await;
    }

    /// Whether commands are served.
    pub(super) fn serves(&self) -> bool {
        !self.commands.is_closed() && !matches!(self.shown().state, State::Failed | State::Stopped)
    }

    pub(super) async fn tell(&self, command: Command) -> bool {
        self.commands.send(command).await.is_ok()
    }
}

fn superseded(name: &TargetName, intent: &Intent, by: u64) -> ChangeError {
    ChangeError::Superseded { name: name.clone(), generation: intent.generation, by }
}

/// Whether what waits would go somewhere else.
fn moves(queue: &QueueStats, spec: &TargetSpec) -> bool {
    !queue.label.is_empty() && queue.label != spec.destination
}

/// Attaches a target to its queue. Entries that are not to go to a new destination get a queue of their own first.
pub(crate) async fn attach(store: &Store, spec: &TargetSpec) -> Result<(), StoreError> {
    let (log, failed) = (store.log(), store.failed());
    let queue = log.stats().into_iter().find(|queue| queue.name == spec.name && queue.waiting > 0);
    if let Some(queue) = queue
        && spec.repoint == Some(Repoint::Orphan)
        && moves(&queue, spec)
    {
        let orphan = orphan_name(&**log, &spec.name);
        log.rename(&spec.name, &orphan).await?;
        tracing::info!(target = %spec.name, %orphan, entries = queue.waiting, "what waited is an orphan now");
    }
    log.attach(&spec.name, settings(spec))?;
    failed.configure(&spec.name, failed_options(spec, &failed.options(&spec.name)));
    Ok(())
}

/// The first name of this kind that no queue has.
fn orphan_name(log: &dyn Log, name: &TargetName) -> TargetName {
    let queues = log.stats();
    let mut number = 1_u64;
    loop {
        let ending = format!(".orphan-{number}");
        let kept: String = name.as_str().chars().take(64 - ending.len()).collect();
        // A name's beginning and this ending are a name.
        let orphan = TargetName::new(&format!("{kept}{ending}")).unwrap_or_else(|_| name.clone());
        if orphan == *name || queues.iter().all(|queue| queue.name != orphan) {
            return orphan;
        }
        number += 1;
    }
}

/// Whether nothing about a target is changed.
fn same(old: &TargetSpec, new: &TargetSpec) -> bool {
    let target = Arc::ptr_eq(&old.target, &new.target)
        || old.fingerprint.is_some() && old.fingerprint == new.fingerprint;
    target && old.options == new.options && old.destination == new.destination
}

fn is_exclusive(target: &Arc<dyn Target>) -> bool {
    capabilities(target).is_some_and(|capabilities| capabilities.exclusive)
}

/// None: the target panicked.
fn capabilities(target: &Arc<dyn Target>) -> Option<Capabilities> {
    std::panic::catch_unwind(AssertUnwindSafe(|| target.capabilities())).ok()
}

/// Finds out whether a target can be started. One that has to be alone is asked when the old one is closed.
async fn prepare(spec: &TargetSpec, old: Option<&Slot>) -> Result<(), ChangeError> {
    if capabilities(&spec.target).is_none() {
        return Err(refused(spec, "it panicked: a defect of its code"));
    }
    if is_exclusive(&spec.target) && old.is_some() || old.is_some_and(|old| is_exclusive(&old.spec.target)) {
        return Ok(());
    }
    ask(spec).await
}

/// Only what says that the configuration is wrong is a reason not to start: whoever cannot be reached now is reached
/// some time.
async fn ask(spec: &TargetSpec) -> Result<(), ChangeError> {
    if !spec.options.enabled {
        return Ok(());
    }
    let max = PREPARE_MAX.min(spec.options.timeout);
    match tokio::time::timeout(max, AssertUnwindSafe(spec.target.probe()).catch_unwind()).await {
        Ok(Ok(Err(error))) if matches!(error.kind(), ErrorKind::Configuration | ErrorKind::PolicyDenied) => {
            Err(refused(spec, &error.detail()))
        }
        Ok(Err(_)) => Err(refused(spec, "it panicked: a defect of its code")),
        Ok(Ok(_)) | Err(_) => Ok(()),
    }
}

fn refused(spec: &TargetSpec, detail: &str) -> ChangeError {
    ChangeError::Refused { name: spec.name.clone(), detail: detail.to_owned() }
}
