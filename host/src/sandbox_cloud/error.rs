//! What goes wrong, as the API tells it.

use axum::Json;
use axum::http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::instance::State;

/// An answer that is not what was asked for. Code and text are those of `docs/sandbox-cloud.md`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ApiError {
    #[error("send the header Authorization: Bearer TOKEN with this cloud's token")]
    Unauthorized,
    #[error("there is nothing at this path")]
    NotFound,
    #[error("this path does not take this method")]
    MethodNotAllowed,
    #[error("there is no zone {0:?}")]
    NoSuchZone(String),
    #[error("there is no instance {name:?} in {zone}")]
    NoSuchInstance { zone: String, name: String },
    #[error("{name:?} is taken by proxy {owner} of another owner")]
    Foreign { name: String, owner: String },
    #[error("{0}")]
    Quota(String),
    #[error("too many requests; ask again in {0} s")]
    RateLimited(u64),
    #[error("the cloud broke down over this request")]
    Internal,
    #[error("{name:?} is {state} and cannot be {wish}")]
    WrongState { name: String, state: State, wish: &'static str },
    #[error("{0}")]
    Invalid(String),
    #[error("the body is larger than {} KiB", super::request::MAX_BODY / 1024)]
    TooLarge,
    #[error("the body did not arrive in time")]
    TooSlow,
}

impl ApiError {
    fn status_and_code(&self) -> (StatusCode, &'static str) {
        match self {
            Self::Unauthorized => (StatusCode::UNAUTHORIZED, "unauthorized"),
            Self::NotFound => (StatusCode::NOT_FOUND, "not_found"),
            Self::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed"),
            Self::NoSuchZone(_) => (StatusCode::NOT_FOUND, "no_such_zone"),
            Self::NoSuchInstance { .. } => (StatusCode::NOT_FOUND, "no_such_instance"),
            Self::Foreign { .. } => (StatusCode::CONFLICT, "foreign"),
            Self::Quota(_) => (StatusCode::FORBIDDEN, "quota"),
            Self::RateLimited(_) => (StatusCode::TOO_MANY_REQUESTS, "rate_limited"),
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
            Self::WrongState { .. } => (StatusCode::CONFLICT, "wrong_state"),
            Self::Invalid(_) => (StatusCode::UNPROCESSABLE_ENTITY, "invalid"),
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "too_large"),
            Self::TooSlow => (StatusCode::REQUEST_TIMEOUT, "too_slow"),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, code) = self.status_and_code();
        let body = Json(json!({ "error": code, "message": self.to_string() }));
        let mut answer = (status, body).into_response();
        match self {
            Self::RateLimited(seconds) => {
                answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
            }
            Self::Unauthorized => {
                answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        answer
    }
}

/// Set on an answer that must not reach the client: the connection closes instead.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the answer was lost, as a fault demands")]
pub(super) struct HangUp;
