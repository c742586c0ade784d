//! The ports beside the API: health and metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;

use crate::model::metrics::METRICS;

/// `/healthz`: the event loop turns, or this would not be answered. `/readyz`: every Provider was looked at once.
pub fn health(ready: Arc<AtomicBool>) -> Router {
    let readyz = move || async move {
        if ready.load(Ordering::Acquire) {
            (StatusCode::OK, "ok\n")
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, "starting\n")
        }
    };
    Router::new().route("/healthz", get(|| async { "ok\n" })).route("/readyz", get(readyz))
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
