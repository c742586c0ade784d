//! The API through a real listener: codes, problem documents, pages.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::auth::{Scope, Tokens, mint};
use super::{Api, routes};
use crate::lease::allocator::Allocator;
use crate::lease::id::Signer;
use crate::lease::ledger::LocalLedger;
use crate::lease::{Lack, Leasable, Serving};
use crate::model::clock::ManualClock;
use crate::model::login::Login;
use crate::model::naming::ProxyKey;
use crate::model::proxy::{Endpoint, Protocol};
use crate::store::Store;
use crate::store::local::LocalStore;
use crate::store::local::database::Database;

struct Lab {
    url: String,
    clock: Arc<ManualClock>,
    allocator: Arc<Allocator>,
    store: Arc<LocalStore>,
    tokens: BTreeMap<&'static str, String>,
    dir: tempfile::TempDir,
}

struct Answer {
    status: StatusCode,
    headers: reqwest::header::HeaderMap,
    body: Value,
}

impl Answer {
    fn code(&self) -> (u16, &str) {
        (self.status.as_u16(), self.body["code"].as_str().unwrap_or_default())
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default()
    }

    fn pointers(&self) -> Vec<&str> {
        self.body["errors"].as_array().into_iter().flatten().filter_map(|e| e["pointer"].as_str()).collect()
    }
}

fn client() -> reqwest::Client {
    // Without a TLS provider no client can be built, not even for loopback in the clear.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().build().unwrap()
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

fn mk_leasable(n: usize) -> Leasable {
    Leasable {
        key: ProxyKey { namespace: "a".into(), name: format!("p{n}") },
        uid: uuid::Uuid::from_u128(n as u128 + 1),
        incarnation: 0,
        provider: "demo".into(),
        location: None,
        labels: BTreeMap::from([("pool".into(), "x".into())]),
        protocol: Protocol::Http,
        serving: Some(Serving {
            endpoint: Endpoint { host: "2001:db8::1".into(), port: 3128, protocol: Protocol::Http },
            login: Some(Login { username: "u@x".into(), password: "p/w".to_owned().into() }),
            exit_ip: Some("192.0.2.1".into()),
        }),
        lack: Lack::Unhealthy,
        closed: false,
        draining: false,
    }
}

impl Lab {
    /// Two Proxies that serve, three objects, and tokens: `both` for a and b, `one` for a, `reader`, `other`, `admin`.
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("manifests");
        fs::create_dir(&folder).unwrap();
        let mut tokens = BTreeMap::new();
        for (name, scopes, namespaces) in [
            ("both", vec![Scope::Read, Scope::Allocate], vec!["a", "b"]),
            ("one", vec![Scope::Read, Scope::Allocate], vec!["a"]),
            ("other", vec![Scope::Read, Scope::Allocate], vec!["a"]),
            ("reader", vec![Scope::Read], vec!["a"]),
            ("admin", vec![Scope::Admin], vec!["a"]),
        ] {
            let namespaces: Vec<String> = namespaces.into_iter().map(str::to_owned).collect();
            let expired = "1970-01-02T00:00:00Z".parse().unwrap();
            let new = mint(name, "ops", &scopes, &namespaces, Some(expired));
            let limits = "stringData:\n  maxTtl: 20m\n  maxLeases: \"2\"\n";
            write(&folder.join(format!("{name}.yaml")), &new.manifest.replace("stringData:\n", limits));
            tokens.insert(name, new.token);
        }
        for name in ["p0", "p1", "p2"] {
            write(
                &folder.join(format!("{name}.yaml")),
                &format!(
                    "apiVersion: crawl.example.com/v1alpha1\nkind: Proxy\nmetadata: {{name: {name}, namespace: a, labels: {{n: {name}}}}}\nspec: {{provider: demo}}\n"
                ),
            );
        }
        let clock = Arc::new(ManualClock::default());
        let database = Database::open(&dir.path().join("data/state.redb")).unwrap();
        let store = LocalStore::open(database.clone(), &folder, vec![], clock.clone()).await.unwrap();
        store.apply_manifests().await;
        let ledger = LocalLedger::open(database.clone()).await.unwrap();
        let signer = Signer::new(vec![3; 32].into());
        let allocator = Arc::new(Allocator::new(Arc::new(ledger), signer, clock.clone()).unwrap());
        (0..2).for_each(|n| allocator.set(mk_leasable(n)));
        let objects: Arc<dyn Store> = store.clone();
        let api = Api {
            allocator: allocator.clone(),
            store: objects.clone(),
            tokens: Arc::new(Tokens::new(objects, None)),
            clock: clock.clone(),
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, routes(api)).await });
        Self { url, clock, allocator, store, tokens, dir }
    }

    async fn send(&self, token: &str, method: Method, path: &str, body: Option<&str>) -> Answer {
        let mut request = client().request(method, format!("{}{path}", self.url));
        if !token.is_empty() {
            let token = self.tokens.get(token).map_or(token, String::as_str);
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_owned());
        }
        let response = request.send().await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        let body = response.bytes().await.unwrap();
        let answer = Answer { status, headers, body: serde_json::from_slice(&body).unwrap_or(Value::Null) };
        assert!(!answer.header("x-request-id").is_empty(), "{path}");
        if status.is_client_error() || status.is_server_error() {
            assert_eq!(answer.header("content-type"), "application/problem+json", "{path}: {status}");
            assert_eq!(answer.body["status"], status.as_u16(), "{path}");
            assert!(answer.body["detail"].is_string() && answer.body["title"].is_string(), "{path}");
        }
        answer
    }

    async fn get(&self, token: &str, path: &str) -> Answer {
        self.send(token, Method::GET, path, None).await
    }

    async fn acquire(&self, token: &str, body: Value) -> Answer {
        self.send(token, Method::POST, "/v1/leases", Some(&body.to_string())).await
    }

    async fn lease(&self, token: &str) -> String {
        let answer = self.acquire(token, json!({})).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
        answer.body["id"].as_str().unwrap().to_owned()
    }
}

#[tokio::test]
async fn nobody_gets_in_without_a_valid_token() {
    let lab = Lab::new().await;
    for path in ["/v1/leases", "/v1/proxies", "/v1/providers", "/no/such/route"] {
        for token in ["", "wrong"] {
            let answer = lab.get(token, path).await;
            assert_eq!(answer.code(), (401, "unauthorized"), "{path}");
            assert_eq!(answer.header("www-authenticate"), "Bearer");
        }
    }
    assert_eq!(lab.get("one", "/no/such/route").await.code(), (404, "no_route"));
    assert_eq!(lab.send("one", Method::PUT, "/v1/leases", None).await.code(), (405, "method_not_allowed"));
    lab.clock.advance(std::time::Duration::from_secs(86_400));
    assert_eq!(lab.get("one", "/v1/proxies").await.status, StatusCode::UNAUTHORIZED, "expired");
}

#[tokio::test]
async fn a_lease_is_a_ready_url_with_an_expiry() {
    let lab = Lab::new().await;
    let answer = lab.acquire("one", json!({"ttlSeconds": 60, "selector": {"pool": "x"}})).await;
    assert_eq!(answer.status, StatusCode::CREATED);
    let body = &answer.body;
    assert_eq!(body["url"], "http://u%40x:p%2Fw@[2001:db8::1]:3128");
    assert_eq!(body["server"], "http://[2001:db8::1]:3128");
    assert_eq!((body["username"].as_str(), body["password"].as_str()), (Some("u@x"), Some("p/w")));
    assert_eq!((body["mode"].as_str(), body["exitIP"].as_str()), (Some("exclusive"), Some("192.0.2.1")));
    assert_eq!((body["ttlSeconds"].as_u64(), body["expiresAt"].as_str()), (Some(60), Some("1970-01-01T00:01:00Z")));
    assert_eq!((body["healthy"].as_bool(), body["draining"].as_bool()), (Some(true), Some(false)));
    assert_eq!(body["proxy"]["namespace"], "a");
    assert!(body["generation"].as_u64().is_some_and(|g| g > 0));
}

#[tokio::test]
async fn scopes_and_namespaces_bind() {
    let lab = Lab::new().await;
    assert_eq!(lab.acquire("reader", json!({})).await.code(), (403, "forbidden"));
    assert_eq!(lab.get("reader", "/v1/leases").await.code(), (403, "forbidden"));
    assert_eq!(lab.acquire("one", json!({"namespace": "b"})).await.code(), (403, "forbidden"));
    assert_eq!(lab.get("one", "/v1/leases?all=true").await.code(), (403, "forbidden"));
    assert_eq!(lab.get("admin", "/v1/leases?all=true").await.status, StatusCode::OK);
    let several = lab.acquire("both", json!({})).await;
    assert_eq!((several.code(), several.pointers()), ((422, "invalid"), vec!["/namespace"]));
    assert_eq!(lab.acquire("both", json!({"namespace": "a"})).await.status, StatusCode::CREATED);
    assert_eq!(lab.acquire("both", json!({"namespace": "b"})).await.code(), (409, "no_match"));
    assert_eq!(lab.get("one", "/v1/proxies/b/p0").await.code(), (404, "unknown_proxy"));
}

/// Each was once told with an empty pointer, or as plain text.
#[tokio::test]
async fn what_is_wrong_with_a_request_is_told_by_pointer() {
    let lab = Lab::new().await;
    for (body, pointers) in [
        (r#"{"ttlSeconds": 9}"#, vec!["/ttlSeconds"]),
        (r#"{"ttlSeconds": 1201}"#, vec!["/ttlSeconds"]),
        (r#"{"ttlSeconds": "60"}"#, vec!["/ttlSeconds"]),
        (r#"{"ttlSeconds": -1, "mode": "mine"}"#, vec!["/mode", "/ttlSeconds"]),
        (r#"{"waitSeconds": 61}"#, vec!["/waitSeconds"]),
        (r#"{"exclude": ["a/p0", "p1"]}"#, vec!["/exclude/1"]),
        (r#"{"ttl": 60}"#, vec!["/ttl"]),
        (r#"{"a/b~c": 1}"#, vec!["/a~1b~0c"]),
        (r#"{"protocol": "ftp"}"#, vec!["/protocol"]),
        (r#"{"selector": {"a": 1}}"#, vec!["/selector"]),
        (r#"{"ttlSeconds": 60"#, vec![""]),
        (r#"[]"#, vec![""]),
        ("null", vec![""]),
    ] {
        let answer = lab.send("one", Method::POST, "/v1/leases", Some(body)).await;
        let mut found = answer.pointers();
        found.sort_unstable();
        assert_eq!((answer.code(), found), ((422, "invalid"), pointers), "{body}");
    }
    let large = format!(r#"{{"provider": "{}"}}"#, "x".repeat(70 << 10));
    assert_eq!(lab.send("one", Method::POST, "/v1/leases", Some(&large)).await.status, StatusCode::PAYLOAD_TOO_LARGE);
    for path in [
        "/v1/leases?all=maybe",
        "/v1/leases?limit=0",
        "/v1/proxies?limit=x",
        "/v1/proxies?limit=501",
        "/v1/proxies?labelSelector=a",
        "/v1/proxies?labelSelector=a!=b",
    ] {
        assert_eq!(lab.get("one", path).await.code(), (422, "invalid"), "{path}");
    }
    assert_eq!(lab.get("one", "/v1/leases/%ff").await.code(), (400, "path"));
}

#[tokio::test]
async fn an_empty_body_asks_for_anything() {
    let lab = Lab::new().await;
    assert_eq!(lab.send("one", Method::POST, "/v1/leases", None).await.status, StatusCode::CREATED);
}

#[tokio::test]
async fn an_honest_not_now_says_when_to_come_again() {
    let lab = Lab::new().await;
    lab.lease("one").await;
    lab.clock.advance(std::time::Duration::from_secs(10));
    lab.lease("other").await;
    let answer = lab.acquire("one", json!({})).await;
    assert_eq!(answer.code(), (503, "all_leased"));
    assert_eq!((answer.header("retry-after"), answer.body["retryAfterSeconds"].as_u64()), ("590", Some(590)));
    lab.allocator.set(Leasable { serving: None, lack: Lack::Scaling, ..mk_leasable(0) });
    lab.allocator.set(Leasable { serving: None, lack: Lack::Scaling, ..mk_leasable(1) });
    assert_eq!(lab.acquire("one", json!({})).await.code(), (503, "scaling"));
    lab.allocator.remove(mk_leasable(0).uid);
    lab.allocator.set(Leasable { serving: None, lack: Lack::Quota, ..mk_leasable(1) });
    assert_eq!(lab.acquire("one", json!({})).await.code(), (503, "quota"));
    lab.allocator.set(Leasable { serving: None, lack: Lack::Unhealthy, ..mk_leasable(1) });
    assert_eq!(lab.acquire("one", json!({})).await.code(), (503, "none_healthy"));
    assert_eq!(lab.acquire("one", json!({"provider": "kvm"})).await.code(), (409, "no_match"));
}

#[tokio::test]
async fn a_token_holds_no_more_leases_than_it_may() {
    let lab = Lab::new().await;
    (2..5).for_each(|n| lab.allocator.set(mk_leasable(n)));
    let at_once = futures::future::join_all((0..5).map(|_| lab.acquire("one", json!({})))).await;
    let mut codes: Vec<u16> = at_once.iter().map(|a| a.status.as_u16()).collect();
    codes.sort_unstable();
    assert_eq!(codes, [201, 201, 429, 429, 429], "not even at once");
}

#[tokio::test]
async fn a_lease_is_seen_renewed_and_released_by_its_holder_alone() {
    let lab = Lab::new().await;
    let id = lab.lease("one").await;
    let path = format!("/v1/leases/{id}");
    let renew = format!("{path}/renew");
    assert_eq!(lab.get("one", &path).await.body["id"], id.as_str());
    for method in [Method::GET, Method::DELETE] {
        assert_eq!(lab.send("other", method, &path, None).await.code(), (404, "unknown_lease"));
    }
    assert_eq!(lab.send("other", Method::POST, &renew, None).await.code(), (404, "unknown_lease"));
    let renewed = lab.send("one", Method::POST, &renew, Some(r#"{"ttlSeconds": 1200}"#)).await;
    assert_eq!((renewed.status, renewed.body["ttlSeconds"].as_u64()), (StatusCode::OK, Some(1200)));
    let wrong = lab.send("one", Method::POST, &renew, Some(r#"{"ttlSeconds": 5}"#)).await;
    assert_eq!((wrong.code(), wrong.pointers()), ((422, "invalid"), vec!["/ttlSeconds"]));
    for _ in 0..2 {
        assert_eq!(lab.send("one", Method::DELETE, &path, None).await.status, StatusCode::NO_CONTENT, "idempotent");
    }
    assert_eq!(lab.get("one", &path).await.code(), (410, "ended"));
    assert_eq!(lab.send("one", Method::POST, &renew, None).await.code(), (410, "ended"));
    assert_eq!(lab.get("one", "/v1/leases/nonsense").await.code(), (404, "unknown_lease"));
}

#[tokio::test]
async fn an_expired_lease_is_over_and_a_draining_one_is_not_renewed() {
    let lab = Lab::new().await;
    let (first, second) = (lab.lease("one").await, lab.lease("one").await);
    (0..2).for_each(|n| lab.allocator.set(Leasable { draining: true, ..mk_leasable(n) }));
    let answer = lab.send("one", Method::POST, &format!("/v1/leases/{first}/renew"), None).await;
    assert_eq!(answer.code(), (409, "draining"));
    assert_eq!(lab.get("one", &format!("/v1/leases/{first}")).await.body["draining"], true);
    lab.clock.advance(std::time::Duration::from_secs(600));
    assert_eq!(lab.get("one", &format!("/v1/leases/{second}")).await.code(), (410, "ended"));
    assert_eq!(lab.get("one", "/v1/leases").await.body["leases"], json!([]));
}

#[tokio::test]
async fn an_admin_ends_leases_of_others() {
    let lab = Lab::new().await;
    let id = lab.lease("one").await;
    let listed = lab.get("admin", "/v1/leases?all=true").await;
    assert_eq!(listed.body["leases"][0]["id"], id.as_str());
    let path = format!("/v1/leases/{id}");
    assert_eq!(lab.send("admin", Method::DELETE, &path, None).await.status, StatusCode::NO_CONTENT);
    assert_eq!(lab.get("one", &path).await.code(), (410, "ended"));
}

#[tokio::test]
async fn lists_come_in_pages() {
    let lab = Lab::new().await;
    let mut seen = Vec::new();
    let mut path = "/v1/proxies?limit=2".to_owned();
    loop {
        let answer = lab.get("reader", &path).await;
        seen.extend(answer.body["proxies"].as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap().to_owned()));
        match answer.body["nextCursor"].as_str() {
            Some(cursor) => path = format!("/v1/proxies?limit=2&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(seen, ["p0", "p1", "p2"]);
    let one = lab.get("reader", "/v1/proxies?labelSelector=n=p1").await;
    assert_eq!(one.body["proxies"].as_array().map(Vec::len), Some(1));
    assert_eq!(lab.get("reader", "/v1/proxies?namespace=b").await.body["proxies"], json!([]));
    let shown = lab.get("reader", "/v1/proxies/a/p1").await;
    assert_eq!((shown.body["provider"].as_str(), shown.body["ready"].as_bool()), (Some("demo"), Some(false)));
    let (a, b) = (lab.lease("one").await, lab.lease("one").await);
    let first = lab.get("one", "/v1/leases?limit=1").await;
    let cursor = first.body["nextCursor"].as_str().unwrap();
    let second = lab.get("one", &format!("/v1/leases?limit=1&cursor={cursor}")).await;
    let mut ids = vec![first.body["leases"][0]["id"].as_str(), second.body["leases"][0]["id"].as_str()];
    ids.sort_unstable();
    let mut expected = vec![Some(a.as_str()), Some(b.as_str())];
    expected.sort_unstable();
    assert_eq!((ids, &second.body["nextCursor"]), (expected, &Value::Null));
}

#[tokio::test]
async fn a_request_keeps_a_well_formed_id_of_its_own() {
    let lab = Lab::new().await;
    for (brought, kept) in [("abc-123", true), ("a b", false), (&*"x".repeat(65), false)] {
        let request = client().get(format!("{}/v1/proxies", lab.url)).header("x-request-id", brought);
        let answer = request.send().await.unwrap();
        assert_eq!(answer.headers()["x-request-id"] == brought, kept, "{brought}");
    }
}

#[tokio::test]
async fn tokens_are_read_anew_for_each_request() {
    let lab = Lab::new().await;
    fs::remove_file(lab.dir.path().join("manifests/one.yaml")).unwrap();
    lab.store.apply_manifests().await;
    assert_eq!(lab.get("one", "/v1/proxies").await.status, StatusCode::UNAUTHORIZED);
}
