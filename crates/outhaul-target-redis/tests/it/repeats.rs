//! Repeats that are recognised.

use outhaul_target::Target;

use crate::support::{Broker, event, one};

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_is_not_stored_for_as_long_as_its_id_is_remembered() {
    let broker = Broker::plain();
    let target = broker.redis("?outhaul.list=l&outhaul.dedup=3");
    assert!(target.capabilities().deduplicates);
    let deliver = async |ids: &[&str]| {
        let batch: Vec<_> = ids.iter().map(|id| event("p", id)).collect();
        assert!(target.deliver(&batch).await.iter().all(Result::is_ok));
        broker.listed("l").await.into_iter().map(|arrival| arrival.id).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(deliver(&["1", "2", "1", "3"]).await, "1 2 3");
    // The repeat made 1 the newest, so that 2 is the one that is forgotten.
    assert_eq!(deliver(&["1", "4", "1"]).await, "1 2 3 4");
    assert_eq!(deliver(&["2"]).await, "1 2 3 4 2");
    assert_eq!(broker.say::<usize>("ZCARD {l}:outhaul:ids").await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_forgot_the_script_gets_it_again() {
    let broker = Broker::plain();
    let target = broker.redis("?outhaul.stream=s&outhaul.dedup=10");
    one(&target).await.unwrap();
    let _: () = broker.say("SCRIPT FLUSH").await;
    target.deliver(&[event("p", "1"), event("p", "2")]).await.into_iter().for_each(Result::unwrap);
    assert_eq!(broker.streamed("s").await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_could_not_be_stored_is_not_remembered() {
    let broker = Broker::plain();
    let _: () = broker.say("SET s taken").await;
    let target = broker.redis("?outhaul.stream=s&outhaul.dedup=10");
    one(&target).await.unwrap_err();
    assert_eq!(broker.say::<usize>("EXISTS {s}:outhaul:ids").await, 0);
    let _: usize = broker.say("DEL s").await;
    one(&target).await.unwrap();
    one(&target).await.unwrap();
    assert_eq!(broker.streamed("s").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_remembered_survives_sigkill() {
    let broker = Broker::plain();
    let target = broker.redis("?outhaul.stream=s&outhaul.dedup=10");
    one(&target).await.unwrap();
    broker.kill();
    broker.start_again();
    assert_eq!(broker.streamed("s").await.len(), 1);
    crate::support::until_delivered(&target).await;
    assert_eq!(broker.streamed("s").await.len(), 1);
}
