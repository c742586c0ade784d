//! Only what a connection permits is dialled; the environment redirects nothing.

use std::process::Command;

use proxy_operator::model::error::{CallError, ErrorKind};
use proxy_operator_tests::plugins::server::{Reply, Server};
use proxy_operator_tests::plugins::{Setup, identity, soon};
use serde_json::{Value, json};

async fn failure(setup: Setup, config: Value) -> CallError {
    let handle = setup.config(config).handle("fetch").await;
    soon("a call", handle.get(&identity("a", "here"))).await.expect_err("it is refused")
}

#[tokio::test]
async fn loopback_needs_a_permit_by_number_and_by_name() {
    let server = Server::start(async |_| Reply::status(200)).await;
    let port = server.address.port();
    for host in ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]"] {
        let connection = json!({"http": {"baseUrl": format!("http://{host}:{port}")}});
        let error = failure(Setup::new().connection("cloud", connection), json!({"http": {}})).await;
        assert_eq!((&error.kind, error.reason.as_str()), (&ErrorKind::ConfigMissing, "Denied"), "{host}: {error}");
        assert!(error.message.contains("permit: [loopback]"), "{error}");
    }
    assert!(server.asked().is_empty());
    let connection = json!({"http": {"baseUrl": format!("http://localhost:{port}"), "permit": ["loopback"]}});
    let handle = Setup::new().connection("cloud", connection).config(json!({"http": {}})).handle("fetch").await;
    handle.get(&identity("a", "here")).await.expect("it is permitted");
    assert_eq!(server.asked().len(), 1);
}

#[tokio::test]
async fn the_metadata_address_needs_a_permit_of_its_own() {
    for permit in [json!([]), json!(["loopback"])] {
        let connection = json!({"http": {"baseUrl": "http://169.254.169.254", "permit": permit}});
        let error = failure(Setup::new().connection("cloud", connection), json!({"http": {"method": "PUT"}})).await;
        assert_eq!((&error.kind, error.reason.as_str()), (&ErrorKind::ConfigMissing, "Denied"), "{error}");
        assert!(error.message.contains("permit: [linkLocal]"), "{error}");
    }
}

#[tokio::test]
async fn a_name_without_an_address_is_transient() {
    let connection = json!({"http": {"baseUrl": "http://no-such-host.invalid"}});
    let error = failure(Setup::new().connection("cloud", connection), json!({"http": {"method": "PUT"}})).await;
    assert_eq!((&error.kind, error.reason.as_str()), (&ErrorKind::Transient, "DnsFailed"), "{error}");
}

/// Run by the next test, in a process whose environment names a proxy.
#[tokio::test]
async fn a_request_goes_straight_to_its_origin() {
    let server = Server::start(async |_| Reply::status(200)).await;
    let setup = Setup::new().http("cloud", server.address).config(json!({"http": {}}));
    setup.handle("fetch").await.get(&identity("a", "here")).await.expect("the origin answers");
    assert_eq!(server.asked().len(), 1);
}

#[test]
fn a_proxy_of_the_environment_is_not_asked() {
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new(program);
    child.args(["--exact", "egress::a_request_goes_straight_to_its_origin"]);
    for name in ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"] {
        // Port 9 of loopback discards, where it is open at all.
        child.env(name, "http://127.0.0.1:9");
    }
    let output = child.env_remove("no_proxy").env_remove("NO_PROXY").output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}
