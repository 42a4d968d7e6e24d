//! The rule `Prefix`: nothing of a pid arrives behind an event that did not.

use outhaul_target::outhaul_event::{Bytes, Event};
use outhaul_target::testkit::{Arrival, attempt};
use outhaul_target::{ErrorKind, Target};

use crate::support::{Broker, event, kinds, to};

fn ids(arrived: &[Arrival]) -> Vec<&str> {
    arrived.iter().map(|arrival| arrival.id.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_pid_is_put_behind_an_event_without_a_key() {
    let broker = Broker::plain();
    let target = broker.redis("?outhaul.stream=a{subject}");
    let keyless = |pid: &str, id: &str| event(pid, id);
    let batch =
        [to("p", "1", "1"), keyless("p", "2"), to("p", "3", "1"), to("q", "4", "1"), to("p", "5", "2")];
    let results = kinds(target.deliver(&batch).await);
    let skipped = Err(ErrorKind::Skipped);
    assert_eq!(results, [Ok(()), Err(ErrorKind::Malformed), skipped, Ok(()), skipped]);
    assert_eq!(ids(&broker.streamed("a1").await), ["1", "4"]);
    assert_eq!(broker.say::<usize>("EXISTS a2").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_pid_is_put_behind_a_key_of_another_type() {
    let broker = Broker::plain();
    let _: () = broker.say("SET abad taken").await;
    for place in ["stream=a{subject}", "stream=a{subject}&outhaul.dedup=100"] {
        let target = broker.redis(&format!("?outhaul.{place}"));
        let batch = [
            to("p", "1", "ok"),
            to("p", "2", "bad"),
            to("p", "3", "ok"),
            to("q", "4", "ok"),
            to("q", "5", "other"),
            to("q", "6", "ok"),
        ];
        let results = kinds(target.deliver(&batch).await);
        let (wrong, skipped) = (Err(ErrorKind::Configuration), Err(ErrorKind::Skipped));
        assert_eq!(results, [Ok(()), wrong, skipped, Ok(()), Ok(()), Ok(())], "{place}");
        assert_eq!(ids(&broker.streamed("aok").await), ["1", "4", "6"], "{place}");
        assert_eq!(ids(&broker.streamed("aother").await), ["5"], "{place}");
        let _: usize = broker.say("DEL aok aother {aok}:outhaul:ids {aother}:outhaul:ids").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_one_may_not_write_stops_its_own_pid_only() {
    let broker = Broker::plain();
    let _: () = broker.say("ACL SETUSER me on >pw ~aok +@all").await;
    let target =
        crate::support::redis(&format!("redis://me:pw@{}?outhaul.list=a{{subject}}", broker.proxy.address()));
    let batch = [to("p", "1", "ok"), to("q", "2", "no"), to("q", "3", "ok"), to("p", "4", "ok")];
    let results = kinds(target.deliver(&batch).await);
    assert_eq!(results, [Ok(()), Err(ErrorKind::Permission), Err(ErrorKind::Skipped), Ok(())]);
    assert_eq!(ids(&broker.listed("aok").await), ["1", "4"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_subscribed_stops_a_pid_until_somebody_is() {
    let broker = Broker::plain();
    let target = broker.redis("?outhaul.channel=a{subject}");
    let results = kinds(target.deliver(&[to("p", "1", "x"), to("p", "2", "x"), to("q", "3", "y")]).await);
    let (nobody, skipped) = (Err(ErrorKind::Conflict), Err(ErrorKind::Skipped));
    assert_eq!(results, [nobody, skipped, nobody]);
    let anyway = broker.redis("?outhaul.channel=a{subject}&outhaul.no_receivers=delivered");
    assert_eq!(kinds(anyway.deliver(&[to("p", "1", "x"), to("q", "3", "y")]).await), [Ok(()), Ok(())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_one_transaction() {
    let broker = Broker::plain();
    let target = broker.redis("?outhaul.list=l");
    let _: () = broker.say("CONFIG RESETSTAT").await;
    let batch: Vec<_> = (0..200).map(|i| event(&format!("p{}", i % 3), &i.to_string())).collect();
    assert!(target.deliver(&batch).await.iter().all(Result::is_ok));
    let expected: Vec<String> = (0..200).map(|i| i.to_string()).collect();
    assert_eq!(ids(&broker.listed("l").await), expected);
    let stats: String = broker.say("INFO commandstats").await;
    let calls = |command: &str| {
        let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:"))).unwrap();
        line.split_once("calls=").unwrap().1.split_once(',').unwrap().0.to_owned()
    };
    // The other one is the greeting's.
    assert_eq!((calls("exec"), calls("rpush")), ("2".to_owned(), "200".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_has_the_attributes_of_its_event() {
    let broker = Broker::plain();
    let event =
        Event::builder("paid", "/shop").id("1").pid("p").header("tenant", "x").time("2026-01-02T03:04:05Z");
    let attempt = attempt(event.body("text/plain", "hello").build().unwrap());
    broker.redis("/5?outhaul.stream=s").deliver(std::slice::from_ref(&attempt)).await.remove(0).unwrap();
    assert_eq!(broker.say::<usize>("EXISTS s").await, 0, "it is in the database that was asked for");
    let client = broker.client().await;
    let _: () = client.say("SELECT 5").await.unwrap();
    let _: bool = client.say("MOVE s 0").await.unwrap();
    let mut entry = broker.entries("s").await.remove(0).into_iter().collect::<Vec<_>>();
    entry.sort_unstable();
    let expected = [
        ("content-type", "text/plain"),
        ("data", "hello"),
        ("dedup_id", &attempt.dedup_id.to_string()),
        ("id", "1"),
        ("partitionkey", "p"),
        ("source", "/shop"),
        ("specversion", "1.0"),
        ("tenant", "x"),
        ("time", "2026-01-02T03:04:05Z"),
        ("type", "paid"),
    ];
    assert_eq!(
        entry,
        expected.map(|(name, value)| (name.to_owned(), Bytes::copy_from_slice(value.as_bytes())))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_trimmed_about() {
    let broker = Broker::plain();
    let target = broker.redis("?outhaul.stream=s&outhaul.maxlen=200");
    for round in 0..10 {
        let batch: Vec<_> = (0..100).map(|i| event("p", &format!("{round}-{i}"))).collect();
        assert!(target.deliver(&batch).await.iter().all(Result::is_ok));
    }
    let length: usize = broker.say("XLEN s").await;
    assert!((200..500).contains(&length), "{length}");
}
