//! Cases about receivers in trouble, and about events that a receiver does not take.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use outhaul_event::{Bytes, Event, Limits};
use tokio::time::sleep;

use super::cases::{CALM, Ended, SHORT, distinct, in_order, numbered, one, until_delivered};
use super::driver::deliver_all;
use super::{Condition, Fixture, Unsupported, Variant, attempt};
use crate::contract::{Attempt, BatchOrder, Target};
use crate::error::{DeliveryError, ErrorKind, Verdict};

pub(super) async fn a_receiver_that_cuts_the_line_loses_nothing<F: Fixture>() -> Ended {
    const EVENTS: usize = 60;
    let fixture = F::start().await;
    let target = fixture.target(CALM).await;
    until_delivered(&target, numbered("before", EVENTS)).await;
    fixture.set(Condition::Cutting).await?;
    let error =
        one(&target, numbered("cut", EVENTS + 1)).await.expect_err("the line is cut within the event");
    assert_ne!(error.verdict(), Verdict::Reject, "{error:?}");
    fixture.set(Condition::Healthy).await?;
    deliver_all(&target, (0..EVENTS).map(|i| attempt(numbered(&format!("p{}", i % 7), i))).collect()).await;
    let arrived = fixture.arrived().await;
    let seen: HashSet<usize> = arrived.iter().filter_map(|arrival| arrival.id.parse().ok()).collect();
    assert!((0..=EVENTS).all(|id| seen.contains(&id)), "everything that was reported as delivered arrived");
    Ok(())
}

pub(super) async fn a_receiver_that_throttles_means_retry<F: Fixture>() -> Ended {
    let fixture = F::start().await;
    let target = fixture.target(CALM).await;
    fixture.set(Condition::Throttling).await?;
    let error = one(&target, numbered("p", 1)).await.expect_err("it takes nothing now");
    assert_eq!(error.verdict(), Verdict::Retry, "{error:?}");
    fixture.set(Condition::Healthy).await?;
    until_delivered(&target, numbered("p", 2)).await;
    Ok(())
}

pub(super) async fn a_receiver_that_is_paused_ends_at_the_deadline<F: Fixture>() -> Ended {
    let fixture = F::start_alone().await;
    let target = fixture.target(SHORT).await;
    until_delivered(&target, numbered("p", 0)).await;
    fixture.set(Condition::Paused).await?;
    let error = one(&target, numbered("p", 1)).await.expect_err("nobody answers");
    assert_ne!(error.verdict(), Verdict::Reject, "{error:?}");
    fixture.set(Condition::Healthy).await?;
    until_delivered(&target, numbered("p", 2)).await;
    Ok(())
}

/// What it acknowledged is there after SIGKILL, and what it did not is delivered again.
pub(super) async fn a_receiver_that_is_killed_comes_back_with_what_it_took<F: Fixture>() -> Ended {
    const EVENTS: usize = 200;
    let fixture = F::start_alone().await;
    let target = fixture.target(CALM).await;
    let part =
        |from: usize, to: usize| (from..to).map(|i| attempt(numbered(&format!("p{}", i % 9), i))).collect();
    deliver_all(&target, part(0, EVENTS / 2)).await;
    fixture.set(Condition::Killed).await?;
    let error = one(&target, numbered("p0", EVENTS)).await.expect_err("it is gone");
    assert_eq!(error.verdict(), Verdict::Hold, "{error:?}");
    fixture.set(Condition::Healthy).await?;
    until_delivered(&target, numbered("again", EVENTS + 1)).await;
    deliver_all(&target, part(EVENTS / 2, EVENTS)).await;
    let seen: HashSet<String> = fixture.arrived().await.into_iter().map(|arrival| arrival.id).collect();
    let lost: Vec<usize> = (0..EVENTS).filter(|i| !seen.contains(&i.to_string())).collect();
    assert!(lost.is_empty(), "reported as delivered, and not there: {lost:?}");
    Ok(())
}

pub(super) async fn a_missing_destination_means_hold_until_it_appears<F: Fixture>() -> Ended {
    let fixture = F::start().await;
    let target = fixture.target(CALM).await;
    fixture.set(Condition::Missing).await?;
    let error = one(&target, numbered("p", 1)).await.expect_err("its destination is not there");
    assert_eq!((error.kind(), error.verdict()), (ErrorKind::DestinationMissing, Verdict::Hold), "{error:?}");
    fixture.set(Condition::Healthy).await?;
    until_delivered(&target, numbered("p", 2)).await;
    assert_eq!(fixture.arrived().await.last().map(|arrival| arrival.id.as_str()), Some("2"));
    Ok(())
}

pub(super) async fn wrong_credentials_mean_hold<F: Fixture>() -> Ended {
    let fixture = F::start_as(Variant::WrongCredentials).await?;
    let target = fixture.target(CALM).await;
    let error = one(&target, numbered("p", 1)).await.expect_err("nobody knows these credentials");
    assert_eq!(error.verdict(), Verdict::Hold, "{error:?}");
    assert_eq!(error.kind().reason(), "authentication_failed", "{error:?}");
    let probe = target.probe().await.expect_err("the probe says so too");
    assert_eq!(probe.kind().reason(), "authentication_failed", "{probe:?}");
    Ok(())
}

fn sized(pid: &str, number: usize, bytes: usize) -> Event {
    let body: Bytes = format!("\"{}\"", "x".repeat(bytes.saturating_sub(2))).into();
    let event = Event::builder("com.example.numbered", "/kit").id(number.to_string()).pid(pid).json(body);
    let limits = Limits { body_bytes_max: usize::MAX, ..Limits::default() };
    event.build_within(&limits).expect("a valid event")
}

pub(super) async fn an_event_too_large_is_rejected_alone<F: Fixture>() -> Ended {
    let fixture = F::start().await;
    let target = fixture.target(CALM).await;
    let bytes = fixture.too_large()?;
    let all =
        [attempt(numbered("small", 1)), attempt(sized("large", 2, bytes)), attempt(numbered("other", 3))];
    let mut waiting: BTreeMap<usize, &Attempt> = all.iter().enumerate().collect();
    let mut rejected = Vec::new();
    // A target may find out by bisecting, and say `Retry` to the neighbours meanwhile.
    for _ in 0..20 {
        let taken: Vec<usize> = waiting.keys().copied().take(target.capabilities().batch_max).collect();
        if taken.is_empty() {
            break;
        }
        let batch: Vec<Attempt> = taken.iter().map(|i| waiting[i].clone()).collect();
        for (i, result) in taken.into_iter().zip(target.deliver(&batch).await) {
            match result.as_ref().map_err(DeliveryError::verdict) {
                Ok(()) => drop(waiting.remove(&i)),
                Err(Verdict::Reject) => {
                    rejected.push(i);
                    waiting.remove(&i);
                }
                Err(_) => {}
            }
        }
    }
    assert_eq!(rejected, [1], "the large one is rejected, and no other");
    let arrived = fixture.arrived().await;
    let ids: HashSet<&str> = arrived.iter().map(|arrival| arrival.id.as_str()).collect();
    assert_eq!(ids, ["1", "3"].into(), "its neighbours are delivered");
    Ok(())
}

pub(super) async fn a_batch_keeps_its_order_when_one_event_fails<F: Fixture>() -> Ended {
    let fixture = F::start().await;
    let target = fixture.target(CALM).await;
    let capabilities = target.capabilities();
    if capabilities.batch_order == BatchOrder::None {
        return Err(Unsupported("`batch_order` is `None`: no two events of a pid are in one batch"));
    }
    let bytes = fixture.too_large()?;
    let batch = [
        attempt(numbered("p", 1)),
        attempt(sized("p", 2, bytes)),
        attempt(numbered("p", 3)),
        attempt(numbered("p", 4)),
    ];
    let results = target.deliver(&batch).await;
    let first_failure = results.iter().position(Result::is_err).expect("one is too large");
    assert!(results[first_failure..].iter().all(Result::is_err), "none is delivered behind it: {results:?}");
    let ids: Vec<String> = fixture.arrived().await.into_iter().map(|arrival| arrival.id).collect();
    assert!(!ids.contains(&"3".to_owned()) && !ids.contains(&"4".to_owned()), "arrived: {ids:?}");
    let expected: Vec<String> = (1..=first_failure).map(|id| id.to_string()).collect();
    assert_eq!(ids, expected, "what was reported as delivered arrived");
    Ok(())
}

pub(super) async fn an_event_without_a_route_stops_nobody<F: Fixture>() -> Ended {
    let fixture = F::start_as(Variant::Templated).await?;
    let target = fixture.target(CALM).await;
    let nowhere = Event::builder("com.example.nowhere", "/kit").id("1").pid("nowhere").json("{}").build();
    let nowhere = nowhere.expect("a valid event");
    for round in 0..3 {
        let error = one(&target, nowhere.clone()).await.expect_err("it has no route");
        assert_ne!(error.verdict(), Verdict::Reject, "who is to blame, the runtime finds out: {error:?}");
        one(&target, numbered("p", 10 + round)).await.expect("the others go on");
    }
    let arrived = fixture.arrived().await;
    assert_eq!(distinct(&arrived), 3);
    assert!(arrived.iter().all(|arrival| arrival.id != "1"));
    Ok(())
}

pub(super) async fn tls_delivers<F: Fixture>() -> Ended {
    let fixture = F::start_as(Variant::Tls).await?;
    let target = fixture.target(CALM).await;
    one(&target, numbered("p", 1)).await.expect("delivered over TLS");
    target.probe().await.expect("healthy");
    assert_eq!(fixture.arrived().await.len(), 1);
    Ok(())
}

async fn is_held<F: Fixture>(variant: Variant) -> Ended {
    let fixture = F::start_as(variant).await?;
    let target = fixture.target(CALM).await;
    let error = one(&target, numbered("p", 1)).await.expect_err("the handshake fails");
    assert_eq!(error.verdict(), Verdict::Hold, "{error:?}");
    if variant != Variant::TlsNoClientCertificate {
        // A server that misses a certificate may just hang up.
        assert_eq!(error.kind(), ErrorKind::Tls, "{error:?}");
    }
    assert!(target.probe().await.is_err());
    Ok(())
}

pub(super) async fn a_certificate_of_another_authority_means_hold<F: Fixture>() -> Ended {
    is_held::<F>(Variant::TlsOtherAuthority).await
}

pub(super) async fn an_expired_certificate_means_hold<F: Fixture>() -> Ended {
    is_held::<F>(Variant::TlsExpired).await
}

pub(super) async fn a_certificate_of_another_name_means_hold<F: Fixture>() -> Ended {
    is_held::<F>(Variant::TlsWrongName).await
}

pub(super) async fn a_missing_client_certificate_means_hold<F: Fixture>() -> Ended {
    is_held::<F>(Variant::TlsNoClientCertificate).await
}

pub(super) async fn a_client_certificate_renewed_on_disk_is_used<F: Fixture>() -> Ended {
    let fixture = F::start_as(Variant::TlsRenewed).await?;
    let target = fixture.target(CALM).await;
    let error = one(&target, numbered("p", 1)).await.expect_err("its certificate has expired");
    assert_eq!(error.verdict(), Verdict::Hold, "{error:?}");
    fixture.renew().await;
    until_delivered(&target, numbered("p", 2)).await;
    assert_eq!(fixture.arrived().await.last().map(|arrival| arrival.id.as_str()), Some("2"));
    Ok(())
}

pub(super) async fn a_receiver_that_is_cut_again_and_again_keeps_the_order<F: Fixture>() -> Ended {
    const EVENTS: usize = 400;
    let fixture = F::start().await;
    let target = fixture.target(Duration::from_secs(5)).await;
    // A fixture that cannot cut says so.
    fixture.set(Condition::Cut).await?;
    let attempts = (0..EVENTS).map(|i| attempt(numbered(&format!("p{}", i % 20), i))).collect();
    let cuts = async {
        for _ in 0..12 {
            // bounded: twelve times.
            sleep(Duration::from_millis(25)).await;
            fixture.set(Condition::Cut).await.expect("it could be cut before");
        }
    };
    // bounded: by the kit's own bound for a case.
    let (_, ()) = tokio::join!(deliver_all(&target, attempts), cuts);
    let arrived = fixture.arrived().await;
    assert_eq!(distinct(&arrived), EVENTS, "everything arrives");
    in_order(&arrived);
    Ok(())
}
