//! Deleting, as people do it with kubectl: in any order, without credentials, and giving up.

use std::path::Path;

use proxy_operator::model::PLUGIN_FINALIZER;
use proxy_operator::model::abandoned::Abandoned;
use proxy_operator_tests::bad_plugins::good;
use proxy_operator_tests::kube_lab::{Lab, cloud_secret, pack, provider_of};
use proxy_operator_tests::process::PATIENCE;
use proxy_operator_tests::root;

const CONFIG_MAPS: [&str; 5] = ["get", "configmap", "-n", "proxy-operator", "-o"];

fn proxy(name: &str, provider: &str, more: &str) -> String {
    format!(
        "apiVersion: crawl.example.com/v1alpha1\nkind: Proxy\nmetadata: {{name: {name}, namespace: default}}\nspec: {{provider: {provider}{more}}}\n"
    )
}

/// The sandbox plugin under another name of the same length, so that several Providers do not share one.
fn renamed(dir: &Path, name: &str) -> String {
    let (from, to) = (b"sandbox", name.as_bytes());
    assert_eq!(from.len(), to.len());
    let mut bytes = good();
    for at in 0..bytes.len() - from.len() {
        if bytes[at..].starts_with(from) {
            bytes[at..at + to.len()].copy_from_slice(to);
        }
    }
    let file = dir.join(format!("{name}.wasm"));
    std::fs::write(&file, bytes).unwrap();
    pack(&file)
}

/// How often the operator looked at a Provider, and so collected.
async fn provider_passes(lab: &Lab) -> f64 {
    lab.counter("controller_runtime_reconcile_total", &["controller=\"provider\""]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn provider_plugin_and_proxies_are_deleted_together_in_any_order() {
    let Some(lab) = Lab::start().await else { return };
    let api = &lab.api;
    api.run(&["apply", "-f", "-"], Some(&lab.provider()));
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    let all: Vec<String> = (0..orders.len())
        .map(|set| {
            let (plugin, provider) = (format!("sandbo{set}"), format!("of-{set}"));
            let parts = [
                provider_of(&provider, &plugin, lab.cloud_url(), ""),
                renamed(lab.dir.path(), &plugin),
                proxy(&format!("a{set}"), &provider, "") + "---\n" + &proxy(&format!("b{set}"), &provider, ""),
            ];
            orders[set].map(|part| parts[part].trim_start_matches("---\n").to_owned()).join("\n---\n")
        })
        .collect();
    for file in &all {
        api.run(&["apply", "--server-side", "-f", "-"], Some(file));
    }
    for set in 0..orders.len() {
        lab.wait_for("condition=Ready", &format!("px/a{set}"));
        lab.wait_for("condition=Ready", &format!("px/b{set}"));
    }
    assert_eq!(lab.machines().await, 2 * orders.len());
    // kubectl asks for all deletions in the file's order, and then waits for them.
    std::thread::scope(|scope| {
        for file in &all {
            scope.spawn(|| api.run(&["delete", "--timeout=120s", "-f", "-"], Some(file)));
        }
    });
    assert_eq!(api.run(&["get", "px", "-A"], None), "");
    assert_eq!(api.run(&["get", "pxp", "-o", "name"], None), "provider.crawl.example.com/demo\n");
    let left = api.run(&[CONFIG_MAPS.as_slice(), &["name", "-l", "crawl.example.com/plugin=true"]].concat(), None);
    assert_eq!(left, "");
    assert_eq!(lab.machines().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_never_made_goes_at_once() {
    let Some(lab) = Lab::start().await else { return };
    let api = &lab.api;
    api.run(&["apply", "--server-side", "-f", "-"], Some(&pack(&root().join("bin/plugins/sandbox.wasm"))));
    api.run(&["apply", "-f", "-"], Some(&lab.provider()));
    // One that nobody can log in at, and one of a Provider that has no credential.
    let poor = provider_of("poor", "sandbox", lab.cloud_url(), "").replace("name: cloud,", "name: none,");
    let proxies =
        [proxy("loginless", "demo", ", auth: {mode: secret, secretRef: {name: none}}"), proxy("penniless", "poor", "")];
    api.run(&["apply", "-f", "-"], Some(&[poor, proxies.join("---\n")].join("---\n")));
    for (name, missing) in [("px/loginless", "namespace default"), ("px/penniless", "namespace proxy-operator")] {
        lab.wait_for("jsonpath={.status.conditions[-1].reason}=SecretMissing", name);
        let says = api.run(&["get", name, "-o", "jsonpath={.status.conditions[-1].message}"], None);
        assert!(says.contains("Secret none does not exist in") && says.contains(missing), "{name}: {says}");
        assert_eq!(api.run(&["get", name, "-o", "jsonpath={.metadata.finalizers}"], None), "", "{name}");
        api.run(&["delete", name, "--timeout=30s"], None);
    }
    api.run(&["delete", "pxp", "poor", "--timeout=30s"], None);
    assert_eq!(lab.machines().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_given_up_without_credentials_lives_on_and_is_reported_once_they_are_back() {
    let Some(lab) = Lab::start_with(&["--gc-grace", "1s"]).await else { return };
    let api = &lab.api;
    api.run(&["apply", "--server-side", "-f", "-"], Some(&pack(&root().join("bin/plugins/sandbox.wasm"))));
    api.run(&["apply", "-f", "-"], Some(&lab.provider()));
    api.run(&["apply", "-f", "-"], Some(&(proxy("kept", "demo", "") + "---\n" + &proxy("left", "demo", ""))));
    lab.wait_for("condition=Ready", "px/kept");
    lab.wait_for("condition=Ready", "px/left");
    let uid = api.run(&["get", "px", "left", "-o", "jsonpath={.metadata.uid}"], None);
    let id = api.run(&["get", "px", "left", "-o", "jsonpath={.status.instance.providerID}"], None);

    // The credential is revoked: neither `get` nor `delete` is of use, and both are tried.
    api.run(&["apply", "-f", "-"], Some(&cloud_secret("revoked")));
    lab.wait_for("condition=Ready=false", "pxp/demo");
    api.run(&["delete", "px", "left", "--wait=false"], None);
    lab.wait_for("jsonpath={.status.conditions[?(@.type==\"Deleting\")].reason}=AuthRefused", "px/left");
    lab.wait_called("delete", "unauthorized").await;
    assert_eq!(lab.machines().await, 2);
    api.run(&["annotate", "px", "left", "crawl.example.com/skip-cleanup=true"], None);
    api.run(&["wait", "--for=delete", "px/left", "--timeout=60s"], None);
    lab.wait_event("default", "Abandoned", "left", &id);
    let list = api.run(
        &[CONFIG_MAPS.as_slice(), &["jsonpath={.items[?(@.metadata.name==\"proxy-operator-abandoned\")].data.*}"]]
            .concat(),
        None,
    );
    let given_up: Abandoned = serde_json::from_str(&list).unwrap_or_else(|e| panic!("{list}: {e}"));
    assert_eq!((given_up.proxy_uid.as_str(), given_up.provider_id.as_deref()), (uid.as_str(), Some(id.as_str())));

    // So is the rest, with the Provider, which cannot be listed any more.
    api.run(&["delete", "pxp", "demo", "--wait=false"], None);
    lab.wait_for("jsonpath={.status.conditions[0].reason}=InUse", "pxp/demo");
    api.run(&["annotate", "px", "kept", "crawl.example.com/skip-cleanup=true"], None);
    api.run(&["delete", "px", "kept", "--timeout=60s"], None);
    lab.wait_for("jsonpath={.status.conditions[0].reason}=AuthRefused", "pxp/demo");
    let says = api.run(&["get", "pxp", "demo", "-o", "jsonpath={.status.conditions[0].message}"], None);
    assert!(says.contains("kubectl annotate provider demo crawl.example.com/skip-cleanup=true"), "{says}");
    api.run(&["annotate", "pxp", "demo", "crawl.example.com/skip-cleanup=true"], None);
    api.run(&["wait", "--for=delete", "pxp/demo", "--timeout=60s"], None);
    lab.wait_event("default", "Abandoned", "demo", "nobody looks for what is left at its backend");
    let plugin = api.run(&[CONFIG_MAPS.as_slice(), &["yaml", "plugin-sandbox"]].concat(), None);
    assert!(!plugin.contains(PLUGIN_FINALIZER), "nobody uses it");

    // With credentials and Provider back, both machines are reported and live on.
    api.run(&["apply", "-f", "-"], Some(&lab.provider()));
    lab.wait_for("condition=Ready", "pxp/demo");
    let look =
        |turn: &str| api.run(&["annotate", "secret", "-n", "proxy-operator", "cloud", turn, "--overwrite"], None);
    let until = std::time::Instant::now() + PATIENCE;
    let mut turn = 0;
    let passes = loop {
        // A changed Secret makes the operator look at its Providers; the first look only notes what it finds.
        turn += 1;
        look(&format!("look={turn}"));
        let passes = lab.counter("proxy_operator_collections_total", &["outcome=\"abandoned\""]).await;
        if passes == 2.0 {
            break provider_passes(&lab).await;
        }
        assert!(std::time::Instant::now() < until, "{passes} of 2 were reported");
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    };
    // Kubernetes joins events of one reason about one object, so that which of the two it names is open.
    lab.wait_event("default", "AbandonedInstance", "demo", "was given up and is still there");
    while provider_passes(&lab).await < passes + 2.0 {
        turn += 1;
        look(&format!("look={turn}"));
        assert!(std::time::Instant::now() < until, "it is not collected any more");
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
    let machines = lab.cloud().machines().await;
    assert_eq!(machines.iter().filter(|m| m["state"] == "running").count(), 2, "{machines:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_whose_target_left_the_config_is_deleted_without_a_look() {
    let Some(lab) = Lab::start().await else { return };
    let api = &lab.api;
    api.run(&["apply", "--server-side", "-f", "-"], Some(&pack(&root().join("bin/plugins/static.wasm"))));
    let provider = |entries: &str| {
        format!(
            "apiVersion: crawl.example.com/v1alpha1\nkind: Provider\nmetadata: {{name: bought}}\nspec: {{plugin: {{name: static}}, config: {{proxies: [{entries}]}}}}\n"
        )
    };
    let entry = |name: &str, port: u16| format!("{{name: {name}, host: 127.0.0.1, port: {port}}}");
    api.run(&["apply", "-f", "-"], Some(&provider(&[entry("one", 1), entry("two", 2)].join(", "))));
    for name in ["one", "two"] {
        let wish = format!(", auth: {{mode: none}}, parameters: {{entry: {name}}}");
        api.run(&["apply", "-f", "-"], Some(&proxy(name, "bought", &wish)));
        lab.wait_for("condition=Provisioned", &format!("px/{name}"));
    }
    // One is removed, and the id of the other stands for an address that is not there any more.
    api.run(&["apply", "-f", "-"], Some(&provider(&[entry("two", 3), entry("three", 4)].join(", "))));
    for (name, reason) in [("px/one", "EntryMissing"), ("px/two", "EntryChanged")] {
        // Before its deletion that is a mistake in the config, and no reason to replace anything.
        api.run(&["annotate", name, "look=again"], None);
        let provisioned = "jsonpath={.status.conditions[?(@.type==\"Provisioned\")].reason}";
        lab.wait_for(&format!("{provisioned}={reason}"), name);
        assert_eq!(api.run(&["get", name, "-o", "jsonpath={.status.rebuilds}"], None), "0");
        api.run(&["delete", name, "--timeout=60s"], None);
    }
    lab.wait_called("delete", "ok").await;
}
