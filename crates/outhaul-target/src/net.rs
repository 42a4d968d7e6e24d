//! What targets on a network share (feature `net`): deadlines, connections that are made once and again, TLS whose
//! files are looked at again.

mod cached;
mod connect;
mod tls;

use std::error::Error;
use std::io;
use std::time::Duration;

pub use cached::{Cached, Lease};
pub use connect::{Stream, connect, io_kind};
pub use rustls;
pub use tls::{Tls, TlsError};

use crate::error::{DeliveryError, ErrorKind};
use crate::secret::Secret;

/// Ends `work` at the deadline of one attempt.
///
/// # Errors
/// Those of `work`, or [`ErrorKind::TimedOut`]. Dropping the future drops `work`.
pub async fn within<T>(
    timeout: Duration,
    work: impl Future<Output = Result<T, DeliveryError>>,
) -> Result<T, DeliveryError> {
    match tokio::time::timeout(timeout, work).await {
        Ok(result) => result,
        Err(_) => Err(DeliveryError::new(ErrorKind::TimedOut)
            .with_detail(format!("the receiver has not answered within {timeout:?}"))),
    }
}

/// Reads a secret where blocking is allowed.
///
/// # Errors
/// [`ErrorKind::Configuration`]: its file cannot be used.
pub async fn read(secret: &Secret) -> Result<std::sync::Arc<str>, DeliveryError> {
    let secret = secret.clone();
    match tokio::task::spawn_blocking(move || secret.read()).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(DeliveryError::new(ErrorKind::Configuration)
            .with_detail("a secret cannot be read")
            .with_source(error)),
        Err(error) => Err(DeliveryError::new(ErrorKind::Unknown).with_source(error)),
    }
}

/// Looks for a cause of this type in a chain of errors. An `io::Error` hides what it wraps from `source`.
pub fn cause<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<E>() {
            return Some(found);
        }
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = wrapped.map(|inner| inner as &(dyn Error + 'static)).or_else(|| error.source());
    }
    None
}
