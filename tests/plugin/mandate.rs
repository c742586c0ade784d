//! A replica that does not lead changes nothing at a backend.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{Method, StatusCode};
use proxy_operator::model::clock::SystemClock;
use proxy_operator::model::error::ByHost;
use proxy_operator::model::mandate::Mandate;
use proxy_operator::plugin::grants::SecretError;
use proxy_operator::plugin::handle::Shared;
use proxy_operator_tests::plugins::{Setup, identity, loaded, request, soon};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};

#[tokio::test(flavor = "multi_thread")]
async fn without_a_mandate_nothing_is_created_or_deleted_and_everything_can_be_looked_at() {
    let mandate = Arc::new(Mandate::not_yet());
    let shared = Shared::new(Arc::new(SystemClock::default())).under(mandate.clone());
    let handle = Setup::new().shared(shared).bind(loaded("echo").await);
    let (asked, wanted) = (identity("a", "here"), request("a", "here"));
    for leading in [false, true, false] {
        match leading {
            true => mandate.extend(Duration::from_secs(3600)),
            false => mandate.end(),
        }
        let outcomes = [handle.create(&wanted).await.map(drop), handle.delete(&asked).await.map(drop)];
        for outcome in outcomes {
            let refused = outcome.err().filter(|e| e.reason == "NotLeading");
            assert_eq!(refused.is_some(), !leading, "{refused:?}");
            assert!(refused.is_none_or(|e| matches!(e.by_host, Some(ByHost::HeldBack(_)))));
        }
        assert!(handle.get(&asked).await.is_ok() && handle.check().await.is_ok());
    }
}

/// A cloud that keeps its first answer back until it may be given, and counts what it is asked.
async fn slow_cloud(gate: Arc<Notify>) -> (SocketAddr, mpsc::UnboundedReceiver<Method>) {
    let (tell, asked) = mpsc::unbounded_channel();
    let answer = move |method: Method| {
        let (tell, gate) = (tell.clone(), gate.clone());
        async move {
            tell.send(method).unwrap();
            gate.notified().await;
            StatusCode::SERVICE_UNAVAILABLE
        }
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(answer)).await });
    (addr, asked)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_under_way_ends_when_the_mandate_does_and_sends_nothing_more() {
    for function in ["create", "delete", "get"] {
        let (gate, mandate) = (Arc::new(Notify::new()), Arc::new(Mandate::always()));
        let (cloud, mut asked) = slow_cloud(gate.clone()).await;
        let shared = Shared::new(Arc::new(SystemClock::default())).under(mandate.clone());
        let handle = Setup::new().shared(shared).http("cloud", cloud).bind(loaded("sandbox").await);
        let call = tokio::spawn(async move {
            match function {
                "create" => handle.create(&request("a", "zone-a@c1")).await.map(drop),
                "delete" => handle.delete(&identity("a", "zone-a@c1")).await.map(drop),
                _ => handle.get(&identity("a", "zone-a@c1")).await.map(drop),
            }
        });
        // It looks before it changes anything.
        assert_eq!(soon("the first request", asked.recv()).await, Some(Method::GET));
        mandate.end();
        gate.notify_one();
        let error = soon("its end", call).await.unwrap().unwrap_err();
        assert_eq!(error.reason == "NotLeading", function != "get", "{function}: {error:?}");
        assert!(asked.try_recv().is_err(), "{function} asked again");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_granted_login_is_user_and_password_or_says_what_it_must_be() {
    let handle = Setup::new().secret("good", "ann:pass").secret("odd", "no colon").bind(loaded("echo").await);
    assert_eq!(handle.granted_login("good").await.unwrap().username, "ann");
    for (name, reason, says) in
        [("odd", "SecretMalformed", "must hold user:password"), ("none", "SecretMissing", "add it under spec.secrets")]
    {
        let refused = handle.granted_login(name).await.unwrap_err();
        assert!(refused.reason == reason && refused.message.contains(says), "{refused:?}");
        assert!(!refused.message.contains("no colon"));
    }
    // Which of these it is decides what a person does.
    let why = "why".to_owned();
    for (error, reason) in [
        (SecretError::Missing(why.clone()), "SecretMissing"),
        (SecretError::Denied(why.clone()), "PermissionDenied"),
        (SecretError::Unreadable(why), "SecretUnreadable"),
    ] {
        assert_eq!(error.reason(), reason);
    }
}
