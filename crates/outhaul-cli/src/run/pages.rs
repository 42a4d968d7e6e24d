//! What is asked of the relay: is it alive, is it ready, how do its targets do.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode};
use outhaul::TargetStatus;
use outhaul::writer::WriterStats;
use serde::Serialize;

use super::admission::json;
use super::problem::Problem;
use super::router::{App, unauthorised};

#[derive(Serialize)]
struct Word {
    status: &'static str,
    /// What a person should know nevertheless.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

#[derive(Serialize)]
struct Targets {
    targets: Vec<TargetStatus>,
}

/// Whether a restart would not help.
pub(crate) async fn healthz(State(app): State<Arc<App>>) -> Response {
    broken(&app).unwrap_or_else(|| {
        // A restart frees no space.
        let reason = app.outhaul().disk_full().then_some("disk_full");
        json(StatusCode::OK, &Word { status: "live", reason })
    })
}

/// Whether events are taken.
pub(crate) async fn readyz(State(app): State<Arc<App>>) -> Response {
    if app.is_stopping() {
        return Problem::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", "the relay is stopping")
            .retry_after(Duration::from_secs(5))
            .into_response();
    }
    broken(&app)
        .or_else(|| full(&app))
        .or_else(|| hung(&app.outhaul().writer_stats()))
        .unwrap_or_else(|| json(StatusCode::OK, &Word { status: "ready", reason: None }))
}

/// Whether the last batch of events was not written in its time, and none has been since.
fn hung(writer: &WriterStats) -> Option<Response> {
    let detail = "the store does not answer: the last events that were to be written were given up";
    let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "no_progress", detail);
    (writer.hung_shards > 0).then(|| problem.retry_after(Duration::from_secs(30)).into_response())
}

fn broken(app: &App) -> Option<Response> {
    let failure = app.outhaul().failure()?;
    let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "store_failed", failure.to_string());
    Some(problem.retry_after(Duration::from_secs(30)).into_response())
}

/// Events are refused for as long as there is no room on the disk.
fn full(app: &App) -> Option<Response> {
    app.outhaul().disk_full().then(|| {
        let detail = "the disk that holds the data directory is full: events are refused until there is room";
        let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "disk_full", detail);
        problem.retry_after(Duration::from_secs(10)).into_response()
    })
}

pub(crate) async fn targets(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    if !app.lets_in(&headers) {
        return unauthorised().into_response();
    }
    json(StatusCode::OK, &Targets { targets: app.outhaul().targets() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_hangs_is_not_ready() {
        let mut stats = WriterStats::default();
        assert!(hung(&stats).is_none());
        stats.hung_shards = 1;
        let response = hung(&stats).unwrap();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(response.headers().contains_key("retry-after"));
    }
}
