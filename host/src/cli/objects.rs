//! `get` and `delete`: objects of a standalone operator, over the socket in its data folder.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use comfy_table::{ContentArrangement, Table, presets};
use kube::ResourceExt;
use reqwest::{Client, Method, StatusCode};
use serde_json::Value;

use super::fleet::socket;
use crate::model::condition::{Condition, Status, find};
use crate::model::provider::Provider;
use crate::model::proxy::Proxy;
use crate::store::Event;

/// Where the operator is, and what is meant.
#[derive(Args)]
pub(super) struct GetArgs {
    /// proxies, providers or events
    #[arg(value_parser = ["proxies", "proxy", "px", "providers", "provider", "pxp", "events"])]
    kind: String,
    /// Data folder of the operator
    #[arg(long, env = "PROXY_OPERATOR_DATA", value_name = "DIR")]
    data: PathBuf,
    /// table, or json: the whole objects
    #[arg(long, short, default_value = "table", value_parser = ["table", "json"])]
    output: String,
}

/// Delete an object
#[derive(Args)]
pub(super) struct DeleteArgs {
    /// proxy or provider
    #[arg(value_parser = ["proxies", "proxy", "px", "providers", "provider", "pxp"])]
    kind: String,
    /// Its name
    name: String,
    /// Its namespace
    #[arg(long, short, default_value = "default")]
    namespace: String,
    /// Data folder of the operator
    #[arg(long, env = "PROXY_OPERATOR_DATA", value_name = "DIR")]
    data: PathBuf,
}

/// Change what is logged
#[derive(Args)]
pub(super) struct LogArgs {
    /// As for --log: for example debug, or info,proxy_operator::plugin=trace
    filter: String,
    /// Data folder of the operator
    #[arg(long, env = "PROXY_OPERATOR_DATA", value_name = "DIR")]
    data: PathBuf,
}

pub(super) async fn log(args: LogArgs) -> anyhow::Result<()> {
    let (status, answer) = tell(&args.data, Method::PUT, "log", args.filter).await?;
    expect(status, StatusCode::NO_CONTENT, &answer)
}

pub(super) async fn get(args: GetArgs) -> anyhow::Result<()> {
    let kind = plural(&args.kind);
    let (_, objects) = ask(&args.data, Method::GET, kind).await?;
    if args.output == "json" {
        println!("{}", serde_json::to_string_pretty(&objects)?);
    } else if kind == "proxies" {
        println!("{}", proxy_table(&serde_json::from_value::<Vec<Proxy>>(objects)?));
    } else if kind == "providers" {
        println!("{}", provider_table(&serde_json::from_value::<Vec<Provider>>(objects)?));
    } else {
        println!("{}", event_table(&serde_json::from_value::<Vec<Event>>(objects)?));
    }
    Ok(())
}

pub(super) async fn delete(args: DeleteArgs) -> anyhow::Result<()> {
    let kind = plural(&args.kind);
    let path = if kind == "proxies" {
        format!("{kind}/{}/{}", args.namespace, args.name)
    } else {
        format!("{kind}/{}", args.name)
    };
    let (status, answer) = ask(&args.data, Method::DELETE, &path).await?;
    expect(status, StatusCode::ACCEPTED, &answer)?;
    println!("{} {:?} is being deleted", args.kind, args.name);
    Ok(())
}

fn plural(kind: &str) -> &'static str {
    if kind == "events" {
        return "events";
    }
    if kind.starts_with("pxp") || kind.starts_with("provider") { "providers" } else { "proxies" }
}

/// Fails with what the operator said, unless it said this.
pub(super) fn expect(status: StatusCode, expected: StatusCode, answer: &Value) -> anyhow::Result<()> {
    let says = || answer.get("detail").and_then(Value::as_str).unwrap_or("the operator refused").to_owned();
    anyhow::ensure!(status == expected, says());
    Ok(())
}

pub(super) async fn ask(data: &Path, method: Method, path: &str) -> anyhow::Result<(StatusCode, Value)> {
    tell(data, method, path, String::new()).await
}

async fn tell(data: &Path, method: Method, path: &str, body: String) -> anyhow::Result<(StatusCode, Value)> {
    let socket = socket(data);
    let client = Client::builder().unix_socket(socket.as_path()).timeout(std::time::Duration::from_secs(30)).build()?;
    let answer =
        client.request(method, format!("http://operator/{path}")).body(body).send().await.with_context(|| {
            format!("no operator answers at {}: is it running with this --data folder?", socket.display())
        })?;
    let status = answer.status();
    let body = answer.bytes().await?;
    Ok((status, if body.is_empty() { Value::Null } else { serde_json::from_slice(&body)? }))
}

/// The columns that `kubectl get proxies` shows.
pub(super) fn proxy_table(proxies: &[Proxy]) -> Table {
    let mut table = table(&["NAMESPACE", "NAME", "READY", "PROVIDER", "ADDRESS", "REASON"]);
    for proxy in proxies {
        let status = proxy.status.clone().unwrap_or_default();
        let (ready, reason) = ready(&status.conditions);
        let address = status.address.unwrap_or_default();
        table.add_row([
            proxy.namespace().unwrap_or_default(),
            proxy.name_any(),
            ready,
            proxy.spec.provider.clone(),
            address,
            reason,
        ]);
    }
    table
}

fn provider_table(providers: &[Provider]) -> Table {
    let mut table = table(&["NAME", "READY", "PLUGIN", "VERSION", "REASON", "PROXIES"]);
    for provider in providers {
        let status = provider.status.clone().unwrap_or_default();
        let (ready, reason) = ready(&status.conditions);
        let version = status.plugin.map(|p| p.version).unwrap_or_default();
        table.add_row([
            provider.name_any(),
            ready,
            provider.spec.plugin.name.clone(),
            version,
            reason,
            status.proxies.to_string(),
        ]);
    }
    table
}

fn event_table(events: &[Event]) -> Table {
    let mut table = table(&["TYPE", "REASON", "OBJECT", "MESSAGE"]);
    for event in events {
        table.add_row([
            format!("{:?}", event.severity),
            event.reason.clone(),
            event.regarding.to_string(),
            event.message.clone(),
        ]);
    }
    table
}

fn ready(conditions: &[Condition]) -> (String, String) {
    match find(conditions, "Ready") {
        Some(ready) => (word(ready.status).to_owned(), ready.reason.clone()),
        None => ("Unknown".to_owned(), String::new()),
    }
}

fn word(status: Status) -> &'static str {
    match status {
        Status::True => "True",
        Status::False => "False",
        Status::Unknown => "Unknown",
    }
}

pub(super) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled).set_header(header);
    table
}
