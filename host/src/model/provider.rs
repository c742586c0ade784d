//! `Provider`: a named instance of a plugin, with what it may reach.
// Each printer column repeats the same keys.
#![allow(clippy::duplicated_attributes)]

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

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

/// One connection: exactly one of ssh and http.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[x_kube(validation = ("has(self.ssh) != has(self.http)", "a connection is either ssh or http"))]
pub struct Connection {
    /// Commands on a host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh: Option<SshConnection>,
    /// Requests to an origin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpConnection>,
}

/// SSH to one account of one host.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SshConnection {
    /// Host name or address.
    #[schemars(length(min = 1, max = 253))]
    pub host: String,
    /// Port.
    #[serde(default = "default_ssh_port")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// Account.
    #[schemars(length(min = 1, max = 64))]
    pub user: String,
    /// Private key.
    pub key: Source,
    /// Pinned host keys, in the format of known_hosts.
    pub known_hosts: Source,
    /// Beginnings of argv that are allowed, word by word. Empty: every command.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 16), inner(length(max = 256))))]
    pub allow: Vec<Vec<String>>,
    /// Kinds of addresses that are refused unless listed here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2))]
    pub permit: Vec<Permit>,
}

/// HTTP to one origin.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HttpConnection {
    /// Scheme, host, port and path prefix. Absent with serviceAccount: this cluster's API server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048), regex(pattern = r"^https?://"))]
    pub base_url: Option<String>,
    /// How the operator authenticates. Absent: not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<HttpAuth>,
    /// Certificate authorities (PEM) instead of the public ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<Source>,
    /// Methods and paths that are allowed. Empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub allow: Vec<HttpRule>,
    /// Kinds of addresses that are refused unless listed here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2))]
    pub permit: Vec<Permit>,
}

/// How the operator authenticates: exactly one.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = (
    "[has(self.bearer), has(self.basic), has(self.header), has(self.serviceAccount), has(self.googleServiceAccount), has(self.googleMetadata)].filter(x, x).size() == 1",
    "auth holds exactly one of bearer, basic, header, serviceAccount, googleServiceAccount and googleMetadata"
))]
pub struct HttpAuth {
    /// A bearer token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bearer: Option<Source>,
    /// User and password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basic: Option<BasicAuth>,
    /// A header with a secret value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<HeaderAuth>,
    /// A token of a service account of the operator's namespace, by TokenRequest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account: Option<super::proxy::NameRef>,
    /// Google: a service account's key file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub google_service_account: Option<GoogleServiceAccount>,
    /// Google: the metadata server of the machine that the operator runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub google_metadata: Option<GoogleMetadata>,
}

/// User and password.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
pub struct BasicAuth {
    /// The user.
    #[schemars(length(min = 1, max = 256))]
    pub username: String,
    /// The password.
    pub password: Source,
}

/// A header with a secret value.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
pub struct HeaderAuth {
    /// Name of the header.
    #[schemars(length(min = 1, max = 128))]
    pub name: String,
    /// Its value.
    pub value: Source,
}

/// A Google service account's key file.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GoogleServiceAccount {
    /// The key file.
    #[serde(flatten)]
    pub key: Source,
    /// Instead of the token endpoint that the key file names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub token_url: Option<String>,
}

/// The metadata server.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
pub struct GoogleMetadata {
    /// Instead of its usual address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub url: Option<String>,
}

/// Methods and a path prefix that are allowed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HttpRule {
    /// Methods, upper case.
    #[schemars(length(min = 1, max = 16), inner(length(max = 16)))]
    pub methods: Vec<String>,
    /// This path and all below it, by whole segments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub path_prefix: Option<String>,
    /// This path alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub path: Option<String>,
}

/// Kinds of addresses that are refused by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Permit {
    /// 127.0.0.0/8 and ::1.
    Loopback,
    /// 169.254.0.0/16 and fe80::/10, metadata servers among them.
    LinkLocal,
}

/// Where a credential comes from: exactly one of secretRef and file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("has(self.secretRef) != has(self.file)", "give either secretRef or file"))]
pub struct Source {
    /// A key of a Secret of the operator's namespace that is labelled crawl.example.com/provider-secret=true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretKeyRef>,
    /// An absolute path of a file that is mounted into the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 1024), regex(pattern = r"^/"))]
    pub file: Option<String>,
}

impl Source {
    /// A key of a Secret.
    pub fn secret(name: &str, key: &str) -> Self {
        Self { secret_ref: Some(SecretKeyRef { name: name.into(), key: key.into() }), file: None }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.secret_ref, &self.file) {
            (Some(reference), _) => write!(f, "key {:?} of Secret {}", reference.key, reference.name),
            (None, Some(file)) => write!(f, "file {file}"),
            (None, None) => f.write_str("neither secretRef nor file"),
        }
    }
}

/// A key of a Secret.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
pub struct SecretKeyRef {
    /// The Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// The key.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
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

fn default_ssh_port() -> u16 {
    22
}
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
