//! Objects of a standalone operator by name, and what happened to them, over the socket in its data folder.

use clap::Args;
use reqwest::{Method, StatusCode};
use serde_json::Value;

use super::client::{Failure, Target, ask, expect, read, tell};
use super::named::{Kind, Named, named, no_secrets, nothing_named};
use super::tables::event_table;
use crate::store::{Event, Regarding};

/// Objects by name, and where the operator is.
#[derive(Args)]
pub(super) struct Chosen<T: Args> {
    /// KIND NAME… or KIND/NAME…
    #[arg(required = true, value_name = "WHAT")]
    what: Vec<String>,
    /// Its namespace
    #[arg(long, short, default_value = "default")]
    pub namespace: String,
    #[command(flatten)]
    pub target: T,
}

impl<T: Args> Chosen<T> {
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

/// Show what happened
#[derive(Args)]
#[command(after_help = "Examples:\n  proxy-operator events\n  proxy-operator events --for px/berlin -n crawl")]
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
#[command(after_help = "Examples:\n  proxy-operator log debug\n  proxy-operator log info,proxy_operator::plugin=trace")]
pub(super) struct LogArgs {
    /// Written as for `run --log`, in whose place it comes until the operator ends
    filter: String,
    #[command(flatten)]
    target: Target,
}

pub(super) async fn log(args: LogArgs) -> anyhow::Result<()> {
    let (status, answer) = tell(&args.target.data, Method::PUT, "log", args.filter).await?;
    expect(status, StatusCode::NO_CONTENT, &answer)
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
