//! What an answer or a failure means: the table in the crate's documentation.

use std::error::Error;
use std::io;

use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::{self, ErrorCode};
use async_nats::{ConnectError, ConnectErrorKind, client};
use outhaul_target::net::{cause, io_kind};
use outhaul_target::{DeliveryError, ErrorKind};

/// A connection that could not be made.
pub(crate) fn connecting(error: ConnectError) -> DeliveryError {
    let kind = if cause::<rustls::Error>(&error).is_some() {
        ErrorKind::Tls
    } else {
        match error.kind() {
            ConnectErrorKind::Dns => ErrorKind::Dns,
            ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
                ErrorKind::Authentication
            }
            ConnectErrorKind::Tls => ErrorKind::Tls,
            ConnectErrorKind::ServerParse => ErrorKind::Configuration,
            ConnectErrorKind::TimedOut => ErrorKind::Unreachable,
            ConnectErrorKind::Io | ConnectErrorKind::MaxReconnects => {
                cause::<io::Error>(&error).map_or(ErrorKind::ConnectionReset, io_kind)
            }
        }
    };
    DeliveryError::new(kind).with_source(error)
}

/// A publish that was not acknowledged.
pub(crate) fn publishing(error: PublishError) -> DeliveryError {
    let kind = match error.kind() {
        PublishErrorKind::StreamNotFound => ErrorKind::DestinationMissing,
        PublishErrorKind::WrongLastMessageId | PublishErrorKind::WrongLastSequence => {
            ErrorKind::ContentRefused
        }
        PublishErrorKind::TimedOut => ErrorKind::TimedOut,
        PublishErrorKind::BrokenPipe => ErrorKind::ConnectionReset,
        PublishErrorKind::MaxAckPending => ErrorKind::Overloaded,
        PublishErrorKind::MaxPayloadExceeded => ErrorKind::TooLarge,
        PublishErrorKind::Other => cause::<jetstream::Error>(&error).map_or(ErrorKind::Unknown, answered),
    };
    DeliveryError::new(kind).with_source(error)
}

/// An answer of JetStream.
pub(crate) fn answered(error: &jetstream::Error) -> ErrorKind {
    match error.error_code() {
        ErrorCode::STREAM_NOT_FOUND | ErrorCode::NO_MESSAGE_FOUND => ErrorKind::DestinationMissing,
        ErrorCode::STREAM_NOT_MATCH
        | ErrorCode::STREAM_MISMATCH
        | ErrorCode::STREAM_SEALED
        | ErrorCode::JETSTREAM_NOT_ENABLED
        | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT
        | ErrorCode::NO_ACCOUNT => ErrorKind::Configuration,
        ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM | ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM => {
            ErrorKind::TooLarge
        }
        ErrorCode::STREAM_WRONG_LAST_SEQUENCE | ErrorCode::STREAM_WRONG_LAST_MESSAGE_ID => {
            ErrorKind::ContentRefused
        }
        ErrorCode::INSUFFICIENT_RESOURCES
        | ErrorCode::ACCOUNT_RESOURCES_EXCEEDED
        | ErrorCode::MEMORY_RESOURCES_EXCEEDED
        | ErrorCode::STORAGE_RESOURCES_EXCEEDED
        // A stream that is full, with `discard: new`.
        | ErrorCode::STREAM_STORE_FAILED => ErrorKind::Overloaded,
        ErrorCode::CLUSTER_NOT_AVAILABLE
        | ErrorCode::CLUSTER_NOT_ACTIVE
        | ErrorCode::CLUSTER_NOT_LEADER
        | ErrorCode::CLUSTER_INCOMPLETE
        | ErrorCode::STREAM_OFFLINE => ErrorKind::Unavailable,
        _ => ErrorKind::Unknown,
    }
}

/// A core message that could not be handed to the client.
pub(crate) fn core(error: client::PublishError) -> DeliveryError {
    let kind = match error.kind() {
        client::PublishErrorKind::MaxPayloadExceeded => ErrorKind::TooLarge,
        client::PublishErrorKind::InvalidSubject => ErrorKind::Malformed,
        client::PublishErrorKind::Send => ErrorKind::ConnectionReset,
    };
    DeliveryError::new(kind).with_source(error)
}

/// Anything else that the client reports, by what caused it.
pub(crate) fn other(error: impl Error + Send + Sync + 'static) -> DeliveryError {
    let kind = cause::<io::Error>(&error).map_or(ErrorKind::ConnectionReset, io_kind);
    DeliveryError::new(kind).with_source(error)
}

#[cfg(test)]
mod tests {
    use outhaul_target::Verdict;

    use super::*;

    #[test]
    fn the_table_holds_for_publishing() {
        for (kind, expected) in [
            (PublishErrorKind::StreamNotFound, ErrorKind::DestinationMissing),
            (PublishErrorKind::WrongLastMessageId, ErrorKind::ContentRefused),
            (PublishErrorKind::WrongLastSequence, ErrorKind::ContentRefused),
            (PublishErrorKind::TimedOut, ErrorKind::TimedOut),
            (PublishErrorKind::BrokenPipe, ErrorKind::ConnectionReset),
            (PublishErrorKind::MaxPayloadExceeded, ErrorKind::TooLarge),
            (PublishErrorKind::Other, ErrorKind::Unknown),
        ] {
            assert_eq!(publishing(PublishError::new(kind)).kind(), expected, "{kind:?}");
        }
        assert_eq!(publishing(PublishError::new(PublishErrorKind::Other)).verdict(), Verdict::Retry);
    }

    #[test]
    fn the_table_holds_for_connecting() {
        for (kind, expected) in [
            (ConnectErrorKind::Dns, ErrorKind::Dns),
            (ConnectErrorKind::AuthorizationViolation, ErrorKind::Authentication),
            (ConnectErrorKind::TimedOut, ErrorKind::Unreachable),
            (ConnectErrorKind::Tls, ErrorKind::Tls),
        ] {
            let error = connecting(ConnectError::new(kind));
            assert_eq!((error.kind(), error.verdict()), (expected, Verdict::Hold));
        }
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let error = connecting(ConnectError::with_source(ConnectErrorKind::Io, refused));
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    }
}
