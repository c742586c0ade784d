//! What a call that runs out of time is taken for depends on what it was doing.

use std::sync::Arc;
use std::time::Duration;

use proxy_operator::model::error::ErrorKind;
use proxy_operator::model::instance::Presence;
use proxy_operator_tests::plugins::server::{Reply, Server};
use proxy_operator_tests::plugins::{PATIENCE, Setup, identity, soon};
use serde_json::json;
use tokio::task::JoinSet;

async fn silent() -> Server {
    Server::start(async |_| Reply::Silence).await
}

#[tokio::test]
async fn a_backend_that_never_answers_a_question_is_transient() {
    let server = silent().await;
    let handle = Setup::new().http("cloud", server.address).call_timeout(1).handle("slow-get").await;
    let error = soon("a call", handle.get(&identity("a", "here"))).await.expect_err("nobody answers");
    assert_eq!((&error.kind, error.reason.as_str()), (&ErrorKind::Transient, "CallTimedOut"), "{error}");
    for part in ["plugin slow-get, get", "still waited for connection \"cloud\" after 1 s", "limits.callTimeout"] {
        assert!(error.message.contains(part), "{:?} does not say {part:?}", error.message);
    }
    assert_eq!(server.asked().len(), 1, "nothing is asked twice");
}

#[tokio::test]
async fn a_backend_that_never_answers_a_change_leaves_its_outcome_unknown() {
    let server = silent().await;
    for method in ["POST", "PUT", "DELETE", "PATCH"] {
        let setup = Setup::new().http("cloud", server.address).call_timeout(1);
        let handle = setup.config(json!({"http": {"method": method}})).handle("fetch").await;
        let error = soon("a call", handle.get(&identity("a", "here"))).await.expect_err("nobody answers");
        assert_eq!(error.kind, ErrorKind::UnknownOutcome, "{method}: {error}");
        assert_eq!(error.reason, "OutcomeUnknown", "{method}");
    }
}

#[tokio::test]
async fn a_guest_may_wait_shorter_than_its_call() {
    let server = silent().await;
    let setup = Setup::new().http("cloud", server.address);
    let handle = setup.config(json!({"http": {"timeoutMs": 50}})).handle("fetch").await;
    let error = soon("a call", handle.get(&identity("a", "here"))).await.expect_err("nobody answers");
    assert_eq!((&error.kind, error.reason.as_str()), (&ErrorKind::Transient, "TimedOut"), "{error}");
    assert!(error.message.contains("within 50 ms"), "{error}");
}

#[tokio::test]
async fn a_call_that_only_waited_for_its_turn_is_no_fault_of_the_plugin() {
    let server = silent().await;
    // All the calls that the operator makes at once, of one provider; the other waits.
    let setup = Setup::new().http("cloud", server.address).concurrent_calls(256);
    let hanging = Arc::new(setup.handle("slow-get").await);
    let mut calls = JoinSet::new();
    for _ in 0..64 {
        let handle = hanging.clone();
        calls.spawn(async move { handle.get(&identity("a", "here")).await });
    }
    server.wait_asked(64).await;
    let waiting = setup.call_timeout(1).handle("echo").await;
    let error = soon("a call", waiting.get(&identity("b", "here"))).await.expect_err("there is no turn");
    assert_eq!(error.kind, ErrorKind::Transient, "{error}");
    assert!(error.message.contains("waited for other calls"), "{error}");

    // Those that hang are given up, and their turns are free again.
    calls.shutdown().await;
    assert_eq!(soon("a call", waiting.get(&identity("b", "here"))).await, Ok(Presence::Absent));
}

#[tokio::test]
async fn a_provider_has_no_more_calls_at_once_than_it_may() {
    let server = silent().await;
    let setup = Setup::new().http("cloud", server.address).concurrent_calls(2).call_timeout(2);
    let handle = Arc::new(setup.handle("slow-get").await);
    let mut calls = JoinSet::new();
    for _ in 0..6 {
        let handle = handle.clone();
        calls.spawn(async move { handle.get(&identity("a", "here")).await });
    }
    server.wait_asked(2).await;
    let third = tokio::time::timeout(Duration::from_millis(500), server.wait_asked(3)).await;
    assert!(third.is_err(), "a third request came while two calls were running");
    let all = tokio::time::timeout(PATIENCE, calls.join_all()).await.expect("all end");
    for outcome in all {
        assert_eq!(outcome.expect_err("nobody answers").kind, ErrorKind::Transient);
    }
}
