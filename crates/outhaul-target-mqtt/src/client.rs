//! [`Mqtt`]: publishes batches through one session.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::join_all;
use outhaul_target::net::within;
use outhaul_target::{
    Attempt, BatchOrder, Capabilities, ConfigError, DeliveryError, ErrorKind, Target, TargetUri, async_trait,
};
use tokio::time::{Instant, timeout_at};

use crate::config::MqttOptions;
use crate::session::Session;

/// Events in one batch at most.
const BATCH_MAX: usize = 256;
/// Bytes in one batch at most.
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// Delivers events to an MQTT server. Nothing is connected before it is needed.
pub struct Mqtt {
    options: MqttOptions,
    destination: String,
    session: Mutex<Slot>,
}

enum Slot {
    Unused,
    Open(Arc<Session>),
    Closed,
}

impl Mqtt {
    /// Makes a target out of an `mqtt:` or `mqtts:` URI.
    ///
    /// # Errors
    /// The URI is not valid. Whether anybody answers shows at the first delivery.
    pub fn from_uri(uri: TargetUri) -> Result<Self, ConfigError> {
        let destination = uri.destination();
        let options = MqttOptions::from_uri(uri)?;
        Ok(Self { options, destination, session: Mutex::new(Slot::Unused) })
    }

    /// Where events go, without credentials.
    pub fn destination(&self) -> &str {
        &self.destination
    }

    fn session(&self) -> Result<Arc<Session>, DeliveryError> {
        let mut slot = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        match &*slot {
            Slot::Closed => Err(ErrorKind::Closed.into()),
            Slot::Open(session) => Ok(Arc::clone(session)),
            Slot::Unused => {
                let session = Arc::new(Session::start(&self.options));
                *slot = Slot::Open(Arc::clone(&session));
                Ok(session)
            }
        }
    }
}

#[async_trait]
impl Target for Mqtt {
    fn kind(&self) -> &'static str {
        "mqtt"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            batch_max: BATCH_MAX,
            bytes_max: BYTES_MAX,
            batch_order: BatchOrder::None,
            exclusive: true,
            deduplicates: false,
        }
    }

    /// Dropping the future gives the acknowledgements up; events may arrive all the same.
    async fn deliver(&self, events: &[Attempt]) -> Vec<Result<(), DeliveryError>> {
        if events.is_empty() {
            return Vec::new();
        }
        let until = Instant::now() + self.options.timeout;
        let session = match self.session() {
            Ok(session) => session,
            Err(error) => return error.for_each(events.len()),
        };
        let up = match timeout_at(until, session.up()).await {
            Ok(Ok(up)) => up,
            Ok(Err(failure)) => return DeliveryError::from(failure).for_each(events.len()),
            Err(_) => {
                let detail = "the server has not let us in in time";
                return DeliveryError::new(ErrorKind::TimedOut).with_detail(detail).for_each(events.len());
            }
        };
        session.tidy(events);
        let publish = |attempt| session.publish(attempt, &self.options, up, until);
        let results = join_all(events.iter().map(publish)).await;
        let silent =
            results.iter().all(|result| matches!(result, Err(error) if error.kind() == ErrorKind::TimedOut));
        // A line that is half open tells nobody.
        if silent {
            session.cut();
        }
        results
    }

    /// Connects if there is no connection; MQTT has no question that changes nothing. Dropping the future gives it up.
    async fn probe(&self) -> Result<(), DeliveryError> {
        within(self.options.timeout, async {
            let session = self.session()?;
            session.up().await.map(drop).map_err(DeliveryError::from)
        })
        .await
    }

    /// Says goodbye to the server; what was not acknowledged is delivered again.
    async fn close(&self) -> Result<(), DeliveryError> {
        let slot = {
            let mut slot = self.session.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *slot, Slot::Closed)
        };
        if let Slot::Open(session) = slot {
            session.close().await;
        }
        Ok(())
    }
}

impl fmt::Debug for Mqtt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mqtt").field("options", &self.options).finish_non_exhaustive()
    }
}
