//! Does what [`decide`](super::decide) says: stores, calls, and tells health, allocator and status what follows.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use kube::ResourceExt;

use super::absorb::absorb;
use super::decide::{Call, Step, is_foreign, next};
use super::publish::Published;
use super::summary::{lack, summarize};
use super::{Facts, Listed, Memory, OwnLogin, ProviderFacts, Seen};
use crate::control::provider::Providers;
use crate::health::engine::Engine;
use crate::health::{Target, Verdict};
use crate::lease::allocator::Allocator;
use crate::lease::{Lack, Leasable, Serving};
use crate::model::clock::Clock;
use crate::model::condition::{Status, find};
use crate::model::error::{ByHost, CallError};
use crate::model::instance::{Instance, State};
use crate::model::login::{Login, LoginKey};
use crate::model::naming::ProxyKey;
use crate::model::proxy::{Auth, NameRef, Proxy, ProxyStatus};
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
    known: Mutex<HashMap<ProxyKey, Known>>,
    /// Held while a place is decided on, so that no two Proxies take the same one.
    placing: tokio::sync::Mutex<()>,
}

/// What is kept of one Proxy between passes.
struct Known {
    uid: String,
    memory: Memory,
    listed: Option<Listed>,
    published: Option<Published>,
    /// What `auth.secretRef` last gave.
    own_login: Option<(NameRef, Login)>,
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
        let this = Self {
            store,
            providers,
            health,
            allocator,
            clock,
            judge,
            known: Mutex::default(),
            placing: tokio::sync::Mutex::default(),
        };
        // Whoever asks before the first pass is told to come again, not that nothing ever fits.
        for proxy in this.store.proxies() {
            this.introduce(&proxy);
        }
        this
    }

    /// One pass over one Proxy; answers when to look again.
    ///
    /// # Errors
    /// When the store fails; the pass is to be repeated.
    pub async fn reconcile(&self, key: &ProxyKey) -> Result<Option<Duration>, StoreError> {
        let mut last_uid = None;
        let mut own: Option<(Auth, OwnLogin)> = None;
        for _ in 0..STEPS {
            let found = self.store.proxy(key);
            let uid = found.as_ref().and_then(|proxy| proxy.uid());
            self.forget_others(key, uid.as_deref());
            let (Some(proxy), Some(uid)) = (found, uid) else { return Ok(None) };
            if last_uid.replace(uid.clone()).is_some_and(|last| last != uid) {
                return Ok(Some(Duration::ZERO));
            }
            let keys = self.store.login_keys().await?;
            // Read once a pass: in Kubernetes it is a request.
            let own_login = match own.take() {
                Some((auth, login)) if auth == proxy.spec.auth => login,
                _ => self.own_login(&proxy, &keys).await,
            };
            own = Some((proxy.spec.auth.clone(), own_login.clone()));
            let (facts, handle) = self.facts(&proxy, &keys, own_login);
            let before = self.recall(&proxy, facts.now);
            let mut memory = before.clone();
            memory.held.take_if(|(function, _)| handle.as_ref().is_none_or(|handle| handle.held(function).is_none()));
            let step = next(&proxy, &mut memory, &facts);
            self.remember(key, &uid, memory.clone());
            match step {
                Step::Store(status) => {
                    let status = Self::fitting(&proxy, *status, &memory, &facts);
                    if let Err(error) = self.store_status(&proxy, status).await {
                        // Not stored is not done.
                        self.remember(key, &uid, before);
                        return Err(error);
                    }
                }
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
                    let answer = self.call(&proxy, &handle, &call, &keys, &facts.own_login).await;
                    if let Err(CallError { by_host: Some(ByHost::HeldBack(wait)), .. }) = &answer {
                        // Nothing was asked, so nothing is taken in; who waits is woken when calls are let go.
                        memory.held = handle.held(call.function()).map(|held| (call.function(), held));
                        self.remember(key, &uid, memory.clone());
                        self.settle(&proxy, &memory, &facts, &keys, Some(handle.as_ref())).await?;
                        return Ok(Some(wait.mul_f64(rand::random_range(1.0..1.2))));
                    }
                    if let Err(error) = &answer {
                        tracing::info!(proxy = %key, function = call.function(), kind = error.kind.label(), "{}", error.message);
                    }
                    let _placing = match call {
                        Call::Place(_) => Some(self.placing.lock().await),
                        _ => None,
                    };
                    let facts = self.facts_after(&proxy, &keys, facts);
                    let planned = memory.rebuild.clone();
                    let status = absorb(&proxy, &mut memory, &facts, &call, answer, &mut rand::rng());
                    self.remember(key, &uid, memory.clone());
                    if let Some(status) = status {
                        let status = Self::fitting(&proxy, status, &memory, &facts);
                        if let Err(error) = self.store_status(&proxy, status).await {
                            // An answer that is not stored is asked for again.
                            self.remember(key, &uid, Memory { seen: None, rebuild: planned, ..memory });
                            return Err(error);
                        }
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

    /// What a listing shows of a Provider's Proxies; answers those that are missing there, or shown otherwise: only they
    /// are asked for, and only that answer counts.
    pub fn observe(&self, provider: &str, instances: &[Instance]) -> Vec<ProxyKey> {
        let at = self.clock.monotonic();
        let running: HashSet<(&str, Option<u32>)> = instances
            .iter()
            .filter(|i| i.state == State::Running)
            .filter_map(|i| i.owner.as_ref().map(|owner| (owner, i.incarnation)))
            .filter(|(owner, _)| owner.installation == self.store.installation())
            .map(|(owner, incarnation)| (owner.proxy_uid.as_str(), incarnation))
            .collect();
        let mut missing = Vec::new();
        let proxies = self.store.proxies();
        let mut known = self.lock();
        for proxy in proxies.iter().filter(|p| p.spec.provider == provider) {
            let key = ProxyKey::of(proxy);
            let Some(known) = known.get_mut(&key).filter(|k| proxy.uid().as_ref() == Some(&k.uid)) else { continue };
            let incarnation = proxy.status.as_ref().and_then(|s| s.instance.as_ref()).map(|i| i.incarnation);
            let listed = Listed { at, running: running.contains(&(known.uid.as_str(), incarnation)) };
            known.listed = Some(listed);
            if !listed.running && is_running(&known.memory) {
                missing.push(key);
            }
        }
        missing
    }

    fn facts(&self, proxy: &Proxy, keys: &[LoginKey], own_login: OwnLogin) -> (Facts, Option<Arc<Handle>>) {
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
        let endpoint = proxy.status.as_ref().and_then(|s| s.endpoint.as_ref());
        let health = match (instance, endpoint) {
            (Some(instance), Some(endpoint)) => {
                self.health.verdict(&key, &proxy.uid().unwrap_or_default(), instance.incarnation, endpoint)
            }
            _ => Verdict::Unknown,
        };
        let facts = Facts {
            provider,
            health,
            held,
            listed: self.lock().get(&key).and_then(|known| known.listed),
            now: self.clock.monotonic(),
            wall: self.clock.wall(),
            login_key: keys.first().map(|k| k.id.clone()).unwrap_or_default(),
            own_login,
        };
        (facts, handle)
    }

    /// A status that `decide` changed, with conditions that fit it.
    fn fitting(proxy: &Proxy, status: ProxyStatus, memory: &Memory, facts: &Facts) -> ProxyStatus {
        let changed = Proxy { status: Some(status), ..proxy.clone() };
        summarize(&changed, memory, facts)
    }

    /// The facts after a call. The Provider is the one that was asked, but for the places that are taken by now: an answer
    /// counts although the Provider changed meanwhile, and counts as that one's.
    fn facts_after(&self, proxy: &Proxy, keys: &[LoginKey], before: Facts) -> Facts {
        let mut facts = self.facts(proxy, keys, before.own_login.clone()).0;
        let mut asked = before.provider;
        if let (ProviderFacts::Ready(asked), ProviderFacts::Ready(now)) = (&mut asked, &mut facts.provider) {
            asked.taken = std::mem::take(&mut now.taken);
        }
        Facts { provider: asked, ..facts }
    }

    /// Stores a status. Only we write it, so that an edit of the rest meanwhile is no reason to lose an answer.
    async fn store_status(&self, proxy: &Arc<Proxy>, status: ProxyStatus) -> Result<(), StoreError> {
        let mut decided_on = proxy.clone();
        loop {
            match self.store.set_proxy_status(&decided_on, status.clone()).await {
                Err(conflict @ StoreError::Conflict(_)) => {
                    let same = |p: &Arc<Proxy>| {
                        let newer = p.resource_version() != decided_on.resource_version();
                        newer && p.uid() == proxy.uid() && p.status == proxy.status
                    };
                    decided_on = self.store.proxy(&ProxyKey::of(proxy)).filter(same).ok_or(conflict)?;
                }
                outcome => {
                    outcome?;
                    self.tell_ready(proxy, &status);
                    return Ok(());
                }
            }
        }
    }

    /// Tells of a `Ready` that is new in a status which was stored.
    fn tell_ready(&self, before: &Proxy, stored: &ProxyStatus) {
        let ready = |status: &ProxyStatus| find(&status.conditions, "Ready").cloned();
        let before_it = before.status.as_ref().and_then(ready).map(|c| (c.status, c.reason));
        let Some(now) = ready(stored).filter(|c| before_it != Some((c.status, c.reason.clone()))) else { return };
        let good = now.status == Status::True || is_progress(&now.reason);
        let severity = if good { Severity::Normal } else { Severity::Warning };
        self.tell(&ProxyKey::of(before), severity, &now.reason, now.message);
    }

    /// Sets or removes the finalizer; answers whether the object is gone.
    async fn finalize(&self, proxy: &Proxy, present: bool, memory: &Memory) -> Result<bool, StoreError> {
        let key = ProxyKey::of(proxy);
        if !present && is_foreign(memory) {
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
        self.forget_others(&key, None);
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
        let login = self.login(proxy, keys, handle, &facts.own_login).await;
        let running = is_running(memory);
        let status = proxy.status.clone().unwrap_or_default();
        match (status.endpoint.clone().filter(|_| running), &status.instance, &login) {
            // What is being replaced may have an earlier login than its Secret gives by now.
            _ if running && memory.rebuild.is_some() => {}
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
        if let (true, None, Ok(Some(login))) = (running, &memory.rebuild, &login) {
            self.publish(proxy, login).await;
        }
        self.offer(proxy, memory, facts, login);
        let wanted = summarize(proxy, memory, facts);
        if proxy.status.as_ref() == Some(&wanted) {
            return Ok(proxy.clone());
        }
        let stored = self.store.set_proxy_status(proxy, wanted.clone()).await?;
        self.tell_ready(proxy, &wanted);
        Ok(stored)
    }

    /// Tells the allocator what there is to lend.
    fn offer(&self, proxy: &Proxy, memory: &Memory, facts: &Facts, login: Result<Option<Login>, CallError>) {
        let Some(leasable) = leasable(proxy) else { return };
        let status = proxy.status.as_ref();
        let healthy = is_running(memory) && matches!(facts.health, Verdict::Healthy { .. });
        let endpoint = status.and_then(|s| s.endpoint.clone()).filter(|_| healthy);
        let exit_ip = status.and_then(|s| s.exit_ip.clone());
        self.allocator.set(Leasable {
            // Without its login it would be of no use.
            serving: endpoint.zip(login.ok()).map(|(endpoint, login)| Serving { endpoint, login, exit_ip }),
            lack: lack(memory, facts),
            draining: proxy.is_deleting() || memory.rebuild.is_some(),
            ..leasable
        });
    }

    /// Tells the allocator that there is such a Proxy, before anything is known of it.
    fn introduce(&self, proxy: &Proxy) {
        if let Some(leasable) = leasable(proxy) {
            self.allocator.set(leasable);
        }
    }

    pub(super) fn tell(&self, key: &ProxyKey, severity: Severity, reason: &str, message: String) {
        self.store.event(Event {
            regarding: Regarding::Proxy(key.clone()),
            severity,
            reason: reason.to_owned(),
            message,
        });
    }

    fn recall(&self, proxy: &Proxy, now: Duration) -> Memory {
        let known = self.lock();
        known.get(&ProxyKey::of(proxy)).map_or_else(|| Memory::new(proxy, now), |known| known.memory.clone())
    }

    fn remember(&self, key: &ProxyKey, uid: &str, memory: Memory) {
        let mut known = self.lock();
        match known.get_mut(key) {
            Some(known) => known.memory = memory,
            None => drop(known.insert(
                key.clone(),
                Known { uid: uid.to_owned(), memory, listed: None, published: None, own_login: None },
            )),
        }
    }

    pub(super) fn last_login(&self, key: &ProxyKey, secret: &NameRef) -> Option<Login> {
        let known = self.lock();
        known.get(key)?.own_login.as_ref().filter(|(name, _)| name == secret).map(|(_, login)| login.clone())
    }

    pub(super) fn remember_login(&self, key: &ProxyKey, secret: &NameRef, login: &Login) {
        if let Some(known) = self.lock().get_mut(key) {
            known.own_login = Some((secret.clone(), login.clone()));
        }
    }

    pub(super) fn published(&self, key: &ProxyKey) -> Option<Published> {
        self.lock().get(key).and_then(|known| known.published.clone())
    }

    pub(super) fn remember_published(&self, key: &ProxyKey, published: Published) {
        if let Some(known) = self.lock().get_mut(key) {
            known.published = Some(published);
        }
    }

    /// Forgets what was known under this key of any but the Proxy with this UID.
    fn forget_others(&self, key: &ProxyKey, uid: Option<&str>) {
        let mut known = self.lock();
        if known.get(key).is_none_or(|known| Some(known.uid.as_str()) == uid) {
            return;
        }
        let old = known.remove(key);
        drop(known);
        if let Some(old) = old {
            self.health.forget(key);
            if let Ok(uid) = old.uid.parse() {
                self.allocator.remove(uid);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ProxyKey, Known>> {
        self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn is_running(memory: &Memory) -> bool {
    matches!(&memory.seen, Some(Seen { state: Some(State::Running), .. }))
}

/// A Proxy of which nothing is known yet but its object.
fn leasable(proxy: &Proxy) -> Option<Leasable> {
    Some(Leasable {
        key: ProxyKey::of(proxy),
        uid: proxy.uid()?.parse().ok()?,
        incarnation: proxy.status.as_ref().and_then(|s| s.instance.as_ref()).map_or(0, |i| i.incarnation),
        provider: proxy.spec.provider.clone(),
        location: proxy.spec.location.clone(),
        labels: proxy.labels_map(),
        protocol: proxy.spec.protocol,
        serving: None,
        lack: Lack::Scaling,
        closed: proxy.spec.unschedulable,
        draining: proxy.is_deleting(),
    })
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

#[cfg(test)]
#[path = "driver_tests.rs"]
mod tests;
