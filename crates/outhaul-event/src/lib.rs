//! The event of Outhaul: what a producer hands over, what names it, and how it is written down.
//!
//! This is the lowest layer. It holds the CloudEvents 1.0 attributes and the body of an [`Event`], the three
//! identities of the design, a versioned compact encoding for the disk, and the JSON and HTTP mappings of the
//! CloudEvents specification. It does no I/O and knows no target, store or clock beyond the one that mints ids.
//!
//! ```
//! use outhaul_event::{Event, Limits};
//!
//! let event = Event::builder("com.example.order.paid", "/shop")
//!     .pid("order-1001")
//!     .json(r#"{"total":19.90}"#)
//!     .build()?;
//! let line = event.to_json();
//! let back = Event::from_json(&line, &Limits::default())?;
//! assert_eq!(back.pid(), Some("order-1001"));
//! // The number keeps its spelling: bodies are carried as bytes, never re-printed.
//! assert_eq!(&back.body()[..], br#"{"total":19.90}"#);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Identities
//!
//! | identity | given by | same across | used for |
//! |---|---|---|---|
//! | `source` + `id` | the producer | everything | the receiver's own bookkeeping |
//! | [`DedupId`] | derived, 36 ASCII characters | every target, attempt and requeue | `webhook-id`, message ids, primary keys |
//! | [`Uid`] | the queue | one stay in one queue | naming an entry; the key of its failed record |

mod content;
mod encoding;
mod event;
mod http;
mod identity;
mod json;
mod validate;
pub mod wire;

pub use bytes::Bytes;
pub use content::is_json;
pub use encoding::{DecodeError, ENCODING_VERSION};
pub use event::{Event, EventBuilder, HeaderValue};
pub use http::{HeaderError, percent_decode, to_header_value};
pub use identity::{DedupId, InvalidTargetName, InvalidUid, TargetName, Uid, fnv1a64};
pub use json::{BATCH_TYPE, JsonError, STRUCTURED_TYPE};
pub use validate::{InvalidEvent, Limits, Violation};
