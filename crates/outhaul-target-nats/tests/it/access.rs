//! The ways to show who one is, and subjects that one may not publish to.

use outhaul_services::{Kind, Server};
use outhaul_target::{ErrorKind, Target, Verdict};

use crate::support::{Broker, event, one};

fn with(config: &str) -> Broker {
    Broker::start(Server::builder(Kind::Nats).config(config))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_read_from_its_file_at_each_connection() {
    let broker = with("authorization { token: \"t0ken\" }");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    std::fs::write(&file, "wrong").unwrap();
    let target = broker.nats(&format!("/events.a?outhaul.token_file={}", file.display()));
    let error = one(&target).await.unwrap_err();
    assert_eq!((error.kind(), error.verdict()), (ErrorKind::Authentication, Verdict::Hold));
    std::fs::write(&file, "t0ken\n").unwrap();
    one(&target).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_nkey_signs_the_servers_nonce() {
    let key = nkeys::KeyPair::new_user();
    let broker = with(&format!("authorization {{ users: [{{ nkey: {} }}] }}", key.public_key()));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("seed");
    std::fs::write(&file, key.seed().unwrap()).unwrap();
    one(&broker.nats(&format!("/events.a?outhaul.nkey_file={}", file.display()))).await.unwrap();
    std::fs::write(&file, nkeys::KeyPair::new_user().seed().unwrap()).unwrap();
    let stranger = broker.nats(&format!("/events.a?outhaul.nkey_file={}", file.display()));
    assert_eq!(one(&stranger).await.unwrap_err().kind(), ErrorKind::Authentication);
    std::fs::write(&file, "SUAnonsense").unwrap();
    let error = one(&stranger).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert!(!format!("{error:?} {}", error.detail()).contains("SUAnonsense"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subject_that_one_may_not_publish_to_holds_and_the_others_go_on() {
    let user = "{ user: me, password: pw, permissions: { publish: [\"events.*\", \"_INBOX.>\"], subscribe: [\"_INBOX.>\"] } }";
    let broker = with(&format!("authorization {{ users: [{user}] }}"));
    let uri = format!("nats://me:pw@{}/{{subject}}?outhaul.timeout=3s", broker.proxy.address());
    let target = crate::support::nats(&uri);
    let about = |subject: &str| {
        let event =
            outhaul_target::outhaul_event::Event::builder("t", "/s").subject(subject).build().unwrap();
        outhaul_target::testkit::attempt(event)
    };
    // A dot within an attribute stays within its token, so `secret` is a subject of one token.
    let mut kinds = Vec::new();
    // The server's complaint takes its own way through the client: the first time may pass.
    for _ in 0..20 {
        kinds =
            target.deliver(&[about("secret")]).await.into_iter().map(|r| r.map_err(|e| e.kind())).collect();
        if kinds[0].is_err() {
            break;
        }
    }
    assert_eq!(kinds, [Err(ErrorKind::Permission)]);
    let allowed = crate::support::nats(&format!("nats://me:pw@{}/events.{{pid}}", broker.proxy.address()));
    allowed.deliver(&[event("p", "1")]).await.remove(0).unwrap();
}
