//! The folder of manifests: watched, and applied to the stored objects.
//!
//! A file that is half-written or wrong keeps its old objects. An object goes when its manifest vanishes, but never
//! because of doubt: not while any file is wrong, not when the folder is empty, not when over half would go at once.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use futures::future::join_all;
use futures::{StreamExt as _, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::ObjectMeta;
use kube::{Resource, ResourceExt};
use notify::{RecursiveMode, Watcher};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::Notify;

use super::database::Write;
use super::objects::Objects;
use super::wanted::{Declared, Files, Wanted};
use super::{BURIED, Change, LocalStore};
use crate::model::manifest::Manifest;
use crate::model::naming::{Kind, ObjectRef, ProxyKey};
use crate::model::provider::Provider;
use crate::model::proxy::Proxy;
use crate::store::{Event, Regarding, Severity, Store as _, StoreError};

/// Digest of the manifest that an object was last applied from.
pub(super) const DIGEST_ANNOTATION: &str = "crawl.example.com/manifest-digest";
/// The file that holds it.
pub(super) const FILE_ANNOTATION: &str = "crawl.example.com/manifest";
/// A folder is looked through at least this often, should the system's notice of a change be lost.
const RESCAN: Duration = Duration::from_secs(30);
/// Several notices in a row are one change.
const SETTLE: Duration = Duration::from_millis(50);
/// Objects that are stored at once: they share the syncs of the disk.
const AT_ONCE: usize = 512;

pub(super) struct Folder {
    pub path: PathBuf,
    again: Notify,
    /// One at a time reads the folder or changes it, and applies it.
    pub turn: tokio::sync::Mutex<()>,
    memory: Mutex<Memory>,
}

/// What the last look found.
#[derive(Default)]
struct Memory {
    files: Files,
    problems: BTreeMap<String, String>,
}

impl Folder {
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), again: Notify::new(), turn: Default::default(), memory: Mutex::default() }
    }

    pub fn look_again(&self) {
        self.again.notify_one();
    }

    /// The files that hold each object, in the order in which they count, as they were when last looked at.
    pub fn holders(&self) -> HashMap<ObjectRef, BTreeSet<String>> {
        self.memory().files.holders()
    }

    /// Looks through all files.
    pub fn read(&self) -> io::Result<Wanted> {
        self.memory().files.read(&self.path, SystemTime::now())
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl LocalStore {
    /// Applies the folder now and whenever it changes, and follows the files with credentials. Ends never.
    pub async fn watch_manifests(self: Arc<Self>) {
        let this = self.clone();
        let watcher = notify::recommended_watcher(move |_| this.folder.look_again()).and_then(|mut watcher| {
            watcher.watch(&self.folder.path, RecursiveMode::NonRecursive)?;
            Ok(watcher)
        });
        if let Err(error) = &watcher {
            tracing::warn!(path = %self.folder.path.display(), %error, "the folder cannot be watched; it is looked through every {RESCAN:?}");
        }
        let folder = async {
            loop {
                self.apply_manifests().await;
                let _ = tokio::time::timeout(RESCAN, self.folder.again.notified()).await;
                tokio::time::sleep(SETTLE).await;
            }
        };
        let files = self.secrets.follow_files(|| self.changed(Change::Secrets));
        futures::future::join(folder, files).await;
    }

    /// Applies the folder once. What is wrong is told by an event that names the file, once.
    pub async fn apply_manifests(&self) {
        let _turn = self.folder.turn.lock().await;
        self.apply_manifests_in_turn().await;
    }

    /// The same for whoever has the turn; answers the problems by file.
    pub(super) async fn apply_manifests_in_turn(&self) -> BTreeMap<String, String> {
        let mut wanted = match self.folder.read() {
            Ok(wanted) => wanted,
            Err(error) => {
                let problem = format!(
                    "the manifest folder {} cannot be read ({error}); every object stays as it is",
                    self.folder.path.display()
                );
                let problems = BTreeMap::from([(String::new(), problem)]);
                self.tell(problems.clone());
                return problems;
            }
        };
        let secrets = wanted.of(Kind::Secret).filter_map(|(one, _)| wanted.secret(&one.object.name));
        if self.secrets.replace(secrets.map(|secret| (secret.name.clone(), secret.clone())).collect()) {
            self.changed(Change::Secrets);
        }
        let mut problems = BTreeMap::new();
        for kind in [Kind::Provider, Kind::Proxy] {
            // Most are as they should be; what is asked of the database is asked about the others alone.
            let unsettled = wanted.of(kind).filter(|(declared, _)| !self.is_settled(declared));
            let unsettled: Vec<_> = unsettled.map(|(declared, file)| (declared.clone(), file.to_owned())).collect();
            let applied = stream::iter(unsettled).map(|(declared, file)| async move {
                let outcome = self.apply_declared(&declared, &file).await;
                (declared, file, outcome)
            });
            let mut applied = applied.buffered(AT_ONCE);
            while let Some((declared, file, outcome)) = applied.next().await {
                match outcome {
                    Ok(true) => self.changed(change(&declared.object)),
                    Ok(false) => {}
                    Err(problem) => drop(problems.insert(file, problem)),
                }
            }
        }
        wanted.problems.extend(problems);
        self.remove_vanished(&mut wanted).await;
        if let Err(error) = self.unbury(&wanted).await {
            wanted.problems.insert(String::new(), error.to_string());
        }
        self.tell(wanted.problems.clone());
        wanted.problems
    }

    /// Whether an object is as its manifest says, or on its way out.
    fn is_settled(&self, declared: &Declared) -> bool {
        let settled = |meta: &ObjectMeta| {
            let digest = meta.annotations.as_ref().and_then(|all| all.get(DIGEST_ANNOTATION));
            meta.deletion_timestamp.is_some() || digest == Some(&declared.digest)
        };
        match declared.object.kind {
            Kind::Proxy => self.objects.get(&declared.object.key()).is_some_and(|o| settled(&o.metadata)),
            Kind::Provider => self.provider_objects.get(&declared.object.key()).is_some_and(|o| settled(&o.metadata)),
            Kind::Secret => true,
        }
    }

    async fn apply_declared(&self, declared: &Declared, file: &str) -> Result<bool, String> {
        match &declared.manifest {
            Manifest::Provider(provider) => {
                self.apply_one(&self.provider_objects, provider, declared, file, changed_provider).await
            }
            Manifest::Proxy(proxy) => self.apply_one(&self.objects, proxy, declared, file, changed_proxy).await,
            Manifest::Secret(_) => Ok(false),
        }
    }

    /// Creates or updates one object. `frozen` names a field that may not change. Answers whether anything changed.
    async fn apply_one<T>(
        &self,
        objects: &Objects<T>,
        manifest: &T,
        declared: &Declared,
        file: &str,
        frozen: fn(&T, &T) -> Option<&'static str>,
    ) -> Result<bool, String>
    where
        T: Resource + Clone + Serialize + DeserializeOwned,
    {
        let (key, digest) = (&declared.object.key(), &declared.digest);
        let fail = |e: StoreError| format!("{key}: {e}");
        let old = objects.get(key);
        let buried_key = buried_key(&declared.object).unwrap_or_default();
        if self.database.get(BURIED, &buried_key).map_err(fail)?.is_some_and(|buried| buried == digest.as_bytes()) {
            return Ok(false);
        }
        let mut object = manifest.clone();
        let meta = object.meta_mut();
        let annotations = meta.annotations.get_or_insert_default();
        annotations.insert(DIGEST_ANNOTATION.into(), digest.clone());
        annotations.insert(FILE_ANNOTATION.into(), file.to_owned());
        let Some(old) = old else {
            meta.uid = Some(uuid::Uuid::new_v4().to_string());
            meta.generation = Some(1);
            meta.creation_timestamp = Some(Time(self.clock.wall()));
            meta.finalizers = None;
            meta.deletion_timestamp = None;
            return objects.insert(key, object).await.map(|()| true).map_err(fail);
        };
        if let Some(field) = frozen(&old, manifest) {
            return Err(format!(
                "{key}: {field} cannot be changed; delete the object and create it anew. The old one stays"
            ));
        }
        let (labels, annotations) = (meta.labels.clone(), meta.annotations.clone());
        let spec_changed = spec_of(&*old) != spec_of(manifest);
        let update = objects.update(key, None, |current| {
            let ObjectMeta { generation, .. } = current.meta().clone();
            let status = serde_json::to_value(&*current)
                .ok()
                .and_then(|mut v| v.as_object_mut().and_then(|o| o.remove("status")));
            let kept = current.meta().clone();
            // Everything but the metadata that we own and the status comes from the manifest.
            let mut value = serde_json::to_value(&object).unwrap_or_default();
            if let (Some(fields), Some(status)) = (value.as_object_mut(), status) {
                fields.insert("status".into(), status);
            }
            if let Ok(next) = serde_json::from_value::<T>(value) {
                *current = next;
            }
            *current.meta_mut() = ObjectMeta {
                labels,
                annotations,
                generation: Some(generation.unwrap_or(1) + i64::from(spec_changed)),
                ..kept
            };
        });
        update.await.map(|_| true).map_err(fail)
    }

    /// Forgets what was deleted by command once its manifest is gone: put there again, it counts.
    async fn unbury(&self, wanted: &Wanted) -> Result<(), StoreError> {
        if !wanted.problems.is_empty() {
            return Ok(());
        }
        let buried = self.database.all(BURIED)?;
        if buried.is_empty() {
            return Ok(());
        }
        let declared = wanted.of(Kind::Proxy).chain(wanted.of(Kind::Provider));
        let there: HashSet<String> = declared.filter_map(|(one, _)| buried_key(&one.object)).collect();
        let gone: Vec<_> = buried
            .into_iter()
            .filter(|(key, _)| !there.contains(key))
            .map(|(key, _)| Write::remove(BURIED, key))
            .collect();
        self.database.write(gone).await
    }

    /// Deletes objects whose manifests are gone, if that is beyond doubt.
    async fn remove_vanished(&self, wanted: &mut Wanted) {
        let from_folder = |annotations: &BTreeMap<String, String>| annotations.contains_key(FILE_ANNOTATION);
        // What a file that is just being written holds no more may be back in a moment.
        let may_return = |annotations: &BTreeMap<String, String>| {
            annotations.get(FILE_ANNOTATION).is_some_and(|file| wanted.fresh.contains(file))
        };
        let proxies: Vec<_> =
            self.proxies().into_iter().filter(|p| from_folder(p.annotations()) && !p.is_deleting()).collect();
        let providers: Vec<_> = self
            .providers()
            .into_iter()
            .filter(|p| from_folder(p.annotations()) && p.meta().deletion_timestamp.is_none())
            .collect();
        let total = proxies.len() + providers.len();
        let proxies: Vec<_> = proxies
            .into_iter()
            .filter(|p| !may_return(p.annotations()))
            .map(|p| ProxyKey::of(&p))
            .filter(|key| !wanted.holds(&ObjectRef::new(Kind::Proxy, &key.namespace, &key.name)))
            .collect();
        let providers: Vec<_> = providers
            .into_iter()
            .filter(|p| !may_return(p.annotations()))
            .map(|p| p.name_any())
            .filter(|name| !wanted.holds(&ObjectRef::new(Kind::Provider, "", name)))
            .collect();
        let vanished = proxies.len() + providers.len();
        if vanished == 0 {
            return;
        }
        let doubt = if wanted.files == 0 {
            Some("the manifest folder holds no manifest".to_owned())
        } else if !wanted.problems.is_empty() {
            Some("some manifest is wrong".to_owned())
        } else if vanished * 2 > total {
            Some(format!("{vanished} of {total} manifests vanished at once"))
        } else {
            None
        };
        if let Some(doubt) = doubt {
            wanted.problems.insert(String::new(), format!("{doubt}, so nothing is deleted; delete objects with `proxy-operator delete`, or bring the manifests back"));
            return;
        }
        let removed = join_all(proxies.iter().map(|key| self.remove_proxy(key))).await;
        for (key, outcome) in proxies.iter().zip(removed) {
            if let Err(error) = outcome {
                wanted.problems.insert(key.to_string(), error.to_string());
            }
        }
        for name in providers {
            if let Err(error) = self.remove_provider(&name).await {
                wanted.problems.insert(name, error.to_string());
            }
        }
    }

    /// Events for problems that are new, and for those that are over.
    fn tell(&self, problems: BTreeMap<String, String>) {
        let mut memory = self.folder.memory();
        let regarding = |file: &str| Regarding::Manifest(file.to_owned());
        for (file, problem) in &problems {
            if memory.problems.get(file) != Some(problem) {
                self.event(Event {
                    regarding: regarding(file),
                    severity: Severity::Warning,
                    reason: "ManifestRefused".into(),
                    message: problem.clone(),
                });
            }
        }
        for file in memory.problems.keys().filter(|file| !problems.contains_key(*file)) {
            self.event(Event {
                regarding: regarding(file),
                severity: Severity::Normal,
                reason: "ManifestAccepted".into(),
                message: "the problem is over".into(),
            });
        }
        memory.problems = problems;
    }
}

/// Under which key it is remembered that an object was deleted by command.
pub(super) fn buried_key(object: &ObjectRef) -> Option<String> {
    match object.kind {
        Kind::Proxy => Some(format!("proxies/{}", object.key())),
        Kind::Provider => Some(format!("providers/{}", object.key())),
        Kind::Secret => None,
    }
}

fn change(object: &ObjectRef) -> Change {
    match &object.namespace {
        Some(namespace) => Change::Proxy(ProxyKey { namespace: namespace.clone(), name: object.name.clone() }),
        None => Change::Provider(object.name.clone()),
    }
}

/// The field of a Proxy that may not change, if it does.
pub(super) fn changed_proxy(old: &Proxy, new: &Proxy) -> Option<&'static str> {
    (old.spec.provider != new.spec.provider).then_some("spec.provider")
}

/// The field of a Provider that may not change, if it does.
pub(super) fn changed_provider(old: &Provider, new: &Provider) -> Option<&'static str> {
    (old.spec.plugin.name != new.spec.plugin.name).then_some("spec.plugin.name")
}

fn spec_of<T: Serialize>(object: &T) -> Option<serde_json::Value> {
    serde_json::to_value(object).ok()?.get("spec").cloned()
}

#[cfg(test)]
#[path = "manifests_tests.rs"]
mod tests;
