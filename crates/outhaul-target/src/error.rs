//! Why a delivery failed: [`DeliveryError`], and the one place that says what that means.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::redact::redact;

/// The longest detail, in bytes: what a failed record keeps.
pub const DETAIL_BYTES_MAX: usize = 256;

/// Why one event was not delivered.
///
/// Branch on [`kind`](Self::kind). The text is for people and holds no credentials: user information and query
/// values of every URL in it are blanked out.
pub struct DeliveryError {
    kind: ErrorKind,
    retry_after: Option<Duration>,
    detail: Option<String>,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl DeliveryError {
    /// A failure of this kind, without more to say about it.
    pub fn new(kind: ErrorKind) -> Self {
        Self { kind, retry_after: None, detail: None, source: None }
    }

    /// Adds what caused it. Its text must not hold a secret that is not part of a URL.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Adds when the receiver asked to be tried again, counted from now.
    #[must_use]
    pub fn with_retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// Says more than the kind does, in a few words: `the receiver answered 503`.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// This failure as the result of each of so many events: the first one has its cause, the others say the same.
    pub fn for_each(self, count: usize) -> Vec<Result<(), Self>> {
        let (kind, detail) = (self.kind, self.detail());
        let mut results = vec![Err(self)];
        results.resize_with(count, || Err(Self::new(kind).with_detail(&*detail)));
        results
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Short for the verdict of the [`kind`](Self::kind).
    pub fn verdict(&self) -> Verdict {
        self.kind.verdict()
    }

    /// How long the receiver asked to be left alone.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// What happened, in one line of at most [`DETAIL_BYTES_MAX`] bytes, without credentials: what health, logs and
    /// the failed store show.
    pub fn detail(&self) -> String {
        let mut text = self.detail.clone().unwrap_or_else(|| self.kind.to_string());
        let mut cause: Option<&(dyn Error + 'static)> = self.source.as_ref().map(|s| &**s as _);
        while let Some(error) = cause {
            let next = error.to_string();
            // Many errors repeat their cause in their own text.
            if !text.contains(&next) {
                text.push_str(": ");
                text.push_str(&next);
            }
            cause = error.source();
        }
        let mut text = redact(&text).replace(|c: char| c.is_control(), " ");
        if text.len() > DETAIL_BYTES_MAX {
            text.truncate(text.floor_char_boundary(DETAIL_BYTES_MAX - '…'.len_utf8()));
            text.push('…');
        }
        text
    }
}

impl From<ErrorKind> for DeliveryError {
    fn from(kind: ErrorKind) -> Self {
        Self::new(kind)
    }
}

impl fmt::Display for DeliveryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&redact(self.detail.as_deref().unwrap_or(self.kind.text())))
    }
}

impl fmt::Debug for DeliveryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeliveryError")
            .field("kind", &self.kind)
            .field("retry_after", &self.retry_after)
            .field("detail", &self.detail())
            .finish_non_exhaustive()
    }
}

impl Error for DeliveryError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| &**source as _)
    }
}

/// What a failure means for the entry and for the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Accuses the entry: it is tried again later, and its pid waits.
    Retry,
    /// Accuses the target: nothing is sent until a trial gets through.
    Hold,
    /// The event can never be delivered here: it goes to the failed store.
    Reject,
}

/// What went wrong, in the terms that decisions are made in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Nobody listens at the address. Start the receiver, or correct the address.
    ConnectionRefused,
    /// An established connection broke, or the reader of a pipe is gone.
    ConnectionReset,
    /// No route to the host or network.
    Unreachable,
    /// The host name has no address. Correct it, or repair the resolver.
    Dns,
    /// The TLS handshake failed: certificate, name, time or version.
    Tls,
    /// The server is starting, shutting down, or read-only for now.
    Unavailable,
    /// The receiver does not know these credentials.
    Authentication,
    /// The receiver, or the file system, does not allow it with these credentials.
    Permission,
    /// The path, topic, stream, table or directory is not there (any more).
    DestinationMissing,
    /// The receiver says that the configuration is wrong: another address, another method.
    Configuration,
    /// An address that is not allowed, such as a cloud's metadata service.
    PolicyDenied,
    /// The disk behind the target is full.
    DiskFull,
    /// Another process holds what only one may have.
    Locked,
    /// A read, write or sync failed for a reason that says nothing about the event.
    Io,
    /// The receiver does not speak the protocol.
    ProtocolViolation,
    /// The target was closed before.
    Closed,
    /// The attempt's own deadline passed, or the receiver gave up waiting.
    TimedOut,
    /// Too many requests. A `retry_after` with it pauses the target, not the lane.
    Throttled,
    /// The receiver has no capacity at the moment. A `retry_after` with it pauses the target, not the lane.
    Overloaded,
    /// The receiver failed at this request.
    ServerFault,
    /// A lock, a serialisation conflict, or a receiver in another state.
    Conflict,
    /// Not tried, because an earlier event of its pid in the same batch was not delivered.
    Skipped,
    /// Larger than the receiver takes.
    TooLarge,
    /// The event cannot be written in the format that is asked for, or the receiver cannot read it.
    Malformed,
    /// The receiver read the event and refuses it because of what is in it.
    ContentRefused,
    /// Anything else.
    Unknown,
}

impl ErrorKind {
    /// Every kind, for tables and tests.
    pub const ALL: [Self; 26] = [
        Self::ConnectionRefused,
        Self::ConnectionReset,
        Self::Unreachable,
        Self::Dns,
        Self::Tls,
        Self::Unavailable,
        Self::Authentication,
        Self::Permission,
        Self::DestinationMissing,
        Self::Configuration,
        Self::PolicyDenied,
        Self::DiskFull,
        Self::Locked,
        Self::Io,
        Self::ProtocolViolation,
        Self::Closed,
        Self::TimedOut,
        Self::Throttled,
        Self::Overloaded,
        Self::ServerFault,
        Self::Conflict,
        Self::Skipped,
        Self::TooLarge,
        Self::Malformed,
        Self::ContentRefused,
        Self::Unknown,
    ];

    /// What it means. This is the only place that decides it; an unknown error is `Retry`, never `Reject`.
    pub fn verdict(self) -> Verdict {
        match self {
            Self::ConnectionRefused
            | Self::ConnectionReset
            | Self::Unreachable
            | Self::Dns
            | Self::Tls
            | Self::Unavailable
            | Self::Authentication
            | Self::Permission
            | Self::DestinationMissing
            | Self::Configuration
            | Self::PolicyDenied
            | Self::DiskFull
            | Self::Locked
            | Self::Io
            | Self::ProtocolViolation
            | Self::Closed => Verdict::Hold,
            Self::TimedOut
            | Self::Throttled
            | Self::Overloaded
            | Self::ServerFault
            | Self::Conflict
            | Self::Skipped
            | Self::Unknown => Verdict::Retry,
            Self::TooLarge | Self::Malformed | Self::ContentRefused => Verdict::Reject,
        }
    }

    /// The machine-readable reason that health shows.
    pub fn reason(self) -> &'static str {
        match self {
            Self::ConnectionRefused => "connection_refused",
            Self::ConnectionReset | Self::Unreachable | Self::Unavailable | Self::Locked => "unreachable",
            Self::Dns => "dns_failure",
            Self::Tls => "tls_failure",
            Self::Authentication => "authentication_failed",
            Self::Permission => "permission_denied",
            Self::DestinationMissing => "destination_missing",
            Self::Configuration => "configuration_invalid",
            Self::PolicyDenied => "policy_denied",
            Self::DiskFull => "disk_full",
            Self::Closed => "not_loaded",
            Self::TimedOut => "timed_out",
            Self::Throttled => "throttled",
            Self::Io
            | Self::ProtocolViolation
            | Self::Overloaded
            | Self::ServerFault
            | Self::Conflict
            | Self::Skipped
            | Self::TooLarge
            | Self::Malformed
            | Self::ContentRefused
            | Self::Unknown => "request_failed",
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::ConnectionRefused => "the connection was refused",
            Self::ConnectionReset => "the connection broke",
            Self::Unreachable => "the host cannot be reached",
            Self::Dns => "the host name cannot be resolved",
            Self::Tls => "the TLS handshake failed",
            Self::Unavailable => "the server is not available now",
            Self::Authentication => "the credentials are not accepted",
            Self::Permission => "permission denied",
            Self::DestinationMissing => "the destination does not exist",
            Self::Configuration => "the receiver does not accept this configuration",
            Self::PolicyDenied => "the address is not allowed",
            Self::DiskFull => "the disk is full",
            Self::Locked => "another process holds the destination",
            Self::Io => "reading or writing failed",
            Self::ProtocolViolation => "the receiver does not speak the protocol",
            Self::Closed => "the target is closed",
            Self::TimedOut => "the deadline passed",
            Self::Throttled => "too many requests",
            Self::Overloaded => "the receiver is overloaded",
            Self::ServerFault => "the receiver failed",
            Self::Conflict => "the receiver reports a conflict",
            Self::Skipped => "an earlier event of its pid in the batch was not delivered",
            Self::TooLarge => "the event is too large for the receiver",
            Self::Malformed => "the event cannot be written or read in this format",
            Self::ContentRefused => "the receiver refuses the event's content",
            Self::Unknown => "the delivery failed",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What health may show.
    const REASONS: &str = "reachable, authentication_failed, permission_denied, destination_missing, \
        configuration_invalid, connection_refused, dns_failure, tls_failure, timed_out, policy_denied, \
        request_failed, unreachable, initialization_failed, health_check_failed, not_loaded, disabled, held, \
        throttled, queue_full, failed_store_full, disk_full, store_failed, no_progress, clock";

    #[test]
    fn every_kind_has_a_reason_of_the_list_and_an_unknown_error_is_retried() {
        for kind in ErrorKind::ALL {
            assert!(REASONS.split(", ").any(|reason| reason == kind.reason()), "{kind:?}");
        }
        assert_eq!(ErrorKind::Unknown.verdict(), Verdict::Retry);
        let rejected = ErrorKind::ALL.into_iter().filter(|kind| kind.verdict() == Verdict::Reject);
        assert_eq!(
            rejected.collect::<Vec<_>>(),
            [ErrorKind::TooLarge, ErrorKind::Malformed, ErrorKind::ContentRefused]
        );
    }

    #[test]
    fn a_detail_is_short_one_line_and_without_credentials() {
        let cause = std::io::Error::other("no route\nto https://me:s3cret@h/?key=s3cret");
        let error =
            DeliveryError::new(ErrorKind::Dns).with_detail("at https://a:s3cret@b").with_source(cause);
        assert_eq!(error.detail(), "at https://***@b: no route to https://***@h/?key=***");
        assert!(!format!("{error:?} {error}").contains("s3cret"));
        let long = DeliveryError::new(ErrorKind::Unknown).with_detail("ä".repeat(500)).detail();
        assert!(long.len() <= DETAIL_BYTES_MAX && long.ends_with('…'), "{long}");
        assert_eq!(DeliveryError::from(ErrorKind::DiskFull).detail(), "the disk is full");
    }
}
