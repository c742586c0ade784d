//! Secrets of a standalone operator: `kind: Secret` manifests, in memory only, and files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::RwLock;

use async_trait::async_trait;

use crate::model::login::Login;
use crate::model::manifest::SecretManifest;
use crate::model::provider::Source;
use crate::model::secret::SecretBytes;
use crate::plugin::grants::{SecretError, Secrets};
use crate::store::LabelledSecret;
use crate::store::credentials::{FileRoots, login, provider_value};

/// The Secrets of some manifests, and files below some folders.
pub struct SecretFiles {
    manifests: RwLock<BTreeMap<String, SecretManifest>>,
    roots: FileRoots,
}

impl SecretFiles {
    /// No Secret yet; files may be read below `roots`.
    pub fn new(roots: Vec<PathBuf>) -> Self {
        Self { manifests: RwLock::default(), roots: FileRoots::new(roots) }
    }

    /// Replaces what the manifests hold; answers whether anything changed.
    pub fn replace(&self, secrets: BTreeMap<String, SecretManifest>) -> bool {
        let mut held = self.manifests.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        let changed = *held != secrets;
        *held = secrets;
        changed
    }

    /// The present value of a source.
    ///
    /// # Errors
    /// When it is missing, or not for providers.
    pub fn value(&self, source: &Source) -> Result<SecretBytes, SecretError> {
        match (&source.secret_ref, &source.file) {
            (Some(reference), _) => provider_value(&self.get(&reference.name)?, &reference.key),
            (None, Some(path)) => self.roots.read(Path::new(path)),
            (None, None) => Err(SecretError::Missing("neither secretRef nor file is given".into())),
        }
    }

    /// Tells of each change of a file that was read. Ends never.
    pub(super) async fn follow_files(&self, changed: impl Fn()) {
        self.roots.follow(changed).await;
    }

    pub(super) fn login(&self, name: &str) -> Result<Login, SecretError> {
        login(&self.get(name)?)
    }

    pub(super) fn labelled(&self, label: &str) -> Vec<LabelledSecret> {
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
}

#[async_trait]
impl Secrets for SecretFiles {
    async fn resolve(&self, source: &Source) -> Result<SecretBytes, SecretError> {
        self.value(source)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::model::PROVIDER_SECRET_LABEL;
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
        assert_eq!(secrets.value(&mk_ref("good", "token")).unwrap().expose(), b"t0ken");
        assert!(matches!(secrets.value(&mk_ref("plain", "token")), Err(SecretError::Denied(_))));
        assert!(matches!(secrets.value(&mk_ref("good", "other")), Err(SecretError::Missing(_))));
        assert!(matches!(secrets.value(&mk_ref("none", "token")), Err(SecretError::Missing(_))));
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
        let read = |path: PathBuf| secrets.value(&Source { secret_ref: None, file: Some(path.display().to_string()) });
        assert_eq!(read(inside.join("key")).unwrap().expose(), b"k");
        assert!(matches!(read(outside), Err(SecretError::Denied(_))));
        assert!(matches!(read(inside.join("link")), Err(SecretError::Denied(_))));
        assert!(matches!(read(inside.join("../out")), Err(SecretError::Denied(_))));
        assert!(matches!(read(inside.join("none")), Err(SecretError::Missing(_))));
    }
}
