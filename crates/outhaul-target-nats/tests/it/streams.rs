//! What is particular to streams.

use async_nats::jetstream::stream::{Config, DiscardPolicy};
use outhaul_services::{Kind, Server};
use outhaul_target::{ErrorKind, Target, Verdict};

use crate::support::{Broker, STREAM, event, one};

async fn with(config: Config) -> (Broker, outhaul_target_nats::Nats) {
    let broker = Broker::plain();
    broker.make(config).await;
    let target = broker.nats(&format!("/events.a?outhaul.stream={STREAM}"));
    (broker, target)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_does_not_acknowledge_holds() {
    let (_broker, target) = with(Config { no_ack: true, ..Config::default() }).await;
    let error = one(&target).await.unwrap_err();
    assert_eq!((error.kind(), error.verdict()), (ErrorKind::Configuration, Verdict::Hold));
    assert!(error.detail().contains("no_ack"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_does_not_take_the_subject_holds() {
    let broker = Broker::plain();
    broker.make_stream().await;
    let target = broker.nats(&format!("/other.subject?outhaul.stream={STREAM}"));
    let error = one(&target).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DestinationMissing);
    assert!(error.detail().contains("does not take the subject"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_subject_of_another_stream_holds() {
    let broker = Broker::plain();
    broker.make_stream().await;
    let other =
        Config { name: "OTHER".to_owned(), subjects: vec!["other.>".to_owned()], ..Config::default() };
    broker.jetstream().await.create_stream(other).await.unwrap();
    let target = broker.nats(&format!("/other.{{pid}}?outhaul.stream={STREAM}"));
    let error = one(&target).await.unwrap_err();
    assert_eq!((error.kind(), error.verdict()), (ErrorKind::Configuration, Verdict::Hold), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_stream_means_retry_and_takes_events_again_when_it_has_room() {
    let (broker, target) =
        with(Config { max_messages: 1, discard: DiscardPolicy::New, ..Config::default() }).await;
    one(&target).await.unwrap();
    let error = target.deliver(&[event("p", "2")]).await.remove(0).unwrap_err();
    assert_eq!((error.kind(), error.verdict()), (ErrorKind::Overloaded, Verdict::Retry), "{error:?}");
    broker.jetstream().await.get_stream(STREAM).await.unwrap().purge().await.unwrap();
    target.deliver(&[event("p", "2")]).await.remove(0).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_larger_than_the_stream_takes_is_rejected() {
    let (_broker, target) = with(Config { max_message_size: 200, ..Config::default() }).await;
    let event =
        outhaul_target::outhaul_event::Event::builder("t", "/s").id("1").body("text/plain", "x".repeat(300));
    let results = target.deliver(&[outhaul_target::testkit::attempt(event.build().unwrap())]).await;
    let error = results.into_iter().next().unwrap().unwrap_err();
    assert_eq!((error.kind(), error.verdict()), (ErrorKind::TooLarge, Verdict::Reject), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sealed_stream_holds() {
    let (broker, target) = with(Config::default()).await;
    one(&target).await.unwrap();
    let context = broker.jetstream().await;
    let config = context.get_stream(STREAM).await.unwrap().cached_info().config.clone();
    context.update_stream(Config { sealed: true, ..config }).await.unwrap();
    let error = target.deliver(&[event("p", "2")]).await.remove(0).unwrap_err();
    assert_eq!(error.verdict(), Verdict::Hold, "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_jetstream_holds() {
    let broker = Broker::start(
        Server::builder(Kind::Nats)
            .config("accounts { A { users: [{user: a, password: b}] } }\nno_auth_user: a"),
    );
    let target = broker.nats("/events.a?outhaul.stream=EVENTS&outhaul.timeout=2s");
    let error = one(&target).await.unwrap_err();
    assert_eq!(error.verdict(), Verdict::Hold, "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_acknowledged_together() {
    let (broker, target) = with(Config::default()).await;
    let batch: Vec<_> = (0..200).map(|i| event(&format!("p{i}"), &i.to_string())).collect();
    assert!(target.deliver(&batch).await.iter().all(Result::is_ok));
    assert_eq!(broker.stored().await.len(), 200);
}
