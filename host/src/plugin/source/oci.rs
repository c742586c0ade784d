//! Plugins as OCI artifacts, pulled by the Providers that name them.
//!
//! A digest is pulled once for ever; a tag is looked up again now and then, and pulled when it points elsewhere. What was
//! pulled is kept on disk, so that a restart does not depend on the registry.

mod login;
mod pin;
mod repository;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oci_spec::distribution::Reference;
use sha2::{Digest, Sha256};

use self::login::Login;
use self::pin::Pin;
use self::repository::{Descriptor, Repository};
use super::Source;
use crate::model::clock::Clock;
use crate::model::secret::SecretBytes;
use crate::model::spec_hash::hex;
use crate::plugin::contract::foreign;
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
    layer: Option<Pin>,
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
        let pulled = match tokio::time::timeout(PULL, self.pull(reference, docker_config, layer.as_ref())).await {
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
        layer: Option<&Pin>,
    ) -> Result<Pulled, PullError> {
        // A registry is named: nobody's default is asked.
        let named = reference.split_once('/').is_some_and(|(host, _)| host == "localhost" || host.contains(['.', ':']));
        let image: Reference = reference.parse().ok().filter(|_| named).ok_or_else(|| {
            PullError(format!(
                "{reference:?} is no reference; write REGISTRY/REPOSITORY:TAG or REGISTRY/REPOSITORY@sha256:…"
            ))
        })?;
        let pinned = image.digest().is_some();
        if image.digest().is_some_and(|digest| Pin::parse(digest).is_none()) {
            return Err(PullError(format!("{reference:?} has a digest that is neither sha256 nor sha512")));
        }
        let login = docker_config.map(|config| Login::of(config, image.resolve_registry())).transpose()?;
        // One of its own: another Provider has other credentials.
        let mut repository = Repository::new(&image, login, &self.plain)?;
        let which = image.digest().or(image.tag()).unwrap_or("latest");
        let manifest = repository.manifest(which).await?;
        let found = the_layer(&manifest.layers)?;
        let pin = found.pin()?;
        if layer == Some(&pin) {
            return Ok(Pulled { layer: pin, bytes: None, pinned });
        }
        let size = usize::try_from(found.size).unwrap_or(usize::MAX);
        if size > FILE_BYTES {
            return Err(PullError(LoadError::TooLarge(found.size).to_string()));
        }
        let bytes = match self.read(&pin) {
            Some(bytes) => bytes,
            None => {
                let bytes = repository.blob(&pin, size).await?;
                self.store(&pin, &bytes);
                bytes
            }
        };
        self.remember(reference, &pin);
        Ok(Pulled { layer: pin, bytes: Some(bytes), pinned })
    }

    fn blob(&self, pin: &Pin) -> PathBuf {
        self.kept.join(format!("{}.wasm", pin.file()))
    }

    /// Where it is noted what a reference last pointed at.
    fn note(&self, reference: &str) -> PathBuf {
        self.kept.join(format!("{}.ref", hex(&Sha256::digest(reference))))
    }

    fn read(&self, pin: &Pin) -> Option<Vec<u8>> {
        fs::read(self.blob(pin)).ok().filter(|bytes| pin.fits(bytes))
    }

    fn remembered(&self, reference: &str) -> Option<Vec<u8>> {
        self.read(&Pin::of_file(&fs::read_to_string(self.note(reference)).ok()?)?)
    }

    fn remember(&self, reference: &str, pin: &Pin) {
        self.write(&self.note(reference), pin.file().as_bytes());
    }

    fn store(&self, pin: &Pin, bytes: &[u8]) {
        self.write(&self.blob(pin), bytes);
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
    layer: Pin,
    bytes: Option<Vec<u8>>,
    pinned: bool,
}

/// The one layer that is the plugin.
fn the_layer(layers: &[Descriptor]) -> Result<&Descriptor, PullError> {
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
                if types.is_empty() { "none".to_owned() } else { foreign(&types.join(", ")) }
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_layer_is_the_plugin() {
        let layer = |media_type: &str| -> Descriptor {
            serde_json::from_value(serde_json::json!({"mediaType": media_type, "digest": "", "size": 1})).unwrap()
        };
        assert!(the_layer(&[layer("text/plain"), layer(WASM[1])]).is_ok());
        assert!(the_layer(&[layer(WASM[0]), layer(WASM[1])]).unwrap_err().to_string().contains("several"));
        let error = the_layer(&[layer("application/tar")]).unwrap_err().to_string();
        assert!(error.contains("it holds: application/tar"), "{error}");
        assert!(the_layer(&[]).unwrap_err().to_string().contains("it holds: none"));
        let many: Vec<_> = (0..10_000).map(|n| layer(&format!("application/{n}"))).collect();
        assert!(the_layer(&many).unwrap_err().to_string().len() < 2000);
    }
}
