//! A mosquitto with a proxy in front of it, and a subscriber behind it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outhaul_services::{Builder, Kind, PASSWORD, Proxy, Server, USER};
use outhaul_target::net::{Tls, connect};
use outhaul_target::outhaul_event::{Event, Limits};
use outhaul_target::testkit::{Arrival, attempt};
use outhaul_target::{Attempt, DeliveryError, Target, TargetUri};
use outhaul_target_mqtt::Mqtt;
use rumqttc_v5::{
    AsyncClient, Broker as To, Event as Said, EventLoop, Incoming, Publish, PublishOptions, QoS,
};
use tokio::sync::watch;
use tokio::task::{JoinSet, block_in_place};

/// Where tests that do not say otherwise publish to.
pub(crate) const TOPIC: &str = "kit/events";
/// How long the subscriber may take for anything.
const LONG: Duration = Duration::from_secs(60);

/// A server, and a proxy in front of it.
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
        Self::start(Server::builder(Kind::Mqtt))
    }

    pub(crate) fn server(&self) -> MutexGuard<'_, Server> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn uri(&self) -> String {
        self.server().url_at(self.proxy.address())
    }

    /// A target at the proxy, for the rest of a URI behind its address.
    pub(crate) fn mqtt(&self, rest: &str) -> Mqtt {
        mqtt(&format!("{}{rest}", self.uri()))
    }
}

pub(crate) fn mqtt(uri: &str) -> Mqtt {
    Mqtt::from_uri(TargetUri::parse(uri).unwrap()).unwrap()
}

/// Everything that was published to some topics, heard past the proxy. It subscribes again when its connection broke.
pub(crate) struct Subscriber {
    client: AsyncClient,
    filters: Arc<Mutex<Vec<String>>>,
    heard: watch::Receiver<Vec<Publish>>,
    subscribed: watch::Receiver<bool>,
    _task: JoinSet<()>,
}

impl Subscriber {
    pub(crate) async fn start(broker: &Broker, filters: &[&str]) -> Self {
        let (client, events) = client(broker, "subscriber");
        let filters = filters.iter().copied().chain(["marker/#"]).map(str::to_owned).collect();
        let filters = Arc::new(Mutex::new(filters));
        let (hear, heard) = watch::channel(Vec::new());
        let (say, subscribed) = watch::channel(false);
        let mut task = JoinSet::new();
        task.spawn(listen(client.clone(), events, Arc::clone(&filters), hear, say));
        let subscriber = Self { client, filters, heard, subscribed, _task: task };
        subscriber.ready().await;
        subscriber
    }

    /// Waits until it hears everything that is published from now on.
    pub(crate) async fn ready(&self) {
        let mut subscribed = self.subscribed.clone();
        // bounded: by LONG.
        drop(tokio::time::timeout(LONG, subscribed.wait_for(|is| *is)).await.unwrap().unwrap());
    }

    /// Waits until it has noticed that the server is gone.
    pub(crate) async fn gone(&self) {
        let mut subscribed = self.subscribed.clone();
        // bounded: by LONG.
        drop(tokio::time::timeout(LONG, subscribed.wait_for(|is| !*is)).await.unwrap().unwrap());
    }

    pub(crate) async fn leave(&self, filter: &str) {
        self.filters.lock().unwrap().retain(|of| of != filter);
        self.client.unsubscribe_tracked(filter).await.unwrap().wait_completion_async().await.unwrap();
    }

    pub(crate) async fn join(&self, filter: &str) {
        self.filters.lock().unwrap().push(filter.to_owned());
        let noticed = self.client.subscribe_tracked(filter.to_owned(), QoS::ExactlyOnce).await.unwrap();
        noticed.wait_completion_async().await.unwrap();
    }

    pub(crate) fn has(&self, filter: &str) -> bool {
        self.filters.lock().unwrap().iter().any(|of| of == filter)
    }

    /// Everything that was acknowledged before, in the order of its arrival: a message of our own comes behind it.
    pub(crate) async fn heard(&self) -> Vec<Publish> {
        static MARKS: AtomicU64 = AtomicU64::new(0);
        let mark = format!("marker/{}", MARKS.fetch_add(1, Ordering::Relaxed));
        let at_least_once = PublishOptions::new(QoS::AtLeastOnce);
        self.client.publish(mark.clone(), "", at_least_once).await.unwrap();
        let mut heard = self.heard.clone();
        let seen = |all: &Vec<Publish>| all.iter().any(|message| message.topic == mark);
        // bounded: by LONG.
        let all = tokio::time::timeout(LONG, heard.wait_for(seen)).await.unwrap().unwrap().clone();
        all.into_iter().filter(|message| !message.topic.starts_with(b"marker/")).collect()
    }
}

/// Takes the name of a client, and with it its session, which is then nobody's.
pub(crate) async fn steal(broker: &Broker, name: &str) {
    let (_client, mut events) = client(broker, name);
    while !matches!(events.poll().await.unwrap(), Said::Incoming(Incoming::ConnAck(_))) {}
}

fn client(broker: &Broker, name: &str) -> (AsyncClient, EventLoop) {
    let (address, password, tls) = {
        let server = broker.server();
        let tls = server.access().is_tls().then(|| (server.authority().ca(), server.client()));
        (server.address(), server.access() == outhaul_services::Access::Password, tls)
    };
    let tls = tls.and_then(|(ca, pair)| {
        let files = [("ca", ca), ("cert", pair.cert), ("key", pair.key)]
            .map(|(name, path)| (name, path.display().to_string()));
        let table = files.iter().map(|(name, path)| (*name, path.as_str()));
        Tls::take(&mut TargetUri::from_table("mqtts://h", table).unwrap(), true).unwrap()
    });
    let mut options = rumqttc_v5::MqttOptions::new(name, To::tcp("127.0.0.1", address.port()));
    options.set_max_packet_size(Some(16 * 1024 * 1024));
    if password {
        options.set_credentials(USER, PASSWORD);
    }
    options.set_socket_connector(move |_, _| {
        let tls = tls.clone();
        async move {
            connect("127.0.0.1", address.port(), tls.as_ref(), LONG).await.map_err(std::io::Error::other)
        }
    });
    AsyncClient::builder(options).capacity(1_000).build()
}

async fn listen(
    client: AsyncClient,
    mut events: EventLoop,
    filters: Arc<Mutex<Vec<String>>>,
    hear: watch::Sender<Vec<Publish>>,
    say: watch::Sender<bool>,
) {
    let mut awaited = 0;
    loop {
        match events.poll().await {
            Ok(Said::Incoming(Incoming::ConnAck(_))) => {
                let filters = filters.lock().unwrap().clone();
                awaited = filters.len();
                for filter in filters {
                    client.try_subscribe(filter, QoS::ExactlyOnce).unwrap();
                }
            }
            Ok(Said::Incoming(Incoming::SubAck(_))) if awaited > 0 => {
                awaited -= 1;
                if awaited == 0 {
                    say.send_replace(true);
                }
            }
            Ok(Said::Incoming(Incoming::Publish(message))) => hear.send_modify(|all| all.push(message)),
            Ok(_) => {}
            Err(_) => {
                say.send_replace(false);
                // bounded: until the server is there again, or the test has ended.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

/// A name that no other test has.
pub(crate) fn fresh(what: &str) -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    format!("{what}{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

pub(crate) fn property(message: &Publish, name: &str) -> Option<String> {
    let properties = &message.properties.as_ref()?.user_properties;
    properties.iter().find(|(of, _)| of == name).map(|(_, value)| value.clone())
}

/// What arrived in binary mode, or as one object.
pub(crate) fn arrival(message: &Publish) -> Arrival {
    let dedup_id = property(message, "outhaul-dedup-id");
    if let Some(id) = property(message, "id") {
        let (source, pid) = (property(message, "source").unwrap(), property(message, "partitionkey"));
        return Arrival { id, source, dedup_id, pid, body: message.payload.clone() };
    }
    let limits = Limits { body_bytes_max: 1 << 22, ..Limits::default() };
    Arrival::from_event(&Event::from_json(&message.payload, &limits).unwrap(), dedup_id)
}

pub(crate) fn event(pid: &str, id: &str) -> Attempt {
    attempt(Event::builder("t", "/test").id(id).pid(pid).json("{\"a\": 1}").build().unwrap())
}

pub(crate) async fn one(target: &Mqtt) -> Result<(), DeliveryError> {
    target.deliver(&[event("p", "1")]).await.remove(0)
}
