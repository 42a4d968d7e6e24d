//! One connection, which is never made again: who it broke for asks for a new one.

use std::sync::Arc;

use outhaul_target::net::{Stream, connect, read};
use outhaul_target::{DeliveryError, ErrorKind};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, RedisConnectionInfo, Value};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, timeout_at};

use crate::codec::{Answer, SCRIPT, Server, answers};
use crate::config::RedisOptions;
use crate::error;

/// The longest value of a server that does not tell: `proto-max-bulk-len` as it comes.
const BULK_MAX: u64 = 512 * 1024 * 1024;

/// A connection that several batches share. Its task ends with it.
#[derive(Debug)]
pub(crate) struct Connection {
    redis: MultiplexedConnection,
    pub(crate) server: Server,
    driver: AbortHandle,
    _driver: JoinSet<()>,
}

impl Connection {
    /// Connects, says who we are, and asks what is to be known. Dropping the future gives the connection up.
    pub(crate) async fn open(options: &RedisOptions) -> Result<Arc<Self>, DeliveryError> {
        let until = Instant::now() + options.connect_timeout;
        let address = &options.address;
        let stream =
            connect(&address.host, address.port, options.tls.as_ref(), options.connect_timeout).await?;
        match timeout_at(until, Box::pin(Self::greet(stream, options))).await {
            Ok(result) => result,
            Err(_) => Err(DeliveryError::new(ErrorKind::TimedOut)
                .with_detail(format!("the server has not answered within {:?}", options.connect_timeout))),
        }
    }

    async fn greet(stream: Stream, options: &RedisOptions) -> Result<Arc<Self>, DeliveryError> {
        // Credentials go in commands of our own, whose answers say what is wrong with them.
        let nobody = RedisConnectionInfo::default().set_skip_set_lib_name();
        // The deadline is ours.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let made = MultiplexedConnection::new_with_config(&nobody, stream, config).await;
        let (redis, work) = made.map_err(error::line)?;
        let mut tasks = JoinSet::new();
        let driver = tasks.spawn(work);
        let server = Server { bulk_max: BULK_MAX, script: None };
        let mut connection = Self { redis, server, driver, _driver: tasks };
        connection.server = connection.introduce(options).await?;
        Ok(Arc::new(connection))
    }

    /// Credentials, database, and whether transactions are allowed: without `MULTI` each command of a batch would run
    /// for itself.
    async fn introduce(&self, options: &RedisOptions) -> Result<Server, DeliveryError> {
        let mut pipeline = Pipeline::new();
        let (user, password) = (&options.address.user, &options.address.password);
        let named = user.is_some() || password.is_some();
        if named {
            let password = match password {
                Some(password) => read(password).await?,
                None => "".into(),
            };
            pipeline.cmd("AUTH").arg(user.as_deref()).arg(&*password);
        }
        let database = Some(options.database).filter(|database| *database != 0);
        if let Some(database) = database {
            pipeline.cmd("SELECT").arg(database);
        }
        pipeline.cmd("PING").cmd("MULTI").cmd("EXEC");
        pipeline.cmd("CONFIG").arg("GET").arg("proto-max-bulk-len");
        if options.dedup.is_some() {
            pipeline.cmd("SCRIPT").arg("LOAD").arg(SCRIPT);
        }
        let mut replies = self.send(&pipeline).await?.into_iter();
        let mut next = || replies.next().unwrap_or(Value::Nil);
        if named && let Value::ServerError(error) = next() {
            return Err(error::authenticating(&error));
        }
        if let Some(database) = database
            && let Value::ServerError(error) = next()
        {
            return Err(error::selecting(&error, database));
        }
        match next() {
            // Who may not ask was answered all the same.
            Value::ServerError(error) if error::answered_kind(&error) != ErrorKind::Permission => {
                return Err(error::answered(&error));
            }
            _ => {}
        }
        for reply in [next(), next()] {
            if let Value::ServerError(error) = reply {
                return Err(error::answered(&error));
            }
        }
        let bulk_max = bulk_max(next()).unwrap_or(BULK_MAX);
        let script = match options.dedup {
            Some(_) => Some(name_of_script(next())?),
            None => None,
        };
        Ok(Server { bulk_max, script })
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.driver.is_finished()
    }

    /// Runs commands as one transaction; one answer for each. They go out in one piece: dropping the future leaves all
    /// of them undone or all on their way.
    pub(crate) async fn transaction<'a>(
        &self,
        commands: impl ExactSizeIterator<Item = &'a Cmd>,
    ) -> Result<Vec<Answer>, DeliveryError> {
        let mut pipeline = Pipeline::with_capacity(commands.len() + 2);
        pipeline.cmd("MULTI");
        for command in commands {
            pipeline.add_command(command.clone());
        }
        pipeline.cmd("EXEC");
        Ok(answers(self.send(&pipeline).await?))
    }

    /// Has the server know the script (again): it forgets scripts when it restarts, or is told to.
    pub(crate) async fn load_script(&self) -> Result<(), DeliveryError> {
        name_of_script(self.ask(redis::cmd("SCRIPT").arg("LOAD").arg(SCRIPT)).await?).map(drop)
    }

    /// Waits until replicas have what was written so far, and fails if too few have it in time.
    pub(crate) async fn wait(&self, replicas: u32, options: &RedisOptions) -> Result<(), DeliveryError> {
        let timeout = options.wait_timeout.as_millis().max(1);
        let timeout = u64::try_from(timeout).unwrap_or(u64::MAX);
        match self.ask(redis::cmd("WAIT").arg(replicas).arg(timeout)).await? {
            Value::ServerError(error) => Err(error::answered(&error)),
            Value::Int(have) if have >= i64::from(replicas) => Ok(()),
            Value::Int(have) => Err(DeliveryError::new(ErrorKind::Conflict)
                .with_detail(format!("{have} of {replicas} replicas have the events"))),
            _ => Err(ErrorKind::ProtocolViolation.into()),
        }
    }

    /// Asks one thing; an error of the server is an answer.
    pub(crate) async fn ask(&self, command: &Cmd) -> Result<Value, DeliveryError> {
        self.redis.clone().send_packed_command(command).await.map_err(error::line)
    }

    async fn send(&self, pipeline: &Pipeline) -> Result<Vec<Value>, DeliveryError> {
        let replies = self.redis.clone().send_packed_commands(pipeline, 0, pipeline.len()).await;
        replies.map_err(error::line)
    }
}

/// Out of a list of a name and its value. Many servers let nobody ask.
fn bulk_max(reply: Value) -> Option<u64> {
    match redis::from_redis_value::<Vec<String>>(reply).ok()?.as_slice() {
        [_, value] => value.parse().ok(),
        _ => None,
    }
}

fn name_of_script(reply: Value) -> Result<String, DeliveryError> {
    match reply {
        Value::ServerError(error) => Err(error::answered(&error)),
        reply => redis::from_redis_value(reply).map_err(|error| error::line(error.into())),
    }
}
