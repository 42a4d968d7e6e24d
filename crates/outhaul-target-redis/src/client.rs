//! [`Redis`]: puts batches into a stream, a list or a channel over one connection.

use std::fmt;
use std::sync::Arc;

use outhaul_target::net::{Cached, Lease, within};
use outhaul_target::{
    Attempt, BatchOrder, Capabilities, ConfigError, DeliveryError, ErrorKind, Target, TargetUri, async_trait,
};
use redis::Value;
use tokio::time::{Instant, timeout_at};

use crate::batch::Batch;
use crate::codec::{self, Answer};
use crate::config::{Kind, RedisOptions};
use crate::connection::Connection;
use crate::error;

/// Events in one batch at most.
const BATCH_MAX: usize = 256;
/// Bytes in one batch at most.
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// Delivers events to Redis. Nothing is connected before it is needed.
pub struct Redis {
    options: RedisOptions,
    destination: String,
    connection: Cached<Arc<Connection>>,
}

type Outcome = Result<(), DeliveryError>;

impl Redis {
    /// Makes a target out of a `redis:`, `rediss:`, `valkey:` or `valkeys:` URI.
    ///
    /// # Errors
    /// The URI is not valid. Whether anybody answers shows at the first delivery.
    pub fn from_uri(uri: TargetUri) -> Result<Self, ConfigError> {
        let (options, destination) = RedisOptions::and_destination(uri)?;
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

    /// Sends everything, in as many transactions as the keys need, and says what became of it until the deadline.
    async fn store(&self, connection: &Connection, events: &[Attempt], until: Instant) -> Vec<Outcome> {
        let mut batch =
            Batch::new(events, |attempt| codec::command(attempt, &self.options, &connection.server));
        let mut loaded = false;
        loop {
            let round = batch.round();
            if round.is_empty() {
                break;
            }
            let sent: Vec<usize> = round.iter().map(|(i, _)| *i).collect();
            let work = connection.transaction(round.iter().map(|(_, command)| &command.cmd));
            let answers = match in_time(until, work).await {
                Ok(answers) => answers,
                Err(error) => {
                    batch.fail(error);
                    break;
                }
            };
            let unknown = |answer: &Answer| matches!(answer, Answer::Failed(e) if e.code() == "NOSCRIPT");
            if !loaded && answers.iter().any(unknown) {
                // Nothing has run: they all name the same script.
                loaded = true;
                if let Err(error) = in_time(until, connection.load_script()).await {
                    batch.fail(error);
                    break;
                }
                continue;
            }
            for (i, answer) in sent.into_iter().zip(answers) {
                match answer {
                    Answer::Done(reply) => batch.settle(i, codec::judge(&reply, &self.options)),
                    Answer::Failed(error) => batch.settle(i, Err(error::answered(&error))),
                    Answer::Nonsense => batch.settle(i, Err(ErrorKind::ProtocolViolation.into())),
                    Answer::NotRun => {}
                }
            }
        }
        self.replicated(connection, batch.results(), until).await
    }

    /// What was stored counts once enough replicas have it.
    async fn replicated(
        &self,
        connection: &Connection,
        results: Vec<Outcome>,
        until: Instant,
    ) -> Vec<Outcome> {
        let Some(replicas) = self.options.wait_replicas.filter(|_| results.iter().any(Result::is_ok)) else {
            return results;
        };
        let Err(error) = in_time(until, connection.wait(replicas.get(), &self.options)).await else {
            return results;
        };
        let (kind, detail) = (error.kind(), error.detail());
        let few = |()| Err(DeliveryError::new(kind).with_detail(&*detail));
        results.into_iter().map(|result| result.and_then(few)).collect()
    }

    /// Whether the connection is of no further use: nobody answers, or the server behind it is no longer the one that
    /// the name leads to.
    fn is_spent(results: &[Outcome]) -> bool {
        let spent = |kind| {
            matches!(
                kind,
                ErrorKind::TimedOut
                    | ErrorKind::ConnectionReset
                    | ErrorKind::Unavailable
                    | ErrorKind::Authentication
                    | ErrorKind::ProtocolViolation
            )
        };
        results.iter().any(|result| result.as_ref().is_err_and(|error| spent(error.kind())))
    }

    async fn ask(&self, connection: &Connection) -> Outcome {
        if let Value::ServerError(error) = connection.ask(&redis::cmd("PING")).await? {
            allowed(error::answered(&error))?;
        }
        let wanted = match self.options.kind {
            Kind::Stream => "stream",
            Kind::List => "list",
            Kind::Channel => return Ok(()),
        };
        let Some(key) = self.options.key.fixed() else { return Ok(()) };
        match connection.ask(redis::cmd("TYPE").arg(key)).await? {
            Value::ServerError(error) => allowed(error::answered(&error)),
            Value::SimpleString(found) if found != wanted && found != "none" => {
                Err(DeliveryError::new(ErrorKind::Configuration)
                    .with_detail(format!("the key is a {found} and no {wanted}")))
            }
            _ => Ok(()),
        }
    }
}

/// Who may not ask may deliver all the same.
fn allowed(error: DeliveryError) -> Outcome {
    if error.kind() == ErrorKind::Permission { Ok(()) } else { Err(error) }
}

async fn in_time<T>(
    until: Instant,
    work: impl Future<Output = Result<T, DeliveryError>>,
) -> Result<T, DeliveryError> {
    timeout_at(until, work).await.unwrap_or_else(|_| {
        Err(DeliveryError::new(ErrorKind::TimedOut).with_detail("the server has not answered in time"))
    })
}

#[async_trait]
impl Target for Redis {
    fn kind(&self) -> &'static str {
        "redis"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            batch_max: BATCH_MAX,
            bytes_max: BYTES_MAX,
            batch_order: BatchOrder::Prefix,
            exclusive: false,
            deduplicates: self.options.dedup.is_some(),
        }
    }

    /// Dropping the future gives the replies up; events may have arrived.
    async fn deliver(&self, events: &[Attempt]) -> Vec<Result<(), DeliveryError>> {
        if events.is_empty() {
            return Vec::new();
        }
        let until = Instant::now() + self.options.timeout;
        let lease = match in_time(until, self.connection()).await {
            Ok(lease) => lease,
            Err(error) => return error.for_each(events.len()),
        };
        let results = self.store(&lease.connection, events, until).await;
        if Self::is_spent(&results) || lease.connection.is_broken() {
            self.connection.give_up(&lease).await;
        }
        results
    }

    /// Says `PING`, and asks what the key holds. Dropping the future gives the question up.
    async fn probe(&self) -> Result<(), DeliveryError> {
        within(self.options.timeout, async {
            let lease = self.connection().await?;
            self.ask(&lease.connection).await
        })
        .await
    }

    /// Closes the connection. There is nothing to wait for: what was not answered is delivered again.
    async fn close(&self) -> Result<(), DeliveryError> {
        drop(self.connection.close().await);
        Ok(())
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("options", &self.options).finish_non_exhaustive()
    }
}
