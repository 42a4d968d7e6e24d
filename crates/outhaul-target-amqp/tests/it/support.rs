//! A RabbitMQ with a proxy in front of it. Starting one takes seconds, so that tests share it where they can.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use lapin::options::{BasicGetOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use outhaul_services::{Access, Builder, Certificate, Kind, Proxy, Server};
use outhaul_target::net::{Tls, connect};
use outhaul_target::outhaul_event::{Bytes, Event};
use outhaul_target::testkit::{Arrival, attempt};
use outhaul_target::{Attempt, DeliveryError, Target, TargetUri};
use outhaul_target_amqp::Amqp;
use tokio::net::TcpListener;
use tokio::task::{JoinSet, block_in_place};

/// What the servers of these tests take.
pub(crate) const MESSAGE_BYTES_MAX: usize = 2 * 1024 * 1024;

pub(crate) type Shared = Arc<Mutex<Server>>;

/// A server, ours alone or not, and a proxy of our own.
pub(crate) struct Broker {
    server: Shared,
    pub(crate) proxy: Proxy,
    bridges: Mutex<JoinSet<()>>,
}

pub(crate) fn builder(access: Access) -> Builder {
    Server::builder(Kind::Amqp).access(access).config(format!("max_message_size = {MESSAGE_BYTES_MAX}"))
}

impl Broker {
    /// In front of a server that other tests use as well.
    pub(crate) fn shared(access: Access) -> Self {
        static SERVERS: [OnceLock<Shared>; 3] = [const { OnceLock::new() }; 3];
        let slot = match access {
            Access::Tls => &SERVERS[1],
            Access::MutualTls => &SERVERS[2],
            _ => &SERVERS[0],
        };
        let access = if access.is_tls() { access } else { Access::Password };
        let start = || Arc::new(Mutex::new(builder(access).start().unwrap()));
        Self::of(Arc::clone(block_in_place(|| slot.get_or_init(start))))
    }

    pub(crate) fn alone(access: Access, certificate: Certificate) -> Self {
        Self::of_builder(builder(access).certificate(certificate))
    }

    pub(crate) fn of_builder(builder: Builder) -> Self {
        Self::of(Arc::new(Mutex::new(block_in_place(|| builder.start().unwrap()))))
    }

    fn of(server: Shared) -> Self {
        let address = server.lock().unwrap_or_else(PoisonError::into_inner).address();
        Self { server, proxy: Proxy::start(address), bridges: Mutex::default() }
    }

    pub(crate) fn server(&self) -> MutexGuard<'_, Server> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The URI through the proxy up to the virtual host.
    pub(crate) fn uri(&self) -> String {
        self.server().url_at(self.proxy.address()) + "/%2F"
    }

    /// A target at the proxy, for the options.
    pub(crate) fn amqp(&self, options: &str) -> Amqp {
        amqp(&format!("{}?{options}", self.uri()))
    }

    /// A connection past the proxy.
    pub(crate) async fn client(&self) -> Connection {
        let uri = {
            let server = self.server();
            let tls = server.access().is_tls().then(|| (server.authority().ca(), server.client()));
            (server.address(), tls, server.url())
        };
        let (address, tls, url) = uri;
        let url = match tls {
            None => url,
            Some((ca, pair)) => {
                let files = [("ca", ca), ("cert", pair.cert), ("key", pair.key)];
                let bridge = self.bridge(address, &files).await;
                format!("amqp://guest:guest@{bridge}")
            }
        };
        Connection::connect(&format!("{url}/%2F"), ConnectionProperties::default()).await.unwrap()
    }

    /// Listens in the clear for somebody who is encrypted from here on.
    async fn bridge(&self, address: std::net::SocketAddr, files: &[(&str, PathBuf)]) -> std::net::SocketAddr {
        let files: Vec<(&str, String)> =
            files.iter().map(|(name, path)| (*name, path.display().to_string())).collect();
        let table = files.iter().map(|(name, path)| (*name, path.as_str()));
        let tls = Tls::take(&mut TargetUri::from_table("amqps://h", table).unwrap(), true).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let bridge = listener.local_addr().unwrap();
        let task = async move {
            let (mut client, _) = listener.accept().await.unwrap();
            let timeout = std::time::Duration::from_secs(30);
            let mut server = connect("127.0.0.1", address.port(), tls.as_ref(), timeout).await.unwrap();
            // It ends with either side.
            drop(tokio::io::copy_bidirectional(&mut client, &mut server).await);
        };
        self.bridges.lock().unwrap().spawn(task);
        bridge
    }

    pub(crate) async fn channel(&self) -> (Connection, Channel) {
        let client = self.client().await;
        let channel = client.create_channel().await.unwrap();
        (client, channel)
    }

    pub(crate) async fn make_queue(&self, queue: &str, arguments: &[(&str, AMQPValue)]) {
        let (_client, channel) = self.channel().await;
        let mut table = FieldTable::default();
        for (name, value) in arguments {
            table.insert((*name).into(), value.clone());
        }
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(queue.into(), durable, table).await.unwrap();
    }

    pub(crate) async fn delete_queue(&self, queue: &str) {
        let (_client, channel) = self.channel().await;
        channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await.unwrap();
    }

    /// Takes everything out of a queue.
    pub(crate) async fn take(&self, queue: &str) -> Vec<(BasicProperties, Bytes)> {
        let (_client, channel) = self.channel().await;
        let mut all = Vec::new();
        while let Some(message) =
            channel.basic_get(queue.into(), BasicGetOptions { no_ack: true }).await.unwrap()
        {
            all.push((message.delivery.properties, message.delivery.data.into()));
        }
        all
    }
}

pub(crate) fn amqp(uri: &str) -> Amqp {
    Amqp::from_uri(TargetUri::parse(uri).unwrap()).unwrap()
}

/// A name that no other test has.
pub(crate) fn fresh(what: &str) -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    format!("{what}-{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

pub(crate) fn header(properties: &BasicProperties, name: &str) -> Option<String> {
    match properties.headers().as_ref()?.inner().get(name)? {
        AMQPValue::LongString(text) => Some(LongString::to_string(text)),
        other => panic!("{name} is {other:?}"),
    }
}

pub(crate) fn arrival((properties, body): &(BasicProperties, Bytes)) -> Arrival {
    let text = |name: &str| header(properties, &format!("cloudEvents_{name}"));
    Arrival {
        id: text("id").unwrap(),
        source: text("source").unwrap(),
        dedup_id: properties.message_id().as_ref().map(ShortString::to_string),
        pid: text("partitionkey"),
        body: body.clone(),
    }
}

pub(crate) fn event(pid: &str, id: &str) -> Attempt {
    attempt(Event::builder("t", "/test").id(id).pid(pid).json("{\"a\": 1}").build().unwrap())
}

pub(crate) async fn one(target: &Amqp) -> Result<(), DeliveryError> {
    target.deliver(&[event("p", "1")]).await.remove(0)
}
