//! [`Nats`]: publishes batches over one connection.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use async_nats::jetstream::message::PublishMessage;
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use outhaul_target::net::{Cached, Lease, within};
use outhaul_target::{
    Attempt, BatchOrder, Capabilities, ConfigError, DeliveryError, ErrorKind, Target, TargetUri, async_trait,
};
use tokio::time::{Instant, timeout_at};

use crate::codec::{self, Message};
use crate::config::NatsOptions;
use crate::connection::Connection;
use crate::error;

/// Events in one batch at most.
const BATCH_MAX: usize = 256;
/// Bytes in one batch at most.
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// Delivers events to NATS. Nothing is connected before it is needed.
pub struct Nats {
    options: NatsOptions,
    destination: String,
    connection: Cached<Arc<Connection>>,
}

type Outcome = Result<(), DeliveryError>;

impl Nats {
    /// Makes a target out of a `nats:`, `nats+tls:` or `tls:` URI.
    ///
    /// # Errors
    /// The URI is not valid. Whether anybody answers shows at the first delivery.
    pub fn from_uri(uri: TargetUri) -> Result<Self, ConfigError> {
        let mut destination = uri.destination();
        let options = NatsOptions::from_uri(uri)?;
        if let Some(stream) = &options.stream {
            destination = format!("{destination} stream {stream}");
        }
        Ok(Self { options, destination, connection: Cached::new() })
    }

    /// Where events go, without credentials.
    pub fn destination(&self) -> &str {
        &self.destination
    }

    async fn connection(&self) -> Result<Lease<Arc<Connection>>, DeliveryError> {
        let lease = self.connection.get(Connection::open(&self.options)).await?;
        if !lease.connection.is_broken() {
            return Ok(lease);
        }
        self.connection.give_up(&lease).await;
        self.connection.get(Connection::open(&self.options)).await
    }

    /// Whether events could be delivered, and what is to be known about it.
    async fn look(&self) -> Result<Option<String>, DeliveryError> {
        within(self.options.timeout, async {
            let lease = self.connection().await?;
            match &self.options.stream {
                Some(stream) => tokio::select! {
                    biased;
                    result = lease.connection.check(stream, &self.options) => result,
                    () = lease.connection.broken() => Err(broken()),
                },
                None => round_trip(&lease.connection).await.map(|()| None),
            }
        })
        .await
    }

    /// Publishes everything, and says what became of it until the deadline.
    async fn publish(&self, connection: &Connection, events: &[Attempt], until: Instant) -> Vec<Outcome> {
        match &self.options.stream {
            Some(stream) => {
                let publish = async |attempt| {
                    let message = codec::message(attempt, &self.options)?;
                    timeout_at(until, into_stream(connection, stream, message))
                        .await
                        .unwrap_or_else(|_| Err(late()))
                };
                join_all(events.iter().map(publish)).await
            }
            None => self.core(connection, events, until).await,
        }
    }

    /// Publishes in order, then waits for a message of our own to come back: the server has taken all before it.
    async fn core(&self, connection: &Connection, events: &[Attempt], until: Instant) -> Vec<Outcome> {
        let mut stopped: HashSet<&str> = HashSet::new();
        let mut sent: Vec<Result<String, DeliveryError>> = Vec::with_capacity(events.len());
        for attempt in events {
            let pid = attempt.event.pid();
            let result = match pid.filter(|pid| stopped.contains(pid)) {
                Some(_) => Err(ErrorKind::Skipped.into()),
                None => timeout_at(until, self.core_one(connection, attempt))
                    .await
                    .unwrap_or_else(|_| Err(late())),
            };
            if result.is_err() {
                stopped.extend(pid);
            }
            sent.push(result);
        }
        let back = timeout_at(until, round_trip(connection)).await.unwrap_or_else(|_| Err(late()));
        let judge = |result: Result<String, DeliveryError>| match (result, &back) {
            (Err(error), _) => Err(error),
            (Ok(subject), _) if connection.is_forbidden(&subject) => Err(not_allowed(&subject)),
            (Ok(_), Ok(())) => Ok(()),
            (Ok(_), Err(error)) => Err(error.kind().into()),
        };
        sent.into_iter().map(judge).collect()
    }

    async fn core_one(&self, connection: &Connection, attempt: &Attempt) -> Result<String, DeliveryError> {
        let Message { subject, headers, payload } = codec::message(attempt, &self.options)?;
        let published = connection.client.publish_with_headers(subject.clone(), headers, payload).await;
        published.map(|()| subject).map_err(error::core)
    }
}

fn late() -> DeliveryError {
    DeliveryError::new(ErrorKind::TimedOut).with_detail("the server has not acknowledged in time")
}

fn broken() -> DeliveryError {
    ErrorKind::ConnectionReset.into()
}

fn not_allowed(subject: &str) -> DeliveryError {
    DeliveryError::new(ErrorKind::Permission).with_detail(format!("publishing to `{subject}` is not allowed"))
}

/// Publishes one message, and waits for the acknowledgement of the stream.
async fn into_stream(connection: &Connection, stream: &str, message: Message) -> Outcome {
    let Message { subject, headers, payload } = message;
    let publish = PublishMessage::build().headers(headers).payload(payload).expected_stream(stream);
    let work = async {
        let acknowledgement = connection.context.send_publish(subject.clone(), publish).await;
        acknowledgement.map_err(error::publishing)?.await.map_err(error::publishing)
    };
    tokio::select! {
        biased;
        result = work => result.map(drop),
        () = connection.forbidden(&subject) => Err(not_allowed(&subject)),
        () = connection.broken() => Err(broken()),
    }
}

/// Sends a message to an inbox of our own and waits until it is back.
async fn round_trip(connection: &Connection) -> Outcome {
    let client = &connection.client;
    let work = async {
        let inbox = client.new_inbox();
        let mut own = client.subscribe(inbox.clone()).await.map_err(error::other)?;
        client.publish(inbox, Vec::new().into()).await.map_err(error::core)?;
        own.next().await.map(drop).ok_or_else(broken)
    };
    tokio::select! {
        biased;
        result = work => result,
        () = connection.broken() => Err(broken()),
    }
}

#[async_trait]
impl Target for Nats {
    fn kind(&self) -> &'static str {
        "nats"
    }

    fn capabilities(&self) -> Capabilities {
        let stream = self.options.stream.is_some();
        Capabilities {
            batch_max: BATCH_MAX,
            bytes_max: BYTES_MAX,
            batch_order: if stream { BatchOrder::None } else { BatchOrder::Prefix },
            exclusive: false,
            deduplicates: stream,
        }
    }

    /// Dropping the future gives the acknowledgements up; events may have arrived.
    async fn deliver(&self, events: &[Attempt]) -> Vec<Result<(), DeliveryError>> {
        if events.is_empty() {
            return Vec::new();
        }
        let until = Instant::now() + self.options.timeout;
        let lease = match timeout_at(until, self.connection()).await {
            Ok(Ok(lease)) => lease,
            Ok(Err(error)) => return error.for_each(events.len()),
            Err(_) => return late().for_each(events.len()),
        };
        let results = self.publish(&lease.connection, events, until).await;
        let silent =
            results.iter().all(|result| matches!(result, Err(error) if error.kind() == ErrorKind::TimedOut));
        // A line that is half open tells nobody.
        if silent || lease.connection.is_broken() {
            self.connection.give_up(&lease).await;
        }
        results
    }

    /// Asks the server for the stream, or for a message of our own. Dropping the future gives the question up.
    async fn probe(&self) -> Result<(), DeliveryError> {
        self.look().await.map(drop)
    }

    async fn check(&self) -> Result<Vec<String>, DeliveryError> {
        let note = self.look().await?;
        let after =
            "a repeat is possible after a hold or a restart that lasts longer than the duplicate window";
        let core =
            "core NATS does not tell whether anybody listens, nor reliably that a subject is forbidden";
        let known = if self.options.stream.is_some() { after } else { core };
        Ok(note.into_iter().chain([known.to_owned()]).collect())
    }

    /// Closes the connection. There is nothing to wait for: what was not acknowledged is delivered again.
    async fn close(&self) -> Result<(), DeliveryError> {
        drop(self.connection.close().await);
        Ok(())
    }
}

impl fmt::Debug for Nats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nats").field("options", &self.options).finish_non_exhaustive()
    }
}
