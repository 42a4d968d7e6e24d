//! [`Amqp`]: publishes each batch on a channel of its own.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use futures_util::future::join_all;
use lapin::options::BasicPublishOptions;
use lapin::types::ShortString;
use lapin::{Channel, Confirmation};
use outhaul_target::net::{Cached, Lease, within};
use outhaul_target::{
    Attempt, BatchOrder, Capabilities, ConfigError, DeliveryError, ErrorKind, Target, TargetUri, async_trait,
};
use tokio::time::{Instant, timeout_at};

use crate::codec::{self, Message};
use crate::config::AmqpOptions;
use crate::connection::Connection;
use crate::error;

/// Events in one batch at most.
const BATCH_MAX: usize = 256;
/// Bytes in one batch at most.
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// Delivers events to an AMQP 0-9-1 server. Nothing is connected before it is needed.
pub struct Amqp {
    options: AmqpOptions,
    destination: String,
    connection: Cached<Arc<Connection>>,
}

type Outcome = Result<(), DeliveryError>;

impl Amqp {
    /// Makes a target out of an `amqp:` or `amqps:` URI.
    ///
    /// # Errors
    /// The URI is not valid. Whether anybody answers shows at the first delivery.
    pub fn from_uri(uri: TargetUri) -> Result<Self, ConfigError> {
        let base = uri.destination();
        // `AmqpOptions` takes the options; the key is wanted as it was written.
        let key = uri.clone().take("routing_key").unwrap_or_default();
        let options = AmqpOptions::from_uri(uri)?;
        let destination = match options.exchange.as_str() {
            "" => format!("{base} queue {key}"),
            exchange => format!("{base} exchange {exchange} key {key}"),
        };
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

    async fn publish(&self, connection: &Connection, events: &[Attempt], until: Instant) -> Vec<Outcome> {
        let frame = connection.frame_bytes_max();
        let mut results: Vec<Option<Outcome>> = Vec::with_capacity(events.len());
        let mut messages = Vec::with_capacity(events.len());
        for attempt in events {
            match codec::message(attempt, &self.options, frame) {
                Ok(message) => {
                    messages.push(message);
                    results.push(None);
                }
                Err(error) => results.push(Some(Err(error))),
            }
        }
        let sent = timeout_at(until, self.batch(connection, &messages)).await;
        let mut sent = sent.unwrap_or_else(|_| late(connection).for_each(messages.len())).into_iter();
        // There is one for each that was not judged yet.
        let judged = |result: Option<Outcome>| result.or_else(|| sent.next());
        results.into_iter().filter_map(judged).collect()
    }

    /// Publishes everything on one channel, and judges nothing before all of it is confirmed: a message that comes back
    /// may be handed over with the confirmation of another one.
    async fn batch(&self, connection: &Connection, messages: &[Message]) -> Vec<Outcome> {
        if messages.is_empty() {
            return Vec::new();
        }
        let borrowed = match connection.borrow().await {
            Ok(borrowed) => borrowed,
            Err(error) => return error.for_each(messages.len()),
        };
        let publish = |message| publish(&borrowed.channel, &self.options, message);
        let confirmed = join_all(messages.iter().map(publish)).await;
        let confirmed = match confirmed.into_iter().collect::<Result<Vec<_>, _>>() {
            Ok(confirmed) => confirmed,
            // The channel is closed, and with it goes what else was on it.
            Err(error) => return closed(messages, error),
        };
        borrowed.give_back();
        judge(messages, confirmed)
    }
}

/// Publishes one message, and waits for its confirmation.
async fn publish(channel: &Channel, options: &AmqpOptions, message: &Message) -> lapin::Result<Confirmation> {
    let exchange = ShortString::try_new(&*options.exchange).unwrap_or_default();
    let mandatory = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let (key, properties) = (message.routing_key.clone(), message.properties.clone());
    channel.basic_publish(exchange, key, mandatory, &message.body, properties).await?.await
}

/// What became of a batch whose confirmations are all in.
fn judge(messages: &[Message], confirmed: Vec<Confirmation>) -> Vec<Outcome> {
    let acknowledged: Vec<bool> = confirmed.iter().map(Confirmation::is_ack).collect();
    let returned: Vec<_> = confirmed.into_iter().filter_map(Confirmation::take_message).collect();
    let ids: HashSet<&str> = returned
        .iter()
        .filter_map(|message| message.delivery.properties.message_id().as_ref())
        .map(ShortString::as_str)
        .collect();
    // A message without our id is one of the batch all the same.
    let nameless = returned.iter().any(|message| message.delivery.properties.message_id().is_none());
    let one = |(message, acknowledged): (&Message, bool)| {
        if nameless || ids.contains(message.id.as_str()) {
            let detail = format!("no queue takes the routing key `{}`", message.routing_key);
            Err(DeliveryError::new(ErrorKind::DestinationMissing).with_detail(detail))
        } else if acknowledged {
            Ok(())
        } else {
            Err(DeliveryError::new(ErrorKind::Overloaded)
                .with_detail("the server did not take the message (nack)"))
        }
    };
    messages.iter().zip(acknowledged).map(one).collect()
}

/// What became of a batch whose channel was closed: nothing is known about any of it, but which were too large.
fn closed(messages: &[Message], error: lapin::Error) -> Vec<Outcome> {
    let Some(max) = error::size_max(&error) else { return error::other(error).for_each(messages.len()) };
    let one = |message: &Message| {
        let kind = if message.body.len() > max { ErrorKind::TooLarge } else { ErrorKind::ServerFault };
        Err(DeliveryError::new(kind).with_source(error.clone()))
    };
    messages.iter().map(one).collect()
}

fn late(connection: &Connection) -> DeliveryError {
    if connection.is_blocked() {
        return DeliveryError::new(ErrorKind::Overloaded)
            .with_detail("the server takes nothing for want of memory or disk (connection.blocked)");
    }
    DeliveryError::new(ErrorKind::TimedOut).with_detail("the server has not confirmed in time")
}

#[async_trait]
impl Target for Amqp {
    fn kind(&self) -> &'static str {
        "amqp"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            batch_max: BATCH_MAX,
            bytes_max: BYTES_MAX,
            batch_order: BatchOrder::None,
            exclusive: false,
            deduplicates: false,
        }
    }

    /// Dropping the future closes the channel of the batch; events may have arrived.
    async fn deliver(&self, events: &[Attempt]) -> Vec<Result<(), DeliveryError>> {
        if events.is_empty() {
            return Vec::new();
        }
        let until = Instant::now() + self.options.timeout;
        let lease = match timeout_at(until, self.connection()).await {
            Ok(Ok(lease)) => lease,
            Ok(Err(error)) => return error.for_each(events.len()),
            Err(_) => {
                let detail = "the server has not let us in in time";
                return DeliveryError::new(ErrorKind::TimedOut).with_detail(detail).for_each(events.len());
            }
        };
        let results = self.publish(&lease.connection, events, until).await;
        let every = |kind| results.iter().all(|result| matches!(result, Err(error) if error.kind() == kind));
        let any = |kind| results.iter().any(|result| matches!(result, Err(error) if error.kind() == kind));
        // A line that is half open tells nobody, and what is declared is declared with a new one.
        let stale = every(ErrorKind::TimedOut)
            || (self.options.declare.is_some() && any(ErrorKind::DestinationMissing));
        if stale || lease.connection.is_broken() {
            self.connection.give_up(&lease).await;
        }
        results
    }

    /// Asks the server for the exchange or queue. Dropping the future gives the question up.
    async fn probe(&self) -> Result<(), DeliveryError> {
        within(self.options.timeout, async {
            let lease = self.connection().await?;
            let result = lease.connection.check(&self.options).await;
            if lease.connection.is_broken() {
                self.connection.give_up(&lease).await;
            }
            result
        })
        .await
    }

    /// Closes the connection; what was not confirmed is delivered again.
    async fn close(&self) -> Result<(), DeliveryError> {
        if let Some(connection) = self.connection.close().await {
            connection.close().await;
        }
        Ok(())
    }
}

impl fmt::Debug for Amqp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Amqp").field("options", &self.options).finish_non_exhaustive()
    }
}
