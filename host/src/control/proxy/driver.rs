//! Does what [`decide`](super::decide) says: stores, calls, and tells health, allocator and status what follows.

use std::collections::HashMap;
use std::mem::discriminant;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use kube::ResourceExt;

use super::absorb::absorb;
use super::beside;
use super::decide::{Call, Step, is_foreign, next};
use super::held::{HeldCall, placement_of};
use super::publish::Published;
use super::{Facts, Listed, Memory, OwnLogin, ProviderFacts, ReadyProvider, Roster, Seen};
use crate::control::provider::Providers;
use crate::health::Verdict;
use crate::health::engine::Engine;
use crate::lease::allocator::Allocator;
use crate::model::SKIP_CLEANUP;
use crate::model::abandoned::Abandoned;
use crate::model::clock::Clock;
use crate::model::error::{ByHost, CallError, ErrorKind};
use crate::model::instance::{Instance, State};
use crate::model::login::{Login, LoginKey};
use crate::model::naming::ProxyKey;
use crate::model::proxy::{Auth, Endpoint, InstanceStatus, NameRef, Proxy, ProxyStatus};
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
    /// Boxed, for a table has many places that are free.
    known: Mutex<HashMap<ProxyKey, Box<Known>>>,
    /// How the Proxies of each Provider stand together.
    pub roster: Roster,
    /// Held while it is decided what comes next.
    deciding: Mutex<()>,
    /// Held while a place is decided on, so that no two Proxies take the same one.
    placing: tokio::sync::Mutex<()>,
}

/// What is kept of one Proxy between passes.
struct Known {
    uid: String,
    provider: String,
    memory: Memory,
    listed: Option<Listed>,
    published: Option<Published>,
    /// What Secrets last gave, one of each kind.
    logins: Vec<(LoginSecret, Login)>,
}

/// A Secret that holds the login of a proxy.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum LoginSecret {
    /// That of `auth.secretRef`.
    Own(NameRef),
    /// One of its Provider's, by the name that the backend gave.
    Granted(String),
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
            roster: Roster::default(),
            deciding: Mutex::default(),
            placing: tokio::sync::Mutex::default(),
        };
        // Whoever asks before the first pass is told to come again, not that nothing ever fits.
        for proxy in this.store.proxies() {
            this.introduce(&proxy);
            this.enrol(&proxy, &Memory::new(&proxy, this.clock.monotonic()), this.clock.monotonic());
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
            let (facts, handle, before, mut memory, step) = {
                // What is decided shows among the others of its Provider before one of them is decided on.
                let _deciding = self.deciding.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                let (facts, handle) = self.facts(&proxy, &keys, own_login);
                let before = self.recall(&proxy, facts.now);
                let mut memory = before.clone();
                memory.keep_held(&proxy, facts.now, |held| {
                    let placement = held.placement.as_deref();
                    handle.as_ref().is_some_and(|handle| handle.held(held.function, placement).is_some())
                });
                let step = next(&proxy, &mut memory, &facts);
                self.remember(&proxy, memory.clone());
                self.enrol(&proxy, &memory, facts.now);
                (facts, handle, before, memory, step)
            };
            let (which, mut call) = match step {
                Step::Store(status) => {
                    let status = Self::fitting(&proxy, *status, &memory, &facts);
                    if let Err(error) = self.store_status(&proxy, status).await {
                        // Not stored is not done.
                        self.remember(&proxy, before);
                        return Err(error);
                    }
                    continue;
                }
                Step::Finalizer(present) => {
                    if self.finalize(&proxy, present, &memory).await? {
                        return Ok(None);
                    }
                    continue;
                }
                Step::Abandon => {
                    if let Err(error) = self.store.abandon(Abandoned::of(&proxy, facts.wall)).await {
                        let why = error.to_string();
                        // Tried again with each pass, and told when it is news.
                        if memory.not_abandoned.as_ref() != Some(&why) {
                            let message = format!("{SKIP_CLEANUP} has to wait: {why}");
                            self.tell(key, Severity::Warning, "AbandonFailed", message);
                        }
                        self.remember(&proxy, Memory { not_abandoned: Some(why), ..memory });
                        return Err(error);
                    }
                    self.remember(&proxy, Memory { abandoned: true, ..memory });
                    continue;
                }
                Step::Wait(wait) => {
                    self.settle(&proxy, &memory, &facts, &keys, handle.as_deref()).await?;
                    return Ok(Some(wait));
                }
                Step::Call(call) => (None, call),
                Step::Beside(which, call) => (Some(which), call),
            };
            let proxy = if matches!(call, Call::Create | Call::Delete) {
                // Said before a call that may take long, so that people see what is waited for, and so that what is being
                // deleted is lent no more.
                self.settle(&proxy, &memory, &facts, &keys, handle.as_deref()).await?
            } else {
                proxy
            };
            let Some(handle) = handle else { return Ok(Some(STORE_RETRY)) };
            if let (Call::Place(avoid), ProviderFacts::Ready(provider)) = (&mut call, &facts.provider) {
                avoid.extend(self.taken(&proxy, provider));
            }
            if call == Call::Create {
                self.providers.note_create(&proxy.spec.provider, handle.call_timeout());
            }
            let answer = self.call(&proxy, &handle, which, &call, &keys, &facts.own_login).await;
            if call == Call::Create {
                self.providers.note_create(&proxy.spec.provider, Duration::ZERO);
            }
            // Where asking keeps failing, a deletion goes on without an answer, as it does after failures of its own.
            let goes_on = |error: &CallError| {
                error.kind == ErrorKind::Internal && call == Call::Get && which.is_none() && proxy.is_deleting()
            };
            if let Err(error @ CallError { by_host: Some(ByHost::HeldBack(wait)), .. }) = &answer
                && !goes_on(error)
            {
                // Nothing was asked, so nothing is taken in; who waits is woken when calls are let go. The rest goes on.
                let (function, placement) = (call.function(), placement_of(&proxy, which));
                let until = self.clock.monotonic() + wait.mul_f64(rand::random_range(1.0..1.2));
                let (says, placement) = (handle.held(function, placement), placement.map(str::to_owned));
                memory.hold(HeldCall { which, function, placement, until, says });
                self.remember(&proxy, memory);
                continue;
            }
            if let Err(error) = &answer {
                tracing::info!(proxy = %key, function = call.function(), kind = error.kind.label(), "{}", error.message);
            }
            let _placing = match call {
                Call::Place(_) => Some(self.placing.lock().await),
                _ => None,
            };
            let facts = self.facts_after(&proxy, &keys, facts, &call);
            let planned = memory.clone();
            let status = match which {
                None => absorb(&proxy, &mut memory, &facts, &call, answer, &mut rand::rng()),
                Some(which) => beside::absorb(&proxy, &mut memory, &facts, which, &call, answer, &mut rand::rng()),
            };
            self.remember(&proxy, memory.clone());
            // An absence is counted before anything follows from it.
            self.enrol(&proxy, &memory, facts.now);
            if let Some(status) = status {
                let status = Self::fitting(&proxy, status, &memory, &facts);
                if let Err(error) = self.store_status(&proxy, status.clone()).await {
                    // An answer that is not stored is asked for again.
                    self.remember(&proxy, memory.unstored(planned));
                    return Err(error);
                }
                self.enrol(&Proxy { status: Some(status), ..Proxy::clone(&proxy) }, &memory, facts.now);
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
        let shown: HashMap<(&str, Option<u32>), bool> = instances
            .iter()
            .filter_map(|i| i.owner.as_ref().map(|owner| (owner, i)))
            .filter(|(owner, _)| owner.installation == self.store.installation())
            .map(|(owner, i)| ((owner.proxy_uid.as_str(), i.incarnation), i.state == State::Running))
            .collect();
        let mut missing = Vec::new();
        let proxies: Vec<_> = self.store.proxies().into_iter().filter(|p| p.spec.provider == provider).collect();
        let was_there = proxies.iter().filter(|p| !p.is_deleting()).filter_map(|p| {
            let instance = p.status.as_ref()?.instance.as_ref().filter(|i| i.provider_id.is_some())?;
            let uid = p.uid()?;
            let is_missing = !shown.contains_key(&(uid.as_str(), Some(instance.incarnation)));
            Some((uid, is_missing))
        });
        if self.roster.missing(provider, was_there, at) {
            self.providers.wake(provider);
        }
        let mut known = self.lock();
        for proxy in &proxies {
            let key = ProxyKey::of(proxy);
            let Some(known) = known.get_mut(&key).filter(|k| proxy.uid().as_ref() == Some(&k.uid)) else { continue };
            let incarnation = proxy.status.as_ref().and_then(|s| s.instance.as_ref()).map(|i| i.incarnation);
            let running = shown.get(&(known.uid.as_str(), incarnation)).copied().unwrap_or(false);
            let listed = Listed { at, running };
            known.listed = Some(listed);
            if !listed.running && is_running(&known.memory) {
                missing.push(key);
            }
        }
        missing
    }

    /// Whether a Provider's instances vanished at once.
    pub fn mass_absence(&self, provider: &str) -> bool {
        self.roster.mass_absence(provider)
    }

    fn facts(&self, proxy: &Proxy, keys: &[LoginKey], own_login: OwnLogin) -> (Facts, Option<Arc<Handle>>) {
        let key = ProxyKey::of(proxy);
        let uid = proxy.uid().unwrap_or_default();
        let now = self.clock.monotonic();
        let (provider, handle) = self.providers.facts(proxy);
        let status = proxy.status.clone().unwrap_or_default();
        let held =
            |instance: &InstanceStatus| uid.parse().is_ok_and(|uid| self.allocator.is_held(uid, instance.incarnation));
        let verdict = |instance: &Option<InstanceStatus>, endpoint: Option<&Endpoint>| match (instance, endpoint) {
            (Some(instance), Some(endpoint)) => self.health.verdict(&key, &uid, instance.incarnation, endpoint),
            _ => Verdict::Unknown,
        };
        let (listed, coming) = {
            let known = self.lock();
            let known = known.get(&key);
            (known.and_then(|k| k.listed), known.and_then(|k| k.memory.coming.endpoint.clone()))
        };
        let patience = match &provider {
            ProviderFacts::Ready(ready) => ready.create_deadline,
            _ => Duration::ZERO,
        };
        let facts = Facts {
            health: verdict(&status.instance, status.endpoint.as_ref()),
            next_health: verdict(&status.next, coming.as_ref()),
            held: status.instance.as_ref().is_some_and(held),
            held_retiring: status.retiring.iter().filter(|old| held(old)).map(|old| old.incarnation).collect(),
            standing: self.roster.standing(&proxy.spec.provider, &uid, patience, now),
            provider,
            listed,
            now,
            wall: self.clock.wall(),
            login_key: keys.first().map(|k| k.id.clone()).unwrap_or_default(),
            own_login,
        };
        (facts, handle)
    }

    /// The facts after a call. The Provider is the one that was asked: an answer counts although it changed meanwhile, and
    /// counts as that one's. Only an answer to `place` is measured against the places that are taken by now.
    fn facts_after(&self, proxy: &Proxy, keys: &[LoginKey], before: Facts, call: &Call) -> Facts {
        let facts = self.facts(proxy, keys, before.own_login.clone()).0;
        let mut asked = before.provider;
        if let (ProviderFacts::Ready(asked), Call::Place(_)) = (&mut asked, call) {
            asked.taken = self.taken(proxy, asked);
        }
        Facts { provider: asked, ..facts }
    }

    /// The places that other Proxies hold, where each serves one only. It looks at all of them.
    fn taken(&self, proxy: &Proxy, provider: &ReadyProvider) -> Vec<String> {
        if !provider.one_per_place {
            return vec![];
        }
        let others = self.store.proxies();
        let others = others.iter().filter(|p| p.spec.provider == proxy.spec.provider && p.uid() != proxy.uid());
        let places = others.filter_map(|p| p.status.as_ref()).flat_map(ProxyStatus::instances);
        places.filter_map(|i| i.placement.clone()).collect()
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
        if !present && memory.abandoned {
            // Told while the object is there: of one that is gone, Kubernetes is told nothing.
            let named: Vec<String> = Abandoned::of(proxy, self.clock.wall()).iter().map(ToString::to_string).collect();
            let message =
                format!("released by {SKIP_CLEANUP}; nobody deletes what is left of it: {}", named.join(", "));
            self.tell(&key, Severity::Warning, "Abandoned", message);
        }
        if self.store.set_proxy_finalizer(proxy, present).await?.is_some() {
            return Ok(false);
        }
        self.forget_others(&key, None);
        if memory.abandoned {
            return Ok(true);
        }
        self.tell(&key, Severity::Normal, "Deleted", "its instance is gone".into());
        Ok(true)
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

    fn remember(&self, proxy: &Proxy, memory: Memory) {
        let (key, uid, provider) = (ProxyKey::of(proxy), proxy.uid().unwrap_or_default(), &proxy.spec.provider);
        let mut known = self.lock();
        match known.get_mut(&key) {
            Some(known) => known.memory = memory,
            None => drop(known.insert(
                key,
                Box::new(Known {
                    uid,
                    provider: provider.clone(),
                    memory,
                    listed: None,
                    published: None,
                    logins: vec![],
                }),
            )),
        }
    }

    pub(super) fn last_login(&self, key: &ProxyKey, secret: &LoginSecret) -> Option<Login> {
        let known = self.lock();
        known.get(key)?.logins.iter().find(|(last, _)| last == secret).map(|(_, login)| login.clone())
    }

    pub(super) fn remember_login(&self, key: &ProxyKey, secret: LoginSecret, login: &Login) {
        if let Some(known) = self.lock().get_mut(key) {
            known.logins.retain(|(last, _)| discriminant(last) != discriminant(&secret));
            known.logins.push((secret, login.clone()));
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
            self.roster.remove(&old.provider, &old.uid);
            if let Ok(uid) = old.uid.parse() {
                self.allocator.remove(uid);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ProxyKey, Box<Known>>> {
        self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

pub(super) fn is_running(memory: &Memory) -> bool {
    matches!(&memory.seen, Some(Seen { state: Some(State::Running), .. }))
}

#[cfg(test)]
#[path = "driver_tests.rs"]
mod tests;
