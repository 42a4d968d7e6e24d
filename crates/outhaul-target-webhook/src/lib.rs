//! Delivers Outhaul's events over HTTP: one POST per event, over kept connections.
//!
//! `http://…` and `https://…` URLs; user information in them becomes basic authentication and is never shown.
//!
//! ```
//! use outhaul_target::outhaul_event::Event;
//! use outhaul_target::{Attempt, ErrorKind, Target, TargetUri, Verdict};
//! use outhaul_target_webhook::Webhook;
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! # runtime.block_on(async {
//! let uri = TargetUri::parse("http://127.0.0.1:9/hook?outhaul.mode=structured&outhaul.timeout=5s")?;
//! let webhook = Webhook::from_uri(uri)?;
//!
//! let event = Event::builder("com.example.order.paid", "/shop").pid("order-1").json("{}").build()?;
//! let attempt = Attempt {
//!     dedup_id: event.dedup_id(),
//!     event: event.into(),
//!     uid: "billing:1".parse()?,
//!     version: 1,
//!     number: 1,
//! };
//! // Nobody listens at port 9: that accuses the target, not the event.
//! let error = webhook.deliver(&[attempt]).await.remove(0).unwrap_err();
//! assert_eq!((error.kind(), error.verdict()), (ErrorKind::ConnectionRefused, Verdict::Hold));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # On the wire
//! - HTTP/1.1 `POST`. CloudEvents in binary mode (attributes as `ce-` headers, the data as the body), or
//!   `outhaul.mode=structured`; `outhaul.format=body` sends the data alone, `s3` an object-store notification.
//! - `webhook-id` is the event's `dedup_id`, the same at every attempt; `webhook-timestamp` the time of this one.
//! - `outhaul.secret_file` adds `webhook-signature` (Standard Webhooks, `v1`: HMAC-SHA256 over id, time and body; the
//!   file holds `whsec_` and base64). `outhaul.token_file` adds a bearer token. Both files are read again when they
//!   change.
//! - TLS 1.2 and 1.3; `outhaul.ca` is a PEM file of the only authorities to trust, in place of the machine's.
//! - One event of a pid at a time: a hot pid costs one round trip per event.
//! - Redirects are never followed, proxies of the environment not used, at most 64 KiB of the answer read.
//! - Link-local addresses and those of cloud metadata services are refused, whatever name leads there.
//! - Dropping a `deliver` breaks the request off and closes its connection.
//!
//! # Verdicts
//!
//! | answer or failure | kind | verdict |
//! |---|---|---|
//! | 200 to 299 | – | delivered |
//! | 301 to 308 | `Configuration` | Hold |
//! | 400 | `Malformed` | Reject |
//! | 401 407 | `Authentication` | Hold |
//! | 402 403 | `Permission` | Hold |
//! | 404 410 | `DestinationMissing` | Hold |
//! | 405 | `Configuration` | Hold |
//! | 408 | `TimedOut` | Retry |
//! | 409 | `Conflict` | Retry |
//! | 413 414 431 | `TooLarge` | Reject |
//! | 415 422 | `ContentRefused` | Reject |
//! | 425 500 502 504 | `ServerFault` | Retry |
//! | 429 | `Throttled` | Retry |
//! | 503 | `Overloaded` | Retry |
//! | any other status | `Unknown` | Retry |
//! | connection refused | `ConnectionRefused` | Hold |
//! | connection broke | `ConnectionReset` | Hold |
//! | no route, no connection in time | `Unreachable` | Hold |
//! | name not found | `Dns` | Hold |
//! | TLS handshake | `Tls` | Hold |
//! | no HTTP | `ProtocolViolation` | Hold |
//! | forbidden address | `PolicyDenied` | Hold |
//! | secret file unusable | `Configuration` | Hold |
//! | deadline passed | `TimedOut` | Retry |
//!
//! `Retry-After`, in seconds or as a date, is handed on with every failure, up to an hour.

mod client;
mod codec;
mod config;
mod egress;
mod error;

pub use outhaul_target;

pub use client::Webhook;
pub use config::WebhookOptions;
pub use outhaul_target::Mode;
