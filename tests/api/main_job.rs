//! The main job with Kubernetes as the store: from a ConfigMap to a page fetched through a leased proxy.

use std::process::Command;

use proxy_operator::rest::auth::{Scope, mint};
use proxy_operator_tests::apiserver::ApiServer;
use proxy_operator_tests::process::{PATIENCE, Process};
use proxy_operator_tests::{binary, root};
use reqwest::Client;
use serde_json::{Value, json};

const CLOUD_TOKEN: &str = "sandbox-cloud-token-of-the-lab";

/// An operator beside an API server and a sandbox cloud.
struct Lab {
    _operator: Process,
    _judge: Process,
    _cloud: Process,
    rest: String,
    judge: String,
    cloud: String,
    token: String,
    client: Client,
    dir: tempfile::TempDir,
    api: ApiServer,
}

fn pack(file: &std::path::Path) -> String {
    let packed = Command::new(binary()).args(["plugin", "pack"]).arg(file).output().unwrap();
    assert!(packed.status.success(), "{}", String::from_utf8_lossy(&packed.stderr));
    String::from_utf8(packed.stdout).unwrap()
}

impl Lab {
    async fn start() -> Option<Self> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let api = ApiServer::start()?;
        api.apply_crds();
        api.run(&["create", "namespace", "proxy-operator"], None);
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("cloud-token"), CLOUD_TOKEN).unwrap();
        let token_file = at("cloud-token").display().to_string();
        let last = |line: &str| line.split_whitespace().last().unwrap().to_owned();
        let (cloud, line) = Process::start(
            &["sandbox-cloud", "--listen", "127.0.0.1:0", "--token-file", &token_file],
            &at("cloud.log"),
        );
        let cloud_url = last(&line);
        let (judge, line) = Process::start(&["judge", "--listen", "127.0.0.1:0"], &at("judge.log"));
        let judge_url = last(&line);
        let new = mint("crawler", "proxy-operator", &[Scope::Read, Scope::Allocate], &["default".into()], None);
        api.run(&["apply", "-f", "-"], Some(&new.manifest));
        let (kubeconfig, data) = (api.kubeconfig().display().to_string(), at("data").display().to_string());
        let any = "127.0.0.1:0";
        let (operator, line) = Process::start(
            &[
                "--log",
                "info,proxy_operator=debug",
                "run",
                "--kubeconfig",
                &kubeconfig,
                "--data",
                &data,
                "--judge-url",
                &judge_url,
                "--rest-addr",
                any,
                "--health-addr",
                any,
                "--judge-addr",
                any,
                "--metrics-addr",
                any,
            ],
            &at("operator.log"),
        );
        let rest = line.split_whitespace().find_map(|p| p.strip_prefix("rest=")).unwrap().to_owned();
        let client = Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
        Some(Self {
            _operator: operator,
            _judge: judge,
            _cloud: cloud,
            rest,
            judge: judge_url,
            cloud: cloud_url,
            token: new.token,
            client,
            dir,
            api,
        })
    }

    fn provider(&self) -> String {
        format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: cloud, namespace: proxy-operator, labels: {{crawl.example.com/provider-secret: \"true\"}}}}\nstringData: {{token: {CLOUD_TOKEN}}}\n---\napiVersion: crawl.example.com/v1alpha1\nkind: Provider\nmetadata: {{name: demo}}\nspec:\n  plugin: {{name: sandbox}}\n  connections:\n    cloud: {{http: {{baseUrl: \"{}\", permit: [loopback], auth: {{bearer: {{secretRef: {{name: cloud, key: token}}}}}}}}}}\n",
            self.cloud
        )
    }

    fn wait_for(&self, what: &str, object: &str) {
        self.api.run(&["wait", &format!("--for={what}"), "--timeout=60s", object], None);
    }

    async fn machines(&self) -> usize {
        let request = self.client.get(format!("{}/v1/instances", self.cloud)).bearer_auth(CLOUD_TOKEN);
        let page: Value = request.send().await.unwrap().json().await.unwrap();
        page["instances"].as_array().unwrap().len()
    }
}

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
    let page = through.get(lab.judge.trim_end_matches("judge")).send().await.unwrap().text().await.unwrap();
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
    let bad = lab.dir.path().join("sandbox.wasm");
    std::fs::copy(root().join("bin/guests/wrong-version.wasm"), &bad).unwrap();
    let packed = Command::new(binary()).args(["plugin", "pack"]).arg(&bad).output().unwrap();
    assert!(!packed.status.success(), "pack refuses what would be refused");
    let literal = format!("--from-file=sandbox.wasm={}", bad.display());
    let manifest = api.run(
        &["create", "configmap", "plugin-sandbox", "-n", "proxy-operator", &literal, "--dry-run=client", "-o", "json"],
        None,
    );
    api.run(&["patch", "configmap", "plugin-sandbox", "-n", "proxy-operator", "--type=merge", "-p", &manifest], None);
    lab.wait_for("jsonpath={.status.conditions[0].reason}=PluginRefused", "pxp/demo");
    let condition =
        api.run(&["get", "pxp", "demo", "-o", "jsonpath={.status.conditions[0]} {.status.plugin.version}"], None);
    assert!(
        condition.contains("\"status\":\"True\"")
            && condition.contains("crawl:provider@0.2.0")
            && condition.ends_with("9.9.9"),
        "{condition}"
    );
    let until = std::time::Instant::now() + PATIENCE;
    loop {
        let events = api.run(
            &[
                "get",
                "events",
                "-n",
                "proxy-operator",
                "--field-selector",
                "reason=PluginRefused",
                "-o",
                "jsonpath={.items[*].involvedObject.name} {.items[*].message}",
            ],
            None,
        );
        if events.contains("plugin-sandbox") && events.contains("crawl:provider@0.2.0") {
            break;
        }
        assert!(std::time::Instant::now() < until, "{events}");
    }

    // Everything goes, finalizers and machines too.
    api.run(&["delete", "px", "--all", "--timeout=60s"], None);
    assert_eq!(api.run(&["get", "px"], None), "");
    assert_eq!(lab.machines().await, 0);
}
