//! The main job with Kubernetes as the store: from a ConfigMap to a page fetched through a leased proxy.

use std::process::Command;

use proxy_operator_tests::bad_plugins::{BadPlugin, bad_plugins, guest};
use proxy_operator_tests::kube_lab::{Lab, pack};
use proxy_operator_tests::process::PATIENCE;
use proxy_operator_tests::{binary, root};
use reqwest::Client;
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn from_a_config_map_to_a_page_fetched_through_a_leased_proxy() {
    let Some(lab) = Lab::start().await else { return };
    let api = &lab.api;
    api.run(&["apply", "-f", "-"], Some(&lab.provider()));
    lab.wait_for("jsonpath={.status.conditions[0].reason}=PluginMissing", "pxp/demo");
    api.run(&["apply", "--server-side", "-f", "-"], Some(&pack(&root().join("bin/plugins/sandbox.wasm"))));
    lab.wait_for("condition=Ready", "pxp/demo");
    let proxies: String = ["a", "b", "c"]
        .map(|name| format!("apiVersion: crawl.example.com/v1alpha1\nkind: Proxy\nmetadata: {{name: {name}, namespace: default}}\nspec: {{provider: demo}}\n"))
        .join("---\n");
    api.run(&["apply", "-f", "-"], Some(&proxies));
    for name in ["px/a", "px/b", "px/c"] {
        lab.wait_for("condition=Ready", name);
    }
    assert_eq!(lab.machines().await, 3);
    let table = api.run(&["get", "px"], None);
    assert_eq!(table.matches("True").count(), 3, "{table}");

    // A page through a leased URL.
    let request = lab.client.post(format!("{}/v1/leases", lab.rest)).bearer_auth(&lab.token);
    let lease: Value = request.body(json!({"ttlSeconds": 60}).to_string()).send().await.unwrap().json().await.unwrap();
    let url = lease["url"].as_str().unwrap_or_else(|| panic!("{lease}"));
    let through = Client::builder().proxy(reqwest::Proxy::all(url).unwrap()).timeout(PATIENCE).build().unwrap();
    let page = through.get(lab.judge().trim_end_matches("judge")).send().await.unwrap().text().await.unwrap();
    assert!(page.contains("Your request came from 127.0.0.1"), "{page}");
    let release =
        lab.client.delete(format!("{}/v1/leases/{}", lab.rest, lease["id"].as_str().unwrap())).bearer_auth(&lab.token);
    assert!(release.send().await.unwrap().status().is_success());

    // A changed plugin takes over while its proxies live.
    let ids = || api.run(&["get", "px", "-o", "jsonpath={.items[*].status.instance.providerID}"], None);
    let before = ids();
    api.run(&["apply", "--server-side", "-f", "-"], Some(&pack(&root().join("bin/guests/next/sandbox.wasm"))));
    lab.wait_for("jsonpath={.status.plugin.version}=9.9.9", "pxp/demo");
    assert_eq!(ids(), before);

    // A bad one is refused: an event on the ConfigMap, a reason on the Provider, and the running version stays.
    let bad = guest("wrong-version");
    let file = lab.dir.path().join("sandbox.wasm");
    std::fs::write(&file, &bad).unwrap();
    assert!(
        !Command::new(binary()).args(["plugin", "pack"]).arg(&file).output().unwrap().status.success(),
        "pack refuses it"
    );
    lab.upload("sandbox", &bad);
    lab.wait_for("jsonpath={.status.conditions[0].reason}=PluginRefused", "pxp/demo");
    let condition =
        api.run(&["get", "pxp", "demo", "-o", "jsonpath={.status.conditions[0]} {.status.plugin.version}"], None);
    assert!(
        condition.contains("\"status\":\"True\"")
            && condition.contains("crawl:provider@0.2.0")
            && condition.ends_with("9.9.9"),
        "{condition}"
    );
    lab.wait_event("proxy-operator", "PluginRefused", "plugin-sandbox", "crawl:provider@0.2.0");

    // Everything goes, finalizers and machines too.
    api.run(&["delete", "px", "--all", "--timeout=60s"], None);
    assert_eq!(api.run(&["get", "px"], None), "");
    assert_eq!(lab.machines().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_refused_upload_is_an_event_on_its_config_map_and_a_condition_on_its_provider() {
    let Some(lab) = Lab::start().await else { return };
    let all = bad_plugins();
    for BadPlugin { name, bytes, .. } in &all {
        let provider = format!(
            "apiVersion: crawl.example.com/v1alpha1\nkind: Provider\nmetadata: {{name: of-{name}}}\nspec: {{plugin: {{name: {name}}}}}\n"
        );
        lab.api.run(&["apply", "-f", "-"], Some(&provider));
        lab.upload(name, bytes);
    }
    for BadPlugin { name, says, .. } in &all {
        let provider = format!("pxp/of-{name}");
        lab.wait_for("jsonpath={.status.conditions[0].reason}=PluginRefused", &provider);
        let message = lab.api.run(&["get", &provider, "-o", "jsonpath={.status.conditions[0].message}"], None);
        assert!(message.contains(says), "{name}: {message}");
        lab.wait_event("proxy-operator", "PluginRefused", &format!("plugin-{name}"), says);
    }
}
