//! What is declared, and what is not.

use lapin::ExchangeKind;
use lapin::options::ExchangeDeclareOptions;
use lapin::types::{AMQPValue, FieldTable};
use outhaul_services::Access;
use outhaul_target::{ErrorKind, Target, Verdict};

use crate::support::{Broker, fresh, one};

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_made_and_made_again_when_it_was_deleted() {
    let broker = Broker::shared(Access::Password);
    for kind in ["queue", "quorum_queue"] {
        let queue = fresh(kind);
        let target = broker.amqp(&format!("outhaul.routing_key={queue}&outhaul.declare={kind}"));
        one(&target).await.unwrap();
        assert_eq!(broker.take(&queue).await.len(), 1);
        broker.delete_queue(&queue).await;
        let error = one(&target).await.unwrap_err();
        assert_eq!((error.kind(), error.verdict()), (ErrorKind::DestinationMissing, Verdict::Hold));
        one(&target).await.unwrap();
        assert_eq!(broker.take(&queue).await.len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_is_made_durable_and_of_its_type() {
    let broker = Broker::shared(Access::Password);
    for (name, kind) in [
        ("direct", ExchangeKind::Direct),
        ("fanout", ExchangeKind::Fanout),
        ("topic", ExchangeKind::Topic),
        ("headers", ExchangeKind::Headers),
    ] {
        let exchange = fresh(name);
        let target = broker.amqp(&format!("outhaul.exchange={exchange}&outhaul.declare={name}"));
        // Nobody is bound to it.
        assert_eq!(one(&target).await.unwrap_err().kind(), ErrorKind::DestinationMissing);
        let (_client, channel) = broker.channel().await;
        let same = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        channel.exchange_declare(exchange.as_str().into(), kind, same, FieldTable::default()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_declaration_that_does_not_fit_holds() {
    let broker = Broker::shared(Access::Password);
    let queue = fresh("other");
    broker.make_queue(&queue, &[("x-max-length", AMQPValue::LongInt(7))]).await;
    let target = broker.amqp(&format!("outhaul.routing_key={queue}&outhaul.declare=queue"));
    let error = one(&target).await.unwrap_err();
    assert_eq!((error.kind(), error.verdict()), (ErrorKind::Configuration, Verdict::Hold), "{error:?}");
    assert!(error.detail().contains("x-max-length"), "{error:?}");
    let exchange = fresh("other");
    let make = |kind| broker.amqp(&format!("outhaul.exchange={exchange}&outhaul.declare={kind}"));
    assert_eq!(one(&make("topic")).await.unwrap_err().kind(), ErrorKind::DestinationMissing);
    assert_eq!(one(&make("fanout")).await.unwrap_err().kind(), ErrorKind::Configuration);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_declared_unasked() {
    let broker = Broker::shared(Access::Password);
    let (queue, exchange) = (fresh("unasked"), fresh("unasked"));
    for options in [format!("outhaul.routing_key={queue}"), format!("outhaul.exchange={exchange}")] {
        let target = broker.amqp(&options);
        for _ in 0..2 {
            let error = one(&target).await.unwrap_err();
            assert_eq!((error.kind(), error.verdict()), (ErrorKind::DestinationMissing, Verdict::Hold));
            let probe = target.probe().await.unwrap_err();
            assert_eq!(probe.kind(), ErrorKind::DestinationMissing, "{probe:?}");
        }
    }
}
