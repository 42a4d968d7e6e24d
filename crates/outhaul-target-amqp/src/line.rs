//! The line to the server in the shape that the client takes, and one that we can cut.

use std::future::ready;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use async_rs::traits::Reactor;
use async_rs::util::RuntimeParts;
use async_rs::{Runtime, Tokio};
use futures_core::Stream as Items;
use futures_io::{AsyncRead, AsyncWrite};
use futures_util::task::AtomicWaker;
use outhaul_target::net::Stream;
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt as _};

/// A connection, encrypted or not, that ends when its [`Scissors`] are dropped: the client reads it on a thread of its
/// own, which would wait for a silent server for ever.
pub(crate) struct Line {
    stream: Compat<Stream>,
    cut: Arc<Cut>,
}

#[derive(Debug, Default)]
struct Cut {
    is: AtomicBool,
    reader: AtomicWaker,
    writer: AtomicWaker,
}

/// Cuts the line when it is dropped.
#[derive(Debug)]
pub(crate) struct Scissors(Arc<Cut>);

impl Line {
    pub(crate) fn new(stream: Stream) -> (Self, Scissors) {
        let cut = Arc::new(Cut::default());
        (Self { stream: stream.compat(), cut: Arc::clone(&cut) }, Scissors(cut))
    }
}

impl Drop for Scissors {
    fn drop(&mut self) {
        self.0.is.store(true, Ordering::SeqCst);
        self.0.reader.wake();
        self.0.writer.wake();
    }
}

impl Cut {
    fn check(&self, waker: &AtomicWaker, context: &Context<'_>) -> io::Result<()> {
        waker.register(context.waker());
        if self.is.load(Ordering::SeqCst) { Err(io::ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
    }
}

impl AsyncRead for Line {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let line = self.get_mut();
        line.cut.check(&line.cut.reader, context)?;
        Pin::new(&mut line.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Line {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let line = self.get_mut();
        line.cut.check(&line.cut.writer, context)?;
        Pin::new(&mut line.stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let line = self.get_mut();
        // Nobody waits for the goodbye of a line that was cut.
        if line.cut.is.load(Ordering::SeqCst) {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut line.stream).poll_close(context)
    }
}

/// The runtime that we are in, with lines that are connected by us.
pub(crate) type Kit = RuntimeParts<Tokio, Lines>;

pub(crate) fn runtime() -> Runtime<Kit> {
    Runtime::new(RuntimeParts::new(Tokio::current(), Lines(Tokio::current())))
}

#[derive(Debug, Clone)]
pub(crate) struct Lines(Tokio);

impl Reactor for Lines {
    type TcpStream = Line;
    type Sleep = <Tokio as Reactor>::Sleep;

    /// Nobody asks for it: lines come from [`connect`](outhaul_target::net::connect).
    #[expect(refining_impl_trait, reason = "there is no other type to name where nothing is returned")]
    fn register<H: Read + Write + Send + 'static>(&self, _: H) -> io::Result<Line> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sleep(&self, duration: Duration) -> Self::Sleep {
        self.0.sleep(duration)
    }

    fn interval(&self, duration: Duration) -> impl Items<Item = Instant> + Send + 'static {
        self.0.interval(duration)
    }

    /// The client is handed a line that is connected already.
    fn tcp_connect_addr(&self, _: SocketAddr) -> impl Future<Output = io::Result<Line>> + Send + 'static {
        ready(Err(io::ErrorKind::Unsupported.into()))
    }
}
