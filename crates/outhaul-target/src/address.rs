//! [`Address`]: host, port, credentials and path of a URL like `scheme://user:password@host:port/path`.

use std::fmt;

use crate::config_error::ConfigError;
use crate::secret::Secret;
use crate::uri::{TargetUri, percent_decode};

/// The parts of `scheme://[user[:password]@]host[:port][/path]`, decoded.
#[derive(Clone)]
pub struct Address {
    /// The name or address of the host; an IPv6 address without its brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The user, if one is named.
    pub user: Option<String>,
    /// The password, out of the URL or from `outhaul.password_file`.
    pub password: Option<Secret>,
    /// What stands behind the slash, percent-decoded; None if there is no slash.
    pub path: Option<String>,
}

impl Address {
    /// Takes the URL of a target apart, and its option `password_file`.
    ///
    /// # Errors
    /// There is no host, a port that is none, an escape that is broken, a query or a fragment; a password in the URL
    /// and in a file.
    pub fn take(uri: &mut TargetUri, default_port: u16) -> Result<Self, ConfigError> {
        let file = uri.take("password_file").map(Secret::file);
        let url = uri.url().to_owned();
        let example = format!("write it like `{}://HOST:PORT/…`", uri.scheme());
        let invalid = |why: &str| uri.invalid_url(why, &example);
        let rest = url.split_once("://").ok_or_else(|| invalid("it has no `//` and host"))?.1;
        if rest.contains(['?', '#']) {
            return Err(invalid("it has a query or a fragment that is no option of ours"));
        }
        let (authority, path) = match rest.split_once('/') {
            Some((authority, path)) => (authority, Some(path)),
            None => (rest, None),
        };
        let (information, place) = match authority.rsplit_once('@') {
            Some((information, place)) => (Some(information), place),
            None => (None, authority),
        };
        let decoded = |text: &str| {
            percent_decode(text).ok_or_else(|| invalid("it holds an escape that is no percent-encoded UTF-8"))
        };
        let (user, in_url) = match information.map(|text| text.split_once(':').unwrap_or((text, ""))) {
            Some((user, password)) => (Some(decoded(user)?), Some(decoded(password)?)),
            None => (None, None),
        };
        let (user, in_url) =
            (user.filter(|user| !user.is_empty()), in_url.filter(|password| !password.is_empty()));
        if in_url.is_some() && file.is_some() {
            let why = "the URL has a password already";
            return Err(uri.invalid("password_file", why, "leave out one of the two"));
        }
        let (host, port) =
            split_port(place).ok_or_else(|| invalid("its port is no number from 1 to 65535"))?;
        let host = decoded(host)?;
        if host.is_empty() {
            return Err(invalid("it has no host"));
        }
        let path = path.map(decoded).transpose()?;
        let password = file.or(in_url.map(Secret::value));
        Ok(Self { host, port: port.unwrap_or(default_port), user, password, path })
    }

    /// `host:port`, with brackets around an IPv6 address.
    pub fn host_and_port(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

/// The host and the port, if one is given; None if it is no port.
fn split_port(place: &str) -> Option<(&str, Option<u16>)> {
    let (host, port) = match place.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']')?;
            (host, after.strip_prefix(':').map(Some).or(after.is_empty().then_some(None))?)
        }
        None => place.split_once(':').map_or((place, None), |(host, port)| (host, Some(port))),
    };
    match port {
        None => Some((host, None)),
        Some(port) => Some((host, Some(port.parse().ok().filter(|port| *port > 0)?))),
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address")
            .field("host", &self.host)
            .field("port", &self.port)
            .field("user", &self.user)
            .field("password", &self.password)
            .field("path", &self.path)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(text: &str) -> Result<Address, ConfigError> {
        Address::take(&mut TargetUri::parse(text)?, 4222)
    }

    #[test]
    fn every_part_is_decoded() {
        let address = take("nats://me%40x:k%40pt%2Fn%3As@broker:4333/a.{type}%2F{pid}").unwrap();
        assert_eq!((address.host.as_str(), address.port), ("broker", 4333));
        assert_eq!(address.user.as_deref(), Some("me@x"));
        assert_eq!(&*address.password.unwrap().read().unwrap(), "k@pt/n:s");
        assert_eq!(address.path.as_deref(), Some("a.{type}/{pid}"));
        let address = take("nats://[::1]").unwrap();
        assert_eq!((address.host.as_str(), address.port, address.path.clone()), ("::1", 4222, None));
        assert_eq!(address.host_and_port(), "[::1]:4222");
        assert_eq!(take("nats://h:1/").unwrap().path.as_deref(), Some(""));
        assert_eq!(take("nats://:pw@h").unwrap().user, None);
    }

    #[test]
    fn what_is_wrong_is_named_without_the_password() {
        for (text, expected) in [
            ("nats:h", "no `//`"),
            ("nats:///x", "no host"),
            ("nats://me:s3cret@h:x/y", "port"),
            ("nats://h:0", "port"),
            ("nats://[::1/x", "port"),
            ("nats://h/%zz", "escape"),
            ("nats://h/x?y=1", "query"),
            ("nats://me:s3cret@h/x?outhaul.password_file=/p", "password already"),
        ] {
            let error = take(text).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("s3cret"), "{text}: {error}");
        }
    }

    #[test]
    fn a_password_may_be_in_a_file() {
        let address = take("nats://me@h/x?outhaul.password_file=/run/pw").unwrap();
        assert!(address.password.as_ref().is_some_and(|password| password.path().is_some()));
        assert!(!format!("{:?}", take("nats://me:s3cret@h/x").unwrap()).contains("s3cret"));
    }
}
