//! The conformance kit, with MQTT 5 and with 3.1.1.

use std::time::Duration;

use outhaul_services::{Access, Authority, Certificate, Kind, Server};
use outhaul_target::async_trait;
use outhaul_target::testkit::{Arrival, Condition, Fixture, Unsupported, Variant};
use outhaul_target_mqtt::Mqtt;
use tokio::task::block_in_place;

use crate::support::{Broker, Subscriber, TOPIC, arrival, fresh, mqtt};

struct Receiver<const V5: bool> {
    broker: Broker,
    variant: Option<Variant>,
    /// None where nothing could be read back.
    subscriber: Option<Subscriber>,
}

/// Larger than the server takes.
const PACKET_BYTES_MAX: usize = 2 * 1024 * 1024;

impl<const V5: bool> Receiver<V5> {
    async fn new(access: Access, certificate: Certificate, variant: Option<Variant>) -> Self {
        let builder = Server::builder(Kind::Mqtt).access(access).certificate(certificate);
        let broker = Broker::start(
            builder.config(format!("max_packet_size {PACKET_BYTES_MAX}")).config("set_tcp_nodelay true"),
        );
        let topic = if variant == Some(Variant::Templated) { "com.example.numbered" } else { TOPIC };
        let subscriber = match certificate {
            Certificate::Good => Some(Subscriber::start(&broker, &[topic]).await),
            _ => None,
        };
        Self { broker, variant, subscriber }
    }

    fn subscriber(&self) -> &Subscriber {
        self.subscriber.as_ref().unwrap()
    }
}

#[async_trait]
impl<const V5: bool> Fixture for Receiver<V5> {
    type Target = Mqtt;

    async fn start() -> Self {
        Self::new(Access::Password, Certificate::Good, None).await
    }

    async fn start_as(variant: Variant) -> Result<Self, Unsupported> {
        let (access, certificate) = match variant {
            Variant::WrongCredentials => (Access::Password, Certificate::Good),
            Variant::Templated if V5 => (Access::Plain, Certificate::Good),
            Variant::Templated => {
                return Err(Unsupported("a server of 3.1.1 does not tell that nobody wants a message"));
            }
            Variant::Tls | Variant::TlsOtherAuthority => (Access::Tls, Certificate::Good),
            Variant::TlsExpired => (Access::Tls, Certificate::Expired),
            Variant::TlsWrongName => (Access::Tls, Certificate::WrongName),
            Variant::TlsNoClientCertificate | Variant::TlsRenewed => (Access::MutualTls, Certificate::Good),
            _ => return Err(Unsupported("a variant that this fixture does not know")),
        };
        let receiver = Self::new(access, certificate, Some(variant)).await;
        if variant == Variant::TlsRenewed {
            block_in_place(|| receiver.broker.server().authority().client("renewed", true).unwrap());
        }
        Ok(receiver)
    }

    async fn target(&self, timeout: Duration) -> Mqtt {
        let version = if V5 {
            "outhaul.unheard=hold".to_owned()
        } else {
            let id = fresh("kit");
            format!("outhaul.version=3.1.1&outhaul.client_id={id}&outhaul.packet_max={PACKET_BYTES_MAX}")
        };
        let options = format!("outhaul.timeout={}ms&{version}", timeout.as_millis());
        let uri = self.broker.uri();
        mqtt(&match self.variant {
            None => format!("{uri}/{TOPIC}?{options}"),
            Some(Variant::WrongCredentials) => {
                format!("mqtt://outhaul:wr0ng@{}/{TOPIC}?{options}", self.broker.proxy.address())
            }
            Some(Variant::Templated) => {
                let template = "{type}";
                format!("{uri}/{template}?{options}")
            }
            Some(variant) => {
                let (ca, pair) = {
                    let server = self.broker.server();
                    (server.authority().ca(), server.client())
                };
                let ca = match variant {
                    Variant::TlsOtherAuthority => {
                        block_in_place(|| Authority::new(&ca.with_file_name("other")).unwrap().ca())
                    }
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
                format!("{uri}/{TOPIC}?{options}&outhaul.ca={}{pair}", ca.display())
            }
        })
    }

    async fn renew(&self) {
        block_in_place(|| self.broker.server().authority().client("renewed", false).unwrap());
    }

    async fn arrived(&self) -> Vec<Arrival> {
        self.subscriber().heard().await.iter().map(arrival).collect()
    }

    async fn set(&self, condition: Condition) -> Result<(), Unsupported> {
        let proxy = &self.broker.proxy;
        match condition {
            Condition::Healthy => {
                block_in_place(|| {
                    let mut server = self.broker.server();
                    server.resume();
                    if server.identities().is_empty() {
                        server.start().unwrap();
                    }
                });
                // What comes before the subscriber is there again would be lost.
                self.subscriber().ready().await;
                if !self.subscriber().has(TOPIC) {
                    self.subscriber().join(TOPIC).await;
                }
                proxy.hold(false);
                block_in_place(|| proxy.refuse(false));
            }
            Condition::Refusing => block_in_place(|| proxy.refuse(true)),
            Condition::Hanging => proxy.hold(true),
            Condition::Cutting => proxy.cut_after(40),
            Condition::Cut => proxy.cut(),
            Condition::Paused => self.broker.server().pause(),
            Condition::Killed => {
                // What mosquitto has acknowledged and not handed on yet is gone with it.
                self.subscriber().heard().await;
                block_in_place(|| self.broker.server().kill());
                self.subscriber().gone().await;
            }
            Condition::Missing if V5 => self.subscriber().leave(TOPIC).await,
            Condition::Missing => {
                return Err(Unsupported("a server of 3.1.1 does not tell that nobody wants a message"));
            }
            Condition::Throttling => return Err(Unsupported("mosquitto has no quota")),
            _ => return Err(Unsupported("see the cases that cut the line")),
        }
        Ok(())
    }

    fn unsupported(case: &str) -> Option<Unsupported> {
        let reason = "the session goes on over the next line, and the event arrives in the same attempt: see `sessions`";
        (case == "a_receiver_that_cuts_the_line_loses_nothing").then_some(Unsupported(reason))
    }

    fn secrets(&self) -> Vec<String> {
        ["k@pt/n:secret", "k%40pt%2Fn%3Asecret"].map(str::to_owned).to_vec()
    }

    fn too_large(&self) -> Result<usize, Unsupported> {
        Ok(PACKET_BYTES_MAX + 1)
    }
}

mod v5 {
    outhaul_target::conformance!(super::Receiver<true>);
}

mod v4 {
    outhaul_target::conformance!(super::Receiver<false>);
}
