//! Plugins as OCI artifacts, pulled by the Providers that name them.
//!
//! A digest is pulled once for ever; a tag is looked up again now and then, and pulled when it points elsewhere. What was
//! pulled is kept on disk, so that a restart does not depend on the registry.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use oci_client::client::{Client, ClientConfig, ClientProtocol};
use oci_client::manifest::OciDescriptor;
use oci_client::secrets::RegistryAuth;
use oci_client::{Reference, errors::OciDistributionError};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::Source;
use crate::model::clock::Clock;
use crate::model::secret::SecretBytes;
use crate::model::spec_hash::hex;
use crate::plugin::grants::SecretError;
use crate::plugin::limits::FILE_BYTES;
use crate::plugin::load::{LoadError, PullError};
use crate::plugin::registry::Registry;

/// A tag is looked up again after so long, and a pull that failed is tried again.
const RECHECK: Duration = Duration::from_secs(600);
const RETRY: Duration = Duration::from_secs(30);
/// One pull, manifest and layer together.
const PULL: Duration = Duration::from_secs(120);
/// Plugins kept on disk.
const KEPT: usize = 32;
/// How a layer says that it is WebAssembly.
const WASM: [&str; 2] = ["application/wasm", "application/vnd.wasm.content.layer.v1+wasm"];

/// Pulls plugins for the Providers that name them.
pub struct Artifacts {
    registry: Arc<Registry>,
    clock: Arc<dyn Clock>,
    kept: PathBuf,
    /// Registries that are spoken to in plain HTTP, `HOST:PORT`.
    plain: Vec<String>,
    known: Mutex<HashMap<(String, String), Known>>,
}

/// What is known of one reference.
#[derive(Clone)]
struct Known {
    /// When it is looked at again; a digest that was pulled never is.
    due: Option<Duration>,
    /// With these credentials.
    auth: [u8; 32],
    /// The layer that it points at.
    layer: Option<String>,
}

impl Artifacts {
    /// None pulled yet; what is pulled is kept in `folder`.
    pub fn new(registry: Arc<Registry>, clock: Arc<dyn Clock>, folder: &Path, plain: Vec<String>) -> Self {
        Self { registry, clock, kept: folder.join("artifacts"), plain, known: Mutex::default() }
    }

    /// Sees to it that the registry offers what the reference points at, as far as it can be had. `docker_config`: the
    /// pull Secret's `.dockerconfigjson`. What goes wrong is a refusal there.
    pub async fn ensure(&self, name: &str, reference: &str, docker_config: Option<&SecretBytes>) {
        let source = Source::Artifact(reference.to_owned());
        let key = (name.to_owned(), reference.to_owned());
        let auth = Sha256::digest(docker_config.map(SecretBytes::expose).unwrap_or_default()).into();
        let now = self.clock.monotonic();
        let known = self.lock().get(&key).cloned();
        if known.as_ref().is_some_and(|known| known.auth == auth && known.due.is_none_or(|due| due > now)) {
            return;
        }
        let layer = known.and_then(|known| known.layer);
        let pulled = match tokio::time::timeout(PULL, self.pull(reference, docker_config, layer.as_deref())).await {
            Ok(pulled) => pulled,
            Err(_) => Err(PullError(format!("the registry did not deliver it in {} s", PULL.as_secs()))),
        };
        let (due, layer) = match pulled {
            Ok(Pulled { layer, bytes, pinned }) => {
                if let Some(bytes) = bytes {
                    self.registry.offer(name, &source, bytes).await;
                }
                ((!pinned).then(|| now + RECHECK), Some(layer))
            }
            Err(error) => {
                // After a restart what was pulled before serves on.
                if self.registry.artifact(name, reference).current.is_none()
                    && let Some(bytes) = self.remembered(reference)
                {
                    self.registry.offer(name, &source, bytes).await;
                }
                self.registry.refuse(name, &source, "unpulled".into(), &LoadError::Pull(error));
                (Some(now + RETRY), layer)
            }
        };
        self.lock().insert(key, Known { due, auth, layer });
    }

    /// The pull Secret cannot be had, so nothing can be pulled anew.
    pub fn refuse(&self, name: &str, reference: &str, error: &SecretError) {
        let source = Source::Artifact(reference.to_owned());
        self.registry.refuse(name, &source, "unpulled".into(), &LoadError::Pull(PullError(error.to_string())));
    }

    /// Lets go of what no Provider names any more.
    pub fn keep_only(&self, used: &HashSet<(String, String)>) {
        self.lock().retain(|(name, reference), _| {
            let keep = used.contains(&(name.clone(), reference.clone()));
            if !keep {
                self.registry.withdraw(name, &Source::Artifact(reference.clone()));
            }
            keep
        });
    }

    /// Looks the reference up; the bytes only where they are not those of `layer`.
    async fn pull(
        &self,
        reference: &str,
        docker_config: Option<&SecretBytes>,
        layer: Option<&str>,
    ) -> Result<Pulled, PullError> {
        // A registry is named: nobody's default is asked.
        let named = reference.split_once('/').is_some_and(|(host, _)| host == "localhost" || host.contains(['.', ':']));
        let image: Reference = reference.parse().ok().filter(|_| named).ok_or_else(|| {
            PullError(format!(
                "{reference:?} is no reference; write REGISTRY/REPOSITORY:TAG or REGISTRY/REPOSITORY@sha256:…"
            ))
        })?;
        let host = image.resolve_registry().to_owned();
        let auth = match docker_config {
            Some(config) => credentials(config, &host)?,
            None => RegistryAuth::Anonymous,
        };
        // A client of its own: it keeps credentials by registry, and another Provider has others.
        let client = Client::new(ClientConfig {
            protocol: ClientProtocol::HttpsExcept(self.plain.clone()),
            connect_timeout: Some(Duration::from_secs(10)),
            read_timeout: Some(Duration::from_secs(30)),
            ..ClientConfig::default()
        });
        let failed = |error: OciDistributionError| PullError(explain(&host, docker_config.is_some(), &error));
        let pinned = image.digest().is_some();
        let (manifest, _) = client.pull_image_manifest(&image, &auth).await.map_err(failed)?;
        let found = the_layer(&manifest.layers)?;
        let digest = found.digest.trim_start_matches("sha256:").to_owned();
        if layer == Some(&digest) {
            return Ok(Pulled { layer: digest, bytes: None, pinned });
        }
        if found.size as u64 > FILE_BYTES as u64 {
            return Err(PullError(LoadError::TooLarge(found.size as u64).to_string()));
        }
        if let Some(bytes) = self.read(&digest) {
            self.remember(reference, &digest);
            return Ok(Pulled { layer: digest, bytes: Some(bytes), pinned });
        }
        let mut bytes = Bounded(Vec::new());
        client.pull_blob(&image, found, &mut bytes).await.map_err(failed)?;
        self.store(&digest, &bytes.0);
        self.remember(reference, &digest);
        Ok(Pulled { layer: digest, bytes: Some(bytes.0), pinned })
    }

    fn blob(&self, digest: &str) -> PathBuf {
        self.kept.join(format!("{digest}.wasm"))
    }

    /// Where it is noted what a reference last pointed at.
    fn note(&self, reference: &str) -> PathBuf {
        self.kept.join(format!("{}.ref", hex(&Sha256::digest(reference))))
    }

    fn read(&self, digest: &str) -> Option<Vec<u8>> {
        fs::read(self.blob(digest)).ok().filter(|bytes| hex(&Sha256::digest(bytes)) == digest)
    }

    fn remembered(&self, reference: &str) -> Option<Vec<u8>> {
        self.read(&fs::read_to_string(self.note(reference)).ok()?)
    }

    fn remember(&self, reference: &str, digest: &str) {
        self.write(&self.note(reference), digest.as_bytes());
    }

    fn store(&self, digest: &str, bytes: &[u8]) {
        self.write(&self.blob(digest), bytes);
        crate::plugin::engine::prune(&self.kept, "wasm", KEPT);
    }

    /// What cannot be kept is pulled again after a restart.
    fn write(&self, path: &Path, bytes: &[u8]) {
        if let Err(error) = crate::plugin::engine::replace(path, bytes) {
            tracing::warn!(path = %path.display(), %error, "a pulled plugin cannot be kept");
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(String, String), Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a reference points at.
struct Pulled {
    layer: String,
    bytes: Option<Vec<u8>>,
    pinned: bool,
}

/// A file that is cut off where it would be too large, whatever the manifest says of its size.
struct Bounded(Vec<u8>);

impl tokio::io::AsyncWrite for Bounded {
    fn poll_write(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        bytes: &[u8],
    ) -> std::task::Poll<std::io::Result<usize>> {
        if self.0.len() + bytes.len() > FILE_BYTES {
            return std::task::Poll::Ready(Err(std::io::Error::other("the layer is larger than its manifest says")));
        }
        self.0.extend_from_slice(bytes);
        std::task::Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn poll_shutdown(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }
}

/// The one layer that is the plugin.
fn the_layer(layers: &[OciDescriptor]) -> Result<&OciDescriptor, PullError> {
    let mut wasm = layers.iter().filter(|layer| WASM.contains(&layer.media_type.as_str()));
    match (wasm.next(), wasm.next()) {
        (Some(layer), None) => Ok(layer),
        (Some(_), Some(_)) => {
            Err(PullError("the artifact holds several WebAssembly layers; push one plugin as one".into()))
        }
        (None, _) => {
            let types: Vec<_> = layers.iter().map(|layer| layer.media_type.as_str()).collect();
            Err(PullError(format!(
                "the artifact holds no layer of type {}; it holds: {}",
                WASM.join(" or "),
                if types.is_empty() { "none".to_owned() } else { types.join(", ") }
            )))
        }
    }
}

/// The credentials for a registry in a `.dockerconfigjson`.
fn credentials(config: &SecretBytes, host: &str) -> Result<RegistryAuth, PullError> {
    #[derive(Deserialize)]
    struct Config {
        auths: HashMap<String, Entry>,
    }
    #[derive(Deserialize)]
    struct Entry {
        auth: Option<String>,
        username: Option<String>,
        password: Option<String>,
    }
    // serde's own words may quote what it met.
    let bad = || {
        PullError("the pull Secret's .dockerconfigjson is not what kubectl create secret docker-registry writes".into())
    };
    let config: Config = serde_json::from_slice(config.expose()).map_err(|_| bad())?;
    let of_host = |(key, _): &(&String, &Entry)| {
        let key = key.trim_start_matches("https://").trim_start_matches("http://");
        key.split('/').next() == Some(host)
    };
    let Some((_, entry)) = config.auths.iter().find(of_host) else {
        let mut hosts: Vec<_> = config.auths.keys().map(String::as_str).collect();
        hosts.sort_unstable();
        return Err(PullError(format!(
            "the pull Secret has no credentials for {host}; it has some for: {}",
            hosts.join(", ")
        )));
    };
    if let (Some(username), Some(password)) = (&entry.username, &entry.password) {
        return Ok(RegistryAuth::Basic(username.clone(), password.clone()));
    }
    let decoded = entry.auth.as_ref().and_then(|auth| base64::engine::general_purpose::STANDARD.decode(auth).ok());
    let text = decoded.and_then(|bytes| String::from_utf8(bytes).ok()).ok_or_else(bad)?;
    let (username, password) = text.split_once(':').ok_or_else(bad)?;
    Ok(RegistryAuth::Basic(username.to_owned(), password.to_owned()))
}

/// What a failure means, in our words: those of registries are long, and some repeat what they were sent.
fn explain(host: &str, with_secret: bool, error: &OciDistributionError) -> String {
    use OciDistributionError as E;
    let refused = if with_secret {
        format!("registry {host} refuses the credentials of spec.plugin.pullSecretRef; correct the Secret")
    } else {
        format!("registry {host} wants credentials; name their Secret in spec.plugin.pullSecretRef")
    };
    match error {
        E::AuthenticationFailure(_) | E::UnauthorizedError { .. } => refused,
        E::ServerError { code: 401 | 403, .. } => refused,
        E::ImageManifestNotFoundError(_) | E::ServerError { code: 404, .. } => {
            format!("registry {host} has no such artifact; push it, or correct spec.plugin.oci")
        }
        E::RegistryError { envelope, .. } => {
            let codes: Vec<String> = envelope.errors.iter().map(|e| format!("{:?}", e.code)).collect();
            if codes.iter().any(|code| code.contains("Unauthorized") || code.contains("Denied")) {
                return refused;
            }
            if codes.iter().any(|code| code.contains("Unknown")) {
                return format!("registry {host} has no such artifact; push it, or correct spec.plugin.oci");
            }
            format!("registry {host} refused the pull ({}); correct spec.plugin.oci", codes.join(", "))
        }
        E::DigestError(_) => format!("registry {host} delivered something else than its digest names; push it again"),
        E::IoError(error) => format!("{error} (registry {host})"),
        E::RequestError(error) => {
            let mut cause: &dyn std::error::Error = error;
            while let Some(deeper) = cause.source() {
                cause = deeper;
            }
            format!("registry {host} cannot be reached: {cause}")
        }
        E::ServerError { code, .. } => format!("registry {host} answered with status {code}"),
        other => format!("registry {host}: {}", other.to_string().chars().take(200).collect::<String>()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> SecretBytes {
        text.to_owned().into()
    }

    #[test]
    fn credentials_are_those_of_the_registry_alone() {
        let both = config(
            r#"{"auths":{"https://one.example/v1/":{"auth":"YW5uOnMzY3JldDp4"},"two.example:5000":{"username":"bob","password":"pw"}}}"#,
        );
        assert_eq!(credentials(&both, "one.example").unwrap(), RegistryAuth::Basic("ann".into(), "s3cret:x".into()));
        assert_eq!(credentials(&both, "two.example:5000").unwrap(), RegistryAuth::Basic("bob".into(), "pw".into()));
        let error = credentials(&both, "three.example").unwrap_err().to_string();
        assert!(error.contains("no credentials for three.example") && !error.contains("s3cret"), "{error}");
        for nonsense in ["s3cret", "{}", r#"{"auths":{"one.example":{"auth":"s3cret"}}}"#] {
            let error = credentials(&config(nonsense), "one.example").unwrap_err().to_string();
            assert!(error.contains("kubectl create secret docker-registry") && !error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn one_layer_is_the_plugin() {
        let layer = |media_type: &str| OciDescriptor { media_type: media_type.into(), ..OciDescriptor::default() };
        assert!(the_layer(&[layer("text/plain"), layer(WASM[1])]).is_ok());
        assert!(the_layer(&[layer(WASM[0]), layer(WASM[1])]).unwrap_err().to_string().contains("several"));
        let error = the_layer(&[layer("application/tar")]).unwrap_err().to_string();
        assert!(error.contains("it holds: application/tar"), "{error}");
        assert!(the_layer(&[]).unwrap_err().to_string().contains("it holds: none"));
    }
}
