//! Secrets of a standalone operator: `kind: Secret` manifests, in memory only, and files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::RwLock;

use crate::model::PROVIDER_SECRET_LABEL;
use crate::model::login::Login;
use crate::model::manifest::SecretManifest;
use crate::model::provider::Source;
use crate::model::secret::SecretBytes;
use crate::plugin::grants::SecretError;
use crate::store::LabelledSecret;

/// A credential is no larger.
const FILE_BYTES: u64 = 1 << 20;

pub(super) struct SecretFiles {
    manifests: RwLock<BTreeMap<String, SecretManifest>>,
    roots: Vec<PathBuf>,
}

impl SecretFiles {
    pub fn new(roots: Vec<PathBuf>) -> Self {
        Self { manifests: RwLock::default(), roots }
    }

    /// Replaces what the manifests hold; answers whether anything changed.
    pub fn replace(&self, secrets: BTreeMap<String, SecretManifest>) -> bool {
        let mut held = self.manifests.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        let changed = *held != secrets;
        *held = secrets;
        changed
    }

    pub fn resolve(&self, source: &Source) -> Result<SecretBytes, SecretError> {
        match (&source.secret_ref, &source.file) {
            (Some(reference), _) => {
                let secret = self.get(&reference.name)?;
                if secret.labels.get(PROVIDER_SECRET_LABEL).is_none_or(|v| v != "true") {
                    return Err(SecretError::Denied(format!(
                        "Secret {} is not for providers: label it {PROVIDER_SECRET_LABEL}: \"true\"",
                        reference.name
                    )));
                }
                secret.data.get(&reference.key).cloned().ok_or_else(|| {
                    let keys: Vec<_> = secret.data.keys().map(String::as_str).collect();
                    SecretError::Missing(format!(
                        "Secret {} has no key {:?}; it has: {}",
                        reference.name,
                        reference.key,
                        keys.join(", ")
                    ))
                })
            }
            (None, Some(path)) => self.file(Path::new(path)),
            (None, None) => Err(SecretError::Missing("neither secretRef nor file is given".into())),
        }
    }

    pub fn login(&self, name: &str) -> Result<Login, SecretError> {
        let secret = self.get(name)?;
        let field = |key: &str| {
            let value = secret.data.get(key).and_then(SecretBytes::expose_line).filter(|v| !v.is_empty());
            value.map(str::to_owned).ok_or_else(|| {
                SecretError::Missing(format!(
                    "Secret {name} must hold the keys username and password as text; {key} is missing"
                ))
            })
        };
        Ok(Login { username: field("username")?, password: field("password")?.into() })
    }

    pub fn labelled(&self, label: &str) -> Vec<LabelledSecret> {
        let held = self.manifests.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        held.values()
            .filter(|s| s.labels.get(label).is_some_and(|v| v == "true"))
            .map(|s| LabelledSecret { name: s.name.clone(), data: s.data.clone() })
            .collect()
    }

    fn get(&self, name: &str) -> Result<SecretManifest, SecretError> {
        let held = self.manifests.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        held.get(name).cloned().ok_or_else(|| {
            SecretError::Missing(format!(
                "Secret {name} does not exist: put a manifest of kind: Secret into the manifest folder, with mode 0600"
            ))
        })
    }

    /// Only below the folders that the administrator named: a Provider must not read whatever the operator can.
    fn file(&self, path: &Path) -> Result<SecretBytes, SecretError> {
        let missing = |e: std::io::Error| SecretError::Missing(format!("file {}: {e}", path.display()));
        let real = path.canonicalize().map_err(missing)?;
        let inside = self.roots.iter().any(|root| root.canonicalize().is_ok_and(|root| real.starts_with(root)));
        if !inside {
            let roots: Vec<_> = self.roots.iter().map(|r| r.display().to_string()).collect();
            return Err(SecretError::Denied(format!("file {} is not below {}", path.display(), roots.join(" or "))));
        }
        if fs::metadata(&real).map_err(missing)?.len() > FILE_BYTES {
            return Err(SecretError::Unreadable(format!("file {} is over {FILE_BYTES} bytes", path.display())));
        }
        fs::read(&real)
            .map(SecretBytes::from)
            .map_err(|e| SecretError::Unreadable(format!("file {}: {e}", path.display())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::provider::SecretKeyRef;

    fn mk_secret(name: &str, label: Option<&str>) -> SecretManifest {
        let labels = label.map(|l| (l.to_owned(), "true".to_owned())).into_iter().collect();
        SecretManifest {
            name: name.into(),
            labels,
            data: BTreeMap::from([("token".to_owned(), SecretBytes::from("t0ken".to_owned()))]),
        }
    }

    fn mk_ref(name: &str, key: &str) -> Source {
        Source { secret_ref: Some(SecretKeyRef { name: name.into(), key: key.into() }), file: None }
    }

    #[test]
    fn only_labelled_secrets_serve_providers() {
        let secrets = SecretFiles::new(vec![]);
        let all = [mk_secret("good", Some(PROVIDER_SECRET_LABEL)), mk_secret("plain", None)];
        secrets.replace(all.into_iter().map(|s| (s.name.clone(), s)).collect());
        assert_eq!(secrets.resolve(&mk_ref("good", "token")).unwrap().expose(), b"t0ken");
        assert!(matches!(secrets.resolve(&mk_ref("plain", "token")), Err(SecretError::Denied(_))));
        assert!(matches!(secrets.resolve(&mk_ref("good", "other")), Err(SecretError::Missing(_))));
        assert!(matches!(secrets.resolve(&mk_ref("none", "token")), Err(SecretError::Missing(_))));
    }

    #[test]
    fn files_are_read_below_the_named_folders_only() {
        let dir = tempfile::tempdir().unwrap();
        let (inside, outside) = (dir.path().join("in"), dir.path().join("out"));
        fs::create_dir(&inside).unwrap();
        fs::write(inside.join("key"), "k").unwrap();
        fs::write(&outside, "o").unwrap();
        std::os::unix::fs::symlink(&outside, inside.join("link")).unwrap();
        let secrets = SecretFiles::new(vec![inside.clone()]);
        let read =
            |path: PathBuf| secrets.resolve(&Source { secret_ref: None, file: Some(path.display().to_string()) });
        assert_eq!(read(inside.join("key")).unwrap().expose(), b"k");
        assert!(matches!(read(outside), Err(SecretError::Denied(_))));
        assert!(matches!(read(inside.join("link")), Err(SecretError::Denied(_))));
        assert!(matches!(read(inside.join("../out")), Err(SecretError::Denied(_))));
        assert!(matches!(read(inside.join("none")), Err(SecretError::Missing(_))));
    }
}
