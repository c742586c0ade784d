//! The commands' own door: whole objects over a socket in the data folder, which only the operator's user can open.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, put};
use axum::{Json, Router};

use super::problem::Problem;
use crate::model::naming::ProxyKey;
use crate::store::{Store, StoreError};
use std::sync::Arc;

/// Changes what is logged, or says why not.
pub type SetLog = Arc<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// Routes over objects, and to what is logged.
pub fn routes(store: Arc<dyn Store>, set_log: SetLog) -> Router {
    let log = put(move |filter: String| async move {
        set_log(filter.trim()).map_err(|why| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", why))?;
        tracing::info!(filter = filter.trim(), "what is logged was changed");
        Ok::<_, Problem>(StatusCode::NO_CONTENT)
    });
    Router::new()
        .route("/log", log)
        .route("/abandoned", get(abandoned))
        .route("/abandoned/{key}", delete(forget))
        .route("/proxies", get(proxies))
        .route("/providers", get(providers))
        .route("/proxies/{namespace}/{name}", delete(delete_proxy))
        .route("/providers/{name}", delete(delete_provider))
        .route("/events", get(events))
        .with_state(store)
}

async fn events(State(store): State<Arc<dyn Store>>) -> Response {
    Json(store.events()).into_response()
}

async fn proxies(State(store): State<Arc<dyn Store>>) -> Response {
    Json(store.proxies()).into_response()
}

async fn providers(State(store): State<Arc<dyn Store>>) -> Response {
    Json(store.providers()).into_response()
}

async fn abandoned(State(store): State<Arc<dyn Store>>) -> Result<Response, Problem> {
    let all = store.abandoned().await.map_err(failed)?;
    Ok(Json(all).into_response())
}

async fn forget(State(store): State<Arc<dyn Store>>, Path(key): Path<String>) -> Result<StatusCode, Problem> {
    match store.forget_abandoned(&key).await.map_err(failed)? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(failed(StoreError::NotFound(format!("abandoned instance {key}")))),
    }
}

async fn delete_proxy(
    State(store): State<Arc<dyn Store>>,
    Path((namespace, name)): Path<(String, String)>,
) -> Result<StatusCode, Problem> {
    accepted(to_the_end(async move { store.delete_proxy(&ProxyKey { namespace, name }).await }).await)
}

async fn delete_provider(State(store): State<Arc<dyn Store>>, Path(name): Path<String>) -> Result<StatusCode, Problem> {
    accepted(to_the_end(async move { store.delete_provider(&name).await }).await)
}

/// A command that goes away must not end a write between disk and memory: what was read would differ from what is kept.
async fn to_the_end(write: impl Future<Output = Result<(), StoreError>> + Send + 'static) -> Result<(), StoreError> {
    tokio::spawn(write).await.unwrap_or_else(|e| Err(StoreError::Unavailable(e.to_string())))
}

fn accepted(outcome: Result<(), StoreError>) -> Result<StatusCode, Problem> {
    outcome.map(|()| StatusCode::ACCEPTED).map_err(failed)
}

fn failed(error: StoreError) -> Problem {
    match error {
        StoreError::NotFound(_) => Problem::new(StatusCode::NOT_FOUND, "not_found", error.to_string()),
        _ => Problem::new(StatusCode::SERVICE_UNAVAILABLE, "store", error.to_string()),
    }
}
