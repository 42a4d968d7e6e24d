//! [`Session`]: one client for the life of the target, and the task that drives it.
//!
//! The client connects again when somebody needs it and when a connection broke, and goes on with the session if the
//! server kept it. A message that is underway stays so: a later attempt at its event waits for the same message, so that
//! the client never has two of one event.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use outhaul_target::net::read;
use outhaul_target::outhaul_event::DedupId;
use outhaul_target::{Attempt, DeliveryError, ErrorKind};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::codec::{self, Message};
use crate::config::{MqttOptions, Unheard, Version};
use crate::error::Failure;
use crate::{v4, v5};

/// Requests that wait for the client.
pub(crate) const CHANNEL: usize = 256;
/// A server that says nothing for one and a half times as long is given up.
pub(crate) const KEEP_ALIVE_SECONDS: u16 = 10;
/// A connection that broke is made again at once, unless the one before lasted no longer than that.
const FLAP: Duration = Duration::from_millis(500);
/// How long a goodbye may take.
const GOODBYE_MAX: Duration = Duration::from_secs(1);

/// How long connecting may take at the client: at the end of the attempt itself, its deadline is to be heard of.
pub(crate) fn connect_max(options: &MqttOptions) -> Duration {
    if options.connect_timeout < options.timeout {
        options.connect_timeout
    } else {
        options.timeout + GOODBYE_MAX
    }
}

/// What the client says.
#[derive(Debug)]
pub(crate) enum Heard {
    /// The server has let us in.
    Connected {
        packet_bytes_max: usize,
    },
    Other,
}

/// How the connection is.
#[derive(Debug, Clone, Default)]
struct State {
    up: bool,
    packet_bytes_max: usize,
    /// How often connecting has failed, and why it did so the last time.
    failures: u64,
    last: Option<Failure>,
}

type Underway = Shared<BoxFuture<'static, Result<(), Failure>>>;

pub(crate) struct Session {
    publisher: Publisher,
    state: watch::Receiver<State>,
    asked: Arc<Asked>,
    underway: Mutex<HashMap<DedupId, Underway>>,
    // It ends with the session.
    driver: Mutex<JoinSet<()>>,
}

/// What the task is asked for.
#[derive(Debug, Default)]
struct Asked {
    connect: Notify,
    cut: Notify,
}

enum Publisher {
    V4(rumqttc_v4::AsyncClient),
    V5(rumqttc_v5::AsyncClient),
}

enum Events {
    V4(Box<rumqttc_v4::EventLoop>),
    V5(Box<rumqttc_v5::EventLoop>),
}

/// A connection that was there when it was asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Up {
    pub(crate) packet_bytes_max: usize,
    failures: u64,
}

impl Session {
    /// Nothing is connected before it is asked for. The task runs on the runtime that this is called in.
    pub(crate) fn start(options: &MqttOptions) -> Self {
        // One that is free everywhere: 23 letters and digits are what every server takes.
        let made = || format!("outhaul{:016x}", fastrand::u64(..));
        let id = options.client_id.clone().unwrap_or_else(made);
        let (publisher, events) = match options.version {
            Version::V4 => {
                let (client, events) = v4::client(options, &id);
                (Publisher::V4(client), Events::V4(Box::new(events)))
            }
            Version::V5 => {
                let (client, events) = v5::client(options, &id);
                (Publisher::V5(client), Events::V5(Box::new(events)))
            }
        };
        let (say, state) = watch::channel(State::default());
        let asked = Arc::new(Asked::default());
        let mut driver = JoinSet::new();
        driver.spawn(drive(events, options.clone(), say, Arc::clone(&asked)));
        let driver = Mutex::new(driver);
        Self { publisher, state, asked, underway: Mutex::default(), driver }
    }

    /// Waits until there is a connection.
    ///
    /// # Errors
    /// The attempt to make one failed.
    pub(crate) async fn up(&self) -> Result<Up, Failure> {
        let mut state = self.state.clone();
        let before = state.borrow().failures;
        self.asked.connect.notify_one();
        match state.wait_for(|now| now.up || now.failures > before).await {
            Ok(now) if now.up => Ok(Up { packet_bytes_max: now.packet_bytes_max, failures: now.failures }),
            Ok(now) => Err(now.last.clone().unwrap_or_else(closed)),
            Err(_) => Err(closed()),
        }
    }

    /// Makes the connection new: it may be half open.
    pub(crate) fn cut(&self) {
        self.asked.cut.notify_one();
    }

    /// Forgets what is underway of events that nobody waits for and that were answered.
    pub(crate) fn tidy(&self, events: &[Attempt]) {
        let mut underway = self.underway();
        if !underway.is_empty() {
            let wanted = |id: &DedupId| events.iter().any(|attempt| attempt.dedup_id == *id);
            underway.retain(|id, of| wanted(id) || of.clone().now_or_never().is_none());
        }
    }

    /// Publishes one event, unless it is underway already, and waits for its acknowledgement.
    pub(crate) async fn publish(
        &self,
        attempt: &Attempt,
        options: &MqttOptions,
        up: Up,
        until: Instant,
    ) -> Result<(), DeliveryError> {
        let max = options.packet_bytes_max.min(up.packet_bytes_max);
        let message = codec::message(attempt, options, max)?;
        let id = attempt.dedup_id;
        let late =
            || DeliveryError::new(ErrorKind::TimedOut).with_detail("the server has not acknowledged in time");
        let known = self.underway().get(&id).cloned();
        let underway = match known {
            Some(underway) => underway,
            None => {
                let begun = tokio::time::timeout_at(until, self.publisher.begin(message, options)).await;
                let underway = begun.map_err(|_| late())??;
                self.underway().insert(id, underway.clone());
                underway
            }
        };
        tokio::select! {
            biased;
            result = underway => {
                self.underway().remove(&id);
                result.map_err(DeliveryError::from)
            }
            failure = self.failed(up.failures) => Err(failure.into()),
            () = tokio::time::sleep_until(until) => Err(late()),
        }
    }

    /// Ends when connecting fails.
    async fn failed(&self, before: u64) -> Failure {
        match self.state.clone().wait_for(|now| now.failures > before).await {
            Ok(now) => now.last.clone().unwrap_or_else(closed),
            Err(_) => closed(),
        }
    }

    /// Says goodbye, and ends the task.
    pub(crate) async fn close(&self) {
        let mut driver = std::mem::take(&mut *self.driver.lock().unwrap_or_else(PoisonError::into_inner));
        let goodbye = async {
            self.publisher.disconnect().await;
            self.asked.connect.notify_one();
            driver.join_next().await
        };
        // Whether it is heard makes no difference.
        drop(tokio::time::timeout(GOODBYE_MAX, goodbye).await);
        driver.shutdown().await;
    }

    fn underway(&self) -> MutexGuard<'_, HashMap<DedupId, Underway>> {
        self.underway.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn closed() -> Failure {
    Failure::new(ErrorKind::Closed, "the target is closed")
}

impl Publisher {
    async fn begin(&self, message: Message, options: &MqttOptions) -> Result<Underway, DeliveryError> {
        let unheard: Unheard = options.unheard;
        Ok(match self {
            Self::V4(client) => {
                let notice = v4::publish(client, message, options.qos).await?;
                v4::outcome(notice).boxed().shared()
            }
            Self::V5(client) => {
                let notice = v5::publish(client, message, options.qos).await?;
                v5::outcome(notice, unheard).boxed().shared()
            }
        })
    }

    async fn disconnect(&self) {
        // A client that is not connected has nobody to tell.
        match self {
            Self::V4(client) => drop(client.disconnect_now().await),
            Self::V5(client) => drop(client.disconnect_now().await),
        }
    }
}

impl Events {
    async fn next(&mut self, options: &MqttOptions) -> Result<Heard, Failure> {
        match self {
            Self::V4(events) => v4::next(events, options).await,
            Self::V5(events) => v5::next(events, options).await,
        }
    }

    /// Drops the connection; what was underway on it is sent again on the next one, if the session is still there.
    fn clean(&mut self) {
        match self {
            Self::V4(events) => events.clean(),
            Self::V5(events) => events.clean(),
        }
    }

    async fn set_credentials(&mut self, options: &MqttOptions) -> Result<(), DeliveryError> {
        let address = &options.address;
        if address.user.is_none() && address.password.is_none() {
            return Ok(());
        }
        let password = match &address.password {
            Some(password) => read(password).await?.to_string(),
            None => String::new(),
        };
        let user = address.user.clone().unwrap_or_default();
        match self {
            Self::V4(events) => v4::set_credentials(events, user, password),
            Self::V5(events) => v5::set_credentials(events, user, password),
        }
        Ok(())
    }
}

/// Connects when asked to, and again when the connection broke; until the session ends.
async fn drive(mut events: Events, options: MqttOptions, say: watch::Sender<State>, asked: Arc<Asked>) {
    let mut since: Option<Instant> = None;
    asked.connect.notified().await;
    loop {
        let failure = match connect(&mut events, &options, &say).await {
            Ok(()) => {
                let lasted = since.replace(Instant::now()).map(|before| before.elapsed());
                let broken = stay(&mut events, &options, &asked).await;
                say.send_modify(|state| state.up = false);
                if lasted.is_none_or(|lasted| lasted >= FLAP) {
                    continue;
                }
                broken
            }
            Err(failure) => failure,
        };
        since = None;
        say.send_modify(|state| {
            state.failures += 1;
            state.last = Some(failure);
        });
        asked.connect.notified().await;
    }
}

/// Returns when the server has let us in.
async fn connect(
    events: &mut Events,
    options: &MqttOptions,
    say: &watch::Sender<State>,
) -> Result<(), Failure> {
    events.set_credentials(options).await?;
    loop {
        if let Heard::Connected { packet_bytes_max } = events.next(options).await? {
            say.send_modify(|state| {
                state.up = true;
                state.packet_bytes_max = packet_bytes_max;
            });
            return Ok(());
        }
    }
}

/// Returns when the connection is gone.
async fn stay(events: &mut Events, options: &MqttOptions, asked: &Asked) -> Failure {
    loop {
        let next = tokio::select! {
            next = events.next(options) => next,
            () = asked.cut.notified() => {
                events.clean();
                return Failure::new(ErrorKind::ConnectionReset, "the server was silent");
            }
        };
        if let Err(failure) = next {
            return failure;
        }
    }
}
