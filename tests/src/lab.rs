//! A standalone operator with a sandbox cloud, in a folder of its own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use proxy_operator::model::condition::{Condition, Status, find};
use proxy_operator::model::provider::Provider;
use proxy_operator::model::proxy::Proxy;
use proxy_operator::rest::auth::{NewToken, Scope, mint};
use proxy_operator::store::Event;
use reqwest::{Client, Method, Proxy as Through, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::backend::{Backend, CLOUD_TOKEN, CloudApi};
use crate::process::{PATIENCE, Process};

/// The lab.
pub struct Lab {
    backend: Backend,
    operator: Option<Process>,
    rest: String,
    health: String,
    metrics: String,
    log: String,
    token: String,
    client: Client,
    dir: TempDir,
}

impl Lab {
    /// A cloud, and an operator with the Provider `demo`, which is Ready.
    pub async fn start() -> Self {
        let lab = Self::without_provider().await;
        lab.put("provider.yaml", &lab.provider("demo", ""));
        lab.wait_provider("demo", |p| condition(p).is_some_and(|c| c.status == Status::True)).await;
        lab
    }

    /// A cloud, and an operator without a Provider.
    pub async fn without_provider() -> Self {
        Self::of_cloud(&[]).await
    }

    /// The same, with more arguments for the cloud.
    pub async fn of_cloud(more: &[&str]) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for folder in ["manifests", "plugins", "files"] {
            fs::create_dir(at(folder)).unwrap();
        }
        for plugin in ["sandbox.wasm", "static.wasm"] {
            fs::copy(crate::root().join("bin/plugins").join(plugin), at("plugins").join(plugin)).unwrap();
        }
        let NewToken { token, manifest } =
            mint("crawler", "default", &[Scope::Read, Scope::Allocate], &["default".into()], None);
        let mut lab = Self {
            backend: Backend::start_with(dir.path(), more),
            operator: None,
            rest: String::new(),
            health: String::new(),
            metrics: String::new(),
            log: "info,proxy_operator=debug,plugin=debug".to_owned(),
            token,
            client: Client::builder().no_proxy().timeout(PATIENCE).build().unwrap(),
            dir,
        };
        lab.put_secret("token.yaml", &manifest);
        lab.put_secret("cloud.yaml", &secret("cloud", &[("token", CLOUD_TOKEN)]));
        lab.start_operator().await;
        lab
    }

    /// Starts the operator; it must not be running.
    pub async fn start_operator(&mut self) {
        self.start_operator_in(None).await;
    }

    /// Starts the operator in a control group.
    pub async fn start_operator_in(&mut self, group: Option<PathBuf>) {
        assert!(self.operator.is_none());
        let args = self.arguments();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let (operator, line) = Process::start_in(group.as_deref(), &args, &self.path("operator.log"));
        let part = |name: &str| {
            line.split_whitespace().find_map(|p| p.strip_prefix(name)).unwrap_or_else(|| panic!("{line}")).to_owned()
        };
        (self.rest, self.health, self.metrics) = (part("rest="), part("health="), part("metrics="));
        self.operator = Some(operator);
        self.wait("the operator is ready", async |lab| {
            let answer = lab.client.get(format!("{}/readyz", lab.health)).send().await.ok()?;
            answer.status().is_success().then_some(())
        })
        .await;
    }

    /// Starts the operator stopped before its first step, for whoever watches it from there on.
    pub fn launch_operator_stopped(&mut self) {
        assert!(self.operator.is_none());
        let args = self.arguments();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        self.operator = Some(Process::launch_stopped(&args, &self.path("operator.log")));
    }

    /// Starts the operator, which must refuse to; answers what it says.
    pub fn refused_operator(&self) -> String {
        let args = self.arguments();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let log = self.path("refused.log");
        let _ = fs::remove_file(&log);
        let (process, line) = Process::launch(None, &args, &log);
        let line = line.recv_timeout(PATIENCE).expect("it is up or ends");
        assert!(line.is_empty(), "{line}");
        assert_eq!(process.end(), Some(1));
        fs::read_to_string(&log).unwrap()
    }

    fn arguments(&self) -> Vec<String> {
        let fixed = ["--log", &self.log, "--log-json", "run", "--standalone", "--gc-grace", "1s"].map(str::to_owned);
        let folders = [
            ("--manifests", "manifests"),
            ("--data", "data"),
            ("--plugin-dir", "plugins"),
            ("--secret-files", "files"),
        ];
        let folders =
            folders.into_iter().flat_map(|(flag, name)| [flag.to_owned(), self.path(name).display().to_string()]);
        let ports = ["--rest-addr", "--health-addr", "--judge-addr", "--metrics-addr"];
        let ports = ports.into_iter().flat_map(|flag| [flag.to_owned(), "127.0.0.1:0".to_owned()]);
        let judge = ["--judge-url".to_owned(), self.judge().to_owned()];
        fixed.into_iter().chain(folders).chain(ports).chain(judge).collect()
    }

    /// From its next start on the operator logs what passes this filter.
    pub fn log(&mut self, filter: &str) {
        self.log = filter.to_owned();
    }

    /// Whether the operator was killed.
    pub fn operator_has_ended(&mut self) -> bool {
        self.operator.as_mut().expect("the operator was started").has_ended()
    }

    /// The running operator.
    pub fn operator(&self) -> &Process {
        self.operator.as_ref().expect("the operator runs")
    }

    /// Takes the operator out, to be stopped or killed.
    pub fn take_operator(&mut self) -> Process {
        self.operator.take().expect("the operator runs")
    }

    /// Ends the cloud, as an outage does.
    pub fn stop_cloud(&mut self) {
        self.backend.cloud.take().expect("the cloud runs").kill();
    }

    /// A path in the lab's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The cloud's API.
    pub fn cloud(&self) -> CloudApi {
        self.backend.api()
    }

    /// URL of the cloud's API.
    pub fn cloud_url(&self) -> &str {
        &self.backend.cloud_url
    }

    /// A real forward proxy of its own process, and its port.
    pub fn forward_proxy(&self, name: &str, login: &str) -> (Process, u16) {
        let file = self.path(&format!("{name}.login"));
        std::fs::write(&file, login).unwrap();
        let judge = self.judge().trim_start_matches("http://").trim_end_matches("/judge").to_owned();
        let listen = ["forward-proxy", "--listen", "127.0.0.1:0"];
        let args = [&listen[..], &["--login-file", file.to_str().unwrap(), "--allow-target", &judge]].concat();
        let (process, line) = Process::start(&args, &self.path(&format!("{name}.log")));
        (process, line.rsplit(':').next().unwrap().parse().unwrap())
    }

    /// URL of the operator's REST API.
    pub fn rest_url(&self) -> &str {
        &self.rest
    }

    /// URL of the operator's judge.
    pub fn judge(&self) -> &str {
        &self.backend.judge_url
    }

    /// The crawler's token.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Writes a manifest, whole at once.
    pub fn put(&self, file: &str, text: &str) {
        replace(&self.path("manifests").join(file), text.as_bytes(), 0o644);
    }

    /// Writes a manifest that holds a Secret.
    pub fn put_secret(&self, file: &str, text: &str) {
        replace(&self.path("manifests").join(file), text.as_bytes(), 0o600);
    }

    /// Puts a plugin's file in place, whole at once.
    pub fn put_plugin(&self, file: &str, bytes: &[u8]) {
        replace(&self.path("plugins").join(file), bytes, 0o644);
    }

    /// A Provider of the cloud, with further lines of its spec.
    pub fn provider(&self, name: &str, more: &str) -> String {
        format!(
            "apiVersion: crawl.example.com/v1alpha1\nkind: Provider\nmetadata: {{name: {name}}}\nspec:\n  plugin: {{name: sandbox}}\n  connections:\n    cloud:\n      http:\n        baseUrl: {}\n        permit: [loopback]\n        auth: {{bearer: {{secretRef: {{name: cloud, key: token}}}}}}\n{more}",
            self.backend.cloud_url
        )
    }

    /// Waits until the condition answers something; the deadline's text names it and shows the operator's log.
    pub async fn wait<T>(&self, what: &str, mut condition: impl AsyncFnMut(&Self) -> Option<T>) -> T {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(met) = condition(self).await {
                return met;
            }
            if Instant::now() > until {
                let log = self.operator.as_ref().map(Process::log).unwrap_or_default();
                let tail: Vec<&str> = log.lines().rev().take(40).collect();
                let proxies = self.try_objects::<Proxy>("proxies").await;
                let shown: Vec<_> =
                    proxies.iter().flatten().map(|p| serde_json::to_string(&p.status).unwrap()).collect();
                panic!(
                    "waited in vain until {what}\n{}\n{}",
                    shown.join("\n"),
                    tail.into_iter().rev().collect::<Vec<_>>().join("\n")
                );
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// All objects of a kind, where the operator answers.
    pub async fn try_objects<T: DeserializeOwned>(&self, kind: &str) -> Option<Vec<T>> {
        let socket = self.path("data/operator.sock");
        let client = Client::builder().unix_socket(socket.as_path()).timeout(PATIENCE).build().unwrap();
        client.get(format!("http://operator/{kind}")).send().await.ok()?.json().await.ok()
    }

    /// All Proxies.
    pub async fn proxies(&self) -> Vec<Proxy> {
        self.try_objects("proxies").await.expect("the operator answers")
    }

    /// All events, oldest first.
    pub async fn events(&self) -> Vec<Event> {
        self.try_objects("events").await.expect("the operator answers")
    }

    /// One Proxy.
    pub async fn proxy(&self, name: &str) -> Option<Proxy> {
        self.proxies().await.into_iter().find(|p| p.metadata.name.as_deref() == Some(name))
    }

    /// Waits until a Proxy is as wanted.
    pub async fn wait_proxy(&self, name: &str, wanted: impl Fn(&Proxy) -> bool) -> Proxy {
        self.wait(&format!("Proxy {name} is as wanted"), async |lab| lab.proxy(name).await.filter(&wanted)).await
    }

    /// Waits until Proxies are Ready.
    pub async fn wait_ready(&self, names: &[&str]) {
        for name in names {
            self.wait_proxy(name, is_ready).await;
        }
    }

    /// Waits until a Provider is as wanted.
    pub async fn wait_provider(&self, name: &str, wanted: impl Fn(&Provider) -> bool) -> Provider {
        self.wait(&format!("Provider {name} is as wanted"), async |lab| {
            let all: Vec<Provider> = lab.try_objects("providers").await?;
            all.into_iter().find(|p| p.metadata.name.as_deref() == Some(name)).filter(&wanted)
        })
        .await
    }

    /// Waits until a Provider is gone.
    pub async fn wait_parted(&self, name: &str) {
        self.wait(&format!("Provider {name} is gone"), async |lab| {
            let all: Vec<Provider> = lab.try_objects("providers").await?;
            all.iter().all(|p| p.metadata.name.as_deref() != Some(name)).then_some(())
        })
        .await
    }

    /// Runs a command of the binary against this operator.
    pub fn attempt(&self, args: &[&str]) -> std::process::Output {
        let data = self.path("data").display().to_string();
        std::process::Command::new(crate::binary()).args(args).args(["--data", &data]).output().unwrap()
    }

    /// The same; it must succeed. Answers its standard output.
    pub fn command(&self, args: &[&str]) -> String {
        let output = self.attempt(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// One request to REST, with the crawler's token.
    pub async fn rest(&self, method: Method, path: &str, body: Option<Value>) -> (StatusCode, Value) {
        self.rest_as(&self.token, method, path, body).await
    }

    /// One request to REST, with this token.
    pub async fn rest_as(&self, token: &str, method: Method, path: &str, body: Option<Value>) -> (StatusCode, Value) {
        let request = self.client.request(method, format!("{}{path}", self.rest)).bearer_auth(token);
        let request = match body {
            Some(body) => request.body(body.to_string()),
            None => request,
        };
        let answer = request.send().await.unwrap();
        let status = answer.status();
        let body = answer.bytes().await.unwrap();
        (status, if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).unwrap() })
    }

    /// Leases a proxy; the answer must be a lease.
    pub async fn lease(&self, wish: Value) -> Value {
        let (status, lease) = self.rest(Method::POST, "/v1/leases", Some(wish)).await;
        assert_eq!(status, StatusCode::CREATED, "{lease}");
        lease
    }

    /// Fetches the judge's page through a proxy URL.
    pub async fn fetch_through(&self, url: &str) -> String {
        let page = self.judge().trim_end_matches("/judge").to_owned() + "/";
        let client = Client::builder().proxy(Through::all(url).unwrap()).timeout(PATIENCE).build().unwrap();
        client.get(page).send().await.unwrap().error_for_status().unwrap().text().await.unwrap()
    }

    /// The metrics page.
    pub async fn metrics(&self) -> String {
        self.client.get(format!("{}/metrics", self.metrics)).send().await.unwrap().text().await.unwrap()
    }

    /// Waits until calls of this function ended with this outcome.
    pub async fn wait_called(&self, function: &str, outcome: &str) {
        let wanted = format!("function=\"{function}\",outcome=\"{outcome}\"}}");
        let is_it = |line: &str| line.starts_with("proxy_operator_provider_calls_total{") && line.contains(&wanted);
        self.wait(&wanted, async |lab| lab.metrics().await.lines().any(is_it).then_some(())).await;
    }

    /// Replaces the cloud's faults.
    pub async fn faults(&self, faults: Value) {
        let request = self.client.put(format!("{}/v1/faults", self.backend.cloud_url)).bearer_auth(CLOUD_TOKEN);
        request.json(&faults).send().await.unwrap().error_for_status().unwrap();
    }

    /// The cloud's faults, with how often each struck.
    pub async fn struck(&self) -> Value {
        let request = self.client.get(format!("{}/v1/faults", self.backend.cloud_url)).bearer_auth(CLOUD_TOKEN);
        request.send().await.unwrap().error_for_status().unwrap().json().await.unwrap()
    }

    /// Everything that the cloud holds.
    pub async fn machines(&self) -> Vec<Value> {
        self.backend.api().machines().await
    }

    /// Makes a machine behind the operator's back.
    pub async fn make_machine(&self, zone: &str, name: &str, body: Value) {
        let url = format!("{}/v1/zones/{zone}/instances/{name}", self.backend.cloud_url);
        let request = self.client.put(url).bearer_auth(CLOUD_TOKEN).json(&body);
        request.send().await.unwrap().error_for_status().unwrap();
    }

    /// Waits until a Proxy's Ready condition has this reason, and answers the condition.
    pub async fn wait_reason(&self, name: &str, reason: &str) -> Condition {
        let proxy = self.wait_proxy(name, |p| condition_of(p, "Ready").is_some_and(|c| c.reason == reason)).await;
        condition_of(&proxy, "Ready").unwrap()
    }

    /// Waits for an event with this reason; answers its text.
    pub async fn wait_event(&self, reason: &str, about: &str) -> String {
        self.wait(&format!("an event {reason} about {about}"), async |lab| {
            let events = lab.events().await;
            let found = events.into_iter().find(|e| e.reason == reason && e.regarding.to_string().ends_with(about));
            found.map(|e| e.message)
        })
        .await
    }
}

/// Replaces a file by rename, as every careful tool does.
fn replace(path: &Path, bytes: &[u8], mode: u32) {
    let temporary = path.with_extension("part");
    fs::write(&temporary, bytes).unwrap();
    fs::set_permissions(&temporary, fs::Permissions::from_mode(mode)).unwrap();
    fs::rename(&temporary, path).unwrap();
}

/// A Secret that Providers may use.
pub fn secret(name: &str, data: &[(&str, &str)]) -> String {
    let data: String = data.iter().map(|(k, v)| format!("  {k}: {v:?}\n")).collect();
    format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}, labels: {{crawl.example.com/provider-secret: \"true\"}}}}\nstringData:\n{data}"
    )
}

/// A Proxy of the Provider `demo`, with further fields of its spec.
pub fn proxy(name: &str, more: &str) -> String {
    proxy_of("demo", name, more)
}

/// A Proxy, with further fields of its spec.
pub fn proxy_of(provider: &str, name: &str, more: &str) -> String {
    format!(
        "apiVersion: crawl.example.com/v1alpha1\nkind: Proxy\nmetadata: {{name: {name}}}\nspec: {{provider: {provider}{more}}}\n"
    )
}

/// One condition of a Proxy.
pub fn condition_of(proxy: &Proxy, type_: &str) -> Option<Condition> {
    find(&proxy.status.as_ref()?.conditions, type_).cloned()
}

/// The Ready condition of a Provider.
pub fn condition(provider: &Provider) -> Option<Condition> {
    find(&provider.status.as_ref()?.conditions, "Ready").cloned()
}

/// Whether a Proxy is Ready.
pub fn is_ready(proxy: &Proxy) -> bool {
    condition_of(proxy, "Ready").is_some_and(|c| c.status == Status::True)
}

/// The names of the proxies that a lease and the list show.
pub fn lease_name(lease: &Value) -> String {
    lease["proxy"]["name"].as_str().unwrap().to_owned()
}

/// A lease's text field.
pub fn text(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap_or_else(|| panic!("no {field} in {value}")).to_owned()
}

/// A wish with a TTL.
pub fn wish(ttl: u64) -> Value {
    json!({"ttlSeconds": ttl})
}
