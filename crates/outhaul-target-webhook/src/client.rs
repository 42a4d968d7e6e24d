//! [`Webhook`]: one POST per event.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use outhaul_target::net::read;
use outhaul_target::{
    Attempt, Capabilities, ConfigError, DeliveryError, ErrorKind, Target, TargetUri, async_trait,
};
use reqwest::{Client, Method, Response, Url};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

use crate::codec::{self, Parts};
use crate::config::{Endpoint, WebhookOptions};
use crate::egress::{self, Resolver};
use crate::error::{failed, refused, retry_after, status_kind};

/// What is read of an answer at most, in bytes.
const ANSWER_MAX: usize = 64 * 1024;
/// How long an unused connection is kept.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// Delivers events over HTTP. Nothing is connected before it is needed.
pub struct Webhook {
    options: WebhookOptions,
    url: Url,
    /// The canonical destination.
    destination: String,
    basic: Option<HeaderValue>,
    /// None once it is closed.
    client: Mutex<Option<Client>>,
}

impl Webhook {
    /// Makes a target out of an `http:` or `https:` URI.
    ///
    /// # Errors
    /// The URI is not valid, or the machine has no root certificates. Whether anybody answers shows at the first
    /// delivery.
    pub fn from_uri(uri: TargetUri) -> Result<Self, ConfigError> {
        Self::new(WebhookOptions::from_uri(uri)?)
    }

    /// Makes a target.
    ///
    /// # Errors
    /// As [`from_uri`](Self::from_uri).
    pub fn new(options: WebhookOptions) -> Result<Self, ConfigError> {
        let Endpoint { url, basic } = Endpoint::parse(&options)?;
        let basic = basic.map(|(user, password)| credentials(&format!("{user}:{password}"))).transpose();
        let basic = basic.map_err(|e| failure(&options, &e.to_string()))?;
        let client = client(&options, url.scheme() == "https")?;
        let destination = TargetUri::parse(url.as_str())?.destination();
        Ok(Self { options, url, destination, basic, client: Mutex::new(Some(client)) })
    }

    /// Where events go: the URL in a canonical form, without credentials and with digests for the values of its query.
    pub fn destination(&self) -> &str {
        &self.destination
    }

    async fn within_deadline<T>(
        &self,
        work: impl Future<Output = Result<T, DeliveryError>>,
    ) -> Result<T, DeliveryError> {
        match tokio::time::timeout(self.options.timeout, work).await {
            Ok(result) => result,
            Err(_) => Err(DeliveryError::new(ErrorKind::TimedOut)
                .with_detail(format!("no whole answer within {:?}", self.options.timeout))),
        }
    }

    async fn post(&self, attempt: &Attempt) -> Result<(), DeliveryError> {
        let client = self.client()?;
        let timestamp = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let Parts { mut headers, body } =
            codec::parts(attempt, self.options.format, self.options.mode, timestamp)?;
        if let Some(secret) = &self.options.secret {
            let key = codec::key(&read(secret).await?).ok_or_else(|| {
                let detail = "the secret file holds no base64, with or without `whsec_` before it";
                DeliveryError::new(ErrorKind::Configuration).with_detail(detail)
            })?;
            let signature = codec::signature(&key, &attempt.dedup_id.to_string(), timestamp, &body);
            headers.insert(HeaderName::from_static("webhook-signature"), header(&signature)?);
        }
        self.authorise(&mut headers).await?;
        let request = client.request(Method::POST, self.url.clone()).headers(headers).body(body);
        let answer = request.send().await.map_err(failed)?;
        self.judge(answer).await
    }

    async fn ask(&self) -> Result<(), DeliveryError> {
        let client = self.client()?;
        let mut headers = HeaderMap::new();
        self.authorise(&mut headers).await?;
        let request = client.request(Method::OPTIONS, self.url.clone()).headers(headers);
        let answer = request.send().await.map_err(failed)?;
        let status = answer.status();
        match status_kind(status) {
            Some(
                kind @ (ErrorKind::Authentication
                | ErrorKind::Throttled
                | ErrorKind::Overloaded
                | ErrorKind::ServerFault),
            ) => Err(refused(kind, status, None)),
            // A receiver need not know the method: that it answers is enough.
            _ => Ok(()),
        }
    }

    async fn judge(&self, mut answer: Response) -> Result<(), DeliveryError> {
        let status = answer.status();
        let after = answer.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let after = after.and_then(|value| retry_after(value, SystemTime::now()));
        let mut length = 0;
        // To the end, so that the connection can be used again, but not for ever.
        while length < ANSWER_MAX
            && let Some(chunk) = answer.chunk().await.map_err(failed)?
        {
            length += chunk.len();
        }
        match status_kind(status) {
            None => Ok(()),
            Some(kind) => Err(refused(kind, status, after)),
        }
    }

    fn client(&self) -> Result<Client, DeliveryError> {
        egress::check_literal(&self.url)
            .map_err(|e| DeliveryError::new(ErrorKind::PolicyDenied).with_source(e))?;
        let client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        client.clone().ok_or_else(|| ErrorKind::Closed.into())
    }

    async fn authorise(&self, headers: &mut HeaderMap) -> Result<(), DeliveryError> {
        let value = match (&self.options.token, &self.basic) {
            (Some(token), _) => Some(header(&format!("Bearer {}", read(token).await?))?),
            (None, basic) => basic.clone(),
        };
        if let Some(mut value) = value {
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        Ok(())
    }
}

#[async_trait]
impl Target for Webhook {
    fn kind(&self) -> &'static str {
        "webhook"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// Posts the events one after the other, each within the deadline. Dropping the future breaks the request off;
    /// the event may have arrived.
    async fn deliver(&self, events: &[Attempt]) -> Vec<Result<(), DeliveryError>> {
        let mut results = Vec::with_capacity(events.len());
        for attempt in events {
            results.push(self.within_deadline(self.post(attempt)).await);
        }
        results
    }

    /// Sends `OPTIONS`: any answer shows a receiver, unless it says that our credentials are wrong, that it is
    /// overloaded, or that a gateway finds nobody behind it. Dropping the future breaks the request off.
    async fn probe(&self) -> Result<(), DeliveryError> {
        self.within_deadline(self.ask()).await
    }

    /// Closes the kept connections; requests in flight end first. There is nothing to wait for.
    async fn close(&self) -> Result<(), DeliveryError> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(())
    }
}

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhook").field("options", &self.options).finish_non_exhaustive()
    }
}

/// A client that keeps connections, and does nothing on its own: no redirects, no proxies, no second tries.
fn client(options: &WebhookOptions, with_roots: bool) -> Result<Client, ConfigError> {
    let builder = Client::builder()
        .tls_backend_preconfigured(tls(options, with_roots)?)
        .http1_only()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .referer(false)
        .dns_resolver(Arc::new(Resolver))
        .connect_timeout(options.connect_timeout)
        .pool_idle_timeout(IDLE_MAX)
        .user_agent(concat!("outhaul/", env!("CARGO_PKG_VERSION")));
    builder.build().map_err(|e| failure(options, &e.to_string()))
}

/// TLS by rustls with `ring`, given by hand: a process's default provider belongs to the program.
fn tls(options: &WebhookOptions, with_roots: bool) -> Result<ClientConfig, ConfigError> {
    let roots = if with_roots { roots(options)? } else { RootCertStore::empty() };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| failure(options, &e.to_string()))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

fn roots(options: &WebhookOptions) -> Result<RootCertStore, ConfigError> {
    let mut roots = RootCertStore::empty();
    let Some(path) = &options.ca else {
        let (added, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if added > 0 {
            return Ok(roots);
        }
        let why = "the machine has no root certificates to check a receiver's with";
        let help = "install them (on Debian: `apt-get install ca-certificates`), or give `outhaul.ca`";
        return Err(ConfigError::new("TLS cannot be used", &options.url, why, help));
    };
    let invalid = |why: &str| {
        let help = "give a PEM file with the certificate of the authority";
        ConfigError::new("the option `outhaul.ca` is not valid", path.display().to_string(), why, help)
    };
    for certificate in CertificateDer::pem_file_iter(path).map_err(|e| invalid(&e.to_string()))? {
        let certificate = certificate.map_err(|e| invalid(&e.to_string()))?;
        roots.add(certificate).map_err(|e| invalid(&e.to_string()))?;
    }
    if roots.is_empty() { Err(invalid("it holds no certificate")) } else { Ok(roots) }
}

fn failure(options: &WebhookOptions, why: &str) -> ConfigError {
    ConfigError::new("the HTTP client cannot be made", &options.url, why, "check the URL and the machine")
}

fn credentials(text: &str) -> Result<HeaderValue, http::header::InvalidHeaderValue> {
    HeaderValue::try_from(format!("Basic {}", BASE64.encode(text)))
}

/// A header made of a secret; the error does not show it.
fn header(text: &str) -> Result<HeaderValue, DeliveryError> {
    HeaderValue::try_from(text).map_err(|_| {
        let detail = "a secret file holds characters that cannot be in a header";
        DeliveryError::new(ErrorKind::Configuration).with_detail(detail)
    })
}
