//! Waiting for replicas.

use std::time::{Duration, Instant};

use outhaul_target::{ErrorKind, Target, Verdict};

use crate::support::{Broker, event, is, one};

/// Has the second one be a replica of the first, and waits until it is.
async fn follow(primary: &Broker, replica: &Broker) {
    let address = primary.proxy.address();
    let _: () = replica.say(&format!("REPLICAOF {} {}", address.ip(), address.port())).await;
    let began = Instant::now();
    while !primary.say::<String>("INFO replication").await.contains("state=online") {
        assert!(began.elapsed() < Duration::from_secs(30), "the replica does not come");
        // bounded: as said above.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_delivered_once_the_replica_has_it() {
    let (primary, replica) = (Broker::plain(), Broker::plain());
    follow(&primary, &replica).await;
    let target = primary.redis("?outhaul.stream=s&outhaul.wait_replicas=1&outhaul.wait_timeout=10s");
    let batch: Vec<_> = (0..50).map(|i| event("p", &i.to_string())).collect();
    assert!(target.deliver(&batch).await.iter().all(Result::is_ok));
    assert_eq!(replica.streamed("s").await.len(), 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn too_few_replicas_mean_retry() {
    let primary = Broker::plain();
    let target = primary.redis("?outhaul.list=l&outhaul.wait_replicas=2&outhaul.wait_timeout=50ms");
    for error in target.deliver(&[event("p", "1"), event("q", "2")]).await.into_iter().map(Result::unwrap_err)
    {
        is(&error, ErrorKind::Conflict, Verdict::Retry, "0 of 2 replicas");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_that_is_recognised_waits_for_the_replica_as_well() {
    let (primary, replica) = (Broker::plain(), Broker::plain());
    follow(&primary, &replica).await;
    replica.server().pause();
    let rest = "?outhaul.stream=s&outhaul.dedup=9&outhaul.wait_replicas=1&outhaul.wait_timeout=100ms";
    for _ in 0..3 {
        // Each has a connection of its own, which has written nothing before.
        let error = one(&primary.redis(rest)).await.unwrap_err();
        is(&error, ErrorKind::Conflict, Verdict::Retry, "0 of 1 replicas");
    }
    replica.server().resume();
    crate::support::until_delivered(&primary.redis(rest)).await;
    assert_eq!(replica.streamed("s").await.len(), 1);
}
