//! Where requests go, and how: [`WebhookOptions`].

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use outhaul_target::{ConfigError, Format, Mode, Secret, TargetOptions, TargetUri, percent_decode, redact};
use reqwest::Url;

/// How a target is made.
#[derive(Clone)]
pub struct WebhookOptions {
    /// `http://…` or `https://…`, without a fragment. User information becomes basic authentication.
    pub url: String,
    /// How CloudEvents are sent.
    pub mode: Mode,
    /// What the body is.
    pub format: Format,
    /// The deadline of one attempt, from connecting to the last byte of the answer (30 s).
    pub timeout: Duration,
    /// The deadline of connecting, TLS included (5 s).
    pub connect_timeout: Duration,
    /// The key of `webhook-signature`: base64, with or without `whsec_`.
    pub secret: Option<Secret>,
    /// A bearer token.
    pub token: Option<Secret>,
    /// A PEM file of the only root certificates to trust. None: those of the machine. Read once.
    pub ca: Option<PathBuf>,
}

impl WebhookOptions {
    /// The defaults for a URL.
    pub fn new(url: impl Into<String>) -> Self {
        let common = TargetOptions::default();
        Self {
            url: url.into(),
            mode: Mode::default(),
            format: common.format,
            timeout: common.timeout,
            connect_timeout: common.connect_timeout,
            secret: None,
            token: None,
            ca: None,
        }
    }

    /// Reads `http://…` or `https://…` and the options `mode`, `secret_file`, `token_file` and `ca`.
    ///
    /// # Errors
    /// Another scheme, or an option that is not valid.
    pub fn from_uri(mut uri: TargetUri) -> Result<Self, ConfigError> {
        let mode = uri.take("mode");
        let secret = uri.take("secret_file").map(Secret::file);
        let token = uri.take("token_file").map(Secret::file);
        let ca = uri.take("ca").map(PathBuf::from);
        let common = uri.options();
        if ca.is_some() && uri.scheme() != "https" {
            let why = "only `https://` URLs have certificates";
            return Err(uri.invalid("ca", why, "leave it out, or write `https://`"));
        }
        let mode = Mode::read(mode.as_deref(), &uri)?;
        let options = Self {
            url: uri.url().to_owned(),
            mode,
            format: common.format,
            timeout: common.timeout,
            connect_timeout: common.connect_timeout,
            secret,
            token,
            ca,
        };
        uri.finish()?;
        Ok(options)
    }
}

impl fmt::Debug for WebhookOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookOptions")
            .field("url", &redact(&self.url))
            .field("mode", &self.mode)
            .field("format", &self.format)
            .field("timeout", &self.timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("secret", &self.secret)
            .field("token", &self.token)
            .field("ca", &self.ca)
            .finish()
    }
}

/// A URL that requests can go to, apart from its credentials.
pub(crate) struct Endpoint {
    pub(crate) url: Url,
    /// User and password, decoded.
    pub(crate) basic: Option<(String, String)>,
}

impl Endpoint {
    pub(crate) fn parse(options: &WebhookOptions) -> Result<Self, ConfigError> {
        let invalid =
            |why: String, help: &str| ConfigError::new("the URL is not valid", &options.url, why, help);
        let example = "write it like `https://example.com/hook`";
        let mut url = Url::parse(&options.url).map_err(|e| invalid(e.to_string(), example))?;
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err(invalid("it is no `http://` or `https://` URL with a host".to_owned(), example));
        }
        if url.fragment().is_some() {
            return Err(invalid("a fragment is never sent".to_owned(), "leave out `#` and what follows"));
        }
        let sent = format!("{}{}", url.path(), url.query().map(|q| format!("?{q}")).unwrap_or_default());
        if path_and_query(&options.url) != sent {
            return Err(invalid(
                "its path or query holds characters that would be sent in another way".to_owned(),
                "percent-encode them, and leave out `.` and `..`",
            ));
        }
        let decoded = |text: &str| {
            percent_decode(text)
                .ok_or_else(|| invalid("its user information is not UTF-8".to_owned(), "percent-encode it"))
        };
        let user = decoded(url.username())?;
        let password = url.password().map(decoded).transpose()?;
        let basic = (!user.is_empty() || password.is_some()).then(|| (user, password.unwrap_or_default()));
        if basic.is_some() && options.token.is_some() {
            let why = "it has user information, and a token is given as well".to_owned();
            return Err(invalid(why, "leave out one of the two: a request has one `authorization` header"));
        }
        if url.set_username("").and_then(|()| url.set_password(None)).is_err() {
            return Err(invalid("it cannot have user information".to_owned(), example));
        }
        Ok(Self { url, basic })
    }
}

/// What stands behind the host, as it is written.
fn path_and_query(url: &str) -> String {
    let after = url.split_once("://").map_or("", |(_, after)| after);
    match &after[after.find(['/', '?']).unwrap_or(after.len())..] {
        rest if rest.starts_with('/') => rest.to_owned(),
        rest => format!("/{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<(WebhookOptions, Endpoint), ConfigError> {
        let options = WebhookOptions::from_uri(TargetUri::parse(text)?)?;
        let endpoint = Endpoint::parse(&options)?;
        Ok((options, endpoint))
    }

    #[test]
    fn the_url_is_sent_as_it_is_written() {
        for (text, sent) in [
            ("http://h", "http://h/"),
            ("http://h?a=1", "http://h/?a=1"),
            ("https://u:p@H:8443/a%20b;c?x=%zz&y=a+b&outhaul.batch=1", "https://h:8443/a%20b;c?x=%zz&y=a+b"),
            ("http://[::1]:80/", "http://[::1]/"),
        ] {
            assert_eq!(parse(text).unwrap().1.url.as_str(), sent);
        }
        for text in ["http://h/a/../b", "http://h/a b", "http://h/\u{e4}", "http://h/a\\b"] {
            assert!(parse(text).map(|_| ()).unwrap_err().help().contains("percent-encode"), "{text}");
        }
    }

    #[test]
    fn user_information_becomes_basic_authentication_and_is_not_shown() {
        let (options, endpoint) = parse("https://m%40e:s3%3Acret@h/?key=s3cret").unwrap();
        assert_eq!(endpoint.basic, Some(("m@e".to_owned(), "s3:cret".to_owned())));
        assert_eq!(endpoint.url.as_str(), "https://h/?key=s3cret");
        assert!(!format!("{options:?}").contains("s3"), "{options:?}");
    }

    #[test]
    fn options_are_read_and_checked() {
        let (options, _) =
            parse("http://h?outhaul.mode=structured&outhaul.token_file=/t&outhaul.timeout=1s").unwrap();
        assert_eq!((options.mode, options.timeout), (Mode::Structured, Duration::from_secs(1)));
        assert!(options.token.is_some_and(|token| token.path().is_some_and(|path| path.ends_with("t"))));
        let cases = [
            ("http://h?outhaul.mode=x", "binary, structured"),
            ("http://h?outhaul.mode=binary&outhaul.format=s3", "only the format"),
            ("http://h?outhaul.secret=x", "mode, secret_file, token_file, ca, enabled, format"),
            ("http://h?outhaul.ca=/ca.pem", "only `https://`"),
            ("http://u:pw@h?outhaul.token_file=/t", "user information"),
            ("http://h/#f", "fragment"),
            ("http://u:pw@h:port", "port"),
            ("ftp://h", "http://"),
            ("http:", ""),
        ];
        for (text, expected) in cases {
            let error = parse(text).map(|_| ()).unwrap_err();
            assert!(error.to_string().contains(expected) && !error.to_string().contains("pw"), "{error}");
        }
    }
}
