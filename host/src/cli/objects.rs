//! `get`, `delete` and their kin: objects of a standalone operator, over the socket in its data folder.

use clap::Args;
use comfy_table::Table;
use kube::ResourceExt;
use reqwest::{Method, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::client::{Failure, Target, ask, expect, read, tell};
use super::selector::Selector;
use super::tables::{event_table, provider_table, proxy_table};
use crate::model::provider::Provider;
use crate::model::proxy::Proxy;
use crate::store::{Event, Regarding};

/// What there is a list of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Proxies,
    Providers,
    Events,
    /// They are deleted, and never shown.
    Secrets,
}

impl Kind {
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        Ok(match text {
            "proxies" | "proxy" | "px" => Self::Proxies,
            "providers" | "provider" | "pxp" => Self::Providers,
            "events" | "event" => Self::Events,
            "secrets" | "secret" => Self::Secrets,
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
            Self::Secrets => "secrets",
        }
    }

    pub fn singular(self) -> &'static str {
        match self {
            Self::Proxies => "proxy",
            Self::Providers => "provider",
            Self::Events => "event",
            Self::Secrets => "secret",
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
pub(super) fn named(words: &[String]) -> anyhow::Result<Vec<Named>> {
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
            return Err(nothing_named(what));
        }
        no_secrets(&names)?;
        Ok(names)
    }
}

/// `what` is done with what should have been named.
pub(super) fn nothing_named(what: &str) -> anyhow::Error {
    Failure::Usage(format!("name what is {what}: KIND NAME… or KIND/NAME…")).into()
}

fn no_secrets(names: &[Named]) -> anyhow::Result<()> {
    let secret = names.iter().any(|one| one.kind == Kind::Secrets);
    if secret { Err(Failure::Usage("Secrets are never shown".into()).into()) } else { Ok(()) }
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
    let lists = match kind {
        Kind::Secrets => String::new(),
        kind => format!("; `proxy-operator get {}` lists them", kind.plural()),
    };
    anyhow::anyhow!("there is no {} {name:?}{place}{lists}", kind.singular())
}

pub(super) async fn get(args: GetArgs) -> anyhow::Result<()> {
    let names = named(&args.what)?;
    let kind = Kind::parse(args.what[0].split('/').next().unwrap_or_default())?;
    if names.iter().any(|one| one.kind != kind) {
        return Err(Failure::Usage("objects of one kind at a time".into()).into());
    }
    match kind {
        Kind::Proxies => show::<Proxy>(&args, &names, kind, proxy_table).await,
        Kind::Providers => show::<Provider>(&args, &names, kind, provider_table).await,
        Kind::Secrets => Err(Failure::Usage("Secrets are never shown".into()).into()),
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
    let path = match one.kind {
        Kind::Proxies => format!("proxies/{namespace}/{}", one.name),
        kind => format!("{}/{}", kind.plural(), one.name),
    };
    let (status, answer) = ask(&target.data, Method::GET, &path).await?;
    if status == StatusCode::NOT_FOUND {
        return Ok(None);
    }
    expect(status, StatusCode::OK, &answer)?;
    Ok(Some(answer))
}
