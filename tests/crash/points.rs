//! Where the operator is to be killed: what passes to API server and cloud is told apart, and from the chosen point on
//! nothing passes any more.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use proxy_operator_tests::backend::CloudApi;
use proxy_operator_tests::interceptor::{Asked, Fate, Onlooker};
use reqwest::StatusCode;
use serde_json::Value;
use strum::VariantArray;
use tokio::sync::oneshot;

use crate::effect::Effect;

/// When, as seen from an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantArray)]
pub enum Moment {
    /// The request was sent, and nothing came of it.
    Before,
    /// It was carried out, and its answer did not arrive.
    After,
}

/// What both ways know together.
#[derive(Default)]
pub struct Points(Mutex<State>);

#[derive(Default)]
struct State {
    /// The operator counts as dead: nothing of it passes.
    frozen: bool,
    armed: Option<Armed>,
    /// By UID: each Proxy and Lease as last stored.
    stored: HashMap<String, Value>,
    /// By machine: the namespace of its Proxy.
    owners: HashMap<String, String>,
    /// Namespaces whose Proxies may have the next instance beside the one that serves.
    surging: HashSet<String>,
    faults: Vec<String>,
}

struct Armed {
    effect: Effect,
    moment: Moment,
    scope: String,
    reached: oneshot::Sender<()>,
}

/// The way to the API server.
pub struct ToApiServer(pub Arc<Points>);

/// The way to the cloud.
pub struct ToCloud(pub Arc<Points>, pub CloudApi);

impl Points {
    /// Waits for this effect on an object of this name or namespace; the receiver is told when it is reached, and from then
    /// on nothing passes.
    pub fn arm(&self, effect: Effect, moment: Moment, scope: &str) -> oneshot::Receiver<()> {
        let (reached, told) = oneshot::channel();
        self.lock().armed = Some(Armed { effect, moment, scope: scope.to_owned(), reached });
        told
    }

    /// All passes again.
    pub fn thaw(&self) {
        self.lock().frozen = false;
    }

    /// Proxies of this namespace may have two machines of different incarnations.
    pub fn may_surge(&self, namespace: &str) {
        self.lock().surging.insert(namespace.to_owned());
    }

    /// What must not be was not.
    pub fn check(&self) {
        let faults = &self.lock().faults;
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl State {
    /// Whether the operator is dead from this request on.
    fn passes(&mut self, effect: Option<Effect>, moment: Moment, names: &[&str]) -> Fate {
        let is_it = |armed: &mut Armed| {
            Some(armed.effect) == effect && armed.moment == moment && names.contains(&armed.scope.as_str())
        };
        if !self.frozen
            && let Some(armed) = self.armed.take_if(is_it)
        {
            self.frozen = true;
            let _ = armed.reached.send(());
        }
        if self.frozen { Fate::IsHeld } else { Fate::Passes }
    }

    /// What this request does; one without a name is a fault.
    fn name(&mut self, effect: Option<Effect>, asked: &Asked) -> Option<Effect> {
        if effect.is_none() && asked.changes() {
            self.faults.push(format!("no effect is called {} {}", asked.method, asked.path));
        }
        effect
    }

    fn on_api_server(&self, asked: &Asked) -> Option<Effect> {
        let uid = asked.body["metadata"]["uid"].as_str().unwrap_or_default();
        Effect::on_api_server(asked, self.stored.get(uid).unwrap_or(&Value::Null))
    }
}

#[async_trait]
impl Onlooker for ToApiServer {
    async fn asked(&self, asked: &Asked) -> Fate {
        let mut state = self.0.lock();
        let effect = state.on_api_server(asked);
        let effect = state.name(effect, asked);
        state.passes(effect, Moment::Before, &asked.path.split('/').collect::<Vec<_>>())
    }

    async fn answered(&self, asked: &Asked, status: StatusCode, body: &Value) -> Fate {
        let mut state = self.0.lock();
        let effect = state.on_api_server(asked).filter(|_| status.is_success());
        if status.is_success()
            && (body["kind"] == "Proxy" || body["kind"] == "Lease")
            && let Some(uid) = body["metadata"]["uid"].as_str()
        {
            state.stored.insert(uid.to_owned(), body.clone());
        }
        state.passes(effect, Moment::After, &asked.path.split('/').collect::<Vec<_>>())
    }
}

impl ToCloud {
    /// The namespace whose Proxy a request is about.
    fn owner(state: &mut State, asked: &Asked) -> String {
        let machine = asked.path.split('/').nth(5).unwrap_or_default();
        if let Some(namespace) = asked.body["owner"]["namespace"].as_str() {
            state.owners.insert(machine.to_owned(), namespace.to_owned());
        }
        state.owners.get(machine).cloned().unwrap_or_default()
    }

    /// A machine was made: it must be the only one of its Proxy.
    async fn count(&self, asked: &Asked, namespace: &str) {
        let owner = &asked.body["owner"]["proxyUid"];
        let machines = self.1.machines().await;
        let incarnations: Vec<_> =
            machines.iter().filter(|m| m["owner"]["proxyUid"] == *owner).map(|m| m["incarnation"].as_u64()).collect();
        let mut state = self.0.lock();
        let distinct = incarnations.iter().collect::<HashSet<_>>().len() == incarnations.len();
        let most = if state.surging.contains(namespace) { 2 } else { 1 };
        if !distinct || incarnations.len() > most {
            state.faults.push(format!("{namespace} has machines of incarnations {incarnations:?} at once"));
        }
    }
}

#[async_trait]
impl Onlooker for ToCloud {
    async fn asked(&self, asked: &Asked) -> Fate {
        let mut state = self.0.lock();
        let owner = Self::owner(&mut state, asked);
        let effect = state.name(Effect::on_cloud(asked), asked);
        state.passes(effect, Moment::Before, &[&owner])
    }

    async fn answered(&self, asked: &Asked, status: StatusCode, _body: &Value) -> Fate {
        let owner = Self::owner(&mut self.0.lock(), asked);
        if status == StatusCode::CREATED {
            self.count(asked, &owner).await;
        }
        let effect = Effect::on_cloud(asked).filter(|_| status.is_success());
        self.0.lock().passes(effect, Moment::After, &[&owner])
    }
}
