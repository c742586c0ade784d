//! Requests by connection name: what the host adds, what it refuses, and what faults become.

use proxy_operator::model::error::{CallError, ErrorKind};
use proxy_operator_tests::plugins::server::{Reply, Server};
use proxy_operator_tests::plugins::{Setup, identity, present, soon};
use serde_json::{Value, json};

/// What `fetch` tells of the request that `wish` describes.
async fn fetch(setup: Setup, wish: Value) -> Result<Value, CallError> {
    let handle = setup.config(json!({"http": wish})).handle("fetch").await;
    let found = soon("a request", handle.get(&identity("a", "here"))).await?;
    let told = present(found).message.expect("fetch tells what it got");
    Ok(serde_json::from_str(&told).unwrap_or_else(|e| panic!("{told}: {e}")))
}

/// The error of a request, which the backend must not have seen.
async fn refused(server: &Server, setup: Setup, wish: Value) -> CallError {
    let seen = server.asked().len();
    let error = fetch(setup, wish.clone()).await.expect_err(&format!("{wish} is refused"));
    assert_eq!(server.asked().len(), seen, "{wish} left the operator");
    error
}

async fn answering(reply: impl Fn() -> Reply + Send + Sync + 'static) -> Server {
    Server::start(move |_| std::future::ready(reply())).await
}

#[tokio::test]
async fn a_request_arrives_as_the_guest_meant_it_with_the_hosts_credential() {
    let server = answering(|| Reply::Answer(201, vec![("etag", "\"7\"".into())], b"made".to_vec())).await;
    let setup = Setup::new().bearer("cloud", server.address, "token-of-the-test");
    let wish = json!({"method": "PUT", "path": "/a b/ü", "headers": {"x-note": "yes"}, "body": 3});
    let answer = fetch(setup, wish).await.expect("it answers");
    assert_eq!((&answer["status"], &answer["body"]), (&json!(201), &json!("made")));
    assert_eq!(answer["headers"]["etag"], "\"7\"");
    let asked = &server.asked()[0];
    assert_eq!((asked.method.as_str(), asked.target.as_str()), ("PUT", "/a%20b/%C3%BC"));
    assert_eq!(asked.header("authorization"), Some("Bearer token-of-the-test"));
    assert_eq!(asked.header("x-note"), Some("yes"));
    assert_eq!(asked.body, b"xxx");
}

#[tokio::test]
async fn basic_and_header_credentials_are_added_and_cannot_be_overridden() {
    let server = answering(|| Reply::status(200)).await;
    let to = |auth: Value| {
        let http = json!({"baseUrl": format!("http://{}", server.address), "permit": ["loopback"], "auth": auth});
        let setup = Setup::new().connection("cloud", json!({"http": http}));
        setup.vault.set("s", "opensesame");
        setup
    };
    let source = json!({"secretRef": {"name": "s", "key": "value"}});
    fetch(to(json!({"basic": {"username": "Aladdin", "password": source}})), json!({})).await.expect("it answers");
    fetch(to(json!({"header": {"name": "X-Key", "value": source}})), json!({"headers": {"x-key": "mine"}}))
        .await
        .expect("it answers");
    let asked = server.asked();
    assert_eq!(asked[0].header("authorization"), Some("Basic QWxhZGRpbjpvcGVuc2VzYW1l"));
    let keys: Vec<_> = asked[1].headers.iter().filter(|(name, _)| name == "x-key").collect();
    assert_eq!(keys.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>(), ["opensesame"]);
}

#[tokio::test]
async fn a_redirect_is_an_answer_and_is_not_followed() {
    let elsewhere = answering(|| Reply::status(200)).await;
    let target = format!("http://{}/stolen", elsewhere.address);
    for status in [301, 302, 303, 307, 308] {
        let location = target.clone();
        let server = answering(move || Reply::Answer(status, vec![("location", location.clone())], vec![])).await;
        let answer = fetch(Setup::new().bearer("cloud", server.address, "token"), json!({})).await.expect("an answer");
        assert_eq!(answer["status"], status);
        assert_eq!(answer["headers"]["location"], target.as_str());
    }
    assert!(elsewhere.asked().is_empty(), "a redirect was followed");
}

#[tokio::test]
async fn headers_that_are_the_hosts_own_are_refused() {
    let server = answering(|| Reply::status(200)).await;
    for name in ["authorization", "Host", "Connection", "Transfer-Encoding", "content-length", "te", "Upgrade", "a b"] {
        let setup = Setup::new().http("cloud", server.address);
        let error = refused(&server, setup, json!({"headers": {name: "x"}})).await;
        assert_eq!((&error.kind, error.reason.as_str()), (&ErrorKind::ConfigMissing, "Denied"), "{name}: {error}");
        assert!(error.message.contains(&format!("header {name:?}")), "{error}");
    }
    let setup = Setup::new().http("cloud", server.address);
    let error = refused(&server, setup, json!({"headers": {"x-split": "a\r\nhost: b"}})).await;
    assert_eq!(error.reason, "Denied");
}

#[tokio::test]
async fn answers_lose_the_headers_that_are_not_for_guests() {
    let headers =
        || vec![("set-cookie", "session=1".into()), ("www-authenticate", "Basic".into()), ("x-a", "1".into())];
    let server = answering(move || Reply::Answer(200, headers(), vec![])).await;
    let answer = fetch(Setup::new().http("cloud", server.address), json!({})).await.expect("it answers");
    let mut names: Vec<_> = answer["headers"].as_object().expect("headers").keys().collect();
    names.retain(|name| !["connection", "content-length"].contains(&name.as_str()));
    assert_eq!(names, ["x-a"]);
}

#[tokio::test]
async fn allow_rules_hold_methods_and_whole_path_segments() {
    let server = answering(|| Reply::status(200)).await;
    let setup = || {
        let allow = json!([{"methods": ["GET"], "pathPrefix": "/v1/pods"}, {"methods": ["POST"], "path": "/v1/login"}]);
        let base = format!("http://{}", server.address);
        let http = json!({"baseUrl": base, "permit": ["loopback"], "allow": allow});
        Setup::new().connection("cloud", json!({"http": http}))
    };
    for (method, path) in [("GET", "/v1/pods"), ("GET", "/v1/pods/a"), ("POST", "/v1/login")] {
        fetch(setup(), json!({"method": method, "path": path}))
            .await
            .unwrap_or_else(|e| panic!("{method} {path}: {e}"));
    }
    for (method, path) in [
        ("DELETE", "/v1/pods/a"),
        ("GET", "/v1/podsecrets"),
        ("GET", "/v1/login"),
        ("POST", "/v1/login/x"),
        ("GET", "/v1/pods/../secrets"),
        ("GET", "/"),
    ] {
        let error = refused(&server, setup(), json!({"method": method, "path": path})).await;
        assert_eq!((&error.kind, error.reason.as_str()), (&ErrorKind::ConfigMissing, "Denied"), "{method} {path}");
    }
}

#[tokio::test]
async fn methods_that_are_no_requests_to_an_origin_are_refused() {
    let server = answering(|| Reply::status(200)).await;
    for method in ["CONNECT", "TRACE", "get", "", "GET /x HTTP/1.1\r\nhost: y\r\n\r\nGET"] {
        let error = refused(&server, Setup::new().http("cloud", server.address), json!({"method": method})).await;
        assert_eq!(error.reason, "Denied", "{method:?}: {error}");
    }
}

#[tokio::test]
async fn bodies_over_the_limit_are_too_large_both_ways() {
    const LIMIT: usize = 4 << 20;
    let server = answering(|| Reply::Answer(200, vec![], vec![b'x'; LIMIT + 1])).await;
    let setup = || Setup::new().http("cloud", server.address);
    let error = refused(&server, setup(), json!({"method": "PUT", "body": LIMIT + 1})).await;
    assert_eq!((&error.kind, error.reason.as_str()), (&ErrorKind::Internal, "TooLarge"), "{error}");

    let error = fetch(setup(), json!({})).await.expect_err("the answer is too large");
    assert_eq!((&error.kind, error.reason.as_str()), (&ErrorKind::Internal, "TooLarge"), "{error}");
    assert!(error.message.contains("answer's body is over 4194304 bytes"), "{error}");

    // As the answer to a change, all that is known is that the change was sent.
    let error = fetch(setup(), json!({"method": "PUT", "body": LIMIT})).await.expect_err("the answer is too large");
    assert_eq!((&error.kind, error.reason.as_str()), (&ErrorKind::UnknownOutcome, "TooLarge"), "{error}");
    assert_eq!(server.asked().last().map(|asked| asked.body.len()), Some(LIMIT));
}

#[tokio::test]
async fn too_many_headers_are_too_large_both_ways() {
    let server = answering(|| Reply::Answer(200, (0..99).map(|at| ("x-many", at.to_string())).collect(), vec![])).await;
    let setup = || Setup::new().http("cloud", server.address);
    let headers: serde_json::Map<_, _> = (0..101).map(|at| (format!("x-{at}"), json!("y"))).collect();
    let error = refused(&server, setup(), json!({"headers": headers})).await;
    assert_eq!((&error.kind, error.reason.as_str()), (&ErrorKind::Internal, "TooLarge"), "{error}");
    // With those that the server adds itself it is over a hundred.
    let error = fetch(setup(), json!({})).await.expect_err("too many headers");
    assert_eq!((&error.kind, error.reason.as_str()), (&ErrorKind::Internal, "TooLarge"), "{error}");
}

#[tokio::test]
async fn a_missing_credential_is_told_and_nothing_is_sent_without_it() {
    let server = answering(|| Reply::status(200)).await;
    let http = json!({"baseUrl": format!("http://{}", server.address), "permit": ["loopback"],
        "auth": {"bearer": {"secretRef": {"name": "nowhere", "key": "value"}}}});
    let setup = Setup::new().connection("cloud", json!({"http": http}));
    let error = refused(&server, setup, json!({})).await;
    assert_eq!((&error.kind, error.reason.as_str()), (&ErrorKind::Unauthorized, "CredentialMissing"), "{error}");
    assert!(error.message.contains("Secret \"nowhere\" is missing"), "{error}");
}

#[tokio::test]
async fn a_lost_answer_is_transient_for_a_question_and_unknown_for_a_change() {
    for reply in [|| Reply::HangUp, || Reply::Raw(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf".to_vec())] {
        let server = answering(reply).await;
        let setup = || Setup::new().http("cloud", server.address);
        let error = fetch(setup(), json!({})).await.expect_err("the answer is lost");
        assert_eq!((&error.kind, error.reason.as_str()), (&ErrorKind::Transient, "ConnectionLost"), "{error}");
        let error = fetch(setup(), json!({"method": "POST"})).await.expect_err("the answer is lost");
        assert_eq!((&error.kind, error.reason.as_str()), (&ErrorKind::UnknownOutcome, "ConnectionLost"), "{error}");
    }
}

/// Where it stands still does not matter: within the head, before the body, within it.
#[tokio::test]
async fn an_answer_that_stands_still_ends_at_its_time_limit_and_is_not_lost() {
    let whole = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf";
    for until in [10, whole.len() - 4, whole.len()] {
        let server = answering(move || Reply::Stall(whole[..until].to_vec())).await;
        let setup = || Setup::new().http("cloud", server.address);
        let error = fetch(setup(), json!({"timeoutMs": 300})).await.expect_err("it stands still");
        assert_eq!((&error.kind, error.reason.as_str()), (&ErrorKind::Transient, "TimedOut"), "{error}");
        assert!(error.message.contains("no whole answer within 300 ms"), "{error}");
        let error = fetch(setup(), json!({"method": "POST", "timeoutMs": 300})).await.expect_err("it stands still");
        assert_eq!((&error.kind, error.reason.as_str()), (&ErrorKind::UnknownOutcome, "TimedOut"), "{error}");
        // The guest would wait longer than its call may.
        let error = fetch(setup().call_timeout(1), json!({})).await.expect_err("it stands still");
        assert_eq!((&error.kind, error.reason.as_str()), (&ErrorKind::Transient, "CallTimedOut"), "{error}");
        assert!(error.message.contains("connection \"cloud\""), "{error}");
    }
}

#[tokio::test]
async fn nonsense_instead_of_an_answer_is_transient() {
    let server = answering(|| Reply::Raw(b"SSH-2.0-OpenSSH_9.9\r\n".to_vec())).await;
    let error = fetch(Setup::new().http("cloud", server.address), json!({})).await.expect_err("that is not HTTP");
    assert_eq!((&error.kind, error.reason.as_str()), (&ErrorKind::Transient, "ProtocolError"), "{error}");
}

#[tokio::test]
async fn a_closed_port_is_unreachable_and_a_change_was_not_sent() {
    let address = { Server::start(async |_| Reply::HangUp).await.address };
    let error = soon("a closed port", async {
        loop {
            // The port closes a moment after its server was dropped.
            let outcome = fetch(Setup::new().http("cloud", address), json!({"method": "POST"})).await;
            match outcome {
                Err(error) if error.kind != ErrorKind::UnknownOutcome => return error,
                _ => tokio::task::yield_now().await,
            }
        }
    })
    .await;
    assert_eq!((&error.kind, error.reason.as_str()), (&ErrorKind::Transient, "Unreachable"), "{error}");
}

#[tokio::test]
async fn a_connection_that_is_not_granted_is_named_with_those_that_are() {
    let server = answering(|| Reply::status(200)).await;
    let setup = Setup::new().http("cloud", server.address).http("other", server.address);
    let error = refused(&server, setup, json!({"connection": "moon"})).await;
    assert_eq!((&error.kind, error.reason.as_str()), (&ErrorKind::ConfigMissing, "ConnectionNotGranted"), "{error}");
    assert!(error.message.contains("\"moon\"") && error.message.contains("cloud, other"), "{error}");
}
