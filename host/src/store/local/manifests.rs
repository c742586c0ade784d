//! The folder of manifests: watched, and applied to the stored objects.
//!
//! A file that is half-written or wrong keeps its old objects. An object goes when its manifest vanishes, but never
//! because of doubt: not while any file is wrong, not when the folder is empty, not when over half would go at once.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::ObjectMeta;
use kube::{Resource, ResourceExt};
use notify::{RecursiveMode, Watcher};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

use super::database::Write;
use super::folder::{files, read_file, written_within};
use super::objects::Objects;
use super::{BURIED, Change, LocalStore};
use crate::model::manifest::{Manifest, SecretManifest};
use crate::model::naming::{ObjectRef, ProxyKey};
use crate::model::provider::Provider;
use crate::model::proxy::Proxy;
use crate::model::spec_hash::hex;
use crate::store::{Event, Regarding, Severity, Store as _, StoreError};

/// Digest of the manifest that an object was last applied from.
pub(super) const DIGEST_ANNOTATION: &str = "crawl.example.com/manifest-digest";
/// The file that holds it.
pub(super) const FILE_ANNOTATION: &str = "crawl.example.com/manifest";
/// A folder is looked through at least this often, should the system's notice of a change be lost.
const RESCAN: Duration = Duration::from_secs(30);
/// Several notices in a row are one change.
const SETTLE: Duration = Duration::from_millis(50);
/// A file that was written so recently may be cut off between two documents: nothing goes because it lacks in it.
const UNFINISHED: Duration = Duration::from_secs(5);

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
    good: HashMap<String, Arc<Vec<Manifest>>>,
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
        let memory = self.memory.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut holders: HashMap<_, BTreeSet<String>> = HashMap::new();
        for (file, manifests) in &memory.good {
            for manifest in manifests.iter() {
                holders.entry(manifest.reference()).or_default().insert(file.clone());
            }
        }
        holders
    }
}

/// The objects that the folder asks for, each with the file that holds it.
#[derive(Default)]
pub(super) struct Wanted {
    proxies: BTreeMap<String, (Proxy, String)>,
    providers: BTreeMap<String, (Provider, String)>,
    pub secrets: BTreeMap<String, SecretManifest>,
    files: usize,
    /// Files that were written a moment ago.
    fresh: BTreeSet<String>,
    problems: BTreeMap<String, String>,
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
        let mut wanted = match self.read_folder() {
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
        if self.secrets.replace(std::mem::take(&mut wanted.secrets)) {
            self.changed(Change::Secrets);
        }
        for (key, (provider, file)) in &wanted.providers {
            match self.apply_one(&self.provider_objects, "providers", key, provider, file, changed_provider).await {
                Ok(true) => self.changed(Change::Provider(key.clone())),
                Ok(false) => {}
                Err(problem) => drop(wanted.problems.insert(file.clone(), problem)),
            }
        }
        for (key, (proxy, file)) in &wanted.proxies {
            match self.apply_one(&self.objects, "proxies", key, proxy, file, changed_proxy).await {
                Ok(true) => self.changed(Change::Proxy(ProxyKey::of(proxy))),
                Ok(false) => {}
                Err(problem) => drop(wanted.problems.insert(file.clone(), problem)),
            }
        }
        self.remove_vanished(&mut wanted).await;
        if let Err(error) = self.unbury(&wanted).await {
            wanted.problems.insert(String::new(), error.to_string());
        }
        self.tell(wanted.problems.clone());
        wanted.problems
    }

    /// Reads all files; of a wrong one, what it held when it was last right.
    pub(super) fn read_folder(&self) -> io::Result<Wanted> {
        let files = files(&self.folder.path)?;
        let mut memory = self.folder.memory.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut wanted = Wanted { files: files.len(), ..Wanted::default() };
        let mut good = HashMap::new();
        for path in files {
            let file = path.file_name().and_then(|n| n.to_str()).unwrap_or_default().to_owned();
            let manifests = match read_file(&path) {
                Ok(manifests) => Arc::new(manifests),
                Err(problem) => {
                    wanted
                        .problems
                        .insert(file.clone(), format!("{}: {problem}; its objects stay as they are", path.display()));
                    memory.good.get(&file).cloned().unwrap_or_default()
                }
            };
            if written_within(&path, UNFINISHED) {
                wanted.fresh.insert(file.clone());
            }
            for manifest in manifests.iter() {
                if let Some(what) = wanted.add(manifest, &file) {
                    wanted
                        .problems
                        .insert(file.clone(), format!("{}: {what} is in another file too, which wins", path.display()));
                }
            }
            good.insert(file, manifests);
        }
        memory.good = good;
        Ok(wanted)
    }

    /// Creates or updates one object. `frozen` names a field that may not change. Answers whether anything changed.
    async fn apply_one<T>(
        &self,
        objects: &Objects<T>,
        table: &'static str,
        key: &str,
        manifest: &T,
        file: &str,
        frozen: fn(&T, &T) -> Option<&'static str>,
    ) -> Result<bool, String>
    where
        T: Resource + Clone + Serialize + DeserializeOwned,
    {
        let fail = |e: StoreError| format!("{key}: {e}");
        let digest = digest(manifest);
        let buried = self.database.get(BURIED, &format!("{table}/{key}")).map_err(fail)?;
        if buried.is_some_and(|b| b == digest.as_bytes()) {
            return Ok(false);
        }
        let mut object = manifest.clone();
        let meta = object.meta_mut();
        let annotations = meta.annotations.get_or_insert_default();
        annotations.insert(DIGEST_ANNOTATION.into(), digest.clone());
        annotations.insert(FILE_ANNOTATION.into(), file.to_owned());
        let Some(old) = objects.get(key) else {
            meta.uid = Some(uuid::Uuid::new_v4().to_string());
            meta.generation = Some(1);
            meta.creation_timestamp = Some(Time(self.clock.wall()));
            meta.finalizers = None;
            meta.deletion_timestamp = None;
            return objects.insert(key, object).await.map(|()| true).map_err(fail);
        };
        if old.meta().deletion_timestamp.is_some() || old.annotations().get(DIGEST_ANNOTATION) == Some(&digest) {
            return Ok(false);
        }
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
        let there = |key: &str| match key.split_once('/') {
            Some(("proxies", key)) => wanted.proxies.contains_key(key),
            Some(("providers", name)) => wanted.providers.contains_key(name),
            _ => false,
        };
        let buried = self.database.all(BURIED)?;
        let gone: Vec<_> =
            buried.into_iter().filter(|(key, _)| !there(key)).map(|(key, _)| Write::remove(BURIED, key)).collect();
        if gone.is_empty() { Ok(()) } else { self.database.write(gone).await }
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
            .filter(|key| !wanted.proxies.contains_key(&key.to_string()))
            .collect();
        let providers: Vec<_> = providers
            .into_iter()
            .filter(|p| !may_return(p.annotations()))
            .map(|p| p.name_any())
            .filter(|name| !wanted.providers.contains_key(name))
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
        for key in proxies {
            if let Err(error) = self.remove_proxy(&key).await {
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
        let mut memory = self.folder.memory.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
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

impl Wanted {
    /// Adds one manifest; answers what it is when another file holds the same.
    fn add(&mut self, manifest: &Manifest, file: &str) -> Option<String> {
        match manifest {
            Manifest::Proxy(proxy) => {
                let mut proxy = (**proxy).clone();
                proxy.metadata.namespace.get_or_insert_with(|| "default".into());
                let key = ProxyKey::of(&proxy).to_string();
                let what = format!("Proxy {key}");
                put(&mut self.proxies, key, (proxy, file.to_owned())).then_some(what)
            }
            Manifest::Provider(provider) => {
                let name = provider.name_any();
                let what = format!("Provider {name}");
                put(&mut self.providers, name, ((**provider).clone(), file.to_owned())).then_some(what)
            }
            Manifest::Secret(secret) => {
                put(&mut self.secrets, secret.name.clone(), secret.clone()).then(|| format!("Secret {}", secret.name))
            }
        }
    }
}

/// Puts a value where none is; answers whether one was.
fn put<V>(map: &mut BTreeMap<String, V>, key: String, value: V) -> bool {
    match map.entry(key) {
        std::collections::btree_map::Entry::Occupied(_) => true,
        std::collections::btree_map::Entry::Vacant(free) => {
            free.insert(value);
            false
        }
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

pub(super) fn digest<T: Serialize>(manifest: &T) -> String {
    hex(&Sha256::digest(serde_json::to_vec(manifest).unwrap_or_default()))
}

fn spec_of<T: Serialize>(object: &T) -> Option<serde_json::Value> {
    serde_json::to_value(object).ok()?.get("spec").cloned()
}

#[cfg(test)]
#[path = "manifests_tests.rs"]
mod tests;
