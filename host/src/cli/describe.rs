//! `describe`: one object, its conditions and what happened to it.

use clap::Args;
use serde_json::Value;

use super::client::{Target, read};
use super::named::{Kind, not_found};
use super::objects::{Chosen, is_about, object};
use super::tables::{event_table, table, word};
use crate::model::condition::Condition;
use crate::store::Event;

/// Show an object
#[derive(Args)]
#[command(after_help = "Example:\n  proxy-operator describe px/berlin pxp/demo")]
pub(super) struct DescribeArgs {
    #[command(flatten)]
    chosen: Chosen<Target>,
}

pub(super) async fn describe(args: DescribeArgs) -> anyhow::Result<()> {
    let args = args.chosen;
    let names = args.names("to be described")?;
    let events: Vec<Event> = read(&args.target.data, "events").await?;
    let mut parts = Vec::new();
    for one in names {
        let found = object(&args.target, &one, &args.namespace).await?;
        let found = found.ok_or_else(|| not_found(&one, &args.namespace))?;
        let its = events.iter().filter(|event| is_about(event, &one, &args.namespace)).cloned();
        parts.push(text(&found, one.kind, &its.collect::<Vec<_>>())?);
    }
    print!("{}", parts.join("\n"));
    Ok(())
}

fn text(object: &Value, kind: Kind, events: &[Event]) -> anyhow::Result<String> {
    let mut text = String::new();
    let mut line = |key: &str, value: Option<&Value>| {
        let value = match value {
            None | Some(Value::Null) => return,
            Some(Value::String(value)) => value.clone(),
            Some(value) => value.to_string(),
        };
        text.push_str(&format!("{:<14}{value}\n", format!("{key}:")));
    };
    line("Name", object.pointer("/metadata/name"));
    line("Namespace", object.pointer("/metadata/namespace"));
    line("Labels", object.pointer("/metadata/labels"));
    line("Created", object.pointer("/metadata/creationTimestamp"));
    line("Deleted", object.pointer("/metadata/deletionTimestamp"));
    match kind {
        Kind::Proxies => {
            line("Address", object.pointer("/status/address"));
            line("Exit IP", object.pointer("/status/exitIP"));
            line("Rebuilds", object.pointer("/status/rebuilds"));
        }
        Kind::Providers | Kind::Events | Kind::Secrets => line("Proxies", object.pointer("/status/proxies")),
    }
    for (head, pointer) in [
        ("Spec", "/spec"),
        ("Plugin", "/status/plugin"),
        ("Instance", "/status/instance"),
        ("Next instance", "/status/next"),
        ("Targets", "/status/targets"),
    ] {
        let filled = |value: &&Value| !value.is_null() && !value.as_array().is_some_and(Vec::is_empty);
        if let Some(value) = object.pointer(pointer).filter(filled) {
            section(&mut text, head, &serde_saphyr::to_string(value)?);
        }
    }
    let conditions = object.pointer("/status/conditions").cloned().unwrap_or(Value::Array(vec![]));
    let conditions: Vec<Condition> = serde_json::from_value(conditions)?;
    let mut rows = table(&["TYPE", "STATUS", "SINCE", "REASON", "MESSAGE"]);
    for one in &conditions {
        let since = one.last_transition_time.to_string();
        rows.add_row([one.type_.clone(), word(one.status).to_owned(), since, one.reason.clone(), one.message.clone()]);
    }
    section(&mut text, "Conditions", &if conditions.is_empty() { "none".into() } else { rows.to_string() });
    section(&mut text, "Events", &if events.is_empty() { "none".into() } else { event_table(events).to_string() });
    Ok(text)
}

fn section(text: &mut String, head: &str, body: &str) {
    text.push_str(&format!("{head}:\n"));
    for line in body.trim_end().lines() {
        text.push_str(&format!("  {}\n", line.trim_end()));
    }
}
