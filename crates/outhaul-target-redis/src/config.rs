//! Where events go, and how: [`RedisOptions`].

use std::num::{NonZeroU32, NonZeroU64};
use std::str::FromStr;
use std::time::Duration;

use outhaul_target::net::Tls;
use outhaul_target::{Address, ConfigError, Format, TargetUri, Template, duration, one_of};

use crate::codec;

/// How long replicas may take, unless it is said.
const WAIT_TIMEOUT: Duration = Duration::from_secs(1);

/// What events are put into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An entry of a stream, by `XADD`.
    Stream,
    /// The end of a list, by `RPUSH`.
    List,
    /// A channel, by `PUBLISH`, which keeps nothing.
    Channel,
}

/// What a message is that nobody has received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NoReceivers {
    /// Not delivered: it is tried again.
    #[default]
    Retry,
    /// Delivered.
    Delivered,
}

/// How a target is made.
#[derive(Debug, Clone)]
pub struct RedisOptions {
    /// Host, port, user and password.
    pub address: Address,
    /// The number of the database (0).
    pub database: u32,
    /// Stream, list or channel.
    pub kind: Kind,
    /// Its key, or the channel's name.
    pub key: Template,
    /// How many entries a stream keeps, about (all).
    pub maxlen: Option<NonZeroU64>,
    /// What a message without receivers is (not delivered).
    pub no_receivers: NoReceivers,
    /// How many replicas have to have a batch (none).
    pub wait_replicas: Option<NonZeroU32>,
    /// How long they may take (1 s, or half of `timeout` if that is less).
    pub wait_timeout: Duration,
    /// How many ids are remembered to recognise repeats (none).
    pub dedup: Option<NonZeroU64>,
    /// What an event becomes.
    pub format: Format,
    /// TLS, where it is spoken.
    pub tls: Option<Tls>,
    /// The deadline of one batch (30 s).
    pub timeout: Duration,
    /// The deadline of connecting, TLS and the greeting included (5 s).
    pub connect_timeout: Duration,
}

impl RedisOptions {
    /// Reads `redis[s]://…` or `valkey[s]://…` and the options `stream`, `list`, `channel`, `maxlen`, `no_receivers`,
    /// `wait_replicas`, `wait_timeout`, `dedup`, `password_file`, `ca`, `cert`, `key`, `server_name`.
    ///
    /// # Errors
    /// Not one of `stream`, `list` and `channel`, an option that does not go with it, or one that is not valid.
    pub fn from_uri(uri: TargetUri) -> Result<Self, ConfigError> {
        Self::and_destination(uri).map(|(options, _)| options)
    }

    /// The options, and where events go, without credentials and whichever name the server goes by.
    pub(crate) fn and_destination(mut uri: TargetUri) -> Result<(Self, String), ConfigError> {
        let encrypted = matches!(uri.scheme(), "rediss" | "valkeys");
        let address = Address::take(&mut uri, 6379)?;
        let database = database(&uri, address.path.as_deref().unwrap_or_default())?;
        let (kind, text) = destination(&mut uri)?;
        let name = option_of(kind);
        let key =
            Template::parse(&text).map_err(|error| uri.invalid(name, error.to_string(), "correct it"))?;
        let maxlen = only(&mut uri, "maxlen", kind, &[Kind::Stream])?;
        let no_receivers = only(&mut uri, "no_receivers", kind, &[Kind::Channel])?;
        let wait_replicas = only(&mut uri, "wait_replicas", kind, &[Kind::Stream, Kind::List])?;
        let wait_timeout = only(&mut uri, "wait_timeout", kind, &[Kind::Stream, Kind::List])?;
        let dedup = only(&mut uri, "dedup", kind, &[Kind::Stream, Kind::List])?;
        let tls = Tls::take(&mut uri, encrypted)?;
        let common = uri.options().clone();
        if wait_timeout.is_some() && wait_replicas.is_none() {
            let why = "it does nothing without `outhaul.wait_replicas`";
            return Err(uri.invalid("wait_timeout", why, "leave it out, or say how many replicas"));
        }
        if dedup.is_some() && codec::ids_key(&literal(&text)).is_none() {
            let why =
                "the ids cannot be kept beside it: a key with `}` needs a hash tag, a text between braces";
            return Err(uri.invalid(name, why, "leave the brace out, or put one before it"));
        }
        let options = Self {
            database,
            kind,
            key,
            maxlen: number(&uri, "maxlen", maxlen)?,
            no_receivers: match no_receivers {
                None => NoReceivers::default(),
                Some(text) => {
                    let words = [("retry", NoReceivers::Retry), ("delivered", NoReceivers::Delivered)];
                    one_of(&text, &words)
                        .map_err(|why| uri.invalid("no_receivers", why, "write one of them"))?
                }
            },
            wait_replicas: number(&uri, "wait_replicas", wait_replicas)?,
            wait_timeout: match wait_timeout {
                None => WAIT_TIMEOUT.min(common.timeout / 2),
                Some(text) => {
                    duration(&text).map_err(|why| uri.invalid("wait_timeout", why, "correct the value"))?
                }
            },
            dedup: number(&uri, "dedup", dedup)?,
            address,
            format: common.format,
            tls,
            timeout: common.timeout,
            connect_timeout: common.connect_timeout,
        };
        if options.wait_timeout >= options.timeout {
            let why = format!("it is not shorter than `outhaul.timeout`, which is {:?}", options.timeout);
            return Err(uri.invalid("wait_timeout", why, "change one of the two"));
        }
        let scheme = if encrypted { "rediss" } else { "redis" };
        let host = options.address.host_and_port().to_ascii_lowercase();
        let destination = format!("{scheme}://{host}/{database} {name} {text}");
        uri.finish()?;
        Ok((options, destination))
    }
}

fn option_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Stream => "stream",
        Kind::List => "list",
        Kind::Channel => "channel",
    }
}

/// The one that is given, and its text.
fn destination(uri: &mut TargetUri) -> Result<(Kind, String), ConfigError> {
    let kinds = [Kind::Stream, Kind::List, Kind::Channel];
    let mut given: Vec<(Kind, String)> =
        kinds.into_iter().filter_map(|kind| Some((kind, uri.take(option_of(kind))?))).collect();
    match given.pop() {
        Some(one) if given.is_empty() => Ok(one),
        _ => Err(uri.invalid_url(
            "it needs one of `outhaul.stream`, `outhaul.list` and `outhaul.channel`, and one only",
            "say what events are put into, such as `outhaul.stream=orders`",
        )),
    }
}

fn database(uri: &TargetUri, path: &str) -> Result<u32, ConfigError> {
    match path {
        "" => Some(0),
        digits if digits.bytes().all(|b| b.is_ascii_digit()) => digits.parse().ok(),
        _ => None,
    }
    .ok_or_else(|| {
        uri.invalid_url(
            "what follows the host is no number of a database",
            "write it like `redis://HOST:6379/0`",
        )
    })
}

/// The value of an option that only some kinds have.
fn only(uri: &mut TargetUri, name: &str, kind: Kind, of: &[Kind]) -> Result<Option<String>, ConfigError> {
    let value = uri.take(name);
    if value.is_some() && !of.contains(&kind) {
        let why = format!("a {} does not have it", option_of(kind));
        return Err(uri.invalid(name, why, "leave it out"));
    }
    Ok(value)
}

fn number<N: FromStr>(uri: &TargetUri, name: &str, text: Option<String>) -> Result<Option<N>, ConfigError> {
    let Some(text) = text else { return Ok(None) };
    let parsed = text.parse().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit()));
    let why = "it is no whole number above zero";
    parsed.map(Some).ok_or_else(|| uri.invalid(name, why, "correct the value"))
}

/// What a template's own text looks like in a key: what events put in has no braces.
fn literal(template: &str) -> String {
    let (mut out, mut rest) = (String::new(), template);
    while let Some(at) = rest.find(['{', '}']) {
        out.push_str(&rest[..at]);
        let (brace, after) = rest[at..].split_at(1);
        rest = match after.strip_prefix(brace) {
            Some(after) => {
                out.push_str(brace);
                after
            }
            None => {
                out.push('x');
                after.split_once('}').map_or("", |(_, after)| after)
            }
        };
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<RedisOptions, ConfigError> {
        RedisOptions::from_uri(TargetUri::parse(text)?)
    }

    #[test]
    fn everything_can_be_said_in_a_uri() {
        let options = parse(
            "redis://me:pw@h/3?outhaul.stream=orders:{type}&outhaul.maxlen=1000&outhaul.dedup=50\
             &outhaul.wait_replicas=2&outhaul.wait_timeout=250ms&outhaul.timeout=2s",
        )
        .unwrap();
        assert_eq!((options.kind, options.database, options.address.port), (Kind::Stream, 3, 6379));
        assert_eq!(options.maxlen.map(NonZeroU64::get), Some(1000));
        assert_eq!(options.dedup.map(NonZeroU64::get), Some(50));
        assert_eq!(options.wait_replicas.map(NonZeroU32::get), Some(2));
        assert_eq!(options.wait_timeout, Duration::from_millis(250));
        assert!(options.tls.is_none());
        let options = parse("valkeys://h:1?outhaul.channel=c&outhaul.no_receivers=delivered").unwrap();
        assert_eq!((options.kind, options.database), (Kind::Channel, 0));
        assert_eq!(options.no_receivers, NoReceivers::Delivered);
        assert!(options.tls.is_some());
        let options = parse("redis://h/?outhaul.list=l&outhaul.timeout=1s&outhaul.wait_replicas=1").unwrap();
        assert_eq!((options.kind, options.wait_timeout), (Kind::List, Duration::from_millis(500)));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, expected) in [
            ("redis://h/0", "needs one of `outhaul.stream`"),
            ("redis://h/0?outhaul.stream=a&outhaul.list=b", "one only"),
            ("redis://h/x?outhaul.stream=a", "no number of a database"),
            ("redis://h/-1?outhaul.stream=a", "no number of a database"),
            ("redis://h/0?outhaul.stream=a.{B}", "no attribute"),
            ("redis://h/0?outhaul.list=a&outhaul.maxlen=5", "a list does not have it"),
            ("redis://h/0?outhaul.channel=a&outhaul.dedup=5", "a channel does not have it"),
            ("redis://h/0?outhaul.channel=a&outhaul.wait_replicas=1", "a channel does not have it"),
            ("redis://h/0?outhaul.stream=a&outhaul.no_receivers=retry", "a stream does not have it"),
            ("redis://h/0?outhaul.channel=a&outhaul.no_receivers=x", "retry, delivered"),
            ("redis://h/0?outhaul.stream=a&outhaul.maxlen=0", "whole number above zero"),
            ("redis://h/0?outhaul.stream=a&outhaul.maxlen=%2B5", "whole number above zero"),
            ("redis://h/0?outhaul.stream=a&outhaul.wait_timeout=1s", "without `outhaul.wait_replicas`"),
            (
                "redis://h/0?outhaul.stream=a&outhaul.wait_replicas=1&outhaul.wait_timeout=30s",
                "not shorter than `outhaul.timeout`",
            ),
            ("redis://h/0?outhaul.stream=a}}b&outhaul.dedup=5", "needs a hash tag"),
            ("redis://h/0?outhaul.stream=a&outhaul.ca=/ca", "not encrypted"),
            ("redis://h/0?outhaul.stream=a&outhaul.maxlem=5", "stream, list, channel, maxlen, no_receivers"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn a_destination_has_no_credentials_and_one_name() {
        let of = |text| RedisOptions::and_destination(TargetUri::parse(text).unwrap()).unwrap().1;
        let expected = "redis://h:6379/0 stream a:{type}";
        assert_eq!(of("redis://me:s3cret@H?outhaul.stream=a:{type}"), expected);
        assert_eq!(of("valkey://h:6379/0?outhaul.stream=a:{type}&outhaul.maxlen=5"), expected);
        assert_ne!(of("redis://h/0?outhaul.list=a:{type}"), expected);
    }

    #[test]
    fn a_templates_own_braces_are_seen() {
        for (template, expected) in [("a", "a"), ("{{a}}:{type}b", "{a}:xb"), ("{a}}}", "x}"), ("{{", "{")] {
            assert_eq!(literal(template), expected);
        }
    }
}
