//! The ports beside the API: health and metrics.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use tower::ServiceExt;

use super::problem::Problem;
use crate::model::metrics::METRICS;
use crate::model::pulse::Pulse;

/// A new leader is found within seconds.
const STANDBY_RETRY: Duration = Duration::from_secs(2);

/// `/healthz`: every loop turns; it names those that do not. `/readyz`: every Provider was looked at once, or this replica
/// stands by.
pub fn health(ready: Arc<AtomicBool>, pulse: &'static Pulse) -> Router {
    let healthz = move || async move {
        match pulse.silent() {
            silent if silent.is_empty() => (StatusCode::OK, "ok\n".to_owned()),
            silent => (StatusCode::SERVICE_UNAVAILABLE, format!("these loops do not turn: {}\n", silent.join(", "))),
        }
    };
    let readyz = move || async move {
        if ready.load(Ordering::Acquire) {
            (StatusCode::OK, "ok\n")
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, "starting\n")
        }
    };
    Router::new().route("/healthz", get(healthz)).route("/readyz", get(readyz))
}

/// The API once it is there; until then this replica stands by, and says so.
pub fn standby(api: Arc<OnceLock<Router>>) -> Router {
    let answer = move |request: Request| async move {
        match api.get() {
            Some(api) => api.clone().oneshot(request).await.into_response(),
            None => Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "no_leader",
                "this replica stands by: ask the one that leads, or come again",
            )
            .retry_after(STANDBY_RETRY)
            .into_response(),
        }
    };
    Router::new().fallback(answer)
}

/// `/metrics`.
pub fn metrics() -> Router {
    Router::new().route(
        "/metrics",
        get(|| async {
            ([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], METRICS.text())
                .into_response()
        }),
    )
}
