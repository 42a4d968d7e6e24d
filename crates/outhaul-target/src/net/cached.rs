//! [`Cached`]: one connection that everybody shares, made again when it broke.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Mutex;

use crate::error::{DeliveryError, ErrorKind};

/// One connection that everybody shares: it is made by the first who needs it, while the others wait, and again by
/// the first who comes after it was given up.
#[derive(Debug)]
pub struct Cached<C> {
    slot: Mutex<Slot<C>>,
    made: AtomicU64,
}

#[derive(Debug)]
enum Slot<C> {
    Empty,
    Open(Lease<C>),
    Closed,
}

/// A connection, told apart from those before and after it.
#[derive(Debug, Clone)]
pub struct Lease<C> {
    /// The connection.
    pub connection: C,
    generation: u64,
}

impl<C: Clone> Cached<C> {
    /// Nothing is connected yet.
    pub fn new() -> Self {
        Self { slot: Mutex::new(Slot::Empty), made: AtomicU64::new(0) }
    }

    /// The connection, made by `connect` if there is none. Dropping the future gives up a connection that is being
    /// made.
    ///
    /// # Errors
    /// Those of `connect`; [`ErrorKind::Closed`] after [`close`](Self::close).
    pub async fn get(
        &self,
        connect: impl Future<Output = Result<C, DeliveryError>>,
    ) -> Result<Lease<C>, DeliveryError> {
        let mut slot = self.slot.lock().await;
        match &*slot {
            Slot::Closed => Err(ErrorKind::Closed.into()),
            Slot::Open(lease) => Ok(lease.clone()),
            Slot::Empty => {
                let generation = self.made.fetch_add(1, Ordering::Relaxed);
                let lease = Lease { connection: connect.await?, generation };
                *slot = Slot::Open(lease.clone());
                Ok(lease)
            }
        }
    }

    /// Forgets this connection, unless another one took its place already. Returns it if it was the one.
    pub async fn give_up(&self, lease: &Lease<C>) -> Option<C> {
        let mut slot = self.slot.lock().await;
        match &*slot {
            Slot::Open(open) if open.generation == lease.generation => {
                match std::mem::replace(&mut *slot, Slot::Empty) {
                    Slot::Open(open) => Some(open.connection),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// Closes it for good, and returns the connection if there was one.
    pub async fn close(&self) -> Option<C> {
        match std::mem::replace(&mut *self.slot.lock().await, Slot::Closed) {
            Slot::Open(open) => Some(open.connection),
            Slot::Empty | Slot::Closed => None,
        }
    }
}

impl<C: Clone> Default for Cached<C> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_is_made_once_and_again_after_it_was_given_up() {
        let cached = Cached::new();
        let first = cached.get(async { Ok(1) }).await.unwrap();
        let same = cached.get(async { panic!("there is one") }).await.unwrap();
        assert_eq!((first.connection, same.connection), (1, 1));
        assert_eq!(cached.give_up(&first).await, Some(1));
        let second = cached.get(async { Ok(2) }).await.unwrap();
        // Somebody who still holds the first one is late.
        assert_eq!(cached.give_up(&same).await, None);
        assert_eq!(second.connection, 2);
        assert_eq!(cached.made.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn a_failure_leaves_it_empty_and_closing_ends_it() {
        let cached = Cached::new();
        let failed = cached.get(async { Err(ErrorKind::ConnectionRefused.into()) }).await;
        assert_eq!(
            failed.map(|lease: Lease<u8>| lease.connection).unwrap_err().kind(),
            ErrorKind::ConnectionRefused
        );
        assert_eq!(cached.get(async { Ok(1) }).await.unwrap().connection, 1);
        assert_eq!(cached.close().await, Some(1));
        assert_eq!(cached.close().await, None);
        assert_eq!(cached.get(async { Ok(2) }).await.unwrap_err().kind(), ErrorKind::Closed);
    }
}
