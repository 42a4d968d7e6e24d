//! The promise to an accepted operation.
//!
//! An operation and its ticket share one piece of memory, the only one that is allocated for it: the operation lies in
//! it until it is taken into a batch, its outcome from when it is known until the ticket is asked. So what waits in a
//! queue is a pointer and a few numbers, however large an operation is.

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::foreign::{discard, guard};
use crate::sync::{Mutex, MutexGuard};
use crate::{Sink, WriteError};

/// How an accepted operation ended.
pub(crate) type Outcome<S> = Result<<S as Sink>::Output, WriteError<<S as Sink>::Error>>;

/// Resolves when *its* operation is applied, or with *its* error.
///
/// Tickets of one pid resolve in the order of acceptance, but that of a replaced one with what replaced it. Dropping one
/// changes nothing: the operation was accepted and goes its way, and its failure shows in the next flush. Like most futures
/// it panics when polled again after its end.
#[must_use = "a ticket tells whether the operation was written; drop it explicitly where a flush tells instead"]
pub struct Ticket<S: Sink>(Arc<Cell<S>>);

/// The ticket of a sink's operation.
pub type TicketOf<S> = Ticket<S>;

struct Cell<S: Sink>(Mutex<Shared<S>>);

struct Shared<S: Sink> {
    content: Content<S>,
    waker: Option<Waker>,
}

enum Content<S: Sink> {
    Waits(S::Op),
    Taken,
    Ended(Outcome<S>),
    Told,
}

/// The other end of a ticket, with the operation in it.
pub(crate) struct Promise<S: Sink>(Option<Arc<Cell<S>>>);

pub(crate) fn ticket<S: Sink>(op: S::Op) -> (Promise<S>, Ticket<S>) {
    let shared = Shared { content: Content::Waits(op), waker: None };
    let cell = Arc::new(Cell(Mutex::new(shared)));
    (Promise(Some(Arc::clone(&cell))), Ticket(cell))
}

impl<S: Sink> Cell<S> {
    fn lock(&self) -> MutexGuard<'_, Shared<S>> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Sink> Promise<S> {
    /// Takes the operation out.
    pub(crate) fn take(&self) -> Option<S::Op> {
        let content = mem::replace(&mut self.0.as_ref()?.lock().content, Content::Taken);
        match content {
            Content::Waits(op) => Some(op),
            Content::Taken | Content::Ended(_) | Content::Told => None,
        }
    }

    /// Puts the operation in again.
    pub(crate) fn put(&self, op: S::Op) {
        if let Some(cell) = &self.0 {
            cell.lock().content = Content::Waits(op);
        }
    }

    /// Takes the operation out of what was never accepted; the ticket is dropped unseen.
    pub(crate) fn into_op(mut self) -> Option<S::Op> {
        let op = self.take();
        self.0 = None;
        op
    }

    /// Resolves the ticket; whether somebody still holds it.
    pub(crate) fn keep(mut self, outcome: Outcome<S>) -> bool {
        self.0.take().is_some_and(|cell| cell.end(outcome))
    }
}

impl<S: Sink> Cell<S> {
    fn end(self: Arc<Self>, outcome: Outcome<S>) -> bool {
        let held = Arc::strong_count(&self) > 1;
        // What is dropped or woken is foreign code, so it happens after the lock.
        let (stale, waker) = {
            let mut shared = self.lock();
            (mem::replace(&mut shared.content, Content::Ended(outcome)), shared.waker.take())
        };
        discard(stale);
        if let Some(waker) = waker {
            guard("waker", || waker.wake());
        }
        // With the outcome in it, if nobody holds the ticket.
        discard(self);
        held
    }
}

impl<S: Sink> Drop for Promise<S> {
    fn drop(&mut self) {
        if let Some(cell) = self.0.take() {
            cell.end(Err(WriteError::Abandoned));
        }
    }
}

impl<S: Sink> Future for Ticket<S> {
    type Output = Outcome<S>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut shared = self.0.lock();
        match &shared.content {
            Content::Waits(_) | Content::Taken => {
                if shared.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                    return Poll::Pending;
                }
                let stale = shared.waker.replace(cx.waker().clone());
                drop(shared);
                drop(stale);
                Poll::Pending
            }
            Content::Ended(_) => match mem::replace(&mut shared.content, Content::Told) {
                Content::Ended(outcome) => Poll::Ready(outcome),
                Content::Waits(_) | Content::Taken | Content::Told => unreachable!("it has just been seen"),
            },
            Content::Told => panic!("polled again after its end"),
        }
    }
}

impl<S: Sink> fmt::Debug for Ticket<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.0.lock().content {
            Content::Waits(_) => "waits",
            Content::Taken => "taken",
            Content::Ended(_) => "ended",
            Content::Told => "told",
        };
        f.debug_tuple("Ticket").field(&state).finish()
    }
}
