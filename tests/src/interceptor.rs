//! A way to an HTTP server that shows a test every request, and can keep one, or its answer, for ever, or let it fail.

use std::sync::Arc;

use async_trait::async_trait;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::stream::try_unfold;
use reqwest::Client;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

/// A request.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Method.
    pub method: Method,
    /// Path without query.
    pub path: String,
    /// Its body; null where it is no JSON.
    pub body: Value,
}

impl Asked {
    /// Whether it may change something.
    pub fn changes(&self) -> bool {
        !self.method.is_safe()
    }
}

/// What becomes of a request or an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It goes on.
    Passes,
    /// It stays here for ever.
    IsHeld,
    /// It is answered with 503 (Service Unavailable) from here.
    Fails,
}

/// Who is shown what passes.
#[async_trait]
pub trait Onlooker: Send + Sync + 'static {
    /// A request came, and was not passed on yet.
    async fn asked(&self, asked: &Asked) -> Fate;

    /// A request that may change something was carried out; its answer was not passed on yet.
    async fn answered(&self, asked: &Asked, status: StatusCode, body: &Value) -> Fate;
}

/// The way; it is closed when dropped.
pub struct Interceptor {
    /// Where it begins.
    pub url: String,
    _serving: AbortOnDropHandle<()>,
}

struct Way {
    to: String,
    token: Option<HeaderValue>,
    client: Client,
    onlooker: Arc<dyn Onlooker>,
}

impl Interceptor {
    /// A way to the server at this URL, whoever signed its certificate; with a token in place of the client's credentials.
    pub async fn start(to: &str, token: Option<&str>, onlooker: Arc<dyn Onlooker>) -> Self {
        let client = Client::builder().no_proxy().tls_danger_accept_invalid_certs(true).build().unwrap();
        let token = token.map(|token| HeaderValue::from_str(&format!("Bearer {token}")).unwrap());
        let way = Arc::new(Way { to: to.to_owned(), token, client, onlooker });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let routes = Router::new().fallback(pass).with_state(way);
        let serving = tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        Self { url, _serving: AbortOnDropHandle::new(serving) }
    }
}

async fn pass(State(way): State<Arc<Way>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap_or_default();
    let asked = Asked {
        method: head.method,
        path: head.uri.path().to_owned(),
        body: serde_json::from_slice(&body).unwrap_or_default(),
    };
    match way.onlooker.asked(&asked).await {
        Fate::Fails => return StatusCode::SERVICE_UNAVAILABLE.into_response(),
        fate => hold(fate).await,
    }
    let mut headers = without_framing(head.headers);
    // What is compressed could not be shown.
    headers.remove(header::ACCEPT_ENCODING);
    headers.remove(header::HOST);
    if let Some(token) = &way.token {
        headers.insert(header::AUTHORIZATION, token.clone());
    }
    let request = way.client.request(asked.method.clone(), format!("{}{}", way.to, head.uri));
    let Ok(answer) = request.headers(headers).body(body).send().await else {
        return StatusCode::BAD_GATEWAY.into_response();
    };
    let (status, headers) = (answer.status(), without_framing(answer.headers().clone()));
    let body = if asked.changes() {
        let body = answer.bytes().await.unwrap_or_default();
        let shown = serde_json::from_slice(&body).unwrap_or_default();
        hold(way.onlooker.answered(&asked, status, &shown).await).await;
        Body::from(body)
    } else {
        // A watch goes on for minutes.
        Body::from_stream(try_unfold(answer, |mut answer| async move {
            Ok::<_, reqwest::Error>(answer.chunk().await?.map(|chunk| (chunk, answer)))
        }))
    };
    (status, headers, body).into_response()
}

async fn hold(fate: Fate) {
    if fate == Fate::IsHeld {
        std::future::pending().await
    }
}

/// Headers but those about this one connection.
fn without_framing(mut headers: HeaderMap) -> HeaderMap {
    for name in [header::CONNECTION, header::CONTENT_LENGTH, header::TRANSFER_ENCODING] {
        headers.remove(name);
    }
    headers
}
