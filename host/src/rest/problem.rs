//! Errors as `application/problem+json` (RFC 9457), with stable codes and the request's id.

use axum::extract::Request;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::model::error::FieldError;

/// Header that names a request in answers and logs.
pub const REQUEST_ID: &str = "x-request-id";

/// One error.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    #[serde(serialize_with = "as_number")]
    status: StatusCode,
    title: &'static str,
    /// Stable; programs decide by it.
    code: &'static str,
    detail: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<Field>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_seconds: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Field {
    pointer: String,
    message: String,
}

fn as_number<S: serde::Serializer>(status: &StatusCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(status.as_u16())
}

impl Problem {
    /// An error of a status, with its code and a text that says what to do.
    pub fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        let title = status.canonical_reason().unwrap_or("Error");
        Self { status, title, code, detail: detail.into(), errors: vec![], retry_after_seconds: None }
    }

    /// A request whose fields are wrong.
    pub fn invalid(errors: Vec<FieldError>) -> Self {
        let detail = crate::model::error::list_fields(&errors);
        let errors = errors.into_iter().map(|e| Field { pointer: e.pointer, message: e.message }).collect();
        Self { errors, ..Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", detail) }
    }

    /// With the moment at which the answer can change.
    pub fn retry_after(mut self, wait: std::time::Duration) -> Self {
        // Whole seconds, rounded up: a client that waits so long does not come too early.
        self.retry_after_seconds = Some(wait.as_millis().div_ceil(1000).max(1) as u64);
        self
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = (self.status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.retry_after_seconds {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(axum::http::header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// The answer to a path that is no route.
pub async fn no_route() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "no_route", "no such route; docs/rest-api.md lists them")
}

/// The answer to a method that a route does not take.
pub async fn no_method() -> Problem {
    Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        "the route takes another method; docs/rest-api.md lists them",
    )
}

/// Gives each request an id, or keeps a well-formed one that it brings, and returns it.
pub async fn request_id(request: Request, next: Next) -> Response {
    let brought = request.headers().get(REQUEST_ID).filter(|id| {
        (1..=64).contains(&id.len()) && id.as_bytes().iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-')
    });
    let id = brought.cloned().unwrap_or_else(|| {
        // A UUID is a valid header value.
        HeaderValue::from_str(&uuid::Uuid::new_v4().to_string()).unwrap_or(HeaderValue::from_static("none"))
    });
    let mut response = next.run(request).await;
    response.headers_mut().insert(REQUEST_ID, id);
    response
}
