//! `get`, `delete` and their kin: objects of a standalone operator, over the socket in its data folder.

use std::collections::BTreeMap;

use clap::Args;
use comfy_table::{ContentArrangement, Table, presets};
use kube::ResourceExt;
use reqwest::{Method, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::client::{Failure, Target, ask, expect, read, tell};
use super::selector::Selector;
use crate::model::condition::{Condition, Status, find};
use crate::model::provider::Provider;
use crate::model::proxy::Proxy;
use crate::store::{Event, Regarding};

/// What there is a list of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Proxies,
    Providers,
    Events,
}

impl Kind {
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        Ok(match text {
            "proxies" | "proxy" | "px" => Self::Proxies,
            "providers" | "provider" | "pxp" => Self::Providers,
            "events" | "event" => Self::Events,
            other => {
                let why = format!("there is no kind {other:?}: use proxies (px), providers (pxp) or events");
                return Err(Failure::Usage(why).into());
            }
        })
    }

    pub fn plural(self) -> &'static str {
        match self {
            Self::Proxies => "proxies",
            Self::Providers => "providers",
            Self::Events => "events",
        }
    }

    pub fn singular(self) -> &'static str {
        match self {
            Self::Proxies => "proxy",
            Self::Providers => "provider",
            Self::Events => "event",
        }
    }
}

/// One object by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub kind: Kind,
    pub name: String,
}

/// Reads `KIND NAME…` or `KIND/NAME…`.
fn named(words: &[String]) -> anyhow::Result<Vec<Named>> {
    let one = |kind, name: &str| Named { kind, name: name.to_owned() };
    let with_slash = words.iter().filter(|word| word.contains('/')).count();
    let named = if with_slash == 0 {
        let [kind, names @ ..] = words else { return Ok(vec![]) };
        let kind = Kind::parse(kind)?;
        names.iter().map(|name| one(kind, name)).collect()
    } else {
        let split = |word: &String| {
            let both = word.split_once('/').filter(|(_, name)| !name.is_empty() && !name.contains('/'));
            let (kind, name) = both.ok_or_else(|| {
                Failure::Usage(format!("{word:?} is not KIND/NAME: write either KIND NAME… or KIND/NAME…"))
            })?;
            Ok(one(Kind::parse(kind)?, name))
        };
        words.iter().map(split).collect::<anyhow::Result<Vec<_>>>()?
    };
    if named.iter().any(|one| one.kind == Kind::Events) {
        return Err(Failure::Usage("events have no names: see `proxy-operator events --for KIND/NAME`".into()).into());
    }
    Ok(named)
}

/// Where the operator is, and what is meant.
#[derive(Args)]
pub(super) struct GetArgs {
    /// KIND, KIND NAME… or KIND/NAME…; kinds are proxies (px), providers (pxp) and events
    #[arg(required = true, value_name = "WHAT")]
    what: Vec<String>,
    #[command(flatten)]
    target: Target,
    /// Only of this namespace; for objects by name the default is `default`, for lists all
    #[arg(long, short)]
    namespace: Option<String>,
    /// Of all namespaces
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Only those with these labels, for example team=blue,stage!=test
    #[arg(long, short = 'l', value_name = "LABELS")]
    selector: Option<Selector>,
    /// How it is printed
    #[arg(long, short, default_value = "table", value_parser = ["table", "wide", "yaml", "json", "name"])]
    output: String,
}

/// Objects by name, and where the operator is.
#[derive(Args)]
pub(super) struct Chosen {
    /// KIND NAME… or KIND/NAME…
    #[arg(required = true, value_name = "WHAT")]
    what: Vec<String>,
    /// Its namespace
    #[arg(long, short, default_value = "default")]
    pub namespace: String,
    #[command(flatten)]
    pub target: Target,
}

impl Chosen {
    /// At least one. `what` is done with them, for the text when there is none.
    pub fn names(&self, what: &str) -> anyhow::Result<Vec<Named>> {
        let names = named(&self.what)?;
        if names.is_empty() {
            return Err(Failure::Usage(format!("name what is {what}: KIND NAME… or KIND/NAME…")).into());
        }
        Ok(names)
    }
}

/// Delete an object
#[derive(Args)]
pub(super) struct DeleteArgs {
    #[command(flatten)]
    chosen: Chosen,
}

/// Show what happened
#[derive(Args)]
pub(super) struct EventsArgs {
    /// Only to this object
    #[arg(long = "for", value_name = "KIND/NAME")]
    of: Option<String>,
    /// Its namespace
    #[arg(long, short, default_value = "default")]
    namespace: String,
    #[command(flatten)]
    target: Target,
}

/// Change what is logged
#[derive(Args)]
pub(super) struct LogArgs {
    /// As for --log: for example debug, or info,proxy_operator::plugin=trace
    filter: String,
    #[command(flatten)]
    target: Target,
}

pub(super) async fn log(args: LogArgs) -> anyhow::Result<()> {
    let (status, answer) = tell(&args.target.data, Method::PUT, "log", args.filter).await?;
    expect(status, StatusCode::NO_CONTENT, &answer)
}

/// Objects in a namespace; those of no namespace are in each.
pub(super) fn is_in(object: &impl ResourceExt, namespace: &str) -> bool {
    object.namespace().is_none_or(|of| of == namespace)
}

pub(super) fn not_found(named: &Named, namespace: &str) -> anyhow::Error {
    let Named { kind, name } = named;
    let place = if *kind == Kind::Proxies { format!(" in namespace {namespace}") } else { String::new() };
    let list = kind.plural();
    anyhow::anyhow!("there is no {} {name:?}{place}; `proxy-operator get {list}` lists them", kind.singular())
}

pub(super) async fn get(args: GetArgs) -> anyhow::Result<()> {
    let names = named(&args.what)?;
    let kind = Kind::parse(args.what[0].split('/').next().unwrap_or_default())?;
    if names.iter().any(|one| one.kind != kind) {
        return Err(Failure::Usage("objects of one kind at a time".into()).into());
    }
    match kind {
        Kind::Proxies => show::<Proxy>(&args, &names, kind, proxies_as).await,
        Kind::Providers => show::<Provider>(&args, &names, kind, providers_as).await,
        Kind::Events => {
            let events: Vec<Event> = read(&args.target.data, "events").await?;
            match args.output.as_str() {
                "name" => Err(Failure::Usage("events have no names: use -o table, wide, yaml or json".into()).into()),
                "json" | "yaml" => document(&args.output, &events),
                _ => {
                    println!("{}", event_table(&events));
                    Ok(())
                }
            }
        }
    }
}

fn proxies_as(proxies: &[Proxy], wide: bool) -> Table {
    if wide { wide_proxy_table(proxies) } else { proxy_table(proxies) }
}

fn providers_as(providers: &[Provider], _: bool) -> Table {
    provider_table(providers)
}

async fn show<T: ResourceExt + Serialize + DeserializeOwned>(
    args: &GetArgs,
    names: &[Named],
    kind: Kind,
    table: fn(&[T], bool) -> Table,
) -> anyhow::Result<()> {
    let mut all: Vec<T> = read(&args.target.data, kind.plural()).await?;
    let by_name = (!names.is_empty() && !args.all_namespaces).then_some("default");
    if let Some(namespace) = args.namespace.as_deref().or(by_name) {
        all.retain(|object| is_in(object, namespace));
    }
    for one in names {
        let namespace = args.namespace.as_deref().unwrap_or("default");
        anyhow::ensure!(all.iter().any(|object| object.name_any() == one.name), not_found(one, namespace));
    }
    all.retain(|object| {
        let meant = names.is_empty() || names.iter().any(|one| one.name == object.name_any());
        meant && args.selector.as_ref().is_none_or(|selector| selector.fits(object.labels()))
    });
    all.sort_by_key(|object| (object.namespace(), object.name_any()));
    match args.output.as_str() {
        "name" => all.iter().for_each(|object| println!("{}/{}", kind.singular(), object.name_any())),
        output @ ("json" | "yaml") => match all.as_slice() {
            [one] if names.len() == 1 => document(output, one)?,
            several => document(output, &several)?,
        },
        _ if all.is_empty() => eprintln!("no {} found", kind.plural()),
        output => println!("{}", table(&all, output == "wide")),
    }
    Ok(())
}

fn document(format: &str, value: &impl Serialize) -> anyhow::Result<()> {
    if format == "json" {
        println!("{}", serde_json::to_string_pretty(value)?);
    } else {
        // By way of JSON, so that both show the same fields.
        println!("{}", serde_saphyr::to_string(&serde_json::to_value(value)?)?.trim_end());
    }
    Ok(())
}

pub(super) async fn delete(args: DeleteArgs) -> anyhow::Result<()> {
    let args = args.chosen;
    for one in args.names("to be deleted")? {
        let path = match one.kind {
            Kind::Proxies => format!("proxies/{}/{}", args.namespace, one.name),
            _ => format!("{}/{}", one.kind.plural(), one.name),
        };
        let (status, answer) = ask(&args.target.data, Method::DELETE, &path).await?;
        if status == StatusCode::NOT_FOUND {
            return Err(not_found(&one, &args.namespace));
        }
        expect(status, StatusCode::ACCEPTED, &answer)?;
        println!("{} {:?} is being deleted", one.kind.singular(), one.name);
    }
    Ok(())
}

pub(super) async fn events(args: EventsArgs) -> anyhow::Result<()> {
    let mut events: Vec<Event> = read(&args.target.data, "events").await?;
    if let Some(of) = args.of {
        let [one] = named(&[of])?.try_into().map_err(|_| Failure::Usage("--for takes KIND/NAME".into()))?;
        events.retain(|event| is_about(event, &one, &args.namespace));
    }
    if events.is_empty() {
        eprintln!("no events found");
    } else {
        println!("{}", event_table(&events));
    }
    Ok(())
}

pub(super) fn is_about(event: &Event, object: &Named, namespace: &str) -> bool {
    match &event.regarding {
        Regarding::Proxy(key) => object.kind == Kind::Proxies && key.name == object.name && key.namespace == namespace,
        Regarding::Provider(name) => object.kind == Kind::Providers && *name == object.name,
        Regarding::Manifest(_) | Regarding::ConfigMap(_) => false,
    }
}

/// One object, whole.
pub(super) async fn object(target: &Target, one: &Named, namespace: &str) -> anyhow::Result<Option<Value>> {
    let all: Vec<Value> = read(&target.data, one.kind.plural()).await?;
    let at = |object: &Value, pointer| object.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    Ok(all.into_iter().find(|object| {
        at(object, "/metadata/name").as_deref() == Some(&one.name)
            && at(object, "/metadata/namespace").is_none_or(|of| of == namespace)
    }))
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

fn wide_proxy_table(proxies: &[Proxy]) -> Table {
    let header = ["NAMESPACE", "NAME", "READY", "PROVIDER", "LOCATION", "ADDRESS", "EXIT-IP", "REASON", "LABELS"];
    let mut table = table(&header);
    for proxy in proxies {
        let status = proxy.status.clone().unwrap_or_default();
        let (ready, reason) = ready(&status.conditions);
        table.add_row([
            proxy.namespace().unwrap_or_default(),
            proxy.name_any(),
            ready,
            proxy.spec.provider.clone(),
            proxy.spec.location.clone().unwrap_or_default(),
            status.address.unwrap_or_default(),
            status.exit_ip.unwrap_or_default(),
            reason,
            label_list(proxy.labels()),
        ]);
    }
    table
}

fn label_list(labels: &BTreeMap<String, String>) -> String {
    labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
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

pub(super) fn event_table(events: &[Event]) -> Table {
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

pub(super) fn word(status: Status) -> &'static str {
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
