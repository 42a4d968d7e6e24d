//! What the answers of the server mean.

use lapin::types::AMQPValue;
use outhaul_services::Access;
use outhaul_target::outhaul_event::{Event, Limits};
use outhaul_target::testkit::attempt;
use outhaul_target::{Attempt, ErrorKind, Target, Verdict};
use tokio::task::block_in_place;

use crate::support::{Broker, MESSAGE_BYTES_MAX, amqp, builder, event, fresh, one};

fn sized(id: &str, bytes: usize) -> Attempt {
    let event = Event::builder("t", "/test").id(id).pid(id).body("text/plain", "x".repeat(bytes));
    let limits = Limits { body_bytes_max: usize::MAX, ..Limits::default() };
    attempt(event.build_within(&limits).unwrap())
}

fn to(id: &str, queue: &str) -> Attempt {
    attempt(Event::builder("t", "/test").id(id).pid(id).subject(queue).json("{}").build().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_batch_only_what_came_back_is_held() {
    let broker = Broker::shared(Access::Password);
    let queue = fresh("routed");
    broker.make_queue(&queue, &[]).await;
    let target = broker.amqp("outhaul.routing_key={subject}");
    // Returns are handed over with whatever confirmation is next, so that many make it likely to be another's.
    for round in 0..20 {
        let name = |i: usize| format!("{round}-{i}");
        let routed = |i: usize| i % 3 != round % 3;
        let place = |i: usize| if routed(i) { queue.clone() } else { format!("nowhere-{i}") };
        let batch: Vec<Attempt> = (0..30).map(|i| to(&name(i), &place(i))).collect();
        for (i, result) in target.deliver(&batch).await.into_iter().enumerate() {
            match result {
                Ok(()) => assert!(routed(i), "{i} has no queue"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::DestinationMissing, "{error:?}");
                    assert!(!routed(i) && error.detail().contains("nowhere"), "{i}: {error:?}");
                }
            }
        }
        assert_eq!(broker.take(&queue).await.len(), 20);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_batch_is_not_taken_for_the_next_one() {
    let broker = Broker::shared(Access::Password);
    let queue = fresh("dropped");
    broker.make_queue(&queue, &[]).await;
    let target = broker.amqp("outhaul.routing_key={subject}");
    target.deliver(&[to("first", &queue)]).await.remove(0).unwrap();
    for round in 0..50 {
        let nowhere: Vec<Attempt> = (0..20).map(|i| to(&format!("{round}-{i}"), "nowhere")).collect();
        let time = std::time::Duration::from_micros(round * 40);
        // bounded: whether it ends within so little time is left to chance.
        drop(tokio::time::timeout(time, target.deliver(&nowhere)).await);
        target.deliver(&[to(&format!("{round}-good"), &queue)]).await.remove(0).unwrap();
        let error = target.deliver(&[to(&format!("{round}-bad"), "nowhere")]).await.remove(0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DestinationMissing);
    }
    assert_eq!(broker.take(&queue).await.len(), 51);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_means_retry_and_takes_events_again_when_it_has_room() {
    let broker = Broker::shared(Access::Password);
    let queue = fresh("full");
    let full = [
        ("x-max-length", AMQPValue::LongInt(1)),
        ("x-overflow", AMQPValue::LongString("reject-publish".into())),
    ];
    broker.make_queue(&queue, &full).await;
    let target = broker.amqp(&format!("outhaul.routing_key={queue}"));
    one(&target).await.unwrap();
    let error = one(&target).await.unwrap_err();
    assert_eq!((error.kind(), error.verdict()), (ErrorKind::Overloaded, Verdict::Retry), "{error:?}");
    assert!(error.detail().contains("nack"), "{error:?}");
    assert_eq!(broker.take(&queue).await.len(), 1);
    one(&target).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_batch_only_what_is_too_large_is_rejected() {
    let broker = Broker::shared(Access::Password);
    let queue = fresh("large");
    broker.make_queue(&queue, &[]).await;
    let target = broker.amqp(&format!("outhaul.routing_key={queue}"));
    let batch = [sized("a", 10), sized("b", MESSAGE_BYTES_MAX + 1), sized("c", 10)];
    let results = target.deliver(&batch).await;
    let verdicts: Vec<_> = results.iter().map(|result| result.as_ref().unwrap_err().verdict()).collect();
    assert_eq!(verdicts, [Verdict::Retry, Verdict::Reject, Verdict::Retry], "{results:?}");
    assert!(results[1].as_ref().unwrap_err().detail().contains("max size"), "{results:?}");
    let exactly = [sized("d", MESSAGE_BYTES_MAX)];
    target.deliver(&exactly).await.remove(0).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_virtual_host_that_is_missing_holds() {
    let broker = Broker::shared(Access::Password);
    let uri = broker.uri().replace("/%2F", "/elsewhere");
    let error = one(&amqp(&format!("{uri}?outhaul.routing_key=q"))).await.unwrap_err();
    assert_eq!((error.kind(), error.verdict()), (ErrorKind::DestinationMissing, Verdict::Hold), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_may_not_write_to_holds() {
    let broker = Broker::shared(Access::Password);
    let queue = fresh("allowed");
    broker.make_queue(&queue, &[]).await;
    // RabbitMQ keeps this exchange for itself.
    let target = broker.amqp("outhaul.exchange=amq.rabbitmq.trace&outhaul.routing_key=x");
    let error = one(&target).await.unwrap_err();
    assert_eq!((error.kind(), error.verdict()), (ErrorKind::Permission, Verdict::Hold), "{error:?}");
    one(&broker.amqp(&format!("outhaul.routing_key={queue}"))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_file_is_read_at_each_connection() {
    let broker = Broker::shared(Access::Password);
    let queue = fresh("password");
    broker.make_queue(&queue, &[]).await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    std::fs::write(&file, "wrong").unwrap();
    let address = broker.proxy.address();
    let file_option = format!("outhaul.password_file={}", file.display());
    let target = amqp(&format!("amqp://outhaul@{address}?{file_option}&outhaul.routing_key={queue}"));
    let error = one(&target).await.unwrap_err();
    assert_eq!((error.kind(), error.verdict()), (ErrorKind::Authentication, Verdict::Hold), "{error:?}");
    std::fs::write(&file, "k@pt/n:secret\n").unwrap();
    one(&target).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_room_means_retry_and_one_that_stops_holds() {
    let builder = builder(Access::Password).config("vm_memory_high_watermark.absolute = 1MB");
    let broker = Broker::of_builder(builder);
    let queue = fresh("stopping");
    broker.make_queue(&queue, &[]).await;
    let target = broker.amqp(&format!("outhaul.routing_key={queue}&outhaul.timeout=1s"));
    let mut refused = None;
    // The server looks at its memory now and then.
    for _ in 0..1_000 {
        refused = one(&target).await.err();
        if refused.is_some() {
            break;
        }
        // bounded: as said above.
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let error = refused.unwrap();
    assert_eq!((error.kind(), error.verdict()), (ErrorKind::Overloaded, Verdict::Retry), "{error:?}");
    assert!(error.detail().contains("connection.blocked"), "{error:?}");
    block_in_place(|| broker.server().stop());
    let error = target.deliver(&[event("p", "2")]).await.remove(0).unwrap_err();
    assert_eq!(error.verdict(), Verdict::Hold, "{error:?}");
}
