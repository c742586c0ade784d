//! The commands' own door: whole objects over a socket in the data folder, which only the operator's user can open.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get};
use axum::{Json, Router};

use super::problem::Problem;
use crate::model::naming::ProxyKey;
use crate::store::{Store, StoreError};
use std::sync::Arc;

/// Routes over objects.
pub fn routes(store: Arc<dyn Store>) -> Router {
    Router::new()
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
    match outcome {
        Ok(()) => Ok(StatusCode::ACCEPTED),
        Err(error @ StoreError::NotFound(_)) => {
            Err(Problem::new(StatusCode::NOT_FOUND, "not_found", error.to_string()))
        }
        Err(error) => Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "store", error.to_string())),
    }
}
