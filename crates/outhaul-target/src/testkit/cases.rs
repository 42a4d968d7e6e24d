//! The cases.

use std::collections::{BTreeMap, HashSet};
use std::error::Error;
use std::fmt::Write as _;
use std::future::Future;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::join_all;
use outhaul_event::{Bytes, Event};
use tokio::time::{Instant, sleep, timeout};

use super::driver::deliver_all;
use super::trouble::*;
use super::{Arrival, Condition, Fixture, Unsupported, attempt};
use crate::contract::{Attempt, Target};
use crate::error::{DeliveryError, ErrorKind, Verdict};

pub(super) type Ended = Result<(), Unsupported>;

macro_rules! table {
    ($($case:ident)*) => {
        /// The names of all cases.
        pub const CASES: &[&str] = &[$(stringify!($case)),*];

        pub(super) async fn run<F: Fixture>(case: &str) -> Ended {
            match case {
                $(stringify!($case) => boxed($case::<F>()).await,)*
                _ => panic!("there is no case {case}"),
            }
        }
    };
}

table! {
    bodies_come_back_exact
    a_batch_has_one_result_per_event
    order_per_pid_is_kept_through_retries
    every_attempt_carries_the_same_dedup_id
    two_sources_with_one_id_stay_two
    a_receiver_that_refuses_means_hold
    a_receiver_that_hangs_ends_at_the_deadline
    a_dropped_delivery_leaves_the_target_usable
    a_probe_delivers_nothing
    closing_twice_is_fine
    a_delivery_after_close_is_an_error
    no_secret_is_shown
    a_body_of_a_mebibyte_arrives
    sixty_four_arrive_at_once
    a_receiver_that_cuts_the_line_loses_nothing
    a_receiver_that_is_cut_again_and_again_keeps_the_order
    a_receiver_that_throttles_means_retry
    a_receiver_that_is_paused_ends_at_the_deadline
    a_receiver_that_is_killed_comes_back_with_what_it_took
    a_missing_destination_means_hold_until_it_appears
    wrong_credentials_mean_hold
    an_event_too_large_is_rejected_alone
    a_batch_keeps_its_order_when_one_event_fails
    an_event_without_a_route_stops_nobody
    tls_delivers
    a_certificate_of_another_authority_means_hold
    an_expired_certificate_means_hold
    a_certificate_of_another_name_means_hold
    a_missing_client_certificate_means_hold
    a_client_certificate_renewed_on_disk_is_used
}

fn boxed<'a>(
    case: impl Future<Output = Ended> + Send + 'a,
) -> std::pin::Pin<Box<dyn Future<Output = Ended> + Send + 'a>> {
    Box::pin(case)
}

/// Long enough that it never passes in a case that is not about it.
pub(super) const CALM: Duration = Duration::from_secs(30);
/// What a case about the deadline waits for.
pub(super) const SHORT: Duration = Duration::from_millis(400);
/// How long a deadline may be overrun on a busy machine.
pub(super) const GRACE: Duration = Duration::from_secs(8);

async fn bodies_come_back_exact<F: Fixture>() -> Ended {
    let fixture = F::start().await;
    let target = fixture.target(CALM).await;
    let bodies: [(&str, &[u8]); 6] = [
        ("application/json", br#"{"total":19.900,"big":123456789012345678901234567890,"text":"\u00e9 \n"}"#),
        ("application/json", br#"["a",  1e2 , null]"#),
        ("application/json", b"\"just text\""),
        ("text/plain; charset=utf-8", "Euro \u{20ac}\nsecond line\r\n".as_bytes()),
        ("application/octet-stream", &[0, 159, 146, 150, 10, 255]),
        ("application/xml", b"<a href=\"x\"/>"),
    ];
    for (i, (content_type, body)) in bodies.into_iter().enumerate() {
        let event = Event::builder("com.example.body", "/kit")
            .id(format!("{i} \u{e9}%\""))
            .pid(format!("pid {i}/\u{e4}"))
            .subject("a subject")
            .time("2026-01-02T03:04:05Z")
            .header("traceid", "00-ab")
            .body(content_type, Bytes::from_static(body));
        one(&target, event.build().expect("a valid event")).await.expect("delivered");
    }
    let arrived = fixture.arrived().await;
    assert_eq!(arrived.len(), bodies.len(), "each event arrives once");
    for (i, (arrival, (_, body))) in arrived.iter().zip(bodies).enumerate() {
        let shown = String::from_utf8_lossy(&arrival.body);
        assert_eq!(arrival.body, body, "body {i} arrived as {shown:?}");
        assert_eq!(arrival.id, format!("{i} \u{e9}%\""));
        assert_eq!(arrival.source, "/kit");
        assert_eq!(arrival.pid.as_deref(), Some(&*format!("pid {i}/\u{e4}")));
    }
    Ok(())
}

async fn a_batch_has_one_result_per_event<F: Fixture>() -> Ended {
    let fixture = F::start().await;
    let target = fixture.target(CALM).await;
    let capabilities = target.capabilities();
    assert!(capabilities.batch_max > 0 && capabilities.bytes_max > 0, "{capabilities:?}");
    assert!(target.deliver(&[]).await.is_empty(), "nothing in, nothing out");
    let count = capabilities.batch_max.min(50);
    let batch: Vec<Attempt> = (0..count).map(|i| attempt(numbered(&format!("p{i}"), i))).collect();
    let results = target.deliver(&batch).await;
    assert_eq!(results.len(), count);
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert_eq!(distinct(&fixture.arrived().await), count);
    Ok(())
}

async fn order_per_pid_is_kept_through_retries<F: Fixture>() -> Ended {
    const EVENTS: usize = 1_000;
    const PIDS: usize = 20;
    let fixture = F::start().await;
    let target = fixture.target(SHORT).await;
    let flaky = fixture.set(Condition::Flaky).await.is_ok();
    let attempts: Vec<Attempt> =
        (0..EVENTS).map(|i| attempt(numbered(&format!("p{}", i % PIDS), i))).collect();
    let failures = deliver_all(&target, attempts).await;
    assert!(failures > 0 || !flaky, "the fixture is flaky, and yet nothing failed");
    let arrived = fixture.arrived().await;
    assert_eq!(distinct(&arrived), EVENTS, "everything arrives");
    in_order(&arrived);
    Ok(())
}

/// First arrivals of each pid are in the order of their numbers.
pub(super) fn in_order(arrived: &[Arrival]) {
    let mut seen = HashSet::new();
    let mut last: BTreeMap<&str, usize> = BTreeMap::new();
    for arrival in arrived.iter().filter(|arrival| seen.insert(&arrival.id)) {
        let number: usize = arrival.id.parse().expect("the id is a number");
        let pid = arrival.pid.as_deref().expect("every event has a pid");
        let before = last.insert(pid, number);
        assert!(before < Some(number), "{pid}: {number} arrived behind {before:?}");
    }
}

async fn every_attempt_carries_the_same_dedup_id<F: Fixture>() -> Ended {
    let fixture = F::start().await;
    let target = fixture.target(CALM).await;
    let mut again = attempt(numbered("p", 1));
    for number in 1..=3 {
        again.number = number;
        // A requeue makes a new entry of the same event.
        again.uid.sequence += 1;
        let results = target.deliver(std::slice::from_ref(&again)).await;
        assert!(matches!(results[..], [Ok(())]), "{results:?}");
    }
    let arrived = fixture.arrived().await;
    let expected = if target.capabilities().deduplicates { 1 } else { 3 };
    assert_eq!(arrived.len(), expected, "repeats at the receiver");
    if arrived.iter().all(|arrival| arrival.dedup_id.is_none()) {
        return Err(Unsupported("the protocol does not carry the dedup_id"));
    }
    for arrival in arrived {
        assert_eq!(arrival.dedup_id, Some(again.dedup_id.to_string()), "the dedup_id on the wire");
    }
    Ok(())
}

async fn two_sources_with_one_id_stay_two<F: Fixture>() -> Ended {
    let fixture = F::start().await;
    let target = fixture.target(CALM).await;
    for source in ["/one", "/two"] {
        let event = Event::builder("t", source).id("same").pid("p").json("{}").build();
        one(&target, event.expect("a valid event")).await.expect("delivered");
    }
    let arrived = fixture.arrived().await;
    let sources: Vec<&str> = arrived.iter().map(|arrival| arrival.source.as_str()).collect();
    assert_eq!(sources, ["/one", "/two"]);
    let ids: HashSet<_> = arrived.iter().filter_map(|arrival| arrival.dedup_id.as_ref()).collect();
    assert!(ids.is_empty() || ids.len() == 2, "two events have two dedup_ids: {ids:?}");
    Ok(())
}

async fn a_receiver_that_refuses_means_hold<F: Fixture>() -> Ended {
    let fixture = F::start().await;
    let target = fixture.target(CALM).await;
    fixture.set(Condition::Refusing).await?;
    let error = one(&target, numbered("p", 1)).await.expect_err("nobody is there");
    assert_eq!(error.verdict(), Verdict::Hold, "{error:?}");
    assert!(target.probe().await.is_err(), "the probe says that nobody is there");
    fixture.set(Condition::Healthy).await?;
    until_delivered(&target, numbered("p", 2)).await;
    assert_eq!(fixture.arrived().await.last().map(|arrival| arrival.id.as_str()), Some("2"));
    Ok(())
}

async fn a_receiver_that_hangs_ends_at_the_deadline<F: Fixture>() -> Ended {
    let fixture = F::start().await;
    let target = fixture.target(SHORT).await;
    until_delivered(&target, numbered("p", 0)).await;
    fixture.set(Condition::Hanging).await?;
    let error = in_time(&target).await;
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error:?}");
    // One that has no connection yet may fail at making it.
    let error = in_time(&fixture.target(SHORT).await).await;
    assert!(matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Unreachable), "{error:?}");
    fixture.set(Condition::Healthy).await?;
    until_delivered(&target, numbered("p", 2)).await;
    Ok(())
}

/// How a delivery fails that nobody answers.
async fn in_time(target: &impl Target) -> DeliveryError {
    // bounded: a target without a deadline of its own fails here.
    let result = timeout(SHORT + GRACE, one(target, numbered("p", 1))).await;
    result.expect("the target keeps its own deadline").expect_err("nobody answers")
}

/// What a future comes to if it is polled at most so many times.
async fn polled<T>(future: impl Future<Output = T>, mut times: usize) -> Option<T> {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|context| {
        times = times.saturating_sub(1);
        match future.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending if times == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

async fn a_dropped_delivery_leaves_the_target_usable<F: Fixture>() -> Ended {
    const ROUNDS: usize = 60;
    let fixture = F::start().await;
    let target = fixture.target(CALM).await;
    let mut random = fastrand::Rng::with_seed(7);
    for i in 0..ROUNDS {
        let batch = [attempt(numbered("dropped", i))];
        let delivery = target.deliver(&batch);
        // Half of them are dropped at each point where they wait, one after the other, half of them at any time.
        let results = match i % 2 {
            0 => polled(delivery, i / 2 % 6 + 1).await,
            // bounded: whether it ends within so little time is left to chance.
            _ => timeout(Duration::from_micros(random.u64(0..1_500)), delivery).await.ok(),
        };
        assert!(results.is_none_or(|results| results.len() == 1));
    }
    one(&target, numbered("whole", ROUNDS)).await.expect("the target is usable");
    let arrived = fixture.arrived().await;
    assert!(arrived.iter().any(|arrival| arrival.pid.as_deref() == Some("whole")), "the last one arrived");
    for arrival in arrived {
        assert!(
            arrival.id.parse::<usize>().is_ok_and(|id| id <= ROUNDS),
            "what arrived is whole: {arrival:?}"
        );
    }
    Ok(())
}

async fn a_probe_delivers_nothing<F: Fixture>() -> Ended {
    let fixture = F::start().await;
    let target = fixture.target(CALM).await;
    for _ in 0..3 {
        target.probe().await.expect("the receiver is healthy");
    }
    assert_eq!(fixture.arrived().await, []);
    one(&target, numbered("p", 1)).await.expect("delivered");
    target.probe().await.expect("the receiver is healthy");
    assert_eq!(fixture.arrived().await.len(), 1);
    Ok(())
}

async fn closing_twice_is_fine<F: Fixture>() -> Ended {
    let fixture = F::start().await;
    let target = fixture.target(CALM).await;
    one(&target, numbered("p", 1)).await.expect("delivered");
    target.close().await.expect("closed");
    target.close().await.expect("closed again");
    let unused = fixture.target(CALM).await;
    unused.close().await.expect("one that was never used is closed too");
    Ok(())
}

async fn a_delivery_after_close_is_an_error<F: Fixture>() -> Ended {
    let fixture = F::start().await;
    let target = fixture.target(CALM).await;
    target.close().await.expect("closed");
    let error = one(&target, numbered("p", 1)).await.expect_err("the target is closed");
    assert_ne!(error.verdict(), Verdict::Reject, "{error:?}");
    assert!(target.probe().await.is_err(), "a closed target is not healthy");
    assert_eq!(fixture.arrived().await, []);
    Ok(())
}

async fn no_secret_is_shown<F: Fixture>() -> Ended {
    let fixture = F::start().await;
    let secrets = fixture.secrets();
    let target = fixture.target(SHORT).await;
    let mut shown = format!("{target:?}");
    for condition in [Condition::Refusing, Condition::Hanging] {
        if fixture.set(condition).await.is_ok() {
            if let Err(error) = one(&target, numbered("p", 1)).await {
                show(&error, &mut shown);
            }
            if let Err(error) = target.probe().await {
                show(&error, &mut shown);
            }
        }
    }
    target.close().await.expect("closed");
    if let Err(error) = one(&target, numbered("p", 2)).await {
        show(&error, &mut shown);
    }
    if secrets.is_empty() {
        return Err(Unsupported("the target has no credentials"));
    }
    for secret in secrets {
        assert!(!shown.contains(&secret), "a secret is shown in {shown}");
    }
    Ok(())
}

async fn a_body_of_a_mebibyte_arrives<F: Fixture>() -> Ended {
    let fixture = F::start().await;
    let target = fixture.target(CALM).await;
    let body: Bytes = format!("\"{}\"", "0123456789abcdef".repeat(65_536).split_off(2)).into();
    assert_eq!(body.len(), 1024 * 1024);
    let event = Event::builder("t", "/kit").id("1").pid("p").json(body.clone()).build();
    one(&target, event.expect("a valid event")).await.expect("delivered");
    let arrived = fixture.arrived().await;
    assert!(arrived.len() == 1 && arrived[0].body == body, "the body arrives whole");
    Ok(())
}

async fn sixty_four_arrive_at_once<F: Fixture>() -> Ended {
    let fixture = F::start().await;
    let target = fixture.target(CALM).await;
    let batches: Vec<[Attempt; 1]> = (0..64).map(|i| [attempt(numbered(&format!("p{i}"), i))]).collect();
    let results = join_all(batches.iter().map(|batch| target.deliver(batch))).await;
    assert!(results.iter().flatten().all(Result::is_ok), "{results:?}");
    let arrived = fixture.arrived().await;
    assert_eq!((arrived.len(), distinct(&arrived)), (64, 64));
    Ok(())
}

pub(super) fn numbered(pid: &str, number: usize) -> Event {
    let event = Event::builder("com.example.numbered", "/kit").id(number.to_string()).pid(pid);
    event.json(format!(r#"{{"number":{number}}}"#)).build().expect("a valid event")
}

pub(super) async fn one(target: &impl Target, event: Event) -> Result<(), DeliveryError> {
    let mut results = target.deliver(&[attempt(event)]).await;
    assert_eq!(results.len(), 1, "`deliver` returns one result per event");
    results.remove(0)
}

/// A receiver that was repaired may need a moment, and a target a new connection.
pub(super) async fn until_delivered(target: &impl Target, event: Event) {
    let began = Instant::now();
    loop {
        match one(target, event.clone()).await {
            Ok(()) => return,
            Err(error) => assert!(began.elapsed() < GRACE, "not delivered after the repair: {error:?}"),
        }
        // bounded: by GRACE.
        sleep(Duration::from_millis(20)).await;
    }
}

pub(super) fn distinct(arrived: &[Arrival]) -> usize {
    arrived.iter().map(|arrival| &arrival.id).collect::<HashSet<_>>().len()
}

fn show(error: &DeliveryError, out: &mut String) {
    let mut cause: Option<&dyn Error> = Some(error);
    while let Some(error) = cause {
        write!(out, "\n{error} {error:?}").expect("a string can be written to");
        cause = error.source();
    }
    out.push_str(&error.detail());
}
