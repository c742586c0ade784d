//! The store of an operator in Kubernetes: the API server holds everything; memory holds what was last seen of it.

mod abandoned;
mod cache;
mod claim;
pub mod election;
mod events;
mod plugins;
mod secrets;
mod tokens;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DeleteParams, PostParams};
use kube::{Client, Resource, ResourceExt};
use tokio::sync::broadcast;

use self::cache::Cache;
use self::events::Events;
pub use self::plugins::DIGEST_ANNOTATION;
use self::secrets::Secrets as KubeSecrets;
use super::{Applied, Change, Event, LabelledSecret, Store, StoreError};
use crate::model::abandoned::Abandoned;
use crate::model::clock::Clock;
use crate::model::login::{Login, LoginKey};
use crate::model::mandate::Mandate;
use crate::model::naming::{Kind, ObjectRef, ProxyKey};
use crate::model::provider::{Provider, ProviderStatus, Source};
use crate::model::proxy::{NameRef, Proxy, ProxyStatus};
use crate::model::secret::SecretBytes;
use crate::model::{PROVIDER_FINALIZER, PROXY_FINALIZER};
use crate::plugin::grants::{ApiServer, Cluster, SecretError, Secrets};

/// A connection on which nothing arrives for so long is taken for lost.
const SILENCE: Duration = Duration::from_secs(40);
/// The API server ends a watch that often, so that one without news is not taken for lost, nor a lost one for quiet.
const WATCH_SECONDS: u32 = 30;

/// The store of an operator in Kubernetes.
pub struct KubeStore {
    client: Client,
    namespace: String,
    installation: String,
    plugins: plugins::Seen,
    proxies: Cache<Proxy>,
    providers: Cache<Provider>,
    namespaces: Cache<Namespace>,
    secrets: KubeSecrets,
    abandoned: abandoned::List,
    events: Events,
    login_keys: Vec<LoginKey>,
    api_server: ApiServer,
    changes: broadcast::Sender<Change>,
    clock: Arc<dyn Clock>,
    mandate: Arc<Mandate>,
}

impl KubeStore {
    /// Connects; on return all Proxies and Providers were listed once. `namespace` is the operator's own. `installation`:
    /// the id to use instead of the cluster's own. `files`: folders below which `file` references of Providers may point.
    /// `mandate`: while it does not hold, no object is written.
    ///
    /// # Errors
    /// When the API server does not answer, or refuses, or another installation serves the cluster.
    pub async fn connect(
        mut config: kube::Config,
        namespace: &str,
        installation: Option<String>,
        files: Vec<PathBuf>,
        clock: Arc<dyn Clock>,
        mandate: Arc<Mandate>,
    ) -> Result<Arc<Self>, StoreError> {
        config.read_timeout = Some(SILENCE);
        let api_server = tokens::api_server(&config);
        let client = Client::try_from(config).map_err(|e| StoreError::Unavailable(e.to_string()))?;
        claim::claim(&client, namespace).await?;
        let installation = match installation {
            Some(id) => id,
            None => {
                let system: Api<Namespace> = Api::all(client.clone());
                let system = system.get("kube-system").await.map_err(|e| store_error("Namespace kube-system", e))?;
                system.uid().unwrap_or_default()
            }
        };
        let secrets = KubeSecrets::new(client.clone(), namespace, files);
        let login_keys = secrets.login_keys().await?;
        let (changes, _) = broadcast::channel(4096);
        let this = Arc::new(Self {
            proxies: Cache::new(Api::all(client.clone())),
            providers: Cache::new(Api::all(client.clone())),
            namespaces: Cache::new(Api::all(client.clone())),
            events: Events::start(client.clone(), namespace),
            abandoned: abandoned::List::new(client.clone(), namespace),
            namespace: namespace.to_owned(),
            installation,
            plugins: plugins::Seen::default(),
            secrets,
            login_keys,
            api_server,
            client,
            changes,
            clock,
            mandate,
        });
        this.refresh().await?;
        Ok(this)
    }

    /// Reads everything anew: what a leader decides first must not rest on what its predecessor changed since.
    ///
    /// # Errors
    /// When the API server does not answer, or refuses.
    pub async fn refresh(&self) -> Result<(), StoreError> {
        self.secrets.fill().await?;
        self.namespaces.fill().await?;
        self.providers.fill().await?;
        self.proxies.fill().await
    }

    /// Follows the API server. Ends never.
    pub async fn watch(self: Arc<Self>) {
        let proxies = self.proxies.follow(|proxy| self.changed(Change::Proxy(ProxyKey::of(proxy))));
        let providers = self.providers.follow(|provider| self.changed(Change::Provider(provider.name_any())));
        let namespaces = self.namespaces.follow(|namespace| self.changed(Change::Namespace(namespace.name_any())));
        let secrets = self.secrets.follow(|| self.changed(Change::Secrets));
        futures::future::join4(proxies, providers, namespaces, secrets).await;
    }

    fn proxy_api(&self, proxy: &Proxy) -> Api<Proxy> {
        Api::namespaced(self.client.clone(), &proxy.namespace().unwrap_or_default())
    }

    /// Refuses a write of what this replica decided when it no longer leads. The version that a write names is no guard against
    /// that: it is the newest one, and what is remembered of the instance may be from before.
    fn may_write(&self) -> Result<(), StoreError> {
        if self.mandate.holds(self.clock.monotonic()) {
            return Ok(());
        }
        Err(StoreError::Unavailable("another replica of the operator leads".into()))
    }

    fn changed(&self, change: Change) {
        // Nobody listening is fine.
        let _ = self.changes.send(change);
    }
}

/// An error of the API server, by what it means for whoever wrote.
fn store_error(what: &str, error: kube::Error) -> StoreError {
    match &error {
        kube::Error::Api(status) if status.code == 409 => StoreError::Conflict(what.to_owned()),
        kube::Error::Api(status) if status.code == 404 => StoreError::NotFound(what.to_owned()),
        _ => StoreError::Unavailable(format!("{what}: {error}")),
    }
}

#[async_trait]
impl Secrets for KubeStore {
    async fn resolve(&self, source: &Source) -> Result<SecretBytes, SecretError> {
        self.secrets.resolve(source).await
    }

    fn cluster(&self) -> Option<&dyn Cluster> {
        Some(self)
    }
}

#[async_trait]
impl Store for KubeStore {
    fn installation(&self) -> &str {
        &self.installation
    }

    fn proxies(&self) -> Vec<Arc<Proxy>> {
        self.proxies.all()
    }

    fn proxy(&self, key: &ProxyKey) -> Option<Arc<Proxy>> {
        self.proxies.get(&key.to_string())
    }

    fn providers(&self) -> Vec<Arc<Provider>> {
        self.providers.all()
    }

    fn provider(&self, name: &str) -> Option<Arc<Provider>> {
        self.providers.get(name)
    }

    fn namespace_labels(&self, namespace: &str) -> BTreeMap<String, String> {
        let mut labels = self.namespaces.get(namespace).map(|n| n.labels().clone()).unwrap_or_default();
        labels.insert(super::NAMESPACE_NAME.to_owned(), namespace.to_owned());
        labels
    }

    fn changes(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }

    async fn set_proxy_status(&self, proxy: &Proxy, status: ProxyStatus) -> Result<Arc<Proxy>, StoreError> {
        self.may_write()?;
        let what = ProxyKey::of(proxy).to_string();
        // A PUT of the status alone, which carries the version that it was decided on.
        let next = Proxy { status: Some(status), ..proxy.clone() };
        let stored = self.proxy_api(proxy).replace_status(&next.name_any(), &PostParams::default(), &next).await;
        let stored = stored.map_err(|e| store_error(&what, e))?;
        self.changed(Change::Proxy(ProxyKey::of(proxy)));
        Ok(self.proxies.keep(stored))
    }

    async fn set_proxy_finalizer(&self, proxy: &Proxy, present: bool) -> Result<Option<Arc<Proxy>>, StoreError> {
        self.may_write()?;
        let kept = self.proxies.set_finalizer(self.proxy_api(proxy), proxy, PROXY_FINALIZER, present).await?;
        self.changed(Change::Proxy(ProxyKey::of(proxy)));
        Ok(kept)
    }

    async fn fresh_proxies(&self) -> Result<Vec<Arc<Proxy>>, StoreError> {
        self.proxies.list().await
    }

    async fn fresh_proxy(&self, key: &ProxyKey) -> Result<Option<Arc<Proxy>>, StoreError> {
        let api: Api<Proxy> = Api::namespaced(self.client.clone(), &key.namespace);
        let found = api.get_opt(&key.name).await.map_err(|e| store_error(&key.to_string(), e))?;
        Ok(found.map(|proxy| self.proxies.keep(proxy)))
    }

    async fn abandoned(&self) -> Result<Vec<Abandoned>, StoreError> {
        self.abandoned.all().await
    }

    async fn abandon(&self, given_up: Vec<Abandoned>) -> Result<(), StoreError> {
        self.may_write()?;
        self.abandoned.add(given_up).await
    }

    async fn forget_abandoned(&self, key: &str) -> Result<bool, StoreError> {
        self.abandoned.forget(key).await
    }

    async fn set_provider_finalizer(&self, provider: &Provider, present: bool) -> Result<(), StoreError> {
        self.may_write()?;
        let api = Api::all(self.client.clone());
        self.providers.set_finalizer(api, provider, PROVIDER_FINALIZER, present).await?;
        self.changed(Change::Provider(provider.name_any()));
        Ok(())
    }

    async fn hold_plugins(&self, in_use: &BTreeSet<String>) -> Result<(), StoreError> {
        self.may_write()?;
        self.hold_configmaps(in_use).await
    }

    async fn set_provider_status(&self, provider: &Provider, status: ProviderStatus) -> Result<(), StoreError> {
        self.may_write()?;
        let name = provider.name_any();
        let next = Provider { status: Some(status), ..provider.clone() };
        let api: Api<Provider> = Api::all(self.client.clone());
        let stored =
            api.replace_status(&name, &PostParams::default(), &next).await.map_err(|e| store_error(&name, e))?;
        self.providers.keep(stored);
        Ok(())
    }

    async fn delete_proxy(&self, key: &ProxyKey) -> Result<(), StoreError> {
        let api: Api<Proxy> = Api::namespaced(self.client.clone(), &key.namespace);
        api.delete(&key.name, &DeleteParams::default()).await.map(drop).map_err(|e| store_error(&key.to_string(), e))
    }

    async fn delete_provider(&self, name: &str) -> Result<(), StoreError> {
        let api: Api<Provider> = Api::all(self.client.clone());
        api.delete(name, &DeleteParams::default()).await.map(drop).map_err(|e| store_error(name, e))
    }

    async fn apply(&self, _: &str) -> Result<Vec<(ObjectRef, Applied)>, StoreError> {
        Err(StoreError::Invalid("the objects of this operator are in Kubernetes: use `kubectl apply`".into()))
    }

    async fn delete(&self, objects: &[ObjectRef]) -> Vec<Result<Option<String>, StoreError>> {
        let delete = async |object: &ObjectRef| match (object.kind, &object.namespace) {
            (Kind::Proxy, namespace) => {
                let namespace = namespace.clone().unwrap_or_default();
                self.delete_proxy(&ProxyKey { namespace, name: object.name.clone() }).await
            }
            (Kind::Provider, _) => self.delete_provider(&object.name).await,
            (Kind::Secret, _) => {
                Err(StoreError::Invalid("Secrets of this operator are in Kubernetes: use `kubectl delete`".into()))
            }
        };
        futures::future::join_all(objects.iter().map(async |object| delete(object).await.map(|()| None))).await
    }

    async fn login_keys(&self) -> Result<Vec<LoginKey>, StoreError> {
        Ok(self.login_keys.clone())
    }

    async fn proxy_login(&self, namespace: &str, secret: &NameRef) -> Result<Login, SecretError> {
        self.secrets.login(namespace, &secret.name).await
    }

    async fn publish_login(&self, proxy: &Proxy, secret: &str, login: &Login) -> Result<(), StoreError> {
        self.may_write()?;
        self.secrets.publish(proxy, secret, login).await
    }

    async fn token_secrets(&self) -> Result<Vec<LabelledSecret>, StoreError> {
        Ok(self.secrets.tokens())
    }

    fn event(&self, event: Event) {
        self.events.tell(event, self);
    }

    fn events(&self) -> Vec<Event> {
        self.events.recent()
    }
}

/// The key under which an object is kept: its name, with its namespace where it has one.
fn key_of<T: Resource>(object: &T) -> String {
    let name = object.meta().name.as_deref().unwrap_or_default();
    match &object.meta().namespace {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}
