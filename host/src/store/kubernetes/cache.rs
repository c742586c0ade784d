//! What was last seen of one kind: filled by a list, followed by a watch, and by our own writes as soon as they are
//! answered, so that the next decision never stands on a version that we replaced ourselves.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard};

use futures::{Stream, StreamExt};
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::{WATCH_SECONDS, key_of, store_error};
use crate::model::pulse::{BEAT, Beat, PULSE};
use crate::store::{StoreError, finalizers_with};

/// Objects of a list request; more would hold much in memory at once.
const PAGE: u32 = 500;

pub(super) struct Cache<T> {
    api: Api<T>,
    labels: Option<String>,
    seen: Mutex<BTreeMap<String, Arc<T>>>,
}

impl<T> Cache<T>
where
    T: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    pub fn new(api: Api<T>) -> Self {
        Self { api, labels: None, seen: Mutex::default() }
    }

    /// Only those that this selector fits.
    pub fn labelled(self, selector: &str) -> Self {
        Self { labels: Some(selector.to_owned()), ..self }
    }

    /// Lists everything; what is gone is forgotten.
    pub async fn fill(&self) -> Result<(), StoreError> {
        let before: Vec<Arc<T>> = self.all();
        let there: BTreeSet<String> = self.list().await?.iter().map(|object| key_of(&**object)).collect();
        for gone in before.iter().filter(|object| !there.contains(&key_of(&***object))) {
            self.drop(&key_of(&**gone), gone.uid().as_deref());
        }
        Ok(())
    }

    /// All that there is now, page by page.
    pub async fn list(&self) -> Result<Vec<Arc<T>>, StoreError> {
        let mut found = Vec::new();
        let mut params = ListParams { label_selector: self.labels.clone(), ..ListParams::default().limit(PAGE) };
        loop {
            let page = self.api.list(&params).await.map_err(|e| store_error(&T::plural(&()), e))?;
            let next = page.metadata.continue_.clone().filter(|token| !token.is_empty());
            for object in page.items {
                found.push(self.keep(object));
            }
            match next {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(found),
            }
        }
    }

    /// Follows the API server; `changed` is told of each object that came, changed or went. Ends never.
    pub async fn follow(&self, changed: impl Fn(&T)) {
        let mut stream = watcher(self.api.clone(), watched(self.labels.as_deref())).default_backoff().boxed();
        let mut listed: Option<BTreeSet<String>> = None;
        let beat = PULSE.of("watch");
        while let Some(event) = next(&mut stream, &beat).await {
            match event {
                Ok(watcher::Event::Init) => listed = Some(BTreeSet::new()),
                Ok(watcher::Event::InitApply(object)) => {
                    if let Some(listed) = &mut listed {
                        listed.insert(key_of(&object));
                    }
                    self.take_in(object, &changed);
                }
                Ok(watcher::Event::InitDone) => {
                    let listed = listed.take().unwrap_or_default();
                    for gone in self.all().into_iter().filter(|object| !listed.contains(&key_of(&**object))) {
                        self.drop(&key_of(&*gone), gone.uid().as_deref());
                        changed(&gone);
                    }
                }
                Ok(watcher::Event::Apply(object)) => self.take_in(object, &changed),
                Ok(watcher::Event::Delete(object)) => {
                    self.drop(&key_of(&object), object.uid().as_deref());
                    changed(&object);
                }
                Err(error) => tracing::warn!(kind = %T::kind(&()), %error, "the watch is taken up again"),
            }
        }
    }

    fn take_in(&self, object: T, changed: impl Fn(&T)) {
        let version = object.resource_version();
        let kept = self.keep(object);
        if kept.resource_version() == version {
            changed(&kept);
        }
    }

    /// Keeps an object, unless this version or a later one is there; answers what is there then.
    pub fn keep(&self, mut object: T) -> Arc<T> {
        // Nobody here reads who owns which field.
        object.meta_mut().managed_fields = None;
        if let Some(annotations) = object.meta_mut().annotations.as_mut() {
            annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
        }
        let key = key_of(&object);
        let mut seen = self.lock();
        // Of an earlier namesake, too: the versions of one kind are one sequence.
        if let Some(newer) = seen.get(&key).filter(|old| version(&***old) >= version(&object).max(Some(0))) {
            return newer.clone();
        }
        let object = Arc::new(object);
        seen.insert(key, object.clone());
        object
    }

    /// Sets or removes our finalizer on the version given, over `api`; none: the object is gone with it.
    pub async fn set_finalizer(
        &self,
        api: Api<T>,
        object: &T,
        ours: &str,
        present: bool,
    ) -> Result<Option<Arc<T>>, StoreError> {
        let key = key_of(object);
        let finalizers = finalizers_with(object, ours, present);
        let gone = object.meta().deletion_timestamp.is_some() && finalizers.is_empty();
        // A merge patch that names the version: the list is replaced only if it is the one that was read.
        let meta = json!({"resourceVersion": object.resource_version(), "finalizers": finalizers});
        let patch = Patch::Merge(json!({"metadata": meta}));
        let stored = match api.patch(&object.name_any(), &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(status)) if gone && status.code == 404 => None,
            stored => Some(stored.map_err(|e| store_error(&key, e))?),
        };
        match stored.filter(|_| !gone) {
            Some(stored) => Ok(Some(self.keep(stored))),
            None => {
                self.drop(&key, object.uid().as_deref());
                Ok(None)
            }
        }
    }

    /// Forgets an object, unless another of its name has come.
    pub fn drop(&self, key: &str, uid: Option<&str>) {
        let mut seen = self.lock();
        if seen.get(key).is_some_and(|object| uid.is_none() || object.uid().as_deref() == uid) {
            seen.remove(key);
        }
    }

    pub fn all(&self) -> Vec<Arc<T>> {
        self.lock().values().cloned().collect()
    }

    pub fn get(&self, key: &str) -> Option<Arc<T>> {
        self.lock().get(key).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<T>>> {
        self.seen.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// How objects are watched; all, or those that a selector fits.
pub(super) fn watched(labels: Option<&str>) -> watcher::Config {
    let config = watcher::Config::default().timeout(WATCH_SECONDS);
    watcher::Config { label_selector: labels.map(str::to_owned), ..config }
}

/// What a watch tells next; the beat goes on while it tells nothing.
pub(super) async fn next<T>(stream: &mut (impl Stream<Item = T> + Unpin), beat: &Beat<'_>) -> Option<T> {
    beating(beat, stream.next()).await
}

/// Something that may take long, with a beat meanwhile.
pub(super) async fn beating<T>(beat: &Beat<'_>, work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    loop {
        beat.turned();
        if let Ok(done) = tokio::time::timeout(BEAT, &mut work).await {
            return done;
        }
    }
}

/// Versions of objects of one kind can be compared as numbers (Kubernetes enhancement 5504). None: it has none.
fn version<T: Resource>(object: &T) -> Option<u64> {
    object.meta().resource_version.as_deref().and_then(|v| v.parse().ok())
}
