//! The main job: from a manifest to a page fetched through a leased proxy.

use proxy_operator_tests::lab::{Lab, is_ready, lease_name, proxy, text, wish};
use reqwest::{Method, StatusCode};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn three_proxies_become_ready_are_lent_and_go() {
    let lab = Lab::start().await;
    for name in ["a", "b", "c"] {
        lab.put(&format!("{name}.yaml"), &proxy(name, ""));
    }
    lab.wait_ready(&["a", "b", "c"]).await;
    assert_eq!(lab.machines().await.len(), 3);

    // A lease's URL works as it is.
    let first = lab.lease(wish(60)).await;
    let page = lab.fetch_through(&text(&first, "url")).await;
    assert!(page.contains("Your request came from 127.0.0.1"), "{page}");
    assert_eq!(first["healthy"], true);
    assert_eq!(first["exitIP"], "127.0.0.1");

    // A second exclusive acquire gets another proxy, and so does a third; then there is none.
    let second = lab.lease(wish(60)).await;
    let third = lab.lease(wish(60)).await;
    let mut names = [lease_name(&first), lease_name(&second), lease_name(&third)];
    names.sort();
    assert_eq!(names, ["a", "b", "c"]);
    let (status, problem) = lab.rest(Method::POST, "/v1/leases", Some(wish(60))).await;
    assert_eq!((status, problem["code"].as_str()), (StatusCode::SERVICE_UNAVAILABLE, Some("all_leased")));
    assert!(problem["retryAfterSeconds"].as_u64().is_some_and(|s| (1..=60).contains(&s)), "{problem}");

    // A released proxy is lent again; a release is idempotent, and a released lease is over.
    let path = format!("/v1/leases/{}", text(&second, "id"));
    for _ in 0..2 {
        assert_eq!(lab.rest(Method::DELETE, &path, None).await.0, StatusCode::NO_CONTENT);
    }
    assert_eq!(lab.rest(Method::GET, &path, None).await.0, StatusCode::GONE);
    let again = lab.lease(wish(60)).await;
    assert_eq!(lease_name(&again), lease_name(&second));
    assert!(again["generation"].as_u64() > second["generation"].as_u64());

    // A renewal lengthens; one waits for what is released meanwhile.
    let renew = format!("/v1/leases/{}/renew", text(&first, "id"));
    let (status, renewed) = lab.rest(Method::POST, &renew, Some(wish(600))).await;
    assert_eq!(status, StatusCode::OK);
    assert!(text(&renewed, "expiresAt") > text(&first, "expiresAt"));
    let release = format!("/v1/leases/{}", text(&third, "id"));
    let waiting = lab.rest(Method::POST, "/v1/leases", Some(json!({"ttlSeconds": 60, "waitSeconds": 30})));
    let releasing = lab.rest(Method::DELETE, &release, None);
    let ((status, waited), _) = tokio::join!(waiting, releasing);
    assert_eq!((status, lease_name(&waited)), (StatusCode::CREATED, lease_name(&third)));

    // Deleting waits for the lease, and is not held up by it for ever: it is released here.
    lab.command(&["delete", "proxy", &lease_name(&first), "--wait=false"]);
    lab.wait("the lease shows that its proxy drains", async |lab| {
        let (_, lease) = lab.rest(Method::GET, &format!("/v1/leases/{}", text(&first, "id")), None).await;
        (lease["draining"] == true).then_some(())
    })
    .await;
    let (status, problem) = lab.rest(Method::POST, &renew, Some(wish(600))).await;
    assert_eq!((status, problem["code"].as_str()), (StatusCode::CONFLICT, Some("draining")));
    for lease in [&first, &again, &waited] {
        lab.rest(Method::DELETE, &format!("/v1/leases/{}", text(lease, "id")), None).await;
    }
    for name in ["a", "b", "c"].into_iter().filter(|name| *name != lease_name(&first)) {
        lab.command(&["delete", "proxy", name, "--wait=false"]);
    }
    lab.wait("everything is gone", async |lab| {
        (lab.proxies().await.is_empty() && lab.machines().await.is_empty()).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vanished_manifest_deletes_its_proxy_and_nothing_else() {
    let lab = Lab::start().await;
    for name in ["a", "b", "c"] {
        lab.put(&format!("{name}.yaml"), &proxy(name, ""));
    }
    lab.wait_ready(&["a", "b", "c"]).await;
    std::fs::remove_file(lab.path("manifests/b.yaml")).unwrap();
    lab.wait("b is gone", async |lab| {
        (lab.proxies().await.len() == 2 && lab.machines().await.len() == 2).then_some(())
    })
    .await;
    assert!(lab.proxies().await.iter().all(is_ready));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socks5_proxy_is_probed_and_lent() {
    let lab = Lab::start().await;
    lab.put("s.yaml", &proxy("s", ", protocol: socks5"));
    lab.wait_ready(&["s"]).await;
    let lease = lab.lease(json!({"protocol": "socks5"})).await;
    assert!(text(&lease, "url").starts_with("socks5://"), "{lease}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_spec_rebuilds_under_a_new_incarnation() {
    let lab = Lab::start().await;
    lab.put("a.yaml", &proxy("a", ""));
    let before = lab.wait_proxy("a", is_ready).await.status.unwrap();
    lab.put("a.yaml", &proxy("a", ", rebuildToken: now"));
    let after = lab.wait_proxy("a", |p| is_ready(p) && p.status.as_ref().unwrap().rebuilds == 1).await.status.unwrap();
    let incarnation = |s: &proxy_operator::model::proxy::ProxyStatus| s.instance.as_ref().unwrap().incarnation;
    assert_eq!((incarnation(&before), incarnation(&after)), (0, 1));
    assert_ne!(before.instance.unwrap().backend_id, after.instance.unwrap().backend_id);
    // The next one came first; the old one goes beside it.
    lab.wait_proxy("a", |p| is_ready(p) && p.status.as_ref().unwrap().retiring.is_empty()).await;
    assert_eq!(lab.machines().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_is_in_any_log_event_status_or_list() {
    let lab = Lab::start().await;
    lab.put("a.yaml", &proxy("a", ""));
    lab.wait_ready(&["a"]).await;
    let lease = lab.lease(wish(60)).await;
    lab.fetch_through(&text(&lease, "url")).await;
    let mut shown = lab.operator().log();
    shown += &serde_json::to_string(&lab.events().await).unwrap();
    shown += &serde_json::to_string(&lab.proxies().await).unwrap();
    shown += &lab.rest(Method::GET, "/v1/proxies", None).await.1.to_string();
    shown += &lab.rest(Method::GET, "/v1/providers", None).await.1.to_string();
    shown += &lab.metrics().await;
    assert!(shown.contains("\"a\""), "the log is not empty");
    for secret in [text(&lease, "password"), lab.token().to_owned(), "sandbox-cloud-token-of-the-lab".to_owned()] {
        assert!(!shown.contains(&secret), "a secret is shown");
    }
}
