//! Paths and methods, and what all requests share.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::{HeaderMap, StatusCode};
use outhaul::{AdmitError, Outhaul};

use super::admission::admit;
use super::body::{self, Budget, Leftovers};
use super::forms::Form;
use super::pages;
use super::problem::Problem;
use super::token::Token;
use crate::value::Reader;

/// A body longer than this is parsed where it holds up nobody else.
const PARSED_AT_ONCE_BYTES_MAX: usize = 64 * 1024;

/// What all requests share.
pub(crate) struct App {
    outhaul: Outhaul,
    token: Option<Token>,
    reader: Reader,
    address: SocketAddr,
    budget: Budget,
    leftovers: Leftovers,
    stopping: AtomicBool,
}

impl App {
    pub(crate) fn new(outhaul: Outhaul, token: Option<Token>, reader: Reader, address: SocketAddr) -> Self {
        Self {
            outhaul,
            token,
            reader,
            address,
            budget: Budget::new(),
            leftovers: Leftovers::default(),
            stopping: AtomicBool::new(false),
        }
    }

    pub(crate) fn outhaul(&self) -> &Outhaul {
        &self.outhaul
    }

    /// Takes no more events.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(crate) fn lets_in(&self, headers: &HeaderMap) -> bool {
        self.token.as_ref().is_none_or(|token| token.admits(headers))
    }
}

pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/events", post(events))
        .route("/healthz", get(pages::healthz))
        .route("/readyz", get(pages::readyz))
        .route("/targets", get(pages::targets))
        .fallback(nowhere)
        .method_not_allowed_fallback(other_method)
        .with_state(app)
}

async fn events(State(app): State<Arc<App>>, request: Request) -> Response {
    match take(&app, request).await {
        Ok(response) => response,
        Err(problem) => problem.into_response(),
    }
}

async fn take(app: &App, request: Request) -> Result<Response, Problem> {
    let (head, body) = request.into_parts();
    if !app.lets_in(&head.headers) {
        return Err(unauthorised());
    }
    if app.is_stopping() {
        return Err(Problem::refused(&AdmitError::Stopping));
    }
    let form = Form::of(&head.headers).ok_or_else(|| unsupported(app.address))?;
    let held = body::read(&head.headers, body, &app.budget, &app.leftovers).await?;
    let read = || form.read(&head.headers, &held.bytes, &app.reader);
    // Nothing is waited for between the end of the body and the admission, so a client that goes takes nothing back.
    let events = match held.bytes.len() > PARSED_AT_ONCE_BYTES_MAX {
        true => tokio::task::block_in_place(read)?,
        false => read()?,
    };
    let answer = admit(&app.outhaul, events);
    Ok(answer.await)
}

pub(crate) fn unauthorised() -> Problem {
    let detail = "this relay wants the header `authorization: Bearer TOKEN` with its own token";
    Problem::new(StatusCode::UNAUTHORIZED, "unauthorised", detail)
}

fn unsupported(address: SocketAddr) -> Problem {
    let detail = format!(
        "this content type (or encoding) is not taken. Send JSON, for example: curl -H 'content-type: application/json' \
         --data-binary @event.json http://{address}/events. Taken are application/json (one event), \
         application/cloudevents+json, application/cloudevents-batch+json, application/x-ndjson (one event a line), \
         each in UTF-8 and not compressed, and any type beside `ce-` headers with `ce-specversion`"
    );
    Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", detail)
}

async fn nowhere(request: Request) -> Problem {
    let detail = format!("there is nothing at {}: events go to POST /events", request.uri().path());
    Problem::new(StatusCode::NOT_FOUND, "not_found", detail)
}

async fn other_method(request: Request) -> Problem {
    let detail = format!("{} is not a method of {}", request.method(), request.uri().path());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail)
}
