//! The commands' own door: whole objects over a socket in the data folder, which only the operator's user can open.

mod backup;
mod checks;
mod leases;
mod logs;

use std::sync::{Arc, OnceLock};

use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};

pub use self::checks::Checked;
pub use self::leases::ShownLease;
pub use self::logs::{LogLine, LogLines, LogPart};
use super::problem::Problem;
use crate::control::provider::Providers;
use crate::lease::allocator::Allocator;
use crate::model::clock::Clock;
use crate::model::naming::{ObjectRef, ProxyKey};
use crate::store::local::database::Database;
use crate::store::{Store, StoreError};

/// As much as one command applies or deletes at once.
const APPLIED_BYTES: usize = 64 << 20;

/// Changes what is logged, or says why not.
pub type SetLog = Arc<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// What is logged.
#[derive(Clone)]
pub struct Logging {
    /// Changes it.
    pub set: SetLog,
    /// The last of it.
    pub lines: Arc<LogLines>,
}

/// What only an operator has that leads.
pub struct Leading {
    /// Lends.
    pub allocator: Arc<Allocator>,
    /// Calls the plugins.
    pub providers: Arc<Providers>,
}

/// What needs the one that leads.
fn not_leading() -> Problem {
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "no_leader",
        "this operator does not lead yet: ask the one that does, or come again in a moment",
    )
}

/// Routes over objects and leases, and to what is logged.
pub fn routes(
    store: Arc<dyn Store>,
    logging: Logging,
    leading: Arc<OnceLock<Leading>>,
    clock: Arc<dyn Clock>,
    database: Database,
) -> Router {
    let Logging { set: set_log, lines } = logging;
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
        .route("/proxies/{namespace}/{name}", get(proxy))
        .route("/providers/{name}", get(provider))
        .route("/apply", post(apply).layer(DefaultBodyLimit::max(APPLIED_BYTES)))
        .route("/delete", post(delete_all).layer(DefaultBodyLimit::max(APPLIED_BYTES)))
        .route("/events", get(events))
        .with_state(store.clone())
        .merge(backup::routes(database))
        .merge(logs::routes(lines))
        .merge(leases::routes(leading.clone(), clock))
        .merge(checks::routes(store, leading))
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

async fn proxy(
    State(store): State<Arc<dyn Store>>,
    Path((namespace, name)): Path<(String, String)>,
) -> Result<Response, Problem> {
    let key = ProxyKey { namespace, name };
    let found = store.proxy(&key).ok_or_else(|| failed(StoreError::NotFound(format!("proxy {key}"))))?;
    Ok(Json(found).into_response())
}

async fn provider(State(store): State<Arc<dyn Store>>, Path(name): Path<String>) -> Result<Response, Problem> {
    let found = store.provider(&name).ok_or_else(|| failed(StoreError::NotFound(format!("provider {name}"))))?;
    Ok(Json(found).into_response())
}

/// What became of one object of a command.
#[derive(Debug, Deserialize, Serialize)]
pub struct Outcome<T> {
    /// Which.
    pub object: ObjectRef,
    /// What.
    pub outcome: T,
}

/// What became of a request to delete.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Deletion {
    /// It is under way; the text is what else there is to know.
    Accepted(Option<String>),
    /// There is no such object.
    NotFound,
    /// Why not.
    Failed(String),
}

async fn apply(State(store): State<Arc<dyn Store>>, text: String) -> Result<Response, Problem> {
    let applied = to_the_end(async move { store.apply(&text).await }).await.map_err(failed)?;
    let outcomes: Vec<_> = applied.into_iter().map(|(object, outcome)| Outcome { object, outcome }).collect();
    Ok(Json(outcomes).into_response())
}

async fn delete_all(
    State(store): State<Arc<dyn Store>>,
    Json(objects): Json<Vec<ObjectRef>>,
) -> Result<Response, Problem> {
    let asked = objects.clone();
    let outcomes = to_the_end(async move { Ok(store.delete(&asked).await) }).await.map_err(failed)?;
    let deletion = |outcome| match outcome {
        Ok(note) => Deletion::Accepted(note),
        Err(StoreError::NotFound(_)) => Deletion::NotFound,
        Err(error) => Deletion::Failed(error.to_string()),
    };
    let outcomes: Vec<_> = objects
        .into_iter()
        .zip(outcomes)
        .map(|(object, outcome)| Outcome { object, outcome: deletion(outcome) })
        .collect();
    Ok(Json(outcomes).into_response())
}

/// A command that goes away must not end a write between disk and memory: what was read would differ from what is kept.
async fn to_the_end<T: Send + 'static>(
    write: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> Result<T, StoreError> {
    tokio::spawn(write).await.unwrap_or_else(|e| Err(StoreError::Unavailable(e.to_string())))
}

fn failed(error: StoreError) -> Problem {
    match error {
        StoreError::NotFound(_) => Problem::new(StatusCode::NOT_FOUND, "not_found", error.to_string()),
        StoreError::Invalid(why) => Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", why),
        _ => Problem::new(StatusCode::SERVICE_UNAVAILABLE, "store", error.to_string()),
    }
}
