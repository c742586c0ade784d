//! No value of a secret leaves in a log or an answer, whatever a guest does with it.

use proxy_operator::model::error::ErrorKind;
use proxy_operator_tests::plugins::logs::Logs;
use proxy_operator_tests::plugins::server::{Reply, Server};
use proxy_operator_tests::plugins::{Setup, identity, login, present, request};
use serde_json::json;

/// Neither a value nor any stretch of eight of its characters.
fn assert_hidden(text: &str, value: &str) {
    assert!(!text.contains(value), "{value:?} stands in {text}");
    let chars: Vec<char> = value.chars().collect();
    for part in chars.windows(8).map(|window| window.iter().collect::<String>()) {
        assert!(!text.contains(&part), "{part:?}, a part of {value:?}, stands in {text}");
    }
}

#[tokio::test]
async fn a_granted_secret_is_scrubbed_from_the_log() {
    for value in
        ["granted-value-8d1f", "with \"quotes\" and \\ in it", "-----BEGIN KEY-----\nMIIEvAIBADAN\n-----END KEY-----"]
    {
        let (logs, _catching) = Logs::catch();
        let handle = Setup::new().secret("token", value).config(json!({"secret": "token"})).handle("echo").await;
        handle.validate(None).await.expect("the call works").expect("the config is good");
        let text = logs.text();
        assert!(text.contains("granted secret"), "the guest's line is there: {text}");
        assert!(text.contains("[redacted]"), "{text}");
        assert_hidden(&text, value);
        assert_hidden(&text, &format!("{value:?}"));
    }
}

#[tokio::test]
async fn the_login_of_a_proxy_is_scrubbed_from_log_and_answer() {
    let (logs, _catching) = Logs::catch();
    let handle = Setup::new().handle("echo").await;
    let mut wanted = request("a", "here");
    wanted.login = Some(login("pxUser", "pass-word-5c2e"));
    let made = handle.create(&wanted).await.expect("echo makes it");
    assert_eq!(made.message.as_deref(), Some("login pxUser:[redacted]"));
    let text = logs.text();
    assert!(text.contains("[redacted]"), "{text}");
    assert_hidden(&text, "pass-word-5c2e");
}

/// The contract: a login is there in `create` alone.
#[tokio::test]
async fn no_other_function_is_told_the_login() {
    let (logs, _catching) = Logs::catch();
    let handle = Setup::new().handle("echo").await;
    let mut wanted = request("a", "here");
    wanted.login = Some(login("pxUser", "pass-word-5c2e"));
    handle.validate(Some(&wanted)).await.expect("the call works").expect("the request is good");
    handle.place(&wanted, &[]).await.expect("echo has room");
    assert_hidden(&logs.text(), "pass-word-5c2e");
    assert!(!logs.text().contains("pxUser"), "{}", logs.text());
}

#[tokio::test]
async fn a_credential_that_the_backend_repeats_is_scrubbed() {
    let (logs, _catching) = Logs::catch();
    let server = Server::start(async |asked| {
        let told = asked.header("authorization").unwrap_or_default().to_owned();
        Reply::Answer(200, vec![("x-seen", told.clone()), ("authorization", told.clone())], told.into_bytes())
    })
    .await;
    let setup = Setup::new().bearer("cloud", server.address, "bearer-value-77aa");
    let handle = setup.config(json!({"http": {"path": "/"}})).handle("fetch").await;
    let told = present(handle.get(&identity("a", "here")).await.expect("it answers")).message.expect("a message");
    assert!(told.contains("Bearer [redacted]"), "{told}");
    assert_hidden(&told, "bearer-value-77aa");
    assert_hidden(&logs.text(), "bearer-value-77aa");
}

#[tokio::test]
async fn an_id_that_holds_a_secret_is_refused() {
    let server = Server::start(async |asked| {
        let token = asked.header("authorization").unwrap_or_default().trim_start_matches("Bearer ").to_owned();
        Reply::json(
            200,
            json!({"id": token, "name": "px", "zone": "zone-a", "cloudId": "c1", "state": "running",
                "owner": {"installation": "installation-1", "proxyUid": "uid-a"}}),
        )
    })
    .await;
    let handle = Setup::new().bearer("cloud", server.address, "bearer-value-77aa").handle("sandbox").await;
    let error = handle.get(&identity("a", "zone-a@c1")).await.expect_err("an id must not hold a secret");
    assert_eq!(error.kind, ErrorKind::Internal);
    assert!(error.message.contains("secret"), "{error}");
    assert_hidden(&error.message, "bearer-value-77aa");
}

#[tokio::test]
async fn a_rotated_secret_is_used_by_the_next_call() {
    let server = Server::start(async |_| Reply::status(200)).await;
    let setup = Setup::new().bearer("cloud", server.address, "first-token").config(json!({"http": {"path": "/"}}));
    let handle = setup.handle("fetch").await;
    handle.get(&identity("a", "here")).await.expect("it answers");
    setup.vault.set("cloud", "second-token\n");
    handle.get(&identity("a", "here")).await.expect("it answers");
    let asked = server.asked();
    let used: Vec<_> = asked.iter().map(|asked| asked.header("authorization")).collect();
    assert_eq!(used, [Some("Bearer first-token"), Some("Bearer second-token")]);
}
