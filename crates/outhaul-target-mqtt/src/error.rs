//! What an answer or a failure means: the table in the crate's documentation.

use std::error::Error;
use std::io;

use outhaul_target::net::{cause, io_kind};
use outhaul_target::{DeliveryError, ErrorKind};

/// A failure that everybody who waits is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) kind: ErrorKind,
    pub(crate) detail: String,
}

impl Failure {
    pub(crate) fn new(kind: ErrorKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into() }
    }

    /// An error of the client, with what it means unless something below it says that better.
    pub(crate) fn of(kind: ErrorKind, error: &(dyn Error + 'static)) -> Self {
        if let Some(ours) = cause::<DeliveryError>(error) {
            return Self::new(ours.kind(), ours.detail());
        }
        let kind = cause::<io::Error>(error).map_or(kind, io_kind);
        Self::new(kind, error.to_string())
    }
}

impl From<Failure> for DeliveryError {
    fn from(failure: Failure) -> Self {
        Self::new(failure.kind).with_detail(failure.detail)
    }
}

impl From<DeliveryError> for Failure {
    fn from(error: DeliveryError) -> Self {
        Self::new(error.kind(), error.detail())
    }
}

/// A session that the server does not have any more: what was underway in it is nobody's.
pub(crate) fn session_lost() -> Failure {
    Failure::new(ErrorKind::Conflict, "the server kept no session, and the message with it")
}

/// A message that the client does not know of any more: the line broke while it was sent again.
pub(crate) fn track_lost() -> Failure {
    Failure::new(ErrorKind::Conflict, "the client lost track of the message while it connected again")
}

/// Acknowledgements of MQTT 5, PUBACK and PUBREC, by their reason code.
pub(crate) fn acknowledged(code: u8) -> Option<ErrorKind> {
    match code {
        0x00 | 0x10 => None,
        0x87 => Some(ErrorKind::Permission),
        0x90 => Some(ErrorKind::DestinationMissing),
        0x91 => Some(ErrorKind::Conflict),
        0x95 => Some(ErrorKind::TooLarge),
        0x97 => Some(ErrorKind::Overloaded),
        0x99 => Some(ErrorKind::ContentRefused),
        0x80 | 0x83 => Some(ErrorKind::ServerFault),
        _ => Some(ErrorKind::Unknown),
    }
}

/// Why the server closes a connection of MQTT 5.
pub(crate) fn disconnected(code: u8) -> ErrorKind {
    match code {
        0x87 | 0x98 => ErrorKind::Permission,
        0x89 | 0x8B | 0x9C | 0x9D => ErrorKind::Unavailable,
        0x8E => ErrorKind::Locked,
        0x93 | 0x96 | 0x97 | 0x9F => ErrorKind::Overloaded,
        0x90 => ErrorKind::DestinationMissing,
        0x9B => ErrorKind::Configuration,
        0x81 | 0x82 => ErrorKind::ProtocolViolation,
        _ => ErrorKind::ConnectionReset,
    }
}

#[cfg(test)]
mod tests {
    use outhaul_target::Verdict;

    use super::*;

    #[test]
    fn the_table_holds_for_reason_codes() {
        for (code, expected) in [
            (0x00, None),
            (0x10, None),
            (0x80, Some(Verdict::Retry)),
            (0x83, Some(Verdict::Retry)),
            (0x87, Some(Verdict::Hold)),
            (0x90, Some(Verdict::Hold)),
            (0x91, Some(Verdict::Retry)),
            (0x95, Some(Verdict::Reject)),
            (0x97, Some(Verdict::Retry)),
            (0x99, Some(Verdict::Reject)),
            (0xFF, Some(Verdict::Retry)),
        ] {
            assert_eq!(acknowledged(code).map(ErrorKind::verdict), expected, "{code:#x}");
        }
        assert!((0..=255).all(|code| disconnected(code).verdict() != Verdict::Reject));
        assert_eq!(disconnected(0x8E), ErrorKind::Locked);
        for lost in [session_lost(), track_lost()] {
            assert_eq!(DeliveryError::from(lost).verdict(), Verdict::Retry);
        }
    }

    #[test]
    fn what_is_below_an_error_counts() {
        let ours = DeliveryError::new(ErrorKind::Tls).with_detail("expired");
        let failure = Failure::of(ErrorKind::Io, &io::Error::other(ours));
        assert_eq!(failure, Failure::new(ErrorKind::Tls, "expired"));
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        assert_eq!(Failure::of(ErrorKind::Unknown, &refused).kind, ErrorKind::ConnectionRefused);
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
        for kind in (0..=255).filter_map(acknowledged).chain((0..=255).map(disconnected)) {
            assert!(found.contains(&kind), "{kind:?} is in no row");
        }
        assert!(found.len() >= 15, "{found:?}");
    }
}
