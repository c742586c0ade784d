//! What a provider reaches its backend with: connections, and where their credentials are.

use std::fmt;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    pub service_account: Option<crate::model::proxy::NameRef>,
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

fn default_ssh_port() -> u16 {
    22
}
