//! Its `get` sends the one request that its config describes, and tells what came of it in the instance's message:
//!
//! `{"http": {"connection", "method", "path", "headers": {NAME: VALUE}, "body": BYTES, "timeoutMs"}}`: the answer's status,
//! headers by name, and body, as JSON. `body` is a number: that many bytes are sent.

use crawl_provider_sdk::bindings::crawl::provider::http as host;
use crawl_provider_sdk::*;
use serde_json::{Value, json};
use test_guests::{Fixture, Guest, instance};

struct Fetch;

impl Fixture for Fetch {
    const NAME: &'static str = "fetch";

    fn get(config: &str, identity: &Identity) -> Result<Presence, Error> {
        let config: Value = parse_config(config)?;
        let told = send(&config["http"])?;
        let mut found = instance(Self::NAME, identity);
        found.message = Some(told);
        Ok(Presence::Present(found))
    }
}

fn send(wish: &Value) -> Result<String, Error> {
    let method = text(&wish["method"], "GET");
    let headers = wish["headers"].as_object().into_iter().flatten();
    let request = host::HttpRequest {
        path: text(&wish["path"], "/"),
        query: vec![],
        headers: headers.map(|(name, value)| (name.clone(), text(value, "").into_bytes())).collect(),
        body: wish["body"].as_u64().map(|bytes| vec![b'x'; bytes as usize]),
        timeout_ms: wish["timeoutMs"].as_u64().unwrap_or(60_000) as u32,
        method: method.clone(),
    };
    let answer = host::send(&text(&wish["connection"], "cloud"), &request)
        .map_err(|fault| Error::from_fault(&fault, method != "GET"))?;
    let headers: serde_json::Map<_, _> =
        answer.headers.into_iter().map(|(name, value)| (name, String::from_utf8_lossy(&value).into())).collect();
    let body = String::from_utf8_lossy(&answer.body).into_owned();
    Ok(json!({"status": answer.status, "headers": headers, "body": body}).to_string())
}

fn text(value: &Value, default: &str) -> String {
    value.as_str().unwrap_or(default).to_owned()
}

export_provider!(Guest<Fetch>);
