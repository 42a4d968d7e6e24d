//! Where events go, and how: [`NatsOptions`].

use std::time::Duration;

use outhaul_target::net::Tls;
use outhaul_target::{Address, ConfigError, Format, Mode, Secret, TargetUri, Template};

/// How a target is made.
#[derive(Debug, Clone)]
pub struct NatsOptions {
    /// Host, port, user and password.
    pub address: Address,
    /// The subject.
    pub subject: Template,
    /// The stream that acknowledges; None publishes without one.
    pub stream: Option<String>,
    /// How CloudEvents are sent.
    pub mode: Mode,
    /// What the payload is.
    pub format: Format,
    /// A token, in place of user and password.
    pub token: Option<Secret>,
    /// The seed of an nkey, in place of the others.
    pub nkey: Option<Secret>,
    /// A credentials file with a JWT and its seed, in place of the others.
    pub credentials: Option<Secret>,
    /// TLS, where it is spoken.
    pub tls: Option<Tls>,
    /// The deadline of one batch (30 s).
    pub timeout: Duration,
    /// The deadline of connecting, TLS included (5 s).
    pub connect_timeout: Duration,
    /// The longest wait before an entry is tried again: what the stream's duplicate window has to cover.
    pub backoff_max: Duration,
}

impl NatsOptions {
    /// Reads `nats://…`, `nats+tls://…` or `tls://…` and the options `stream`, `mode`, `token_file`, `nkey_file`,
    /// `creds`, `password_file`, `ca`, `cert`, `key`, `server_name`.
    ///
    /// # Errors
    /// The URL names no subject or one that cannot be published to, or an option is not valid.
    pub fn from_uri(mut uri: TargetUri) -> Result<Self, ConfigError> {
        let encrypted = uri.scheme() != "nats";
        let address = Address::take(&mut uri, 4222)?;
        let stream = uri.take("stream");
        let mode = uri.take("mode");
        let [token, nkey, credentials] =
            ["token_file", "nkey_file", "creds"].map(|name| uri.take(name).map(Secret::file));
        let tls = Tls::take(&mut uri, encrypted)?;
        let common = uri.options().clone();
        let ways = [address.user.is_some(), token.is_some(), nkey.is_some(), credentials.is_some()];
        if ways.into_iter().filter(|given| *given).count() > 1 {
            let why =
                "user, `outhaul.token_file`, `outhaul.nkey_file` and `outhaul.creds` exclude each other";
            return Err(uri.invalid_url(why, "leave one of them"));
        }
        if let Some(name) = stream.as_deref().filter(|name| !is_stream_name(name)) {
            let why = format!("`{name}` is no name of a stream: no `.`, `*`, `>`, slash or space");
            return Err(uri.invalid("stream", why, "correct it"));
        }
        let mode = Mode::read(mode.as_deref(), &uri)?;
        let example = "write it like `nats://HOST:4222/orders.{type}`";
        let path = address.path.clone().unwrap_or_default();
        let subject = Template::parse(&path).map_err(|error| uri.invalid_url(error.to_string(), example))?;
        if !is_subject(&path) {
            let why = "what follows the host is no subject: tokens between dots, none of them empty, without `*`, `>` \
                       and spaces";
            return Err(uri.invalid_url(why, example));
        }
        let options = Self {
            address,
            subject,
            stream,
            mode,
            format: common.format,
            token,
            nkey,
            credentials,
            tls,
            timeout: common.timeout,
            connect_timeout: common.connect_timeout,
            backoff_max: common.backoff_max,
        };
        uri.finish()?;
        Ok(options)
    }
}

/// Whether a subject can be published to. Braces of a template are characters like others here.
fn is_subject(text: &str) -> bool {
    let valid = |token: &str| {
        !token.is_empty()
            && !token.contains(|c: char| c.is_whitespace() || c.is_control() || "*>".contains(c))
    };
    text.split('.').all(valid)
}

fn is_stream_name(text: &str) -> bool {
    !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c.is_control() || ".*>/\\".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<NatsOptions, ConfigError> {
        NatsOptions::from_uri(TargetUri::parse(text)?)
    }

    #[test]
    fn everything_can_be_said_in_a_uri() {
        let options = parse("nats://me:pw@h/orders.{type}?outhaul.stream=ORDERS&outhaul.timeout=2s").unwrap();
        assert_eq!(options.stream.as_deref(), Some("ORDERS"));
        assert_eq!((options.address.port, options.timeout), (4222, Duration::from_secs(2)));
        assert!(options.tls.is_none());
        let options =
            parse("nats+tls://h:1/s?outhaul.ca=/ca&outhaul.creds=/c&outhaul.mode=structured").unwrap();
        assert!(options.tls.is_some() && options.credentials.is_some() && options.mode == Mode::Structured);
        assert!(parse("tls://h/s").unwrap().tls.is_some());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, expected) in [
            ("nats://h", "no subject"),
            ("nats://h/", "no subject"),
            ("nats://h/a..b", "no subject"),
            ("nats://h/a.>", "no subject"),
            ("nats://h/a%20b", "no subject"),
            ("nats://h/a.{B}", "no attribute"),
            ("nats://h/a?outhaul.stream=a.b", "no name of a stream"),
            ("nats://u:p@h/a?outhaul.token_file=/t", "exclude each other"),
            ("nats://h/a?outhaul.ca=/ca", "not encrypted"),
            ("nats://h/a?outhaul.mode=x", "binary, structured"),
            ("nats://h/a?outhaul.streem=x", "stream, mode, token_file, nkey_file, creds"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
