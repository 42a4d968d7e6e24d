//! A receiver: an axum server on a runtime of its own, so that it can be ended with all its connections.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use outhaul_target::outhaul_event::Event;
use outhaul_target::testkit::attempt;
use outhaul_target::{Attempt, DeliveryError, Target, TargetUri};
use outhaul_target_webhook::Webhook;
use tokio::runtime::Runtime;

/// One request as it came in.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// What the receiver does with a request.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// Answers this, with these headers.
    Status(u16, Vec<(&'static str, String)>),
    /// Never answers.
    Hang,
    /// Every third request fails in one of three ways.
    Flaky,
}

pub(crate) struct Shared {
    pub(crate) answer: Answer,
    pub(crate) requests: Vec<Request>,
    count: usize,
}

pub(crate) struct Receiver {
    pub(crate) shared: Arc<Mutex<Shared>>,
    pub(crate) address: SocketAddr,
    runtime: Mutex<Option<Runtime>>,
}

impl Receiver {
    pub(crate) fn start() -> Self {
        let answer = Answer::Status(204, Vec::new());
        let shared = Arc::new(Mutex::new(Shared { answer, requests: Vec::new(), count: 0 }));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let receiver = Self { shared, address, runtime: Mutex::new(None) };
        receiver.serve(listener);
        receiver
    }

    fn serve(&self, listener: TcpListener) {
        let app = Router::new()
            .fallback(take)
            .layer(axum::extract::DefaultBodyLimit::disable())
            .with_state(Arc::clone(&self.shared));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        listener.set_nonblocking(true).unwrap();
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            axum::serve(listener, app).await.unwrap();
        });
        *self.runtime.lock().unwrap() = Some(runtime);
    }

    /// Ends the server and its connections, and waits until nobody listens.
    pub(crate) fn stop(&self) {
        if let Some(runtime) = self.runtime.lock().unwrap().take() {
            runtime.shutdown_background();
        }
        let began = Instant::now();
        while TcpStream::connect(self.address).is_ok() {
            assert!(began.elapsed() < Duration::from_secs(10), "the server ends");
            // bounded: by the assertion.
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn start_again(&self) {
        if self.runtime.lock().unwrap().is_none() {
            let listener = rebind(self.address);
            self.serve(listener);
        }
    }

    pub(crate) fn answer(&self, answer: Answer) {
        self.shared.lock().unwrap().answer = answer;
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.shared.lock().unwrap().requests.clone()
    }

    /// A target for a path and query of this receiver.
    pub(crate) fn webhook(&self, rest: &str) -> Webhook {
        Webhook::from_uri(TargetUri::parse(&format!("http://{}{rest}", self.address)).unwrap()).unwrap()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.lock().unwrap().take() {
            runtime.shutdown_background();
        }
    }
}

fn rebind(address: SocketAddr) -> TcpListener {
    let began = Instant::now();
    loop {
        match TcpListener::bind(address) {
            Ok(listener) => return listener,
            Err(e) => assert!(began.elapsed() < Duration::from_secs(10), "{address}: {e}"),
        }
        // bounded: by the assertion.
        std::thread::sleep(Duration::from_millis(5));
    }
}

async fn take(
    State(shared): State<Arc<Mutex<Shared>>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let (answer, count) = {
        let mut shared = shared.lock().unwrap();
        shared.count += 1;
        (shared.answer.clone(), shared.count)
    };
    let request = Request { method, uri, headers, body };
    match answer {
        Answer::Hang => std::future::pending().await,
        Answer::Flaky if count % 9 == 3 => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        // The connection is closed without an answer.
        Answer::Flaky if count % 9 == 6 => panic!("a flaky receiver"),
        Answer::Flaky if count % 27 == 9 => std::future::pending().await,
        Answer::Flaky => {
            shared.lock().unwrap().requests.push(request);
            // Processed, and yet reported as failed: a repeat follows.
            if count % 9 == 0 { StatusCode::BAD_GATEWAY } else { StatusCode::OK }.into_response()
        }
        Answer::Status(status, headers) => {
            shared.lock().unwrap().requests.push(request);
            let mut response = StatusCode::from_u16(status).unwrap().into_response();
            for (name, value) in headers {
                response.headers_mut().insert(name, value.parse().unwrap());
            }
            response
        }
    }
}

pub(crate) fn event(id: &str) -> Attempt {
    attempt(Event::builder("t", "/test").id(id).pid("p").json("{\"a\": 1}").build().unwrap())
}

pub(crate) async fn deliver(webhook: &Webhook) -> Result<(), DeliveryError> {
    webhook.deliver(&[event("1")]).await.remove(0)
}
