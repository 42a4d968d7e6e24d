//! The promise to an accepted operation.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::sync::oneshot;

use crate::{Sink, WriteError};

/// Resolves when *its* operation is applied, or with *its* error.
///
/// Tickets of one pid resolve in the order of acceptance. Dropping one changes nothing: the operation was accepted and
/// goes its way, and its failure shows in the next flush. Like most futures it panics when polled again after its end.
#[derive(Debug)]
#[must_use = "a ticket tells whether the operation was written; drop it explicitly where a flush tells instead"]
pub struct Ticket<T, E> {
    outcome: oneshot::Receiver<Result<T, WriteError<E>>>,
}

/// The ticket of a sink's operation.
pub type TicketOf<S> = Ticket<<S as Sink>::Output, <S as Sink>::Error>;

/// The other end of a ticket.
pub(crate) struct Promise<T, E>(oneshot::Sender<Result<T, WriteError<E>>>);

/// The other end of the ticket of a sink's operation.
pub(crate) type PromiseOf<S> = Promise<<S as Sink>::Output, <S as Sink>::Error>;

pub(crate) fn ticket<T, E>() -> (Promise<T, E>, Ticket<T, E>) {
    let (sender, outcome) = oneshot::channel();
    (Promise(sender), Ticket { outcome })
}

impl<T, E> Promise<T, E> {
    /// Resolves the ticket; whether somebody still holds it.
    pub(crate) fn keep(self, outcome: Result<T, WriteError<E>>) -> bool {
        self.0.send(outcome).is_ok()
    }
}

impl<T, E> Future for Ticket<T, E> {
    type Output = Result<T, WriteError<E>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = ready!(Pin::new(&mut self.outcome).poll(cx));
        Poll::Ready(outcome.unwrap_or(Err(WriteError::Abandoned)))
    }
}
