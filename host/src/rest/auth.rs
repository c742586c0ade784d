//! Who may call: bearer tokens, kept as SHA-256 in labelled Secrets or in the files of `--token-dir`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::AUTHORIZATION;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::Api;
use super::problem::Problem;
use crate::model::API_TOKEN_LABEL;
use crate::model::login::base62;
use crate::model::manifest::{Manifest, parse};
use crate::model::metrics::METRICS;
use crate::model::secret::SecretBytes;
use crate::model::span::Span;
use crate::model::spec_hash::hex;
use crate::store::{LabelledSecret, Store};

/// Longest TTL of a lease, where the token names none.
const MAX_TTL: Duration = Duration::from_secs(3600);
/// Leases at once, where the token names no number.
const MAX_LEASES: usize = 1000;
/// A wrong credential is answered this much later: guessing is slow, and costs nobody else anything.
const PENALTY: Duration = Duration::from_millis(250);

/// What a token allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// See proxies and providers.
    Read,
    /// Lease proxies.
    Allocate,
    /// See and end leases of others.
    Admin,
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "read" => Ok(Self::Read),
            "allocate" => Ok(Self::Allocate),
            "admin" => Ok(Self::Admin),
            other => Err(format!("{other:?} is no scope; scopes are read, allocate and admin")),
        }
    }
}

/// A caller whose token was right.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The token's name: leases belong to it, so that a rotated token loses none.
    pub name: String,
    /// What it allows.
    pub scopes: Vec<Scope>,
    /// Namespaces whose proxies it may use.
    pub namespaces: Vec<String>,
    /// Longest TTL.
    pub max_ttl: Duration,
    /// Leases at once.
    pub max_leases: usize,
}

impl Caller {
    /// Refuses a caller whose token lacks a scope.
    ///
    /// # Errors
    /// 403, naming the scope.
    pub fn needs(&self, scope: Scope) -> Result<(), Problem> {
        if self.scopes.contains(&scope) || self.scopes.contains(&Scope::Admin) {
            return Ok(());
        }
        let detail = format!("token {} lacks the scope {scope:?}", self.name).to_lowercase();
        Err(Problem::new(StatusCode::FORBIDDEN, "forbidden", detail))
    }

    /// Whose leases it sees: its own, or everybody's (none).
    pub fn subject(&self, everybody: bool) -> Option<&str> {
        (!everybody || !self.scopes.contains(&Scope::Admin)).then_some(self.name.as_str())
    }
}

struct Token {
    sha256: [u8; 32],
    expires: Option<Timestamp>,
    caller: Caller,
}

/// All tokens.
pub struct Tokens {
    store: Arc<dyn Store>,
    dir: Option<PathBuf>,
}

impl Tokens {
    /// Those of the store's labelled Secrets, and those in `dir`.
    pub fn new(store: Arc<dyn Store>, dir: Option<PathBuf>) -> Self {
        Self { store, dir }
    }

    /// The caller that a token names.
    pub async fn check(&self, presented: &str, now: Timestamp) -> Option<Caller> {
        let digest: [u8; 32] = Sha256::digest(presented.as_bytes()).into();
        let mut found = None;
        // Every token is compared, in constant time: how long it takes tells nothing.
        for token in self.all().await {
            let same = bool::from(token.sha256.ct_eq(&digest));
            if same && token.expires.is_none_or(|at| at > now) {
                found = Some(token.caller);
            }
        }
        found
    }

    async fn all(&self) -> Vec<Token> {
        let mut secrets = self.store.token_secrets().await.unwrap_or_else(|error| {
            tracing::warn!(%error, "API tokens cannot be read");
            vec![]
        });
        secrets.extend(self.dir.as_deref().map(read_dir).unwrap_or_default());
        let read = |secret: &LabelledSecret| {
            read(secret).inspect_err(|problem| tracing::warn!(secret = %secret.name, "no API token: {problem}")).ok()
        };
        secrets.iter().filter_map(read).collect()
    }
}

/// Secrets of the files in a folder; a wrong file is passed over with a warning.
fn read_dir(dir: &Path) -> Vec<LabelledSecret> {
    let entries = std::fs::read_dir(dir)
        .map(|entries| entries.filter_map(Result::ok).map(|e| e.path()).collect())
        .unwrap_or_else(|error| {
            tracing::warn!(dir = %dir.display(), %error, "the token folder cannot be read");
            Vec::new()
        });
    let mut secrets = Vec::new();
    for path in entries.into_iter().filter(|p: &PathBuf| p.extension().is_some_and(|e| e == "yaml" || e == "yml")) {
        let manifests = std::fs::read_to_string(&path)
            .map_err(|e| e.to_string())
            .and_then(|text| parse(&text).map_err(|e| e.to_string()));
        match manifests {
            Ok(manifests) => secrets.extend(manifests.into_iter().filter_map(|m| match m {
                Manifest::Secret(s) if s.labels.get(API_TOKEN_LABEL).is_some_and(|v| v == "true") => {
                    Some(LabelledSecret { name: s.name, data: s.data })
                }
                _ => None,
            })),
            Err(error) => tracing::warn!(path = %path.display(), %error, "a token file is passed over"),
        }
    }
    secrets
}

fn read(secret: &LabelledSecret) -> Result<Token, String> {
    let field =
        |key: &str| secret.data.get(key).and_then(SecretBytes::expose_line).map(str::trim).filter(|v| !v.is_empty());
    let list = |key: &str| {
        field(key).map(|v| v.split(',').map(|p| p.trim().to_owned()).collect::<Vec<_>>()).unwrap_or_default()
    };
    let digest =
        field("sha256").ok_or("the key sha256 is missing; `proxy-operator token create` writes such Secrets")?;
    let sha256 = unhex(digest).ok_or("sha256 must be 64 hexadecimal digits")?;
    let expires = field("expires")
        .map(|v| v.parse().map_err(|_| "expires must be a date such as 2030-01-31T00:00:00Z"))
        .transpose()?;
    let max_ttl = field("maxTtl").map(|v| v.parse::<Span>().map_err(|e| format!("maxTtl: {e}"))).transpose()?;
    let max_leases = field("maxLeases").map(|v| v.parse().map_err(|_| "maxLeases must be a number")).transpose()?;
    let caller = Caller {
        name: secret.name.clone(),
        scopes: list("scopes").iter().map(|s| s.parse()).collect::<Result<_, String>>()?,
        namespaces: list("namespaces"),
        max_ttl: max_ttl.map_or(MAX_TTL, Span::duration),
        max_leases: max_leases.unwrap_or(MAX_LEASES),
    };
    Ok(Token { sha256, expires, caller })
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect();
    let bytes: Vec<u8> = digits?.chunks(2).map(|pair| pair[0] << 4 | pair.get(1).copied().unwrap_or(0)).collect();
    (text.len() == 64).then(|| bytes.try_into().ok()).flatten()
}

/// A new token, and the Secret that lets it in.
pub struct NewToken {
    /// The token itself, shown once.
    pub token: String,
    /// The Secret's manifest, which holds only its digest.
    pub manifest: String,
}

/// Makes a token.
pub fn mint(
    name: &str,
    namespace: &str,
    scopes: &[Scope],
    namespaces: &[String],
    expires: Option<Timestamp>,
) -> NewToken {
    let token = format!("pxo_{}", base62(&rand::random(), 43));
    let digest = hex(&Sha256::digest(token.as_bytes()));
    let scopes: Vec<String> = scopes.iter().map(|s| format!("{s:?}").to_lowercase()).collect();
    let mut data =
        BTreeMap::from([("sha256", digest), ("scopes", scopes.join(",")), ("namespaces", namespaces.join(","))]);
    if let Some(expires) = expires {
        data.insert("expires", expires.to_string());
    }
    let data: String = data.iter().map(|(key, value)| format!("  {key}: {value:?}\n")).collect();
    let manifest = format!(
        "apiVersion: v1\nkind: Secret\nmetadata:\n  name: {name}\n  namespace: {namespace}\n  labels:\n    {API_TOKEN_LABEL}: \"true\"\nstringData:\n{data}"
    );
    NewToken { token, manifest }
}

/// Lets nobody by without a token.
pub async fn require(State(api): State<Api>, mut request: Request, next: Next) -> Response {
    let presented = request.headers().get(AUTHORIZATION).and_then(|v| v.to_str().ok());
    let token = presented
        .and_then(|v| v.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, t)| t.trim().to_owned());
    let caller = match token {
        Some(token) => api.tokens.check(&token, api.clock.wall()).await,
        None => None,
    };
    match caller {
        Some(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        None => {
            METRICS.rest_unauthorized.inc();
            tokio::time::sleep(PENALTY).await;
            let detail = "send `Authorization: Bearer TOKEN` with a token that is valid; `proxy-operator token create` makes one";
            Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", detail).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret_of(manifest: &str) -> LabelledSecret {
        match parse(manifest).unwrap().remove(0) {
            Manifest::Secret(s) => LabelledSecret { name: s.name, data: s.data },
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_minted_token_is_let_in_by_its_manifest_which_does_not_hold_it() {
        let new = mint("crawler", "ops", &[Scope::Read, Scope::Allocate], &["a".into(), "b".into()], None);
        assert!(!new.manifest.contains(&new.token));
        let token = read(&secret_of(&new.manifest)).unwrap();
        assert_eq!(token.sha256, <[u8; 32]>::from(Sha256::digest(new.token.as_bytes())));
        assert_eq!((token.caller.name.as_str(), token.caller.namespaces.len()), ("crawler", 2));
        assert!(token.caller.needs(Scope::Allocate).is_ok() && token.caller.needs(Scope::Admin).is_err());
    }

    #[test]
    fn wrong_tokens_say_what_is_wrong() {
        let good = mint("t", "ops", &[Scope::Read], &["a".into()], None).manifest;
        for (from, to, expected) in [
            ("sha256", "sha265", "sha256 is missing"),
            ("\"read\"", "\"rread\"", "is no scope"),
            ("stringData:\n", "stringData:\n  maxTtl: soon\n", "maxTtl"),
            ("stringData:\n", "stringData:\n  expires: soon\n", "expires must be"),
        ] {
            let error = read(&secret_of(&good.replace(from, to))).err().unwrap();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn only_whole_digests_are_read() {
        assert!(unhex(&"ab".repeat(32)).is_some());
        for text in ["", "ab", &"ab".repeat(33), &"zz".repeat(32)] {
            assert!(unhex(text).is_none());
        }
    }
}
