//! A plugin is replaced while it is in use.

use proxy_operator_tests::lab::{Lab, is_ready, proxy};
use serde_json::{Value, json};

/// The same plugin, built as another version.
fn next_version() -> Vec<u8> {
    std::fs::read(proxy_operator_tests::root().join("bin/guests/next/sandbox.wasm")).expect("tests/run builds it")
}

#[tokio::test(flavor = "multi_thread")]
async fn another_version_takes_over_while_a_call_of_the_old_one_is_in_flight() {
    let mut lab = Lab::start().await;
    for name in ["a", "b"] {
        lab.put(&format!("{name}.yaml"), &proxy(name, ""));
    }
    lab.wait_ready(&["a", "b"]).await;
    let ids = |proxies: &[proxy_operator::model::proxy::Proxy]| -> Vec<_> {
        proxies
            .iter()
            .map(|p| p.status.as_ref().unwrap().instance.as_ref().unwrap().provider_id.clone().unwrap())
            .collect()
    };
    let before = ids(&lab.proxies().await);

    // An operator that has just started asks for each instance: a's answer takes 5 s.
    lab.take_operator().stop();
    lab.faults(json!([{"kind": "slow-answer", "delayMs": 5000, "match": "a", "times": 1}])).await;
    lab.start_operator().await;
    let old = lab
        .wait_provider("demo", |p| p.status.as_ref().is_some_and(|s| s.plugin.is_some()))
        .await
        .status
        .unwrap()
        .plugin
        .unwrap();
    let process = lab.operator().id();
    lab.wait("the slow call is under way", async |lab| {
        let faults = lab.struck().await;
        (faults.as_array()?.first()?["struck"] == 1).then_some(())
    })
    .await;
    lab.put_plugin("sandbox.wasm", &next_version());
    let new = lab
        .wait_provider("demo", |p| {
            p.status.as_ref().and_then(|s| s.plugin.as_ref()).is_some_and(|plugin| plugin.version == "9.9.9")
        })
        .await
        .status
        .unwrap()
        .plugin
        .unwrap();
    assert_ne!((&old.version, &old.digest), (&new.version, &new.digest));

    // It ends on the version that it began with, although the new one serves by then.
    let (swapped, ended) = lab
        .wait("the slow call ended", async |lab| {
            let lines: Vec<Value> = lab.operator().log().lines().filter_map(|l| serde_json::from_str(l).ok()).collect();
            let find = |wanted: &dyn Fn(&Value) -> bool| lines.iter().position(wanted);
            let swapped = find(&|f| f["message"] == "plugin loaded" && f["version"] == "9.9.9")?;
            let ended = find(&|f| {
                f["message"] == "called" && f["spans"][0]["function"] == "get" && f["ms"].as_u64() >= Some(4500)
            })?;
            Some(((swapped, Value::Null), (ended, lines[ended]["spans"][0].clone())))
        })
        .await;
    assert!(swapped.0 < ended.0, "the new version was there first");
    assert_eq!((ended.1["version"].as_str(), ended.1["outcome"].as_str()), (Some(old.version.as_str()), Some("ok")));

    // Nothing was rebuilt, and the new version is the one that is called now.
    lab.wait("the new version is called", async |lab| {
        let log = lab.operator().log();
        let mut calls = log.lines().filter(|line| line.contains("\"version\":\"9.9.9\""));
        calls.any(|line| line.contains("\"function\":\"check\"")).then_some(())
    })
    .await;
    lab.wait_ready(&["a", "b"]).await;
    let proxies = lab.proxies().await;
    assert_eq!(ids(&proxies), before);
    assert!(proxies.iter().all(is_ready));
    assert_eq!(lab.operator().id(), process);
    assert!(std::path::Path::new(&format!("/proc/{process}")).exists());
}
