//! A plugin that keeps failing, and a backend that is out of reach, are asked now and then, not once per object.

use proxy_operator::model::condition::Status;
use proxy_operator_tests::bad_plugins::guest;
use proxy_operator_tests::lab::{Lab, condition, proxy, proxy_of};
use proxy_operator_tests::process::PATIENCE;
use serde_json::json;
use tokio::net::TcpListener;

/// Calls of a Provider's plugin that were made: all of a function, whatever came of them, but not those held back.
fn calls(metrics: &str, provider: &str, function: &str) -> u64 {
    let of = format!("{{provider=\"{provider}\",");
    let its = metrics.lines().filter(|line| {
        line.starts_with("proxy_operator_provider_calls_total")
            && line.contains(&of)
            && line.contains(&format!("function=\"{function}\""))
            && !line.contains("held-back")
    });
    its.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_keeps_trapping_is_held_back_says_so_and_keeps_no_deletion() {
    let lab = Lab::without_provider().await;
    lab.put_plugin("panic-get.wasm", &guest("panic-get"));
    lab.put(
        "failing.yaml",
        "apiVersion: crawl.example.com/v1alpha1\nkind: Provider\nmetadata: {name: failing}\nspec: {plugin: {name: panic-get}}\n",
    );
    lab.wait_provider("failing", |p| condition(p).is_some_and(|c| c.status == Status::True)).await;
    let names: Vec<String> = (0..20).map(|n| format!("p{n}")).collect();
    for name in &names {
        lab.put(&format!("{name}.yaml"), &proxy_of("failing", name, ""));
    }
    for name in &names {
        lab.wait_proxy(name, |p| p.status.as_ref().is_some_and(|s| s.instance.is_some())).await;
    }
    for name in &names {
        lab.command(&["delete", "proxy", name, "--wait=false"]);
    }
    let failing = lab.wait_provider("failing", |p| condition(p).is_some_and(|c| c.reason == "PluginFailing")).await;
    let says = condition(&failing).unwrap();
    assert_eq!(says.status, Status::False);
    for part in ["get", "plugin panic-get", "it panicked", "mend the plugin"] {
        assert!(says.message.contains(part), "{part}: {}", says.message);
    }
    assert!(lab.metrics().await.contains("held_back{provider=\"failing\",plugin=\"panic-get\",cause=\"failing\"} 1"));
    // It answers a deletion all the same, and each of them would have asked three times.
    lab.wait("all are gone", async |lab| lab.proxies().await.is_empty().then_some(())).await;
    let asked = calls(&lab.metrics().await, "failing", "get");
    assert!((5..40).contains(&asked), "{asked} calls for {} deletions", names.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_is_out_of_reach_is_asked_at_a_bounded_rate_and_comes_back_by_itself() {
    let lab = Lab::start().await;
    lab.faults(json!([{"kind": "server-error"}])).await;
    let names: Vec<String> = (0..40).map(|n| format!("p{n}")).collect();
    for name in &names {
        lab.put(&format!("{name}.yaml"), &proxy(name, ""));
    }
    let down = lab.wait_provider("demo", |p| condition(p).is_some_and(|c| c.reason == "BackendUnavailable")).await;
    assert!(condition(&down).unwrap().message.contains("did not reach the backend"));
    lab.wait_reason("p7", "BackendUnavailable").await;
    let metrics = lab.metrics().await;
    let asked: u64 = ["place", "create", "get"].map(|function| calls(&metrics, "demo", function)).iter().sum();
    // What was under way when the fifth failed ends as well.
    assert!(asked < 60, "{asked} calls for {} Proxies", names.len());
    assert!(
        metrics.contains("proxy_operator_provider_host_calls_total{provider=\"demo\",plugin=\"sandbox\",call=\"http\"")
    );
    lab.faults(json!([])).await;
    lab.wait_ready(&names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    assert_eq!(lab.machines().await.len(), names.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_hangs_keeps_no_other_waiting() {
    let lab = Lab::without_provider().await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let stuck = lab.provider("stuck", "  limits: {callTimeout: 5s}\n").replace(lab.cloud_url(), &url);
    lab.put("stuck.yaml", &stuck);
    // More than there are passes at once.
    let names: Vec<String> = (0..400).map(|n| format!("stuck{n}")).collect();
    lab.put("all.yaml", &names.iter().map(|name| proxy_of("stuck", name, "")).collect::<Vec<_>>().join("---\n"));
    let mut held = vec![];
    while held.len() < 8 {
        held.push(tokio::time::timeout(PATIENCE, silent.accept()).await.expect("it is called").unwrap());
    }
    lab.wait("its Proxies wait for their turn", async |lab| {
        let metrics = lab.metrics().await;
        let depth =
            metrics.lines().find_map(|line| line.strip_prefix("workqueue_depth{name=\"proxy\"} ")?.parse().ok());
        depth.is_some_and(|depth: u64| depth > 100).then_some(())
    })
    .await;
    lab.put("provider.yaml", &lab.provider("demo", ""));
    lab.put("a.yaml", &proxy("a", ""));
    lab.wait_ready(&["a"]).await;
    let stuck = lab.proxies().await.into_iter().filter(|p| p.spec.provider == "stuck");
    assert!(stuck.into_iter().all(|p| p.status.is_none_or(|s| s.instance.is_none_or(|i| i.provider_id.is_none()))));
}
