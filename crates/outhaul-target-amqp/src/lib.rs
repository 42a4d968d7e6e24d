//! Delivers Outhaul's events to an AMQP 0-9-1 server, RabbitMQ above all.
//!
//! `amqp://[user:password@]host[:5672]/VHOST?outhaul.exchange=X&outhaul.routing_key=K` publishes to an exchange; without
//! one, the default exchange takes the message to the queue whose name is the key. `amqps://` (port 5671) is the same
//! over TLS.
//!
//! ```
//! use outhaul_target::outhaul_event::Event;
//! use outhaul_target::{Attempt, ErrorKind, Target, TargetUri, Verdict};
//! use outhaul_target_amqp::Amqp;
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! # runtime.block_on(async {
//! let uri = "amqp://127.0.0.1:9/%2F?outhaul.exchange=orders&outhaul.routing_key={type}.{pid}";
//! let amqp = Amqp::from_uri(TargetUri::parse(uri)?)?;
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
//! let error = amqp.deliver(&[attempt]).await.remove(0).unwrap_err();
//! assert_eq!((error.kind(), error.verdict()), (ErrorKind::ConnectionRefused, Verdict::Hold));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # On the wire
//! - The routing key is a [`Template`](outhaul_target::Template); `.`, `*`, `#` and white space in what an attribute
//!   holds are percent-encoded.
//! - Attributes are headers `cloudEvents_id`, …: the prefix that the AMQP binding of CloudEvents recommends, which is
//!   written for AMQP 1.0; RabbitMQ hands the headers of 0-9-1 to 1.0 consumers as application properties. The data is
//!   the body; `outhaul.mode=structured` sends one JSON object, `outhaul.format=body` the data alone, `s3` an object-store
//!   notification.
//! - Messages are persistent and mandatory; `message-id` is the event's `dedup_id`, `timestamp` its `time`,
//!   `content-type` that of the body.
//! - Publisher confirms. A batch has a channel for itself, and none of it is judged before all of it is confirmed: a
//!   message that no queue takes comes back before its confirmation, and is told by its `message-id`. A channel whose
//!   batch was dropped, was late or failed is closed, so that its answers are never taken for those of another batch.
//!   `batch_order` is `None`: a hot pid costs one round trip per event.
//! - One connection, made when it is needed, with heartbeats. It never recovers by itself: a broken one is given up, and
//!   the next attempt makes a new one. Certificates and secrets are read then. The client reads it on a thread of its
//!   own, which ends with it.
//! - Nothing is declared unless `outhaul.declare` asks for it.
//!
//! # Verdicts
//!
//! | answer or failure | kind | verdict |
//! |---|---|---|
//! | confirmed, and not returned | – | delivered |
//! | connection refused | `ConnectionRefused` | Hold |
//! | connection broke, no heartbeat | `ConnectionReset` | Hold |
//! | no route, no connection in time | `Unreachable` | Hold |
//! | name not found | `Dns` | Hold |
//! | TLS handshake | `Tls` | Hold |
//! | 403 at login | `Authentication` | Hold |
//! | 403 later, 530 | `Permission` | Hold |
//! | returned, 404, 402, 530 about a missing virtual host | `DestinationMissing` | Hold |
//! | a declaration that does not fit what is there (406) | `Configuration` | Hold |
//! | secret or certificate file unusable | `Configuration` | Hold |
//! | the server is shutting down (320) | `Unavailable` | Hold |
//! | 501 to 505, 540, no AMQP | `ProtocolViolation` | Hold |
//! | nack, 506, connection blocked | `Overloaded` | Retry |
//! | 405 | `Conflict` | Retry |
//! | the channel was closed for any other reason | `ServerFault` | Retry |
//! | deadline passed | `TimedOut` | Retry |
//! | larger than the server takes; attributes larger than a frame | `TooLarge` | Reject |
//! | an attribute that the key needs is missing, a key or content type of more than 255 bytes | `Malformed` | Reject |
//! | anything else | `Unknown` | Retry |

mod client;
mod codec;
mod config;
mod connection;
mod error;
mod line;

pub use outhaul_target;

pub use client::Amqp;
pub use config::{AmqpOptions, Declare};
pub use outhaul_target::Mode;
