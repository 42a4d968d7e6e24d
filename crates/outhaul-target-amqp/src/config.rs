//! Where events go, and how: [`AmqpOptions`].

use std::time::Duration;

use outhaul_target::net::Tls;
use outhaul_target::{Address, ConfigError, Format, Mode, TargetUri, Template, one_of};

/// The longest name or key of AMQP, in bytes.
pub(crate) const SHORT_BYTES_MAX: usize = 255;

/// What is declared at each new connection. It is durable, and never deleted by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Declare {
    /// `queue`: a classic queue named like the routing key, which the default exchange routes to.
    Queue,
    /// `quorum_queue`: the same, replicated.
    QuorumQueue,
    /// `direct`: the exchange, of this type.
    Direct,
    /// `fanout`: the exchange, of this type.
    Fanout,
    /// `topic`: the exchange, of this type.
    Topic,
    /// `headers`: the exchange, of this type.
    Headers,
}

impl Declare {
    /// Whether it is a queue and no exchange.
    pub fn is_queue(self) -> bool {
        matches!(self, Self::Queue | Self::QuorumQueue)
    }
}

/// How a target is made.
#[derive(Debug, Clone)]
pub struct AmqpOptions {
    /// Host, port, user and password.
    pub address: Address,
    /// The virtual host (`/`).
    pub vhost: String,
    /// The exchange; empty is the default exchange, which routes to the queue that is named like the key.
    pub exchange: String,
    /// The routing key.
    pub routing_key: Template,
    /// What is declared; None declares nothing.
    pub declare: Option<Declare>,
    /// How CloudEvents are sent.
    pub mode: Mode,
    /// What the body is.
    pub format: Format,
    /// TLS, where it is spoken.
    pub tls: Option<Tls>,
    /// Batches at the same time, each on a channel of its own (16).
    pub channels_max: usize,
    /// The deadline of one batch (30 s).
    pub timeout: Duration,
    /// The deadline of connecting, TLS and login included (5 s).
    pub connect_timeout: Duration,
}

impl AmqpOptions {
    /// Reads `amqp://…` or `amqps://…` and the options `exchange`, `routing_key`, `declare`, `mode`, `password_file`,
    /// `ca`, `cert`, `key`, `server_name`.
    ///
    /// # Errors
    /// There is no place to publish to, or an option is not valid.
    pub fn from_uri(mut uri: TargetUri) -> Result<Self, ConfigError> {
        let encrypted = uri.scheme() == "amqps";
        let address = Address::take(&mut uri, if encrypted { 5671 } else { 5672 })?;
        let exchange = uri.take("exchange").unwrap_or_default();
        let key = uri.take("routing_key").unwrap_or_default();
        let declare = uri.take("declare");
        let mode = uri.take("mode");
        let tls = Tls::take(&mut uri, encrypted)?;
        let common = uri.options().clone();
        let mode = Mode::read(mode.as_deref(), &uri)?;
        let declare = match declare.as_deref() {
            None => None,
            Some(text) => {
                Some(declared(text).map_err(|why| uri.invalid("declare", why, "write one of them"))?)
            }
        };
        for (name, text) in [("exchange", &exchange), ("routing_key", &key)] {
            if text.len() > SHORT_BYTES_MAX {
                let why = format!("it is longer than {SHORT_BYTES_MAX} bytes");
                return Err(uri.invalid(name, why, "shorten it"));
            }
        }
        let routing_key = Template::parse(&key)
            .map_err(|error| uri.invalid("routing_key", error.to_string(), "correct it"))?;
        if exchange.is_empty() && key.is_empty() {
            let why = "the default exchange routes by `outhaul.routing_key`, the name of the queue, and there is none";
            return Err(uri.invalid_url(why, "give `outhaul.routing_key`, or `outhaul.exchange`"));
        }
        check_declare(&uri, declare, &exchange, &routing_key)?;
        let vhost = address.path.clone().filter(|path| !path.is_empty()).unwrap_or_else(|| "/".to_owned());
        if vhost.len() > SHORT_BYTES_MAX {
            let why = format!("the virtual host is longer than {SHORT_BYTES_MAX} bytes");
            return Err(uri.invalid_url(why, "shorten it"));
        }
        let options = Self {
            address,
            vhost,
            exchange,
            routing_key,
            declare,
            mode,
            format: common.format,
            tls,
            channels_max: common.in_flight.get(),
            timeout: common.timeout,
            connect_timeout: common.connect_timeout,
        };
        uri.finish()?;
        Ok(options)
    }
}

fn declared(text: &str) -> Result<Declare, String> {
    one_of(
        text,
        &[
            ("queue", Declare::Queue),
            ("quorum_queue", Declare::QuorumQueue),
            ("direct", Declare::Direct),
            ("fanout", Declare::Fanout),
            ("topic", Declare::Topic),
            ("headers", Declare::Headers),
        ],
    )
}

fn check_declare(
    uri: &TargetUri,
    declare: Option<Declare>,
    exchange: &str,
    key: &Template,
) -> Result<(), ConfigError> {
    let Some(declare) = declare else { return Ok(()) };
    if declare.is_queue() {
        if !exchange.is_empty() {
            let why = "a queue that nobody binds gets nothing from an exchange";
            return Err(uri.invalid("declare", why, "leave out `outhaul.exchange`, or declare the exchange"));
        }
        if key.fixed().is_none() {
            let why = "`outhaul.routing_key` is a template, so that the queue has no one name";
            return Err(uri.invalid("declare", why, "leave it out, and make the queues yourself"));
        }
    } else if exchange.is_empty() {
        let why = "the default exchange is there already";
        return Err(uri.invalid("declare", why, "give `outhaul.exchange`, or declare a queue"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<AmqpOptions, ConfigError> {
        AmqpOptions::from_uri(TargetUri::parse(text)?)
    }

    #[test]
    fn everything_can_be_said_in_a_uri() {
        let options = parse(
            "amqp://me:pw@h/team?outhaul.exchange=events&outhaul.routing_key=orders.{type}&outhaul.declare=topic&outhaul.timeout=2s",
        )
        .unwrap();
        assert_eq!((options.vhost.as_str(), options.exchange.as_str()), ("team", "events"));
        assert_eq!((options.address.port, options.timeout), (5672, Duration::from_secs(2)));
        assert_eq!((options.declare, options.mode), (Some(Declare::Topic), Mode::Binary));
        assert!(options.tls.is_none());
        let options =
            parse("amqps://h?outhaul.routing_key=q&outhaul.ca=/ca&outhaul.mode=structured").unwrap();
        assert!(options.tls.is_some() && options.address.port == 5671 && options.mode == Mode::Structured);
        assert!(options.exchange.is_empty() && options.declare.is_none());
        let table = [("exchange", "logs"), ("declare", "fanout")];
        let options = AmqpOptions::from_uri(TargetUri::from_table("amqp://h/v", table).unwrap()).unwrap();
        assert_eq!((options.exchange.as_str(), options.routing_key.fixed()), ("logs", Some("")));
    }

    #[test]
    fn the_virtual_host_is_the_decoded_path() {
        for (url, expected) in [
            ("amqp://h", "/"),
            ("amqp://h/", "/"),
            ("amqp://h/%2F", "/"),
            ("amqp://h/a%2Fb", "a/b"),
            ("amqp://h/team", "team"),
        ] {
            assert_eq!(parse(&format!("{url}?outhaul.routing_key=q")).unwrap().vhost, expected, "{url}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let long = "k".repeat(256);
        for (text, expected) in [
            ("amqp://h/v", "there is none"),
            ("amqp://h/v?outhaul.routing_key={B}", "no attribute"),
            (&format!("amqp://h/v?outhaul.routing_key={long}"), "longer than 255"),
            (&format!("amqp://h/v?outhaul.exchange={long}"), "longer than 255"),
            (&format!("amqp://h/{long}?outhaul.routing_key=q"), "virtual host"),
            ("amqp://h/v?outhaul.routing_key=q&outhaul.ca=/ca", "not encrypted"),
            ("amqp://h/v?outhaul.routing_key=q&outhaul.mode=x", "binary, structured"),
            ("amqp://h/v?outhaul.routing_key=q&outhaul.mode=binary&outhaul.format=body", "has modes"),
            ("amqp://h/v?outhaul.routing_key=q&outhaul.declare=x", "queue, quorum_queue, direct"),
            ("amqp://h/v?outhaul.routing_key={pid}&outhaul.declare=queue", "no one name"),
            ("amqp://h/v?outhaul.exchange=e&outhaul.declare=queue", "nobody binds"),
            ("amqp://h/v?outhaul.routing_key=q&outhaul.declare=topic", "there already"),
            ("amqp://h/v?outhaul.routingkey=q&outhaul.exchange=e", "exchange, routing_key, declare, mode"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
