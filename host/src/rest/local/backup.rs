//! A copy of the database, made while the operator runs.

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::CONTENT_LENGTH;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio_util::io::ReaderStream;

use super::failed;
use crate::rest::problem::Problem;
use crate::store::StoreError;
use crate::store::local::database::Database;

pub(super) fn routes(database: Database) -> Router {
    Router::new().route("/backup", get(backup)).with_state(database)
}

async fn backup(State(database): State<Database>) -> Result<Response, Problem> {
    let copied = tokio::task::spawn_blocking(move || {
        let file = database.copy()?;
        let bytes = file.metadata().map_err(|e| StoreError::Unavailable(e.to_string()))?.len();
        Ok((file, bytes))
    });
    let (file, bytes) = copied.await.unwrap_or_else(|e| Err(StoreError::Unavailable(e.to_string()))).map_err(failed)?;
    let body = Body::from_stream(ReaderStream::new(tokio::fs::File::from_std(file)));
    Ok(([(CONTENT_LENGTH, bytes)], body).into_response())
}
