//! The conformance kit (feature `testkit`): named tests that every target passes against a real receiver.
//!
//! A crate implements [`Fixture`], a few functions around its receiver, and writes one line in its integration tests;
//! [`conformance!`](crate::conformance) turns it into one `#[test]` per case of [`CASES`]. A case that a protocol
//! cannot have is left out by its fixture with a reason, which is printed.
//!
//! ```
//! use std::sync::{Arc, Mutex};
//! use std::time::Duration;
//!
//! use outhaul_target::testkit::{Arrival, Condition, Fixture, Unsupported};
//! use outhaul_target::{Attempt, DeliveryError, ErrorKind, Target, async_trait};
//!
//! /// A target that delivers into memory; `None` after it was closed.
//! #[derive(Debug)]
//! struct Memory(Mutex<Option<Arc<Mutex<Vec<Arrival>>>>>);
//!
//! #[async_trait]
//! impl Target for Memory {
//!     fn kind(&self) -> &'static str {
//!         "memory"
//!     }
//!     async fn deliver(&self, events: &[Attempt]) -> Vec<Result<(), DeliveryError>> {
//!         let inside = self.0.lock().unwrap();
//!         let deliver = |attempt| match &*inside {
//!             Some(arrivals) => Ok(arrivals.lock().unwrap().push(Arrival::of(attempt))),
//!             None => Err(ErrorKind::Closed.into()),
//!         };
//!         events.iter().map(deliver).collect()
//!     }
//!     async fn probe(&self) -> Result<(), DeliveryError> {
//!         self.0.lock().unwrap().as_ref().map(drop).ok_or(ErrorKind::Closed.into())
//!     }
//!     async fn close(&self) -> Result<(), DeliveryError> {
//!         self.0.lock().unwrap().take();
//!         Ok(())
//!     }
//! }
//!
//! struct InMemory(Arc<Mutex<Vec<Arrival>>>);
//!
//! #[async_trait]
//! impl Fixture for InMemory {
//!     type Target = Memory;
//!     async fn start() -> Self {
//!         Self(Arc::default())
//!     }
//!     async fn target(&self, _timeout: Duration) -> Memory {
//!         Memory(Mutex::new(Some(Arc::clone(&self.0))))
//!     }
//!     async fn arrived(&self) -> Vec<Arrival> {
//!         self.0.lock().unwrap().clone()
//!     }
//!     async fn set(&self, condition: Condition) -> Result<(), Unsupported> {
//!         match condition {
//!             Condition::Healthy => Ok(()),
//!             _ => Err(Unsupported("memory does not fail")),
//!         }
//!     }
//! }
//!
//! // In `tests/it/`: outhaul_target::conformance!(InMemory);
//! for case in outhaul_target::testkit::CASES {
//!     outhaul_target::testkit::run::<InMemory>(case);
//! }
//! ```

mod cases;
mod driver;
mod trouble;

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use outhaul_event::{Bytes, Event, TargetName, Uid};

use crate::contract::{Attempt, Target};

/// A receiver, and how to reach it.
#[async_trait]
pub trait Fixture: Send + Sync + Sized + 'static {
    /// The target under test. Its `Debug` is searched for secrets.
    type Target: Target + Debug;

    /// Starts a healthy receiver of its own, on a free port or in a directory of its own; it ends with the value.
    async fn start() -> Self;

    /// Makes a target that delivers to the receiver, with this deadline for one attempt.
    async fn target(&self, timeout: Duration) -> Self::Target;

    /// Everything that has arrived, in the order of its arrival, repeats included.
    async fn arrived(&self) -> Vec<Arrival>;

    /// Breaks or repairs the receiver; what it holds stays.
    ///
    /// # Errors
    /// The receiver cannot be put into this condition. The cases that need it are left out, with this reason.
    async fn set(&self, condition: Condition) -> Result<(), Unsupported>;

    /// As [`start`](Self::start), with a receiver that nobody shares: it is killed and paused.
    async fn start_alone() -> Self {
        Self::start().await
    }

    /// Starts a receiver, and makes targets, that differ from the usual ones in this.
    ///
    /// # Errors
    /// The protocol or the fixture does not have the variant. The case that needs it is left out, with this reason.
    async fn start_as(_variant: Variant) -> Result<Self, Unsupported> {
        Err(Unsupported("the fixture has no such variant"))
    }

    /// Writes a client certificate that is valid over the expired one of [`Variant::TlsRenewed`].
    async fn renew(&self) {}

    /// How many bytes of a body the receiver refuses to take, while it takes its neighbours.
    ///
    /// # Errors
    /// It has no bound. The cases about one are left out, with this reason.
    fn too_large(&self) -> Result<usize, Unsupported> {
        Err(Unsupported("the receiver has no bound"))
    }

    /// The credentials that the targets were made with: no text may hold one of them.
    fn secrets(&self) -> Vec<String> {
        Vec::new()
    }

    /// Leaves out a case that the protocol cannot have, with the reason.
    fn unsupported(_case: &str) -> Option<Unsupported> {
        None
    }
}

/// What a receiver does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Condition {
    /// It takes everything.
    Healthy,
    /// Nobody is there: connections are refused, the directory is gone.
    Refusing,
    /// It takes a request and never answers.
    Hanging,
    /// About a third of the requests fails, in any way that is no `Reject`.
    Flaky,
    /// It cuts each line within the next event that it is sent.
    Cutting,
    /// It has just cut every line, and is healthy.
    Cut,
    /// It says that it gets too much.
    Throttling,
    /// Its process was stopped (SIGSTOP); it goes on at `Healthy`.
    Paused,
    /// Its process was killed (SIGKILL); at `Healthy` it starts with what it kept.
    Killed,
    /// It runs, but the topic, stream, queue or table is not there; at `Healthy` it is.
    Missing,
}

/// In what a receiver and its targets differ from the usual ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Variant {
    /// The target's credentials are not those that the receiver knows.
    WrongCredentials,
    /// The destination is made out of the event: events of the type `com.example.numbered` have a route, those of
    /// `com.example.nowhere` have none.
    Templated,
    /// TLS, and everything is right.
    Tls,
    /// The target trusts another authority than the one of the server's certificate.
    TlsOtherAuthority,
    /// The server's certificate has expired.
    TlsExpired,
    /// The server's certificate is of another name.
    TlsWrongName,
    /// The server wants a certificate, and the target has none.
    TlsNoClientCertificate,
    /// The server wants a certificate, and the target's has expired until [`Fixture::renew`].
    TlsRenewed,
}

/// Why a case or condition cannot be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unsupported(pub &'static str);

/// One event as a receiver got it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    /// `id`.
    pub id: String,
    /// `source`.
    pub source: String,
    /// Our identity, if the protocol carries it.
    pub dedup_id: Option<String>,
    /// `partitionkey`.
    pub pid: Option<String>,
    /// The data, decoded.
    pub body: Bytes,
}

impl Arrival {
    /// What should arrive.
    pub fn of(attempt: &Attempt) -> Self {
        Self::from_event(&attempt.event, Some(attempt.dedup_id.to_string()))
    }

    /// Out of an event that was read back.
    pub fn from_event(event: &Event, dedup_id: Option<String>) -> Self {
        Self {
            id: event.id().to_owned(),
            source: event.source().to_owned(),
            dedup_id,
            pid: event.pid().map(str::to_owned),
            body: event.body().clone(),
        }
    }
}

/// A first attempt at an event, as the runtime would make it.
///
/// # Panics
/// Never: the queue's name is valid.
pub fn attempt(event: Event) -> Attempt {
    static SEQUENCE: AtomicU64 = AtomicU64::new(1);
    let sequence = SEQUENCE.fetch_add(1, Ordering::Relaxed);
    let queue = TargetName::new("conformance").expect("a valid name");
    Attempt {
        dedup_id: event.dedup_id(),
        event: Arc::new(event),
        uid: Uid { queue, sequence },
        version: sequence,
        number: 1,
    }
}

/// How long a case may take.
const CASE_MAX: Duration = Duration::from_secs(120);

/// Runs one case of [`CASES`] on a runtime of its own.
///
/// # Panics
/// The case fails, takes longer than two minutes, or there is none of this name.
pub fn run<F: Fixture>(case: &str) {
    if let Some(Unsupported(reason)) = F::unsupported(case) {
        return say(case, reason);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let outcome = runtime.expect("a runtime can be built").block_on(async {
        // bounded: a case that hangs fails.
        tokio::time::timeout(CASE_MAX, cases::run::<F>(case)).await
    });
    match outcome {
        Ok(Ok(())) => {}
        Ok(Err(Unsupported(reason))) => say(case, reason),
        Err(_) => panic!("{case} has not ended within {CASE_MAX:?}"),
    }
}

#[expect(clippy::print_stderr, reason = "tests show what they leave out")]
fn say(case: &str, reason: &str) {
    eprintln!("{case}: not supported: {reason}");
}

pub use cases::CASES;

/// Expands to one `#[test]` for each case of the kit.
///
/// ```text
/// outhaul_target::conformance!(MyFixture);
/// ```
#[macro_export]
macro_rules! conformance {
    ($fixture:ty) => {
        $crate::conformance! { @tests $fixture:
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
    };
    (@tests $fixture:ty: $($case:ident)*) => {
        $(
            #[test]
            fn $case() {
                $crate::testkit::run::<$fixture>(stringify!($case));
            }
        )*

        #[test]
        fn no_case_is_missing() {
            assert_eq!([$(stringify!($case)),*], *$crate::testkit::CASES);
        }
    };
}
