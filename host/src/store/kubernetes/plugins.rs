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
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{DefaultBackoff, Event as Watched, watcher};
use kube::{Resource, ResourceExt};
use tokio::time::{Instant, sleep_until};

use super::cache::{beating, next, watched};
use super::{KubeStore, store_error};
use crate::model::pulse::PULSE;
use crate::model::{PLUGIN_FINALIZER, PLUGIN_LABEL};
use crate::plugin::contract::ContractError;
use crate::plugin::load::LoadError;
use crate::plugin::registry::Registry;
use crate::plugin::source::Source;
use crate::plugin::source::upload::{Piece, pieces, unpack, whole};
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

/// A ConfigMap, and when it was made, seconds since 1970.
type Place = (String, i64);

/// The parts of a whole.
#[derive(Debug, Default, PartialEq)]
struct Parts {
    /// Where each is taken from.
    parts: BTreeMap<u32, Place>,
    /// Where else some are.
    twice: BTreeMap<u32, Vec<Place>>,
}

/// ConfigMaps that could not be fetched, or that another one's end concerns, and when they are looked at again.
#[derive(Default)]
struct Again {
    names: BTreeSet<String>,
    at: Option<Instant>,
    waits: DefaultBackoff,
}

impl Again {
    /// Waits until it is time; for ever where there are none.
    async fn due(&self) {
        match self.at {
            Some(at) => sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    /// All of them, whose time has come.
    fn take(&mut self) -> BTreeSet<String> {
        self.at = None;
        std::mem::take(&mut self.names)
    }

    fn add(&mut self, names: impl IntoIterator<Item = String>) {
        self.names.extend(names);
        if !self.names.is_empty() && self.at.is_none() {
            self.at = self.waits.next().map(|wait| Instant::now() + wait);
        }
    }

    /// Takes in how looking at one came out.
    fn note(&mut self, name: &str, looked: Result<(), kube::Error>) {
        match looked {
            Ok(()) => {
                self.names.remove(name);
                if self.names.is_empty() {
                    self.at = None;
                    self.waits.reset();
                }
            }
            Err(error) => {
                tracing::warn!(configmap = %name, %error, "a plugin cannot be fetched; it is tried again");
                self.add([name.to_owned()]);
            }
        }
    }
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
                // What cannot be fetched is fetched once they are followed.
                let _ = self.look_at(&found, registry).await;
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
        let mut again = Again::default();
        let beat = PULSE.of("plugins");
        loop {
            let event = tokio::select! {
                event = next(&mut stream, &beat) => event,
                () = again.due() => {
                    for name in again.take() {
                        again.note(&name, beating(&beat, self.look_again(&name, &registry)).await);
                    }
                    continue;
                }
            };
            let Some(event) = event else { return };
            match event {
                Ok(Watched::Init) => listed.clear(),
                Ok(Watched::InitApply(found)) => {
                    listed.insert(found.name_any());
                    // Compiling may take longer than a beat.
                    again.note(&found.name_any(), beating(&beat, self.look_at(&found, &registry)).await);
                }
                Ok(Watched::InitDone) => {
                    let known: Vec<String> = self.plugins.lock().keys().cloned().collect();
                    for gone in known.iter().filter(|name| !listed.contains(*name)) {
                        again.add(self.plugins.forget(&self.namespace, gone, &registry));
                    }
                }
                Ok(Watched::Apply(found)) => {
                    again.note(&found.name_any(), beating(&beat, self.look_at(&found, &registry)).await);
                }
                Ok(Watched::Delete(gone)) => {
                    // Gone, or without its label.
                    self.plugins.strayed(&gone);
                    again.add(self.plugins.forget(&self.namespace, &gone.name_any(), &registry));
                }
                Err(error) => tracing::warn!(%error, "the watch of plugins is taken up again"),
            }
        }
    }

    /// Looks at a ConfigMap as if it had changed.
    async fn look_again(&self, name: &str, registry: &Registry) -> Result<(), kube::Error> {
        if let Some(held) = self.plugins.lock().get_mut(name) {
            held.version.clear();
        }
        match self.configmaps().get_metadata_opt(name).await? {
            Some(found) if found.labels().get(PLUGIN_LABEL).is_some_and(|value| value == "true") => {
                self.look_at(&found, registry).await
            }
            // The watch tells of it.
            _ => Ok(()),
        }
    }

    /// Offers what a ConfigMap holds, if it changed. What is refused is told by an event on the ConfigMap.
    async fn look_at(&self, found: &PartialObjectMeta<ConfigMap>, registry: &Registry) -> Result<(), kube::Error> {
        let (name, version) = (found.name_any(), found.resource_version().unwrap_or_default());
        if self.plugins.lock().get(&name).is_some_and(|held| held.version == version) {
            return Ok(());
        }
        let Some(mut body) = self.fetch(&name).await? else { return Ok(()) };
        let keys = || body.binary_data.iter().flatten().map(|(key, _)| key.as_str());
        let (pieces, passed_over) = pieces(keys());
        let held = Held {
            version,
            made: found.creation_timestamp().map_or(0, |at| at.0.as_second()),
            digest: found.annotations().get(DIGEST_ANNOTATION).cloned(),
            pieces,
            in_use: found.finalizers().iter().any(|f| f == PLUGIN_FINALIZER),
        };
        for key in keys().filter(|key| key.ends_with(".cwasm")) {
            self.tell_refused(&name, format!("{key} is refused: {}", ContractError::Native));
        }
        for (over, taken) in passed_over {
            let (over, taken) = (over.key(), taken.key());
            self.tell_twice(
                &name,
                format!("{over} is passed over: {taken} gives the same plugin and goes first; remove one of them"),
            );
        }
        self.plugins.strays().remove(&name);
        let before = self.plugins.lock().insert(name.clone(), held.clone()).unwrap_or_default();
        self.plugins.withdraw_gone(&self.namespace, &name, &before, registry);
        for piece in &held.pieces {
            let source = self.source(&name, held.made);
            if piece.part.1 > 1 {
                self.look_at_parts(&name, &held, piece, registry).await?;
            } else if let Some(bytes) = body.binary_data.as_mut().and_then(|data| data.remove(&piece.key())) {
                match unpack(piece.compressed, &[bytes.0]) {
                    Ok(bytes) => registry.offer(&piece.plugin, &source, bytes).await,
                    Err(error) => registry.refuse(&piece.plugin, &source, format!("{name} {}", held.version), &error),
                }
                self.tell(&name, &piece.plugin, &source, registry);
            }
        }
        Ok(())
    }

    /// Offers a plugin that was cut into parts, once all parts of the same whole are there.
    async fn look_at_parts(
        &self,
        name: &str,
        held: &Held,
        piece: &Piece,
        registry: &Registry,
    ) -> Result<(), kube::Error> {
        let of = piece.part.1;
        let Parts { parts, twice } = self.plugins.parts(held, piece);
        let (first, made) = parts.get(&1).cloned().unwrap_or_else(|| (name.to_owned(), held.made));
        let source = self.source(&first, made);
        // The whole stands under its first part; what was said of it before that was there is history.
        let others = parts.values().chain(twice.values().flatten()).filter(|(at, _)| *at != first);
        for (at, made) in others {
            registry.withdraw(&piece.plugin, &self.source(at, *made));
        }
        for (part, over) in &twice {
            let key = Piece { part: (*part, of), ..piece.clone() }.key();
            let taken = parts.get(part).map_or("", |(at, _)| at);
            for (at, _) in over {
                self.tell_twice(
                    at,
                    format!("{key} is passed over: ConfigMap {taken} has it too and goes first; remove one of them"),
                );
            }
        }
        let missing: Vec<u32> = (1..=of).filter(|part| !parts.contains_key(part)).collect();
        if !missing.is_empty() {
            // Said in the Provider; no event, since parts are applied one after another.
            let digest = held.digest.clone().unwrap_or_default();
            registry.refuse(&piece.plugin, &source, format!("{digest} incomplete"), &LoadError::Parts { of, missing });
            return Ok(());
        }
        let mut bytes = Vec::new();
        for (part, (at, _)) in parts {
            let key = Piece { part: (part, of), ..piece.clone() }.key();
            let body = self.fetch(&at).await?.and_then(|body| body.binary_data).and_then(|mut data| data.remove(&key));
            // Gone or changed meanwhile: that change is looked at next.
            let Some(body) = body else { return Ok(()) };
            bytes.push(body.0);
        }
        match whole(piece.compressed, &bytes, held.digest.as_deref()) {
            Ok(whole) => registry.offer(&piece.plugin, &source, whole).await,
            Err(error) => registry.refuse(&piece.plugin, &source, format!("{first} {}", held.version), &error),
        }
        self.tell(name, &piece.plugin, &source, registry);
        Ok(())
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

    async fn fetch(&self, name: &str) -> Result<Option<ConfigMap>, kube::Error> {
        self.configmaps().get_opt(name).await
    }

    fn configmaps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), &self.namespace)
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
        self.warn(configmap, "PluginRefused", message);
    }

    /// Tells of what is there twice.
    fn tell_twice(&self, configmap: &str, message: String) {
        self.warn(configmap, "PluginTwice", message);
    }

    fn warn(&self, configmap: &str, reason: &str, message: String) {
        self.event(Event {
            regarding: Regarding::ConfigMap(configmap.to_owned()),
            severity: Severity::Warning,
            reason: reason.into(),
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

    /// A ConfigMap is gone, and its plugins with it. Answers those that hold parts of the same wholes: what they passed over it
    /// for they have perhaps themselves.
    fn forget(&self, namespace: &str, name: &str, registry: &Registry) -> Vec<String> {
        let before = self.lock().remove(name).unwrap_or_default();
        self.withdraw_gone(namespace, name, &before, registry);
        let parts: Vec<_> = before.pieces.iter().filter(|piece| piece.part.1 > 1).collect();
        let same = |held: &Held| {
            held.digest == before.digest && held.pieces.iter().any(|piece| parts.iter().any(|part| part.is_with(piece)))
        };
        self.lock().iter().filter(|(_, held)| same(held)).map(|(name, _)| name.clone()).collect()
    }

    /// Where the parts lie of the whole that a ConfigMap holds a part of. Of two that hold the same part the younger goes first,
    /// of two as young the first by name, as with wholes.
    fn parts(&self, held: &Held, piece: &Piece) -> Parts {
        let mut found: BTreeMap<u32, BTreeSet<(Reverse<i64>, String)>> = BTreeMap::new();
        for (at, other) in self.lock().iter().filter(|(_, other)| other.digest == held.digest) {
            for part in other.pieces.iter().filter(|part| part.is_with(piece)) {
                found.entry(part.part.0).or_default().insert((Reverse(other.made), at.clone()));
            }
        }
        let mut all = Parts::default();
        for (part, at) in found {
            let mut at = at.into_iter().map(|(Reverse(made), at)| (at, made));
            all.parts.extend(at.next().map(|first| (part, first)));
            let over: Vec<_> = at.collect();
            if !over.is_empty() {
                all.twice.insert(part, over);
            }
        }
        all
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_part_in_two_config_maps_that_of_the_younger_is_taken_and_the_other_told_of() {
        let seen = Seen::default();
        let hold = |name: &str, made: i64, keys: &[&str], digest: &str| {
            let (pieces, _) = pieces(keys.iter().copied());
            let held = Held { made, digest: Some(digest.into()), pieces, ..Held::default() };
            seen.lock().insert(name.to_owned(), held.clone());
            held
        };
        hold("b", 5, &["p.wasm.1-of-2"], "d");
        hold("z-old", 4, &["p.wasm.1-of-2", "p.wasm.2-of-2"], "d");
        hold("a", 4, &["p.wasm.2-of-2"], "d");
        hold("c-other-whole", 9, &["p.wasm.1-of-2"], "e");
        let held = hold("y-other-cut", 9, &["p.wasm.zst.2-of-2"], "d");
        let place = |name: &str, made| (name.to_owned(), made);
        let part = Piece { plugin: "p".into(), compressed: false, part: (2, 2) };
        let expected = Parts {
            parts: [(1, place("b", 5)), (2, place("a", 4))].into(),
            twice: [(1, vec![place("z-old", 4)]), (2, vec![place("z-old", 4)])].into(),
        };
        assert_eq!(seen.parts(&held, &part), expected);
    }
}
