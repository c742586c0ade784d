//! A scripted API on loopback.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::State as Shared;
use axum::http::{HeaderMap, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use super::HttpBackend;
use super::state::{Asked, State};

/// No request of a plugin is larger.
const BODY_BYTES: usize = 4 << 20;

/// A running API; it ends when this is dropped.
pub(in crate::conformance) struct Server {
    /// Where it listens.
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
    _serving: AbortOnDropHandle<()>,
}

impl Server {
    /// Starts one on a free port.
    ///
    /// # Errors
    /// When there is no port.
    pub async fn start(script: HttpBackend) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let state = Arc::new(Mutex::new(State::new(script)));
        let app = Router::new().fallback(serve).with_state(state.clone());
        let serving = tokio::spawn(async move {
            // Ends with its task alone.
            let _ = axum::serve(listener, app).await;
        });
        Ok(Self { address, state, _serving: AbortOnDropHandle::new(serving) })
    }

    /// As at the start.
    pub fn reset(&self) {
        lock(&self.state).reset();
    }

    /// Nothing comes or goes any more, or it does again.
    pub fn freeze(&self, frozen: bool) {
        lock(&self.state).freeze(frozen);
    }

    /// How many things there are.
    pub fn count(&self) -> usize {
        lock(&self.state).count()
    }

    /// Rewrites texts in all that there is.
    pub fn rewrite(&self, pairs: &[(String, String)]) {
        lock(&self.state).rewrite(pairs);
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(Shared(state): Shared<Arc<Mutex<State>>>, request: Request<Body>) -> Response {
    let (head, body) = request.into_parts();
    if !allowed(&lock(&state), &head.headers) {
        return reply(401, json!({"error": "unauthorized"}));
    }
    let Ok(body) = to_bytes(body, BODY_BYTES).await else { return reply(413, json!({"error": "too_large"})) };
    let body = match body.is_empty() {
        true => Value::Null,
        false => match serde_json::from_slice(&body) {
            Ok(body) => body,
            Err(_) => return reply(400, json!({"error": "no JSON"})),
        },
    };
    let asked = Asked {
        method: head.method.as_str().to_owned(),
        path: percent_encoding::percent_decode_str(head.uri.path()).decode_utf8_lossy().into_owned(),
        query: url::form_urlencoded::parse(head.uri.query().unwrap_or_default().as_bytes()).into_owned().collect(),
        body,
    };
    let (status, headers, body) = lock(&state).answer(&asked);
    let mut response = reply(status, body);
    for (name, value) in headers {
        if let (Ok(name), Ok(value)) = (header::HeaderName::try_from(name), header::HeaderValue::try_from(value)) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

fn allowed(state: &State, headers: &HeaderMap) -> bool {
    state.auth().is_none_or(|auth| headers.get(&auth.header).is_some_and(|value| value == auth.value.as_str()))
}

fn reply(status: u16, body: Value) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}
