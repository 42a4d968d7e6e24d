//! Events through the relay into a mosquitto that is killed again and again.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outhaul_services::{Kind, Proxy, Server};
use rumqttc_v5::{
    AsyncClient, Broker, Event, EventLoop, Incoming, MqttOptions, Publish, PublishOptions, QoS,
};

use crate::brokers::{OPTIONS, Storm};
use crate::support::until;

/// mosquitto forgets with SIGKILL what it has acknowledged and not handed on yet. So the relay's line breaks first, at any
/// point, and the server dies when its subscriber has everything.
#[test]
fn mqtt_gets_everything_in_order_though_it_is_killed() {
    let storm = Storm::new();
    let server = Mutex::new(Server::builder(Kind::Mqtt).start().unwrap());
    let address = server.lock().unwrap().address();
    let proxy = Proxy::start(address);
    let subscriber = Subscriber::start(address);
    let dir = tempfile::tempdir().unwrap();
    let to = format!("mqtt://{}/events?outhaul.qos=1&outhaul.version=5&{OPTIONS}", proxy.address());
    let kill = || {
        proxy.refuse(true);
        subscriber.drain();
        server.lock().unwrap().kill();
        subscriber.is(false);
    };
    let start = || {
        server.lock().unwrap().start().unwrap();
        subscriber.is(true);
        proxy.refuse(false);
    };
    storm.blow(dir.path(), &to, kill, start);
    subscriber.drain();
    storm.judge(&subscriber.heard());
}

/// Hears everything that is published to `events`, whenever the server is there.
struct Subscriber {
    runtime: tokio::runtime::Runtime,
    client: AsyncClient,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    subscribed: AtomicBool,
    heard: Mutex<Vec<Publish>>,
}

impl Subscriber {
    fn start(address: SocketAddr) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let options = MqttOptions::new("subscriber", Broker::tcp(address.ip().to_string(), address.port()));
        let (client, events) = AsyncClient::builder(options).capacity(100).build();
        let shared = Arc::new(Shared::default());
        runtime.spawn(listen(client.clone(), events, Arc::clone(&shared)));
        let subscriber = Self { runtime, client, shared };
        subscriber.is(true);
        subscriber
    }

    /// Waits until it hears what is published, or has noticed that the server is gone.
    fn is(&self, subscribed: bool) {
        let is = || (self.shared.subscribed.load(Ordering::SeqCst) == subscribed).then_some(());
        until("the subscription", is);
    }

    /// Waits for a message of our own, which comes behind everything that the server has acknowledged.
    fn drain(&self) {
        let marks = self.shared.heard.lock().unwrap().len();
        let mark = format!("mark {marks} {}", fastrand::u64(..));
        let published = self.client.publish("events", mark.clone(), PublishOptions::new(QoS::AtLeastOnce));
        self.runtime.block_on(published).unwrap();
        let is_there = || {
            let heard = self.shared.heard.lock().unwrap();
            heard.iter().any(|message| message.payload == mark).then_some(())
        };
        until("the mark", is_there);
    }

    /// The ids and pids of what it heard.
    fn heard(&self) -> Vec<(usize, String)> {
        let heard = self.shared.heard.lock().unwrap();
        let text = |message: &Publish, name: &str| {
            let properties = &message.properties.as_ref()?.user_properties;
            properties.iter().find(|(of, _)| of == name).map(|(_, value)| value.clone())
        };
        let event = |message| Some((text(message, "id")?.parse().unwrap(), text(message, "partitionkey")?));
        heard.iter().filter_map(event).collect()
    }
}

async fn listen(client: AsyncClient, mut events: EventLoop, shared: Arc<Shared>) {
    loop {
        match events.poll().await {
            Ok(Event::Incoming(Incoming::ConnAck(_))) => {
                client.try_subscribe("events", QoS::AtLeastOnce).unwrap();
            }
            Ok(Event::Incoming(Incoming::SubAck(_))) => shared.subscribed.store(true, Ordering::SeqCst),
            Ok(Event::Incoming(Incoming::Publish(message))) => shared.heard.lock().unwrap().push(message),
            Ok(_) => {}
            Err(_) => {
                shared.subscribed.store(false, Ordering::SeqCst);
                // bounded: until the server is there again, or the test has ended.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}
