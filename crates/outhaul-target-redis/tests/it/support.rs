//! A redis-server with a proxy in front of it.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use outhaul_services::{Access, Builder, Kind, PASSWORD, Proxy, Server, USER};
use outhaul_target::net::{Tls, connect};
use outhaul_target::outhaul_event::{Bytes, Event, Limits};
use outhaul_target::testkit::{Arrival, attempt};
use outhaul_target::{Attempt, DeliveryError, ErrorKind, Target, TargetUri, Verdict};
use outhaul_target_redis::Redis;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, FromRedisValue, ProtocolVersion, PushInfo, RedisConnectionInfo, RedisResult,
};
use tokio::sync::mpsc;
use tokio::task::{JoinSet, block_in_place};

pub(crate) struct Broker {
    server: Mutex<Server>,
    pub(crate) proxy: Proxy,
}

/// A connection past the proxy.
pub(crate) struct Client {
    pub(crate) redis: MultiplexedConnection,
    _driver: JoinSet<()>,
}

impl Broker {
    pub(crate) fn start(builder: Builder) -> Self {
        let server = block_in_place(|| builder.start()).unwrap();
        let proxy = Proxy::start(server.address());
        Self { server: Mutex::new(server), proxy }
    }

    pub(crate) fn plain() -> Self {
        Self::start(Server::builder(Kind::Redis))
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

    pub(crate) async fn client(&self) -> Client {
        self.client_with(None).await
    }

    /// A client that gets what is published, where that is wanted.
    pub(crate) async fn client_with(&self, pushes: Option<mpsc::UnboundedSender<PushInfo>>) -> Client {
        let (access, address, tls) = {
            let server = self.server();
            let files = server.access().is_tls().then(|| (server.authority().ca(), server.client()));
            (server.access(), server.address(), files)
        };
        let tls = tls.map(|(ca, pair)| {
            let files = [("ca", ca), ("cert", pair.cert), ("key", pair.key)];
            let files: Vec<(&str, String)> =
                files.map(|(name, path): (_, PathBuf)| (name, path.display().to_string())).to_vec();
            let files = files.iter().map(|(name, path)| (*name, path.as_str()));
            Tls::take(&mut TargetUri::from_table("rediss://h", files).unwrap(), true).unwrap().unwrap()
        });
        let timeout = Duration::from_secs(10);
        let stream = connect(&address.ip().to_string(), address.port(), tls.as_ref(), timeout).await.unwrap();
        let mut who = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3);
        if access == Access::Password {
            who = who.set_username(USER).set_password(PASSWORD);
        }
        let mut config = AsyncConnectionConfig::new().set_response_timeout(Some(timeout));
        if let Some(pushes) = pushes {
            config = config.set_push_sender(pushes);
        }
        let (redis, driver) = MultiplexedConnection::new_with_config(&who, stream, config).await.unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(driver);
        Client { redis, _driver: tasks }
    }

    /// One command past the proxy, written as one would type it.
    pub(crate) async fn say<T: FromRedisValue>(&self, line: &str) -> T {
        self.client().await.say(line).await.unwrap()
    }

    /// What is in a stream.
    pub(crate) async fn entries(&self, key: &str) -> Vec<HashMap<String, Bytes>> {
        let found: Vec<(String, HashMap<String, Vec<u8>>)> = self.say(&format!("XRANGE {key} - +")).await;
        let entry =
            |fields: HashMap<String, Vec<u8>>| fields.into_iter().map(|(k, v)| (k, v.into())).collect();
        found.into_iter().map(|(_, fields)| entry(fields)).collect()
    }

    pub(crate) async fn streamed(&self, key: &str) -> Vec<Arrival> {
        let of = |entry: HashMap<String, Bytes>| {
            let text = |name: &str| Some(String::from_utf8(entry.get(name)?.to_vec()).unwrap());
            Arrival {
                id: text("id").unwrap(),
                source: text("source").unwrap(),
                dedup_id: text("dedup_id"),
                pid: text("partitionkey"),
                body: entry["data"].clone(),
            }
        };
        self.entries(key).await.into_iter().map(of).collect()
    }

    pub(crate) async fn listed(&self, key: &str) -> Vec<Arrival> {
        let found: Vec<Vec<u8>> = self.say(&format!("LRANGE {key} 0 -1")).await;
        found.iter().map(|text| structured(text)).collect()
    }

    /// A target at the proxy, for the rest of a URI behind its address.
    pub(crate) fn redis(&self, rest: &str) -> Redis {
        redis(&format!("redis://{}{rest}", self.proxy.address()))
    }
}

impl Client {
    pub(crate) async fn say<T: FromRedisValue>(&self, line: &str) -> RedisResult<T> {
        let mut words = line.split(' ');
        let mut cmd = redis::cmd(words.next().unwrap());
        words.for_each(|word| {
            cmd.arg(word);
        });
        cmd.query_async(&mut self.redis.clone()).await
    }
}

pub(crate) fn redis(uri: &str) -> Redis {
    Redis::from_uri(TargetUri::parse(uri).unwrap()).unwrap()
}

pub(crate) fn structured(text: &[u8]) -> Arrival {
    let limits = Limits { body_bytes_max: 1 << 21, ..Limits::default() };
    Arrival::from_event(&Event::from_json(text, &limits).unwrap(), None)
}

pub(crate) fn event(pid: &str, id: &str) -> Attempt {
    attempt(Event::builder("t", "/test").id(id).pid(pid).json("{\"a\": 1}").build().unwrap())
}

/// An event that goes where its subject says.
pub(crate) fn to(pid: &str, id: &str, subject: &str) -> Attempt {
    let event = Event::builder("t", "/test").id(id).pid(pid).subject(subject).json("1");
    attempt(event.build().unwrap())
}

pub(crate) async fn one(target: &Redis) -> Result<(), DeliveryError> {
    target.deliver(&[event("p", "1")]).await.remove(0)
}

pub(crate) fn kinds(results: Vec<Result<(), DeliveryError>>) -> Vec<Result<(), ErrorKind>> {
    results.into_iter().map(|result| result.map_err(|error| error.kind())).collect()
}

/// Tries until it gets through: the server may need a moment, and the target a new connection.
pub(crate) async fn until_delivered(target: &Redis) {
    let began = Instant::now();
    while let Err(error) = one(target).await {
        assert!(began.elapsed() < Duration::from_secs(20), "{error:?}");
        // bounded: as said above.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Whatever is refused is so with this kind and verdict, and its text names the server's word.
pub(crate) fn is(error: &DeliveryError, kind: ErrorKind, verdict: Verdict, word: &str) {
    assert_eq!((error.kind(), error.verdict()), (kind, verdict), "{error:?}");
    assert!(error.detail().contains(word), "{error:?}");
}
