//! In what each effect is reached, and how it has to end after a crash.

use proxy_operator::model::abandoned::Abandoned;
use proxy_operator::model::{PLUGIN_FINALIZER, PROVIDER_FINALIZER, SKIP_CLEANUP};
use proxy_operator_tests::kube_api::{GROUP, has_finalizer, is_ready};
use proxy_operator_tests::process::PATIENCE;
use serde_json::{Value, json};

use crate::cluster::{Cluster, PROVIDER, proxy_path};
use crate::effect::Effect;
use crate::points::Moment;

const OWN: &str = "proxy-operator";
const SECRETS: &str = "/api/v1/namespaces/proxy-operator/secrets";
const CONFIG_MAPS: &str = "/api/v1/namespaces/proxy-operator/configmaps";
const ABANDONED: &str = "/api/v1/namespaces/proxy-operator/configmaps/proxy-operator-abandoned";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/proxy-operator/leases";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const CRD: &str = "proxies.crawl.example.com";
/// A plugin that is used by no Provider but that of a scenario.
const PLUGIN: &str = "plugin-static";

/// What happens while the operator is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// The operator starts in a cluster that it never was in.
    FirstStart,
    /// A Provider is made.
    NewProvider,
    /// A Provider is deleted.
    PartWithProvider,
    /// The first Provider of a plugin is made.
    UsePlugin,
    /// The last Provider of a plugin is deleted.
    LeavePlugin,
    /// A Proxy is made.
    Create,
    /// A Proxy is rebuilt.
    Rebuild,
    /// A machine is switched off.
    Stopped,
    /// A Proxy is deleted.
    Delete,
    /// A Proxy is given up.
    Abandon,
    /// The first leader of all is elected.
    FirstElection,
    /// The leader is dead, and another comes.
    Succeed,
    /// A leader goes on leading.
    Lead,
    /// A leader is told to stop.
    Resign,
}

impl Cluster {
    /// Kills the operator at this point and starts it anew: all ends clean. What is deleted in the end is waited for later,
    /// by [`Cluster::ends_clean`].
    pub async fn crash_at(&mut self, effect: Effect, moment: Moment, name: &str) {
        let scenario = effect.scenario();
        let what = format!("{effect:?} {moment:?}");
        let proxy = self.prepare(scenario, effect, name).await;
        let scope = match scenario {
            Scenario::FirstStart if effect == Effect::ClusterClaimed => CRD,
            Scenario::FirstStart | Scenario::Abandon => OWN,
            Scenario::FirstElection | Scenario::Succeed | Scenario::Lead | Scenario::Resign => OWN,
            Scenario::UsePlugin | Scenario::LeavePlugin => PLUGIN,
            _ => name,
        };
        let reached = self.points.arm(effect, moment, scope);
        self.begin(scenario, name).await;
        let reached = tokio::time::timeout(PATIENCE, reached).await;
        assert!(matches!(reached, Ok(Ok(()))), "{what} was not reached");
        self.kill_operator();
        self.points.thaw();
        self.start_operator();
        self.ends(scenario, &what, name, &proxy).await;
    }

    /// What has to be there before it begins; answers the Proxy that it is about.
    async fn prepare(&mut self, scenario: Scenario, effect: Effect, name: &str) -> Value {
        match scenario {
            Scenario::FirstStart => {
                self.kill_operator();
                self.api.delete(&format!("{SECRETS}/proxy-operator-key")).await;
                let unclaimed = json!({"metadata": {"annotations": {"crawl.example.com/installation": null}}});
                self.api.patch(&format!("{CRDS}/{CRD}"), unclaimed).await;
            }
            Scenario::FirstElection => {
                self.elect();
                self.kill_operator();
                self.api.delete(&format!("{LEASES}/proxy-operator")).await;
            }
            Scenario::Succeed => {
                self.elect();
                self.kill_operator();
            }
            Scenario::Lead | Scenario::Resign => {
                self.elect();
                self.kill_operator();
                self.start_operator();
                self.make_namespace(name).await;
                self.make_proxy(name).await;
                return self.wait_ready(name).await;
            }
            Scenario::NewProvider | Scenario::UsePlugin => {}
            Scenario::PartWithProvider => {
                self.make_provider(Scenario::NewProvider, name);
                self.wait("the Provider is Ready", async |c| c.provider_of(name).await.filter(is_ready)).await;
            }
            Scenario::LeavePlugin => {
                self.make_provider(scenario, name);
                self.wait("the plugin is held", async |c| c.plugin_is_held().await.then_some(())).await;
            }
            Scenario::Create => self.make_namespace(name).await,
            Scenario::Rebuild | Scenario::Stopped | Scenario::Delete => {
                self.make_namespace(name).await;
                self.make_proxy(name).await;
                return self.wait_ready(name).await;
            }
            Scenario::Abandon => {
                let list = json!({"metadata": {"name": "proxy-operator-abandoned"}});
                self.api.delete(ABANDONED).await;
                if effect == Effect::AbandonedAdded {
                    self.api.create(CONFIG_MAPS, list).await;
                }
                self.make_namespace(name).await;
                self.make_proxy(name).await;
                return self.wait_ready(name).await;
            }
        }
        Value::Null
    }

    /// Begins it.
    async fn begin(&mut self, scenario: Scenario, name: &str) {
        match scenario {
            Scenario::FirstStart | Scenario::FirstElection | Scenario::Succeed => self.launch_operator(),
            Scenario::Lead => {}
            Scenario::Resign => self.signal_operator("TERM"),
            Scenario::NewProvider | Scenario::UsePlugin => self.make_provider(scenario, name),
            Scenario::PartWithProvider | Scenario::LeavePlugin => self.part_with(name).await,
            Scenario::Create => self.make_proxy(name).await,
            Scenario::Rebuild => {
                self.points.may_surge(name);
                self.api.patch(&proxy_path(name), json!({"spec": {"rebuildToken": "again"}})).await;
            }
            Scenario::Stopped => {
                let proxy = self.proxy(name).await.unwrap();
                self.cloud.stop(&self.machines_of(&proxy).await[0]).await;
                // A changed Secret makes the operator look at everything.
                let looked = json!({"metadata": {"annotations": {"look": name}}});
                self.api.patch(&format!("{SECRETS}/cloud"), looked).await;
            }
            Scenario::Delete => self.api.delete(&proxy_path(name)).await,
            Scenario::Abandon => {
                let annotated = json!({"metadata": {"annotations": {SKIP_CLEANUP: "true"}}});
                self.api.patch(&proxy_path(name), annotated).await;
                self.api.delete(&proxy_path(name)).await;
            }
        }
    }

    /// How it ends.
    async fn ends(&mut self, scenario: Scenario, what: &str, name: &str, proxy: &Value) {
        match scenario {
            Scenario::FirstStart => {
                let key = self.api.get(&format!("{SECRETS}/proxy-operator-key")).await.unwrap();
                assert!(key["data"]["login"].is_string(), "{what}");
            }
            Scenario::NewProvider => {
                self.wait(&format!("{what}: the Provider is Ready"), async |c| {
                    c.provider_of(name).await.filter(|p| is_ready(p) && has_finalizer(p, PROVIDER_FINALIZER))
                })
                .await;
                self.part_with(name).await;
            }
            Scenario::UsePlugin => {
                let held = format!("{what}: the plugin is held");
                self.wait(&held, async |c| c.plugin_is_held().await.then_some(())).await;
                self.part_with(name).await;
                self.wait(what, async |c| (!c.plugin_is_held().await).then_some(())).await;
            }
            Scenario::PartWithProvider => {
                self.wait(&format!("{what}: the Provider is gone"), async |c| {
                    c.provider_of(name).await.is_none().then_some(())
                })
                .await;
            }
            Scenario::LeavePlugin => {
                let released = format!("{what}: the plugin is released");
                self.wait(&released, async |c| (!c.plugin_is_held().await).then_some(())).await;
            }
            Scenario::FirstElection | Scenario::Succeed => {
                // Whoever leads acts.
                self.make_namespace(name).await;
                self.make_proxy(name).await;
                self.wait_one_machine(what, name).await;
                self.api.delete(&proxy_path(name)).await;
            }
            Scenario::Lead | Scenario::Resign => {
                // Acting goes on: a change that nobody has seen yet is followed.
                self.begin(Scenario::Rebuild, name).await;
                self.wait(what, async |c| (c.proxy(name).await?["status"]["rebuilds"] == 1).then_some(())).await;
                self.api.delete(&proxy_path(name)).await;
            }
            Scenario::Create | Scenario::Stopped => {
                self.wait_one_machine(what, name).await;
                self.api.delete(&proxy_path(name)).await;
            }
            Scenario::Rebuild => {
                let taken_over = format!("{what}: the next one serves, with its login");
                self.wait(&taken_over, async |c| {
                    let now = c.proxy(name).await?;
                    let secret = c.api.get(&format!("/api/v1/namespaces/{name}/secrets/login")).await?;
                    let all_new = now["status"]["instance"]["incarnation"] == 1 && now["status"]["rebuilds"] == 1;
                    (is_ready(&now) && all_new && secret["data"]["username"].is_string()).then_some(())
                })
                .await;
                self.api.delete(&proxy_path(name)).await;
            }
            Scenario::Delete => {}
            Scenario::Abandon => {
                self.wait(what, async |c| c.proxy(name).await.is_none().then_some(())).await;
                let list = self.api.get(ABANDONED).await.unwrap();
                let given_up: Vec<Abandoned> = list["data"]
                    .as_object()
                    .into_iter()
                    .flat_map(|data| data.values())
                    .map(|text| serde_json::from_str(text.as_str().unwrap()).unwrap())
                    .collect();
                assert_eq!(given_up.len(), 1, "{what}: {list}");
                assert_eq!(given_up[0].proxy_uid, proxy["metadata"]["uid"], "{what}");
                let left = self.machines_of(proxy).await;
                assert_eq!(left.len(), 1, "{what}: what was given up stays");
                self.cloud.delete(&left[0]).await;
            }
        }
    }

    async fn make_namespace(&self, name: &str) {
        self.api.create("/api/v1/namespaces", json!({"metadata": {"name": name}})).await;
    }

    async fn make_proxy(&self, namespace: &str) {
        let proxy = json!({
            "apiVersion": "crawl.example.com/v1alpha1", "kind": "Proxy", "metadata": {"name": "it"},
            "spec": {"provider": PROVIDER, "auth": {"publishSecret": "login"}},
        });
        self.api.create(&format!("{GROUP}/namespaces/{namespace}/proxies"), proxy).await;
    }

    fn make_provider(&self, scenario: Scenario, name: &str) {
        if scenario == Scenario::NewProvider {
            return self.apply(&self.provider(name));
        }
        self.apply(&format!(
            "apiVersion: crawl.example.com/v1alpha1\nkind: Provider\nmetadata: {{name: {name}}}\nspec: {{plugin: {{name: static}}, config: {{proxies: [{{name: a, host: 127.0.0.1, port: 1}}]}}}}\n"
        ));
    }

    /// Deletes a Provider that never had a machine, without the wait for creates of an earlier run.
    async fn part_with(&self, name: &str) {
        let path = format!("{GROUP}/providers/{name}");
        self.api.patch(&path, json!({"metadata": {"annotations": {SKIP_CLEANUP: "true"}}})).await;
        self.api.delete(&path).await;
    }

    async fn plugin_is_held(&self) -> bool {
        let plugin = self.api.get(&format!("{CONFIG_MAPS}/{PLUGIN}")).await.expect("it is there");
        has_finalizer(&plugin, PLUGIN_FINALIZER)
    }

    async fn wait_ready(&self, namespace: &str) -> Value {
        self.wait("the Proxy is Ready", async |c| c.proxy(namespace).await.filter(is_ready)).await
    }

    /// The Proxy serves, with the machine that it was given first.
    async fn wait_one_machine(&self, what: &str, namespace: &str) {
        self.wait(&format!("{what}: the Proxy is Ready, with one machine"), async |c| {
            let proxy = c.proxy(namespace).await.filter(is_ready)?;
            let machines = c.machines_of(&proxy).await;
            (machines.len() == 1 && machines[0]["state"] == "running" && proxy["status"]["rebuilds"] == 0).then_some(())
        })
        .await;
    }
}
