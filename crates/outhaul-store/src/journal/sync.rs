//! Locks, threads and the clock of the commit round, under one name each: the standard library's, or with
//! `--cfg outhaul_model` those of a model that tries many orders of the same threads (`model.rs`).

#[cfg(outhaul_model)]
pub(super) use self::model::{Condvar, Mutex, MutexGuard, now, park_timeout};
#[cfg(not(outhaul_model))]
pub(super) use self::real::now;
#[cfg(outhaul_model)]
pub(super) use shuttle::thread::{Builder, JoinHandle, Thread, current, park, yield_now};
#[cfg(not(outhaul_model))]
pub(super) use std::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(outhaul_model))]
pub(super) use std::thread::{Builder, JoinHandle, Thread, current, park, park_timeout, yield_now};

#[cfg(not(outhaul_model))]
mod real {
    use std::time::Instant;

    pub(crate) fn now() -> Instant {
        Instant::now()
    }
}

/// A clock that goes on when somebody looks at it or waits. A short wait ends by itself; a long one does not, so that
/// a wake-up that is lost shows as a deadlock, not as a delay.
#[cfg(outhaul_model)]
mod model {
    use std::cell::Cell;
    use std::ops::{Deref, DerefMut};
    use std::sync::{LockResult, PoisonError};
    use std::time::{Duration, Instant};

    const LONG: Duration = Duration::from_secs(60);

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

    pub(crate) fn park_timeout(time: Duration) {
        if time >= LONG {
            return shuttle::thread::park();
        }
        pass(time);
        shuttle::thread::yield_now();
    }

    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    /// One that knows its mutex, for a wait that ends by itself.
    pub(crate) struct MutexGuard<'a, T> {
        mutex: &'a Mutex<T>,
        guard: shuttle::sync::MutexGuard<'a, T>,
    }

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(shuttle::sync::Mutex::new(value))
        }

        /// A lock that a panic left is as good as any here, so it is never poisoned.
        pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
            let guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            Ok(MutexGuard { mutex: self, guard })
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.guard
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            &mut self.guard
        }
    }

    #[derive(Debug, Default)]
    pub(crate) struct Condvar(shuttle::sync::Condvar);

    pub(crate) struct TimedOut(bool);

    impl TimedOut {
        pub(crate) fn timed_out(&self) -> bool {
            self.0
        }
    }

    impl Condvar {
        pub(crate) fn new() -> Self {
            Self::default()
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }

        pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
            let MutexGuard { mutex, guard } = guard;
            let guard = self.0.wait(guard).unwrap_or_else(PoisonError::into_inner);
            Ok(MutexGuard { mutex, guard })
        }

        pub(crate) fn wait_timeout<'a, T>(
            &self,
            guard: MutexGuard<'a, T>,
            time: Duration,
        ) -> LockResult<(MutexGuard<'a, T>, TimedOut)> {
            if time >= LONG {
                let guard = self.wait(guard).unwrap_or_else(PoisonError::into_inner);
                return Ok((guard, TimedOut(false)));
            }
            let mutex = guard.mutex;
            drop(guard);
            pass(time);
            shuttle::thread::yield_now();
            Ok((mutex.lock().unwrap_or_else(PoisonError::into_inner), TimedOut(true)))
        }
    }
}
