//! Plugins from ConfigMaps of the operator's namespace: followed as metadata, fetched when they changed, and dropped as soon
//! as they are loaded.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};

use super::{KubeStore, store_error};
use crate::model::PLUGIN_LABEL;
use crate::plugin::registry::Registry;
use crate::store::{Event, Regarding, Severity, Store, StoreError};

/// What was last seen of each ConfigMap: its version, and the plugins that came from it.
#[derive(Default)]
pub(super) struct Seen(Mutex<BTreeMap<String, (String, BTreeSet<String>)>>);

impl KubeStore {
    /// Loads every plugin once.
    ///
    /// # Errors
    /// When the ConfigMaps cannot be listed.
    pub async fn load_plugins(&self, registry: &Registry) -> Result<(), StoreError> {
        let metadata: Api<PartialObjectMeta<ConfigMap>> = Api::namespaced(self.client.clone(), &self.namespace);
        let params = ListParams::default().labels(&selector());
        for found in metadata.list(&params).await.map_err(|e| store_error("ConfigMaps", e))? {
            self.look_at(&found, registry).await;
        }
        Ok(())
    }

    /// Follows the ConfigMaps. Ends never.
    pub async fn watch_plugins(self: Arc<Self>, registry: Arc<Registry>) {
        let metadata: Api<PartialObjectMeta<ConfigMap>> = Api::namespaced(self.client.clone(), &self.namespace);
        let config = watcher::Config::default().labels(&selector());
        let mut stream = watcher(metadata, config).default_backoff().boxed();
        let mut listed = BTreeSet::new();
        while let Some(event) = stream.next().await {
            match event {
                Ok(watcher::Event::Init) => listed.clear(),
                Ok(watcher::Event::InitApply(found)) => {
                    listed.insert(found.name_any());
                    self.look_at(&found, &registry).await;
                }
                Ok(watcher::Event::InitDone) => {
                    let known: Vec<String> = self.plugins.lock().keys().cloned().collect();
                    for gone in known.iter().filter(|name| !listed.contains(*name)) {
                        self.plugins.forget(gone, &registry);
                    }
                }
                Ok(watcher::Event::Apply(found)) => self.look_at(&found, &registry).await,
                Ok(watcher::Event::Delete(gone)) => self.plugins.forget(&gone.name_any(), &registry),
                Err(error) => tracing::warn!(%error, "the watch of plugins is taken up again"),
            }
        }
    }

    /// Offers what a ConfigMap holds, if it changed. What is refused is told by an event on the ConfigMap.
    async fn look_at(&self, found: &PartialObjectMeta<ConfigMap>, registry: &Registry) {
        let (name, version) = (found.name_any(), found.resource_version().unwrap_or_default());
        if self.plugins.lock().get(&name).is_some_and(|(seen, _)| *seen == version) {
            return;
        }
        let bodies: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let body = match bodies.get_opt(&name).await {
            Ok(Some(body)) => body,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(configmap = %name, %error, "a plugin cannot be fetched; it is tried again when it changes");
                return;
            }
        };
        let mut held = BTreeSet::new();
        for (key, bytes) in body.binary_data.unwrap_or_default() {
            let Some(plugin) = key.strip_suffix(".wasm") else { continue };
            held.insert(plugin.to_owned());
            let before = registry.get(plugin).refused;
            registry.offer(plugin, &format!("ConfigMap {}/{name}", self.namespace), bytes.0).await;
            if let Some(refused) = registry.get(plugin).refused.filter(|now| before.as_ref() != Some(now)) {
                self.event(Event {
                    regarding: Regarding::ConfigMap(name.clone()),
                    severity: Severity::Warning,
                    reason: "PluginRefused".into(),
                    message: refused.message,
                });
            }
        }
        let gone = self.plugins.lock().insert(name, (version, held.clone()));
        for plugin in gone.map(|(_, old)| old).unwrap_or_default().difference(&held) {
            registry.withdraw(plugin);
        }
    }
}

impl Seen {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, (String, BTreeSet<String>)>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A ConfigMap is gone, and its plugins with it.
    fn forget(&self, name: &str, registry: &Registry) {
        let held = self.lock().remove(name).map(|(_, held)| held).unwrap_or_default();
        for plugin in held {
            registry.withdraw(&plugin);
        }
    }
}

fn selector() -> String {
    format!("{PLUGIN_LABEL}=true")
}
