//! What is shown as tables. Objects come as JSON, from the socket or from REST.

use comfy_table::{ContentArrangement, Table, presets};
use serde_json::Value;

use super::named::Kind;
use crate::model::condition::Status;
use crate::store::Event;

const PROXIES: [&str; 6] = ["NAMESPACE", "NAME", "READY", "PROVIDER", "ADDRESS", "REASON"];
const WIDE_PROXIES: [&str; 9] =
    ["NAMESPACE", "NAME", "READY", "PROVIDER", "LOCATION", "ADDRESS", "EXIT-IP", "REASON", "LABELS"];
const PROVIDERS: [&str; 6] = ["NAME", "READY", "PLUGIN", "VERSION", "REASON", "PROXIES"];

/// The columns of a kind: those that `kubectl get` shows.
pub(super) fn header(kind: Kind, wide: bool) -> &'static [&'static str] {
    match kind {
        Kind::Proxies if wide => &WIDE_PROXIES,
        Kind::Proxies => &PROXIES,
        _ => &PROVIDERS,
    }
}

/// The cells of an object.
pub(super) fn row(kind: Kind, object: &Value, wide: bool) -> Vec<String> {
    let at = |pointer: &str| text(object, pointer);
    let (ready, reason) = ready(object);
    let (namespace, name) = (at("/metadata/namespace"), at("/metadata/name"));
    let (provider, address) = (at("/spec/provider"), at("/status/address"));
    match kind {
        Kind::Proxies if wide => {
            let (location, exit) = (at("/spec/location"), at("/status/exitIP"));
            vec![namespace, name, ready, provider, location, address, exit, reason, labels(object)]
        }
        Kind::Proxies => vec![namespace, name, ready, provider, address, reason],
        _ => {
            let proxies = object.pointer("/status/proxies").and_then(Value::as_u64).unwrap_or(0);
            let (plugin, version) = (at("/spec/plugin/name"), at("/status/plugin/version"));
            vec![name, ready, plugin, version, reason, proxies.to_string()]
        }
    }
}

/// A table of objects.
pub(super) fn object_table(kind: Kind, objects: &[Value], wide: bool) -> Table {
    let mut table = table(header(kind, wide));
    table.add_rows(objects.iter().map(|object| row(kind, object, wide)));
    table
}

/// A field's text; none is empty.
pub(super) fn text(object: &Value, pointer: &str) -> String {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// The condition Ready.
pub(super) fn ready_condition(object: &Value) -> Option<&Value> {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().find(|one| one["type"] == "Ready")
}

/// Status and reason of the condition Ready.
pub(super) fn ready(object: &Value) -> (String, String) {
    match ready_condition(object) {
        Some(ready) => (text(ready, "/status"), text(ready, "/reason")),
        None => ("Unknown".to_owned(), String::new()),
    }
}

fn labels(object: &Value) -> String {
    let labels = object.pointer("/metadata/labels").and_then(Value::as_object);
    let pair = |(key, value): (&String, &Value)| format!("{key}={}", value.as_str().unwrap_or_default());
    labels.into_iter().flatten().map(pair).collect::<Vec<_>>().join(",")
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

/// Seconds as kubectl writes ages.
pub(super) fn age(seconds: i64) -> String {
    match seconds.max(0) {
        s if s < 120 => format!("{s}s"),
        s if s < 7200 => format!("{}m", s / 60),
        s if s < 172_800 => format!("{}h", s / 3600),
        s => format!("{}d", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_as_short_as_kubectls() {
        let shown: Vec<_> = [-5, 0, 119, 120, 7199, 7200, 172_800].map(age).into();
        assert_eq!(shown, ["0s", "0s", "119s", "2m", "119m", "2h", "2d"]);
    }
}
