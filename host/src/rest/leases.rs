//! `/v1/leases`.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};

use super::Api;
use super::auth::{Caller, Scope};
use super::input::{Body, Params, Segments};
use super::problem::Problem;
use super::proxies::{Page, Paging};
use crate::lease::{Lease, Mode, NoLease, Refusal, Wish};
use crate::model::error::FieldError;
use crate::model::metrics::{METRICS, Outcome};
use crate::model::naming::ProxyKey;
use crate::model::proxy::Protocol;

const TTL: u64 = 600;
const SHORTEST_TTL: u64 = 10;
const LONGEST_WAIT: u64 = 60;
/// While the ledger cannot be written.
const LEDGER_RETRY: Duration = Duration::from_secs(2);

/// What a crawler may ask for; all of it optional.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Acquire {
    namespace: Option<String>,
    selector: BTreeMap<String, String>,
    provider: Option<String>,
    location: Option<String>,
    protocol: Option<Protocol>,
    mode: Mode,
    ttl_seconds: Option<u64>,
    wait_seconds: u64,
    exclude: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Renew {
    ttl_seconds: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ListQuery {
    all: bool,
    #[serde(flatten)]
    paging: Paging,
}

/// A lease as its holder sees it, with the password: no `Debug`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown {
    id: String,
    generation: u64,
    proxy: ShownProxy,
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    username: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    password: Option<String>,
    #[serde(rename = "exitIP")]
    exit_ip: Option<String>,
    mode: Mode,
    expires_at: jiff::Timestamp,
    ttl_seconds: u64,
    healthy: bool,
    draining: bool,
}

#[derive(Debug, Serialize)]
struct ShownProxy {
    namespace: String,
    name: String,
    provider: String,
    location: Option<String>,
    labels: BTreeMap<String, String>,
}

pub(super) async fn acquire(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Body(body): Body<Acquire>,
) -> Response {
    // A life counts from here: before anything is waited for.
    let arrived = api.allocator.now();
    let outcome = match try_acquire(&api, &caller, body, arrived).await {
        Ok(lease) => {
            METRICS.leases.get_or_create(&Outcome { outcome: "granted" }).inc();
            return (StatusCode::CREATED, Json(show(&api, &lease))).into_response();
        }
        Err(problem) => problem,
    };
    METRICS.leases.get_or_create(&Outcome { outcome: outcome.0 }).inc();
    outcome.1.into_response()
}

async fn try_acquire(
    api: &Api,
    caller: &Caller,
    body: Acquire,
    arrived: Duration,
) -> Result<Lease, (&'static str, Problem)> {
    caller.needs(Scope::Allocate).map_err(|p| ("forbidden", p))?;
    let wait = Duration::from_secs(body.wait_seconds);
    let wish = wish(caller, body).map_err(|p| ("invalid", p))?;
    api.allocator.acquire(&wish, arrived, wait).await.map_err(refuse)
}

fn refuse(refusal: Refusal) -> (&'static str, Problem) {
    match refusal {
        Refusal::NoMatch => (
            "no_match",
            Problem::new(
                StatusCode::CONFLICT,
                "no_match",
                "no Proxy fits namespace, selector, provider, location, protocol and exclude; `GET /v1/proxies` lists what there is",
            ),
        ),
        Refusal::Later(reason, wait) => {
            let detail = match reason {
                crate::lease::Reason::NoneHealthy => "no Proxy that fits is healthy",
                crate::lease::Reason::AllLeased => "every Proxy that fits is lent",
                crate::lease::Reason::Scaling => "a Proxy that fits is being made",
                crate::lease::Reason::Quota => "the backend's quota is used up",
            };
            (reason.code(), Problem::new(StatusCode::SERVICE_UNAVAILABLE, reason.code(), detail).retry_after(wait))
        }
        Refusal::TooMany(most) => {
            let detail = format!("the token holds {most} leases, its limit; release some");
            ("too_many_leases", Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_many_leases", detail))
        }
        Refusal::Ledger(error) => {
            tracing::error!(%error, "a lease could not be made durable");
            ("ledger_busy", ledger())
        }
    }
}

fn ledger() -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "ledger_busy", "the lease could not be made durable")
        .retry_after(LEDGER_RETRY)
}

fn wish(caller: &Caller, body: Acquire) -> Result<Wish, Problem> {
    let mut errors = Vec::new();
    let mut wrong = |pointer: &str, message: String| errors.push(FieldError { pointer: pointer.into(), message });
    let namespaces = match (body.namespace, caller.namespaces.as_slice()) {
        (Some(wanted), allowed) if allowed.contains(&wanted) => vec![wanted],
        (Some(wanted), _) => {
            return Err(Problem::new(
                StatusCode::FORBIDDEN,
                "forbidden",
                format!(
                    "token {} is not for namespace {wanted:?}; it is for: {}",
                    caller.name,
                    caller.namespaces.join(", ")
                ),
            ));
        }
        (None, [only]) => vec![only.clone()],
        (None, several) => {
            wrong("/namespace", format!("needed, since the token is for several namespaces: {}", several.join(", ")));
            vec![]
        }
    };
    let ttl = ttl(caller, body.ttl_seconds).unwrap_or_else(|e| {
        wrong(&e.pointer, e.message);
        Duration::ZERO
    });
    if body.wait_seconds > LONGEST_WAIT {
        wrong("/waitSeconds", format!("at most {LONGEST_WAIT}"));
    }
    let mut exclude = Vec::new();
    for (i, text) in body.exclude.iter().enumerate() {
        match text.split_once('/') {
            Some((namespace, name)) => exclude.push(ProxyKey { namespace: namespace.into(), name: name.into() }),
            None => wrong(&format!("/exclude/{i}"), "write NAMESPACE/NAME".into()),
        }
    }
    if !errors.is_empty() {
        return Err(Problem::invalid(errors));
    }
    Ok(Wish {
        namespaces,
        selector: body.selector,
        provider: body.provider,
        location: body.location,
        protocol: body.protocol,
        exclude,
        mode: body.mode,
        ttl,
        subject: caller.name.clone(),
        most: Some(caller.max_leases),
    })
}

fn ttl(caller: &Caller, asked: Option<u64>) -> Result<Duration, FieldError> {
    let longest = caller.max_ttl.as_secs();
    let ttl = asked.unwrap_or(TTL.min(longest));
    if (SHORTEST_TTL..=longest).contains(&ttl) {
        return Ok(Duration::from_secs(ttl));
    }
    Err(FieldError {
        pointer: "/ttlSeconds".into(),
        message: format!("from {SHORTEST_TTL} to {longest}, the token's maxTtl"),
    })
}

pub(super) async fn get(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Segments(id): Segments<String>,
) -> Result<Response, Problem> {
    caller.needs(Scope::Allocate)?;
    let lease = api.allocator.get(&id, caller.subject(true)).map_err(no_lease)?;
    Ok(Json(show(&api, &lease)).into_response())
}

pub(super) async fn list(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Params(query): Params<ListQuery>,
) -> Result<Response, Problem> {
    caller.needs(if query.all { Scope::Admin } else { Scope::Allocate })?;
    let leases = api.allocator.list(caller.subject(query.all));
    let page = Page::of(&leases, &query.paging, |lease| lease.id.clone())?;
    Ok(Json(page.map("leases", |lease| show(&api, lease))).into_response())
}

pub(super) async fn renew(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Segments(id): Segments<String>,
    Body(body): Body<Renew>,
) -> Result<Response, Problem> {
    let arrived = api.allocator.now();
    caller.needs(Scope::Allocate)?;
    let ttl = ttl(&caller, body.ttl_seconds).map_err(|e| Problem::invalid(vec![e]))?;
    let lease = api.allocator.renew(&id, &caller.name, ttl, arrived).await.map_err(no_lease)?;
    Ok(Json(show(&api, &lease)).into_response())
}

pub(super) async fn release(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Segments(id): Segments<String>,
) -> Result<Response, Problem> {
    caller.needs(Scope::Allocate)?;
    match api.allocator.release(&id, caller.subject(true)) {
        // Idempotent: a repeat finds what it wants.
        Ok(()) | Err(NoLease::Ended) => Ok(StatusCode::NO_CONTENT.into_response()),
        Err(error) => Err(no_lease(error)),
    }
}

fn no_lease(error: NoLease) -> Problem {
    match error {
        NoLease::Unknown => Problem::new(StatusCode::NOT_FOUND, "unknown_lease", "no lease with this id"),
        NoLease::Ended => Problem::new(StatusCode::GONE, "ended", "the lease is over; acquire another"),
        NoLease::Draining => Problem::new(
            StatusCode::CONFLICT,
            "draining",
            "the proxy is about to go: finish, release, and acquire another",
        ),
        NoLease::Restored => {
            Problem::new(StatusCode::CONFLICT, "restored", "the operator restarted: renew the lease to go on")
        }
        NoLease::Ledger(error) => {
            tracing::error!(%error, "a renewal could not be made durable");
            ledger()
        }
    }
}

fn show(api: &Api, lease: &Lease) -> Shown {
    let left = lease.expires.saturating_sub(api.allocator.now());
    let left = jiff::SignedDuration::try_from(left).unwrap_or(jiff::SignedDuration::ZERO);
    let proxy = &lease.proxy;
    let serving = proxy.serving.as_ref();
    let scheme = match proxy.protocol {
        Protocol::Http => "http",
        Protocol::Socks5 => "socks5",
    };
    let login = serving.and_then(|s| s.login.as_ref());
    let password = login.and_then(|l| l.password.expose_line());
    let server = serving.map(|s| format!("{scheme}://{}", s.endpoint.authority()));
    let url = serving.map(|s| match (login, password) {
        (Some(login), Some(password)) => {
            let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
            format!("{scheme}://{}:{}@{}", encode(&login.username), encode(password), s.endpoint.authority())
        }
        _ => format!("{scheme}://{}", s.endpoint.authority()),
    });
    Shown {
        id: lease.id.clone(),
        generation: lease.generation,
        proxy: ShownProxy {
            namespace: proxy.key.namespace.clone(),
            name: proxy.key.name.clone(),
            provider: proxy.provider.clone(),
            location: proxy.location.clone(),
            labels: proxy.labels.clone(),
        },
        url,
        server,
        username: login.map(|l| l.username.clone()),
        password: password.map(str::to_owned),
        exit_ip: serving.and_then(|s| s.exit_ip.clone()),
        mode: lease.mode,
        expires_at: api.clock.wall().checked_add(left).unwrap_or(jiff::Timestamp::MAX),
        ttl_seconds: lease.ttl.as_secs(),
        healthy: serving.is_some(),
        draining: proxy.draining,
    }
}
