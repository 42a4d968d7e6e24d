//! Appends Outhaul's events to a file, one line each, or writes them to standard output.
//!
//! `file:PATH` (relative, taken literally) and `file:///abs/path` (percent-encoded) append; `stdout:` writes. A line is
//! one event in structured CloudEvents JSON, or what the option `outhaul.format` says.
//!
//! ```
//! use outhaul_target::outhaul_event::Event;
//! use outhaul_target::{Attempt, Target, TargetUri};
//! use outhaul_target_file::FileTarget;
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
//! # runtime.block_on(async {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("delivered.ndjson");
//! let target = FileTarget::from_uri(TargetUri::parse(&format!("file://{}", path.display()))?)?;
//!
//! let event = Event::builder("com.example.order.paid", "/shop").pid("order-1").json("{}").build()?;
//! let attempt = Attempt {
//!     dedup_id: event.dedup_id(),
//!     event: event.into(),
//!     uid: "audit:1".parse()?,
//!     version: 1,
//!     number: 1,
//! };
//! for result in target.deliver(&[attempt]).await {
//!     result?; // the line is on the disk
//! }
//! assert_eq!(std::fs::read_to_string(path)?.lines().count(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it promises
//! - *Delivered* means that the batch was written and synced (a file), or written (standard output, pipes, terminals).
//! - Nothing is ever truncated but our own: a write that failed is cut back, and a half line that a crash left at the
//!   end is cut off at the next opening. What ends without a line feed and is a complete JSON value, or does not begin
//!   like JSON, may be somebody else's: it stays, and a line feed is added.
//! - One process writes: the file is locked (`flock`, where the file system has it).
//! - A file that was renamed or removed is created again before the next batch, in the same directory;
//!   [`reopen`](outhaul_target::Target::reopen) does it at once. A new file has the mode 0600.
//! - A pipe gets whole lines: the rest of a line that was begun is owed, and written before anything else.
//! - Batches are `Prefix`: behind an event that cannot be written, the later ones of its pid are not tried.
//! - Dropping a `deliver` lets the batch that is being written end, behind the next one's back; it may be repeated.
//!
//! # Verdicts
//!
//! | failure | kind | verdict |
//! |---|---|---|
//! | `ENOENT`, `ENOTDIR`: no such directory | `DestinationMissing` | Hold |
//! | `EACCES`, `EPERM`, `EROFS` | `Permission` | Hold |
//! | `ENOSPC`, `EDQUOT`, `EFBIG` | `DiskFull` | Hold |
//! | `EISDIR`: the path is a directory | `Configuration` | Hold |
//! | `EAGAIN` of the lock: another process writes | `Locked` | Hold |
//! | `ENXIO`: nobody reads the pipe | `Unreachable` | Hold |
//! | `EPIPE`: the reader is gone | `ConnectionReset` | Hold |
//! | any other, a failed sync above all | `Io` | Hold |
//! | the deadline: a reader that does not read, a hanging disk | `TimedOut` | Retry |
//! | the event does not fit on a line in this format | `Malformed` | Reject |

mod client;
mod codec;
mod config;
mod error;

pub use outhaul_target;

pub use client::FileTarget;
pub use config::{Destination, FileOptions};
