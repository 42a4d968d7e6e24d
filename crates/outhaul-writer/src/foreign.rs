//! Code of others that may panic: wakers, and the clones and drops of what a sink and its callers hand in. What panics
//! there is logged and ends there, so that the books of everybody else are kept.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs it; None if it panics.
pub(crate) fn guard<R>(what: &'static str, code: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(code)) {
        Ok(result) => Some(result),
        Err(payload) => {
            silence(payload);
            tracing::error!(what, "foreign code panicked");
            None
        }
    }
}

/// Drops it.
pub(crate) fn discard<T>(value: T) {
    _ = guard("drop", || drop(value));
}

/// Drops what somebody panicked with, which may panic again.
pub(crate) fn silence(payload: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        // Its drop might go on like that for ever.
        std::mem::forget(again);
    }
}
