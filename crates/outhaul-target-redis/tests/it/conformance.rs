//! The conformance kit: a stream, a stream that recognises repeats, a list, a channel.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use outhaul_services::{Access, Authority, Certificate, Kind, Pair, Server};
use outhaul_target::async_trait;
use outhaul_target::testkit::{Arrival, Condition, Fixture, Unsupported, Variant};
use outhaul_target_redis::Redis;
use redis::{PushKind, Value};
use tokio::sync::mpsc;
use tokio::task::{JoinSet, block_in_place};

use crate::support::{Broker, Client, redis, structured};

const STREAM: u8 = 0;
const DEDUP: u8 = 1;
const LIST: u8 = 2;
const CHANNEL: u8 = 3;

/// Longer than the server takes a value, and than the kit's body of a mebibyte.
const BULK_MAX: usize = 2 * 1024 * 1024;
/// Where the kit's events go with `{type}`.
const ROUTED: &str = "com.example.numbered";

/// A receiver: what is in a key, or what a subscriber hears.
struct Receiver<const KIND: u8> {
    broker: Broker,
    variant: Option<Variant>,
    heard: Arc<Mutex<Vec<Arrival>>>,
    subscriber: Option<Client>,
    /// What keeps a server busy.
    tasks: Mutex<JoinSet<()>>,
    listener: JoinSet<()>,
}

impl<const KIND: u8> Receiver<KIND> {
    fn with(broker: Broker, variant: Option<Variant>) -> Self {
        Self {
            broker,
            variant,
            heard: Arc::default(),
            subscriber: None,
            tasks: Mutex::default(),
            listener: JoinSet::new(),
        }
    }

    async fn new(access: Access, variant: Option<Variant>) -> Self {
        let builder = Server::builder(Kind::Redis).access(access);
        let limits = format!("proto-max-bulk-len {BULK_MAX}\nlua-time-limit 1");
        let mut receiver = Self::with(Broker::start(builder.config(limits)), variant);
        if KIND == CHANNEL {
            receiver.listen().await;
        } else if variant == Some(Variant::Templated) {
            // A key of another type is as near as Redis comes to a place that is not there.
            let _: () = receiver.broker.say("SET com.example.nowhere taken").await;
        }
        receiver
    }

    async fn listen(&mut self) {
        let (pushes, mut pushed) = mpsc::unbounded_channel();
        let mut client = self.broker.client_with(Some(pushes)).await;
        client.redis.subscribe(&["kit", ROUTED]).await.unwrap();
        self.subscriber = Some(client);
        let heard = Arc::clone(&self.heard);
        self.listener.spawn(async move {
            while let Some(push) = pushed.recv().await {
                if let (PushKind::Message, [_, Value::BulkString(text)]) = (push.kind, &push.data[..]) {
                    heard.lock().unwrap().push(structured(text));
                }
            }
        });
    }

    fn authority(&self) -> (std::path::PathBuf, Pair) {
        let server = self.broker.server();
        (server.authority().ca(), server.client())
    }

    /// A script without an end, until it is killed.
    async fn keep_busy(&self) {
        let busy = self.broker.client().await;
        self.tasks.lock().unwrap().spawn(async move {
            let mut script = redis::cmd("EVAL");
            script.arg("while true do end").arg(0);
            let ended = script.query_async::<Value>(&mut busy.redis.clone()).await;
            assert!(ended.is_err(), "it was killed");
        });
        let client = self.broker.client().await;
        // bounded: by the kit's own bound for a case.
        while client.say::<Value>("PING").await.is_ok() {
            tokio::task::yield_now().await;
        }
    }
}

#[async_trait]
impl<const KIND: u8> Fixture for Receiver<KIND> {
    type Target = Redis;

    async fn start() -> Self {
        Self::new(Access::Password, None).await
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
        if certificate != Certificate::Good {
            // Nothing can be read back through such a certificate, and nothing arrives.
            let builder = Server::builder(Kind::Redis).access(access).certificate(certificate);
            return Ok(Self::with(Broker::start(builder), Some(variant)));
        }
        let receiver = Self::new(access, Some(variant)).await;
        if variant == Variant::TlsRenewed {
            block_in_place(|| receiver.broker.server().authority().client("renewed", true).unwrap());
        }
        Ok(receiver)
    }

    async fn target(&self, timeout: Duration) -> Redis {
        let address = self.broker.proxy.address();
        let key = if self.variant == Some(Variant::Templated) { "{type}" } else { "kit" };
        let place = match KIND {
            STREAM => format!("outhaul.stream={key}"),
            DEDUP => format!("outhaul.stream={key}&outhaul.dedup=10000"),
            LIST => format!("outhaul.list={key}"),
            _ => format!("outhaul.channel={key}"),
        };
        let rest = format!("{address}/0?{place}&outhaul.timeout={}ms", timeout.as_millis());
        let uri = match self.variant {
            None => format!("redis://outhaul:k%40pt%2Fn%3Asecret@{rest}"),
            Some(Variant::WrongCredentials) => format!("redis://outhaul:wr0ng@{rest}"),
            Some(Variant::Templated) => format!("valkey://{rest}"),
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
                format!("rediss://{rest}&outhaul.ca={}{pair}", ca.display())
            }
        };
        redis(&uri)
    }

    async fn renew(&self) {
        block_in_place(|| self.broker.server().authority().client("renewed", false).unwrap());
    }

    async fn arrived(&self) -> Vec<Arrival> {
        let key = if self.variant == Some(Variant::Templated) { ROUTED } else { "kit" };
        match KIND {
            STREAM | DEDUP => return self.broker.streamed(key).await,
            LIST => return self.broker.listed(key).await,
            _ => {}
        }
        // What the server published before is heard before this is answered; the listener may need a moment.
        if let Some(subscriber) = &self.subscriber {
            let _: Value = subscriber.say("PING").await.unwrap();
        }
        // bounded: until nothing new was heard for a while.
        let mut before = usize::MAX;
        while before != self.heard.lock().unwrap().len() {
            before = self.heard.lock().unwrap().len();
            // bounded: as said above.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        self.heard.lock().unwrap().clone()
    }

    async fn set(&self, condition: Condition) -> Result<(), Unsupported> {
        let proxy = &self.broker.proxy;
        match condition {
            Condition::Healthy => {
                block_in_place(|| self.broker.server().resume());
                let gone = self.broker.server().identities().is_empty();
                if gone {
                    self.broker.start_again();
                }
                proxy.hold(false);
                proxy.refuse(false);
                let busy = std::mem::take(&mut *self.tasks.lock().unwrap());
                if !busy.is_empty() {
                    let _: () = self.broker.client().await.say("SCRIPT KILL").await.unwrap();
                    busy.join_all().await;
                }
            }
            Condition::Refusing => block_in_place(|| proxy.refuse(true)),
            Condition::Hanging => proxy.hold(true),
            Condition::Cutting => proxy.cut_after(40),
            Condition::Cut => proxy.cut(),
            Condition::Paused => self.broker.server().pause(),
            Condition::Killed if KIND == CHANNEL => return Err(Unsupported("a channel keeps nothing")),
            Condition::Killed => self.broker.kill(),
            Condition::Throttling => self.keep_busy().await,
            Condition::Missing => return Err(Unsupported("Redis makes a key when something is put into it")),
            _ => return Err(Unsupported("see the cases that cut the line")),
        }
        Ok(())
    }

    fn secrets(&self) -> Vec<String> {
        ["k@pt/n:secret", "k%40pt%2Fn%3Asecret"].map(str::to_owned).to_vec()
    }

    fn too_large(&self) -> Result<usize, Unsupported> {
        Ok(BULK_MAX + 1)
    }
}

mod stream {
    outhaul_target::conformance!(super::Receiver<{ super::STREAM }>);
}

mod stream_that_recognises_repeats {
    outhaul_target::conformance!(super::Receiver<{ super::DEDUP }>);
}

mod list {
    outhaul_target::conformance!(super::Receiver<{ super::LIST }>);
}

mod channel {
    outhaul_target::conformance!(super::Receiver<{ super::CHANNEL }>);
}
