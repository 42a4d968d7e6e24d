//! Reading a request's body: bounded in size, in time, and over all requests.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use http::{HeaderMap, StatusCode, header};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::problem::Problem;

/// The longest body.
pub(crate) const BODY_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The most events in one.
pub(crate) const EVENTS_MAX: usize = 10_000;
/// Bodies that are held at the same time, all together.
const HELD_BYTES_MAX: usize = 256 * 1024 * 1024;
/// How much of a body that is too long is read and thrown away, so that its sender gets to read the answer.
const PASSED_OVER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// How long a sender may be silent.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// How long a body may take.
const TIME_MAX: Duration = Duration::from_secs(60);

/// What all requests together may hold.
#[derive(Debug, Clone)]
pub(crate) struct Budget(Arc<Semaphore>);

impl Budget {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(HELD_BYTES_MAX)))
    }

    fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let bytes = u32::try_from(bytes).ok()?;
        Arc::clone(&self.0).try_acquire_many_owned(bytes).ok()
    }
}

/// A body that was read. What it holds of the budget is given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) bytes: Bytes,
    _permit: Option<OwnedSemaphorePermit>,
}

/// What is left of bodies that were refused. It is read and thrown away behind the answer: a connection that is closed
/// before that is reset, and its sender may never read what it was told.
#[derive(Debug, Default)]
pub(crate) struct Leftovers(Mutex<JoinSet<()>>);

impl Leftovers {
    fn take(&self, rest: BodyDataStream) {
        let mut tasks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that have ended are forgotten.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(pass_over(rest));
    }
}

/// Reads to the end of a body, within bounds. Its connection ends with it, or it with its connection.
async fn pass_over(mut rest: BodyDataStream) {
    let deadline = Instant::now() + TIME_MAX;
    let mut bytes = 0;
    while bytes < PASSED_OVER_BYTES_MAX {
        match timeout_at(deadline.min(Instant::now() + SILENCE_MAX), rest.next()).await {
            Ok(Some(Ok(piece))) => bytes += piece.len(),
            _ => return,
        }
    }
}

/// Reads a body whole, or says at once why not.
pub(crate) async fn read(
    headers: &HeaderMap,
    body: Body,
    budget: &Budget,
    leftovers: &Leftovers,
) -> Result<Held, Problem> {
    let length =
        headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let mut stream = body.into_data_stream();
    let read = match length {
        Some(length) if length > BODY_BYTES_MAX as u64 => Err(too_long()),
        _ => collect(&mut stream, budget).await,
    };
    // A sender that asks first has not begun to send, and one that was too slow has had its time.
    let sends = |problem: &Problem| problem.status() != StatusCode::REQUEST_TIMEOUT;
    if !headers.contains_key(header::EXPECT) && read.as_ref().is_err_and(sends) {
        leftovers.take(stream);
    }
    read
}

async fn collect(stream: &mut BodyDataStream, budget: &Budget) -> Result<Held, Problem> {
    let deadline = Instant::now() + TIME_MAX;
    let mut bytes = BytesMut::new();
    let mut permit: Option<OwnedSemaphorePermit> = None;
    loop {
        let piece = match timeout_at(deadline.min(Instant::now() + SILENCE_MAX), stream.next()).await {
            Ok(Some(Ok(piece))) => piece,
            Ok(Some(Err(_))) => {
                let detail = "the body ended before its end";
                return Err(Problem::new(StatusCode::BAD_REQUEST, "invalid_event", detail));
            }
            Ok(None) => return Ok(Held { bytes: bytes.freeze(), _permit: permit }),
            Err(_) => {
                let detail = "the body took too long to arrive";
                return Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "timed_out", detail));
            }
        };
        if bytes.len() + piece.len() > BODY_BYTES_MAX {
            return Err(too_long());
        }
        let more = budget.take(piece.len()).ok_or_else(saturated)?;
        match &mut permit {
            Some(permit) => permit.merge(more),
            None => permit = Some(more),
        }
        bytes.extend_from_slice(&piece);
    }
}

fn saturated() -> Problem {
    let detail = "too many requests are being read; try again in a moment";
    let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "saturated", detail);
    problem.retry_after(Duration::from_secs(1))
}

fn too_long() -> Problem {
    Problem::too_large(format!(
        "nothing was admitted: the body is longer than {} MiB; send it in parts",
        BODY_BYTES_MAX >> 20
    ))
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    async fn refused(headers: &HeaderMap, body: Body, budget: &Budget) -> serde_json::Value {
        serde_json::to_value(read(headers, body, budget, &Leftovers::default()).await.unwrap_err().body())
            .unwrap()
    }

    fn pieces(count: usize, bytes: usize) -> Body {
        let piece = Bytes::from(vec![b' '; bytes]);
        Body::from_stream(stream::iter((0..count).map(move |_| Ok::<_, std::io::Error>(piece.clone()))))
    }

    #[tokio::test(start_paused = true)]
    async fn a_sender_that_falls_silent_is_not_waited_for() {
        let (headers, budget) = (HeaderMap::new(), Budget::new());
        let silent = Body::from_stream(stream::pending::<std::io::Result<Bytes>>());
        assert_eq!(refused(&headers, silent, &budget).await["status"], 408);
        // One that says a byte now and then has a bound, too.
        let slow = stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_secs(10)).await; // bounded: the clock is paused
            Some((Ok::<_, std::io::Error>(Bytes::from_static(b" ")), ()))
        });
        let start = Instant::now();
        assert_eq!(refused(&headers, Body::from_stream(slow), &budget).await["status"], 408);
        assert!(start.elapsed() <= Duration::from_secs(61));
    }

    #[tokio::test]
    async fn size_is_bounded_per_body_and_over_all() {
        let (headers, budget) = (HeaderMap::new(), Budget::new());
        let whole = read(&headers, pieces(16, 1 << 20), &budget, &Leftovers::default()).await.unwrap();
        assert_eq!(whole.bytes.len(), BODY_BYTES_MAX);
        assert_eq!(refused(&headers, pieces(17, 1 << 20), &budget).await["reason"], "too_large");
        let mut held = vec![whole];
        for _ in 1..HELD_BYTES_MAX / BODY_BYTES_MAX {
            held.push(read(&headers, pieces(16, 1 << 20), &budget, &Leftovers::default()).await.unwrap());
        }
        assert_eq!(refused(&headers, pieces(1, 1), &budget).await["reason"], "saturated");
        held.pop();
        assert!(read(&headers, pieces(1, 1), &budget, &Leftovers::default()).await.is_ok());
        let mut long = HeaderMap::new();
        long.insert(header::CONTENT_LENGTH, (BODY_BYTES_MAX + 1).into());
        // It is told before anything has arrived.
        let silent = Body::from_stream(stream::pending::<std::io::Result<Bytes>>());
        assert_eq!(refused(&long, silent, &budget).await["reason"], "too_large");
    }
}
