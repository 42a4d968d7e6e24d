//! A flush on its way.

use tokio::sync::oneshot;

use crate::FlushReport;
use crate::gate::Gate;

pub(crate) struct Flushing<'a, T> {
    gate: &'a Gate<T>,
    /// The place of the one pid that is flushed: shard and lane.
    place: Option<(usize, u64)>,
    /// None once it has completed.
    id: Option<u64>,
}

impl<'a, T> Flushing<'a, T> {
    /// Waits until all that was accepted before has ended.
    pub(crate) async fn everything(gate: &'a Gate<T>) -> FlushReport {
        let ((id, floor), reached) =
            gate.step(|state, _| (state.barriers.begin(), state.barriers.awaited_floor()));
        let mut flush = Self { gate, place: None, id: Some(id) };
        // While no flush ran, nobody told.
        gate.reached(reached);
        gate.floor_reached(floor).await;
        flush.complete(None)
    }

    /// Waits until what was accepted of this pid before has ended.
    pub(crate) async fn of_pid(gate: &'a Gate<T>, shard: usize, key: u64, pid: &str) -> FlushReport {
        let (done, ended) = oneshot::channel();
        let id = gate.step(|state, effects| {
            effects.wakers.extend(state.shard(shard).mark(key, done));
            state.barriers.begin_pid()
        });
        let mut flush = Self { gate, place: Some((shard, key)), id: Some(id) };
        // A shard that has ended drops the other end: nothing of this pid is left there.
        ended.await.unwrap_or(());
        flush.complete(Some(pid))
    }

    fn complete(&mut self, pid: Option<&str>) -> FlushReport {
        let (id, place) = (self.id.take(), self.place);
        let complete = |id| {
            self.gate.step(|state, _| {
                let held = state.held(place);
                state.barriers.complete(id, pid, held)
            })
        };
        id.map(complete).unwrap_or_default()
    }
}

impl<T> Drop for Flushing<'_, T> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.gate.step(|state, _| state.barriers.cancel(id));
        }
    }
}
