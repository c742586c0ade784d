//! What is shown as tables.

use std::collections::BTreeMap;

use comfy_table::{ContentArrangement, Table, presets};
use kube::ResourceExt;

use crate::model::condition::{Condition, Status, find};
use crate::model::provider::Provider;
use crate::model::proxy::Proxy;
use crate::store::Event;

/// The columns that `kubectl get proxies` shows.
pub(super) fn proxy_table(proxies: &[Proxy], wide: bool) -> Table {
    if wide {
        return wide_proxy_table(proxies);
    }
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

pub(super) fn provider_table(providers: &[Provider], _wide: bool) -> Table {
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
