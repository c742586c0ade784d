//! Does what [`decide`](super::decide) says: stores, calls, and tells health, allocator and status what follows.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use kube::ResourceExt;
use serde_json::Value;

use super::decide::{Answer, Call, Step, absorb, is_foreign, next};
use super::summary::{lack, summarize};
use super::{Facts, Memory, Seen};
use crate::control::provider::Providers;
use crate::health::engine::Engine;
use crate::health::{Target, Verdict};
use crate::lease::allocator::Allocator;
use crate::lease::{Leasable, Serving};
use crate::model::clock::Clock;
use crate::model::condition::{Status, find};
use crate::model::error::{CallError, ErrorKind};
use crate::model::instance::{Instance, Request, State, check_schema};
use crate::model::login::{Login, LoginKey};
use crate::model::naming::{ProxyKey, identity};
use crate::model::proxy::{AuthMode, InstanceStatus, Proxy, ProxyStatus};
use crate::model::spec_hash::spec_hash;
use crate::plugin::handle::Handle;
use crate::store::{Event, Regarding, Severity, Store, StoreError};

/// Steps of one pass; more would be a fault of `decide`.
const STEPS: usize = 24;
/// A status that could not be written is tried again.
const STORE_RETRY: Duration = Duration::from_secs(1);
const CONFLICT_RETRY: Duration = Duration::from_millis(50);

/// Reconciles Proxies.
pub struct Driver {
    /// Where objects live.
    pub store: Arc<dyn Store>,
    /// Their Providers.
    pub providers: Arc<Providers>,
    /// Their probes.
    pub health: Engine,
    /// Their leases.
    pub allocator: Arc<Allocator>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// URL of the judge that proxies are probed against.
    pub judge: String,
    memories: Mutex<HashMap<String, Memory>>,
}

impl Driver {
    /// A driver that remembers nothing yet.
    pub fn new(
        store: Arc<dyn Store>,
        providers: Arc<Providers>,
        health: Engine,
        allocator: Arc<Allocator>,
        clock: Arc<dyn Clock>,
        judge: String,
    ) -> Self {
        Self { store, providers, health, allocator, clock, judge, memories: Mutex::default() }
    }

    /// One pass over one Proxy; answers when to look again.
    ///
    /// # Errors
    /// When the store fails; the pass is to be repeated.
    pub async fn reconcile(&self, key: &ProxyKey) -> Result<Option<Duration>, StoreError> {
        let mut last_uid = None;
        for _ in 0..STEPS {
            let Some(proxy) = self.store.proxy(key) else {
                self.health.forget(key);
                return Ok(None);
            };
            let uid = proxy.uid().unwrap_or_default();
            if last_uid.replace(uid.clone()).is_some_and(|last| last != uid) {
                return Ok(Some(Duration::ZERO));
            }
            let keys = self.store.login_keys().await?;
            let (facts, handle) = self.facts(&proxy, &keys);
            let mut memory = self.recall(&uid, facts.now);
            let step = next(&proxy, &mut memory, &facts);
            self.remember(&uid, memory.clone());
            match step {
                Step::Store(status) => self.keep(&proxy, *status, &memory, &facts).await?,
                Step::Finalizer(present) => {
                    if self.finalize(&proxy, present, &memory).await? {
                        return Ok(None);
                    }
                }
                Step::Call(call) => {
                    let proxy = if matches!(call, Call::Create | Call::Delete) {
                        // Said before a call that may take long, so that people see what is waited for, and so that
                        // what is being deleted is lent no more.
                        self.settle(&proxy, &memory, &facts, &keys, handle.as_deref()).await?
                    } else {
                        proxy
                    };
                    let Some(handle) = handle else { return Ok(Some(STORE_RETRY)) };
                    let answer = self.call(&proxy, &handle, &call, &keys).await;
                    if let Err(error) = &answer {
                        tracing::info!(proxy = %key, function = call.function(), kind = error.kind.label(), "{}", error.message);
                    }
                    let facts = self.facts(&proxy, &keys).0;
                    let status = absorb(&proxy, &mut memory, &facts, &call, answer, &mut rand::rng());
                    self.remember(&uid, memory.clone());
                    if let Some(status) = status {
                        self.keep(&proxy, status, &memory, &facts).await?;
                    }
                }
                Step::Wait(wait) => {
                    self.settle(&proxy, &memory, &facts, &keys, handle.as_deref()).await?;
                    return Ok(Some(wait));
                }
            }
        }
        tracing::warn!(proxy = %key, "a pass did not settle; it goes on in a moment");
        Ok(Some(STORE_RETRY))
    }

    /// How long to wait after a failed pass.
    pub fn retry(error: &StoreError) -> Duration {
        if matches!(error, StoreError::Conflict(_)) { CONFLICT_RETRY } else { STORE_RETRY }
    }

    /// What a listing shows of a Provider's Proxies. Only a Ready one that is missing there is asked for.
    pub fn observe(&self, provider: &str, instances: &[Instance]) {
        let now = self.clock.monotonic();
        let mut memories = self.lock();
        for proxy in self.store.proxies().iter().filter(|p| p.spec.provider == provider) {
            let uid = proxy.uid().unwrap_or_default();
            let Some(seen) =
                memories.get_mut(&uid).and_then(|m| m.seen.as_mut()).filter(|s| s.state == Some(State::Running))
            else {
                continue;
            };
            let ours = |i: &&Instance| {
                i.owner.as_ref().is_some_and(|o| o.proxy_uid == uid && o.installation == self.store.installation())
                    && i.incarnation == proxy.status.as_ref().and_then(|s| s.instance.as_ref()).map(|i| i.incarnation)
            };
            if instances.iter().find(ours).is_some_and(|i| i.state == State::Running) {
                seen.at = now;
            } else if !instances.is_empty() || seen.at + super::decide::OBSERVE / 2 < now {
                // Missing there, or shown otherwise: asked for, and only that answer counts.
                seen.at = Duration::ZERO;
            }
        }
    }

    fn facts(&self, proxy: &Proxy, keys: &[LoginKey]) -> (Facts, Option<Arc<Handle>>) {
        let key = ProxyKey::of(proxy);
        let taken = || {
            let others = self.store.proxies();
            let others = others.iter().filter(|p| p.spec.provider == proxy.spec.provider && p.uid() != proxy.uid());
            others.filter_map(|p| p.status.as_ref()?.instance.as_ref()?.placement.clone()).collect()
        };
        let (provider, handle) = self.providers.facts(&proxy.spec.provider, taken);
        let instance = proxy.status.as_ref().and_then(|s| s.instance.as_ref());
        let uid: Option<uuid::Uuid> = proxy.uid().and_then(|uid| uid.parse().ok());
        let held = uid.zip(instance).is_some_and(|(uid, instance)| self.allocator.is_held(uid, instance.incarnation));
        let facts = Facts {
            provider,
            health: self.health.verdict(&key),
            held,
            now: self.clock.monotonic(),
            wall: self.clock.wall(),
            login_key: keys.first().map(|k| k.id.clone()).unwrap_or_default(),
        };
        (facts, handle)
    }

    /// Stores a status that `decide` changed, with conditions that fit it.
    async fn keep(&self, proxy: &Proxy, status: ProxyStatus, memory: &Memory, facts: &Facts) -> Result<(), StoreError> {
        let changed = Proxy { status: Some(status), ..proxy.clone() };
        self.store.set_proxy_status(proxy, summarize(&changed, memory, facts)).await.map(drop)
    }

    /// Sets or removes the finalizer; answers whether the object is gone.
    async fn finalize(&self, proxy: &Proxy, present: bool, memory: &Memory) -> Result<bool, StoreError> {
        let key = ProxyKey::of(proxy);
        if !present && is_foreign(memory, proxy) {
            let message = memory.trouble.as_ref().map(|t| t.error.message.clone()).unwrap_or_default();
            self.tell(
                &key,
                Severity::Warning,
                "ReleasedForeign",
                format!("released without deleting anything: {message}"),
            );
        }
        if self.store.set_proxy_finalizer(proxy, present).await?.is_some() {
            return Ok(false);
        }
        let uid = proxy.uid().unwrap_or_default();
        self.health.forget(&key);
        self.lock().remove(&uid);
        if let Ok(uid) = uid.parse() {
            self.allocator.remove(uid).await;
        }
        self.tell(&key, Severity::Normal, "Deleted", "its instance is gone".into());
        Ok(true)
    }

    /// Brings probes, leases and status in line with what is known; answers the object as it then is.
    async fn settle(
        &self,
        proxy: &Arc<Proxy>,
        memory: &Memory,
        facts: &Facts,
        keys: &[LoginKey],
        handle: Option<&Handle>,
    ) -> Result<Arc<Proxy>, StoreError> {
        let key = ProxyKey::of(proxy);
        let login = self.login(proxy, keys, handle).await;
        let running = matches!(&memory.seen, Some(Seen { state: Some(State::Running), .. }));
        let status = proxy.status.clone().unwrap_or_default();
        match (status.endpoint.clone().filter(|_| running), &status.instance, &login) {
            (Some(endpoint), Some(instance), Ok(login)) => self.health.watch(Target {
                key: key.clone(),
                uid: proxy.uid().unwrap_or_default(),
                incarnation: instance.incarnation,
                endpoint,
                login: login.clone(),
                check: proxy.spec.health_check.clone(),
                judge: self.judge.clone(),
            }),
            // Whatever is at its last address may be somebody else's by now.
            _ if memory.seen.is_some() => self.health.forget(&key),
            _ => {}
        }
        self.offer(proxy, memory, facts, login.ok().flatten());
        let wanted = summarize(proxy, memory, facts);
        if proxy.status.as_ref() == Some(&wanted) {
            return Ok(proxy.clone());
        }
        let before = find(&status.conditions, "Ready").map(|c| (c.status, c.reason.clone()));
        let stored = self.store.set_proxy_status(proxy, wanted.clone()).await?;
        if let Some(ready) = find(&wanted.conditions, "Ready").filter(|c| before != Some((c.status, c.reason.clone())))
        {
            let severity = if ready.status == Status::True || is_progress(&ready.reason) {
                Severity::Normal
            } else {
                Severity::Warning
            };
            self.tell(&key, severity, &ready.reason, ready.message.clone());
        }
        Ok(stored)
    }

    /// Tells the allocator what there is to lend.
    fn offer(&self, proxy: &Proxy, memory: &Memory, facts: &Facts, login: Option<Login>) {
        let (Some(uid), Some(status)) = (proxy.uid().and_then(|uid| uid.parse().ok()), &proxy.status) else { return };
        let Some(instance) = &status.instance else { return };
        let running = matches!(&memory.seen, Some(Seen { state: Some(State::Running), .. }));
        let healthy = matches!(facts.health, Verdict::Healthy { .. });
        let draining = proxy.is_deleting() || memory.rebuild.is_some();
        let endpoint = status.endpoint.clone().filter(|_| running && healthy);
        self.allocator.set(Leasable {
            key: ProxyKey::of(proxy),
            uid,
            incarnation: instance.incarnation,
            provider: proxy.spec.provider.clone(),
            location: proxy.spec.location.clone(),
            labels: proxy.labels_map(),
            protocol: proxy.spec.protocol,
            serving: endpoint.map(|endpoint| Serving { endpoint, login, exit_ip: status.exit_ip.clone() }),
            lack: lack(memory, facts),
            closed: proxy.spec.unschedulable,
            draining,
        });
    }

    /// The login that the proxy has: its own Secret's, its backend's, or the derived one.
    async fn login(
        &self,
        proxy: &Proxy,
        keys: &[LoginKey],
        handle: Option<&Handle>,
    ) -> Result<Option<Login>, CallError> {
        let missing =
            |message: String, reason: &str| CallError::new(ErrorKind::ConfigMissing, message).with_reason(reason);
        let instance = proxy.status.as_ref().and_then(|s| s.instance.as_ref());
        if let (Some(name), Some(handle)) = (instance.and_then(|i| i.login_secret.as_ref()), handle) {
            return handle.granted_login(name).await.map(Some);
        }
        match (proxy.spec.auth.mode, &proxy.spec.auth.secret_ref) {
            (AuthMode::None, _) => Ok(None),
            (AuthMode::Secret, Some(secret)) => {
                let namespace = proxy.namespace().unwrap_or_default();
                self.store
                    .proxy_login(&namespace, secret)
                    .await
                    .map(Some)
                    .map_err(|e| missing(e.to_string(), e.reason()))
            }
            (AuthMode::Secret, None) => Err(missing("spec.auth.secretRef is missing".into(), "SecretMissing")),
            (AuthMode::Generated, _) => {
                let InstanceStatus { incarnation, login_key, .. } = instance.cloned().unwrap_or_default();
                let key = match &login_key {
                    Some(id) => keys.iter().find(|k| k.id == *id),
                    None => keys.first(),
                };
                let key = key.ok_or_else(|| {
                    missing(
                        format!(
                            "the key {} that its login was derived from is gone: restore it, or rebuild the proxy",
                            login_key.unwrap_or_default()
                        ),
                        "LoginKeyMissing",
                    )
                })?;
                Ok(Some(key.derive(&proxy.uid().unwrap_or_default(), incarnation)))
            }
        }
    }

    async fn call(&self, proxy: &Proxy, handle: &Handle, call: &Call, keys: &[LoginKey]) -> Result<Answer, CallError> {
        let instance = proxy.status.as_ref().and_then(|s| s.instance.clone()).unwrap_or_default();
        let identity = identity(self.store.installation(), proxy, &instance);
        let request = |login: Option<Login>| Request {
            identity: identity.clone(),
            image: proxy.spec.image.clone(),
            size: proxy.spec.size.clone(),
            location: proxy.spec.location.clone(),
            parameters: Value::Object(proxy.spec.parameters.clone()),
            port: proxy.spec.port,
            protocol: proxy.spec.protocol.as_str(),
            login,
            bootstrap: None,
            must_reach: must_reach(&self.judge),
            spec_hash: spec_hash(&proxy.spec).hash,
        };
        match call {
            Call::Validate => {
                let parameters = Value::Object(proxy.spec.parameters.clone());
                if let Err(errors) =
                    check_schema(&handle.plugin().description.parameters_schema, &parameters, "/parameters")
                {
                    return Ok(Answer::Validated(errors));
                }
                let verdict = handle.validate(Some(&request(None))).await?;
                Ok(Answer::Validated(verdict.err().unwrap_or_default()))
            }
            Call::Place(avoid) => handle.place(&request(None), avoid).await.map(Answer::Placed),
            Call::Create => {
                let login = self.login(proxy, keys, Some(handle)).await?;
                handle.create(&request(login)).await.map(Answer::Created)
            }
            Call::Get => handle.get(&identity).await.map(Answer::Got),
            Call::Delete => handle.delete(&identity).await.map(Answer::Deleted),
            Call::Search => {
                let uid = proxy.uid().unwrap_or_default();
                let all = handle.list().await?;
                Ok(Answer::Found(
                    all.into_iter().filter(|i| i.owner.as_ref().is_some_and(|o| o.proxy_uid == uid)).collect(),
                ))
            }
        }
    }

    fn tell(&self, key: &ProxyKey, severity: Severity, reason: &str, message: String) {
        self.store.event(Event {
            regarding: Regarding::Proxy(key.clone()),
            severity,
            reason: reason.to_owned(),
            message,
        });
    }

    fn recall(&self, uid: &str, now: Duration) -> Memory {
        self.lock().get(uid).cloned().unwrap_or_else(|| Memory { born: now, ..Memory::default() })
    }

    fn remember(&self, uid: &str, memory: Memory) {
        self.lock().insert(uid.to_owned(), memory);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Memory>> {
        self.memories.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// host:port of the judge, which a proxy must be allowed to reach although it may be private.
fn must_reach(judge: &str) -> Vec<String> {
    let url = url::Url::parse(judge).ok();
    let authority = url.and_then(|u| Some(format!("{}:{}", u.host_str()?, u.port_or_known_default()?)));
    authority.into_iter().collect()
}

/// Reasons of a Proxy that is on its way.
fn is_progress(reason: &str) -> bool {
    matches!(
        reason,
        "Creating"
            | "ProbePending"
            | "Deleting"
            | "Draining"
            | "NotAsked"
            | "NotValidated"
            | "SpecChanged"
            | "Stopped"
            | "Paused"
    )
}
