//! The proxy's own answers over HTTP, and how each failure is called.
//!
//! The words in `Proxy-Status` are those of RFC 9209 §2.3, so that a client can tell the proxy's failures from the target's
//! without reading prose.

use std::io;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue, PROXY_AUTHENTICATE};
use hyper::{Response, StatusCode};

use super::egress::EgressError;
use super::wrong_page;

/// What is sent to a client: an answer of ours or what streams in from a target.
pub(super) type Body = BoxBody<Bytes, hyper::Error>;

const PROXY_STATUS: HeaderName = HeaderName::from_static("proxy-status");

/// A failure in the proxy's own voice.
#[derive(Debug)]
pub(super) struct Failure {
    status: StatusCode,
    /// The whole value of `Proxy-Status`.
    proxy_status: &'static str,
    reason: String,
}

impl Failure {
    /// The request makes no sense to a proxy.
    pub(super) fn bad_request(reason: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "proxy-operator; error=http_request_error", reason)
    }

    /// The target took the connection and let the request wait.
    pub(super) fn no_answer() -> Self {
        let reason = "the target did not answer in time";
        Self::new(StatusCode::GATEWAY_TIMEOUT, "proxy-operator; error=http_response_timeout", reason)
    }

    /// The target broke off, or spoke something else than HTTP/1.
    pub(super) fn bad_answer(error: Option<&hyper::Error>) -> Self {
        if error.is_some_and(hyper::Error::is_parse) {
            let reason = "the target's answer was not HTTP";
            return Self::new(StatusCode::BAD_GATEWAY, "proxy-operator; error=http_protocol_error", reason);
        }
        let reason = "the target broke off before it answered";
        Self::new(StatusCode::BAD_GATEWAY, "proxy-operator; error=connection_terminated", reason)
    }

    fn new(status: StatusCode, proxy_status: &'static str, reason: &str) -> Self {
        Self { status, proxy_status, reason: reason.to_owned() }
    }
}

impl From<EgressError> for Failure {
    fn from(error: EgressError) -> Self {
        let (status, proxy_status) = match &error {
            EgressError::PortRefused(_) => (StatusCode::FORBIDDEN, "proxy-operator; error=http_request_denied"),
            EgressError::AddressRefused => (StatusCode::FORBIDDEN, "proxy-operator; error=destination_ip_prohibited"),
            EgressError::Unresolved => (StatusCode::BAD_GATEWAY, "proxy-operator; error=dns_error"),
            EgressError::TimedOut => (StatusCode::GATEWAY_TIMEOUT, "proxy-operator; error=connection_timeout"),
            EgressError::Unreachable(cause) if cause.kind() == io::ErrorKind::ConnectionRefused => {
                (StatusCode::BAD_GATEWAY, "proxy-operator; error=connection_refused")
            }
            EgressError::Unreachable(_) => (StatusCode::BAD_GATEWAY, "proxy-operator; error=destination_unavailable"),
        };
        Self::new(status, proxy_status, &error.to_string())
    }
}

impl From<Failure> for Response<Body> {
    fn from(failure: Failure) -> Self {
        let mut answer = text(failure.status, format!("{}\n", failure.reason));
        answer.headers_mut().insert(PROXY_STATUS, HeaderValue::from_static(failure.proxy_status));
        answer
    }
}

/// The answer to whoever did not say who they are.
pub(super) fn login_wanted() -> Response<Body> {
    let status = StatusCode::PROXY_AUTHENTICATION_REQUIRED;
    let mut answer = text(status, "this proxy wants a user and a password\n".to_owned());
    let challenge = HeaderValue::from_static("Basic realm=\"proxy\", charset=\"UTF-8\"");
    answer.headers_mut().insert(PROXY_AUTHENTICATE, challenge);
    answer
}

/// The answer to a CONNECT that was carried out: the tunnel begins behind it.
pub(super) fn tunnel_open() -> Response<Body> {
    Response::new(body(Bytes::new()))
}

/// The page of [`Behaviour::WrongPage`](super::Behaviour::WrongPage).
pub(super) fn wrong_page() -> Response<Body> {
    let mut answer = text(StatusCode::OK, wrong_page::PAGE.to_owned());
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(wrong_page::MEDIA_TYPE));
    answer
}

fn text(status: StatusCode, text: String) -> Response<Body> {
    let mut answer = Response::new(body(Bytes::from(text)));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}

fn body(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed()
}
