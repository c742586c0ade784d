//! What scenarios are made of: requests, commands, and looks at what there is.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proxy_operator::model::SKIP_CLEANUP;
use proxy_operator::model::abandoned::Abandoned;
use proxy_operator::model::provider::Provider;
use proxy_operator::model::proxy::Proxy;
use proxy_operator_tests::lab::{condition, is_ready, proxy_of};
use proxy_operator_tests::process::PATIENCE;
use reqwest::{Client, Method};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::rig::Rig;

/// The Provider of all Proxies.
const PROVIDER: &str = "demo";

/// What somebody asked the operator for.
pub struct Act {
    answer: JoinHandle<Option<Value>>,
    said_yes: Arc<AtomicBool>,
}

impl Act {
    pub fn new(answer: impl Future<Output = Option<Value>> + Send + 'static) -> Self {
        let said_yes = Arc::new(AtomicBool::new(false));
        let tell = said_yes.clone();
        let answer = tokio::spawn(async move {
            let answer = answer.await;
            tell.store(answer.is_some(), Ordering::Release);
            answer
        });
        Self { answer, said_yes }
    }

    /// The answer, if there was one and it was yes.
    pub async fn answer(self) -> Option<Value> {
        self.answer.await.unwrap()
    }

    pub fn said_yes(&self) -> bool {
        self.said_yes.load(Ordering::Acquire)
    }
}

impl Rig {
    /// The Provider of all Proxies is there and Ready.
    pub(super) async fn demo(&mut self) {
        if !self.lab.path("manifests/provider.yaml").exists() {
            self.lab.put("provider.yaml", &self.provider(PROVIDER));
        }
        self.wait_provider(PROVIDER).await;
    }

    /// A Proxy that is Ready and that nothing happened to.
    pub(super) async fn spare(&mut self) -> String {
        self.demo().await;
        let name = match self.spare.pop() {
            Some(name) => name,
            None => {
                let name = self.new_name();
                self.apply(&of(&name, "")).answer().await.expect("applied");
                name
            }
        };
        self.wait_one_machine("a Proxy to begin with", &name).await;
        name
    }

    pub(super) async fn give_up(&mut self, name: &str) {
        let manifest =
            of(name, "").replace("metadata: {", &format!("metadata: {{annotations: {{{SKIP_CLEANUP}: \"true\"}}, "));
        self.apply(&manifest).answer().await.expect("applied");
    }

    /// Asks for a lease of a Proxy as soon as it serves; answers the status and what is said.
    pub(super) async fn lent(&self, name: &str, seconds: u64) -> (u16, Value) {
        self.lab
            .wait(&format!("{name} serves, and is lent or not"), async |_| {
                let (status, said) = self.ask(Method::POST, "/v1/leases", wish(name, seconds)).await?;
                (status == 201 || said["code"] == "all_leased").then_some((status, said))
            })
            .await
    }

    /// The key under which the instance of a Proxy is remembered, if it is, once.
    pub(super) async fn given_up(&self, name: &str) -> Option<String> {
        let all = self.abandoned().await;
        let mut of_it = all.iter().filter(|one| one["name"] == name);
        let (Some(one), None) = (of_it.next(), of_it.next()) else { return None };
        let one: Abandoned = serde_json::from_value(one.clone()).unwrap();
        Some(one.key())
    }

    pub(super) async fn abandoned(&self) -> Vec<Value> {
        serde_json::from_str(&self.lab.command(&["abandoned", "list", "-o", "json"])).unwrap()
    }

    pub(super) async fn delete_machine(&self, what: &str, name: &str) {
        let machines = self.machines_of(name).await;
        assert_eq!(machines.len(), 1, "{what}: what was given up stays");
        self.lab.cloud().delete(&machines[0]).await;
    }

    pub(super) async fn machines_of(&self, name: &str) -> Vec<Value> {
        let mut machines = self.lab.machines().await;
        machines.retain(|machine| machine["owner"]["name"] == name);
        machines
    }

    pub(super) fn is_in_a_manifest(&self, name: &str) -> bool {
        let files = std::fs::read_dir(self.lab.path("manifests")).unwrap();
        let mut texts = files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap_or_default());
        texts.any(|text| text.contains(&format!("name: {name},")) || text.contains(&format!("name: {name}}}")))
    }

    pub(super) async fn proxy(&self, name: &str) -> Option<Proxy> {
        let all: Vec<Proxy> = self.lab.try_objects("proxies").await?;
        all.into_iter().find(|p| p.metadata.name.as_deref() == Some(name))
    }

    pub(super) async fn is_edited(&self, name: &str) -> bool {
        self.proxy(name).await.is_some_and(|p| {
            let status = p.status.as_ref();
            let alone = status.is_some_and(|s| s.next.is_none() && s.retiring.is_empty() && s.rebuilds == 1);
            p.spec.port == 3129 && is_ready(&p) && alone
        })
    }

    /// A Proxy serves, with one machine.
    pub(super) async fn wait_one_machine(&self, what: &str, name: &str) {
        self.lab
            .wait(&format!("{what}: {name} is Ready, with one machine"), async |lab| {
                let proxy = lab.proxy(name).await.filter(is_ready)?;
                let mut machines = lab.machines().await;
                machines.retain(|machine| machine["owner"]["name"] == name);
                let its_own = |machine: &Value| machine["owner"]["proxyUid"] == json!(proxy.metadata.uid);
                (machines.len() == 1 && its_own(&machines[0]) && machines[0]["state"] == "running").then_some(())
            })
            .await;
    }

    pub(super) async fn provider_is_ready(&self, name: &str) -> bool {
        let all: Vec<Provider> = self.lab.try_objects("providers").await.unwrap_or_default();
        let found = all.iter().find(|p| p.metadata.name.as_deref() == Some(name));
        found.and_then(condition).is_some_and(|c| c.reason == "Ready")
    }

    pub(super) async fn wait_provider(&self, name: &str) {
        self.lab.wait_provider(name, |p| condition(p).is_some_and(|c| c.reason == "Ready")).await;
    }

    /// Applies a manifest.
    pub(super) fn apply(&self, manifest: &str) -> Act {
        let file = self.lab.path("applied.yaml");
        std::fs::write(&file, manifest).unwrap();
        self.command(&["apply", "-f", &file.display().to_string()])
    }

    /// Runs a command of the binary.
    pub(super) fn command(&self, args: &[&str]) -> Act {
        let mut command = Command::new(proxy_operator_tests::binary());
        command.args(args).arg("--data").arg(self.lab.path("data")).stdout(Stdio::null()).stderr(Stdio::null());
        let run = tokio::task::spawn_blocking(move || command.status().unwrap().success());
        Act::new(async move { run.await.unwrap().then_some(Value::Null) })
    }

    /// Asks for something over REST.
    pub(super) fn request(&self, method: Method, path: &str, body: Value) -> Act {
        let asked = self.ask(method, path, body);
        Act::new(async move { asked.await.filter(|(status, _)| *status < 300).map(|(_, body)| body) })
    }

    /// The status and the body of an answer, if there is one.
    pub(super) fn ask(
        &self,
        method: Method,
        path: &str,
        body: Value,
    ) -> impl Future<Output = Option<(u16, Value)>> + use<> {
        let client = Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
        let request = client.request(method, format!("{}{path}", self.lab.rest_url())).bearer_auth(self.lab.token());
        let request = if body.is_null() { request } else { request.body(body.to_string()) };
        async move {
            let answer = request.send().await.ok()?;
            let status = answer.status().as_u16();
            Some((status, serde_json::from_slice(&answer.bytes().await.ok()?).unwrap_or(Value::Null)))
        }
    }
}

/// A Proxy that can be wished for by its name.
pub(super) fn of(name: &str, more: &str) -> String {
    proxy_of(PROVIDER, name, more).replace("metadata: {", &format!("metadata: {{labels: {{of: {name}}}, "))
}

pub(super) fn wish(name: &str, seconds: u64) -> Value {
    json!({"selector": {"of": name}, "ttlSeconds": seconds})
}
