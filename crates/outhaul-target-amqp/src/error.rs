//! What an answer or a failure means: the table in the crate's documentation.

use lapin::protocol::AMQPError;
use outhaul_target::net::io_kind;
use outhaul_target::{DeliveryError, ErrorKind};

/// A connection that could not be opened: who we are is not accepted, or the virtual host.
pub(crate) fn connecting(error: lapin::Error) -> DeliveryError {
    let kind = match answer(&error) {
        Some(answer) if answer.get_id() == ACCESS_REFUSED => ErrorKind::Authentication,
        _ => kind(&error),
    };
    DeliveryError::new(kind).with_source(error)
}

/// A queue or exchange that could not be declared.
pub(crate) fn declaring(error: lapin::Error) -> DeliveryError {
    let kind = match answer(&error) {
        Some(answer) if answer.get_id() == PRECONDITION_FAILED => ErrorKind::Configuration,
        _ => kind(&error),
    };
    DeliveryError::new(kind).with_detail("the declaration is refused").with_source(error)
}

/// Anything else that the client reports: a channel or connection that was closed meanwhile.
pub(crate) fn other(error: lapin::Error) -> DeliveryError {
    DeliveryError::new(kind(&error)).with_source(error)
}

/// How large a message may be, where that is why the server closed the channel.
pub(crate) fn size_max(error: &lapin::Error) -> Option<usize> {
    let answer = answer(error)?;
    if answer.get_id() != PRECONDITION_FAILED {
        return None;
    }
    let (_, size) = answer.get_message().as_str().split_once("larger than")?;
    let digits = size.trim_start_matches(|c: char| !c.is_ascii_digit());
    digits.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

const ACCESS_REFUSED: u16 = 403;
const PRECONDITION_FAILED: u16 = 406;

fn answer(error: &lapin::Error) -> Option<&AMQPError> {
    match error.kind() {
        lapin::ErrorKind::ProtocolError(answer) => Some(answer),
        _ => None,
    }
}

fn kind(error: &lapin::Error) -> ErrorKind {
    use lapin::ErrorKind as Of;
    match error.kind() {
        Of::ProtocolError(answer) => code(answer.get_id(), answer.get_message().as_str()),
        Of::IOError(error) => io_kind(error),
        Of::MissingHeartbeatError | Of::InvalidConnectionState(_) | Of::RuntimeShutdownError(_) => {
            ErrorKind::ConnectionReset
        }
        // The channel was closed before, for a reason that another attempt was told.
        Of::InvalidChannelState(..) | Of::InvalidChannel(_) => ErrorKind::ServerFault,
        Of::ChannelsLimitReached => ErrorKind::Overloaded,
        Of::InvalidProtocolVersion(_) | Of::ParsingError(_) => ErrorKind::ProtocolViolation,
        _ => ErrorKind::Unknown,
    }
}

/// A reply code of AMQP 0-9-1.
fn code(code: u16, text: &str) -> ErrorKind {
    match code {
        320 => ErrorKind::Unavailable,
        402 | 404 => ErrorKind::DestinationMissing,
        ACCESS_REFUSED => ErrorKind::Permission,
        405 => ErrorKind::Conflict,
        506 => ErrorKind::Overloaded,
        501..=505 | 540 => ErrorKind::ProtocolViolation,
        // RabbitMQ says so about a virtual host: missing, not allowed, or full of connections.
        530 if text.contains("not found") => ErrorKind::DestinationMissing,
        530 => ErrorKind::Permission,
        // 311, 406, 541: a request that failed. Which one of the batch it was is not told.
        _ => ErrorKind::ServerFault,
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use outhaul_target::Verdict;

    use super::*;

    fn protocol(code: u16, text: &str) -> lapin::Error {
        let error = AMQPError::from_id(code, text.into()).unwrap();
        lapin::ErrorKind::ProtocolError(error).into()
    }

    #[test]
    fn the_table_holds_for_reply_codes() {
        for (code, text, expected, verdict) in [
            (320, "CONNECTION_FORCED", ErrorKind::Unavailable, Verdict::Hold),
            (402, "INVALID_PATH", ErrorKind::DestinationMissing, Verdict::Hold),
            (403, "ACCESS_REFUSED", ErrorKind::Permission, Verdict::Hold),
            (404, "NOT_FOUND - no exchange 'x'", ErrorKind::DestinationMissing, Verdict::Hold),
            (405, "RESOURCE_LOCKED", ErrorKind::Conflict, Verdict::Retry),
            (406, "PRECONDITION_FAILED", ErrorKind::ServerFault, Verdict::Retry),
            (501, "FRAME_ERROR", ErrorKind::ProtocolViolation, Verdict::Hold),
            (506, "RESOURCE_ERROR", ErrorKind::Overloaded, Verdict::Retry),
            (530, "NOT_ALLOWED - vhost x not found", ErrorKind::DestinationMissing, Verdict::Hold),
            (530, "NOT_ALLOWED - access refused", ErrorKind::Permission, Verdict::Hold),
            (541, "INTERNAL_ERROR", ErrorKind::ServerFault, Verdict::Retry),
        ] {
            let error = other(protocol(code, text));
            assert_eq!((error.kind(), error.verdict()), (expected, verdict), "{code} {text}");
        }
        assert_eq!(connecting(protocol(403, "refused")).kind(), ErrorKind::Authentication);
        assert_eq!(declaring(protocol(406, "inequivalent arg")).kind(), ErrorKind::Configuration);
    }

    #[test]
    fn the_table_holds_for_the_line() {
        for (kind, expected) in [
            (io::ErrorKind::ConnectionReset, ErrorKind::ConnectionReset),
            (io::ErrorKind::ConnectionAborted, ErrorKind::ConnectionReset),
            (io::ErrorKind::ConnectionRefused, ErrorKind::ConnectionRefused),
        ] {
            let error = other(lapin::ErrorKind::IOError(Arc::new(kind.into())).into());
            assert_eq!((error.kind(), error.verdict()), (expected, Verdict::Hold));
        }
        assert_eq!(other(lapin::ErrorKind::MissingHeartbeatError.into()).kind(), ErrorKind::ConnectionReset);
        let unknown = other(lapin::ErrorKind::NoDefaultRuntime.into());
        assert_eq!((unknown.kind(), unknown.verdict()), (ErrorKind::Unknown, Verdict::Retry));
    }

    #[test]
    fn the_table_of_the_documentation_gives_each_kind_its_verdict() {
        let rows = include_str!("lib.rs").lines().filter_map(|line| line.strip_prefix("//! | "));
        let rows = rows.filter_map(|row| row.trim_end_matches(" |").rsplit_once(" | "));
        let mut found = Vec::new();
        for (before, verdict) in rows {
            let Some(name) = before.rsplit('|').next().and_then(|kind| kind.trim().strip_prefix('`')) else {
                continue;
            };
            let name = name.trim_end_matches('`');
            let kind = ErrorKind::ALL.into_iter().find(|kind| format!("{kind:?}") == name);
            let kind = kind.unwrap_or_else(|| panic!("there is no kind {name}"));
            assert_eq!(format!("{:?}", kind.verdict()), verdict, "{name}");
            found.push(kind);
        }
        for code in (300..600).map(|id| code(id, "")).chain([code(530, "not found")]) {
            assert!(found.contains(&code), "{code:?} is in no row");
        }
        assert!(found.len() >= 15, "{found:?}");
    }

    #[test]
    fn the_servers_bound_is_found_in_its_text() {
        let text = "PRECONDITION_FAILED - message size 2097153 is larger than configured max size 2097152";
        assert_eq!(size_max(&protocol(406, text)), Some(2_097_152));
        assert_eq!(size_max(&protocol(406, "PRECONDITION_FAILED - inequivalent arg")), None);
        assert_eq!(size_max(&protocol(404, text)), None);
    }
}
