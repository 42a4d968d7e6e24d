//! Reading: how the lanes come to know what waits.
//!
//! Mostly entries are read ahead in bulk. Where most of what comes next belongs to lanes that wait, only rows are
//! scanned, and an event is read when its lane wants it. Where entries fail while others may not, the far end of the
//! queue is looked at as well: what can be delivered there is not to wait for what cannot.

use std::sync::Arc;
use std::time::Duration;

use outhaul_store::event::Event;
use outhaul_store::{Entry, ReadBatch, Rule, StoreError};
use outhaul_target::WhenFull;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::lanes::{LANE_LOADED_MAX, LaneKey};
use super::suspects::CRASHES_MAX;
use super::{PAGE, Worker, lanes};
use crate::policy::Permission;

/// Bounds of the window.
const WINDOW_ENTRIES_MAX: usize = 4096;
const WINDOW_BYTES_MAX: usize = 32 << 20;
/// What is loaded from the far end, beside the window.
const FAR_ENTRIES_MAX: usize = 256;
const FAR_BYTES_MAX: usize = 2 << 20;
/// What one read brings.
const READ_ENTRIES_MAX: usize = 1024;
const READ_BYTES_MAX: usize = 4 << 20;
/// With fewer the batch in which they were written is the price, not they.
const FETCH_MIN: usize = 32;
/// Rows of one scan, and of one round.
const SCAN_ROWS: usize = 4096;
const ROUND_ROWS: usize = 1 << 16;
/// A trial does not wait longer for what is to be tried.
const LOOK_AHEAD: Duration = Duration::from_millis(250);
/// After a read that failed.
const READ_BACKOFF: Duration = Duration::from_secs(1);

/// How reading goes.
#[derive(Debug)]
pub(super) struct Reading {
    /// Entries of the next fetch: fewer where most of those read were of no use.
    fetch: usize,
    /// As `fetch`, for lanes that were delivered to.
    proven: usize,
    /// Most of what came belongs to lanes that wait.
    scans: bool,
    /// What comes next in the queue, while there is something to send without it. One at most.
    ahead: JoinSet<Result<ReadBatch, StoreError>>,
    /// Something was appended since the last read began.
    appended: bool,
    /// The last read came to the end of the queue, or brought little.
    little: bool,
}

impl Default for Reading {
    fn default() -> Self {
        let (ahead, appended, little) = (JoinSet::new(), false, true);
        let (fetch, proven) = (LANE_LOADED_MAX, FAR_ENTRIES_MAX / 4);
        Self { fetch, proven, scans: false, ahead, appended, little }
    }
}

impl Reading {
    /// Whether something is read just now.
    pub(super) fn is_under_way(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// What was read, when it is there. Dropping the future loses nothing.
    pub(super) async fn ended(&mut self) -> Option<Result<ReadBatch, StoreError>> {
        // Nobody cancels it, and a panic of the store is as bad as its end.
        self.ahead.join_next().await.map(|read| read.unwrap_or(Err(StoreError::Closed)))
    }
}

/// What is loaded of what is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Load {
    /// What lanes that can send want next.
    Next,
    /// As `Next`, beside the window.
    Far,
    /// What lanes want that were delivered to, beside the window.
    Proven,
    /// What lanes would want if they did not wait, beside the window.
    Anyway,
}

impl Worker {
    /// Reads ahead as far as the window allows.
    pub(super) async fn read(&mut self, now: Instant) -> Result<(), StoreError> {
        self.unfinished = false;
        if self.read_not_before.is_some_and(|at| at > now) {
            return Ok(());
        }
        self.read_not_before = None;
        self.find_lost(now).await?;
        self.load_suspect(now).await?;
        self.fetch_proven(now).await?;
        self.fetch(now).await?;
        self.advance(now).await?;
        self.look_far(now).await
    }

    fn has_room(&self) -> bool {
        let (entries, bytes) = match self.reading.is_under_way() {
            true => (READ_ENTRIES_MAX, READ_BYTES_MAX),
            false => (0, 0),
        };
        self.lanes.loaded() + entries < WINDOW_ENTRIES_MAX && self.lanes.bytes() + bytes < WINDOW_BYTES_MAX
    }

    /// Whether there is so much to send that reading can wait until it is worth it. A read has a price of its own: the
    /// batch in which its entries were written is read and verified as a whole.
    fn can_wait(&self) -> bool {
        self.lanes.has_ready() || self.running >= self.setup.options.in_flight.get()
    }

    /// Whether another whole read fits.
    fn has_room_for_read(&self) -> bool {
        self.lanes.loaded() + READ_ENTRIES_MAX <= WINDOW_ENTRIES_MAX
            && self.lanes.bytes() + READ_BYTES_MAX <= WINDOW_BYTES_MAX
    }

    /// Loads what lanes that can send want next.
    async fn fetch(&mut self, now: Instant) -> Result<(), StoreError> {
        while self.has_room()
            && let Some(first) = self.lanes.to_fetch()
        {
            let asked = self.reading.fetch;
            let Some((read, wanted)) = self.load(first, asked, Load::Next, now).await? else {
                return Ok(());
            };
            // At the end of the queue there are few anyhow, and new ones there say nothing about the backlog.
            if read == asked {
                self.reading.fetch = match wanted * 4 < read {
                    true => (asked / 4).max(FETCH_MIN),
                    false => (asked * 2).min(READ_ENTRIES_MAX),
                };
            }
        }
        Ok(())
    }

    /// Loads what lanes want that were delivered to, also where those that were not fill the window.
    async fn fetch_proven(&mut self, now: Instant) -> Result<(), StoreError> {
        while self.has_room_proven()
            && (self.lanes.stuck() > 0 || !self.has_room())
            && let Some(first) = self.lanes.proven_to_fetch()
        {
            let room = WINDOW_ENTRIES_MAX + 2 * FAR_ENTRIES_MAX - self.lanes.loaded();
            let asked = self.reading.proven.min(room);
            let Some((read, wanted)) = self.load(first, asked, Load::Proven, now).await? else { break };
            if read == asked {
                self.reading.proven = match wanted * 4 < read {
                    true => (asked / 2).max(FAR_ENTRIES_MAX / 4),
                    false => (asked * 2).min(READ_ENTRIES_MAX),
                };
            }
        }
        Ok(())
    }

    /// Beside the window and what came from the far end: neither may keep these out.
    fn has_room_proven(&self) -> bool {
        let (entries, bytes) = (self.lanes.loaded(), self.lanes.bytes());
        entries < WINDOW_ENTRIES_MAX + 2 * FAR_ENTRIES_MAX && bytes < WINDOW_BYTES_MAX + 2 * FAR_BYTES_MAX
    }

    fn has_room_far(&self) -> bool {
        let (entries, bytes) = self.lanes.far();
        entries <= FAR_ENTRIES_MAX / 2 && bytes <= FAR_BYTES_MAX / 2
    }

    /// Reads from an entry on whatever a lane wants next. Returns how many were read, and how many of them were wanted.
    async fn load(
        &mut self,
        first: u64,
        entries_max: usize,
        how: Load,
        now: Instant,
    ) -> Result<Option<(usize, usize)>, StoreError> {
        let Some((entries, _)) = self.read_from(first - 1, entries_max, now).await? else { return Ok(None) };
        let (read, mut wanted) = (entries.len(), 0);
        if entries.first().map(|entry| entry.place.uid.sequence) != Some(first) {
            self.lanes.vanished(first);
        }
        for entry in entries {
            let sequence = entry.place.uid.sequence;
            match readable(&entry) {
                Some(event) => {
                    let history = self.tried(&entry, now);
                    let key = LaneKey::of(&event, sequence);
                    let wants = how != Load::Proven || sequence == first || self.lanes.is_proven(key);
                    let (far, anyway) = (matches!(how, Load::Far | Load::Anyway), how == Load::Anyway);
                    if wants && self.lanes.fetched(entry.clone(), event, history, (far, anyway)) {
                        wanted += 1;
                        if self.closed.contains(&key) {
                            self.lanes.close_idle(key);
                        }
                    } else if sequence == first && self.lanes.to_fetch() == Some(first) {
                        // A footer that is wrong about its pid decides nothing.
                        self.lanes.vanished(first);
                        self.push(entry, now);
                    }
                }
                None if sequence == first => {
                    self.lanes.vanished(first);
                    self.move_out(entry);
                }
                // It comes first in its lane some time.
                None => {}
            }
        }
        Ok(Some((read, wanted)))
    }

    /// Takes up what comes next in the queue.
    async fn advance(&mut self, now: Instant) -> Result<(), StoreError> {
        let mut rows = 0;
        while self.more && self.has_room() && self.lanes.has_room_for_skipped() {
            if self.reading.scans {
                if rows >= ROUND_ROWS {
                    self.unfinished = true;
                    return Ok(());
                }
                rows += SCAN_ROWS;
                if !self.scan(SCAN_ROWS, now).await? {
                    return Ok(());
                }
                // Lanes that came with it are to be loaded first.
                self.fetch(now).await?;
                continue;
            }
            if self.can_wait() {
                self.read_ahead();
                return Ok(());
            }
            if self.reading.is_under_way() {
                self.catch_up(now).await?;
                continue;
            }
            self.looks();
            let room = (WINDOW_ENTRIES_MAX - self.lanes.loaded()).min(READ_ENTRIES_MAX);
            let Some((entries, next)) = self.read_from(self.cursor, room, now).await? else { return Ok(()) };
            self.take_up(entries, next, now);
        }
        Ok(())
    }

    /// What is appended from now on is not in what is read now.
    fn looks(&mut self) {
        self.appended.borrow_and_update();
        self.reading.appended = false;
    }

    /// Something was appended.
    pub(super) fn look_again(&mut self) {
        self.more = true;
        self.reading.appended = true;
    }

    /// Begins to read what comes next in the queue, if there is room for a whole read, or no need for one.
    fn read_ahead(&mut self) {
        if self.reading.is_under_way() || !(self.has_room_for_read() || self.reading.little) {
            return;
        }
        self.looks();
        let (lease, name, after) = (Arc::clone(&self.setup.lease), self.setup.name.clone(), self.cursor);
        let entries_max = READ_ENTRIES_MAX.min(WINDOW_ENTRIES_MAX.saturating_sub(self.lanes.loaded()));
        let bytes_max = READ_BYTES_MAX.min(WINDOW_BYTES_MAX.saturating_sub(self.lanes.bytes()));
        self.reading.ahead.spawn(async move { lease.read(&name, after, entries_max, bytes_max).await });
    }

    /// Waits for what is read ahead. Whatever depends on how far the queue is known comes after it.
    pub(super) async fn catch_up(&mut self, now: Instant) -> Result<(), StoreError> {
        while let Some(read) = self.reading.ended().await {
            self.was_read(read, now)?;
        }
        Ok(())
    }

    /// Takes up what was read ahead.
    pub(super) fn was_read(
        &mut self,
        read: Result<ReadBatch, StoreError>,
        now: Instant,
    ) -> Result<(), StoreError> {
        if let Some(read) = self.usable(read, now)? {
            self.take_up(read.entries, read.next, now);
        }
        Ok(())
    }

    fn take_up(&mut self, entries: Vec<Entry>, next: u64, now: Instant) {
        let (before, read) = (self.lanes.loaded(), entries.len());
        self.more = read > 0 || self.reading.appended;
        self.reading.little = read < READ_ENTRIES_MAX / 4;
        self.cursor = next;
        for entry in entries {
            self.push(entry, now);
        }
        self.reading.scans = (self.lanes.loaded() - before) * 4 < read;
    }

    /// Takes up rows of what comes next, without the events; false if that failed for now.
    pub(super) async fn scan(&mut self, rows_max: usize, now: Instant) -> Result<bool, StoreError> {
        self.catch_up(now).await?;
        self.looks();
        let scan = self.setup.lease.scan(&self.setup.name, self.cursor, rows_max).await;
        let Some(scan) = self.usable(scan, now)? else { return Ok(false) };
        self.more = !scan.rows.is_empty();
        self.cursor = scan.next;
        let mut new = 0;
        for row in &scan.rows {
            let key = LaneKey::of_row(row);
            new += usize::from(!self.lanes.has(key));
            self.lanes.skip(key, row.sequence);
            if self.closed.contains(&key) {
                self.lanes.close_idle(key);
            }
        }
        self.reading.scans = new * 4 < scan.rows.len();
        Ok(true)
    }

    /// Looks at the far end of the queue, where the near one is full of what fails.
    async fn look_far(&mut self, now: Instant) -> Result<(), StoreError> {
        let trial = matches!(self.policy.permission(now), Permission::Trial) && !self.trial_running;
        if trial && self.policy.trial_takes_youngest() {
            let (begun, mut rows) = (Instant::now(), 0);
            while self.more
                && rows < self.policy.look_ahead()
                && begun.elapsed() < LOOK_AHEAD
                && self.lanes.has_room_for_skipped()
                && self.scan(SCAN_ROWS, now).await?
            {
                rows += SCAN_ROWS;
            }
            return self.load_far(1, now).await;
        }
        if self.policy.looks_far(self.lanes.stuck() > 0) {
            if self.more && !self.has_room() && self.lanes.has_room_for_skipped() {
                self.scan(SCAN_ROWS, now).await?;
            }
            if self.has_room_far() {
                return self.load_far(FAR_ENTRIES_MAX / 4, now).await;
            }
        }
        Ok(())
    }

    async fn load_far(&mut self, count: usize, now: Instant) -> Result<(), StoreError> {
        let Some(from) = self.lanes.far_end(count) else { return Ok(()) };
        let last = self.lanes.last_to_fetch();
        if self.load(from, count, Load::Far, now).await?.is_some()
            && let Some(last) = last
            && self.lanes.last_to_fetch() == Some(last)
        {
            self.load(last, 1, Load::Far, now).await?;
        }
        Ok(())
    }

    /// Finds the next entries of lanes that have more of them than are kept.
    async fn find_lost(&mut self, now: Instant) -> Result<(), StoreError> {
        while let Some((key, first)) = self.lanes.to_find() {
            let (mut after, mut found, mut lost) = (first - 1, Vec::new(), 0);
            'scan: while after < self.cursor {
                let scan = self.setup.lease.scan(&self.setup.name, after, SCAN_ROWS).await;
                let Some(scan) = self.usable(scan, now)? else { return Ok(()) };
                if scan.rows.is_empty() {
                    break;
                }
                after = scan.next;
                let known = scan.rows.iter().filter(|row| row.sequence <= self.cursor);
                for row in known.filter(|row| LaneKey::of_row(row) == key) {
                    if found.len() == LANE_LOADED_MAX {
                        lost = row.sequence;
                        break 'scan;
                    }
                    found.push(row.sequence);
                }
            }
            self.lanes.found(key, &found, lost);
        }
        Ok(())
    }

    /// Has one entry that is first in its lane loaded, and some behind it, even if the lane waits.
    pub(super) async fn load_front(
        &mut self,
        first: u64,
        count: usize,
        now: Instant,
    ) -> Result<(), StoreError> {
        self.load(first, count, Load::Anyway, now).await.map(drop)
    }

    /// None: the read failed, and is to be tried again later.
    async fn read_from(
        &mut self,
        after: u64,
        entries_max: usize,
        now: Instant,
    ) -> Result<Option<(Vec<Entry>, u64)>, StoreError> {
        let room = WINDOW_BYTES_MAX.saturating_sub(self.lanes.bytes()).max(FAR_BYTES_MAX / 2);
        let bytes_max = READ_BYTES_MAX.min(room);
        let read = self.setup.lease.read(&self.setup.name, after, entries_max, bytes_max).await;
        Ok(self.usable(read, now)?.map(|read| (read.entries, read.next)))
    }

    /// What the store answered; None if it failed, and is to be asked again later.
    fn usable<T>(&mut self, answer: Result<T, StoreError>, now: Instant) -> Result<Option<T>, StoreError> {
        match answer {
            Ok(answer) => Ok(Some(answer)),
            Err(error @ (StoreError::Fenced(_) | StoreError::Closed | StoreError::UnknownQueue(_))) => {
                Err(error)
            }
            Err(error) => {
                tracing::error!(target = %self.setup.name, %error, "the queue cannot be read");
                self.last_error = Some(error.to_string());
                self.last_reason = "store_failed";
                self.last_good = false;
                self.read_not_before = Some(now + READ_BACKOFF);
                Ok(None)
            }
        }
    }

    fn push(&mut self, entry: Entry, now: Instant) {
        let Some(event) = readable(&entry) else { return self.move_out(entry) };
        let (tried, not_before) = self.tried(&entry, now);
        let key = LaneKey::of(&event, entry.place.uid.sequence);
        self.lanes.push(entry, event, tried, not_before);
        if self.closed.contains(&key) {
            self.lanes.close_idle(key);
        }
    }

    /// Has an entry that is never sent moved to the failed store.
    fn move_out(&mut self, entry: Entry) {
        let sequence = entry.place.uid.sequence;
        self.suspects.remove(&sequence);
        if self.moves.add_unsent(entry, self.setup.log.now()) {
            self.control.moving(sequence);
        }
    }

    /// Moves out what is too much for the queue, or too old.
    pub(super) async fn evict(&mut self, now: Instant) -> Result<(), StoreError> {
        // A limit that was lowered under waiting entries refuses new ones, no more.
        let excess = match self.setup.options.when_full {
            WhenFull::Overflow => self.setup.log.excess(&self.setup.name),
            WhenFull::Refuse | WhenFull::Shed => 0,
        };
        let excess = excess.saturating_sub(self.moves.overflowing());
        if excess > 0 && self.read_not_before.is_none() {
            self.overflow(usize::try_from(excess).unwrap_or(usize::MAX).min(PAGE), now).await?;
        }
        if self.setup.options.age_max.is_some() {
            let old =
                self.lanes.idle_fronts().filter(|entry| self.policy.expires(self.age(entry.admitted_at)));
            let old: Vec<u64> = old.map(lanes::Pending::sequence).collect();
            for sequence in
                old.into_iter().filter(|&sequence| self.lanes.take_any(sequence)).collect::<Vec<_>>()
            {
                self.give_up(sequence, Rule::Expired, None);
            }
        }
        if self.moves_not_before.is_none_or(|at| at <= now) {
            self.moves_not_before = None;
            self.start_moves();
        }
        Ok(())
    }

    /// Has the oldest entries moved that are not in flight, loaded or not.
    async fn overflow(&mut self, mut excess: usize, now: Instant) -> Result<(), StoreError> {
        let fronts = self.lanes.all_fronts();
        for (index, &front) in fronts.iter().enumerate() {
            let until = fronts.get(index + 1).copied().unwrap_or(u64::MAX);
            if self.lanes.get(front).is_none() || self.lanes.count_before(front, until) > 1 {
                self.load_front(front, excess.min(LANE_LOADED_MAX), now).await?;
            }
            let wanted = self.lanes.count_before(front, until).min(excess);
            let taken = self.lanes.take(front, wanted, usize::MAX);
            excess = excess.saturating_sub(taken.len());
            for sequence in taken {
                self.give_up(sequence, Rule::Overflow, None);
            }
            if excess == 0 {
                break;
            }
        }
        Ok(())
    }
}

/// The event of an entry that may be sent.
fn readable(entry: &Entry) -> Option<Arc<Event>> {
    let event = entry.event.as_ref().ok().filter(|_| entry.crashes < CRASHES_MAX);
    event.cloned()
}
