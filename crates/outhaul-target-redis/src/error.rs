//! What failures mean.

use std::error::Error;
use std::io;
use std::sync::Arc;

use outhaul_target::net::io_kind;
use outhaul_target::{DeliveryError, ErrorKind};
use redis::{RedisError, ServerError};

/// A line that broke, or a reply that is none.
pub(crate) fn line(error: RedisError) -> DeliveryError {
    let kind = match error.kind() {
        redis::ErrorKind::Io => io_error(&error).map_or(ErrorKind::ConnectionReset, io_kind),
        redis::ErrorKind::Parse => ErrorKind::ProtocolViolation,
        _ => ErrorKind::Unknown,
    };
    DeliveryError::new(kind).with_source(error)
}

/// The library keeps it behind a pointer of its own, which looking for a cause does not see through.
fn io_error(error: &RedisError) -> Option<&io::Error> {
    error.source()?.downcast_ref::<Arc<dyn Error + Send + Sync>>()?.downcast_ref()
}

/// An answer of the server.
pub(crate) fn answered(error: &ServerError) -> DeliveryError {
    DeliveryError::new(answered_kind(error)).with_detail(text(error))
}

/// Whatever refuses `AUTH` itself is about the credentials.
pub(crate) fn authenticating(error: &ServerError) -> DeliveryError {
    let kind = match answered_kind(error) {
        ErrorKind::Unknown | ErrorKind::Permission => ErrorKind::Authentication,
        kind => kind,
    };
    DeliveryError::new(kind).with_detail(text(error))
}

/// Whatever refuses `SELECT` is about the URL.
pub(crate) fn selecting(error: &ServerError, database: u32) -> DeliveryError {
    let kind = match answered_kind(error) {
        ErrorKind::Unknown => ErrorKind::Configuration,
        kind => kind,
    };
    DeliveryError::new(kind).with_detail(format!("database {database} cannot be used: {}", text(error)))
}

pub(crate) fn answered_kind(error: &ServerError) -> ErrorKind {
    match error.code() {
        "LOADING" | "READONLY" | "MASTERDOWN" | "CLUSTERDOWN" | "MISCONF" | "NOREPLICAS" | "OOM" => {
            ErrorKind::Unavailable
        }
        "WRONGTYPE" | "MOVED" | "ASK" | "CROSSSLOT" => ErrorKind::Configuration,
        "NOAUTH" | "WRONGPASS" => ErrorKind::Authentication,
        "NOPERM" => ErrorKind::Permission,
        "BUSY" => ErrorKind::Overloaded,
        "TRYAGAIN" => ErrorKind::Conflict,
        "ERR" if error.details().is_some_and(|text| text.contains("max number of clients")) => {
            ErrorKind::Overloaded
        }
        _ => ErrorKind::Unknown,
    }
}

/// What the server said, without what it repeats of a command that it does not know: that may be a password.
fn text(error: &ServerError) -> String {
    let details = error.details().unwrap_or_default();
    let details = details.split_once(", with args").map_or(details, |(before, _)| before);
    format!("the server answered {} {details}", error.code())
}

#[cfg(test)]
mod tests {
    use outhaul_target::Verdict;
    use redis::Value;

    use super::*;

    fn server_error(text: &str) -> ServerError {
        match redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).unwrap() {
            Value::ServerError(error) => error,
            other => panic!("{other:?}"),
        }
    }

    /// The rows of the table in the crate's documentation: first cell, kind, verdict.
    fn rows() -> Vec<[&'static str; 3]> {
        let lines = include_str!("lib.rs").lines().filter_map(|line| line.strip_prefix("//! | "));
        let cells = lines.filter_map(|line| {
            let cells: Vec<&str> = line.trim_end_matches(" |").split(" | ").collect();
            <[&str; 3]>::try_from(cells).ok()
        });
        cells.filter(|[_, kind, _]| kind.starts_with('`')).collect()
    }

    #[test]
    fn the_table_of_the_documentation_holds() {
        let rows = rows();
        assert!(rows.len() > 15, "the table is not found: {rows:?}");
        let mut codes = Vec::new();
        for [what, kind, verdict] in rows {
            let kind = kind.trim_matches('`');
            let of = ErrorKind::ALL.into_iter().find(|of| format!("{of:?}") == kind);
            let of = of.unwrap_or_else(|| panic!("there is no kind {kind}"));
            assert_eq!(format!("{:?}", of.verdict()), verdict, "{what}");
            let quoted = what.split('`').skip(1).step_by(2);
            for code in quoted.filter(|word| word.bytes().all(|b| b.is_ascii_uppercase())) {
                let error = answered(&server_error(&format!("{code} some words")));
                assert_eq!(error.kind(), of, "{code}");
                codes.push(code);
            }
        }
        for code in [
            "LOADING",
            "READONLY",
            "MASTERDOWN",
            "CLUSTERDOWN",
            "MISCONF",
            "NOREPLICAS",
            "OOM",
            "WRONGTYPE",
            "NOAUTH",
            "WRONGPASS",
            "NOPERM",
            "BUSY",
            "TRYAGAIN",
            "MOVED",
            "ASK",
            "CROSSSLOT",
        ] {
            assert!(codes.contains(&code), "{code} is not in the table");
        }
    }

    #[test]
    fn what_is_not_known_is_retried() {
        for text in ["ERR syntax error", "NEWCODE x", "NOSCRIPT x", "EXECABORT x"] {
            assert_eq!(answered(&server_error(text)).verdict(), Verdict::Retry, "{text}");
        }
        let clients = answered(&server_error("ERR max number of clients reached"));
        assert_eq!(clients.kind(), ErrorKind::Overloaded);
        let auth = authenticating(&server_error("ERR AUTH called without any password configured"));
        assert_eq!((auth.kind(), auth.verdict()), (ErrorKind::Authentication, Verdict::Hold));
        assert_eq!(authenticating(&server_error("LOADING x")).kind(), ErrorKind::Unavailable);
        assert_eq!(selecting(&server_error("ERR out of range"), 99).kind(), ErrorKind::Configuration);
    }

    #[test]
    fn a_line_that_broke_is_never_a_reject() {
        let broken = line(io::Error::from(io::ErrorKind::ConnectionReset).into());
        assert_eq!((broken.kind(), broken.verdict()), (ErrorKind::ConnectionReset, Verdict::Hold));
        let refused = line(io::Error::from(io::ErrorKind::ConnectionRefused).into());
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        let nonsense = redis::parse_redis_value(b"HTTP/1.1 400\r\n").unwrap_err();
        assert_eq!(line(nonsense).kind(), ErrorKind::ProtocolViolation);
    }

    #[test]
    fn a_command_is_not_repeated_in_a_text() {
        let text = "ERR unknown command 'AUTH', with args beginning with: 'me' 's3cret'";
        let error = authenticating(&server_error(text));
        assert!(!error.detail().contains("s3cret") && error.detail().contains("unknown command"));
    }
}
