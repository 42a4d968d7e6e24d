//! Entries: listing those of a target, and deciding about one.

use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::response::Response;
use http::{StatusCode, Uri};
use outhaul::event::Uid;
use outhaul::{EntryAnswer, EntryInfo, EntryQuery, EntryState};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::{Admin, bad_query, bad_request, refused, target_name, without_query};
use crate::run::admission::json;
use crate::run::problem::Problem;

/// Entries of a page that is not asked to be shorter.
const LIMIT_DEFAULT: usize = 100;
const LIMIT_MAX: usize = 1_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct List {
    pid: Option<String>,
    state: Option<String>,
    limit: Option<usize>,
    cursor: Option<String>,
}

#[derive(Serialize)]
struct Listed {
    entries: Vec<Shown>,
    /// The `cursor` of the next page; null on the last one.
    next: Option<String>,
}

#[derive(Serialize)]
struct Shown {
    uid: Uid,
    dedup_id: String,
    pid: Option<String>,
    state: EntryState,
    attempts: u32,
    next_attempt_at: Option<String>,
    last_error: Option<String>,
    suspect: bool,
}

impl From<EntryInfo> for Shown {
    fn from(entry: EntryInfo) -> Self {
        Self {
            uid: entry.uid,
            dedup_id: entry.dedup_id.to_string(),
            pid: entry.pid,
            state: entry.state,
            attempts: entry.attempts,
            next_attempt_at: entry.next_attempt_at.and_then(rfc3339),
            last_error: entry.last_error,
            suspect: entry.suspect,
        }
    }
}

fn rfc3339(time: SystemTime) -> Option<String> {
    OffsetDateTime::from(time).format(&Rfc3339).ok()
}

pub(super) async fn list(
    State(admin): State<Arc<Admin>>,
    Path(name): Path<String>,
    list: Result<Query<List>, QueryRejection>,
) -> Result<Response, Problem> {
    let name = target_name(&name)?;
    let takes = "`pid`, `state`, `limit` and `cursor`, each once";
    let Query(list) = list.map_err(|error| bad_query(&error, takes))?;
    let limit = list.limit.unwrap_or(LIMIT_DEFAULT);
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(bad_request(format!("`limit`: it is {limit}; write a number from 1 to {LIMIT_MAX}")));
    }
    let state = list.state.map(|state| state.parse()).transpose();
    let after = list.cursor.map(|cursor| cursor.parse()).transpose();
    let query = EntryQuery {
        pid: list.pid,
        state: state.map_err(|why| bad_request(format!("`state`: {why}")))?,
        limit,
        after: after.map_err(|why| bad_request(format!("`cursor`: {why}")))?,
    };
    let page = admin.outhaul.entries(&name, &query).await.map_err(|e| refused(&e))?;
    let next = page.next.map(|next| next.to_string());
    let entries = page.entries.into_iter().map(Shown::from).collect();
    Ok(json(StatusCode::OK, &Listed { entries, next }))
}

pub(super) async fn verb(
    State(admin): State<Arc<Admin>>,
    Path((uid, verb)): Path<(String, String)>,
    uri: Uri,
) -> Result<Response, Problem> {
    without_query(&uri)?;
    let outhaul = &admin.outhaul;
    let uid: Uid = uid.parse().map_err(|error: outhaul::event::InvalidUid| {
        Problem::new(StatusCode::NOT_FOUND, "not_found", error.to_string())
    })?;
    let answer = match verb.as_str() {
        "retry" => outhaul.retry(&uid).await,
        "discard" => outhaul.discard(&uid).await,
        "requeue" => outhaul.requeue(&uid).await,
        _ => {
            let detail = format!("there is no verb {verb:?}: write one of retry, discard, requeue");
            return Err(Problem::new(StatusCode::NOT_FOUND, "not_found", detail));
        }
    };
    let answer = answer.map_err(|e| refused(&e))?;
    let status = match answer {
        EntryAnswer::Pending => StatusCode::ACCEPTED,
        _ => StatusCode::OK,
    };
    Ok(json(status, &answer))
}
