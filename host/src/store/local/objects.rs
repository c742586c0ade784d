//! Objects of one kind: in memory for reading, in the database for good, with versions as an API server keeps them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource;
use kube::ResourceExt;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::database::{Database, Write};
use crate::store::StoreError;

/// All objects of one kind, by key.
pub(super) struct Objects<T> {
    table: &'static str,
    database: Database,
    cached: Mutex<BTreeMap<String, Arc<T>>>,
    /// One writer per object, so that a version is compared and replaced in one step while the disk is waited for.
    writing: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl<T: Resource + ResourceExt + Clone + Serialize + DeserializeOwned> Objects<T> {
    /// Reads a table. An object that cannot be read is an error: going on without it would lose what it stands for.
    pub async fn load(database: Database, table: &'static str) -> Result<Self, StoreError> {
        let mut cached = BTreeMap::new();
        for (key, bytes) in database.all(table)? {
            let object = serde_json::from_slice(&bytes).map_err(|e| {
                StoreError::Unavailable(format!(
                    "{table} {key} cannot be read ({e}); use the version of the operator that wrote it"
                ))
            })?;
            cached.insert(key, Arc::new(object));
        }
        Ok(Self { table, database, cached: Mutex::new(cached), writing: Mutex::default() })
    }

    pub fn all(&self) -> Vec<Arc<T>> {
        self.cache().values().cloned().collect()
    }

    pub fn get(&self, key: &str) -> Option<Arc<T>> {
        self.cache().get(key).cloned()
    }

    /// Stores a new object.
    pub async fn insert(&self, key: &str, mut object: T) -> Result<(), StoreError> {
        let writer = self.writer(key);
        let _one = writer.lock().await;
        if self.get(key).is_some() {
            return Err(StoreError::Conflict(format!("{} {key}", self.table)));
        }
        object.meta_mut().resource_version = Some("1".into());
        self.put(key, object).await.map(drop)
    }

    /// Changes an object, if it still is the version of `decided_on` (none: whatever it is). Answers the new version, or
    /// none when it is gone: under deletion, without finalizers.
    pub async fn update(
        &self,
        key: &str,
        decided_on: Option<&T>,
        change: impl FnOnce(&mut T),
    ) -> Result<Option<Arc<T>>, StoreError> {
        let writer = self.writer(key);
        let _one = writer.lock().await;
        let current = self.get(key).ok_or_else(|| StoreError::NotFound(format!("{} {key}", self.table)))?;
        if decided_on.is_some_and(|d| d.resource_version() != current.resource_version() || d.uid() != current.uid()) {
            return Err(StoreError::Conflict(format!("{} {key}", self.table)));
        }
        let mut object = (*current).clone();
        change(&mut object);
        let gone = object.meta().deletion_timestamp.is_some() && object.finalizers().is_empty();
        if gone {
            self.database.write(vec![Write::remove(self.table, key)]).await?;
            self.cache().remove(key);
            self.forget_writer(key, &writer);
            return Ok(None);
        }
        let version = current.resource_version().and_then(|v| v.parse::<u64>().ok()).unwrap_or(0) + 1;
        object.meta_mut().resource_version = Some(version.to_string());
        self.put(key, object).await.map(Some)
    }

    /// Asks for a deletion; without finalizers the object is gone at once.
    pub async fn delete(&self, key: &str, now: Timestamp) -> Result<(), StoreError> {
        self.update(key, None, |object| {
            object.meta_mut().deletion_timestamp.get_or_insert(Time(now));
        })
        .await
        .map(drop)
    }

    async fn put(&self, key: &str, object: T) -> Result<Arc<T>, StoreError> {
        let bytes = serde_json::to_vec(&object).map_err(|e| StoreError::Unavailable(e.to_string()))?;
        self.database.write(vec![Write::put(self.table, key, bytes)]).await?;
        let object = Arc::new(object);
        self.cache().insert(key.to_owned(), object.clone());
        Ok(object)
    }

    fn cache(&self) -> MutexGuard<'_, BTreeMap<String, Arc<T>>> {
        self.cached.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Drops the lock of an object that is gone, unless somebody waits for it.
    fn forget_writer(&self, key: &str, writer: &Arc<tokio::sync::Mutex<()>>) {
        let mut writing = self.writing.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // The map's handle and ours; a further one is a writer that waits.
        if Arc::strong_count(writer) == 2 {
            writing.remove(key);
        }
    }

    fn writer(&self, key: &str) -> Arc<tokio::sync::Mutex<()>> {
        self.writing.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).entry(key.to_owned()).or_default().clone()
    }
}
