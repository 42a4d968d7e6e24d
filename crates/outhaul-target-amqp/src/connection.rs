//! One connection and its channels. It never recovers by itself: what the client would send again could overtake a
//! repeat of ours.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use lapin::options::{ConfirmSelectOptions, ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo};
use lapin::{AsyncTcpStream, Channel, ConnectionProperties, ExchangeKind};
use outhaul_target::net::{connect, read};
use outhaul_target::{DeliveryError, ErrorKind};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::config::{AmqpOptions, Declare};
use crate::error;
use crate::line::{Line, Scissors, runtime};

/// A server that says nothing for twice as long is given up.
const HEARTBEAT_SECONDS: u16 = 20;

/// How long a server that is told goodbye may take to answer.
const GOODBYE_MAX: Duration = Duration::from_secs(1);

const OK: u16 = 200;

/// A connection, and the channels that no batch uses at the moment.
#[derive(Debug)]
pub(crate) struct Connection {
    client: lapin::Connection,
    idle: Mutex<Vec<Channel>>,
    channels: Semaphore,
    // Behind the client, so that a goodbye may still go out.
    _scissors: Scissors,
}

/// A channel that one batch has for itself. It is closed unless it is given back: what is still underway on it could
/// be taken for an answer to the next batch.
pub(crate) struct Borrowed<'a> {
    pub(crate) channel: Channel,
    idle: &'a Mutex<Vec<Channel>>,
    _permit: SemaphorePermit<'a>,
}

impl Connection {
    pub(crate) async fn open(options: &AmqpOptions) -> Result<Arc<Self>, DeliveryError> {
        // The client's own future is large.
        let work = async move { Ok(Arc::new(Self::made(options).await?)) }.boxed();
        // At the end of the attempt itself, its deadline is to be heard of.
        if options.connect_timeout >= options.timeout {
            return work.await;
        }
        match tokio::time::timeout(options.connect_timeout, work).await {
            Ok(result) => result,
            Err(_) => Err(DeliveryError::new(ErrorKind::Unreachable)
                .with_detail(format!("no connection within {:?}", options.connect_timeout))),
        }
    }

    async fn made(options: &AmqpOptions) -> Result<Self, DeliveryError> {
        let uri = uri(options).await?;
        let address = &options.address;
        let stream =
            connect(&address.host, address.port, options.tls.as_ref(), options.connect_timeout).await?;
        let (line, scissors) = Line::new(stream);
        let line = Mutex::new(Some(line));
        let take = async move |_, _| {
            let taken = line.lock().unwrap_or_else(PoisonError::into_inner).take();
            taken.map(AsyncTcpStream::Plain).ok_or_else(|| io_error().into())
        };
        let properties = ConnectionProperties::default().with_connection_name("outhaul".into());
        let client = lapin::Connection::connector(uri, runtime(), take, properties).await;
        let connection = Self {
            client: client.map_err(error::connecting)?,
            idle: Mutex::default(),
            channels: Semaphore::new(options.channels_max),
            _scissors: scissors,
        };
        if let Some(declare) = options.declare {
            connection.declare(declare, options).await?;
        }
        Ok(connection)
    }

    /// The longest frame, in bytes; 0 for no bound.
    pub(crate) fn frame_bytes_max(&self) -> usize {
        self.client.configuration().frame_max().try_into().unwrap_or(usize::MAX)
    }

    pub(crate) fn is_broken(&self) -> bool {
        !self.client.status().connected()
    }

    /// Whether the server has stopped reading from us, for want of memory or disk.
    pub(crate) fn is_blocked(&self) -> bool {
        self.client.status().blocked()
    }

    /// A channel with publisher confirms for one batch; waits while as many as are allowed are in use.
    pub(crate) async fn borrow(&self) -> Result<Borrowed<'_>, DeliveryError> {
        let permit = self.channels.acquire().await.map_err(|_| DeliveryError::from(ErrorKind::Closed))?;
        let idle = std::iter::from_fn(|| self.idle().pop()).find(|channel| channel.status().connected());
        let channel = match idle {
            Some(channel) => channel,
            None => {
                let channel = self.client.create_channel().await.map_err(error::other)?;
                channel.confirm_select(ConfirmSelectOptions::default()).await.map_err(error::other)?;
                channel
            }
        };
        Ok(Borrowed { channel, idle: &self.idle, _permit: permit })
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Channel>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn declare(&self, declare: Declare, options: &AmqpOptions) -> Result<(), DeliveryError> {
        let channel = self.client.create_channel().await.map_err(error::other)?;
        let kind = match declare {
            Declare::Queue => return self.declare_queue(&channel, options, "classic").await,
            Declare::QuorumQueue => return self.declare_queue(&channel, options, "quorum").await,
            Declare::Direct => ExchangeKind::Direct,
            Declare::Fanout => ExchangeKind::Fanout,
            Declare::Topic => ExchangeKind::Topic,
            Declare::Headers => ExchangeKind::Headers,
        };
        let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let declared =
            channel.exchange_declare(name(&options.exchange)?, kind, durable, FieldTable::default()).await;
        declared.map_err(error::declaring)
    }

    async fn declare_queue(
        &self,
        channel: &Channel,
        options: &AmqpOptions,
        kind: &str,
    ) -> Result<(), DeliveryError> {
        let queue = name(options.routing_key.fixed().unwrap_or_default())?;
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString(kind.into()));
        channel.queue_declare(queue, durable, arguments).await.map(drop).map_err(error::declaring)
    }

    /// Asks for the exchange, or for the queue where its name is known, and changes nothing.
    pub(crate) async fn check(&self, options: &AmqpOptions) -> Result<(), DeliveryError> {
        // A question about something that is missing costs its channel.
        let channel = self.client.create_channel().await.map_err(error::other)?;
        if !options.exchange.is_empty() {
            let passive = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
            let kind = ExchangeKind::default();
            let asked = channel
                .exchange_declare(name(&options.exchange)?, kind, passive, FieldTable::default())
                .await;
            asked.map_err(error::other)
        } else if let Some(queue) = options.routing_key.fixed() {
            let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
            channel
                .queue_declare(name(queue)?, passive, FieldTable::default())
                .await
                .map(drop)
                .map_err(error::other)
        } else {
            Ok(())
        }
    }

    /// Says goodbye, which what was not confirmed yet does not survive.
    pub(crate) async fn close(&self) {
        let goodbye = self.client.close(OK, "closed".into());
        // Whether it is heard makes no difference: the line is cut behind it.
        drop(tokio::time::timeout(GOODBYE_MAX, goodbye).await);
    }
}

impl Borrowed<'_> {
    /// Everything on it was answered: the next batch may have it.
    pub(crate) fn give_back(self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(self.channel);
    }
}

async fn uri(options: &AmqpOptions) -> Result<AMQPUri, DeliveryError> {
    let address = &options.address;
    // What every server knows, for loopback, unless it was told otherwise.
    let (username, password) = match (&address.user, &address.password) {
        (None, None) => ("guest".to_owned(), "guest".to_owned()),
        (user, password) => {
            let password = match password {
                Some(password) => read(password).await?.to_string(),
                None => String::new(),
            };
            (user.clone().unwrap_or_default(), password)
        }
    };
    let userinfo = AMQPUserInfo { username, password };
    Ok(AMQPUri {
        scheme: if options.tls.is_some() { AMQPScheme::AMQPS } else { AMQPScheme::AMQP },
        authority: AMQPAuthority { userinfo, host: address.host.clone(), port: address.port },
        vhost: options.vhost.clone(),
        query: AMQPQueryString { heartbeat: Some(HEARTBEAT_SECONDS), ..AMQPQueryString::default() },
    })
}

fn io_error() -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::ConnectionAborted, "a connection is never made again")
}

fn name(text: &str) -> Result<ShortString, DeliveryError> {
    ShortString::try_new(text)
        .map_err(|error| DeliveryError::new(ErrorKind::Configuration).with_source(error))
}
