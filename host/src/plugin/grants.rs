//! What one Provider grants its plugin: connections and secrets, by name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::intercept::Interceptor;
use super::io::http::Origin;
use super::io::ssh::Account;
use crate::model::instance::{ConnectionNeed, Description};
use crate::model::provider::{ProviderSpec, Source};
use crate::model::secret::SecretBytes;

/// Where credentials come from; implemented by `store/`.
#[async_trait]
pub trait Secrets: Send + Sync + 'static {
    /// The present value of a source. Called for each use, so that a rotated one is picked up.
    async fn resolve(&self, source: &Source) -> Result<SecretBytes, SecretError>;

    /// The cluster that the operator serves; none standalone.
    fn cluster(&self) -> Option<&dyn Cluster> {
        None
    }
}

/// The cluster that the operator serves; implemented by `store/`.
#[async_trait]
pub trait Cluster: Send + Sync {
    /// Its API server.
    fn api_server(&self) -> &ApiServer;

    /// A new token of a service account of the operator's namespace.
    async fn token(&self, service_account: &str) -> Result<Token, TokenError>;
}

/// How the operator itself reaches the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiServer {
    /// Its URL.
    pub url: String,
    /// Its certificate authorities, in PEM; none: the public ones.
    pub ca: Option<Vec<u8>>,
    /// Whether its certificate is not checked, because the operator's kubeconfig says so.
    pub insecure: bool,
}

/// A token, and for how long it is good.
#[derive(Clone, Debug)]
pub struct Token {
    /// The token.
    pub value: SecretBytes,
    /// From now on.
    pub lifetime: Duration,
}

/// Why there is no token. The text says what to do, and holds no credential.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Asking again changes nothing until somebody acts.
    #[error("{0}")]
    Refused(String),
    /// It could not be asked for just now.
    #[error("{0}")]
    Unavailable(String),
}

/// Why a credential cannot be had. The text names the Secret or file and the remedy, never a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// It does not exist.
    #[error("{0}")]
    Missing(String),
    /// It exists and may not be used.
    #[error("{0}")]
    Denied(String),
    /// It could not be read.
    #[error("{0}")]
    Unreadable(String),
}

impl SecretError {
    /// The condition reason.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Missing(_) => "SecretMissing",
            Self::Denied(_) => "PermissionDenied",
            Self::Unreadable(_) => "SecretUnreadable",
        }
    }
}

/// Why a connection of a Provider cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("connection {name:?}: {message}")]
pub struct ConnectionError {
    /// The connection.
    pub name: String,
    /// What is wrong and what to do.
    pub message: String,
}

/// A granted connection, ready for use.
enum Granted {
    /// Commands over SSH.
    Ssh(Arc<Account>),
    /// Requests over HTTP.
    Http(Box<Origin>),
}

/// No secret at all.
pub(super) struct Nothing;

#[async_trait]
impl Secrets for Nothing {
    async fn resolve(&self, _: &Source) -> Result<SecretBytes, SecretError> {
        Err(SecretError::Missing("no secret is granted".into()))
    }
}

/// Everything that one Provider grants. One client and one pool per connection, shared by nobody else.
pub struct Grants {
    connections: BTreeMap<String, Granted>,
    secrets: BTreeMap<String, Source>,
    files: Option<PathBuf>,
    resolver: Arc<dyn Secrets>,
    pub(super) interceptor: Option<Arc<dyn Interceptor>>,
}

impl Grants {
    /// Builds the connections of a Provider.
    ///
    /// # Errors
    /// The first connection whose address or rules are unusable.
    pub fn new(spec: &ProviderSpec, resolver: Arc<dyn Secrets>) -> Result<Self, ConnectionError> {
        let mut connections = BTreeMap::new();
        for (name, connection) in &spec.connections {
            let granted = match (&connection.http, &connection.ssh) {
                (Some(http), None) => {
                    Origin::new(http, resolver.as_ref()).map(|origin| Granted::Http(Box::new(origin)))
                }
                (None, Some(ssh)) => Account::new(name, ssh).map(|account| Granted::Ssh(Arc::new(account))),
                _ => Err("a connection is either ssh or http".into()),
            };
            let granted = granted.map_err(|message| ConnectionError { name: name.clone(), message })?;
            connections.insert(name.clone(), granted);
        }
        Ok(Self { connections, secrets: spec.secrets.clone(), files: None, resolver, interceptor: None })
    }

    /// The same, with each host call under the eyes of `interceptor`.
    pub fn watched(self, interceptor: Arc<dyn Interceptor>) -> Self {
        Self { interceptor: Some(interceptor), ..self }
    }

    /// The same, with a folder that the guest may read.
    pub fn with_files(self, dir: PathBuf) -> Self {
        Self { files: Some(dir), ..self }
    }

    /// The folder that the guest may read.
    pub(super) fn files(&self) -> Option<&Path> {
        self.files.as_deref()
    }

    /// No connection and no secret, for `describe`.
    pub(super) fn none() -> Self {
        Self {
            connections: BTreeMap::new(),
            secrets: BTreeMap::new(),
            files: None,
            resolver: Arc::new(Nothing),
            interceptor: None,
        }
    }

    /// Names of connections of a kind (`ssh` or `http`).
    pub fn names(&self, kind: &str) -> Vec<&str> {
        let of_kind =
            |granted: &Granted| matches!((granted, kind), (Granted::Ssh(_), "ssh") | (Granted::Http(_), "http"));
        self.connections.iter().filter(|(_, granted)| of_kind(granted)).map(|(name, _)| name.as_str()).collect()
    }

    /// Whether every connection that the plugin requires is granted.
    ///
    /// # Errors
    /// Names the first that is not, and what it is for.
    pub fn serve(&self, plugin: &Description) -> Result<(), String> {
        let missing = |need: &&ConnectionNeed| need.required && !self.names(&need.kind).contains(&need.name.as_str());
        match plugin.connections.iter().find(missing) {
            None => Ok(()),
            Some(need) => Err(format!(
                "plugin {} needs the {} connection {:?} ({}): add it under spec.connections",
                plugin.name, need.kind, need.name, need.doc
            )),
        }
    }

    /// Tries every credential that the grants name, so that a missing one is told before a plugin is called.
    ///
    /// # Errors
    /// The first that cannot be had.
    pub async fn probe(&self) -> Result<(), SecretError> {
        for granted in self.connections.values() {
            match granted {
                Granted::Http(origin) => origin.probe(self).await?,
                Granted::Ssh(account) => account.probe(self).await?,
            }
        }
        for source in self.secrets.values() {
            self.resolver.resolve(source).await?;
        }
        Ok(())
    }

    /// Every credential that the grants name and that can be had, to look for it where none belongs.
    pub async fn credentials(&self) -> Vec<SecretBytes> {
        let mut sources: Vec<&Source> = self.secrets.values().collect();
        for granted in self.connections.values() {
            match granted {
                Granted::Http(origin) => sources.extend(origin.source()),
                Granted::Ssh(account) => sources.push(account.key()),
            }
        }
        let mut values = vec![];
        for source in sources {
            values.extend(self.resolver.resolve(source).await.ok());
        }
        values
    }

    /// The SSH connection of this name, or why there is none.
    pub(super) fn ssh(&self, name: &str) -> Result<&Arc<Account>, String> {
        match self.connections.get(name) {
            Some(Granted::Ssh(account)) => Ok(account),
            found => Err(self.not_granted(name, found.is_some(), ["ssh", "http"])),
        }
    }

    /// The HTTP connection of this name, or why there is none.
    pub(super) fn http(&self, name: &str) -> Result<&Origin, String> {
        match self.connections.get(name) {
            Some(Granted::Http(origin)) => Ok(origin),
            found => Err(self.not_granted(name, found.is_some(), ["http", "ssh"])),
        }
    }

    fn not_granted(&self, name: &str, exists: bool, [wanted, other]: [&str; 2]) -> String {
        if exists {
            return format!("connection {name:?} is {other}, not {wanted}");
        }
        let names = self.names(wanted).join(", ");
        format!("the Provider grants no {wanted} connection {name:?}; it grants: {names}")
    }

    /// The value of a granted secret; none when no such name is granted.
    pub async fn secret(&self, name: &str) -> Option<Result<SecretBytes, SecretError>> {
        match self.secrets.get(name) {
            Some(source) => Some(self.resolver.resolve(source).await),
            None => None,
        }
    }

    /// The cluster that the operator serves.
    pub(super) fn cluster(&self) -> Option<&dyn Cluster> {
        self.resolver.cluster()
    }

    pub(super) async fn resolve(&self, source: &Source) -> Result<SecretBytes, SecretError> {
        self.resolver.resolve(source).await
    }
}
