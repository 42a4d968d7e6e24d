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
                accepted.push(Accepted {
                    id,
                    dedup_id,
                    targets: receipt.targets.to_vec(),
                    shed: receipt.shed,
                });
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
        Some(error) => {
            Problem::refused(&error).in_part(accepted, faults.len()).with_errors(faults).into_response()
        }
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use outhaul::store::{StoreError, event::DedupId};
    use serde_json::Value;

    use super::*;

    async fn answered(results: Vec<Result<Receipt, AdmitError>>) -> (u16, Option<String>, Value) {
        let names = (0..results.len()).map(|n| (format!("id{n}"), format!("dedup{n}"))).collect();
        let (head, body) = answer(names, results).into_parts();
        let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        let retry_after = head.headers.get("retry-after").map(|value| value.to_str().unwrap().to_owned());
        (head.status.as_u16(), retry_after, serde_json::from_slice(&body).unwrap())
    }

    fn receipt() -> Receipt {
        let targets = [TargetName::new("a").unwrap()].into();
        Receipt { sequence: 1, dedup_id: DedupId::mint(), targets, shed: Vec::new(), durable: true }
    }

    #[tokio::test]
    async fn each_refusal_has_its_status_and_reason() {
        let target = TargetName::new("a").unwrap();
        for (error, status, reason) in [
            (AdmitError::Saturated, 503, "saturated"),
            (AdmitError::QueueFull { target: target.clone(), limit: "2 entries".into() }, 503, "queue_full"),
            (AdmitError::TooLarge { target, limit: "2 entries".into() }, 413, "too_large"),
            (AdmitError::DiskFull("/data".into()), 503, "disk_full"),
            (AdmitError::Store(StoreError::Failed(Arc::from("no"))), 503, "store_failed"),
            (AdmitError::Stopping, 503, "stopping"),
            (AdmitError::Unknown("no".into()), 500, "unknown_outcome"),
        ] {
            let (found, retry_after, body) = answered(vec![Err(error)]).await;
            assert_eq!((found, body["reason"].as_str()), (status, Some(reason)));
            // What can never fit is not to be sent again.
            assert_eq!(retry_after.is_none_or(|after| after.parse::<u64>().unwrap() < 1), status == 413);
            assert_eq!((&body["errors"][0]["id"], &body["errors"][0]["index"]), (&"id0".into(), &0.into()));
        }
    }

    #[tokio::test]
    async fn what_is_durable_is_told_beside_what_is_not() {
        let results =
            vec![Ok(receipt()), Err(AdmitError::DiskFull("/".into())), Err(AdmitError::Unknown("no".into()))];
        let (status, _, body) = answered(results).await;
        assert_eq!((status, &body["reason"]), (500, &"unknown_outcome".into()));
        assert_eq!(body["accepted"][0]["id"], "id0");
        let detail = body["detail"].as_str().unwrap();
        assert!(detail.starts_with("1 of 3 events is admitted"), "{detail}");
        assert!(detail.contains("send only the others again"), "{detail}");
        assert_eq!(
            (&body["errors"][1]["id"], &body["errors"][1]["dedup_id"]),
            (&"id2".into(), &"dedup2".into())
        );
        let (status, _, body) =
            answered(vec![Ok(receipt()), Ok(Receipt { durable: false, ..receipt() })]).await;
        assert_eq!((status, &body["durable"]), (202, &false.into()));
        // Where nothing is admitted, nothing is said about parts.
        let (_, _, body) = answered(vec![Err(AdmitError::DiskFull("/".into()))]).await;
        assert!(
            body["accepted"].is_null() && !body["detail"].as_str().unwrap().contains("admitted"),
            "{body}"
        );
    }
}
