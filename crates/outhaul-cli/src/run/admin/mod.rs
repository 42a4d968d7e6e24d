//! The admin API: looking after targets and entries while the relay runs. It has a listener and a token of its own.

mod bind;
mod entries;
mod targets;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::StatusCode;
use outhaul::event::TargetName;
use outhaul::{ChangeError, Outhaul};

use super::problem::Problem;
use super::token::Token;

pub(crate) use bind::{Listening, address, bind};

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
        return next.run(request).await;
    }
    let detail = "the admin API wants the header `authorization: Bearer TOKEN`; the token is in the file \
                  `admin.token` of the data directory";
    Problem::new(StatusCode::UNAUTHORIZED, "unauthorised", detail).into_response()
}

async fn nowhere(request: Request) -> Problem {
    let detail =
        format!("there is nothing at {}: the admin API begins at /api/v1/targets", request.uri().path());
    Problem::new(StatusCode::NOT_FOUND, "not_found", detail)
}

async fn other_method(request: Request) -> Problem {
    let detail = format!("{} is not a method of {}", request.method(), request.uri().path());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail)
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
    Problem::new(status, error.reason(), error.to_string())
}
