//! Every Provider's `check`, asked anew.

use std::sync::{Arc, OnceLock};

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use kube::ResourceExt;
use serde::{Deserialize, Serialize};

use super::{Leading, not_leading};
use crate::model::condition::find;
use crate::model::provider::{Provider, TargetStatus};
use crate::rest::problem::Problem;
use crate::store::Store;

/// What `check` of a Provider says.
#[derive(Debug, Deserialize, Serialize)]
pub struct Checked {
    /// Which.
    pub provider: String,
    /// Its targets; none where it names none.
    pub targets: Vec<TargetStatus>,
    /// Why it could not be asked: reason and message.
    pub failure: Option<(String, String)>,
}

#[derive(Clone)]
struct Asked {
    store: Arc<dyn Store>,
    leading: Arc<OnceLock<Leading>>,
}

pub(super) fn routes(store: Arc<dyn Store>, leading: Arc<OnceLock<Leading>>) -> Router {
    Router::new().route("/checks", post(check)).with_state(Asked { store, leading })
}

async fn check(State(asked): State<Asked>) -> Result<Response, Problem> {
    let leading = asked.leading.get().ok_or_else(not_leading)?;
    let mut providers = asked.store.providers();
    providers.sort_by_key(|provider| provider.name_any());
    let all = providers.iter().map(|provider| check_one(leading, provider));
    Ok(Json(futures::future::join_all(all).await).into_response())
}

async fn check_one(leading: &Leading, provider: &Provider) -> Checked {
    let name = provider.name_any();
    let outcome = match leading.providers.handle(&name) {
        Some(handle) => handle.check().await.map_err(|error| (error.reason, error.message)),
        // What keeps it from being called stands in its condition.
        None => {
            let ready = provider.status.as_ref().and_then(|status| find(&status.conditions, "Ready"));
            let why = ready.map(|ready| (ready.reason.clone(), ready.message.clone()));
            Err(why.unwrap_or((String::new(), "it was not looked at yet".into())))
        }
    };
    match outcome {
        Ok(findings) => {
            Checked { provider: name, targets: findings.into_iter().map(TargetStatus::from).collect(), failure: None }
        }
        Err(failure) => Checked { provider: name, targets: vec![], failure: Some(failure) },
    }
}
