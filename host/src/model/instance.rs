//! Instances as the contract describes them, free of the generated types. `wit/` documents every field.

use std::fmt;
use std::time::Duration;

use serde_json::Value;

use super::bootstrap;
use super::error::FieldError;
use super::login::Login;
use super::proxy::ProxySpec;
use super::spec_hash::spec_hash;

/// Owner tags of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Installation id.
    pub installation: String,
    /// UID of the Proxy.
    pub proxy_uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// Who an instance is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The owner tags.
    pub owner: Owner,
    /// How often the proxy was rebuilt.
    pub incarnation: u32,
    /// How often a place was chosen for this incarnation.
    pub attempt: u32,
    /// Where it is; empty only in `place` and `validate`.
    pub placement: String,
    /// What the provider called it.
    pub provider_id: Option<String>,
    /// The backend's own immutable id.
    pub backend_id: Option<String>,
    /// The plugin's own note.
    pub continuation: Option<String>,
}

impl Identity {
    /// One of which nothing is known yet but whose it is.
    pub fn new(owner: Owner, incarnation: u32) -> Self {
        Self {
            owner,
            incarnation,
            attempt: 0,
            placement: String::new(),
            provider_id: None,
            backend_id: None,
            continuation: None,
        }
    }
}

/// What is wanted.
#[derive(Clone, Debug)]
pub struct Request {
    /// Who it is.
    pub identity: Identity,
    /// Catalogue name.
    pub image: Option<String>,
    /// Catalogue name.
    pub size: Option<String>,
    /// Catalogue name.
    pub location: Option<String>,
    /// `spec.parameters`.
    pub parameters: Value,
    /// Port to listen on.
    pub port: u16,
    /// `http` or `socks5`.
    pub protocol: &'static str,
    /// The proxy's own login; only in `create`.
    pub login: Option<Login>,
    /// The rendered cloud-config; only in `create`.
    pub bootstrap: Option<String>,
    /// host:port of judges.
    pub must_reach: Vec<String>,
    /// Hash of what shapes the instance.
    pub spec_hash: String,
}

impl Request {
    /// What this spec asks for. `digest`: of its own login, where it has one.
    pub fn new(
        spec: &ProxySpec,
        identity: Identity,
        login: Option<Login>,
        must_reach: Vec<String>,
        digest: Option<&str>,
    ) -> Self {
        Self {
            identity,
            image: spec.image.clone(),
            size: spec.size.clone(),
            location: spec.location.clone(),
            parameters: Value::Object(spec.parameters.clone()),
            port: spec.port,
            protocol: spec.protocol.as_str(),
            login,
            bootstrap: None,
            must_reach,
            spec_hash: spec_hash(spec, digest).hash,
        }
    }

    /// The same with its bootstrap, from this template or the default.
    pub fn with_bootstrap(self, template: Option<&str>) -> Self {
        Self { bootstrap: Some(bootstrap::render(template.unwrap_or(bootstrap::DEFAULT), &self)), ..self }
    }
}

/// How an instance is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Being made.
    Creating,
    /// Runs as far as the backend can tell.
    Running,
    /// Exists and is off.
    Stopped,
    /// Will never run.
    Failed(String),
    /// On its way out.
    Deleting,
    /// The backend does not say.
    Unknown(String),
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Creating => "creating",
            Self::Running => "running",
            Self::Stopped => "stopped",
            Self::Failed(_) => "failed",
            Self::Deleting => "deleting",
            Self::Unknown(_) => "unknown",
        })
    }
}

/// One address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// IP address or name.
    pub host: String,
    /// Whether it is reached from everywhere.
    pub external: bool,
}

/// One instance as its backend shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// What the provider calls it.
    pub provider_id: String,
    /// The backend's own id.
    pub backend_id: Option<String>,
    /// Where it was found.
    pub placement: String,
    /// How it is.
    pub state: State,
    /// Where its port is reached, best first.
    pub addresses: Vec<Address>,
    /// Its port, when not the one asked for.
    pub port: Option<u16>,
    /// Owner tags as found.
    pub owner: Option<Owner>,
    /// Incarnation as found.
    pub incarnation: Option<u32>,
    /// For people.
    pub message: Option<String>,
    /// Granted secret with its login.
    pub login_secret: Option<String>,
    /// When asking again is worth it.
    pub poll_after: Option<Duration>,
    /// The plugin's note.
    pub continuation: Option<String>,
}

/// Whether an instance is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Presence {
    /// There it is.
    Present(Box<Instance>),
    /// Positively not.
    Absent,
}

/// How far a deletion is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// Every artefact is gone.
    Gone,
    /// Called again.
    InProgress {
        /// For people.
        message: Option<String>,
        /// When asking again is worth it.
        poll_after: Option<Duration>,
        /// The plugin's note.
        continuation: Option<String>,
    },
}

/// How one target of a provider is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Host, zone or cluster.
    pub target: String,
    /// Whether it takes creates.
    pub healthy: bool,
    /// CamelCase.
    pub reason: String,
    /// For people.
    pub message: String,
}

/// A connection that a plugin asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionNeed {
    /// Name under `spec.connections`.
    pub name: String,
    /// `ssh` or `http`.
    pub kind: String,
    /// Whether it must be granted.
    pub required: bool,
    /// What it is for.
    pub doc: String,
}

/// What a plugin says of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    /// Equals the file's name.
    pub name: String,
    /// Semver.
    pub version: String,
    /// One line.
    pub summary: String,
    /// JSON Schema of `Provider.spec.config`.
    pub config_schema: Value,
    /// JSON Schema of `Proxy.spec.parameters`.
    pub parameters_schema: Value,
    /// Connections with a fixed name.
    pub connections: Vec<ConnectionNeed>,
    /// JSON pointer patterns to further connection names.
    pub connection_pointers: Vec<String>,
    /// Capabilities that we know, and others that we ignore.
    pub capabilities: Vec<String>,
}

impl Description {
    /// Whether the plugin names this capability.
    pub fn has(&self, capability: &str) -> bool {
        self.capabilities.iter().any(|c| c == capability)
    }
}

/// Capability: a rebuild keeps the address, so the old incarnation goes before the new one comes.
pub const STATIC_ADDRESS: &str = "static-address";
/// Capability: a place holds one instance.
pub const ONE_PER_PLACE: &str = "one-per-place";

/// Checks `value` against a plugin's schema. Pointers are below `root`, for example `/parameters`.
///
/// # Errors
/// Every violation, or one error when the schema itself is unusable.
pub fn check_schema(schema: &Value, value: &Value, root: &str) -> Result<(), Vec<FieldError>> {
    let validator = super::schema::validator(schema).map_err(|e| {
        vec![FieldError { pointer: root.into(), message: format!("the plugin's own schema is unusable: {e}") }]
    })?;
    let errors: Vec<_> = validator
        .iter_errors(value)
        .take(16)
        .map(|e| FieldError { pointer: format!("{root}{}", e.instance_path()), message: e.to_string() })
        .collect();
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}
