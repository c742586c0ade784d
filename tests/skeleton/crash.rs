//! The operator is killed, and comes back.

use proxy_operator_tests::lab::{Lab, is_ready, lease_name, proxy, text, wish};
use reqwest::{Method, StatusCode};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn what_was_lent_before_a_crash_is_lent_to_nobody_else_after_it() {
    let mut lab = Lab::start().await;
    for name in ["a", "b"] {
        lab.put(&format!("{name}.yaml"), &proxy(name, ""));
    }
    lab.wait_ready(&["a", "b"]).await;
    let lease = lab.lease(wish(300)).await;
    lab.take_operator().kill();
    lab.start_operator().await;
    lab.wait_ready(&["a", "b"]).await;

    let other = lab.wait("the free one is lent", async |lab| {
        let (status, lease) = lab.rest(Method::POST, "/v1/leases", Some(json!({"ttlSeconds": 60}))).await;
        (status == StatusCode::CREATED).then_some(lease)
    });
    assert_ne!(lease_name(&other.await), lease_name(&lease));
    let (status, problem) = lab.rest(Method::POST, "/v1/leases", Some(json!({}))).await;
    assert_eq!((status, problem["code"].as_str()), (StatusCode::SERVICE_UNAVAILABLE, Some("all_leased")));

    // Its holder goes on by renewing, then gives it back.
    let path = format!("/v1/leases/{}", text(&lease, "id"));
    let (status, problem) = lab.rest(Method::GET, &path, None).await;
    assert_eq!((status, problem["code"].as_str()), (StatusCode::CONFLICT, Some("restored")));
    let (status, renewed) = lab.rest(Method::POST, &format!("{path}/renew"), Some(wish(120))).await;
    assert_eq!((status, lease_name(&renewed)), (StatusCode::OK, lease_name(&lease)));
    assert!(lab.fetch_through(&text(&renewed, "url")).await.contains("Your request came from"));
    assert_eq!(lab.rest(Method::DELETE, &path, None).await.0, StatusCode::NO_CONTENT);
    assert_eq!(lease_name(&lab.lease(wish(60)).await), lease_name(&lease));
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_at_any_moment_leave_one_machine_per_proxy_and_none_after_deletion() {
    let mut lab = Lab::start().await;
    // An operator that was killed believes in an absence only when its last create cannot land any more.
    lab.put("provider.yaml", &lab.provider("demo", "  limits: {callTimeout: 5s}\n"));
    let names = ["a", "b", "c", "d"];
    for name in names {
        lab.put(&format!("{name}.yaml"), &proxy(name, ", parameters: {bootMs: 300}"));
    }
    // Each life ends a little further on: before the placement, after it, while creating, when running.
    for step in 0..6 {
        lab.wait("it got a little further", async |lab| {
            let calls = lab.operator().log().matches("\"message\":\"called\"").count();
            let all = lab.proxies().await.iter().filter(|p| is_ready(p)).count() == names.len();
            (calls >= step * 4 || all).then_some(())
        })
        .await;
        lab.take_operator().kill();
        std::fs::remove_file(lab.path("operator.log")).unwrap();
        lab.start_operator().await;
    }
    lab.wait_ready(&names).await;
    assert_eq!(lab.machines().await.len(), names.len());
    assert!(lab.proxies().await.iter().all(|p| p.status.as_ref().unwrap().rebuilds == 0));

    for name in names {
        lab.command(&["delete", "proxy", name, "--wait=false"]);
    }
    for _ in 0..3 {
        lab.take_operator().kill();
        lab.start_operator().await;
    }
    lab.wait("everything is gone", async |lab| {
        (lab.proxies().await.is_empty() && lab.machines().await.is_empty()).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_graceful_stop_ends_with_0_and_touches_no_machine() {
    let mut lab = Lab::start().await;
    lab.put("a.yaml", &proxy("a", ""));
    let before = lab.wait_proxy("a", is_ready).await;
    assert_eq!(lab.take_operator().stop(), Some(0));
    assert_eq!(lab.machines().await.len(), 1);
    lab.start_operator().await;
    let after = lab.wait_proxy("a", is_ready).await;
    assert_eq!(before.status, after.status, "a restart writes nothing");
}
