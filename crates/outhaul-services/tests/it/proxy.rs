//! The proxy, in front of an echo.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use outhaul_services::Proxy;

/// A server that sends back what it gets, for as long as the test runs.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for line in listener.incoming().flatten() {
            thread::spawn(move || std::io::copy(&mut line.try_clone().unwrap(), &mut &line));
        }
    });
    address
}

fn line(proxy: &Proxy) -> TcpStream {
    let line = TcpStream::connect(proxy.address()).unwrap();
    line.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    line
}

/// What comes back, or nothing when the line is cut or stays silent.
fn said(mut line: &TcpStream, text: &str) -> Option<String> {
    line.write_all(text.as_bytes()).ok()?;
    let mut answer = vec![0; text.len()];
    line.read_exact(&mut answer).ok()?;
    String::from_utf8(answer).ok()
}

#[test]
fn what_is_sent_goes_through_and_a_cut_ends_it() {
    let proxy = Proxy::start(echo());
    let first = line(&proxy);
    assert_eq!(said(&first, "hello").as_deref(), Some("hello"));
    proxy.cut();
    assert_eq!(said(&first, "again"), None);
    assert_eq!(said(&line(&proxy), "new").as_deref(), Some("new"));
}

#[test]
fn nobody_is_served_while_it_refuses() {
    let proxy = Proxy::start(echo());
    let open = line(&proxy);
    proxy.refuse(true);
    assert_eq!(said(&open, "hello"), None);
    let refused = TcpStream::connect(proxy.address()).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    proxy.refuse(false);
    assert_eq!(said(&line(&proxy), "hello").as_deref(), Some("hello"));
}

#[test]
fn a_held_line_stays_and_goes_on_later() {
    let proxy = Proxy::start(echo());
    let first = line(&proxy);
    assert_eq!(said(&first, "a").as_deref(), Some("a"));
    proxy.hold(true);
    assert_eq!(said(&first, "b"), None);
    proxy.hold(false);
    let mut late = [0];
    (&first).read_exact(&mut late).unwrap();
    assert_eq!(&late, b"b");
}

#[test]
fn a_line_is_cut_in_the_middle_of_a_request() {
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::start(upstream.local_addr().unwrap());
    proxy.cut_after(3);
    let mut client = line(&proxy);
    client.write_all(b"request").unwrap();
    let mut got = Vec::new();
    let (mut server, _) = upstream.accept().unwrap();
    server.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"req");
}

#[test]
fn a_delay_is_at_least_as_long_as_asked_for() {
    let proxy = Proxy::start(echo());
    proxy.delay(Duration::from_millis(50));
    let start = Instant::now();
    assert_eq!(said(&line(&proxy), "hello").as_deref(), Some("hello"));
    assert!(start.elapsed() >= Duration::from_millis(100), "both directions wait");
}

#[test]
fn a_limit_slows_a_line() {
    let proxy = Proxy::start(echo());
    proxy.limit(Some(10_000));
    let client = line(&proxy);
    client.set_read_timeout(None).unwrap();
    let start = Instant::now();
    assert!(said(&client, &"x".repeat(2_000)).is_some());
    assert!(start.elapsed() >= Duration::from_millis(400), "2,000 bytes each way at 10,000 per second");
}
