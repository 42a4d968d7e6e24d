//! The conformance kit, with JetStream and without.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt as _;
use outhaul_services::{Access, Authority, Certificate, Kind, Pair, Server};
use outhaul_target::async_trait;
use outhaul_target::testkit::{Arrival, Condition, Fixture, Unsupported, Variant};
use outhaul_target_nats::Nats;
use tokio::task::{JoinSet, block_in_place};

use crate::support::{Broker, STREAM, arrival, nats};

/// A receiver: the broker's stream, or a subscriber.
struct Receiver<const JETSTREAM: bool> {
    broker: Broker,
    variant: Option<Variant>,
    heard: Arc<Mutex<Vec<Arrival>>>,
    listener: JoinSet<()>,
}

/// Larger than the server takes.
const PAYLOAD_MAX: usize = 2 * 1024 * 1024;

impl<const JETSTREAM: bool> Receiver<JETSTREAM> {
    async fn new(access: Access, certificate: Certificate, variant: Option<Variant>) -> Self {
        let builder = Server::builder(Kind::Nats).access(access).certificate(certificate);
        let broker = Broker::start(builder.config(format!("max_payload: {PAYLOAD_MAX}")));
        let mut receiver = Self { broker, variant, heard: Arc::default(), listener: JoinSet::new() };
        if JETSTREAM {
            receiver.broker.make_stream().await;
        } else {
            receiver.listen().await;
        }
        receiver
    }

    async fn listen(&mut self) {
        let client = self.broker.client().await;
        let mut messages = client.subscribe("events.>").await.unwrap();
        client.flush().await.unwrap();
        let heard = Arc::clone(&self.heard);
        self.listener.spawn(async move {
            // It ends with the client, which has to live as long.
            let _client = client;
            while let Some(message) = messages.next().await {
                let arrival = arrival(&message.headers.unwrap_or_default(), message.payload);
                heard.lock().unwrap().push(arrival);
            }
        });
    }

    fn authority(&self) -> (std::path::PathBuf, Pair) {
        let server = self.broker.server();
        (server.authority().ca(), server.client())
    }
}

#[async_trait]
impl<const JETSTREAM: bool> Fixture for Receiver<JETSTREAM> {
    type Target = Nats;

    async fn start() -> Self {
        Self::new(Access::Password, Certificate::Good, None).await
    }

    async fn start_as(variant: Variant) -> Result<Self, Unsupported> {
        let (access, certificate) = match variant {
            Variant::WrongCredentials => (Access::Password, Certificate::Good),
            Variant::Templated => (Access::Plain, Certificate::Good),
            Variant::Tls | Variant::TlsOtherAuthority => (Access::Tls, Certificate::Good),
            Variant::TlsExpired => (Access::Tls, Certificate::Expired),
            Variant::TlsWrongName => (Access::Tls, Certificate::WrongName),
            Variant::TlsNoClientCertificate | Variant::TlsRenewed => (Access::MutualTls, Certificate::Good),
            _ => return Err(Unsupported("a variant that this fixture does not know")),
        };
        if variant == Variant::Templated && !JETSTREAM {
            return Err(Unsupported("core NATS takes every subject, whether anybody listens or not"));
        }
        if certificate != Certificate::Good {
            // Nothing can be read back through such a certificate, and nothing arrives.
            let builder = Server::builder(Kind::Nats).access(access).certificate(certificate);
            let broker = Broker::start(builder);
            return Ok(Self {
                broker,
                variant: Some(variant),
                heard: Arc::default(),
                listener: JoinSet::new(),
            });
        }
        let receiver = Self::new(access, certificate, Some(variant)).await;
        if variant == Variant::TlsRenewed {
            block_in_place(|| receiver.broker.server().authority().client("renewed", true).unwrap());
        }
        Ok(receiver)
    }

    async fn target(&self, timeout: Duration) -> Nats {
        let address = self.broker.proxy.address();
        let stream = if JETSTREAM { format!("&outhaul.stream={STREAM}") } else { String::new() };
        let common = format!("outhaul.timeout={}ms{stream}", timeout.as_millis());
        let password = "k%40pt%2Fn%3Asecret";
        let uri = match self.variant {
            None => format!("nats://outhaul:{password}@{address}/events.kit?{common}"),
            Some(Variant::WrongCredentials) => format!("nats://outhaul:wr0ng@{address}/events.kit?{common}"),
            Some(Variant::Templated) => {
                let rules = "{type}";
                format!("nats://{address}/{rules}?{common}")
            }
            Some(variant) => {
                let (ca, pair) = self.authority();
                let other = ca.with_file_name("other");
                let ca = match variant {
                    Variant::TlsOtherAuthority => block_in_place(|| Authority::new(&other).unwrap().ca()),
                    _ => ca,
                };
                let pair = match variant {
                    Variant::TlsNoClientCertificate => None,
                    Variant::TlsRenewed => Some((
                        pair.cert.with_file_name("renewed.pem"),
                        pair.key.with_file_name("renewed.key"),
                    )),
                    _ => Some((pair.cert, pair.key)),
                };
                let pair = pair.map_or_else(String::new, |(cert, key)| {
                    format!("&outhaul.cert={}&outhaul.key={}", cert.display(), key.display())
                });
                format!("nats+tls://{address}/events.kit?{common}&outhaul.ca={}{pair}", ca.display())
            }
        };
        nats(&uri)
    }

    async fn renew(&self) {
        block_in_place(|| self.broker.server().authority().client("renewed", false).unwrap());
    }

    async fn arrived(&self) -> Vec<Arrival> {
        if JETSTREAM {
            return self.broker.stored().await;
        }
        // What the server took before is heard before this comes back.
        let client = self.broker.client().await;
        client.publish("other", "".into()).await.unwrap();
        client.flush().await.unwrap();
        // bounded: until nothing new was heard for a while.
        let mut before = usize::MAX;
        while before != self.heard.lock().unwrap().len() {
            before = self.heard.lock().unwrap().len();
            // bounded: as said above.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        self.heard.lock().unwrap().clone()
    }

    async fn set(&self, condition: Condition) -> Result<(), Unsupported> {
        let proxy = &self.broker.proxy;
        match condition {
            Condition::Healthy => {
                block_in_place(|| self.broker.server().resume());
                if self.broker.server().identities().is_empty() {
                    self.broker.start_again();
                }
                proxy.hold(false);
                proxy.refuse(false);
                if JETSTREAM && self.variant.is_none() {
                    let context = self.broker.jetstream().await;
                    if context.get_stream(STREAM).await.is_err() {
                        self.broker.make_stream().await;
                    }
                }
            }
            Condition::Refusing => block_in_place(|| proxy.refuse(true)),
            Condition::Hanging => proxy.hold(true),
            Condition::Cutting => proxy.cut_after(40),
            Condition::Cut => proxy.cut(),
            Condition::Paused => self.broker.server().pause(),
            Condition::Killed if JETSTREAM => self.broker.kill(),
            Condition::Killed => return Err(Unsupported("core NATS keeps nothing")),
            Condition::Missing if JETSTREAM => {
                self.broker.jetstream().await.delete_stream(STREAM).await.unwrap();
            }
            Condition::Missing => {
                return Err(Unsupported("core NATS has no destinations that could be missing"));
            }
            Condition::Throttling => return Err(Unsupported("see `streams`: a stream that is full")),
            _ => return Err(Unsupported("see the cases that cut the line")),
        }
        Ok(())
    }

    fn secrets(&self) -> Vec<String> {
        ["k@pt/n:secret", "k%40pt%2Fn%3Asecret"].map(str::to_owned).to_vec()
    }

    fn too_large(&self) -> Result<usize, Unsupported> {
        Ok(PAYLOAD_MAX + 1)
    }
}

mod jetstream {
    outhaul_target::conformance!(super::Receiver<true>);
}

mod core {
    outhaul_target::conformance!(super::Receiver<false>);
}
