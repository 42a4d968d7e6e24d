//! What is written together, and on which conditions.

use bytes::Bytes;

use super::{KvError, KvLimits, Revision};

/// What a row costs besides its bytes, in every count of bytes here.
pub(super) const ROW_OVERHEAD_BYTES: usize = 64;

/// Puts and deletes that are written together or not at all, and the conditions under which they are.
///
/// All conditions are looked at before anything is written. If a key is written twice, the later write counts.
///
/// ```
/// use outhaul_store::kv::{Batch, Revision};
///
/// let mut batch = Batch::new();
/// batch.put("task/7", "done").delete("open/7").require("task/7", Some(Revision(41))).require("lock", None);
/// assert_eq!((batch.writes().len(), batch.conditions().len()), (2, 2));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    writes: Vec<Write>,
    conditions: Vec<Condition>,
}

/// A put, or without a value a delete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// The key.
    pub key: Bytes,
    /// The value to put, `None` to delete. To delete what is absent is fine.
    pub value: Option<Bytes>,
}

/// What must hold for a batch to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// The key.
    pub key: Bytes,
    /// Its revision; `None`: it must be absent.
    pub expected: Option<Revision>,
}

impl Batch {
    /// A batch that writes nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes a value, over whatever is there.
    pub fn put(&mut self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> &mut Self {
        self.writes.push(Write { key: key.into(), value: Some(value.into()) });
        self
    }

    /// Removes a key, if it is there.
    pub fn delete(&mut self, key: impl Into<Bytes>) -> &mut Self {
        self.writes.push(Write { key: key.into(), value: None });
        self
    }

    /// The batch is written only if the key has this revision, or with `None` only if it is absent. The key need
    /// not be one that is written.
    pub fn require(&mut self, key: impl Into<Bytes>, expected: Option<Revision>) -> &mut Self {
        self.conditions.push(Condition { key: key.into(), expected });
        self
    }

    /// What is to be written, in order.
    pub fn writes(&self) -> &[Write] {
        &self.writes
    }

    /// What must hold.
    pub fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    /// The size that is held against [`KvLimits::batch_bytes_max`]: keys, values, and 64 bytes for each write and
    /// each condition.
    pub fn bytes(&self) -> usize {
        let write = |write: &Write| write.key.len() + write.value.as_ref().map_or(0, Bytes::len);
        let writes = self.writes.iter().map(write).sum::<usize>();
        let conditions = self.conditions.iter().map(|condition| condition.key.len()).sum::<usize>();
        writes + conditions + ROW_OVERHEAD_BYTES * (self.writes.len() + self.conditions.len())
    }

    /// For engines: whether all of it is within the limits.
    ///
    /// # Errors
    /// [`KvError::KeyLength`], [`KvError::ValueTooLarge`], [`KvError::BatchTooLarge`].
    pub fn check(&self, limits: &KvLimits) -> Result<(), KvError> {
        for write in &self.writes {
            limits.check_key(&write.key)?;
            let length = write.value.as_ref().map_or(0, Bytes::len);
            if length > limits.value_bytes_max {
                let max = limits.value_bytes_max;
                return Err(KvError::ValueTooLarge { key: write.key.clone(), length, max });
            }
        }
        self.conditions.iter().try_for_each(|condition| limits.check_key(&condition.key))?;
        let (bytes, max) = (self.bytes(), limits.batch_bytes_max);
        if bytes > max { Err(KvError::BatchTooLarge { bytes, max }) } else { Ok(()) }
    }

    /// For engines: the first condition that does not hold, given how a key's revision is found.
    ///
    /// # Errors
    /// [`KvError::Conflict`], and what `revision` fails with.
    pub fn check_conditions(
        &self,
        mut revision: impl FnMut(&Bytes) -> Result<Option<Revision>, KvError>,
    ) -> Result<(), KvError> {
        for condition in &self.conditions {
            let found = revision(&condition.key)?;
            if found != condition.expected {
                let (key, expected) = (condition.key.clone(), condition.expected);
                return Err(KvError::Conflict { key, found, expected });
            }
        }
        Ok(())
    }
}
