//! The conformance kit, with the default exchange and a durable queue.

use std::sync::Mutex;
use std::time::Duration;

use lapin::types::AMQPValue;
use outhaul_services::{Access, Authority, Certificate};
use outhaul_target::async_trait;
use outhaul_target::testkit::{Arrival, Condition, Fixture, Unsupported, Variant};
use outhaul_target_amqp::Amqp;
use tokio::task::block_in_place;

use crate::support::{Broker, MESSAGE_BYTES_MAX, amqp, arrival, fresh};

struct Receiver {
    broker: Broker,
    variant: Option<Variant>,
    queue: String,
    /// What was taken out of the queue so far.
    taken: Mutex<Vec<Arrival>>,
    /// The queue is not there, or not the one that takes everything.
    spoiled: Mutex<bool>,
}

impl Receiver {
    async fn new(broker: Broker, variant: Option<Variant>) -> Self {
        // What the kit's events make of `{type}`.
        let queue = match variant {
            Some(Variant::Templated) => "com%2Eexample%2Enumbered".to_owned(),
            _ => fresh("kit"),
        };
        let receiver = Self { broker, variant, queue, taken: Mutex::default(), spoiled: Mutex::default() };
        if !matches!(variant, Some(Variant::TlsExpired | Variant::TlsWrongName)) {
            // Through such a certificate nothing arrives, and nothing could be read back.
            receiver.broker.make_queue(&receiver.queue, &[]).await;
        }
        receiver
    }

    async fn take(&self) {
        let messages = self.broker.take(&self.queue).await;
        self.taken.lock().unwrap().extend(messages.iter().map(arrival));
    }

    /// Puts another queue in the place of ours, or none.
    async fn spoil(&self, arguments: Option<&[(&str, AMQPValue)]>) {
        self.take().await;
        self.broker.delete_queue(&self.queue).await;
        if let Some(arguments) = arguments {
            self.broker.make_queue(&self.queue, arguments).await;
        }
        *self.spoiled.lock().unwrap() = true;
    }

    async fn heal(&self) {
        let spoiled = std::mem::take(&mut *self.spoiled.lock().unwrap());
        if spoiled {
            self.broker.delete_queue(&self.queue).await;
            self.broker.make_queue(&self.queue, &[]).await;
        }
    }
}

#[async_trait]
impl Fixture for Receiver {
    type Target = Amqp;

    async fn start() -> Self {
        Self::new(Broker::shared(Access::Password), None).await
    }

    async fn start_alone() -> Self {
        let receiver = Self::new(Broker::alone(Access::Password, Certificate::Good), None).await;
        // RabbitMQ writes down later that there is a queue: one that is killed soon after may have forgotten it.
        block_in_place(|| receiver.broker.server().restart().unwrap());
        receiver
    }

    async fn start_as(variant: Variant) -> Result<Self, Unsupported> {
        let broker = match variant {
            Variant::WrongCredentials | Variant::Templated => Broker::shared(Access::Password),
            Variant::Tls | Variant::TlsOtherAuthority => Broker::shared(Access::Tls),
            Variant::TlsExpired => Broker::alone(Access::Tls, Certificate::Expired),
            Variant::TlsWrongName => Broker::alone(Access::Tls, Certificate::WrongName),
            Variant::TlsNoClientCertificate | Variant::TlsRenewed => Broker::shared(Access::MutualTls),
            _ => return Err(Unsupported("a variant that this fixture does not know")),
        };
        let receiver = Self::new(broker, Some(variant)).await;
        if variant == Variant::TlsRenewed {
            block_in_place(|| receiver.broker.server().authority().client("renewed", true).unwrap());
        }
        Ok(receiver)
    }

    async fn target(&self, timeout: Duration) -> Amqp {
        let options = format!(
            "outhaul.timeout={}ms&outhaul.routing_key={}",
            timeout.as_millis(),
            self.queue.replace('%', "%25")
        );
        let uri = self.broker.uri();
        amqp(&match self.variant {
            None => format!("{uri}?{options}"),
            Some(Variant::WrongCredentials) => {
                format!("amqp://outhaul:wr0ng@{}?{options}", self.broker.proxy.address())
            }
            Some(Variant::Templated) => {
                let template = "{type}";
                format!("{uri}?outhaul.timeout={}ms&outhaul.routing_key={template}", timeout.as_millis())
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
                format!("{uri}?{options}&outhaul.ca={}{pair}", ca.display())
            }
        })
    }

    async fn renew(&self) {
        block_in_place(|| self.broker.server().authority().client("renewed", false).unwrap());
    }

    async fn arrived(&self) -> Vec<Arrival> {
        self.take().await;
        self.taken.lock().unwrap().clone()
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
                proxy.hold(false);
                block_in_place(|| proxy.refuse(false));
                self.heal().await;
            }
            Condition::Refusing => block_in_place(|| proxy.refuse(true)),
            Condition::Hanging => proxy.hold(true),
            Condition::Cutting => proxy.cut_after(40),
            Condition::Cut => proxy.cut(),
            Condition::Paused => self.broker.server().pause(),
            Condition::Killed => block_in_place(|| self.broker.server().kill()),
            Condition::Missing => self.spoil(None).await,
            Condition::Throttling => {
                let full = [
                    ("x-max-length", AMQPValue::LongInt(0)),
                    ("x-overflow", AMQPValue::LongString("reject-publish".into())),
                ];
                self.spoil(Some(&full)).await;
            }
            _ => return Err(Unsupported("see the cases that cut the line")),
        }
        Ok(())
    }

    fn secrets(&self) -> Vec<String> {
        ["k@pt/n:secret", "k%40pt%2Fn%3Asecret"].map(str::to_owned).to_vec()
    }

    fn too_large(&self) -> Result<usize, Unsupported> {
        Ok(MESSAGE_BYTES_MAX + 1)
    }
}

outhaul_target::conformance!(Receiver);
