//! [`Problem`]: an error as RFC 9457 writes it.

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use outhaul::AdmitError;
use outhaul::event::{Event, JsonError};
use serde::Serialize;

use super::admission::Accepted;

/// What is wrong with so many events of one request is told one by one.
pub(crate) const FAULTS_MAX: usize = 100;

/// An answer that is no success.
#[derive(Debug)]
pub(crate) struct Problem(Box<Body>);

#[derive(Debug, Serialize)]
struct Body {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: String,
    /// The word to branch on.
    reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<Fault>,
    /// Events that are durable nevertheless.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    accepted: Vec<Accepted>,
    #[serde(skip)]
    retry_after: Option<Duration>,
}

/// What is wrong with one event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Fault {
    /// The event's place in the request, from 0.
    pub(crate) index: usize,
    /// The line of the body, from 1; none for what stands in a header.
    pub(crate) line: Option<usize>,
    /// The byte in the line, from 1.
    pub(crate) column: Option<usize>,
    pub(crate) message: String,
    /// The event's own id, where it was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    /// What its receivers would see.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dedup_id: Option<String>,
}

impl Fault {
    pub(crate) fn json(index: usize, error: JsonError) -> Self {
        let (line, column) = (Some(error.line), Some(error.column));
        Self { index, line, column, message: error.message, id: None, dedup_id: None }
    }

    pub(crate) fn header(index: usize, message: String) -> Self {
        Self { index, line: None, column: None, message, id: None, dedup_id: None }
    }

    pub(crate) fn event(index: usize, event: &(String, String), message: String) -> Self {
        let (id, dedup_id) = (Some(event.0.clone()), Some(event.1.clone()));
        Self { index, line: None, column: None, message, id, dedup_id }
    }
}

impl Problem {
    pub(crate) fn new(status: StatusCode, reason: &'static str, detail: impl Into<String>) -> Self {
        Self(Box::new(Body {
            r#type: "about:blank",
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            detail: detail.into(),
            reason,
            target: None,
            errors: Vec::new(),
            accepted: Vec::new(),
            retry_after: None,
        }))
    }

    pub(crate) fn invalid(faults: Vec<Fault>) -> Self {
        let detail = match faults.first() {
            Some(fault) => format!("nothing was admitted: {}", placed(fault)),
            None => "nothing was admitted".to_owned(),
        };
        Self::new(StatusCode::BAD_REQUEST, "invalid_event", detail).with_errors(faults)
    }

    pub(crate) fn too_large(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", detail)
    }

    /// Nothing of a request was admitted.
    pub(crate) fn refused(error: &AdmitError) -> Self {
        let status = status_of(error.reason());
        let mut problem = Self::new(status, error.reason(), error.to_string());
        if let AdmitError::QueueFull { target, .. } | AdmitError::TooLarge { target, .. } = error {
            problem.0.target = Some(target.to_string());
        }
        // What can never fit is no better later.
        match status {
            StatusCode::PAYLOAD_TOO_LARGE => problem,
            _ => problem.retry_after(error.retry_after()),
        }
    }

    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    pub(crate) fn with_errors(mut self, faults: Vec<Fault>) -> Self {
        self.0.errors = faults;
        self
    }

    /// A part of a request was admitted, and `refused` events were not.
    pub(crate) fn in_part(mut self, accepted: Vec<Accepted>, refused: usize) -> Self {
        if let count @ 1.. = accepted.len() {
            let is = if count == 1 { "is" } else { "are" };
            self.0.detail = format!(
                "{count} of {} events {is} admitted and safe (they are in `accepted`); send only the others again \
                 (they are in `errors`): {}",
                count + refused,
                self.0.detail
            );
        }
        self.0.accepted = accepted;
        self
    }

    pub(crate) fn retry_after(mut self, time: Duration) -> Self {
        self.0.retry_after = Some(time);
        self
    }
}

#[cfg(test)]
impl Problem {
    pub(crate) fn body(&self) -> &impl Serialize {
        &self.0
    }
}

/// The status of a refusal, by its machine-readable word.
fn status_of(reason: &str) -> StatusCode {
    match reason {
        "too_large" => StatusCode::PAYLOAD_TOO_LARGE,
        "unknown_outcome" => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

fn placed(fault: &Fault) -> String {
    match (fault.line, fault.column) {
        (Some(line), Some(column)) => format!("line {line}, column {column}: {}", fault.message),
        _ => fault.message.clone(),
    }
}

/// What names an event, before it is handed over.
pub(crate) fn ids(event: &Event) -> (String, String) {
    (event.id().to_owned(), event.dedup_id().to_string())
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.status();
        // Strings and numbers always serialise.
        let body = serde_json::to_vec(&self.0).unwrap_or_default();
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(time) = self.0.retry_after {
            let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"outhaul\""));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_follows_the_reason() {
        for (reason, code) in
            [("too_large", 413), ("unknown_outcome", 500), ("queue_full", 503), ("stopping", 503)]
        {
            assert_eq!(status_of(reason).as_u16(), code, "{reason}");
        }
    }
}
