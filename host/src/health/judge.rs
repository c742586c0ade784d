//! The operator's own judge: it returns the nonce that it was sent, and the address it was sent from.

use std::net::SocketAddr;

use axum::Json;
use axum::extract::{ConnectInfo, Query};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Where a judge listens for nonces.
pub const PATH: &str = "/judge";

/// Longest nonce; a probe sends 32 characters.
const NONCE_BYTES: usize = 64;

/// What a judge is asked.
#[derive(Deserialize)]
struct Question {
    nonce: String,
}

/// What a judge answers.
#[derive(Debug, Deserialize, Serialize)]
pub struct Judgement {
    /// As it was sent.
    pub nonce: String,
    /// The address that the request came from.
    pub address: String,
}

/// Serves the judge until told to stop.
///
/// # Errors
/// When the listener fails.
pub async fn serve(listener: TcpListener, stop: CancellationToken) -> std::io::Result<()> {
    let app = axum::Router::new().route(PATH, get(judge)).route("/", get(page));
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>())
        .with_graceful_shutdown(stop.cancelled_owned())
        .await
}

/// For people: a page to fetch through a proxy.
async fn page(ConnectInfo(peer): ConnectInfo<SocketAddr>) -> String {
    format!("This is the judge of proxy-operator. Your request came from {}.\n", peer.ip().to_canonical())
}

async fn judge(ConnectInfo(peer): ConnectInfo<SocketAddr>, Query(question): Query<Question>) -> Response {
    if question.nonce.len() > NONCE_BYTES || !question.nonce.chars().all(|c| c.is_ascii_alphanumeric()) {
        return (StatusCode::UNPROCESSABLE_ENTITY, "nonce: up to 64 letters and digits").into_response();
    }
    Json(Judgement { nonce: question.nonce, address: peer.ip().to_canonical().to_string() }).into_response()
}
