//! Where an operator is: on this machine, at the socket in its data folder, or elsewhere, at its REST API.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use url::Url;

use super::client::{Failure, PATIENCE, Target, expect, read};
use super::named::{Kind, Named};
use super::objects::object;
use super::serve::read_line;
use crate::rest::local::ShownLease;

/// Objects of one answer.
const PAGE: &str = "500";

/// Where the operator is.
#[derive(Args)]
pub(super) struct Place {
    /// Data folder of the operator
    #[arg(long, env = "PROXY_OPERATOR_DATA", value_name = "DIR", required_unless_present = "server")]
    data: Option<PathBuf>,
    /// REST API of an operator elsewhere; goes before --data
    #[arg(long, env = "PROXY_OPERATOR_SERVER", value_name = "URL", requires = "token_file")]
    server: Option<Url>,
    /// File that holds the token for --server
    #[arg(long, env = "PROXY_OPERATOR_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl Place {
    /// Whether only REST is there.
    pub fn is_elsewhere(&self) -> bool {
        self.server.is_some()
    }

    fn target(&self) -> Target {
        Target { data: self.data.clone().unwrap_or_default() }
    }

    /// All objects of a kind. Of an operator elsewhere they have the fields that REST tells.
    pub async fn list(&self, kind: Kind) -> anyhow::Result<Vec<Value>> {
        match (&self.server, kind) {
            (None, kind) => read(&self.target().data, kind.plural()).await,
            (Some(_), Kind::Proxies) => Ok(self.pages("proxies", &[]).await?.iter().map(proxy).collect()),
            (Some(_), Kind::Providers) => Ok(self.pages("providers", &[]).await?.iter().map(provider).collect()),
            (Some(_), kind) => {
                let why = format!(
                    "{} of an operator elsewhere are not known: ask on its machine, with --data",
                    kind.plural()
                );
                Err(Failure::Usage(why).into())
            }
        }
    }

    /// One object.
    pub async fn one(&self, named: &Named, namespace: &str) -> anyhow::Result<Option<Value>> {
        if self.server.is_none() {
            return object(&self.target(), named, namespace).await;
        }
        if named.kind == Kind::Proxies {
            let (status, answer) = self.ask(&["proxies", namespace, &named.name], &[]).await?;
            if status == StatusCode::NOT_FOUND {
                return Ok(None);
            }
            expect(status, StatusCode::OK, &answer)?;
            return Ok(Some(proxy(&answer)));
        }
        let all = self.list(named.kind).await?;
        Ok(all.into_iter().find(|one| one["metadata"]["name"] == named.name))
    }

    /// Leases: all of them, or elsewhere those of the token (`all`: everybody's).
    pub async fn leases(&self, all: bool) -> anyhow::Result<Vec<ShownLease>> {
        if self.server.is_none() {
            return read(&self.target().data, "leases").await;
        }
        let query: &[_] = if all { &[("all", "true")] } else { &[] };
        let leases = self.pages("leases", query).await?;
        Ok(leases.into_iter().map(serde_json::from_value).collect::<Result<_, _>>()?)
    }

    async fn pages(&self, kind: &str, query: &[(&str, &str)]) -> anyhow::Result<Vec<Value>> {
        let (mut all, mut cursor) = (Vec::new(), None);
        loop {
            let mut query = query.to_vec();
            query.push(("limit", PAGE));
            query.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
            let (status, mut answer) = self.ask(&[kind], &query).await?;
            expect(status, StatusCode::OK, &answer)?;
            if let Some(Value::Array(page)) = answer.get_mut(kind) {
                all.append(page);
            }
            match answer["nextCursor"].as_str() {
                Some(next) => cursor = Some(next.to_owned()),
                None => return Ok(all),
            }
        }
    }

    async fn ask(&self, path: &[&str], query: &[(&str, &str)]) -> anyhow::Result<(StatusCode, Value)> {
        let (Some(server), Some(file)) = (&self.server, &self.token_file) else {
            anyhow::bail!("--server and --token-file go together");
        };
        let token = read_line("--token-file", file)?;
        let mut url = server.clone();
        let no_base = || Failure::Usage(format!("--server {server} is no http:// or https:// URL"));
        url.path_segments_mut().map_err(|()| no_base())?.pop_if_empty().push("v1").extend(path);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let client = Client::builder().timeout(PATIENCE).build()?;
        let sent = client.get(url).bearer_auth(token.trim()).send().await;
        let answer = sent.map_err(|error| {
            let error = error.without_url();
            if error.is_connect() || error.is_timeout() {
                let why = format!("no operator answers at {server}: {:#}", anyhow::Error::from(error));
                anyhow::Error::from(Failure::Unreachable(why))
            } else {
                error.into()
            }
        })?;
        let status = answer.status();
        if status == StatusCode::UNAUTHORIZED {
            anyhow::bail!(
                "{server} does not know the token in {}; `proxy-operator token create` makes one",
                file.display()
            );
        }
        let body = answer.bytes().await?;
        let answer =
            serde_json::from_slice(&body).with_context(|| format!("{server} does not answer as an operator does"))?;
        Ok((status, answer))
    }
}

/// As REST tells it, in the form of the object.
fn proxy(told: &Value) -> Value {
    let ready = json!({
        "type": "Ready",
        "status": if told["ready"] == true { "True" } else { "False" },
        "reason": told["reason"],
        "message": told["message"],
    });
    json!({
        "metadata": {"namespace": told["namespace"], "name": told["name"], "labels": told["labels"]},
        "spec": {"provider": told["provider"], "location": told["location"], "protocol": told["protocol"]},
        "status": {"address": told["address"], "exitIP": told["exitIP"], "conditions": [ready]},
    })
}

fn provider(told: &Value) -> Value {
    let ready = json!({
        "type": "Ready",
        "status": told["ready"].as_str().unwrap_or("Unknown"),
        "reason": told["reason"],
        "message": told["message"],
    });
    json!({
        "metadata": {"name": told["name"]},
        "spec": {"plugin": {"name": told["plugin"]["name"]}},
        "status": {
            "plugin": told["plugin"],
            "targets": told["targets"],
            "proxies": told["proxies"],
            "conditions": [ready],
        },
    })
}
