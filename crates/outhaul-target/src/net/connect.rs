//! A TCP connection, with TLS where asked for, and errors that say what failed.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{Tls, cause};
use crate::error::{DeliveryError, ErrorKind};

/// A connection in the clear or encrypted.
#[derive(Debug)]
pub enum Stream {
    /// In the clear.
    Plain(TcpStream),
    /// Encrypted.
    Tls(Box<TlsStream<TcpStream>>),
}

/// Connects, and shakes hands where TLS is asked for, within the time.
///
/// # Errors
/// `Dns`, `ConnectionRefused`, `Unreachable` (no route, or not in time), `Tls`, `Configuration` (a file of the TLS).
/// Dropping the future gives the connection up.
pub async fn connect(
    host: &str,
    port: u16,
    tls: Option<&Tls>,
    timeout: Duration,
) -> Result<Stream, DeliveryError> {
    let work = async {
        let addresses = tokio::net::lookup_host((host, port)).await;
        let addresses: Vec<_> =
            addresses.map_err(|error| DeliveryError::new(ErrorKind::Dns).with_source(error))?.collect();
        if addresses.is_empty() {
            return Err(DeliveryError::new(ErrorKind::Dns).with_detail(format!("{host} has no address")));
        }
        let stream = TcpStream::connect(&addresses[..]).await.map_err(DeliveryError::from_io)?;
        stream.set_nodelay(true).map_err(DeliveryError::from_io)?;
        let Some(tls) = tls else { return Ok(Stream::Plain(stream)) };
        let name = ServerName::try_from(host.to_owned()).map_err(|error| {
            DeliveryError::new(ErrorKind::Configuration)
                .with_detail("the host is no name for TLS")
                .with_source(error)
        })?;
        let stream = TlsConnector::from(tls.config().await?).connect(name, stream).await;
        let failed = |error: io::Error| match error.kind() {
            // The peer hung up, which is all that some servers say about a certificate.
            io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof => {
                DeliveryError::new(ErrorKind::ConnectionReset).with_source(error)
            }
            _ => DeliveryError::new(ErrorKind::Tls).with_source(error),
        };
        Ok(Stream::Tls(Box::new(stream.map_err(failed)?)))
    };
    match tokio::time::timeout(timeout, work).await {
        Ok(result) => result,
        Err(_) => Err(DeliveryError::new(ErrorKind::Unreachable)
            .with_detail(format!("no connection to {host}:{port} within {timeout:?}"))),
    }
}

impl DeliveryError {
    /// An error of a connection, with what it means.
    pub fn from_io(error: io::Error) -> Self {
        Self::new(io_kind(&error)).with_source(error)
    }
}

/// What an error of a connection means; never a `Reject`.
pub fn io_kind(error: &io::Error) -> ErrorKind {
    if cause::<rustls::Error>(error).is_some() {
        return ErrorKind::Tls;
    }
    match error.kind() {
        io::ErrorKind::ConnectionRefused => ErrorKind::ConnectionRefused,
        io::ErrorKind::PermissionDenied => ErrorKind::PolicyDenied,
        io::ErrorKind::NetworkUnreachable
        | io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkDown
        | io::ErrorKind::AddrNotAvailable
        | io::ErrorKind::TimedOut => ErrorKind::Unreachable,
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::NotConnected
        | io::ErrorKind::UnexpectedEof => ErrorKind::ConnectionReset,
        _ => ErrorKind::Io,
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_failed_is_told() {
        let timeout = Duration::from_secs(5);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(connect("127.0.0.1", port, None, timeout).await.is_ok());
        drop(listener);
        let kind = |result: Result<Stream, DeliveryError>| result.unwrap_err().kind();
        assert_eq!(kind(connect("127.0.0.1", port, None, timeout).await), ErrorKind::ConnectionRefused);
        assert_eq!(kind(connect("nowhere.invalid", port, None, timeout).await), ErrorKind::Dns);
    }

    #[test]
    fn an_error_of_a_connection_never_rejects() {
        for kind in [io::ErrorKind::BrokenPipe, io::ErrorKind::InvalidData, io::ErrorKind::Other] {
            let error = DeliveryError::from_io(kind.into());
            assert_ne!(error.verdict(), crate::Verdict::Reject, "{error:?}");
        }
    }
}
