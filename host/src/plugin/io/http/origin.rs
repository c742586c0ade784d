//! One origin: where requests go, what may be asked there, and the client that asks.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Certificate, Client, ClientBuilder, Url};
use sha2::{Digest, Sha256};

use super::auth::Auth;
use crate::model::provider::{HttpConnection, HttpRule, Source};
use crate::plugin::bindings::crawl::provider::faults::{Fault, FaultKind};
use crate::plugin::bindings::crawl::provider::http::HttpRequest;
use crate::plugin::grants::{Grants, SecretError, Secrets};
use crate::plugin::io::address::{Guard, GuardError};
use crate::plugin::io::fault;
use crate::plugin::limits::{HEADER_BYTES, HEADER_COUNT};

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

/// Between two pieces of an answer.
pub(super) const BETWEEN_PIECES: Duration = Duration::from_secs(30);

/// One origin with its client and pool.
pub(in crate::plugin) struct Origin {
    base: Url,
    pub(super) auth: Auth,
    allow: Vec<HttpRule>,
    pub(super) guard: Guard,
    trust: Trust,
}

/// Which certificates the client trusts.
enum Trust {
    /// Those that never change while this runs.
    Fixed(Client),
    /// Those of a source, with the client made from what it held last.
    Source(Source, Mutex<Option<([u8; 32], Client)>>),
}

/// What all clients have in common: exactly the guard's addresses are dialled, no proxy of the environment is asked, and no
/// redirect is followed.
pub(in crate::plugin) fn builder(guard: &Guard) -> ClientBuilder {
    Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .dns_resolver(guard.clone())
        .connect_timeout(Duration::from_secs(10))
        .read_timeout(BETWEEN_PIECES)
        .pool_idle_timeout(Duration::from_secs(60))
        .pool_max_idle_per_host(8)
}

/// Checks the address in a URL that names one: it passes by the resolver.
pub(in crate::plugin) fn check_literal(guard: &Guard, url: &Url) -> Result<(), GuardError> {
    match url.host_str().and_then(|host| host.trim_matches(['[', ']']).parse::<IpAddr>().ok()) {
        Some(address) => guard.check(&address.to_string(), address),
        None => Ok(()),
    }
}

impl Origin {
    /// Takes a connection of a Provider. The error says what to change.
    pub fn new(spec: &HttpConnection, secrets: &dyn Secrets) -> Result<Self, String> {
        let guard = Guard::new(&spec.permit);
        let cluster = spec.auth.as_ref().and_then(|auth| auth.service_account.as_ref()).map(|_| secrets.cluster());
        let cluster = match cluster {
            Some(None) => return Err("http.auth.serviceAccount takes tokens from the API server, and this operator is standalone; give a token of your own under http.auth.bearer".into()),
            Some(found) => found,
            None => None,
        };
        let api_server = cluster.filter(|_| spec.base_url.is_none()).map(|cluster| cluster.api_server());
        let base = spec.base_url.as_deref().or(api_server.map(|server| server.url.as_str()));
        let base = base.ok_or("http.baseUrl is missing; only auth.serviceAccount goes without it")?;
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
        let client = |builder: ClientBuilder| builder.build().map_err(|e| format!("no client can be built: {e}"));
        let trust = match (&spec.ca, api_server) {
            (Some(source), _) => Trust::Source(source.clone(), Mutex::default()),
            (None, Some(server)) => {
                let mut own = builder(&guard);
                if let Some(ca) = &server.ca {
                    own = own.tls_certs_only(certificates(ca).map_err(|why| format!("the cluster's CA {why}"))?);
                }
                Trust::Fixed(client(own.tls_danger_accept_invalid_certs(server.insecure))?)
            }
            (None, None) => Trust::Fixed(client(builder(&guard))?),
        };
        Ok(Self { base, auth: Auth::new(spec.auth.as_ref(), &spec.permit)?, allow: spec.allow.clone(), guard, trust })
    }

    /// The credential that it is asked with, where that is one of ours.
    pub fn source(&self) -> Option<&Source> {
        self.auth.source()
    }

    /// Tries everything that a request needs and that can be had without asking the origin.
    ///
    /// # Errors
    /// The first that is missing or of no use.
    pub async fn probe(&self, grants: &Grants) -> Result<(), SecretError> {
        self.client(grants).await?;
        self.auth.probe(grants).await
    }

    /// The client; a new one, with a new pool, when the CA was rotated.
    pub(super) async fn client(&self, grants: &Grants) -> Result<Client, SecretError> {
        let (source, kept) = match &self.trust {
            Trust::Fixed(client) => return Ok(client.clone()),
            Trust::Source(source, kept) => (source, kept),
        };
        let pem = grants.resolve(source).await?;
        let digest: [u8; 32] = Sha256::digest(pem.expose()).into();
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, client)) = kept.as_ref().filter(|(of, _)| *of == digest) {
            return Ok(client.clone());
        }
        let unusable = |why: String| SecretError::Unreadable(format!("http.ca ({source}) {why}"));
        let all = certificates(pem.expose()).map_err(|why| unusable(why.into()))?;
        let client =
            builder(&self.guard).tls_certs_only(all).build().map_err(|e| unusable(format!("cannot be used: {e}")))?;
        *kept = Some((digest, client.clone()));
        Ok(client)
    }

    /// The URL of a request, or why there is none.
    pub fn url(&self, request: &HttpRequest) -> Result<Url, Fault> {
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

    /// Whether a rule allows this request.
    pub fn allowed(&self, method: &str, path: &str) -> bool {
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

    /// The guest's headers.
    pub fn headers(&self, request: &HttpRequest) -> Result<HeaderMap, Fault> {
        let size: usize = request.headers.iter().map(|(n, v)| n.len() + v.len()).sum();
        if size > HEADER_BYTES || request.headers.len() > HEADER_COUNT {
            let what = format!("headers are over {HEADER_BYTES} bytes or {HEADER_COUNT} in number");
            return Err(fault(FaultKind::TooLarge, false, what));
        }
        let mut headers = HeaderMap::new();
        for (name, value) in &request.headers {
            let parsed = HeaderName::try_from(name.as_str()).ok().zip(HeaderValue::from_bytes(value).ok());
            let Some((parsed, value)) = parsed.filter(|(n, _)| !RESERVED.contains(&n.as_str())) else {
                return Err(fault(FaultKind::Denied, false, format!("header {name:?} is malformed or the host's own")));
            };
            headers.append(parsed, value);
        }
        Ok(headers)
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<Certificate>, &'static str> {
    match Certificate::from_pem_bundle(pem) {
        Ok(all) if !all.is_empty() => Ok(all),
        _ => Err("holds no certificate in PEM"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::grants::Nothing;

    fn mk_origin(base: &str, allow: Vec<HttpRule>) -> Origin {
        let _ = rustls::crypto::ring::default_provider().install_default();
        Origin::new(&HttpConnection { base_url: Some(base.into()), allow, ..HttpConnection::default() }, &Nothing)
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
            let error =
                Origin::new(&HttpConnection { base_url: Some(base.into()), ..HttpConnection::default() }, &Nothing)
                    .err()
                    .unwrap();
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains("u:p"), "{error}");
        }
    }
}
