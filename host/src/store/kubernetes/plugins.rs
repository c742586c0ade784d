//! Plugins from ConfigMaps of the operator's namespace: followed as metadata, fetched when they changed, and dropped as soon
//! as they are loaded.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Event as Watched, watcher};
use kube::{Resource, ResourceExt};

use super::cache::{beating, next, watched};
use super::{KubeStore, store_error};
use crate::model::pulse::PULSE;
use crate::model::{PLUGIN_FINALIZER, PLUGIN_LABEL};
use crate::plugin::contract::ContractError;
use crate::plugin::load::{LoadError, digest_of};
use crate::plugin::registry::Registry;
use crate::plugin::source::Source;
use crate::plugin::source::upload::{Piece, unpack};
use crate::store::{Event, Regarding, Severity, Store, StoreError};

/// The whole that a part belongs to is this file's digest, in an annotation that `plugin pack` writes.
pub const DIGEST_ANNOTATION: &str = "crawl.example.com/plugin-digest";

/// What was last seen of the ConfigMaps.
#[derive(Default)]
pub(super) struct Seen {
    held: Mutex<BTreeMap<String, Held>>,
    /// Those that bear our finalizer and are plugins no more: their label was taken off.
    strays: Mutex<BTreeSet<String>>,
}

/// What one ConfigMap holds. Its bytes are fetched when they are needed, and not kept.
#[derive(Clone, Default)]
struct Held {
    version: String,
    made: i64,
    digest: Option<String>,
    pieces: Vec<Piece>,
    /// Our finalizer stands.
    in_use: bool,
}

impl KubeStore {
    /// Loads every plugin once.
    ///
    /// # Errors
    /// When the ConfigMaps cannot be listed.
    pub async fn load_plugins(&self, registry: &Registry) -> Result<(), StoreError> {
        let metadata: Api<PartialObjectMeta<ConfigMap>> = Api::namespaced(self.client.clone(), &self.namespace);
        for found in metadata.list(&ListParams::default()).await.map_err(|e| store_error("ConfigMaps", e))? {
            if found.labels().get(PLUGIN_LABEL).is_some_and(|value| value == "true") {
                self.look_at(&found, registry).await;
            } else {
                self.plugins.strayed(&found);
            }
        }
        Ok(())
    }

    /// Follows the ConfigMaps. Ends never.
    pub async fn watch_plugins(self: Arc<Self>, registry: Arc<Registry>) {
        let metadata: Api<PartialObjectMeta<ConfigMap>> = Api::namespaced(self.client.clone(), &self.namespace);
        let config = watched(Some(&format!("{PLUGIN_LABEL}=true")));
        let mut stream = watcher(metadata, config).default_backoff().boxed();
        let mut listed = BTreeSet::new();
        let beat = PULSE.of("plugins");
        while let Some(event) = next(&mut stream, &beat).await {
            match event {
                Ok(Watched::Init) => listed.clear(),
                Ok(Watched::InitApply(found)) => {
                    listed.insert(found.name_any());
                    // Compiling may take longer than a beat.
                    beating(&beat, self.look_at(&found, &registry)).await;
                }
                Ok(Watched::InitDone) => {
                    let known: Vec<String> = self.plugins.lock().keys().cloned().collect();
                    for gone in known.iter().filter(|name| !listed.contains(*name)) {
                        self.plugins.forget(&self.namespace, gone, &registry);
                    }
                }
                Ok(Watched::Apply(found)) => beating(&beat, self.look_at(&found, &registry)).await,
                Ok(Watched::Delete(gone)) => {
                    // Gone, or without its label.
                    self.plugins.strayed(&gone);
                    self.plugins.forget(&self.namespace, &gone.name_any(), &registry);
                }
                Err(error) => tracing::warn!(%error, "the watch of plugins is taken up again"),
            }
        }
    }

    /// Offers what a ConfigMap holds, if it changed. What is refused is told by an event on the ConfigMap.
    async fn look_at(&self, found: &PartialObjectMeta<ConfigMap>, registry: &Registry) {
        let (name, version) = (found.name_any(), found.resource_version().unwrap_or_default());
        if self.plugins.lock().get(&name).is_some_and(|held| held.version == version) {
            return;
        }
        let Some(mut body) = self.fetch(&name).await else { return };
        let pieces = body.binary_data.iter().flatten().filter_map(|(key, _)| Piece::parse(key)).collect();
        let held = Held {
            version,
            made: found.creation_timestamp().map_or(0, |at| at.0.as_second()),
            digest: found.annotations().get(DIGEST_ANNOTATION).cloned(),
            pieces,
            in_use: found.finalizers().iter().any(|f| f == PLUGIN_FINALIZER),
        };
        for key in body.binary_data.iter().flatten().map(|(key, _)| key).filter(|key| key.ends_with(".cwasm")) {
            self.tell_refused(&name, format!("{key} is refused: {}", ContractError::Native));
        }
        self.plugins.strays().remove(&name);
        let before = self.plugins.lock().insert(name.clone(), held.clone()).unwrap_or_default();
        for piece in &held.pieces {
            let source = self.source(&name, held.made);
            if piece.part.1 > 1 {
                self.look_at_parts(&name, &held, piece, registry).await;
            } else if let Some(bytes) = body.binary_data.as_mut().and_then(|data| data.remove(&piece.key())) {
                match unpack(piece.compressed, &[bytes.0]) {
                    Ok(bytes) => registry.offer(&piece.plugin, &source, bytes).await,
                    Err(error) => registry.refuse(&piece.plugin, &source, format!("{name} {}", held.version), &error),
                }
                self.tell(&name, &piece.plugin, &source, registry);
            }
        }
        self.plugins.withdraw_gone(&self.namespace, &name, &before, registry);
    }

    /// Offers a plugin that was cut into parts, once all parts of the same whole are there.
    async fn look_at_parts(&self, name: &str, held: &Held, piece: &Piece, registry: &Registry) {
        let of = piece.part.1;
        let mut parts: BTreeMap<u32, (String, i64)> = BTreeMap::new();
        let (mut first, mut made) = (name.to_owned(), held.made);
        for (at, other) in self.plugins.lock().iter().filter(|(_, other)| other.digest == held.digest) {
            let of_the_same = |p: &&Piece| (&p.plugin, p.compressed, p.part.1) == (&piece.plugin, piece.compressed, of);
            for found in other.pieces.iter().filter(of_the_same) {
                parts.insert(found.part.0, (at.clone(), other.made));
                if found.part.0 == 1 {
                    (first, made) = (at.clone(), other.made);
                }
            }
        }
        let source = self.source(&first, made);
        // The whole stands under its first part; what was said of it before that was there is history.
        for (at, made) in parts.values().filter(|(at, _)| *at != first) {
            registry.withdraw(&piece.plugin, &self.source(at, *made));
        }
        let missing: Vec<u32> = (1..=of).filter(|part| !parts.contains_key(part)).collect();
        if !missing.is_empty() {
            // Said in the Provider; no event, since parts are applied one after another.
            let digest = held.digest.clone().unwrap_or_default();
            registry.refuse(&piece.plugin, &source, format!("{digest} incomplete"), &LoadError::Parts { of, missing });
            return;
        }
        let mut bytes = Vec::new();
        for (part, (at, _)) in parts {
            let key = Piece { part: (part, of), ..piece.clone() }.key();
            let body = self.fetch(&at).await.and_then(|body| body.binary_data).and_then(|mut data| data.remove(&key));
            // Gone or changed meanwhile: that change is looked at next.
            let Some(body) = body else { return };
            bytes.push(body.0);
        }
        let whole = unpack(piece.compressed, &bytes).and_then(|whole| match &held.digest {
            Some(named) if *named != digest_of(&whole) => {
                Err(LoadError::Digest { found: digest_of(&whole), named: named.clone() })
            }
            _ => Ok(whole),
        });
        match whole {
            Ok(whole) => registry.offer(&piece.plugin, &source, whole).await,
            Err(error) => registry.refuse(&piece.plugin, &source, format!("{first} {}", held.version), &error),
        }
        self.tell(name, &piece.plugin, &source, registry);
    }

    /// Sets our finalizer on each ConfigMap that holds one of these plugins, and takes it from the others.
    pub(super) async fn hold_configmaps(&self, in_use: &BTreeSet<String>) -> Result<(), StoreError> {
        let mut known: Vec<(String, bool, bool)> = self
            .plugins
            .lock()
            .iter()
            .map(|(name, held)| {
                let used = held.pieces.iter().any(|piece| in_use.contains(&piece.plugin));
                (name.clone(), held.in_use, used)
            })
            .collect();
        known.extend(self.plugins.strays().iter().map(|name| (name.clone(), true, false)));
        let metadata: Api<PartialObjectMeta<ConfigMap>> = Api::namespaced(self.client.clone(), &self.namespace);
        for (name, _, used) in known.into_iter().filter(|(_, held, used)| held != used) {
            let Some(found) = metadata.get_metadata_opt(&name).await.map_err(|e| store_error(&name, e))? else {
                self.plugins.strays().remove(&name);
                continue;
            };
            let held = found.finalizers().iter().any(|f| f == PLUGIN_FINALIZER);
            // One that is being deleted takes no new finalizer.
            if held != used && (held || found.meta().deletion_timestamp.is_none()) {
                let finalizers = crate::store::finalizers_with(&found, PLUGIN_FINALIZER, used);
                let meta = serde_json::json!({"resourceVersion": found.resource_version(), "finalizers": finalizers});
                let patch = Patch::Merge(serde_json::json!({"metadata": meta}));
                match metadata.patch_metadata(&name, &PatchParams::default(), &patch).await {
                    Err(kube::Error::Api(status)) if status.code == 404 => {}
                    patched => drop(patched.map_err(|e| store_error(&name, e))?),
                }
            }
            if let Some(held) = self.plugins.lock().get_mut(&name) {
                held.in_use = used;
            }
            self.plugins.strays().remove(&name);
        }
        Ok(())
    }

    async fn fetch(&self, name: &str) -> Option<ConfigMap> {
        let bodies: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        bodies.get_opt(name).await.unwrap_or_else(|error| {
            tracing::warn!(configmap = %name, %error, "a plugin cannot be fetched; it is tried again when it changes");
            None
        })
    }

    fn source(&self, name: &str, made: i64) -> Source {
        Source::ConfigMap { made: Reverse(made), name: format!("{}/{name}", self.namespace) }
    }

    /// Tells of a refusal.
    fn tell(&self, configmap: &str, plugin: &str, source: &Source, registry: &Registry) {
        if let Some(refused) = registry.refusal(plugin, source) {
            self.tell_refused(configmap, refused.message);
        }
    }

    fn tell_refused(&self, configmap: &str, message: String) {
        self.event(Event {
            regarding: Regarding::ConfigMap(configmap.to_owned()),
            severity: Severity::Warning,
            reason: "PluginRefused".into(),
            message,
        });
    }
}

impl Seen {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn strays(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.strays.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a ConfigMap that bears our finalizer without being a plugin.
    fn strayed(&self, found: &PartialObjectMeta<ConfigMap>) {
        if found.finalizers().iter().any(|f| f == PLUGIN_FINALIZER) {
            self.strays().insert(found.name_any());
        }
    }

    /// A ConfigMap is gone, and its plugins with it.
    fn forget(&self, namespace: &str, name: &str, registry: &Registry) {
        let before = self.lock().remove(name).unwrap_or_default();
        self.withdraw_gone(namespace, name, &before, registry);
    }

    /// Withdraws what a ConfigMap held and holds no more. A plugin in parts goes with its first part: another part that is
    /// missing leaves what was loaded in place.
    fn withdraw_gone(&self, namespace: &str, name: &str, before: &Held, registry: &Registry) {
        let now: BTreeSet<String> =
            self.lock().get(name).iter().flat_map(|held| &held.pieces).map(|piece| piece.plugin.clone()).collect();
        let source = Source::ConfigMap { made: Reverse(before.made), name: format!("{namespace}/{name}") };
        for piece in before.pieces.iter().filter(|piece| !now.contains(&piece.plugin)) {
            registry.withdraw(&piece.plugin, &source);
        }
    }
}
