//! A nats-server with a proxy in front of it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::jetstream::{self, stream};
use async_nats::{Client, ConnectOptions, HeaderMap};
use outhaul_services::{Access, Builder, Kind, PASSWORD, Proxy, Server, USER};
use outhaul_target::outhaul_event::{Bytes, Event, Limits};
use outhaul_target::testkit::{Arrival, attempt};
use outhaul_target::{Attempt, DeliveryError, Target, TargetUri};
use outhaul_target_nats::Nats;
use tokio::task::block_in_place;

/// The stream of most tests, which takes `events.>`.
pub(crate) const STREAM: &str = "EVENTS";

pub(crate) struct Broker {
    server: Mutex<Server>,
    pub(crate) proxy: Proxy,
}

impl Broker {
    pub(crate) fn start(builder: Builder) -> Self {
        let server = block_in_place(|| builder.start()).unwrap();
        let proxy = Proxy::start(server.address());
        Self { server: Mutex::new(server), proxy }
    }

    pub(crate) fn plain() -> Self {
        Self::start(Server::builder(Kind::Nats))
    }

    pub(crate) fn server(&self) -> MutexGuard<'_, Server> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn kill(&self) {
        block_in_place(|| self.server().kill());
    }

    pub(crate) fn start_again(&self) {
        block_in_place(|| self.server().start().unwrap());
    }

    /// A connection past the proxy.
    pub(crate) async fn client(&self) -> Client {
        let (access, address, tls) = {
            let server = self.server();
            let tls = server.access().is_tls().then(|| (server.authority().ca(), server.client()));
            (server.access(), server.address(), tls)
        };
        let mut options = ConnectOptions::new();
        if access == Access::Password {
            options = options.user_and_password(USER.to_owned(), PASSWORD.to_owned());
        }
        if let Some((ca, pair)) = tls {
            options = options
                .require_tls(true)
                .add_root_certificates(ca)
                .add_client_certificate(pair.cert, pair.key);
        }
        options.connect(address.to_string()).await.unwrap()
    }

    pub(crate) async fn jetstream(&self) -> jetstream::Context {
        jetstream::new(self.client().await)
    }

    pub(crate) async fn make_stream(&self) {
        self.make(stream::Config::default()).await;
    }

    /// Makes the stream of the tests, with what else the configuration says.
    pub(crate) async fn make(&self, config: stream::Config) {
        let config = stream::Config {
            name: STREAM.to_owned(),
            // The second one is what the kit's events make of `{type}`.
            subjects: ["events.>", "com%2Eexample%2Enumbered"].map(str::to_owned).to_vec(),
            duplicate_window: Duration::from_secs(600),
            ..config
        };
        self.jetstream().await.create_stream(config).await.unwrap();
    }

    /// What is in the stream.
    pub(crate) async fn stored(&self) -> Vec<Arrival> {
        let context = self.jetstream().await;
        let mut stream = context.get_stream(STREAM).await.unwrap();
        let state = stream.info().await.unwrap().state.clone();
        let mut all = Vec::new();
        for sequence in state.first_sequence..=state.last_sequence {
            if let Ok(message) = stream.get_raw_message(sequence).await {
                all.push(arrival(&message.headers, message.payload));
            }
        }
        all
    }

    /// A target at the proxy, for the rest of a URI behind its address.
    pub(crate) fn nats(&self, rest: &str) -> Nats {
        nats(&format!("nats://{}{rest}", self.proxy.address()))
    }
}

pub(crate) fn nats(uri: &str) -> Nats {
    Nats::from_uri(TargetUri::parse(uri).unwrap()).unwrap()
}

pub(crate) fn arrival(headers: &HeaderMap, payload: Bytes) -> Arrival {
    let dedup_id = headers.get("Nats-Msg-Id").map(|value| value.as_str().to_owned());
    let pairs: Vec<(String, String)> =
        headers.iter().map(|(name, values)| (name.to_string(), values[0].as_str().to_owned())).collect();
    let pairs = pairs.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let limits = Limits { body_bytes_max: 1 << 21, ..Limits::default() };
    Arrival::from_event(&Event::from_headers(pairs, payload, &limits).unwrap(), dedup_id)
}

pub(crate) fn event(pid: &str, id: &str) -> Attempt {
    attempt(Event::builder("t", "/test").id(id).pid(pid).json("{\"a\": 1}").build().unwrap())
}

pub(crate) async fn one(target: &Nats) -> Result<(), DeliveryError> {
    target.deliver(&[event("p", "1")]).await.remove(0)
}
