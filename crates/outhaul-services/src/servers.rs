//! What is particular to each kind of server: its files, its command, how it says that it is there.

mod amqp;
mod kafka;
mod mqtt;
mod mysql;
mod nats;
mod postgres;
mod pulsar;
mod redis;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::error::Error;
use crate::kind::{Access, Kind};
use crate::server::Server;
use crate::{PASSWORD, USER};

/// How many ports it needs; the first is the one of its clients.
pub(crate) fn ports(kind: Kind) -> usize {
    match kind {
        Kind::Amqp => 3,
        Kind::Pulsar => 2,
        _ => 1,
    }
}

/// Makes its files, before its first start and after its data was removed.
pub(crate) fn prepare(server: &Server) -> Result<(), Error> {
    match server.kind() {
        Kind::Nats => nats::prepare(server),
        Kind::Redis => redis::prepare(server),
        Kind::Mqtt => mqtt::prepare(server),
        Kind::Amqp => amqp::prepare(server),
        Kind::Postgres => postgres::prepare(server),
        Kind::Mysql => mysql::prepare(server),
        Kind::Kafka => kafka::prepare(server),
        Kind::Pulsar => pulsar::prepare(server),
    }
}

/// What to start, in this order; the last one is the server itself.
pub(crate) fn commands(server: &Server) -> Result<Vec<Command>, Error> {
    let one = match server.kind() {
        Kind::Nats => nats::command(server),
        Kind::Redis => redis::command(server),
        Kind::Mqtt => mqtt::command(server),
        Kind::Amqp => return Ok(amqp::commands(server)),
        Kind::Postgres => postgres::command(server),
        Kind::Mysql => mysql::command(server),
        Kind::Kafka => kafka::command(server),
        Kind::Pulsar => pulsar::command(server),
    };
    Ok(vec![one])
}

/// Whether a client would be served now.
pub(crate) fn answers(server: &Server) -> bool {
    let starts_with = |hello: &[u8], wanted: &[u8]| says(server.address(), hello, wanted);
    match (server.kind(), server.access().is_tls()) {
        (Kind::Nats, _) => starts_with(b"", b"INFO"),
        (Kind::Redis, false) => starts_with(b"PING\r\n", b"+PONG") || starts_with(b"PING\r\n", b"-NOAUTH"),
        (Kind::Amqp, false) => starts_with(b"AMQP\0\0\x09\x01", &[1, 0, 0]),
        (Kind::Mysql, _) => starts_with(b"", b""),
        (Kind::Postgres, _) => postgres::answers(server),
        _ => TcpStream::connect(server.address()).is_ok(),
    }
}

/// What is left to do once it answers for the first time.
pub(crate) fn started(server: &Server) -> Result<(), Error> {
    match server.kind() {
        Kind::Postgres => postgres::started(server),
        _ => Ok(()),
    }
}

/// Gives its certificate to the user that it runs as.
pub(crate) fn own(server: &Server) -> Result<(), Error> {
    match server.kind() {
        Kind::Postgres => postgres::own(server),
        _ => Ok(()),
    }
}

/// What asks it to end without waiting for its clients.
pub(crate) fn stop_signal(kind: Kind) -> Signal {
    match kind {
        Kind::Postgres => Signal::INT,
        _ => Signal::TERM,
    }
}

pub(crate) fn url(kind: Kind, access: Access, address: SocketAddr) -> String {
    let scheme = match (kind, access.is_tls()) {
        (Kind::Nats, false) => "nats",
        (Kind::Nats, true) => "tls",
        (Kind::Redis, false) => "redis",
        (Kind::Redis, true) => "rediss",
        (Kind::Mqtt, false) => "mqtt",
        (Kind::Mqtt, true) => "mqtts",
        (Kind::Amqp, false) => "amqp",
        (Kind::Amqp, true) => "amqps",
        (Kind::Postgres, _) => "postgres",
        (Kind::Mysql, _) => "mysql",
        (Kind::Kafka, _) => "kafka",
        (Kind::Pulsar, false) => "pulsar",
        (Kind::Pulsar, true) => "pulsar+ssl",
    };
    let password = PASSWORD.replace('@', "%40").replace('/', "%2F").replace(':', "%3A");
    let credentials = match (kind, access) {
        (_, Access::Password) => format!("{USER}:{password}@"),
        (Kind::Amqp, _) => "guest:guest@".to_owned(),
        (Kind::Postgres | Kind::Mysql, _) => format!("{USER}@"),
        _ => String::new(),
    };
    format!("{scheme}://{credentials}{address}")
}

/// Whether it answers this hello with something that begins so; anything at all, if `wanted` is empty.
fn says(address: SocketAddr, hello: &[u8], wanted: &[u8]) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut line = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        line.set_read_timeout(Some(Duration::from_secs(2)))?;
        line.write_all(hello)?;
        let mut answer = vec![0; wanted.len().max(1)];
        line.read_exact(&mut answer)?;
        Ok(answer.starts_with(wanted))
    };
    ask().unwrap_or(false)
}

/// The lines of a configuration file, and those that the test adds.
fn lines(server: &Server, of: &[&str]) -> String {
    [of.iter().map(|line| (*line).to_owned()).collect(), server.config().to_vec()].concat().join("\n") + "\n"
}
