//! A registry that means harm: what it answers is bounded, and where it sends to is not followed blindly.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use proxy_operator::model::clock::ManualClock;
use proxy_operator::model::spec_hash::hex;
use proxy_operator::plugin::registry::{Entry, Registry};
use proxy_operator::plugin::source::oci::Artifacts;
use proxy_operator_tests::plugins::{bytes_of, registry};
use serde_json::json;
use sha2::{Digest, Sha256, Sha512};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

/// A server on loopback that answers by path.
struct Server {
    host: String,
    _serving: AbortOnDropHandle<()>,
}

impl Server {
    async fn start(answer: impl Fn(&str, &Request) -> Response + Send + Sync + 'static) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let host = listener.local_addr().expect("its address").to_string();
        let (answer, own) = (Arc::new(answer), host.clone());
        let routes = Router::new().fallback(move |request: Request| {
            let (answer, own) = (answer.clone(), own.clone());
            async move { answer(&own, &request) }
        });
        let serving = tokio::spawn(async move { axum::serve(listener, routes).await.expect("it serves") });
        Self { host, _serving: AbortOnDropHandle::new(serving) }
    }
}

/// Somebody else on this machine, who counts who comes.
struct Bystander {
    port: u16,
    came: Arc<AtomicUsize>,
    _listening: AbortOnDropHandle<()>,
}

impl Bystander {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let came = Arc::new(AtomicUsize::new(0));
        let count = came.clone();
        let listening = tokio::spawn(async move {
            while listener.accept().await.is_ok() {
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        Self { port, came, _listening: AbortOnDropHandle::new(listening) }
    }
}

fn endless(status: StatusCode) -> Response {
    let pieces = futures::stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from_static(&[b' '; 16 << 10])));
    (status, Body::from_stream(pieces)).into_response()
}

fn manifest(digest: &str, size: usize) -> Response {
    let layer = json!({"mediaType": "application/wasm", "digest": digest, "size": size});
    json!({"schemaVersion": 2, "layers": [layer]}).to_string().into_response()
}

fn wants_token_of(realm: &str) -> Response {
    let challenge = format!("Bearer realm=\"{realm}\",service=\"lab\"");
    (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, challenge)]).into_response()
}

fn sends_to(url: &str) -> Response {
    (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, url)]).into_response()
}

fn sha256(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(bytes)))
}

struct Puller {
    registry: Arc<Registry>,
    artifacts: Artifacts,
}

impl Puller {
    fn new(plain: &[&str], cache: &Path) -> Self {
        let registry = registry();
        let plain = plain.iter().map(|host| (*host).to_owned()).collect();
        let artifacts = Artifacts::new(registry.clone(), Arc::new(ManualClock::default()), cache, plain);
        Self { registry, artifacts }
    }

    async fn pull(&self, reference: &str) -> Entry {
        self.artifacts.ensure("echo", reference, None).await;
        self.registry.artifact("echo", reference)
    }
}

/// The refusal of what this registry answers, which comes at once.
async fn refusal(answer: impl Fn(&str, &Request) -> Response + Send + Sync + 'static) -> String {
    let server = Server::start(answer).await;
    let cache = tempfile::tempdir().unwrap();
    let began = Instant::now();
    let entry = Puller::new(&[&server.host], cache.path()).pull(&format!("{}/plugins:1", server.host)).await;
    assert!(began.elapsed() < Duration::from_secs(30), "it took {:?}", began.elapsed());
    assert!(entry.current.is_none());
    entry.refused.expect("it is refused").message
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_without_an_end_is_cut_off_wherever_it_comes() {
    let message = refusal(|_, _| endless(StatusCode::OK)).await;
    assert!(message.contains("answers with a manifest of over 4194304 bytes"), "{message}");
    let message = refusal(|_, _| endless(StatusCode::INTERNAL_SERVER_ERROR)).await;
    assert!(message.contains("answered with status 500"), "{message}");
    let message = refusal(|own, request| match request.uri().path() {
        "/token" => endless(StatusCode::OK),
        _ => wants_token_of(&format!("http://{own}/token")),
    });
    let message = message.await;
    assert!(message.contains("answers with a token of over 65536 bytes"), "{message}");
    let message = refusal(|own, request| match request.uri().path() {
        "/token" => endless(StatusCode::FORBIDDEN),
        _ => wants_token_of(&format!("http://{own}/token")),
    });
    let message = message.await;
    assert!(message.contains("wants credentials"), "{message}");
    let message = refusal(|_, request| match request.uri().path() {
        path if path.contains("/blobs/") => endless(StatusCode::OK),
        _ => manifest(&sha256(b"x"), 6),
    });
    let message = message.await;
    assert!(message.contains("a layer larger than its manifest says, of over 6 bytes"), "{message}");
    let message = refusal(|own, _| sends_to(&format!("http://{own}/again"))).await;
    assert!(message.contains("sends on more than 5 times"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_sends_to_an_address_inside_is_not_followed() {
    let bystander = Bystander::start().await;
    let port = bystander.port;
    for (url, says) in [
        (format!("http://127.0.0.1:{port}/token"), format!("sends to http://127.0.0.1:{port}, which is not https")),
        (format!("https://127.0.0.1:{port}/token"), "which is at 127.0.0.1, a loopback address".to_owned()),
        (format!("https://[::ffff:127.0.0.1]:{port}/token"), "a loopback address".to_owned()),
        (format!("https://localhost:{port}/token"), format!("sends to https://localhost:{port}, which is at ")),
        ("https://169.254.169.254/token".to_owned(), "a link-local address".to_owned()),
        ("file:///etc/passwd".to_owned(), "which is not https".to_owned()),
    ] {
        // For a token, for the manifest, and for the layer.
        let to = url.clone();
        let realm = refusal(move |_, _| wants_token_of(&to)).await;
        let to = url.clone();
        let redirect = refusal(move |_, _| sends_to(&to)).await;
        let to = url.clone();
        let layer = refusal(move |_, request| match request.uri().path() {
            path if path.contains("/blobs/") => sends_to(&to),
            _ => manifest(&sha256(b"x"), 6),
        });
        for message in [realm, redirect, layer.await] {
            assert!(message.contains(&says), "{url}: {message}");
        }
    }
    assert_eq!(bystander.came.load(Ordering::SeqCst), 0, "nobody came to where it sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_elsewhere_is_pulled_without_the_credential() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let note = seen.clone();
    let store = Server::start(move |_, request| {
        note.lock().unwrap().push(request.headers().contains_key(header::AUTHORIZATION));
        bytes_of("echo").into_response()
    });
    let store = store.await;
    let elsewhere = store.host.clone();
    let server = Server::start(move |own, request| {
        let allowed = request.headers().get(header::AUTHORIZATION).is_some_and(|value| value == "Bearer t0ken");
        match request.uri().path() {
            "/token" => json!({"token": "t0ken"}).to_string().into_response(),
            _ if !allowed => wants_token_of(&format!("http://{own}/token")),
            path if path.contains("/blobs/") => sends_to(&format!("http://{elsewhere}/echo")),
            _ => manifest(&sha256(&bytes_of("echo")), bytes_of("echo").len()),
        }
    });
    let server = server.await;
    let cache = tempfile::tempdir().unwrap();
    let entry =
        Puller::new(&[&server.host, &store.host], cache.path()).pull(&format!("{}/plugins:1", server.host)).await;
    assert!(entry.current.is_some(), "{:?}", entry.refused);
    assert_eq!(*seen.lock().unwrap(), [false]);
}

/// It was found in the cache by its SHA-256 alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_layer_named_by_its_sha512_serves_on_after_a_restart_without_the_registry() {
    let echo = bytes_of("echo");
    let digest = format!("sha512:{}", hex(&Sha512::digest(&echo)));
    let server = Server::start(move |_, request| match request.uri().path() {
        path if path.contains("/blobs/sha512:") => echo.clone().into_response(),
        _ => manifest(&digest, echo.len()),
    });
    let server = server.await;
    let (host, cache) = (server.host.clone(), tempfile::tempdir().unwrap());
    let reference = format!("{host}/plugins:1");
    let entry = Puller::new(&[&host], cache.path()).pull(&reference).await;
    assert!(entry.current.is_some(), "{:?}", entry.refused);
    drop(server);
    let entry = Puller::new(&[&host], cache.path()).pull(&reference).await;
    assert!(entry.current.is_some(), "{:?}", entry.refused);
    assert_eq!(entry.refused.expect("it is told").reason, "PluginPullFailed");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_what_its_digest_names_is_refused() {
    let other = "another than its digest".to_owned();
    let message = refusal(move |_, request| match request.uri().path() {
        path if path.contains("/blobs/") => other.clone().into_response(),
        _ => manifest(&sha256(b"x"), 100),
    });
    let message = message.await;
    assert!(message.contains("something else than its digest names"), "{message}");
    let message = refusal(|_, _| manifest("sha256:../../etc/passwd", 100)).await;
    assert!(message.contains("neither sha256 nor sha512"), "{message}");

    let server = Server::start(|_, _| manifest(&sha256(b"x"), 6)).await;
    let cache = tempfile::tempdir().unwrap();
    let pinned = format!("{}/plugins@{}", server.host, sha256(b"another manifest"));
    let entry = Puller::new(&[&server.host], cache.path()).pull(&pinned).await;
    let message = entry.refused.expect("it is refused").message;
    assert!(message.contains("something else than its digest names"), "{message}");
}
