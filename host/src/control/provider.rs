//! The reconciler of Providers: plugin, grants and config become a handle that serves, or a reason why not.

mod parting;
mod report;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use kube::ResourceExt;
use serde_json::Value;
use tokio::sync::broadcast;

use super::proxy::{ProviderFacts, ReadyProvider};
use crate::model::clock::Clock;
use crate::model::error::list_fields;
use crate::model::instance::{Instance, ONE_PER_PLACE, STATIC_ADDRESS, check_schema};
use crate::model::mandate::Mandate;
use crate::model::metrics::METRICS;
use crate::model::provider::{Provider, Source as Credential};
use crate::model::proxy::Proxy;
use crate::model::{ACCEPT_ABSENCE, SKIP_CLEANUP, bootstrap};
use crate::plugin::grants::Grants;
use crate::plugin::handle::{Handle, Shared};
use crate::plugin::registry::{Entry, Registry};
use crate::plugin::source::oci::Artifacts;
use crate::store::{Store, StoreError};

/// Between two checks of a Provider that serves, and of one that does not; both ± 20 %.
const CHECK: Duration = Duration::from_secs(60);
const CHECK_BAD: Duration = Duration::from_secs(15);
/// After a status that somebody else's write kept from being stored.
const CONFLICT_RETRY: Duration = Duration::from_millis(200);

/// Reason of a Provider that this run has not looked at.
pub const NOT_LOOKED_AT: &str = "ProviderPending";

/// What of a Provider is not its status, which is our own: whatever else changes is looked at.
#[derive(Clone, PartialEq)]
struct Version {
    uid: Option<String>,
    generation: Option<i64>,
    is_deleting: bool,
    /// What its annotations ask of us.
    asked: [Option<String>; 2],
}

impl Version {
    fn of(provider: &Provider) -> Self {
        Self {
            uid: provider.uid(),
            generation: provider.metadata.generation,
            is_deleting: provider.is_deleting(),
            asked: [ACCEPT_ABSENCE, SKIP_CLEANUP].map(|name| provider.annotations().get(name).cloned()),
        }
    }
}

/// All Providers, as their Proxies see them.
pub struct Providers {
    store: Arc<dyn Store>,
    registry: Arc<Registry>,
    artifacts: Artifacts,
    plugin_files: Option<PathBuf>,
    /// Whether what no Proxy names is deleted, or only told of.
    collects: bool,
    shared: Shared,
    clock: Arc<dyn Clock>,
    current: Mutex<HashMap<String, Current>>,
    looked_at: Mutex<HashMap<String, Version>>,
    epochs: std::sync::atomic::AtomicU64,
    /// When the count of its Proxies was last written.
    counted: Mutex<HashMap<String, Duration>>,
    /// By UID: until when the last create of each Provider may land. Those without one never had any.
    creates_end: Mutex<HashMap<String, Duration>>,
}

#[derive(Clone)]
struct Current {
    state: State,
    /// What the handle was made from: object, generation, plugin.
    made_from: (String, i64, String),
    epoch: u64,
}

#[derive(Clone)]
enum State {
    Ready(Arc<Handle>),
    Unready { reason: String, message: String },
}

impl From<Result<Arc<Handle>, (String, String)>> for State {
    fn from(built: Result<Arc<Handle>, (String, String)>) -> Self {
        match built {
            Ok(handle) => Self::Ready(handle),
            Err((reason, message)) => Self::Unready { reason, message },
        }
    }
}

/// What one pass found.
pub struct Pass {
    /// When to look again.
    pub again: Duration,
    /// Whether its Proxies should look again.
    pub changed: bool,
    /// Whether the store failed.
    pub failed: bool,
    /// What the backend shows, if it was listed.
    pub listed: Option<Vec<Instance>>,
}

impl Pass {
    /// The store failed, and nothing can be said in a status either. No reason to ask the backend more often.
    fn failed(provider: &str, error: &StoreError) -> Self {
        tracing::debug!(provider, %error, "a pass is repeated");
        let again = if matches!(error, StoreError::Conflict(_)) { CONFLICT_RETRY } else { CHECK_BAD };
        Self { again, changed: false, failed: true, listed: None }
    }
}

impl Providers {
    /// None yet.
    /// `mandate`: while it does not hold, nothing is changed at any backend.
    pub fn new(
        store: Arc<dyn Store>,
        registry: Arc<Registry>,
        artifacts: Artifacts,
        clock: Arc<dyn Clock>,
        mandate: Arc<Mandate>,
    ) -> Self {
        Self {
            store,
            registry,
            artifacts,
            plugin_files: None,
            collects: true,
            shared: Shared::new(clock.clone()).holding_back().under(mandate),
            clock,
            current: Mutex::default(),
            looked_at: Mutex::default(),
            counted: Mutex::default(),
            epochs: 1.into(),
            creates_end: Mutex::default(),
        }
    }

    /// The same, with the folder whose sub-folders `spec.files` names.
    pub fn with_files(self, root: Option<PathBuf>) -> Self {
        Self { plugin_files: root, ..self }
    }

    /// The same, where nothing that no Proxy names is deleted with `dry_run`.
    pub fn with_dry_run(self, dry_run: bool) -> Self {
        Self { collects: !dry_run, ..self }
    }

    /// Whether this version was looked at: then a change of it was one of its status, which is our own.
    pub fn has_seen(&self, provider: &Provider) -> bool {
        let looked_at = self.looked_at.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        looked_at.get(&provider.name_any()) == Some(&Version::of(provider))
    }

    /// A credential changed: calls that were refused for the old one are worth another try.
    pub fn renew(&self) {
        for current in self.lock().values_mut() {
            current.epoch = self.next_epoch();
            if let State::Ready(handle) = &current.state {
                handle.let_go();
            }
        }
    }

    /// A Provider and all its Proxies should look again.
    pub fn wake(&self, name: &str) {
        self.shared.turn(name);
    }

    /// Tells the name of each Provider of which more, or less, is held back from now on.
    pub fn turns(&self) -> broadcast::Receiver<Arc<str>> {
        self.shared.turns()
    }

    fn next_epoch(&self) -> u64 {
        self.epochs.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
    }

    /// What a Proxy has to know of its Provider.
    pub fn facts(&self, proxy: &Proxy) -> (ProviderFacts, Option<Arc<Handle>>) {
        let name = &proxy.spec.provider;
        let Some(provider) = self.store.provider(name) else { return (ProviderFacts::Missing, None) };
        let current = self.lock().get(name).cloned();
        match current {
            Some(Current { state: State::Ready(handle), epoch, .. }) => {
                let description = &handle.plugin().description;
                let ready = ReadyProvider {
                    epoch,
                    taken: vec![],
                    one_per_place: description.has(ONE_PER_PLACE),
                    create_deadline: provider.spec.limits.create_deadline.duration(),
                    call_timeout: handle.call_timeout(),
                    reach: provider.spec.endpoint,
                    surges: !description.has(STATIC_ADDRESS),
                    max_unavailable: provider.spec.limits.max_unavailable.clone(),
                    instances: provider.spec.limits.instances,
                    absence_accepted: provider.accepts_absence(self.clock.wall()),
                    denied: if provider.is_deleting() {
                        Some((
                            "ProviderDeleting",
                            format!("Provider {name} is being deleted: nothing is made any more"),
                        ))
                    } else {
                        let message = self.denies(&provider, &proxy.namespace().unwrap_or_default());
                        message.map(|message| ("NamespaceNotAllowed", message))
                    },
                };
                (ProviderFacts::Ready(ready), Some(handle))
            }
            Some(Current { state: State::Unready { reason, message }, .. }) => {
                (ProviderFacts::Unready(reason, message), None)
            }
            None => (
                ProviderFacts::Unready(NOT_LOOKED_AT.into(), format!("Provider {name} has not been looked at yet")),
                None,
            ),
        }
    }

    /// What serves for a Provider, if it is ready.
    pub fn handle(&self, name: &str) -> Option<Arc<Handle>> {
        match self.lock().get(name)?.state.clone() {
            State::Ready(handle) => Some(handle),
            State::Unready { .. } => None,
        }
    }

    /// Why Proxies of this namespace may not use it.
    fn denies(&self, provider: &Provider, namespace: &str) -> Option<String> {
        let labels = || self.store.namespace_labels(namespace);
        (!provider.spec.allowed_namespaces.admits(namespace, labels)).then(|| {
            format!(
                "Provider {} does not serve namespace {namespace}: add it to spec.allowedNamespaces of the Provider, or \
                 choose another Provider",
                provider.name_any()
            )
        })
    }

    /// Looks at one Provider and says in its status how it is.
    /// `mass_absence`: whether its instances vanished at once.
    pub async fn reconcile(&self, name: &str, mass_absence: bool) -> Pass {
        let Some(provider) = self.store.provider(name) else {
            let changed = self.lock().remove(name).is_some();
            self.looked_at.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).remove(name);
            self.release_artifacts();
            METRICS.forget_provider(name);
            return Pass { again: CHECK, changed, failed: false, listed: None };
        };
        let version = Version::of(&provider);
        let before = self
            .looked_at
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .insert(name.to_owned(), version.clone());
        let asked = before.as_ref().is_some_and(|before| before.asked != version.asked);
        if before.is_none_or(|before| before.uid != version.uid) {
            self.begin_with(&provider);
        }
        let entry = self.plugin(&provider).await;
        let built = self.build(&provider, &entry).await;
        if provider.is_deleting() {
            return self.part_with(&provider, &entry, built).await;
        }
        if built.is_ok() && !provider.has_finalizer() {
            // Before the first create can be sent.
            match self.store.set_provider_finalizer(&provider, true).await {
                // Its new version is looked at next.
                Ok(()) => return Pass { again: Duration::ZERO, changed: false, failed: false, listed: None },
                Err(error) => return Pass::failed(name, &error),
            }
        }
        let findings = match &built {
            Ok(handle) => handle.check().await,
            Err(_) => Ok(vec![]),
        };
        let listed = match &built {
            Ok(handle) => handle.list().await.ok(),
            Err(_) => None,
        };
        let (says, targets) = report::judge(
            &provider,
            &entry,
            &built,
            findings,
            mass_absence && !provider.accepts_absence(self.clock.wall()),
        );
        let changed = self.remember(name, built.into(), &provider, &entry) || asked;
        let ready = says.status == crate::model::condition::Status::True;
        if let Err(error) = self.write(&provider, &entry, says, targets).await {
            return Pass { changed, listed, ..Pass::failed(name, &error) };
        }
        let again = if ready { CHECK } else { CHECK_BAD };
        Pass { again: again.mul_f64(rand::random_range(0.8..1.2)), changed, failed: false, listed }
    }

    /// Lets go of the artifacts that no Provider names any more.
    fn release_artifacts(&self) {
        let named = |p: &Arc<Provider>| Some((p.spec.plugin.name.clone(), p.spec.plugin.oci.clone()?));
        self.artifacts.keep_only(&self.store.providers().iter().filter_map(named).collect());
    }

    /// Its plugin: the shared one of the name, or its own artifact, pulled where need be.
    async fn plugin(&self, provider: &Provider) -> Entry {
        let wanted = &provider.spec.plugin;
        let Some(reference) = &wanted.oci else { return self.registry.get(&wanted.name) };
        let secret = match &wanted.pull_secret_ref {
            Some(secret) => self.store.resolve(&Credential::secret(&secret.name, ".dockerconfigjson")).await.map(Some),
            None => Ok(None),
        };
        match secret {
            Ok(secret) => self.artifacts.ensure(&wanted.name, reference, secret.as_ref()).await,
            Err(error) => self.artifacts.refuse(&wanted.name, reference, &error),
        }
        self.registry.artifact(&wanted.name, reference)
    }

    /// The handle, the old one where nothing changed, or why there is none: reason and text.
    async fn build(&self, provider: &Provider, entry: &Entry) -> Result<Arc<Handle>, (String, String)> {
        let name = provider.name_any();
        let fail = |reason: &str, message: String| Err((reason.to_owned(), message));
        let Some(plugin) = &entry.current else {
            let wanted = &provider.spec.plugin.name;
            return match &entry.refused {
                Some(refused) => fail(refused.reason, refused.message.clone()),
                None => {
                    let known = self.registry.names().join(", ");
                    fail(
                        "PluginMissing",
                        format!(
                            "no plugin {wanted:?} is loaded: {}, or correct spec.plugin.name; loaded are: {known}",
                            self.registry.remedy(wanted)
                        ),
                    )
                }
            };
        };
        if let Some(Err(message)) = provider.spec.bootstrap.as_deref().map(bootstrap::check) {
            return fail("BootstrapInvalid", message);
        }
        let old = self.lock().get(&name).filter(|c| c.made_from == made_from(provider, entry)).cloned();
        let grants = match &old {
            Some(Current { state: State::Ready(handle), .. }) => handle.grants().clone(),
            _ => match Grants::new(&provider.spec, self.store.clone()) {
                Ok(grants) => match self.files(provider) {
                    Ok(None) => Arc::new(grants),
                    Ok(Some(dir)) => Arc::new(grants.with_files(dir)),
                    Err(message) => return fail("FilesMissing", message),
                },
                Err(error) => return fail("ConnectionInvalid", error.to_string()),
            },
        };
        if let Err(message) = grants.serve(&plugin.description) {
            return fail("ConnectionMissing", message);
        }
        if let Err(error) = grants.probe().await {
            return fail(error.reason(), error.to_string());
        }
        if let Some(Current { state: State::Ready(handle), .. }) = old {
            return Ok(handle);
        }
        if let Err(errors) =
            check_schema(&plugin.description.config_schema, &Value::Object(provider.spec.config.clone()), "/config")
        {
            return fail("ConfigInvalid", list_fields(&errors));
        }
        let handle = Handle::new(
            plugin.clone(),
            &name,
            grants,
            &provider.spec.config,
            &provider.spec.limits,
            self.store.installation(),
            &self.shared,
        );
        match handle.validate(None).await {
            Ok(Ok(())) => Ok(Arc::new(handle)),
            Ok(Err(errors)) => fail("ConfigInvalid", list_fields(&errors)),
            Err(error) => Err((error.reason, error.message)),
        }
    }

    /// The folder that `spec.files` grants.
    fn files(&self, provider: &Provider) -> Result<Option<PathBuf>, String> {
        let Some(name) = &provider.spec.files else { return Ok(None) };
        let Some(root) = &self.plugin_files else {
            return Err(format!("spec.files names {name}, and the operator has no --plugin-files: start it with one"));
        };
        let dir = root.join(name);
        if dir.is_dir() {
            Ok(Some(dir))
        } else {
            Err(format!("there is no folder {}: make it, or correct spec.files", dir.display()))
        }
    }

    /// Keeps the state; answers whether Proxies should look again.
    fn remember(&self, name: &str, state: State, provider: &Provider, entry: &Entry) -> bool {
        let mut current = self.lock();
        let same = current.get(name).is_some_and(|old| match (&old.state, &state) {
            (State::Ready(old), State::Ready(new)) => Arc::ptr_eq(old, new),
            (State::Unready { reason: a, message: b }, State::Unready { reason: c, message: d }) => a == c && b == d,
            _ => false,
        });
        if !same {
            let epoch = self.next_epoch();
            current.insert(name.to_owned(), Current { state, made_from: made_from(provider, entry), epoch });
        }
        !same
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Current>> {
        self.current.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn made_from(provider: &Provider, entry: &Entry) -> (String, i64, String) {
    let digest = entry.current.as_ref().map(|p| p.digest.clone()).unwrap_or_default();
    (provider.uid().unwrap_or_default(), provider.metadata.generation.unwrap_or(0), digest)
}

#[cfg(test)]
#[path = "provider_tests.rs"]
mod tests;
