//! [`TargetUri`]: a target's URI taken apart.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::config_error::ConfigError;
use crate::options::{OPTION_KEYS, TargetOptions};
use crate::redact::{redact, user_information};

/// A target's URI taken apart: the URL itself, the options that every target knows, and those of its kind.
///
/// Options are query parameters named `outhaul.KEY`, their values percent-decoded (a `+` stays a `+`). The URL is
/// what is left, byte for byte: other parameters keep their order and encoding.
///
/// ```
/// use outhaul_target::TargetUri;
///
/// let mut uri = TargetUri::parse("https://me:pw@h/in?a=%201&outhaul.timeout=5s&outhaul.mode=structured&b")?;
/// assert_eq!(uri.url(), "https://me:pw@h/in?a=%201&b");
/// assert_eq!(uri.options().timeout.as_secs(), 5);
/// assert_eq!(uri.take("mode").as_deref(), Some("structured"));
/// uri.finish()?;
/// # Ok::<(), outhaul_target::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct TargetUri {
    scheme: String,
    url: String,
    options: TargetOptions,
    own: Vec<(String, String)>,
    asked: Vec<String>,
}

impl TargetUri {
    /// Takes a URI apart and checks the common options.
    ///
    /// # Errors
    /// No scheme, control characters, or an option that is not valid or repeated.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let scheme = scheme_of(text)?;
        if text.chars().any(char::is_control) {
            let why = "it holds a control character or a line feed";
            return Err(ConfigError::new("the URI is not valid", text, why, "write it on one line"));
        }
        let (before, query) = match text.split_once('?') {
            Some((before, query)) => (before, Some(query)),
            None => (text, None),
        };
        let mut uri = Self {
            scheme,
            url: before.to_owned(),
            options: TargetOptions::default(),
            own: Vec::new(),
            asked: Vec::new(),
        };
        if let Some(query) = query {
            uri.read_query(query, text)?;
        }
        Ok(uri)
    }

    /// The same out of a table, as a configuration file has it: the URI, which may hold options as well, and options
    /// by their keys without `outhaul.` before them, their values as they are.
    ///
    /// ```
    /// use outhaul_target::TargetUri;
    ///
    /// let mut uri = TargetUri::from_table("https://h/in", [("timeout", "5s"), ("mode", "structured")])?;
    /// assert_eq!(uri.options().timeout.as_secs(), 5);
    /// assert_eq!(uri.take("mode").as_deref(), Some("structured"));
    /// # Ok::<(), outhaul_target::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// As [`parse`](Self::parse); a key that stands in the URI as well, or twice in the table.
    pub fn from_table<'a>(
        text: &str,
        options: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, ConfigError> {
        let mut whole = text.to_owned();
        let mut fragment = String::new();
        if let Some(at) = whole.find('#') {
            fragment = whole.split_off(at);
        }
        for (key, value) in options {
            whole.push(if whole.contains('?') { '&' } else { '?' });
            whole.push_str("outhaul.");
            whole.push_str(&escaped(key));
            whole.push('=');
            whole.push_str(&escaped(value));
        }
        whole.push_str(&fragment);
        Self::parse(&whole)
    }

    /// The scheme, in lower case: `https`, `file`, …
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// The URL without the options. It may hold credentials: show [`redacted`](Self::redacted) instead.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The URL, fit for logs and errors.
    pub fn redacted(&self) -> String {
        redact(&self.url)
    }

    /// The options that every target knows.
    pub fn options(&self) -> &TargetOptions {
        &self.options
    }

    /// Takes the value of an option of this kind of target. Every key that is asked for counts as one that the kind
    /// knows, which is what [`finish`](Self::finish) lists.
    pub fn take(&mut self, key: &str) -> Option<String> {
        self.asked.push(key.to_owned());
        let at = self.own.iter().position(|(name, _)| name == key)?;
        Some(self.own.remove(at).1)
    }

    /// Checks that every option was taken.
    ///
    /// # Errors
    /// The first option that this kind of target does not know, with a list of those that it does.
    pub fn finish(self) -> Result<(), ConfigError> {
        let Some((key, _)) = self.own.first() else { return Ok(()) };
        let known = self.asked.iter().map(String::as_str).chain(OPTION_KEYS);
        let why = format!("a `{}:` target knows {}", self.scheme, known.collect::<Vec<_>>().join(", "));
        Err(ConfigError::new(
            format!("there is no option `outhaul.{key}`"),
            &self.url,
            why,
            "correct its name, or leave it out",
        ))
    }

    /// An error about one option of this URI, for targets that check their own.
    pub fn invalid(&self, key: &str, why: impl AsRef<str>, help: impl AsRef<str>) -> ConfigError {
        ConfigError::new(format!("the option `outhaul.{key}` is not valid"), &self.url, why, help)
    }

    /// An error about the URL itself.
    pub fn invalid_url(&self, why: impl AsRef<str>, help: impl AsRef<str>) -> ConfigError {
        ConfigError::new("the URL is not valid", &self.url, why, help)
    }

    /// Where events go, in a canonical text without credentials: scheme, host and port, path, and a digest in place of
    /// each query value. Two URIs with the same destination differ in credentials and options only, so a changed text
    /// means that waiting entries would go to another place.
    ///
    /// ```
    /// # use outhaul_target::TargetUri;
    /// let one = TargetUri::parse("HTTPS://me:old@Example.com:443/in?outhaul.timeout=1s")?;
    /// let two = TargetUri::parse("https://me:new@example.com/in")?;
    /// assert_eq!(one.destination(), two.destination());
    /// assert_eq!(one.destination(), "https://example.com/in");
    /// # Ok::<(), outhaul_target::ConfigError>(())
    /// ```
    pub fn destination(&self) -> String {
        let rest = &self.url[self.scheme.len() + 1..];
        let (before, query) = match rest.split_once('?') {
            Some((before, query)) => (before, Some(query)),
            None => (rest, None),
        };
        let mut out = format!("{}:", self.scheme);
        match before.strip_prefix("//") {
            Some(after) => {
                let start = user_information(after).map_or(0, |at| at + 1);
                let (host, path) =
                    after[start..].split_at(after[start..].find(['/', '#']).unwrap_or(after.len() - start));
                let port = match self.scheme.as_str() {
                    "http" => ":80",
                    "https" => ":443",
                    _ => "no port",
                };
                let host = host.to_ascii_lowercase();
                out.push_str("//");
                out.push_str(host.strip_suffix(port).unwrap_or(&host));
                out.push_str(if path.is_empty() { "/" } else { path });
            }
            None => out.push_str(before),
        }
        for (i, pair) in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()).enumerate() {
            out.push(if i == 0 { '?' } else { '&' });
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            out.push_str(name);
            if !value.is_empty() {
                let digest = Sha256::digest(value);
                out.push_str(&format!(
                    "=~{:02x}{:02x}{:02x}{:02x}",
                    digest[0], digest[1], digest[2], digest[3]
                ));
            }
        }
        out
    }

    fn read_query(&mut self, query: &str, text: &str) -> Result<(), ConfigError> {
        let (query, fragment) = query.split_at(query.find('#').unwrap_or(query.len()));
        let mut kept: Vec<&str> = Vec::new();
        let mut seen: Vec<&str> = Vec::new();
        for pair in query.split('&') {
            let Some(option) = pair.strip_prefix("outhaul.") else {
                kept.push(pair);
                continue;
            };
            let (key, raw) = option.split_once('=').unwrap_or((option, ""));
            if seen.contains(&key) {
                let what = format!("the option `outhaul.{key}` is given twice");
                return Err(ConfigError::new(what, text, "only one value can hold", "leave one of them out"));
            }
            seen.push(key);
            self.set(key, raw, text)?;
        }
        self.options.connect_timeout = match seen.contains(&"connect_timeout") {
            true => self.options.connect_timeout,
            false => self.options.connect_timeout.min(self.options.timeout),
        };
        self.options.check().map_err(|(key, why)| {
            let what = format!("the option `outhaul.{key}` is not valid");
            ConfigError::new(what, text, why, "change one of the two")
        })?;
        // A query without any parameter of ours stays as it is, even an empty one.
        if seen.is_empty() || !kept.is_empty() {
            self.url.push('?');
            self.url.push_str(&kept.join("&"));
        }
        self.url.push_str(fragment);
        Ok(())
    }

    fn set(&mut self, key: &str, raw: &str, text: &str) -> Result<(), ConfigError> {
        let what = || format!("the option `outhaul.{key}` is not valid");
        let Some(value) = percent_decode(raw).filter(|value| !value.is_empty()) else {
            let why = "it has no value, or one that is not percent-encoded UTF-8";
            return Err(ConfigError::new(what(), text, why, format!("write `outhaul.{key}=VALUE`")));
        };
        match self.options.set(key, &value) {
            Ok(true) => Ok(()),
            Ok(false) => {
                self.own.push((key.to_owned(), value));
                Ok(())
            }
            Err(why) => {
                let shown: String = value.chars().take(40).collect();
                Err(ConfigError::new(format!("{} ({shown:?})", what()), text, why, "correct the value"))
            }
        }
    }
}

impl fmt::Debug for TargetUri {
    /// Without credentials, and without the values of the kind's own options, which may be some.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own: Vec<&String> = self.own.iter().map(|(key, _)| key).collect();
        f.debug_struct("TargetUri")
            .field("url", &self.redacted())
            .field("options", &self.options)
            .field("own", &own)
            .finish_non_exhaustive()
    }
}

fn scheme_of(text: &str) -> Result<String, ConfigError> {
    let scheme = text.split_once(':').map(|(scheme, _)| scheme).filter(|scheme| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
    });
    scheme.map(str::to_ascii_lowercase).ok_or_else(|| {
        let help = "write for example `file:delivered.ndjson`, `stdout:` or `https://example.com/hook`";
        ConfigError::new("the URI is not valid", text, "it does not begin with a scheme and a colon", help)
    })
}

/// Escapes whatever has a meaning in a query.
fn escaped(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~/:{}".contains(&b);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// Decodes `%XX`; None if an escape is broken or the result is not UTF-8.
pub fn percent_decode(text: &str) -> Option<String> {
    outhaul_event::percent_decode(text.as_bytes())
}
