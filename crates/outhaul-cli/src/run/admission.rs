//! Admitting the events of one request, and the answer to it.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use outhaul::event::{Event, TargetName};
use outhaul::{AdmitError, Outhaul, Receipt};
use serde::Serialize;

use super::problem::{Fault, Problem, ids};

/// One event that is safe.
#[derive(Debug, Serialize)]
pub(crate) struct Accepted {
    id: String,
    dedup_id: String,
    targets: Vec<TargetName>,
    /// Targets that miss it, because they are full.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    shed: Vec<TargetName>,
}

#[derive(Serialize)]
struct Answer {
    accepted: Vec<Accepted>,
    durable: bool,
}

/// Admits events, all or none. They are handed over before anything is waited for, so they are admitted even if the
/// client, and with it this future, goes.
pub(crate) fn admit(outhaul: &Outhaul, events: Vec<Event>) -> impl Future<Output = Response> + Send + use<> {
    let names: Vec<_> = events.iter().map(ids).collect();
    let pending = outhaul.admit(events.into_iter().map(Into::into).collect());
    async move {
        match pending {
            Ok(pending) => answer(names, futures_util::future::join_all(pending).await).into_response(),
            Err(error) => Problem::refused(&error).into_response(),
        }
    }
}

fn answer(names: Vec<(String, String)>, results: Vec<Result<Receipt, AdmitError>>) -> Response {
    let (mut accepted, mut faults) = (Vec::with_capacity(results.len()), Vec::new());
    let mut durable = true;
    let mut worst: Option<AdmitError> = None;
    for (index, (names, result)) in names.into_iter().zip(results).enumerate() {
        match result {
            Ok(receipt) => {
                durable &= receipt.durable;
                let (id, dedup_id) = names;
                accepted.push(Accepted { id, dedup_id, targets: receipt.targets, shed: receipt.shed });
            }
            Err(error) => {
                faults.push(Fault::event(index, &names, error.to_string()));
                // What may be delivered nevertheless is what the client has to know first.
                let unknown = matches!(error, AdmitError::Unknown(_));
                if worst.is_none() || unknown {
                    worst = Some(error);
                }
            }
        }
    }
    match worst {
        Some(error) => Problem::refused(&error).with_errors(faults).with_accepted(accepted).into_response(),
        None => json(StatusCode::ACCEPTED, &Answer { accepted, durable }),
    }
}

/// An answer in JSON.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    // What is answered has string keys only, so it always serialises.
    let mut response = (status, serde_json::to_vec(value).unwrap_or_default()).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
