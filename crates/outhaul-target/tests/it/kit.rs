//! The kit itself: a sound target passes, and each broken one fails the case that is about its fault, and no other.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outhaul_target::outhaul_event::DedupId;
use outhaul_target::testkit::{Arrival, CASES, Condition, Fixture, Unsupported, run};
use outhaul_target::{Attempt, BatchOrder, Capabilities, DeliveryError, ErrorKind, Target, async_trait};

const SOUND: u8 = 0;
const NEW_DEDUP_ID: u8 = 1;
const BATCH_BACKWARDS: u8 = 2;
const NO_DEADLINE: u8 = 3;
const REJECTS_WHEN_DOWN: u8 = 4;
const PROBE_DELIVERS: u8 = 5;
const SHOWS_ITS_SECRET: u8 = 6;
const PANICS_WHEN_CLOSED: u8 = 7;
const CUTS_LONG_BODIES: u8 = 8;
const FORGETS_THE_SOURCE: u8 = 9;
const STUCK_AFTER_A_DROP: u8 = 10;

mod sound {
    outhaul_target::conformance!(super::Memory<{ super::SOUND }>);
}

#[test]
fn each_broken_target_fails_the_right_case() {
    std::thread::scope(|scope| {
        scope.spawn(|| fails::<NEW_DEDUP_ID>(&["every_attempt_carries_the_same_dedup_id"]));
        scope.spawn(|| fails::<BATCH_BACKWARDS>(&["order_per_pid_is_kept_through_retries"]));
        scope.spawn(|| fails::<NO_DEADLINE>(&["a_receiver_that_hangs_ends_at_the_deadline"]));
        scope.spawn(|| fails::<REJECTS_WHEN_DOWN>(&["a_receiver_that_refuses_means_hold"]));
        scope.spawn(|| fails::<PROBE_DELIVERS>(&["a_probe_delivers_nothing"]));
        scope.spawn(|| fails::<SHOWS_ITS_SECRET>(&["no_secret_is_shown"]));
        scope.spawn(|| fails::<PANICS_WHEN_CLOSED>(&["a_delivery_after_close_is_an_error"]));
        scope.spawn(|| fails::<CUTS_LONG_BODIES>(&["a_body_of_a_mebibyte_arrives"]));
        scope.spawn(|| fails::<FORGETS_THE_SOURCE>(&["two_sources_with_one_id_stay_two"]));
        scope.spawn(|| fails::<STUCK_AFTER_A_DROP>(&["a_dropped_delivery_leaves_the_target_usable"]));
    });
}

fn fails<const FAULT: u8>(expected: &[&str]) {
    // Without a deadline, and a closed target that panics, the case about secrets cannot end as it should.
    let relevant =
        |case: &&str| !(matches!(FAULT, NO_DEADLINE | PANICS_WHEN_CLOSED) && *case == "no_secret_is_shown");
    let failed = |case: &&str| catch_unwind(AssertUnwindSafe(|| run::<Memory<FAULT>>(case))).is_err();
    let failing: Vec<&str> = CASES.iter().copied().filter(relevant).filter(failed).collect();
    assert_eq!(failing, expected, "fault {FAULT}");
}

struct Shared {
    arrivals: Vec<Arrival>,
    condition: Condition,
    count: usize,
}

struct Memory<const FAULT: u8>(Arc<Mutex<Shared>>);

struct MemoryTarget<const FAULT: u8> {
    shared: Arc<Mutex<Shared>>,
    timeout: Duration,
    closed: Mutex<bool>,
    stuck: Mutex<bool>,
}

/// Leaves the target stuck unless it was taken back.
struct Busy<'a>(Option<&'a Mutex<bool>>);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        if let Some(stuck) = self.0 {
            *stuck.lock().unwrap() = true;
        }
    }
}

impl<const FAULT: u8> std::fmt::Debug for MemoryTarget<FAULT> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if FAULT == SHOWS_ITS_SECRET { "MemoryTarget(hunter2)" } else { "MemoryTarget" })
    }
}

#[async_trait]
impl<const FAULT: u8> Fixture for Memory<FAULT> {
    type Target = MemoryTarget<FAULT>;

    async fn start() -> Self {
        Self(Arc::new(Mutex::new(Shared { arrivals: Vec::new(), condition: Condition::Healthy, count: 0 })))
    }

    async fn target(&self, timeout: Duration) -> MemoryTarget<FAULT> {
        MemoryTarget {
            shared: Arc::clone(&self.0),
            timeout,
            closed: Mutex::new(false),
            stuck: Mutex::new(false),
        }
    }

    async fn arrived(&self) -> Vec<Arrival> {
        self.0.lock().unwrap().arrivals.clone()
    }

    async fn set(&self, condition: Condition) -> Result<(), Unsupported> {
        if !matches!(
            condition,
            Condition::Healthy | Condition::Refusing | Condition::Hanging | Condition::Flaky
        ) {
            return Err(Unsupported("memory is no server"));
        }
        self.0.lock().unwrap().condition = condition;
        Ok(())
    }

    fn secrets(&self) -> Vec<String> {
        vec!["hunter2".to_owned()]
    }
}

impl<const FAULT: u8> MemoryTarget<FAULT> {
    fn take(&self, attempt: &Attempt) -> Result<(), DeliveryError> {
        let mut shared = self.shared.lock().unwrap();
        shared.count += 1;
        if shared.condition == Condition::Flaky && shared.count.is_multiple_of(3) {
            return Err(ErrorKind::Overloaded.into());
        }
        let mut arrival = Arrival::of(attempt);
        match FAULT {
            NEW_DEDUP_ID => arrival.dedup_id = Some(DedupId::mint().to_string()),
            CUTS_LONG_BODIES => arrival.body.truncate(1000),
            FORGETS_THE_SOURCE if arrival.source != "/kit" => arrival.source = "/one".to_owned(),
            _ => {}
        }
        shared.arrivals.push(arrival);
        Ok(())
    }

    async fn reach(&self) -> Result<(), DeliveryError> {
        if *self.closed.lock().unwrap() {
            assert_ne!(FAULT, PANICS_WHEN_CLOSED, "closed");
            return Err(ErrorKind::Closed.into());
        }
        let condition = self.shared.lock().unwrap().condition;
        match condition {
            Condition::Refusing if FAULT == REJECTS_WHEN_DOWN => Err(ErrorKind::ContentRefused.into()),
            Condition::Refusing => Err(ErrorKind::ConnectionRefused.into()),
            Condition::Hanging if FAULT == NO_DEADLINE => std::future::pending().await,
            Condition::Hanging => {
                // bounded: this is the target's own deadline.
                tokio::time::sleep(self.timeout).await;
                Err(ErrorKind::TimedOut.into())
            }
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl<const FAULT: u8> Target for MemoryTarget<FAULT> {
    fn kind(&self) -> &'static str {
        "memory"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { batch_max: 8, batch_order: BatchOrder::Prefix, ..Capabilities::default() }
    }

    async fn deliver(&self, events: &[Attempt]) -> Vec<Result<(), DeliveryError>> {
        if *self.stuck.lock().unwrap() {
            return events.iter().map(|_| Err(ErrorKind::Locked.into())).collect();
        }
        let mut busy = Busy((FAULT == STUCK_AFTER_A_DROP).then_some(&self.stuck));
        if let Err(error) = self.reach().await {
            busy.0 = None;
            return events.iter().map(|_| Err(error.kind().into())).collect();
        }
        if FAULT == STUCK_AFTER_A_DROP {
            // bounded: gives a drop the time to come in between.
            tokio::time::sleep(Duration::from_micros(300)).await;
        }
        let mut events: Vec<&Attempt> = events.iter().collect();
        if FAULT == BATCH_BACKWARDS {
            events.reverse();
        }
        let mut failed: Vec<&str> = Vec::new();
        let mut results = Vec::new();
        for attempt in events {
            let pid = attempt.event.pid().unwrap_or_default();
            let result =
                if failed.contains(&pid) { Err(ErrorKind::Skipped.into()) } else { self.take(attempt) };
            if result.is_err() {
                failed.push(pid);
            }
            results.push(result);
        }
        if FAULT == BATCH_BACKWARDS {
            results.reverse();
        }
        busy.0 = None;
        results
    }

    async fn probe(&self) -> Result<(), DeliveryError> {
        self.reach().await?;
        if FAULT == PROBE_DELIVERS {
            let event = outhaul_target::outhaul_event::Event::builder("probe", "/kit").build().unwrap();
            self.take(&outhaul_target::testkit::attempt(event))?;
        }
        Ok(())
    }

    async fn close(&self) -> Result<(), DeliveryError> {
        *self.closed.lock().unwrap() = true;
        Ok(())
    }
}
