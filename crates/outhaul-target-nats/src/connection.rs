//! One connection. It never reconnects: what the client buffers while it is broken could overtake a repeat.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::jetstream::{self, context::GetStreamErrorKind};
use async_nats::{Auth, AuthError, Client, ConnectOptions, Event, ServerError};
use nkeys::KeyPair;
use outhaul_target::net::read;
use outhaul_target::{DeliveryError, ErrorKind};
use tokio::sync::watch;

use crate::config::NatsOptions;
use crate::error;

/// What a repeat may be late by on top of deadline and backoff.
const WINDOW_MARGIN: Duration = Duration::from_secs(30);

/// A connection, and what the server said about it.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) client: Client,
    pub(crate) context: jetstream::Context,
    state: watch::Receiver<Said>,
}

/// What the server said so far.
#[derive(Debug, Default, Clone)]
struct Said {
    broken: bool,
    /// Subjects that we may not publish to.
    forbidden: Arc<Mutex<HashSet<String>>>,
}

/// Who we are, in one of the four ways of NATS.
enum Identity {
    Nobody,
    User(String, String),
    Token(String),
    /// A key, and the JWT that goes with it.
    Key(Box<KeyPair>, Option<String>),
}

impl Connection {
    pub(crate) async fn open(options: &NatsOptions) -> Result<Arc<Self>, DeliveryError> {
        // The client's own future is large.
        Box::pin(Self::made(options)).await
    }

    async fn made(options: &NatsOptions) -> Result<Arc<Self>, DeliveryError> {
        let identity = Identity::of(options).await?;
        let (said, state) = watch::channel(Said::default());
        let used = AtomicBool::new(false);
        let identity = Arc::new(identity);
        let mut connect = ConnectOptions::with_auth_callback(move |nonce| {
            let first = !used.swap(true, Ordering::Relaxed);
            let identity = Arc::clone(&identity);
            async move {
                if first {
                    identity.auth(&nonce)
                } else {
                    Err(AuthError::new("a connection is never made again"))
                }
            }
        })
        .max_reconnects(1)
        .reconnect_delay_callback(|_| Duration::ZERO)
        .ignore_discovered_servers()
        .connection_timeout(options.connect_timeout)
        .name("outhaul")
        .event_callback(move |event| {
            match event {
                Event::Disconnected | Event::Closed => said.send_modify(|said| said.broken = true),
                Event::ServerError(ServerError::Other(text)) => {
                    if let Some(subject) = forbidden(&text) {
                        said.send_modify(|said| said.forbidden().extend([subject]));
                    }
                }
                _ => {}
            }
            async {}
        });
        if let Some(tls) = &options.tls {
            connect = connect.require_tls(true).tls_client_config((*tls.config().await?).clone());
        }
        let client = connect.connect(options.address.host_and_port()).await.map_err(error::connecting)?;
        let context = jetstream::context::ContextBuilder::new()
            .timeout(options.timeout)
            .ack_timeout(options.timeout)
            .backpressure_on_inflight(true)
            .build(client.clone());
        let connection = Self { client, context, state };
        if let Some(stream) = &options.stream
            && let Some(note) = connection.check(stream, options).await?
        {
            tracing::warn!(stream, "{note}");
        }
        Ok(Arc::new(connection))
    }

    /// The stream must exist, take the subject, and acknowledge. Returns what is to be known about its window.
    pub(crate) async fn check(
        &self,
        name: &str,
        options: &NatsOptions,
    ) -> Result<Option<String>, DeliveryError> {
        let stream = self.context.get_stream(name).await.map_err(|error| {
            let kind = match error.kind() {
                GetStreamErrorKind::JetStream(answer) => error::answered(&answer),
                GetStreamErrorKind::EmptyName | GetStreamErrorKind::InvalidStreamName => {
                    ErrorKind::Configuration
                }
                // Nobody answers for JetStream at all.
                GetStreamErrorKind::Request => ErrorKind::Unavailable,
            };
            DeliveryError::new(kind)
                .with_detail(format!("the stream `{name}` cannot be used"))
                .with_source(error)
        })?;
        let config = &stream.cached_info().config;
        let wrong = |why: &str| {
            Err(DeliveryError::new(ErrorKind::Configuration)
                .with_detail(format!("the stream `{name}` {why}")))
        };
        if config.no_ack {
            return wrong("does not acknowledge (`no_ack`)");
        }
        if config.sealed {
            return wrong("is sealed");
        }
        if let Some(subject) = options.subject.fixed()
            && !config.subjects.iter().any(|filter| matches(filter, subject))
        {
            return Err(DeliveryError::new(ErrorKind::DestinationMissing)
                .with_detail(format!("the stream `{name}` does not take the subject `{subject}`")));
        }
        let wanted = options.timeout + options.backoff_max + WINDOW_MARGIN;
        Ok((config.duplicate_window < wanted).then(|| {
            format!(
                "the duplicate window of the stream `{name}` is {:?}, shorter than {wanted:?} (an attempt, its longest \
                 backoff and half a minute): a repeat may be stored twice",
                config.duplicate_window
            )
        }))
    }

    /// Ends when the connection breaks.
    pub(crate) async fn broken(&self) {
        // The sender lives in the client's task: without it, the connection is gone as well.
        drop(self.state.clone().wait_for(|said| said.broken).await);
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.state.borrow().broken || self.state.has_changed().is_err()
    }

    /// Ends when the server has said that we may not publish to this subject.
    pub(crate) async fn forbidden(&self, subject: &str) {
        if self.state.clone().wait_for(|said| said.forbidden().contains(subject)).await.is_err() {
            std::future::pending().await
        }
    }

    pub(crate) fn is_forbidden(&self, subject: &str) -> bool {
        self.state.borrow().forbidden().contains(subject)
    }
}

impl Said {
    fn forbidden(&self) -> std::sync::MutexGuard<'_, HashSet<String>> {
        self.forbidden.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The subject in `Permissions Violation for Publish to "SUBJECT"`.
fn forbidden(text: &str) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    let at = lower.find("permissions violation for publish to")?;
    let quoted = text[at..].split('"').nth(1)?;
    Some(quoted.to_owned())
}

/// Whether a stream's subject, which may have wildcards, takes this one.
fn matches(filter: &str, subject: &str) -> bool {
    let (mut filter, mut subject) = (filter.split('.'), subject.split('.'));
    loop {
        match (filter.next(), subject.next()) {
            (Some(">"), Some(_)) | (None, None) => return true,
            (Some(of), Some(token)) if of == "*" || of == token => {}
            _ => return false,
        }
    }
}

impl Identity {
    async fn of(options: &NatsOptions) -> Result<Self, DeliveryError> {
        if let Some(file) = &options.credentials {
            let text = read(file).await?;
            let (Some(jwt), Some(seed)) = (block(&text, "NATS USER JWT"), block(&text, "USER NKEY SEED"))
            else {
                let detail = "the credentials file holds no `NATS USER JWT` and `USER NKEY SEED`";
                return Err(DeliveryError::new(ErrorKind::Configuration).with_detail(detail));
            };
            return Ok(Self::Key(key(seed)?, Some(jwt.to_owned())));
        }
        if let Some(seed) = &options.nkey {
            return Ok(Self::Key(key(read(seed).await?.trim())?, None));
        }
        if let Some(token) = &options.token {
            return Ok(Self::Token(read(token).await?.to_string()));
        }
        let password = match &options.address.password {
            Some(password) => read(password).await?.to_string(),
            None => String::new(),
        };
        Ok(match &options.address.user {
            Some(user) => Self::User(user.clone(), password),
            None => Self::Nobody,
        })
    }

    fn auth(&self, nonce: &[u8]) -> Result<Auth, AuthError> {
        let mut auth = Auth::new();
        match self {
            Self::Nobody => {}
            Self::User(user, password) => {
                auth.username = Some(user.clone());
                auth.password = Some(password.clone());
            }
            Self::Token(token) => auth.token = Some(token.clone()),
            Self::Key(key, jwt) => {
                auth.signature = Some(key.sign(nonce).map_err(AuthError::new)?);
                match jwt {
                    Some(jwt) => auth.jwt = Some(jwt.clone()),
                    None => auth.nkey = Some(key.public_key()),
                }
            }
        }
        Ok(auth)
    }
}

fn key(seed: &str) -> Result<Box<KeyPair>, DeliveryError> {
    // The error of the library may show what it was given.
    KeyPair::from_seed(seed).map(Box::new).map_err(|_| {
        DeliveryError::new(ErrorKind::Configuration).with_detail("the seed of the nkey is not valid")
    })
}

/// What stands between the two lines that name it.
fn block<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, after) = text.split_once(&format!("BEGIN {name}"))?;
    let (_, inside) = after.split_once('\n')?;
    Some(inside.lines().next()?.trim()).filter(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_match_as_those_of_nats() {
        for (filter, subject, expected) in [
            ("orders.paid", "orders.paid", true),
            ("orders.*", "orders.paid", true),
            ("orders.*", "orders.paid.eu", false),
            ("orders.>", "orders.paid.eu", true),
            ("orders.>", "orders", false),
            (">", "orders", true),
            ("orders", "orders.paid", false),
        ] {
            assert_eq!(matches(filter, subject), expected, "{filter} {subject}");
        }
    }

    #[test]
    fn a_forbidden_subject_is_found_in_the_servers_text() {
        let text = "Permissions Violation for Publish to \"orders.paid\"";
        assert_eq!(forbidden(text).as_deref(), Some("orders.paid"));
        assert_eq!(forbidden("Permissions Violation for Subscription to \"x\""), None);
    }

    #[test]
    fn the_two_blocks_of_a_credentials_file_are_found() {
        let text = "-----BEGIN NATS USER JWT-----\neyJ0\n------END NATS USER JWT------\n\n\
                    -----BEGIN USER NKEY SEED-----\nSUAB\n------END USER NKEY SEED------\n";
        assert_eq!(
            (block(text, "NATS USER JWT"), block(text, "USER NKEY SEED")),
            (Some("eyJ0"), Some("SUAB"))
        );
        assert_eq!(block("", "NATS USER JWT"), None);
    }
}
