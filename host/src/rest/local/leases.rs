//! The leases of everybody, for the commands: never a credential.

use std::sync::{Arc, OnceLock};

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::{Leading, not_leading};
use crate::lease::Mode;
use crate::model::clock::Clock;
use crate::rest::problem::Problem;

/// A lease as the commands show it.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ShownLease {
    /// Its signed id.
    pub id: String,
    /// The grant.
    pub generation: u64,
    /// Its proxy.
    pub proxy: ShownProxy,
    /// The name of the token that it belongs to; REST tells nobody.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// How it is lent.
    pub mode: Mode,
    /// From when on; of a lease of an earlier run, since it was renewed. REST does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Until when.
    pub expires_at: Timestamp,
    /// The life that was asked for.
    pub ttl_seconds: u64,
    /// Whether its proxy serves.
    pub healthy: bool,
    /// Whether its proxy is to go.
    pub draining: bool,
}

/// The proxy of a lease.
#[derive(Debug, Deserialize, Serialize)]
pub struct ShownProxy {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its provider.
    pub provider: String,
    /// Its location.
    pub location: Option<String>,
}

#[derive(Clone)]
struct Lent {
    leading: Arc<OnceLock<Leading>>,
    clock: Arc<dyn Clock>,
}

pub(super) fn routes(leading: Arc<OnceLock<Leading>>, clock: Arc<dyn Clock>) -> Router {
    Router::new().route("/leases", get(list)).with_state(Lent { leading, clock })
}

async fn list(State(lent): State<Lent>) -> Result<Response, Problem> {
    let allocator = &lent.leading.get().ok_or_else(not_leading)?.allocator;
    let (now, date) = (allocator.now(), lent.clock.wall());
    let span = |time: std::time::Duration| SignedDuration::try_from(time).unwrap_or(SignedDuration::ZERO);
    let show = |lease: crate::lease::Lease| ShownLease {
        since: date.checked_sub(span(now.saturating_sub(lease.since))).ok(),
        expires_at: date.checked_add(span(lease.expires.saturating_sub(now))).unwrap_or(Timestamp::MAX),
        healthy: lease.proxy.serving.is_some(),
        draining: lease.proxy.draining,
        id: lease.id,
        generation: lease.generation,
        proxy: ShownProxy {
            namespace: lease.proxy.key.namespace,
            name: lease.proxy.key.name,
            provider: lease.proxy.provider,
            location: lease.proxy.location,
        },
        holder: Some(lease.subject),
        mode: lease.mode,
        ttl_seconds: lease.ttl.as_secs(),
    };
    let leases: Vec<ShownLease> = allocator.list(None).into_iter().map(show).collect();
    Ok(Json(leases).into_response())
}
