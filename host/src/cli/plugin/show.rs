//! Answers of a plugin as documents, in the contract's words.

use serde_json::{Map, Value, json};

use crate::model::error::{CallError, ErrorKind, FieldError};
use crate::model::instance::{Deletion, Description, Finding, Instance, Presence, State};

/// An object without what is not there.
fn object(fields: Value) -> Value {
    match fields {
        Value::Object(fields) => {
            let there = |value: &Value| !value.is_null() && !value.as_array().is_some_and(Vec::is_empty);
            Value::Object(fields.into_iter().filter(|(_, value)| there(value)).collect::<Map<_, _>>())
        }
        other => other,
    }
}

pub(super) fn instance(instance: &Instance) -> Value {
    let why = match &instance.state {
        State::Failed(why) | State::Unknown(why) => Some(why),
        _ => None,
    };
    let addresses = instance
        .addresses
        .iter()
        .map(|address| json!({"host": address.host, "reach": if address.external { "external" } else { "internal" }}));
    let owner = instance.owner.as_ref().map(|owner| {
        json!({"installation": owner.installation, "proxy-uid": owner.proxy_uid, "namespace": owner.namespace, "name": owner.name})
    });
    object(json!({
        "state": instance.state.to_string(),
        "why": why,
        "provider-id": instance.provider_id,
        "backend-id": instance.backend_id,
        "placement": instance.placement,
        "addresses": addresses.collect::<Vec<_>>(),
        "port": instance.port,
        "owner": owner,
        "incarnation": instance.incarnation,
        "message": instance.message,
        "login-secret": instance.login_secret,
        "poll-after-ms": instance.poll_after.map(|after| after.as_millis() as u64),
        "continuation": instance.continuation,
    }))
}

pub(super) fn presence(presence: &Presence) -> Value {
    match presence {
        Presence::Present(found) => json!({"present": instance(found)}),
        Presence::Absent => json!("absent"),
    }
}

pub(super) fn deletion(deletion: &Deletion) -> Value {
    match deletion {
        Deletion::Gone => json!("gone"),
        Deletion::InProgress { message, poll_after, continuation } => json!({"in-progress": object(json!({
            "message": message,
            "poll-after-ms": poll_after.map(|after| after.as_millis() as u64),
            "continuation": continuation,
        }))}),
    }
}

pub(super) fn finding(finding: &Finding) -> Value {
    json!({"target": finding.target, "healthy": finding.healthy, "reason": finding.reason, "message": finding.message})
}

pub(super) fn description(said: &Description) -> Value {
    let needs = said
        .connections
        .iter()
        .map(|need| json!({"name": need.name, "kind": need.kind, "required": need.required, "doc": need.doc}));
    object(json!({
        "name": said.name,
        "version": said.version,
        "summary": said.summary,
        "config-schema": said.config_schema,
        "parameters-schema": said.parameters_schema,
        "connections": needs.collect::<Vec<_>>(),
        "connection-pointers": said.connection_pointers,
        "capabilities": said.capabilities,
    }))
}

pub(super) fn error(error: &CallError) -> Value {
    let (seconds, fields) = match &error.kind {
        ErrorKind::RateLimited(after) => (after.map(|after| after.as_secs()), vec![]),
        ErrorKind::InvalidSpec(fields) => (None, fields.iter().map(field).collect()),
        _ => (None, vec![]),
    };
    object(json!({
        "kind": error.kind.label(),
        "reason": error.reason,
        "message": error.message,
        "target": error.target,
        "seconds": seconds,
        "fields": fields,
        "continuation": error.continuation,
    }))
}

fn field(field: &FieldError) -> Value {
    json!({"pointer": field.pointer, "message": field.message})
}
