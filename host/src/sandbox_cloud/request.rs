//! What clients send, read within bounds and checked before anything happens.

use std::error::Error as _;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use http_body_util::LengthLimitError;
use serde::{Deserialize, Deserializer};
use tokio::time::timeout;

use super::error::ApiError;
use super::instance::Owner;
use super::{BOOT, REQUEST_DEADLINE};
use crate::forward_proxy::{self, Login, Protocol, Target};

/// The largest body that is read.
pub(super) const MAX_BODY: usize = 64 * 1024;

/// The longest time that anything can be told to take: a day.
pub(super) const MAX_MILLIS: u64 = 24 * 60 * 60 * 1000;

/// The longest name, hash or id: that of a DNS name, which is what Kubernetes allows its names.
const MAX_TEXT: usize = 253;

const MAX_ALLOWED_TARGETS: usize = 64;

/// Reads a body as JSON.
pub(super) async fn read_json<T: for<'de> Deserialize<'de>>(body: Body) -> Result<T, ApiError> {
    let read = timeout(REQUEST_DEADLINE, to_bytes(body, MAX_BODY)).await;
    let bytes = match read {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(error)) if error.source().is_some_and(|cause| cause.is::<LengthLimitError>()) => {
            return Err(ApiError::TooLarge);
        }
        Ok(Err(error)) => return Err(ApiError::Invalid(format!("the body broke off: {error}"))),
        Err(_) => return Err(ApiError::TooSlow),
    };
    serde_json::from_slice(&bytes)
        .map_err(|error| ApiError::Invalid(format!("the body is not what is expected: {error}")))
}

/// The body of a create, as it is sent.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct CreateBody {
    owner: Owner,
    incarnation: u64,
    spec_hash: String,
    protocol: Protocol,
    username: Option<String>,
    #[serde(default, deserialize_with = "secret_text")]
    password: Option<String>,
    #[serde(default)]
    allow_targets: Vec<String>,
    boot_ms: Option<u64>,
}

/// serde's own message would show the value that is not a text, and the password never comes back.
fn secret_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    match serde_json::Value::deserialize(deserializer)? {
        serde_json::Value::Null => Ok(None),
        serde_json::Value::String(text) => Ok(Some(text)),
        _ => Err(serde::de::Error::custom("password must be a text")),
    }
}

/// What is to be made: a create that makes sense.
pub(super) struct Order {
    pub(super) owner: Owner,
    pub(super) incarnation: u64,
    pub(super) spec_hash: String,
    /// What the instance runs.
    pub(super) proxy: forward_proxy::Options,
    pub(super) boot: Duration,
}

impl Order {
    /// Checks a create of `name`.
    pub(super) fn new(name: &str, body: CreateBody) -> Result<Self, ApiError> {
        if !is_label(name) {
            let rule = "a name has 1 to 63 of a-z, 0-9 and '-', and neither begins nor ends with '-'";
            return Err(ApiError::Invalid(format!("{name:?}: {rule}")));
        }
        let owner = body.owner;
        for (field, text, needed) in [
            ("owner.installation", &owner.installation, true),
            ("owner.proxyUid", &owner.proxy_uid, true),
            ("owner.namespace", &owner.namespace, false),
            ("owner.name", &owner.name, false),
            ("specHash", &body.spec_hash, false),
        ] {
            if text.len() > MAX_TEXT || (needed && text.is_empty()) {
                let least = usize::from(needed);
                return Err(ApiError::Invalid(format!("{field} must have {least} to {MAX_TEXT} bytes")));
            }
        }
        if body.allow_targets.len() > MAX_ALLOWED_TARGETS {
            let text = format!("allowTargets must be at most {MAX_ALLOWED_TARGETS}");
            return Err(ApiError::Invalid(text));
        }
        let mut proxy = forward_proxy::Options::new(body.protocol);
        proxy.login = login(body.username, body.password)?;
        proxy.allow_targets = body
            .allow_targets
            .iter()
            .map(|text| text.parse::<Target>())
            .collect::<Result<_, _>>()
            .map_err(|error| ApiError::Invalid(format!("allowTargets: {error}")))?;
        let boot = match body.boot_ms {
            Some(millis) if millis > MAX_MILLIS => {
                return Err(ApiError::Invalid(format!("bootMs must be at most {MAX_MILLIS}")));
            }
            Some(millis) => Duration::from_millis(millis),
            None => BOOT,
        };
        Ok(Self { owner, incarnation: body.incarnation, spec_hash: body.spec_hash, proxy, boot })
    }
}

/// A login that both protocols can carry, or none.
fn login(username: Option<String>, password: Option<String>) -> Result<Option<Login>, ApiError> {
    let (username, password) = match (username, password) {
        (None, None) => return Ok(None),
        (Some(username), Some(password)) => (username, password),
        _ => {
            let text = "username and password go together: give both, or neither for an open proxy";
            return Err(ApiError::Invalid(text.to_owned()));
        }
    };
    // 255 is what a SOCKS5 client can send (RFC 1929 §2).
    let fits = |text: &str| (1..=255).contains(&text.len()) && !text.chars().any(char::is_control);
    if !fits(&username) || !fits(&password) {
        let text = "username and password have 1 to 255 bytes each and no control characters";
        return Err(ApiError::Invalid(text.to_owned()));
    }
    if username.contains(':') {
        return Err(ApiError::Invalid("username must not contain ':'".to_owned()));
    }
    Ok(Some(Login { username, password }))
}

/// A DNS label (RFC 1123 §2.1).
fn is_label(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&name.len()) && name.bytes().all(plain) && !name.starts_with('-') && !name.ends_with('-')
}
