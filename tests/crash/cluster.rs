//! An operator between interceptors, beside an API server and a sandbox cloud.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proxy_operator_tests::apiserver::ApiServer;
use proxy_operator_tests::backend::{Backend, CloudApi};
use proxy_operator_tests::interceptor::Interceptor;
use proxy_operator_tests::kube_api::{GROUP, KubeApi, is_ready};
use proxy_operator_tests::kube_lab::{cluster_with, operator_args, provider_of};
use proxy_operator_tests::process::{PATIENCE, Process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::points::{Points, ToApiServer, ToCloud};

/// The Provider of all Proxies.
pub const PROVIDER: &str = "shared";

/// An election whose leases are over soon.
pub const SHORT_LEASE: [&str; 6] =
    ["--leader-elect-lease-duration", "3s", "--leader-elect-renew-deadline", "2s", "--leader-elect-retry-period", "1s"];

/// The lab.
pub struct Cluster {
    operator: Option<Process>,
    /// Whether the operator takes part in an election, which after a crash it has to wait for.
    elects: bool,
    pub points: Arc<Points>,
    pub api: KubeApi,
    pub cloud: CloudApi,
    cloud_way: Interceptor,
    _api_way: Interceptor,
    backend: Backend,
    dir: TempDir,
    server: ApiServer,
}

impl Cluster {
    /// Starts all of it, with a Provider that is Ready. None where there is no API server to be had.
    pub async fn start() -> Option<Self> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let server = cluster_with(&["sandbox", "static"])?;
        let dir = tempfile::tempdir().unwrap();
        let backend = Backend::start(dir.path());
        let (points, cloud) = (Arc::new(Points::default()), backend.api());
        let api_way =
            Interceptor::start(&server.url(), Some(&server.token()), Arc::new(ToApiServer(points.clone()))).await;
        let to_cloud = Arc::new(ToCloud(points.clone(), cloud.clone()));
        let cloud_way = Interceptor::start(&backend.cloud_url, None, to_cloud).await;
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "way",
            "clusters": [{"name": "way", "cluster": {"server": api_way.url}}],
            "contexts": [{"name": "way", "context": {"cluster": "way", "user": "none"}}],
            "users": [{"name": "none", "user": {}}],
        });
        std::fs::write(dir.path().join("kubeconfig"), kubeconfig.to_string()).unwrap();
        let api = KubeApi::of(&server);
        let mut this = Self {
            operator: None,
            elects: false,
            points,
            api,
            cloud,
            cloud_way,
            _api_way: api_way,
            backend,
            dir,
            server,
        };
        this.apply(&this.provider(PROVIDER));
        this.start_operator();
        this.wait("the Provider is Ready", async |c| c.provider_of(PROVIDER).await.filter(is_ready).map(drop)).await;
        Some(this)
    }

    /// A Provider of the cloud, behind its interceptor. Calls are short, since after a crash what they may still do is waited
    /// for.
    pub fn provider(&self, name: &str) -> String {
        provider_of(name, "sandbox", &self.cloud_way.url, "  limits: {callTimeout: 5s}\n")
    }

    /// Applies manifests.
    pub fn apply(&self, manifests: &str) {
        self.server.run(&["apply", "-f", "-"], Some(manifests));
    }

    /// Starts the operator and waits until it is up.
    pub fn start_operator(&mut self) {
        let args = self.args();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        self.operator = Some(Process::start(&args, &self.dir.path().join("operator.log")).0);
    }

    /// Starts the operator, which may not come up.
    pub fn launch_operator(&mut self) {
        let args = self.args();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        self.operator = Some(Process::launch(None, &args, &self.dir.path().join("operator.log")).0);
    }

    /// Kills the operator.
    pub fn kill_operator(&mut self) {
        self.operator.take().expect("it runs").kill();
    }

    fn args(&self) -> Vec<String> {
        let (kubeconfig, data) = (self.dir.path().join("kubeconfig"), self.dir.path().join("data"));
        let mut args = operator_args(&kubeconfig, &data, &self.backend.judge_url);
        match self.elects {
            true => args.extend(SHORT_LEASE.map(str::to_owned)),
            false => args.extend(["--leader-elect", "false"].map(str::to_owned)),
        }
        args
    }

    /// From its next start on the operator takes part in an election.
    pub fn elect(&mut self) {
        self.elects = true;
    }

    /// Sends the operator a signal.
    pub fn signal_operator(&self, name: &str) {
        self.operator.as_ref().expect("it runs").signal(name);
    }

    /// Waits until the condition answers something; nothing that must not be may be meanwhile.
    pub async fn wait<T>(&self, what: &str, mut condition: impl AsyncFnMut(&Self) -> Option<T>) -> T {
        let until = Instant::now() + PATIENCE * 2;
        loop {
            self.points.check();
            if let Some(met) = condition(self).await {
                return met;
            }
            if Instant::now() > until {
                let log = self.operator.as_ref().map(Process::log).unwrap_or_default();
                let tail: Vec<&str> = log.lines().rev().take(60).collect();
                let proxies = self.api.list(&format!("{GROUP}/proxies")).await;
                let shown: Vec<_> = proxies.iter().map(Value::to_string).collect();
                let tail = tail.into_iter().rev().collect::<Vec<_>>().join("\n");
                panic!("waited in vain until {what}\n{}\n{tail}", shown.join("\n"));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// A Provider.
    pub async fn provider_of(&self, name: &str) -> Option<Value> {
        self.api.get(&format!("{GROUP}/providers/{name}")).await
    }

    /// The Proxy of a namespace.
    pub async fn proxy(&self, namespace: &str) -> Option<Value> {
        self.api.get(&proxy_path(namespace)).await
    }

    /// The machines of a Proxy.
    pub async fn machines_of(&self, proxy: &Value) -> Vec<Value> {
        let mut machines = self.cloud.machines().await;
        machines.retain(|machine| machine["owner"]["proxyUid"] == proxy["metadata"]["uid"]);
        machines
    }

    /// All that was deleted on the way is gone in the end, at the cloud too.
    pub async fn ends_clean(&self) {
        self.wait("no Proxy is left", async |c| c.api.list(&format!("{GROUP}/proxies")).await.is_empty().then_some(()))
            .await;
        self.wait("no machine is left", async |c| c.cloud.machines().await.is_empty().then_some(())).await;
        self.wait("one Provider is left", async |c| {
            let left = c.api.list(&format!("{GROUP}/providers")).await;
            (left.len() == 1 && left[0]["metadata"]["name"] == PROVIDER).then_some(())
        })
        .await;
    }
}

/// The one Proxy of a namespace.
pub fn proxy_path(namespace: &str) -> String {
    format!("{GROUP}/namespaces/{namespace}/proxies/it")
}
