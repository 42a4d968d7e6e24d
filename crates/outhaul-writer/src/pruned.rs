//! Flushes of one pid that wait: those whose future was dropped are thrown out as more come, so that at most as many stay
//! as still wait, once more as many, and a few.

use tokio::sync::oneshot;

use crate::foreign::guard;

/// So many may stay before anybody looks.
const FEW: usize = 64;

/// Somebody who waits, and may have gone.
pub(crate) trait Waits {
    /// Where to tell.
    fn done(&self) -> &oneshot::Sender<()>;
}

#[derive(Debug)]
pub(crate) struct Pruned<T> {
    all: Vec<T>,
    look_at: usize,
}

impl<T> Default for Pruned<T> {
    fn default() -> Self {
        Self { all: Vec::new(), look_at: FEW }
    }
}

impl<T: Waits> Pruned<T> {
    pub(crate) fn push(&mut self, one: T) {
        if self.all.len() >= self.look_at {
            self.all.retain(|one| !one.done().is_closed());
            self.look_at = (2 * self.all.len()).max(FEW);
        }
        self.all.push(one);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.all.iter_mut()
    }

    /// Takes all of them out.
    pub(crate) fn take(&mut self) -> Vec<T> {
        std::mem::take(self).all
    }
}

/// Lets a flush of one pid go on, if there still is one.
pub(crate) fn tell(done: oneshot::Sender<()>) {
    guard("waker", || done.send(()).unwrap_or(()));
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Waits for oneshot::Sender<()> {
        fn done(&self) -> &Self {
            self
        }
    }

    #[test]
    fn those_that_have_gone_do_not_stay() {
        let mut pruned = Pruned::default();
        let (done, mut waits) = oneshot::channel();
        pruned.push(done);
        for _ in 0..10_000 {
            pruned.push(oneshot::channel().0);
            assert!(pruned.all.len() <= FEW, "{}", pruned.all.len());
        }
        pruned.take().into_iter().for_each(tell);
        assert!(waits.try_recv().is_ok() && pruned.is_empty());
    }

    #[test]
    fn those_that_wait_stay() {
        let mut pruned = Pruned::default();
        let waits: Vec<_> = (0..1_000)
            .map(|_| {
                let (done, waits) = oneshot::channel();
                pruned.push(done);
                waits
            })
            .collect();
        assert_eq!(pruned.take().len(), waits.len());
    }
}
