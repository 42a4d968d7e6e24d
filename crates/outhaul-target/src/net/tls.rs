//! [`Tls`]: rustls with `ring`, handed over explicitly, out of files that are looked at again.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::config_error::ConfigError;
use crate::error::{DeliveryError, ErrorKind};
use crate::secret::Stamp;
use crate::uri::TargetUri;

/// How a target speaks TLS: the options `ca`, `cert`, `key` and `server_name`.
///
/// The files are read at the first connection and again whenever one of them has changed, so that a renewed
/// certificate counts without a restart. Cheap to clone.
#[derive(Clone)]
pub struct Tls(Arc<Inner>);

struct Inner {
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    server_name: Option<ServerName<'static>>,
    cache: Mutex<Option<(Stamps, Arc<ClientConfig>)>>,
}

/// Those of the files; None of one that is not given, or not there.
type Stamps = Vec<Option<Stamp>>;

/// A file of the TLS cannot be used. The text names the file, never what is in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// It cannot be read, or holds nothing that is looked for.
    #[error("{path:?} cannot be used: {why}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The machine has no root certificates, and no `ca` is given.
    #[error(
        "the machine has no root certificates: install them (on Debian: `apt-get install ca-certificates`), or give `ca`"
    )]
    NoRoots,
    /// Certificate and key do not fit.
    #[error("certificate and key cannot be used")]
    Config(#[from] rustls::Error),
    /// The verifier cannot be made.
    #[error("the authority cannot be used")]
    Verifier(#[from] rustls::client::VerifierBuilderError),
}

impl From<TlsError> for DeliveryError {
    fn from(error: TlsError) -> Self {
        Self::new(ErrorKind::Configuration).with_source(error)
    }
}

impl Tls {
    /// Trusts the machine's authorities, and shows no certificate.
    pub fn new() -> Self {
        Self::with(None, None, None, None)
    }

    /// Takes the options out of a URI: `ca` (a PEM file of the only authorities to trust), `cert` and `key` (the
    /// client's own, PEM), `server_name` (the name in the server's certificate, where it is not the host's). With
    /// `encrypted` false, none of them may be there.
    ///
    /// # Errors
    /// An option without TLS, one of `cert` and `key` without the other, a name that is none.
    pub fn take(uri: &mut TargetUri, encrypted: bool) -> Result<Option<Self>, ConfigError> {
        let [ca, cert, key] = ["ca", "cert", "key"].map(|name| uri.take(name).map(PathBuf::from));
        let server_name = uri.take("server_name");
        let given = [("ca", ca.is_some()), ("cert", cert.is_some()), ("key", key.is_some())];
        let mut given = given.into_iter().chain([("server_name", server_name.is_some())]);
        if !encrypted {
            return match given.find(|(_, is)| *is) {
                Some((name, _)) => {
                    let why = format!("a `{}:` target is not encrypted", uri.scheme());
                    Err(uri.invalid(name, why, "leave it out, or write the scheme of the encrypted protocol"))
                }
                None => Ok(None),
            };
        }
        if cert.is_some() != key.is_some() {
            let (there, missing) = if cert.is_some() { ("cert", "key") } else { ("key", "cert") };
            let why = format!("it needs `outhaul.{missing}` beside it");
            return Err(uri.invalid(there, why, "give both files, or none"));
        }
        let server_name = server_name.map(|name| {
            let parsed = ServerName::try_from(name);
            parsed.map_err(|_| uri.invalid("server_name", "it is no host name and no address", "correct it"))
        });
        Ok(Some(Self::with(ca, cert, key, server_name.transpose()?)))
    }

    fn with(
        ca: Option<PathBuf>,
        cert: Option<PathBuf>,
        key: Option<PathBuf>,
        server_name: Option<ServerName<'static>>,
    ) -> Self {
        Self(Arc::new(Inner { ca, cert, key, server_name, cache: Mutex::new(None) }))
    }

    /// The configuration for a new connection. The same `Arc` comes back for as long as no file has changed.
    ///
    /// # Errors
    /// [`ErrorKind::Configuration`]: a file cannot be used.
    pub async fn config(&self) -> Result<Arc<ClientConfig>, DeliveryError> {
        let tls = self.clone();
        match tokio::task::spawn_blocking(move || tls.config_blocking()).await {
            Ok(result) => Ok(result?),
            Err(error) => Err(DeliveryError::new(ErrorKind::Unknown).with_source(error)),
        }
    }

    /// As [`config`](Self::config), where blocking is allowed: for checking files before anything is connected.
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn config_blocking(&self) -> Result<Arc<ClientConfig>, TlsError> {
        let inner = &*self.0;
        let files = [&inner.ca, &inner.cert, &inner.key];
        let mut cache = inner.cache.lock().unwrap_or_else(PoisonError::into_inner);
        // Taken before reading: a change meanwhile is seen at the next call.
        let stamp = |path: &&Option<PathBuf>| Some(Stamp::of(&fs::metadata(path.as_ref()?).ok()?));
        let stamps: Stamps = files.iter().map(stamp).collect();
        if let Some((of, config)) = &*cache
            && *of == stamps
        {
            return Ok(Arc::clone(config));
        }
        let config = Arc::new(inner.read()?);
        *cache = Some((stamps, Arc::clone(&config)));
        Ok(config)
    }
}

impl Default for Tls {
    fn default() -> Self {
        Self::new()
    }
}

impl Inner {
    fn read(&self) -> Result<ClientConfig, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?;
        let roots = Arc::new(self.roots()?);
        let builder = match &self.server_name {
            None => builder.with_root_certificates(roots),
            Some(name) => {
                let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider).build()?;
                let renamed = Renamed { verifier, name: name.clone() };
                builder.dangerous().with_custom_certificate_verifier(Arc::new(renamed))
            }
        };
        let (Some(cert), Some(key)) = (&self.cert, &self.key) else {
            return Ok(builder.with_no_client_auth());
        };
        let private = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(key, error))?;
        Ok(builder.with_client_auth_cert(certificates(cert)?, private)?)
    }

    fn roots(&self) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        let Some(path) = &self.ca else {
            let (added, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            return if added > 0 { Ok(roots) } else { Err(TlsError::NoRoots) };
        };
        for certificate in certificates(path)? {
            roots.add(certificate).map_err(|error| unusable(path, error))?;
        }
        Ok(roots)
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(all) if all.is_empty() => Err(unusable(path, io::Error::other("it holds no certificate in PEM"))),
        Ok(all) => Ok(all),
        Err(error) => Err(unusable(path, error)),
    }
}

fn unusable(path: &Path, why: impl fmt::Display) -> TlsError {
    TlsError::File { path: path.to_owned(), why: why.to_string() }
}

/// Checks a server's certificate against another name than the host's.
#[derive(Debug)]
struct Renamed {
    verifier: Arc<WebPkiServerVerifier>,
    name: ServerName<'static>,
}

impl ServerCertVerifier for Renamed {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.verifier.verify_server_cert(end_entity, intermediates, &self.name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("ca", &self.0.ca)
            .field("cert", &self.0.cert)
            .field("key", &self.0.key)
            .field("server_name", &self.0.server_name)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(text: &str, encrypted: bool) -> Result<Option<Tls>, ConfigError> {
        Tls::take(&mut TargetUri::parse(text)?, encrypted)
    }

    #[test]
    fn options_are_checked() {
        assert!(take("redis://h", false).unwrap().is_none());
        assert!(
            take("rediss://h?outhaul.cert=/c&outhaul.key=/k&outhaul.server_name=x.example", true).is_ok()
        );
        for (text, encrypted, expected) in [
            ("redis://h?outhaul.ca=/ca", false, "not encrypted"),
            ("rediss://h?outhaul.cert=/c", true, "`outhaul.key` beside it"),
            ("rediss://h?outhaul.key=/k", true, "`outhaul.cert` beside it"),
            ("rediss://h?outhaul.server_name=a%20b", true, "no host name"),
        ] {
            let error = take(text, encrypted).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn files_are_read_again_when_they_change() {
        let dir = tempfile::tempdir().unwrap();
        let ca = dir.path().join("ca.pem");
        let tls = take(&format!("rediss://h?outhaul.ca={}", ca.display()), true).unwrap().unwrap();
        assert!(tls.config_blocking().unwrap_err().to_string().contains("ca.pem"));
        fs::write(&ca, "no certificate").unwrap();
        assert!(tls.config_blocking().unwrap_err().to_string().contains("no certificate in PEM"));
        let made = || rcgen::generate_simple_self_signed(vec!["x.example".to_owned()]).unwrap().cert.pem();
        fs::write(&ca, made()).unwrap();
        let first = tls.config_blocking().unwrap();
        assert!(Arc::ptr_eq(&first, &tls.config_blocking().unwrap()), "nothing has changed");
        fs::write(&ca, format!("{}\n", made())).unwrap();
        assert!(!Arc::ptr_eq(&first, &tls.config_blocking().unwrap()), "the file has changed");
    }
}
