//! What goes over the wire, and what answers mean.

use std::fs;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use outhaul_target::outhaul_event::{Event, Limits};
use outhaul_target::testkit::attempt;
use outhaul_target::{ErrorKind, Target, TargetUri, Verdict};
use outhaul_target_webhook::Webhook;

use crate::support::{Answer, Receiver, deliver, event};

#[tokio::test]
async fn a_request_has_the_url_as_it_is_written_and_the_webhook_headers() {
    let receiver = Receiver::start();
    let webhook = receiver.webhook("/a%20b;c?x=%2F&outhaul.batch=5&y=a+b");
    deliver(&webhook).await.unwrap();
    let request = receiver.requests().remove(0);
    assert_eq!((request.method.as_str(), &*request.uri.to_string()), ("POST", "/a%20b;c?x=%2F&y=a+b"));
    assert_eq!(request.headers["webhook-id"], event("1").dedup_id.to_string());
    let timestamp: u64 = request.headers["webhook-timestamp"].to_str().unwrap().parse().unwrap();
    assert!(timestamp > 1_700_000_000, "{timestamp}");
    assert_eq!(request.headers["ce-id"], "1");
    assert_eq!(request.headers["content-type"], "application/json");
    assert_eq!(&request.body[..], br#"{"a": 1}"#);
    assert!(!request.headers.contains_key("authorization"));
    assert!(!request.headers.contains_key("webhook-signature"));
}

#[tokio::test]
async fn a_request_without_data_has_a_length_and_one_with_data_has_a_type() {
    let receiver = Receiver::start();
    for options in ["", "outhaul.format=body", "outhaul.mode=structured"] {
        let webhook = receiver.webhook(&format!("/?{options}"));
        for (data, length, content_type) in
            [("", "0", None), (r#","data":{"a":1}"#, "7", Some("application/json"))]
        {
            let text = format!(r#"{{"specversion":"1.0","id":"1","source":"/s","type":"t"{data}}}"#);
            let event = Event::from_json(text.as_bytes(), &Limits::default()).unwrap();
            webhook.deliver(&[attempt(event)]).await.remove(0).unwrap();
            let request = receiver.requests().pop().unwrap();
            assert!(!request.headers.contains_key("transfer-encoding"));
            if options != "outhaul.mode=structured" {
                assert_eq!(request.headers["content-length"], length, "{options} {data}");
                let found = request.headers.get("content-type").map(|value| value.to_str().unwrap());
                assert_eq!(found, content_type, "{options} {data}");
            }
        }
    }
}

#[tokio::test]
async fn the_formats_body_and_s3_have_no_attributes() {
    let receiver = Receiver::start();
    for (format, body) in
        [("body", r#"{"a": 1}"#), ("s3", r#"{"EventName":"t","Key":"p","Records":[{"a": 1}]}"#)]
    {
        deliver(&receiver.webhook(&format!("/?outhaul.format={format}"))).await.unwrap();
        let request = receiver.requests().pop().unwrap();
        assert_eq!(&request.body[..], body.as_bytes());
        assert!(request.headers.keys().all(|name| !name.as_str().starts_with("ce-")));
        assert_eq!(request.headers["content-type"], "application/json");
    }
}

#[tokio::test]
async fn credentials_are_sent_and_read_again_when_they_change() {
    let receiver = Receiver::start();
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    let webhook = receiver.webhook(&format!("/?outhaul.token_file={}", token.display()));
    let missing = deliver(&webhook).await.unwrap_err();
    assert_eq!((missing.kind(), missing.verdict()), (ErrorKind::Configuration, Verdict::Hold));
    for value in ["first", "the second"] {
        fs::write(&token, format!("{value}\n")).unwrap();
        deliver(&webhook).await.unwrap();
        assert_eq!(receiver.requests().pop().unwrap().headers["authorization"], format!("Bearer {value}"));
    }
    fs::write(&token, "two\nlines").unwrap();
    let error = deliver(&webhook).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Configuration && !format!("{error:?}").contains("lines"), "{error:?}");

    let uri = format!("http://me:p%40ss@{}/", receiver.address);
    deliver(&Webhook::from_uri(TargetUri::parse(&uri).unwrap()).unwrap()).await.unwrap();
    let expected = format!("Basic {}", BASE64.encode("me:p@ss"));
    assert_eq!(receiver.requests().pop().unwrap().headers["authorization"], expected);
}

#[tokio::test]
async fn a_signature_covers_id_time_and_body() {
    let receiver = Receiver::start();
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("secret");
    let webhook = receiver.webhook(&format!("/?outhaul.secret_file={}", secret.display()));
    fs::write(&secret, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n").unwrap();
    deliver(&webhook).await.unwrap();
    let request = receiver.requests().remove(0);
    let signature = request.headers["webhook-signature"].to_str().unwrap();
    // How it is made is tested against the reference's example; here only that it is there, and whole.
    assert_eq!(BASE64.decode(signature.strip_prefix("v1,").unwrap()).unwrap().len(), 32);
    fs::write(&secret, "no base64!").unwrap();
    assert_eq!(deliver(&webhook).await.unwrap_err().kind(), ErrorKind::Configuration);
}

#[tokio::test]
async fn statuses_mean_what_the_table_says() {
    let receiver = Receiver::start();
    let webhook = receiver.webhook("/");
    for (status, verdict) in [
        (200, None),
        (299, None),
        (302, Some(Verdict::Hold)),
        (400, Some(Verdict::Reject)),
        (401, Some(Verdict::Hold)),
        (404, Some(Verdict::Hold)),
        (409, Some(Verdict::Retry)),
        (413, Some(Verdict::Reject)),
        (418, Some(Verdict::Retry)),
        (503, Some(Verdict::Retry)),
    ] {
        receiver.answer(Answer::Status(status, Vec::new()));
        let error = deliver(&webhook).await.err();
        assert_eq!(error.as_ref().map(|error| error.verdict()), verdict, "{status}");
        assert!(error.is_none_or(|error| error.detail().contains(&status.to_string())));
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let (receiver, other) = (Receiver::start(), Receiver::start());
    receiver.answer(Answer::Status(307, vec![("location", format!("http://{}/", other.address))]));
    let error = deliver(&receiver.webhook("/")).await.unwrap_err();
    assert_eq!((error.kind(), error.verdict()), (ErrorKind::Configuration, Verdict::Hold));
    assert!(other.requests().is_empty());
}

#[tokio::test]
async fn retry_after_is_handed_on_up_to_an_hour() {
    let receiver = Receiver::start();
    let webhook = receiver.webhook("/");
    for (value, expected) in [("7", Some(7)), ("86400", Some(3_600)), ("nonsense", None)] {
        receiver.answer(Answer::Status(429, vec![("retry-after", value.to_owned())]));
        let error = deliver(&webhook).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Throttled);
        assert_eq!(error.retry_after(), expected.map(Duration::from_secs), "{value}");
    }
}

#[tokio::test]
async fn connections_are_kept() {
    let receiver = Receiver::start();
    let webhook = receiver.webhook("/");
    let established = || {
        let table = fs::read_to_string("/proc/self/net/tcp").unwrap();
        let port = format!(":{:04X} ", receiver.address.port());
        // Remote address, state 01: established, ours.
        table.lines().filter(|line| line.contains(&format!("{port}01"))).count()
    };
    for _ in 0..20 {
        deliver(&webhook).await.unwrap();
    }
    // The second request may come before the first connection is put back.
    assert!((1..=3).contains(&established()), "{} connections", established());
}

#[tokio::test]
async fn the_probe_tells_wrong_credentials_and_overload_from_a_receiver_that_knows_no_options() {
    let receiver = Receiver::start();
    let webhook = receiver.webhook("/");
    for (status, expected) in
        [(405, None), (404, None), (401, Some(ErrorKind::Authentication)), (503, Some(ErrorKind::Overloaded))]
    {
        receiver.answer(Answer::Status(status, Vec::new()));
        assert_eq!(webhook.probe().await.err().map(|error| error.kind()), expected, "{status}");
    }
    assert!(receiver.requests().iter().all(|request| request.method == "OPTIONS" && request.body.is_empty()));
}

#[test]
fn a_destination_has_no_credentials() {
    let of =
        |text: &str| Webhook::from_uri(TargetUri::parse(text).unwrap()).unwrap().destination().to_owned();
    assert_eq!(of("http://me:s3cret@H:80/in?outhaul.batch=1"), "http://h/in");
    assert!(!of("http://h/?token=s3cret").contains("s3cret"));
}
