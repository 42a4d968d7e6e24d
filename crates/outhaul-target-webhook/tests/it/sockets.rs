//! What can go wrong below HTTP, played by plain sockets.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use outhaul_target::{ErrorKind, Target, TargetUri, Verdict};
use outhaul_target_webhook::Webhook;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::support::{deliver, event};

/// Plays a part on every connection; ends with the set.
async fn server<F, P>(part: P) -> (u16, JoinSet<()>)
where
    F: Future<Output = ()> + Send + 'static,
    P: Fn(TcpStream) -> F + Send + 'static,
{
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            connections.spawn(part(stream));
        }
    });
    (port, tasks)
}

async fn read_request(stream: &mut TcpStream) {
    let mut request = Vec::new();
    while !request.ends_with(br#"{"a": 1}"#) {
        request.push(stream.read_u8().await.unwrap());
    }
}

fn webhook(uri: &str) -> Webhook {
    Webhook::from_uri(TargetUri::parse(uri).unwrap()).unwrap()
}

async fn outcome(uri: &str) -> (ErrorKind, Verdict) {
    let error = deliver(&webhook(uri)).await.unwrap_err();
    (error.kind(), error.verdict())
}

#[tokio::test]
async fn a_connection_that_is_cut_mid_request_or_mid_answer_holds_the_target() {
    for answer in ["", "HTTP/1.1 20", "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nonly this"] {
        let (port, _tasks) = server(move |mut stream| async move {
            let mut some = [0; 40];
            stream.read_exact(&mut some).await.unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
            // What is unread makes the kernel send a reset.
        })
        .await;
        let outcome = outcome(&format!("http://127.0.0.1:{port}/")).await;
        assert_eq!(outcome, (ErrorKind::ConnectionReset, Verdict::Hold), "{answer}");
    }
}

#[tokio::test]
async fn an_answer_that_drips_ends_at_the_deadline() {
    let (port, _tasks) = server(|mut stream| async move {
        read_request(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n").await.unwrap();
        while stream.write_all(b"x").await.is_ok() {
            // bounded: the receiver is slow; the client hangs up.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let began = Instant::now();
    let outcome = outcome(&format!("http://127.0.0.1:{port}/?outhaul.timeout=300ms")).await;
    assert_eq!(outcome, (ErrorKind::TimedOut, Verdict::Retry));
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn an_answer_without_end_is_not_read_to_its_end() {
    let (port, _tasks) = server(|mut stream| async move {
        read_request(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 999999999999\r\n\r\n").await.unwrap();
        while stream.write_all(&[b'x'; 4096]).await.is_ok() {}
    })
    .await;
    deliver(&webhook(&format!("http://127.0.0.1:{port}/?outhaul.timeout=5s"))).await.unwrap();
}

#[tokio::test]
async fn a_receiver_that_speaks_no_http_holds_the_target() {
    let (port, _tasks) = server(|mut stream| async move {
        read_request(&mut stream).await;
        stream.write_all(b"220 mail.example.com ESMTP\r\n").await.unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap_or_default();
    })
    .await;
    let outcome = outcome(&format!("http://127.0.0.1:{port}/")).await;
    assert_eq!(outcome, (ErrorKind::ProtocolViolation, Verdict::Hold));
}

#[tokio::test]
async fn a_failed_tls_handshake_holds_the_target() {
    let (port, _tasks) = server(|mut stream| async move {
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap_or_default();
    })
    .await;
    assert_eq!(outcome(&format!("https://127.0.0.1:{port}/")).await, (ErrorKind::Tls, Verdict::Hold));
}

#[tokio::test]
async fn a_handshake_that_hangs_is_no_connection() {
    let (port, _tasks) = server(|mut stream| async move {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap_or_default();
    })
    .await;
    let outcome = outcome(&format!("https://127.0.0.1:{port}/?outhaul.connect_timeout=200ms")).await;
    assert_eq!(outcome, (ErrorKind::Unreachable, Verdict::Hold));
}

#[tokio::test]
async fn a_name_that_does_not_exist_holds_the_target() {
    let outcome = outcome("http://nobody.invalid/").await;
    assert_eq!(outcome, (ErrorKind::Dns, Verdict::Hold));
}

#[tokio::test]
async fn forbidden_addresses_are_refused_before_anything_is_sent() {
    for host in ["169.254.169.254", "[fe80::1]", "[fd00:ec2::254]", "0xa9fea9fe"] {
        let webhook = webhook(&format!("http://{host}/latest/meta-data?outhaul.timeout=2s"));
        let error = deliver(&webhook).await.unwrap_err();
        assert_eq!((error.kind(), error.verdict()), (ErrorKind::PolicyDenied, Verdict::Hold), "{host}");
        assert_eq!(error.kind().reason(), "policy_denied");
        assert_eq!(webhook.probe().await.unwrap_err().kind(), ErrorKind::PolicyDenied);
    }
}

#[tokio::test]
async fn dropping_a_delivery_closes_its_connection() {
    let (closed, mut when_closed) = tokio::sync::mpsc::channel(1);
    let (began, mut when_began) = tokio::sync::mpsc::channel(1);
    let (port, _tasks) = server(move |mut stream| {
        let (began, closed) = (began.clone(), closed.clone());
        async move {
            let mut some = [0; 40];
            stream.read_exact(&mut some).await.unwrap();
            began.send(()).await.unwrap();
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).await.unwrap_or_default();
            closed.send(()).await.unwrap();
        }
    })
    .await;
    let webhook = webhook(&format!("http://127.0.0.1:{port}/"));
    let batch = [event("1")];
    tokio::select! {
        results = webhook.deliver(&batch) => panic!("nobody answers: {results:?}"),
        _ = when_began.recv() => {}
    }
    // bounded: the connection closes as soon as the request is dropped.
    tokio::time::timeout(Duration::from_secs(10), when_closed.recv()).await.unwrap().unwrap();
}
