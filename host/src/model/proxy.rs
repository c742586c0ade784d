//! `Proxy`: one forward proxy that a user wants.
// Each printer column repeats the same keys.
#![allow(clippy::duplicated_attributes)]

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::condition::Condition;
use super::instance::Instance;
use super::span::Span;

/// A forward proxy for crawlers, made and kept healthy by a provider.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Deserialize, Serialize)]
#[kube(
    group = "crawl.example.com",
    version = "v1alpha1",
    kind = "Proxy",
    plural = "proxies",
    namespaced,
    shortname = "px",
    category = "crawl",
    status = "ProxyStatus",
    derive = "PartialEq",
    doc = "A forward proxy for crawlers: a provider makes it real, the operator keeps it healthy and lends it.",
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Provider", type_ = "string", json_path = ".spec.provider"),
    printcolumn(name = "Address", type_ = "string", json_path = ".status.address"),
    printcolumn(name = "Reason", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Provider-ID", type_ = "string", priority = 1, json_path = ".status.instance.providerID"),
    printcolumn(name = "Image", type_ = "string", priority = 1, json_path = ".spec.image"),
    printcolumn(
        name = "Up-To-Date",
        type_ = "string",
        priority = 1,
        json_path = r#".status.conditions[?(@.type=="UpToDate")].status"#
    ),
    printcolumn(name = "Paused", type_ = "boolean", priority = 1, json_path = ".spec.paused")
)]
#[serde(rename_all = "camelCase")]
pub struct ProxySpec {
    /// Name of the Provider that makes this proxy. Cannot be changed.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    #[x_kube(validation = ("self == oldSelf", "provider cannot be changed: delete the Proxy and create it anew"))]
    pub provider: String,
    /// Image by its name in the provider's catalogue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub image: Option<String>,
    /// Size by its name in the provider's catalogue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub size: Option<String>,
    /// Location (host, zone, namespace) by its name in the provider's catalogue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub location: Option<String>,
    /// Further wishes, checked against the plugin's schema. At most 64 KiB.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schemars(schema_with = "free_object")]
    pub parameters: Map<String, Value>,
    /// What the proxy speaks.
    #[serde(default)]
    pub protocol: Protocol,
    /// The port that the proxy listens on.
    #[serde(default = "default_port")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// The proxy's own login.
    #[serde(default)]
    pub auth: Auth,
    /// How the proxy is probed.
    #[serde(default)]
    pub health_check: HealthCheck,
    /// Rebuild the proxy, with a new instance, when it is older than this. Absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age: Option<Span>,
    /// How long leases may delay a rebuild or a deletion.
    #[serde(default = "default_drain_timeout")]
    pub drain_timeout: Span,
    /// True: no new leases; nothing else changes.
    #[serde(default)]
    pub unschedulable: bool,
    /// A change of this text rebuilds the proxy: "a new address, now".
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253))]
    pub rebuild_token: String,
    /// True: nothing is created or rebuilt. Deletion works.
    #[serde(default)]
    pub paused: bool,
}

/// What a proxy speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// HTTP forward and CONNECT.
    #[default]
    Http,
    /// SOCKS version 5.
    Socks5,
}

impl Protocol {
    /// As objects and the contract write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Socks5 => "socks5",
        }
    }
}

/// The proxy's own login.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("(self.mode == 'secret') == has(self.secretRef)", "secretRef goes with mode: secret, and only with it"))]
pub struct Auth {
    /// Where the login comes from.
    #[serde(default)]
    pub mode: AuthMode,
    /// With mode secret: a Secret of the Proxy's own namespace with the keys username and password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<NameRef>,
    /// Write the login into a Secret of this name, owned by the Proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub publish_secret: Option<String>,
}

/// Where a proxy's login comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AuthMode {
    /// Derived by the operator, anew for each incarnation.
    #[default]
    Generated,
    /// Taken from secretRef.
    Secret,
    /// An open proxy.
    None,
}

/// An object by name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct NameRef {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// How a proxy is probed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HealthCheck {
    /// proxy: through the proxy to a judge; tcp: the port opens; none: never.
    #[serde(default)]
    pub mode: ProbeMode,
    /// Time between probes, plus or minus a fifth.
    #[serde(default = "default_interval")]
    pub interval: Span,
    /// Failures in a row that make it unhealthy.
    #[serde(default = "default_fail_after")]
    #[schemars(range(min = 1, max = 100))]
    pub fail_after: u32,
    /// Passes in a row that make it healthy again.
    #[serde(default = "default_pass_after")]
    #[schemars(range(min = 1, max = 100))]
    pub pass_after: u32,
}

impl Default for HealthCheck {
    fn default() -> Self {
        Self {
            mode: ProbeMode::Proxy,
            interval: default_interval(),
            fail_after: default_fail_after(),
            pass_after: default_pass_after(),
        }
    }
}

/// How a proxy is probed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProbeMode {
    /// Through the proxy, with its login, to a judge.
    #[default]
    Proxy,
    /// The port opens.
    Tcp,
    /// Never probed; healthy when running.
    None,
}

/// What the operator knows of a Proxy.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProxyStatus {
    /// The generation that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready, SpecValid, ProviderReady, Provisioned, Healthy, UpToDate and Deleting.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Host and port where the proxy is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 300))]
    pub address: Option<String>,
    /// Where the proxy is reached, in parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<Endpoint>,
    /// The address that the proxy shows to the world, or "rotating".
    #[serde(default, rename = "exitIP", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub exit_ip: Option<String>,
    /// The instance that serves, or is to serve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstanceStatus>,
    /// The instance that is to follow it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<InstanceStatus>,
    /// Old instances that are still being deleted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 3))]
    pub retiring: Vec<InstanceStatus>,
    /// A create may have been sent; since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(max = 64))]
    pub create_sent: Option<Timestamp>,
    /// Hash of the spec that the instance was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec_hash: Option<SpecHash>,
    /// The fields that entered the hash.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schemars(schema_with = "free_object")]
    pub applied: Map<String, Value>,
    /// How often the proxy was rebuilt.
    #[serde(default)]
    pub rebuilds: u32,
    /// The last incarnation that was begun, whatever became of it: no number is used twice.
    #[serde(default)]
    pub last_incarnation: u32,
}

/// A hash and the version of its rule.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct SpecHash {
    /// Version of the rule.
    pub version: u32,
    /// The hash, hexadecimal.
    #[schemars(length(max = 64))]
    pub hash: String,
}

/// Where a proxy is reached.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
pub struct Endpoint {
    /// IP address or name.
    #[schemars(length(max = 253))]
    pub host: String,
    /// The port.
    pub port: u16,
    /// What it speaks there.
    pub protocol: Protocol,
}

impl Endpoint {
    /// `host:port`, with brackets around an IPv6 address.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

/// Who one instance is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InstanceStatus {
    /// How often the proxy was rebuilt before it.
    #[serde(default)]
    pub incarnation: u32,
    /// How often a place was chosen for it.
    #[serde(default)]
    pub attempt: u32,
    /// Where it is; stored before the first create.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub placement: Option<String>,
    /// What the provider calls it.
    #[serde(default, rename = "providerID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub provider_id: Option<String>,
    /// The backend's own immutable id.
    #[serde(default, rename = "backendID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub backend_id: Option<String>,
    /// The plugin's own note.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub continuation: Option<String>,
    /// Id of the key from which its login is derived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub login_key: Option<String>,
    /// Name of the provider's granted secret that holds its login.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub login_secret: Option<String>,
    /// When it was Ready first. Its age, for `spec.maxAge`, counts from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(max = 64))]
    pub ready_since: Option<Timestamp>,
    /// Of an instance to follow: hash of the spec that it is made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec_hash: Option<SpecHash>,
}

impl ProxySpec {
    /// A spec of nothing but defaults, for the given provider.
    pub fn of_provider(provider: impl Into<String>) -> Self {
        Self {
            provider: provider.into(),
            image: None,
            size: None,
            location: None,
            parameters: Map::new(),
            protocol: Protocol::default(),
            port: default_port(),
            auth: Auth::default(),
            health_check: HealthCheck::default(),
            max_age: None,
            drain_timeout: default_drain_timeout(),
            unschedulable: false,
            rebuild_token: String::new(),
            paused: false,
        }
    }
}

impl ProxyStatus {
    /// Every instance that may exist: the one that serves, the one to follow, those on their way out.
    pub fn instances(&self) -> impl Iterator<Item = &InstanceStatus> {
        self.instance.iter().chain(&self.next).chain(&self.retiring).filter(|i| i.placement.is_some())
    }

    /// Begins an incarnation after all that were there; answers its number.
    pub fn begin_incarnation(&mut self) -> u32 {
        let known = self.instance.iter().chain(&self.next).chain(&self.retiring).map(|i| i.incarnation);
        self.last_incarnation = known.max().unwrap_or(0).max(self.last_incarnation) + 1;
        self.last_incarnation
    }
}

/// Old instances that a Proxy may have at once.
pub const RETIRING: usize = 3;

impl InstanceStatus {
    /// Takes in what its backend shows of it.
    pub fn take_in(&mut self, shown: &Instance) {
        self.provider_id = Some(shown.provider_id.clone());
        self.backend_id = shown.backend_id.clone().or(self.backend_id.take());
        self.continuation = shown.continuation.clone();
        self.login_secret = shown.login_secret.clone().or(self.login_secret.take());
    }
}

impl Proxy {
    /// Whether somebody asked for its deletion.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether our finalizer stands.
    pub fn has_finalizer(&self) -> bool {
        self.metadata.finalizers.iter().flatten().any(|f| f == super::PROXY_FINALIZER)
    }

    /// Its labels.
    pub fn labels_map(&self) -> BTreeMap<String, String> {
        self.metadata.labels.clone().unwrap_or_default()
    }
}

fn default_port() -> u16 {
    3128
}
fn default_drain_timeout() -> Span {
    Span::secs(600)
}
fn default_interval() -> Span {
    Span::secs(30)
}
fn default_fail_after() -> u32 {
    3
}
fn default_pass_after() -> u32 {
    2
}

/// Schema of an object whose fields the plugin's schema checks.
pub(super) fn free_object(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}
