//! `--admin ADDR|off`: where the admin API listens, and with which token.

use std::net::SocketAddr;
use std::path::Path;

use tokio::net::{TcpListener, lookup_host};

use crate::error::{CliError, Exit};
use crate::run::token::Token;

const DEFAULT: &str = "127.0.0.1:7071";
const OFF: &str = "off";

/// An admin API that can be served.
pub(crate) struct Listening {
    pub(crate) listener: TcpListener,
    pub(crate) token: Token,
    pub(crate) address: SocketAddr,
}

/// Where to listen; None: there is no admin API. Nothing is opened yet.
///
/// `in_memory`: there is no data directory that could keep the token.
pub(crate) fn address(asked: Option<&str>, in_memory: bool) -> Result<Option<&str>, CliError> {
    let wrong = |what: &str, why: &str, help: &str| {
        let place = format!("--admin {}", asked.unwrap_or(DEFAULT));
        Err(CliError::new(Exit::Wrong, what).at(place).because(why).help(help))
    };
    match asked {
        Some(OFF) => Ok(None),
        None if in_memory => Ok(None),
        Some(_) if in_memory => wrong(
            "the engine memory has no admin API",
            "its token is kept in the data directory, and there is none",
            "leave out `--admin`, or `--engine memory`",
        ),
        Some(text)
            if text
                .rsplit_once(':')
                .is_none_or(|(host, port)| host.is_empty() || port.parse::<u16>().is_err()) =>
        {
            wrong(
                "the address of the admin API is not valid",
                "it is no address with a port from 0 to 65535",
                "write an address and a port, such as 127.0.0.1:7071, or `off`",
            )
        }
        asked => Ok(Some(asked.unwrap_or(DEFAULT))),
    }
}

/// Listens, and makes the token if there is none. The data directory is open.
pub(crate) async fn bind(address: &str, data: &Path) -> Result<Listening, CliError> {
    let failed = |error: &std::io::Error| {
        CliError::new(Exit::Failed, format!("the admin API cannot listen on {address}"))
            .at(format!("--admin {address}"))
            .because(error.to_string())
            .help(
                "end what listens there, choose another address with `--admin ADDR` (port 0 takes a free one), or run \
                 without the admin API: `--admin off`",
            )
    };
    let found: Vec<_> = lookup_host(address).await.map_err(|e| failed(&e))?.collect();
    let listener = TcpListener::bind(&found[..]).await.map_err(|e| failed(&e))?;
    let bound = listener.local_addr().map_err(|e| failed(&e))?;
    let token = Token::of_admin(&data.join("admin.token"))?;
    Ok(Listening { listener, token, address: bound })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_admin_api_is_on_unless_it_is_turned_off_or_has_nowhere_to_keep_its_token() {
        assert_eq!(address(None, false).unwrap(), Some("127.0.0.1:7071"));
        assert_eq!(address(Some("off"), false).unwrap(), None);
        assert_eq!(address(None, true).unwrap(), None);
        assert_eq!(address(Some("[::1]:0"), false).unwrap(), Some("[::1]:0"));
        assert!(address(Some("127.0.0.1:1"), true).is_err());
        for wrong in ["", "7071", ":7071", "h:99999", "on"] {
            let told = address(Some(wrong), false).unwrap_err().to_string();
            assert!(told.contains("--admin") && told.contains("`off`"), "{told}");
        }
    }
}
