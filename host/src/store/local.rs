//! The store of a standalone operator: objects from a folder of manifests, state in an embedded, crash-safe database.

pub mod database;
mod documents;
mod edit;
mod folder;
mod manifests;
mod objects;
mod secrets;
mod wanted;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::broadcast;

use self::database::{Database, Write};
pub use self::folder::read_file;
use self::manifests::Folder;
use self::objects::Objects;
pub use self::secrets::SecretFiles;
use super::recent::Recent;
use super::{Applied, Change, Event, LabelledSecret, Store, StoreError};
use crate::model::API_TOKEN_LABEL;
use crate::model::abandoned::{ABANDONED, Abandoned};
use crate::model::clock::Clock;
use crate::model::login::{Login, LoginKey};
use crate::model::naming::{Kind, ObjectRef, ProxyKey};
use crate::model::provider::{Provider, ProviderStatus, Source};
use crate::model::proxy::{NameRef, Proxy, ProxyStatus};
use crate::model::secret::SecretBytes;
use crate::plugin::grants::{SecretError, Secrets};

/// Instances that were given up.
const ABANDONED_TABLE: &str = "abandoned";
/// What was deleted by command although its manifest is still there, with the digest of that manifest.
const BURIED: &str = "buried";

/// The store of a standalone operator.
pub struct LocalStore {
    installation: String,
    login_key: LoginKey,
    database: Database,
    objects: Objects<Proxy>,
    provider_objects: Objects<Provider>,
    secrets: SecretFiles,
    changes: broadcast::Sender<Change>,
    events: Recent,
    folder: Folder,
    clock: Arc<dyn Clock>,
}

impl LocalStore {
    /// Reads the database. `files` are folders below which `file` references of Providers may point.
    ///
    /// # Errors
    /// When an object in it cannot be read, or the disk fails.
    pub async fn open(
        database: Database,
        manifests: &Path,
        files: Vec<PathBuf>,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>, StoreError> {
        let installation =
            database.once("meta", "installation", || uuid::Uuid::new_v4().to_string().into_bytes()).await?;
        let key = database.once("keys", "login", || rand::random::<[u8; 32]>().to_vec()).await?;
        let (changes, _) = broadcast::channel(1024);
        if let Err(error) = super::whole_file::clear(manifests) {
            tracing::warn!(path = %manifests.display(), %error, "what a crash may have left of files cannot be removed");
        }
        Ok(Arc::new(Self {
            installation: String::from_utf8(installation)
                .map_err(|_| StoreError::Unavailable("the installation id is damaged".into()))?,
            login_key: LoginKey::new(key.into()),
            objects: Objects::load(database.clone(), "proxies").await?,
            provider_objects: Objects::load(database.clone(), "providers").await?,
            secrets: SecretFiles::new(files),
            database,
            changes,
            events: Recent::default(),
            folder: Folder::new(manifests),
            clock,
        }))
    }

    fn changed(&self, change: Change) {
        // Nobody listening is fine.
        let _ = self.changes.send(change);
    }
}

#[async_trait]
impl Secrets for LocalStore {
    async fn resolve(&self, source: &Source) -> Result<SecretBytes, SecretError> {
        self.secrets.value(source)
    }
}

#[async_trait]
impl Store for LocalStore {
    fn installation(&self) -> &str {
        &self.installation
    }

    fn proxies(&self) -> Vec<Arc<Proxy>> {
        self.objects.all()
    }

    fn proxy(&self, key: &ProxyKey) -> Option<Arc<Proxy>> {
        self.objects.get(&key.to_string())
    }

    fn providers(&self) -> Vec<Arc<Provider>> {
        self.provider_objects.all()
    }

    fn provider(&self, name: &str) -> Option<Arc<Provider>> {
        self.provider_objects.get(name)
    }

    fn namespace_labels(&self, namespace: &str) -> BTreeMap<String, String> {
        // Here a namespace is nothing but its name.
        BTreeMap::from([(super::NAMESPACE_NAME.to_owned(), namespace.to_owned())])
    }

    fn changes(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }

    async fn set_proxy_status(&self, proxy: &Proxy, status: ProxyStatus) -> Result<Arc<Proxy>, StoreError> {
        let key = ProxyKey::of(proxy);
        let stored = self.objects.update(&key.to_string(), Some(proxy), |object| object.status = Some(status)).await?;
        self.changed(Change::Proxy(key));
        stored.ok_or_else(|| StoreError::NotFound("the Proxy".into()))
    }

    async fn set_proxy_finalizer(&self, proxy: &Proxy, present: bool) -> Result<Option<Arc<Proxy>>, StoreError> {
        let key = ProxyKey::of(proxy);
        let stored = self
            .objects
            .update(&key.to_string(), Some(proxy), |object| {
                let ours = crate::model::PROXY_FINALIZER;
                object.metadata.finalizers = Some(super::finalizers_with(object, ours, present));
            })
            .await?;
        if stored.is_none() {
            // Its manifest may be there again, or may have waited for the old object to go.
            self.folder.look_again();
        }
        self.changed(Change::Proxy(key));
        Ok(stored)
    }

    async fn fresh_proxies(&self) -> Result<Vec<Arc<Proxy>>, StoreError> {
        Ok(self.objects.all())
    }

    async fn fresh_proxy(&self, key: &ProxyKey) -> Result<Option<Arc<Proxy>>, StoreError> {
        Ok(self.proxy(key))
    }

    async fn abandoned(&self) -> Result<Vec<Abandoned>, StoreError> {
        let all = self.database.all(ABANDONED_TABLE)?;
        let parse = |(key, bytes): (String, Vec<u8>)| {
            serde_json::from_slice(&bytes)
                .map_err(|e| StoreError::Unavailable(format!("abandoned instance {key} cannot be read: {e}")))
        };
        all.into_iter().map(parse).collect()
    }

    async fn abandon(&self, given_up: Vec<Abandoned>) -> Result<(), StoreError> {
        if self.abandoned().await?.len() + given_up.len() > ABANDONED {
            return Err(super::too_many_abandoned());
        }
        let write = |a: Abandoned| {
            let bytes = serde_json::to_vec(&a).map_err(|e| StoreError::Unavailable(e.to_string()))?;
            Ok(Write::put(ABANDONED_TABLE, a.key(), bytes))
        };
        self.database.write(given_up.into_iter().map(write).collect::<Result<_, StoreError>>()?).await
    }

    async fn forget_abandoned(&self, key: &str) -> Result<bool, StoreError> {
        let known = self.abandoned().await?.iter().any(|a| a.key() == key);
        self.database.write(vec![Write::remove(ABANDONED_TABLE, key)]).await?;
        Ok(known)
    }

    async fn set_provider_finalizer(&self, provider: &Provider, present: bool) -> Result<(), StoreError> {
        let name = provider.metadata.name.clone().unwrap_or_default();
        let finalizers = super::finalizers_with(provider, crate::model::PROVIDER_FINALIZER, present);
        let set = |object: &mut Provider| object.metadata.finalizers = Some(finalizers);
        if self.provider_objects.update(&name, Some(provider), set).await?.is_none() {
            // Its manifest may be there again, or may have waited for the old object to go.
            self.folder.look_again();
        }
        self.changed(Change::Provider(name));
        Ok(())
    }

    async fn hold_plugins(&self, _: &BTreeSet<String>) -> Result<(), StoreError> {
        // Here a plugin is a file, which nothing can hold.
        Ok(())
    }

    async fn set_provider_status(&self, provider: &Provider, status: ProviderStatus) -> Result<(), StoreError> {
        let name = provider.metadata.name.clone().unwrap_or_default();
        self.provider_objects.update(&name, Some(provider), |object| object.status = Some(status)).await?;
        self.changed(Change::Provider(name));
        Ok(())
    }

    async fn delete_proxy(&self, key: &ProxyKey) -> Result<(), StoreError> {
        self.delete_one(ObjectRef::new(Kind::Proxy, &key.namespace, &key.name)).await
    }

    async fn delete_provider(&self, name: &str) -> Result<(), StoreError> {
        self.delete_one(ObjectRef::new(Kind::Provider, "", name)).await
    }

    async fn apply(&self, text: &str) -> Result<Vec<(ObjectRef, Applied)>, StoreError> {
        self.apply_text(text).await
    }

    async fn delete(&self, objects: &[ObjectRef]) -> Vec<Result<Option<String>, StoreError>> {
        self.delete_all(objects).await
    }

    async fn login_keys(&self) -> Result<Vec<LoginKey>, StoreError> {
        Ok(vec![self.login_key.clone()])
    }

    async fn proxy_login(&self, _namespace: &str, secret: &NameRef) -> Result<Login, SecretError> {
        self.secrets.login(&secret.name)
    }

    async fn publish_login(&self, proxy: &Proxy, _: &str, _: &Login) -> Result<(), StoreError> {
        // The manifest folder refuses such objects; one of an earlier version says so here.
        Err(StoreError::Taken(format!("{}: standalone there is no Secret to publish into", ProxyKey::of(proxy))))
    }

    async fn token_secrets(&self) -> Result<Vec<LabelledSecret>, StoreError> {
        Ok(self.secrets.labelled(API_TOKEN_LABEL))
    }

    fn event(&self, event: Event) {
        self.events.record(event);
    }

    fn events(&self) -> Vec<Event> {
        self.events.all()
    }
}

impl LocalStore {
    async fn remove_proxy(&self, key: &ProxyKey) -> Result<(), StoreError> {
        self.objects.delete(&key.to_string(), self.clock.wall()).await?;
        self.changed(Change::Proxy(key.clone()));
        Ok(())
    }

    async fn remove_provider(&self, name: &str) -> Result<(), StoreError> {
        self.provider_objects.delete(name, self.clock.wall()).await?;
        self.changed(Change::Provider(name.to_owned()));
        Ok(())
    }

    async fn delete_one(&self, object: ObjectRef) -> Result<(), StoreError> {
        self.delete_all(&[object]).await.pop().unwrap_or(Ok(None)).map(drop)
    }
}
