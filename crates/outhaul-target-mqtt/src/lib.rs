//! Delivers Outhaul's events to an MQTT server, 3.1.1 or 5.
//!
//! `mqtt://[user:password@]host[:1883]/TOPIC` publishes with `QoS` 1 over MQTT 5; `outhaul.version=3.1.1` and
//! `outhaul.qos=2` choose otherwise. `mqtts://` (port 8883) is the same over TLS.
//!
//! ```
//! use outhaul_target::outhaul_event::Event;
//! use outhaul_target::{Attempt, ErrorKind, Target, TargetUri, Verdict};
//! use outhaul_target_mqtt::Mqtt;
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! # runtime.block_on(async {
//! let mqtt = Mqtt::from_uri(TargetUri::parse("mqtt://127.0.0.1:9/orders/{type}/{pid}?outhaul.qos=1")?)?;
//!
//! let event = Event::builder("paid", "/shop").pid("order-1").json("{}").build()?;
//! let attempt = Attempt {
//!     dedup_id: event.dedup_id(),
//!     event: event.into(),
//!     uid: "orders:1".parse()?,
//!     version: 1,
//!     number: 1,
//! };
//! // Nobody listens at port 9: that accuses the target, not the event.
//! let error = mqtt.deliver(&[attempt]).await.remove(0).unwrap_err();
//! assert_eq!((error.kind(), error.verdict()), (ErrorKind::ConnectionRefused, Verdict::Hold));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # On the wire
//! - The topic is a [`Template`](outhaul_target::Template); `/`, `+`, `#`, `$` and control characters in what an
//!   attribute holds are percent-encoded.
//! - MQTT 5: user properties are the attributes by their own names, as the CloudEvents binding says, and
//!   `outhaul-dedup-id`; the data is the payload. `outhaul.mode=structured`, and always with 3.1.1: one JSON object.
//!   `outhaul.format=body` sends the data alone, `s3` an object-store notification.
//! - Messages of a batch are sent together; each waits for the acknowledgement of its own packet (PUBACK, PUBCOMP), which
//!   the client reports. `batch_order` is `None`: a hot pid costs one round trip per event.
//! - One session per process, clean at its beginning. It is resumed by reconnects of this process alone (with 3.1.1 only
//!   if `outhaul.client_id` is given), and what is underway stays so: another attempt at that event waits for the same
//!   message. A server that kept no session makes all of it `Retry` at once. `QoS` 2 removes what would arrive twice within
//!   that, not across restarts, nor where the line breaks again while the client sends again and loses track. Nothing is ever subscribed to.
//! - The connection is made when it is needed, and again when it broke. Certificates and secrets are read then.
//! - Dropping a `deliver` gives its acknowledgements up; events may arrive all the same. Closing ends the session's task.
//!
//! # Verdicts
//!
//! | answer or failure | kind | verdict |
//! |---|---|---|
//! | PUBACK, PUBCOMP; with QoS 0, written | – | delivered |
//! | connection refused | `ConnectionRefused` | Hold |
//! | connection broke, no answer to a ping | `ConnectionReset` | Hold |
//! | no route, no connection in time | `Unreachable` | Hold |
//! | name not found | `Dns` | Hold |
//! | TLS handshake | `Tls` | Hold |
//! | CONNACK: bad user or password, not authorised | `Authentication` | Hold |
//! | 0x87 for a message, banned, administrative action | `Permission` | Hold |
//! | topic refused (0x90); nobody subscribed, with `outhaul.unheard=hold` | `DestinationMissing` | Hold |
//! | CONNACK: client id, version or QoS not supported | `Configuration` | Hold |
//! | secret or certificate file unusable | `Configuration` | Hold |
//! | server busy, shutting down, moved | `Unavailable` | Hold |
//! | another client took our id over | `Locked` | Hold |
//! | no MQTT | `ProtocolViolation` | Hold |
//! | session not kept, message lost track of, packet identifier in use (0x91) | `Conflict` | Retry |
//! | quota exceeded (0x97) | `Overloaded` | Retry |
//! | 0x80, 0x83 | `ServerFault` | Retry |
//! | deadline passed | `TimedOut` | Retry |
//! | larger than the server takes, or than `outhaul.packet_max` | `TooLarge` | Reject |
//! | payload format invalid (0x99) | `ContentRefused` | Reject |
//! | an attribute that the topic needs is missing | `Malformed` | Reject |
//! | anything else | `Unknown` | Retry |

mod client;
mod codec;
mod config;
mod error;
mod session;
mod v4;
mod v5;

pub use outhaul_target;

pub use client::Mqtt;
pub use config::{MqttOptions, Qos, Unheard, Version};
pub use outhaul_target::Mode;
