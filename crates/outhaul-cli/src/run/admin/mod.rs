//! The admin API: looking after targets and entries while the relay runs. It has a listener and a token of its own.

mod bind;
mod entries;
mod targets;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::{StatusCode, Uri};
use outhaul::event::TargetName;
use outhaul::{ChangeError, Outhaul};

use super::problem::Problem;
use super::token::Token;

pub(crate) use bind::{Listening, address, bind};

/// When it makes sense to ask again while the relay stops, or its store has failed.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// What all requests share.
pub(crate) struct Admin {
    outhaul: Outhaul,
    token: Token,
}

impl Admin {
    pub(crate) fn new(outhaul: Outhaul, token: Token) -> Self {
        Self { outhaul, token }
    }
}

pub(crate) fn router(admin: Arc<Admin>) -> Router {
    Router::new()
        .route("/api/v1/targets", get(targets::all))
        .route("/api/v1/targets/{name}", get(targets::one).put(targets::put).delete(targets::delete))
        .route("/api/v1/targets/{name}/entries", get(entries::list))
        .route("/api/v1/targets/{name}/{verb}", post(targets::verb))
        .route("/api/v1/entries/{uid}/{verb}", post(entries::verb))
        .fallback(nowhere)
        .method_not_allowed_fallback(other_method)
        // Whoever has no token learns nothing, not even which paths there are.
        .layer(from_fn_with_state(Arc::clone(&admin), let_in))
        .with_state(admin)
}

async fn let_in(State(admin): State<Arc<Admin>>, request: Request, next: Next) -> Response {
    if admin.token.admits(request.headers()) {
        return match decodes(request.uri().path()) {
            true => next.run(request).await,
            false => bad_request(
                "what stands in the path after a % is no UTF-8; encode names as UTF-8, or not at all",
            )
            .into_response(),
        };
    }
    let detail = "the admin API wants the header `authorization: Bearer TOKEN`; the token is in the file \
                  `admin.token` of the data directory";
    Problem::new(StatusCode::UNAUTHORIZED, "unauthorised", detail).into_response()
}

async fn nowhere(request: Request) -> Problem {
    let detail = format!(
        "there is nothing at {}. There are /api/v1/targets, /api/v1/targets/NAME, \
         /api/v1/targets/NAME/entries, /api/v1/targets/NAME/VERB and /api/v1/entries/UID/VERB",
        request.uri().path()
    );
    Problem::new(StatusCode::NOT_FOUND, "not_found", detail)
}

async fn other_method(request: Request) -> Problem {
    let (method, path) = (request.method(), request.uri().path());
    let detail = format!("{method} is not a method of {path}; it takes {}", methods_of(path));
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail)
}

fn methods_of(path: &str) -> &'static str {
    let parts: Vec<_> = path.trim_start_matches("/api/v1/").split('/').collect();
    match parts[..] {
        ["targets"] | ["targets", _, "entries"] => "GET",
        ["targets", _] => "GET, PUT and DELETE",
        _ => "POST",
    }
}

/// Whether what is percent-encoded is UTF-8.
fn decodes(path: &str) -> bool {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let hex = (first == b'%').then(|| tail.get(..2)).flatten();
        let decoded = hex.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        bytes.push(decoded.unwrap_or(first));
        rest = if decoded.is_some() { &tail[2..] } else { tail };
    }
    std::str::from_utf8(&bytes).is_ok()
}

/// What is wrong with a query, and what it takes.
fn bad_query(error: &QueryRejection, takes: &str) -> Problem {
    let why = error.body_text();
    let why = why.strip_prefix("Failed to deserialize query string: ").unwrap_or(&why);
    bad_request(format!("the query is not valid: {why}. It takes {takes}"))
}

/// A request that takes no query has none.
fn without_query(uri: &Uri) -> Result<(), Problem> {
    match uri.query().filter(|query| !query.is_empty()) {
        None => Ok(()),
        Some(_) => Err(bad_request(format!("{} takes no query; leave out what follows the `?`", uri.path()))),
    }
}

fn target_name(name: &str) -> Result<TargetName, Problem> {
    TargetName::new(name).map_err(|error| Problem::new(StatusCode::NOT_FOUND, "not_found", error.to_string()))
}

fn bad_request(detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "bad_request", detail)
}

/// What was asked for was not done.
fn refused(error: &ChangeError) -> Problem {
    let status = match error.reason() {
        "not_found" => StatusCode::NOT_FOUND,
        "name_twice" | "configuration_invalid" => StatusCode::BAD_REQUEST,
        "unknown_outcome" => StatusCode::INTERNAL_SERVER_ERROR,
        "store_failed" | "stopping" => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::CONFLICT,
    };
    let detail = match error {
        ChangeError::UnknownTarget(_) => format!("{error}; GET /api/v1/targets lists them"),
        ChangeError::Orphan { name, waiting } => format!(
            "{name} is an orphan: its waiting entries ({waiting}) have no target. PUT /api/v1/targets/{name} attaches \
             them to one, DELETE /api/v1/targets/{name}?queue=discard discards them"
        ),
        _ => error.to_string(),
    };
    let problem = Problem::new(status, error.reason(), detail);
    match status {
        StatusCode::SERVICE_UNAVAILABLE => problem.retry_after(RETRY_AFTER),
        _ => problem,
    }
}
