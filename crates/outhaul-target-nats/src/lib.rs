//! Delivers Outhaul's events to NATS: as core messages, or into a stream of JetStream.
//!
//! `nats://[user:password@]host[:4222]/SUBJECT` publishes; with `?outhaul.stream=NAME` an event counts as delivered
//! when that stream has acknowledged it. `nats+tls://` (or `tls://`) is the same over TLS.
//!
//! ```
//! use outhaul_target::outhaul_event::Event;
//! use outhaul_target::{Attempt, ErrorKind, Target, TargetUri, Verdict};
//! use outhaul_target_nats::Nats;
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! # runtime.block_on(async {
//! let uri = TargetUri::parse("nats://127.0.0.1:9/orders.{type}.{pid}?outhaul.stream=ORDERS")?;
//! let nats = Nats::from_uri(uri)?;
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
//! let error = nats.deliver(&[attempt]).await.remove(0).unwrap_err();
//! assert_eq!((error.kind(), error.verdict()), (ErrorKind::ConnectionRefused, Verdict::Hold));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # On the wire
//! - The subject is a [`Template`](outhaul_target::Template); `.`, `*`, `>` and space in what an attribute holds are
//!   percent-encoded.
//! - Headers are those of the CloudEvents binding (`ce-id`, …, `Content-Type`), the data is the payload;
//!   `outhaul.mode=structured` sends one JSON object, `outhaul.format=body` the data alone, `s3` an object-store
//!   notification. `Nats-Msg-Id` is the event's `dedup_id`.
//! - **JetStream**: publishes of a batch are sent together, their acknowledgements awaited together;
//!   `Nats-Expected-Stream` makes sure that no other stream answers. `batch_order` is `None`: a hot pid costs one round
//!   trip per event. The stream suppresses repeats within its duplicate window only; after a hold or a restart that
//!   lasted longer a repeat is possible.
//! - **Core**: the batch is followed by a message to an inbox of our own, and counts as delivered when that comes back:
//!   the server has then taken everything before it. Nobody may be subscribed, which NATS does not tell. `batch_order`
//!   is `Prefix`.
//! - One connection, made when it is needed. It never reconnects by itself, since what the client buffers meanwhile
//!   could overtake a repeat: a broken one is given up, and the next attempt makes a new one. Certificates and secrets
//!   are read then.
//! - Dropping a `deliver` gives its acknowledgements up; events may have arrived.
//!
//! # Verdicts
//!
//! | answer or failure | kind | verdict |
//! |---|---|---|
//! | acknowledged by the stream; the own message came back | – | delivered |
//! | connection refused | `ConnectionRefused` | Hold |
//! | connection broke | `ConnectionReset` | Hold |
//! | no route, no connection in time | `Unreachable` | Hold |
//! | name not found | `Dns` | Hold |
//! | TLS handshake | `Tls` | Hold |
//! | authorization violation at connecting | `Authentication` | Hold |
//! | permissions violation for the subject | `Permission` | Hold |
//! | no stream of the name, none that takes the subject, no responders | `DestinationMissing` | Hold |
//! | another stream has the subject, the stream is sealed, does not acknowledge | `Configuration` | Hold |
//! | JetStream is not enabled | `Configuration` | Hold |
//! | secret or certificate file unusable | `Configuration` | Hold |
//! | stream or server out of resources | `Overloaded` | Retry |
//! | deadline passed | `TimedOut` | Retry |
//! | larger than the server's or stream's maximum | `TooLarge` | Reject |
//! | wrong last sequence or message | `ContentRefused` | Reject |
//! | an attribute that the subject needs is missing | `Malformed` | Reject |
//! | anything else | `Unknown` | Retry |

mod client;
mod codec;
mod config;
mod connection;
mod error;

pub use outhaul_target;

pub use client::Nats;
pub use config::NatsOptions;
pub use outhaul_target::Mode;
