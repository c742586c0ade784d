//! In what effects are reached, and how it has to end after a kill.

use std::path::Path;

use proxy_operator::model::abandoned::Abandoned;
use proxy_operator_tests::backend::CLOUD_TOKEN;
use proxy_operator_tests::lab::{is_ready, secret};
use reqwest::Method;
use serde_json::{Value, json};
use strum::VariantArray;

use super::effect::{Effect, Moment};
use super::rig::{At, Rig};
use super::steps::{Act, of, wish};

/// What is made once.
const ONCE: [(&str, &str); 4] = [("meta", "installation"), ("meta", "ledger"), ("keys", "login"), ("keys", "lease")];

/// What happens while the operator is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantArray)]
pub enum Scenario {
    /// The operator starts where there is nothing.
    FirstStart,
    /// A Proxy is applied.
    Create,
    /// A Proxy is applied that is another now.
    Edit,
    /// A Provider is applied.
    NewProvider,
    /// A Proxy is deleted.
    Delete,
    /// A Provider is deleted.
    PartWithProvider,
    /// A Proxy is deleted, and its instance given up.
    GiveUp,
    /// An instance that was given up is forgotten.
    Forget,
    /// A lease is granted.
    Grant,
    /// A lease is lengthened.
    Renew,
    /// A lease is given back.
    Release,
    /// A machine is switched off.
    Stopped,
}

impl Scenario {
    /// Points that are not writes to the database.
    pub fn fixed(self, database: &Path) -> Vec<(At, Effect, Moment)> {
        use Moment::{After, Before};
        let call = |name, nth| At::Call(name, nth, vec![]);
        let cloud = |effect| Moment::VARIANTS.iter().map(move |&moment| (At::Cloud(effect, moment), effect, moment));
        match self {
            Self::FirstStart => vec![(call("fsync", 1), Effect::DatabaseMade, After)],
            Self::Create => {
                let files = [
                    (call("fsync", 1), Effect::ManifestWritten, Before),
                    (call("/^rename", 1), Effect::ManifestWritten, After),
                    (call("/^rename", 1), Effect::ManifestNamed, Before),
                    (call("fsync", 2), Effect::ManifestNamed, After),
                    (call("fsync", 2), Effect::FolderSynced, Before),
                    (At::Call("pwrite64", 1, vec![database.to_owned()]), Effect::FolderSynced, After),
                ];
                files.into_iter().chain(cloud(Effect::MachineCreated)).collect()
            }
            Self::Delete => {
                let files = [
                    (call("/^unlink", 1), Effect::ManifestRemoved, Before),
                    (call("fsync", 1), Effect::ManifestRemoved, After),
                ];
                files.into_iter().chain(cloud(Effect::MachineDeleted)).collect()
            }
            Self::Stopped => cloud(Effect::MachineStarted).collect(),
            _ => vec![],
        }
    }

    /// Whether this effect is one of its own whose turn depends on what else goes on: the reconciler and the look at the
    /// manifest folder both write when something is deleted.
    pub fn varies_with(self, effect: Effect) -> bool {
        match effect {
            Effect::ProviderForgotten => self == Self::PartWithProvider,
            Effect::DeletionStored | Effect::DeletionOutdated | Effect::ProxyForgotten => self == Self::Delete,
            Effect::InstanceGivenUp => self == Self::GiveUp,
            _ => false,
        }
    }

    /// Whether its writes to the database are points.
    pub fn writes(self) -> bool {
        self != Self::Stopped
    }
}

impl Rig {
    /// The object of a scenario as it is when it begins.
    pub async fn object(&self, name: &str) -> Value {
        if let Some(proxy) = self.proxy(name).await {
            return serde_json::to_value(proxy).unwrap();
        }
        let providers: Vec<Value> = self.lab.try_objects("providers").await.unwrap_or_default();
        providers.into_iter().find(|p| p["metadata"]["name"] == name).unwrap_or(Value::Null)
    }

    /// What has to be there before it begins; answers the name of what it is about.
    pub async fn prepare(&mut self, scenario: Scenario) -> String {
        match scenario {
            Scenario::FirstStart => {
                self.lab.take_operator().kill();
                std::fs::remove_file(self.database()).unwrap();
                self.lab.launch_operator_stopped();
                String::new()
            }
            Scenario::NewProvider => self.new_name(),
            Scenario::PartWithProvider => {
                let name = self.new_name();
                self.apply(&self.provider(&name)).answer().await.expect("applied");
                self.wait_provider(&name).await;
                name
            }
            Scenario::Create => {
                self.demo().await;
                self.new_name()
            }
            Scenario::GiveUp => {
                let name = self.spare().await;
                self.give_up(&name).await;
                name
            }
            Scenario::Forget => {
                let name = self.spare().await;
                self.give_up(&name).await;
                self.command(&["delete", "px", &name, "--wait=false"]).answer().await.expect("accepted");
                self.lab.wait("it is gone", async |lab| lab.proxy(&name).await.is_none().then_some(())).await;
                self.delete_machine("given up", &name).await;
                self.given_up(&name).await.expect("it is remembered")
            }
            Scenario::Renew | Scenario::Release => {
                let name = self.spare().await;
                let (_, lease) = self.lent(&name, 20).await;
                lease["id"].as_str().expect("a lease").to_owned()
            }
            _ => self.spare().await,
        }
    }

    /// Begins it.
    pub async fn begin(&mut self, scenario: Scenario, name: &str) -> Act {
        match scenario {
            Scenario::FirstStart => {
                self.lab.operator().signal("CONT");
                Act::new(std::future::ready(None))
            }
            Scenario::NewProvider => self.apply(&self.provider(name)),
            Scenario::PartWithProvider => self.command(&["delete", "pxp", name, "--wait=false"]),
            Scenario::Create => self.apply(&of(name, "")),
            Scenario::Edit => self.apply(&of(name, ", port: 3129")),
            Scenario::Delete | Scenario::GiveUp => self.command(&["delete", "px", name, "--wait=false"]),
            Scenario::Forget => self.command(&["abandoned", "forget", name]),
            Scenario::Grant => {
                let mut wish = wish(name, 600);
                // It may not have been probed since the last start.
                wish["waitSeconds"] = 30.into();
                self.request(Method::POST, "/v1/leases", wish)
            }
            Scenario::Renew => {
                self.request(Method::POST, &format!("/v1/leases/{name}/renew"), json!({"ttlSeconds": 600}))
            }
            Scenario::Release => self.request(Method::DELETE, &format!("/v1/leases/{name}"), Value::Null),
            Scenario::Stopped => {
                let machine = self.machines_of(name).await.remove(0);
                let look = self.new_name();
                self.lab.cloud().stop(&machine).await;
                // A changed Secret makes the operator look at everything.
                self.lab.put_secret("cloud.yaml", &secret("cloud", &[("token", CLOUD_TOKEN), ("look", &look)]));
                Act::new(std::future::ready(None))
            }
        }
    }

    /// Whether it went through. `log`: what the operator logged since it began.
    pub async fn is_over(&self, scenario: Scenario, name: &str, act: &Act, log: &str) -> bool {
        let wrote = |table: &str, change: &str, key: &str| {
            let mut lines = log.lines();
            let it = [format!("\"table\":\"{table}\""), format!("\"change\":\"{change}\""), format!("{key}\"")];
            lines.any(|line| it.iter().all(|part| line.contains(part))) && lines.any(|l| l.contains("\"written\""))
        };
        let gone_from = |table: &str| wrote(table, "remove", name) && wrote("buried", "remove", name);
        match scenario {
            // Its last write at a start.
            Scenario::FirstStart => wrote("keys", "put", "lease"),
            Scenario::NewProvider => self.provider_is_ready(name).await,
            Scenario::PartWithProvider => gone_from("providers"),
            Scenario::Create => self.proxy(name).await.is_some_and(|p| is_ready(&p)),
            Scenario::Edit => self.is_edited(name).await,
            Scenario::Delete | Scenario::GiveUp => gone_from("proxies"),
            Scenario::Forget | Scenario::Grant | Scenario::Renew => act.said_yes(),
            Scenario::Release => wrote("leases", "remove", ""),
            Scenario::Stopped => false,
        }
    }

    /// It went through: what there is, is used again.
    pub async fn passed(&mut self, scenario: Scenario, name: &str, act: Act) {
        act.answer().await;
        match scenario {
            Scenario::FirstStart => {
                self.restart().await;
            }
            Scenario::Create => self.spare.push(name.to_owned()),
            Scenario::GiveUp => self.delete_machine("given up", name).await,
            _ => {}
        }
    }

    /// How it has to end after a kill and a start. `answer`: what was answered before the kill.
    pub async fn ends(&mut self, scenario: Scenario, what: &str, name: &str, answer: Option<Value>) {
        match scenario {
            Scenario::FirstStart => {
                let before = std::mem::take(&mut self.killed_with);
                self.lab.take_operator().kill();
                let after = self.rows();
                for (table, key) in ONCE {
                    let now = after[table].get(key);
                    assert!(now.is_some(), "{what}: {table} {key} is missing");
                    let was = before.get(table).and_then(|rows| rows.get(key));
                    assert!(was.is_none() || was == now, "{what}: {table} {key} is another");
                }
                self.killed_with = before;
                self.lab.start_operator().await;
            }
            Scenario::NewProvider => {
                if answer.is_none() {
                    self.apply(&self.provider(name))
                        .answer()
                        .await
                        .unwrap_or_else(|| panic!("{what}: not applied again"));
                }
                self.wait_provider(name).await;
            }
            // That it goes is waited for in the end: what an earlier run may have under way is waited for.
            Scenario::PartWithProvider => {
                if answer.is_none() {
                    let again = ["delete", "pxp", name, "--wait=false", "--ignore-not-found"];
                    self.command(&again).answer().await.unwrap_or_else(|| panic!("{what}: not deleted again"));
                }
                assert!(!self.is_in_a_manifest(name), "{what}");
            }
            Scenario::Create | Scenario::Edit => {
                let more = if scenario == Scenario::Edit { ", port: 3129" } else { "" };
                if answer.is_some() {
                    let kept = self.proxy(name).await.unwrap_or_else(|| panic!("{what}: it is lost"));
                    assert!(scenario == Scenario::Create || kept.spec.port == 3129, "{what}: the edit is lost");
                } else {
                    self.apply(&of(name, more)).answer().await.unwrap_or_else(|| panic!("{what}: not applied again"));
                }
                if scenario == Scenario::Edit {
                    // The old one is waited for in the end: it drains.
                    self.lab.wait_proxy(name, |p| is_ready(p) && p.status.as_ref().unwrap().rebuilds == 1).await;
                    return;
                }
                self.wait_one_machine(what, name).await;
                let status = self.proxy(name).await.and_then(|p| p.status).unwrap();
                assert_eq!(status.rebuilds, 0, "{what}");
                self.spare.push(name.to_owned());
            }
            Scenario::Stopped => {
                self.wait_one_machine(what, name).await;
                self.spare.push(name.to_owned());
            }
            Scenario::Delete => {
                if answer.is_none() {
                    let again = ["delete", "px", name, "--wait=false", "--ignore-not-found"];
                    self.command(&again).answer().await.unwrap_or_else(|| panic!("{what}: not deleted again"));
                }
                self.deleted.push(name.to_owned());
                assert!(!self.is_in_a_manifest(name), "{what}");
            }
            Scenario::GiveUp => {
                if answer.is_none() {
                    let again = ["delete", "px", name, "--wait=false", "--ignore-not-found"];
                    self.command(&again).answer().await.unwrap_or_else(|| panic!("{what}: not deleted again"));
                }
                self.lab.wait(what, async |lab| lab.proxy(name).await.is_none().then_some(())).await;
                assert!(self.given_up(name).await.is_some(), "{what}: it is not remembered, or twice");
                self.delete_machine(what, name).await;
            }
            Scenario::Forget => {
                if answer.is_none() {
                    self.command(&["abandoned", "forget", name]).answer().await;
                }
                let list: Vec<Abandoned> = serde_json::from_value(self.abandoned().await.into()).unwrap();
                assert!(list.iter().all(|one| one.key() != name), "{what}");
            }
            Scenario::Grant => {
                let (status, problem) = self.lent(name, 60).await;
                if let Some(lease) = answer {
                    assert_eq!((status, problem["code"].as_str()), (503, Some("all_leased")), "{what}");
                    let path = format!("/v1/leases/{}/renew", lease["id"].as_str().unwrap());
                    assert_eq!(self.ask(Method::POST, &path, json!({})).await.unwrap().0, 200, "{what}");
                } else if status == 201 {
                    assert_eq!(self.lent(name, 60).await.0, 503, "{what}: lent twice");
                }
            }
            Scenario::Renew => {
                let path = format!("/v1/leases/{name}/renew");
                let (status, lease) = self.ask(Method::POST, &path, json!({"ttlSeconds": 60})).await.unwrap();
                assert_eq!(status, 200, "{what}: {lease}");
                let proxy = lease["proxy"]["name"].as_str().unwrap().to_owned();
                assert_eq!(self.lent(&proxy, 60).await.0, 503, "{what}: lent twice");
            }
            Scenario::Release => {
                assert!(answer.is_some(), "{what}: it is over before it is cleared away");
            }
        }
    }
}
