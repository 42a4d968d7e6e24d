//! Each server starts, answers, and comes back as it is told.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use outhaul_services::{Access, Kind, Server};

fn connects(address: SocketAddr) -> bool {
    TcpStream::connect(address).is_ok()
}

/// Starts each variant, and looks that nothing is left of it.
fn starts_and_ends(kind: Kind) {
    for &access in kind.accesses() {
        let server =
            Server::builder(kind).access(access).start().unwrap_or_else(|e| panic!("{kind} {access}: {e}"));
        let (address, directory, identities) =
            (server.address(), server.directory().to_owned(), server.identities());
        assert!(connects(address), "{kind} {access}");
        assert!(!identities.is_empty() && identities.iter().all(|identity| identity.is_running()));
        drop(server);
        assert!(!connects(address), "{kind} {access} is still there");
        assert!(!directory.exists(), "{kind} {access} left {}", directory.display());
        assert!(!identities.iter().any(|identity| identity.is_running()));
    }
}

#[test]
fn nats_starts_in_every_variant_and_ends_with_its_handle() {
    starts_and_ends(Kind::Nats);
}

#[test]
fn redis_starts_in_every_variant_and_ends_with_its_handle() {
    starts_and_ends(Kind::Redis);
}

#[test]
fn mosquitto_starts_in_every_variant_and_ends_with_its_handle() {
    starts_and_ends(Kind::Mqtt);
}

#[test]
fn rabbitmq_starts_in_every_variant_and_ends_with_its_handle() {
    starts_and_ends(Kind::Amqp);
}

#[test]
fn postgres_starts_in_every_variant_and_ends_with_its_handle() {
    starts_and_ends(Kind::Postgres);
}

#[test]
fn mariadb_starts_in_every_variant_and_ends_with_its_handle() {
    starts_and_ends(Kind::Mysql);
}

#[test]
fn tansu_and_pulsar_lite_start_and_end_with_their_handles() {
    starts_and_ends(Kind::Kafka);
    starts_and_ends(Kind::Pulsar);
}

/// One command of Redis in the clear, and the first line of its answer.
fn redis(address: SocketAddr, command: &str) -> std::io::Result<String> {
    let mut line = TcpStream::connect(address)?;
    line.set_read_timeout(Some(Duration::from_secs(1)))?;
    line.write_all(format!("{command}\r\n").as_bytes())?;
    let mut answer = [0; 64];
    let length = line.read(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer[..length]).trim().to_owned())
}

#[test]
fn a_killed_server_comes_back_with_its_data_and_an_emptied_one_without() {
    let mut server = Server::builder(Kind::Redis).start().unwrap();
    let address = server.address();
    assert_eq!(redis(address, "INCR visits").unwrap(), ":1");
    server.kill();
    assert!(!connects(address));
    server.start().unwrap();
    assert_eq!(redis(address, "INCR visits").unwrap(), ":2");
    server.restart().unwrap();
    assert_eq!(redis(address, "INCR visits").unwrap(), ":3");
    server.restart_empty().unwrap();
    assert_eq!(server.address(), address);
    assert_eq!(redis(address, "INCR visits").unwrap(), ":1");
}

#[test]
fn a_paused_server_answers_nothing_until_it_is_resumed() {
    let server = Server::builder(Kind::Redis).start().unwrap();
    server.pause();
    assert!(redis(server.address(), "PING").is_err());
    server.resume();
    assert_eq!(redis(server.address(), "PING").unwrap(), "+PONG");
}

#[test]
fn a_server_that_cannot_start_is_an_error_with_its_log() {
    let error = Server::builder(Kind::Redis).config("no-such-directive yes").start().unwrap_err().to_string();
    assert!(error.starts_with("redis did not start"), "{error}");
    assert!(error.contains("no-such-directive"), "{error}");
}

#[test]
fn a_variant_that_a_server_does_not_have_is_an_error() {
    let error = Server::builder(Kind::Kafka).access(Access::MutualTls).start().unwrap_err().to_string();
    assert!(error.starts_with("kafka has no variant `mutual-tls`"), "{error}");
}

#[test]
fn the_password_is_escaped_in_the_url() {
    let server = Server::builder(Kind::Redis).access(Access::Password).start().unwrap();
    assert_eq!(server.url(), format!("redis://outhaul:k%40pt%2Fn%3Asecret@{}", server.address()));
}

/// In the process that [`a_server_ends_with_a_process_that_is_killed`] starts.
const HOLDER: &str = "OUTHAUL_SERVICES_TEST_HOLDER";

#[test]
fn a_server_ends_with_a_process_that_is_killed() {
    if std::env::var_os(HOLDER).is_some() {
        let server = Server::builder(Kind::Redis).start().unwrap();
        println!("\nserver {} {}", server.address(), server.directory().display());
        // bounded: it is killed.
        std::thread::sleep(Duration::from_secs(60));
        return;
    }
    let mut holder = Command::new(std::env::current_exe().unwrap());
    holder.args(["--exact", "handle::a_server_ends_with_a_process_that_is_killed", "--nocapture"]);
    let mut holder = holder.env(HOLDER, "1").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines().map_while(Result::ok);
    let line = lines.find_map(|line| line.strip_prefix("server ").map(str::to_owned)).unwrap();
    let (address, directory) = line.split_once(' ').unwrap();
    let address: SocketAddr = address.parse().unwrap();
    assert!(connects(address));
    holder.kill().unwrap();
    holder.wait().unwrap();
    let began = Instant::now();
    while connects(address) || std::path::Path::new(directory).exists() {
        assert!(began.elapsed() < Duration::from_secs(10), "{line} is left");
        // bounded: by the assertion.
        std::thread::sleep(Duration::from_millis(10));
    }
}
