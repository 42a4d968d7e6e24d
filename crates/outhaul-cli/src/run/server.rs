//! [`Server`]: connections, each a task that is joined, bounded in number and time.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

/// Connections at the same time; more wait in the system's queue.
const CONNECTIONS_MAX: usize = 1_024;
/// How long the head of a request may take, and a connection may be idle.
const HEAD_TIME_MAX: Duration = Duration::from_secs(30);
/// How long it may be: an event with the most headers, percent-encoded, and what a proxy adds.
const HEAD_BYTES_MAX: usize = 128 * 1024;
/// The pause after an error of `accept`, such as no free descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// When the server is told to stop: the time by which connections must have ended.
pub(crate) type Stop = watch::Receiver<Option<Instant>>;

pub(crate) struct Server {
    router: Router,
    places: Arc<Semaphore>,
}

impl Server {
    pub(crate) fn new(router: Router) -> Self {
        Self { router, places: Arc::new(Semaphore::new(CONNECTIONS_MAX)) }
    }

    /// Serves until it is told to stop. Requests under way get their answer, until the time is over.
    pub(crate) async fn serve(self, listener: TcpListener, mut stop: Stop) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = self.accept(&listener) => {
                    if let Some((stream, place)) = accepted {
                        connections.spawn(serve_one(stream, self.router.clone(), stop.clone(), place));
                    }
                }
                Some(ended) = connections.join_next() => {
                    if let Err(error) = ended {
                        tracing::error!(%error, "a connection ended with a fault");
                    }
                }
                _ = stop.changed() => break,
            }
        }
        drop(listener);
        let deadline = stop.borrow().unwrap_or_else(Instant::now);
        while let Ok(Some(_)) = timeout_at(deadline, connections.join_next()).await {}
        connections.shutdown().await;
    }

    async fn accept(&self, listener: &TcpListener) -> Option<(TcpStream, OwnedSemaphorePermit)> {
        // The semaphore is never closed.
        let place = Arc::clone(&self.places).acquire_owned().await.ok()?;
        match listener.accept().await {
            Ok((stream, _)) => {
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "a connection does not take an option");
                }
                Some((stream, place))
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(ACCEPT_PAUSE).await;
                None
            }
        }
    }
}

async fn serve_one(stream: TcpStream, router: Router, mut stop: Stop, place: OwnedSemaphorePermit) {
    let mut http = http1::Builder::new();
    // A client that has said all it has to say still gets its answer.
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME_MAX).half_close(true);
    http.max_buf_size(HEAD_BYTES_MAX);
    let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        _ = stop.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
    drop(place);
}
