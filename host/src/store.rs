//! Where objects live, behind one narrow trait. `local` is the embedded database of a standalone operator.
//!
//! Knows nothing of providers and REST.

mod credentials;
pub mod kubernetes;
pub mod local;
mod recent;
pub mod whole_file;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;

use crate::model::abandoned::{ABANDONED, Abandoned};
use crate::model::login::Login;
use crate::model::login::LoginKey;
use crate::model::naming::{ObjectRef, ProxyKey};
use crate::model::provider::{Provider, ProviderStatus};
use crate::model::proxy::{NameRef, Proxy, ProxyStatus};
use crate::model::secret::SecretBytes;
use crate::plugin::grants::{SecretError, Secrets};

/// Something changed; look again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// This Proxy came, changed or went.
    Proxy(ProxyKey),
    /// This Provider came, changed or went.
    Provider(String),
    /// This namespace came, changed or went.
    Namespace(String),
    /// Some Secret changed.
    Secrets,
}

/// Why a write failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The object changed meanwhile: read it again and decide anew.
    #[error("{0} changed meanwhile")]
    Conflict(String),
    /// The object is gone.
    #[error("{0} does not exist")]
    NotFound(String),
    /// Somebody else's object has the name.
    #[error("{0}")]
    Taken(String),
    /// What was given cannot be, and why.
    #[error("{0}")]
    Invalid(String),
    /// The store itself failed.
    #[error("the store failed: {0}")]
    Unavailable(String),
}

/// How important an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum Severity {
    /// Something went on.
    Normal,
    /// Somebody should look.
    Warning,
}

/// The object that an event is about.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum Regarding {
    /// A Proxy.
    Proxy(ProxyKey),
    /// A Provider.
    Provider(String),
    /// A file of the manifest folder.
    Manifest(String),
    /// A ConfigMap of the operator's namespace.
    ConfigMap(String),
}

/// Something that happened to an object; told on transitions only.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Event {
    /// To which object.
    pub regarding: Regarding,
    /// How important.
    pub severity: Severity,
    /// CamelCase.
    pub reason: String,
    /// For people; no time stamp, no counter.
    pub message: String,
}

impl fmt::Display for Regarding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Proxy(key) => write!(f, "proxy/{key}"),
            Self::Provider(name) => write!(f, "provider/{name}"),
            Self::Manifest(file) => write!(f, "manifest/{file}"),
            Self::ConfigMap(name) => write!(f, "configmap/{name}"),
        }
    }
}

/// What became of an object that was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Applied {
    /// It is new.
    Created,
    /// It was there and is changed.
    Configured,
    /// It was there and is the same.
    Unchanged,
}

/// A Secret with its labels, for those who look for a kind of Secret.
#[derive(Clone, Debug)]
pub struct LabelledSecret {
    /// Its name.
    pub name: String,
    /// Its values.
    pub data: BTreeMap<String, SecretBytes>,
}

/// Why no more can be given up.
fn too_many_abandoned() -> StoreError {
    StoreError::Taken(format!(
        "{ABANDONED} abandoned instances are remembered, and no more can be: forget some with `proxy-operator abandoned forget`"
    ))
}

/// The finalizers of an object with ours set or removed.
fn finalizers_with(object: &impl kube::ResourceExt, ours: &str, present: bool) -> Vec<String> {
    let mut finalizers = object.finalizers().to_vec();
    finalizers.retain(|f| f != ours);
    if present {
        finalizers.push(ours.to_owned());
    }
    finalizers
}

/// Label of every namespace: its own name.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// Where objects live. Reads are from memory; each write names the version that it was decided on.
#[async_trait]
pub trait Store: Secrets {
    /// Id of this installation; part of every owner tag.
    fn installation(&self) -> &str;

    /// All Proxies.
    fn proxies(&self) -> Vec<Arc<Proxy>>;

    /// One Proxy.
    fn proxy(&self, key: &ProxyKey) -> Option<Arc<Proxy>>;

    /// All Providers.
    fn providers(&self) -> Vec<Arc<Provider>>;

    /// One Provider.
    fn provider(&self, name: &str) -> Option<Arc<Provider>>;

    /// Labels of a namespace; its name among them.
    fn namespace_labels(&self, namespace: &str) -> BTreeMap<String, String>;

    /// Tells of each change from now on.
    fn changes(&self) -> broadcast::Receiver<Change>;

    /// Replaces the status of the version given; answers the new version.
    async fn set_proxy_status(&self, proxy: &Proxy, status: ProxyStatus) -> Result<Arc<Proxy>, StoreError>;

    /// Sets or removes our finalizer; an object under deletion without one is gone.
    async fn set_proxy_finalizer(&self, proxy: &Proxy, present: bool) -> Result<Option<Arc<Proxy>>, StoreError>;

    /// All Proxies as they are now, not as they were last seen.
    async fn fresh_proxies(&self) -> Result<Vec<Arc<Proxy>>, StoreError>;

    /// One Proxy as it is now.
    async fn fresh_proxy(&self, key: &ProxyKey) -> Result<Option<Arc<Proxy>>, StoreError>;

    /// Instances that were given up.
    async fn abandoned(&self) -> Result<Vec<Abandoned>, StoreError>;

    /// Remembers instances that are given up; on return they are kept for good.
    ///
    /// # Errors
    /// Also when as many as may be are remembered.
    async fn abandon(&self, given_up: Vec<Abandoned>) -> Result<(), StoreError>;

    /// Forgets one of them by its key; answers whether it was there.
    async fn forget_abandoned(&self, key: &str) -> Result<bool, StoreError>;

    /// Sets or removes our finalizer on a Provider.
    async fn set_provider_finalizer(&self, provider: &Provider, present: bool) -> Result<(), StoreError>;

    /// Keeps the plugins of these names from being deleted, and lets go of the others.
    async fn hold_plugins(&self, in_use: &BTreeSet<String>) -> Result<(), StoreError>;

    /// Replaces the status of the version given.
    async fn set_provider_status(&self, provider: &Provider, status: ProviderStatus) -> Result<(), StoreError>;

    /// Asks for a deletion, as `kubectl delete` does.
    async fn delete_proxy(&self, key: &ProxyKey) -> Result<(), StoreError>;

    /// Asks for a deletion.
    async fn delete_provider(&self, name: &str) -> Result<(), StoreError>;

    /// Takes over the objects of a text as `kubectl apply` does; on return they are kept for good.
    ///
    /// # Errors
    /// What is wrong, with nothing changed; or what could not be written.
    async fn apply(&self, text: &str) -> Result<Vec<(ObjectRef, Applied)>, StoreError>;

    /// Asks for the deletion of several. The text is what else the caller should know.
    async fn delete(&self, objects: &[ObjectRef]) -> Vec<Result<Option<String>, StoreError>>;

    /// Keys of logins, the one for new instances first.
    async fn login_keys(&self) -> Result<Vec<LoginKey>, StoreError>;

    /// The login in a Secret (keys `username`, `password`) of a Proxy's own namespace.
    async fn proxy_login(&self, namespace: &str, secret: &NameRef) -> Result<Login, SecretError>;

    /// Writes a Proxy's login into a Secret of its namespace, owned by it (`auth.publishSecret`). The same one again writes
    /// nothing.
    async fn publish_login(&self, proxy: &Proxy, secret: &str, login: &Login) -> Result<(), StoreError>;

    /// Secrets of the operator that hold the digests of API tokens (label `crawl.example.com/api-token: "true"`).
    async fn token_secrets(&self) -> Result<Vec<LabelledSecret>, StoreError>;

    /// Tells what happened. Best effort: never fails a pass.
    fn event(&self, event: Event);

    /// The last events, oldest first.
    fn events(&self) -> Vec<Event>;
}
