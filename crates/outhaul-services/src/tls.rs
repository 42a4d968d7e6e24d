//! A throw-away certificate authority.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use time::{Duration, OffsetDateTime};

use crate::error::Error;
use crate::files;

/// What a certificate of a server is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Certificate {
    /// For `localhost` and `127.0.0.1`, valid now.
    #[default]
    Good,
    /// It ended yesterday.
    Expired,
    /// For `elsewhere.invalid`.
    WrongName,
}

/// The files of a certificate and of its key, PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// The certificate.
    pub cert: PathBuf,
    /// Its key, PKCS #8.
    pub key: PathBuf,
}

/// An authority whose files are in a directory of their own.
#[derive(Debug)]
pub struct Authority {
    directory: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Makes an authority and writes `ca.pem` into the directory, which is made.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn new(directory: &Path) -> Result<Self, Error> {
        files::directory(directory)?;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, "Outhaul throw-away authority");
        let key = KeyPair::generate()?;
        files::write(&directory.join("ca.pem"), params.self_signed(&key)?.pem())?;
        Ok(Self { directory: directory.to_owned(), issuer: Issuer::new(params, key) })
    }

    /// The certificate of the authority itself, PEM.
    pub fn ca(&self) -> PathBuf {
        self.directory.join("ca.pem")
    }

    /// Writes a certificate of a server under this name, over one that is there.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn server(&self, name: &str, certificate: Certificate) -> Result<Pair, Error> {
        let names: &[&str] = match certificate {
            Certificate::WrongName => &["elsewhere.invalid"],
            Certificate::Good | Certificate::Expired => &["localhost", "127.0.0.1"],
        };
        self.issue(name, names, certificate == Certificate::Expired, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// Writes a certificate of the client [`USER`](crate::USER) under this name, over one that is there.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn client(&self, name: &str, expired: bool) -> Result<Pair, Error> {
        self.issue(name, &[crate::USER], expired, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn issue(
        &self,
        name: &str,
        names: &[&str],
        expired: bool,
        purpose: ExtendedKeyUsagePurpose,
    ) -> Result<Pair, Error> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names.clone())?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, names[0].as_str());
        params.extended_key_usages = vec![purpose];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let now = OffsetDateTime::now_utc();
        params.not_before = now - Duration::days(30);
        params.not_after = now + if expired { -Duration::days(1) } else { Duration::days(30) };
        let key = KeyPair::generate()?;
        let pair = Pair {
            cert: self.directory.join(format!("{name}.pem")),
            key: self.directory.join(format!("{name}.key")),
        };
        // The key first: whoever watches the certificate finds both new.
        files::write(&pair.key, key.serialize_pem())?;
        files::write(&pair.cert, params.signed_by(&key, &self.issuer)?.pem())?;
        Ok(pair)
    }
}
