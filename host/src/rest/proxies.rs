//! `/v1/proxies` and `/v1/providers`: what exists and how it is, never a credential.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use kube::ResourceExt;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Api;
use super::auth::{Caller, Scope};
use super::input::{Params, Segments};
use super::problem::Problem;
use crate::model::condition::{Condition, find, is_true};
use crate::model::error::FieldError;
use crate::model::naming::ProxyKey;
use crate::model::proxy::Proxy;

const LIMIT: usize = 100;
const LARGEST_LIMIT: usize = 500;

/// Which part of a list.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Paging {
    limit: Option<String>,
    cursor: Option<String>,
}

/// One part of a list.
pub(super) struct Page<'a, T> {
    items: Vec<&'a T>,
    next: Option<String>,
}

impl<'a, T> Page<'a, T> {
    /// The part after the cursor; `all` is ordered by `key`.
    pub fn of(all: &'a [T], paging: &Paging, key: impl Fn(&T) -> String) -> Result<Self, Problem> {
        let limit = match paging.limit.as_deref().map(str::parse) {
            None => LIMIT,
            Some(Ok(limit)) if (1..=LARGEST_LIMIT).contains(&limit) => limit,
            Some(_) => {
                return Err(Problem::invalid(vec![FieldError {
                    pointer: "/limit".into(),
                    message: format!("from 1 to {LARGEST_LIMIT}"),
                }]));
            }
        };
        let mut rest =
            all.iter().filter(|item| paging.cursor.as_ref().is_none_or(|cursor| key(item) > *cursor)).peekable();
        let items: Vec<&T> = rest.by_ref().take(limit).collect();
        let next = rest.peek().and_then(|_| items.last()).map(|last| key(last));
        Ok(Self { items, next })
    }

    /// As JSON: the items under `name`, and the next cursor.
    pub fn map<S: Serialize>(self, name: &str, show: impl Fn(&T) -> S) -> Value {
        let items: Vec<Value> =
            self.items.into_iter().map(|item| serde_json::to_value(show(item)).unwrap_or_default()).collect();
        json!({name: items, "nextCursor": self.next})
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Filter {
    namespace: Option<String>,
    label_selector: Option<String>,
    #[serde(flatten)]
    paging: Paging,
}

pub(super) async fn list(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Params(filter): Params<Filter>,
) -> Result<Response, Problem> {
    caller.needs(Scope::Read)?;
    let labels = selector(filter.label_selector.as_deref().unwrap_or_default())?;
    let mut all = api.store.proxies();
    all.retain(|p| {
        let key = ProxyKey::of(p);
        let of_caller =
            caller.namespaces.contains(&key.namespace) && filter.namespace.as_ref().is_none_or(|n| *n == key.namespace);
        of_caller && labels.iter().all(|(k, v)| p.labels().get(k) == Some(v))
    });
    all.sort_by_key(|p| ProxyKey::of(p).to_string());
    let page = Page::of(&all, &filter.paging, |p| ProxyKey::of(p).to_string())?;
    Ok(Json(page.map("proxies", |p| show(p))).into_response())
}

/// `a=b,c=d`.
fn selector(text: &str) -> Result<BTreeMap<String, String>, Problem> {
    let pairs = text.split(',').filter(|p| !p.is_empty()).map(|pair| {
        // `!=` and the like are no equality that just never holds.
        let (key, value) = pair
            .split_once('=')
            .map(|(key, value)| (key.trim(), value.trim().trim_start_matches('=')))
            .filter(|(key, _)| !key.is_empty() && !key.ends_with('!'))
            .ok_or_else(|| FieldError {
                pointer: "/labelSelector".into(),
                message: "write KEY=VALUE, several with commas".into(),
            })?;
        Ok((key.to_owned(), value.to_owned()))
    });
    pairs.collect::<Result<_, FieldError>>().map_err(|e| Problem::invalid(vec![e]))
}

pub(super) async fn get(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Segments((namespace, name)): Segments<(String, String)>,
) -> Result<Response, Problem> {
    caller.needs(Scope::Read)?;
    let key = ProxyKey { namespace, name };
    // Of another namespace it does not even say whether there is one.
    let found = api.store.proxy(&key).filter(|_| caller.namespaces.contains(&key.namespace));
    let found = found.ok_or_else(|| {
        Problem::new(StatusCode::NOT_FOUND, "unknown_proxy", format!("no Proxy {key} in the token's namespaces"))
    })?;
    Ok(Json(show(&found)).into_response())
}

fn show(proxy: &Proxy) -> Value {
    let status = proxy.status.clone().unwrap_or_default();
    json!({
        "namespace": proxy.namespace(),
        "name": proxy.name_any(),
        "provider": proxy.spec.provider,
        "location": proxy.spec.location,
        "protocol": proxy.spec.protocol,
        "labels": proxy.labels(),
        "ready": is_true(&status.conditions, "Ready"),
        "reason": find(&status.conditions, "Ready").map(|c| c.reason.clone()),
        "message": find(&status.conditions, "Ready").map(|c| c.message.clone()),
        "address": status.address,
        "exitIP": status.exit_ip,
        "deleting": proxy.is_deleting(),
    })
}

pub(super) async fn providers(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Params(paging): Params<Paging>,
) -> Result<Response, Problem> {
    caller.needs(Scope::Read)?;
    let mut all = api.store.providers();
    all.sort_by_key(|p| p.name_any());
    let page = Page::of(&all, &paging, |p| p.name_any())?;
    Ok(Json(page.map("providers", |provider| {
        let status = provider.status.clone().unwrap_or_default();
        let ready: Option<Condition> = find(&status.conditions, "Ready").cloned();
        json!({
            "name": provider.name_any(),
            "plugin": status.plugin,
            "ready": ready.as_ref().map(|c| c.status),
            "reason": ready.as_ref().map(|c| c.reason.clone()),
            "message": ready.map(|c| c.message),
            "targets": status.targets,
            "proxies": status.proxies,
        })
    }))
    .into_response())
}
