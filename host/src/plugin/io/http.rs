//! `http`: requests by connection name. The host adds origin, trust and credentials; it follows no redirect and asks no
//! proxy of the environment.

use std::error::Error as _;
use std::net::IpAddr;
use std::time::Duration;

use base64::Engine as _;
use futures::StreamExt;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Method, Url};

use super::address::{Guard, GuardError};
use super::fault;
use crate::model::provider::{HttpAuth, HttpConnection, HttpRule, Source};
use crate::model::secret::SecretBytes;
use crate::plugin::bindings::crawl::provider::faults::{Fault, FaultKind};
use crate::plugin::bindings::crawl::provider::http::{Host, HttpRequest, HttpResponse};
use crate::plugin::call::CallState;
use crate::plugin::grants::{Grants, auth_sources};
use crate::plugin::limits::{BODY_BYTES, HEADER_BYTES};

/// What may stand unencoded in a path segment (RFC 3986 `pchar`), and the slash between segments.
const PATH: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/')
    .remove(b':')
    .remove(b'@')
    .remove(b'!')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b',')
    .remove(b';')
    .remove(b'=');

/// Headers that are the host's: what a guest could use to smuggle a request or a credential.
const RESERVED: [&str; 12] = [
    "host",
    "authorization",
    "proxy-authorization",
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "content-length",
    "expect",
];

/// Headers of an answer that a guest has no use for.
const WITHHELD: [&str; 3] = ["set-cookie", "www-authenticate", "authorization"];

/// One origin with its client and pool.
pub(in crate::plugin) struct Origin {
    base: Url,
    auth: Option<HttpAuth>,
    allow: Vec<HttpRule>,
    guard: Guard,
    client: Client,
}

impl Origin {
    /// Builds the client of a connection. The error says what to change.
    pub fn new(spec: &HttpConnection) -> Result<Self, String> {
        let base = spec.base_url.as_deref().ok_or("http.baseUrl is missing; only auth.serviceAccount goes without it, which this operator serves on Kubernetes alone")?;
        let base = Url::parse(base).map_err(|e| format!("http.baseUrl {base:?} is no URL: {e}"))?;
        if !matches!(base.scheme(), "http" | "https")
            || base.host().is_none()
            || !base.username().is_empty()
            || base.password().is_some()
            || base.query().is_some()
            || base.fragment().is_some()
        {
            return Err(format!(
                "http.baseUrl {} must be http or https with a host and no user, query or fragment; credentials go under http.auth",
                base.host_str().unwrap_or("?")
            ));
        }
        if let Some(kind) = spec.auth.as_ref().and_then(unserved) {
            return Err(format!("http.auth.{kind} is not served by this version; bearer, basic and header are"));
        }
        if spec.ca.is_some() {
            return Err("http.ca is not served by this version; leave it out".into());
        }
        let guard = Guard::new(&spec.permit);
        let client = Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .dns_resolver(guard.clone())
            .connect_timeout(Duration::from_secs(10))
            .read_timeout(Duration::from_secs(30))
            .pool_idle_timeout(Duration::from_secs(60))
            .pool_max_idle_per_host(8)
            .build()
            .map_err(|e| format!("no client can be built: {e}"))?;
        Ok(Self { base, auth: spec.auth.clone(), allow: spec.allow.clone(), guard, client })
    }

    /// The credentials that it uses.
    pub fn sources(&self) -> Vec<&Source> {
        self.auth.as_ref().map(auth_sources).unwrap_or_default()
    }

    /// The URL of a request, or why there is none.
    fn url(&self, request: &HttpRequest) -> Result<Url, Fault> {
        let path = &request.path;
        if !path.starts_with('/')
            || path.contains(['?', '#', '\\', '\0'])
            || path.split('/').any(|s| s == "." || s == "..")
        {
            return Err(fault(
                FaultKind::Denied,
                false,
                format!("path {path:?} must start with '/' and hold no '?', '#', '\\' and no '.' or '..' segment"),
            ));
        }
        let mut url = self.base.clone();
        url.set_path(&format!("{}{}", self.base.path().trim_end_matches('/'), utf8_percent_encode(path, PATH)));
        if !request.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&request.query);
        }
        Ok(url)
    }

    fn allowed(&self, method: &str, path: &str) -> bool {
        let below = |prefix: &str| {
            let prefix = prefix.trim_end_matches('/');
            path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.allow.is_empty()
            || self.allow.iter().any(|rule| {
                rule.methods.iter().any(|m| m == method)
                    && match (&rule.path, &rule.path_prefix) {
                        (None, None) => true,
                        (exact, prefix) => exact.as_deref() == Some(path) || prefix.as_deref().is_some_and(below),
                    }
            })
    }

    /// Headers of the request, the host's credential among them.
    async fn headers(
        &self,
        request: &HttpRequest,
        grants: &Grants,
        secrets: &mut Vec<SecretBytes>,
    ) -> Result<HeaderMap, Fault> {
        let mut headers = HeaderMap::new();
        let size: usize = request.headers.iter().map(|(n, v)| n.len() + v.len()).sum();
        if size > HEADER_BYTES {
            return Err(fault(FaultKind::TooLarge, false, format!("headers are over {HEADER_BYTES} bytes")));
        }
        for (name, value) in &request.headers {
            let parsed = HeaderName::try_from(name.as_str()).ok().zip(HeaderValue::from_bytes(value).ok());
            let Some((parsed, value)) = parsed.filter(|(n, _)| !RESERVED.contains(&n.as_str())) else {
                return Err(fault(FaultKind::Denied, false, format!("header {name:?} is malformed or the host's own")));
            };
            headers.append(parsed, value);
        }
        if let Some(auth) = &self.auth {
            for source in auth_sources(auth) {
                let secret =
                    grants.resolve(source).await.map_err(|e| fault(FaultKind::Credential, false, e.to_string()))?;
                let (name, value) = credential(auth, &secret).ok_or_else(|| {
                    fault(FaultKind::Credential, false, "the credential holds a line break or is not text")
                })?;
                headers.insert(name, value);
                secrets.push(secret);
            }
        }
        Ok(headers)
    }
}

/// The first kind of `auth` that no code serves.
fn unserved(auth: &HttpAuth) -> Option<&'static str> {
    [
        ("serviceAccount", auth.service_account.is_some()),
        ("googleServiceAccount", auth.google_service_account.is_some()),
        ("googleMetadata", auth.google_metadata.is_some()),
    ]
    .into_iter()
    .find_map(|(kind, given)| given.then_some(kind))
}

fn credential(auth: &HttpAuth, secret: &SecretBytes) -> Option<(HeaderName, HeaderValue)> {
    let text = secret.expose_line()?;
    let (name, value) = if let Some(header) = &auth.header {
        (HeaderName::try_from(header.name.as_str()).ok()?, text.to_owned())
    } else if let Some(basic) = &auth.basic {
        let pair = base64::engine::general_purpose::STANDARD.encode(format!("{}:{text}", basic.username));
        (AUTHORIZATION, format!("Basic {pair}"))
    } else {
        (AUTHORIZATION, format!("Bearer {text}"))
    };
    let mut value = HeaderValue::try_from(value).ok()?;
    value.set_sensitive(true);
    Some((name, value))
}

impl Host for CallState {
    async fn send(
        &mut self,
        connection: String,
        request: HttpRequest,
    ) -> wasmtime::Result<Result<HttpResponse, Fault>> {
        self.watched_send(connection, request).await
    }
}

impl CallState {
    /// Sends it over the connection.
    pub(in crate::plugin) async fn send_now(
        &mut self,
        connection: String,
        request: HttpRequest,
    ) -> wasmtime::Result<Result<HttpResponse, Fault>> {
        let grants = self.grants.clone();
        let origin = match grants.http(&connection) {
            Ok(origin) => origin,
            Err(why) => return Ok(Err(fault(FaultKind::UnknownConnection, false, why))),
        };
        // Not bounded by the rest of the call: the call's own deadline strikes then, and says so. Bounded, the two would
        // race, and a guest that is told so late has no time left to make anything of it.
        let limit = Duration::from_millis(request.timeout_ms.into());
        let change = !matches!(request.method.as_str(), "GET" | "HEAD");
        // Said before the first byte: a call that is dropped at its deadline cannot say it afterwards.
        let before = self.progress.begin(format!("connection {connection:?}"), change);
        let mut sent = false;
        let answer = match tokio::time::timeout(limit, exchange(origin, &grants, request, &mut self.secrets, &mut sent))
            .await
        {
            Ok(answer) => answer,
            Err(_) => Err(fault(FaultKind::TimedOut, sent, format!("no whole answer within {} ms", limit.as_millis()))),
        };
        self.progress.end(before || (change && sent));
        Ok(answer)
    }
}

/// One request and its whole answer. `sent` turns true as soon as something may have left.
async fn exchange(
    origin: &Origin,
    grants: &Grants,
    request: HttpRequest,
    secrets: &mut Vec<SecretBytes>,
    sent: &mut bool,
) -> Result<HttpResponse, Fault> {
    let method = Method::from_bytes(request.method.as_bytes())
        .ok()
        .filter(|m| {
            m.as_str().chars().all(|c| c.is_ascii_uppercase()) && !matches!(*m, Method::CONNECT | Method::TRACE)
        })
        .ok_or_else(|| fault(FaultKind::Denied, false, format!("method {:?} is not sent", request.method)))?;
    let url = origin.url(&request)?;
    if !origin.allowed(method.as_str(), &request.path) {
        return Err(fault(
            FaultKind::Denied,
            false,
            format!(
                "the connection's `allow` rules do not hold {method} {}; add a rule to the Provider if it is meant",
                request.path
            ),
        ));
    }
    if let Some(address) = url.host_str().and_then(|h| h.trim_matches(['[', ']']).parse::<IpAddr>().ok()) {
        // An address in the URL passes by the resolver.
        origin
            .guard
            .check(&address.to_string(), address)
            .map_err(|e| fault(FaultKind::Denied, false, e.to_string()))?;
    }
    let headers = origin.headers(&request, grants, secrets).await?;
    let body = request.body.unwrap_or_default();
    if body.len() > BODY_BYTES {
        return Err(fault(FaultKind::TooLarge, false, format!("the request's body is over {BODY_BYTES} bytes")));
    }
    *sent = true;
    let answer =
        origin.client.request(method, url).headers(headers).body(body).send().await.map_err(|e| classify(&e, sent))?;
    read(answer).await
}

async fn read(answer: reqwest::Response) -> Result<HttpResponse, Fault> {
    let status = answer.status().as_u16();
    let headers: Vec<_> = answer
        .headers()
        .iter()
        .filter(|(name, _)| !WITHHELD.contains(&name.as_str()))
        .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()))
        .collect();
    if headers.iter().map(|(n, v)| n.len() + v.len()).sum::<usize>() > HEADER_BYTES {
        return Err(fault(FaultKind::TooLarge, true, format!("the answer's headers are over {HEADER_BYTES} bytes")));
    }
    let mut body = Vec::new();
    let mut stream = answer.bytes_stream();
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|e| classify(&e, &mut true))?;
        if body.len() + chunk.len() > BODY_BYTES {
            return Err(fault(FaultKind::TooLarge, true, format!("the answer's body is over {BODY_BYTES} bytes")));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(HttpResponse { status, headers, body })
}

/// The class of a client's error. A failed connection means that nothing was sent.
fn classify(error: &reqwest::Error, sent: &mut bool) -> Fault {
    let mut source = error.source();
    let mut deepest = error.to_string();
    while let Some(inner) = source {
        if let Some(guard) = inner.downcast_ref::<GuardError>() {
            *sent = false;
            let kind = if matches!(guard, GuardError::Dns(_)) { FaultKind::Dns } else { FaultKind::Denied };
            return fault(kind, false, guard.to_string());
        }
        if inner.is::<rustls::Error>() {
            *sent = false;
            return fault(FaultKind::Tls, false, format!("TLS failed: {inner}"));
        }
        deepest = inner.to_string();
        source = inner.source();
    }
    if error.is_connect() {
        *sent = false;
        return fault(FaultKind::Unreachable, false, format!("no connection: {deepest}"));
    }
    let kind = if error.is_timeout() { FaultKind::TimedOut } else { FaultKind::Lost };
    fault(kind, *sent, format!("the answer was lost: {deepest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_origin(base: &str, allow: Vec<HttpRule>) -> Origin {
        let _ = rustls::crypto::ring::default_provider().install_default();
        Origin::new(&HttpConnection { base_url: Some(base.into()), allow, ..HttpConnection::default() })
            .unwrap_or_else(|e| panic!("{e}"))
    }

    fn mk_request(path: &str, query: &[(&str, &str)]) -> HttpRequest {
        HttpRequest {
            method: "GET".into(),
            path: path.into(),
            query: query.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
            headers: vec![],
            body: None,
            timeout_ms: 1000,
        }
    }

    #[test]
    fn paths_and_queries_are_encoded_below_the_base() {
        let origin = mk_origin("http://10.0.0.1:8080/api/", vec![]);
        let url =
            origin.url(&mk_request("/v1/a b/ü%2f", &[("q", "x&y=z")])).unwrap_or_else(|f| panic!("{}", f.message));
        assert_eq!(url.as_str(), "http://10.0.0.1:8080/api/v1/a%20b/%C3%BC%252f?q=x%26y%3Dz");
    }

    #[test]
    fn a_path_never_leaves_the_base() {
        let origin = mk_origin("http://10.0.0.1/api", vec![]);
        for path in ["/../x", "/a/..", "/./a", "x", "", "//../x", "/a?b", "/a#b", "/a\\b"] {
            assert!(origin.url(&mk_request(path, &[])).is_err(), "{path}");
        }
    }

    #[test]
    fn allow_rules_match_whole_segments() {
        let rule = |methods: &[&str], path: Option<&str>, prefix: Option<&str>| HttpRule {
            methods: methods.iter().map(|m| (*m).into()).collect(),
            path: path.map(Into::into),
            path_prefix: prefix.map(Into::into),
        };
        let origin = mk_origin(
            "http://10.0.0.1",
            vec![rule(&["GET", "POST"], None, Some("/api/v1/pods")), rule(&["GET"], Some("/version"), None)],
        );
        for (method, path, allowed) in [
            ("GET", "/api/v1/pods", true),
            ("POST", "/api/v1/pods/a", true),
            ("DELETE", "/api/v1/pods/a", false),
            ("GET", "/api/v1/podsecrets", false),
            ("GET", "/version", true),
            ("GET", "/version/x", false),
            ("GET", "/", false),
        ] {
            assert_eq!(origin.allowed(method, path), allowed, "{method} {path}");
        }
    }

    #[test]
    fn unusable_connections_say_what_to_change() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        for (base, expected) in [
            ("ftp://h", "must be http or https"),
            ("http://u:p@h", "credentials go under http.auth"),
            ("nonsense", "is no URL"),
            ("http://h/?a=b", "no user, query"),
        ] {
            let error = Origin::new(&HttpConnection { base_url: Some(base.into()), ..HttpConnection::default() })
                .err()
                .unwrap();
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains("u:p"), "{error}");
        }
    }
}
