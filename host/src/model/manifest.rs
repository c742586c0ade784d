//! Manifests: YAML documents of the CRD schemas, and `kind: Secret`, as kubectl takes them.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use base64::Engine as _;
use kube::CustomResourceExt;
use kube::core::ObjectMeta;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::API_VERSION;
use super::error::{FieldError, list_fields};
use super::naming::{Kind, ObjectRef, is_label, is_subdomain};
use super::provider::Provider;
use super::proxy::Proxy;
use super::secret::SecretBytes;

/// Documents of a file: more than fleets have Proxies.
const DOCUMENTS: usize = 100_000;
/// Most bytes and nesting levels of `config` and `parameters`.
const FREE_OBJECT_BYTES: usize = 64 * 1024;
const FREE_OBJECT_DEPTH: usize = 32;

/// One object of a manifest.
#[derive(Clone, Debug)]
pub enum Manifest {
    /// A `Proxy`.
    Proxy(Box<Proxy>),
    /// A `Provider`.
    Provider(Box<Provider>),
    /// A `Secret`.
    Secret(SecretManifest),
}

impl Manifest {
    /// What it names; a Proxy without a namespace is in `default`.
    pub fn reference(&self) -> ObjectRef {
        let name = |metadata: &ObjectMeta| metadata.name.clone().unwrap_or_default();
        match self {
            Self::Proxy(proxy) => {
                let namespace = proxy.metadata.namespace.as_deref().unwrap_or("default");
                ObjectRef::new(Kind::Proxy, namespace, &name(&proxy.metadata))
            }
            Self::Provider(provider) => ObjectRef::new(Kind::Provider, "", &name(&provider.metadata)),
            Self::Secret(secret) => ObjectRef::new(Kind::Secret, "", &secret.name),
        }
    }
}

/// A `kind: Secret` manifest. `Debug` shows no value.
#[derive(Clone, Debug, PartialEq)]
pub struct SecretManifest {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its values.
    pub data: BTreeMap<String, SecretBytes>,
}

/// Why a manifest is refused. The text names the object and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// Not YAML, or cut off.
    #[error("not valid YAML: {0}")]
    Yaml(String),
    /// A kind that is not ours.
    #[error(
        "{kind} {api_version} is not served here: use kind Proxy or Provider with apiVersion {API_VERSION}, or kind Secret with apiVersion v1"
    )]
    Kind {
        /// As written.
        kind: String,
        /// As written.
        api_version: String,
    },
    /// Fields that the schema refuses.
    #[error("{kind} {name:?} is invalid: {}", list_fields(errors))]
    Invalid {
        /// The kind.
        kind: &'static str,
        /// The name, as far as it is known.
        name: String,
        /// Each wrong field.
        errors: Vec<FieldError>,
    },
}

/// The CRDs, as `proxy-operator crd` prints them and as manifests are checked.
pub fn crds() -> [Value; 2] {
    // The derived definitions hold nothing that JSON cannot hold.
    let json = |crd| serde_json::to_value(crd).expect("a CRD is JSON");
    [json(Provider::crd()), json(Proxy::crd())]
}

/// Reads all documents of a file; empty ones are passed over.
///
/// # Errors
/// The first document that is wrong refuses the whole file, so that a half-written file changes nothing.
pub fn parse(text: &str) -> Result<Vec<Manifest>, ManifestError> {
    documents(text)?.into_iter().map(parse_document).collect()
}

/// What the documents of a file name, be they right or wrong otherwise.
///
/// # Errors
/// When the text is no YAML, or a document has no kind or name of ours.
pub fn references(text: &str) -> Result<Vec<ObjectRef>, ManifestError> {
    let reference = |document: &Value| {
        let text = |pointer: &str| document.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (kind, name) = (text("/kind"), text("/metadata/name"));
        let kind = match kind.as_str() {
            _ if name.is_empty() => None,
            "Proxy" => Some(Kind::Proxy),
            "Provider" => Some(Kind::Provider),
            "Secret" => Some(Kind::Secret),
            _ => None,
        };
        let namespace = Some(text("/metadata/namespace")).filter(|n| !n.is_empty()).unwrap_or("default".into());
        kind.map(|kind| ObjectRef::new(kind, &namespace, &name)).ok_or_else(|| not_served(document))
    };
    documents(text)?.iter().map(reference).collect()
}

/// The documents of a file as YAML; empty ones are passed over.
fn documents(text: &str) -> Result<Vec<Value>, ManifestError> {
    let refuse = |e: serde_saphyr::Error| {
        // The parser quotes the lines around the fault: never of what may be a Secret.
        ManifestError::Yaml(match e.location() {
            _ if !text.contains("Secret") => e.to_string(),
            Some(at) => format!("wrong at line {}, column {}", at.line(), at.column()),
            None => "the parser names no line".into(),
        })
    };
    // YAML 1.2: a Proxy called `y` or `on` is no boolean.
    let budget = serde_saphyr::budget! { max_documents: DOCUMENTS };
    let options = serde_saphyr::options! { strict_booleans: true, budget: budget };
    let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(text, options).map_err(refuse)?;
    Ok(documents.into_iter().filter(|d| !d.is_null()).collect())
}

fn not_served(document: &Value) -> ManifestError {
    let text = |field: &str| document.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let kind = Some(text("kind")).filter(|kind| !kind.is_empty());
    ManifestError::Kind { kind: kind.unwrap_or("a document without kind".into()), api_version: text("apiVersion") }
}

fn parse_document(document: Value) -> Result<Manifest, ManifestError> {
    let text = |field: &str| document.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (kind, api_version) = (text("kind"), text("apiVersion"));
    match (kind.as_str(), api_version.as_str()) {
        ("Proxy", API_VERSION) => {
            let proxy: Proxy = checked("Proxy", &PROXY_SCHEMA, document, is_subdomain)?;
            proxy_rules(&proxy)?;
            Ok(Manifest::Proxy(Box::new(proxy)))
        }
        ("Provider", API_VERSION) => {
            let provider: Provider = checked("Provider", &PROVIDER_SCHEMA, document, is_label)?;
            provider_rules(&provider)?;
            Ok(Manifest::Provider(Box::new(provider)))
        }
        ("Secret", "v1") => parse_secret(document).map(Manifest::Secret),
        _ => Err(not_served(&document)),
    }
}

static PROXY_SCHEMA: LazyLock<Value> = LazyLock::new(|| schema_of(&crds()[1]));
static PROVIDER_SCHEMA: LazyLock<Value> = LazyLock::new(|| schema_of(&crds()[0]));

fn schema_of(crd: &Value) -> Value {
    crd.pointer("/spec/versions/0/schema/openAPIV3Schema").cloned().unwrap_or_default()
}

/// Checks a document against the CRD's schema as strictly as kubectl's server-side validation: unknown fields are errors.
fn checked<T: DeserializeOwned>(
    kind: &'static str,
    schema: &Value,
    document: Value,
    name_rule: fn(&str) -> bool,
) -> Result<T, ManifestError> {
    let name = document.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let refuse = |errors| Err(ManifestError::Invalid { kind, name: name.clone(), errors });
    if !name_rule(&name) {
        let message = "a name of lower-case letters, digits and '-' is needed, at most 63 characters".to_owned();
        return refuse(vec![FieldError { pointer: "/metadata/name".into(), message }]);
    }
    let mut errors = super::instance::check_schema(schema, &document, "").err().unwrap_or_default();
    unknown_fields(schema, &document, "", &mut errors);
    if document.pointer("/metadata/namespace").is_some_and(|of| !of.as_str().is_some_and(is_label)) {
        let message = "a name of lower-case letters, digits and '-' is needed, at most 63 characters".to_owned();
        errors.push(FieldError { pointer: "/metadata/namespace".into(), message });
    }
    if !errors.is_empty() {
        return refuse(errors);
    }
    // Status belongs to the operator, and so does all metadata but what a user may set.
    let mut document = document;
    if let Some(object) = document.as_object_mut() {
        object.remove("status");
    }
    match serde_json::from_value(document) {
        Ok(object) => Ok(object),
        Err(e) => refuse(vec![FieldError { pointer: String::new(), message: e.to_string() }]),
    }
}

/// Collects fields of `value` that `schema` does not know.
fn unknown_fields(schema: &Value, value: &Value, pointer: &str, errors: &mut Vec<FieldError>) {
    if schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true)) {
        return;
    }
    match value {
        Value::Object(fields) => {
            let known = schema.get("properties").and_then(Value::as_object);
            let rest = schema.get("additionalProperties").filter(|s| s.is_object());
            for (name, inner) in fields {
                let below = format!("{pointer}/{name}");
                match known.and_then(|k| k.get(name)).or(rest) {
                    Some(inner_schema) => unknown_fields(inner_schema, inner, &below, errors),
                    None if pointer.is_empty() && matches!(name.as_str(), "apiVersion" | "kind" | "metadata") => {}
                    None => {
                        let mut valid: Vec<_> = known.into_iter().flatten().map(|(k, _)| k.as_str()).collect();
                        valid.sort_unstable();
                        errors.push(FieldError {
                            pointer: below,
                            message: format!("unknown field; known here: {}", valid.join(", ")),
                        });
                    }
                }
            }
        }
        Value::Array(items) => {
            if let Some(inner) = schema.get("items") {
                for (i, item) in items.iter().enumerate() {
                    unknown_fields(inner, item, &format!("{pointer}/{i}"), errors);
                }
            }
        }
        _ => {}
    }
}

/// The cross-field rules that the CRD states in CEL.
fn proxy_rules(proxy: &Proxy) -> Result<(), ManifestError> {
    let mut errors = Vec::new();
    let auth = &proxy.spec.auth;
    if (auth.mode == super::proxy::AuthMode::Secret) != auth.secret_ref.is_some() {
        errors.push(FieldError {
            pointer: "/spec/auth".into(),
            message: "secretRef goes with mode: secret, and only with it".into(),
        });
    }
    bounded(&Value::Object(proxy.spec.parameters.clone()), "/spec/parameters", &mut errors);
    finish("Proxy", &proxy.metadata, errors)
}

fn provider_rules(provider: &Provider) -> Result<(), ManifestError> {
    let mut errors = Vec::new();
    let mut source = |pointer: String, source: &super::provider::Source| {
        if source.secret_ref.is_some() == source.file.is_some() {
            errors.push(FieldError { pointer, message: "give either secretRef or file".into() });
        }
    };
    for (name, secret) in &provider.spec.secrets {
        source(format!("/spec/secrets/{name}"), secret);
    }
    for (name, connection) in &provider.spec.connections {
        let at = format!("/spec/connections/{name}");
        if let Some(ssh) = &connection.ssh {
            source(format!("{at}/ssh/key"), &ssh.key);
            source(format!("{at}/ssh/knownHosts"), &ssh.known_hosts);
        }
        if let Some(auth) = connection.http.as_ref().and_then(|http| http.auth.as_ref()) {
            for (kind, of) in [
                ("bearer", auth.bearer.as_ref()),
                ("basic/password", auth.basic.as_ref().map(|b| &b.password)),
                ("header/value", auth.header.as_ref().map(|h| &h.value)),
                ("googleServiceAccount", auth.google_service_account.as_ref().map(|g| &g.key)),
            ] {
                if let Some(of) = of {
                    source(format!("{at}/http/auth/{kind}"), of);
                }
            }
        }
    }
    for (name, connection) in &provider.spec.connections {
        let at = format!("/spec/connections/{name}");
        if !is_label(name) {
            errors.push(FieldError { pointer: at.clone(), message: "a connection's name is a DNS-1123 label".into() });
        }
        if connection.ssh.is_some() == connection.http.is_some() {
            errors.push(FieldError { pointer: at.clone(), message: "a connection is either ssh or http".into() });
        }
        if let Some(auth) = connection.http.as_ref().and_then(|http| http.auth.as_ref()) {
            let given = [
                auth.bearer.is_some(),
                auth.basic.is_some(),
                auth.header.is_some(),
                auth.service_account.is_some(),
                auth.google_service_account.is_some(),
                auth.google_metadata.is_some(),
            ];
            if given.iter().filter(|g| **g).count() != 1 {
                errors.push(FieldError { pointer: format!("{at}/http/auth"), message: "auth holds exactly one of bearer, basic, header, serviceAccount, googleServiceAccount and googleMetadata".into() });
            }
        }
    }
    bounded(&Value::Object(provider.spec.config.clone()), "/spec/config", &mut errors);
    finish("Provider", &provider.metadata, errors)
}

fn finish(kind: &'static str, metadata: &ObjectMeta, errors: Vec<FieldError>) -> Result<(), ManifestError> {
    if errors.is_empty() {
        Ok(())
    } else {
        Err(ManifestError::Invalid { kind, name: metadata.name.clone().unwrap_or_default(), errors })
    }
}

fn bounded(value: &Value, pointer: &str, errors: &mut Vec<FieldError>) {
    if depth(value) > FREE_OBJECT_DEPTH {
        errors.push(FieldError {
            pointer: pointer.into(),
            message: format!("nested deeper than {FREE_OBJECT_DEPTH} levels"),
        });
    } else if value.to_string().len() > FREE_OBJECT_BYTES {
        errors.push(FieldError {
            pointer: pointer.into(),
            message: format!("larger than {FREE_OBJECT_BYTES} bytes as JSON"),
        });
    }
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawSecret {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    metadata: ObjectMeta,
    #[serde(default, rename = "type")]
    _type: Option<String>,
    #[serde(default, rename = "immutable")]
    _immutable: Option<bool>,
    #[serde(default)]
    data: BTreeMap<String, String>,
    #[serde(default)]
    string_data: BTreeMap<String, String>,
}

fn parse_secret(document: Value) -> Result<SecretManifest, ManifestError> {
    let name = document.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let refuse = |pointer: String, message: String| ManifestError::Invalid {
        kind: "Secret",
        name: name.clone(),
        errors: vec![FieldError { pointer, message }],
    };
    if !is_subdomain(&name) {
        return Err(refuse(
            "/metadata/name".into(),
            "a name of lower-case letters, digits, '-' and '.' is needed".into(),
        ));
    }
    // serde's text of a wrong type would repeat the value.
    let raw: RawSecret = serde_json::from_value(document).map_err(|_| {
        refuse(String::new(), "data and stringData hold text values, beside metadata, type and immutable".into())
    })?;
    let mut data = BTreeMap::new();
    for (key, value) in raw.data {
        let bytes = base64::engine::general_purpose::STANDARD
            .decode(value.as_bytes())
            .map_err(|_| refuse(format!("/data/{key}"), "not base64: write plain text under stringData".into()))?;
        data.insert(key, bytes.into());
    }
    data.extend(raw.string_data.into_iter().map(|(key, value)| (key, value.into())));
    Ok(SecretManifest { name, labels: raw.metadata.labels.unwrap_or_default(), data })
}

#[cfg(test)]
#[path = "manifest_tests.rs"]
mod tests;
