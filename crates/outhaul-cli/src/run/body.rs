//! Reading a request's body: bounded in size, in time, and over all requests.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use http::{HeaderMap, StatusCode, header};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
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

/// Reads a body whole, or says why not.
pub(crate) async fn read(headers: &HeaderMap, body: Body, budget: &Budget) -> Result<Held, Problem> {
    let deadline = Instant::now() + TIME_MAX;
    let length =
        headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let mut stream = body.into_data_stream();
    let mut bytes = BytesMut::new();
    let mut permit: Option<OwnedSemaphorePermit> = None;
    let mut refusal = match length {
        Some(length) if length > BODY_BYTES_MAX as u64 => Some(too_long()),
        _ => None,
    };
    // A sender that asks first is told at once.
    if refusal.is_some() && headers.contains_key(header::EXPECT) {
        return Err(refusal.unwrap_or_else(too_long));
    }
    let mut passed_over = 0;
    loop {
        let wait = deadline.min(Instant::now() + SILENCE_MAX);
        let piece = match timeout_at(wait, stream.next()).await {
            Ok(Some(Ok(piece))) => piece,
            Ok(Some(Err(_))) => {
                return Err(refusal.unwrap_or_else(|| {
                    Problem::new(StatusCode::BAD_REQUEST, "invalid_event", "the body ended before its end")
                }));
            }
            Ok(None) => break,
            Err(_) => {
                return Err(refusal.unwrap_or_else(|| {
                    Problem::new(StatusCode::REQUEST_TIMEOUT, "timed_out", "the body took too long to arrive")
                }));
            }
        };
        if refusal.is_none() && bytes.len() + piece.len() > BODY_BYTES_MAX {
            refusal = Some(too_long());
        } else if refusal.is_none() {
            match budget.take(piece.len()) {
                Some(more) => match &mut permit {
                    Some(permit) => permit.merge(more),
                    None => permit = Some(more),
                },
                None => {
                    let problem = Problem::new(
                        StatusCode::SERVICE_UNAVAILABLE,
                        "saturated",
                        "too many requests are being read; try again in a moment",
                    );
                    refusal = Some(problem.retry_after(Duration::from_secs(1)));
                }
            }
        }
        if refusal.is_none() {
            bytes.extend_from_slice(&piece);
        } else {
            (bytes, permit) = (BytesMut::new(), None);
            passed_over += piece.len();
            if passed_over > PASSED_OVER_BYTES_MAX {
                break;
            }
        }
    }
    match refusal {
        Some(problem) => Err(problem),
        None => Ok(Held { bytes: bytes.freeze(), _permit: permit }),
    }
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
        serde_json::to_value(read(headers, body, budget).await.unwrap_err().body()).unwrap()
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
        let whole = read(&headers, pieces(16, 1 << 20), &budget).await.unwrap();
        assert_eq!(whole.bytes.len(), BODY_BYTES_MAX);
        assert_eq!(refused(&headers, pieces(17, 1 << 20), &budget).await["reason"], "too_large");
        let mut held = vec![whole];
        for _ in 1..HELD_BYTES_MAX / BODY_BYTES_MAX {
            held.push(read(&headers, pieces(16, 1 << 20), &budget).await.unwrap());
        }
        assert_eq!(refused(&headers, pieces(1, 1), &budget).await["reason"], "saturated");
        held.pop();
        assert!(read(&headers, pieces(1, 1), &budget).await.is_ok());
        let mut long = HeaderMap::new();
        long.insert(header::CONTENT_LENGTH, (BODY_BYTES_MAX + 1).into());
        assert_eq!(refused(&long, Body::empty(), &budget).await["reason"], "too_large");
    }
}
