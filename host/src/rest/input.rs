//! What requests bring, read so that whatever is wrong with it is a problem document too.

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::problem::Problem;
use crate::model::error::FieldError;

/// A JSON body; an empty one is `{}`.
pub(super) struct Body<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Default> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let bytes = axum::body::Bytes::from_request(request, state)
            .await
            .map_err(|e| Problem::new(e.status(), "body", e.body_text()))?;
        if bytes.is_empty() {
            return Ok(Self(T::default()));
        }
        // An array would be read as fields in the order in which they happen to be declared.
        if bytes.trim_ascii_start().first() == Some(&b'[') {
            let message = "a JSON object is needed".to_owned();
            return Err(Problem::invalid(vec![FieldError { pointer: String::new(), message }]));
        }
        serde_json::from_slice(&bytes).map(Self).map_err(|e| Problem::invalid(explain::<T>(&bytes, &e)))
    }
}

/// Which fields are wrong. Each is tried alone: all of them are optional.
fn explain<T: DeserializeOwned>(bytes: &[u8], error: &serde_json::Error) -> Vec<FieldError> {
    let fields: Map<String, Value> = serde_json::from_slice(bytes).unwrap_or_default();
    let wrong: Vec<FieldError> = fields
        .into_iter()
        .filter_map(|(name, value)| {
            let pointer = format!("/{}", name.replace('~', "~0").replace('/', "~1"));
            let alone = serde_json::from_value::<T>(Value::Object(Map::from_iter([(name, value)])));
            alone.err().map(|e| FieldError { pointer, message: e.to_string() })
        })
        .collect();
    if wrong.is_empty() { vec![FieldError { pointer: String::new(), message: error.to_string() }] } else { wrong }
}

/// Query parameters.
pub(super) struct Params<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let outcome: Result<Query<T>, QueryRejection> = Query::from_request_parts(parts, state).await;
        outcome
            .map(|Query(params)| Self(params))
            .map_err(|e| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", e.body_text()))
    }
}

/// Parts of the path.
pub(super) struct Segments<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Segments<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let outcome: Result<Path<T>, PathRejection> = Path::from_request_parts(parts, state).await;
        outcome
            .map(|Path(segments)| Self(segments))
            .map_err(|e| Problem::new(StatusCode::BAD_REQUEST, "path", e.body_text()))
    }
}
