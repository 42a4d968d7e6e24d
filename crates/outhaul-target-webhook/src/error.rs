//! What an answer or a failure means.

use std::io;
use std::time::{Duration, SystemTime};

use http::StatusCode;
use outhaul_target::net::cause;
use outhaul_target::{DeliveryError, ErrorKind};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc2822;

use crate::egress::Forbidden;

/// The longest wait that a receiver can ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3_600);

/// The table in the crate's documentation. None: delivered.
pub(crate) fn status_kind(status: StatusCode) -> Option<ErrorKind> {
    Some(match status.as_u16() {
        200..=299 => return None,
        301..=308 => ErrorKind::Configuration,
        400 => ErrorKind::Malformed,
        401 | 407 => ErrorKind::Authentication,
        402 | 403 => ErrorKind::Permission,
        404 | 410 => ErrorKind::DestinationMissing,
        405 => ErrorKind::Configuration,
        408 => ErrorKind::TimedOut,
        409 => ErrorKind::Conflict,
        413 | 414 | 431 => ErrorKind::TooLarge,
        415 | 422 => ErrorKind::ContentRefused,
        425 | 500 | 502 | 504 => ErrorKind::ServerFault,
        429 => ErrorKind::Throttled,
        503 => ErrorKind::Overloaded,
        _ => ErrorKind::Unknown,
    })
}

/// An answer that does not deliver, with what it says about when to come back.
pub(crate) fn refused(kind: ErrorKind, status: StatusCode, retry_after: Option<Duration>) -> DeliveryError {
    let redirect = if status.is_redirection() { "; redirects are not followed" } else { "" };
    let error = DeliveryError::new(kind).with_detail(format!("the receiver answered {status}{redirect}"));
    match retry_after {
        Some(after) => error.with_retry_after(after),
        None => error,
    }
}

/// Reads `Retry-After` (RFC 9110, section 10.2.3): whole seconds, or a date. A date that has passed is no wait.
pub(crate) fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    let wait = if value.bytes().all(|b| b.is_ascii_digit()) && !value.is_empty() {
        // More digits than fit are a long time too.
        Duration::from_secs(value.parse().unwrap_or(u64::MAX))
    } else {
        let date: SystemTime = OffsetDateTime::parse(value, &Rfc2822).ok()?.into();
        date.duration_since(now).ok()?
    };
    Some(wait.min(RETRY_AFTER_MAX))
}

/// A request that got no whole answer.
pub(crate) fn failed(error: reqwest::Error) -> DeliveryError {
    // The URL may hold credentials, in its query too.
    let error = error.without_url();
    DeliveryError::new(failure_kind(&error)).with_source(error)
}

fn failure_kind(error: &reqwest::Error) -> ErrorKind {
    if error.is_dns() && cause::<Forbidden>(error).is_none() {
        return ErrorKind::Dns;
    }
    if cause::<Forbidden>(error).is_some() {
        return ErrorKind::PolicyDenied;
    }
    if cause::<rustls::Error>(error).is_some() {
        return ErrorKind::Tls;
    }
    if error.is_timeout() {
        // The only deadline that the client itself keeps is that of connecting.
        return ErrorKind::Unreachable;
    }
    if let Some(hyper) = cause::<hyper::Error>(error)
        && hyper.is_parse()
    {
        return ErrorKind::ProtocolViolation;
    }
    match cause::<io::Error>(error).map(io::Error::kind) {
        Some(io::ErrorKind::ConnectionRefused) => ErrorKind::ConnectionRefused,
        Some(io::ErrorKind::PermissionDenied) => ErrorKind::PolicyDenied,
        Some(
            io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::AddrNotAvailable
            | io::ErrorKind::TimedOut,
        ) => ErrorKind::Unreachable,
        _ if error.is_connect() => ErrorKind::Unreachable,
        _ if error.is_builder() => ErrorKind::Malformed,
        // Cut off before the answer, or within it.
        _ => ErrorKind::ConnectionReset,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Walks through every status, and the table in the crate's documentation.
    #[test]
    fn the_documented_verdicts_hold() {
        let rows: Vec<(&str, &str, &str)> = include_str!("lib.rs")
            .lines()
            .filter_map(|line| line.strip_prefix("//! | ")?.strip_suffix(" |"))
            .map(|row| {
                let mut cells = row.split(" | ");
                (cells.next().unwrap(), cells.next().unwrap().trim_matches('`'), cells.next().unwrap())
            })
            .collect();
        let covers = |row: &str, status: u16| match row.split_once(" to ") {
            Some((from, to)) => (from.parse::<u16>().unwrap()..=to.parse().unwrap()).contains(&status),
            None => row.split(' ').any(|cell| cell == status.to_string()),
        };
        let mut listed = 0;
        for status in 100..=999 {
            let kind = status_kind(StatusCode::from_u16(status).unwrap());
            let verdict = kind.map_or("delivered".to_owned(), |kind| format!("{:?}", kind.verdict()));
            let kind = kind.map_or("–".to_owned(), |kind| format!("{kind:?}"));
            let row = rows.iter().find(|row| covers(row.0, status));
            listed += usize::from(row.is_some());
            let row = row.or_else(|| rows.iter().find(|row| row.0 == "any other status")).unwrap();
            assert_eq!((row.1, row.2), (&*kind, &*verdict), "{status}");
        }
        assert_eq!(listed, 100 + 8 + 21);
        for kind in ErrorKind::ALL {
            let documented = rows.iter().filter(|row| row.1 == format!("{kind:?}"));
            assert!(documented.into_iter().all(|row| row.2 == format!("{:?}", kind.verdict())), "{kind:?}");
        }
    }

    /// By verdict, independent of the kinds.
    #[test]
    fn each_status_has_the_verdict_that_users_rely_on() {
        use outhaul_target::Verdict::{Hold, Reject, Retry};
        let verdict = |status| status_kind(StatusCode::from_u16(status).unwrap()).map(ErrorKind::verdict);
        for status in [408, 425, 429, 500, 502, 503, 504, 409, 418, 300, 501, 599] {
            assert_eq!(verdict(status), Some(Retry), "{status}");
        }
        for status in (301..=308).chain([401, 402, 403, 404, 405, 407, 410]) {
            assert_eq!(verdict(status), Some(Hold), "{status}");
        }
        for status in [400, 413, 414, 415, 422, 431] {
            assert_eq!(verdict(status), Some(Reject), "{status}");
        }
    }

    #[test]
    fn retry_after_is_seconds_or_a_date_within_an_hour() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let cases = [
            ("120", Some(120)),
            (" 0 ", Some(0)),
            ("99999999999999999999999", Some(3_600)),
            ("Sun, 06 Nov 1994 08:50:37 GMT", Some(60)),
            ("Mon, 07 Nov 1994 08:49:37 GMT", Some(3_600)),
            ("Sun, 06 Nov 1994 08:49:36 GMT", None),
            ("-1", None),
            ("1.5", None),
            ("soon", None),
            ("", None),
        ];
        for (value, expected) in cases {
            assert_eq!(retry_after(value, now), expected.map(Duration::from_secs), "{value}");
        }
    }
}
