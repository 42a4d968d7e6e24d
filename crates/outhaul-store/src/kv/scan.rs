//! Reading keys in order, page by page.

use std::ops::{Bound, RangeBounds};

use bytes::Bytes;

use super::batch::ROW_OVERHEAD_BYTES;
use super::{KvError, KvLimits, Row};

/// Which keys to read, in which order, and how many at once. Keys are ordered by their bytes.
///
/// ```
/// use bytes::Bytes;
/// use outhaul_store::kv::Scan;
///
/// let newest_ten = Scan { reverse: true, limit: 10, ..Scan::prefix("op/") };
/// let from_noon = Scan::range(Bytes::from("12:00")..);
/// # assert!(newest_ten.bounds().is_some() && from_noon.bounds().is_some());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scan {
    /// The lower end.
    pub start: Bound<Bytes>,
    /// The upper end.
    pub end: Bound<Bytes>,
    /// Go on behind this key (before it, in reverse): the [`Page::next`] of the page before. It need not exist.
    pub after: Option<Bytes>,
    /// At most this many rows. A page may be shorter although there are more: see [`KvLimits::page_bytes_max`].
    pub limit: usize,
    /// From the last key to the first.
    pub reverse: bool,
}

/// What a scan found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Page {
    /// The rows in order, all as of one moment.
    pub rows: Vec<Row>,
    /// The key to go on behind; `None` when the end was reached.
    pub next: Option<Bytes>,
}

impl Default for Scan {
    fn default() -> Self {
        Self { start: Bound::Unbounded, end: Bound::Unbounded, after: None, limit: 100, reverse: false }
    }
}

impl Scan {
    /// All keys within a range.
    pub fn range(range: impl RangeBounds<Bytes>) -> Self {
        Self { start: range.start_bound().cloned(), end: range.end_bound().cloned(), ..Self::default() }
    }

    /// All keys that begin with these bytes.
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        let prefix = prefix.into();
        let end = prefix.iter().rposition(|&byte| byte != u8::MAX).map_or(Bound::Unbounded, |last| {
            let mut end = prefix[..=last].to_vec();
            end[last] += 1;
            Bound::Excluded(end.into())
        });
        Self { start: Bound::Included(prefix), end, ..Self::default() }
    }

    /// For engines: both ends, narrowed by the cursor; `None` if no key can be between them.
    pub fn bounds(&self) -> Option<(Bound<Bytes>, Bound<Bytes>)> {
        let (mut start, mut end) = (self.start.clone(), self.end.clone());
        if let Some(after) = &self.after {
            let narrowed = Bound::Excluded(after.clone());
            match (self.reverse, key(&start), key(&end)) {
                (false, Some(start), _) if start > after => {}
                (false, ..) => start = narrowed,
                (true, _, Some(end)) if end < after => {}
                (true, ..) => end = narrowed,
            }
        }
        let possible = match (&start, &end) {
            (Bound::Included(start), Bound::Included(end)) => start <= end,
            _ => key(&start).zip(key(&end)).is_none_or(|(start, end)| start < end),
        };
        possible.then_some((start, end))
    }

    /// For engines: a page of the rows that come, which are those within [`bounds`](Self::bounds), in the order of
    /// the scan.
    ///
    /// # Errors
    /// [`KvError::Zero`], and the first error among the rows.
    pub fn page(
        &self,
        limits: &KvLimits,
        rows: impl IntoIterator<Item = Result<Row, KvError>>,
    ) -> Result<Page, KvError> {
        if self.limit == 0 {
            return Err(KvError::Zero("the limit of a scan"));
        }
        let (mut page, mut bytes) = (Page::default(), 0);
        for row in rows {
            let row = row?;
            bytes += row.key.len() + row.value.len() + ROW_OVERHEAD_BYTES;
            let full = page.rows.len() == self.limit || bytes > limits.page_bytes_max;
            match page.rows.last() {
                Some(last) if full => {
                    page.next = Some(last.key.clone());
                    break;
                }
                _ => page.rows.push(row),
            }
        }
        Ok(page)
    }
}

fn key(bound: &Bound<Bytes>) -> Option<&Bytes> {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) => Some(key),
        Bound::Unbounded => None,
    }
}
