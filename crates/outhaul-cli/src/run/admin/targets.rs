//! `/api/v1/targets`: looking at targets, and changing them.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::response::Response;
use http::{StatusCode, Uri};
use outhaul::event::TargetName;
use outhaul::{Change, ChangeError, Leftover, PutError, Removed, Repoint, TargetStatus};
use serde::{Deserialize, Serialize};
use serde_json::error::Category;

use super::{Admin, bad_query, bad_request, refused, target_name, without_query};
use crate::run::admission::json;
use crate::run::problem::Problem;

/// A URI and a word.
const BODY_BYTES_MAX: usize = 64 * 1024;
/// What a body looks like.
const BODY: &str = r#"{"to": URI, "repoint": "keep" or "orphan"}"#;
const BODY_TIME_MAX: Duration = Duration::from_secs(15);

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct Look {
    #[serde(default)]
    probe: bool,
}

#[derive(Serialize)]
struct Targets {
    targets: Vec<TargetStatus>,
}

pub(super) async fn all(
    State(admin): State<Arc<Admin>>,
    look: Result<Query<Look>, QueryRejection>,
) -> Result<Response, Problem> {
    let targets = statuses(&admin, look).await?;
    Ok(json(StatusCode::OK, &Targets { targets }))
}

pub(super) async fn one(
    State(admin): State<Arc<Admin>>,
    Path(name): Path<String>,
    look: Result<Query<Look>, QueryRejection>,
) -> Result<Response, Problem> {
    let name = target_name(&name)?;
    // Only one is shown, but a probe of all takes no longer.
    let found = statuses(&admin, look).await?.into_iter().find(|target| target.name == name);
    let found = found.ok_or_else(|| refused(&ChangeError::UnknownTarget(name)))?;
    Ok(json(StatusCode::OK, &found))
}

async fn statuses(
    admin: &Admin,
    look: Result<Query<Look>, QueryRejection>,
) -> Result<Vec<TargetStatus>, Problem> {
    let Query(look) = look.map_err(|error| bad_query(&error, "`probe=true` or nothing"))?;
    Ok(if look.probe { admin.outhaul.health().await } else { admin.outhaul.targets() })
}

#[derive(Serialize)]
struct Drained {
    waiting: u64,
}

#[derive(Serialize)]
struct Tried {
    /// Whether the target waited for a trial.
    trial: bool,
}

#[derive(Serialize)]
struct Tested {
    delivered: bool,
}

pub(super) async fn verb(
    State(admin): State<Arc<Admin>>,
    Path((name, verb)): Path<(String, String)>,
    uri: Uri,
) -> Result<Response, Problem> {
    without_query(&uri)?;
    let (name, outhaul) = (target_name(&name)?, &admin.outhaul);
    match verb.as_str() {
        "pause" => outhaul.pause(&name).await.map_err(|e| refused(&e))?,
        "resume" => outhaul.resume(&name).await.map_err(|e| refused(&e))?,
        "drain" => {
            let waiting = outhaul.drain(&name).await.map_err(|e| refused(&e))?;
            return Ok(json(StatusCode::OK, &Drained { waiting }));
        }
        "trial" => {
            let trial = outhaul.trial(&name).await.map_err(|e| refused(&e))?;
            return Ok(json(StatusCode::OK, &Tried { trial }));
        }
        "test" => {
            let tested = outhaul.test(&name).await.map_err(|e| refused(&e))?;
            tested.map_err(|error| {
                let detail = format!("target {name} did not take the test event: {}", error.detail());
                Problem::new(StatusCode::BAD_GATEWAY, error.kind().reason(), detail)
            })?;
            return Ok(json(StatusCode::OK, &Tested { delivered: true }));
        }
        _ => {
            let detail = format!("there is no verb {verb:?}: write one of pause, resume, drain, trial, test");
            return Err(Problem::new(StatusCode::NOT_FOUND, "not_found", detail));
        }
    }
    shown(&admin, &name)
}

fn shown(admin: &Admin, name: &TargetName) -> Result<Response, Problem> {
    let found = admin.outhaul.targets().into_iter().find(|target| target.name == *name);
    let found = found.ok_or_else(|| refused(&ChangeError::UnknownTarget(name.clone())))?;
    Ok(json(StatusCode::OK, &found))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Put {
    to: String,
    #[serde(default)]
    repoint: Option<RepointWord>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum RepointWord {
    Keep,
    Orphan,
}

#[derive(Serialize)]
struct Changed {
    change: Change,
    /// Which targets there are is said on the command line: a restart goes back to that.
    until: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<TargetStatus>,
}

pub(super) async fn put(
    State(admin): State<Arc<Admin>>,
    Path(name): Path<String>,
    uri: Uri,
    body: Body,
) -> Result<Response, Problem> {
    without_query(&uri)?;
    let name = target_name(&name)?;
    let read = tokio::time::timeout(BODY_TIME_MAX, to_bytes(body, BODY_BYTES_MAX));
    let body = match read.await {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => {
            let detail =
                format!("the body is longer than {BODY_BYTES_MAX} bytes, or broke off; send `{BODY}` alone");
            return Err(Problem::too_large(detail));
        }
        Err(_) => {
            let detail = format!("the body did not arrive within {BODY_TIME_MAX:?}; send it at once");
            return Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "timed_out", detail));
        }
    };
    // What is wrong is not quoted: the URI may hold credentials.
    let put: Put = serde_json::from_slice(&body).map_err(|error| {
        let what = match error.classify() {
            Category::Data => "this is not what is wanted here",
            Category::Eof if body.is_empty() => "there is no body",
            Category::Eof => "the JSON ends too early",
            Category::Syntax | Category::Io => "this is no JSON",
        };
        bad_request(format!(
            "line {}, column {}: {what}. The body is an object: {BODY}, where `repoint` may be left out",
            error.line(),
            error.column()
        ))
    })?;
    let repoint = put.repoint.map(|word| match word {
        RepointWord::Keep => Repoint::Keep,
        RepointWord::Orphan => Repoint::Orphan,
    });
    let change = admin.outhaul.put(&name, &put.to, repoint).await.map_err(|error| match &error {
        PutError::Change(error) => refused(error),
        _ => Problem::new(StatusCode::BAD_REQUEST, "configuration_invalid", error.to_string()),
    })?;
    let target = admin.outhaul.targets().into_iter().find(|target| target.name == name);
    let status = if change == Change::Added { StatusCode::CREATED } else { StatusCode::OK };
    Ok(json(status, &Changed { change, until: "restart", target }))
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct Delete {
    #[serde(default)]
    queue: LeftoverWord,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum LeftoverWord {
    Drain,
    #[default]
    Keep,
    Discard,
}

pub(super) async fn delete(
    State(admin): State<Arc<Admin>>,
    Path(name): Path<String>,
    delete: Result<Query<Delete>, QueryRejection>,
) -> Result<Response, Problem> {
    let name = target_name(&name)?;
    let takes = "`queue=drain`, `queue=keep` or `queue=discard`; without it, what waits is kept";
    let Query(delete) = delete.map_err(|error| bad_query(&error, takes))?;
    let leftover = match delete.queue {
        LeftoverWord::Drain => Leftover::Drain,
        LeftoverWord::Keep => Leftover::Keep,
        LeftoverWord::Discard => Leftover::Discard,
    };
    let removed = admin.outhaul.remove(&name, leftover).await.map_err(|e| refused(&e))?;
    let status = match removed {
        Removed::Draining { .. } => StatusCode::ACCEPTED,
        Removed::Kept { .. } | Removed::Discarded { .. } => StatusCode::OK,
    };
    Ok(json(status, &removed))
}
