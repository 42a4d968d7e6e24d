//! A row of sequences that costs little while it holds one: ten thousand pids may wait with one entry each.

use std::collections::VecDeque;

/// Sequences in their order, none of them 0.
#[derive(Debug, Default)]
pub(super) struct Fifo {
    /// 0: there is none.
    front: u64,
    #[expect(
        clippy::box_collection,
        reason = "most have no more than one, and a pointer is a quarter of a queue"
    )]
    rest: Option<Box<VecDeque<u64>>>,
}

impl Fifo {
    pub(super) fn len(&self) -> usize {
        usize::from(self.front > 0) + self.rest.as_ref().map_or(0, |rest| rest.len())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.front == 0
    }

    pub(super) fn front(&self) -> Option<u64> {
        (self.front > 0).then_some(self.front)
    }

    pub(super) fn get(&self, at: usize) -> Option<u64> {
        match at.checked_sub(1) {
            None => self.front(),
            Some(at) => self.rest.as_ref()?.get(at).copied(),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.front().into_iter().chain(self.rest.iter().flat_map(|rest| rest.iter().copied()))
    }

    /// How many come before a sequence, where they are ascending.
    pub(super) fn count_before(&self, until: u64) -> usize {
        let rest = self.rest.as_ref().map_or(0, |rest| rest.partition_point(|&sequence| sequence < until));
        rest + usize::from(self.front().is_some_and(|front| front < until))
    }

    pub(super) fn push_back(&mut self, sequence: u64) {
        if self.front == 0 {
            self.front = sequence;
        } else {
            self.rest.get_or_insert_default().push_back(sequence);
        }
    }

    /// Takes the one at an index out.
    pub(super) fn remove(&mut self, at: usize) {
        match (at.checked_sub(1), &mut self.rest) {
            (None, rest) => self.front = rest.as_mut().and_then(|rest| rest.pop_front()).unwrap_or(0),
            (Some(at), Some(rest)) => drop(rest.remove(at)),
            (Some(_), None) => {}
        }
        if self.rest.as_ref().is_some_and(|rest| rest.is_empty()) {
            self.rest = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_row(actions in proptest::collection::vec((any::<bool>(), 0_usize..6), 0..60)) {
            let (mut fifo, mut plain) = (Fifo::default(), Vec::new());
            for (next, (pushes, at)) in actions.into_iter().enumerate() {
                if pushes {
                    fifo.push_back(next as u64 + 1);
                    plain.push(next as u64 + 1);
                } else {
                    fifo.remove(at);
                    if at < plain.len() {
                        plain.remove(at);
                    }
                }
                prop_assert_eq!(fifo.iter().collect::<Vec<_>>(), plain.clone());
                prop_assert_eq!(fifo.len(), plain.len());
                prop_assert_eq!(fifo.is_empty(), plain.is_empty());
                prop_assert_eq!(fifo.front(), plain.first().copied());
                let before = plain.iter().filter(|&&sequence| sequence < 20).count();
                prop_assert_eq!(fifo.count_before(20), before);
                for at in 0..plain.len() + 2 {
                    prop_assert_eq!(fifo.get(at), plain.get(at).copied());
                }
            }
        }
    }
}
