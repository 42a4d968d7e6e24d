//! The `memory` engine: the contract without a disk, for tests. Everything is gone with the value.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;

use super::{Batch, KvError, KvLimits, KvStore, Page, Revision, Row, Scan, Versioned};

/// A key-value store in memory.
#[derive(Debug, Default)]
pub struct MemoryKv {
    limits: KvLimits,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    rows: BTreeMap<Bytes, Versioned>,
    newest: Revision,
    closed: bool,
}

impl MemoryKv {
    /// An empty store.
    ///
    /// # Errors
    /// [`KvError::Zero`].
    pub fn new(limits: KvLimits) -> Result<Self, KvError> {
        limits.check()?;
        Ok(Self { limits, state: Mutex::default() })
    }

    fn state(&self) -> Result<MutexGuard<'_, State>, KvError> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.closed { Err(KvError::Closed) } else { Ok(state) }
    }
}

impl State {
    fn apply(&mut self, batch: &Batch) -> Result<Revision, KvError> {
        batch.check_conditions(|key| Ok(self.rows.get(key).map(|row| row.revision)))?;
        if !batch.writes().is_empty() {
            self.newest = self.newest.next();
        }
        for write in batch.writes() {
            match &write.value {
                Some(value) => {
                    let row = Versioned { value: value.clone(), revision: self.newest };
                    self.rows.insert(write.key.clone(), row);
                }
                None => {
                    self.rows.remove(&write.key);
                }
            }
        }
        Ok(self.newest)
    }
}

#[async_trait]
impl KvStore for MemoryKv {
    fn limits(&self) -> KvLimits {
        self.limits
    }

    async fn get_many(&self, keys: &[Bytes]) -> Result<Vec<Option<Versioned>>, KvError> {
        let state = self.state()?;
        self.limits.check_keys(keys)?;
        Ok(keys.iter().map(|key| state.rows.get(key).cloned()).collect())
    }

    async fn apply_many(&self, batches: Vec<Batch>) -> Vec<Result<Revision, KvError>> {
        let apply = |batch: Batch| {
            let mut state = self.state()?;
            batch.check(&self.limits)?;
            state.apply(&batch)
        };
        batches.into_iter().map(apply).collect()
    }

    async fn scan(&self, scan: Scan) -> Result<Page, KvError> {
        let state = self.state()?;
        let Some(bounds) = scan.bounds() else { return scan.page(&self.limits, []) };
        let row = |(key, row): (&Bytes, &Versioned)| {
            Ok(Row { key: key.clone(), value: row.value.clone(), revision: row.revision })
        };
        let rows = state.rows.range(bounds);
        if scan.reverse {
            scan.page(&self.limits, rows.rev().map(row))
        } else {
            scan.page(&self.limits, rows.map(row))
        }
    }

    fn failure(&self) -> Option<KvError> {
        None
    }

    async fn flush(&self) -> Result<(), KvError> {
        self.state().map(drop)
    }

    async fn close(&self) -> Result<(), KvError> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        Ok(())
    }
}
