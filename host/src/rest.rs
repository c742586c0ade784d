//! The REST API: crawlers allocate proxies here. Knows neither wasmtime nor kube.

pub mod auth;
mod input;
mod leases;
pub mod local;
pub mod problem;
mod proxies;
pub mod service;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};

use self::auth::Tokens;
use crate::lease::allocator::Allocator;
use crate::model::clock::Clock;
use crate::store::Store;

/// What the routes need.
#[derive(Clone)]
pub struct Api {
    /// Lends.
    pub allocator: Arc<Allocator>,
    /// Objects, for what is only shown.
    pub store: Arc<dyn Store>,
    /// Who may call.
    pub tokens: Arc<Tokens>,
    /// The date, for answers.
    pub clock: Arc<dyn Clock>,
}

/// All routes. Whatever is not named here needs a credential all the same, and then is 404.
pub fn routes(api: Api) -> Router {
    Router::new()
        .route("/v1/leases", post(leases::acquire).get(leases::list))
        .route("/v1/leases/{id}", get(leases::get).delete(leases::release))
        .route("/v1/leases/{id}/renew", post(leases::renew))
        .route("/v1/proxies", get(proxies::list))
        .route("/v1/proxies/{namespace}/{name}", get(proxies::get))
        .route("/v1/providers", get(proxies::providers))
        .fallback(problem::no_route)
        .method_not_allowed_fallback(problem::no_method)
        .layer(axum::extract::DefaultBodyLimit::max(64 << 10))
        .layer(axum::middleware::from_fn_with_state(api.clone(), auth::require))
        .layer(axum::middleware::from_fn(problem::request_id))
        .with_state(api)
}

#[cfg(test)]
mod tests;
