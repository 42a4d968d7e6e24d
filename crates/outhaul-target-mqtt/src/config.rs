//! Where events go, and how: [`MqttOptions`].

use std::time::Duration;

use outhaul_target::net::Tls;
use outhaul_target::{Address, ConfigError, Format, Mode, TargetUri, Template, one_of, size};

/// The largest packet that MQTT has.
pub(crate) const PACKET_BYTES_MAX: usize = 268_435_455;

/// Which MQTT is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Version {
    /// `3.1.1`.
    V4,
    /// `5`.
    #[default]
    V5,
}

/// What an acknowledgement is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Qos {
    /// `at_most_once` (`QoS` 0): an event counts as delivered when it is on its way. It may be lost.
    AtMostOnce,
    /// `1`: acknowledged.
    #[default]
    AtLeastOnce,
    /// `2`: acknowledged in two steps, so that what the client repeats itself arrives once.
    ExactlyOnce,
}

/// What it means that the server knows nobody who wants a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unheard {
    /// `delivered`: the server has taken it.
    #[default]
    Delivered,
    /// `hold`: its topic counts as missing. MQTT 5 only, and of servers that tell.
    Hold,
}

/// How a target is made.
#[derive(Debug, Clone)]
pub struct MqttOptions {
    /// Host, port, user and password.
    pub address: Address,
    /// The topic.
    pub topic: Template,
    /// Which MQTT is spoken.
    pub version: Version,
    /// What an acknowledgement is worth.
    pub qos: Qos,
    /// Who we are; None makes a name for this process.
    pub client_id: Option<String>,
    /// The largest packet that is sent, in bytes; with MQTT 5 the server may want less.
    pub packet_bytes_max: usize,
    /// What it means that nobody wants a message.
    pub unheard: Unheard,
    /// How CloudEvents are sent.
    pub mode: Mode,
    /// What the payload is.
    pub format: Format,
    /// TLS, where it is spoken.
    pub tls: Option<Tls>,
    /// The deadline of one batch (30 s).
    pub timeout: Duration,
    /// The deadline of connecting, TLS and login included (5 s).
    pub connect_timeout: Duration,
}

impl MqttOptions {
    /// Reads `mqtt://…` or `mqtts://…` and the options `version`, `qos`, `client_id`, `packet_max`, `unheard`, `mode`,
    /// `password_file`, `ca`, `cert`, `key`, `server_name`.
    ///
    /// # Errors
    /// The URL names no topic or one that cannot be published to, or an option is not valid.
    pub fn from_uri(mut uri: TargetUri) -> Result<Self, ConfigError> {
        let encrypted = uri.scheme() == "mqtts";
        let address = Address::take(&mut uri, if encrypted { 8883 } else { 1883 })?;
        let [version, qos, client_id, packet_max, unheard, mode] =
            ["version", "qos", "client_id", "packet_max", "unheard", "mode"].map(|name| uri.take(name));
        let tls = Tls::take(&mut uri, encrypted)?;
        let common = uri.options().clone();
        let version =
            choice(&uri, "version", version.as_deref(), &[("5", Version::V5), ("3.1.1", Version::V4)])?;
        let levels = [("1", Qos::AtLeastOnce), ("2", Qos::ExactlyOnce), ("at_most_once", Qos::AtMostOnce)];
        let qos = choice(&uri, "qos", qos.as_deref(), &levels)?.unwrap_or_default();
        let kinds = [("delivered", Unheard::Delivered), ("hold", Unheard::Hold)];
        let unheard = choice(&uri, "unheard", unheard.as_deref(), &kinds)?;
        let chosen = choice(&uri, "mode", mode.as_deref(), Mode::WORDS)?;
        let version = version.unwrap_or_default();
        if version == Version::V4 {
            let only = |name: &str| uri.invalid(name, "only MQTT 5 has it", "leave it out, or speak MQTT 5");
            if chosen == Some(Mode::Binary) {
                return Err(only("mode"));
            }
            if unheard.is_some() {
                return Err(only("unheard"));
            }
        }
        if chosen.is_some() && common.format != Format::CloudEvents {
            let why = "only the format `cloudevents` has modes";
            return Err(uri.invalid("mode", why, "leave out `outhaul.mode` or `outhaul.format`"));
        }
        let packet_bytes_max = match packet_max.as_deref().map(size) {
            None => PACKET_BYTES_MAX,
            Some(Ok(bytes)) => usize::try_from(bytes.get()).unwrap_or(usize::MAX).min(PACKET_BYTES_MAX),
            Some(Err(why)) => return Err(uri.invalid("packet_max", why, "correct it")),
        };
        let path = address.path.clone().unwrap_or_default();
        let example = "write it like `mqtt://HOST:1883/orders/{type}`";
        let topic = Template::parse(&path).map_err(|error| uri.invalid_url(error.to_string(), example))?;
        if path.is_empty() || path.contains(|c: char| c.is_control() || "+#".contains(c)) {
            let why = "what follows the host is no topic: not empty, without `+`, `#` and control characters";
            return Err(uri.invalid_url(why, example));
        }
        if let Some(id) = &client_id
            && id.len() > usize::from(u16::MAX)
        {
            return Err(uri.invalid("client_id", "it is longer than 65535 bytes", "shorten it"));
        }
        let options = Self {
            address,
            topic,
            version,
            qos,
            client_id,
            packet_bytes_max,
            unheard: unheard.unwrap_or_default(),
            mode: chosen.unwrap_or(if version == Version::V5 { Mode::Binary } else { Mode::Structured }),
            format: common.format,
            tls,
            timeout: common.timeout,
            connect_timeout: common.connect_timeout,
        };
        uri.finish()?;
        Ok(options)
    }
}

fn choice<T: Copy>(
    uri: &TargetUri,
    name: &str,
    text: Option<&str>,
    choices: &[(&str, T)],
) -> Result<Option<T>, ConfigError> {
    text.map(|text| one_of(text, choices).map_err(|why| uri.invalid(name, why, "write one of them")))
        .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<MqttOptions, ConfigError> {
        MqttOptions::from_uri(TargetUri::parse(text)?)
    }

    #[test]
    fn everything_can_be_said_in_a_uri() {
        let options = parse("mqtt://me:pw@h/orders/{type}?outhaul.qos=2&outhaul.client_id=relay-1").unwrap();
        assert_eq!(
            (options.version, options.qos, options.mode),
            (Version::V5, Qos::ExactlyOnce, Mode::Binary)
        );
        assert_eq!((options.address.port, options.client_id.as_deref()), (1883, Some("relay-1")));
        assert_eq!((options.packet_bytes_max, options.unheard), (PACKET_BYTES_MAX, Unheard::Delivered));
        let options =
            parse("mqtts://h/t?outhaul.version=3.1.1&outhaul.packet_max=2MiB&outhaul.ca=/ca").unwrap();
        assert_eq!((options.version, options.qos), (Version::V4, Qos::AtLeastOnce));
        assert_eq!((options.mode, options.packet_bytes_max), (Mode::Structured, 2 << 20));
        assert!(options.tls.is_some() && options.address.port == 8883);
        let table = [("qos", "at_most_once"), ("unheard", "hold"), ("timeout", "2s")];
        let options = MqttOptions::from_uri(TargetUri::from_table("mqtt://h/t", table).unwrap()).unwrap();
        assert_eq!((options.qos, options.unheard), (Qos::AtMostOnce, Unheard::Hold));
        assert_eq!(options.timeout, Duration::from_secs(2));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, expected) in [
            ("mqtt://h", "no topic"),
            ("mqtt://h/", "no topic"),
            ("mqtt://h/a/+/b", "no topic"),
            ("mqtt://h/a/%23", "no topic"),
            ("mqtt://h/a/{B}", "no attribute"),
            ("mqtt://h/a?outhaul.qos=0", "1, 2, at_most_once"),
            ("mqtt://h/a?outhaul.version=4", "5, 3.1.1"),
            ("mqtt://h/a?outhaul.version=3.1.1&outhaul.mode=binary", "only MQTT 5"),
            ("mqtt://h/a?outhaul.version=3.1.1&outhaul.unheard=hold", "only MQTT 5"),
            ("mqtt://h/a?outhaul.mode=binary&outhaul.format=body", "has modes"),
            ("mqtt://h/a?outhaul.packet_max=0", "no size"),
            ("mqtt://h/a?outhaul.ca=/ca", "not encrypted"),
            ("mqtt://h/a?outhaul.clientid=x", "version, qos, client_id, packet_max, unheard, mode"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
