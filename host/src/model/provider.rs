//! `Provider`: a named instance of a plugin, with what it may reach.
// Each printer column repeats the same keys.
#![allow(clippy::duplicated_attributes)]

mod connection;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use self::connection::*;
use super::condition::Condition;
use super::instance::Finding;
use super::span::Span;

/// A backend: a plugin, the connections that it may use, and its configuration.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Deserialize, Serialize)]
#[kube(
    group = "crawl.example.com",
    version = "v1alpha1",
    kind = "Provider",
    plural = "providers",
    shortname = "pxp",
    category = "crawl",
    status = "ProviderStatus",
    derive = "PartialEq",
    doc = "A backend that makes proxies: a plugin, the connections that it may use, and its configuration.",
    validation = ("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$') && size(self.metadata.name) <= 63", "a Provider's name is a DNS-1123 label: at most 63 of a-z, 0-9 and '-'"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Plugin", type_ = "string", json_path = ".spec.plugin.name"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.plugin.version"),
    printcolumn(name = "Reason", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Digest", type_ = "string", priority = 1, json_path = ".status.plugin.digest"),
    printcolumn(name = "Contract", type_ = "string", priority = 1, json_path = ".status.plugin.contract")
)]
#[serde(rename_all = "camelCase")]
pub struct ProviderSpec {
    /// The plugin.
    pub plugin: PluginRef,
    /// Connections that the plugin may use, by name. Nothing else is reachable.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 256))]
    pub connections: BTreeMap<String, Connection>,
    /// Secrets whose raw values the plugin may read, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 256))]
    pub secrets: BTreeMap<String, Source>,
    /// The plugin's configuration, checked against its schema. At most 64 KiB.
    #[serde(default)]
    #[schemars(schema_with = "super::proxy::free_object")]
    pub config: Map<String, Value>,
    /// Template of the cloud-config that sets up a proxy. Absent: the operator's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32768))]
    pub bootstrap: Option<String>,
    /// Which address of an instance is used: external or internal. Absent: external where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<Reach>,
    /// Judges for this provider's proxies, instead of the operator's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub judges: Vec<Judge>,
    /// Namespaces whose Proxies may use this provider. Absent: all.
    #[serde(default)]
    pub allowed_namespaces: AllowedNamespaces,
    /// Limits of this provider.
    #[serde(default)]
    pub limits: Limits,
    /// Sub-folder of --plugin-files that a WASI guest may read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub files: Option<String>,
}

/// Which plugin.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PluginRef {
    /// The plugin's name: its file's name without .wasm. Cannot be changed.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    #[x_kube(validation = ("self == oldSelf", "the plugin's name cannot be changed: create another Provider"))]
    pub name: String,
    /// Reference of an OCI artifact that holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub oci: Option<String>,
    /// Secret with the registry's credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_secret_ref: Option<super::proxy::NameRef>,
}

/// Which address of an instance is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Reach {
    /// The one that is reached from everywhere.
    External,
    /// The one of the backend's own network.
    Internal,
}

/// A judge.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct Judge {
    /// Its address.
    #[schemars(length(min = 1, max = 2048), regex(pattern = r"^https?://"))]
    pub url: String,
}

/// Namespaces whose Proxies may use a provider.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct AllowedNamespaces {
    /// All of them, those named, or those that the selector fits.
    #[serde(default)]
    pub from: From,
    /// With from Names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(max = 63)))]
    pub names: Vec<String>,
    /// With from Selector: labels that the namespace must carry.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", rename = "matchLabels")]
    #[schemars(extend("maxProperties" = 32))]
    pub match_labels: BTreeMap<String, String>,
}

impl AllowedNamespaces {
    /// Whether Proxies of this namespace may use the provider.
    pub fn admits(&self, namespace: &str, labels: impl FnOnce() -> BTreeMap<String, String>) -> bool {
        match self.from {
            From::All => true,
            From::Names => self.names.iter().any(|name| name == namespace),
            From::Selector => {
                let labels = labels();
                self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            }
        }
    }
}

/// Which namespaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum From {
    /// All.
    #[default]
    All,
    /// Those that are named.
    Names,
    /// Those that the selector fits.
    Selector,
}

/// Limits of a provider.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    /// Instances at most. Absent: as many as there are Proxies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100000))]
    pub instances: Option<u32>,
    /// Calls at the same time.
    #[serde(default = "default_concurrent_calls")]
    #[schemars(range(min = 1, max = 256))]
    pub concurrent_calls: u32,
    /// Time limit of one call.
    #[serde(default = "default_call_timeout")]
    pub call_timeout: Span,
    /// Time within which an instance must run.
    #[serde(default = "default_create_deadline")]
    pub create_deadline: Span,
    /// Part of its Proxies that may be out at once, a number or a percentage; at least 1.
    #[serde(default = "default_max_unavailable")]
    #[schemars(length(max = 8), regex(pattern = "^([0-9]{1,6}|[0-9]{1,2}%|100%)$"))]
    pub max_unavailable: String,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            instances: None,
            concurrent_calls: default_concurrent_calls(),
            call_timeout: default_call_timeout(),
            create_deadline: default_create_deadline(),
            max_unavailable: default_max_unavailable(),
        }
    }
}

/// What the operator knows of a Provider.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderStatus {
    /// The generation that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The plugin that serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plugin: Option<PluginStatus>,
    /// How each host, zone or cluster is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub targets: Vec<TargetStatus>,
    /// How many Proxies use it; up to 30 s old.
    #[serde(default)]
    pub proxies: u32,
}

/// The plugin that serves.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct PluginStatus {
    /// Its name.
    #[schemars(length(max = 63))]
    pub name: String,
    /// Its own version.
    #[schemars(length(max = 128))]
    pub version: String,
    /// SHA-256 of its file.
    #[schemars(length(max = 128))]
    pub digest: String,
    /// The version of the contract that it was built against.
    #[schemars(length(max = 64))]
    pub contract: String,
    /// Where it was loaded from.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 4352))]
    pub source: String,
    /// Where another plugin of the name lies, which does not serve: ConfigMaps come before the plugin folder, and a younger
    /// ConfigMap before an older one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(max = 4352)))]
    pub shadowed: Vec<String>,
}

/// How one host, zone or cluster is.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct TargetStatus {
    /// Its name.
    #[schemars(length(max = 1024))]
    pub name: String,
    /// Whether it takes creates.
    pub healthy: bool,
    /// CamelCase.
    #[schemars(length(max = 128))]
    pub reason: String,
    /// For people.
    #[schemars(length(max = 1024))]
    pub message: String,
}

impl std::convert::From<Finding> for TargetStatus {
    fn from(Finding { target, healthy, reason, message }: Finding) -> Self {
        Self { name: target, healthy, reason, message }
    }
}

impl Provider {
    /// Whether somebody asked for its deletion.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether our finalizer stands.
    pub fn has_finalizer(&self) -> bool {
        self.metadata.finalizers.iter().flatten().any(|f| f == super::PROVIDER_FINALIZER)
    }

    /// Whether somebody said within the last hour that what vanished all at once is gone indeed.
    pub fn accepts_absence(&self, now: Timestamp) -> bool {
        let said = self.metadata.annotations.as_ref().and_then(|all| all.get(super::ACCEPT_ABSENCE));
        let said = said.and_then(|text| text.parse::<Timestamp>().ok());
        said.is_some_and(|said| said <= now + ACCEPTED_AHEAD && now < said + ACCEPTED_FOR)
    }
}

/// So long an absence is accepted that somebody accepted.
const ACCEPTED_FOR: Duration = Duration::from_secs(3600);
/// Whoever accepted it may have a clock that is ahead of ours by so much.
const ACCEPTED_AHEAD: Duration = Duration::from_secs(60);

fn default_concurrent_calls() -> u32 {
    8
}
fn default_call_timeout() -> Span {
    Span::secs(30)
}
fn default_create_deadline() -> Span {
    Span::secs(600)
}
fn default_max_unavailable() -> String {
    "25%".into()
}
