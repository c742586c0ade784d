//! Access tokens of Google: for a service account's key (RFC 7523), or from the metadata server.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures::StreamExt;
use reqwest::{Client, RequestBuilder, Url};
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject as _;
use serde::Deserialize;
use serde_json::json;

use super::origin::{builder, check_literal};
use crate::model::provider::Permit;
use crate::model::secret::SecretBytes;
use crate::plugin::grants::{Token, TokenError};
use crate::plugin::io::address::Guard;

/// What the tokens are for; what they may do is said by the account's roles.
const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";
const TOKEN_URL: &str = "https://oauth2.googleapis.com/token";
const METADATA: &str = "http://metadata.google.internal";
const METADATA_PATH: &str = "/computeMetadata/v1/instance/service-accounts/default/token";
/// How long an assertion is good, and the longest that a token can be asked for.
const LIFETIME_SECS: u64 = 3600;
/// For the answer of a token server.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest answer of a token server.
const ANSWER_BYTES: usize = 64 << 10;

/// What is used of a service account's key file.
pub(super) struct KeyFile {
    email: String,
    key_id: Option<String>,
    pair: RsaKeyPair,
    token_url: Option<String>,
}

#[derive(Deserialize)]
struct KeyFileJson {
    #[serde(default, rename = "type")]
    kind: String,
    client_email: String,
    private_key: String,
    private_key_id: Option<String>,
    token_uri: Option<String>,
}

impl KeyFile {
    /// Reads a key file. The error holds nothing of it.
    pub fn parse(bytes: &SecretBytes) -> Result<Self, &'static str> {
        let file: KeyFileJson = serde_json::from_slice(bytes.expose())
            .map_err(|_| "is no key file of a service account: JSON with client_email and private_key")?;
        if file.kind != "service_account" {
            return Err("is of another type than \"service_account\"; make a key of a service account");
        }
        let pem = SecretBytes::from(file.private_key);
        let bad = "holds a private_key that is no RSA key in PKCS#8 PEM";
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem.expose()).map_err(|_| bad)?;
        let pair = RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()).map_err(|_| bad)?;
        Ok(Self { email: file.client_email, key_id: file.private_key_id, pair, token_url: file.token_uri })
    }

    /// The signed claim that its holder asks for a token, at this endpoint and time.
    fn assertion(&self, audience: &str, now: u64) -> Result<String, TokenError> {
        let mut header = json!({"alg": "RS256", "typ": "JWT"});
        if let Some(id) = &self.key_id {
            header["kid"] = id.as_str().into();
        }
        let claims =
            json!({"iss": self.email, "scope": SCOPE, "aud": audience, "iat": now, "exp": now + LIFETIME_SECS});
        let encode = |part: &serde_json::Value| URL_SAFE_NO_PAD.encode(part.to_string());
        let message = format!("{}.{}", encode(&header), encode(&claims));
        let mut signature = vec![0; self.pair.public().modulus_len()];
        self.pair
            .sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message.as_bytes(), &mut signature)
            .map_err(|_| TokenError::Refused("the service account's key cannot sign".into()))?;
        Ok(format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

/// Where tokens are asked for; apart from the origin, with a client of its own.
pub(super) struct TokenServer {
    client: Client,
    guard: Guard,
    url: Option<Url>,
}

impl TokenServer {
    /// For keys; `url` instead of the one that the key names.
    pub fn for_keys(url: Option<&str>, permit: &[Permit]) -> Result<Self, String> {
        Self::new(url, permit, "http.auth.googleServiceAccount.tokenUrl")
    }

    /// The metadata server; `url` instead of its usual address.
    pub fn metadata(url: Option<&str>, permit: &[Permit]) -> Result<Self, String> {
        let base = url.unwrap_or(METADATA).trim_end_matches('/');
        // It is asked by the host alone, and is at a link-local address.
        let permit: Vec<_> = permit.iter().copied().chain([Permit::LinkLocal]).collect();
        Self::new(Some(&format!("{base}{METADATA_PATH}")), &permit, "http.auth.googleMetadata.url")
    }

    fn new(url: Option<&str>, permit: &[Permit], field: &str) -> Result<Self, String> {
        let guard = Guard::new(permit);
        let client = builder(&guard).build().map_err(|e| format!("no client can be built: {e}"))?;
        let url = url.map(|url| parse(url).map_err(|why| format!("{field} {why}"))).transpose()?;
        Ok(Self { client, guard, url })
    }

    /// Exchanges a signed assertion for a token.
    pub async fn exchange(&self, key: &KeyFile) -> Result<Token, TokenError> {
        let named = key.token_url.as_deref().unwrap_or(TOKEN_URL);
        let url = match &self.url {
            Some(url) => url.clone(),
            None => parse(named).map_err(|why| TokenError::Refused(format!("the key file's token_uri {why}")))?,
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let form = url::form_urlencoded::Serializer::new(String::new())
            .append_pair("grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer")
            .append_pair("assertion", &key.assertion(url.as_str(), now)?)
            .finish();
        let request =
            self.client.post(url.clone()).header("content-type", "application/x-www-form-urlencoded").body(form);
        let who = format!("a token for {}", key.email);
        self.ask(&url, request, &who, "check the key in the Google console, and this machine's clock").await
    }

    /// The token of the account that this machine runs as.
    pub async fn of_machine(&self) -> Result<Token, TokenError> {
        let Some(url) = &self.url else { return Err(TokenError::Refused("no metadata server is named".into())) };
        let request = self.client.get(url.clone()).header("metadata-flavor", "Google");
        self.ask(url, request, "the token of this machine's service account", "attach a service account to the machine")
            .await
    }

    async fn ask(&self, url: &Url, request: RequestBuilder, what: &str, remedy: &str) -> Result<Token, TokenError> {
        let host = url.host_str().unwrap_or_default();
        check_literal(&self.guard, url).map_err(|e| TokenError::Refused(format!("{what} is not asked for: {e}")))?;
        let unavailable = |why: String| TokenError::Unavailable(format!("{what} could not be had from {host}: {why}"));
        let exchange = async {
            let answer = request.send().await.map_err(|e| unavailable(deepest(&e)))?;
            let status = answer.status();
            let mut body = Vec::new();
            let mut stream = answer.bytes_stream();
            while let Some(chunk) = stream.next().await {
                body.extend_from_slice(&chunk.map_err(|e| unavailable(deepest(&e)))?);
                if body.len() > ANSWER_BYTES {
                    return Err(unavailable(format!("its answer is over {ANSWER_BYTES} bytes")));
                }
            }
            Ok((status, SecretBytes::from(body)))
        };
        let (status, body) = tokio::time::timeout(PATIENCE, exchange)
            .await
            .map_err(|_| unavailable(format!("no answer within {} s", PATIENCE.as_secs())))??;
        if status.is_success() {
            let answer: Answer = serde_json::from_slice(body.expose())
                .map_err(|_| unavailable("its answer holds no access_token with expires_in".into()))?;
            return Ok(Token { value: answer.access_token.into(), lifetime: Duration::from_secs(answer.expires_in) });
        }
        let said: Failure = serde_json::from_slice(body.expose()).unwrap_or_default();
        let said = crate::model::condition::truncate(&format!("{} {}", said.error, said.error_description), 200);
        let why = format!("it answered {} {}", status.as_u16(), said.trim());
        if status.is_client_error() && !matches!(status.as_u16(), 408 | 429) {
            return Err(TokenError::Refused(format!("{what} was refused by {host}: {why}; {remedy}")));
        }
        Err(unavailable(why))
    }
}

#[derive(Deserialize)]
struct Answer {
    access_token: String,
    expires_in: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Failure {
    error: String,
    error_description: String,
}

fn parse(url: &str) -> Result<Url, String> {
    let parsed = Url::parse(url).map_err(|e| format!("{url:?} is no URL: {e}"))?;
    if !matches!(parsed.scheme(), "http" | "https") || parsed.host().is_none() || !parsed.username().is_empty() {
        return Err(format!("{:?} must be http or https with a host and no user", parsed.host_str().unwrap_or("?")));
    }
    Ok(parsed)
}

/// The innermost cause, which is the one that says something; the outer ones repeat the URL.
fn deepest(error: &reqwest::Error) -> String {
    let mut inner: &dyn std::error::Error = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}
