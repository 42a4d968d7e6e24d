//! TLS, with a certificate authority of the test's own.

use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;

use outhaul_target::{ErrorKind, TargetUri, Verdict};
use outhaul_target_webhook::Webhook;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::support::deliver;

/// A server for `names`, which answers 200 to everything.
struct Server {
    port: u16,
    _dir: TempDir,
    ca: PathBuf,
    _tasks: JoinSet<()>,
}

async fn server(names: &[&str]) -> Server {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        )
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca.pem");
    fs::write(&ca, issuer.pem()).unwrap();

    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // A client that does not trust us breaks off.
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut request = Vec::new();
            while !request.ends_with(br#"{"a": 1}"#) {
                let Ok(byte) = stream.read_u8().await else { break };
                request.push(byte);
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap_or_default();
        }
    });
    Server { port, _dir: dir, ca, _tasks: tasks }
}

fn webhook(text: &str) -> Result<Webhook, outhaul_target::ConfigError> {
    Webhook::from_uri(TargetUri::parse(text)?)
}

#[tokio::test]
async fn a_certificate_of_a_trusted_authority_is_accepted() {
    let server = server(&["localhost"]).await;
    let uri = format!("https://localhost:{}/?outhaul.ca={}", server.port, server.ca.display());
    deliver(&webhook(&uri).unwrap()).await.unwrap();
}

#[tokio::test]
async fn an_unknown_authority_and_another_name_hold_the_target() {
    let server = server(&["other.example"]).await;
    for options in [String::new(), format!("?outhaul.ca={}", server.ca.display())] {
        let target = webhook(&format!("https://localhost:{}/{options}", server.port)).unwrap();
        let error = deliver(&target).await.unwrap_err();
        assert_eq!((error.kind(), error.verdict()), (ErrorKind::Tls, Verdict::Hold), "{error:?}");
        assert!(error.detail().contains("certificate"), "{error:?}");
    }
}

#[test]
fn a_file_without_a_certificate_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ca.pem");
    for text in [None, Some(""), Some("-----BEGIN CERTIFICATE-----\nbm9uZQ==\n-----END CERTIFICATE-----\n")] {
        if let Some(text) = text {
            fs::write(&path, text).unwrap();
        }
        let error = webhook(&format!("https://h/?outhaul.ca={}", path.display())).unwrap_err();
        assert!(error.what().contains("outhaul.ca"), "{error}");
    }
}
