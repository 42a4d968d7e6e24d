//! Bookkeeping on its way in.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::Sink;
use crate::gate::Phase;
use crate::queue::Entry;
use crate::shard::{GateOf, Job};

/// Waits for room and puts the entry in, or gives it back when the writer closes.
///
/// The entry stays in the future until the poll that returns: only then is it accepted. Room that was granted and not
/// come for is given back on drop.
pub(crate) struct Sending<'a, S: Sink> {
    gate: &'a GateOf<S>,
    shard: usize,
    entry: Option<Entry<Job<S>>>,
    waiter: Option<u64>,
}

// Nothing in it is pinned.
impl<S: Sink> Unpin for Sending<'_, S> {}

impl<'a, S: Sink> Sending<'a, S> {
    pub(crate) fn new(gate: &'a GateOf<S>, shard: usize, entry: Entry<Job<S>>) -> Self {
        Self { gate, shard, entry: Some(entry), waiter: None }
    }
}

impl<S: Sink> Future for Sending<'_, S> {
    type Output = Result<(), Entry<Job<S>>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { gate, shard, entry, waiter } = &mut *self;
        let shard = *shard;
        let polled = gate.step(|state, effects| {
            let (key, bytes) = entry.as_ref().map_or((0, 0), |entry| (entry.key, entry.bytes));
            let open = state.phase() == Phase::Open;
            let room = match *waiter {
                None => state.has_room(shard, key, bytes),
                Some(id) => {
                    let (room, stale) = state.shard(shard).poll_waiter(id, cx.waker());
                    effects.stale.extend(stale);
                    room
                }
            };
            if open && !room {
                if waiter.is_none() {
                    *waiter = Some(state.enlist(shard, (key, bytes), cx.waker().clone(), effects));
                }
                return Poll::Pending;
            }
            let entry = entry.take();
            let id = waiter.take();
            if let Some(id) = id {
                state.dismiss(shard, id, effects);
            }
            if open {
                entry.into_iter().for_each(|entry| state.push(shard, entry, effects));
                return Poll::Ready(Ok(()));
            }
            if id.is_some() {
                state.eased(shard, effects);
            }
            Poll::Ready(Err(entry))
        });
        match polled {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(())) => Poll::Ready(Ok(())),
            Poll::Ready(Err(Some(entry))) => Poll::Ready(Err(entry)),
            Poll::Ready(Err(None)) => panic!("polled again after its end"),
        }
    }
}

impl<S: Sink> Drop for Sending<'_, S> {
    fn drop(&mut self) {
        if let Some(id) = self.waiter {
            self.gate.step(|state, effects| {
                state.dismiss(self.shard, id, effects);
                state.eased(self.shard, effects);
            });
        }
    }
}
