//! What becomes of what is underway when the line or the server is gone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outhaul_target::{Attempt, ErrorKind, Target, Verdict};
use outhaul_target_mqtt::Mqtt;

use crate::support::{Broker, Subscriber, TOPIC, arrival, event, fresh, one, steal};

/// Delivers one event, as often as it takes, and says whether nobody knows what became of an attempt.
async fn delivered(target: &Mqtt, attempt: Attempt) -> bool {
    let mut unknown = false;
    // bounded: by the attempts.
    for _ in 0..2_000 {
        match target.deliver(std::slice::from_ref(&attempt)).await.remove(0) {
            Ok(()) => return unknown,
            Err(error) => {
                assert_ne!(error.verdict(), Verdict::Reject, "{error:?}");
                unknown |= error.kind() == ErrorKind::Conflict;
            }
        }
        // bounded: as said above.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("not delivered");
}

#[tokio::test(flavor = "multi_thread")]
async fn with_qos_2_a_line_that_is_cut_again_and_again_repeats_nothing_that_is_known() {
    for version in ["5", "3.1.1"] {
        let broker = Broker::plain();
        let subscriber = Subscriber::start(&broker, &[TOPIC]).await;
        let id = fresh("twice");
        let options = format!("outhaul.version={version}&outhaul.qos=2&outhaul.client_id={id}");
        let target = broker.mqtt(&format!("/{TOPIC}?{options}&outhaul.timeout=5s"));
        let over = AtomicBool::new(false);
        let deliver = async {
            let mut unknown = Vec::new();
            for n in 0.. {
                if over.load(Ordering::Relaxed) {
                    return (n, unknown);
                }
                unknown.push(delivered(&target, event("p", &n.to_string())).await);
            }
            unreachable!("there is no last number")
        };
        let cut = async {
            for n in 0..40 {
                // bounded: forty times.
                tokio::time::sleep(Duration::from_millis(3 + n * 7 % 60)).await;
                broker.proxy.cut();
            }
            over.store(true, Ordering::Relaxed);
        };
        let ((count, unknown), ()) = tokio::join!(deliver, cut);
        assert!(count >= 10, "{count}");
        let heard: Vec<usize> =
            subscriber.heard().await.iter().map(|message| arrival(message).id.parse().unwrap()).collect();
        let mut first = Vec::new();
        for n in heard {
            if !first.contains(&n) {
                first.push(n);
            } else {
                assert!(unknown[n], "{version}: {n} came twice");
            }
        }
        assert_eq!(first, (0..count).collect::<Vec<_>>(), "{version}: each of them, in order");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_within_which_the_line_is_cut_arrives_over_the_next_one() {
    for version in ["5", "3.1.1"] {
        let broker = Broker::plain();
        let subscriber = Subscriber::start(&broker, &[TOPIC]).await;
        let id = fresh("within");
        let options = format!("outhaul.version={version}&outhaul.client_id={id}");
        let target = broker.mqtt(&format!("/{TOPIC}?{options}"));
        target.deliver(&[event("p", "0")]).await.remove(0).unwrap();
        for n in 1..20 {
            broker.proxy.cut_after(40);
            delivered(&target, event("p", &n.to_string())).await;
        }
        let mut ids: Vec<String> =
            subscriber.heard().await.iter().map(|message| arrival(message).id).collect();
        ids.dedup();
        assert_eq!(ids, (0..20).map(|n| n.to_string()).collect::<Vec<_>>(), "{version}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_kept_no_session_means_retry_at_once() {
    for version in ["5", "3.1.1"] {
        let broker = Broker::plain();
        let id = fresh("kept");
        let options = format!("outhaul.version={version}&outhaul.client_id={id}");
        let target = broker.mqtt(&format!("/{TOPIC}?{options}&outhaul.timeout=50s"));
        one(&target).await.unwrap();
        broker.proxy.hold(true);
        let batch = [event("p", "2"), event("q", "3")];
        let underway = target.deliver(&batch);
        let lose = async {
            // bounded: until the client has sent it into the line that nothing passes.
            tokio::time::sleep(Duration::from_millis(300)).await;
            steal(&broker, &id).await;
            broker.proxy.hold(false);
        };
        // bounded: far less than the target's deadline.
        let (results, ()) =
            tokio::time::timeout(Duration::from_secs(40), async { tokio::join!(underway, lose) })
                .await
                .unwrap();
        for result in results {
            let error = result.unwrap_err();
            assert_eq!((error.kind(), error.verdict()), (ErrorKind::Conflict, Verdict::Retry), "{error:?}");
        }
        one(&target).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_process_does_not_go_on_with_the_session_of_the_one_before() {
    for version in ["5", "3.1.1"] {
        let broker = Broker::plain();
        let subscriber = Subscriber::start(&broker, &[TOPIC]).await;
        let id = fresh("again");
        for _ in 0..2 {
            let options = format!("outhaul.version={version}&outhaul.client_id={id}");
            let target = broker.mqtt(&format!("/{TOPIC}?{options}"));
            assert!(target.capabilities().exclusive);
            one(&target).await.unwrap();
            // As if its process was killed.
            broker.proxy.cut();
        }
        assert_eq!(subscriber.heard().await.len(), 2);
        let log = std::fs::read_to_string(broker.server().log()).unwrap();
        assert!(log.contains(&format!(" as {id} ")), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_is_closed_leaves_no_connection() {
    let broker = Broker::plain();
    let id = fresh("closed");
    let target = broker.mqtt(&format!("/{TOPIC}?outhaul.client_id={id}"));
    one(&target).await.unwrap();
    target.close().await.unwrap();
    let gone = format!("Client {id} disconnected.");
    let mut log = String::new();
    // bounded: the server writes it when it has read our goodbye.
    for _ in 0..500 {
        log = std::fs::read_to_string(broker.server().log()).unwrap();
        if log.contains(&gone) {
            return;
        }
        // bounded: as said above.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("no goodbye in {log}");
}
