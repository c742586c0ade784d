//! An operator with Kubernetes as its store, beside an API server and a sandbox cloud.

use std::path::Path;
use std::process::Command;

use proxy_operator::rest::auth::{Scope, mint};
use reqwest::Client;
use serde_json::Value;

use crate::apiserver::ApiServer;
use crate::backend::{Backend, CLOUD_TOKEN, CloudApi};
use crate::binary;
use crate::process::{PATIENCE, Process};

/// An operator beside an API server and a sandbox cloud.
pub struct Lab {
    _operator: Process,
    backend: Backend,
    /// URL of its REST API.
    pub rest: String,
    /// URL of its metrics.
    pub metrics: String,
    /// A crawler's token.
    pub token: String,
    /// A client for it.
    pub client: Client,
    /// Files of the lab.
    pub dir: tempfile::TempDir,
    /// The cluster.
    pub api: ApiServer,
}

/// The Secret with the cloud's token.
pub fn cloud_secret(token: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: cloud, namespace: proxy-operator, labels: {{crawl.example.com/provider-secret: \"true\"}}}}\nstringData: {{token: {token}}}\n"
    )
}

/// A Provider of a cloud, with further lines of its spec.
pub fn provider_of(name: &str, plugin: &str, cloud_url: &str, more: &str) -> String {
    format!(
        "apiVersion: crawl.example.com/v1alpha1\nkind: Provider\nmetadata: {{name: {name}}}\nspec:\n  plugin: {{name: {plugin}}}\n  connections:\n    cloud: {{http: {{baseUrl: \"{cloud_url}\", permit: [loopback], auth: {{bearer: {{secretRef: {{name: cloud, key: token}}}}}}}}}}\n{more}"
    )
}

/// The ConfigMaps of a plugin.
pub fn pack(file: &Path) -> String {
    let packed = Command::new(binary()).args(["plugin", "pack"]).arg(file).output().unwrap();
    assert!(packed.status.success(), "{}", String::from_utf8_lossy(&packed.stderr));
    String::from_utf8(packed.stdout).unwrap()
}

/// An API server with our CRDs and the operator's namespace.
pub fn cluster() -> Option<ApiServer> {
    let api = ApiServer::start()?;
    api.apply_crds();
    api.run(&["create", "namespace", "proxy-operator"], None);
    Some(api)
}

/// The same with a plugin, and the Secret with the cloud's token.
pub fn cluster_with(plugins: &[&str]) -> Option<ApiServer> {
    let api = cluster()?;
    for plugin in plugins {
        let packed = pack(&crate::root().join(format!("bin/plugins/{plugin}.wasm")));
        api.run(&["apply", "--server-side", "-f", "-"], Some(&packed));
    }
    api.run(&["apply", "-f", "-"], Some(&cloud_secret(CLOUD_TOKEN)));
    Some(api)
}

/// An address from the line with which an operator says that it is up.
pub fn address(line: &str, name: &str) -> String {
    let found = line.split_whitespace().find_map(|part| part.strip_prefix(name));
    found.unwrap_or_else(|| panic!("no {name} in {line:?}")).to_owned()
}

/// The arguments of an operator: every port is any.
pub fn operator_args(kubeconfig: &Path, data: &Path, judge_url: &str) -> Vec<String> {
    let (kubeconfig, data) = (kubeconfig.display().to_string(), data.display().to_string());
    let fixed = ["--log", "info,proxy_operator=debug", "run"].map(str::to_owned);
    let own = ["--kubeconfig", &kubeconfig, "--data", &data, "--judge-url", judge_url].map(str::to_owned);
    let ports = ["--rest-addr", "--health-addr", "--judge-addr", "--metrics-addr"];
    let ports = ports.into_iter().flat_map(|flag| [flag.to_owned(), "127.0.0.1:0".to_owned()]);
    fixed.into_iter().chain(own).chain(ports).collect()
}

/// Waits until an event about this object of a namespace says all of this.
pub fn wait_event(api: &ApiServer, namespace: &str, reason: &str, object: &str, says: &str) {
    let until = std::time::Instant::now() + PATIENCE;
    let selector = format!("reason={reason},involvedObject.name={object}");
    let args = ["get", "events", "-n", namespace, "--field-selector", &selector, "-o", "jsonpath={.items[*].message}"];
    loop {
        let found = api.run(&args, None);
        if found.contains(says) {
            return;
        }
        if std::time::Instant::now() > until {
            let all = api.run(&["get", "events", "-A", "-o", "wide"], None);
            panic!("{object}: no event {reason} says {says:?}; there are:\n{all}");
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

impl Lab {
    /// Starts all of it; none where there is no API server to be had.
    pub async fn start() -> Option<Self> {
        Self::start_with(&[]).await
    }

    /// The same, with more arguments for the operator.
    pub async fn start_with(more: &[&str]) -> Option<Self> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let api = cluster()?;
        let dir = tempfile::tempdir().unwrap();
        let backend = Backend::start(dir.path());
        let new = mint("crawler", "proxy-operator", &[Scope::Read, Scope::Allocate], &["default".into()], None);
        api.run(&["apply", "-f", "-"], Some(&new.manifest));
        let mut args = operator_args(&api.kubeconfig(), &dir.path().join("data"), &backend.judge_url);
        args.extend(more.iter().map(|arg| (*arg).to_owned()));
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let (operator, line) = Process::start(&args, &dir.path().join("operator.log"));
        let (rest, metrics) = (address(&line, "rest="), address(&line, "metrics="));
        let client = Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
        Some(Self { _operator: operator, backend, rest, metrics, token: new.token, client, dir, api })
    }

    /// URL of the judge.
    pub fn judge(&self) -> &str {
        &self.backend.judge_url
    }

    /// URL of the cloud's API.
    pub fn cloud_url(&self) -> &str {
        &self.backend.cloud_url
    }

    /// The Provider `demo`, with its Secret.
    pub fn provider(&self) -> String {
        format!("{}---\n{}", cloud_secret(CLOUD_TOKEN), provider_of("demo", "sandbox", &self.backend.cloud_url, ""))
    }

    /// Waits with kubectl.
    pub fn wait_for(&self, what: &str, object: &str) {
        self.api.run(&["wait", &format!("--for={what}"), "--timeout=60s", object], None);
    }

    /// The cloud's API.
    pub fn cloud(&self) -> CloudApi {
        self.backend.api()
    }

    /// How many machines the cloud holds.
    pub async fn machines(&self) -> usize {
        self.cloud().machines().await.len()
    }

    /// A counter of the operator, all series together that carry these labels.
    pub async fn counter(&self, name: &str, labels: &[&str]) -> f64 {
        let page = self.client.get(format!("{}/metrics", self.metrics)).send().await.unwrap().text().await.unwrap();
        let lines = page.lines().filter(|line| line.starts_with(name) && labels.iter().all(|l| line.contains(l)));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// Waits until calls of this function ended with this outcome.
    pub async fn wait_called(&self, function: &str, outcome: &str) {
        let labels = [format!("function=\"{function}\""), format!("outcome=\"{outcome}\"")];
        let until = std::time::Instant::now() + PATIENCE;
        while self.counter("proxy_operator_provider_calls_total", &[&labels[0], &labels[1]]).await == 0.0 {
            assert!(std::time::Instant::now() < until, "no call of {function} ended with {outcome}");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }

    /// Waits until an event about this object of a namespace says all of this.
    pub fn wait_event(&self, namespace: &str, reason: &str, object: &str, says: &str) {
        wait_event(&self.api, namespace, reason, object, says);
    }

    /// Puts a file into a ConfigMap as it is, checked by nobody.
    pub fn upload(&self, plugin: &str, bytes: &[u8]) {
        let file = self.dir.path().join("upload.wasm");
        std::fs::write(&file, bytes).unwrap();
        let (name, literal) = (format!("plugin-{plugin}"), format!("--from-file={plugin}.wasm={}", file.display()));
        let create = ["create", "configmap", &name, "-n", "proxy-operator", &literal, "--dry-run=client", "-o", "json"];
        let mut manifest: Value = serde_json::from_str(&self.api.run(&create, None)).unwrap();
        manifest["metadata"]["labels"] = serde_json::json!({"crawl.example.com/plugin": "true"});
        if let Some(text) = manifest.as_object_mut().unwrap().remove("data") {
            // kubectl takes a text file for text.
            use base64::Engine as _;
            let encode = |v: &Value| base64::engine::general_purpose::STANDARD.encode(v.as_str().unwrap()).into();
            manifest["binaryData"] = text
                .as_object()
                .unwrap()
                .iter()
                .map(|(k, v)| (k.clone(), encode(v)))
                .collect::<serde_json::Map<_, _>>()
                .into();
        }
        self.api.run(&["apply", "--server-side", "--force-conflicts", "-f", "-"], Some(&manifest.to_string()));
    }
}
