//! What comes first after a crash: the entries that were with the target when the process ended, one at a time. One of
//! them may be what ended it.

use tokio::time::Instant;

use outhaul_store::StoreError;

use super::Worker;
use super::lanes::LaneKey;

/// After so many ends of the process an entry that was in flight at each of them is not sent again.
pub(super) const CRASHES_MAX: u32 = 3;
/// After an end that was not in order so many attempts wait until the store has noted them: whatever ended the process
/// may do so again before another commit takes the note along.
const CAREFUL_ATTEMPTS: u32 = 256;
const SCAN_ROWS: usize = 4096;

impl Worker {
    /// Finds out which entries are suspected of a crash, and what waits before them.
    pub(super) async fn find_suspects(&mut self) -> Result<(), StoreError> {
        let crashed = self.setup.lease.crashed(&self.setup.name)?;
        if self.setup.log.ended_unclean() || !crashed.is_empty() {
            self.careful = CAREFUL_ATTEMPTS;
        }
        let Some(&last) = crashed.last() else { return Ok(()) };
        let mut after = 0;
        while after < last {
            let scan = self.setup.lease.scan(&self.setup.name, after, SCAN_ROWS).await?;
            if scan.rows.is_empty() {
                break;
            }
            after = scan.next;
            let found = scan.rows.iter().filter(|row| crashed.binary_search(&row.sequence).is_ok());
            self.suspects.extend(found.map(|row| (row.sequence, LaneKey::of_row(row))));
        }
        tracing::warn!(
            target = %self.setup.name,
            entries = self.suspects.len(),
            "the process ended while these were being delivered: they are sent first, alone"
        );
        // Their lanes are to be known before anything else is sent.
        let now = Instant::now();
        while self.cursor < last && self.more && self.lanes.has_room_for_skipped() {
            if !self.scan(SCAN_ROWS, now).await? {
                break;
            }
        }
        Ok(())
    }

    /// Loads what the next suspect waits for.
    pub(super) async fn load_suspect(&mut self, now: Instant) -> Result<(), StoreError> {
        match self.due_suspect().and_then(|key| self.lanes.front(key)) {
            Some(front) if self.lanes.get(front).is_none() => self.load_front(front, 1, now).await,
            _ => Ok(()),
        }
    }

    /// The next entry that is to be sent alone, if there is one; None inside: not before something has ended. One that
    /// waits for its time, or for a person, keeps nobody waiting until then.
    pub(super) fn next_suspect(&mut self) -> Option<Option<u64>> {
        let lanes = &self.lanes;
        // What has left the queue is suspected no longer.
        self.suspects.retain(|&sequence, &mut key| match lanes.front(key) {
            Some(front) => front <= sequence,
            None => lanes.has(key),
        });
        let front = self.lanes.front(self.due_suspect()?);
        Some(front.filter(|&front| self.running == 0 && self.lanes.get(front).is_some()))
    }

    /// The lane of the first suspect that does not wait.
    fn due_suspect(&self) -> Option<LaneKey> {
        let waits = |key| self.lanes.is_waiting(key) || self.lanes.is_closed(key);
        self.suspects.values().copied().find(|&key| !waits(key))
    }

    /// Whether an entry is suspected of a crash, and would not be alone now.
    pub(super) fn is_barred(&self, sequence: u64) -> bool {
        self.running > 0 && self.suspects.contains_key(&sequence)
    }

    /// Tells the store what is with the target, if that has changed. It is written with the next commit.
    pub(super) fn note_flying(&mut self) -> Result<(), StoreError> {
        if !self.noted {
            let flying: Vec<u64> = self.flying.iter().copied().collect();
            self.setup.lease.in_flight(&self.setup.name, &flying)?;
            self.noted = true;
        }
        Ok(())
    }
}
