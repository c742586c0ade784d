//! The sandbox cloud misbehaves in nine ways; each ends in its own error kind and reason, and then heals.

use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use proxy_operator::model::condition::Status;
use proxy_operator::model::provider::Provider;
use proxy_operator::model::proxy::Proxy;
use proxy_operator_tests::lab::{Lab, condition, condition_of, is_ready, proxy, wish};
use reqwest::{Method, StatusCode};
use serde_json::json;

/// Probes fast enough for a test.
const QUICK: &str = ", healthCheck: {interval: 1s}";

#[tokio::test(flavor = "multi_thread")]
async fn slow_boot_is_creating_and_past_its_deadline_replaced() {
    let lab = Lab::without_provider().await;
    lab.put("provider.yaml", &lab.provider("demo", "  limits: {createDeadline: 2s}\n"));
    lab.faults(json!([{"kind": "slow-boot", "times": 1}])).await;
    lab.put("a.yaml", &proxy("a", ""));
    lab.wait_reason("a", "Creating").await;
    let (status, problem) = lab.rest(Method::POST, "/v1/leases", Some(wish(60))).await;
    assert_eq!((status, problem["code"].as_str()), (StatusCode::SERVICE_UNAVAILABLE, Some("scaling")));
    assert!(lab.wait_event("CreateDeadlineExceeded", "default/a").await.contains("limits.createDeadline"));
    let proxy = lab.wait_proxy("a", is_ready).await;
    assert_eq!(proxy.status.unwrap().rebuilds, 1);
    assert_eq!(lab.machines().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_boot_is_instance_failed_and_replaced() {
    let lab = Lab::start().await;
    lab.faults(json!([{"kind": "failed-boot", "times": 1}])).await;
    lab.put("a.yaml", &proxy("a", ""));
    lab.wait_event("InstanceFailed", "default/a").await;
    let proxy = lab.wait_proxy("a", is_ready).await;
    assert_eq!(proxy.status.unwrap().instance.unwrap().incarnation, 1);
    assert_eq!(lab.machines().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn quota_is_exhausted_everywhere_and_said_to_crawlers() {
    let lab = Lab::start().await;
    lab.faults(json!([{"kind": "quota"}])).await;
    lab.put("a.yaml", &proxy("a", ""));
    let ready = lab.wait_reason("a", "QuotaExceeded").await;
    assert_eq!(ready.status, Status::False);
    lab.wait_called("create", "exhausted").await;
    lab.wait("crawlers are told", async |lab| {
        let (status, problem) = lab.rest(Method::POST, "/v1/leases", Some(wish(60))).await;
        (status == StatusCode::SERVICE_UNAVAILABLE && problem["code"] == "quota").then_some(())
    })
    .await;
    assert!(lab.machines().await.is_empty());
    // A change of the object is worth a try at once.
    lab.faults(json!([])).await;
    lab.put("a.yaml", &proxy("a", ", parameters: {bootMs: 10}"));
    lab.wait_ready(&["a"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_requests_is_rate_limited_and_waited_out() {
    let lab = Lab::start().await;
    lab.faults(json!([{"kind": "rate-limit", "times": 2, "retryAfter": 1}])).await;
    lab.put("a.yaml", &proxy("a", ""));
    lab.wait_event("RateLimited", "default/a").await;
    lab.wait_ready(&["a"]).await;
    assert!(lab.metrics().await.contains("outcome=\"rate-limited\""));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_internal_error_of_the_backend_is_transient() {
    let lab = Lab::start().await;
    lab.faults(json!([{"kind": "server-error", "times": 2}])).await;
    lab.put("a.yaml", &proxy("a", ""));
    lab.wait_event("ServerError", "default/a").await;
    lab.wait_ready(&["a"]).await;
    assert!(lab.metrics().await.contains("outcome=\"transient\""));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_is_an_unknown_outcome_and_converges_on_one_machine() {
    let lab = Lab::start().await;
    lab.faults(json!([{"kind": "lost-answer", "times": 1}])).await;
    lab.put("a.yaml", &proxy("a", ""));
    lab.wait_event("ConnectionLost", "default/a").await;
    let ready = lab.wait_proxy("a", is_ready).await.status.unwrap();
    assert_eq!((ready.rebuilds, ready.instance.unwrap().incarnation), (0, 0));
    assert_eq!(lab.machines().await.len(), 1);
    lab.wait_called("create", "unknown-outcome").await;
    // The same for a delete.
    lab.faults(json!([{"kind": "lost-answer", "times": 1}])).await;
    lab.command(&["delete", "proxy", "a", "--wait=false"]);
    lab.wait("it is gone", async |lab| {
        (lab.proxies().await.is_empty() && lab.machines().await.is_empty()).then_some(())
    })
    .await;
    lab.wait_called("delete", "unknown-outcome").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_proxy_is_unreachable_and_never_lent() {
    let lab = Lab::start().await;
    lab.faults(json!([{"kind": "dead-proxy", "times": 1}])).await;
    lab.put("a.yaml", &proxy("a", QUICK));
    let ready = lab.wait_reason("a", "ProxyUnreachable").await;
    assert_eq!(ready.status, Status::False);
    let proxy = lab.proxy("a").await.unwrap();
    assert_eq!(condition_of(&proxy, "Provisioned").unwrap().status, Status::True, "the machine itself runs");
    let (status, problem) = lab.rest(Method::POST, "/v1/leases", Some(wish(60))).await;
    assert_eq!((status, problem["code"].as_str()), (StatusCode::SERVICE_UNAVAILABLE, Some("none_healthy")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_answers_everything_is_not_our_proxy() {
    let lab = Lab::start().await;
    lab.faults(json!([{"kind": "wrong-proxy", "times": 1}])).await;
    lab.put("a.yaml", &proxy("a", QUICK));
    let ready = lab.wait_reason("a", "NotOurProxy").await;
    assert!(ready.message.contains("something else serves there"), "{}", ready.message);
    let (status, _) = lab.rest(Method::POST, "/v1/leases", Some(wish(60))).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vanished_instance_is_made_anew_under_a_new_incarnation() {
    let lab = Lab::start().await;
    lab.put("a.yaml", &proxy("a", QUICK));
    lab.put("b.yaml", &proxy("b", QUICK));
    lab.wait_ready(&["a", "b"]).await;
    lab.faults(json!([{"kind": "vanish", "match": "a", "times": 1}])).await;
    let after = lab.wait_proxy("a", |p| is_ready(p) && p.status.as_ref().unwrap().rebuilds == 1).await.status.unwrap();
    assert_eq!(after.instance.unwrap().incarnation, 1);
    let other = lab.proxy("b").await.unwrap().status.unwrap();
    assert_eq!((other.rebuilds, lab.machines().await.len()), (0, 2));
}

/// A changed project or base URL looks like this, and what is made anew then is paid twice.
#[tokio::test(flavor = "multi_thread")]
async fn many_that_are_gone_at_once_wait_until_a_human_says_that_they_are() {
    let lab = Lab::start().await;
    let names = ["a", "b", "c", "d", "e"];
    for name in names {
        lab.put(&format!("{name}.yaml"), &proxy(name, QUICK));
    }
    lab.wait_ready(&names).await;
    lab.faults(names.map(|name| json!({"kind": "vanish", "match": name, "times": 1})).into_iter().collect()).await;
    lab.wait_provider("demo", |p| condition(p).is_some_and(|c| c.reason == "MassAbsence")).await;
    let waiting = async |lab: &Lab| {
        let held = |p: &Proxy| condition_of(p, "Provisioned").is_some_and(|c| c.reason == "MassAbsence");
        lab.proxies().await.iter().filter(|p| held(p)).count()
    };
    // The first that are found gone are no mass yet.
    let all = async |lab: &Lab| {
        let (made_anew, waiting) = (lab.machines().await.len(), waiting(lab).await);
        (made_anew + waiting == names.len()).then_some(made_anew)
    };
    let made_anew = lab.wait("all others wait", all).await;
    assert!(made_anew <= 3, "{made_anew} of them were made anew");
    let accept = |at: Timestamp| {
        let annotation = format!("{{name: demo, annotations: {{crawl.example.com/accept-absence: \"{at}\"}}}}");
        lab.put("provider.yaml", &lab.provider("demo", "").replace("{name: demo}", &annotation));
    };
    // One of long ago says nothing of today.
    accept(Timestamp::now() - Duration::from_secs(7200));
    let outdated = |p: &Provider| p.annotations().contains_key("crawl.example.com/accept-absence");
    lab.wait_provider("demo", |p| outdated(p) && condition(p).is_some_and(|c| c.reason == "MassAbsence")).await;
    assert_eq!((lab.machines().await.len(), waiting(&lab).await), (made_anew, names.len() - made_anew));
    accept(Timestamp::now());
    lab.wait_ready(&names).await;
    for name in names {
        assert_eq!(lab.proxy(name).await.unwrap().status.unwrap().rebuilds, 1, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_is_down_is_no_absent_instance() {
    let mut lab = Lab::start().await;
    lab.put("a.yaml", &proxy("a", QUICK));
    let before = lab.wait_proxy("a", is_ready).await.status.unwrap();
    lab.stop_cloud();
    let ready = lab.wait_proxy("a", |p| !is_ready(p)).await;
    let provisioned =
        lab.wait_proxy("a", |p| condition_of(p, "Provisioned").is_some_and(|c| c.status == Status::Unknown)).await;
    assert!(condition_of(&ready, "Ready").is_some());
    let after = provisioned.status.unwrap();
    assert_eq!((after.rebuilds, after.instance), (0, before.instance), "nothing is rebuilt, nothing is forgotten");
}
