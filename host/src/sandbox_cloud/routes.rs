//! The API's paths: who may ask, which faults come in between, and what is answered.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request, State};
use axum::http::StatusCode;
use axum::http::header::AUTHORIZATION;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::json;

use super::cloud::{Cloud, Key};
use super::error::{ApiError, HangUp};
use super::faults::{Fault, Faults, Kind, Subject};
use super::request::{CreateBody, Order, read_json};
use crate::forward_proxy::same_secret;

const MAX_PAGE: usize = 100;

type ZoneAndName = Result<Path<Key>, PathRejection>;

/// All routes, behind the token.
pub(super) fn router(cloud: Arc<Cloud>) -> Router {
    let instance = get(read).put(create).delete(delete);
    Router::new()
        .route("/v1/cloud", get(describe))
        .route("/v1/instances", get(list))
        .route("/v1/zones/{zone}/instances/{name}", instance)
        .route("/v1/zones/{zone}/instances/{name}/start", post(start))
        .route("/v1/zones/{zone}/instances/{name}/stop", post(stop))
        .route("/v1/faults", put(set_faults).get(list_faults))
        .fallback(async || ApiError::NotFound)
        .method_not_allowed_fallback(async || ApiError::MethodNotAllowed)
        .layer(from_fn_with_state(Arc::clone(&cloud), authorized))
        .with_state(cloud)
}

async fn authorized(State(cloud): State<Arc<Cloud>>, request: Request, next: Next) -> Response {
    let given = request.headers().get(AUTHORIZATION).map(|value| value.as_bytes());
    let token = given.and_then(|value| match value.split_at_checked("Bearer ".len()) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case(b"Bearer ") => Some(token),
        _ => None,
    });
    match token {
        Some(token) if same_secret(token, cloud.token().as_bytes()) => next.run(request).await,
        _ => ApiError::Unauthorized.into_response(),
    }
}

/// What a request does, as far as faults ask.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sort {
    /// A create or a delete, whose answer can be lost.
    Losable,
    Other,
}

/// Answers a request about `subject` with what `work` comes to, or as the faults want it.
///
/// A slow answer is late, not late in coming about: the work is done first, so a client that gives up has changed something
/// without knowing. That is what real clouds do to their clients.
async fn answer(
    cloud: &Cloud,
    subject: Subject<'_>,
    sort: Sort,
    work: impl Future<Output = Result<Response, ApiError>>,
) -> Response {
    let (refusal, delay) = {
        let mut faults = cloud.faults();
        (faults.refusal(subject), faults.strike(Kind::SlowAnswer, subject))
    };
    let lost = sort == Sort::Losable && refusal.is_none() && cloud.faults().strike(Kind::LostAnswer, subject).is_some();
    let result = match refusal {
        Some(refusal) => Err(refusal),
        None => work.await,
    };
    if let Some(fault) = delay {
        tokio::time::sleep(fault.delay()).await;
    }
    let mut answer = result.into_response();
    if lost {
        answer.extensions_mut().insert(HangUp);
    }
    answer
}

/// [`answer`] for a request about an instance that may be there.
async fn answer_about(
    cloud: &Cloud,
    key: &Key,
    sort: Sort,
    work: impl Future<Output = Result<Response, ApiError>>,
) -> Response {
    let owner = cloud.owner_name(key);
    let subject = Subject { zone: Some(&key.0), name: Some(&key.1), owner: owner.as_deref() };
    answer(cloud, subject, sort, work).await
}

fn key_of(path: ZoneAndName) -> Result<Key, ApiError> {
    let Path(key) = path.map_err(|error| ApiError::Invalid(error.body_text()))?;
    Ok(key)
}

async fn describe(State(cloud): State<Arc<Cloud>>) -> Response {
    let work = async {
        let zones = cloud.zones();
        Ok(Json(json!({ "cloudId": cloud.id(), "zones": zones })).into_response())
    };
    answer(&cloud, Subject::default(), Sort::Other, work).await
}

async fn create(State(cloud): State<Arc<Cloud>>, path: ZoneAndName, body: Body) -> Result<Response, ApiError> {
    let key = key_of(path)?;
    let order = Order::new(&key.1, read_json::<CreateBody>(body).await?)?;
    let owner = order.owner.name.clone();
    let subject = Subject { zone: Some(&key.0), name: Some(&key.1), owner: Some(&owner) };
    let work = async {
        let (instance, made) = cloud.create(key.clone(), order)?;
        let status = if made { StatusCode::CREATED } else { StatusCode::OK };
        Ok((status, Json(instance)).into_response())
    };
    Ok(answer(&cloud, subject, Sort::Losable, work).await)
}

async fn read(State(cloud): State<Arc<Cloud>>, path: ZoneAndName) -> Result<Response, ApiError> {
    let key = key_of(path)?;
    let work = async { Ok(Json(cloud.get(&key)?).into_response()) };
    Ok(answer_about(&cloud, &key, Sort::Other, work).await)
}

async fn start(State(cloud): State<Arc<Cloud>>, path: ZoneAndName) -> Result<Response, ApiError> {
    let key = key_of(path)?;
    let work = async { Ok(Json(cloud.start(&key)?).into_response()) };
    Ok(answer_about(&cloud, &key, Sort::Other, work).await)
}

async fn stop(State(cloud): State<Arc<Cloud>>, path: ZoneAndName) -> Result<Response, ApiError> {
    let key = key_of(path)?;
    let work = async { Ok(Json(cloud.stop(&key).await?).into_response()) };
    Ok(answer_about(&cloud, &key, Sort::Other, work).await)
}

async fn delete(State(cloud): State<Arc<Cloud>>, path: ZoneAndName) -> Result<Response, ApiError> {
    let key = key_of(path)?;
    let work = async {
        let instance = cloud.delete(&key)?;
        Ok((StatusCode::ACCEPTED, Json(instance)).into_response())
    };
    Ok(answer_about(&cloud, &key, Sort::Losable, work).await)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    installation: Option<String>,
    limit: Option<usize>,
    cursor: Option<String>,
}

async fn list(
    State(cloud): State<Arc<Cloud>>,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(query) = query.map_err(|error| ApiError::Invalid(error.body_text()))?;
    let limit = match query.limit {
        Some(0) => return Err(ApiError::Invalid("limit must be at least 1".to_owned())),
        limit => limit.unwrap_or(MAX_PAGE).min(MAX_PAGE),
    };
    let after = query.cursor.as_deref().map(read_cursor).transpose()?;
    let work = async {
        let (page, more) = cloud.list(query.installation.as_deref(), limit, after);
        let next = page.last().filter(|_| more).map(|last| write_cursor(&last.zone, &last.name));
        Ok(Json(json!({ "instances": page, "next": next })).into_response())
    };
    Ok(answer(&cloud, Subject::default(), Sort::Other, work).await)
}

/// A cursor is the last instance of the page before. Its form is nobody's business, hence the encoding. A name has no slash
/// in it, so the last one parts the two.
fn write_cursor(zone: &str, name: &str) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(format!("{zone}/{name}"))
}

fn read_cursor(cursor: &str) -> Result<Key, ApiError> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(cursor).ok();
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    let key = text.as_deref().and_then(|text| text.rsplit_once('/'));
    let (zone, name) = key.ok_or_else(|| ApiError::Invalid("cursor is none that this cloud gave out".to_owned()))?;
    Ok((zone.to_owned(), name.to_owned()))
}

async fn set_faults(State(cloud): State<Arc<Cloud>>, body: Body) -> Result<StatusCode, ApiError> {
    let faults = Faults::new(read_json::<Vec<Fault>>(body).await?)?;
    cloud.set_faults(faults).await;
    Ok(StatusCode::NO_CONTENT)
}

async fn list_faults(State(cloud): State<Arc<Cloud>>) -> Response {
    Json(cloud.faults().list()).into_response()
}
