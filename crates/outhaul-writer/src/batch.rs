//! What the sink is given: the operations in one slice, everything else about them beside it.

use std::collections::HashMap;

use crate::Sink;
use crate::queue::Entry;
use crate::shard::{Extra, Job};
use crate::ticket::Promise;

/// An entry whose operation is elsewhere.
pub(crate) type Rest<S> = Entry<(Promise<S>, Option<Box<Extra>>)>;

/// One call of the sink.
pub(crate) struct Batch<S: Sink> {
    pub(crate) ops: Vec<S::Op>,
    /// Beside `ops`, or in `members` when some were replaced.
    pub(crate) rest: Vec<Rest<S>>,
    /// In the order of acceptance.
    pub(crate) members: Vec<Member<S>>,
}

/// One operation of a batch in which some were replaced.
pub(crate) struct Member<S: Sink> {
    pub(crate) rest: Rest<S>,
    /// The place in `ops` of itself, or of the one that replaced it.
    pub(crate) at: usize,
    /// Itself, if it was replaced.
    pub(crate) replaced: Option<S::Op>,
}

impl<S: Sink> Batch<S> {
    pub(crate) fn new() -> Self {
        Self { ops: Vec::new(), rest: Vec::new(), members: Vec::new() }
    }

    pub(crate) fn put(&mut self, entry: Entry<Job<S>>) {
        let Entry { key, bytes, epoch, since, again, body: Job { promise, extra } } = entry;
        // The operation is there: only a batch takes it, and puts it back before it gives the entry away.
        let Some(op) = promise.take() else { return };
        self.ops.push(op);
        self.rest.push(Entry { key, bytes, epoch, since, again, body: (promise, extra) });
    }

    /// Takes out of `ops` what a later operation of the same pid and key replaces.
    pub(crate) fn coalesce(&mut self, sink: &S) {
        let replaced_by = match replacements(sink, &self.ops, &self.rest) {
            Some(replaced_by) => replaced_by,
            None => return,
        };
        // Where each of those that stay goes.
        let mut at = Vec::with_capacity(self.ops.len());
        let mut stay = 0;
        for by in &replaced_by {
            at.push(stay);
            stay += usize::from(by.is_none());
        }
        let ops = std::mem::take(&mut self.ops);
        for (number, (op, rest)) in ops.into_iter().zip(self.rest.drain(..)).enumerate() {
            let (at, replaced) = match replaced_by[number] {
                None => {
                    self.ops.push(op);
                    (at[number], None)
                }
                Some(by) => (at[by], Some(op)),
            };
            self.members.push(Member { rest, at, replaced });
        }
    }
}

/// For each operation the one that replaces it; None if there are none.
fn replacements<S: Sink>(sink: &S, ops: &[S::Op], rest: &[Rest<S>]) -> Option<Vec<Option<usize>>> {
    // With the default method the compiler sees that there is nothing to do.
    if ops.len() < 2 || ops.iter().all(|op| sink.coalesce_key(op).is_none()) {
        return None;
    }
    let mut replaced_by = vec![None; ops.len()];
    let mut last: HashMap<(u64, u32, &[u8]), usize> = HashMap::new();
    // One that stands for itself closes the keys of its pid to those before it.
    let mut closed: HashMap<u64, u32> = HashMap::new();
    let mut any = false;
    for (number, (op, rest)) in ops.iter().zip(rest).enumerate().rev() {
        // One that was replaced before, and would be late for itself, is so by the next, whatever its key says now.
        if rest.body.1.as_ref().is_some_and(|extra| extra.bound) && number + 1 < ops.len() {
            replaced_by[number] = replaced_by[number + 1].or(Some(number + 1));
            any = true;
            continue;
        }
        let apart = rest.body.1.as_ref().is_some_and(|extra| extra.apart);
        let lap = closed.entry(rest.key).or_default();
        let Some(key) = sink.coalesce_key(op).filter(|_| !apart) else {
            *lap += 1;
            continue;
        };
        let by = *last.entry((rest.key, *lap, key)).or_insert(number);
        if by != number {
            replaced_by[number] = Some(by);
            any = true;
        }
    }
    any.then_some(replaced_by)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use crate::{Answer, Operation};

    struct Large([u8; 4_096]);

    impl Operation for Large {
        fn pid(&self) -> Option<&str> {
            None
        }

        fn bytes(&self) -> usize {
            self.0.len()
        }
    }

    struct Nowhere;

    impl Sink for Nowhere {
        type Op = Large;
        type Output = [u8; 4_096];
        type Error = Infallible;

        async fn apply(&self, _: u64, _: &[Large]) -> Answer<[u8; 4_096], Infallible> {
            Answer::Applied([0; 4_096])
        }
    }

    #[test]
    fn a_slot_is_small_however_large_the_operation() {
        assert!(size_of::<Entry<Job<Nowhere>>>() <= 64, "{}", size_of::<Entry<Job<Nowhere>>>());
        assert!(size_of::<Rest<Nowhere>>() <= 64, "{}", size_of::<Rest<Nowhere>>());
    }
}
