//! Access tokens that the host asks for: of Google, for a key or from a metadata server; never seen by a guest.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use proxy_operator::model::error::ErrorKind;
use proxy_operator::plugin::grants::Grants;
use proxy_operator_tests::plugins::server::{Asked, Reply, Server};
use proxy_operator_tests::plugins::{Setup, eventually, identity, present, soon};
use proxy_operator_tests::sshd::pair;
use ring::signature::{KeyPair as _, RSA_PKCS1_2048_8192_SHA256, RsaKeyPair, UnparsedPublicKey};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use tokio::task::JoinSet;

const EMAIL: &str = "crawler@project-1.iam.gserviceaccount.com";

/// A key file as Google's console gives it, and what verifies its signatures.
struct Key {
    file: String,
    public: Vec<u8>,
}

fn key(id: &str, token_url: &str) -> Key {
    let pem = pair(&["-t", "rsa", "-b", "2048", "-m", "PKCS8"]).private;
    let der = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).expect("PKCS#8");
    let public = RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()).expect("RSA").public_key().as_ref().to_vec();
    let file = json!({"type": "service_account", "project_id": "project-1", "private_key_id": id, "private_key": pem,
        "client_email": EMAIL, "token_uri": token_url});
    Key { file: file.to_string(), public }
}

/// What a request for a token claims, when a key of these signed it.
fn claims(asked: &Asked, keys: &[&Key], audience: &str) -> Value {
    assert_eq!(asked.method, "POST");
    assert_eq!(asked.header("content-type"), Some("application/x-www-form-urlencoded"));
    let form: Vec<_> = url::form_urlencoded::parse(&asked.body).into_owned().collect();
    assert_eq!(form[0], ("grant_type".into(), "urn:ietf:params:oauth:grant-type:jwt-bearer".into()));
    let parts: Vec<&str> = form[1].1.split('.').collect();
    let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).expect("base64url");
    let (header, claims): (Value, Value) = (
        serde_json::from_slice(&decode(parts[0])).expect("JSON"),
        serde_json::from_slice(&decode(parts[1])).expect("JSON"),
    );
    assert_eq!((&header["alg"], &header["typ"]), (&json!("RS256"), &json!("JWT")));
    let message = format!("{}.{}", parts[0], parts[1]);
    let signed = keys.iter().any(|key| {
        let key = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, &key.public);
        key.verify(message.as_bytes(), &decode(parts[2])).is_ok()
    });
    assert!(signed, "no key signed {message}");
    assert_eq!((&claims["iss"], &claims["aud"]), (&json!(EMAIL), &json!(audience)));
    assert_eq!(claims["scope"], "https://www.googleapis.com/auth/cloud-platform");
    let (issued, ends) = (claims["iat"].as_u64().expect("iat"), claims["exp"].as_u64().expect("exp"));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs();
    assert!(ends == issued + 3600 && now.abs_diff(issued) < 120, "{claims}");
    header
}

/// Hands out `token-1-of-google`, `token-2-of-google`, … each good for this long.
async fn token_server(secs: u64) -> Server {
    let count = Arc::new(AtomicU32::new(0));
    Server::start(move |_| {
        let token = format!("token-{}-of-google", count.fetch_add(1, Ordering::SeqCst) + 1);
        std::future::ready(Reply::json(200, json!({"access_token": token, "expires_in": secs, "token_type": "Bearer"})))
    })
    .await
}

fn with(server: &Server, auth: Value) -> Setup {
    let http = json!({"baseUrl": format!("http://{}", server.address), "permit": ["loopback"], "auth": auth});
    Setup::new().connection("cloud", json!({"http": http})).concurrent_calls(50)
}

fn with_key(server: &Server, key: &Key) -> Setup {
    let setup = with(server, json!({"googleServiceAccount": {"secretRef": {"name": "gcp", "key": "value"}}}));
    setup.vault.set("gcp", &key.file);
    setup
}

#[tokio::test]
async fn a_key_is_exchanged_once_for_all_requests() {
    let (tokens, backend) = (token_server(3600).await, Server::start(async |_| Reply::status(200)).await);
    let url = format!("http://{}/token", tokens.address);
    let (first, second) = (key("key-1", &url), key("key-2", &url));
    let setup = with_key(&backend, &first).config(json!({"http": {}}));
    let vault = setup.vault.clone();
    let handle = Arc::new(setup.handle("fetch").await);
    let mut calls = JoinSet::new();
    for _ in 0..20 {
        let handle = handle.clone();
        calls.spawn(async move { handle.get(&identity("a", "here")).await.map(present) });
    }
    for answer in soon("all of them", calls.join_all()).await {
        let told = answer.expect("it answers").message.expect("a message");
        assert!(!told.contains("of-google"), "{told}");
    }
    assert_eq!(tokens.asked().len(), 1);
    assert_eq!(claims(&tokens.asked()[0], &[&first], &url)["kid"], "key-1");
    assert!(backend.asked().iter().all(|asked| asked.header("authorization") == Some("Bearer token-1-of-google")));
    // A rotated key, and with it a new token.
    vault.set("gcp", &second.file);
    handle.get(&identity("a", "here")).await.expect("it answers");
    assert_eq!(claims(&tokens.asked()[1], &[&second], &url)["kid"], "key-2");
    let asked = backend.asked();
    assert_eq!(asked.last().and_then(|asked| asked.header("authorization")), Some("Bearer token-2-of-google"));
}

#[tokio::test]
async fn a_token_is_renewed_before_it_ends() {
    let (tokens, backend) = (token_server(1).await, Server::start(async |_| Reply::status(200)).await);
    let key = key("key-1", "https://unused.example/token");
    let url = format!("http://{}/token", tokens.address);
    let source = json!({"secretRef": {"name": "gcp", "key": "value"}, "tokenUrl": url});
    let setup = with(&backend, json!({"googleServiceAccount": source})).config(json!({"http": {}}));
    setup.vault.set("gcp", &key.file);
    let handle = setup.handle("fetch").await;
    eventually("it is renewed twice", async || {
        handle.get(&identity("a", "here")).await.expect("it answers");
        tokens.asked().len() == 3
    })
    .await;
    claims(&tokens.asked()[2], &[&key], &url);
}

#[tokio::test]
async fn a_token_that_the_backend_refuses_is_renewed_once_for_what_changes_nothing() {
    let tokens = token_server(3600).await;
    let backend = Server::start(async |asked| {
        let good = asked.header("authorization") != Some("Bearer token-1-of-google");
        Reply::status(if good { 200 } else { 401 })
    })
    .await;
    let key = key("key-1", &format!("http://{}/token", tokens.address));
    let ask = async |method: &str| {
        let handle = with_key(&backend, &key).config(json!({"http": {"method": method}})).handle("fetch").await;
        present(handle.get(&identity("a", "here")).await.expect("an answer")).message.expect("a message")
    };
    assert!(ask("GET").await.contains("\"status\":200"));
    assert_eq!((tokens.asked().len(), backend.asked().len()), (2, 2));

    // What may change something is not sent twice; the token is another the next time.
    let tokens = token_server(3600).await;
    let key = self::key("key-1", &format!("http://{}/token", tokens.address));
    let handle = with_key(&backend, &key).config(json!({"http": {"method": "POST"}})).handle("fetch").await;
    let ask =
        async || present(handle.get(&identity("a", "here")).await.expect("an answer")).message.expect("a message");
    assert!(ask().await.contains("\"status\":401"));
    assert_eq!(backend.asked().len(), 3);
    assert!(ask().await.contains("\"status\":200"));

    // A backend that refuses every token is asked twice and no more.
    let never = Server::start(async |_| Reply::status(401)).await;
    let handle = with_key(&never, &key).config(json!({"http": {}})).handle("fetch").await;
    let told = present(handle.get(&identity("a", "here")).await.expect("an answer")).message.expect("a message");
    assert!(told.contains("\"status\":401") && never.asked().len() == 2, "{told}");
}

#[tokio::test]
async fn a_refused_key_and_a_token_server_that_is_down_are_told_apart() {
    let backend = Server::start(async |_| Reply::status(200)).await;
    for (status, kind, reason, says) in [
        (400, ErrorKind::Unauthorized, "CredentialMissing", "invalid_grant Invalid JWT Signature."),
        (503, ErrorKind::Transient, "Unreachable", "it answered 503"),
    ] {
        let told = json!({"error": "invalid_grant", "error_description": "Invalid JWT Signature."});
        let tokens = Server::start(move |_| std::future::ready(Reply::json(status, told.clone()))).await;
        let key = key("key-1", &format!("http://{}/token", tokens.address));
        let handle = with_key(&backend, &key).config(json!({"http": {"method": "POST"}})).handle("fetch").await;
        let error = soon("a call", handle.get(&identity("a", "here"))).await.expect_err("there is no token");
        assert_eq!((&error.kind, error.reason.as_str()), (&kind, reason), "{error}");
        assert!(error.message.contains(says) && error.message.contains(EMAIL), "{error}");
    }
    assert!(backend.asked().is_empty());
}

#[tokio::test]
async fn the_metadata_server_is_asked_by_the_host_alone() {
    let (tokens, backend) = (token_server(3600).await, Server::start(async |_| Reply::status(200)).await);
    let auth = json!({"googleMetadata": {"url": format!("http://{}", tokens.address)}});
    let handle = with(&backend, auth).config(json!({"http": {}})).handle("fetch").await;
    handle.get(&identity("a", "here")).await.expect("it answers");
    let asked = &tokens.asked()[0];
    assert_eq!(asked.target, "/computeMetadata/v1/instance/service-accounts/default/token");
    assert_eq!(asked.header("metadata-flavor"), Some("Google"));
    assert_eq!(backend.asked()[0].header("authorization"), Some("Bearer token-1-of-google"));
}

#[tokio::test]
async fn a_token_server_at_an_address_that_is_not_permitted_is_not_asked() {
    let tokens = token_server(3600).await;
    let source =
        json!({"secretRef": {"name": "gcp", "key": "value"}, "tokenUrl": format!("http://{}", tokens.address)});
    let http = json!({"baseUrl": "http://192.0.2.1", "auth": {"googleServiceAccount": source}});
    let setup = Setup::new().connection("cloud", json!({"http": http})).config(json!({"http": {}}));
    setup.vault.set("gcp", &key("key-1", "https://unused.example").file);
    let error = setup.handle("fetch").await.get(&identity("a", "here")).await.expect_err("it is refused");
    assert!(error.message.contains("permit: [loopback]"), "{error}");
    assert!(tokens.asked().is_empty());
}

#[tokio::test]
async fn what_is_no_key_file_is_told_before_a_plugin_is_called() {
    let backend = Server::start(async |_| Reply::status(200)).await;
    let good = key("key-1", "https://unused.example");
    for (file, says) in [
        ("nonsense".to_owned(), "is no key file"),
        (good.file.replace("service_account", "authorized_user"), "another type"),
        (good.file.replace("PRIVATE KEY", "PUBLIC KEY"), "no RSA key in PKCS#8 PEM"),
    ] {
        let setup = with_key(&backend, &good);
        setup.vault.set("gcp", &file);
        let grants = Grants::new(&setup.spec(), Arc::new(setup.vault.clone())).expect("a good connection");
        let error = grants.probe().await.expect_err(says).to_string();
        assert!(error.contains(says) && error.contains("Secret gcp"), "{error}");
    }
}

#[tokio::test]
async fn a_service_account_needs_a_cluster() {
    let backend = Server::start(async |_| Reply::status(200)).await;
    let setup = with(&backend, json!({"serviceAccount": {"name": "proxy-pods"}}));
    let error = Grants::new(&setup.spec(), Arc::new(setup.vault.clone())).err().expect("it is refused").to_string();
    assert!(error.contains("standalone") && error.contains("http.auth.bearer"), "{error}");
}
