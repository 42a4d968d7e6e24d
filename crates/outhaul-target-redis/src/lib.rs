//! Delivers Outhaul's events to Redis or Valkey: into a stream, onto a list, or over a channel.
//!
//! `redis://[user:password@]host[:6379]/[DATABASE]` with one of `?outhaul.stream=KEY`, `?outhaul.list=KEY` and
//! `?outhaul.channel=NAME`; `rediss://` is the same over TLS, `valkey://` and `valkeys://` are other names for them.
//!
//! ```
//! use outhaul_target::outhaul_event::Event;
//! use outhaul_target::{Attempt, ErrorKind, Target, TargetUri, Verdict};
//! use outhaul_target_redis::Redis;
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! # runtime.block_on(async {
//! let redis = Redis::from_uri(TargetUri::parse("redis://127.0.0.1:9/0?outhaul.stream=orders:{type}")?)?;
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
//! let error = redis.deliver(&[attempt]).await.remove(0).unwrap_err();
//! assert_eq!((error.kind(), error.verdict()), (ErrorKind::ConnectionRefused, Verdict::Hold));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # On the wire
//! - A key is a [`Template`](outhaul_target::Template); `:`, braces and white space in what an attribute holds are
//!   percent-encoded.
//! - **Stream**: `XADD`, a field for each CloudEvents attribute, then `content-type`, `dedup_id` and `data`. `maxlen`
//!   trims, about. **List**: `RPUSH`, **channel**: `PUBLISH`, each with one JSON object. `outhaul.format` is `body` or
//!   `s3` for other values.
//! - A batch is one `MULTI`. A transaction does not roll back, so that events of one pid are in it only while they go
//!   to one key; the next key follows when the first one's answer is there. `batch_order` is `Prefix`.
//! - `dedup=SIZE` remembers that many ids per key in `{KEY}:outhaul:ids`, by one script that does both at once.
//! - **A reply is not durable.** What the server syncs, and when, is set there (`appendfsync`); `wait_replicas=N` has
//!   each batch followed by `WAIT`. A channel keeps nothing at all. Redis 7.0 forgets transactions at its restart if its
//!   default user has no rights: see `docs/targets/redis.md`.
//! - One connection, which is given up when it breaks, when nobody answers, and when the server cannot be written to;
//!   the next attempt makes a new one, and reads certificates and secrets then. Redirections of a cluster are not
//!   followed.
//! - Dropping a `deliver` gives its replies up; events may have arrived.
//!
//! # Verdicts
//!
//! | answer or failure | kind | verdict |
//! |---|---|---|
//! | replied to, and enough replicas have it | – | delivered |
//! | connection refused | `ConnectionRefused` | Hold |
//! | connection broke | `ConnectionReset` | Hold |
//! | no route, no connection in time | `Unreachable` | Hold |
//! | name not found | `Dns` | Hold |
//! | TLS handshake | `Tls` | Hold |
//! | `LOADING`, `READONLY`, `MASTERDOWN`, `CLUSTERDOWN`, `MISCONF`, `NOREPLICAS`, `OOM` | `Unavailable` | Hold |
//! | `NOAUTH`, `WRONGPASS`, credentials refused in other words | `Authentication` | Hold |
//! | `NOPERM` | `Permission` | Hold |
//! | `WRONGTYPE`, `MOVED`, `ASK`, `CROSSSLOT`, no such database | `Configuration` | Hold |
//! | secret or certificate file unusable | `Configuration` | Hold |
//! | not the protocol of Redis | `ProtocolViolation` | Hold |
//! | `BUSY`, too many clients if the server gets to say so | `Overloaded` | Retry |
//! | `TRYAGAIN`, too few replicas, nobody subscribed to the channel | `Conflict` | Retry |
//! | deadline passed | `TimedOut` | Retry |
//! | an earlier event of the pid was not delivered | `Skipped` | Retry |
//! | larger than `proto-max-bulk-len` | `TooLarge` | Reject |
//! | an attribute that the key needs is missing | `Malformed` | Reject |
//! | anything else | `Unknown` | Retry |

mod batch;
mod client;
mod codec;
mod config;
mod connection;
mod error;

pub use outhaul_target;

pub use client::Redis;
pub use config::{Kind, NoReceivers, RedisOptions};
