//! Which addresses are never connected to: link-local ones and those of cloud metadata services, where a request made
//! in an operator's name can read credentials.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// An address that no request goes to.
#[derive(Debug)]
pub(crate) struct Forbidden(IpAddr);

impl fmt::Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is a link-local address, or that of a cloud's metadata service", self.0)
    }
}

impl std::error::Error for Forbidden {}

/// Checks a URL whose host is an address; names are checked when they are resolved.
pub(crate) fn check_literal(url: &Url) -> Result<(), Forbidden> {
    let host = url.host_str().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match host.parse::<IpAddr>() {
        Ok(address) if is_forbidden(address) => Err(Forbidden(address)),
        _ => Ok(()),
    }
}

fn is_forbidden(address: IpAddr) -> bool {
    /// The metadata service of AWS over IPv6.
    const AWS_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => {
            v6.is_unicast_link_local() || v6 == AWS_V6 || embedded_v4(v6).is_some_and(|v4| v4.is_link_local())
        }
    }
}

/// The IPv4 address that an IPv4-mapped or NAT64 (RFC 6052) address leads to.
fn embedded_v4(v6: Ipv6Addr) -> Option<Ipv4Addr> {
    let nat64 = v6.octets().strip_prefix(&[0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0]).and_then(|tail| {
        let octets: [u8; 4] = tail.try_into().ok()?;
        Some(octets.into())
    });
    v6.to_ipv4_mapped().or(nat64)
}

/// The system's resolver, without the forbidden addresses. What is checked is what is connected to, so that a name
/// cannot change its address in between.
pub(crate) struct Resolver;

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let all: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            Ok(Box::new(allowed(all)?.into_iter()) as Addrs)
        })
    }
}

fn allowed(all: Vec<SocketAddr>) -> io::Result<Vec<SocketAddr>> {
    let (denied, allowed): (Vec<_>, Vec<_>) = all.into_iter().partition(|address| is_forbidden(address.ip()));
    match denied.first() {
        Some(first) if allowed.is_empty() => Err(io::Error::other(Forbidden(first.ip()))),
        _ => Ok(allowed),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use outhaul_target::ErrorKind;
    use rustls::{ClientConfig, RootCertStore};

    use super::*;

    /// A resolver whose every name has these addresses.
    struct Fixed(Vec<SocketAddr>);

    impl Resolve for Fixed {
        fn resolve(&self, _name: Name) -> Resolving {
            let addresses = allowed(self.0.clone());
            Box::pin(async { Ok(Box::new(addresses?.into_iter()) as Addrs) })
        }
    }

    #[tokio::test]
    async fn a_name_that_leads_to_a_forbidden_address_is_a_matter_of_policy() {
        let tls = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let resolver = Fixed(vec!["169.254.169.254:0".parse().unwrap()]);
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .no_proxy()
            .dns_resolver(Arc::new(resolver))
            .build()
            .unwrap();
        let error = client.get("http://metadata.example/").send().await.unwrap_err();
        let error = crate::error::failed(error);
        assert_eq!(error.kind(), ErrorKind::PolicyDenied, "{error:?}");
        assert!(error.detail().contains("169.254.169.254"), "{error:?}");
    }

    const DENIED: [&str; 6] = [
        "169.254.169.254",
        "169.254.0.1",
        "fe80::1",
        "fd00:ec2::254",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
    ];
    const ALLOWED: [&str; 7] =
        ["127.0.0.1", "10.0.0.1", "192.168.1.1", "169.253.1.1", "::1", "fd00:ec2::253", "::ffff:10.0.0.1"];

    #[test]
    fn link_local_and_metadata_addresses_are_forbidden_however_they_are_written() {
        for text in DENIED {
            assert!(is_forbidden(text.parse().unwrap()), "{text}");
        }
        for text in ALLOWED {
            assert!(!is_forbidden(text.parse().unwrap()), "{text}");
        }
        for url in
            ["http://169.254.169.254/", "http://[fe80::1]/", "http://0xA9FEA9FE/", "http://2852039166/"]
        {
            assert!(check_literal(&Url::parse(url).unwrap()).is_err(), "{url}");
        }
        assert!(check_literal(&Url::parse("http://169.254.example/").unwrap()).is_ok());
    }

    #[test]
    fn a_name_loses_its_forbidden_addresses() {
        let of =
            |texts: &[&str]| texts.iter().map(|t| SocketAddr::new(t.parse().unwrap(), 0)).collect::<Vec<_>>();
        assert_eq!(allowed(of(&["169.254.169.254", "10.0.0.1"])).unwrap(), of(&["10.0.0.1"]));
        assert!(allowed(of(&DENIED)).unwrap_err().get_ref().is_some_and(|e| e.is::<Forbidden>()));
        assert_eq!(allowed(Vec::new()).unwrap(), []);
    }
}
