//! The lock, the clock and the tasks of the writer, under one name each: those of std and tokio, or with
//! `--cfg outhaul_model` those of a model that tries many orders of the same tasks (`model.rs`).
//!
//! What only wakes – `watch`, `oneshot` – is tokio's in both: it is tested there, and knows no clock.

use std::future::poll_fn;
use std::task::Poll;

#[cfg(outhaul_model)]
pub(crate) use self::model::{Tasks, now, timeout_at};
#[cfg(not(outhaul_model))]
pub(crate) use self::real::{Tasks, now, timeout_at};
#[cfg(outhaul_model)]
pub(crate) use shuttle::sync::{Mutex, MutexGuard};
#[cfg(not(outhaul_model))]
pub(crate) use std::sync::{Mutex, MutexGuard};

/// Lets the tasks run that are ready before this one. The runtime's own way to yield waits for timers and sockets too,
/// which costs more than a small batch.
pub(crate) async fn step_back() {
    let mut stepped = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut stepped, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// The time that was given is over.
#[derive(Debug)]
pub(crate) struct Elapsed;

#[cfg(not(outhaul_model))]
mod real {
    use std::future::Future;

    use tokio::task::JoinSet;
    use tokio::time::Instant;

    use super::Elapsed;

    pub(crate) fn now() -> Instant {
        Instant::now()
    }

    pub(crate) async fn timeout_at<F: Future>(until: Instant, future: F) -> Result<F::Output, Elapsed> {
        tokio::time::timeout_at(until, future).await.map_err(|_| Elapsed)
    }

    /// Tasks that are aborted with this value.
    #[derive(Debug, Default)]
    pub(crate) struct Tasks(JoinSet<()>);

    impl Tasks {
        pub(crate) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
            self.0.spawn(task);
        }
    }
}

/// A clock that goes on when somebody looks at it or waits. A short wait ends by itself; a long one does not, so that a
/// wake-up that is lost shows as a deadlock, not as a delay.
#[cfg(outhaul_model)]
mod model {
    use std::cell::Cell;
    use std::future::{Future, poll_fn};
    use std::pin::pin;
    use std::task::Poll;
    use std::time::Duration;

    use shuttle::future::JoinHandle;
    use tokio::time::Instant;

    use super::Elapsed;

    const LONG: Duration = Duration::from_secs(20);

    thread_local! {
        static NOW: Cell<(Option<Instant>, Duration)> = const { Cell::new((None, Duration::ZERO)) };
    }

    fn pass(time: Duration) -> Instant {
        let (start, passed) = NOW.get();
        let (start, passed) = (start.unwrap_or_else(Instant::now), passed + time);
        NOW.set((Some(start), passed));
        start + passed
    }

    pub(crate) fn now() -> Instant {
        pass(Duration::from_micros(1))
    }

    pub(crate) async fn timeout_at<F: Future>(until: Instant, future: F) -> Result<F::Output, Elapsed> {
        let mut future = pin!(future);
        let mut yields = 0;
        poll_fn(|cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Ok(output));
            }
            let left = until.saturating_duration_since(now());
            if left >= LONG {
                return Poll::Pending;
            }
            yields += 1;
            if yields > 1 {
                pass(left);
                return Poll::Ready(Err(Elapsed));
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await
    }

    #[derive(Debug, Default)]
    pub(crate) struct Tasks(Vec<JoinHandle<()>>);

    impl Tasks {
        pub(crate) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
            self.0.push(shuttle::future::spawn(task));
        }
    }

    impl Drop for Tasks {
        fn drop(&mut self) {
            self.0.iter().for_each(JoinHandle::abort);
        }
    }
}
